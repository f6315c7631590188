"""What a loop walks over, and how often it is run.

A loop of unknown length runs twice. Where its body looks at a counter, five times (three when it holds
another loop that calls something), so that a window of the witness length 2 is seen opened, closed and opened
again. Short literals run as written. Inside a forward once is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.join import join_values
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.quick import replace
from torchwise_analysis.source import nodes as nd

_SHORT = 4  # elements of a literal that are run one by one


@dataclass(slots=True)
class Plan:
    """The elements to run with, and the loop. open: there may be more, or fewer."""

    elements: Sequence[va.Value]
    loop: Loop
    open: bool = True
    generator: va.Obj | None = None


def plan(
    m: Machine, over: va.Value, node: nd.Node, forced: LoopKind | None = None, turns: int | None = None
) -> Plan:
    """How to run a loop over this value. `turns`: of one of unknown length; else what its body asks for."""
    over = first_known(over)
    turns = _turns(m, node) if turns is None else turns
    elements, kind, count = _elements(m, over, turns, node)
    kind = forced or kind
    source = _source(over)
    loop = m.loop(node, kind, describe(over), count, source)
    _forget_batch(m, elements)
    generator = over if isinstance(over, va.Obj) and over.type_name == "generator" else None
    return Plan(elements, loop, count is None or count > len(elements), generator)


def _turns(m: Machine, node: nd.Node) -> int:
    if isinstance(node, (nd.For, nd.While)):
        turns = m.loop_facts(node).turns
    else:
        turns = 2
    if m.forward is not None:
        return 1
    if m.visits > m.cap * 3 // 4 and len(m.frames) > 3:
        return 1
    return turns


def _elements(
    m: Machine, over: va.Value, turns: int, node: nd.Node
) -> tuple[Sequence[va.Value], LoopKind, int | None]:
    if isinstance(over, va.Const):
        return _constant_elements(over, turns)
    if isinstance(over, va.Parameters):
        return [replace(over, single=True)], LoopKind.PARAMETERS, None
    if isinstance(over, va.Tensor):
        one = replace(over, shape=over.shape[1:] if over.shape else None)
        return [one] * turns, LoopKind.TENSOR, None
    if isinstance(over, va.Obj):
        if over.kind is va.Kind.ITERATOR:
            return _iterator_elements(m, over, turns, node)
        if over.kind in (va.Kind.LIST, va.Kind.TUPLE, va.Kind.SET):
            return _list_elements(m, over, turns, node)
        if over.kind is va.Kind.DICT and m.entries(over):
            keys = [va.Const(None, k) for k in m.entries(over)]
            if len(keys) <= _SHORT:
                return keys, LoopKind.LITERAL, len(keys)
            return [va.unknown(None)] * turns, LoopKind.LIST, None
    if isinstance(over, va.StateDict):
        return [_state_entry(m, over, node)], LoopKind.PARAMETERS, None
    return [element(m, over, node)] * turns, _kind(over), None


def _state_entry(m: Machine, over: va.StateDict, node: nd.Node) -> va.Value:
    """A key, or a pair with one of the tensors: a part stands for the whole."""
    target = node.target if isinstance(node, (nd.For, nd.Generator)) else None
    if not isinstance(target, nd.TupleExpr) or len(target.elements) != 2:
        return va.unknown(None)
    return m.sequence((va.unknown(None), over), None, va.Kind.TUPLE)


def _constant_elements(over: va.Const, turns: int) -> tuple[Sequence[va.Value], LoopKind, int | None]:
    value = over.value
    if isinstance(value, range):
        count = len(value)
        shown = list(value[: turns if count > _SHORT else count])
        return _indices(shown, count > len(shown)), LoopKind.RANGE, count
    if isinstance(value, (str, bytes, tuple)):
        parts = list(cast("Sequence[object]", value))
        return [va.Const(None, v) for v in parts[:_SHORT]], LoopKind.LITERAL, len(parts)
    return [va.UNKNOWN] * turns, LoopKind.UNKNOWN, None


def _indices(numbers: Sequence[int], more: bool) -> list[va.Const]:
    """Index values of a loop; the last turn that is run stands for the last one, and for all `more`."""
    last = len(numbers) - 1
    return [
        va.Const(None, n, va.Counter(last=i == last, more=more and i == last)) for i, n in enumerate(numbers)
    ]


def _iterator_elements(
    m: Machine, over: va.Obj, turns: int, node: nd.Node
) -> tuple[Sequence[va.Value], LoopKind, int | None]:
    name = over.type_name
    if name == "range":
        start = over.arguments.positional[0] if over.arguments.positional else None
        first = start.value if isinstance(start, va.Const) and isinstance(start.value, int) else 0
        counts = [int(trait[6:]) for trait in over.traits if trait.startswith("count:")]
        count = counts[0] if counts else None
        more = count is None or count > turns
        return _indices(range(first, first + turns), more), LoopKind.RANGE, count
    if name == "enumerate":
        start = over.arguments.get("start", 1)
        first = start.value if isinstance(start, va.Const) and isinstance(start.value, int) else 0
        inner, kind, count = _elements(m, first_known(over.over[0]), turns, node)
        indices = _indices(range(first, first + len(inner)), count is None or count > len(inner))
        pairs = [m.sequence(pair, None, va.Kind.TUPLE) for pair in zip(indices, inner, strict=True)]
        return pairs, kind, count
    if name == "zip":
        columns = [_elements(m, first_known(o), turns, node) for o in over.over]
        if not columns:
            return [], LoopKind.LITERAL, 0
        shortest = min(len(c[0]) for c in columns)
        rows = [m.sequence([c[0][i] for c in columns], None, va.Kind.TUPLE) for i in range(shortest)]
        counts = [c[2] for c in columns if c[2] is not None]
        order = [LoopKind.BATCHES, LoopKind.TENSOR, LoopKind.CHUNKS]
        kinds = [c[1] for c in columns]
        kind = next((k for k in order if k in kinds), kinds[0])
        return rows, kind, min(counts) if counts else None
    if name == "generator":
        return [va.UNKNOWN] * turns, LoopKind.UNKNOWN, None
    inner, kind, count = (
        _elements(m, first_known(over.over[0]), turns, node)
        if over.over
        else (list[va.Value](), LoopKind.UNKNOWN, None)
    )
    if name in ("iter", "reversed", "sorted", "tqdm", "cycle"):
        return inner, kind, None if name == "cycle" else count
    if name == "islice":
        stop = over.arguments.positional[0] if over.arguments.positional else None
        known = stop.value if isinstance(stop, va.Const) and isinstance(stop.value, int) else None
        return inner, kind, known
    return [element(m, over, node)] * turns, LoopKind.UNKNOWN, None


def _list_elements(
    m: Machine, over: va.Obj, turns: int, node: nd.Node
) -> tuple[Sequence[va.Value], LoopKind, int | None]:
    items = m.items(over)
    kind = (
        LoopKind.CHUNKS
        if "chunks" in over.traits
        else LoopKind.MODULES
        if "modules" in over.traits
        else LoopKind.BATCHES
        if items and _are_batches(m, items)
        else LoopKind.LIST
    )
    if "chunks" in over.traits or m.state.get(("open", over.id)):
        if not items:
            return [element(m, over, node)] * turns, kind, None
        joined = items[0]
        for other in items[1:]:
            joined = join_values(joined, other)
        return [joined] * turns, kind, None
    entries = list(m.entries(over).values())
    listed = [*items, *entries]
    if len(listed) <= _SHORT:
        return listed, LoopKind.LITERAL if kind is LoopKind.LIST else kind, len(listed)
    return listed[:_SHORT], kind, len(listed)


def _are_batches(m: Machine, values: Sequence[va.Value]) -> bool:
    """Are they what one loader gives, each in one piece? Those of several may be of several tasks."""
    first = first_known(values[0])
    if not isinstance(first, va.Obj) or first.name != "[]":
        return False
    whole = m.objects.get(m.parents.get(first.id, -1))
    if whole is None or whole.kind is not va.Kind.LOADER:
        return False
    return all(isinstance(one := first_known(v), va.Obj) and one.id == first.id for v in values)


def element(m: Machine, over: va.Value, node: nd.Node) -> va.Value:
    """Any one element."""
    over = first_known(over)
    if isinstance(over, va.Tensor):
        return replace(over, shape=over.shape[1:] if over.shape else None)
    if isinstance(over, va.Parameters):
        return replace(over, single=True)
    if isinstance(over, va.Obj):
        if over.kind is va.Kind.ITERATOR:
            return _iterator_element(m, over, node)
        items: list[va.Value] = list(m.items(over))
        if over.kind is not va.Kind.DICT:
            items.extend(m.entries(over).values())
        if items:
            joined = items[0]
            for item in items[1:]:
                joined = join_values(joined, item)
            return joined
        if over.cls is not None and over.kind is not va.Kind.LOADER:
            found = _own_iteration(m, over, node)
            if found is not None:
                return found
        if "options" in over.traits:
            return va.unknown(f"{over.symbol}[]")
        if over.kind in (
            va.Kind.LOADER,
            va.Kind.OPAQUE,
            va.Kind.MODULE,
            va.Kind.DATASET,
            va.Kind.INSTANCE,
            va.Kind.LIST,
        ):
            return m.child(over, "[]")
    return va.unknown(None, taint=m.taint(over))


def _iterator_element(m: Machine, over: va.Obj, node: nd.Node) -> va.Value:
    if over.type_name == "zip":
        return m.sequence([element(m, o, node) for o in over.over], None, va.Kind.TUPLE)
    if over.type_name == "enumerate":
        return m.sequence(
            [va.unknown(None, varies=True), element(m, over.over[0], node)], None, va.Kind.TUPLE
        )
    if over.type_name == "range":
        return va.unknown(None, varies=True)
    if over.type_name == "generator":
        return generated(m, over, node)
    return element(m, over.over[0], node) if over.over else va.UNKNOWN


def generated(m: Machine, over: va.Obj, node: nd.Node) -> va.Value:
    """Run a generator to its end; the join of what it yields."""
    from torchwise_analysis.interp.abstract import calls

    found: list[va.Value] = []

    def keep(value: va.Value) -> va.Value:
        found.append(value)
        return va.NONE

    function = over.over[0]
    assert isinstance(function, va.Function)
    calls.call_function(m, function, over.arguments, node, on_yield=keep)
    if not found:
        return va.UNKNOWN
    out = found[0]
    for other in found[1:]:
        out = join_values(out, other)
    return out


def _own_iteration(m: Machine, over: va.Obj, node: nd.Node) -> va.Value | None:
    from torchwise_analysis.interp.abstract import calls

    assert over.cls is not None
    for name in ("__iter__", "__next__", "__getitem__"):
        method = calls.find_member(m, over.cls, name)
        if isinstance(method, va.Function) and over.kind is not va.Kind.MODULE:
            if name == "__getitem__":
                return m.child(over, "[]")
            result = first_known(calls.call_value(m, replace(method, self=over), va.NO_ARGUMENTS, node))
            if isinstance(result, va.Obj) and result.id == over.id:
                continue
            return element(m, result, node) if name == "__iter__" else result
    return None


def describe(over: va.Value) -> str:
    """In words, for messages and rules."""
    if isinstance(over, va.Obj):
        if over.kind is va.Kind.ITERATOR and over.over and over.type_name != "generator":
            return describe(first_known(over.over[0]))
        return over.name or over.symbol or over.kind.value
    if isinstance(over, va.Unknown):
        return over.symbol or ""
    return ""


def _source(over: va.Value) -> int | None:
    if isinstance(over, va.Obj):
        if over.kind is va.Kind.ITERATOR:
            for inner in over.over:
                found = _source(first_known(inner))
                if found is not None:
                    return found
            return None
        return over.id
    return None


def _kind(over: va.Value) -> LoopKind:
    if isinstance(over, va.Obj) and over.kind is va.Kind.LOADER:
        return LoopKind.BATCHES
    return LoopKind.UNKNOWN


def _forget_batch(m: Machine, elements: Sequence[va.Value]) -> None:
    for one in elements[:1]:
        forget(m, one)


def forget(m: Machine, one: va.Value) -> None:
    """The next batch is a new object: what was written into the last one is gone."""
    one = first_known(one)
    parts = [one]
    if isinstance(one, va.Obj) and one.kind is va.Kind.TUPLE:
        parts += [first_known(p) for p in m.items(one)]
    for part in parts:
        if isinstance(part, va.Obj) and part.kind is va.Kind.OPAQUE:
            for name in cast("tuple[str, ...]", m.state.get(("names", part.id), ())):
                if m.tensors(m.attribute(part, name)):
                    m.state.drop(("a", part.id, name))
            for inner in m.descendants(part.id):  # `batch.x_dict` is another one, too
                if ("d", inner) in m.state.facts:
                    m.state.drop(("d", inner))
