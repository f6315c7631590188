"""Settings: declared once, here; read strictly from `[tool.torchwise]` of a pyproject.toml.

Each field's metadata holds the sentence that the settings page and the editor show. Keys in TOML are the
field names with hyphens. A file with a mistake gives a message for each mistake, never an exception: the
command line refuses to run with it, an editor shows it and goes on with what could be read.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import cast

from torchwise_analysis.files import read_regular
from torchwise_analysis.findings import Confidence, Severity

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Of a settings file; the parser needs seconds for more.
_MAX_BYTES = 1 << 20

# Folders that hold other people's code or build products. Names, so that they apply at any depth.
DEFAULT_EXCLUDE = (
    ".bzr", ".direnv", ".eggs", ".git", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox", ".pytest_cache",
    ".ruff_cache", ".svn", ".tox", ".venv", "__pycache__", "__pypackages__", "build", "dist", "node_modules",
    "site-packages", "venv", "wandb",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """What a project can choose. All defaults are those of the command line."""

    select: tuple[str, ...] = field(
        default=(), metadata={"help": "Rules to run, by name, code or code prefix; empty means all."}
    )
    ignore: tuple[str, ...] = field(default=(), metadata={"help": "Rules not to run; wins over `select`."})
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = field(
        default=(),
        metadata={"help": "Rules not to run on files that match a pattern: a table from pattern to rules."},
    )
    severity: tuple[tuple[str, Severity], ...] = field(
        default=(),
        metadata={
            "help": "Another severity for what a rule finds: a table from rule to error, warning or hint."
        },
    )
    preview: bool = field(
        default=False,
        metadata={"help": "Run preview rules too: those that are new in a release and may still change."},
    )
    min_confidence: Confidence = field(
        default=Confidence.LIKELY,
        metadata={"help": "Show findings of this grade and better: certain, likely or possible."},
    )
    fail_on: Severity = field(
        default=Severity.ERROR,
        metadata={"help": "A finding of this severity or worse fails the run: error, warning or hint."},
    )
    fail_confidence: Confidence = field(
        default=Confidence.CERTAIN,
        metadata={"help": "Only findings of this grade or better fail the run: certain, likely or possible."},
    )
    exclude: tuple[str, ...] = field(
        default=DEFAULT_EXCLUDE,
        metadata={"help": "Names or patterns passed over in folders; files named explicitly are read."},
    )
    extend_exclude: tuple[str, ...] = field(
        default=(), metadata={"help": "Patterns added to those of `exclude`."}
    )
    gpus: tuple[str, ...] = field(
        default=(), metadata={"help": "Cards to compare an estimate with when no --gpu is given."}
    )
    site_packages: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Folders whose library files may be read as text; empty means the project's environment."
        },
    )
    accept_bare_noqa: bool = field(
        default=False,
        metadata={"help": "Let a `# noqa` without a code, written for another tool, silence a finding."},
    )
    require_suppression_reason: bool = field(
        default=False, metadata={"help": "Honour a suppression only with a reason after `--`."}
    )


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """A mistake in a settings file; `key` is dotted, empty for the file as a whole."""

    key: str
    message: str


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, the file they were read from and what is wrong with it.

    `path` is None where no file has a `[tool.torchwise]` table. Patterns are relative to `root`.
    """

    settings: Settings
    root: Path
    path: Path | None = None
    problems: tuple[SettingsProblem, ...] = ()


class SettingsFinder:
    """Finds the settings of files, reading each pyproject.toml once."""

    def __init__(self) -> None:
        self._by_folder: dict[Path, LoadedSettings | None] = {}

    def find(self, path: Path) -> LoadedSettings:
        """Settings of the nearest folder at or above `path` whose pyproject.toml has a table for us."""
        folder = path if path.is_dir() else path.parent
        folder = folder.absolute()
        return self._find(folder) or LoadedSettings(Settings(), folder)

    def _find(self, folder: Path) -> LoadedSettings | None:
        below: list[Path] = []
        loaded: LoadedSettings | None = None
        for one in (folder, *folder.parents):
            if one in self._by_folder:
                loaded = self._by_folder[one]
                break
            below.append(one)
            loaded = load_settings(one / "pyproject.toml")
            if loaded is not None:
                break
        self._by_folder.update(dict.fromkeys(below, loaded))
        return loaded


