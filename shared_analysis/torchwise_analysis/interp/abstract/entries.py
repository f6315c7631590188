"""Where running starts: module code, then functions that nobody calls, then classes, then the rest.

A class entry builds `self` from unknown arguments and calls every method that was not reached, twice,
on shared attributes: an unseen caller calls them again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract import calls
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.frames import Frame
from torchwise_analysis.interp.abstract.join import join
from torchwise_analysis.interp.abstract.limits import (
    TOO_DEEP,
    TOO_LARGE,
    DeadPathError,
    OutOfFuelError,
    StoppedError,
)
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind, Turn
from torchwise_analysis.interp.abstract.machine import Base, Machine
from torchwise_analysis.interp.abstract.state import Facts
from torchwise_analysis.interp.abstract.static import BodyFacts
from torchwise_analysis.source import nodes as nd
from torchwise_analysis.source.children import children_reversed

_NEVER_ENTRIES = frozenset(
    ["__init__", "__repr__", "__str__", "__len__", "__post_init__", "__eq__", "__hash__"]
)

FunctionKey = tuple[str, int, int, str]


def module_code(m: Machine, body: nd.Block, facts: BodyFacts, scope: tuple[int, ...] | None) -> None:
    """Run statements of the module, in its frame `scope` or in a new one. `facts`: of all its code."""
    if scope is None:
        scope = (m.fresh_id(),)
    frame = Frame(scope[0], scope, m.path, facts)
    m.frames[:] = [frame]
    m.entry = ev.Entry("module", "<module>", m.located(nd.Span(0, 0, 0, 0), m.path))

    def run() -> None:
        exits = calls.run_worlds(m, frame, lambda: m.run_block(body))
        m.goes_on = bool(exits) and frame.worlds == 1 and not frame.decided and not m.guards_left
        m.is_over = not exits
        if exits:
            m.state.merge(frame.mark, [facts for _, facts in exits], join)

    contained(m, m.entry.place, run)


def contained(m: Machine, place: Place, body: Callable[[], None]) -> None:
    """Run one entry; running out of fuel or failing ends this entry only, and is counted."""
    try:
        body()
    except DeadPathError:
        m.count("dead_paths")
    except OutOfFuelError:
        m.cut_short(place, TOO_LARGE, is_entry=True)
    except RecursionError:
        m.counts.not_analysed.append((place, TOO_DEEP))
    except StoppedError:
        raise
    except Exception as error:  # a border: a fault of ours must not take the file's other findings along
        m.counts.failed.append(f"{type(error).__name__}: {error}")
    del m.frames[1:]


def definitions(body: nd.Block, line: int) -> Iterator[tuple[nd.FunctionDef | nd.ClassDef, int]]:
    """Functions and classes at module level, also under `if` and `try`."""
    for statement in body:
        if isinstance(statement, nd.Placed):
            yield from definitions(statement.body, statement.line)
        elif isinstance(statement, (nd.FunctionDef, nd.ClassDef)):
            yield statement, line
        elif isinstance(statement, nd.If):
            yield from definitions((*statement.body, *statement.orelse), line)
        elif isinstance(statement, nd.Try):
            yield from definitions(statement.body, line)


def _fresh(m: Machine, gradients: bool = True) -> None:
    """Between two entries anything may have happened to modes; gradients start clean."""
    m.state.set(("autograd",), frozenset([True]))
    for oid in m.mode_keys():
        m.put_mode(oid, frozenset([va.Mode("unknown")]))
    if gradients:
        for optimizer in m.optimizers:
            m.state.set(("grad", optimizer.id), va.CLEAN)


def function_entry(m: Machine, function: va.Function, place: Place) -> None:
    """Run a function on arguments that nobody in view passes."""
    m.entry = ev.Entry("function", function.name, place)
    _fresh(m)
    value = calls.call_function(m, function, va.NO_ARGUMENTS, None, entry=True)
    _returned(m, function, place, value)


def _returned(m: Machine, function: va.Function, place: Place, value: va.Value) -> None:
    tensors = m.tensors(value)
    passes = frozenset(p for t in tensors for p in t.passes)
    tokens = frozenset(k for t in tensors for k in t.tokens)
    m.escaped_passes |= passes
    m.escaped_tokens |= tokens
    m.emit(ev.Returned, place, passes=passes, tokens=tokens, value=value)


def open_methods(
    base: Base, cls: va.Class, reached: Collection[FunctionKey]
) -> list[tuple[va.Function, FunctionKey, str]]:
    """Methods of a class that nobody called yet, with their keys and names."""
    body = cls.node.body
    known = base.methods.get(cls.id)
    if known is None or known[0] is not body:
        methods = [(f, f.name) for f in _methods(base.facts, cls)]
        kept = [(f, name) for f, name in methods if name not in _NEVER_ENTRIES]
        known = base.methods[cls.id] = (body, kept)
    # keys hold lines, which edits may move
    return [(f, key, name) for f, name in known[1] if (key := f.key) not in reached]


def class_entry(
    m: Machine,
    cls: va.Class,
    place: Place,
    todo: list[va.Function],
    called: Collection[str],
    is_first: bool,
    inherits: bool,
) -> None:
    """Run the methods `todo` of an instance that nobody in view made.

    called: names that the file calls: methods of these names wait for the second visit of the class.
    inherits: it is the only visit, or the first: hooks that the class has from another one run, too.
    """
    if _is_test_class(cls):
        if is_first:
            _test_entries(m, cls, todo)
        return
    _fresh(m)
    m.entry = ev.Entry("method", cls.name, place)
    obj = _instance(m, cls)
    is_module = obj.kind is va.Kind.MODULE
    if inherits:
        todo = [*_inherited_hooks(m, cls, obj), *todo]
    hooks = any(m.library.hook(m, obj, f.name) is not None for f in todo)
    graphless = _called_without_graph(m, cls, {f.name for f in todo})
    for turn in range(2):
        for function in todo:
            if turn == 0 and function.key in m.reached:
                continue
            if is_first and function.name in called and not hooks and not is_module:
                continue
            if is_module and not hooks and function.name != "forward" and function.name in called:
                continue
            _method_entry(m, cls, obj, function, turn, function.name in graphless)


def _inherited_hooks(m: Machine, cls: va.Class, obj: va.Obj) -> list[va.Function]:
    """Hooks of a framework that stand in a class of the project which this one fills in: they name methods
    that it defines, so that they do something else than in an instance of their own class."""
    own = {s.name for s in calls.flat(cls.node.body) if isinstance(s, nd.FunctionDef)}
    seen = set(own)
    found: list[va.Function] = []
    for ancestor in cls.ancestors:
        for function in _methods(m.state.facts, ancestor):
            if function.name in seen or not isinstance(function.node, nd.FunctionDef):
                continue
            seen.add(function.name)
            m.note_read(function.code)
            is_filled = bool(own & m.body_facts(function.node.body).names)
            if is_filled and m.library.hook(m, obj, function.name) is not None:
                found.append(function)
    return found


def _is_test_class(cls: va.Class) -> bool:
    """What unittest and pytest collect: a TestCase, or `Test...` without bases of another kind."""
    if cls.derives("TestCase", "IsolatedAsyncioTestCase"):
        return True
    return cls.name.startswith("Test") and any(
        isinstance(s, nd.FunctionDef) and s.name.startswith("test_") for s in calls.flat(cls.node.body)
    )


def _test_entries(m: Machine, cls: va.Class, todo: list[va.Function]) -> None:
    """Each test runs once, on an instance of its own that the fixtures have set up."""
    for function in todo:
        if not function.name.startswith("test"):
            continue
        _fresh(m)
        place = _place_of(m, function)
        m.entry = ev.Entry("method", f"{cls.name}.{function.name}", place)
        obj = m.library.instance(m, cls, None)
        for name in _SETUPS:
            setup = calls.find_member(m, cls, name)
            if isinstance(setup, va.Function):
                _called_once(m, calls.bound(m, setup, obj))
        _called_once(m, calls.bound(m, function, obj))


_SETUPS = ("setUpClass", "setup_class", "setUp", "asyncSetUp", "setup_method")


def _called_once(m: Machine, function: va.Value) -> None:
    if not isinstance(function, va.Function):
        return
    try:
        calls.call_function(m, function, va.NO_ARGUMENTS, None, entry=True)
    except DeadPathError:
        m.count("dead_paths")
        m.alive = True
    finally:
        m.calls, m.guards, m.forward = (), (), None
        del m.frames[1:]


def _place_of(m: Machine, function: va.Function) -> Place:
    node = function.node
    span = node.header if isinstance(node, nd.FunctionDef) else node.span
    return m.located(span.shifted(function.line), function.path)


def _instance(m: Machine, cls: va.Class) -> va.Obj:
    key = ("instance", cls.path, cls.line, cls.name)
    known = m.arguments.get(key)
    if isinstance(known, va.Obj):
        return m.objects.get(known.id, known)
    obj = m.arguments[key] = calls.unseen_instance(m, cls)
    return obj


def _methods(facts: Facts, cls: va.Class) -> list[va.Function]:
    out: list[va.Function] = []
    for statement in calls.flat(cls.node.body):
        if isinstance(statement, nd.FunctionDef):
            value = facts.get(("v", cls.id, statement.name))
            if isinstance(value, va.Function) and value.key not in [f.key for f in out]:
                out.append(value)
    return out


def _method_entry(
    m: Machine, cls: va.Class, obj: va.Obj, function: va.Function, turn: int, is_graphless: bool
) -> None:
    hook = m.library.hook(m, obj, function.name)
    place = _place_of(m, function)
    held = {optimizer.id: m.gradients(optimizer) for optimizer in m.optimizers}
    begun = len(m.events)
    _fresh(m, gradients=turn == 0)
    m.returned = None
    m.entry = ev.Entry(
        "hook" if hook else "method",
        f"{cls.name}.{function.name}",
        place,
        hook.framework if hook else "",
        bool(hook and hook.automatic),
    )
    key = (function.path, function.line, id(function.node))
    loop = m.named_loop(key, Loop(place, LoopKind.CALL, function.name))
    m.loops = (Turn(loop, turn),)
    m.automatic = obj if hook and hook.automatic else None
    scopes = m.scopes._replace(grad=hook.grad) if hook and hook.grad is not None else m.scopes
    if hook is None and is_graphless:
        scopes = m.scopes._replace(grad=frozenset([False]))
    own = calls.bound(m, function, obj)
    assert isinstance(own, va.Function)
    try:
        if obj.kind is va.Kind.MODULE and function.name == "forward" and not (hook and hook.automatic):
            _forward_entry(m, obj, own, place)
            return
        given = _counted(function, turn) if hook and hook.framework == "lightning" else va.NO_ARGUMENTS
        value = m.with_scopes(scopes, lambda: calls.call_function(m, own, given, None, entry=True))
        if hook is not None:
            m.library.hook_returned(m, hook, obj, own, value)
        else:
            _returned(m, own, place, value)
    except DeadPathError:
        m.count("dead_paths")
        m.alive = True
    finally:
        m.loops, m.calls, m.automatic, m.guards, m.forward = (), (), None, (), None
        del m.frames[1:]
    if turn == 0:  # those that it did not touch are as another method left them
        touched = _with_gradients_touched(m, m.events[begun:])
        for oid, gradients in held.items():
            if oid not in touched:
                m.state.set(("grad", oid), gradients)


_GRAPHLESS = frozenset(["no_grad", "inference_mode"])


def _called_without_graph(m: Machine, cls: va.Class, names: set[str]) -> set[str]:
    """The names that are called in the class, and only under `with torch.no_grad()`.

    Those calls were not reached, or the methods would be no entries.
    """
    methods = (one for one in calls.flat(cls.node.body) if isinstance(one, nd.FunctionDef))
    if all(_GRAPHLESS.isdisjoint(m.body_facts(one.body).names) for one in methods):
        return set()
    pending: list[tuple[nd.Node, bool]] = [(statement, False) for statement in cls.node.body]
    called: dict[bool, set[str]] = {False: set(), True: set()}
    while pending:
        node, is_off = pending.pop()
        if isinstance(node, nd.Call) and isinstance(node.func, nd.Attribute) and node.func.attr in names:
            called[is_off].add(node.func.attr)
        is_off = is_off or (isinstance(node, nd.With) and any(_is_graphless(item) for item in node.items))
        pending += [(child, is_off) for child in children_reversed(node)]
    return called[True] - called[False]


def _is_graphless(item: nd.WithItem) -> bool:
    func = item.context.func if isinstance(item.context, nd.Call) else None
    name = func.attr if isinstance(func, nd.Attribute) else func.id if isinstance(func, nd.Name) else ""
    return name in _GRAPHLESS


def _with_gradients_touched(m: Machine, events: Iterable[ev.Event]) -> set[int]:
    """Optimizers whose gradients some of the events may have changed."""
    touched: set[int] = set()
    for event in events:
        if isinstance(event, (ev.Step, ev.Clear)):
            touched.add(event.optimizer.id)
        elif isinstance(event, ev.Backward):
            touched.update(event.before)
        elif isinstance(event, ev.GradientsReset):
            touched.update(optimizer.id for optimizer in m.reached_optimizers(event.roots))
        elif isinstance(event, ev.Escaped) and event.value.kind is va.Kind.OPTIMIZER:
            touched.add(event.value.id)
        elif isinstance(event, ev.Escaped) and event.value.kind is va.Kind.MODULE:
            touched.update(optimizer.id for optimizer in m.reached_optimizers({event.value.id}))
    return touched


def _counted(function: va.Function, turn: int) -> va.Arguments:
    """`training_step(batch, batch_idx)`: the trainer counts its calls."""
    params = function.node.params
    if function.name != "training_step" or len(params) < 3 or params[2].kind is not nd.ParamKind.POSITIONAL:
        return va.NO_ARGUMENTS
    return va.Arguments(keywords=((params[2].name, va.Const(None, turn, va.Counter())),))


def _forward_entry(m: Machine, obj: va.Obj, function: va.Function, place: Place) -> None:
    """`forward` of a class that nobody calls: one pass on unknown data."""
    pass_ = m.start_pass(obj, place, va.NO_ARGUMENTS, "entry")
    m.forward = (obj, pass_)
    names = [
        p.name
        for p in function.node.params[1:]
        if p.default is None and p.kind in (nd.ParamKind.POSITIONAL, nd.ParamKind.POSITIONAL_ONLY)
    ]
    given = tuple(m.attach(pass_, (), None) for _ in names)
    m.given = {id(value): (value, name) for value, name in zip(given, names, strict=True)}
    calls.call_function(m, function, va.Arguments(given), None, entry=True)
    m.forward = None
    m.escaped_passes.add(pass_)
