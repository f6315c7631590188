"""Execution of statement nodes.

A statement's outcome is None (go on), BREAK, CONTINUE or a `Returned`. Each generator function is
run by the second half of this file, whose functions are host generators.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, cast

from torchwise_analysis.interp.concrete import classes, operators, patterns, recovery
from torchwise_analysis.interp.concrete.costs import NAME_STEPS
from torchwise_analysis.interp.concrete.errors import Raised, Stopped
from torchwise_analysis.interp.concrete.expressions import EXPRESSIONS, make_function
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Class,
    ClassCell,
    Frame,
    Instance,
    Symbol,
    Unknown,
    Value,
)
from torchwise_analysis.names.launches import GIVEN
from torchwise_analysis.source import nodes
from torchwise_memory.runtime.errors import RuntimeStop

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter


class Signal:
    __slots__ = ()


class Returned(Signal):
    """A `return`; it holds the value until the call hands it on."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


BREAK = Signal()
CONTINUE = Signal()
Outcome: TypeAlias = "Signal | None"
Execute = Callable[["Interpreter", nodes.Stmt, Frame], Outcome]

# A `while` whose condition is not known is assumed to hold this often.
UNKNOWN_ROUNDS = 3
# Assumed where a script asserts the version of a library: what is read here need not be what it runs with.
ASKS_FOR_VERSION = "the versions that the script asks for are installed"


def run_block(it: Interpreter, block: nodes.Block, frame: Frame) -> Outcome:
    if it.recovers:
        return _run_recovering(it, block, frame)
    for statement in block:
        it.fuel -= 1
        if it.fuel < it.pause:
            it.rest()
        outcome = STATEMENTS[statement.__class__](it, statement, frame)
        if outcome is not None:
            return outcome
    return None


def _run_recovering(it: Interpreter, block: nodes.Block, frame: Frame) -> Outcome:
    """The block with every statement passed over that cannot be followed."""
    for statement in block:
        it.burn()
        failure: Exception | None = None
        outcome: Outcome = None
        base = frame.base
        try:
            outcome = STATEMENTS[statement.__class__](it, statement, frame)
        except (Raised, Stopped, RuntimeStop) as error:
            if not recovery.may_pass_over(it, frame, error):
                raise
            failure = error
        if failure is not None:
            frame.base = base
            outcome = _passed_over(it, statement, frame, failure)
            failure = None
        if outcome is not None:
            return outcome
    return None


def _passed_over(it: Interpreter, node: nodes.Stmt, frame: Frame, failure: Exception) -> Outcome:
    unknown = recovery.pass_over(it, node, frame, failure)
    if isinstance(node, nodes.Return):
        return Returned(unknown)
    if isinstance(node, nodes.For):
        # its items could not be told: one round says what the body does
        outcome = run_block(it, node.body, frame)
        return outcome if isinstance(outcome, Returned) else None
    if isinstance(node, nodes.With):
        return run_block(it, node.body, frame)
    return run_block(it, node.orelse, frame) if isinstance(node, nodes.If) else None


def placed(it: Interpreter, node: nodes.Placed, frame: Frame) -> Outcome:
    before = frame.base
    frame.base = node.line
    try:
        return run_block(it, node.body, frame)
    finally:
        frame.base = before


def broken(it: Interpreter, node: nodes.Broken, frame: Frame) -> Outcome:
    it.assume(f"line {node.span.line + 1} does not parse and was passed over")
    return None


def expr_stmt(it: Interpreter, node: nodes.ExprStmt, frame: Frame) -> Outcome:
    value = node.value
    if value.__class__ is not nodes.Constant:
        EXPRESSIONS[value.__class__](it, value, frame)
    return None


def assign(it: Interpreter, node: nodes.Assign, frame: Frame) -> Outcome:
    if it.stated_lines and _is_stated(it, node, frame):
        return None
    source = node.value
    value = EXPRESSIONS[source.__class__](it, source, frame)
    for target in node.targets:
        if isinstance(target, nodes.Name) and not frame.globals_ and not frame.outward:
            frame.names[target.id] = value
        else:
            it.assign(target, value, frame)
    return None


