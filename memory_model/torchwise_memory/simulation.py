"""One warm training step of a described job, run on the runtime.

Layers that are alike are not all run: memory at a given place of the step (entering layer i, its backward,
the optimizer) is linear in the number of layers, so two shallow models give every place of the deep one.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torchwise_memory.allocator import Allocator, AllocatorSettings, OutOfMemoryError
from torchwise_memory.classes import CLASSES
from torchwise_memory.families.projections import Adapted, GroupedProjection, Projection, Prompt
from torchwise_memory.library import METHODS
from torchwise_memory.modules.base import Module
from torchwise_memory.optimizers.base import Optimizer
from torchwise_memory.policies.sharding import Order, Sharding, shard
from torchwise_memory.policies.zero import PERSISTENCE, REDUCE_BUCKET, SUB_GROUP, ZeroBuffers, zero_buffers
from torchwise_memory.report import Phase
from torchwise_memory.runtime.contexts import Autocast, GradMode
from torchwise_memory.runtime.device import CPU, CUDA
from torchwise_memory.runtime.dtypes import DType, uint8
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tensor import Parameter, Tensor
from torchwise_memory.runtime.world import World

#: Depths that are run in place of a deeper model; at the first, every place already has its neighbours.
SHALLOW = (4, 5)
FUEL = 10_000_000


class Subject(Protocol):
    """What is trained or run."""

    @property
    def layers(self) -> int:
        """How many layers are alike."""
        ...

    def build(self, w: World, layers: int) -> Module: ...

    def blocks(self, model: Module) -> list[Module]:
        """The layers that are alike, in order."""
        ...

    def run(self, w: World, model: Module) -> Tensor:
        """Forward: the loss in training, the output otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer: a class of `CLASSES` and its options. In backward: a step a gradient, none are kept.

    state_bytes: a value of the parameter, in place of the class's own states; None leaves them. on_host: the
    states are there.
    """

    name: str | None
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    in_backward: bool = False
    state_bytes: float | None = None
    on_host: bool = False
    gradients_on_host: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """How a subject is run.

    weights: type of parameters; autocast: of matrix products, None without. sharding: by layer, None keeps
    parameters whole. expert_processes: over how many experts are sharded where it is not over all, 0
    elsewhere. buckets: a copy of gradients for all-reduce. accumulates: gradients of earlier micro-batches
    are alive. zero: DeepSpeed stage (1 to 3), over `processes`, with buckets of `zero_bucket` elements, two
    where reduction overlaps with backward. static_bytes: held throughout. frozen: only adapters train.
    loads_whole: every process holds a full copy of the weights beside its shards. loading: the peak is that
    of loading, weights alone. convolution_workspaces: times those of Winograd kernels. allocator: the options
    of `PYTORCH_CUDA_ALLOC_CONF`.
    """

    subject: Subject
    weights: DType
    training: bool = True
    autocast: DType | None = None
    update: Update = field(default_factory=lambda: Update(None))
    frozen: bool = False
    trainable: Callable[[str], bool] | None = None
    sharding: Sharding | None = None
    expert_processes: int = 0
    separate_ends: bool = False
    buckets: bool = False
    accumulates: bool = False
    processes: int = 1
    zero: int = 0
    zero_on_host: bool = False
    zero_bucket: int = REDUCE_BUCKET
    zero_overlaps: bool = False
    static_bytes: int = 0
    loading: bool = False
    sm: int = 80
    torch_version: tuple[int, int] = (2, 13)
    input_gradients: bool = False
    loads_whole: bool = False
    convolution_workspaces: float = 0.0
    allocator: AllocatorSettings | None = None


@dataclass(frozen=True, slots=True)
class Simulated:
    """Bytes of a step: its peak, and what stays. parameters count once, shards or not."""

    allocated: int
    phase: Phase
    weights: int
    gradients: int
    optimizer: int
    parameters: int
    trainable: int
    # at the peak, by what it is for; their sum is `allocated`
    kinds: Mapping[StorageKind, int] = field(default_factory=dict[StorageKind, int])


class RoundingAllocator:
    """Counts blocks of 512 bytes; no segments."""

    def __init__(self) -> None:
        self.allocated = self.peak_allocated = self.reserved = self.peak_reserved = 0

    def malloc(self, bytes_: int) -> _Block:
        block = _Block(-(-bytes_ // 512) * 512)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: _Block) -> None:
        self.allocated -= block.size


class _Block:
    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


def simulate(job: Job, shallow: bool = True) -> Simulated:
    """The peak of a warm step. `shallow` False runs every layer."""
    total = job.subject.layers
    low, high = depths_of(job.subject)
    if not shallow or total <= high + 1:
        places = _places(job, total)
        return _summed(places, places, 1, 0)
    return _summed(_places(job, low), _places(job, high), high - low, total - low)


def depths_of(subject: Subject) -> tuple[int, int]:
    """Two depths that stand for the whole: behind leading layers, and a whole number of periods apart."""
    period, leading = getattr(subject, "period", 1), getattr(subject, "leading", 0)
    low = SHALLOW[0] + max(0, leading - 1)
    low += (subject.layers - low) % period
    return low, low + period


def replayed(job: Job, capacity_bytes: int | None = None) -> int:
    """What PyTorch's allocator has reserved after one step of a fresh process, every layer run.

    With a capacity, cached blocks are given back near it; where even that does not suffice, the capacity.
    """
    allocator = Allocator(job.allocator, capacity_bytes)
    try:
        _run(job, job.subject.layers, allocator)
    except OutOfMemoryError:
        return max(allocator.peak_reserved, capacity_bytes or 0)
    return allocator.peak_reserved


#: Places of the step: over all gradients, and over a sub-group of ZeRO 3.
STEP, SUB_GROUP_STEP = ("optimizer", 0), ("optimizer", 1)


@dataclass(slots=True)
class _Places:
    """Peaks by place of the step, and sums of kinds; keys are the same at every depth."""

    peaks: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    phases: dict[tuple[str, int], Phase] = field(default_factory=dict[tuple[str, int], Phase])
    kinds: dict[tuple[str, int], dict[StorageKind, int]] = field(
        default_factory=dict[tuple[str, int], dict[StorageKind, int]]
    )
    sums: dict[str, int] = field(default_factory=dict[str, int])


def _summed(a: _Places, b: _Places, step: int, more: int) -> Simulated:
    """Places of a model that is `more` layers deeper than `a`; `b` is `step` layers deeper."""

    def at(low: int, high: int) -> int:
        return low + (high - low) * more // step

    peaks = {key: at(value, b.peaks[key]) for key, value in a.peaks.items() if key in b.peaks}
    if SUB_GROUP_STEP in peaks:
        del peaks[max(SUB_GROUP_STEP, STEP, key=lambda key: peaks[key])]
    place = max(peaks, key=lambda key: peaks[key])
    sums = {name: at(value, b.sums[name]) for name, value in a.sums.items()}
    first, second = a.kinds[place], b.kinds[place]
    kinds = {kind: at(first.get(kind, 0), second.get(kind, 0)) for kind in {**first, **second}}
    return Simulated(peaks[place], a.phases[place], **sums, kinds=kinds)


class _Watch:
    """Splits the step into places: before the layers, each layer's forward, between, backwards, after."""

    def __init__(self, w: World, depth: int, head: int = 2) -> None:
        self.w = w
        self.depth = depth
        self.head = head
        self.places = _Places()
        self.place = ("before", 0)

    def start(self) -> None:
        self.w.ledger.watch()

    def enter(self, place: tuple[str, int]) -> None:
        ledger = self.w.ledger
        known = self.places.peaks.get(self.place, 0)
        if ledger.peak_bytes > known:
            self.places.peaks[self.place] = ledger.peak_bytes
            self.places.phases[self.place] = ledger.peak_phase
            self.places.kinds[self.place] = ledger.bytes_by_kind(ledger.peak_sequence)
        self.place = place
        ledger.watch()

    def key(self, name: str, index: int) -> tuple[str, int]:
        """Layers near the start count from there, others from the end, so that depths share keys."""
        return name, index if index < self.head else index - self.depth


