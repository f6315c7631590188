"""Tuples whose elements have names: instances of named tuples."""

from __future__ import annotations

from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.join import join_values
from torchwise_analysis.interp.abstract.machine import Machine
from torchwise_analysis.quick import replace
from torchwise_analysis.source import nodes as nd

Fields = tuple[tuple[str, va.Value], ...]  # names with their defaults, in order


def record(m: Machine, fields: Fields, name: str, arguments: va.Arguments, node: nd.Node | None) -> va.Obj:
    """A tuple whose `arguments` tell by name which element is where."""
    given = dict(zip((field for field, _ in fields), arguments.positional, strict=False))
    given.update(arguments.keywords)
    if arguments.open:  # which value goes where is not known: `Step(*values)` of a list
        anything = _anything(arguments)
        given = {field: anything for field, _ in fields}
    items = [given.get(field, default) for field, default in fields]
    places = tuple((field, va.Const(None, index)) for index, (field, _) in enumerate(fields))
    return m.sequence(items, node, va.Kind.TUPLE, type_name=name, arguments=va.Arguments((), places))


def _anything(arguments: va.Arguments) -> va.Value:
    out: va.Value | None = None
    for value in arguments:
        out = value if out is None else join_values(out, value)
    return va.UNKNOWN if out is None else out


def of_class(
    m: Machine, cls: va.Class, fields: Fields, arguments: va.Arguments, node: nd.Node | None
) -> va.Obj:
    """An instance of `class Step(NamedTuple)`."""
    out = replace(record(m, fields, cls.name, arguments, node), cls=cls)
    m.objects[out.id] = out
    return out


def element(m: Machine, value: va.Obj, name: str) -> va.Value | None:
    """The element of that name."""
    place = value.arguments.get(name)
    items = m.items(value)
    if not isinstance(place, va.Const) or not isinstance(place.value, int) or place.value >= len(items):
        return None
    return items[place.value]
