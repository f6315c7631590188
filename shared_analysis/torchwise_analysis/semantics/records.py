"""Named tuples, and random choices among the elements of containers."""

from __future__ import annotations

from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import iteration, records
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.semantics.registry import Call, function, method, text_of
from torchwise_analysis.source import nodes as nd

FACTORY = "named tuple"  # trait of what `namedtuple` gives


@function("collections.namedtuple", "typing.NamedTuple")
def named_tuple(m: Machine, call: Call) -> va.Value:
    """`namedtuple("Step", "state action")` or `NamedTuple("Step", [("state", Tensor), ...])`: a factory."""
    given = call.arguments.positional[1] if len(call.arguments.positional) > 1 else None
    names = _names(m, first_known(given or call.get("field_names") or call.get("fields")))
    if names is None:
        return va.unknown(None)
    defaults = first_known(call.get("defaults"))
    last = m.items(defaults) if isinstance(defaults, va.Obj) else ()
    known = dict(zip(reversed(names), reversed(last), strict=False))
    fields = tuple((name, known.get(name, va.NONE)) for name in names)
    return m.make(
        va.Kind.OPAQUE,
        call.node,
        "collections.namedtuple",
        name=text_of(call.first()) or "",
        arguments=va.Arguments((), fields),
        traits=frozenset([FACTORY]),
    )


def _names(m: Machine, fields: va.Value) -> tuple[str, ...] | None:
    text = text_of(fields)
    if text is not None:
        return tuple(text.replace(",", " ").split())
    if not isinstance(fields, va.Obj) or m.state.get(("open", fields.id)):
        return None
    firsts = [_first(m, first_known(item)) for item in m.items(fields)]
    names = [text_of(first) for first in firsts]
    return tuple(name for name in names if name is not None) if None not in names else None


def _first(m: Machine, field: va.Value) -> va.Value:
    """The name of `("state", Tensor)`, or a name itself."""
    items = m.items(field) if isinstance(field, va.Obj) else ()
    return first_known(items[0]) if items else field


def filled(m: Machine, factory: va.Obj, arguments: va.Arguments, node: nd.Node) -> va.Value:
    """An instance of a named tuple."""
    return records.record(m, factory.arguments.keywords, factory.name, arguments, node)


@method(va.Kind.TUPLE, "_replace")
def with_other_values(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    changed = dict(call.arguments.keywords)
    names = [name for name, _ in obj.arguments.keywords]
    if len(names) != len(m.items(obj)) or call.arguments.open:
        return None
    items = [changed.get(name, old) for name, old in zip(names, m.items(obj), strict=True)]
    return m.sequence(
        items, call.node, va.Kind.TUPLE, type_name=obj.type_name, arguments=obj.arguments, cls=obj.cls
    )


@method(va.Kind.TUPLE, "_asdict")
def as_dictionary(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    names = [name for name, _ in obj.arguments.keywords]
    if len(names) != len(m.items(obj)):
        return None
    return m.mapping(dict(zip(names, m.items(obj), strict=True)), call.node)


# --------------------------------------------------------------------------- chosen at random


@function("random.choice")
def one_of(m: Machine, call: Call) -> va.Value:
    """Any element of a container that was filled in view."""
    held = _filled(m, call)
    return _drawn(m, call) if held is None else iteration.element(m, held, call.node)


@function("random.sample", "random.choices")
def some_of(m: Machine, call: Call) -> va.Value:
    """A list of any of them."""
    held = _filled(m, call)
    if held is None:
        return _drawn(m, call)
    out = m.sequence((iteration.element(m, held, call.node),), call.node)
    m.state.set(("open", out.id), True)
    return out


def _filled(m: Machine, call: Call) -> va.Obj | None:
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    held = first_known(call.get("population", 0) or call.get("seq", 0))
    is_list = isinstance(held, va.Obj) and held.kind in (va.Kind.LIST, va.Kind.TUPLE)
    return held if isinstance(held, va.Obj) and is_list and m.tensors(held) else None


def _drawn(m: Machine, call: Call) -> va.Value:
    return va.unknown(None, taint=m.taint(*call.arguments) | {"random"})