class _Marker:
    """The policy that tells the watch where the step is. Weak: the watch holds the world."""

    def __init__(self, watch: _Watch, index: int) -> None:
        self.watch = weakref.ref(watch)
        self.index = index

    def enter(self, w: World, module: Module) -> None:
        watch = self.watch()
        if watch is not None and w.backward_depth == 0:
            watch.enter(watch.key("forward", self.index))

    def leave(self, w: World, module: Module, output: object) -> object:
        watch = self.watch()
        if watch is None or w.backward_depth:
            return output
        if self.index == watch.depth - 1:
            watch.enter(("between", 0))
        if isinstance(output, Tensor) and output.node is not None:
            hook = _Before(self.watch, self.index)
            output.node.hooks = [*(output.node.hooks or ()), (output.index, hook)]
        return output


class _Before:
    def __init__(self, watch: weakref.ref[_Watch], index: int) -> None:
        self.watch, self.index = watch, index

    def __call__(self, w: World, gradient: Tensor) -> Tensor | None:
        watch = self.watch()
        if watch is not None:
            watch.enter(watch.key("backward", self.index))
        return None


def _places(job: Job, depth: int) -> _Places:
    return _run(job, depth, RoundingAllocator())


def _run(job: Job, depth: int, allocator: RoundingAllocator | Allocator) -> _Places:
    w = World(allocator, sm=job.sm, fuel=FUEL, torch_version=job.torch_version)
    w.world_size = job.processes
    w.convolution_workspaces = job.convolution_workspaces
    # lifetimes are those of references; a collection in between only costs time
    collects = gc.isenabled()
    gc.disable()
    try:
        return _step(w, job, depth)
    finally:
        w.close()
        if collects:
            gc.enable()


