"""What rules about data sets read in the source of their classes."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract.static import walk
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Class
from torchwise_analysis.source import nodes


def method_of(cls: Class, name: str) -> tuple[Class, nodes.FunctionDef] | None:
    """The method as written in the project, along the method resolution order."""
    for owner in cls.mro:
        for statement in _statements(owner.node.body):
            if isinstance(statement, nodes.FunctionDef) and statement.name == name:
                return owner, statement
    return None


def header_of(trace: Trace, owner: Class, method: nodes.FunctionDef) -> Place:
    return trace.place(owner.path, method.header.shifted(owner.line))


def words_of(node: nodes.Node) -> frozenset[str]:
    """All names, attributes and keywords below a node."""
    found: set[str] = set()
    for inner in walk(node):
        if isinstance(inner, nodes.Name):
            found.add(inner.id)
        elif isinstance(inner, nodes.Attribute):
            found.add(inner.attr)
    return frozenset(found)


def plain_calls(node: nodes.Node) -> frozenset[str]:
    """Names that are called as functions below a node."""
    return frozenset(
        inner.func.id
        for inner in walk(node)
        if isinstance(inner, nodes.Call) and isinstance(inner.func, nodes.Name)
    )


def _statements(block: tuple[nodes.Node, ...]) -> Iterator[nodes.Node]:
    for node in block:
        if isinstance(node, nodes.Placed):
            yield from _statements(node.body)
        else:
            yield node
