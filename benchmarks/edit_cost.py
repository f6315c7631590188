"""What one keystroke costs: rescan, parse and lower what changed, and assemble the module.

    python benchmarks/edit_cost.py [FILE ...]

Without files, standard library files of several sizes. Types and deletes a statement in the middle of each
file, one character at a time, and compares the median with one full `libcst.parse_module` of the same text.
CPU time of this process; the collector is off as it would strike at random.
"""

from __future__ import annotations

import gc
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import libcst

from torchwise_analysis.source import Document
from torchwise_analysis.source.lines import split_lines

TYPED = "bench_out = model(batch[0], scale=1.0)"
DEFAULT_FILES = ("bisect.py", "heapq.py", "argparse.py", "typing.py", "_pydecimal.py", "turtle.py")


class Row(NamedTuple):
    """Milliseconds, but for `lines`."""

    name: str
    lines: int
    full_parse: float
    first_module: float
    keystroke: float
    keystroke_p95: float
    new_line: float


def main() -> None:
    root = Path(sysconfig.get_path("stdlib"))
    paths = [Path(name) for name in sys.argv[1:]] or [root / name for name in DEFAULT_FILES]
    print("| file | lines | full LibCST parse | first module | keystroke p50 / p95 | new line | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for path in paths:
        row = measure(path)
        print(
            f"| {row.name} | {row.lines:,} | {row.full_parse:.0f} | {row.first_module:.0f} "
            f"| {row.keystroke:.2f} / {row.keystroke_p95:.2f} | {row.new_line:.2f} "
            f"| {row.full_parse / row.keystroke:.0f} x |"
        )


def measure(path: Path) -> Row:
    text = path.read_text(encoding="utf-8")
    gc.collect()
    gc.disable()
    try:
        full = statistics.median(_milliseconds(lambda: libcst.parse_module(text)) for _ in range(3))
        document = Document(str(path), text)
        first = _milliseconds(lambda: document.module)
        line, indent = _place(text)
        new_lines = [_keystroke(document, line, 0, line, 0, indent + "\n")]
        keys = [_keystroke(document, *edit) for edit in _typing(line, len(indent))]
        new_lines.append(_keystroke(document, line, 0, line + 1, 0, ""))
    finally:
        gc.enable()
    if document.text != text:
        raise AssertionError("the edits did not cancel")
    p95 = sorted(keys)[int(0.95 * len(keys))]
    return Row(
        path.name,
        document.line_count,
        full,
        first,
        statistics.median(keys),
        p95,
        statistics.median(new_lines),
    )


def _place(text: str) -> tuple[int, str]:
    """The first line of a body behind the middle of the text, with its indentation."""
    lines = split_lines(text)
    line = len(lines) // 2
    while not (lines[line].startswith("    ") and lines[line - 1].rstrip().endswith(":")):
        line += 1
    return line, lines[line][: len(lines[line]) - len(lines[line].lstrip())]


def _typing(line: int, column: int) -> Iterator[tuple[int, int, int, int, str]]:
    for index, character in enumerate(TYPED):
        yield line, column + index, line, column + index, character
    for index in reversed(range(len(TYPED))):
        yield line, column + index, line, column + index + 1, ""


def _keystroke(document: Document, start: int, column: int, end: int, end_column: int, new: str) -> float:
    def run() -> object:
        document.edit(start, column, end, end_column, new)
        return document.module

    return _milliseconds(run)


def _milliseconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return (time.process_time() - started) * 1_000


if __name__ == "__main__":
    main()
