"""What happened, where, and what held just before.

Events are the only thing that rules read besides the accessors of `trace.Trace`. Each one carries the
state facts that a rule needs *as they were just before it*, so that no rule walks paths. Everything
in an event is immutable; the runs of a loop, of a world or of a call path are separate events of one
place, told apart by `scene`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract.loops import Caller, LoopPath
from torchwise_analysis.interp.abstract.values import (
    Arguments,
    Gradients,
    Modes,
    Obj,
    StateDict,
    Tensor,
    Token,
    Value,
)
from torchwise_analysis.quick import record


@record(frozen=True, slots=True)
class Entry:
    """Where a run started: "module", "function", "method" or "hook" (called by a framework)."""

    kind: str
    name: str
    place: Place
    framework: str = ""  # "lightning", "transformers", ... when a framework calls the hook
    automatic: bool = False  # that framework does backward, clear and step itself


@record(frozen=True, slots=True)
class Guard:
    """A condition that holds here on this path and could not be decided.

    kind: "rank", "periodic" (a counter against a period), "training" (`self.training`), "flag" (an
    unknown that the caller chooses), "none" (something is None), "handler" (an except clause), "value".
    taken: the test was true here. Early `return`, `continue` and `raise` leave a guard behind them too.
    parts: a rank test that comes out differently on the ranks, unlike one of their number.
    group: the same for the operands of one condition. test: how a counter is tested: "counted" when a witness
    of its window decided it, else the comparison as written; "name" for a bare name in a forward. loops: how
    many loops were around the test.
    ends: the other side of it ends the innermost loop around it or the run, or skips a turn without data or
    with numbers that are not finite, so that what follows happens in nearly every turn. often: this side
    is taken in all turns of a period but one.
    """

    place: Place
    kind: str
    taken: bool
    symbol: str | None = None
    parts: bool = False
    group: int = 0
    test: str = ""
    loops: int = 0
    ends: bool = False
    often: bool = False


@record(frozen=True, slots=True)
class Scene:
    """Under what something happened; shared by all events of the same moment.

    loops: outermost first. calls: outermost first. world: flags fixed for this run. guards: undecided
    tests passed. frame, function: the running frame. forward: id of the outermost pass being run.
    autocast: dtype name ("float16", "bfloat16", "default" or a symbol) or None when off.
    inference: gradients are off lexically. accumulating: owner that skips syncs (None when none).
    compiled: where the running code was given to torch.compile.
    """

    loops: LoopPath
    calls: tuple[Caller, ...]
    entry: Entry
    world: tuple[tuple[str, bool], ...] = ()
    guards: tuple[Guard, ...] = ()
    frame: int = 0
    function: str = ""
    forward: int | None = None
    autocast: str | None = None
    no_sync: Obj | None = None
    anomaly: bool = False
    compiled: Place | None = None


@record(frozen=True, slots=True, eq=False)
class Event:
    """`order` counts events of the trace; `place` is the expression or statement that did it."""

    order: int
    place: Place
    scene: Scene

    @property
    def loops(self) -> LoopPath:
        return self.scene.loops

    @property
    def calls(self) -> tuple[Caller, ...]:
        return self.scene.calls


# --------------------------------------------------------------------------- forward and backward


@record(frozen=True, slots=True, eq=False)
class Forward(Event):
    """The outermost call of a module, or of something taken for one.

    pass_: id of the pass; layers inside share it (`trace.passes[pass_]` tells what else it ran).
    modes: mode of the module before. grad: may autograd record ({True}, {False} or both).
    inputs: earlier passes whose graph the arguments carry. sources: loaders the data comes from.
    through: "call", "forward" (`.forward(x)` called directly), "method" (another method of it),
    "functional", "loss" (a criterion that starts a graph of its own), "entry" (a forward nobody calls).
    belief: the callee is taken for a module by convention. wrapped: the wrapper it went through
    ("ddp", "fsdp", "compile", "dataparallel", "prepared", ""); bypassed: the wrapper this call went past.
    eval_parts: parts inside that stand in eval mode by themselves.
    """

    pass_: int
    module: Obj
    modes: Modes
    grad: frozenset[bool]
    inputs: frozenset[int]
    sources: frozenset[int]
    arguments: Arguments
    through: str = "call"
    belief: bool = False
    wrapped: str = ""
    bypassed: str = ""
    eval_parts: frozenset[int] = frozenset()
    version: int = 0


@record(frozen=True, slots=True, eq=False)
class Backward(Event):
    """A backward over `passes`.

    loss: what it ran on (None when unknown). retain: keeps the graph, surely so when `retain_known`;
    create_graph and `create_known` likewise.
    fresh: passes not yet freed.
    before: gradients of every optimizer it may reach, just before. how: "tensor", "accelerator",
    "fabric", "engine", "scaler", "manual" (Lightning's manual_backward), "managed" (a framework runs
    it on what a hook returns), "autograd.grad", "functional".
    divides: the owner divides the loss by the window. modules: modules reached (None: anything).
    """

    passes: frozenset[int]
    loss: Tensor | None
    retain: bool
    create_graph: bool
    fresh: frozenset[int]
    before: Mapping[int, Gradients]
    modules: frozenset[int] | None
    grad: frozenset[bool]
    how: str = "tensor"
    divides: bool = False
    owner: Obj | None = None
    retain_known: bool = True
    create_known: bool = True


@record(frozen=True, slots=True, eq=False)
class Step(Event):
    """An optimizer step. via: "plain", "scaler", "closure", "engine", "manual"."""

    optimizer: Obj
    before: Gradients
    via: str = "plain"
    scaler: Obj | None = None
    arguments: Arguments | None = None


@record(frozen=True, slots=True, eq=False)
class Clear(Event):
    """Gradients of `optimizer` are cleared. how: "zero_grad", "module", "grad = None", "engine"."""

    optimizer: Obj
    before: Gradients
    how: str = "zero_grad"


@record(frozen=True, slots=True, eq=False)
class GradientsReset(Event):
    """Gradients of these modules or parameters are cleared, whether an optimizer has them or not."""

    roots: frozenset[int]


@record(frozen=True, slots=True, eq=False)
class Clip(Event):
    """Gradients are clipped, measured or otherwise read. how: qualified name or method."""

    how: str
    before: Mapping[int, Gradients]
    roots: frozenset[int] | None
    owner: Obj | None = None
    before_managed_backward: bool = False


@record(frozen=True, slots=True, eq=False)
class MeasureUsed(Event):
    """What was read off gradients is compared, shown or multiplied with. reads: orders of the `Clip` events.

    how: "if", "print", "log" or "factor".
    """

    reads: frozenset[int]
    how: str


@record(frozen=True, slots=True, eq=False)
class Unscale(Event):
    """Gradients of `optimizer` are unscaled. again: surely for a second time since the last update."""

    scaler: Obj
    optimizer: Obj
    before: Gradients
    again: bool = False


@record(frozen=True, slots=True, eq=False)
class ScalerUpdate(Event):
    """The scale changes, perhaps. waiting: optimizers whose gradients are all still multiplied by it."""

    scaler: Obj
    waiting: frozenset[int] = frozenset()


@record(frozen=True, slots=True, eq=False)
class LossCall(Event):
    """A loss function ran. name: its functional name ("cross_entropy", "bce_with_logits", "nll_loss", ...).

    input, target: tensors, when known as such. inputs: all alternatives of the input after joins.
    """

    name: str
    input: Tensor | None
    target: Tensor | None
    inputs: tuple[Tensor, ...]
    reduction: str | None
    arguments: Arguments
    options: Arguments
    grad: frozenset[bool]
    loss: Obj | None = None


@record(frozen=True, slots=True, eq=False)
class ActivationCall(Event):
    """softmax, sigmoid and kin, or argmax, applied to `input` (functional, method or layer)."""

    name: str
    input: Tensor | None
    dim: int | None
    dim_given: bool


@record(frozen=True, slots=True, eq=False)
class DropoutCall(Event):
    """Dropout that ignores the mode. how: "functional" (no training argument), "built" (layer made in
    forward), "attention" (dropout_p), "mask" (hand-written random mask)."""

    how: str
    built: Place


@record(frozen=True, slots=True, eq=False)
class GraphCut(Event):
    """A value with a graph lost it. how: "item", "detach", "tensor()", "argmax", "numpy", "no_grad", ..."""

    how: str
    value: Tensor


# --------------------------------------------------------------------------- keeping things


@record(frozen=True, slots=True, eq=False)
class Store(Event):
    """A value with a graph goes to a place that outlives the iteration in which the graph was made.

    Emitted only for real growth: a place born outside a loop that one of the passes was made in, or a
    value that holds passes of this and of an earlier iteration of one loop.
    how: "append", "extend", "item", "attribute", "chain" (a = a + x), "comprehension", "yield", ...
    holder: the container or object, if it has an identity; name: the variable or attribute otherwise.
    bounded: the holder drops old elements. value: the expression stored, for the fix. graph_places: the
    expressions that carry the graph: elements of a stored literal, else the expression itself.
    freed: passes already freed by a backward when stored.
    """

    token: Token
    passes: frozenset[int]
    freed: frozenset[int]
    how: str
    holder: Obj | None
    name: str
    bounded: bool
    value: Tensor
    value_place: Place | None
    reduction: str | None = None
    graph_places: tuple[Place, ...] = ()


@record(frozen=True, slots=True, eq=False)
class Emptied(Event):
    """A container is emptied, popped or replaced while its loops go on."""

    holder: Obj


@record(frozen=True, slots=True, eq=False)
class Returned(Event):
    """An entry returned this to a caller that we do not see."""

    passes: frozenset[int]
    tokens: frozenset[Token]
    value: Value


@record(frozen=True, slots=True, eq=False)
class HostSync(Event):
    """The host waits for a device value: "item", "float()", "print", "if", "cpu", "tolist", "nonzero".

    summed: the number is only added to another one (`total += loss.item()`).
    """

    how: str
    value: Tensor | None
    summed: bool = False


@record(frozen=True, slots=True, eq=False)
class Transfer(Event):
    """A value is moved to a device.

    made: where it was. birth: the loops around the call that made this very tensor, None when that is not
    known. factory: the function of torch that made it, moved as soon as made.
    """

    value: Value
    device: str | None
    how: str
    made: Place | None
    birth: LoopPath | None = None
    factory: str = ""


@record(frozen=True, slots=True, eq=False)
class Touched(Event):
    """A tensor is written in place, or goes where it may be."""

    value: Tensor


@record(frozen=True, slots=True, eq=False)
class Checkpointed(Event):
    """`torch.utils.checkpoint.checkpoint`: `function` runs again in the backward.

    inputs: what it is given. reentrant: the flag, None when it is not given or not known (`given` tells).
    grad: may autograd record. learns: the function has parameters that train, as far as is known.
    names: of those inputs that are arguments of a forward that nobody in view calls, as they came.
    """

    function: Value
    inputs: tuple[Value, ...]
    reentrant: bool | None
    given: bool
    grad: frozenset[bool]
    learns: bool
    names: tuple[str, ...] = ()


@record(frozen=True, slots=True, eq=False)
class Reported(Event):
    """A number that rests on the batches of these loaders alone is shown or decides something.

    how: "print", "log" or "if". loaders: those that give each rank its own part of the data. ranked: the
    rank is shown with it, or it was computed with their number.
    """

    how: str
    loaders: frozenset[int]
    ranked: bool = False


# --------------------------------------------------------------------------- modes and weights


@record(frozen=True, slots=True, eq=False)
class ModeChange(Event):
    """train() or eval() on a module. to: "train", "eval" or "unknown" (`train(flag)`).

    before: its modes. undone: parts whose own eval mode this undoes. restored: sets back a remembered mode.
    """

    module: Obj
    to: str
    before: Modes
    undone: frozenset[int] = frozenset()
    restored: bool = False


@record(frozen=True, slots=True, eq=False)
class StateDictKept(Event):
    """A state dict is bound to a name, attribute or container."""

    state: StateDict
    name: str


@record(frozen=True, slots=True, eq=False)
class ModuleKept(Event):
    """A module that has a name gets a second one, inside a loop: `best = model`. No copy is made."""

    module: Obj
    name: str


@record(frozen=True, slots=True, eq=False)
class StateDictUsed(Event):
    """A state dict is loaded, saved or returned; `current` is its owner's version by now."""

    state: StateDict
    how: str  # "load", "save", "return"
    current: int