def load_settings(path: Path) -> LoadedSettings | None:
    """Settings of one pyproject.toml; None where there is none or it has no table for us."""
    try:
        data = read_regular(path, _MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError):
        return None
    except (OSError, ValueError) as error:
        return _unreadable(path, f"cannot be read: {getattr(error, 'strerror', None) or error}")
    if len(data) > _MAX_BYTES:
        return _unreadable(path, f"is larger than {_MAX_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")  # some editors of Windows put a byte order mark first
    except UnicodeDecodeError as error:
        return _unreadable(path, f"cannot be read: {error}") if b"torchwise" in data else None
    if "torchwise" not in text:  # not ours; saves parsing, and a fault in it is not ours to report
        return None
    try:
        document: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return _unreadable(path, f"is not valid TOML: {error}")
    except (RecursionError, ValueError, OverflowError):  # ten thousand brackets, a number of 5,000 digits
        return _unreadable(path, "nests too deeply or holds too large a number")
    tool = document.get("tool")
    table = cast("dict[str, object]", tool).get("torchwise") if isinstance(tool, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        return _unreadable(path, "[tool.torchwise] must be a table")
    settings, problems = settings_from_table(cast("dict[str, object]", table))
    return LoadedSettings(settings, path.parent, path, problems)


def settings_from_table(
    table: Mapping[str, object], base: Settings | None = None
) -> tuple[Settings, tuple[SettingsProblem, ...]]:
    """Read a table over `base` (the defaults); what is wrong is left at its value in `base` and reported."""
    settings = base or Settings()
    known = {item.name.replace("_", "-"): item.name for item in fields(Settings)}
    values: dict[str, object] = {}
    problems: list[SettingsProblem] = []
    for key, raw in table.items():
        name = known.get(key.replace("_", "-"))
        if name is None:
            problems.append(SettingsProblem(key, f"unknown key {_shown(key)}{suggestion(key, known)}"))
            continue
        try:
            values[name] = _read(name, raw, getattr(settings, name))
        except _WrongValueError as error:
            problems.append(SettingsProblem(key, f"{key} {error}"))
    return replace(settings, **values), tuple(problems)  # type: ignore[arg-type]  # each value has its field's type


def suggestion(word: str, known: Mapping[str, object] | tuple[str, ...] | list[str]) -> str:
    """`; did you mean 'x'?` where a known word is close, else nothing."""
    close = difflib.get_close_matches(word.replace("_", "-"), list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def matches_any(path: Path, root: Path, patterns: tuple[str, ...]) -> str | None:
    """The first pattern that names `path`, else None.

    A pattern without a slash is compared with every component below `root`; one with a slash with the path
    relative to `root` and with each folder above the file (`old/x` names everything below it); `**/` also
    matches nothing. A backslash is a slash, as Windows writes paths.
    """
    try:
        relative = PurePosixPath(path.absolute().relative_to(root.absolute()).as_posix())
    except ValueError:  # outside the project: only names can be compared
        relative = PurePosixPath(path.name)
    for pattern in patterns:
        form = plain_pattern(pattern)
        texts = tuple(_texts(relative, form))
        if any(fnmatch.fnmatchcase(text, each) for each in _forms(form) for text in texts):
            return pattern
    return None


def plain_pattern(pattern: str) -> str:
    """A pattern of files with slashes alone, and none at its ends that mean nothing."""
    return pattern.replace("\\", "/").removeprefix("./").rstrip("/")


def _forms(pattern: str) -> Iterator[str]:
    yield pattern
    if "**/" in pattern:
        yield pattern.replace("**/", "")


def _texts(relative: PurePosixPath, pattern: str) -> Iterator[str]:
    if "/" not in pattern:
        yield from relative.parts
        return
    yield str(relative)
    yield from (str(parent) for parent in relative.parents if parent.parts)


def _unreadable(path: Path, message: str) -> LoadedSettings:
    return LoadedSettings(Settings(), path.parent, path, (SettingsProblem("", message),))


class _WrongValueError(Exception):
    """The message continues the key."""


def _read(name: str, raw: object, default: object) -> object:
    """`raw` as a value of the field's kind."""
    if name == "per_file_ignores":
        return _table_of_names(raw)
    if name == "severity":
        return _table_of_severities(raw)
    if isinstance(default, bool):
        return _boolean(raw)
    if isinstance(default, Enum):
        return _member(raw, type(default))
    return _names(raw)


def _boolean(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise _WrongValueError(f"must be true or false, not {_shown(raw)}")
    return raw


def _member(raw: object, kind: type[Enum]) -> Enum:
    values = [str(member.value) for member in kind]
    if not isinstance(raw, str) or raw not in values:
        raise _WrongValueError(
            f"must be one of {', '.join(values)}, not {_shown(raw)}{suggestion(str(raw), values)}"
        )
    return kind(raw)


def _names(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise _WrongValueError(f"must be a list of strings, not {_shown(raw)}")
    items = cast("list[object]", raw)
    for item in items:
        if not isinstance(item, str):
            raise _WrongValueError(f"must hold strings only, not {_shown(item)}")
    return tuple(str(item) for item in items)


def _table_of_names(raw: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(raw, dict):
        raise _WrongValueError(f"must be a table from pattern to list of rules, not {_shown(raw)}")
    return tuple((pattern, _names(rules)) for pattern, rules in cast("dict[str, object]", raw).items())


def _table_of_severities(raw: object) -> tuple[tuple[str, Severity], ...]:
    if not isinstance(raw, dict):
        raise _WrongValueError(f"must be a table from rule to severity, not {_shown(raw)}")
    rows = cast("dict[str, object]", raw).items()
    return tuple((rule, cast("Severity", _member(value, Severity))) for rule, value in rows)


def _shown(raw: object) -> str:
    text = re.sub(r"[\x00-\x1f\x7f]", "?", repr(raw))
    return text if len(text) <= 60 else text[:57] + "..."
