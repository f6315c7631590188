"""What libraries did differently in other releases, where it moves the peak: data, with ranges of versions.

`behaviours.json` holds a row for each way and its range, with its effect and source, and release dates (to
the month) for descriptions that say when and not which. The same rows make a table of docs/memory-model.md
(`python -m torchwise_memory.versions docs/memory-model.md`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TypedDict, cast

Version = tuple[int, ...]

#: Later than any release.
LATEST: Version = (1 << 20,)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What `library` does from release `since` on (None: ever) until before `until` (None: to this day).

    others: what it does as well in that range, by model; effect: on memory, a clause.
    """

    name: str
    library: str
    since: Version | None
    until: Version | None
    value: str
    others: tuple[str, ...]
    effect: str
    source: str

    def holds(self, version: Version) -> bool:
        """Whether the release is in the range."""
        return (self.since is None or version >= self.since) and (self.until is None or version < self.until)


@dataclass(frozen=True, slots=True)
class Installed:
    """The releases that a job runs with. date: in years, for libraries of which no release is stated."""

    stated: Mapping[str, Version] = field(default_factory=dict[str, Version])
    date: float | None = None

    def version(self, library: str) -> Version:
        """The stated release, else the newest of that date, else the latest."""
        if library in self.stated:
            return self.stated[library]
        return LATEST if self.date is None else release_of(library, self.date)

    def knows(self, library: str) -> bool:
        """Whether a release or a date is stated."""
        return library in self.stated or self.date is not None

    def behaviour(self, name: str) -> Behaviour:
        """The row of that name whose range holds the release. Raises LookupError for an unknown name."""
        rows = [row for row in behaviours() if row.name == name]
        for row in rows:
            if row.holds(self.version(row.library)):
                return row
        raise LookupError(f"no behaviour is called {name!r}")

    def value(self, name: str) -> str:
        """What the library does."""
        return self.behaviour(name).value


def read(text: str) -> Version:
    """`4.36.2` or `2.1.0+cu121` as numbers; empty for no number."""
    found = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(int(part) for part in found[0].split(".")[:4]) if found else ()


def release_of(library: str, date: float) -> Version:
    """The newest release of a library at a date in years; the oldest known one before that."""
    known = releases(library)
    out = [version for version, released in known if released <= date + 1 / 24]
    return out[-1] if out else (known[0][0] if known else LATEST)


def newest(library: str) -> str:
    """The newest listed release, in words."""
    known = releases(library)
    return ".".join(map(str, known[-1][0])) if known else ""


def date_of(library: str, version: Version) -> float | None:
    """When a release came out, in years: that of the newest listed one that is not later."""
    out = [released for known, released in releases(library) if known <= version]
    return out[-1] if out else None


class _Said(TypedDict):
    name: str
    library: str
    value: str
    effect: str
    source: str


class _Row(_Said, total=False):
    since: str
    until: str
    others: list[str]


class _Data(TypedDict):
    releases: dict[str, list[tuple[str, str]]]
    behaviours: list[_Row]


@cache
def _data() -> _Data:
    text = resources.files(__name__).joinpath("behaviours.json").read_text(encoding="utf-8")
    return cast("_Data", json.loads(text))


@cache
def behaviours() -> tuple[Behaviour, ...]:
    """All rows, in the order of the file."""
    return tuple(
        Behaviour(
            row["name"],
            row["library"],
            read(row["since"]) if "since" in row else None,
            read(row["until"]) if "until" in row else None,
            row["value"],
            tuple(row.get("others", ())),
            row["effect"],
            row["source"],
        )
        for row in _data()["behaviours"]
    )


@cache
def releases(library: str) -> tuple[tuple[Version, float], ...]:
    """Releases with their dates in years, oldest first."""
    rows = _data()["releases"].get(library, [])
    return tuple((read(version), int(date[:4]) + (int(date[5:7]) - 1) / 12) for version, date in rows)


def table() -> str:
    """The rows in Markdown, for the page on the memory model."""
    lines = ["| library | releases | what it does to memory | source |", "|---|---|---|---|"]
    lines += [f"| {row.library} | {_range(row)} | {row.effect} | {row.source} |" for row in behaviours()]
    return "\n".join(lines)


BEGINS, ENDS = "<!-- behaviours of releases: generated -->", "<!-- end of generated table -->"


def in_page(text: str) -> str:
    """The page with today's table between its marks."""
    before, rest = text.split(BEGINS)
    _, after = rest.split(ENDS)
    return f"{before}{BEGINS}\n\n{table()}\n\n{ENDS}{after}"


def _range(row: Behaviour) -> str:
    since, until = (".".join(map(str, bound)) if bound else None for bound in (row.since, row.until))
    if since is None:
        return f"before {until}"
    return f"{since} and later" if until is None else f"{since} to before {until}"
