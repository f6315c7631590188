"""What an expression can be for the rules driver.

Values are immutable. Identity lives in `Obj.id`; everything that changes (contents, attributes, modes,
gradients, versions, whether a graph was freed) is a fact in the state. Every value carries `evidence`,
the chain of places and facts that made it what it is, newest first; a finding shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from torchwise_analysis.findings import Evidence, Place
from torchwise_analysis.interp.abstract.loops import LoopPath
from torchwise_analysis.quick import record, replace
from torchwise_analysis.source import nodes

# --------------------------------------------------------------------------- evidence


@record(frozen=True, slots=True, eq=False)
class Link:
    """At `place` this `fact` held, resting on `before`. `belief`: known by a convention or a name only."""

    place: Place
    fact: str
    before: Link | None = None
    belief: bool = False


def chain(link: Link | None, limit: int = 6) -> tuple[Evidence, ...]:
    """The links as evidence of a finding, oldest first, at most `limit`."""
    out: list[Evidence] = []
    while link is not None and len(out) < limit:
        out.append(Evidence(link.place, link.fact))
        link = link.before
    return tuple(reversed(out))


def beliefs(link: Link | None) -> int:
    """How many links of the chain rest on a convention or a name (for grading)."""
    count = 0
    while link is not None:
        count += link.belief
        link = link.before
    return count


# --------------------------------------------------------------------------- source

Definition = TypeVar("Definition", nodes.FunctionDef, nodes.ClassDef, "nodes.FunctionDef | nodes.Lambda")


@dataclass(slots=True, eq=False)
class Code(Generic[Definition]):
    """The source of a function or class; `line` places the node's spans.

    The one thing that an edit of a body changes: everything that was made before keeps the code, so
    `version` (counted up by edits) tells whether a result that read it still holds.

    latest: the highest version so far. earlier: the last ones before, with their nodes and lines: an edit
    that leads back to one makes it the present one.
    """

    node: Definition
    line: int
    version: int = 0
    latest: int = 0
    earlier: tuple[tuple[Definition, int, int], ...] = ()


# --------------------------------------------------------------------------- values


@record(frozen=True, slots=True, eq=False)
class Value:
    """Anything an expression can be. Compared by identity; `join.same` compares by meaning."""

    evidence: Link | None


@record(frozen=True, slots=True, eq=False)
class Counter:
    """Why a constant moves with a loop: its witness run counts it.

    `modulus` is the divisor when the constant is `counter % divisor`: an int, or the symbol of an
    unknown one; `folded` says that a witness (2) stands for the real divisor. `last`: whether the turn is
    taken for the last one, of a loop whose index this is (None: it is no index). `more`: so it is, and
    stands for turns that are not run.
    """

    modulus: int | str | None = None
    folded: bool = False
    last: bool | None = None
    more: bool = False


@record(frozen=True, slots=True, eq=False)
class Const(Value):
    """A known number, string, bool, None, bytes or tuple of such."""

    value: object
    counter: Counter | None = None


@record(frozen=True, slots=True, eq=False)
class Unknown(Value):
    """A number, string or anything else of which only the identity may be known.

    `symbol` names it: equal symbols of one run are equal values. `offset` is a known distance from it
    (`k - 1`); `negated` turns the truth round. `taint` says what it was computed from (`"rank"`,
    `"random"`, `"time"`). `varies`: may differ in each iteration, so no world may fix it.
    """

    symbol: str | None = None
    offset: int = 0
    negated: bool = False
    taint: frozenset[str] = frozenset()
    varies: bool = False


class Activation(NamedTuple):
    """The last bounded or linear operation: softmax, log_softmax, sigmoid, log_sigmoid, linear, ..."""

    name: str
    place: Place
    dim: int | None = None
    in_sequence: bool = False  # a layer of a Sequential: `place` is where the layer is built


class Factor(NamedTuple):
    """A value that is no tensor multiplied (`*`) or divided (`/`) the tensor; number or symbol, if known."""

    op: str
    number: float | None
    symbol: str | None
    place: Place


class Token(NamedTuple):
    """A store that outlives its iteration; a backward over the stored value consumes it."""

    place: Place
    how: str


class Cut(NamedTuple):
    """Where a tensor lost its graph, how, and the passes it lost."""

    place: Place
    how: str
    passes: frozenset[int]


UNRECORDED = "no_grad"  # how a cut came about: the forward ran without autograd
NUMBER = (
    "number:"  # taint of a number that was read off a tensor with a graph, with the place; see `Machine.cuts`
)
REQUIRED = "requires grad"  # taint of a tensor without a graph that was told to require gradients
OWN_SEED = "own seed"  # trait of a DistributedSampler whose order is another one on every rank
LEAF = "leaf"  # taint of data that was told to require gradients, and of what is computed from it
MEASURED = "gradients:"  # taint of what was read off gradients, with the order of the reading `Clip`
LOSS_SCALE = "loss scale"  # taint of the factor of a GradScaler
OF_GRADIENTS = "of gradients"  # taint of truths about gradients
PART = "part:"  # taint of a part of what an unseen call gave, with its pass and its number or name


UNREAD = "unread"  # trait of a path with a part that is not known

OF_BATCH = "of batch"  # taint of the sizes of what comes from a loader or through a model
BY_SIZE = "by size"  # taint of a sum that was divided by the number of samples of its batch
SKIPPED = "skipped"  # taint of what a function gave that was not run: a tensor, as far as is known
OF_PARAMETERS = "of parameters"  # taint of what an unseen call made of the parameters of a module
CONFIGURED = "[configured]"  # attribute of a LightningModule: what its `configure_optimizers` returned


@record(frozen=True, slots=True, eq=False)
class Tensor(Value):
    """A tensor. `passes` are the forward passes whose graph it carries (empty: carries none).

    activation: last activation, kept by reshaping, indexing and `cat`, dropped by arithmetic.
    reduction: "mean", "sum" or "none" when a loss or reduction made it.
    factors: what it was scaled by. scaled: multiplied by a GradScaler.
    tokens: where it was kept. cut: where it lost a graph it had.
    sources: ids of the loaders (or data arguments) it was computed from.
    shape: dims as int, symbol or None; None when even the rank is unknown.
    device: "cpu", "cuda" or a symbol; dtype: torch's name of it.
    dead: where terms of this sum lost the graphs that its other terms still have.
    """

    passes: frozenset[int] = frozenset()
    tokens: frozenset[Token] = frozenset()
    activation: Activation | None = None
    reduction: str | None = None
    factors: frozenset[Factor] = frozenset()
    scaled: bool = False
    cut: Cut | None = None
    sources: frozenset[int] = frozenset()
    shape: tuple[int | str | None, ...] | None = None
    device: str | None = None
    dtype: str | None = None
    taint: frozenset[str] = frozenset()
    dead: frozenset[Cut] = frozenset()

    @property
    def divided(self) -> bool:
        """Scaled down (or by an unknown) by something that is not a tensor."""
        return any(f.op == "/" or f.number is None or 0 < abs(f.number) < 1 for f in self.factors)


class Kind(Enum):
    """What an object is, as far as meaning goes."""

    MODULE = "module"
    PARAMETER = "parameter"
    CRITERION = "loss"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    SCALER = "gradient scaler"
    LOADER = "data loader"
    DATASET = "data set"
    SAMPLER = "sampler"
    ACCELERATOR = "accelerator"
    FABRIC = "fabric"
    ENGINE = "engine"
    TRAINER = "trainer"
    LIST = "list"
    TUPLE = "tuple"
    SET = "set"
    DICT = "dict"
    ITERATOR = "iterator"  # range, enumerate, zip, map, generator: see `Obj.over`
    INSTANCE = "instance"  # of a class of the project that is none of the above
    OPAQUE = "object"

    __hash__ = object.__hash__  # kinds are looked up by the million, and that of Enum is no C


class Origin(Enum):
    """How we know what an object is; everything below `BUILT` is a belief and lowers confidence."""

    BUILT = "constructed in view"
    ANNOTATED = "by annotation"
    USED = "by use"
    NAMED = "by name"
    PART = "part of another object"
    UNSEEN = "unknown"


@record(frozen=True, slots=True, eq=False)
class Arguments:
    """Arguments of a call, evaluated. `open`: unknown `*args` or `**kwargs` may add more."""

    positional: tuple[Value, ...] = ()
    keywords: tuple[tuple[str, Value], ...] = ()
    open: bool = False

    def get(self, name: str, position: int | None = None) -> Value | None:
        """The argument given by keyword or at a position; None when not given."""
        for key, value in self.keywords:
            if key == name:
                return value
        if position is not None and position < len(self.positional):
            return self.positional[position]
        return None

    def __iter__(self) -> Iterator[Value]:
        if not self.keywords:
            return iter(self.positional)
        return iter((*self.positional, *(value for _, value in self.keywords)))


NO_ARGUMENTS = Arguments()


@record(frozen=True, slots=True, eq=False)
class Obj(Value):
    """A thing with identity. One object per construction place and call path: rebuilding replaces it.

    type_name: qualified library class ("torch.nn.Linear") or the project's class name.
    cls: the class when it is written in the project. name: for messages.
    place: where it was made, if seen. birth: loops around its making.
    arguments: what a library constructor was given. symbol: identity of an unknown thing.
    over: what an ITERATOR walks over. traits: facts fixed at the making ("iterable", "bounded", ...).
    """

    id: int
    kind: Kind
    type_name: str = ""
    cls: Class | None = None
    name: str = ""
    place: Place | None = None
    birth: LoopPath = ()
    arguments: Arguments = NO_ARGUMENTS
    origin: Origin = Origin.BUILT
    symbol: str | None = None
    over: tuple[Value, ...] = ()
    traits: frozenset[str] = frozenset()


@dataclass(slots=True)
class SourceReads:
    """The sources that were read through functions and classes, while somebody wants to know: such an answer
    rests on more than the trace."""

    codes: set[Code[Any]] | None = None


SOURCE_READS = SourceReads()


@record(frozen=True, slots=True, eq=False)
class Function(Value):
    """A function of the project with the scopes it closes over, perhaps bound or wrapped.

    `frames` are the enclosing scopes, innermost first. `wraps`: dynamic scopes a decorator puts around the
    call. `partial`: arguments given in advance. Who reads more of `node` than its header notes the code
    in `Machine.read`.
    """

    code: Code[nodes.FunctionDef | nodes.Lambda]
    path: str
    frames: tuple[int, ...]
    defaults: tuple[Value | None, ...] = ()
    self: Value | None = None
    owner: Class | None = None
    wraps: tuple[Context, ...] = ()
    partial: Arguments | None = None
    marks: frozenset[str] = frozenset()  # property, staticmethod, classmethod, contextmanager, abstract

    @property
    def node(self) -> nodes.FunctionDef | nodes.Lambda:
        if SOURCE_READS.codes is not None:
            SOURCE_READS.codes.add(self.code)
        return self.code.node

    @property
    def line(self) -> int:
        return self.code.line

    @property
    def name(self) -> str:
        return self.code.node.name if isinstance(self.code.node, nodes.FunctionDef) else "<lambda>"

    @property
    def key(self) -> tuple[str, int, int, str]:
        """Identity in a run: path, line, column, name. In the analysed file the line is that of its block."""
        node = self.code.node
        return (self.path, node.span.line + self.code.line, node.span.column, self.name)


@record(frozen=True, slots=True, eq=False)
class Class(Value):
    """A class of the project. `ancestors` in method resolution order; `library_bases` are qualified names.

    Members (functions and class attributes) are state facts under `id`. Who reads bodies of functions off
    `node` notes the code in `Machine.read`.
    """

    id: int
    name: str
    path: str
    code: Code[nodes.ClassDef]
    ancestors: tuple[Class, ...] = ()
    library_bases: tuple[str, ...] = ()
    open_bases: bool = False  # some base is unknown

    @property
    def node(self) -> nodes.ClassDef:
        if SOURCE_READS.codes is not None:
            SOURCE_READS.codes.add(self.code)
        return self.code.node

    @property
    def line(self) -> int:
        return self.code.line

    @property
    def mro(self) -> tuple[Class, ...]:
        """Itself and its ancestors."""
        return (self, *self.ancestors)

    def derives(self, *names: str) -> bool:
        """Does it derive from a library class of one of these qualified names or last parts?"""
        return any(base == n or base.endswith("." + n) for base in self.library_bases for n in names)


@record(frozen=True, slots=True, eq=False)
class Library(Value):
    """A dotted name outside the project: a package, function, class or constant."""

    path: str

    @property
    def last(self) -> str:
        return self.path.rpartition(".")[2]


@record(frozen=True, slots=True, eq=False)
class ProjectModule(Value):
    """A module of the project, by path; `frame` holds its names."""

    path: str
    frame: int


@record(frozen=True, slots=True, eq=False)
class Deferred(Value):
    """A name that this statement of the file `path` binds; the statement runs when the name is first used.

    frame: the module's; line: where the statement's spans count from. name: what an import asks for.
    """

    path: str
    frame: int
    line: int
    node: nodes.Stmt
    name: str


@record(frozen=True, slots=True, eq=False)
class Method(Value):
    """A method taken off a value and not yet called."""

    receiver: Value
    name: str


@record(frozen=True, slots=True, eq=False)
class Super(Value):
    """`super()` inside a method of `owner`."""

    self: Value
    owner: Class


@record(frozen=True, slots=True, eq=False)
class StateDict(Value):
    """The tensors of `module` (or optimizer) as of `version`; an alias unless `copied`."""

    owner: Obj
    version: int
    place: Place
    copied: bool = False


@record(frozen=True, slots=True, eq=False)
class Parameters(Value):
    """Parameters of these objects (ids of modules or single parameters). `filtered`: maybe only some."""

    roots: frozenset[int]
    filtered: bool = False
    single: bool = False  # one of them, as in a loop over parameters()
    gradients: bool = False  # their `.grad`


class Mode(NamedTuple):
    """How a module runs: "train", "eval", "new" (as constructed: training), "pretrained" (eval by
    from_pretrained) or "unknown"; `place` set it, in the frame `frame`."""

    name: str
    place: Place | None = None
    frame: int = 0


Modes: TypeAlias = "frozenset[Mode]"


@record(frozen=True, slots=True, eq=False)
class ModeValue(Value):
    """`module.training`."""

    module: Obj
    modes: Modes
    negated: bool = False


@record(frozen=True, slots=True, eq=False)
class Context(Value):
    """Something to enter: what it does lexically.

    what: "grad" (flags), "inference", "autocast" (dtype, enabled), "accumulate" (owner), "no_sync"
    (owner), "anomaly", "compiled" (where), "profile", "generator" (call), "exit" (nothing).
    """

    what: str
    flags: frozenset[bool] = frozenset()
    owner: Obj | None = None
    arguments: Arguments = NO_ARGUMENTS
    function: Function | None = None
    name: str = ""


@record(frozen=True, slots=True, eq=False)
class Union(Value):
    """One of a few values, after a join; never nested, at most `join.WIDTH`."""

    values: tuple[Value, ...]


NONE = Const(None, None)
UNKNOWN = Unknown(None)


_LONGEST_SYMBOL = 400


def unknown(
    symbol: str | None = None,
    offset: int = 0,
    negated: bool = False,
    taint: frozenset[str] = frozenset(),
    varies: bool = False,
) -> Unknown:
    """An unknown by its identity; one whose term is long has none: `x = x * x` a hundred times doubles it."""
    if symbol is not None and len(symbol) > _LONGEST_SYMBOL:
        symbol = None
    return Unknown(None, symbol, offset, negated, taint, varies)


def alternatives(value: Value) -> tuple[Value, ...]:
    """The members of a union, or the value alone."""
    return value.values if type(value) is Union else (value,)


def with_evidence(value: Value, place: Place, fact: str, belief: bool = False) -> Value:
    """The same value with one more link."""
    return replace(value, evidence=Link(place, fact, value.evidence, belief))


@record(frozen=True, slots=True)
class Atom:
    """One thing the gradients of an optimizer can be.

    applied: a step has already used what they hold. sites: backwards since the last clear, each with 1
    or 2 (many) runs. scaled: still multiplied by a GradScaler. lost: backwards that a clear wiped
    before any step. divided: their `.grad` was changed by hand, or, when it was `replaced`, given new values.
    """

    applied: bool = False
    sites: frozenset[tuple[Place, int]] = frozenset()
    scaled: bool = False
    lost: frozenset[Place] = frozenset()
    divided: bool = False
    replaced: bool = False


CLEAN: frozenset[Atom] = frozenset([Atom()])

Gradients: TypeAlias = "frozenset[Atom]"
