"""The built-in functions and constructors of the language."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias, cast

from torchwise_analysis.interp.concrete import classes, methods, operators, text
from torchwise_analysis.interp.concrete.errors import Raised
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    BoundMethod,
    Builtin,
    Class,
    ClassMethod,
    Function,
    Instance,
    Iter,
    Keywords,
    ModuleValue,
    Partial,
    Property,
    StaticMethod,
    Super,
    Symbol,
    Unknown,
    Value,
)
from torchwise_analysis.interp.core.constants import MAX_ITEMS
from torchwise_memory.modules.base import Module

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

Call: TypeAlias = "Callable[[Interpreter, list[Value], Keywords], Value]"
Make: TypeAlias = "Callable[[Interpreter, Class, list[Value], Keywords], Value]"


def builtin_names(it: Interpreter) -> dict[str, Value]:
    """Functions by name; the constructors are put on the built-in types as a side effect."""
    for name, make in _CONSTRUCTORS.items():
        it.types.by_name[name].construct = make
    it.types.by_name["object"].members["__init__"] = Builtin("__init__", _object_init)
    it.types.by_name["object"].members["__new__"] = StaticMethod(Builtin("__new__", _object_new))
    for name in ("dict", "list", "set"):
        it.types.by_name[name].members["__init__"] = Builtin("__init__", _carrier_init)
    it.types.by_name["dict"].members["fromkeys"] = Builtin("fromkeys", _from_keys, static=True)
    names: dict[str, Value] = {name: Builtin(name, call) for name, call in _FUNCTIONS.items()}
    names["NotImplemented"] = it.not_implemented
    names["Ellipsis"] = Ellipsis
    names["__debug__"] = True
    names["IOError"] = names["EnvironmentError"] = it.types.by_name["OSError"]
    return names


def _object_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = args[0]
    if isinstance(receiver, Instance) and receiver.cls.trait("exception"):
        receiver.attributes["args"] = tuple(args[1:])
    return None


def _object_new(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    cls = args.pop(0)
    assert isinstance(cls, Class)
    made = it.allocate(cls, args, keywords)
    if made is MISSING:
        assert cls.construct is not None
        return cls.construct(it, cls, args, keywords)
    return made


def _from_keys(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[1] if len(args) > 1 else None
    out: dict[Value, Value] = {}
    for key in operators.bounded_list(it, it.iterate(args[0])):
        operators.store(it, out, key, value)
    return out


def _carrier_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = args.pop(0)
    if not isinstance(receiver, Instance):
        return None
    payload = receiver.payload
    if isinstance(payload, dict):
        for source in args:
            for key, value in it.as_mapping(source).items():
                operators.store(it, cast("dict[Value, Value]", payload), key, value)
        payload.update(keywords)
    elif isinstance(payload, list) and args:
        payload[:] = operators.bounded_list(it, it.iterate(args[0]))
    elif isinstance(payload, set) and args:
        for item in it.iterate(args[0]):
            operators.add_to_set(it, cast("set[Value]", payload), item)
    return None


# --------------------------------------------------------------------------- constructors


def _bare(value: Value) -> Value:
    return value.payload if isinstance(value, Instance) and value.payload is not None else value


def _number(it: Interpreter, value: Value) -> Value:
    """An argument of `int` or `float`; tensors and library objects give their value where it is known."""
    value = _bare(value)
    if isinstance(value, (int, float, str, complex, bytes, Unknown, Symbol)):
        return value
    known = it.library.known_number(value)
    if known is not None:
        return known
    if it.is_tensor(value):
        return Symbol("the value of a tensor", is_int=False)
    return value


def _int(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if not args:
        return 0
    value = _number(it, args[0])
    if isinstance(value, Unknown):
        return Symbol(value.why)
    if isinstance(value, Symbol):
        return value if value.is_int else Symbol(value.why)
    if isinstance(value, Instance):
        method = value.cls.find("__int__")
        if method is not MISSING:
            return it.call(method, [value], {})
        return operators.index_of(it, value)
    if isinstance(value, str) and len(value) > 4000:
        raise it.error("ValueError", "Exceeds the limit for integer string conversion")
    if isinstance(value, int) and len(args) == 1:
        return value if not isinstance(value, bool) else int(value)
    return int(value, *[operators.index_of(it, a) for a in args[1:]])  # type: ignore[call-overload]


def _float(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if not args:
        return 0.0
    value = _number(it, args[0])
    if isinstance(value, (Unknown, Symbol)):
        return Symbol(value.why, is_int=False)
    if isinstance(value, Instance):
        method = value.cls.find("__float__")
        if method is not MISSING:
            return it.call(method, [value], {})
    return float(cast(float, value))


def _complex(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    return complex(*[cast(float, a) for a in args])


def _bool(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if args and isinstance(args[0], (Unknown, Symbol)):
        return args[0]
    return it.truth(args[0]) if args else False


def _str(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if not args:
        return ""
    if isinstance(args[0], Unknown):
        return args[0]
    if isinstance(args[0], bytes) and len(args) > 1:
        return args[0].decode(cast(str, args[1]))
    return text.bounded(text.text_of(it, args[0]))


def _bytes(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if not args:
        return b""
    value = args[0]
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int):
        if value > MAX_ITEMS:
            return Unknown("a large bytes object", it.origin())
        return bytes(value)
    return bytes(operators.index_of(it, v) for v in operators.bounded_list(it, it.iterate(value)))


def _list(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if args and isinstance(args[0], Unknown):
        return Unknown(args[0].why, args[0].origin)
    return _like(it, args[0], operators.bounded_list(it, it.iterate(args[0]))) if args else []


def _like(it: Interpreter, source: Value, made: Value) -> Value:
    """A container made of another one: if the length of that one is not known, neither is its own."""
    reason = source.doubt if isinstance(source, Iter) else it.open_reason(source)
    if reason:
        it.mark_open(made, reason)
    return made


def _tuple(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if args and isinstance(args[0], Unknown):
        return args[0]
    return tuple(operators.bounded_list(it, it.iterate(args[0]))) if args else ()


def _dict(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if args and isinstance(args[0], Unknown):
        return args[0]
    out: dict[Value, Value] = dict(it.as_mapping(args[0])) if args else {}
    out.update(keywords)
    return out


def _set(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    out: set[Value] = set()
    if args:
        if isinstance(args[0], Unknown):
            return args[0]
        for item in it.iterate(args[0]):
            operators.add_to_set(it, out, item)
        _like(it, args[0], out)
    return out


def _frozenset(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    made = _set(it, cls, args, keywords)
    return frozenset(made) if isinstance(made, set) else made


def _range(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    unknown = next((a for a in args if isinstance(a, (Unknown, Symbol))), None)
    if unknown is not None:
        step = args[2] if len(args) > 2 else 1
        return Iter(_unknown_range(unknown, args[0] if len(args) > 1 else 0, step), "range")
    return range(*[operators.index_of(it, a) for a in args])


def _unknown_range(bound: Unknown | Symbol, start: Value, step: Value) -> Iterator[Value]:
    """A range whose end is not known: as many rounds as whoever loops over it takes."""
    if isinstance(start, int) and isinstance(step, int):
        yield from range(start, start + step * 4096, step)
    else:
        for _ in range(4096):
            yield Symbol(f"a number below {bound.why}")


def _slice(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    return slice(*args)


def _type(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if len(args) == 1:
        return it.class_of(args[0])
    bases = [b for b in it.iterate(args[1]) if isinstance(b, Class)]
    return classes.new_class(it, text.text_of(it, args[0]), bases, it.as_keywords(args[2]), "__main__")


def _property(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    getter = args[0] if args else keywords.get("fget")
    return Property(getter, args[1] if len(args) > 1 else keywords.get("fset"))


def _static(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    return StaticMethod(args[0])


def _classmethod(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    return ClassMethod(args[0])


def _super(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if len(args) < 2 or not isinstance(args[0], Class):
        raise it.error("TypeError", "super() needs a class and an object")
    return Super(args[0], args[1])


_CONSTRUCTORS: dict[str, Make] = {
    "int": _int,
    "float": _float,
    "complex": _complex,
    "bool": _bool,
    "str": _str,
    "bytes": _bytes,
    "bytearray": _bytes,
    "list": _list,
    "tuple": _tuple,
    "dict": _dict,
    "set": _set,
    "frozenset": _frozenset,
    "range": _range,
    "slice": _slice,
    "type": _type,
    "property": _property,
    "staticmethod": _static,
    "classmethod": _classmethod,
    "super": _super,
}


# --------------------------------------------------------------------------- functions


def _print(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return None


def _len(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return it.length(args[0])


def _abs(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[0]
    if isinstance(value, Unknown):
        return value
    if isinstance(value, Symbol):
        return Symbol(value.why, value.is_int)
    if it.is_tensor(value):
        return it.library.call_method(it, value, "abs", [], {})
    return abs(cast(float, _bare(value)))


# More than a double or a whole number within bounds has.
_MAX_DIGITS = 2000


def _round(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[0]
    if isinstance(value, (Unknown, Symbol)):
        return Symbol(value.why, is_int=len(args) == 1)
    if it.is_tensor(value):
        return it.library.call_method(it, value, "round", [], {})
    digits = args[1] if len(args) > 1 else keywords.get("ndigits")
    if isinstance(digits, int) and abs(digits) > _MAX_DIGITS:
        return value if digits > 0 else 0  # the host would make ten to that power first
    return round(cast(float, _number(it, value)), cast("int", digits))


def _pow(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if len(args) == 3:
        return pow(*[operators.index_of(it, a) for a in args])
    return operators.binary(it, "**", args[0], args[1])


def _divmod(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return (operators.binary(it, "//", args[0], args[1]), operators.binary(it, "%", args[0], args[1]))


def _sum(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    total = args[1] if len(args) > 1 else keywords.get("start", 0)
    if isinstance(args[0], Unknown):
        return Symbol(f"the sum of {args[0].why}", is_int=False)
    for item in it.iterate(args.pop(0)):
        total = operators.binary(it, "+", total, item)
        del item
    return total


def _extreme(op: str) -> Call:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        items = list(it.iterate(args[0])) if len(args) == 1 else args
        if len(args) == 1 and isinstance(args[0], Unknown):
            return Symbol(args[0].why, is_int=False)
        if not items:
            if "default" in keywords:
                return keywords["default"]
            raise it.error("ValueError", "iterable argument is empty")
        key = keywords.get("key")
        best = items[0]
        best_key = best if key is None else it.call(key, [best], {})
        for item in items[1:]:
            item_key = item if key is None else it.call(key, [item], {})
            verdict = operators.compare(it, op, item_key, best_key)
            if isinstance(verdict, (Unknown, Symbol)):
                return _of_unknowns(items, op)
            if it.truth(verdict):
                best, best_key = item, item_key
        return best

    return call


def _of_unknowns(items: list[Value], op: str) -> Value:
    """The minimum of a known and an unknown length is the known one: data is assumed to be plentiful."""
    known = [v for v in items if isinstance(v, (int, float))]
    if op == "<" and known:
        return min(known)
    return next(v for v in items if isinstance(v, (Unknown, Symbol)))


def _sorted(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if isinstance(args[0], Unknown):
        return args[0]
    items = operators.bounded_list(it, it.iterate(args[0]))
    made = methods.sorted_values(it, items, keywords.get("key"), it.truth(keywords.get("reverse", False)))
    return _like(it, args[0], made)


def _reversed(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[0]
    if isinstance(value, Instance):
        method = value.cls.find("__reversed__")
        if method is not MISSING:
            return it.call(method, [value], {})
    if isinstance(value, range):
        return Iter(iter(value[::-1]))
    return Iter(iter(operators.bounded_list(it, it.iterate(value))[::-1]))


def _enumerate(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    start = args[1] if len(args) > 1 else keywords.get("start", 0)
    source = args.pop(0) if args else keywords.pop("iterable")
    return Iter(_numbered(it, it.iterate(source), start))


def _numbered(it: Interpreter, source: Iterator[Value], start: Value) -> Iterator[Value]:
    position = start
    for item in source:
        pair = (position, item)
        del item
        yield pair
        del pair
        position = operators.binary(it, "+", position, 1)


def _zip(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return Iter(_zipped([it.iterate(a) for a in args]))


def _zipped(sources: list[Iterator[Value]]) -> Iterator[Value]:
    while sources:
        items: list[Value] = []
        for source in sources:
            for item in source:
                items.append(item)
                break
            else:
                return
        row = tuple(items)
        items.clear()
        item = None
        yield row
        del row


def _map(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    function = args[0]
    rows = _zipped([it.iterate(a) for a in args[1:]])
    return Iter(_mapped(it, function, rows))


def _mapped(it: Interpreter, function: Value, rows: Iterator[Value]) -> Iterator[Value]:
    for row in rows:
        given = list(cast("tuple[Value, ...]", row))
        del row
        yield it.call(function, given, {})


def _filter(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return Iter(_filtered(it, args[0], it.iterate(args[1])))


def _filtered(it: Interpreter, function: Value, source: Iterator[Value]) -> Iterator[Value]:
    for item in source:
        verdict = item if function is None else it.call(function, [item], {})
        if (it.undecided(verdict) and not it.module_depth) or it.truth(verdict):
            yield item


def _any(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return _quantified(it, args[0], True)


def _all(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return _quantified(it, args[0], False)


def _quantified(it: Interpreter, source: Value, decisive: bool) -> Value:
    """`any` (decided by a true element) and `all` (by a false one); what stays open is not known."""
    doubt = ""
    for value in it.iterate(source):
        why = it.undecided(value)
        if why:
            doubt = doubt or why
        elif it.truth(value) is decisive:
            return decisive
    return Unknown(doubt, it.origin()) if doubt else not decisive


def _iter(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if len(args) == 2:
        return Iter(_until(it, args[0], args[1]))
    if isinstance(args[0], Instance) and args[0].cls.find("__next__") is not MISSING:
        return args[0]
    return Iter(it.iterate(args[0]))


def _until(it: Interpreter, function: Value, sentinel: Value) -> Iterator[Value]:
    while True:
        value = it.call(function, [], {})
        if operators.equal(it, value, sentinel):
            return
        yield value


def _next(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if len(args) == 1:
        return it.next_of(args[0])
    ended = False
    try:
        return it.next_of(args[0])
    except Raised as raised:
        if raised.value.cls.name != "StopIteration":
            raise
        ended = True
    assert ended
    return args[1]


def _isinstance(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value, wanted = args
    if isinstance(value, Unknown):
        return Unknown(f"the type of {value.why}", value.origin)
    cls = it.class_of(value)
    kinds = _flat(wanted)
    if any(_is_kind(it, cls, value, one) for one in kinds):
        return True
    unknown = next((one for one in kinds if isinstance(one, Unknown)), None)
    return False if unknown is None else Unknown(f"whether a value is of {unknown.why}", unknown.origin)


def _is_kind(it: Interpreter, cls: Class, value: Value, wanted: Value) -> bool:
    if not isinstance(wanted, Class):
        return False
    if isinstance(value, Symbol):
        return wanted.name == ("int" if value.is_int else "float")
    if cls.is_subclass(wanted) or (wanted.tag and any(c.tag == wanted.tag for c in cls.mro)):
        return True
    return it.library.is_abstract_kind(value, cls, wanted)


def _flat(wanted: Value) -> list[Value]:
    if isinstance(wanted, tuple):
        return [inner for one in cast("tuple[Value, ...]", wanted) for inner in _flat(one)]
    return [wanted]


def _issubclass(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    cls = args[0]
    if not isinstance(cls, Class):
        return False
    return any(
        isinstance(w, Class)
        and (cls.is_subclass(w) or (w.tag != "" and any(c.tag == w.tag for c in cls.mro)))
        for w in _flat(args[1])
    )


def _exec(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`exec` of a file's text: it is interpreted like an import, in the program's own globals."""
    content = args[0] if args else None
    if not isinstance(content, str) or len(args) > 1:
        return _refused("exec")(it, args, keywords)
    it.burn_for(content)
    it.library.imports.run_text(content)
    return None


