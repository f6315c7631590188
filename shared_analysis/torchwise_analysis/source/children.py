"""The sub-nodes of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast, get_args, get_origin, get_type_hints

from torchwise_analysis.source import nodes as nd

_LEAVES = frozenset(
    ["span", "scope", "header", "op", "ops", "id", "attr", "name", "key", "line", "is_async", "kind"]
)
_CHILDREN: dict[type, Callable[[Any], list[nd.Node]]] = {}


def children_reversed(node: nd.Node) -> list[nd.Node]:
    """Direct sub-nodes, the last one first."""
    found = _CHILDREN.get(node.__class__)
    if found is None:
        found = _CHILDREN[node.__class__] = _children_of(node.__class__)
    return found(node)


def _children_of(kind: type[nd.Node]) -> Callable[[Any], list[nd.Node]]:
    """A function that lists the sub-nodes of nodes of this kind: whole files are walked several times, and
    asking each field of each node what it holds took a tenth of a run."""
    hints = get_type_hints(kind)
    parts: list[str] = []
    is_plain = True
    for field in reversed(fields(kind)):
        if field.name in _LEAVES:
            continue
        hint, own = hints[field.name], f"node.{field.name}"
        if _is_node(hint):
            parts.append(own)
        elif get_origin(hint) is tuple and _is_node(get_args(hint)[0]):
            parts.append(f"*{own}[::-1]")
        elif all(_is_node(one) or one is type(None) for one in get_args(hint)) and get_args(hint):
            is_plain = False
            parts.append(own)
        elif any(_holds_node(one) for one in get_args(hint)):
            is_plain = False
            parts.append(f"*collect({own})")
    listed = f"[{', '.join(parts)}]"
    if not is_plain:
        listed = f"[part for part in {listed} if part is not None]"
    return cast("Callable[[Any], list[nd.Node]]", eval(f"lambda node: {listed}", {"collect": _collected}))  # noqa: S307


def _is_node(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, nd.Node)


def _holds_node(hint: object) -> bool:
    return _is_node(hint) or any(_holds_node(one) for one in get_args(hint))


def _collected(values: tuple[object, ...]) -> list[nd.Node]:
    """Nodes in tuples of tuples, the last one first."""
    out: list[nd.Node] = []
    for item in reversed(values):
        if isinstance(item, nd.Node):
            out.append(item)
        elif isinstance(item, tuple):
            out += _collected(cast("tuple[object, ...]", item))
    return out
