"""Python's built-ins and the standard library, as far as training code leans on them."""

from __future__ import annotations

from typing import cast

from torchwise_analysis.interp.abstract import calls, iteration
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import RECORDING, Machine, first_known
from torchwise_analysis.quick import replace
from torchwise_analysis.semantics import tensors
from torchwise_analysis.semantics.by_name import some_member
from torchwise_analysis.semantics.registry import (
    Call,
    fallback,
    function,
    method,
    text_of,
    truth_of,
)
from torchwise_analysis.source import nodes as nd

NAMES = frozenset(
    [
        "print",
        "len",
        "range",
        "enumerate",
        "zip",
        "float",
        "int",
        "str",
        "bool",
        "sum",
        "isinstance",
        "list",
        "tuple",
        "dict",
        "set",
        "frozenset",
        "map",
        "filter",
        "min",
        "max",
        "abs",
        "round",
        "sorted",
        "reversed",
        "open",
        "getattr",
        "setattr",
        "hasattr",
        "type",
        "iter",
        "next",
        "any",
        "all",
        "repr",
        "super",
        "object",
        "id",
        "format",
        "input",
        "vars",
        "callable",
        "issubclass",
        "divmod",
        "pow",
        "bytes",
        "complex",
        "delattr",
        "dir",
        "hash",
        "hex",
        "exit",
        "quit",
        "globals",
        "locals",
        "staticmethod",
        "classmethod",
        "property",
        "slice",
        "memoryview",
        "bytearray",
        "ord",
        "chr",
        "bin",
        "eval",
        "exec",
        "compile",
        "__import__",
        "Exception",
        "BaseException",
        "ValueError",
        "RuntimeError",
        "TypeError",
        "KeyError",
        "IndexError",
        "StopIteration",
        "NotImplementedError",
        "AssertionError",
        "AttributeError",
        "ImportError",
        "ModuleNotFoundError",
        "OSError",
        "IOError",
        "FileNotFoundError",
        "KeyboardInterrupt",
        "ZeroDivisionError",
        "MemoryError",
        "UserWarning",
        "DeprecationWarning",
        "FutureWarning",
        "Warning",
        "SystemExit",
        "EOFError",
        "ArithmeticError",
        "OverflowError",
        "LookupError",
        "UnicodeDecodeError",
        "TimeoutError",
        "ConnectionError",
        "PermissionError",
        "FileExistsError",
        "GeneratorExit",
        "RecursionError",
        "NotImplemented",
        "Ellipsis",
    ]
)

_SEQUENCES = (va.Kind.LIST, va.Kind.TUPLE, va.Kind.SET)


def _iterator(
    m: Machine, name: str, over: tuple[va.Value, ...], call: Call, arguments: va.Arguments = va.NO_ARGUMENTS
) -> va.Obj:
    return va.Obj(
        None,
        m.fresh_id(),
        va.Kind.ITERATOR,
        name,
        place=m.place(call.node),
        birth=m.loops,
        over=over,
        arguments=arguments,
    )