def _callable(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[0]
    if isinstance(value, Instance):
        return value.cls.find("__call__") is not MISSING
    return isinstance(value, (Function, Builtin, BoundMethod, Class, Partial, Module))


def _getattr(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    owner, name = args[0], _bare(args[1])
    if not isinstance(name, str):
        return Unknown("an attribute whose name is not known", it.origin())
    value = it.find_attribute(owner, name)
    if value is not MISSING:
        return value
    if len(args) > 2 and not isinstance(owner, (Unknown, Symbol)):
        return args[2]
    return it.missing_attribute(owner, name)


def _hasattr(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    name = _bare(args[1])
    if isinstance(args[0], Unknown):
        return Unknown(f"whether {args[0].why} has {text.text_of(it, name)}", args[0].origin)
    try:
        return isinstance(name, str) and it.find_attribute(args[0], name) is not MISSING
    except Raised as raised:
        # a property that raises it has no value
        if not raised.value.cls.is_subclass(it.types.by_name["AttributeError"]):
            raise
    return False


def _setattr(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    name = _bare(args[1])
    if isinstance(name, str):
        it.set_attribute(args[0], name, args[2])
    return None


def _delattr(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    it.delete_attribute(args[0], cast(str, _bare(args[1])))
    return None


def _vars(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if not args:
        return Unknown("vars()", it.origin())
    value = args[0]
    if isinstance(value, Instance):
        return value.attributes
    if isinstance(value, ModuleValue):
        return value.names
    return it.get_attribute(value, "__dict__")


def _globals(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return it.library.main_names()


def _locals(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return {}


def _dir(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[0] if args else None
    if isinstance(value, Instance):
        return sorted({*value.attributes, *(n for c in value.cls.mro for n in c.members)})
    if isinstance(value, Class):
        return sorted({n for c in value.mro for n in c.members})
    if isinstance(value, ModuleValue):
        return it.library.names_of_module(value)
    return []


def _id(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return id(args[0])


def _hash(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[0]
    if isinstance(value, Instance):
        method = value.cls.find("__hash__")
        if method is not MISSING:
            return it.call(method, [value], {})
    return hash(operators.key_of(it, value))


def _repr(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return text.bounded(text.repr_of(it, args[0]))


def _format(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    spec = args[1] if len(args) > 1 else ""
    return text.format_value(it, args[0], spec if isinstance(spec, str) else "")


def _ord(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return ord(cast(str, _bare(args[0])))


def _chr(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return chr(operators.index_of(it, args[0]))


def _number_text(host: Callable[[int], str]) -> Call:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return host(operators.index_of(it, args[0]))

    return call


def _open(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return it.library.open_file(it, args, keywords)


def _refused(name: str) -> Call:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        it.assume(f"{name}() is not followed")
        return Unknown(f"{name}()", it.origin())

    return call


_FUNCTIONS: dict[str, Call] = {
    "abs": _abs,
    "all": _all,
    "any": _any,
    "bin": _number_text(bin),
    "callable": _callable,
    "chr": _chr,
    "delattr": _delattr,
    "dir": _dir,
    "divmod": _divmod,
    "enumerate": _enumerate,
    "filter": _filter,
    "format": _format,
    "getattr": _getattr,
    "globals": _globals,
    "hasattr": _hasattr,
    "hash": _hash,
    "hex": _number_text(hex),
    "id": _id,
    "isinstance": _isinstance,
    "issubclass": _issubclass,
    "iter": _iter,
    "len": _len,
    "locals": _locals,
    "map": _map,
    "max": _extreme(">"),
    "min": _extreme("<"),
    "next": _next,
    "oct": _number_text(oct),
    "open": _open,
    "ord": _ord,
    "pow": _pow,
    "print": _print,
    "repr": _repr,
    "reversed": _reversed,
    "round": _round,
    "setattr": _setattr,
    "sorted": _sorted,
    "sum": _sum,
    "vars": _vars,
    "zip": _zip,
    "input": _refused("input"),
    "eval": _refused("eval"),
    "exec": _exec,
    "compile": _refused("compile"),
    "__import__": _refused("__import__"),
    "breakpoint": _print,
    "exit": _refused("exit"),
    "quit": _refused("quit"),
}
