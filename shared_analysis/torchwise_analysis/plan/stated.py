"""What a person states beside the script: `# torchwise: batch_size=8 data=float32[100,1000]`.

A tensor lies on the CPU unless `@cuda` follows it.

A statement above an assignment (or on its line) gives the assigned name its value; a name that no assignment
below binds answers an option or a field of the plan that the script leaves open. Nothing else is changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchwise_memory.report import Origin
from torchwise_memory.runtime.dtypes import DTYPES

_COMMENT = re.compile(r"#\s*torchwise:(?!\s*ignore)(?P<rest>[^#]*)")
_PAIR = re.compile(
    r"(?P<name>[A-Za-z_]\w*)\s*=\s*"
    r"(?P<value>\"[^\"]*\"|'[^']*'|\w+\[[\d,\s]*\](?:@\w+)?|[^\s,]+)"
)
_SHAPE = re.compile(r"(?P<dtype>\w+)\[(?P<extents>[\d,\s]*)\](?:@(?P<device>cpu|cuda))?$")
_WORDS: dict[str, object] = {"true": True, "false": False, "none": None}

#: Names that mean a field of the plan, by the names of the choices that they settle.
PLAN_NAMES = {
    "batch_size": "micro_batch",
    "micro_batch": "micro_batch",
    "seq_len": "seq_len",
    "image_size": "image_size",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A stated tensor: its type's name, its extents and where it lies."""

    dtype: str
    extents: tuple[int, ...]
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Stated:
    """Statements of one file: by the line (from 1) that they stand above or on, and by name."""

    by_line: dict[int, dict[str, object]] = field(default_factory=dict[int, dict[str, object]])
    by_name: dict[str, tuple[object, Origin]] = field(default_factory=dict[str, tuple[object, Origin]])


def read_statements(path: str, text: str) -> Stated:
    """The statements in a file's comments."""
    stated = Stated()
    if "torchwise:" not in text:
        return stated
    from torchwise_analysis.suppressions import comments

    rows = text.split("\n")
    for comment in comments(text):
        match = _COMMENT.match(comment.text)
        if match is None:
            continue
        values = {pair["name"]: _value(pair["value"]) for pair in _PAIR.finditer(match["rest"])}
        origin = Origin(path, comment.line + 1)
        stated.by_line.setdefault(_line_below(rows, comment.line), {}).update(values)
        for name, value in values.items():
            for key in {name, PLAN_NAMES.get(name, name)}:
                stated.by_name.setdefault(key, (value, origin))
    return stated


def _line_below(rows: list[str], line: int) -> int:
    """The line from 1 that a comment speaks of: its own if code stands there, else the next one with code."""
    if not rows[line].lstrip().startswith("#"):
        return line + 1
    following = line + 1
    while following < len(rows) and (not rows[following].strip() or rows[following].lstrip().startswith("#")):
        following += 1
    return following + 1


def _value(written: str) -> object:
    if written[:1] in "\"'":
        return written[1:-1]
    shape = _SHAPE.match(written)
    if shape is not None and shape["dtype"] in DTYPES:
        extents = tuple(int(part) for part in shape["extents"].split(",") if part.strip())
        return Shape(shape["dtype"], extents, shape["device"] or "cpu")
    for convert in (int, float):
        try:
            return convert(written)
        except ValueError:
            continue
    return _WORDS.get(written.lower(), written)
