"""What a rule outside of torchwise may use; docs/rule-api.md explains it.

The names here keep their meaning within a major version. Everything else of torchwise may change with any
release.
"""

from __future__ import annotations

from collections.abc import Callable

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    SourceFile,
    append_to,
    insert_statement_after,
    insert_statement_before,
    name_for_member,
    name_for_module,
    replace,
    wrap,
)
from torchwise_analysis.interp.abstract import events, values
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.semantics.registry import METHODS, Call, Method, function, int_of, text_of, truth_of
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Span

__all__ = [
    "Call",
    "Category",
    "Confidence",
    "Edit",
    "Evidence",
    "Example",
    "Fix",
    "Hit",
    "Loop",
    "LoopKind",
    "Machine",
    "Place",
    "Reference",
    "Rule",
    "Safety",
    "Severity",
    "SourceFile",
    "Span",
    "Trace",
    "append_to",
    "argument_place",
    "events",
    "first_known",
    "function",
    "insert_statement_after",
    "insert_statement_before",
    "int_of",
    "library_object",
    "method",
    "name_for_member",
    "name_for_module",
    "replace",
    "text_of",
    "truth_of",
    "values",
    "wrap",
]


def library_object(m: Machine, call: Call) -> values.Obj:
    """What a call of a library's class gives: an object of that type, with its arguments."""
    return m.make(values.Kind.OPAQUE, call.node, call.name, arguments=call.arguments)


def argument_place(m: Machine, call: Call, name: str, position: int | None = None) -> Place | None:
    """Where the argument given by keyword or at a position is written; None when it is hidden in a star."""
    node = call.node
    if not isinstance(node, nodes.Call):
        return None
    for keyword in node.keywords:
        if keyword.name == name:
            return m.place(keyword.value)
    if position is None or position >= len(node.args):
        return None
    before = node.args[: position + 1]
    return None if any(isinstance(one, nodes.Starred) for one in before) else m.place(node.args[position])


def method(type_name: str, *names: str) -> Callable[[Method], Method]:
    """Register what methods of a library's class do, for objects that `library_object` made.

    The function gets the machine, the object and the call; None as its result means "nothing is known".
    """

    def register(meaning: Method) -> Method:
        for name in names:
            key = (values.Kind.OPAQUE, name)
            METHODS[key] = _Chained(type_name, meaning, METHODS.get(key))
        return meaning

    return register


class _Chained:
    """A method of one type; objects of other types mean what they meant before."""

    def __init__(self, type_name: str, meaning: Method, before: Method | None) -> None:
        self.type_name, self.meaning, self.before = type_name, meaning, before
        self.__module__ = meaning.__module__

    def __call__(self, m: Machine, obj: values.Obj, call: Call) -> values.Value | None:
        if obj.type_name == self.type_name:
            return self.meaning(m, obj, call)
        return self.before(m, obj, call) if self.before is not None else None
