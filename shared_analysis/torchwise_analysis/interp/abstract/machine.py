"""The abstract machine: state, scenes, objects, and what training code does to them.

Expressions, statements, calls and library meanings are functions over a `Machine`, in their own
modules; here is what they share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.frames import OUTSIDE, Frame, Scopes, World
from torchwise_analysis.interp.abstract.join import join
from torchwise_analysis.interp.abstract.limits import DeadPathError, Limits, OutOfFuelError, StoppedError
from torchwise_analysis.interp.abstract.loops import Caller, Loop, LoopKind, LoopPath, inside
from torchwise_analysis.interp.abstract.places import Ground, Spot
from torchwise_analysis.interp.abstract.relevance import Relevance
from torchwise_analysis.interp.abstract.state import Facts, State
from torchwise_analysis.interp.abstract.static import BodyFacts, LoopFacts, StaticCache, outer_facts
from torchwise_analysis.interp.abstract.trace import Pass, Silence
from torchwise_analysis.names.project import Project
from torchwise_analysis.quick import replace
from torchwise_analysis.source import nodes as nd

# How often a forward was run, the form of its result, the modules that ran within, those without autograd.
ForwardRuns: TypeAlias = "tuple[int, Any, frozenset[int], frozenset[int]]"

R = TypeVar("R")
E = TypeVar("E", bound=ev.Event)

RECORDING = frozenset([True])
NOT_RECORDING = frozenset([False])

_NOWHERE = Place("", nd.Span(0, 0, 0, 0))
_NO_ENTRY = ev.Entry("module", "<module>", _NOWHERE)


class Hook(NamedTuple):
    """A method that a framework calls: under which grad mode, whether it trains by itself."""

    framework: str
    name: str
    grad: frozenset[bool] | None = None
    automatic: bool = False
    returns_loss: bool = False


class Meanings(Protocol):
    """What libraries mean; `semantics.dispatch` is it."""

    def builtin(self, m: Machine, name: str, node: nd.Node) -> va.Value: ...

    def call(self, m: Machine, name: str, arguments: va.Arguments, node: nd.Node) -> va.Value: ...

    def method(
        self, m: Machine, receiver: va.Value, name: str, arguments: va.Arguments, node: nd.Node
    ) -> va.Value: ...

    def call_object(self, m: Machine, obj: va.Obj, arguments: va.Arguments, node: nd.Node) -> va.Value: ...

    def attribute(self, m: Machine, receiver: va.Value, name: str, node: nd.Node) -> va.Value | None: ...

    def set_attribute(
        self, m: Machine, receiver: va.Value, name: str, value: va.Value, node: nd.Node
    ) -> bool: ...

    def kept_attribute(
        self, m: Machine, receiver: va.Obj, name: str, value: va.Value, node: nd.Node
    ) -> None: ...

    def set_item(
        self, m: Machine, receiver: va.Value, index: va.Value, value: va.Value, node: nd.Node
    ) -> bool: ...

    def sliced(self, m: Machine, receiver: va.Obj, node: nd.Node) -> va.Obj | None: ...

    def some_member(self, library: va.Library) -> va.Value: ...

    def returned(
        self, m: Machine, receiver: va.Obj, name: str, value: va.Value, node: nd.Node
    ) -> va.Value: ...

    def tested(self, m: Machine, value: va.Value, node: nd.Node) -> None: ...

    def host_sync(self, m: Machine, value: va.Tensor, node: nd.Node, how: str) -> None: ...

    def weighed(self, m: Machine, values: tuple[va.Value, ...], node: nd.Node) -> None: ...

    def measured(self, m: Machine, value: va.Parameters, node: nd.Node, op: str) -> va.Tensor: ...

    def compared(self, m: Machine, value: va.Tensor, node: nd.Node) -> va.Value: ...

    def instance(self, m: Machine, cls: va.Class, node: nd.Node | None) -> va.Obj: ...

    def decorate(self, m: Machine, path: str, function: va.Function) -> va.Function: ...

    def enter(self, m: Machine, context: va.Value, node: nd.Node) -> va.Value | None: ...

    def hook(self, m: Machine, obj: va.Obj, name: str) -> Hook | None: ...

    def hook_returned(
        self, m: Machine, hook: Hook, obj: va.Obj, function: va.Function, value: va.Value
    ) -> None: ...


Evaluate = Callable[["Machine", Any], va.Value]
Execute = Callable[["Machine", Any], None]


class Counts:
    """Honest silence, while it is counted."""

    __slots__ = (
        "cut",
        "dead_paths",
        "failed",
        "lost",
        "not_analysed",
        "skipped",
        "unknown_backwards",
        "unknown_calls",
        "where",
    )

    def __init__(self) -> None:
        self.where: dict[tuple[str, str, str], int] = {}  # by file, function and what
        self.dead_paths = self.skipped = self.cut = self.unknown_backwards = self.unknown_calls = (
            self.lost
        ) = 0
        self.failed: list[str] = []
        self.not_analysed: list[tuple[Place, str]] = []

    def add(self, other: Counts) -> None:
        """Count what was counted elsewhere too."""
        self.dead_paths += other.dead_paths
        self.skipped += other.skipped
        self.cut += other.cut
        self.unknown_backwards += other.unknown_backwards
        self.unknown_calls += other.unknown_calls
        self.lost += other.lost
        for key, number in other.where.items():
            self.where[key] = self.where.get(key, 0) + number
        self.failed += other.failed
        self.not_analysed += other.not_analysed

    def silence(self, visits: int, fuel_spent: bool) -> Silence:
        return Silence(
            self.dead_paths,
            self.skipped,
            self.cut,
            self.unknown_backwards,
            self.unknown_calls,
            self.lost,
            visits,
            fuel_spent,
            tuple(dict.fromkeys(self.failed)),
            tuple(dict.fromkeys(self.not_analysed)),
            tuple((*key, number) for key, number in sorted(self.where.items())),
        )


# What a machine knows besides the state; copied when a run starts where another one ended.
_TABLES = (
    "passes",
    "objects",
    "parents",
    "parts",
    "modal",
    "versioned",
    "optimizers",
    "owns",
    "consumed",
    "backed",
    "escaped_passes",
    "escaped_tokens",
    "escaped",
    "wrapped",
    "in_place",
    "engines",
    "prepared",
    "hooks",
    "accumulations",
    "arguments",
    "forward_cache",
    "modules",
    "fresh",
    "_loops",
    "_constructed",
)

# Ids and orders of events of one run; runs of a file are numbered. A prime: with a power of two, things made
# at the same point of two runs would meet in dictionaries.
RUN_LENGTH = 16_777_619
# How far up an object is followed from part to whole.
_MOST_WHOLES = 15
# Ids of parts of shared things begin here, above those of any run.
SHARED_IDS = 1 << 60


@dataclass(slots=True, eq=False)
class Base:
    """Where a run starts: the state and the tables that an earlier one left. What they mean never changes."""

    facts: Facts
    tables: dict[str, Any]
    last_id: int
    scope: tuple[int, ...]  # of the module
    # by class: the body it had, and the methods found in it with their names
    methods: dict[int, tuple[nd.Block, list[tuple[va.Function, str]]]] = field(
        default_factory=dict[int, tuple[nd.Block, list[tuple[va.Function, str]]]]
    )
    _for_functions: Base | None = None

    @staticmethod
    def of(m: Machine) -> Base:
        """Behind what a machine ran."""
        tables = {name: getattr(m, name).copy() for name in _TABLES}
        return Base(dict(m.state.facts), tables, m.last_id, m.frames[0].scope)

    def for_functions(self) -> Base:
        """Without the optimizers that no module variable or attribute holds: a function cannot step them."""
        if self._for_functions is None:
            held = self._held() if self.tables["optimizers"] else frozenset[int]()
            optimizers = [o for o in self.tables["optimizers"] if o.id in held]
            tables = {**self.tables, "optimizers": optimizers}
            self._for_functions = Base(self.facts, tables, self.last_id, self.scope, self.methods)
        return self._for_functions

    def put_table(self, name: str, table: Any) -> None:
        """Another table that means the same."""
        self.tables[name] = table
        if self._for_functions is not None:
            self._for_functions.tables[name] = table

    def _held(self) -> frozenset[int]:
        frames = {self.scope[0], *self.tables["modules"].values()}
        return frozenset(
            member.id
            for key, fact in self.facts.items()
            if key[0] in ("a", "c", "d") or (key[0] == "v" and key[1] in frames)
            for value in _values_in(fact)
            for member in va.alternatives(value)
            if isinstance(member, va.Obj)
        )


def _values_in(fact: object) -> list[va.Value]:
    """What an attribute, a variable or the contents of a container hold."""
    if isinstance(fact, dict):
        fact = tuple(cast("dict[object, object]", fact).values())
    held = cast("tuple[object, ...]", fact) if isinstance(fact, tuple) else (fact,)
    return [value for value in held if isinstance(value, va.Value)]


class Machine:
    """One run: of the module's code, of a function or class that nobody calls. Thrown away after.

    `number` tells the runs of one file apart: ids and orders of events follow from it alone, so what one
    run does never depends on how much another one did.
    """

    def __init__(
        self,
        path: str,
        project: Project,
        limits: Limits,
        stop: Callable[[], bool],
        expressions: dict[type, Evaluate],
        statements: dict[type, Execute],
        relevance: Relevance,
        library: Meanings,
        static: StaticCache,
        ground: Ground,
        number: int = 0,
        base: Base | None = None,
    ) -> None:
        self.static = static
        self.ground = ground
        self.number = number
        self.codes: dict[tuple[int, int], va.Code[Any]] | None = None
        self.read: dict[va.Code[Any], int] = {}
        self.asked: dict[tuple[frozenset[str], int], bool] = {}
        self.loaded: dict[str, nd.Module | None] = {}
        self.events_left = limits.events
        self.entering = 0  # files whose definitions are running
        self.resolving: list[va.Deferred] = []
        self.goes_on = False  # statements behind may run apart: no flag and no guard holds on
        self.is_over = False  # every path ended
        self.guards_left: tuple[ev.Guard, ...] = ()  # by the block that ended last
        self.library = library
        self.tested: list[Any] = []
        self.path, self.project, self.limits, self.stop = path, project, limits, stop
        self.file = path
        self.expressions, self.statements, self.relevance = expressions, statements, relevance
        self.state, self.alive = State(), True
        self.line = 0
        self.frames: list[Frame] = []
        self.loops: LoopPath = ()
        self.calls: tuple[Caller, ...] = ()
        self.choices: tuple[int, ...] = ()  # which of several callees runs, of calls that have some
        self.guards: tuple[ev.Guard, ...] = ()
        self.world: World = ()
        self.scopes: Scopes = OUTSIDE
        self.forward: tuple[va.Obj, int] | None = None
        self.entry = _NO_ENTRY
        self.automatic: va.Obj | None = None
        self.visits, self.cap, self.nesting = 0, limits.visits, 0
        self.events: list[ev.Event] = []
        self.passes: dict[int, Pass] = {}
        self.objects: dict[int, va.Obj] = {}
        self.parents: dict[int, int] = {}
        self.parts: dict[int, tuple[int, ...]] = {}
        self.modal: dict[int, None] = {}
        self.versioned: dict[int, None] = {}
        self.optimizers: list[va.Obj] = []
        self.owns: dict[int, frozenset[int] | None] = {}
        self.consumed: set[va.Token] = set()
        self.backed: set[int] = set()
        self.escaped_passes: set[int] = set()
        self.escaped_tokens: set[va.Token] = set()
        self.escaped: set[int] = set()
        self.wrapped: dict[int, str] = {}
        self.in_place: dict[int, str] = {}
        self.engines: dict[int, va.Obj] = {}
        self.discarded: nd.Node | None = None
        self.summing = 0  # depth of the frame that adds up a number right now
        self.returned: Place | None = None
        self.fresh: dict[int, tuple[va.Tensor, LoopPath]] = {}  # tensors made in view, by id()
        self.given: dict[int, tuple[va.Tensor, str]] = {}  # arguments of the forward that is an entry
        self.cuts: dict[str, va.Cut] = {}  # where numbers were read off tensors, by their taints
        self.aborted: dict[tuple[str, int, int, str], int] = {}
        self.prepared: dict[int, va.Obj] = {}
        self.hooks: list[tuple[va.Obj, va.Value]] = []
        self.accumulations: dict[int, int] = {}
        self.reached: set[tuple[str, int, int, str]] = set()
        # statements of other files that were executed, by their first lines, and their keys in order
        self.passed: dict[str, dict[int, nd.Stmt]] = {}
        self.passed_in_order: list[tuple[str, int]] = []
        # callees that ran to their end at least once, and that once did not, by worlds
        self.finished: set[tuple[tuple[str, int, int, str], World]] = set()
        self.unfinished: set[tuple[tuple[str, int, int, str], World]] = set()
        self.arguments: dict[tuple[object, ...], va.Value] = {}
        self.forward_cache: dict[tuple[object, ...], dict[World, ForwardRuns]] = {}
        self.modules: dict[str, int] = {}
        self.counts = Counts()
        self.shared_ids = 0 if base is None else base.last_id
        self.last_id = number * RUN_LENGTH
        self._scene: ev.Scene | None = None
        self._placed: dict[tuple[int, int], tuple[nd.Node, Place]] = {}  # by id() of the node, and line
        self._loops: dict[tuple[str, int, int], Loop] = {}
        self._constructed: dict[tuple[object, ...], int] = {}
        if base is not None:
            self.state.facts = dict(base.facts)
            for name, table in base.tables.items():
                setattr(self, name, table.copy())
            self.frames.append(Frame(base.scope[0], base.scope, path, outer_facts(())))

    # ------------------------------------------------------------------ what a result rests on

    def code(self, node: Any) -> va.Code[Any]:
        """The code of a definition; that of a definition of the module is one object as long as it stands."""
        if self.codes is None or self.file != self.path:
            return va.Code(node, self.line)
        key = (id(node), self.line)
        found = self.codes.get(key)
        if found is None:
            found = self.codes[key] = va.Code(node, self.line)
        return found

    def note_read(self, code: va.Code[Any]) -> None:
        """This run reads the body of a function or class."""
        self.read[code] = code.version

    def matters(self, facts: BodyFacts) -> bool:
        """May a function of these facts matter to any rule?"""
        key = (facts.names, facts.size)
        found = self.asked.get(key)
        if found is None:
            found = self.asked[key] = self.relevance.matters(facts.names, facts.size)
        return found

    def count(self, what: str) -> None:
        """Something is lost in the function that runs; `what` is a name of `Counts`."""
        counts = self.counts
        setattr(counts, what, getattr(counts, what) + 1)
        key = (self.file, self.frames[-1].name if self.frames else "<module>", what)
        counts.where[key] = counts.where.get(key, 0) + 1

    # ------------------------------------------------------------------ running

    def eval(self, node: nd.Expr) -> va.Value:
        """The value of an expression."""
        visits = self.visits = self.visits + 1
        if visits >= self.cap:
            raise OutOfFuelError
        if self.nesting > self.limits.nesting:
            self.count("cut")
            return va.UNKNOWN
        if not visits & 2047 and self.stop():
            raise StoppedError
        kind = type(node)
        if kind is nd.Name or kind is nd.Constant:  # two thirds of all, and nothing is nested in them
            return self.expressions[kind](self, node)
        self.nesting += 1
        try:
            return self.expressions[kind](self, node)
        finally:
            self.nesting -= 1

    def run_block(self, body: nd.Block) -> None:
        """Statements in order, until the path dies."""
        if self.nesting > self.limits.nesting:
            self.count("cut")
            return
        guards = self.guards
        self.nesting += 1
        is_elsewhere = self.file != self.path
        try:
            for statement in body:
                if not self.alive:
                    break
                self.visits += 1
                if self.visits >= self.cap:
                    raise OutOfFuelError
                if is_elsewhere:
                    self.pass_by(statement)
                self.statements[type(statement)](self, statement)
        except DeadPathError:
            self.count("dead_paths")
            self.alive = False
        finally:
            self.nesting -= 1
            self.guards_left, self.guards = self.guards, guards

    def pass_by(self, statement: nd.Stmt) -> None:
        """Note that a statement of another file is executed; a definition, when it is called."""
        if not isinstance(statement, _NOTED_INSIDE):
            self._pass(self.file, self.line + statement.span.line, statement)

    def pass_definition(self, definition: va.Function | va.Class) -> None:
        """Note that a function is called, or an instance of a class made."""
        node = definition.node
        if definition.path != self.path and not isinstance(node, nd.Lambda):
            self._pass(definition.path, definition.line + node.header.line, node)

    def _pass(self, path: str, line: int, statement: nd.Stmt) -> None:
        passed = self.passed.setdefault(path, {})
        if line not in passed:
            self.passed_in_order.append((path, line))
        passed[line] = statement

    def forget_passed(self, mark: int) -> None:
        """Take back what was executed since: what followed from it was not seen."""
        for path, line in self.passed_in_order[mark:]:
            del self.passed[path][line]
        del self.passed_in_order[mark:]

    def fork(self, branches: Iterable[Callable[[], R]], combine: Callable[[R, R], R]) -> R | None:
        """Run each branch on the present state, join the states and the results of those that live."""
        mark = self.state.mark()
        outcomes: list[Facts] = []
        result: R | None = None
        dead = None
        for branch in branches:
            try:
                value = branch()
            except DeadPathError as error:
                # its frames lead back here: with them, everything would wait for the collector
                dead, self.alive = error.with_traceback(None), False
                value = None
            if self.alive:
                outcomes.append(self.state.changes(mark))
                result = value if result is None else combine(result, cast("R", value))
            self.state.rollback(mark)
            self.alive = True
        if not outcomes:
            self.alive = False
            if dead is not None:
                raise dead
            return None
        self.state.merge(mark, outcomes, join)
        return result

    def with_scopes(self, scopes: Scopes, body: Callable[[], R]) -> R:
        before, self.scopes = self.scopes, scopes
        try:
            return body()
        finally:
            self.scopes = before

    def with_loops(self, loops: LoopPath, body: Callable[[], R]) -> R:
        before, self.loops = self.loops, loops
        try:
            return body()
        finally:
            self.loops = before

    # ------------------------------------------------------------------ places, scenes, events

    def place(self, node: nd.Node) -> Place:
        key = (id(node), self.line)
        known = self._placed.get(key)
        if known is not None and known[0] is node and known[1].path == self.file:
            return known[1]
        span = _header(node) if isinstance(node, _COMPOUND) else node.span
        place = self.located(span.shifted(self.line), self.file)
        self._placed[key] = node, place
        return place

    def located(self, span: nd.Span, path: str) -> Place:
        """A place by its lines as the interpreter counts them."""
        return Spot(path, span, self.ground) if path == self.path else Place(path, span)

    def link(self, node: nd.Node, fact: str, before: va.Link | None = None, belief: bool = False) -> va.Link:
        return va.Link(self.place(node), fact, before, belief)

    def scene(self) -> ev.Scene:
        old, frame = self._scene, self.frames[-1] if self.frames else None
        scopes = self.scopes
        forward = self.forward[1] if self.forward else None
        if (
            old is not None
            and old.loops is self.loops
            and old.calls is self.calls
            and old.guards is self.guards
            and old.entry is self.entry
            and old.forward == forward
            and old.frame == (frame.id if frame else 0)
            and old.world is self.world
            and old.autocast == scopes.autocast
            and old.no_sync is scopes.no_sync
            and old.anomaly == scopes.anomaly
            and old.compiled is scopes.compiled
        ):
            return old
        self._scene = ev.Scene(
            self.loops,
            self.calls,
            self.entry,
            self.world,
            self.guards,
            frame.id if frame else 0,
            frame.name if frame else "",
            forward,
            scopes.autocast,
            scopes.no_sync,
            scopes.anomaly,
            scopes.compiled,
        )
        return self._scene

    def emit(self, event_type: Callable[..., E], where: nd.Node | Place, **fields: object) -> E:
        """Record an event of this kind at a node or place."""
        place = where if isinstance(where, Place) else self.place(where)
        order = (self.number * RUN_LENGTH) + len(self.events)
        event = event_type(order, place, self.scene(), **fields)
        if len(self.events) >= self.events_left:
            raise OutOfFuelError
        self.events.append(event)
        return event

    def cut_short(self, place: Place, reason: str, is_entry: bool = False) -> None:
        """Count and record that something is not followed to its end, however many events there are."""
        self.counts.not_analysed.append((place, reason))
        order = (self.number * RUN_LENGTH) + len(self.events)
        self.events.append(ev.CutShort(order, place, self.scene(), is_entry))

    # ------------------------------------------------------------------ static facts, by node

    def body_facts(self, body: nd.Block) -> BodyFacts:
        return self.static.body(body)

    def loop_facts(self, node: nd.For | nd.While) -> LoopFacts:
        return self.static.loop(node)

    def loop(self, node: nd.Node, kind: LoopKind, over: str, count: int | None, source: int | None) -> Loop:
        """The loop of a node: one object however often it is entered, so identity tells loops apart."""
        key = (self.file, self.line, id(node))
        found = self._loops.get(key)
        if found is None or found.source != source:
            facts = self.loop_facts(node) if isinstance(node, (nd.For, nd.While)) else None
            if found is not None and found.source is not None:
                source = found.source
            if found is None or found.source != source:
                found = self._loops[key] = Loop(
                    self.place(node),
                    kind,
                    over,
                    count,
                    source,
                    bool(facts and facts.has_inner),
                    bool(facts and facts.window),
                    bool(facts and facts.repeats),
                    bool(facts and facts.draws),
                    facts.carried if facts else frozenset(),
                    facts.resets if facts else frozenset(),
                    bool(facts and facts.strides),
                    bool(facts and facts.uses_gradients),
                )
        return found

    def named_loop(self, key: tuple[str, int, int], loop: Loop) -> Loop:
        """The loop that stands for repeated calls under `key`: `loop` itself the first time."""
        return self._loops.setdefault(key, loop)

    # ------------------------------------------------------------------ objects

    def fresh_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def shared_id(self, owner: int, name: str) -> int | None:
        """The id of a part of something that other runs know too: the same in each of them.

        None when `owner` is of this run alone.
        """
        if self.shared_ids < owner < SHARED_IDS:
            return None
        digest = hashlib.blake2b(f"{owner}.{name}".encode("utf-8", "surrogatepass"), digest_size=7).digest()
        return SHARED_IDS + int.from_bytes(digest, "big")

    def make(self, kind: va.Kind, node: nd.Node | None, type_name: str = "", **fields: Any) -> va.Obj:
        """A new object made at a node (None: nobody saw its making)."""
        place = self.place(node) if node is not None else None
        evidence = fields.pop("evidence", None)
        if evidence is None and place is not None and type_name:
            evidence = va.Link(place, f"{type_name.rpartition('.')[2]} made here")
        obj = va.Obj(evidence, self.fresh_id(), kind, type_name, place=place, birth=self.loops, **fields)
        return self.register(obj)

    def register(self, obj: va.Obj) -> va.Obj:
        self.objects[obj.id] = obj
        if obj.kind is va.Kind.OPTIMIZER:
            self._register_optimizer(obj)
        elif obj.kind is va.Kind.MODULE:
            self.put_mode(obj.id, frozenset([va.Mode("new" if obj.place else "unknown")]))
        return obj

    def _register_optimizer(self, obj: va.Obj) -> None:
        # The same construction run again replaces the old object: otherwise a sweep that calls
        # `train()` in a loop collects stale optimizers that still receive gradients.
        if obj.place is not None:
            key = self._construction(obj.place)
            old = self._constructed.get(key)
            self.optimizers = [o for o in self.optimizers if o.id != old]
            self._constructed[key] = obj.id
        self.optimizers.append(obj)
        self.state.set(("grad", obj.id), va.CLEAN)

    def was_built(self, place: Place) -> bool:
        """Did the construction at this place run before on this call path?"""
        return self._construction(place) in self._constructed

    def _construction(self, place: Place) -> tuple[object, ...]:
        return place, tuple((c.place, c.function) for c in self.calls), self.choices

    def sequence(
        self, items: Iterable[va.Value], node: nd.Node | None, kind: va.Kind = va.Kind.LIST, **fields: Any
    ) -> va.Obj:
        obj = va.Obj(
            fields.pop("evidence", None),
            self.fresh_id(),
            kind,
            place=self.place(node) if node else None,
            birth=self.loops,
            **fields,
        )
        self.objects[obj.id] = obj
        self.state.set(("c", obj.id), tuple(items))
        return obj

    def mapping(self, entries: dict[object, va.Value], node: nd.Node | None, **fields: Any) -> va.Obj:
        obj = self.sequence((), node, va.Kind.DICT, **fields)
        self.state.set(("d", obj.id), entries)
        return obj

    def items(self, obj: va.Obj) -> tuple[va.Value, ...]:
        return cast("tuple[va.Value, ...]", self.state.facts.get(("c", obj.id), ()))

    def entries(self, obj: va.Obj) -> dict[object, va.Value]:
        """Contents by key; never changed in place."""
        return cast("dict[object, va.Value]", self.state.facts.get(("d", obj.id), _EMPTY))

    def exchange(self, old: va.Value, new: va.Value) -> None:
        """What `old` was has changed in place: whatever holds it holds `new`."""
        for key, held in list(self.state.facts.items()):
            if held is old:
                self.state.set(key, new)
            elif key[0] == "c" and isinstance(held, tuple):
                items = cast("tuple[va.Value, ...]", held)
                if any(item is old for item in items):
                    self.state.set(key, tuple(new if item is old else item for item in items))
            elif key[0] == "d" and isinstance(held, dict):
                entries = cast("dict[object, va.Value]", held)
                if any(item is old for item in entries.values()):
                    self.state.set(key, {k: new if item is old else item for k, item in entries.items()})

    def lineage(self, oid: int) -> list[int]:
        out, parents = [oid], self.parents
        while oid in parents and len(out) <= _MOST_WHOLES:
            oid = parents[oid]
            out.append(oid)
        return out

    def parts_of(self, oid: int) -> set[int]:
        """Those with the object in their lineage, without asking all others for theirs."""
        found: set[int] = set()
        level, parts, parents = {oid}, self.parts, self.parents
        if oid not in parts:
            return found
        for _ in range(_MOST_WHOLES):
            below = {part for whole in level for part in parts.get(whole, ()) if parents.get(part) == whole}
            level = below - found
            if not level:
                break
            found |= level
        return found

    def adopt(self, part: va.Obj, whole: va.Obj) -> None:
        """`part` belongs to `whole` from now on, unless that would make a circle."""
        if part.id not in self.parents and part.id not in self.lineage(whole.id):
            self.set_parent(part.id, whole.id)

    def _is_source(self, oid: int) -> bool:
        obj = self.objects.get(oid)
        return obj is not None and obj.kind in (va.Kind.LOADER, va.Kind.DATASET)

    def is_data(self, oid: int) -> bool:
        """Is it (a part of) what a loader or data set gives?"""
        return any(self._is_source(p) for p in self.lineage(oid))

    def set_parent(self, part: int, whole: int) -> None:
        self.parents[part] = whole
        self.parts[whole] = (*self.parts.get(whole, ()), part)

    def descendants(self, oid: int) -> list[int]:
        """The object and all its parts."""
        out, index = [oid], 0
        while index < len(out):
            out.extend(self.parts.get(out[index], ()))
            index += 1
        return out

    def related(self, a: int, b: int) -> bool:
        """Is one a part of the other, or the same?"""
        return a == b or a in self.lineage(b) or b in self.lineage(a)

    def attribute(self, obj: va.Obj, name: str) -> va.Value | None:
        return cast("va.Value | None", self.state.get(("a", obj.id, name)))

    def child(self, obj: va.Obj, name: str, kind: va.Kind | None = None) -> va.Value:
        """A part of an object that we did not see being made: the same thing at every access."""
        key = ("a", obj.id, name)
        found = self.state.get(key)
        if found is not None:
            return cast("va.Value", found)
        from torchwise_analysis.interp.abstract import beliefs

        origin = va.Origin.PART
        if kind is None:
            kind, origin = (
                (va.Kind.OPAQUE, va.Origin.PART) if name[:1] == "[" else beliefs.guess(name, frozenset())
            )
            if obj.kind is va.Kind.MODULE and kind is va.Kind.OPAQUE and name[:1] != "[":
                plain = name in ("device", "config", "dtype", "hparams", "cfg", "args", "logger", "trainer")
                kind = va.Kind.OPAQUE if plain else va.Kind.MODULE
        base = obj.symbol or obj.name or f"#{obj.id}"
        symbol = f"{base}{name}" if name[:1] == "[" else f"{base}.{name}"
        oid = self.shared_id(obj.id, name) or self.fresh_id()
        part = va.Obj(obj.evidence, oid, kind, name=name, birth=obj.birth, origin=origin, symbol=symbol)
        if kind is va.Kind.MODULE or kind is va.Kind.OPAQUE:
            self.set_parent(part.id, obj.id)
        self.objects[part.id] = part
        self.objects.setdefault(obj.id, obj)
        if kind is va.Kind.OPTIMIZER:
            self.optimizers.append(part)
            self.owns[part.id] = None
            self.state.set(("grad", part.id), va.CLEAN)
        self.state.set(key, part)
        return part

    # ------------------------------------------------------------------ tensors inside values

    def made(self, tensor: va.Tensor) -> va.Tensor:
        """Remember under which loops this very tensor was made."""
        self.fresh[id(tensor)] = (tensor, self.loops)
        return tensor

    def touch(self, value: va.Value, node: nd.Node) -> None:
        """A tensor is written in place."""
        for tensor in va.alternatives(value):
            if isinstance(tensor, va.Tensor) and id(tensor) in self.fresh:
                self.emit(ev.Touched, node, value=tensor)

    def tensors(self, value: va.Value | None, depth: int = 0) -> list[va.Tensor]:
        """All tensors in a value, containers looked into."""
        if isinstance(value, va.Tensor):
            return [value]
        out: list[va.Tensor] = []
        if not isinstance(value, _HOLDERS):
            return out
        if isinstance(value, va.Union):
            for member in value.values:
                if isinstance(member, _HOLDERS):
                    out += self.tensors(member, depth)
        elif isinstance(value, va.Obj) and depth < 3:
            for item in self.items(value):
                if isinstance(item, _HOLDERS):
                    out += self.tensors(item, depth + 1)
            for item in self.entries(value).values():
                if isinstance(item, _HOLDERS):
                    out += self.tensors(item, depth + 1)
            if value.kind is va.Kind.INSTANCE and "result" in value.traits:
                out += self._attribute_tensors(value, depth)
        return out

    def _attribute_tensors(self, value: va.Obj, depth: int) -> list[va.Tensor]:
        names = cast("tuple[str, ...]", self.state.get(("names", value.id), ()))
        return [t for n in names for t in self.tensors(self.attribute(value, n), depth + 1)]

    def all_tensors(self, values: Iterable[va.Value]) -> list[va.Tensor]:
        return [t for value in values if isinstance(value, _HOLDERS) for t in self.tensors(value)]

    def map_tensors(
        self, value: va.Value, change: Callable[[va.Tensor], va.Tensor], depth: int = 0
    ) -> va.Value:
        """The value with every tensor in it changed; contents of containers change in place."""
        if isinstance(value, va.Tensor):
            return change(value)
        if isinstance(value, va.Union):
            return va.Union(value.evidence, tuple(self.map_tensors(m, change, depth) for m in value.values))
        if isinstance(value, va.Obj) and depth < 3:
            items = self.items(value)
            if items:
                self.state.set(("c", value.id), tuple(self.map_tensors(i, change, depth + 1) for i in items))
            entries = self.entries(value)
            if entries:
                self.state.set(
                    ("d", value.id), {k: self.map_tensors(i, change, depth + 1) for k, i in entries.items()}
                )
            if value.kind is va.Kind.INSTANCE and "result" in value.traits:
                for name in cast("tuple[str, ...]", self.state.get(("names", value.id), ())):
                    held = self.attribute(value, name)
                    if held is not None and self.tensors(held, depth + 1):
                        self.state.set(("a", value.id, name), self.map_tensors(held, change, depth + 1))
        return value

    def passes_of(self, values: Iterable[va.Value]) -> frozenset[int]:
        return frozenset(p for t in self.all_tensors(values) for p in t.passes)

    def sources_of(self, values: Iterable[va.Value]) -> frozenset[int]:
        out: set[int] = set()
        for value in values:
            for member in va.alternatives(value):
                if isinstance(member, va.Obj) and member.kind is va.Kind.OPAQUE:
                    out.update(p for p in self.lineage(member.id) if self._is_source(p))
            out.update(s for t in self.tensors(value) for s in t.sources)
        return frozenset(out)

    def taint(self, *values: va.Value | None) -> frozenset[str]:
        out = _NO_TAINT
        for value in values:
            if isinstance(value, (va.Unknown, va.Tensor)):
                if value.taint:
                    out |= value.taint
            elif isinstance(value, va.Obj):
                if value.traits:
                    out |= value.traits & _TAINTS
                if value.kind is va.Kind.ITERATOR:
                    out |= self.taint(*value.over, *value.arguments)
            elif isinstance(value, va.Union):
                out |= self.taint(*value.values)
        return out

    # ------------------------------------------------------------------ grad mode, modes

    def recording(self) -> frozenset[bool]:
        """May autograd record here?"""
        if self.scopes.grad is not None:
            return self.scopes.grad
        return cast("frozenset[bool]", self.state.get(("autograd",), RECORDING))

    def mode(self, obj: va.Obj) -> va.Modes:
        for oid in self.lineage(obj.id):
            modes = self.state.get(("mode", oid))
            if modes is not None:
                return cast("va.Modes", modes)
        return frozenset([va.Mode("new" if obj.place else "unknown")])

    def mode_keys(self) -> list[int]:
        facts = self.state.facts
        return [oid for oid in self.modal if ("mode", oid) in facts]

    def set_mode(self, obj: va.Obj, modes: va.Modes) -> None:
        parts = self.parts_of(obj.id)
        for oid in self.mode_keys() if parts else ():
            if oid != obj.id and oid in parts:
                self.state.drop(("mode", oid))
        self.put_mode(obj.id, modes)

    def put_mode(self, oid: int, modes: va.Modes) -> None:
        self.modal[oid] = None
        self.state.set(("mode", oid), modes)

    def version_of(self, oid: int) -> int:
        """How often the weights changed; counted from the first question on."""
        self.versioned[oid] = None
        key = ("version", oid)
        if key not in self.state.facts:
            self.state.set(key, 0)
        return cast("int", self.state.get(key))

    def parts_in_eval(self, obj: va.Obj, unlike: frozenset[Place | None] = frozenset()) -> frozenset[int]:
        """Parts that stand in eval mode by themselves."""
        out: set[int] = set()
        for oid in self.parts_of(obj.id) - {obj.id}:
            modes = cast("va.Modes | None", self.state.get(("mode", oid)))
            if modes is not None and any(m.name == "eval" and m.place not in unlike for m in modes):
                out.add(oid)
        return frozenset(out)

    def is_frozen(self, obj: va.Obj) -> bool:
        """Does nothing in it require gradients? A part may have been frozen or left to learn by itself."""
        facts = (self.state.get(("frozen", oid)) for oid in self.lineage(obj.id))
        if next((fact for fact in facts if fact is not None), None) != RECORDING:
            return False
        parts = self.descendants(obj.id)
        return all(self.state.get(("frozen", part), RECORDING) == RECORDING for part in parts)

    def was_frozen(self, obj: va.Obj) -> bool:
        """Was it frozen before something that we cannot see got it?"""
        return any(self.state.get(("was frozen", oid)) for oid in self.lineage(obj.id))

    # ------------------------------------------------------------------ forward

    def start_pass(
        self,
        module: va.Obj,
        node: nd.Node | Place,
        arguments: va.Arguments,
        through: str = "call",
        belief: bool = False,
        grad: frozenset[bool] | None = None,
        wrapped: str = "",
        bypassed: str = "",
    ) -> int:
        """A new forward pass, or the running one when inside a forward."""
        if self.forward is not None:
            running = self.passes[self.forward[1]]
            running.modules.add(module.id)
            if True not in self.recording():
                running.unrecorded.add(module.id)
            else:
                running.recorded.add(module.id)
            return self.forward[1]
        pass_ = self.fresh_id()
        grad = self.recording() if grad is None else grad
        event = self.emit(
            ev.Forward,
            node,
            pass_=pass_,
            module=module,
            modes=self.mode(module),
            grad=grad,
            inputs=self.passes_of(arguments),
            sources=self.sources_of(arguments),
            arguments=arguments,
            through=through,
            belief=belief,
            wrapped=wrapped,
            bypassed=bypassed,
            eval_parts=self.parts_in_eval(module),
            version=cast("int", self.state.get(("version", module.id), 0)),
        )
        self.passes[pass_] = Pass(pass_, event, {module.id}, set(event.inputs), through == "loss")
        return pass_

    def attach(
        self, pass_: int | None, values: Iterable[va.Value], node: nd.Node | None, **fields: Any
    ) -> va.Tensor:
        """The tensor that an operation on `values` gives: it carries their graphs and that of the pass."""
        passes: set[int] = set()
        tokens: set[va.Token] = set()
        sources: set[int] = set()
        taint: set[str] = set()
        evidence = fields.pop("evidence", None)
        tensors: list[va.Tensor] = []
        for value in values:
            if not isinstance(value, _HOLDERS):
                continue
            found = self.tensors(value)
            tensors += found
            if not found:
                sources |= self.sources_of((value,))
        for t in tensors:
            passes |= t.passes
            tokens |= t.tokens
            sources |= t.sources
            taint |= t.taint
            evidence = evidence or t.evidence
        if pass_ is not None and True in self.passes[pass_].forward.grad:
            passes.add(pass_)
            if evidence is None or node is not None:
                evidence = va.Link(self.passes[pass_].forward.place, "graph made by this forward", None)
        if True not in self.recording():
            passes = set()
        if pass_ is not None and not passes and self.passes[pass_].forward.grad == NOT_RECORDING:
            made = self.passes[pass_].forward
            fields.setdefault("cut", va.Cut(made.place, va.UNRECORDED, frozenset([pass_])))
        return va.Tensor(
            evidence,
            frozenset(passes),
            frozenset(tokens),
            sources=frozenset(sources),
            taint=frozenset(taint),
            **fields,
        )

    def imbue(self, value: va.Value, pass_: int, *, is_whole: bool = True) -> va.Value:
        """Outputs of a pass through layers that we do not know carry its graph all the same.

        is_whole: also those that carry no graph yet.
        """
        link = va.Link(self.passes[pass_].forward.place, "graph made by this forward")

        def imbued(t: va.Tensor) -> va.Tensor:
            return replace(t, passes=t.passes | {pass_}, evidence=link) if is_whole or t.passes else t

        return self.map_tensors(value, imbued)

    # ------------------------------------------------------------------ gradients

    def gradients(self, optimizer: va.Obj) -> va.Gradients:
        return cast("va.Gradients", self.state.get(("grad", optimizer.id), va.CLEAN))

    def reached_optimizers(self, modules: Iterable[int] | None) -> list[va.Obj]:
        """Optimizers that may own parameters of these modules (None: of anything)."""
        if modules is None:
            return list(self.optimizers)
        listed = sorted(modules)
        out: list[va.Obj] = []
        for optimizer in self.optimizers:
            owned = self.owns.get(optimizer.id)
            if owned is None or any(self.related(m, r) for m in listed for r in sorted(owned)):
                out.append(optimizer)
        return out

    def backward(
        self,
        value: va.Value | None,
        node: nd.Node | Place,
        retain: bool = False,
        create_graph: bool = False,
        how: str = "tensor",
        divides: bool = False,
        owner: va.Obj | None = None,
        scaled: bool = False,
        retain_known: bool = True,
        create_known: bool = True,
    ) -> None:
        """Gradients of what `value` was computed from are added to, and its graph is freed."""
        tensors = self.tensors(value)
        passes = frozenset(p for t in tensors for p in t.passes)
        modules = {m for p in sorted(passes) for m in self.passes[p].modules} if passes else None
        place = node if isinstance(node, Place) else self.place(node)
        if not tensors:
            self.count("unknown_backwards")
        self.consumed.update(token for t in tensors for token in t.tokens)
        self.backed |= passes
        loss = tensors[0] if tensors else None
        # a scaled loss may be one alternative of several
        is_scaled = scaled or any(t.scaled for t in tensors)
        before: dict[int, va.Gradients] = {}
        if how not in ("autograd.grad", "functional"):
            for optimizer in self.reached_optimizers(self._sources_too(passes, modules)):
                atoms = before[optimizer.id] = self.gradients(optimizer)
                self.state.set(
                    ("grad", optimizer.id), frozenset(_add_backward(a, place, is_scaled) for a in atoms)
                )
        self.emit(
            ev.Backward,
            place,
            passes=passes,
            loss=loss,
            retain=retain,
            create_graph=create_graph,
            fresh=frozenset(p for p in passes if not self.state.get(("freed", p))),
            before=before,
            modules=frozenset(modules) if modules is not None else None,
            grad=self.recording(),
            how=how,
            divides=divides,
            owner=owner,
            retain_known=retain_known,
            create_known=create_known,
        )
        if not retain and not create_graph:
            for p in sorted(passes):
                self.state.set(("freed", p), True)

    def engines_of(self, value: va.Value) -> list[va.Obj]:
        """Engines that own a module behind the passes of this value."""
        if not self.engines:
            return []
        modules = {
            o for p in self.passes_of((value,)) for q in self.passes[p].modules for o in self.lineage(q)
        }
        return list(
            {self.engines[o].id: self.engines[o] for o in sorted(modules) if o in self.engines}.values()
        )

    def _sources_too(self, passes: frozenset[int], modules: set[int] | None) -> set[int] | None:
        """Modules reached, or None when a pass of an unknown thing may lead anywhere."""
        if modules is None:
            return None
        if all(self.passes[p].loss_only for p in passes):
            return None
        return modules

    def clear(
        self, node: nd.Node | Place, optimizers: Iterable[va.Obj], how: str = "zero_grad", quiet: bool = False
    ) -> None:
        for optimizer in optimizers:
            if self.scopes.sync == NOT_RECORDING and optimizer.id in self.prepared:
                continue
            before = self.gradients(optimizer)
            self.state.set(("grad", optimizer.id), frozenset(_clear(a) for a in before))
            if not quiet:
                self.emit(ev.Clear, node, optimizer=optimizer, before=before, how=how)

    def clear_module(
        self, node: nd.Node | Place, roots: Iterable[int], how: str = "module", quiet: bool = False
    ) -> None:
        found = frozenset(roots)
        if not quiet:
            self.emit(ev.GradientsReset, node, roots=found)
        self.clear(node, self.reached_optimizers(found), how, quiet)

    def ends_unrecorded(self, frame: Frame) -> None:
        """The frame is left with autograd off: of a whole that runs, its result has no graph."""
        if self.forward is None or frame.function is None:
            return
        whole, pass_ = self.forward
        if isinstance(frame.function.self, va.Obj) and frame.function.self.id == whole.id:
            self.passes[pass_].unrecorded.add(whole.id)

    def forget_gradients(self) -> None:
        """Those of something unknown are gone, or a thing that is not seen, such as a tape, made them its own
        way."""
        for optimizer in self.optimizers:
            self.state.set(("grad", optimizer.id), va.CLEAN)

    def step(
        self,
        optimizer: va.Obj,
        node: nd.Node | Place,
        via: str = "plain",
        scaler: va.Obj | None = None,
        arguments: va.Arguments | None = None,
    ) -> None:
        if self.scopes.sync == NOT_RECORDING and optimizer.id in self.prepared:
            return
        before = self.gradients(optimizer)
        self.emit(
            ev.Step, node, optimizer=optimizer, before=before, via=via, scaler=scaler, arguments=arguments
        )
        after = frozenset(
            va.Atom(applied=True) if a.sites or a.applied else replace(a, lost=frozenset[Place]())
            for a in before
        )
        self.state.set(("grad", optimizer.id), after)
        self.state.set(("stepped",), RECORDING)
        owned = self.owns.get(optimizer.id)
        for oid in self.versioned:
            key = ("version", oid)
            if key not in self.state.facts:
                continue
            if oid == optimizer.id or owned is None or any(self.related(oid, r) for r in owned):
                self.state.set(key, cast("int", self.state.get(key)) + 1)

    def raise_version(self, obj: va.Obj) -> None:
        for oid in self.versioned:
            key = ("version", oid)
            if key in self.state.facts and self.related(oid, obj.id):
                self.state.set(key, cast("int", self.state.get(key)) + 1)

    # ------------------------------------------------------------------ escaping

    def escape(self, value: va.Value, node: nd.Node, callee: str, pure: bool = False, depth: int = 0) -> None:
        """An unknown callee has it: it may train it, switch its mode, clear its gradients, keep it."""
        for member in va.alternatives(value):
            if isinstance(member, va.Tensor):
                if not pure and id(member) in self.fresh:
                    self.emit(ev.Touched, node, value=member)
                if self.forward is None and not pure:  # inside a forward an unknown function is a layer
                    self.escaped_tokens |= member.tokens
                    self.escaped_passes |= member.passes
            elif isinstance(member, va.Obj) and depth < 3:
                self._escape_object(member, node, callee, pure, depth)
            elif isinstance(member, va.Function) and member.self is not None and depth < 2:
                self.escape(member.self, node, callee, pure, depth + 1)

    def _escape_object(self, obj: va.Obj, node: nd.Node, callee: str, pure: bool, depth: int) -> None:
        kind = obj.kind
        if kind in (va.Kind.LIST, va.Kind.TUPLE, va.Kind.DICT, va.Kind.SET):
            for item in (*self.items(obj), *self.entries(obj).values()):
                self.escape(item, node, callee, pure, depth + 1)
            return
        if kind is va.Kind.INSTANCE:
            for tensor in self._attribute_tensors(obj, depth):
                self.escape(tensor, node, callee, pure, depth + 1)
            for optimizer in self.optimizers if not pure else ():  # as a callback that gets the trainer
                if self.attribute(obj, optimizer.name) is optimizer:
                    self.state.set(("grad", optimizer.id), va.CLEAN)
        if kind in (va.Kind.MODULE, va.Kind.OPAQUE, va.Kind.INSTANCE):
            if ("mode", obj.id) in self.state.facts or any(
                ("mode", part) in self.state.facts for part in self.parts_of(obj.id)
            ):
                self.set_mode(obj, frozenset([va.Mode("unknown")]))
            self.raise_version(obj)
            if kind is va.Kind.MODULE:
                self.clear_module(node, {obj.id}, quiet=True)
                if self.is_frozen(obj):
                    self.state.set(("was frozen", obj.id), True)
                self.state.drop(("frozen", obj.id))
        if kind is va.Kind.OPTIMIZER:
            self.state.set(("grad", obj.id), va.CLEAN)
        if kind in (va.Kind.MODULE, va.Kind.OPTIMIZER, va.Kind.SCHEDULER, va.Kind.LOADER, va.Kind.SCALER):
            self.escaped.add(obj.id)
            self.emit(ev.Escaped, node, value=obj, callee=callee)

    # ------------------------------------------------------------------ stores

    def outlives(self, birth: LoopPath) -> bool:
        return bool(inside(self.loops, birth))

    def grows(self, value: va.Value, outside: int = 0) -> bool:
        """Does it carry graphs of this and of an earlier iteration of a loop that we are in? `outside`: loops
        that do not count, by number.

        What comes out of a container that keeps graphs (`for value in history`) has a token of that
        store: reading it is no second cause, unless a backward went through it, which excuses the store.
        """
        if not self.loops or not isinstance(value, _HOLDERS):
            return False
        tensors = [t for t in self.tensors(value) if len(t.passes) > 1 and t.tokens <= self.consumed]
        if not tensors:
            return False
        for turn in self.loops[outside:]:
            for t in tensors:
                seen = {o.iteration for p in t.passes for o in self.passes[p].loops if o.loop is turn.loop}
                if len(seen) > 1 and turn.iteration in seen:
                    return True
        return False

    def store(
        self,
        value: va.Value,
        node: nd.Node,
        how: str,
        holder: va.Obj | None,
        name: str,
        birth: LoopPath,
        value_node: nd.Node | None = None,
    ) -> va.Value:
        """`value` goes to a place that outlives this iteration; returns it marked with the store's token."""
        tensors = [t for t in self.tensors(value) if t.passes]
        if how == "comprehension":  # what comes out of a container that keeps it is no second cause
            tensors = [t for t in tensors if not t.tokens]
        if not tensors:
            return value
        # growth needs a graph made inside the very iteration that the place outlives
        outlived = {id(t.loop) for t in inside(self.loops, birth)}
        if not any(id(o.loop) in outlived for t in tensors for p in t.passes for o in self.passes[p].loops):
            return value
        token = va.Token(self.place(node), how)
        passes = frozenset(p for t in tensors for p in t.passes)
        self.emit(
            ev.Store,
            node,
            token=token,
            passes=passes,
            freed=frozenset(p for p in passes if self.state.get(("freed", p))),
            how=how,
            holder=holder,
            name=name,
            bounded=holder is not None and "bounded" in holder.traits,
            value=tensors[0],
            value_place=self.place(value_node) if value_node is not None else None,
            reduction=tensors[0].reduction,
            graph_places=self.graph_places(value, value_node) if value_node is not None else (),
        )
        if how == "append" and isinstance(value, va.Obj) and value.kind is va.Kind.DICT:
            value = self._as_kept(value)
        return self.map_tensors(value, lambda t: replace(t, tokens=t.tokens | {token}) if t.passes else t)

    def _as_kept(self, value: va.Obj) -> va.Obj:
        """A dictionary as a container keeps it: whoever made it and goes on with what is in it does not take
        that out of the container."""
        kept = replace(value, id=self.fresh_id())
        self.objects[kept.id] = kept
        self.state.set(("d", kept.id), self.entries(value))
        return kept

    def graph_places(self, value: va.Value, node: nd.Node) -> tuple[Place, ...]:
        """Where the tensors with a graph are written: elements of a literal, else the whole expression."""
        obj = first_known(value)
        parts: tuple[va.Value, ...] = ()
        elements: tuple[nd.Expr, ...] = ()
        if isinstance(node, (nd.ListExpr, nd.TupleExpr, nd.SetExpr)):
            elements = node.elements
            if len(elements) == 1 and isinstance(obj, va.Tensor):  # `xs += [loss]`: stored one by one
                parts = (obj,)
        elif isinstance(node, nd.DictExpr):
            elements = node.values
        else:
            return (self.place(node),)
        if isinstance(obj, va.Obj):
            parts = tuple(self.entries(obj).values()) or self.items(obj)
        if len(parts) != len(elements):
            return ()
        return tuple(
            place
            for part, element in zip(parts, elements, strict=True)
            if any(t.passes for t in self.tensors(part))
            for place in self.graph_places(part, element)
        )

    def push(
        self,
        holder: va.Obj,
        values: Iterable[va.Value],
        node: nd.Node,
        how: str,
        value_node: nd.Node | None = None,
    ) -> None:
        """Values are added to a container."""
        added = list(values)
        if self.outlives(holder.birth):
            added = [self.store(v, node, how, holder, holder.name, holder.birth, value_node) for v in added]
            self.state.set(("open", holder.id), True)
        elif self.loops:
            self.state.set(("open", holder.id), True)
        self.state.set(("c", holder.id), (*self.items(holder), *added)[-12:])

    # ------------------------------------------------------------------ names

    def lookup(self, name: str) -> va.Value | None:
        facts = self.state.facts
        for frame in self.frames[-1].scope:
            value = facts.get(("v", frame, name))
            if value is not None:
                if isinstance(value, va.Deferred):
                    return self.imported(("v", frame, name), value)
                return cast("va.Value", value)
        return None

    def imported(self, key: tuple[object, ...], name: va.Deferred) -> va.Value:
        """What an imported name is, which the fact `key` holds."""
        from torchwise_analysis.interp.abstract import imports

        return imports.resolve(self, key, name)

    def bind(self, name: str, value: va.Value) -> None:
        """Bind in the frame that the scope rules say."""
        frame = self.frames[-1]
        self.state.set(("v", self.home(frame, name), name), value)

    def home(self, frame: Frame, name: str) -> int:
        if frame.declares and frame.function is not None:
            scope = frame.function.node.scope
            if name in scope.global_:
                return frame.scope[-1]
            if name in scope.nonlocal_:
                for outer in frame.scope[1:]:
                    if ("v", outer, name) in self.state.facts:
                        return outer
        return frame.id


