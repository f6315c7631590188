"""Which releases of a library a project runs with: what is installed, and what the project declares.

Read as text from lock files (poetry, uv, pdm, Pipenv, conda-lock, pylock), `requirements*.txt`,
`constraints*.txt`, `pyproject.toml`, `Pipfile`, `setup.py`, `setup.cfg` and `environment.y*ml` of the
project's folders, and from the names of the `.dist-info` folders of its libraries. Nothing is resolved and no
index is asked: a lower bound is what somebody wrote.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchwise_analysis.files import read_regular

Version = tuple[int, ...]

_MAX_BYTES = 1 << 18
_MAX_LOCK_BYTES = 1 << 24
_READ = re.compile(
    r"(?:requirements|constraints).*\.(?:txt|in)|pyproject\.toml|Pipfile|setup\.(?:py|cfg)|environment.*\.ya?ml"
)
_LOCK = re.compile(r"(?:poetry|uv|pdm|Pipfile|conda-lock)\.lock|conda-lock\.ya?ml|pylock(?:\..+)?\.toml")
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_FOLDERS = ("", "requirements")
# What conda calls libraries that PyPI calls otherwise.
_CONDA_NAMES = {"torch": "pytorch"}
_BOUND = re.compile(r"(===?|~=|>=|<=|!=|\^|~|<|>|=|^)\s*v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Releases:
    """The lowest and the highest release that may run; None where nothing bounds it. where: in words."""

    low: Version | None
    high: Version | None
    where: str

    def surely_from(self, version: Version) -> bool:
        """Is every release that may run this one or a later one?"""
        return self.low is not None and self.low >= version

    def surely_before(self, version: Version) -> bool:
        return self.high is not None and self.high < version

    def may_be_before(self, version: Version) -> bool:
        """Does the project allow for an earlier release than this one?"""
        return self.low is not None and self.low < version


def releases(library: str, roots: Sequence[str], libraries: Sequence[str]) -> Releases | None:
    """What is known of the releases of `library`; None where nothing is."""
    declared = next(_declared(library, roots), None)
    if declared is not None and declared.low is not None:
        return declared
    return next(_installed(library, libraries), declared)


def release_run(library: str, roots: Sequence[str], libraries: Sequence[str]) -> tuple[Version | None, str]:
    """The release that a run most likely has, and who says so: a pin or a lock, what is installed, the newest
    that the project allows; None where nothing bounds it from above.
    """
    declared = list(_declared(library, roots))
    for known in (*declared, *_installed(library, libraries)):
        if known.low is not None and known.low == known.high:
            return known.low, known.where
    for known in declared:
        if known.high is not None:
            return known.high, known.where
    return None, ""


def _declared(library: str, roots: Sequence[str]) -> Iterator[Releases]:
    names = "|".join(re.escape(name) for name in (library, _CONDA_NAMES.get(library, library)))
    name = rf"(?i:{names})"
    patterns = (
        _LOCKED_TOML.replace("NAME", name),
        _LOCKED_JSON.replace("NAME", name),
        _LOCKED_YAML.replace("NAME", name),
    )
    locked = [re.compile(pattern, re.MULTILINE) for pattern in patterns]
    written = [re.compile(p.replace("NAME", name), re.MULTILINE) for p in (_REQUIRED, _POETRY)]
    for root in roots:
        texts = list(_texts(root))
        for file, text, is_lock in sorted(texts, key=lambda entry: not entry[2]):
            for pattern in locked if is_lock else written:
                match = pattern.search(text)
                if match is None:
                    continue
                low, high = _bounds(f"=={match[1]}" if is_lock else match[1])
                if low is not None or high is not None:
                    said = f"{library} {match[1]}" if is_lock else f"`{library}{match[1].strip()}`"
                    yield Releases(low, high, f"{said} in {file}")
                    break


_LOCKED_TOML = r"^name = \"(?:NAME)\"\nversion = \"(\d+(?:\.\d+)*)"
_LOCKED_JSON = r"\"(?:NAME)\": \{[^{}]*?\"version\": \"==(\d+(?:\.\d+)*)"
_LOCKED_YAML = r"^\s*-? *name: (?:NAME)\s*\n\s*version: [\"']?(\d+(?:\.\d+)*)"
_REQUIRED = (
    r"(?:^|[\"'\s\[(,-])(?:NAME)(?:\[[^\]]*\])?[^\S\n]*((?:===?|~=|>=|<=|<|>|=)[^\S\n]*v?\d[^\"'#;\n)\]]*)"
)
_POETRY = r"^[\"']?(?:NAME)[\"']?\s*=\s*(?:\{[^}\n]*?version\s*=\s*)?[\"']([\^~=<>!]*\s*v?\d[^\"']*)[\"']"


def _texts(root: str) -> Iterator[tuple[str, str, bool]]:
    """Names and texts of the files that declare something, and whether it is a lock."""
    for folder in _FOLDERS:
        path = os.path.join(root, folder)
        try:
            names = sorted(os.listdir(path))
        except OSError:
            continue
        for name in names:
            is_lock = _LOCK.fullmatch(name) is not None
            if not is_lock and not _READ.fullmatch(name) and not (folder and name.endswith(".txt")):
                continue
            try:
                data = read_regular(os.path.join(path, name), _MAX_LOCK_BYTES if is_lock else _MAX_BYTES)
            except (OSError, ValueError):
                continue
            text = data.decode("utf-8", "replace")
            yield os.path.join(folder, name), text if is_lock else _COMMENT.sub("", text), is_lock


def _bounds(text: str) -> tuple[Version | None, Version | None]:
    low: Version | None = None
    high: Version | None = None
    for sign, number in _BOUND.findall(text.strip()):
        version = tuple(int(part) for part in number.split(".")[:4])
        if sign in ("==", "===", "=", "~=", ""):
            low = high = version
        elif sign in ("^", "~"):
            # poetry's: up to the next major release, and up to the next minor one
            kept = version[: 1 if sign == "^" and version[0] else 2]
            low, high = version, _just_before((*kept[:-1], kept[-1] + 1))
        elif sign in (">=", ">"):
            low = version
        elif sign != "!=":
            high = version if sign == "<=" else _just_before(version)
    return low, high


def _just_before(version: Version) -> Version:
    """A release that is lower than `version` and higher than all others below it."""
    *front, last = version
    return (*front, last - 1, 1 << 20) if last > 0 else (*_just_before(tuple(front)),) if front else (0,)


def _installed(library: str, libraries: Sequence[str]) -> Iterator[Releases]:
    pattern = re.compile(rf"{re.escape(library)}-(\d+(?:\.\d+)*)[^/]*\.dist-info", re.IGNORECASE)
    for folder in libraries:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            match = pattern.fullmatch(name)
            if match is not None:
                version = tuple(int(part) for part in match[1].split(".")[:4])
                yield Releases(version, version, f"{library} {match[1]} is installed")