@record(frozen=True, slots=True, eq=False)
class WeightsLoaded(Event):
    """load_state_dict on a module or optimizer."""

    target: Obj
    value: Value | None
    strict: bool | None
    result_used: bool


@record(frozen=True, slots=True, eq=False)
class Saved(Event):
    """Something is written: torch.save, save_checkpoint, save_pretrained. contents: objects inside by key."""

    how: str
    value: Value | None
    contents: tuple[tuple[str, Value], ...]
    path_value: Value | None
    arguments: Arguments


@record(frozen=True, slots=True, eq=False)
class Loaded(Event):
    """torch.load and kin."""

    how: str
    arguments: Arguments


@record(frozen=True, slots=True, eq=False)
class RequiresGrad(Event):
    """requires_grad of parameters is switched. value None: unknown."""

    roots: frozenset[int]
    value: bool | None


# --------------------------------------------------------------------------- things built


@record(frozen=True, slots=True, eq=False)
class ModuleBuilt(Event):
    """A module is constructed; `scene.forward` tells whether inside a forward."""

    module: Obj
    cached: bool = False  # under `if self.x is None`


@record(frozen=True, slots=True, eq=False)
class PartSet(Event):
    """An attribute of a module is set to a module or parameter (or a plain container of them).

    how: "attribute", "add_module", "append", "item", "container". replaced: what it held before.
    """

    module: Obj
    name: str
    value: Value
    how: str
    replaced: Value | None


