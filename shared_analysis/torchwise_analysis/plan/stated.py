"""What a person states beside the script: `# torchwise: batch_size=8 data=float32[100,1000]`.

A tensor lies on the CPU unless `@cuda` follows it.

Whoever asks may state the same (`given`): it holds for every assignment of the name in the file.

A statement above an assignment (or on its line) gives the assigned name its value; a name that no assignment
below binds answers an option or a field of the plan that the script leaves open. Nothing else is changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from torchwise_analysis.names.launches import GIVEN
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
    "world_size": "world_size",
    "prompt_len": "prompt_len",
    "completion_len": "completion_len",
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


class Noted(dict[str, tuple[object, Origin]]):
    """Statements by name, which remember those that were asked for. `used`: their names."""

    def __init__(self, by_name: dict[str, tuple[object, Origin]]) -> None:
        super().__init__(by_name)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> tuple[object, Origin]:
        self.used.add(name)
        return super().__getitem__(name)


def read_statements(path: str, text: str, given: Sequence[str] = ()) -> Stated:
    """The statements in a file's comments, and those that are given in place of some of them."""
    stated = Stated()
    if "torchwise:" in text:
        _add_comments(stated, path, text)
    for statement in given:
        pair = _PAIR.fullmatch(statement)
        if pair is not None:
            _add_given(stated, text, pair["name"], _value(pair["value"]))
    return stated


def is_statement(words: str) -> bool:
    """Whether these words state something: NAME=VALUE."""
    return _PAIR.fullmatch(words) is not None


def is_spoken_of(name: str, text: str) -> bool:
    """Whether a script has a name, or an option, that a statement can be about."""
    return name in PLAN_NAMES or re.search(rf"\b{re.escape(name).replace('_', '[-_]')}\b", text) is not None


def _add_given(stated: Stated, text: str, name: str, value: object) -> None:
    for key in {name, PLAN_NAMES.get(name, name)}:
        stated.by_name[key] = (value, Origin(GIVEN, 1))
    assignment = re.compile(
        rf"^[ \t]*(?:[\w, \t]*,[ \t]*)?{re.escape(name)}[ \t]*(?:,[\w, \t]*)?(?::[^=\n]*)?=(?!=)"
    )
    for number, row in enumerate(text.split("\n"), start=1):
        if assignment.match(row):
            stated.by_line.setdefault(number, {})[name] = value


def _add_comments(stated: Stated, path: str, text: str) -> None:
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
