"""What the loss rules share: the activation on the way into a loss, and edits of either."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Edit, Evidence, Place
from torchwise_analysis.fixes import SourceFile, expression_at, is_imported, name_for_member, replace
from torchwise_analysis.interp.abstract.events import LossCall
from torchwise_analysis.interp.abstract.values import Activation, Tensor
from torchwise_analysis.rules._reading import grade, link_beliefs, step
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Span


def activated_inputs(loss: LossCall, *names: str) -> Iterator[tuple[Tensor, Activation]]:
    """Inputs of a training loss whose last activation is one of `names` on every path into it."""
    if loss.grad == frozenset({False}):
        return
    last = [one.activation for one in loss.inputs]
    if any(one is None or one.name not in names for one in last):
        return  # on another path the values come otherwise: which one trains is not known
    for tensor in loss.inputs:
        if tensor.activation is not None:
            yield tensor, tensor.activation


def confidence(loss: LossCall, tensor: Tensor) -> Confidence:
    """certain when the activation is resolved and the only one, likely otherwise."""
    return grade(min(link_beliefs(tensor.evidence) + int(len(loss.inputs) > 1), 1))


def chain(loss: LossCall, activation: Activation, expects: str) -> Iterator[Evidence]:
    """Activation, loss, and where they meet. `expects`: what the loss wants, in words."""
    layer = " (this layer)" if activation.in_sequence else ""
    what = "the scores" if activation.name == "linear" else activation.name.replace("_", "-")
    verb = "are made here, without an activation" if activation.name == "linear" else "is applied here"
    yield from step(activation.place, f"{what} {verb}{layer}")
    if loss.loss is not None:
        yield from step(loss.loss.place, f"the loss, which expects {expects}, is made here")
    yield from step(loss.place, f"the loss, which expects {expects}, is computed here")


def is_inside(inner: Place, outer: Place) -> bool:
    if inner.path != outer.path:
        return False
    first, second = inner.span, outer.span
    starts = (second.line, second.column) <= (first.line, first.column)
    return starts and (first.end_line, first.end_column) <= (second.end_line, second.end_column)


def without_activation(file: SourceFile, place: Place) -> Edit | None:
    """An activation call replaced by what it is applied to: its first argument, or a method's receiver."""
    expression = _call_at(file, place)
    if expression is None:
        return None
    first = expression.args[0] if expression.args else None
    if isinstance(first, nodes.Starred):
        return None
    if isinstance(expression.func, nodes.Attribute) and not is_imported(file, expression.func):
        subject: nodes.Expr | None = expression.func.value  # x.sigmoid()
    else:  # torch.sigmoid(x), sigmoid(input=x), nn.Sigmoid()(x)
        subject = first or next((k.value for k in expression.keywords if k.name in ("input", "self")), None)
    if subject is None:
        return None
    return replace(place, file.slice(subject.span.shifted(place.span.line - expression.span.line)))


def renamed(file: SourceFile, place: Place | None, old: str, new: str) -> Edit | None:
    """`torch.softmax(...)` with another last name; None unless the call at `place` ends in `old`."""
    call = None if place is None else _call_at(file, place)
    if place is None or call is None:
        return None
    span = call.func.span.shifted(place.span.line - call.span.line)
    if isinstance(call.func, nodes.Attribute) and call.func.attr == old:
        name = Span(span.end_line, span.end_column - len(old), span.end_line, span.end_column)
        return replace(Place(file.path, name), new)
    if isinstance(call.func, nodes.Name) and call.func.id == old:
        for module in ("torch.nn.functional", "torch.nn", "torch"):
            bound = name_for_member(file, module, new)
            if bound is not None:
                return replace(Place(file.path, span), bound)
    return None


def _call_at(file: SourceFile, place: Place) -> nodes.Call | None:
    expression = expression_at(file.module, place.span) if place.path == file.path else None
    return expression if isinstance(expression, nodes.Call) else None
