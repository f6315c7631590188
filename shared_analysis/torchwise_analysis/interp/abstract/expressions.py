"""Meaning of expressions: one small function per node, in one table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias, cast

from torchwise_analysis.interp.abstract import beliefs, calls, conditions, iteration, unknowns
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.join import join_values
from torchwise_analysis.interp.abstract.limits import DeadPathError
from torchwise_analysis.interp.abstract.loops import LoopKind, Turn
from torchwise_analysis.interp.abstract.machine import Evaluate, Machine, first_known
from torchwise_analysis.interp.core import constants
from torchwise_analysis.quick import replace
from torchwise_analysis.source import nodes as nd

Shape: TypeAlias = "tuple[int | str | None, ...] | None"

WITNESS = 2  # what stands for an unknown or large window length

_WITNESSED_ABOVE = 3


# --------------------------------------------------------------------------- leaves


def constant(m: Machine, node: nd.Constant) -> va.Value:
    if node.value is None:
        return va.NONE
    return va.Const(None, node.value)


def name(m: Machine, node: nd.Name) -> va.Value:
    value = m.lookup(node.id)
    if value is None:
        return m.library.builtin(m, node.id, node)
    if type(value) is va.Unknown and "joined" in value.taint:
        m.count("lost")
    return value


def attribute(m: Machine, node: nd.Attribute) -> va.Value:
    return calls.get_attribute(m, m.eval(node.value), node.attr, node)


def formatted(m: Machine, node: nd.FormattedString) -> va.Value:
    taint: frozenset[str] = frozenset()
    texts: list[str] = []
    known = True
    for part in node.parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        value = first_known(m.eval(part))
        taint |= m.taint(value)
        if isinstance(value, va.Tensor):
            m.library.host_sync(m, value, part, "format")
        if isinstance(value, va.Const) and isinstance(value.value, (str, int)):
            texts.append(str(value.value))
        else:
            known = False
    text = "".join(texts)
    if known and len(text) < 1000:
        return va.Const(None, text)
    return va.unknown(None, taint=taint)


def starred(m: Machine, node: nd.Starred) -> va.Value:
    return m.eval(node.value)


def lambda_(m: Machine, node: nd.Lambda) -> va.Value:
    return calls.make_function(m, node, None)


def named(m: Machine, node: nd.NamedExpr) -> va.Value:
    value = m.eval(node.value)
    assign(m, node.target, value, node)
    return value


def await_(m: Machine, node: nd.Await) -> va.Value:
    return m.eval(node.value)


def yield_(m: Machine, node: nd.Yield) -> va.Value:
    value = m.eval(node.value) if node.value is not None else va.NONE
    callback = m.frames[-1].on_yield
    return callback(value) if callback is not None else va.UNKNOWN


def yield_from(m: Machine, node: nd.YieldFrom) -> va.Value:
    over = m.eval(node.value)
    callback = m.frames[-1].on_yield
    element = iteration.element(m, over, node)
    if callback is not None:
        callback(element)
    return va.UNKNOWN


# --------------------------------------------------------------------------- containers

# Texts and lists that a program doubles again and again would fill the memory: each of them is kept.
_LONGEST_TEXT, _MOST_SPREAD = 4096, 256


def items_of(m: Machine, elements: tuple[nd.Expr, ...]) -> list[va.Value]:
    out: list[va.Value] = []
    for element in elements:
        if isinstance(element, nd.Starred):
            value = first_known(m.eval(element.value))
            if isinstance(value, va.Parameters):
                out.append(value)
                continue
            out.extend(m.items(value) if isinstance(value, va.Obj) and m.items(value) else (va.UNKNOWN,))
            if len(out) > _MOST_SPREAD:
                del out[:-12]
        else:
            out.append(m.eval(element))
    return out


def list_(m: Machine, node: nd.ListExpr) -> va.Value:
    return m.sequence(items_of(m, node.elements), node)


def tuple_(m: Machine, node: nd.TupleExpr) -> va.Value:
    return m.sequence(items_of(m, node.elements), node, va.Kind.TUPLE)


def set_(m: Machine, node: nd.SetExpr) -> va.Value:
    return m.sequence(items_of(m, node.elements), node, va.Kind.SET)


def dict_(m: Machine, node: nd.DictExpr) -> va.Value:
    entries: dict[object, va.Value] = {}
    rest: list[va.Value] = []
    for key, value_node in zip(node.keys, node.values, strict=True):
        if key is None:
            spread = first_known(m.eval(value_node))
            if isinstance(spread, va.StateDict):
                rest.append(spread)
            elif isinstance(spread, va.Obj):
                entries.update(m.entries(spread))
                rest.extend(m.items(spread))
            continue
        at = first_known(m.eval(key))
        value = m.eval(value_node)
        if isinstance(at, va.Const) and isinstance(at.value, (str, int)):
            entries[at.value] = value
        else:
            rest.append(value)
    obj = m.mapping(entries, node)
    if rest:
        m.state.set(("c", obj.id), tuple(rest[-12:]))
    return obj


def comprehension(m: Machine, node: nd.Comprehension) -> va.Value:
    kind = {nd.ComprehensionKind.DICT: va.Kind.DICT, nd.ComprehensionKind.SET: va.Kind.SET}.get(
        node.kind, va.Kind.LIST
    )
    holder = m.sequence((), node, kind)
    found: list[va.Value] = []
    keys: list[va.Value] = []
    open_: list[bool] = []
    outer, depth = m.loops, len(m.loops)
    try:
        _generate(m, node, 0, found, keys, open_)
    finally:
        m.loops = outer
    entries = _entries(m, keys, found) if not any(open_) else None
    if entries is not None:
        m.state.set(("d", holder.id), entries)
        return holder
    if kind is va.Kind.DICT and found and isinstance(first_known(found[0]), va.StateDict):
        return first_known(found[0])
    if node.kind is nd.ComprehensionKind.GENERATOR:
        m.state.set(("c", holder.id), tuple(found[-12:]))
        if any(open_):
            m.state.set(("open", holder.id), True)
        return holder
    kept: list[va.Value] = []
    for value in found:
        # an element whose graph was made in the comprehension's own loop outlives its iteration
        if any(len(m.passes[p].loops) > depth for t in m.tensors(value) for p in t.passes):
            m.loops = (*outer, *m.passes[max(m.passes_of((value,)))].loops[depth:])
            try:
                value = m.store(value, node, "comprehension", holder, "", outer, node.value or node.element)
            finally:
                m.loops = outer
        kept.append(value)
    m.state.set(("c", holder.id), tuple(kept[-12:]))
    if any(open_):
        m.state.set(("open", holder.id), True)
    return holder


def _entries(m: Machine, keys: list[va.Value], values: list[va.Value]) -> dict[object, va.Value] | None:
    """What a comprehension of a dictionary gave, where all keys are known and no value has a graph."""
    found = [first_known(key) for key in keys]
    if not found or m.passes_of(values):
        return None
    names = [k.value for k in found if isinstance(k, va.Const) and isinstance(k.value, (str, int))]
    return dict(zip(names, values, strict=True)) if len(names) == len(values) else None


def _generate(
    m: Machine,
    node: nd.Comprehension,
    index: int,
    found: list[va.Value],
    keys: list[va.Value],
    open_: list[bool],
) -> None:
    """Run the generators from `index` on, and the element in the innermost; of a dictionary with its `keys`.

    No closure that calls itself: it would keep the machine alive until the garbage collector comes.
    """
    if index == len(node.generators):
        if node.value is not None:
            keys.append(m.eval(node.element))
        found.append(m.eval(node.value if node.value is not None else node.element))
        return
    generator = node.generators[index]
    over = m.eval(generator.iter)
    plan = iteration.plan(m, over, generator, LoopKind.COMPREHENSION)
    open_.append(plan.open)
    before = m.loops
    for number, element in enumerate(plan.elements):
        m.loops = (*before, Turn(plan.loop, number))
        assign(m, generator.target, element, node)
        tests: list[bool | None] = []
        for condition in generator.conditions:
            tests.append(conditions.test(m, condition)[0])
            if tests[-1] is False:
                break
        else:
            start = len(found)
            _generate(m, node, index + 1, found, keys, open_)
            if None in tests:
                keys.append(va.UNKNOWN)  # which of them are there is not known
                found[start:] = [_perhaps(value) for value in found[start:]]
    m.loops = before


def _perhaps(value: va.Value) -> va.Value:
    """An element that an undecided condition lets through: of parameters, only some."""
    return replace(value, filtered=True) if isinstance(value, va.Parameters) else value


def slice_(m: Machine, node: nd.Slice) -> va.Value:
    for part in (node.lower, node.upper, node.step):
        if part is not None:
            m.eval(part)
    return va.unknown(None, taint=frozenset(["slice"]))


def subscript(m: Machine, node: nd.Subscript) -> va.Value:
    value, index = m.eval(node.value), m.eval(node.index)
    if isinstance(value, va.Union):
        members = [get_item(m, v, index, node) for v in value.values if not isinstance(v, va.Unknown)]
        out = members[0] if members else va.UNKNOWN
        for other in members[1:]:
            out = join_values(out, other)
        return out
    return get_item(m, value, index, node)


def get_item(m: Machine, value: va.Value, index: va.Value, node: nd.Node) -> va.Value:
    found = _get_item(m, value, index, node)
    return _of_this_rank(found) if "rank" in m.taint(index) else found


def _of_this_rank(value: va.Value) -> va.Value:
    """`parts[rank]`: another part on every rank."""
    rank = frozenset(["rank"])
    if isinstance(value, (va.Tensor, va.Unknown)):
        return replace(value, taint=value.taint | rank)
    return replace(value, traits=value.traits | rank) if isinstance(value, va.Obj) else value


def _get_item(m: Machine, value: va.Value, index: va.Value, node: nd.Node) -> va.Value:
    index = first_known(index)
    key = index.value if isinstance(index, va.Const) else None
    moving = isinstance(index, va.Const) and index.counter is not None
    if isinstance(value, va.Tensor):
        if isinstance(index, va.Tensor):
            m.library.host_sync(m, index, node, "mask") if "mask" in index.taint else None
            if not value.passes and value.cut is None and not index.passes:
                # what is looked up depends on the model through its index
                value = replace(value, cut=index.cut)
        if "gathered" in value.taint and isinstance(index, va.Unknown) and "slice" in index.taint:
            m.emit(ev.ApiCall, node, name="a slice of what was gathered", arguments=va.NO_ARGUMENTS)
        return replace(value, shape=_indexed(value.shape, node))
    if isinstance(value, va.Obj):
        is_slice = isinstance(index, va.Unknown) and "slice" in index.taint
        part = m.library.sliced(m, value, node) if is_slice else None
        return _item_of(m, value, key, moving, index, node) if part is None else part
    content = value.value if isinstance(value, va.Const) else None
    if isinstance(content, (str, tuple, list)) and isinstance(key, int):
        try:
            return va.Const(None, cast("tuple[object, ...]", content)[key])
        except IndexError:
            return va.UNKNOWN
    if isinstance(value, va.Parameters):
        return replace(value, single=True, filtered=True)
    if isinstance(value, va.Library):
        if value.path == "os.environ" and isinstance(key, str):
            return m.library.call(m, "os.environ.get", va.Arguments((index,)), node)
        if value.path.startswith("typing"):
            return value
        return m.library.some_member(value) if key is None else va.unknown(f"{value.path}[{key!r}]")
    if isinstance(value, va.StateDict):
        return va.UNKNOWN
    symbol = value.symbol if isinstance(value, va.Unknown) else None
    taint = m.taint(value)
    is_head = isinstance(node, nd.Subscript) and isinstance(node.index, nd.Slice) and node.index.lower is None
    if "shape" in taint and not is_head:
        taint = (taint - {"shape"}) | ({"size0"} if key == 0 else frozenset[str]())
    varies = isinstance(value, va.Unknown) and value.varies
    return va.unknown(symbol and f"{symbol}[{key!r}]", taint=taint, varies=varies)


def _indexed(shape: Shape, node: nd.Node) -> Shape:
    """What numbers and slices leave of a shape; None for any other index."""
    if shape is None or not isinstance(node, nd.Subscript):
        return None
    parts = node.index.elements if isinstance(node.index, nd.TupleExpr) else (node.index,)
    if len(parts) > len(shape):
        return None
    kept: list[int | str | None] = []
    for size, part in zip(shape, parts, strict=False):
        if isinstance(part, nd.Slice):
            is_whole = part.lower is None and part.upper is None and part.step is None
            kept.append(size if is_whole else None)
        elif not _is_number(part):
            return None
    return (*kept, *shape[len(parts) :])


def _is_number(node: nd.Expr) -> bool:
    if isinstance(node, nd.Unary) and node.op == "-":
        node = node.operand
    return isinstance(node, nd.Constant) and type(node.value) is int


def _broadcast(left: Shape, right: Shape) -> Shape:
    """The shape of an element-wise operation on both."""
    if left is None or right is None:
        known = left or right  # a row stays one, or becomes rows of rows: no column in any case
        return known if known == ("batch",) else None
    short, long = sorted((left, right), key=len)
    pairs = zip(long[len(long) - len(short) :], short, strict=True)
    met = (a if a == b or b == 1 else b if a == 1 else None for a, b in pairs)
    return (*long[: len(long) - len(short)], *met)


def _item_of(m: Machine, obj: va.Obj, key: object, moving: bool, index: va.Value, node: nd.Node) -> va.Value:
    entries, items, wanted = m.entries(obj), m.items(obj), key
    if key is not None and not isinstance(key, (list, dict)) and key in entries:
        return entries[key]
    if isinstance(index, va.Unknown) and "slice" in index.taint and obj.kind in (va.Kind.LIST, va.Kind.TUPLE):
        part = m.sequence(items, None, obj.kind)
        m.state.set(("open", part.id), True)
        return part
    closed = not m.state.get(("open", obj.id))
    if isinstance(key, int) and not isinstance(key, bool) and -len(items) <= key < len(items) and not moving:
        if closed:
            return items[key]
        if key == -1:
            return items[-1]
    known = [*items, *entries.values()] if key is None or moving or not closed else [*items]
    if known and (key is None or moving or items):
        out = known[0]
        for other in known[1:]:
            out = join_values(out, other)
        return out
    if "factory" in obj.traits and obj.over:
        return _made_by_factory(m, obj, wanted, node)
    if "factory" in obj.traits:
        kind = va.Kind.LIST if "list" in obj.traits else None
        return m.child(obj, f"[{key!r}]", kind)
    if obj.kind in (
        va.Kind.OPAQUE,
        va.Kind.MODULE,
        va.Kind.LOADER,
        va.Kind.DATASET,
        va.Kind.DICT,
        va.Kind.LIST,
        va.Kind.ITERATOR,
    ):
        if "options" in obj.traits:
            return va.unknown(f"{obj.symbol}[{key!r}]")
        return m.child(obj, f"[{key!r}]" if key is not None else "[]")
    if obj.cls is not None:
        method = calls.find_member(m, obj.cls, "__getitem__")
        if isinstance(method, va.Function):
            return calls.call_function(m, replace(method, self=obj), va.Arguments((index,)), None)
    return va.unknown(None, taint=m.taint(obj))


def _made_by_factory(m: Machine, obj: va.Obj, key: object, node: nd.Node) -> va.Value:
    """`defaultdict(Meter)[name]`: as old as the dictionary, for all that a loop can tell."""
    made = m.with_loops(obj.birth, lambda: calls.call_value(m, obj.over[0], va.NO_ARGUMENTS, node))
    if key is None or isinstance(key, (list, dict)):
        m.state.set(("c", obj.id), (made,))
        m.state.set(("open", obj.id), True)
    else:
        m.state.set(("d", obj.id), {**m.entries(obj), key: made})
    return made


# --------------------------------------------------------------------------- operators


def unary(m: Machine, node: nd.Unary) -> va.Value:
    if node.op == "not":
        truth, value = conditions.test(m, node.operand, decide=False)
        if isinstance(value, va.ModeValue):
            return replace(value, negated=not value.negated)
        if isinstance(value, va.Unknown) and value.symbol and truth is None:
            return replace(value, negated=not value.negated)
        return va.UNKNOWN if truth is None else va.Const(None, not truth)
    value = first_known(m.eval(node.operand))
    if isinstance(value, (va.Tensor, va.Unknown)):
        value = replace(value, taint=value.taint - DIRECTED)
    if isinstance(value, va.Tensor):
        return replace(value, activation=None)
    if isinstance(value, va.Const):
        try:
            return va.Const(None, constants.unary(node.op, value.value), value.counter)
        except (TypeError, ValueError):
            return va.UNKNOWN
    return va.unknown(None, taint=m.taint(value)) if isinstance(value, va.Unknown) else value


def binary(m: Machine, node: nd.Binary) -> va.Value:
    left = m.eval(node.left)
    return operate(m, node.op, left, m.eval(node.right), node)


def operate(m: Machine, op: str, left: va.Value, right: va.Value, node: nd.Node) -> va.Value:
    """`left op right`."""
    out = _operate(m, op, left, right, node)
    if not isinstance(out, (va.Tensor, va.Unknown)) or not out.taint:
        return out
    if va.OF_GRADIENTS in out.taint and _loses_scale(m, op, left, right):
        out = replace(out, taint=_without_measure(out.taint))
    if not out.taint & DIRECTED:
        return out
    turns = op == "-" or (op in ("/", "//", "%") and m.taint(right) & DIRECTED)
    turns = turns or any(isinstance(v, va.Const) and _is_negative(v.value) for v in (left, right))
    return replace(out, taint=out.taint - DIRECTED) if turns else out


def _loses_scale(m: Machine, op: str, left: va.Value, right: va.Value) -> bool:
    """Is the loss scale divided out, or does the quotient of two readings not depend on it?"""
    if va.LOSS_SCALE in m.taint(left, right):
        return op in ("/", "*")
    return op == "/" and va.OF_GRADIENTS in m.taint(left) and va.OF_GRADIENTS in m.taint(right)


def _without_measure(taint: frozenset[str]) -> frozenset[str]:
    return frozenset(mark for mark in taint if not mark.startswith(va.MEASURED))


# What is better when it is lower ("loss") or higher ("hits"): no more where a sign may have turned.
DIRECTED = frozenset(["loss", "hits"])


def _is_negative(value: object) -> bool:
    return isinstance(value, (int, float)) and value < 0


def _operate(m: Machine, op: str, left: va.Value, right: va.Value, node: nd.Node) -> va.Value:
    if isinstance(left, va.Union) or isinstance(right, va.Union):
        return _operate_unions(m, op, left, right, node)
    if isinstance(left, va.Tensor) or isinstance(right, va.Tensor):
        out = _operate_tensor(m, op, left, right, node)
        return _gated(m, out, left, right, node) if op == "*" and m.forward is not None else out
    if isinstance(left, va.Parameters) and left.gradients and op in ("**", "*", "/", "-"):
        out = m.library.measured(m, left, node, op)
        is_unscaled = va.LOSS_SCALE in m.taint(right)
        return replace(out, taint=_without_measure(out.taint)) if is_unscaled else out
    if isinstance(left, va.Parameters) and op == "+":
        if isinstance(right, va.Parameters):
            some = left.filtered or right.filtered
            return replace(left, roots=left.roots | right.roots, filtered=some, single=False)
        left = m.sequence((left,), node)
    if isinstance(left, va.Obj) and left.kind in (va.Kind.LIST, va.Kind.TUPLE) and op == "+":
        more = m.items(right) if isinstance(right, va.Obj) else ()
        more = (right,) if isinstance(right, va.Parameters) else more
        joined = m.sequence((*m.items(left), *more)[-12:], node, left.kind)
        if m.state.get(("open", left.id)) or (isinstance(right, va.Obj) and m.state.get(("open", right.id))):
            m.state.set(("open", joined.id), True)
        return joined
    if isinstance(left, va.Obj) and left.kind is va.Kind.LIST and op == "*":
        m.state.set(("open", left.id), True)
        return left
    if isinstance(left, va.Obj) and left.kind is va.Kind.DICT and op == "|" and isinstance(right, va.Obj):
        return m.mapping({**m.entries(left), **m.entries(right)}, node)
    if op == "|" and isinstance(left, _TYPES) and isinstance(right, _TYPES):  # `int | float`
        return m.sequence((left, right), None, va.Kind.TUPLE)
    if isinstance(left, va.Const) and isinstance(right, va.Const):
        return _operate_constants(op, left, right)
    if op == "%" and isinstance(left, va.Const) and left.counter and isinstance(left.value, int):
        return va.Const(None, left.value % WITNESS, va.Counter(_symbol(right) or "?", True))
    distance = right.value if isinstance(right, va.Const) and not right.counter else None
    if op in ("+", "-") and isinstance(left, va.Unknown) and left.symbol and isinstance(distance, int):
        return replace(left, offset=left.offset + (distance if op == "+" else -distance))
    if op in ("+", "-") and distance == 1 and isinstance(left, va.Obj) and _is_number_by_use(m, left):
        return va.unknown(left.symbol, 1 if op == "+" else -1)
    data = left if isinstance(left, va.Obj) else right if isinstance(right, va.Obj) else None
    moving = any(
        (isinstance(v, va.Const) and v.counter) or (isinstance(v, va.Unknown) and v.varies)
        for v in (left, right)
    )
    is_count = op == "*" and any(
        isinstance(v, va.Unknown) and (v.symbol or "")[:4] == "len(" for v in (left, right)
    )
    is_number = (moving or is_count) and data is not None and _scalar_like(m, data)
    # the remainder of a counter; a text that is filled in is no number
    is_number = is_number or (op == "%" and not isinstance(left, va.Const) and bool(_symbol(right)))
    if data is not None and data.kind is va.Kind.OPAQUE and "options" not in data.traits and not is_number:
        is_path = op == "/" and data.type_name.startswith("pathlib.")
        is_read = not is_path or isinstance(right, va.Const)
        return (
            data if is_read else replace(data, traits=data.traits | {va.UNREAD} | m.taint(right) & _DIFFERING)
        )
    symbols = (_symbol(left), _symbol(right))
    text = f"({symbols[0] or _text(left)}{op}{symbols[1] or _text(right)})" if any(symbols) else None
    return va.unknown(text, taint=m.taint(left, right), varies=moving)


_TYPES = (va.Library, va.Class)
_DIFFERING = frozenset(["rank", "random", "time"])  # what makes names that processes do not share


def _operate_unions(m: Machine, op: str, left: va.Value, right: va.Value, node: nd.Node) -> va.Value:
    lefts, rights = va.alternatives(left), va.alternatives(right)
    if len(lefts) * len(rights) > 6:
        return operate(m, op, first_known(left), first_known(right), node)
    out = [
        operate(m, op, a, b, node)
        for a in lefts
        for b in rights
        if not (
            (isinstance(a, va.Const) and a.value is None) or (isinstance(b, va.Const) and b.value is None)
        )
    ]
    result = out[0] if out else va.UNKNOWN
    for other in out[1:]:
        result = join_values(result, other)
    return result


def _operate_constants(op: str, left: va.Const, right: va.Const) -> va.Value:
    counter = left.counter or right.counter
    try:
        if op == "%" and left.counter and isinstance(left.value, int) and isinstance(right.value, int):
            divisor = right.value
            folded = divisor > _WITNESSED_ABOVE
            return va.Const(None, left.value % (WITNESS if folded else divisor), va.Counter(divisor, folded))
        value = constants.binary(op, left.value, right.value)
    except (constants.TooLarge, TypeError, ValueError, ArithmeticError):
        return va.UNKNOWN
    if isinstance(value, (str, bytes)) and len(value) > _LONGEST_TEXT:
        return va.UNKNOWN
    return va.Const(None, value, _counter_after(op, left, right) if counter else None)


def _counter_after(op: str, left: va.Const, right: va.Const) -> va.Counter:
    """An index stays one when a number is added to it."""
    index, number = (left, right) if left.counter else (right, left)
    is_shifted = number.counter is None and (op == "+" or (op == "-" and index is left))
    counter = index.counter if is_shifted else None
    if counter is None or counter.modulus is not None:
        return va.Counter()
    return va.Counter(last=counter.last, more=counter.more)


def _operate_tensor(m: Machine, op: str, left: va.Value, right: va.Value, node: nd.Node) -> va.Tensor:
    if isinstance(left, va.Tensor) and isinstance(right, va.Tensor):
        return _operate_tensors(m, op, left, right)
    tensor = left if isinstance(left, va.Tensor) else right
    other = right if tensor is left else left
    assert isinstance(tensor, va.Tensor)
    sources = tensor.sources | m.sources_of((other,))
    is_data = isinstance(other, va.Obj) and other.kind is va.Kind.OPAQUE and "options" not in other.traits
    if op == "@" or (
        is_data and op in ("*", "/") and isinstance(other, va.Obj) and not _scalar_like(m, other)
    ):
        return replace(
            tensor, activation=None, sources=sources, shape=None, reduction=_weighted(op, tensor.reduction)
        )
    factors = tensor.factors
    if op == "/" and tensor is left and tensor.reduction == "sum" and _counts_batch(m, other):
        taint = tensor.taint | {va.BY_SIZE}
        passes = tensor.passes if True in m.recording() else frozenset[int]()
        return replace(tensor, passes=passes, activation=None, reduction="mean", taint=taint)
    if op in ("*", "/") and (op == "*" or tensor is left):
        number = other.value if isinstance(other, va.Const) else None
        factor = va.Factor(
            op,
            float(number) if isinstance(number, (int, float)) and abs(number) < 1e300 else None,
            _symbol(other),
            m.place(node),
        )
        factors |= {factor}
    recording = True in m.recording()
    return replace(
        tensor,
        passes=tensor.passes if recording else frozenset[int](),
        activation=tensor.activation if _keeps_line(op, tensor, other) else None,
        factors=factors,
        sources=sources,
        taint=tensor.taint | m.taint(other),
        cut=None if _may_have_graph(m, other) else tensor.cut,
    )


def _keeps_line(op: str, tensor: va.Tensor, other: va.Value) -> bool:
    """Scores times, by, plus or minus a setting are as unbounded as they were."""
    is_linear = tensor.activation is not None and tensor.activation.name == "linear"
    is_number = isinstance(other, va.Const) or (isinstance(other, va.Unknown) and other.symbol is not None)
    return is_linear and is_number and op in ("*", "/", "+", "-")


def _may_have_graph(m: Machine, value: va.Value) -> bool:
    """Is it what an unseen call gave, or an argument: a tensor with a graph, for all that is known?"""
    if isinstance(value, va.Unknown):
        return value.symbol is None and not value.taint
    is_unseen = isinstance(value, va.Obj) and value.kind is va.Kind.OPAQUE and "options" not in value.traits
    return is_unseen and isinstance(value, va.Obj) and not m.is_data(value.id)


def _counts_batch(m: Machine, value: va.Value) -> bool:
    """Is it how many samples the batch of this turn has? A sum divided by it is their mean."""
    if not isinstance(value, va.Unknown) or "size0" not in value.taint or "rank" in value.taint:
        return False
    return value.varies or va.OF_BATCH in value.taint


def _gated(m: Machine, out: va.Tensor, left: va.Value, right: va.Value, node: nd.Node) -> va.Tensor:
    """In a forward, a mask of random zeros and ones meets what it masks: dropout by hand."""
    gates = [v for v in (left, right) if isinstance(v, va.Tensor) and _is_gate(v)]
    both = all(isinstance(v, (va.Tensor, va.Obj)) for v in (left, right))
    if len(gates) != 1 or not both:
        return out
    built = gates[0].evidence.place if gates[0].evidence is not None else m.place(node)
    m.emit(ev.DropoutCall, node, how="mask", built=built)
    return replace(out, taint=out.taint - {"gate"})


def _is_gate(value: va.Tensor) -> bool:
    """Zeros and ones as they were drawn: what a layer makes of data that was masked has a graph."""
    return "gate" in value.taint and not value.passes and value.cut is None


def _operate_tensors(m: Machine, op: str, left: va.Tensor, right: va.Tensor) -> va.Tensor:
    passes = left.passes | right.passes
    if left.passes and right.passes:
        factors = left.factors & right.factors
        if left.divided and right.divided and not factors:
            factors = left.factors | right.factors
        reduction = _common_reduction(left.reduction, right.reduction)
    else:
        lead = left if left.passes or not right.passes else right
        factors, reduction = lead.factors, _weighted(op, lead.reduction)
        if op == "*":  # `gamma * (1 - done) * ahead`
            factors = left.factors | right.factors
        if op == "/" and lead is left and not right.passes:
            factors = (
                factors | {va.Factor("/", None, None, lead.evidence.place)} if lead.evidence else factors
            )
    return va.Tensor(
        left.evidence if left.passes or not right.passes else right.evidence,
        passes if True in m.recording() else frozenset(),
        left.tokens | right.tokens,
        None,
        reduction,
        factors,
        left.scaled or right.scaled,
        left.cut or right.cut if not passes else None,
        left.sources | right.sources,
        None if op == "@" else _broadcast(left.shape, right.shape),
        left.device if left.device == right.device else None,
        left.dtype if left.dtype == right.dtype else None,
        left.taint | right.taint,
        left.dead | right.dead | (_dead_terms(left, right) if op in ("+", "-") else frozenset[va.Cut]()),
    )


def _weighted(op: str, reduction: str | None) -> str | None:
    """A mean times a number of the data, such as how many tokens it is the mean of, is a sum."""
    return "sum" if op == "*" and reduction == "mean" else reduction


def _dead_terms(left: va.Tensor, right: va.Tensor) -> frozenset[va.Cut]:
    """The cut of a term without a graph beside one that has one."""
    if bool(left.passes) is bool(right.passes):
        return frozenset()
    cut = right.cut if left.passes else left.cut
    return frozenset() if cut is None else frozenset([cut])


def _common_reduction(a: str | None, b: str | None) -> str | None:
    if a == b:
        return a
    if "mean" in (a, b) and "sum" not in (a, b):
        return "mean"
    return None


def _is_number_by_use(m: Machine, obj: va.Obj) -> bool:
    """An argument to which 1 is added, or that is taken less 1, is most likely a count."""
    return obj.kind is va.Kind.OPAQUE and obj.symbol is not None and _scalar_like(m, obj)


def _scalar_like(m: Machine, obj: va.Obj) -> bool:
    return obj.origin is va.Origin.UNSEEN and not m.is_data(obj.id)


def _symbol(value: va.Value) -> str | None:
    return value.symbol if isinstance(value, (va.Unknown, va.Obj)) else None


def _text(value: va.Value) -> str:
    return repr(value.value)[:40] if isinstance(value, va.Const) else "?"


def bool_op(m: Machine, node: nd.BoolOp) -> va.Value:
    """`a or b`: the value of the operand that decides; a union when that is unknown."""
    wanted = node.op == "or"
    members: list[va.Value] = []
    mark = m.guards
    try:
        for index, operand in enumerate(node.values):
            value = m.eval(operand)
            truth = conditions.truth(m, value)
            if index == len(node.values) - 1:
                members.append(value)
                break
            if truth is wanted:
                members.append(value)
                break
            if truth is None:
                members.append(conditions.narrowed(m, value, wanted))
    finally:
        m.guards = mark
    out = members[0]
    for other in members[1:]:
        out = join_values(out, other)
    return out


_ORDERING = ("<", "<=", ">", ">=")


def compare(m: Machine, node: nd.Compare) -> va.Value:
    left = m.eval(node.left)
    result: va.Value = va.UNKNOWN
    for index, (op, other) in enumerate(zip(node.ops, node.comparators, strict=True)):
        right = m.eval(other)
        if op in _ORDERING:
            m.library.weighed(m, (left, right), node)
        one = conditions.compare(m, op, left, right, node)
        if index == 0 or conditions.truth(m, one) is False:
            result = one
        elif conditions.truth(m, result) is not False:
            result = va.UNKNOWN
        left = right
    return result


def if_exp(m: Machine, node: nd.IfExp) -> va.Value:
    truth, _ = conditions.test(m, node.test)
    guards, tests = m.guards, conditions.last_tests(m)
    if truth is not None:
        m.guards = conditions.guarded(m, guards, tests, truth)
        try:
            return m.eval(node.body if truth else node.orelse)
        finally:
            m.guards = guards

    def branch(body: nd.Expr, taken: bool) -> Callable[[], va.Value]:
        def run() -> va.Value:
            m.guards = conditions.guarded(m, guards, tests, taken)
            conditions.narrow(m, node.test, taken)
            return m.eval(body)

        return run

    try:
        value = m.fork([branch(node.body, True), branch(node.orelse, False)], join_values)
    finally:
        m.guards = guards
    if value is None:
        raise DeadPathError
    return value


# --------------------------------------------------------------------------- assignment


def assign(
    m: Machine, target: nd.Expr, value: va.Value, node: nd.Node, value_node: nd.Expr | None = None
) -> None:
    """Bind `value` to a target of any form."""
    if isinstance(target, nd.Name):
        assign_name(m, target.id, value, node, value_node)
    elif isinstance(target, (nd.TupleExpr, nd.ListExpr)):
        parts = unpack(m, value, target.elements, node)
        nodes = value_node.elements if isinstance(value_node, nd.TupleExpr) else ()
        for index, (element, part) in enumerate(zip(target.elements, parts, strict=True)):
            assign(m, element, part, node, nodes[index] if index < len(nodes) else None)
    elif isinstance(target, nd.Starred):
        assign(m, target.value, value, node)
    elif isinstance(target, nd.Attribute):
        receiver = m.eval(target.value)
        for member in va.alternatives(receiver):
            set_attribute(m, member, target.attr, value, node, value_node)
    elif isinstance(target, nd.Subscript):
        container, at = m.eval(target.value), m.eval(target.index)
        calls.note_edit(m, target.value)
        set_item(m, container, at, value, node, value_node)


def assign_name(
    m: Machine, name: str, value: va.Value, node: nd.Node, value_node: nd.Expr | None = None
) -> None:
    # a variable of a function that is called in the loop is gone when the call ends
    if m.loops and m.grows(value, outside=len(m.frames[-1].loops)):
        value = m.store(value, node, "chain", None, name, (), value_node)
    for state in _states_in(m, value):
        m.emit(ev.StateDictKept, node, state=state, name=name)
    _note_second_name(m, name, value, value_node or node)
    if isinstance(value, va.Unknown) and value.symbol is None and not value.varies:
        value = _by_use(m, value, name, node) or _identified(m, value, name, node)
    if isinstance(value, va.Obj) and not value.name and value.kind not in (va.Kind.OPAQUE,):
        value = _named(m, value, name)
    m.bind(name, value)


def _note_second_name(m: Machine, name: str, value: va.Value, node: nd.Node) -> None:
    if (
        m.loops
        and isinstance(value, va.Obj)
        and value.kind is va.Kind.MODULE
        and value.name not in ("", name)
    ):
        m.emit(ev.ModuleKept, node, module=value, name=name)


def _states_in(m: Machine, value: va.Value) -> list[va.StateDict]:
    """A state dict, or those that a dictionary or tuple holds."""
    if isinstance(value, va.StateDict):
        return [value]
    if not isinstance(value, va.Obj) or value.kind not in (va.Kind.DICT, va.Kind.TUPLE):
        return []
    return [v for v in (*m.entries(value).values(), *m.items(value)) if isinstance(v, va.StateDict)]


def _by_use(m: Machine, value: va.Unknown, name: str, node: nd.Node) -> va.Obj | None:
    """What an unseen call gave, when the function uses it as an optimizer, a module or the like."""
    of_parameters = va.OF_PARAMETERS in value.taint
    if (value.taint and not of_parameters) or not isinstance(node, nd.Assign) or m.forward is not None:
        return None
    facts = m.frames[-1].facts
    uses = facts.uses.get(name, frozenset[str]())
    if of_parameters and "step" in uses and uses <= unknowns.OPTIMIZER_ATTRIBUTES:
        return _believed(m, va.Kind.OPTIMIZER, va.Origin.USED, name, node)
    if beliefs.by_use(uses) is not None:
        return _believed(m, *beliefs.guess(name, uses), name, node)
    kind = unknowns.kind_by_role(name, facts)
    return None if kind is None else _believed(m, kind, va.Origin.NAMED, name, node)


def _by_name(m: Machine, value: va.Unknown, name: str, node: nd.Node) -> va.Obj | None:
    """What an unseen call gave, when it is kept under a conventional name."""
    is_result = value.symbol is None or "@" in value.symbol
    if value.taint or value.varies or not is_result or m.forward is not None:
        return None
    kind = beliefs.by_name(name)
    return None if kind is None else _believed(m, kind, va.Origin.NAMED, name, node)


def _believed(m: Machine, kind: va.Kind, origin: va.Origin, name: str, node: nd.Node) -> va.Obj:
    """The same thing each time that the statement runs."""
    key = ("result", m.file, m.place(node), name)
    found = m.arguments.get(key)
    if found is None:
        found = m.arguments[key] = unknowns.believed(m, kind, origin, name, node)
    assert isinstance(found, va.Obj)
    found = m.objects.get(found.id, found)
    if kind is va.Kind.MODULE and isinstance(node, nd.Assign):
        _apply_chain(m, found, node.value)
    return found


_MODULE_METHODS = ("requires_grad_", "eval", "train")


def _apply_chain(m: Machine, module: va.Obj, made: nd.Expr) -> None:
    """`build().eval().requires_grad_(False)`: what was done to it before it got its name."""
    chain: list[nd.Call] = []
    while isinstance(made, nd.Call) and isinstance(made.func, nd.Attribute):
        if made.func.attr in _MODULE_METHODS:
            chain.append(made)
        made = made.func.value
    for call in reversed(chain):
        assert isinstance(call.func, nd.Attribute)
        m.library.method(m, module, call.func.attr, calls.arguments_of(m, call), call)


def _identified(m: Machine, value: va.Unknown, name: str, node: nd.Node) -> va.Unknown:
    """What a call gave outside of loops is the same wherever the name is read: tests of it agree.

    Runs of one frame in several worlds give it the same name.
    """
    frame = m.frames[-1]
    if len(m.loops) > len(frame.loops):
        return value
    return replace(value, symbol=f"{name}@{frame.id}:{m.place(node).span.line}")


def _named(m: Machine, obj: va.Obj, name: str) -> va.Obj:
    named_ = replace(obj, name=name)
    m.objects[obj.id] = named_
    if obj.kind is va.Kind.OPTIMIZER:
        m.optimizers = [named_ if o.id == obj.id else o for o in m.optimizers]
    return named_


def set_attribute(
    m: Machine,
    receiver: va.Value,
    name: str,
    value: va.Value,
    node: nd.Node,
    value_node: nd.Expr | None = None,
) -> None:
    if m.library.set_attribute(m, receiver, name, value, node):
        return
    if isinstance(receiver, va.Class):
        m.state.set(("v", receiver.id, name), value)
        return
    if isinstance(receiver, va.ProjectModule):
        m.state.set(("v", receiver.frame, name), value)
        return
    if not isinstance(receiver, va.Obj):
        return
    if receiver.cls is not None:
        found = calls.find_member(m, receiver.cls, name)
        if isinstance(found, va.Function) and "setter:" + name in found.marks:
            return
    if m.loops and (m.grows(value)):
        value = m.store(value, node, "chain", receiver, name, receiver.birth, value_node)
    elif m.outlives(receiver.birth) and receiver.kind in (va.Kind.INSTANCE, va.Kind.MODULE, va.Kind.OPAQUE):
        m.library.kept_attribute(m, receiver, name, value, node)
    if isinstance(value, va.StateDict):
        m.emit(ev.StateDictKept, node, state=value, name=name)
    if receiver.kind is not va.Kind.MODULE:
        _note_second_name(m, name, value, value_node or node)
    if isinstance(value, va.Unknown) and receiver.kind in (va.Kind.INSTANCE, va.Kind.MODULE):
        value = _by_name(m, value, name, node) or value
    if isinstance(value, va.Obj) and not value.name and value.kind is not va.Kind.OPAQUE:
        value = _named(m, value, name)
    names = cast("tuple[str, ...]", m.state.get(("names", receiver.id), ()))
    if name not in names:
        m.state.set(("names", receiver.id), (*names, name))
    m.state.set(("a", receiver.id, name), value)


def set_item(
    m: Machine,
    receiver: va.Value,
    index: va.Value,
    value: va.Value,
    node: nd.Node,
    value_node: nd.Expr | None = None,
) -> None:
    index = first_known(index)
    if m.library.set_item(m, receiver, index, value, node):
        return
    if isinstance(index, va.Unknown) and isinstance(node, nd.Assign):
        index = _fixed_key(m, node) or index
    for obj in va.alternatives(receiver):
        if isinstance(obj, va.StateDict) and not obj.copied:
            m.exchange(obj, replace(obj, copied=True))  # its entries are given other tensors
        if not isinstance(obj, va.Obj):
            continue
        if isinstance(index, va.Const) and isinstance(index.value, (str, int)) and not index.counter:
            kept = value
            if m.loops and m.grows(value):
                kept = m.store(value, node, "item", obj, obj.name, obj.birth, value_node)
            if isinstance(value, va.StateDict):
                m.emit(ev.StateDictKept, node, state=value, name=str(index.value))
            _note_second_name(m, str(index.value), value, value_node or node)
            items = m.items(obj)
            if isinstance(index.value, int) and -len(items) <= index.value < len(items):
                changed = list(items)
                changed[index.value] = kept
                m.state.set(("c", obj.id), tuple(changed))
            else:
                m.state.set(("d", obj.id), {**m.entries(obj), index.value: kept})
        else:
            m.push(obj, [value], node, "item", value_node)


def _fixed_key(m: Machine, node: nd.Assign) -> va.Const | None:
    """The key of `kept[name] = value` where `name` is of an enclosing function that has ended: however often
    this runs, it is the same one."""
    target = node.targets[0]
    name = target.index if isinstance(target, nd.Subscript) else None
    if not isinstance(name, nd.Name):
        return None
    running = {frame.id for frame in m.frames}
    own, *outer = m.frames[-1].scope
    if ("v", own, name.id) in m.state.facts:
        return None
    bound = next((scope for scope in outer if ("v", scope, name.id) in m.state.facts), None)
    return None if bound is None or bound in running else va.Const(None, f"{name.id} of {bound}")


def unpack(m: Machine, value: va.Value, targets: tuple[nd.Expr, ...], node: nd.Node) -> list[va.Value]:
    """One value for each target; a starred target gets a list."""
    count = len(targets)
    star = next((i for i, t in enumerate(targets) if isinstance(t, nd.Starred)), None)
    rows = [row for v in va.alternatives(value) if (row := _row(m, v, count))] if star is None else []
    if len(rows) > 1:
        return [functools.reduce(join_values, column) for column in zip(*rows, strict=True)]
    value = first_known(value)
    if isinstance(value, va.Obj):
        items = m.items(value)
        if star is not None and items and m.state.get(("open", value.id)):
            one = functools.reduce(join_values, items)
            rest = m.sequence((one,), node)
            m.state.set(("open", rest.id), True)
            return [rest if i == star else one for i in range(count)]
        if star is not None and items:
            after = count - star - 1
            middle = m.sequence(items[star : len(items) - after], node)
            tail = items[len(items) - after :] if after else ()
            head = items[:star]
            if len(head) == star and len(tail) == after:
                return [*head, middle, *tail]
        if len(items) == count and not m.state.get(("open", value.id)):
            return list(items)
        if items:
            joined = items[0]
            for other in items[1:]:
                joined = join_values(joined, other)
            if m.state.get(("open", value.id)):
                return [joined] * count
            return [items[i] if i < len(items) else items[-1] for i in range(count)]
        if value.kind in (va.Kind.OPAQUE, va.Kind.LOADER, va.Kind.DATASET, va.Kind.INSTANCE):
            if "options" in value.traits:
                return [va.unknown(f"{value.symbol}[{i}]") for i in range(count)]
            return [m.child(value, f"[{i}]") for i in range(count)]
        if value.kind is va.Kind.ITERATOR:
            return [iteration.element(m, value, node)] * count
    if isinstance(value, va.Tensor):
        one = replace(value, shape=value.shape[1:] if value.shape else None)
        # nobody takes a loss apart: an unseen one gave several things
        is_unseen = value.reduction in ("mean", "sum") or any(
            m.passes[p].forward.belief or _is_unread(m, m.passes[p].forward.module) for p in value.passes
        )
        return [part_of(one, str(i)) if is_unseen else one for i in range(count)]
    content = value.value if isinstance(value, va.Const) else None
    if isinstance(content, tuple):
        parts = cast("tuple[object, ...]", content)
        if len(parts) == count:
            return [va.Const(None, part) for part in parts]
    taint = m.taint(value)
    if "shape" not in taint:
        return [va.unknown(None, taint=taint) for _ in range(count)]
    sizes = [va.unknown(None, taint=taint - {"shape"}) for _ in range(count)]
    return [replace(sizes[0], taint=sizes[0].taint | {"size0"}), *sizes[1:]]


def _is_unread(m: Machine, module: va.Obj) -> bool:
    """Is it any module by its annotation, of a class of the project that defines no forward, or was its
    forward replaced?"""
    if m.attribute(module, "forward") is not None:
        return True
    if module.cls is None:
        return module.origin is va.Origin.ANNOTATED
    return not isinstance(calls.find_member(m, module.cls, "forward"), va.Function)


def part_of(value: va.Tensor, name: str) -> va.Tensor:
    """A part of what an unseen call gave: that it has a graph only shows when a backward runs over it.

    The mark names the call, by its pass: what a later call gives is marked as a part of that one as well.
    """
    call = f"{va.PART}{max(value.passes, default=0)}:"
    own = {mark for mark in value.taint if mark.startswith(call)}
    marks = {f"{mark}.{name}" for mark in own} or {f"{call}{name}"}
    return replace(value, taint=value.taint - own | marks)


def _row(m: Machine, value: va.Value, count: int) -> tuple[va.Value, ...]:
    """What is in a tuple of just this length; nothing for anything else."""
    if not isinstance(value, va.Obj) or value.kind is not va.Kind.TUPLE or m.state.get(("open", value.id)):
        return ()
    items = m.items(value)
    return items if len(items) == count else ()


def _unsupported(m: Machine, node: nd.Expr) -> va.Value:
    return va.UNKNOWN


EXPRESSIONS: dict[type, Evaluate] = {
    nd.Constant: constant,
    nd.Name: name,
    nd.Attribute: attribute,
    nd.Subscript: subscript,
    nd.Slice: slice_,
    nd.Call: calls.eval_call,
    nd.Starred: starred,
    nd.Binary: binary,
    nd.Unary: unary,
    nd.BoolOp: bool_op,
    nd.Compare: compare,
    nd.IfExp: if_exp,
    nd.ListExpr: list_,
    nd.TupleExpr: tuple_,
    nd.SetExpr: set_,
    nd.DictExpr: dict_,
    nd.Comprehension: comprehension,
    nd.FormattedString: formatted,
    nd.Lambda: lambda_,
    nd.Await: await_,
    nd.Yield: yield_,
    nd.YieldFrom: yield_from,
    nd.NamedExpr: named,
    nd.Expr: _unsupported,
}
