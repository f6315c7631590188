"""One run of a script on a simulated card, and the facts it leaves."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torchwise_analysis.interp.concrete import loops, text
from torchwise_analysis.interp.concrete.costs import STATEMENT_FUEL
from torchwise_analysis.interp.concrete.errors import Cancelled, Finished, Raised, Stopped
from torchwise_analysis.interp.concrete.interpreter import Interpreter
from torchwise_analysis.interp.concrete.library.stdlib import set_variable
from torchwise_analysis.interp.concrete.loops import Measured
from torchwise_analysis.interp.concrete.statements import ASKS_FOR_VERSION
from torchwise_analysis.interp.core.frames import with_room
from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import fields
from torchwise_analysis.plan.sources import libraries_read
from torchwise_analysis.plan.starts import Start
from torchwise_analysis.plan.stated import Noted, Stated, read_statements
from torchwise_memory.allocator import Allocator
from torchwise_memory.report import Kind, Origin, PlanField
from torchwise_memory.runtime.errors import RuntimeStop
from torchwise_memory.runtime.world import LATEST_TORCH, World

# A program may nest 120 calls deep, each a dozen frames of ours; expressions nest besides.
_HOST_RECURSION = 12_000
_STACK_BYTES = 128 << 20
# A plan is read early in a script; what loops on without being understood says nothing more.
RECOVERY_FUEL = 200_000
# Two windows of three micro-steps of a checkpointed model with 48 layers.
OPERATOR_FUEL = 120_000


@dataclass(frozen=True, slots=True)
class Choice:
    """A fact that was not read: what this run took, and what else it might be."""

    value: object
    options: tuple[object, ...]
    origin: Origin | None


@dataclass(frozen=True, slots=True)
class Change:
    """What a run does differently from the script: other literals, or one of the named changes."""

    literals: dict[tuple[Origin, tuple[int, int]], int] = field(
        default_factory=dict[tuple[Origin, tuple[int, int]], int]
    )
    names: frozenset[str] = frozenset()


@dataclass(slots=True)
class Facts:
    """What one run showed."""

    measured: tuple[Measured, ...] = ()
    plan: dict[str, PlanField] = field(default_factory=dict[str, PlanField])
    parameters: int | None = None
    trainable: int | None = None
    assumptions: tuple[str, ...] = ()
    choices: dict[str, Choice] = field(default_factory=dict[str, Choice])
    read_files: tuple[str, ...] = ()
    micro_batch: tuple[fields.Literal, ...] = ()
    seen: frozenset[str] = frozenset()
    # names whose statements were asked for
    settled: frozenset[str] = frozenset()
    # functions of the project that ran, by path and line
    entered: frozenset[tuple[str, int]] = frozenset()
    # over how many processes the work was shared
    processes: int = 1
    failure: str = ""
    failed_at: Origin | None = None
    # where the script left by `sys.exit`, if it did
    ended_at: Origin | None = None
    cancelled: bool = False
    # fuel that the run took
    steps: int = 0


def run_script(
    start: Start,
    project: Project,
    sm: int,
    choices: dict[str, object],
    change: Change,
    stop: Callable[[], bool],
    stated: Stated | None = None,
    recovers: bool = False,
    fuel: int = STATEMENT_FUEL,
) -> Facts:
    """Interpret the script once. Raises nothing; what stopped the run is in the result.

    With `recovers`, statements that cannot be followed are passed over: the plan has what was read all the
    same, and nothing is measured.
    """
    facts = Facts()

    def work() -> None:
        try:
            with_room(lambda: _run(facts, start, project, sm, choices, change, stop, stated, recovers, fuel))
        except RecursionError:
            facts.failure = "the script nests deeper than is followed"
        except Exception as error:
            # the last border: a fault of ours must not take an editor down
            facts.failure = f"the interpreter failed ({type(error).__name__}: {error})"

    with _quiet_collector(), _deep_stack():
        worker = threading.Thread(target=work, name="torchwise estimate")
        worker.start()
        worker.join()
    return facts


@contextmanager
def _quiet_collector() -> Generator[None, None, None]:
    """Lifetimes are those of reference counting; a collection would only cost time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _deep_stack() -> Generator[None, None, None]:
    limit, size = sys.getrecursionlimit(), threading.stack_size()
    sys.setrecursionlimit(max(limit, _HOST_RECURSION))
    threading.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(limit)