def _step(w: World, job: Job, depth: int) -> _Places:
    w.default_dtype = job.weights
    model = job.subject.build(w, depth)
    model.train(w, job.training)
    if job.frozen:
        _freeze(model)
    for name, parameter in model.walk_parameters():
        if job.trainable is not None and job.trainable(name):
            parameter.requires_grad = True
    if job.input_gradients:
        model.fields["input_require_grads"] = True
    watch = _Watch(w, depth, max(2, getattr(job.subject, "leading", 0)))
    whole = w.ledger.allocator.allocated if job.loads_whole else 0
    held = [_held(w, job.static_bytes, StorageKind.WORKSPACE)]
    parameters = [p for _, p in model.walk_parameters()]
    counts = (_count(model, parameters), sum(p.numel for p in parameters if p.requires_grad))
    if job.training and not job.loading and not counts[1]:
        raise Unsupported("this job", "none of the model's parameters would be trained")
    if job.sharding is not None:
        _shard(w, job, model)
    held.append(_held(w, whole, StorageKind.WEIGHTS))
    cache = model.fields.get("cache")
    besides = job.static_bytes + whole + (cache.bytes if isinstance(cache, Tensor) else 0)
    weights = w.ledger.allocator.allocated - besides
    for index, block in enumerate(job.subject.blocks(model)):
        block.policies.insert(0, _Marker(watch, index))
    trained = [p for p in parameters if p.requires_grad]
    if job.zero and job.training:
        held.append(_held(w, _zero_buffers(job, trained).held * _size_of(trained), StorageKind.WORKSPACE))
    optimizer, states = _prepared(w, job, trained, held) if job.training else (None, 0)
    gradients = sum(p.bytes for p in trained if p.device.on_card)
    if job.training and not job.loading:
        _train(w, job, model, optimizer, trained, watch, held)
    elif not job.loading:
        _infer(w, job, model, watch)
    else:
        watch.start()
    watch.enter(("end", 0))
    watch.places.sums = {
        "weights": weights,
        "gradients": gradients if job.training else 0,
        "optimizer": states,
        "parameters": counts[0],
        "trainable": counts[1],
    }
    return watch.places


def _held(w: World, bytes_: int, kind: StorageKind) -> Tensor | None:
    return w.new((bytes_,), uint8, "held throughout", kind=kind) if bytes_ > 0 else None


def _count(model: Module, parameters: Iterable[Parameter]) -> int:
    """Parameters as the model card counts them: packed weights unpacked."""
    total = sum(p.numel for p in parameters)
    for _, module in model.walk():
        if isinstance(module, Projection) and module.quantised is not None:
            total += module.rows * module.columns - module.tensor("weight").numel
        elif isinstance(module, GroupedProjection):
            total += module.packed_away
    return total


