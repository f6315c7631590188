"""Meaning of statements: one small function per node, in one table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from torchwise_analysis.interp.abstract import calls, conditions, contexts, expressions, imports, iteration
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.frames import Frame
from torchwise_analysis.interp.abstract.join import join
from torchwise_analysis.interp.abstract.limits import DeadPathError
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind, Turn
from torchwise_analysis.interp.abstract.machine import Execute, Machine, first_known
from torchwise_analysis.interp.abstract.static import called_in, moves_itself, outer_facts
from torchwise_analysis.interp.core.mro import InconsistentMro, linearize
from torchwise_analysis.quick import replace
from torchwise_analysis.source import nodes as nd

# Paths that are joined in one go.
_MOST_AT_ONCE = 16
_MOST_DECORATORS = 64


def placed(m: Machine, node: nd.Placed) -> None:
    line, m.line = m.line, node.line
    is_elsewhere = m.file != m.path
    try:
        for statement in node.body:
            if not m.alive:
                return
            m.visits += 1
            if is_elsewhere:
                m.pass_by(statement)
            m.statements[type(statement)](m, statement)
    finally:
        m.line = line


def nothing(m: Machine, node: nd.Stmt) -> None:
    return


def broken(m: Machine, node: nd.Broken) -> None:
    m.counts.not_analysed.append((m.place(node), f"does not parse: {node.message}"))


def expression(m: Machine, node: nd.ExprStmt) -> None:
    if isinstance(node.value, (nd.Constant, nd.Name)):
        return
    m.discarded = node.value
    m.eval(node.value)


def assign(m: Machine, node: nd.Assign) -> None:
    value = m.eval(node.value)
    if m.loops and moves_itself(node):
        value = _moved(value)
    for target in node.targets:
        expressions.assign(m, target, value, node, node.value)


def ann_assign(m: Machine, node: nd.AnnAssign) -> None:
    if node.value is not None:
        expressions.assign(m, node.target, m.eval(node.value), node, node.value)


def aug_assign(m: Machine, node: nd.AugAssign) -> None:
    old, outer = m.eval(node.target), m.summing
    m.summing = len(m.frames) if node.op == "+" else 0
    try:
        value = m.eval(node.value)
    finally:
        m.summing = outer
    known = first_known(old)
    if isinstance(known, va.Obj) and known.kind in (va.Kind.LIST, va.Kind.SET) and node.op == "+":
        added = first_known(value)
        items = m.items(added) if isinstance(added, va.Obj) else tuple(m.tensors(value))
        m.push(known, items, node, "+=", node.value)
        return
    if isinstance(known, va.Parameters) and known.gradients:
        m.library.method(m, known, "div_" if node.op == "/" else "mul_", va.Arguments((value,)), node)
        return
    if isinstance(known, va.Const) and known.value is None:
        result = value
    else:
        m.touch(old, node)
        result = expressions.operate(m, node.op, old, value, node)
    if m.loops:
        result = _moved(result, is_sum=node.op in ("+", "-"))
    expressions.assign(m, node.target, result, node, node.value)


def _moved(value: va.Value, *, is_sum: bool = True) -> va.Value:
    """What a turn of a loop made of the same thing as it was before: it counts the turns."""
    if isinstance(value, va.Const) and isinstance(value.value, int) and not isinstance(value.value, bool):
        return va.Const(None, value.value, va.Counter())
    if isinstance(value, va.Unknown) and is_sum:
        return va.unknown(None, taint=value.taint, varies=True)  # it moves with the turns of the loop
    if isinstance(value, va.Union):
        return replace(value, values=tuple(_moved(one, is_sum=is_sum) for one in value.values))
    return value


def return_(m: Machine, node: nd.Return) -> None:
    value = m.eval(node.value) if node.value is not None else va.NONE
    frame = m.frames[-1]
    for state in _state_dicts(m, value):
        m.emit(ev.StateDictUsed, node, state=state, how="return", current=version_of(m, state))
    frame.exits.append((value, m.state.changes(frame.mark)))
    if m.forward is not None and True not in m.recording():
        m.ends_unrecorded(frame)
    if len(m.frames) == 2:  # the entry itself returns
        m.returned = m.place(node)
    if len(m.loops) > len(frame.loops):
        m.emit(ev.LoopLeft, node)
    m.alive = False


def _state_dicts(m: Machine, value: va.Value) -> list[va.StateDict]:
    out: list[va.StateDict] = []
    for member in va.alternatives(value):
        if isinstance(member, va.StateDict):
            out.append(member)
        elif isinstance(member, va.Obj) and member.kind is va.Kind.TUPLE:
            out.extend(i for i in m.items(member) if isinstance(i, va.StateDict))
    return out


def version_of(m: Machine, state: va.StateDict) -> int:
    return cast("int", m.state.get(("version", state.owner.id), 0))


def delete(m: Machine, node: nd.Delete) -> None:
    for target in node.targets:
        if isinstance(target, nd.Name):
            m.state.drop(("v", m.frames[-1].id, target.id))
        elif isinstance(target, nd.Subscript):
            value = first_known(m.eval(target.value))
            calls.note_edit(m, target.value)
            if isinstance(value, va.Obj):
                m.emit(ev.Emptied, node, holder=value)
                m.state.set(("c", value.id), ())
        elif isinstance(target, nd.Attribute):
            value = first_known(m.eval(target.value))
            if isinstance(value, va.Obj):
                m.state.drop(("a", value.id, target.attr))


def break_(m: Machine, node: nd.Break) -> None:
    frame = m.frames[-1]
    frame.breaks.append(m.state.changes(frame.loop_mark))
    if m.loops:
        m.emit(ev.LoopLeft, node)
    m.alive = False


def continue_(m: Machine, node: nd.Continue) -> None:
    frame = m.frames[-1]
    frame.continues.append(m.state.changes(frame.loop_mark))
    m.alive = False


def raise_(m: Machine, node: nd.Raise) -> None:
    frame = m.frames[-1]
    if node.exception is not None:
        frame.unfinished = m.state.changes(frame.mark)
    m.alive = False


def assert_(m: Machine, node: nd.Assert) -> None:
    conditions.test(m, node.test, decide=False)
    conditions.narrow(m, node.test, True)


# --------------------------------------------------------------------------- branches


def if_(m: Machine, node: nd.If) -> None:
    truth, tested = conditions.test(m, node.test)
    if isinstance(tested, va.Unknown) and tested.taint:
        m.library.tested(m, tested, node.test)
    if node.body and isinstance(node.body[-1], nd.Break):
        _bounded(m, node.test, (">=", ">", "=="))
    tests, guards = conditions.last_tests(m), m.guards
    if truth is not None:
        m.guards = conditions.guarded(m, guards, tests, truth)
        m.run_block(node.body if truth else node.orelse)
        skipped = node.orelse if truth else node.body
        is_left = bool(skipped) and isinstance(skipped[-1], nd.Return | nd.Raise | nd.Continue | nd.Break)
        m.guards = _of_mode(conditions.guarded(m, guards, tests, truth), guards) if is_left else guards
        return
    lived: list[bool] = []
    before = leaving(m)

    def branch(body: nd.Block, taken: bool) -> Callable[[], None]:
        def run() -> None:
            m.guards = conditions.guarded(m, guards, tests, taken)
            conditions.narrow(m, node.test, taken)
            m.run_block(body)
            lived.append(m.alive)

        return run

    m.fork([branch(node.body, True), branch(node.orelse, False)], lambda a, b: a)
    # `if rank != 0: return`: what follows stands under the other side of the test
    if lived == [False, True]:
        m.guards = conditions.guarded(m, guards, tests, False, _ends(m, node, before))
    elif lived == [True, False]:
        m.guards = conditions.guarded(m, guards, tests, True, _ends(m, node, before))
    else:
        m.guards = guards


def _of_mode(guards: tuple[ev.Guard, ...], outer: tuple[ev.Guard, ...]) -> tuple[ev.Guard, ...]:
    """What follows `if not self.training: return` stands under a test of the mode, known as it may be."""
    return (*outer, *(guard for guard in guards[len(outer) :] if guard.kind == "training"))


_FINITE = frozenset(["isfinite", "isnan", "isinf"])


def _ends(m: Machine, node: nd.If, before: tuple[int, int, int]) -> bool:
    """Did the branch that left end the innermost loop or the run, or skip a turn without data or numbers?

    A `return` of a function that is called in a loop goes on with the next turn.
    """
    returns, _, continues = (now > then for now, then in zip(leaving(m), before, strict=True))
    goes_on = continues or (returns and len(m.loops) == len(m.frames[-1].loops))
    return not goes_on or _asks_for_data(node.test)


def _asks_for_data(test: nd.Expr) -> bool:
    is_none = isinstance(test, nd.Compare) and any(
        isinstance(c, nd.Constant) and c.value is None for c in test.comparators
    )
    return is_none or not _FINITE.isdisjoint(called_in(test))


def match(m: Machine, node: nd.Match) -> None:
    subject = m.eval(node.subject)
    known = subject.value if isinstance(subject, va.Const) else None
    branches: list[Callable[[], None]] = []
    closed = False
    for case in node.cases:
        fits = _fits(m, case.pattern, known) if isinstance(subject, va.Const) else None
        if fits is False:
            continue
        branches.append(_case(m, case, subject))
        if (fits is True and case.guard is None) or (_is_wild(case.pattern) and case.guard is None):
            closed = True
            break
    if not closed:
        branches.append(lambda: None)
    guards = m.guards
    m.fork(_in_groups(m, branches), lambda a, b: a)
    m.guards = guards


def _in_groups(m: Machine, branches: list[Callable[[], None]]) -> list[Callable[[], None]]:
    """Forks of forks: joining thousands of paths at once costs by the square of their number."""
    if len(branches) <= _MOST_AT_ONCE:
        return branches
    size = -(-len(branches) // _MOST_AT_ONCE)
    groups = (_in_groups(m, branches[at : at + size]) for at in range(0, len(branches), size))
    return [partial(m.fork, group, lambda a, b: a) for group in groups]


def _case(m: Machine, case: nd.MatchCase, subject: va.Value) -> Callable[[], None]:
    def run() -> None:
        for bound_name in _captures(case.pattern):
            m.bind(bound_name, subject if isinstance(case.pattern, nd.MatchAs) else va.unknown(None))
        if case.guard is not None and conditions.test(m, case.guard, decide=False)[0] is False:
            m.alive = False
            return
        m.run_block(case.body)

    return run


def _fits(m: Machine, pattern: nd.Pattern, value: object) -> bool | None:
    if isinstance(pattern, nd.MatchValue):
        wanted = m.eval(pattern.value)
        return wanted.value == value if isinstance(wanted, va.Const) else None
    if isinstance(pattern, nd.MatchOr):
        fits = [_fits(m, p, value) for p in pattern.patterns]
        return True if True in fits else None if None in fits else False
    return True if _is_wild(pattern) else None


def _is_wild(pattern: nd.Pattern) -> bool:
    return isinstance(pattern, nd.MatchAs) and pattern.pattern is None


def _captures(pattern: nd.Pattern) -> list[str]:
    if isinstance(pattern, nd.MatchAs):
        inner = _captures(pattern.pattern) if pattern.pattern is not None else []
        return [*inner, pattern.name] if pattern.name else inner
    if isinstance(pattern, nd.MatchStar):
        return [pattern.name] if pattern.name else []
    if isinstance(pattern, (nd.MatchSequence, nd.MatchOr)):
        return [n for p in pattern.patterns for n in _captures(p)]
    if isinstance(pattern, nd.MatchMapping):
        return [n for p in pattern.patterns for n in _captures(p)] + ([pattern.rest] if pattern.rest else [])
    if isinstance(pattern, nd.MatchClass):
        return [n for p in (*pattern.patterns, *(q for _, q in pattern.keywords)) for n in _captures(p)]
    return []


def try_(m: Machine, node: nd.Try) -> None:
    """Handlers are rare: they run, but must not weaken what holds on the ordinary path."""
    mark = m.state.mark()
    before = leaving(m)
    if node.handlers and any(imports.is_missing(m, statement) for statement in calls.flat(node.body)):
        m.alive = False
    m.run_block(node.body)
    if m.alive and node.orelse:
        m.run_block(node.orelse)
    ordinary = m.state.changes(mark) if m.alive else None
    handled: list[dict[tuple[object, ...], object]] = []
    guards = m.guards
    for handler in node.handlers:
        m.state.rollback(mark)
        m.alive = True
        if ordinary is not None:
            m.state.apply(ordinary)
        if handler.name:
            m.bind(handler.name, va.unknown(None))
        m.guards = (*guards, ev.Guard(m.place(handler), "handler", True, loops=len(m.loops)))
        m.run_block(handler.body)
        if m.alive:
            handled.append(m.state.changes(mark))
    m.guards = guards
    m.state.rollback(mark)
    if ordinary is not None:
        m.state.apply(ordinary)
        m.alive = True
    elif handled:
        m.state.merge(mark, handled, join)
        m.alive = True
    else:
        m.alive = False
    if node.final:
        replay(m, before, lambda: m.run_block(node.final))
        if m.alive:
            m.run_block(node.final)


def leaving(m: Machine) -> tuple[int, int, int]:
    """How many paths have left the running frame so far."""
    frame = m.frames[-1]
    return len(frame.exits), len(frame.breaks), len(frame.continues)


def replay(m: Machine, before: tuple[int, int, int], action: Callable[[], None]) -> None:
    """What happens on the way out (`finally`, `__exit__`) also happens to the paths that left since."""
    frame, alive = m.frames[-1], m.alive
    if leaving(m) == before:
        return
    mark = m.state.mark()
    exits, frame.exits[before[0] :] = frame.exits[before[0] :], []
    for value, facts in exits:
        m.state.apply(facts)
        m.alive = True
        action()
        if m.alive:
            frame.exits.append((value, m.state.changes(frame.mark)))
        m.state.rollback(mark)
    for paths, start in ((frame.breaks, before[1]), (frame.continues, before[2])):
        left, paths[start:] = paths[start:], []
        for facts in left:
            m.state.apply(facts)
            m.alive = True
            action()
            if m.alive:
                paths.append(m.state.changes(frame.loop_mark))
            m.state.rollback(mark)
    m.alive = alive


# --------------------------------------------------------------------------- loops


def for_(m: Machine, node: nd.For) -> None:
    over = m.eval(node.iter)
    plan = iteration.plan(m, over, node)
    m.emit(
        ev.LoopEntered, node, loop_place=plan.loop.place, over=first_known(over), kind=plan.loop.kind.value
    )
    if plan.generator is not None:
        _for_generator(m, node, plan)
        return

    def prepare(element: va.Value) -> Callable[[], bool]:
        def run() -> bool:
            iteration.forget(m, element)
            expressions.assign(m, node.target, element, node.target)
            return True

        return run

    def more(turns: int) -> list[Callable[[], bool]]:
        longer = iteration.plan(m, over, node, turns=turns) if plan.open else plan
        return [prepare(e) for e in longer.elements[len(plan.elements) :]]

    _loop(m, node.body, plan.loop, [prepare(e) for e in plan.elements], more)
    if node.orelse and m.alive:
        m.run_block(node.orelse)


def while_(m: Machine, node: nd.While) -> None:
    facts = m.loop_facts(node)
    endless = isinstance(node.test, nd.Constant) and bool(node.test.value)
    kind = LoopKind.UNBOUNDED
    loop = m.loop(node, kind, "while", None, None)
    turns = facts.turns
    if m.forward is not None:
        turns = 1
    m.emit(ev.LoopEntered, node, loop_place=loop.place, over=va.UNKNOWN, kind=kind.value)

    def prepare(index: int) -> Callable[[], bool]:
        def run() -> bool:
            truth = conditions.test(m, node.test, decide=False)[0]
            _bounded(m, node.test, ("<", "<="))
            return not (truth is False and index > 0)

        return run

    def more(longer: int) -> list[Callable[[], bool]]:
        return [prepare(i) for i in range(turns, longer)]

    _loop(m, node.body, loop, [prepare(i) for i in range(turns)], more, endless)
    if node.orelse and m.alive:
        m.run_block(node.orelse)


def _bounded(m: Machine, test: nd.Expr, ops: tuple[str, ...]) -> None:
    """Note `while done < most` and `if done >= most: break`."""
    if isinstance(test, nd.Compare) and len(test.ops) == 1 and test.ops[0] in ops:
        bound = test.comparators[0]
        if isinstance(bound, (nd.Name, nd.Attribute)):
            m.emit(ev.LoopBounded, test, bound=first_known(m.eval(bound)))


def _loop(
    m: Machine,
    body: nd.Block,
    loop: Loop,
    turns: list[Callable[[], bool]],
    more: Callable[[int], list[Callable[[], bool]]],
    endless: bool = False,
) -> None:
    """Run a body once for each turn; `break` and `continue` join at the end of the loop and of the turn.

    more: the turns behind those, up to a number; they are run where the last turn did what none before did.
    """
    frame = m.frames[-1]
    saved = frame.breaks, frame.continues, frame.loop_mark
    mark = frame.loop_mark = m.state.mark()
    frame.breaks = []
    outer, guards = m.loops, m.guards
    started = False
    begun: list[int] = []  # events before each turn
    try:
        for index, prepare in enumerate(turns):
            begun.append(len(m.events))
            frame.continues = []
            m.loops = (*outer, Turn(loop, index))
            m.guards = guards
            if not prepare():
                break
            started = True
            m.run_block(body)
            if frame.continues:
                outcomes = [m.state.changes(mark)] if m.alive else []
                m.state.merge(mark, [*outcomes, *frame.continues], join)
                m.alive = True
            if not m.alive:
                break
            if len(begun) == len(turns) == _TURNS and m.forward is None:
                turns += more(_turns_to_see(m, loop, *begun))
        outcomes = [m.state.changes(mark)] if m.alive and not (endless and frame.breaks) else []
        if frame.breaks:
            m.state.merge(mark, [*outcomes, *frame.breaks], join)
            m.alive = True
        elif not m.alive and started and not endless:
            # every path left by return or raise: the loop may also not run at all
            m.state.rollback(mark)
            m.alive = True
    finally:
        m.loops, m.guards = outer, guards
        frame.breaks, frame.continues, frame.loop_mark = saved


_TURNS = 2  # of a loop whose body looks at no counter


def _turns_to_see(m: Machine, loop: Loop, first: int, last: int) -> int:
    """How many turns show what follows from the last one: a callee that counts did there what it did not do
    in the first. After an evaluation training goes on in the next turn; a window of two is closed again two
    turns later.
    """
    behind = [e for e in m.events[last:] if isinstance(e, (ev.Step, ev.ModeChange))]
    if not behind:
        return _TURNS
    before = {e.place for e in m.events[first:last] if isinstance(e, (ev.Step, ev.ModeChange))}
    new = [e for e in behind if e.place not in before]
    if any(isinstance(e, ev.Step) for e in new) and not loop.has_inner:
        return 2 * _TURNS
    return _TURNS + 1 if any(isinstance(e, ev.Step) or e.to == "eval" for e in new) else _TURNS


def _for_generator(m: Machine, node: nd.For, plan: iteration.Plan) -> None:
    """A generator of the project: its body runs, and at each yield ours does."""
    frame, outer = m.frames[-1], m.loops
    saved = frame.breaks, frame.continues, frame.loop_mark
    generator = plan.generator
    assert generator is not None
    function = generator.over[0]
    assert isinstance(function, va.Function)
    frame.breaks, frame.continues, frame.loop_mark = [], [], m.state.mark()
    turn = 0

    def on_yield(value: va.Value) -> va.Value:
        nonlocal turn
        inner_frames, m.frames = m.frames, m.frames[: m.frames.index(frame) + 1]
        inner = (m.file, m.line, m.loops, m.calls, m.forward)
        m.file, m.line, m.calls = here
        m.loops = (*inner[2], Turn(plan.loop, turn))
        turn += 1
        try:
            mark = m.state.mark()
            frame.loop_mark = mark
            expressions.assign(m, node.target, value, node.target)
            m.run_block(node.body)
            ended = [*frame.continues, *frame.breaks]
            if ended:
                outcomes = [m.state.changes(mark)] if m.alive else []
                m.state.merge(mark, [*outcomes, *ended], join)
                m.alive = True
            frame.breaks, frame.continues = [], []
        finally:
            m.frames = inner_frames
            m.file, m.line, m.loops, m.calls, m.forward = inner
        return va.NONE

    here = (m.file, m.line, m.calls)
    try:
        if turn < 2:
            calls.call_function(m, function, generator.arguments, node, on_yield=on_yield)
    finally:
        m.loops = outer
        frame.breaks, frame.continues, frame.loop_mark = saved


# --------------------------------------------------------------------------- with


def with_(m: Machine, node: nd.With) -> None:
    _enter_items(m, node, 0)


def _enter_items(m: Machine, node: nd.With, index: int) -> None:
    if index == len(node.items):
        m.run_block(node.body)
        return
    item = node.items[index]
    context = first_known(m.eval(item.context))
    if isinstance(context, va.Context) and context.what == "generator":
        _enter_generator(m, node, index, context)
        return
    entered = context
    if isinstance(context, va.Obj) and context.cls is not None:
        method = calls.find_member(m, context.cls, "__enter__")
        if isinstance(method, va.Function):
            entered = first_known(calls.call_value(m, replace(method, self=context), va.NO_ARGUMENTS, item))
    value = m.library.enter(m, context, item)
    if item.target is not None:
        expressions.assign(m, item.target, value if value is not None else entered, item)
    if isinstance(context, va.Context):
        m.with_scopes(contexts.inside(m, m.scopes, context), lambda: _enter_items(m, node, index + 1))
        return
    if not isinstance(context, va.Obj) and _is_written_like_grad_mode(item.context):
        # Where the name comes from is lost (a star import): whether autograd records is not known either.
        scopes = m.scopes._replace(grad=frozenset([True, False]))
        m.with_scopes(scopes, lambda: _enter_items(m, node, index + 1))
        return
    before = leaving(m)
    _enter_items(m, node, index + 1)
    if isinstance(context, va.Obj) and context.cls is not None:
        method = calls.find_member(m, context.cls, "__exit__")
        if isinstance(method, va.Function):
            own, nones = replace(method, self=context), va.Arguments((va.NONE, va.NONE, va.NONE))
            replay(m, before, lambda: _ignore(calls.call_value(m, own, nones, item)))
            if m.alive:
                calls.call_value(m, own, nones, item)
    elif isinstance(context, va.Obj) and context.type_name == STACK:
        replay(m, before, lambda: _ignore(calls.call_method(m, context, "__exit__", va.NO_ARGUMENTS, item)))
        if m.alive:
            calls.call_method(m, context, "__exit__", va.NO_ARGUMENTS, item)


STACK = "contextlib.ExitStack"


def _is_written_like_grad_mode(node: nd.Expr) -> bool:
    func = node.func if isinstance(node, nd.Call) else node
    written = func.attr if isinstance(func, nd.Attribute) else func.id if isinstance(func, nd.Name) else ""
    return written in ("no_grad", "inference_mode", "set_grad_enabled")


def _ignore(value: object) -> None:
    return


def _enter_generator(m: Machine, node: nd.With, index: int, context: va.Context) -> None:
    """A @contextmanager of the project: its body runs, and at the yield the block does."""
    function = context.function
    assert function is not None
    frame = m.frames[-1]
    here = (m.file, m.line, m.calls)
    done = False
    left: list[va.Value] = []

    def on_yield(value: va.Value) -> va.Value:
        nonlocal done
        if done:
            return va.UNKNOWN
        done = True
        before = len(frame.exits)
        inner_frames, m.frames = m.frames, m.frames[: m.frames.index(frame) + 1]
        inner = (m.file, m.line, m.calls)
        m.file, m.line, m.calls = here
        try:
            target = node.items[index].target
            if target is not None:
                expressions.assign(m, target, value, node)
            _enter_items(m, node, index + 1)
        finally:
            m.frames = inner_frames
            m.file, m.line, m.calls = inner
        if not m.alive and len(frame.exits) > before:
            # the block returned: what the manager does afterwards happens to the returned state
            for returned, facts in frame.exits[before:]:
                left.append(returned)
                m.state.apply(facts)
            del frame.exits[before:]
            m.alive = True
        elif not m.alive:
            raise DeadPathError
        return va.UNKNOWN

    calls.call_function(m, function, context.arguments, node, on_yield=on_yield)
    if not done:
        _enter_items(m, node, index + 1)
    elif left:
        for returned in left:
            frame.exits.append((returned, m.state.changes(frame.mark)))
        m.alive = False


# --------------------------------------------------------------------------- definitions


def function_def(m: Machine, node: nd.FunctionDef) -> None:
    m.bind(node.name, decorated(m, calls.make_function(m, node, None)))


def decorated(m: Machine, function: va.Function) -> va.Value:
    """Project decorators are run, library ones have their meaning or pass the function through."""
    node = function.node
    assert isinstance(node, nd.FunctionDef)
    value = function
    for decorator in reversed(node.decorators[-_MOST_DECORATORS:]):
        if isinstance(decorator, nd.Attribute) and decorator.attr in ("setter", "deleter", "getter"):
            value = replace(value, marks=value.marks | {f"{decorator.attr}:{node.name}"})
            continue
        callee = m.eval(decorator)
        if isinstance(callee, va.Library):
            value = m.library.decorate(m, callee.path, value)
        elif isinstance(callee, va.Context):
            value = replace(value, wraps=(*value.wraps, callee))
        elif isinstance(callee, va.Obj) and "handler" in callee.traits:
            m.library.call_object(m, callee, va.Arguments((value,)), decorator)
        elif isinstance(callee, va.Function):
            try:
                result = first_known(calls.call_value(m, callee, va.Arguments((value,)), decorator))
            except DeadPathError:
                m.alive = True
                continue
            if isinstance(result, va.Function):
                value = replace(result, owner=value.owner if result.self is None else result.owner)
    return value


def class_def(m: Machine, node: nd.ClassDef) -> None:
    bases = [_base(m, b) for b in node.bases]
    for keyword in node.keywords:
        m.eval(keyword.value)
    class_id = m.fresh_id()
    own_bases = [b for b in bases if isinstance(b, va.Class)]
    library = [b.path for b in bases if isinstance(b, va.Library)]
    # what derives from a protocol is none, unless it says so
    inherited = [p for b in own_bases for p in b.library_bases if p.rpartition(".")[2] != "Protocol"]
    cls = va.Class(
        m.link(node, f"class {node.name}"),
        class_id,
        node.name,
        m.file,
        m.code(node),
        (),
        tuple(dict.fromkeys([*library, *inherited])),
        any(not isinstance(b, (va.Class, va.Library)) for b in bases) or any(b.open_bases for b in own_bases),
    )
    try:
        mro = linearize(cls, own_bases, lambda c: c.mro)
    except InconsistentMro:
        mro = (cls, *own_bases)
    cls = replace(cls, ancestors=tuple(mro[1:]))
    m.bind(node.name, cls)
    _class_body(m, node, cls)


def _base(m: Machine, node: nd.Expr) -> va.Value:
    """A base class: of `Base[T]` it is `Base`."""
    if isinstance(node, nd.Subscript):
        generic = first_known(m.eval(node.value))
        if isinstance(generic, (va.Class, va.Library)):
            return generic
    return first_known(m.eval(node))


def _class_body(m: Machine, node: nd.ClassDef, cls: va.Class) -> None:
    outer = m.frames[-1]
    frame = Frame(cls.id, (cls.id, *outer.scope), m.file, outer_facts(node.body), node.name, None, cls)
    frame.mark = m.state.mark()
    m.frames.append(frame)
    try:
        _class_block(m, node.body, cls)
    finally:
        m.frames.pop()


def _class_block(m: Machine, body: nd.Block, cls: va.Class) -> None:
    for statement in body:
        if isinstance(statement, nd.Placed):
            line, m.line = m.line, statement.line
            try:
                _class_block(m, statement.body, cls)
            finally:
                m.line = line
        elif isinstance(statement, nd.FunctionDef):
            value = decorated(m, calls.make_function(m, statement, cls))
            if isinstance(value, va.Function) and any(mark.startswith("setter:") for mark in value.marks):
                old = m.state.get(("v", cls.id, statement.name))
                if isinstance(old, va.Function):
                    m.state.set(("v", cls.id, f"{statement.name}.setter"), value)
                    continue
            m.state.set(("v", cls.id, statement.name), value)
        else:
            m.run_block((statement,))
            m.alive = True


STATEMENTS: dict[type, Execute] = {
    nd.Placed: placed,
    nd.Broken: broken,
    nd.ExprStmt: expression,
    nd.Assign: assign,
    nd.AnnAssign: ann_assign,
    nd.AugAssign: aug_assign,
    nd.Return: return_,
    nd.Delete: delete,
    nd.Pass: nothing,
    nd.Break: break_,
    nd.Continue: continue_,
    nd.Raise: raise_,
    nd.Assert: assert_,
    nd.Global: nothing,
    nd.Nonlocal: nothing,
    nd.Import: imports.import_,
    nd.ImportFrom: imports.import_from,
    nd.If: if_,
    nd.For: for_,
    nd.While: while_,
    nd.With: with_,
    nd.Try: try_,
    nd.FunctionDef: function_def,
    nd.ClassDef: class_def,
    nd.TypeAliasStmt: nothing,
    nd.Match: match,
}
