"""A training step of the real objects, with fake tensors for parameters, buffers, state and batch."""

# PyTorch is not installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from torchwise_memory.live.kernels import as_on_a_card
from torchwise_memory.live.recording import Purpose, Recorder
from torchwise_memory.live.sharded import FlatUnit, flat_units, is_flat, without_gathering
from torchwise_memory.report import Phase

#: Steps that are run; the last one counts. Optimizer state exists from the first on.
STEPS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """What a training step does beside forward, backward and `optimizer.step()`.

    loss: of (output, batch), or None: the output's `loss`, else the output itself where it is one number,
    else the sum of its floating-point tensors. The output is kept through the step, as a loop's variable
    keeps it. run: the loss of (model, batch), in place of all that; it keeps nothing.
    autocast: a half type. accumulate: micro-batches a step. clip_norm: of `clip_grad_norm_`.
    """

    loss: Callable[[Any, Any], Any] | None = None
    run: Callable[[Any, Any], Any] | None = None
    autocast: Any = None
    accumulate: int = 1
    clip_norm: float | None = None
    set_to_none: bool = True

    def forward(self, model: Any, batch: Any) -> tuple[Any, Any]:
        """The loss, and what a plain loop keeps in a variable beside it: the output."""
        if self.run is not None:
            return self.run(model, batch), None
        output = called(model, batch)
        return self.loss(output, batch) if self.loss is not None else number_of(output), output


def called(model: Any, batch: Any) -> Any:
    """A mapping is given by name, a tuple or list by position, anything else as the one argument."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, (tuple, list)):
        return model(*batch)
    return model(batch)


def number_of(output: Any) -> Any:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    floats = [each for each in tree_leaves(output) if is_floating(each)]
    if len(floats) == 1 and floats[0].numel() == 1:
        return floats[0]
    return sum(each.float().sum() for each in floats)


def is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@dataclass(frozen=True, slots=True)
class Fakes:
    """The fake parameters and buffers by the identity of the real ones, and the shares of sharded ones.

    parts: where a real parameter stands for many (a flat one), the identities of these.
    """

    by_identity: dict[int, Any]
    shares: dict[int, float]
    parts: dict[int, list[int]]

    def of(self, real: Any) -> list[Any]:
        """What stands for a real parameter in the step; itself where nothing does."""
        return [self.by_identity.get(key, real) for key in self.parts.get(id(real), [id(real)])]


@dataclass(frozen=True, slots=True)
class Faker:
    """Tensors of the same shape, type, strides and device, without data; meta ones get the device."""

    mode: Any
    device_type: str

    def tensor(self, real: Any) -> Any:
        device = self.device_type if real.device.type == "meta" else real.device
        with self.mode:
            return torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=device)

    def parameter(self, unit: FlatUnit, number: int) -> Any:
        """One of those that a unit keeps flat, as it is computed with."""
        device = self.device_type if unit.flat.device.type == "meta" else unit.flat.device
        with self.mode:
            made = torch.empty(unit.shapes[number], dtype=unit.dtype, device=device)
        original = unit.originals[number] if unit.originals else unit.flat
        return torch.nn.Parameter(made, requires_grad=original.requires_grad)

    def batch(self, value: Any) -> Any:
        """Loops move the batch to the model, so it is there; values that are no tensors stay as they are."""
        if not isinstance(value, torch.Tensor):
            return value
        with self.mode:
            fake = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=self.device_type
            )
            return fake.requires_grad_(value.requires_grad)


def record(
    model: Any, optimizer: Any, batch: Any, step: Step, device_type: str, sm: int = 80
) -> tuple[Recorder, dict[int, float]]:
    """Runs STEPS steps on fake tensors. Returns what was recorded and, by storage, the share held here.

    On the CPU, what a card does otherwise is done as by one of compute capability `sm` (80: 8.0).

    The objects are as before when it returns, whether or not the step ran.
    """
    fake = Faker(FakeTensorMode(allow_non_fake_inputs=True), device_type)
    recorder = Recorder(device_type)
    generators = torch.get_rng_state()
    try:
        card = as_on_a_card(sm) if device_type == "cpu" else nullcontext()
        with card, fake.mode, swapped(model, optimizer, fake) as fakes, recorder:
            shares = _announce(recorder, fakes)
            example = tree_map(fake.batch, batch)
            recorder.label(_noted(recorder, tree_leaves(example)), Purpose.INPUT)
            _run(model, optimizer, example, step, recorder, fakes, shares)
    finally:
        torch.set_rng_state(generators)
    return recorder, shares


def _announce(recorder: Recorder, fakes: Fakes) -> dict[int, float]:
    shares: dict[int, float] = {}
    for identity, fake in fakes.by_identity.items():
        number = recorder.note(fake, Purpose.WEIGHTS)
        if number is not None and identity in fakes.shares:
            shares[number] = fakes.shares[identity]
    return shares


def _noted(recorder: Recorder, leaves: list[Any]) -> list[Any]:
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
    for each in tensors:
        recorder.note(each)
    return tensors


def _run(
    model: Any,
    optimizer: Any,
    batch: Any,
    step: Step,
    recorder: Recorder,
    fakes: Fakes,
    shares: dict[int, float],
) -> None:
    kept: tuple[Any, Any] | None = None
    for index in range(STEPS):
        recorder.phase = Phase.FORWARD
        if index == STEPS - 1:
            recorder.mark()
        for _ in range(step.accumulate):
            recorder.phase = Phase.FORWARD
            with _autocast(step, recorder.device_type):
                # as in a loop, the last output lives until its variable is given the next one
                kept = step.forward(model, batch)
            recorder.phase = Phase.BACKWARD
            kept[0].backward()
            _label_gradients(recorder, fakes, shares)
        recorder.phase = Phase.OPTIMIZER
        _update(model, optimizer, step)
        _label_state(recorder, optimizer, fakes, shares)
        _clear(model, optimizer, step)


def _autocast(step: Step, device_type: str) -> AbstractContextManager[Any]:
    if step.autocast is None:
        return nullcontext()
    autocast: AbstractContextManager[Any] = torch.autocast(device_type, dtype=step.autocast)
    return autocast


def _update(model: Any, optimizer: Any, step: Step) -> None:
    if step.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), step.clip_norm)
    if optimizer is not None:
        optimizer.step()


def _clear(model: Any, optimizer: Any, step: Step) -> None:
    (optimizer or model).zero_grad(set_to_none=step.set_to_none)


def _label_gradients(recorder: Recorder, fakes: Fakes, shares: dict[int, float]) -> None:
    for identity, fake in fakes.by_identity.items():
        if fake.grad is not None:
            recorder.label([fake.grad], Purpose.GRADIENTS)
            _share(recorder, fake.grad, fakes.shares.get(identity), shares)


def _label_state(recorder: Recorder, optimizer: Any, fakes: Fakes, shares: dict[int, float]) -> None:
    if optimizer is None:
        return
    owners = {id(fake): identity for identity, fake in fakes.by_identity.items()}
    for parameter, state in optimizer.state.items():
        tensors = {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}
        # step counters live in host memory unless the optimizer is fused or capturable
        if "step" in tensors and not _counts_on_device(optimizer, parameter):
            recorder.drop([tensors.pop("step")])
        recorder.label(tensors.values(), Purpose.OPTIMIZER)
        for each in tensors.values():
            _share(recorder, each, fakes.shares.get(owners.get(id(parameter), -1)), shares)


def _counts_on_device(optimizer: Any, parameter: Any) -> bool:
    for group in optimizer.param_groups:
        if any(each is parameter for each in group["params"]):
            return bool(group.get("fused") or group.get("capturable"))
    return False


def _share(recorder: Recorder, tensor: Any, share: float | None, shares: dict[int, float]) -> None:
    number = recorder.number_of(tensor)
    if share is not None:
        shares[number] = share


@contextmanager
def swapped(model: Any, optimizer: Any, fake: Faker) -> Generator[Fakes]:
    """The model and the optimizer on fake parameters, buffers and state, with hooks that move data off."""
    fakes = Fakes({}, {}, {})
    with (
        _swapped_units(model, fake, fakes),
        _swapped_modules(model, fake, fakes),
        _swapped_optimizer(optimizer, fakes),
        without_gathering(model),
    ):
        yield fakes


@contextmanager
def _swapped_units(model: Any, fake: Faker, fakes: Fakes) -> Generator[None]:
    """The whole parameters of `FullyShardedDataParallel` in their places, where only a flat share is kept."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    added: list[tuple[dict[str, Any], str]] = []
    try:
        for unit in flat_units(model):
            made = [fake.parameter(unit, number) for number in range(len(unit.shapes))]
            keys = [id(one) for one in unit.originals or made]
            fakes.by_identity.update(zip(keys, made, strict=True))
            fakes.shares.update(dict.fromkeys(keys, unit.share))
            fakes.parts[id(unit.flat)] = keys
            for module, name, number in unit.places:
                if name in module.__dict__:  # a view of the flat one
                    kept.append((module.__dict__, name, module.__dict__.pop(name)))
                if name in module._parameters:
                    kept.append((module._parameters, name, module._parameters[name]))
                else:
                    added.append((module._parameters, name))
                module._parameters[name] = made[number]
        yield
    finally:
        for table, name in added:
            del table[name]
        for table, name, real in kept:
            table[name] = real


