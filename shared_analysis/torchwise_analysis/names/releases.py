"""Which releases of a library a project runs with: what is installed, and what the project declares.

Read as text from `requirements*.txt`, `pyproject.toml`, `setup.py`, `setup.cfg` and `environment.y*ml` of the
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
_READ = re.compile(r"requirements.*\.txt|pyproject\.toml|setup\.(?:py|cfg)|environment.*\.ya?ml")
_FOLDERS = ("", "requirements")
_BOUND = re.compile(r"(===?|~=|>=|<=|<|>|=)\s*v?(\d+(?:\.\d+)*)")


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


def _declared(library: str, roots: Sequence[str]) -> Iterator[Releases]:
    before, extras, bounds = (
        r"(?:^|[\"'\s\[(,-])",
        r"(?:\[[^\]]*\])?\s*",
        r"((?:===?|~=|>=|<=|<|>|=)[^\"'#;\n)\]]*)",
    )
    pattern = re.compile(before + re.escape(library) + extras + bounds, re.MULTILINE)
    for root in roots:
        for name, text in _texts(root):
            match = pattern.search(text)
            if match is not None:
                low, high = _bounds(match[1])
                if low is not None or high is not None:
                    yield Releases(low, high, f"`{library}{match[1].strip()}` in {name}")


def _texts(root: str) -> Iterator[tuple[str, str]]:
    for folder in _FOLDERS:
        path = os.path.join(root, folder)
        try:
            names = sorted(os.listdir(path))
        except OSError:
            continue
        for name in names:
            if _READ.fullmatch(name):
                try:
                    data = read_regular(os.path.join(path, name), _MAX_BYTES)
                except (OSError, ValueError):
                    continue
                yield os.path.join(folder, name), data.decode("utf-8", "replace")


def _bounds(text: str) -> tuple[Version | None, Version | None]:
    low: Version | None = None
    high: Version | None = None
    for sign, number in _BOUND.findall(text):
        version = tuple(int(part) for part in number.split(".")[:4])
        if sign in ("==", "===", "=", "~="):
            low = high = version
        elif sign in (">=", ">"):
            low = version
        else:
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
