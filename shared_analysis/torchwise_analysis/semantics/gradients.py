"""Gradients that a program reads, changes or clips by itself."""

from __future__ import annotations

from collections.abc import Iterable

from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine
from torchwise_analysis.quick import replace
from torchwise_analysis.semantics.registry import Call
from torchwise_analysis.source import nodes as nd

# Truths about gradients, which a scale leaves as they are.
_TRUTHS = frozenset(
    ["isnan", "isinf", "isfinite", "any", "all", "eq", "ne", "equal", "is_nonzero", "nonzero"]
)
_CHANGING = frozenset(["div_", "mul_", "true_divide_", "clamp_", "add_", "copy_"])
_FACTS = frozenset(["size", "dim", "numel", "nelement", "element_size", "is_contiguous", "register_hook"])
_SAME = frozenset(["detach_", "detach", "to", "float", "cpu", "clone", "data", "view", "flatten", "double"])


def found_in(m: Machine, values: Iterable[va.Value], depth: int = 0) -> list[va.Parameters]:
    """Gradients among values, lists looked into."""
    out: list[va.Parameters] = []
    for value in values:
        for member in va.alternatives(value):
            if isinstance(member, va.Parameters) and member.gradients:
                out.append(member)
            elif isinstance(member, va.Obj) and member.kind in (va.Kind.LIST, va.Kind.TUPLE) and depth < 2:
                out += found_in(m, m.items(member), depth + 1)
    return out


def measured(m: Machine, gradients: Iterable[va.Parameters], node: nd.Node, how: str) -> va.Tensor:
    """A tensor computed from gradients: it knows which reading it comes from."""
    roots = frozenset(root for one in gradients for root in one.roots)
    if how.rpartition(".")[2] in _TRUTHS:
        return va.Tensor(None, taint=frozenset([va.OF_GRADIENTS]))
    before = {o.id: m.gradients(o) for o in m.reached_optimizers(roots)}
    event = m.emit(ev.Clip, node, how=f"grad.{how}", before=before, roots=roots)
    link = m.link(node, "read off gradients here")
    return va.Tensor(link, taint=frozenset([va.OF_GRADIENTS, f"{va.MEASURED}{event.order}"]))


def used(m: Machine, values: Iterable[va.Value], node: nd.Node, how: str) -> None:
    """Values are compared, shown or multiplied with: were any read off gradients?"""
    marks = (mark for mark in m.taint(*values) if mark.startswith(va.MEASURED))
    reads = frozenset(int(mark.removeprefix(va.MEASURED)) for mark in marks)
    if reads:
        m.emit(ev.MeasureUsed, node, reads=reads, how=how)


def method(m: Machine, value: va.Parameters, call: Call) -> va.Value:
    """A method of `p.grad`."""
    name = call.name
    if name in _CHANGING:
        if name == "mul_":
            used(m, call.arguments, call.node, "factor")
        for optimizer in m.reached_optimizers(value.roots):
            is_new, atoms = name in ("add_", "copy_"), m.gradients(optimizer)
            changed = frozenset(replace(a, divided=True, replaced=a.replaced or is_new) for a in atoms)
            m.state.set(("grad", optimizer.id), changed)
        return value
    if name == "zero_":
        m.clear_module(call.node, value.roots, "grad.zero_()")
        return value
    if name in _SAME:
        return value
    if name in _FACTS:
        return va.UNKNOWN
    return measured(m, [value], call.node, name)