def _freeze(model: Module) -> None:
    kept = {
        id(p)
        for _, module in model.walk()
        if isinstance(module, Adapted)
        for p in module.parameters.values()
        if p is not None
    }
    for _, module in model.walk():
        if isinstance(module, Prompt):
            kept.update(id(p) for _, p in module.walk_parameters())
    for _, parameter in model.walk_parameters():
        parameter.requires_grad = id(parameter) in kept


def _shard(w: World, job: Job, model: Module) -> None:
    assert job.sharding is not None
    if job.zero:
        _shard_leaves(w, job.sharding, model)
        return
    order = Order()
    for block in job.subject.blocks(model):
        if job.expert_processes:
            # expert parallelism takes its processes from those that share the other parameters
            among = replace(job.sharding, processes=job.expert_processes)
            for _, module in list(block.walk()):
                if isinstance(module, GroupedProjection):
                    shard(w, module, among, order)
        shard(w, block, job.sharding, order)
    if job.separate_ends:
        for name in ("embed", "head"):
            part = model.children.get(name)
            if part is not None and not (name == "head" and _is_tied(model)):
                shard(w, part, job.sharding, order)
    shard(w, model, job.sharding, order)


def _shard_leaves(w: World, sharding: Sharding, model: Module) -> None:
    """ZeRO 3 gathers what a module itself owns when it runs; small and shared parameters stay whole.

    So does what is used last until backward, which uses it first (`stage3_max_reuse_distance`).
    """
    owners = Counter(id(p) for _, module in model.walk() for p in module.parameters.values() if p is not None)
    order, gathered = Order(), replace(sharding, reshard_after_forward=False)
    is_last = True
    # what lies inside first
    for _, module in reversed(list(model.walk())):
        own = [p for p in module.parameters.values() if p is not None]
        shared = any(owners[id(p)] > 1 for p in own)
        if own and not shared and sum(p.numel for p in own) > PERSISTENCE:
            shard(w, module, gathered if is_last else sharding, order)
            is_last = False
    shard(w, model, gathered, order)


def _is_tied(model: Module) -> bool:
    embed, head = model.children.get("embed"), model.children.get("head")
    if embed is None or head is None:
        return False
    return embed.parameters.get("weight") is head.parameters.get("weight")


def _prepared(
    w: World, job: Job, trained: list[Parameter], held: list[Tensor | None]
) -> tuple[Optimizer | None, int]:
    """The optimizer with the states of earlier steps, and how many bytes those are."""
    before = w.ledger.allocator.allocated
    update = job.update
    optimizer: Optimizer | None = None
    if job.zero:
        held.append(_zero_states(w, job, trained))
    elif update.state_bytes is not None:
        count = sum(p.numel for p in trained)
        state_bytes = 0 if update.on_host else int(count * update.state_bytes)
        held.append(_held(w, state_bytes, StorageKind.OPTIMIZER))
    if update.name is not None and trained:
        native = CLASSES[update.name]
        made = native.make()
        assert isinstance(made, Optimizer)
        optimizer = made
        native.construct(w, optimizer, list(trained), **update.options)
        if not (update.on_host or job.zero or update.state_bytes is not None):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    optimizer.state[parameter] = optimizer.new_state(w, group, parameter)
    return optimizer, w.ledger.allocator.allocated - before


def _partitions(job: Job) -> int:
    """Into how many parts DeepSpeed divides the parameters here; at stage 3 they are parts already."""
    return 1 if job.sharding is not None else job.processes