def _is_stated(it: Interpreter, node: nodes.Assign, frame: Frame) -> bool:
    """Whether a comment states what is assigned here; then it is bound. Several targets: those it names."""
    place = it.origin_of(node, frame)
    found = it.stated_lines.get((place.path, place.line), {})
    target = node.targets[0]
    members = target.elements if isinstance(target, nodes.TupleExpr) else (target,)
    named = [member.id for member in members if isinstance(member, nodes.Name) and member.id in found]
    if not named:
        return False
    it.place(node, frame)
    if len(members) > 1:
        it.assign(target, it.evaluate(node.value, frame), frame)
    for name in named:
        given = name in it.stated and it.stated[name][1].path == GIVEN
        it.assume(f"{name} is what {'--set says' if given else f'the comment for line {place.line} states'}")
        it.bind(name, it.library.stated_value(found[name]), frame)
    return True


def ann_assign(it: Interpreter, node: nodes.AnnAssign, frame: Frame) -> Outcome:
    if frame.is_class and isinstance(node.target, nodes.Name):
        annotations = cast("dict[str, Value]", frame.names.setdefault("__annotations__", {}))
        annotations[node.target.id] = classes.annotation_of(it, node.annotation, frame)
    source = node.value
    if source is not None:
        it.assign(node.target, EXPRESSIONS[source.__class__](it, source, frame), frame)
    return None


def aug_assign(it: Interpreter, node: nodes.AugAssign, frame: Frame) -> Outcome:
    target = node.target
    if isinstance(target, nodes.Name):
        value = operators.in_place(it, node.op, it.evaluate(target, frame), it.evaluate(node.value, frame))
        it.assign(target, value, frame)
    elif isinstance(target, nodes.Attribute):
        owner = it.evaluate(target.value, frame)
        old = it.get_attribute(owner, target.attr)
        value = operators.in_place(it, node.op, old, it.evaluate(node.value, frame))
        del old
        it.set_attribute(owner, target.attr, value)
    elif isinstance(target, nodes.Subscript):
        owner = it.evaluate(target.value, frame)
        index = it.evaluate(target.index, frame)
        old = it.get_item(owner, index)
        value = operators.in_place(it, node.op, old, it.evaluate(node.value, frame))
        del old
        it.set_item(owner, index, value)
    return None


def return_(it: Interpreter, node: nodes.Return, frame: Frame) -> Outcome:
    value = node.value
    return Returned(None if value is None else EXPRESSIONS[value.__class__](it, value, frame))


def delete(it: Interpreter, node: nodes.Delete, frame: Frame) -> Outcome:
    for target in node.targets:
        it.delete(target, frame)
    return None


def pass_(it: Interpreter, node: nodes.Stmt, frame: Frame) -> Outcome:
    return None


def break_(it: Interpreter, node: nodes.Stmt, frame: Frame) -> Outcome:
    return BREAK


def continue_(it: Interpreter, node: nodes.Stmt, frame: Frame) -> Outcome:
    return CONTINUE


def raise_(it: Interpreter, node: nodes.Raise, frame: Frame) -> Outcome:
    it.place(node, frame)
    if node.exception is None:
        if it.handled:
            raise it.raised(it.handled[-1])
        raise it.error("RuntimeError", "No active exception to reraise")
    value = it.evaluate(node.exception, frame)
    if node.cause is not None:
        it.evaluate(node.cause, frame)
    if isinstance(value, Class):
        value = it.call(value, [], {})
    if isinstance(value, Instance):
        raise it.raised(value)
    raise it.error("RuntimeError", "the script raises an exception that is not known here")


def assert_(it: Interpreter, node: nodes.Assert, frame: Frame) -> Outcome:
    value = it.evaluate(node.test, frame)
    if isinstance(value, (Unknown, Symbol)) or it.is_tensor(value):
        return None
    if not it.truth(value, node.test, frame):
        it.place(node, frame)
        if _asks_for_a_version(node.test):
            it.assume(ASKS_FOR_VERSION)
            return None
        said = "" if node.message is None else it.evaluate(node.message, frame)
        raise it.error("AssertionError", said)
    return None


def _asks_for_a_version(test: nodes.Expr) -> bool:
    """`assert timm.__version__ == ...`: what is installed here need not be what the script runs with."""
    if isinstance(test, nodes.Compare):
        return any(
            isinstance(v, nodes.Attribute) and v.attr == "__version__" for v in (test.left, *test.comparators)
        )
    return False


def global_(it: Interpreter, node: nodes.Global, frame: Frame) -> Outcome:
    frame.globals_ = frame.globals_ | set(node.names)
    return None


def nonlocal_(it: Interpreter, node: nodes.Nonlocal, frame: Frame) -> Outcome:
    frame.outward = frame.outward | set(node.names)
    return None


