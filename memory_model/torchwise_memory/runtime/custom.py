"""`torch.autograd.Function`: one node whose forward and backward are the program's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .errors import Unsupported
from .sequences import is_sequence
from .tape import Gradients, Saved, record
from .tensor import Tensor, alias

if TYPE_CHECKING:
    from .world import World


class FunctionContext:
    """What the program sees as `ctx`.

    fields: attributes it sets; they live as long as the node. to_save: the tensors given to
    `save_for_backward`; they leave here when the forward has run. saved_tensors: the same, there again while
    the backward runs.
    """

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.fields: dict[str, object] = {}
        self.to_save: tuple[Tensor | None, ...] = ()
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()


#: forward(context) -> a tensor, or a tuple or list with tensors among other things
Forward = Callable[[FunctionContext], object]
#: backward(context, gradients of the outputs) -> one result for each argument of `apply`, None where none is
#: due
Backward = Callable[[FunctionContext, tuple[Tensor | None, ...]], object]


def apply_function(
    w: World, name: str, arguments: Sequence[object], forward: Forward, backward: Backward
) -> object:
    """`name.apply(*arguments)`. Both functions run without recording; outputs get one node in common."""
    context = FunctionContext(tuple(isinstance(a, Tensor) and a.requires_grad for a in arguments))
    outer, w.grad_enabled = w.grad_enabled, False
    try:
        returned = forward(context)
    finally:
        w.grad_enabled = outer
    results = list(returned) if is_sequence(returned) else [returned]
    excluded = {id(tensor) for tensor in context.non_differentiable}
    passed = {id(argument) for argument in arguments}
    for i, result in enumerate(results):
        if isinstance(result, Tensor) and id(result) in passed:
            results[i] = alias(result)
    outputs = [
        r for r in results if isinstance(r, Tensor) and r.dtype.is_differentiable and id(r) not in excluded
    ]
    inputs = [a for a in arguments if isinstance(a, Tensor)]
    saved, context.to_save, context.non_differentiable = context.to_save, (), ()
    if outputs:
        where = [i for i, argument in enumerate(arguments) if isinstance(argument, Tensor)]
        record(w, name, inputs, saved, _CustomBack(name, context, backward, where, len(arguments)), *outputs)
    return type(returned)(results) if is_sequence(returned) else results[0]


class _CustomBack:
    """Hands saved tensors and gradients to the program and picks its results for the tensor arguments."""

    def __init__(
        self, name: str, context: FunctionContext, backward: Backward, where: list[int], count: int
    ) -> None:
        self.name = name
        self.context = context
        self.backward = backward
        self.where = where
        self.count = count

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        context = self.context
        context.saved_tensors = tuple(saved)
        try:
            returned = self.backward(context, tuple(gradients))
        finally:
            context.saved_tensors = ()
        results = list(returned) if is_sequence(returned) else [returned]
        # Trailing results that are None may be more than there are arguments, as torch allows.
        if len(results) < self.count or any(result is not None for result in results[self.count :]):
            raise Unsupported(
                self.name,
                f"backward returned {len(results)} results for {self.count} arguments; torch raises here",
            )
        found = [results[i] for i in self.where]
        return [result if isinstance(result, Tensor) else None for result in found]