def _zero_buffers(job: Job, trained: list[Parameter]) -> ZeroBuffers:
    part = -(-sum(p.numel for p in trained) // _partitions(job))
    largest = max((p.numel for p in trained), default=0)
    return zero_buffers(job.zero, part, largest, job.zero_bucket, job.zero_overlaps, job.zero_on_host)


def _size_of(trained: list[Parameter]) -> int:
    """Bytes of an element of what is trained."""
    return trained[0].dtype.itemsize if trained else 0


def _zero_step(w: World, job: Job, trained: list[Parameter], watch: _Watch, depth: int) -> None:
    """The copies of the gradients that the step makes.

    Stage 3 copies no more than a sub-group at once. Where only some of the layers run, that does not grow
    with them as the whole would: both are entered, and the smaller counts for the whole model.
    """
    for parameter in trained:
        parameter.grad = None
    size, buffers = _size_of(trained), _zero_buffers(job, trained)
    part = -(-sum(p.numel for p in trained) // _partitions(job))
    # at stage 1 this process's part is taken out of the whole gradients only now
    own = _held(w, size * part if job.zero == 1 and buffers.in_step else 0, StorageKind.GRADIENTS)
    # what is fp32 already is flattened alone
    each = 4 if size == 4 else 4 + size
    if job.zero < 3 or depth == job.subject.layers:
        copies = _held(w, each * buffers.in_step, StorageKind.TEMPORARY)
        del copies, own
        return
    copies = _held(w, each * (part if buffers.in_step else 0), StorageKind.TEMPORARY)
    del copies
    watch.enter(SUB_GROUP_STEP)
    copies = _held(w, each * SUB_GROUP if buffers.in_step else 0, StorageKind.TEMPORARY)
    del copies, own


def _zero_states(w: World, job: Job, trained: list[Parameter]) -> Tensor | None:
    """DeepSpeed: an fp32 master copy and the states of this process's partition."""
    count = sum(p.numel for p in trained)
    share = -(-count // _partitions(job))
    bytes_ = 0 if job.zero_on_host else int(share * (4 + _state_bytes(job.update)))
    return _held(w, bytes_, StorageKind.OPTIMIZER)


def _state_bytes(update: Update) -> float:
    """Of a value that is kept in fp32."""
    name = update.name or ""
    if update.state_bytes is not None:
        return update.state_bytes
    if "8bit" in name:
        return 1 if "Lion" in name or "SGD" in name else 2
    if name.endswith("SGD"):
        return 4 if update.options.get("momentum") else 0
    if name.endswith("Adafactor"):
        return 0
    return 4 if "Lion" in name or "Adagrad" in name or "RMSprop" in name else 8


def _train(
    w: World,
    job: Job,
    model: Module,
    optimizer: Optimizer | None,
    trained: list[Parameter],
    watch: _Watch,
    held: list[Tensor | None],
) -> None:
    if job.buckets:
        held.append(_held(w, sum(p.bytes for p in trained), StorageKind.GRADIENTS))
    if job.accumulates and not job.update.in_backward and job.zero < 2:
        for parameter in trained:
            gradient = parameter.grad = w.like(parameter, "accumulated gradient")
            gradient.storage.mark(StorageKind.GRADIENTS)
    if job.update.in_backward or job.update.gradients_on_host or job.zero >= 2:
        total = sum(p.bytes for p in trained) if job.zero >= 2 else 0
        share = -(-total // _partitions(job))
        held.append(_held(w, 0 if job.zero_on_host else share, StorageKind.GRADIENTS))
        for parameter in trained:
            parameter.accumulated_hooks = [*(parameter.accumulated_hooks or ()), _drop_gradient]
    w.warm(CUDA)
    watch.start()
    autocast = Autocast("cuda", job.autocast)
    if job.autocast is not None:
        autocast.enter(w)
    loss = job.subject.run(w, model)
    if job.autocast is not None:
        autocast.leave(w)
    w.phase = Phase.FORWARD
    in_backward = _zero_buffers(job, trained).in_backward if job.zero else 0
    bucket = _held(w, in_backward * _size_of(trained), StorageKind.WORKSPACE)
    METHODS["backward"].call(w, loss)
    del loss, bucket
    watch.enter(STEP)
    w.phase = Phase.OPTIMIZER
    if job.zero:
        _zero_step(w, job, trained, watch, watch.depth)
    elif optimizer is not None and _steps(job.update):
        optimizer.step(w)
    w.phase = Phase.FORWARD
    held.clear()


def _steps(update: Update) -> bool:
    """Whether the step itself runs on the card, with the class's own temporaries."""
    return not update.in_backward and not update.on_host and update.state_bytes is None


def _drop_gradient(w: World, leaf: Tensor) -> None:
    leaf.grad = None


def _infer(w: World, job: Job, model: Module, watch: _Watch) -> None:
    mode, autocast = GradMode(False), Autocast("cuda", job.autocast)
    mode.enter(w)
    if job.autocast is not None:
        autocast.enter(w)
    watch.start()
    output = job.subject.run(w, model)
    del output
    if job.autocast is not None:
        autocast.leave(w)
    mode.leave(w)


__all__ = ["CPU", "SHALLOW", "Job", "Simulated", "Subject", "Update", "replayed", "simulate"]
