"""What a check of many files costs, cold and warm, beside other tools on the same files.

    python benchmarks/batch.py PROJECT... [--jobs 2] [--with NAME=COMMAND ...]

For each project (a folder): wall and CPU seconds of `torchwise check` in one process without memory, cold
with memory and all processes, and warm. Each other tool is a command that is given the folder as its last
word: `--with ruff="ruff check --no-cache"`; its line says how many times the CPU of the first of these it
takes, at least, where it was not done within `--limit` seconds. CPU is user and system time of the whole
process tree; where somebody else uses the other half of a core, it counts up to twice as much. Warm runs are
the best of three, all others are done once: give the machine rest, and do not edit torchwise meanwhile, or
nothing is remembered.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LIMIT_SECONDS = 450.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one command. is_done: it ended by itself."""

    wall_seconds: float
    cpu_seconds: float
    is_done: bool = True


def cost(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    limit_seconds: float = _LIMIT_SECONDS,
) -> Cost:
    """Run a command, its output thrown away, and measure it with all its processes."""
    before, start = _used(), time.monotonic()
    is_done = True
    try:
        subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        is_done = False
    return Cost(time.monotonic() - start, _used() - before, is_done)


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def lines_of(folder: Path) -> tuple[int, int]:
    """Python files and their lines below a folder."""
    texts = [path.read_bytes() for path in folder.rglob("*.py") if path.is_file()]
    return len(texts), sum(text.count(b"\n") for text in texts)


def measured(folder: Path, jobs: int, others: Mapping[str, Sequence[str]], limit_seconds: float) -> None:
    """Measure one project and print its lines of the table."""
    files, lines = lines_of(folder)
    check = [sys.executable, "-m", "torchwise_server", "check", str(folder), "--format", "json"]
    alone = cost([*check, "--no-cache", "--jobs", "1"])
    with tempfile.TemporaryDirectory() as cache:
        kept = {"TORCHWISE_CACHE_DIR": cache}
        cold = cost([*check, "--jobs", str(jobs)], kept)
        warm = min((cost(check, kept) for _ in range(3)), key=lambda one: one.wall_seconds)
    print(f"{folder.name}: {files:,} files, {lines:,} lines", flush=True)
    for name, one in (("one process", alone), (f"cold, {jobs} processes", cold), ("warm", warm)):
        _show(name, one, lines, None)
    for name, command in others.items():
        _show(name, cost([*command, str(folder)], limit_seconds=limit_seconds), lines, alone)


def _show(name: str, one: Cost, lines: int, beside: Cost | None) -> None:
    least = "" if one.is_done else "more than "
    times = "" if beside is None else f"{one.cpu_seconds / beside.cpu_seconds:.2f} x the CPU of torchwise"
    ratio = f"   {least}{times}" if times else ""
    unfinished = "" if one.is_done else "   (not done)"
    each = one.cpu_seconds / lines * 1000 if lines else 0.0
    print(
        f"  {name:<20} {one.wall_seconds:8.2f} s wall {one.cpu_seconds:8.2f} s CPU "
        f"{each:7.3f} s CPU for 1,000 lines{ratio}{unfinished}",
        flush=True,
    )


def main() -> None:
    """Measure the projects of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("projects", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--with", dest="others", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--limit", type=float, default=_LIMIT_SECONDS, metavar="SECONDS")
    options = parser.parse_args()
    pairs = (word.partition("=") for word in options.others)
    others = {name: shlex.split(command) for name, _, command in pairs}
    for project in options.projects:
        measured(project.resolve(), options.jobs, others, options.limit)


if __name__ == "__main__":
    main()
