"""Operators and comparisons between values of a program."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.costs import ITEMS_A_STEP
from torchwise_analysis.interp.concrete.errors import Stopped
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Class,
    Drawn,
    Instance,
    Int,
    Iter,
    Symbol,
    Unknown,
    Value,
)
from torchwise_analysis.interp.core import constants
from torchwise_memory.runtime.device import Device
from torchwise_memory.runtime.tensor import Size, Tensor

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

PLAIN = frozenset({int, float, bool, Int, str})

_METHOD = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "lshift",
    ">>": "rshift",
}
_COMPARE = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_REFLECTED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}

_TENSOR = {
    "+": "torch.add",
    "-": "torch.sub",
    "*": "torch.mul",
    "/": "torch.div",
    "//": "torch.floor_divide",
    "%": "torch.remainder",
    "**": "torch.pow",
    "@": "torch.matmul",
    "&": "torch.bitwise_and",
    "|": "torch.bitwise_or",
    "^": "torch.bitwise_xor",
    "<<": "torch.bitwise_left_shift",
    ">>": "torch.bitwise_right_shift",
}
_TENSOR_COMPARE = {
    "==": "torch.eq",
    "!=": "torch.ne",
    "<": "torch.lt",
    "<=": "torch.le",
    ">": "torch.gt",
    ">=": "torch.ge",
}
_TENSOR_IN_PLACE = {
    "+": "add_",
    "-": "sub_",
    "*": "mul_",
    "/": "div_",
    "**": "pow_",
    "&": "bitwise_and_",
    "|": "bitwise_or_",
}
_SET_OPERATORS = frozenset({"-", "&", "|", "^"})
_HOST_ERRORS = (TypeError, ValueError, ZeroDivisionError, OverflowError, KeyError, IndexError)


def plain_binary(it: Interpreter, op: str, left: Value, right: Value) -> Value:
    """Numbers and texts."""
    failure = ("", "")
    try:
        if op == "%" and isinstance(left, str):
            return text.percent(it, left, right)
        made = constants.binary(op, left, right)
        it.burn_for(made)
        return made
    except constants.TooLarge:
        return Unknown(f"the result of {op} is out of bounds", it.origin())
    except _HOST_ERRORS as error:
        failure = (type(error).__name__, str(error))
    raise it.error(*failure)


def _is_type(value: Value) -> bool:
    """A class, or a union of classes as made here."""
    if isinstance(value, tuple):
        parts = cast("tuple[Value, ...]", value)
        return len(parts) > 1 and all(part is None or isinstance(part, Class) for part in parts)
    return isinstance(value, Class)


def binary(it: Interpreter, op: str, left: Value, right: Value) -> Value:
    """`left op right`."""
    if op == "%" and isinstance(left, str):
        return plain_binary(it, op, left, right)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return tensor_binary(it, op, left, right)
    if isinstance(left, Unknown):
        return it.derived(left)
    if isinstance(right, Unknown):
        return it.derived(right)
    if isinstance(left, Symbol) or isinstance(right, Symbol):
        if op == "*" and (isinstance(left, list) or isinstance(right, list)):
            return _repeated(it, left, right)
        return symbol_binary(op, left, right)
    if op == "|" and (_is_type(left) or _is_type(right)):
        # a union of types, as `isinstance` takes it
        return (
            *(left if isinstance(left, tuple) else (left,)),
            *(right if isinstance(right, tuple) else (right,)),
        )
    if isinstance(left, Instance) or isinstance(right, Instance):
        return _by_method(it, op, left, right)
    if isinstance(left, Size):
        left = tuple(left)
    if isinstance(right, Size):
        right = tuple(right)
    if (
        op in _SET_OPERATORS
        and isinstance(left, list)
        and isinstance(right, (list, set, frozenset, tuple, dict))
    ):
        # the views that `keys()` and `items()` give behave as sets
        left = {key_of(it, v) for v in cast("list[Value]", left)}
        right = {key_of(it, v) for v in it.iterate(right)}
    if not (_carrier(left) and _carrier(right)):
        native = it.library.native_binary(it, op, left, right)
        if native is not MISSING:
            return native
        names = f"'{it.class_of(left).name}' and '{it.class_of(right).name}'"
        raise it.error("TypeError", f"unsupported operand type(s) for {op}: {names}")
    made = plain_binary(it, op, left, right)
    if op == "+" and isinstance(made, list):
        reason = it.open_reason(left) or it.open_reason(right)
        if reason and not it.module_depth:
            it.mark_open(made, reason)
    return made


def _repeated(it: Interpreter, left: Value, right: Value) -> Value:
    """A list times a number that is not known: of one round, its length left open."""
    items, count = (left, right) if isinstance(left, list) else (right, left)
    made = list(cast("list[Value]", items))
    if not it.module_depth:
        it.mark_open(made, cast(Symbol, count).why)
    return made


def _carrier(value: Value) -> bool:
    return value is None or isinstance(
        value, (int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
    )


def tensor_binary(it: Interpreter, op: str, left: Value, right: Value) -> Value:
    for value, other in ((left, right), (right, left)):
        if isinstance(value, Unknown):
            if not it.module_depth and not cast(Tensor, other).requires_grad:
                # data beside data that is not known, outside of a model and of its loss
                return value
            raise Stopped(f"{value.why} meets a tensor in {op}", value.origin or it.origin())
    return it.library.call_function(it, _TENSOR[op], [scalar(it, left), scalar(it, right)], {})


def scalar(it: Interpreter, value: Value) -> Value:
    """An unknown number beside a tensor changes no shape: one stands for it."""
    if isinstance(value, Symbol):
        return 1 if value.is_int else 1.0
    return value


def slice_length(index: slice) -> int | None:
    """How many items `x[a:b]` has of a sequence that is long enough; None where that is not known."""
    if index.step not in (None, 1) or index.stop is None:
        return None
    start, stop = 0 if index.start is None else index.start, index.stop
    length: Value = None
    if isinstance(start, Symbol) or isinstance(stop, Symbol):
        if isinstance(start, (int, Symbol)) and isinstance(stop, (int, Symbol)):
            length = symbol_binary("-", stop, start)
    elif isinstance(start, int) and isinstance(stop, int) and start >= 0 <= stop:
        length = stop - start
    return int(length) if isinstance(length, int) and length > 0 else None


def symbol_binary(op: str, left: Value, right: Value) -> Value:
    """Linear arithmetic on unknown integers; anything else is a new unknown number."""
    why = left.why if isinstance(left, Symbol) else right.why if isinstance(right, Symbol) else ""
    whole = _whole(left) and _whole(right) and op != "/"
    if not whole:
        return Symbol(why, is_int=False)
    if op in "+-":
        sign = 1 if op == "+" else -1
        return _combine(left, right, sign, why)
    if op == "*":
        if isinstance(left, Symbol) and isinstance(right, int):
            return _scale(left, right)
        if isinstance(right, Symbol) and isinstance(left, int):
            return _scale(right, left)
    return Symbol(why)


def _whole(value: Value) -> bool:
    return isinstance(value, int) or (isinstance(value, Symbol) and value.is_int)


def _combine(left: Value, right: Value, sign: int, why: str) -> Value:
    terms: dict[object, int] = {}
    constant = 0
    for value, factor in ((left, 1), (right, sign)):
        if isinstance(value, Symbol):
            constant += factor * value.constant
            for key, coefficient in value.terms:
                terms[key] = terms.get(key, 0) + factor * coefficient
        else:
            constant += factor * cast(int, value)
    kept = tuple((key, coefficient) for key, coefficient in terms.items() if coefficient)
    return Symbol(why, terms=kept, constant=constant) if kept else constant


def _scale(symbol: Symbol, factor: int) -> Value:
    if factor == 0:
        return 0
    terms = tuple((key, coefficient * factor) for key, coefficient in symbol.terms)
    return Symbol(symbol.why, terms=terms, constant=symbol.constant * factor)


def _by_method(it: Interpreter, op: str, left: Value, right: Value) -> Value:
    name = _METHOD[op]
    for receiver, argument, prefix in ((left, right, "__"), (right, left, "__r")):
        if not isinstance(receiver, Instance):
            continue
        method = receiver.cls.find(f"{prefix}{name}__")
        if method is not MISSING:
            result = it.call(method, [receiver, argument], {})
            if result is not it.not_implemented:
                return result
    bare_left = left.payload if isinstance(left, Instance) and left.payload is not None else left
    bare_right = right.payload if isinstance(right, Instance) and right.payload is not None else right
    if bare_left is left and bare_right is right:
        names = f"'{it.class_of(left).name}' and '{it.class_of(right).name}'"
        raise it.error("TypeError", f"unsupported operand type(s) for {op}: {names}")
    return binary(it, op, bare_left, bare_right)


def in_place(it: Interpreter, op: str, left: Value, right: Value) -> Value:
    """`left op= right`: the value to bind again."""
    if isinstance(left, Tensor) and op in _TENSOR_IN_PLACE:
        if isinstance(right, Unknown):
            raise Stopped(f"{right.why} meets a tensor in {op}=", right.origin or it.origin())
        return it.library.call_method(it, left, _TENSOR_IN_PLACE[op], [scalar(it, right)], {})
    if isinstance(left, list) and op == "+" and not isinstance(right, (Unknown, Symbol)):
        mine = cast("list[Value]", left)
        extend(it, mine, right)
        return mine
    if isinstance(left, set) and op == "|" and isinstance(right, (set, frozenset)):
        left |= cast("set[Value]", right)
        return cast("set[Value]", left)
    if isinstance(left, dict) and op == "|" and isinstance(right, dict):
        left.update(cast("dict[Value, Value]", right))
        return cast("dict[Value, Value]", left)
    if isinstance(left, Instance):
        method = left.cls.find(f"__i{_METHOD[op]}__")
        if method is not MISSING:
            return it.call(method, [left, right], {})
    native = it.library.native_in_place(it, op, left, right)
    if native is not MISSING:
        return native
    return binary(it, op, left, right)


def extend(it: Interpreter, target: list[Value], source: Value) -> None:
    """`list.extend`; of a source whose length is not known, one element stands for all."""
    reason = source.doubt if isinstance(source, Iter) else it.open_reason(source)
    if isinstance(source, Instance) and source.payload is None and source.cls.find("__len__") is not MISSING:
        length = it.length(source)
        if isinstance(length, (Symbol, Unknown)) and source.cls.find("__getitem__") is not MISSING:
            it.mark_open(target, length.why)
            target.append(it.get_item(source, 0))
            return
    doubts = it.doubts
    added = bounded_list(it, it.iterate(source))
    if it.doubts > doubts:
        reason = reason or it.uncertain_why
    if reason and not it.module_depth:
        it.mark_open(target, reason)
    if len(target) + len(added) > constants.MAX_ITEMS:
        raise Stopped("a list grows without bound", it.origin())
    target.extend(added)


def unary(it: Interpreter, op: str, operand: Value) -> Value:
    """`-x`, `+x`, `~x`."""
    if isinstance(operand, Tensor):
        name = {"-": "torch.neg", "~": "torch.bitwise_not", "+": "torch.positive"}[op]
        return operand if op == "+" else it.library.call_function(it, name, [operand], {})
    if isinstance(operand, Unknown):
        return it.derived(operand)
    if isinstance(operand, Symbol):
        if op == "-" and operand.is_int:
            return _scale(operand, -1)
        return operand if op == "+" else Symbol(operand.why, operand.is_int)
    if isinstance(operand, Instance):
        method = operand.cls.find({"-": "__neg__", "+": "__pos__", "~": "__invert__"}[op])
        if method is not MISSING:
            return it.call(method, [operand], {})
        operand = operand.payload
    failure = ("", "")
    try:
        return constants.unary(op, operand)
    except _HOST_ERRORS as error:
        failure = (type(error).__name__, str(error))
    raise it.error(*failure)


def compare(it: Interpreter, op: str, left: Value, right: Value) -> Value:
    """One comparison."""
    if op == "is" or op == "is not":
        same = left is right or (left is not None and right is not None and identical(it, left, right))
        return same is (op == "is")
    if left.__class__ in PLAIN and right.__class__ in PLAIN and op not in ("in", "not in"):
        return _plain_compare(it, op, left, right)
    if op in ("in", "not in"):
        found = contains(it, right, left)
        if isinstance(found, bool):
            return found is (op == "in")
        return found
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _tensor_compare(it, op, left, right)
    if isinstance(left, Unknown):
        return it.derived(left)
    if isinstance(right, Unknown):
        return it.derived(right)
    if isinstance(left, Symbol) or isinstance(right, Symbol):
        return _symbol_compare(op, left, right)
    if op == "==":
        return _equality(it, left, right)
    if op == "!=":
        return _inequality(it, left, right)
    if isinstance(left, Instance) or isinstance(right, Instance):
        return _ordered_by_method(it, op, left, right)
    return _plain_compare(it, op, left, right)


def _plain_compare(it: Interpreter, op: str, left: Value, right: Value) -> Value:
    failure = ("", "")
    try:
        return constants.compare(op, left, right)
    except _HOST_ERRORS as error:
        failure = (type(error).__name__, str(error))
    raise it.error(*failure)


def _tensor_compare(it: Interpreter, op: str, left: Value, right: Value) -> Value:
    other = right if isinstance(left, Tensor) else left
    if other is None or isinstance(other, (str, Instance, list, dict)):
        return op == "!="
    for value in (left, right):
        if isinstance(value, Unknown):
            raise Stopped(f"{value.why} meets a tensor in {op}", value.origin or it.origin())
    return it.library.call_function(it, _TENSOR_COMPARE[op], [scalar(it, left), scalar(it, right)], {})


def _symbol_compare(op: str, left: Value, right: Value) -> Value:
    if (
        isinstance(left, (Symbol, int))
        and isinstance(right, (Symbol, int))
        and _whole(left)
        and _whole(right)
    ):
        difference = _combine(left, right, -1, "")
        if isinstance(difference, int):
            return constants.compare(op, difference, 0)
    why = left.why if isinstance(left, Symbol) else cast(Symbol, right).why
    if left is None or right is None or isinstance(left, str) or isinstance(right, str):
        return op == "!="
    return Symbol(why)


def _equality(it: Interpreter, left: Value, right: Value) -> Value:
    for receiver, other in ((left, right), (right, left)):
        if isinstance(receiver, Instance):
            method = receiver.cls.find("__eq__")
            if method is not MISSING:
                result = it.call(method, [receiver, other], {})
                if result is not it.not_implemented:
                    return result
    return equal(it, left, right)


def _inequality(it: Interpreter, left: Value, right: Value) -> Value:
    if isinstance(left, Instance):
        method = left.cls.find("__ne__")
        if method is not MISSING:
            return it.call(method, [left, right], {})
    result = _equality(it, left, right)
    return not it.truth(result)


def _ordered_by_method(it: Interpreter, op: str, left: Value, right: Value) -> Value:
    name = _COMPARE[op]
    for receiver, other, wanted in ((left, right, name), (right, left, _REFLECTED[name])):
        if isinstance(receiver, Instance):
            method = receiver.cls.find(f"__{wanted}__")
            if method is not MISSING:
                result = it.call(method, [receiver, other], {})
                if result is not it.not_implemented:
                    return result
    bare_left = left.payload if isinstance(left, Instance) else left
    bare_right = right.payload if isinstance(right, Instance) else right
    if bare_left is None or bare_right is None:
        names = f"'{it.class_of(left).name}' and '{it.class_of(right).name}'"
        raise it.error("TypeError", f"'{op}' not supported between instances of {names}")
    return compare(it, op, bare_left, bare_right)


def identical(it: Interpreter, left: Value, right: Value) -> bool:
    """`left is right`; small numbers and texts are one object each, as CPython interns them."""
    if left is right:
        return True
    if isinstance(left, (Int, int)) and isinstance(right, (Int, int)):
        return not isinstance(left, bool) and not isinstance(right, bool) and int(left) == int(right)
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, Class) and isinstance(right, Class):
        return left.tag != "" and left.tag == right.tag
    return it.library.same(left, right)


def equal(it: Interpreter, left: Value, right: Value) -> bool:
    """`==` as containers ask it: identity, then value, item by item."""
    if left is right:
        return True
    if isinstance(left, Instance) or isinstance(right, Instance):
        return _instances_equal(it, left, right)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return False
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        if isinstance(left, list) is not isinstance(right, list) or len(left) != len(right):
            return False
        # a tuple of a tuple twice, and so on, is small and yet takes for ever to walk
        it.burn(1 + len(left) // ITEMS_A_STEP)
        pairs = zip(cast("list[Value]", left), cast("list[Value]", right), strict=True)
        return all(equal(it, a, b) for a, b in pairs)
    if isinstance(left, dict) and isinstance(right, dict):
        it.burn(1 + len(left) // ITEMS_A_STEP)
        mine, other = cast("dict[Value, Value]", left), cast("dict[Value, Value]", right)
        return mine.keys() == other.keys() and all(equal(it, mine[k], other[k]) for k in mine)
    if isinstance(left, Device) or isinstance(right, Device):
        return it.library.devices_equal(left, right)
    if isinstance(left, (Unknown, Symbol)) or isinstance(right, (Unknown, Symbol)):
        return False
    if isinstance(left, Class) and isinstance(right, Class):
        return identical(it, left, right)
    return bool(left == right)


def _instances_equal(it: Interpreter, left: Value, right: Value) -> bool:
    for receiver, other in ((left, right), (right, left)):
        if isinstance(receiver, Instance):
            method = receiver.cls.find("__eq__")
            if method is not MISSING:
                result = it.call(method, [receiver, other], {})
                return result is not it.not_implemented and it.truth(result)
    bare_left = left.payload if isinstance(left, Instance) else left
    bare_right = right.payload if isinstance(right, Instance) else right
    if bare_left is None or bare_right is None:
        return False
    if isinstance(left, Instance) and left.cls.trait("enum") and not left.cls.trait("enum_mixed"):
        return False
    if isinstance(right, Instance) and right.cls.trait("enum") and not right.cls.trait("enum_mixed"):
        return False
    return equal(it, bare_left, bare_right)


def contains(it: Interpreter, container: Value, item: Value) -> Value:
    """`item in container`; an unknown where it depends on an unknown."""
    if isinstance(container, Unknown):
        return it.derived(container)
    if isinstance(container, str):
        if isinstance(item, Unknown):
            return it.derived(item)
        if isinstance(item, Instance) and isinstance(item.payload, str):
            item = item.payload
        if not isinstance(item, str):
            raise it.error("TypeError", "'in <string>' requires string as left operand")
        return item in container
    if isinstance(item, Unknown) and isinstance(container, (dict, set, frozenset, list, tuple)):
        # nothing is in what is empty
        return Unknown(f"whether {item.why} is among the choices", item.origin) if container else False
    if isinstance(container, (dict, set, frozenset)):
        key = key_of(it, item)
        return key in cast("dict[Value, Value]", container)
    if isinstance(container, (list, tuple)):
        it.burn_for(container)
        return any(equal(it, item, member) for member in cast("list[Value]", container))
    if isinstance(container, range):
        return isinstance(item, (int, float)) and item in container
    if isinstance(container, Instance):
        method = container.cls.find("__contains__")
        if method is not MISSING:
            return it.truth(it.call(method, [container, item], {}))
        if container.payload is not None:
            return contains(it, container.payload, item)
    if isinstance(container, Class) and container.trait("enum"):
        return isinstance(item, Instance) and item.cls.is_subclass(container)
    native = it.library.native_contains(it, container, item)
    if native is not MISSING:
        return native
    return any(equal(it, item, member) for member in it.iterate(container))


def key_of(it: Interpreter, key: Value) -> Value:
    """A value as a dictionary key: an instance with a carrier and no own `__hash__` counts as its carrier."""
    if isinstance(key, Instance):
        if key.cls.trait("hash_by_value") or (key.payload is not None and not _is_plain_enum(key)):
            return _hashable(it, key)
        return key
    if isinstance(key, tuple):
        it.burn()  # as in `equal`
        return tuple(key_of(it, k) for k in cast("tuple[Value, ...]", key))
    if isinstance(key, (list, dict, set)):
        raise it.error("TypeError", f"unhashable type: '{type(key).__name__}'")
    if isinstance(key, slice):
        raise it.error("TypeError", "unhashable type: 'slice'")
    return key


def _is_plain_enum(key: Instance) -> bool:
    return bool(key.cls.trait("enum")) and not key.cls.trait("enum_mixed")


def _hashable(it: Interpreter, key: Instance) -> Value:
    if key.payload is not None:
        return key_of(it, key.payload)
    fields = key.cls.trait("dataclass")
    if isinstance(fields, dict):
        return ByValue(key, tuple(key_of(it, key.attributes.get(name)) for name in fields))
    return key


class ByValue:
    """A frozen dataclass as a dictionary key: equal by the values of its fields."""

    __slots__ = ("instance", "values")

    def __init__(self, instance: Instance, values: tuple[Value, ...]) -> None:
        self.instance = instance
        self.values = values

    def __hash__(self) -> int:
        return hash((id(self.instance.cls), self.values))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ByValue)
            and other.instance.cls is self.instance.cls
            and other.values == self.values
        )


def shown_key(key: Value) -> Value:
    """The program's value of a stored key."""
    return key.instance if isinstance(key, ByValue) else key