_COMPOUND = (nd.For, nd.While, nd.With, nd.If, nd.FunctionDef, nd.ClassDef)
_NOTED_INSIDE = (nd.Placed, nd.FunctionDef, nd.ClassDef)


def passed_lines(passed: Mapping[str, Mapping[int, nd.Stmt]]) -> dict[str, int]:
    """The lines of the statements of each file, as the bits of a number."""
    found: dict[str, int] = {}
    for path, statements in passed.items():
        lines = 0
        for line, statement in statements.items():
            span = _header(statement) if isinstance(statement, _COMPOUND) else statement.span
            height = 1 if isinstance(statement, (nd.Try, nd.Match)) else span.end_line - span.line + 1
            lines |= ((1 << height) - 1) << line
        found[path] = lines
    return found


def _header(node: nd.For | nd.While | nd.With | nd.If | nd.FunctionDef | nd.ClassDef) -> nd.Span:
    """From the keyword to the colon: what is in the body has places of its own, and may change."""
    if isinstance(node, (nd.FunctionDef, nd.ClassDef)):
        return node.header
    if isinstance(node, nd.For):
        last: nd.Node = node.iter
    elif isinstance(node, nd.With):
        last = node.items[-1]
    else:
        last = node.test
    return nd.Span(node.span.line, node.span.column, last.span.end_line, last.span.end_column)


_EMPTY: dict[object, va.Value] = {}
_HOLDERS = (va.Tensor, va.Obj, va.Union)  # what tensors can be in
_TAINTS = frozenset(["rank", "random", "time"])
_NO_TAINT: frozenset[str] = frozenset()


def _add_backward(atom: va.Atom, place: Place, scaled: bool) -> va.Atom:
    runs = dict(atom.sites)
    runs[place] = min(2, runs.get(place, 0) + 1)
    return replace(atom, sites=frozenset(runs.items()), scaled=atom.scaled or scaled)


def _clear(atom: va.Atom) -> va.Atom:
    lost = (
        frozenset(site for site, _ in atom.sites) if atom.sites and not atom.applied else frozenset[Place]()
    )
    return va.Atom(lost=lost)


def first_known(value: va.Value | None) -> va.Value:
    """The most telling alternative of a union: objects before tensors before unknowns."""
    if value is None:
        return va.UNKNOWN
    if not isinstance(value, va.Union):
        return value
    for kind in (
        va.Obj,
        va.StateDict,
        va.Tensor,
        va.Function,
        va.Parameters,
        va.Class,
        va.Library,
        va.Unknown,
    ):
        for member in value.values:
            if isinstance(member, kind):
                return member
    return value.values[0]