def import_(it: Interpreter, node: nodes.Import, frame: Frame) -> Outcome:
    for alias in node.names:
        it.place(node, frame)
        if alias.asname is not None:
            it.bind(alias.asname, it.library.import_module(it, alias.name, frame), frame)
        else:
            root = alias.name.split(".")[0]
            it.library.import_module(it, alias.name, frame)
            it.bind(root, it.library.import_module(it, root, frame), frame)
    return None


def import_from(it: Interpreter, node: nodes.ImportFrom, frame: Frame) -> Outcome:
    it.place(node, frame)
    it.burn(len(node.names) * NAME_STEPS)
    it.library.import_from(it, node, frame)
    return None


def if_(it: Interpreter, node: nodes.If, frame: Frame) -> Outcome:
    condition = node.test
    test = EXPRESSIONS[condition.__class__](it, condition, frame)
    if test is True:
        return run_block(it, node.body, frame)
    if test is False or test is None:
        return run_block(it, node.orelse, frame) if node.orelse else None
    undecided = it.undecided(test)
    if undecided:
        it.place(node, frame)
        if isinstance(test, Unknown) and _is_last_resort(node):
            it.assume(f"of the cases of {undecided} the first one is taken")
            return run_block(it, node.body, frame)
        if undecided == "a random number" and not it.module_depth and not frame.module.is_library:
            where = it.origin_of(node, frame)
            drawn = it.choose(
                f"random branch at {where.path}:{where.line}",
                (False, True),
                "the random condition is taken to be {}",
            )
            return run_block(it, node.body if drawn else node.orelse, frame)
        if _leaves_a_loop(node.body) and it.waited_long(node):
            it.assume(f"the condition on {undecided} comes true at last")
            return run_block(it, node.body, frame)
        if node.orelse and _ends_the_script(node.orelse):
            it.assume(f"the condition on {undecided} is taken to be true: the script would end otherwise")
            return run_block(it, node.body, frame)
    taken = it.truth(test, node.test, frame)
    del test
    return run_block(it, node.body if taken else node.orelse, frame)


def _leaves_a_loop(block: nodes.Block) -> bool:
    """Whether a block ends its loop."""
    last = block[-1]
    while isinstance(last, nodes.Placed) and last.body:
        last = last.body[-1]
    return isinstance(last, nodes.Break)


def _ends_the_script(block: nodes.Block) -> bool:
    """Whether a block raises or exits at its end."""
    last = block[-1]
    while isinstance(last, nodes.Placed) and last.body:
        last = last.body[-1]
    if isinstance(last, nodes.ExprStmt) and isinstance(last.value, nodes.Call):
        function = last.value.func
        name = function.attr if isinstance(function, nodes.Attribute) else ""
        name = function.id if isinstance(function, nodes.Name) else name
        return name in ("exit", "quit", "_exit")
    return isinstance(last, nodes.Raise)


def _is_last_resort(node: nodes.If) -> bool:
    """`if a == x: ... elif a == y: ...` without `else`: one of the cases must be meant."""
    if not isinstance(node.test, nodes.Compare):
        return False
    cases = 1
    while len(node.orelse) == 1 and isinstance(node.orelse[0], nodes.If):
        node = node.orelse[0]
        cases += 1
    return cases > 1 and not node.orelse


# Micro-steps of one window that are counted without being run.
MAX_PASSED_OVER = 1024


