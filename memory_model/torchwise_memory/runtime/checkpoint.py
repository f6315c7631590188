"""Activation checkpointing: forget what a call would save, and run it again when its backward begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from .dtypes import DType
from .sequences import is_sequence
from .tape import Gradients, Saved, record
from .tensor import Tensor, alias

if TYPE_CHECKING:
    from .storage import Storage
    from .world import World

#: The checkpointed function: called with the same arguments each time it runs.
Body = Callable[..., object]
#: Whether what an operator of that name makes is kept.
Keeps = Callable[[str], bool]


class _Stop(BaseException):
    """Everything that the forward saved has been made again. BaseException: no `except Exception` of ours
    eats it.
    """


class Frame:
    """One checkpointed call, the policy on the save stack while it runs.

    The forward only counts what would be saved. The first demand of the backward runs the body again under a
    `_Recording` of the same call; each saved tensor is handed out once and leaves with its node.
    """

    def __init__(
        self,
        w: World,
        body: Body,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        keeps: Keeps | None = None,
    ) -> None:
        self.keeps = keeps
        self.kept: list[Storage] = []
        self.body = body
        self.args = tuple(args)
        self.kwargs = dict(kwargs)
        self.saved_count = 0
        self.autocast = (w.autocast_dtype, w.autocast_cpu_dtype)
        self.module_path = w.module_path
        self.made_again: dict[int, Tensor] | None = None

    def note(self, operator: str, storage: Storage) -> None:
        """Selective: results of some operators are kept instead of made again."""
        if self.keeps is not None and self.keeps(operator):
            self.kept.append(storage)

    def pack(self, w: World, tensor: Tensor) -> object:
        index = self.saved_count
        self.saved_count += 1
        return index

    def unpack(self, w: World, packed: object) -> Tensor:
        assert isinstance(packed, int)
        # Handed out already: a later backward over a retained graph, which makes everything again.
        if self.made_again is None or packed not in self.made_again:
            self.made_again = self._recompute(w)
        return self.made_again.pop(packed)

    def _recompute(self, w: World) -> dict[int, Tensor]:
        recording = _Recording(self.saved_count)
        # what was kept takes the place of what the run makes
        self.kept.clear()
        outer = (w.grad_enabled, w.autocast_dtype, w.autocast_cpu_dtype, w.autocast_depth, w.autocast_cache)
        path, policies = w.module_path, w.save_policies
        w.grad_enabled, w.module_path = True, self.module_path
        w.autocast_dtype, w.autocast_cpu_dtype = self.autocast
        # The engine's thread has its own cache, which an autocast region of the recomputation opens and
        # clears.
        w.autocast_depth, w.autocast_cache = 1, {}
        w.save_policies = [recording]
        try:
            self.body(*[_again(argument) for argument in self.args], **self.kwargs)
        except _Stop as stop:
            # The frames of the abandoned run hold its tensors.
            stop.__traceback__ = None
        finally:
            w.grad_enabled, w.autocast_dtype, w.autocast_cpu_dtype, w.autocast_depth, w.autocast_cache = outer
            w.module_path, w.save_policies = path, policies
        return recording.saved


class _Recording:
    """The save policy of a recomputation: keeps aliases in order and stops the run after the last one."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.saved: dict[int, Tensor] = {}

    def pack(self, w: World, tensor: Tensor) -> object:
        self.saved[len(self.saved)] = alias(tensor)
        if len(self.saved) == self.expected:
            raise _Stop
        return None

    def unpack(self, w: World, packed: object) -> Tensor:
        raise AssertionError("the graph of a recomputation never runs backward")


def checkpoint(
    w: World,
    body: Body,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    reentrant: bool,
    keeps: Keeps | None = None,
) -> object:
    """`torch.utils.checkpoint.checkpoint` of `body(*args, **kwargs)`.

    keeps: whether the result of an operator of that name is kept (selective checkpointing).
    """
    if not w.grad_enabled:
        return body(*args, **kwargs)
    if reentrant:
        return _reentrant(w, body, args)
    frame = Frame(w, body, args, kwargs, keeps)
    w.save_policies.append(frame)
    if keeps is not None:
        w.keepers.append(frame)
    try:
        return body(*args, **kwargs)
    finally:
        w.save_policies.pop()
        if keeps is not None:
            w.keepers.pop()


def _again(argument: object) -> object:
    if not isinstance(argument, Tensor):
        return argument
    twin = alias(argument)
    twin.requires_grad = argument.requires_grad
    return twin


def _reentrant(w: World, body: Body, args: Sequence[object]) -> object:
    """The older implementation: one node that keeps the inputs and runs forward and backward again inside
    itself.
    """
    tensors = [argument for argument in args if isinstance(argument, Tensor)]
    w.grad_enabled = False
    try:
        outputs = body(*args)
    finally:
        w.grad_enabled = True
    results = list(outputs) if is_sequence(outputs) else [outputs]
    differentiable = [
        result for result in results if isinstance(result, Tensor) and result.dtype.is_differentiable
    ]
    rerun = _Rerun(w, body, args)
    record(w, "CheckpointFunction", tensors, tensors, rerun, *differentiable)
    return outputs


class _Rerun:
    """Backward of a reentrant checkpoint. Holds the arguments that are not tensors, and where tensors go."""

    def __init__(self, w: World, body: Body, args: Sequence[object]) -> None:
        self.body = body
        self.args = [None if isinstance(argument, Tensor) else argument for argument in args]
        self.is_tensor = [isinstance(argument, Tensor) for argument in args]
        self.needs_grad = [argument.requires_grad for argument in args if isinstance(argument, Tensor)]
        self.autocast: tuple[DType | None, DType | None] = (w.autocast_dtype, w.autocast_cpu_dtype)

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> list[Tensor | None]:
        from .engine import backward

        twins: list[Tensor] = []
        for tensor, needs_grad in zip(saved, self.needs_grad, strict=True):
            assert tensor is not None
            twin = alias(tensor)
            twin.requires_grad = needs_grad
            twins.append(twin)
        source = iter(twins)
        args = [
            next(source) if is_tensor else arg
            for is_tensor, arg in zip(self.is_tensor, self.args, strict=True)
        ]
        outer = (w.autocast_dtype, w.autocast_cpu_dtype, w.autocast_depth, w.autocast_cache)
        w.autocast_dtype, w.autocast_cpu_dtype = self.autocast
        w.autocast_depth, w.autocast_cache = 1, {}
        w.grad_enabled = True
        try:
            outputs = self.body(*args)
        finally:
            w.grad_enabled = False
            w.autocast_dtype, w.autocast_cpu_dtype, w.autocast_depth, w.autocast_cache = outer
        results = outputs if is_sequence(outputs) else [outputs]
        heads = [
            result for result in results if isinstance(result, Tensor) and result.dtype.is_differentiable
        ]
        pairs = [(h, g) for h, g in zip(heads, gradients, strict=True) if h.requires_grad and g is not None]
        del outputs, results, heads, args
        backward(w, [head for head, _ in pairs], [gradient for _, gradient in pairs])
        del pairs
        return [twin.grad for twin in twins]
