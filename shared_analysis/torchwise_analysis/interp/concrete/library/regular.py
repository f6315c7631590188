"""`re` over texts that are known, where a search cannot take long.

Patterns come from the analysed program, and the host's matcher backtracks without a limit. A pattern runs
only if a bound on its steps, from the number of its repeats and the length of the text, is small.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from torchwise_analysis.interp.concrete.values import (
    Builtin,
    Instance,
    Iter,
    Keywords,
    Opaque,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

_LONGEST_PATTERN = 400
_LONGEST_TEXT = 20_000
_MOST_STEPS = 2_000_000
_FLAGS = {
    "IGNORECASE": re.IGNORECASE,
    "I": re.IGNORECASE,
    "MULTILINE": re.MULTILINE,
    "M": re.MULTILINE,
    "DOTALL": re.DOTALL,
    "S": re.DOTALL,
    "VERBOSE": re.VERBOSE,
    "X": re.VERBOSE,
    "ASCII": re.ASCII,
    "UNICODE": re.UNICODE,
}
_KNOWN_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII | re.UNICODE
# What a search is asked for by name; `string` is the argument that the text is.
_SEARCHES = ("search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")

_Use: TypeAlias = "Callable[[re.Pattern[str], list[str | int]], object]"


def regular_expressions() -> dict[str, Value]:
    """The members of `re`."""
    members: dict[str, Value] = {name: int(flag) for name, flag in _FLAGS.items()}
    for name in _SEARCHES:
        members[name] = Builtin(f"re.{name}", _of_module(name))
    members["compile"] = Builtin("re.compile", _compile)
    members["escape"] = Builtin("re.escape", lambda it, a, k: re.escape(_text(a[0]) or ""))
    return members


def _of_module(name: str) -> Callable[[Interpreter, list[Value], Keywords], Value]:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        pattern = args.pop(0) if args else keywords.pop("pattern")
        flags = keywords.pop("flags", 0)
        if isinstance(pattern, Opaque):
            compiled = pattern
            pattern, flags = compiled.payload, compiled.attributes.get("flags", 0)
        return _search(it, name, pattern, flags, args, keywords)

    return call


def _compile(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    given = dict(zip(("pattern", "flags"), args, strict=False)) | keywords
    pattern, flags = given.get("pattern"), given.get("flags", 0)
    if isinstance(pattern, Opaque):
        return pattern
    members: dict[str, Value] = {"pattern": pattern, "flags": flags}
    for name in _SEARCHES:
        members[name] = Builtin(f"re.Pattern.{name}", _bound(name, pattern, flags))
    return Opaque("re.Pattern", members, payload=_text(pattern))


def _bound(name: str, pattern: Value, flags: Value) -> Callable[[Interpreter, list[Value], Keywords], Value]:
    return lambda it, a, k: _search(it, name, pattern, flags, a, k)


def _search(
    it: Interpreter, name: str, pattern: Value, flags: Value, args: list[Value], keywords: Keywords
) -> Value:
    names = ("repl", "string", "count") if name.startswith("sub") else ("string", "maxsplit")
    given = dict(zip(names, args, strict=False)) | keywords
    shape, subject, replacement = _text(pattern), _text(given.get("string")), given.get("repl")
    limit = given.get("count", given.get("maxsplit", 0))
    if shape is None or subject is None or not isinstance(flags, int) or not isinstance(limit, int):
        return Unknown(f"what re.{name} gives", it.origin())
    if not is_quick(shape, len(subject)):
        it.assume("a regular expression that may take long is not followed")
        return Unknown(f"what re.{name} gives", it.origin())
    try:
        compiled = re.compile(shape, flags & int(_KNOWN_FLAGS))
    except re.error as error:
        raise it.error("ValueError", str(error)) from None
    it.burn(1 + len(subject) // 64)
    if name in ("sub", "subn"):
        return _replaced(it, name, compiled, replacement, subject, limit)
    if name == "split":
        return list(compiled.split(subject, limit))
    if name == "findall":
        return list(compiled.findall(subject))
    if name == "finditer":
        return Iter(iter([_match(found) for found in compiled.finditer(subject)]))
    found = {"search": compiled.search, "match": compiled.match, "fullmatch": compiled.fullmatch}[name](
        subject
    )
    return None if found is None else _match(found)


def _replaced(
    it: Interpreter, name: str, pattern: re.Pattern[str], replacement: Value, subject: str, limit: int
) -> Value:
    template = _text(replacement)
    pieces: list[str] = []
    at = count = 0
    for found in pattern.finditer(subject):
        if limit and count >= limit:
            break
        count += 1
        if template is not None:
            put = found.expand(template)
        else:
            made = _text(it.call(replacement, [_match(found)], {}))
            if made is None:
                return Unknown(f"what re.{name} gives", it.origin())
            put = made
        pieces += [subject[at : found.start()], put]
        at = found.end()
    result = "".join([*pieces, subject[at:]])
    if len(result) > _LONGEST_TEXT * 4:
        return Unknown(f"what re.{name} gives", it.origin())
    return (result, count) if name == "subn" else result


def _match(found: re.Match[str]) -> Opaque:
    def group(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        keys = [key if isinstance(key, int) else _text(key) or "" for key in args or [0]]
        return found.group(*keys)

    def edge(of: Callable[[int | str], object]) -> Builtin:
        return Builtin("edge", lambda it, a, k: of(_key(a[0]) if a else 0))

    return Opaque(
        "re.Match",
        {
            "group": Builtin("group", group),
            "groups": Builtin("groups", lambda it, a, k: found.groups(a[0] if a else k.get("default"))),
            "groupdict": Builtin("groupdict", lambda it, a, k: dict(found.groupdict())),
            "__getitem__": Builtin("__getitem__", group),
            "start": edge(found.start),
            "end": edge(found.end),
            "span": edge(found.span),
            "string": found.string,
        },
    )


def _key(value: Value) -> int | str:
    return value if isinstance(value, int) else _text(value) or ""


def _text(value: Value) -> str | None:
    if isinstance(value, Instance):
        value = value.payload
    return value if isinstance(value, str) else None


def is_quick(pattern: str, length: int) -> bool:
    """Whether matching takes at most `_MOST_STEPS` on a text of `length`, by a bound that counts repeats.

    Each repeat without nesting multiplies the ways to match by the length of the text, each optional part by
    two; a repeated group may nest, and is refused.
    """
    if len(pattern) > _LONGEST_PATTERN or length > _LONGEST_TEXT:
        return False
    plain = re.sub(r"\\.", "x", pattern)
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "x", plain)
    plain = re.sub(r"\(\?[:=!<P]*", "(", plain)
    if re.search(r"\)[*+{]", plain):
        return False
    lazy = re.sub(r"([*+?}])[?+]", r"\1", plain)
    repeats = len(re.findall(r"[*+]|\{\d*,\d*\}", lazy))
    options = lazy.count("?") + lazy.count("|")
    steps: int = (length + 1) ** (repeats + 1) * 2**options
    return steps <= _MOST_STEPS
