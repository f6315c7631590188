"""Calls: of the program's own functions and classes, and, through `Machine.library`, of everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard, cast

from torchwise_analysis.interp.abstract import beliefs, contexts, records, unknowns
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.frames import Frame
from torchwise_analysis.interp.abstract.join import join, join_values
from torchwise_analysis.interp.abstract.limits import DeadPathError, OutOfFuelError
from torchwise_analysis.interp.abstract.loops import Caller
from torchwise_analysis.interp.abstract.machine import NOT_RECORDING, Machine, first_known
from torchwise_analysis.interp.abstract.state import Facts
from torchwise_analysis.interp.abstract.static import walk
from torchwise_analysis.interp.core.binding import bind
from torchwise_analysis.quick import replace
from torchwise_analysis.source import nodes as nd

_EDITING = ("pop", "popitem", "update")


def eval_call(m: Machine, node: nd.Call) -> va.Value:
    func = node.func
    if isinstance(func, nd.Attribute):
        receiver = m.eval(func.value)
        if func.attr in _EDITING:
            note_edit(m, func.value)
        return call_method(m, receiver, func.attr, arguments_of(m, node), node)
    callee = m.eval(func)
    return call_value(m, callee, arguments_of(m, node), node)


def note_edit(m: Machine, holder: nd.Expr) -> None:
    """Something in `holder` is replaced or taken out: it is no longer what a file held."""
    while isinstance(holder, nd.Subscript):
        holder = holder.value
    if not isinstance(holder, nd.Name):
        return
    value = m.eval(holder)
    if isinstance(value, va.Unknown) and "loaded" in value.taint and "edited" not in value.taint:
        m.bind(holder.id, replace(value, taint=value.taint | {"edited"}))


def arguments_of(m: Machine, node: nd.Call) -> va.Arguments:
    positional: list[va.Value] = []
    keywords: list[tuple[str, va.Value]] = []
    open_ = False
    for arg in node.args:
        if isinstance(arg, nd.Starred):
            value = first_known(m.eval(arg.value))
            items = m.items(value) if isinstance(value, va.Obj) else ()
            if items and not (isinstance(value, va.Obj) and m.state.get(("open", value.id))):
                positional.extend(items)
            elif isinstance(value, va.Obj) and "empty" in value.traits:
                continue
            else:
                open_ = True
                positional.extend(items or ([_spread(m, value)] if not node.keywords else []))
        else:
            positional.append(m.eval(arg))
    for keyword in node.keywords:
        value = m.eval(keyword.value)
        if keyword.name is not None:
            keywords.append((keyword.name, value))
            continue
        spread = first_known(value)
        dicts = [d for d in va.alternatives(value) if isinstance(d, va.Obj) and d.kind is va.Kind.DICT]
        if dicts and len(dicts) == len(va.alternatives(value)):
            keywords.extend(_spread_entries(m, dicts))
            open_ = open_ or any(m.items(d) or "unseen" in d.traits for d in dicts)
        else:
            open_ = True
            if (
                isinstance(spread, va.Obj)
                and spread.kind is va.Kind.OPAQUE
                and not keywords
                and not positional
            ):
                positional.append(m.child(spread, "[]"))
    return va.Arguments(tuple(positional), tuple(keywords), open_)


def _spread_entries(m: Machine, dicts: list[va.Obj]) -> list[tuple[str, va.Value]]:
    """Keywords out of one of several dictionaries; one that only some have may also be left out."""
    found: dict[str, va.Value] = {}
    for key in dict.fromkeys(key for one in dicts for key in m.entries(one)):
        for one in dicts:
            value = m.entries(one).get(key, va.UNKNOWN)
            known = found.get(str(key))
            found[str(key)] = value if known is None else join_values(known, value)
    return list(found.items())


def _spread(m: Machine, value: va.Value) -> va.Value:
    if isinstance(value, va.Obj) and value.kind is va.Kind.OPAQUE and "options" not in value.traits:
        return m.child(value, "[]")
    if isinstance(value, va.Tensor):
        return value
    return va.unknown(None, taint=m.taint(value))


# --------------------------------------------------------------------------- what is called


def call_value(m: Machine, callee: va.Value, arguments: va.Arguments, node: nd.Node) -> va.Value:
    """Call any value."""
    if isinstance(callee, va.Function):
        return call_function(m, callee, arguments, node)
    if isinstance(callee, va.Library):
        return m.library.call(m, callee.path, arguments, node)
    if isinstance(callee, va.Class):
        return instantiate(m, callee, arguments, node)
    if isinstance(callee, va.Method):
        return call_method(m, callee.receiver, callee.name, arguments, node)
    if isinstance(callee, va.Union):
        return _call_union(m, callee, arguments, node)
    if isinstance(callee, va.Context):
        return _call_context(m, callee, arguments)
    if isinstance(callee, va.Obj):
        return _call_object(m, callee, arguments, node)
    m.count("unknown_calls")
    for value in arguments:
        m.escape(value, node, "an unknown callable")
    return va.unknown(None, taint=m.taint(*arguments) | of_parameters(arguments))


def of_parameters(arguments: va.Arguments) -> frozenset[str]:
    """The taint of what is made of all parameters of something: an optimizer, if it is used as one."""
    given = (member for value in arguments for member in va.alternatives(value))
    is_given = any(isinstance(v, va.Parameters) and not v.single and not v.gradients for v in given)
    return frozenset([va.OF_PARAMETERS]) if is_given else frozenset[str]()


def _call_union(m: Machine, callee: va.Union, arguments: va.Arguments, node: nd.Node) -> va.Value:
    members = [v for v in callee.values if not (isinstance(v, va.Const) and v.value is None)]
    known = [v for v in members if not isinstance(v, va.Unknown)] or members
    if len(known) == 1:
        return call_value(m, known[0], arguments, node)

    def branch(number: int, member: va.Value) -> Callable[[], va.Value]:
        def run() -> va.Value:
            outer, m.choices = m.choices, (*m.choices, number)
            try:
                return call_value(m, member, arguments, node)
            finally:
                m.choices = outer

        return run

    passed = len(m.passed_in_order)
    value = m.fork([branch(number, v) for number, v in enumerate(known[:4])], join_values)
    if sum(isinstance(v, va.Function) for v in known) > 1:
        m.forget_passed(passed)  # which of them is called here is not known
    if value is None:
        raise DeadPathError
    return value


def _is_step_of_closure(receiver: va.Value, arguments: va.Arguments) -> bool:
    is_optimizer = isinstance(receiver, va.Obj) and receiver.kind is va.Kind.OPTIMIZER
    return is_optimizer and any(isinstance(first_known(given), va.Function) for given in arguments)


# Their methods change what is given to them, so that a call through one of several changes it once.
_TOOLS = frozenset([va.Kind.SCALER, va.Kind.ACCELERATOR, va.Kind.FABRIC])


def _call_one_of(
    m: Machine, tools: list[va.Value], name: str, arguments: va.Arguments, node: nd.Node
) -> va.Value:
    methods = tuple[va.Value, ...](va.Method(tool.evidence, tool, name) for tool in tools)
    return _call_union(m, va.Union(None, methods), arguments, node)


def _call_context(m: Machine, context: va.Context, arguments: va.Arguments) -> va.Value:
    """`torch.no_grad()(function)`."""
    if arguments.positional:
        target = first_known(arguments.positional[0])
        if isinstance(target, va.Function):
            return replace(target, wraps=(*target.wraps, context))
    return arguments.positional[0] if arguments.positional else va.UNKNOWN


def _call_object(m: Machine, obj: va.Obj, arguments: va.Arguments, node: nd.Node) -> va.Value:
    if obj.cls is not None and obj.kind is not va.Kind.MODULE:
        method = find_member(m, obj.cls, "__call__")
        if isinstance(method, va.Function):
            return call_function(m, replace(method, self=obj), arguments, node)
    return m.library.call_object(m, obj, arguments, node)


def call_method(
    m: Machine, receiver: va.Value, name: str, arguments: va.Arguments, node: nd.Node
) -> va.Value:
    """`receiver.name(...)`; applied to every alternative of a union."""
    if isinstance(receiver, va.Union):
        members = [v for v in receiver.values if not (isinstance(v, va.Const) and v.value is None)]
        known = [v for v in members if not isinstance(v, va.Unknown)] or members or list(receiver.values)
        if all(isinstance(v, va.Obj) and v.kind in _TOOLS for v in known) and len(known) > 1:
            return _call_one_of(m, known, name, arguments, node)
        result: va.Value | None = None
        for member in known:
            value = call_method(m, member, name, arguments, node)
            result = value if result is None else join_values(result, value)
            if name == "step" and _is_step_of_closure(member, arguments):
                break  # it runs once, whichever optimizer it is, and all have stepped
        return result if result is not None else va.UNKNOWN
    if isinstance(receiver, va.Obj):
        own = m.attribute(receiver, name)
        if own is not None:
            return call_value(m, own, arguments, node)
        if receiver.cls is not None:
            found = find_member(m, receiver.cls, name)
            if (
                name == "forward"
                and receiver.kind is va.Kind.MODULE
                and found is not None
                and m.forward is None
            ):
                return m.library.method(m, receiver, name, arguments, node)  # a pass of its own
            if isinstance(found, va.Function) and "property" in found.marks:
                held = call_function(m, replace(found, self=receiver), va.NO_ARGUMENTS, node)
                return call_value(m, held, arguments, node)
            if found is not None:
                if receiver.kind is va.Kind.OPTIMIZER and name in ("step", "zero_grad"):
                    done = m.library.method(m, receiver, name, arguments, node)
                    if len(tuple(arguments)):  # a closure, which was run, or flags
                        return done
                value = call_value(m, bound(m, found, receiver), arguments, node)
                return m.library.returned(m, receiver, name, value, node)
    elif isinstance(receiver, va.Class):
        own = find_member(m, receiver, name)
        if isinstance(own, va.Function):
            if "classmethod" in own.marks:
                own = replace(own, self=receiver)
            return call_function(m, own, arguments, node)
        if own is not None:
            return call_value(m, own, arguments, node)
        if receiver.library_bases:
            return _library_class_method(m, receiver, name, arguments, node)
    elif isinstance(receiver, (va.Library, va.ProjectModule)):
        return call_value(m, get_attribute(m, receiver, name, node), arguments, node)
    elif isinstance(receiver, va.Super):
        return _call_super(m, receiver, name, arguments, node)
    return m.library.method(m, receiver, name, arguments, node)


def _library_class_method(
    m: Machine, cls: va.Class, name: str, arguments: va.Arguments, node: nd.Node
) -> va.Value:
    """`Net.load_from_checkpoint(...)`, `Net.from_pretrained(...)`: an instance of the class."""
    if name.startswith(("load_from", "from_")):
        return m.library.instance(m, cls, node)
    if name == "apply":  # torch.autograd.Function
        return m.attach(None, arguments, node)
    return va.UNKNOWN


def _call_super(
    m: Machine, receiver: va.Super, name: str, arguments: va.Arguments, node: nd.Node
) -> va.Value:
    cls = receiver.self.cls if isinstance(receiver.self, va.Obj) and receiver.self.cls else receiver.owner
    member = find_member(m, cls, name, after=receiver.owner)
    if isinstance(member, va.Function):
        return call_function(m, replace(member, self=receiver.self), arguments, node)
    if name in ("__init__", "__post_init__", "setup"):
        if isinstance(receiver.self, va.Obj):
            return m.library.method(m, receiver.self, "super().__init__", arguments, node)
        return va.NONE
    return m.library.method(m, receiver.self, name, arguments, node)


def bound(m: Machine, member: va.Value, receiver: va.Value) -> va.Value:
    """A class member taken from an instance."""
    if not isinstance(member, va.Function) or member.self is not None or member.owner is None:
        return member
    if "staticmethod" in member.marks:
        return member
    if "classmethod" in member.marks and isinstance(receiver, va.Obj) and receiver.cls is not None:
        return replace(member, self=receiver.cls)
    return replace(member, self=receiver)


def find_member(m: Machine, cls: va.Class, name: str, after: va.Class | None = None) -> va.Value | None:
    """A function or attribute of the class or its bases in the project, in method resolution order."""
    skipping = after is not None
    for one in cls.mro:
        if skipping:
            skipping = after is None or one.id != after.id
            continue
        value = m.state.get(("v", one.id, name))
        if value is not None:
            return cast("va.Value", value)
    return None


def get_attribute(m: Machine, value: va.Value, name: str, node: nd.Node) -> va.Value:
    """`value.name`, not called."""
    if isinstance(value, va.Union):
        members = [v for v in value.values if not (isinstance(v, va.Const) and v.value is None)]
        known = [v for v in members if not isinstance(v, va.Unknown)] or members or [va.UNKNOWN]
        out = get_attribute(m, known[0], name, node)
        for other in known[1:]:
            out = join_values(out, get_attribute(m, other, name, node))
        return out
    if isinstance(value, va.Library):
        return va.Library(value.evidence, f"{value.path}.{name}")
    if isinstance(value, va.ProjectModule):
        from torchwise_analysis.interp.abstract import imports

        return imports.member(m, value, name, node)
    if isinstance(value, va.Obj):
        return _object_attribute(m, value, name, node)
    if isinstance(value, va.Class):
        member = find_member(m, value, name)
        if member is not None:
            return member
        return va.Const(None, value.name) if name == "__name__" else va.unknown(f"{value.name}.{name}")
    if isinstance(value, va.Super):
        cls = value.self.cls if isinstance(value.self, va.Obj) and value.self.cls else value.owner
        member = find_member(m, cls, name, after=value.owner)
        return bound(m, member, value.self) if member is not None else va.Method(None, value.self, name)
    found = m.library.attribute(m, value, name, node)
    if found is not None:
        return found
    if isinstance(value, va.Unknown):
        symbol = f"{value.symbol}.{name}" if value.symbol and len(value.symbol) < 200 else None
        return va.unknown(symbol, taint=value.taint, varies=value.varies)
    if isinstance(value, va.Function) and name in ("__name__", "__qualname__", "__doc__"):
        return va.Const(None, value.name)
    return va.Method(None, value, name)


def _object_attribute(m: Machine, obj: va.Obj, name: str, node: nd.Node) -> va.Value:
    own = m.attribute(obj, name)
    if own is None and obj.kind is va.Kind.TUPLE:
        own = records.element(m, obj, name)
    if own is not None:
        return own
    if obj.cls is not None:
        member = find_member(m, obj.cls, name)
        if _is_flag(member) and obj.kind is va.Kind.INSTANCE and m.state.get(("open", obj.id)):
            return _setting(obj, name)
        if isinstance(member, va.Function) and "property" in member.marks:
            return call_function(m, replace(member, self=obj), va.NO_ARGUMENTS, node)
        if _is_field(member):  # of an instance that nobody in view made
            return va.UNKNOWN
        if member is not None:
            return bound(m, member, obj)
    found = m.library.attribute(m, obj, name, node)
    if found is not None:
        return found
    if "options" in obj.traits:
        return va.unknown(f"{obj.symbol}.{name}")
    if obj.kind in (va.Kind.MODULE, va.Kind.OPAQUE, va.Kind.INSTANCE, va.Kind.TRAINER, va.Kind.ENGINE):
        return m.child(obj, name)
    return va.unknown(f"{obj.symbol}.{name}") if obj.symbol else va.Method(None, obj, name)


def forget_settings(m: Machine, value: va.Value, depth: int = 0) -> None:
    """Attributes whose names are computed were set: flags may be on or off now.

    Numbers and texts keep their defaults: what follows from these is right for a run without options.
    """
    for obj in va.alternatives(value):
        if not isinstance(obj, va.Obj):
            continue
        if obj.kind in (va.Kind.TUPLE, va.Kind.LIST) and depth < 2:
            for item in m.items(obj):
                forget_settings(m, item, depth + 1)
        if obj.kind is not va.Kind.INSTANCE:
            continue
        m.state.set(("open", obj.id), True)
        for key, held in list(m.state.facts.items()):
            if key[0] == "a" and key[1] == obj.id and _is_flag(held):
                m.state.set(key, _setting(obj, str(key[2])))


def _is_flag(value: object) -> bool:
    return isinstance(value, va.Const) and (value.value is None or isinstance(value.value, bool))


def _setting(obj: va.Obj, name: str) -> va.Unknown:
    return va.unknown(f"{obj.symbol or obj.name or f'#{obj.id}'}.{name}")


# --------------------------------------------------------------------------- functions


def make_function(m: Machine, node: nd.FunctionDef | nd.Lambda, owner: va.Class | None) -> va.Function:
    """A closure over the running frames; defaults are evaluated now, once."""
    frame = m.frames[-1]
    scope = frame.scope if owner is None else frame.scope[1:]
    defaults = tuple(m.eval(p.default) if p.default is not None else None for p in node.params)
    return va.Function(None, m.code(node), m.file, scope, defaults, owner=owner)


def call_function(
    m: Machine,
    function: va.Function,
    arguments: va.Arguments,
    node: nd.Node | None,
    on_yield: Callable[[va.Value], va.Value] | None = None,
    entry: bool = False,
) -> va.Value:
    """Run a function of the project on these arguments (`entry`: on unknown ones)."""
    key = function.key
    m.reached.add(key)
    m.pass_definition(function)
    m.note_read(function.code)
    if function.partial is not None:
        given = {k for k, _ in arguments.keywords}
        arguments = va.Arguments(
            (*function.partial.positional, *arguments.positional),
            (*(kv for kv in function.partial.keywords if kv[0] not in given), *arguments.keywords),
            function.partial.open or arguments.open,
        )
        function = replace(function, partial=None)
    if on_yield is None and not entry:
        if "contextmanager" in function.marks:
            return va.Context(None, "generator", function=function, arguments=arguments)
        if function.node.scope.is_generator:
            return _generator(m, function, arguments, node)
    _note_override(m, function)
    if _is_overridden(m, function):
        return _not_run(m, arguments) if m.all_tensors(arguments) else va.UNKNOWN
    if _is_recursion(m, function, arguments) or len(m.frames) > m.limits.depth:
        m.count("cut")
        _set_unseen(m, function, arguments)
        return _not_run(m, arguments) if m.all_tensors(arguments) else va.UNKNOWN
    if not entry and node is not None and _cannot_matter(m, function, arguments):
        m.count("skipped")
        _set_unseen(m, function, arguments)
        if m.all_tensors(arguments):
            return _not_run(m, arguments)
        return va.unknown(None, taint=m.taint(*arguments))
    scopes = m.scopes
    for context in function.wraps:
        scopes = contexts.inside(m, scopes, context)
    if beliefs.runs_without_gradients(function):
        scopes = scopes._replace(grad=NOT_RECORDING)
    if entry or node is None or on_yield is not None:
        return m.with_scopes(scopes, lambda: _run_function(m, function, arguments, node, on_yield, entry))

    def body() -> va.Value:
        return _run_function(m, function, arguments, node)

    return _budgeted(m, function, arguments, node, lambda: m.with_scopes(scopes, body))


def _is_overridden(m: Machine, function: va.Function) -> bool:
    """An abstract method without a body, of an object whose class is not known exactly: another one runs."""
    holder, node = function.self, function.node
    if "abstract" not in function.marks or not isinstance(node, nd.FunctionDef):
        return False
    is_open = isinstance(holder, va.Obj) and holder.place is None
    return is_open and m.body_facts(node.body).is_stub


def _note_override(m: Machine, function: va.Function) -> None:
    """A method without a body, of an object whose class is not known exactly: another one runs, which may do
    anything with the optimizers of the object."""
    holder, node = function.self, function.node
    if not isinstance(holder, va.Obj) or holder.place is not None or not m.optimizers:
        return
    if isinstance(node, nd.FunctionDef) and m.body_facts(node.body).is_stub:
        held = (o.id for o in m.optimizers if m.state.get(("a", holder.id, o.name)) is not None)
        m.escaped.update(held)


_DESCENTS, _SHORT_HELPER = 3, 120
_DESCENDED = (va.Tensor, va.Kind.LIST, va.Kind.TUPLE, va.Kind.DICT)


def _is_recursion(m: Machine, function: va.Function, arguments: va.Arguments) -> bool:
    """Does a running function call itself on the like of what it was given? A short one may go down from a
    container to what is in it, which ends."""
    key, node = function.key, function.node
    running = [frame.given for frame in m.frames if frame.key == key]
    if not running:
        return False
    if not isinstance(node, nd.FunctionDef) or node.name.startswith("__"):
        return True
    if m.body_facts(node.body).size > _SHORT_HELPER:
        return True
    asked = _kinds(arguments)
    is_known = any(kind in _DESCENDED for kinds in asked for kind in kinds)
    return not is_known or len(running) >= _DESCENTS or any(_kinds(given) == asked for given in running)


def _kinds(arguments: va.Arguments) -> list[tuple[object, ...]]:
    return [
        tuple(v.kind if isinstance(v, va.Obj) else type(v) for v in va.alternatives(value))
        for value in arguments
    ]


def _not_run(m: Machine, arguments: va.Arguments, pass_: int | None = None) -> va.Tensor:
    given = m.attach(pass_, arguments, None)
    return replace(given, taint=given.taint | {va.SKIPPED})


def _set_unseen(m: Machine, function: va.Function, arguments: va.Arguments) -> None:
    """What a function that is not run may do to settings that it is given."""
    node = function.node
    if isinstance(node, nd.FunctionDef) and "setattr" in m.body_facts(node.body).called:
        for value in arguments:
            forget_settings(m, value)


_ANNOTATED_DEPTH = 4  # frames; parts of parts of an argument matter little
_ABORTED_OFTEN = 2
_FAIR_SHARE = 5000  # visits; who got less and failed was only called late


def _budgeted(
    m: Machine,
    function: va.Function,
    arguments: va.Arguments,
    node: nd.Node,
    run: Callable[[], va.Value],
) -> va.Value:
    """A callee may spend half of what is left; one that needs more is given up, its caller goes on.

    What module code calls is the program itself and may spend nearly all. The inside of a forward tells
    little more than that it is one: it gets a fixed small share.
    """
    if m.aborted.get(function.key, 0) >= _ABORTED_OFTEN:
        if m.forward is None:
            m.unfinished.add((function.key, m.world))
        return _given_up(m, function, arguments, node)
    whole, mark, guards, world = m.cap, m.state.mark(), m.guards, m.world
    passed = len(m.passed_in_order)
    left = max(whole - m.visits, 1)
    share = left - left // 8 if len(m.frames) < 2 else (left + 1) // 2
    if m.forward is not None:
        share = min(share, m.limits.forward_visits)
    m.cap = min(whole, m.visits + share)
    try:
        result = run()
        m.finished.add((function.key, world))
        return result
    except OutOfFuelError:
        m.forget_passed(passed)
        if m.forward is None:
            m.unfinished.add((function.key, world))
        if m.visits >= whole or len(m.events) >= m.events_left:
            raise
        is_large = share >= _FAIR_SHARE or share == m.limits.forward_visits
        if is_large:
            m.aborted[function.key] = m.aborted.get(function.key, 0) + 1
        m.state.rollback(mark)
        m.alive, m.guards = True, guards
        why = "is too large to follow from here" if is_large else "was met when the limit was nearly spent"
        m.cut_short(m.place(node), f"`{function.name}` {why}")
    finally:
        m.cap = whole
    return _given_up(m, function, arguments, node)


def _given_up(m: Machine, function: va.Function, arguments: va.Arguments, node: nd.Node) -> va.Value:
    m.count("cut")
    if m.forward is not None:  # a layer like any other
        return _not_run(m, arguments, m.forward[1])
    kept = _only_saved(function, arguments)
    for value in arguments:
        if not any(value is one for one in kept):
            m.escape(value, node, function.name)
    if function.self is not None:
        m.escape(function.self, node, function.name)
    return _not_run(m, arguments) if m.all_tensors(arguments) else va.UNKNOWN


_SAVING = frozenset(["state_dict", "param_groups", "defaults"])


def _only_saved(function: va.Function, arguments: va.Arguments) -> list[va.Value]:
    """Optimizers among the arguments of which the function only reads the state: it steps none of them."""
    node = function.node
    if isinstance(node, nd.Lambda) or arguments.open:
        return []
    given = arguments.positional if function.self is None else (function.self, *arguments.positional)
    bound_ = bind(node.params, given, dict(arguments.keywords)).values
    optimizers = {
        name: value
        for name, value in bound_.items()
        if isinstance(value, va.Obj) and value.kind is va.Kind.OPTIMIZER
    }
    if not optimizers:
        return []
    seen = [inner for statement in node.body for inner in walk(statement)]
    harmless = {id(one.value) for one in seen if isinstance(one, nd.Attribute) and one.attr in _SAVING}
    for one in seen:
        if isinstance(one, nd.Call) and isinstance(one.func, nd.Name) and one.func.id == "isinstance":
            harmless.update(id(argument) for argument in one.args)
    other = {one.id for one in seen if isinstance(one, nd.Name) and id(one) not in harmless}
    return [value for name, value in optimizers.items() if name not in other]


def _generator(m: Machine, function: va.Function, arguments: va.Arguments, node: nd.Node | None) -> va.Value:
    return va.Obj(
        None,
        m.fresh_id(),
        va.Kind.ITERATOR,
        "generator",
        place=m.place(node) if node is not None else None,
        birth=m.loops,
        arguments=arguments,
        over=(function,),
    )


def _cannot_matter(m: Machine, function: va.Function, arguments: va.Arguments) -> bool:
    node = function.node
    if isinstance(node, nd.Lambda):
        return False
    receiver = function.self
    if isinstance(receiver, va.Obj) and receiver.kind is va.Kind.MODULE and function.name == "__init__":
        return False  # what a module consists of decides what its forwards mean
    facts = m.body_facts(node.body)
    if m.matters(facts):
        return False
    if any(isinstance(v, (va.Function, va.Class)) or _is_module(v) for v in arguments):
        return False
    if any(t.passes for t in m.all_tensors(arguments)):
        return False
    return not _reaches_module(m, function, facts.names)


def _is_module(value: object) -> bool:
    kinds = (va.Kind.MODULE, va.Kind.ENGINE)
    members = va.alternatives(value) if isinstance(value, va.Value) else ()
    return any(isinstance(one, va.Obj) and one.kind in kinds for one in members)


def _reaches_module(m: Machine, function: va.Function, names: frozenset[str]) -> bool:
    """Does it speak of a module of its own object, or of the scopes around it? It may run it."""
    facts, receiver = m.state.facts, function.self
    keys: list[tuple[object, ...]] = [("v", frame, name) for frame in function.frames for name in names]
    if isinstance(receiver, va.Obj):
        keys += [("a", receiver.id, name) for name in names]
    return any(_is_module(facts[key]) for key in keys if key in facts)


def _run_function(
    m: Machine,
    function: va.Function,
    arguments: va.Arguments,
    node: nd.Node | None,
    on_yield: Callable[[va.Value], va.Value] | None = None,
    entry: bool = False,
) -> va.Value:
    frame_id = m.fresh_id()
    body = function.node.body if isinstance(function.node, nd.FunctionDef) else ()
    scope = function.node.scope
    frame = Frame(
        frame_id,
        (frame_id, *function.frames),
        function.path,
        m.body_facts(body),
        function.name,
        function,
        function.owner,
        on_yield=on_yield,
        loops=m.loops,
        key=function.key,
        declares=bool(scope.global_ or scope.nonlocal_),
        given=arguments,
    )
    file, line, calls, guards, world = m.file, m.line, m.calls, m.guards, m.world
    if m.frames and node is not None:
        m.calls = (*calls, Caller(m.place(node), m.frames[-1].name, m.frames[-1].id))
    mark = m.state.mark()
    m.frames.append(frame)
    m.file, m.line = function.path, function.line
    try:
        _bind_parameters(m, frame, function, arguments, entry)
        if isinstance(function.node, nd.Lambda):
            value = m.eval(function.node.body)
            m.state.drop(("lambda",))
            return value
        exits = run_worlds(m, frame, lambda: m.run_block(body))
    finally:
        m.frames.pop()
        m.file, m.line, m.calls, m.guards, m.world = file, line, calls, guards, world
    return _leave(m, frame, function, mark, exits)


def run_worlds(m: Machine, frame: Frame, body: Callable[[], None]) -> list[tuple[va.Value, Facts]]:
    """Run a body once for each setting of the flags that it tests more than once; all its exits."""
    frame.mark = m.state.mark()
    # the runs of nested functions multiply: their product is bounded
    running = 1
    for outer_frame in m.frames[:-1]:
        running *= max(1, outer_frame.worlds)
    frame.budget = m.limits.worlds // running - 1
    outer, guards = m.world, m.guards
    pending: list[tuple[tuple[str, bool], ...]] = [()]
    exits: list[tuple[va.Value, Facts]] = []
    while pending:
        fixed = pending.pop()
        frame.exits, frame.unfinished, frame.decided = [], None, []
        m.world = (*outer, *fixed) if fixed else outer
        m.guards = guards
        frame.worlds = 2 ** len(fixed) if fixed else 1
        body()
        if m.alive:
            frame.exits.append((va.NONE, m.state.changes(frame.mark)))
        if not frame.exits and frame.unfinished is not None and frame.facts.raises_only:
            frame.exits.append((va.UNKNOWN, frame.unfinished))
        exits.extend(frame.exits)
        pending.extend(
            (*fixed, *((s, True) for s in frame.decided[:index]), (frame.decided[index], False))
            for index in reversed(range(len(frame.decided)))
        )
        m.state.rollback(frame.mark)
        m.alive = True
    m.world = outer
    return exits


def _leave(
    m: Machine, frame: Frame, function: va.Function, mark: int, exits: list[tuple[va.Value, Facts]]
) -> va.Value:
    if not exits:
        m.state.rollback(mark)
        if not m.frames:
            m.alive = False
            return va.UNKNOWN
        raise DeadPathError
    if len(exits) > 1 or function.node.scope.captured:
        m.state.merge(frame.mark, [facts for _, facts in exits], join)
    if not function.node.scope.captured:
        # own variables are gone; dropping them keeps later joins small
        changes = m.state.changes(mark)
        if len(exits) == 1:
            changes.update(exits[0][1])
        m.state.rollback(mark)
        m.state.apply({k: v for k, v in changes.items() if not (k[0] == "v" and k[1] == frame.id)})
    value = exits[0][0]
    for other, _ in exits[1:]:
        value = join_values(value, other)
    return value


def _bind_parameters(
    m: Machine, frame: Frame, function: va.Function, arguments: va.Arguments, entry: bool
) -> None:
    params = function.node.params
    positional = arguments.positional
    if function.self is not None:
        positional = (function.self, *positional)
    binding = bind(params, positional, dict(arguments.keywords))
    state, fid = m.state, frame.id
    for index, param in enumerate(params):
        value: va.Value | None = binding.values.get(param.name)
        if param.kind is nd.ParamKind.VAR_POSITIONAL:
            value = m.sequence(binding.extra_positional, None, va.Kind.TUPLE)
            if entry or (arguments.open and not binding.extra_positional):
                state.set(("open", value.id), True)
            elif not binding.extra_positional:
                value = replace(value, traits=frozenset(["empty"]))
        elif param.kind is nd.ParamKind.VAR_KEYWORD:
            unseen = frozenset(["unseen"]) if entry or arguments.open else frozenset[str]()
            extra: dict[object, va.Value] = {}
            extra.update(binding.extra_keywords)
            value = m.mapping(
                extra,
                None,
                traits=unseen,
                symbol=param.name if unseen else None,
            )
        elif value is None:
            default = function.defaults[index] if index < len(function.defaults) else None
            if entry:
                value = unknowns.entry_argument(m, function, param, frame.facts, default)
            elif default is not None and not arguments.open:
                value = default
            elif default is not None:
                value = join_values(default, va.unknown(param.name))
            else:
                value = unknowns.argument(m, param, frame.facts)
        else:
            value = unknowns.given(m, function, param, frame.facts, value)
        state.set(("v", fid, param.name), value)


# --------------------------------------------------------------------------- classes


def instantiate(m: Machine, cls: va.Class, arguments: va.Arguments, node: nd.Node) -> va.Value:
    """An instance of a class of the project, its `__init__` run."""
    if cls.derives("NamedTuple"):
        fields = tuple((name, find_member(m, cls, name) or va.NONE) for name in _field_names(cls))
        return records.of_class(m, cls, fields, arguments, node)
    if cls.derives("torch.autograd.Function", "Exception", "BaseException", "Enum", "Protocol"):
        return va.UNKNOWN if not m.all_tensors(arguments) else m.attach(None, arguments, node)
    m.pass_definition(cls)
    obj = replace(m.library.instance(m, cls, node), arguments=arguments)
    m.objects[obj.id] = obj
    init = find_member(m, cls, "__init__")
    if isinstance(init, va.Function):
        cut = m.counts.cut
        call_function(m, replace(init, self=obj), arguments, node)
        if m.counts.cut != cut:
            m.state.set(("partial", obj.id), True)
    elif obj.kind is va.Kind.LOADER:
        m.library.method(m, obj, "super().__init__", arguments, node)
    elif find_member(m, cls, "__new__") is not None:  # sets what the class declares
        m.state.set(("open", obj.id), True)
    else:
        set_fields(m, cls, obj, arguments, node)
        then = find_member(m, cls, "__post_init__")
        if isinstance(then, va.Function):
            call_function(m, replace(then, self=obj), va.NO_ARGUMENTS, node)
    return m.objects.get(obj.id, obj)


def unseen_instance(m: Machine, cls: va.Class) -> va.Obj:
    """An instance that somebody out of view made: built here, on unknown arguments."""
    obj = m.library.instance(m, cls, None)
    init = find_member(m, cls, "__init__") or find_member(m, cls, "__post_init__")
    if isinstance(init, va.Function):
        try:
            call_function(m, replace(init, self=obj), va.NO_ARGUMENTS, None, entry=True)
        except DeadPathError:
            m.alive = True
    return m.objects.get(obj.id, obj)


def annotated_instance(m: Machine, cls: va.Class) -> va.Obj:
    """An argument of which an annotation tells the class: a module with its parts, as far as a small share of
    the fuel goes, in a mode that nobody knows."""
    obj = m.library.instance(m, cls, None)
    init = find_member(m, cls, "__init__")
    is_deep = len(m.frames) > _ANNOTATED_DEPTH
    if obj.kind is not va.Kind.MODULE or not isinstance(init, va.Function) or is_deep:
        return obj
    whole, mark, guards, forward = m.cap, m.state.mark(), m.guards, m.forward
    m.cap = min(whole, m.visits + m.limits.forward_visits)
    m.forward = None  # it was made before, by somebody else
    try:
        call_function(m, replace(init, self=obj), va.NO_ARGUMENTS, None, entry=True)
    except DeadPathError:
        m.alive = True
    except OutOfFuelError:
        if m.visits >= whole or len(m.events) >= m.events_left:
            raise
        m.state.rollback(mark)
        m.alive, m.guards = True, guards
        m.count("cut")
    finally:
        m.cap, m.forward = whole, forward
    m.set_mode(obj, frozenset([va.Mode("unknown")]))
    return m.objects.get(obj.id, obj)


FIELD = "dataclasses.field"


def _is_field(value: object) -> TypeGuard[va.Obj]:
    """Is it what `field(...)` of dataclasses, attrs or pydantic gives?"""
    return isinstance(value, va.Obj) and value.type_name == FIELD


def _field_default(m: Machine, field: va.Obj, node: nd.Node) -> va.Value | None:
    """What an instance gets that is given nothing for the field."""
    factory = field.arguments.get("default_factory") or field.arguments.get("factory")
    if factory is not None:
        return call_value(m, factory, va.NO_ARGUMENTS, node)
    return field.arguments.get("default")


def set_fields(m: Machine, cls: va.Class, obj: va.Obj, arguments: va.Arguments, node: nd.Node) -> None:
    """A dataclass: fields in order of annotation."""
    fields = _field_names(cls)
    given: dict[str, va.Value] = {}
    if arguments.open:  # `Config(**read)`: which fields keep their defaults is not known
        base = obj.symbol or obj.name or f"#{obj.id}"
        given = {field: va.unknown(f"{base}.{field}") for field in fields}
    given.update(zip(fields, arguments.positional, strict=False))
    given.update(arguments.keywords)
    for name in fields:
        default = find_member(m, cls, name) if name not in given else None
        made = _field_default(m, default, node) if _is_field(default) else None
        if made is not None:
            given[name] = made
    for name, value in given.items():
        m.state.set(("a", obj.id, name), value)
    if m.all_tensors(given.values()):  # what it holds goes where it goes
        m.state.set(("names", obj.id), tuple(given))
        m.objects[obj.id] = replace(m.objects[obj.id], traits=obj.traits | {"result"})


def _field_names(cls: va.Class) -> list[str]:
    return [
        statement.target.id
        for one in reversed(cls.mro)
        for statement in flat(one.node.body)
        if isinstance(statement, nd.AnnAssign) and isinstance(statement.target, nd.Name)
    ]


def flat(body: nd.Block) -> list[nd.Stmt]:
    """Statements with `Placed` opened."""
    out: list[nd.Stmt] = []
    for statement in body:
        if isinstance(statement, nd.Placed):
            out.extend(flat(statement.body))
        else:
            out.append(statement)
    return out