def for_(it: Interpreter, node: nodes.For, frame: Frame) -> Outcome:
    source = it.evaluate(node.iter, frame)
    is_counted = isinstance(source, (range, list, tuple))
    is_tensor = it.is_tensor(source)
    items = it.iterate(source)
    numbers = source if isinstance(source, range) else range(0)
    del source
    watch = it.loops.enter(it, node, frame)
    watch.is_counted = is_counted or is_tensor
    while True:
        item = next(items, MISSING)
        if item is MISSING:
            break
        it.burn()
        it.assign(node.target, item, frame)
        watch.begin(it, item)
        del item
        outcome = run_block(it, node.body, frame)
        if outcome is BREAK or isinstance(outcome, Returned):
            watch.end_round(it)
            return outcome if isinstance(outcome, Returned) else None
        if watch.end_round(it):
            return None
        if is_counted and watch.may_skip(it):
            items = _last_only(it, items)
        elif watch.awaits_step and watch.gate is not None and not watch.passive:
            items = _from_step_on(it, node, watch.gate, frame, items)
        elif watch.may_leap(it) and len(numbers) > 4 * watch.rounds:
            it.assume("a loop trains in the second half of its rounds as it does whenever it does")
            items = it.iterate(numbers[len(numbers) // 2 :])
    watch.exhausted(it)
    return run_block(it, node.orelse, frame)


def _from_step_on(
    it: Interpreter, node: nodes.For, gate: nodes.Expr, frame: Frame, items: Iterator[Value]
) -> Iterator[Value]:
    """The items from the next one on whose round takes a step; those before count as micro-steps."""
    for passed, item in enumerate(items):
        it.burn()
        it.assign(node.target, item, frame)
        if passed == MAX_PASSED_OVER or it.truth(it.evaluate(gate, frame), gate, frame):
            return chain((item,), items)
        it.loops.backwards += 1
        del item
    return iter(())


def _last_only(it: Interpreter, items: Iterator[Value]) -> Iterator[Value]:
    """The last of the remaining items; those between count as backward passes like the ones before."""
    last: list[Value] = []
    for item in items:
        it.burn()
        last[:] = [item]
        it.loops.backwards += 1
        if it.loops.backwards > 1 << 16:
            break
    it.loops.backwards -= bool(last)
    return iter(last)


def while_(it: Interpreter, node: nodes.While, frame: Frame) -> Outcome:
    watch = it.loops.enter(it, node, frame)
    unknown_rounds = 0
    while True:
        it.burn()
        test = it.evaluate(node.test, frame)
        if isinstance(test, (Unknown, Symbol)) or it.is_tensor(test):
            if unknown_rounds >= UNKNOWN_ROUNDS and not watch.is_promising:
                break
            unknown_rounds += 1
        elif not it.truth(test, node.test, frame):
            break
        del test
        watch.begin(it)
        outcome = run_block(it, node.body, frame)
        if outcome is BREAK or isinstance(outcome, Returned):
            watch.end_round(it)
            return outcome if isinstance(outcome, Returned) else None
        if watch.end_round(it):
            return None
    watch.exhausted(it)
    return run_block(it, node.orelse, frame)


def with_(it: Interpreter, node: nodes.With, frame: Frame) -> Outcome:
    entered: list[Value] = []
    failure: Raised | None = None
    outcome: Outcome = None
    try:
        for item in node.items:
            manager = it.evaluate(item.context, frame)
            it.place(item, frame)
            value = it.enter(manager)
            entered.append(manager)
            if item.target is not None:
                it.assign(item.target, value, frame)
            del value, manager
        outcome = run_block(it, node.body, frame)
    except Raised as raised:
        failure = raised
    finally:
        if failure is None:
            for manager in reversed(entered):
                it.leave(manager, None)
    if failure is not None:
        for manager in reversed(entered):
            if it.leave(manager, failure.value):
                return None
        raise failure
    return outcome


def try_(it: Interpreter, node: nodes.Try, frame: Frame) -> Outcome:
    failure: Raised | None = None
    outcome: Outcome = None
    try:
        outcome = _try_body(it, node, frame)
    except Raised as raised:  # what ends the interpretation itself leaves at once
        failure = raised
    try:
        final = _finally(it, node.final, frame, failure)
        if failure is not None and final is None:
            raise failure
    finally:
        failure = None  # its traceback holds this frame
    return outcome if final is None else final


def _finally(it: Interpreter, block: nodes.Block, frame: Frame, failure: Raised | None) -> Outcome:
    """The last block; what fails in it because the body failed is not what is told."""
    try:
        return run_block(it, block, frame)
    except Raised:
        if failure is None:
            raise
    return None


def _try_body(it: Interpreter, node: nodes.Try, frame: Frame) -> Outcome:
    base, handled = frame.base, len(it.handled)
    guards = any(_catches_imports(handler) for handler in node.handlers)
    it.import_guards += guards
    it.tries.append((node, frame))
    try:
        try:
            outcome = run_block(it, node.body, frame)
        finally:
            it.import_guards -= guards
            it.tries.pop()
    except Raised as raised:
        frame.base = base
        handler = matching_handler(it, node, raised.value, frame)
        if handler is None:
            raise
        failure = raised.value
    else:
        return run_block(it, node.orelse, frame) if outcome is None else outcome
    # outside of the host's `except`: its traceback would keep the frames below alive
    it.handled.append(failure)
    try:
        if handler.name is not None:
            it.bind(handler.name, failure, frame)
        del failure
        return run_block(it, handler.body, frame)
    finally:
        del it.handled[handled:]
        if handler.name is not None:
            it.unbind(handler.name, frame)


def _catches_imports(handler: nodes.Handler) -> bool:
    kinds = handler.type.elements if isinstance(handler.type, nodes.TupleExpr) else (handler.type,)
    return any(isinstance(kind, nodes.Name) and kind.id in _IMPORT_ERRORS for kind in kinds)


_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError"})


def matching_handler(
    it: Interpreter, node: nodes.Try, failure: Instance, frame: Frame
) -> nodes.Handler | None:
    for handler in node.handlers:
        if handler.type is None:
            return handler
        wanted = it.evaluate(handler.type, frame)
        for cls in wanted if isinstance(wanted, tuple) else (wanted,):
            if isinstance(cls, Class) and failure.cls.is_subclass(cls):
                return handler
    return None


def function_def(it: Interpreter, node: nodes.FunctionDef, frame: Frame) -> Outcome:
    decorators = [it.evaluate(decorator, frame) for decorator in node.decorators]
    value: Value = make_function(it, node, node.name, frame)
    for decorator in reversed(decorators):
        it.place(node, frame)
        value = it.decorate(decorator, value)
    it.bind(node.name, value, frame)
    return None


def class_def(it: Interpreter, node: nodes.ClassDef, frame: Frame) -> Outcome:
    decorators = [it.evaluate(decorator, frame) for decorator in node.decorators]
    bases: list[Value] = []
    for base in node.bases:
        if isinstance(base, nodes.Starred):
            bases.extend(it.iterate(it.evaluate(base.value, frame)))
        else:
            bases.append(it.evaluate(base, frame))
    keywords = {k.name: it.evaluate(k.value, frame) for k in node.keywords if k.name is not None}
    it.place(node, frame)
    inner = it.inner_frame(frame)
    inner.is_class = True
    inner.cell = ClassCell()
    inner.names["__module__"] = frame.module.name
    inner.names["__qualname__"] = node.name
    run_block(it, node.body, inner)
    it.place(node, frame)
    value: Value = classes.make_class(it, node.name, bases, keywords, inner)
    for decorator in reversed(decorators):
        value = it.decorate(decorator, value)
    it.bind(node.name, value, frame)
    return None


def type_alias(it: Interpreter, node: nodes.TypeAliasStmt, frame: Frame) -> Outcome:
    it.bind(node.name, Unknown("a type alias"), frame)
    return None


def match(it: Interpreter, node: nodes.Match, frame: Frame) -> Outcome:
    subject = it.evaluate(node.subject, frame)
    for case in node.cases:
        bindings: dict[str, Value] = {}
        if not patterns.matches(it, case.pattern, subject, frame, bindings):
            continue
        for bound, value in bindings.items():
            it.bind(bound, value, frame)
        if case.guard is None or it.truth(it.evaluate(case.guard, frame), case.guard, frame):
            return run_block(it, case.body, frame)
    return None


STATEMENTS: dict[type[nodes.Stmt], Execute] = cast(
    "dict[type[nodes.Stmt], Execute]",
    {
        nodes.Placed: placed,
        nodes.Broken: broken,
        nodes.ExprStmt: expr_stmt,
        nodes.Assign: assign,
        nodes.AnnAssign: ann_assign,
        nodes.AugAssign: aug_assign,
        nodes.Return: return_,
        nodes.Delete: delete,
        nodes.Pass: pass_,
        nodes.Break: break_,
        nodes.Continue: continue_,
        nodes.Raise: raise_,
        nodes.Assert: assert_,
        nodes.Global: global_,
        nodes.Nonlocal: nonlocal_,
        nodes.Import: import_,
        nodes.ImportFrom: import_from,
        nodes.If: if_,
        nodes.For: for_,
        nodes.While: while_,
        nodes.With: with_,
        nodes.Try: try_,
        nodes.FunctionDef: function_def,
        nodes.ClassDef: class_def,
        nodes.TypeAliasStmt: type_alias,
        nodes.Match: match,
    },
)


# --------------------------------------------------------------------------- generator functions


def generate(it: Interpreter, block: nodes.Block, frame: Frame) -> Generator[Value, None, Outcome]:
    """Run a generator function's body; the outcome is the host generator's return value."""
    for statement in block:
        it.burn()
        own_yields = _yields_of(it, statement)
        if own_yields is None:
            outcome = STATEMENTS[statement.__class__](it, statement, frame)
        else:
            outcome = yield from _generate_statement(it, statement, frame, own_yields)
        if outcome is not None:
            return outcome
    return None


def _generate_statement(
    it: Interpreter, node: nodes.Stmt, frame: Frame, own: tuple[nodes.Expr, ...]
) -> Generator[Value, None, Outcome]:
    if isinstance(node, nodes.Placed):
        frame.base = node.line
        outcome = yield from generate(it, node.body, frame)
        return outcome
    if isinstance(node, nodes.If):
        taken = it.truth(it.evaluate(node.test, frame), node.test, frame)
        outcome = yield from generate(it, node.body if taken else node.orelse, frame)
        return outcome
    if isinstance(node, (nodes.For, nodes.While)):
        outcome = yield from _generate_loop(it, node, frame)
        return outcome
    if isinstance(node, nodes.With):
        managers: list[Value] = []
        for with_item in node.items:
            manager = it.evaluate(with_item.context, frame)
            entered = it.enter(manager)
            managers.append(manager)
            if with_item.target is not None:
                it.assign(with_item.target, entered, frame)
        try:
            outcome = yield from generate(it, node.body, frame)
        finally:
            for manager in reversed(managers):
                it.leave(manager, None)
        return outcome
    if isinstance(node, nodes.Try):
        outcome = yield from _generate_try(it, node, frame)
        return outcome
    sent: dict[int, Value] = {}
    frame.sent = sent
    for expression in own:
        if isinstance(expression, nodes.YieldFrom):
            yield from it.iterate(it.evaluate(expression.value, frame))
            sent[id(expression)] = None
        elif isinstance(expression, nodes.Yield):
            value = None if expression.value is None else it.evaluate(expression.value, frame)
            yield value
            del value
            frame.sent = sent
            sent[id(expression)] = it.taken_sent()
    outcome = STATEMENTS[node.__class__](it, node, frame)
    frame.sent = None
    return outcome


def _generate_loop(
    it: Interpreter, node: nodes.For | nodes.While, frame: Frame
) -> Generator[Value, None, Outcome]:
    items = it.iterate(it.evaluate(node.iter, frame)) if isinstance(node, nodes.For) else None
    while True:
        it.burn()
        if isinstance(node, nodes.For):
            assert items is not None
            try:
                item = next(items)
            except StopIteration:
                break
            it.assign(node.target, item, frame)
            del item
        elif not it.truth(it.evaluate(node.test, frame), node.test, frame):
            break
        outcome = yield from generate(it, node.body, frame)
        if outcome is BREAK:
            return None
        if isinstance(outcome, Returned):
            return outcome
    outcome = yield from generate(it, node.orelse, frame)
    return outcome


def _generate_try(it: Interpreter, node: nodes.Try, frame: Frame) -> Generator[Value, None, Outcome]:
    handler: nodes.Handler | None = None
    failure: Instance | None = None
    outcome: Outcome = None
    try:
        try:
            outcome = yield from generate(it, node.body, frame)
        except Raised as raised:
            handler = matching_handler(it, node, raised.value, frame)
            if handler is None:
                raise
            failure = raised.value
        if handler is not None:
            if handler.name is not None:
                it.bind(handler.name, failure, frame)
            outcome = yield from generate(it, handler.body, frame)
        elif outcome is None:
            outcome = yield from generate(it, node.orelse, frame)
    finally:
        run_block(it, node.final, frame)
    return outcome


def _yields_of(it: Interpreter, node: nodes.Stmt) -> tuple[nodes.Expr, ...] | None:
    """The yield expressions of a statement in evaluation order, None if there is none at all."""
    cached = it.yields_cache.get(id(node))
    if cached is None:
        found = tuple(_walk_yields(node))
        # the node is kept beside its entry, so that its identity cannot be reused
        cached = it.yields_cache[id(node)] = (node, found or None)
    return cached[1]


def _walk_yields(node: object) -> Iterator[nodes.Expr]:
    if isinstance(node, (nodes.FunctionDef, nodes.Lambda, nodes.ClassDef)):
        return
    if isinstance(node, tuple):
        for member in node:
            yield from _walk_yields(member)
        return
    if not isinstance(node, nodes.Node):
        return
    for slot in _fields(type(node)):
        yield from _walk_yields(getattr(node, slot))
    if isinstance(node, (nodes.Yield, nodes.YieldFrom)):
        yield node


_FIELDS: dict[type, tuple[str, ...]] = {}


def _fields(cls: type) -> tuple[str, ...]:
    if cls not in _FIELDS:
        names = getattr(cls, "__dataclass_fields__", {})
        _FIELDS[cls] = tuple(name for name in names if name != "span")
    return _FIELDS[cls]
