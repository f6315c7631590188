"""Rules of other people, found by the entry point group `torchwise.rules`.

Only packages that are installed beside torchwise itself are asked: a workspace cannot bring a rule, and
neither can the environment of a project that torchwise is not installed in. One entry point names one module
of the form of torchwise's own rule files. What fails while it is loaded is contained: the other rules run,
and `failures` says what is missing.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from torchwise_analysis.interp.abstract.values import Kind
    from torchwise_analysis.rules._framework import RegisteredRule
    from torchwise_analysis.semantics.registry import Function, Method

GROUP = "torchwise.rules"
_CODE = re.compile(r"(?!TW)[A-Z]{2,8}[0-9]{3,4}")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A rule that could not be loaded: the entry point's name, its distribution, and why."""

    name: str
    distribution: str
    message: str


@dataclass(frozen=True, slots=True)
class Plugins:
    """What was loaded.

    words: names of functions that the rules gave a meaning to; a file without any word of torch matters if
    it holds one. identity: changes with every plug-in file, for caches.
    """

    rules: tuple[RegisteredRule, ...] = ()
    failures: tuple[PluginFailure, ...] = ()
    words: frozenset[str] = frozenset()
    identity: str = ""


@cache
def plugins() -> Plugins:
    """The rules of the environment that torchwise is installed in; none with `TORCHWISE_NO_PLUGINS=1`."""
    if os.environ.get("TORCHWISE_NO_PLUGINS"):
        return Plugins()
    found = sorted(_entry_points(), key=lambda each: (each[1], each[0].name))
    return load(found)


def load(found: Iterable[tuple[metadata.EntryPoint, str]]) -> Plugins:
    """Load entry points, each with the name of its distribution."""
    rules: list[RegisteredRule] = []
    failures: list[PluginFailure] = []
    words: set[str] = set()
    digest = hashlib.sha256()
    for entry, distribution in found:
        try:
            rule, path, taught = _loaded(entry, rules)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plug-in may do anything while it is imported, also exit
            failures.append(PluginFailure(entry.name, distribution, _said(error)))
            continue
        rules.append(rule)
        words |= taught
        digest.update(f"{distribution}\0{entry.value}\0".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    if words:
        from torchwise_analysis.interp.abstract import relevance

        relevance.teach(words)
    rules.sort(key=lambda each: each.rule.code)
    return Plugins(tuple(rules), tuple(failures), frozenset(words), digest.hexdigest() if rules else "")


class PluginError(Exception):
    """A module that is no rule; the message says what it lacks."""


def _loaded(
    entry: metadata.EntryPoint, known: Iterable[RegisteredRule]
) -> tuple[RegisteredRule, Path, set[str]]:
    from torchwise_analysis.rules._framework import built_in_rules, registered

    importlib.import_module("torchwise_analysis.semantics.dispatch")  # all built-in meanings are there now

    before = _Meanings.now()
    try:
        module = importlib.import_module(entry.module)
        rule = registered(module)
        if rule is None:
            raise PluginError(f"{entry.module} defines no RULE")
        _require_fitting(rule, (*built_in_rules(), *known))
        changed = before.changed()
        if changed:
            raise PluginError(f"{entry.module} gives {changed} another meaning; torchwise knows it already")
    except BaseException:
        before.restore()
        raise
    return rule, Path(str(module.__file__)), before.new_words()


@dataclass(frozen=True, slots=True)
class _Meanings:
    """What library calls meant at one moment."""

    functions: dict[str, Function]
    methods: dict[tuple[Kind, str], Method]
    fallbacks: dict[Kind, Method]

    @classmethod
    def now(cls) -> _Meanings:
        from torchwise_analysis.semantics import registry

        return cls(dict(registry.FUNCTIONS), dict(registry.METHODS), dict(registry.FALLBACKS))

    def changed(self) -> str:
        """The name of something that means something else since; empty for none."""
        now = _Meanings.now()
        names = [name for name, meaning in self.functions.items() if now.functions.get(name) is not meaning]
        names += [
            name
            for (kind, name), meaning in self.methods.items()
            if not _is_kept(now.methods.get((kind, name)), meaning)
        ]
        names += [
            f"a {kind.value}"
            for kind, meaning in self.fallbacks.items()
            if now.fallbacks[kind] is not meaning
        ]
        return names[0] if names else ""

    def new_words(self) -> set[str]:
        """Names of functions and methods that have got a meaning since."""
        now = _Meanings.now()
        words = {name.rpartition(".")[2] for name in now.functions.keys() - self.functions.keys()}
        return words | {name for _, name in now.methods.keys() - self.methods.keys()}

    def restore(self) -> None:
        from torchwise_analysis.semantics import registry

        for key in registry.FUNCTIONS.keys() - self.functions.keys():
            del registry.FUNCTIONS[key]
        for pair in registry.METHODS.keys() - self.methods.keys():
            del registry.METHODS[pair]
        for kind in registry.FALLBACKS.keys() - self.fallbacks.keys():
            del registry.FALLBACKS[kind]
        registry.FUNCTIONS.update(self.functions)
        registry.METHODS.update(self.methods)
        registry.FALLBACKS.update(self.fallbacks)


def _is_kept(now: object, meaning: Method) -> bool:
    """Whether a meaning is still there, if only behind others (`api.method`)."""
    while now is not None and now is not meaning:
        now = getattr(now, "before", None)
    return now is meaning


def _require_fitting(entry: RegisteredRule, known: Iterable[RegisteredRule]) -> None:
    rule = entry.rule
    if not _CODE.fullmatch(rule.code):
        raise PluginError(
            f"the code {rule.code!r} must be two to eight capitals, not TW, and three or four digits"
        )
    if not _NAME.fullmatch(rule.name):
        raise PluginError(f"the name {rule.name!r} must be lower-case words joined by hyphens")
    for other in known:
        if rule.code == other.rule.code or rule.name == other.rule.name:
            raise PluginError(
                f"{rule.code} {rule.name}: {other.rule.code} {other.rule.name} is there already"
            )


def _said(error: BaseException) -> str:
    if isinstance(error, PluginError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# --------------------------------------------------------------------------- where to look


def _entry_points() -> Iterator[tuple[metadata.EntryPoint, str]]:
    seen: set[tuple[str, str]] = set()
    for distribution in metadata.distributions(path=list(_folders())):
        for entry in distribution.entry_points:
            if entry.group == GROUP and (entry.name, entry.value) not in seen:
                seen.add((entry.name, entry.value))
                yield entry, distribution.metadata["Name"]


def _folders() -> Iterator[str]:
    """The folders of packages that torchwise itself is installed in."""
    own = Path(__file__).parents[1]
    if any(own.glob("torchwise-*.dist-info")):
        yield str(own)
        return
    for name in dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")):
        if any(_is_of_this_clone(info, own) for info in Path(name).glob("torchwise-*.dist-info")):
            yield name


def _is_of_this_clone(info: Path, own: Path) -> bool:
    """Whether an editable installation leads to the running code."""
    try:
        source: object = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))["url"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return own.is_relative_to(unquote(urlsplit(str(source)).path))
