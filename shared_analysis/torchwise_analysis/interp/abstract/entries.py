"""Where running starts: module code, then functions that nobody calls, then classes, then the rest.

A class entry builds `self` from unknown arguments and calls every method that was not reached, twice,
on shared attributes: an unseen caller calls them again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract import calls
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.frames import OUTSIDE, Frame
from torchwise_analysis.interp.abstract.join import join
from torchwise_analysis.interp.abstract.limits import DeadPathError, OutOfFuelError
from torchwise_analysis.interp.abstract.loops import Loop, LoopKind, Turn
from torchwise_analysis.interp.abstract.machine import Machine
from torchwise_analysis.interp.abstract.static import walk
from torchwise_analysis.source import nodes as nd

_NEVER_ENTRIES = frozenset(
    ["__init__", "__repr__", "__str__", "__len__", "__post_init__", "__eq__", "__hash__"]
)

FunctionKey = tuple[str, int, int, str]


def run_module(m: Machine, module: nd.Module, reached: frozenset[FunctionKey]) -> None:
    """Run everything in a file that can run."""
    frame_id = m.fresh_id()
    frame = Frame(frame_id, (frame_id,), module.path, m.body_facts(module.body))
    m.frames.append(frame)
    whole = Place(module.path, nd.Span(0, 0, 0, 0))
    m.entry = ev.Entry("module", "<module>", whole)
    _contained(m, whole, lambda: _module_code(m, module, frame))
    definitions = list(_definitions(module.body, 0))
    called = _called_names(module)
    for only_uncalled in (True, False):
        for node, line in definitions:
            if only_uncalled and node.name in called:
                continue
            place = Place(module.path, node.header.shifted(line))
            value = m.state.get(("v", frame_id, node.name))
            if isinstance(value, va.Function):
                if value.key not in m.reached and value.key not in reached:
                    _contained(m, place, lambda v=value, p=place: _function_entry(m, v, p))  # type: ignore[misc]
            elif isinstance(value, va.Class):
                _contained(
                    m,
                    place,
                    lambda v=value, p=place, u=only_uncalled: _class_entry(m, v, p, called, reached, u),  # type: ignore[misc]
                )


def _module_code(m: Machine, module: nd.Module, frame: Frame) -> None:
    exits = calls.run_worlds(m, frame, lambda: m.run_block(module.body))
    if exits:
        m.state.merge(frame.mark, [facts for _, facts in exits], join)
    m.alive = True


def _contained(m: Machine, place: Place, body: Callable[[], None]) -> None:
    """Run one entry; running out of fuel or failing ends this entry only, and is counted."""
    frames = list(m.frames)
    share = m.limits.entry_visits if m.visits < m.limits.visits // 2 else m.limits.late_visits
    m.cap = min(m.limits.visits, m.visits + share)
    try:
        body()
    except DeadPathError:
        m.counts.dead_paths += 1
    except OutOfFuelError:
        m.counts.not_analysed.append((place, "too large to follow to the end"))
    except RecursionError:
        m.counts.not_analysed.append((place, "nested too deeply"))
    m.frames[:] = frames
    m.alive, m.loops, m.calls, m.guards, m.world = True, (), (), (), ()
    m.scopes, m.forward, m.automatic, m.nesting = OUTSIDE, None, None, 0
    m.file, m.line = m.path, 0


def _definitions(body: nd.Block, line: int) -> Iterator[tuple[nd.FunctionDef | nd.ClassDef, int]]:
    """Functions and classes at module level, also under `if` and `try`."""
    for statement in body:
        if isinstance(statement, nd.Placed):
            yield from _definitions(statement.body, statement.line)
        elif isinstance(statement, (nd.FunctionDef, nd.ClassDef)):
            yield statement, line
        elif isinstance(statement, nd.If):
            yield from _definitions((*statement.body, *statement.orelse), line)
        elif isinstance(statement, nd.Try):
            yield from _definitions(statement.body, line)


def _called_names(module: nd.Module) -> frozenset[str]:
    names: set[str] = set()
    for statement in module.body:
        for node in walk(statement):
            if isinstance(node, nd.Call):
                func = node.func
                names.add(
                    func.id
                    if isinstance(func, nd.Name)
                    else func.attr
                    if isinstance(func, nd.Attribute)
                    else ""
                )
                # a function handed over is called by whoever got it
                names.update(a.id for a in node.args if isinstance(a, nd.Name))
    return frozenset(names)


def _fresh(m: Machine, gradients: bool = True) -> None:
    """Between two entries anything may have happened to modes; gradients start clean."""
    m.state.set(("autograd",), frozenset([True]))
    for oid in m.mode_keys():
        m.put_mode(oid, frozenset([va.Mode("unknown")]))
    if gradients:
        for optimizer in m.optimizers:
            m.state.set(("grad", optimizer.id), va.CLEAN)


def _function_entry(m: Machine, function: va.Function, place: Place) -> None:
    m.entry = ev.Entry("function", function.name, place)
    m.optimizers = [o for o in m.optimizers if _still_bound(m, o)]
    _fresh(m)
    value = calls.call_function(m, function, va.NO_ARGUMENTS, None, entry=True)
    _returned(m, function, place, value)


def _still_bound(m: Machine, obj: va.Obj) -> bool:
    """Is the object held by a module variable or an attribute?"""
    frames = {m.frames[0].id, *m.modules.values()}
    for key, value in m.state.facts.items():
        if key[0] == "a" or (key[0] == "v" and key[1] in frames):
            for member in va.alternatives(value) if isinstance(value, va.Value) else ():
                if isinstance(member, va.Obj) and member.id == obj.id:
                    return True
    return False


def _returned(m: Machine, function: va.Function, place: Place, value: va.Value) -> None:
    tensors = m.tensors(value)
    passes = frozenset(p for t in tensors for p in t.passes)
    tokens = frozenset(k for t in tensors for k in t.tokens)
    m.escaped_passes |= passes
    m.escaped_tokens |= tokens
    m.emit(ev.Returned, place, passes=passes, tokens=tokens, value=value)


def _class_entry(
    m: Machine,
    cls: va.Class,
    place: Place,
    called: frozenset[str],
    reached: frozenset[FunctionKey],
    only_uncalled: bool,
) -> None:
    todo = [f for f in _methods(m, cls) if f.key not in m.reached and f.key not in reached]
    todo = [f for f in todo if f.name not in _NEVER_ENTRIES]
    if not todo:
        return
    if _is_test_class(cls):
        if only_uncalled:
            _test_entries(m, cls, todo)
        return
    _fresh(m)
    m.entry = ev.Entry("method", cls.name, place)
    obj = _instance(m, cls)
    is_module = obj.kind is va.Kind.MODULE
    hooks = any(m.library.hook(m, obj, f.name) is not None for f in todo)
    for turn in range(2):
        for function in todo:
            if turn == 0 and (function.key in m.reached or function.key in reached):
                continue
            if only_uncalled and function.name in called and not hooks and not is_module:
                continue
            if is_module and not hooks and function.name != "forward" and function.name in called:
                continue
            _method_entry(m, cls, obj, function, turn)


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
        place = Place(function.path, function.node.span.shifted(function.line))
        if isinstance(function.node, nd.FunctionDef):
            place = Place(function.path, function.node.header.shifted(function.line))
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
        m.counts.dead_paths += 1
        m.alive = True
    finally:
        m.calls, m.guards, m.forward = (), (), None
        del m.frames[1:]


def _instance(m: Machine, cls: va.Class) -> va.Obj:
    key = ("instance", cls.path, cls.line, cls.name)
    known = m.arguments.get(key)
    if isinstance(known, va.Obj):
        return m.objects.get(known.id, known)
    obj = m.library.instance(m, cls, None)
    m.arguments[key] = obj
    init = calls.find_member(m, cls, "__init__")
    if isinstance(init, va.Function):
        try:
            calls.call_function(m, replace(init, self=obj), va.NO_ARGUMENTS, None, entry=True)
        except DeadPathError:
            m.alive = True
    return m.objects.get(obj.id, obj)


def _methods(m: Machine, cls: va.Class) -> list[va.Function]:
    out: list[va.Function] = []
    for statement in calls.flat(cls.node.body):
        if isinstance(statement, nd.FunctionDef):
            value = m.state.get(("v", cls.id, statement.name))
            if isinstance(value, va.Function) and value.key not in [f.key for f in out]:
                out.append(value)
    return out


def _method_entry(m: Machine, cls: va.Class, obj: va.Obj, function: va.Function, turn: int) -> None:
    hook = m.library.hook(m, obj, function.name)
    place = Place(function.path, function.node.span.shifted(function.line))
    if isinstance(function.node, nd.FunctionDef):
        place = Place(function.path, function.node.header.shifted(function.line))
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
    loop = m._loops.setdefault(key, Loop(place, LoopKind.CALL, function.name))
    m.loops = (Turn(loop, turn),)
    m.automatic = obj if hook and hook.automatic else None
    scopes = m.scopes._replace(grad=hook.grad) if hook and hook.grad is not None else m.scopes
    own = calls.bound(m, function, obj)
    assert isinstance(own, va.Function)
    try:
        if obj.kind is va.Kind.MODULE and function.name == "forward" and not (hook and hook.automatic):
            _forward_entry(m, obj, own, place)
            return
        value = m.with_scopes(scopes, lambda: calls.call_function(m, own, va.NO_ARGUMENTS, None, entry=True))
        if hook is not None:
            m.library.hook_returned(m, hook, obj, own, value)
        else:
            _returned(m, own, place, value)
    except DeadPathError:
        m.counts.dead_paths += 1
        m.alive = True
    finally:
        m.loops, m.calls, m.automatic, m.guards, m.forward = (), (), None, (), None
        del m.frames[1:]


def _forward_entry(m: Machine, obj: va.Obj, function: va.Function, place: Place) -> None:
    """`forward` of a class that nobody calls: one pass on unknown data."""
    pass_ = m.start_pass(obj, place, va.NO_ARGUMENTS, "entry")
    m.forward = (obj, pass_)
    given = tuple(
        m.attach(pass_, (), None)
        for p in function.node.params[1:]
        if p.default is None and p.kind in (nd.ParamKind.POSITIONAL, nd.ParamKind.POSITIONAL_ONLY)
    )
    calls.call_function(m, function, va.Arguments(given), None, entry=True)
    m.forward = None
    m.escaped_passes.add(pass_)
