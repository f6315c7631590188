"""What rules about data sets read in the source of their classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract.static import walk
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Class
from torchwise_analysis.source import nodes


class Method(NamedTuple):
    """A method as written in the project; spans below `node` count from `line` of the file of `owner`."""

    owner: Class
    node: nodes.FunctionDef
    line: int


def method_of(cls: Class, name: str) -> Method | None:
    """The method, along the method resolution order."""
    for owner in cls.mro:
        for statement, line in _statements(owner.node.body, owner.line):
            if isinstance(statement, nodes.FunctionDef) and statement.name == name:
                return Method(owner, statement, line)
    return None


def header_of(trace: Trace, method: Method) -> Place:
    return trace.place(method.owner.path, method.node.header.shifted(method.line))


def words_of(node: nodes.Node) -> frozenset[str]:
    """All names, attributes and keywords below a node."""
    found: set[str] = set()
    for inner in walk(node):
        if isinstance(inner, nodes.Name):
            found.add(inner.id)
        elif isinstance(inner, nodes.Attribute):
            found.add(inner.attr)
    return frozenset(found)


_DEEP_CALLS = 3


def methods_behind(cls: Class, name: str) -> tuple[Method, ...]:
    """A method and the methods of the same object that it calls, those of `super()` included."""
    found: list[Method] = []
    todo, done = [(name, 0)], {name}
    while todo:
        called, depth = todo.pop()
        method = method_of(cls, called)
        if method is None:
            continue
        found.append(method)
        if called == "__init__":
            found += _overridden(cls, method)
        inner = _own_calls(method.node) - done if depth < _DEEP_CALLS else frozenset[str]()
        todo += [(one, depth + 1) for one in sorted(inner)]
        done |= inner
    return tuple(found)


def _overridden(cls: Class, method: Method) -> Iterator[Method]:
    """The methods of the same name in the bases, one behind the other, as `super()` reaches them."""
    classes = [one.id for one in cls.mro]
    behind = cls.mro[classes.index(method.owner.id) + 1 :]
    is_called = "super" in plain_calls(method.node)
    for owner in behind if is_called else ():
        for statement, line in _statements(owner.node.body, owner.line):
            if isinstance(statement, nodes.FunctionDef) and statement.name == method.node.name:
                yield Method(owner, statement, line)


def words_behind(cls: Class, name: str) -> frozenset[str]:
    """The words of a method and of the methods of the same object that it calls."""
    return frozenset(word for method in methods_behind(cls, name) for word in words_of(method.node))


def _own_calls(node: nodes.FunctionDef) -> frozenset[str]:
    """Methods of the object itself that a method calls."""
    own = node.params[0].name if node.params else ""
    return frozenset(
        inner.func.attr
        for inner in walk(node)
        if isinstance(inner, nodes.Call)
        and isinstance(inner.func, nodes.Attribute)
        and isinstance(inner.func.value, nodes.Name)
        and inner.func.value.id == own
    )


def plain_calls(node: nodes.Node) -> frozenset[str]:
    """Names that are called as functions below a node."""
    return frozenset(
        inner.func.id
        for inner in walk(node)
        if isinstance(inner, nodes.Call) and isinstance(inner.func, nodes.Name)
    )


def _statements(block: tuple[nodes.Node, ...], line: int) -> Iterator[tuple[nodes.Node, int]]:
    for node in block:
        if isinstance(node, nodes.Placed):
            yield from _statements(node.body, node.line)
        else:
            yield node, line