@function("builtins.range")
def range_(m: Machine, call: Call) -> va.Value:
    args = [first_known(a) for a in call.arguments.positional]
    numbers = [
        a.value for a in args if isinstance(a, va.Const) and isinstance(a.value, int) and a.counter is None
    ]
    if len(numbers) == len(args) and 1 <= len(numbers) <= 3 and (len(numbers) < 3 or numbers[2] != 0):
        whole = range(*numbers)
        # `len` is for what fits into a machine word
        rounds = max(0, -((whole.start - whole.stop) // whole.step))
        if rounds <= 3:
            return va.Const(None, whole)
        return replace(
            _iterator(m, "range", (), call, va.Arguments((va.Const(None, whole.start),))),
            traits=frozenset([f"count:{rounds}"]),
        )
    start = args[0] if len(args) > 1 else va.Const(None, 0)
    over = tuple(args[-1:])
    return _iterator(m, "range", over, call, va.Arguments((start,)))


@function("builtins.enumerate", "tqdm.contrib.tenumerate")
def enumerate_(m: Machine, call: Call) -> va.Value:
    rest = [(k, v) for k, v in call.arguments.keywords if k == "start"]
    if len(call.arguments.positional) > 1:
        rest.append(("start", call.arguments.positional[1]))
    return _iterator(m, "enumerate", (call.first() or va.UNKNOWN,), call, va.Arguments((), tuple(rest)))


@function("builtins.zip", "itertools.zip_longest")
def zip_(m: Machine, call: Call) -> va.Value:
    return _iterator(m, "zip", call.arguments.positional, call)


@function("builtins.iter", "builtins.reversed", "builtins.sorted", "itertools.cycle", "itertools.islice")
def pass_through_iterator(m: Machine, call: Call) -> va.Value:
    over = first_known(call.first() or va.UNKNOWN)
    if isinstance(over, (va.Tensor, va.Parameters)):
        return over
    return _iterator(m, call.last, (over,), call, va.Arguments(call.arguments.positional[1:2]))


@function(
    "tqdm.tqdm",
    "tqdm.auto.tqdm",
    "tqdm.notebook.tqdm",
    "tqdm.autonotebook.tqdm",
    "tqdm.trange",
    "rich.progress.track",
    "tqdm.std.tqdm",
    "tqdm.asyncio.tqdm",
    "torch.hub.tqdm",
    "alive_progress.alive_it",
)
def progress(m: Machine, call: Call) -> va.Value:
    if call.last == "trange":
        return range_(m, call)
    over = call.get("iterable", 0)
    if over is None:
        return m.make(va.Kind.OPAQUE, call.node, "tqdm.tqdm", name="progress")
    return over


@function("itertools.chain", "itertools.chain.from_iterable")
def chain(m: Machine, call: Call) -> va.Value:
    values = [first_known(v) for v in call.arguments.positional]
    if values and all(isinstance(v, va.Parameters) for v in values):
        roots = frozenset(r for v in values if isinstance(v, va.Parameters) for r in v.roots)
        return va.Parameters(None, roots)
    items: list[va.Value] = []
    for value in values:
        items.extend(
            m.items(value)
            if isinstance(value, va.Obj) and m.items(value)
            else (iteration.element(m, value, call.node),)
        )
    out = m.sequence(items[-12:], call.node)
    m.state.set(("open", out.id), True)
    return out


@function("builtins.list", "builtins.tuple", "builtins.set", "builtins.frozenset")
def list_(m: Machine, call: Call) -> va.Value:
    kind = {"tuple": va.Kind.TUPLE, "set": va.Kind.SET, "frozenset": va.Kind.SET}.get(call.last, va.Kind.LIST)
    value = first_known(call.first()) if call.arguments.positional else None
    if value is None:
        return m.sequence((), call.node, kind)
    if isinstance(value, va.Parameters):
        return value
    if isinstance(value, va.Obj):
        if value.kind in _SEQUENCES or (value.kind is va.Kind.MODULE and m.items(value)):
            out = m.sequence(m.items(value), call.node, kind, traits=value.traits & {"chunks", "modules"})
            if m.state.get(("open", value.id)):
                m.state.set(("open", out.id), True)
            return out
        if value.kind is va.Kind.ITERATOR and value.type_name != "range":
            plan = iteration.plan(m, value, call.node) if value.type_name != "generator" else None
            elements = plan.elements if plan is not None else [iteration.generated(m, value, call.node)]
            out = m.sequence(elements, call.node, kind)
            if plan is None or plan.open:
                m.state.set(("open", out.id), True)
            return out
    return value


@function("builtins.dict", "collections.OrderedDict", "types.SimpleNamespace")
def dict_(m: Machine, call: Call) -> va.Value:
    value = first_known(call.arguments.positional[0]) if call.arguments.positional else None
    if isinstance(value, va.StateDict):
        return value
    entries: dict[object, va.Value] = dict(m.entries(value)) if isinstance(value, va.Obj) else {}
    entries.update(call.arguments.keywords)
    out = m.mapping(entries, call.node)
    if isinstance(value, va.Obj) and m.items(value):
        pairs = [first_known(p) for p in m.items(value)]
        for pair in pairs:
            parts = m.items(pair) if isinstance(pair, va.Obj) else tuple[va.Value, ...]()
            key = first_known(parts[0]) if len(parts) == 2 else None
            if isinstance(key, va.Const) and isinstance(key.value, (str, int)):
                entries[key.value] = parts[1]
    return out


@function("dataclasses.field", "attrs.field", "attr.ib", "attr.field", "pydantic.Field")
def field(m: Machine, call: Call) -> va.Value:
    """What each instance of the class gets is told by the arguments."""
    return m.make(va.Kind.OPAQUE, None, calls.FIELD, arguments=call.arguments)


@function("collections.deque", "queue.Queue", "collections.Counter")
def deque(m: Machine, call: Call) -> va.Value:
    bounded = call.get("maxlen", 1)
    traits = frozenset(["bounded"]) if bounded is not None and not _is_none(bounded) else frozenset[str]()
    kind = va.Kind.DICT if call.last == "Counter" else va.Kind.LIST
    items: tuple[va.Value, ...] = ()
    first = first_known(call.arguments.positional[0]) if call.arguments.positional else None
    if isinstance(first, va.Obj) and kind is va.Kind.LIST:
        items = m.items(first)
    return m.sequence(items, call.node, kind, traits=traits)


@function("collections.defaultdict")
def defaultdict(m: Machine, call: Call) -> va.Value:
    factory = first_known(call.first()) if call.first() is not None else None
    holds = "list" if isinstance(factory, va.Library) and factory.last in ("list", "deque") else "other"
    own = (factory,) if isinstance(factory, (va.Class, va.Function)) else ()
    return m.mapping({}, call.node, traits=frozenset(["factory", holds]), over=own)


def _is_none(value: va.Value) -> bool:
    return isinstance(value, va.Const) and value.value is None


@function("builtins.sum", "math.fsum")
def sum_(m: Machine, call: Call) -> va.Value:
    value = first_known(call.first() or va.UNKNOWN)
    if isinstance(value, va.Obj) and value.kind is va.Kind.ITERATOR:
        value = iteration.element(m, value, call.node)
    found = m.tensors(value)
    if not found:
        items = m.items(value) if isinstance(value, va.Obj) else ()
        return va.unknown(None, taint=m.taint(value, *items))
    return tensors.combine(m, found, call.node)


@function("builtins.max", "builtins.min")
def extreme(m: Machine, call: Call) -> va.Value:
    values = [first_known(v) for v in call.arguments.positional]
    if values and any(isinstance(v, va.Tensor) for v in values):
        return replace(
            tensors.combine(m, [v for v in values if isinstance(v, va.Tensor)], call.node), activation=None
        )
    if len(values) > 1 and all(isinstance(v, va.Const) and isinstance(v.value, (int, float)) for v in values):
        numbers = [cast("float", v.value) for v in values if isinstance(v, va.Const)]
        return va.Const(None, max(numbers) if call.last == "max" else min(numbers))
    found = m.all_tensors(values)
    if found:
        return tensors.combine(m, found, call.node)
    inside = (item for value in values if isinstance(value, va.Obj) for item in m.items(value))
    return va.unknown(None, taint=m.taint(*values, *inside))


@function("builtins.len")
def len_(m: Machine, call: Call) -> va.Value:
    value = first_known(call.first() or va.UNKNOWN)
    if (
        isinstance(value, va.Obj)
        and value.kind in (*_SEQUENCES, va.Kind.DICT)
        and not m.state.get(("open", value.id))
    ):
        count = len(m.items(value)) + len(m.entries(value))
        if count and count < 12:
            return va.Const(None, count)
    content = value.value if isinstance(value, va.Const) else None
    if isinstance(content, (str, tuple, range)):
        return va.Const(None, len(cast("tuple[object, ...]", content)))
    name = (
        value.symbol or value.name
        if isinstance(value, (va.Obj,))
        else value.symbol
        if isinstance(value, va.Unknown)
        else None
    )
    varies = isinstance(value, va.Obj) and value.kind is va.Kind.LIST
    return va.unknown(f"len({name})" if name else None, varies=varies, taint=m.taint(value))


@function(
    "builtins.float",
    "builtins.int",
    "builtins.bool",
    "builtins.str",
    "builtins.repr",
    "builtins.round",
    "builtins.format",
    "builtins.complex",
)
def convert(m: Machine, call: Call) -> va.Value:
    value = first_known(call.first()) if call.first() is not None else None
    if isinstance(value, va.Tensor):
        return tensors.number(m, value, call.node, f"{call.last}()")
    if isinstance(value, va.Const):
        try:
            maker = {"float": float, "int": int, "bool": bool, "str": str}.get(call.last)
            if maker is not None and isinstance(value.value, (int, float, str, bool)):
                return va.Const(None, maker(value.value), value.counter)
        except (ValueError, OverflowError):
            return va.UNKNOWN
        return va.UNKNOWN
    if isinstance(value, va.Unknown):
        return value
    if isinstance(value, va.Obj) and value.symbol:
        return va.unknown(value.symbol, taint=m.taint(value))
    return va.unknown(None, taint=m.taint(value))


@function("builtins.abs")
def abs_(m: Machine, call: Call) -> va.Value:
    value = first_known(call.first() or va.UNKNOWN)
    return (
        replace(value, activation=None)
        if isinstance(value, va.Tensor)
        else va.unknown(None, taint=m.taint(value))
    )


@function("builtins.print", "logging.info", "logging.debug", "logging.warning")
def print_(m: Machine, call: Call) -> va.Value:
    if m.scopes.compiled is not None:
        m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    tensors.report(m, call.arguments, call.node, "print")
    for value in call.arguments:
        for tensor in m.tensors(value):
            tensors.host_read(m, tensor, call.node, "print", cut=False)
    return va.NONE


@function("builtins.next")
def next_(m: Machine, call: Call) -> va.Value:
    over = first_known(call.first() or va.UNKNOWN)
    value = iteration.element(m, over, call.node)
    iteration.forget(m, value)
    return value


@function("builtins.map", "builtins.filter")
def map_(m: Machine, call: Call) -> va.Value:
    args = call.arguments.positional
    if len(args) < 2:
        return va.UNKNOWN
    over = first_known(args[1])
    if call.last == "filter":
        if isinstance(over, va.Parameters):
            return replace(over, filtered=True)
        return over
    if isinstance(over, va.Obj) and over.kind in _SEQUENCES and m.items(over) and len(args) == 2:
        values = [calls.call_value(m, args[0], va.Arguments((i,)), call.node) for i in m.items(over)[:4]]
    else:
        given = va.Arguments(tuple(iteration.element(m, first_known(a), call.node) for a in args[1:]))
        values = [calls.call_value(m, args[0], given, call.node)]
    out = m.sequence(values, call.node)
    m.state.set(("open", out.id), True)
    return out


@function("builtins.isinstance")
def isinstance_(m: Machine, call: Call) -> va.Value:
    value, wanted = call.get("", 0), call.get("", 1)
    if value is None or wanted is None:
        return va.UNKNOWN
    wanted = first_known(wanted)
    options = [first_known(w) for w in m.items(wanted)] if isinstance(wanted, va.Obj) else [wanted]
    answers = {_is_one_of(member, options) for member in va.alternatives(value)}
    return va.Const(None, answers.pop()) if len(answers) == 1 and None not in answers else va.UNKNOWN


@function("torch.is_tensor")
def is_tensor(m: Machine, call: Call) -> va.Value:
    of_tensors = va.Arguments((call.get("obj", 0) or va.UNKNOWN, va.Library(None, "torch.Tensor")))
    return isinstance_(m, Call(call.name, of_tensors, call.node))


def _is_one_of(value: va.Value, options: list[va.Value]) -> bool | None:
    answers = [_is_instance(value, wanted) for wanted in options]
    if True in answers:
        return True
    return None if None in answers or not answers else False


def _is_instance(value: va.Value, wanted: va.Value) -> bool | None:
    if isinstance(value, va.Obj) and value.cls is not None:
        if isinstance(wanted, va.Class):
            return any(c.id == wanted.id for c in value.cls.mro) or (None if value.place is None else False)
        if isinstance(wanted, va.Library):
            return value.cls.derives(wanted.last) or None
    if isinstance(value, va.Obj) and isinstance(wanted, va.Library) and value.place is not None:
        if value.type_name.rpartition(".")[2] == wanted.last:
            return True
        sequences = {"list": va.Kind.LIST, "tuple": va.Kind.TUPLE, "dict": va.Kind.DICT}
        if value.kind in sequences.values() and not value.type_name:
            if wanted.last in sequences:
                return value.kind is sequences[wanted.last]
            if wanted.path.startswith(("torch.", "numpy.", "numbers.")):
                return False
    if isinstance(value, va.Tensor) and isinstance(wanted, va.Library):
        if wanted.last == "Tensor":
            return True
        if wanted.path.startswith(("builtins.", "numpy.", "numbers.")):
            return False
        if wanted.last in ("Mapping", "MutableMapping", "Sequence", "MutableSequence"):
            return False
    if isinstance(value, va.Const) and isinstance(wanted, va.Library) and wanted.path.startswith("builtins."):
        kinds = {"int": int, "float": float, "str": str, "bool": bool}
        if wanted.last in kinds:
            return isinstance(value.value, kinds[wanted.last])
    is_class_of_tensors = isinstance(wanted, va.Library) and wanted.path.startswith(("torch.", "numpy."))
    return False if isinstance(value, va.Const) and is_class_of_tensors else None


@function("builtins.getattr")
def getattr_(m: Machine, call: Call) -> va.Value:
    value, name = call.get("", 0), text_of(call.get("", 1))
    if value is None:
        return va.UNKNOWN
    value = first_known(value)
    if name is None:
        return some_member(value) or va.UNKNOWN
    default = call.get("", 2)
    found = calls.get_attribute(m, value, name, call.node)
    if (
        default is not None
        and isinstance(value, va.Obj)
        and value.place is not None
        and m.attribute(value, name) is None
    ):
        known = value.cls is not None and calls.find_member(m, value.cls, name) is not None
        if not known and value.kind is va.Kind.INSTANCE:
            return default
    return found


@function("builtins.hasattr")
def hasattr_(m: Machine, call: Call) -> va.Value:
    value, name = first_known(call.get("", 0) or va.UNKNOWN), text_of(call.get("", 1))
    if isinstance(value, va.Obj) and name is not None:
        if m.attribute(value, name) is not None:
            return va.Const(None, True)
        if value.type_name.endswith("DistributedDataParallel") and name == "module":
            return va.Const(None, True)
        if value.cls is not None and calls.find_member(m, value.cls, name) is not None:
            return va.Const(None, True)
    return va.UNKNOWN


@function("builtins.setattr")
def setattr_(m: Machine, call: Call) -> va.Value:
    from torchwise_analysis.interp.abstract import expressions

    name, value = text_of(call.get("", 1)), call.get("", 2)
    if name is not None and value is not None:
        expressions.set_attribute(m, first_known(call.arguments.positional[0]), name, value, call.node)
    elif name is None and call.arguments.positional:
        calls.forget_settings(m, call.arguments.positional[0])
    return va.NONE


@function("builtins.super")
def super_(m: Machine, call: Call) -> va.Value:
    for frame in reversed(m.frames):
        if frame.owner is None:
            continue
        params = frame.function.node.params if frame.function is not None else ()
        this = m.state.get(("v", frame.id, params[0].name)) if params else None
        if isinstance(this, va.Value):
            return va.Super(None, first_known(this), frame.owner)
    return va.UNKNOWN


@function("builtins.type")
def type_(m: Machine, call: Call) -> va.Value:
    value = first_known(call.first() or va.UNKNOWN)
    if isinstance(value, va.Obj) and value.cls is not None:
        return value.cls
    return va.UNKNOWN


@function("builtins.exit", "builtins.quit", "sys.exit", "os._exit", "os.abort")
def exit_(m: Machine, call: Call) -> va.Value:
    from torchwise_analysis.interp.abstract.limits import DeadPathError

    raise DeadPathError


@function("copy.deepcopy", "copy.copy")
def deepcopy(m: Machine, call: Call) -> va.Value:
    value = first_known(call.first() or va.UNKNOWN)
    deep = call.last == "deepcopy"
    if isinstance(value, va.StateDict):
        return replace(value, copied=deep or value.copied)
    if isinstance(value, va.Obj) and value.kind is va.Kind.MODULE and deep:
        copy = m.make(
            va.Kind.MODULE,
            call.node,
            value.type_name,
            cls=value.cls,
            name=value.name,
            over=value.over,
            traits=value.traits | {"copy"},
            arguments=value.arguments,
            origin=value.origin,
        )
        if m.is_frozen(value):
            m.state.set(("frozen", copy.id), RECORDING)
        m.put_mode(copy.id, m.mode(value))
        m.state.set(("c", copy.id), m.items(value))
        names = cast("tuple[str, ...]", m.state.get(("names", value.id), ()))
        m.state.set(("names", copy.id), names)
        for name in names:
            part = m.attribute(value, name)
            if part is not None:
                m.state.set(("a", copy.id, name), _copied_part(m, part, copy, call))
        return copy
    if isinstance(value, va.Obj) and value.kind in (*_SEQUENCES, va.Kind.DICT):
        out = m.sequence(m.items(value), call.node, value.kind)
        entries = {k: _copied_state(v) if deep else v for k, v in m.entries(value).items()}
        m.state.set(("d", out.id), entries)
        if m.state.get(("open", value.id)):
            m.state.set(("open", out.id), True)
        return out
    return value


def _copied_state(value: va.Value) -> va.Value:
    return replace(value, copied=True) if isinstance(value, va.StateDict) else value


def _copied_part(m: Machine, part: va.Value, whole: va.Obj, call: Call) -> va.Value:
    known = first_known(part)
    if isinstance(known, va.Obj) and known.kind in (va.Kind.MODULE, va.Kind.PARAMETER):
        copy = replace(known, id=m.fresh_id())
        m.objects[copy.id] = copy
        m.adopt(copy, whole)
        m.state.set(("c", copy.id), m.items(known))
        return copy
    return part


@function("functools.partial")
def partial(m: Machine, call: Call) -> va.Value:
    target = first_known(call.first() or va.UNKNOWN)
    rest = va.Arguments(call.arguments.positional[1:], call.arguments.keywords, call.arguments.open)
    if isinstance(target, va.Function):
        return replace(target, partial=rest)
    if isinstance(target, (va.Library, va.Class)):
        return m.make(va.Kind.OPAQUE, call.node, "functools.partial", over=(target,), arguments=rest)
    return target


@function("functools.reduce")
def reduce(m: Machine, call: Call) -> va.Value:
    args = call.arguments.positional
    if len(args) < 2:
        return va.UNKNOWN
    element = iteration.element(m, first_known(args[1]), call.node)
    return calls.call_value(m, args[0], va.Arguments((element, element)), call.node)


@function("os.environ.get", "os.getenv")
def environment(m: Machine, call: Call) -> va.Value:
    name = text_of(call.get("key", 0)) or ""
    ranked = "RANK" in name or name in ("WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS")
    own = frozenset(["this rank"]) if "RANK" in name or name == "SLURM_PROCID" else frozenset[str]()
    return va.unknown(f"environ[{name}]", taint=frozenset(["rank"]) | own if ranked else frozenset())


# --------------------------------------------------------------------------- containers


def _argument_node(call: Call, index: int = 0) -> nd.Node | None:
    args = call.node.args if isinstance(call.node, nd.Call) else ()
    return args[index] if index < len(args) else None


@method(va.Kind.LIST, "append", "appendleft", "add", "put", "put_nowait")
@method(va.Kind.SET, "add")
@method(va.Kind.OPAQUE, "append", "appendleft")
def append(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    value = call.first()
    if value is None:
        return None
    m.push(obj, [value], call.node, call.name, _argument_node(call))
    _keep_state(m, value, obj, call)
    return va.NONE


def _keep_state(m: Machine, value: va.Value, obj: va.Obj, call: Call) -> None:
    for member in va.alternatives(value):
        if isinstance(member, va.StateDict):
            m.emit(ev.StateDictKept, call.node, state=member, name=obj.name)


@method(va.Kind.LIST, "insert")
def insert(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    value = call.get("object", 1)
    if value is not None:
        m.push(obj, [value], call.node, "insert", _argument_node(call, 1))
    return va.NONE


@method(va.Kind.LIST, "extend", "extendleft")
@method(va.Kind.OPAQUE, "extend")
@method(va.Kind.SET, "update")
def extend(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    value = first_known(call.first() or va.UNKNOWN)
    items = m.items(value) if isinstance(value, va.Obj) else (value,)
    m.push(
        obj, items or ((iteration.element(m, value, call.node),)), call.node, "extend", _argument_node(call)
    )
    return va.NONE


@method(va.Kind.LIST, "clear")
@method(va.Kind.SET, "clear")
@method(va.Kind.DICT, "clear")
def clear(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    m.emit(ev.Emptied, call.node, holder=obj)
    m.state.set(("c", obj.id), ())
    m.state.set(("d", obj.id), {})
    return va.NONE


@method(va.Kind.LIST, "pop", "popleft", "get", "get_nowait")
def pop(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if m.state.get(("open", obj.id)):
        m.emit(ev.Emptied, call.node, holder=obj)
    return iteration.element(m, obj, call.node)


@method(va.Kind.LIST, "copy", "sort", "reverse", "remove", "rotate")
@method(va.Kind.TUPLE, "copy")
@method(va.Kind.SET, "copy", "union")
def same_list(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    return obj if call.name in ("copy", "union") else va.NONE


@method(va.Kind.LIST, "index", "count")
@method(va.Kind.TUPLE, "index", "count")
def count(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    return va.UNKNOWN


@method(va.Kind.DICT, "items")
def items(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    pairs = [m.sequence((va.Const(None, k), v), None, va.Kind.TUPLE) for k, v in m.entries(obj).items()]
    rest = m.items(obj)
    if rest or not pairs:
        pairs.append(
            m.sequence(
                (va.unknown(None), iteration.element(m, replace(obj, kind=va.Kind.LIST), call.node)),
                None,
                va.Kind.TUPLE,
            )
        )
    out = m.sequence(pairs[-12:], None)
    if rest or not m.entries(obj):
        m.state.set(("open", out.id), True)
    return out


@method(va.Kind.DICT, "values")
def dict_values(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    out = m.sequence((*m.entries(obj).values(), *m.items(obj))[-12:], None)
    if m.items(obj) or not m.entries(obj):
        m.state.set(("open", out.id), True)
    return out


@method(va.Kind.DICT, "keys")
def keys(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    out = m.sequence([va.Const(None, k) for k in m.entries(obj)][-12:], None)
    if m.items(obj) or not m.entries(obj):
        m.state.set(("open", out.id), True)
    return out


@method(va.Kind.DICT, "get", "setdefault", "pop")
def dict_get(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    key, default = first_known(call.first() or va.UNKNOWN), call.get("default", 1)
    entries = m.entries(obj)
    if isinstance(key, va.Const) and isinstance(key.value, (str, int)) and key.value in entries:
        return entries[key.value]
    if call.name == "setdefault" and default is not None:
        value = first_known(default)
        if isinstance(value, va.Obj) and value.kind in (*_SEQUENCES, va.Kind.DICT):
            # it lives as long as the dict that it is put into
            value = replace(value, birth=obj.birth)
            m.objects[value.id] = value
        known = m.items(obj)
        if isinstance(key, va.Const) and isinstance(key.value, (str, int)):
            m.state.set(("d", obj.id), {**entries, key.value: value})
        elif known:
            return known[-1]
        else:
            m.state.set(("c", obj.id), (*known, value)[-12:])
        return value
    if "unseen" in obj.traits:
        return va.unknown(f"{obj.symbol}[{key.value!r}]") if isinstance(key, va.Const) else va.UNKNOWN
    if m.items(obj):
        return iteration.element(m, replace(obj, kind=va.Kind.LIST), call.node)
    return (
        default
        if default is not None
        else va.NONE
        if not entries or isinstance(key, va.Const)
        else va.UNKNOWN
    )


@method(va.Kind.DICT, "update")
def dict_update(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    from torchwise_analysis.interp.abstract import expressions

    value = first_known(call.arguments.positional[0]) if call.arguments.positional else None
    new = dict(m.entries(value)) if isinstance(value, va.Obj) else {}
    new.update(call.arguments.keywords)
    for key, entry in new.items():
        expressions.set_item(m, obj, va.Const(None, key), entry, call.node)
    if isinstance(value, va.Obj) and m.items(value):
        m.push(obj, m.items(value), call.node, "update")
    return va.NONE


@method(va.Kind.DICT, "copy")
def dict_copy(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    out = m.mapping(dict(m.entries(obj)), call.node)
    m.state.set(("c", out.id), m.items(obj))
    return out


@method(va.Kind.DICT, "append", "extend")
def default_append(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    return append(m, obj, call) if call.name == "append" else extend(m, obj, call)


@fallback(va.Kind.ITERATOR)
def iterator_method(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if call.name in ("__next__", "next"):
        return iteration.element(m, obj, call.node)
    return va.UNKNOWN


def bool_argument(value: va.Value | None, default: bool) -> bool | None:
    return truth_of(value, default)