@record(frozen=True, slots=True, eq=False)
class OptimizerBuilt(Event):
    """owns: roots whose parameters it got (None: unknown). parts: ids of all modules it reached then."""

    optimizer: Obj
    owns: frozenset[int] | None
    parts: frozenset[int] | None
    replaced: bool  # the same construction ran before
    filtered: bool = False


@record(frozen=True, slots=True, eq=False)
class SchedulerBuilt(Event):
    scheduler: Obj
    optimizer: Obj | None


@record(frozen=True, slots=True, eq=False)
class SchedulerStep(Event):
    """metric: how the first argument is written, when it is a name."""

    scheduler: Obj
    arguments: Arguments
    optimizer_stepped: frozenset[bool]
    metric: str = ""


@record(frozen=True, slots=True, eq=False)
class Sharding:
    """Why ranks (or workers) see different data: by what, and where."""

    by: str
    place: Place | None


@record(frozen=True, slots=True, eq=False)
class LoaderBuilt(Event):
    """sharding: None when nothing shards and all arguments are visible; `.by` is "unknown" when not.

    dataset, sampler: values. shuffle, workers, drop_last: known constants or None.
    """

    loader: Obj
    dataset: Value | None
    sampler: Value | None
    sharding: Sharding | None
    shuffle: bool | None
    workers: int | None
    drop_last: bool | None


