"""Which files a command line means.

A file named explicitly is always read, wherever it lies and whatever its suffix. A folder is searched for
Python files and notebooks, without following links to folders (they loop, and a hostile one may lead
anywhere) and without what the settings exclude.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchwise_analysis.settings import SettingsFinder, plain_pattern

SUFFIXES = (".py", ".ipynb")
STDIN = "-"


@dataclass(frozen=True, slots=True)
class Input:
    """One file to read; `explicit` where the user named it (or a pattern for it)."""

    path: Path
    explicit: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """What an argument or an entry of a folder was, and why it is not read."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """What to read, and what not.

    missing: arguments that lead nowhere. empty: folders that hold nothing to read. excluded: entries of
    folders that were passed over.
    """

    files: tuple[Input, ...]
    missing: tuple[Skipped, ...]
    empty: tuple[Skipped, ...]
    excluded: tuple[Skipped, ...]


def collect(arguments: Sequence[str], finder: SettingsFinder) -> Inputs:
    """The files that `arguments` (files, folders, glob patterns) mean, each once, in the order given."""
    files: dict[Path, Input] = {}
    missing: list[Skipped] = []
    empty: list[Skipped] = []
    excluded: list[Skipped] = []
    for argument in arguments:
        paths = _expand(argument)
        if not paths:
            missing.append(Skipped(argument, _why_nothing(argument)))
        for path in paths:
            if not path.is_dir():
                files[path.absolute()] = Input(path, explicit=True)
                continue
            before = len(files)
            for found in _walk(path, finder, excluded):
                files.setdefault(found.absolute(), Input(found, explicit=False))
            if len(files) == before:
                empty.append(Skipped(str(path), "no Python file or notebook in this folder"))
    return Inputs(tuple(files.values()), tuple(missing), tuple(empty), tuple(excluded))


def _expand(argument: str) -> list[Path]:
    if os.path.lexists(argument):
        return [Path(argument)]
    if not glob.has_magic(argument):
        return []
    # Path.glob knows no absolute patterns
    return [Path(match) for match in sorted(glob.glob(argument, recursive=True))]  # noqa: PTH207


def _why_nothing(argument: str) -> str:
    return "no file matches this pattern" if glob.has_magic(argument) else "no such file or folder"


def _walk(folder: Path, finder: SettingsFinder, excluded: list[Skipped]) -> Iterator[Path]:
    waiting = [folder]
    while waiting:
        inner: list[Path] = []
        yield from _files_of(waiting.pop(), finder, excluded, inner)
        waiting += reversed(inner)


def _files_of(
    folder: Path, finder: SettingsFinder, excluded: list[Skipped], folders: list[Path]
) -> Iterator[Path]:
    """The files of one folder; the folders in it are added to `folders`."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        excluded.append(Skipped(str(folder), error.strerror or "cannot be listed"))
        return
    loaded = finder.find(folder)
    patterns = (*loaded.settings.exclude, *loaded.settings.extend_exclude)
    for entry in entries:
        path = folder / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        is_link_to_folder = entry.is_symlink() and path.is_dir()
        if not is_folder and not is_link_to_folder and not entry.name.endswith(SUFFIXES):
            continue
        pattern = _excluding_pattern(path, loaded.root, patterns)
        if pattern is not None:
            excluded.append(Skipped(str(path), f"excluded by {pattern!r}"))
        elif is_folder:
            folders.append(path)
        elif is_link_to_folder:
            excluded.append(Skipped(str(path), "a link to a folder"))
        elif not path.is_file():
            excluded.append(Skipped(str(path), "not a regular file"))
        else:
            yield path


def _excluding_pattern(path: Path, root: Path, patterns: tuple[str, ...]) -> str | None:
    """Only the entry itself is compared: what lies above it was asked for by name."""
    relative = os.path.relpath(path.absolute(), root).replace(os.sep, "/")
    for pattern in patterns:
        form = plain_pattern(pattern)
        if "/" not in form:
            if fnmatch.fnmatchcase(path.name, form):
                return pattern
        elif any(fnmatch.fnmatchcase(relative, each) for each in (form, form.replace("**/", ""))):
            return pattern
    return None