def store(it: Interpreter, target: dict[Value, Value], key: Value, value: Value) -> None:
    if len(target) >= constants.MAX_ITEMS:
        raise Stopped("a dictionary grows without bound", it.origin())
    target[key_of(it, key)] = value


def add_to_set(it: Interpreter, target: set[Value], value: Value) -> None:
    if len(target) >= constants.MAX_ITEMS:
        raise Stopped("a set grows without bound", it.origin())
    target.add(key_of(it, value))


def bounded_list(it: Interpreter, items: Iterable[Value]) -> list[Value]:
    """A list of what an iterable gives, within bounds."""
    out: list[Value] = []
    for item in items:
        out.append(item)
        if len(out) > constants.MAX_ITEMS:
            raise Stopped("a sequence is longer than is looked at", it.origin())
    it.burn_for(out)
    return out


def index_of(it: Interpreter, value: Value) -> int:
    """A value used as an index or count."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Instance):
        if isinstance(value.payload, int):
            return value.payload
        method = value.cls.find("__index__")
        if method is not MISSING:
            return index_of(it, it.call(method, [value], {}))
    if isinstance(value, Drawn):
        it.assume(f"a random size is the largest that may be drawn: {value.largest}")
        return value.largest
    if isinstance(value, (Unknown, Symbol)):
        raise Stopped(f"{value.why} decides about a length", getattr(value, "origin", None) or it.origin())
    known = it.library.known_number(value)
    if isinstance(known, (int, float)):
        return int(known)
    raise it.error("TypeError", f"'{it.class_of(value).name}' object cannot be interpreted as an integer")


__all__ = ["Iter", "binary", "compare", "contains", "equal", "identical", "in_place", "unary"]