@record(frozen=True, slots=True, eq=False)
class SamplerEpochSet(Event):
    sampler: Obj | None
    loader: Obj | None


@record(frozen=True, slots=True, eq=False)
class ProcessGroup(Event):
    """Several processes run this script. how: qualified name of what says so."""

    how: str
    owner: Obj | None = None


@record(frozen=True, slots=True, eq=False)
class Wrapped(Event):
    """A module is wrapped. how: "ddp", "fsdp", "compile", "dataparallel", "prepared", "engine", "ema"."""

    module: Obj | None
    how: str
    arguments: Arguments


@record(frozen=True, slots=True, eq=False)
class Prepared(Event):
    """Accelerate's prepare, Fabric's setup, deepspeed.initialize: these objects belong to `owner` now.

    open: more went in, of which nothing is known. lost: what comes back is thrown away.
    """

    owner: Obj
    objects: tuple[Obj, ...]
    open: bool = False
    lost: bool = False


@record(frozen=True, slots=True, eq=False)
class Collective(Event):
    """Every rank must reach this. name: qualified name or "ddp forward"; group: given one.

    sources: loaders that what it is given comes from. followed: what it makes of that is known from here on.
    """

    name: str
    group: Value | None
    sources: frozenset[int] = frozenset()
    followed: bool = False


@record(frozen=True, slots=True, eq=False)
class NoSync(Event):
    """A no_sync or accumulate scope is entered (or could be)."""

    how: str
    owner: Obj | None
    module: Obj | None


@record(frozen=True, slots=True, eq=False)
class Configured(Event):
    """A framework hook returned its configuration (configure_optimizers, compute_metrics, ...)."""

    hook: str
    owner: Obj
    value: Value


# --------------------------------------------------------------------------- control


@record(frozen=True, slots=True, eq=False)
class LoopEntered(Event):
    """A loop starts; `scene.loops` are the loops around it."""

    loop_place: Place
    over: Value
    kind: str


@record(frozen=True, slots=True, eq=False)
class LoopBounded(Event):
    """The innermost loop goes on while a count is below `bound`, or is left when it gets there."""

    bound: Value


@record(frozen=True, slots=True, eq=False)
class LoopLeft(Event):
    """The loop in which `scene.loops` ends is left by `break` or `return`."""


@record(frozen=True, slots=True, eq=False)
class FunctionEntered(Event):
    """A function of the project is run."""

    name: str
    defined: Place


@record(frozen=True, slots=True, eq=False)
class CutShort(Event):
    """The fuel ran out: a callee, called at `place`, was given up, or the rest of the entry when `is_entry`.

    What comes of the values that were made in there is not known.
    """

    is_entry: bool = False


@record(frozen=True, slots=True, eq=False)
class ApiCall(Event):
    """Any call of a resolved library function or constructor that is no pure tensor operation.

    name: qualified as imported ("torch.cuda.amp.autocast", "numpy.random.seed", "os.environ[...]=").
    used: the result is used.
    """

    name: str
    arguments: Arguments
    receiver: Obj | None = None
    in_test: bool = False


@record(frozen=True, slots=True, eq=False)
class Escaped(Event):
    """An object went into a call that we cannot see; it may be changed there."""

    value: Obj
    callee: str


@record(frozen=True, slots=True, eq=False)
class EngineBypassed(Event):
    """`loss.backward()` or `optimizer.step()` on what an engine owns. what: "backward", "step", ..."""

    what: str
    engine: Obj


@record(frozen=True, slots=True, eq=False)
class ManualUnderAutomatic(Event):
    """backward, step or zero_grad inside a hook whose framework does them itself."""

    what: str