def _run(
    facts: Facts,
    start: Start,
    project: Project,
    sm: int,
    choices: dict[str, object],
    change: Change,
    stop: Callable[[], bool],
    stated: Stated | None,
    recovers: bool,
    fuel: int = STATEMENT_FUEL,
) -> None:
    torch_release = _torch_release(project)
    world = World(Allocator(), sm, fuel=OPERATOR_FUEL, torch_version=torch_release or LATEST_TORCH)
    world.torch_is_assumed = torch_release is None
    fuel = RECOVERY_FUEL if recovers else fuel
    it = Interpreter(project, world, choices, stop, fuel)
    it.recovers = recovers
    it.launch = start.launch
    it.wanted_path = start.wanted_path
    world.world_size = start.processes
    for word in start.launch.before if start.launch is not None else ():
        name, _, value = word.partition("=")
        set_variable(it, name, value)
    it.literals = change.literals
    it.changes = change.names
    module = start.module
    if stated is not None:
        it.stated = Noted(stated.by_name)
        path = start.wanted_path or module.path
        it.stated_lines = {(path, line): v for line, v in stated.by_line.items()}
    it.read_statements = lambda path: _add_statements(it, project, path)
    # until a loop is found the whole run counts: a script may take a single step
    loops.start(it)
    try:
        it.library.imports.run_main(module)
    except Cancelled:
        facts.cancelled = True
    except Finished:
        pass
    except Raised as raised:
        name = raised.value.cls.name
        if name == "SystemExit":
            facts.ended_at = raised.origin
        else:
            said = text.text_of(it, raised.value)
            facts.failure = f"the script would raise {name}{': ' if said else ''}{said}"
            facts.failed_at = raised.origin
            if ASKS_FOR_VERSION in it.assumptions:
                facts.failure += "; it asserts a version of a library, and another one may have been read"
    except Stopped as stopped:
        facts.failure, facts.failed_at = stopped.message, stopped.origin
    except RuntimeStop as stopped:
        facts.failure, facts.failed_at = str(stopped), world.origin
    facts.steps = fuel - it.fuel
    facts.settled = frozenset(it.stated.used) if isinstance(it.stated, Noted) else frozenset()
    _collect(facts, it, module.path)
    it.close()
    world.close()


def _torch_release(project: Project) -> tuple[int, int] | None:
    """Of the environment or of what the project declares; None where nothing says it."""
    version, _ = project.release_run("torch")
    if version is None:
        return None
    return min((version[0], version[1] if len(version) > 1 else 0), LATEST_TORCH)


def _add_statements(it: Interpreter, project: Project, path: str) -> None:
    """Statements in the comments of a further file of the project, for assignments of that file."""
    for line, values in read_statements(path, project.text(path) or "").by_line.items():
        it.stated_lines[(path, line)] = values


def _collect(facts: Facts, it: Interpreter, path: str) -> None:
    if it.library.counted is None:
        it.library.note_models()
    measured = list(it.loops.measured)
    if not measured and it.loops.steps and not facts.failure:
        measured.append(loops.take(it, Origin(path, 1), Kind.TRAINING, 1))
        it.assume("no loop was found: the whole run is measured")
    facts.measured = tuple(measured)
    facts.parameters, facts.trainable = fields.count_parameters(it)
    facts.micro_batch = fields.micro_batch_literals(it)
    facts.plan = fields.read_plan(it, measured)
    read = libraries_read(it.project, it.library.imports.read, it.library.imports.replaced)
    facts.assumptions = tuple(dict.fromkeys([*it.assumptions, *it.world.assumptions, *read]))
    facts.choices = {
        name: Choice(value, options, origin) for name, (value, options, origin) in it.chosen.items()
    }
    facts.read_files = tuple(it.library.imports.read)
    facts.seen = frozenset(it.library.met)
    facts.processes = it.world.world_size
    facts.entered = frozenset(it.entered)