@contextmanager
def _swapped_modules(model: Any, fake: Faker, fakes: Fakes) -> Generator[None]:
    kept: list[tuple[dict[str, Any], str, Any]] = []
    already = {id(each) for each in fakes.by_identity.values()}
    try:
        for module in model.modules():
            for table in (module._parameters, module._buffers):
                for name, real in list(table.items()):
                    if real is not None and not is_flat(real) and id(real) not in already:
                        kept.append((table, name, real))
                        table[name] = _fake_of(real, fake, fakes)
        yield
    finally:
        for table, name, real in kept:
            table[name] = real


def _fake_of(real: Any, fake: Faker, fakes: Fakes) -> Any:
    """Ties are kept. A DTensor (`fully_shard`) is whole in the step; this process holds its share."""
    if id(real) not in fakes.by_identity:
        local = getattr(real, "_local_tensor", None)
        if local is not None and real.numel():
            fakes.shares[id(real)] = local.numel() / real.numel()
        twin = fake.tensor(real)
        if isinstance(real, torch.nn.Parameter):
            twin = torch.nn.Parameter(twin, requires_grad=real.requires_grad)
        fakes.by_identity[id(real)] = twin
    return fakes.by_identity[id(real)]


@contextmanager
def _swapped_optimizer(optimizer: Any, fakes: Fakes) -> Generator[None]:
    if optimizer is None:
        yield
        return
    groups = [group["params"] for group in optimizer.param_groups]
    state = optimizer.state
    hooks = {name: getattr(optimizer, name) for name in _STEP_HOOKS if hasattr(optimizer, name)}
    counter = getattr(optimizer, "_step_count", None)  # what LRScheduler counts
    try:
        for group, parameters in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = [each for real in parameters for each in fakes.of(real)]
        optimizer.state = defaultdict(dict)
        for name in hooks:
            setattr(optimizer, name, {})
        yield
    finally:
        for group, parameters in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = parameters
        optimizer.state = state
        for name, value in hooks.items():
            setattr(optimizer, name, value)
        if counter is not None:
            optimizer._step_count = counter


_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
