"""Launch lines: how a project's own texts start a script, for options that the script gives no default.

Shell scripts, Makefiles and README code are read as text and never run. Only lines that name the script's
file and need no shell (no substitution in the value) say something.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from torchwise_analysis.files import read_regular

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

_MAX_BYTES = 256 << 10
_MAX_FILES = 64
_ENDINGS = (".sh", ".slurm", ".sbatch", ".bash", ".cmd")
_NAMES = ("Makefile", "makefile")
_CONTINUED = re.compile(r"\\\s*\n\s*")


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """The words after the script's name on one line of a project's text; `where` is `file:line`."""

    words: tuple[str, ...]
    where: str


def launch_lines(it: Interpreter) -> tuple[LaunchLine, ...]:
    """Lines of the project that start the script under analysis, nearest folder first."""
    main = it.library.imports.main_path
    if not main:
        return ()
    return _lines_for(os.path.abspath(main), tuple(os.path.abspath(root) for root in it.project.roots))


@lru_cache(maxsize=64)
def _lines_for(main: str, roots: tuple[str, ...]) -> tuple[LaunchLine, ...]:
    script = os.path.basename(main)
    found: list[LaunchLine] = []
    for path, shown in _texts(main, roots):
        try:
            text = read_regular(path, _MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        if script in text:
            found += _in_text(text, script, shown)
    return tuple(found)


def _texts(main: str, roots: tuple[str, ...]) -> list[tuple[str, str]]:
    """Files that may hold launch lines: beside the script, in the roots and in their `scripts` folders."""
    near = os.path.dirname(main)
    folders = [near, *roots, *(os.path.join(root, "scripts") for root in roots)]
    found: list[tuple[str, str]] = []
    for folder in dict.fromkeys(folders):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            if name.endswith(_ENDINGS) or name in _NAMES or name.lower().startswith("readme"):
                path = os.path.join(folder, name)
                found.append((path, os.path.relpath(path, near if folder == near else roots[-1])))
    return found[:_MAX_FILES]


def _in_text(text: str, script: str, shown: str) -> list[LaunchLine]:
    found: list[LaunchLine] = []
    joined = _CONTINUED.sub(lambda match: " " + "\x00" * match.group().count("\n"), text)
    line = 1
    for row in joined.split("\n"):
        words = _words(row.replace("\x00", " "))
        position = next((i for i, word in enumerate(words) if os.path.basename(word) == script), None)
        if position is not None and _is_command(words[:position]):
            found.append(LaunchLine(tuple(words[position + 1 :]), f"{shown}:{line}"))
        line += 1 + row.count("\x00")
    return found


def _words(row: str) -> list[str]:
    row = row.strip().strip("`").lstrip("$>% \t")
    try:
        return shlex.split(row, comments=True)
    except ValueError:
        return row.split()


def _is_command(before: list[str]) -> bool:
    """Whether the words before the script start it: an interpreter or a launcher."""
    starters = ("python", "torchrun", "srun", "accelerate", "deepspeed", "mpiexec", "mpirun", "horovodrun")
    return any(os.path.basename(word).lower().startswith(starters) or "PYTHON" in word for word in before)


def option_value(line: LaunchLine, names: list[str]) -> str | None:
    """The value of an option on a launch line; None if it is not given or not a plain word."""
    for position, word in enumerate(line.words):
        name, equals, value = word.partition("=")
        if name not in names:
            continue
        if equals:
            return _plain(value)
        following = line.words[position + 1] if position + 1 < len(line.words) else ""
        return _plain(following)
    return None


def _plain(value: str) -> str | None:
    if not value or value.startswith("-") or any(letter in value for letter in "$<>{}[]|`"):
        return None
    return value
