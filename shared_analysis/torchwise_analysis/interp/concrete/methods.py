"""Methods of carriers: closed tables, bounded results.

Each entry takes the receiver and the arguments of the call. A host method is used directly only where
its arguments and result are carriers and its result cannot outgrow its input.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from torchwise_analysis.interp.concrete import operators, text
from torchwise_analysis.interp.concrete.values import MISSING, Builtin, Instance, Iter, Symbol, Unknown, Value
from torchwise_analysis.interp.core.constants import MAX_ITEMS, MAX_TEXT_LENGTH, TooLarge

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

Method: TypeAlias = "Callable[[Interpreter, Value, list[Value], dict[str, Value]], Value]"


def method_of(value: Value, name: str) -> Builtin | None:
    """The unbound method `name` of a carrier, or None."""
    for host, table in _TABLES:
        if isinstance(value, host) and name in table:
            return table[name]
    return None


def method_of_type(type_name: str, name: str) -> Builtin | None:
    """`str.lower`, `dict.fromkeys`, ... taken from the class."""
    return _BY_TYPE.get(type_name, {}).get(name)


def _builtin(name: str, method: Method) -> Builtin:
    def call(it: Interpreter, args: list[Value], keywords: dict[str, Value]) -> Value:
        if not args:
            raise it.error("TypeError", f"{name} needs an argument")
        receiver = args.pop(0)
        if isinstance(receiver, Instance):
            receiver = receiver.payload
        if name in _WALKING:
            it.burn_for(receiver)
        made = method(it, receiver, args, keywords)
        if made is not None:
            it.burn_for(made)
        return made

    return Builtin(name, call)


# Methods of lists that look at every item, or move them.
_WALKING = frozenset({"count", "index", "insert", "remove", "reverse", "sort"})


def _host(name: str) -> Method:
    """The host's own method, for carriers whose arguments are carriers."""

    def call(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
        for value in (*args, *keywords.values()):
            if isinstance(value, (Unknown, Symbol)):
                return Unknown(f"what .{name}() gives for {value.why}")
        plain = [_bare(value) for value in args]
        return getattr(receiver, name)(*plain, **{k: _bare(v) for k, v in keywords.items()})

    return call


def _bare(value: Value) -> Value:
    return value.payload if isinstance(value, Instance) and value.payload is not None else value


# --------------------------------------------------------------------------- str


def _join(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    separator = cast(str, receiver)
    pieces: list[str] = []
    length = 0
    for value in it.iterate(args[0]):
        piece = _bare(value)
        if isinstance(piece, (Unknown, Symbol)):
            return Unknown(f"a text made of {piece.why}")
        if not isinstance(piece, str):
            raise it.error("TypeError", "sequence item: expected str instance")
        pieces.append(piece)
        length += len(piece) + len(separator)
        if length > MAX_TEXT_LENGTH:
            raise TooLarge
    return separator.join(pieces)


def _format(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return text.format_fields(it, cast(str, receiver), args, keywords)


def _format_map(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    """`text.format_map(mapping)`; what a mapping does not know is not known."""
    if isinstance(args[0], (Unknown, Symbol)):
        return Unknown(f"a text made of {args[0].why}", it.origin())
    named = it.as_keywords(args[0])
    if isinstance(args[0], Instance) and args[0].cls.find("__missing__") is not MISSING:
        return Unknown("a text with parts that are not known", it.origin())
    return text.format_fields(it, cast(str, receiver), [], named)


def _replace(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    source, old, new = cast(str, receiver), _bare(args[0]), _bare(args[1])
    if not isinstance(old, str) or not isinstance(new, str):
        raise it.error("TypeError", "replace() arguments must be str")
    hits = len(source) + 1 if old == "" else source.count(old)
    if len(source) + hits * len(new) > MAX_TEXT_LENGTH:
        raise TooLarge
    return source.replace(old, new, *[operators.index_of(it, a) for a in args[2:]])


def _padded(name: str) -> Method:
    host = _host(name)

    def call(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
        if args and isinstance(args[0], int) and args[0] > MAX_TEXT_LENGTH:
            raise TooLarge
        return host(it, receiver, args, keywords)

    return call


def _expandtabs(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return cast(str, receiver).expandtabs(8)


_STR = {
    name: _host(name)
    for name in [
        "capitalize",
        "casefold",
        "count",
        "encode",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "rfind",
        "rindex",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
    ]
} | {
    "join": _join,
    "format": _format,
    "format_map": _format_map,
    "replace": _replace,
    "expandtabs": _expandtabs,
    **{name: _padded(name) for name in ("center", "ljust", "rjust", "zfill")},
}

_BYTES = {name: _host(name) for name in ("decode", "endswith", "find", "hex", "split", "startswith", "strip")}


def _item(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    """`.item()` of what would be a NumPy scalar."""
    return receiver


_INT = {name: _host(name) for name in ("bit_length", "bit_count", "conjugate", "is_integer")} | {
    "item": _item
}
_FLOAT = {name: _host(name) for name in ("is_integer", "hex", "as_integer_ratio", "conjugate")} | {
    "item": _item
}
_RANGE = {name: _host(name) for name in ("count", "index")}


# --------------------------------------------------------------------------- sequences


def _append(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("list[Value]", receiver)
    _room(it, target, 1)
    target.append(args.pop())
    if it.uncertain:
        it.note_growth(target)
    return None


def _extend(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("list[Value]", receiver)
    if isinstance(args[0], Unknown):
        if not it.module_depth:
            it.mark_open(target, args[0].why)
        return None
    operators.extend(it, target, args.pop())
    return None


def _room(it: Interpreter, target: list[Value], more: int) -> None:
    if len(target) + more > MAX_ITEMS:
        raise TooLarge


def _insert(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("list[Value]", receiver)
    _room(it, target, 1)
    target.insert(operators.index_of(it, args[0]), args[1])
    return None


def _pop(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("list[Value]", receiver)
    return target.pop(operators.index_of(it, args[0]) if args else -1)


def _remove(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("list[Value]", receiver)
    del target[_position(it, target, args[0])]
    return None


def _index(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    start = operators.index_of(it, args[1]) if len(args) > 1 else 0
    return _position(it, cast("list[Value]", receiver), args[0], start)


def _position(it: Interpreter, items: list[Value] | tuple[Value, ...], wanted: Value, start: int = 0) -> int:
    if isinstance(wanted, (Unknown, Symbol)) and start < len(items):
        it.assume(f"{wanted.why} is the first element of the list it is looked for in")
        return start
    for position in range(start, len(items)):
        if operators.equal(it, items[position], wanted):
            return position
    raise it.error("ValueError", f"{text.repr_of(it, wanted)} is not in list")


def _count(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return sum(operators.equal(it, item, args[0]) for item in cast("list[Value]", receiver))


def _sort(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("list[Value]", receiver)
    target[:] = sorted_values(it, target, keywords.get("key"), it.truth(keywords.get("reverse", False)))
    return None


def sorted_values(it: Interpreter, items: list[Value], key: Value, reverse: bool) -> list[Value]:
    """`sorted(items, key=key, reverse=reverse)`."""
    keys = items if key is None else [it.call(key, [item], {}) for item in items]

    def order(left: int, right: int) -> int:
        if it.truth(operators.compare(it, "<", keys[left], keys[right])):
            return -1
        return 1 if it.truth(operators.compare(it, "<", keys[right], keys[left])) else 0

    order_of = sorted(range(len(items)), key=functools.cmp_to_key(order), reverse=reverse)
    return [items[position] for position in order_of]


def _reverse(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    cast("list[Value]", receiver).reverse()
    return None


def _clear(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    cast("list[Value]", receiver).clear()
    return None


def _copy(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return cast("list[Value]", receiver).copy()


_LIST: dict[str, Method] = {
    "append": _append,
    "extend": _extend,
    "insert": _insert,
    "pop": _pop,
    "remove": _remove,
    "index": _index,
    "count": _count,
    "sort": _sort,
    "reverse": _reverse,
    "clear": _clear,
    "copy": _copy,
}
_TUPLE: dict[str, Method] = {"index": _index, "count": _count}


# --------------------------------------------------------------------------- dict


def _get(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    default = args[1] if len(args) > 1 else keywords.get("default")
    if isinstance(args[0], (Unknown, Symbol)):
        return Unknown(f"an entry for {args[0].why}")
    return cast("dict[Value, Value]", receiver).get(operators.key_of(it, args[0]), default)


def _items(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return [(operators.shown_key(k), v) for k, v in cast("dict[Value, Value]", receiver).items()]


def _keys(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return [operators.shown_key(k) for k in cast("dict[Value, Value]", receiver)]


def _values(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return list(cast("dict[Value, Value]", receiver).values())


def _dict_pop(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("dict[Value, Value]", receiver)
    key = operators.key_of(it, args[0])
    if key in target:
        return target.pop(key)
    if len(args) > 1:
        return args[1]
    if "default" in keywords:
        return keywords["default"]
    raise it.error("KeyError", args[0])


def _popitem(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("dict[Value, Value]", receiver)
    if not target:
        raise it.error("KeyError", "popitem(): dictionary is empty")
    last = args[0] if args else keywords.get("last", True)
    if last:
        key, value = target.popitem()
    else:
        key = next(iter(target))
        value = target.pop(key)
    return (operators.shown_key(key), value)


def _update(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("dict[Value, Value]", receiver)
    for source in args:
        for key, value in it.as_mapping(source).items():
            operators.store(it, target, key, value)
    target.update(keywords)
    return None


def _setdefault(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("dict[Value, Value]", receiver)
    default = args[1] if len(args) > 1 else keywords.get("default")
    return target.setdefault(operators.key_of(it, args[0]), default)


def _move_to_end(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = cast("dict[Value, Value]", receiver)
    key = operators.key_of(it, args[0])
    last = args[1] if len(args) > 1 else keywords.get("last", True)
    value = target.pop(key)
    if last:
        target[key] = value
    else:
        rest = dict(target)
        target.clear()
        target[key] = value
        target.update(rest)
    return None


_DICT: dict[str, Method] = {
    "get": _get,
    "items": _items,
    "keys": _keys,
    "values": _values,
    "pop": _dict_pop,
    "popitem": _popitem,
    "update": _update,
    "setdefault": _setdefault,
    "clear": _clear,
    "copy": _copy,
    "move_to_end": _move_to_end,
}


# --------------------------------------------------------------------------- set


def _as_set(it: Interpreter, value: Value) -> set[Value]:
    out: set[Value] = set()
    for item in it.iterate(value):
        operators.add_to_set(it, out, item)
    return out


def _algebra(name: str) -> Method:
    def call(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
        return getattr(receiver, name)(*[_as_set(it, value) for value in args])

    return call


def _add(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    operators.add_to_set(it, cast("set[Value]", receiver), args[0])
    it.note_growth(receiver)
    return None


def _discard(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    cast("set[Value]", receiver).discard(operators.key_of(it, args[0]))
    return None


def _set_remove(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    cast("set[Value]", receiver).remove(operators.key_of(it, args[0]))
    return None


def _set_pop(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return cast("set[Value]", receiver).pop()


_FROZEN = {
    name: _algebra(name)
    for name in [
        "difference",
        "intersection",
        "isdisjoint",
        "issubset",
        "issuperset",
        "symmetric_difference",
        "union",
    ]
} | {"copy": _copy}
_SET = _FROZEN | {
    "add": _add,
    "discard": _discard,
    "remove": _set_remove,
    "pop": _set_pop,
    "clear": _clear,
    "update": _algebra("update"),
    "difference_update": _algebra("difference_update"),
    "intersection_update": _algebra("intersection_update"),
}


# --------------------------------------------------------------------------- iterators and numbers


def _next(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return it.next_of(receiver)


def _send(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    it.send_value = args[0]
    return it.next_of(receiver)


def _close(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    close = getattr(cast(Iter, receiver).source, "close", None)
    if close is not None:
        close()
    return None


def _self(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return receiver


_ITER: dict[str, Method] = {"__next__": _next, "__iter__": _self, "send": _send, "close": _close}
_SYMBOL: dict[str, Method] = dict.fromkeys(("item", "long", "int", "float", "cpu", "detach", "numpy"), _self)


# --------------------------------------------------------------------------- shared special methods


def _len(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return it.length(receiver)


def _iter(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return Iter(it.iterate(receiver))


def _getitem(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return it.get_item(receiver, args[0])


def _setitem(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    it.set_item(receiver, args[0], args[1])
    return None


def _contains(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return operators.contains(it, receiver, args[0])


def _eq(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return operators.equal(it, receiver, args[0])


def _delitem(it: Interpreter, receiver: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    it.delete_item(receiver, args[0])
    return None


_SHARED: dict[str, Method] = {
    "__len__": _len,
    "__iter__": _iter,
    "__getitem__": _getitem,
    "__setitem__": _setitem,
    "__delitem__": _delitem,
    "__contains__": _contains,
    "__eq__": _eq,
}


def _table(methods: dict[str, Method], shared: bool = False) -> dict[str, Builtin]:
    whole = {**(_SHARED if shared else {}), **methods}
    return {name: _builtin(name, method) for name, method in whole.items()}


# `bool` before nothing: it has the methods of `int`
_TABLES: tuple[tuple[type, dict[str, Builtin]], ...] = (
    (str, _table(_STR, shared=True)),
    (bytes, _table(_BYTES, shared=True)),
    (int, _table(_INT)),
    (float, _table(_FLOAT)),
    (list, _table(_LIST, shared=True)),
    (tuple, _table(_TUPLE, shared=True)),
    (dict, _table(_DICT, shared=True)),
    (set, _table(_SET, shared=True)),
    (frozenset, _table(_FROZEN, shared=True)),
    (range, _table(_RANGE, shared=True)),
    (Iter, _table(_ITER)),
    (Symbol, _table(_SYMBOL)),
)

_BY_TYPE = {host.__name__: table for host, table in _TABLES}


def attribute_of(value: Value, name: str) -> Value:
    """Plain data attributes of carriers: `x.real`, `s.start`, ..."""
    if isinstance(value, (int, float)) and name in ("real", "imag", "numerator", "denominator"):
        return getattr(value, name, MISSING)
    if isinstance(value, (range, slice)) and name in ("start", "stop", "step"):
        return getattr(value, name)
    if isinstance(value, complex) and name in ("real", "imag"):
        return getattr(value, name)
    return MISSING
