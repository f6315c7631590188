"""Tensors: methods, attributes and torch functions, as far as graphs, activations and scales go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.join import join_tensors
from torchwise_analysis.interp.abstract.loops import LoopPath
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.quick import replace
from torchwise_analysis.semantics import gradients, tables
from torchwise_analysis.semantics.registry import Call, function, int_of, truth_of
from torchwise_analysis.source import nodes as nd

# Results that are no longer connected to the graph. [torch.autograd: integer and boolean results
# never require grad; detach, data and numpy leave it.]
_TO_HOST = frozenset(["item", "tolist", "numpy", "__float__", "__int__"])
_DETACHING = frozenset(["detach", "detach_", "data", "numpy"])
DISTRIBUTION = "distribution"  # taint of one over tensors
_SAMPLING = frozenset(["sample", "sample_n"])  # under no_grad, unlike `rsample` [torch.distributions]
_CUTTING = frozenset(
    [
        "argmax",
        "argmin",
        "argsort",
        "long",
        "int",
        "bool",
        "byte",
        "short",
        "char",
        "eq",
        "ne",
        "gt",
        "lt",
        "ge",
        "le",
        "isnan",
        "isinf",
        "isfinite",
        "nonzero",
        "sign",
        "round",
        "floor",
        "ceil",
        "trunc",
        "multinomial",
        "bernoulli",
        "logical_not",
        "logical_and",
        "logical_or",
        "any",
        "all",
        "equal",
        "allclose",
        "isclose",
        "unique",
        "bincount",
        "count_nonzero",
        "histc",
        "searchsorted",
        "bucketize",
    ]
)
_FACTS = frozenset(
    [
        "size",
        "dim",
        "numel",
        "nelement",
        "ndimension",
        "is_contiguous",
        "stride",
        "element_size",
        "get_device",
        "data_ptr",
        "is_floating_point",
    ]
)
KEEPING_ACTIVATION = frozenset(
    [
        "view",
        "reshape",
        "squeeze",
        "unsqueeze",
        "flatten",
        "transpose",
        "permute",
        "contiguous",
        "to",
        "cuda",
        "cpu",
        "float",
        "half",
        "clone",
        "type",
        "T",
        "t",
        "double",
        "type_as",
        "expand",
        "expand_as",
        "repeat",
        "bfloat16",
        "mT",
        "swapaxes",
        "movedim",
        "gather",
        "index_select",
        "masked_select",
        "narrow",
        "chunk",
        "split",
        "unbind",
        "cat",
        "concat",
        "stack",
        "select",
        "retain_grad",
        "view_as",
        "unflatten",
        "mH",
        "H",
        "roll",
        "flip",
        "detach",
        "numpy",
        "data",
        "take_along_dim",
        "ravel",
        "swapdims",
        "moveaxis",
        "tile",
        "repeat_interleave",
    ]
)
_SPLITTING = frozenset(["chunk", "split", "unbind", "tensor_split", "hsplit", "vsplit"])
ACTIVATIONS = {
    "softmax": "softmax",
    "log_softmax": "log_softmax",
    "softmin": "softmax",
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "logsigmoid": "log_sigmoid",
    "gumbel_softmax": "softmax",
    "tanh": "tanh",
    "tanh_": "tanh",
    "relu": "relu",
    "relu_": "relu",
    "clamp": "clamp",
    "clip": "clamp",
    "clamp_": "clamp",
    "hardsigmoid": "sigmoid",
    "expit": "sigmoid",
}
_CREATING = frozenset(
    [
        "randn",
        "zeros",
        "ones",
        "rand",
        "empty",
        "full",
        "arange",
        "tensor",
        "as_tensor",
        "from_numpy",
        "linspace",
        "logspace",
        "eye",
        "randint",
        "randperm",
        "randn_like",
        "zeros_like",
        "ones_like",
        "rand_like",
        "empty_like",
        "full_like",
        "randint_like",
        "FloatTensor",
        "LongTensor",
        "ByteTensor",
        "BoolTensor",
        "IntTensor",
        "DoubleTensor",
        "HalfTensor",
        "Tensor",
        "normal",
        "bernoulli",
        "multinomial",
        "scalar_tensor",
        "complex",
        "tril_indices",
        "triu_indices",
        "hann_window",
    ]
)
_RANDOM = frozenset(
    [
        "randn",
        "rand",
        "randint",
        "randperm",
        "randn_like",
        "rand_like",
        "normal",
        "bernoulli",
        "multinomial",
        "randint_like",
    ]
)


# --------------------------------------------------------------------------- helpers


def combine(m: Machine, tensors: Sequence[va.Tensor], node: nd.Node | None) -> va.Tensor:
    """An operation over several tensors: graphs, tokens and sources of all, scales common to all."""
    del node
    if not tensors:
        return va.Tensor(None)
    out = tensors[0]
    for other in tensors[1:]:
        out = join_tensors(out, other)
    if True not in m.recording():
        out = replace(out, passes=frozenset[int]())
    return out


def host_read(m: Machine, value: va.Tensor, node: nd.Node, how: str, cut: bool = True) -> None:
    """The host reads a value: it waits for the device, and what it gets has no graph."""
    m.emit(ev.HostSync, node, how=how, value=value, summed=m.summing == len(m.frames))
    if cut and value.passes:
        m.emit(ev.GraphCut, node, how=how, value=value)


def number(m: Machine, value: va.Tensor, node: nd.Node, how: str) -> va.Unknown:
    """What the host reads off a tensor; it knows which graph it lost."""
    host_read(m, value, node, how)
    taint = value.taint | shards(m, value)
    if value.passes:
        place = m.place(node)
        mark = f"{va.NUMBER}{place.path}:{place.span.line}:{place.span.column}"
        m.cuts[mark] = va.Cut(place, how, value.passes)
        taint |= {mark}
    return va.unknown(None, taint=taint)


def marks_of(m: Machine, tensors: Iterable[va.Tensor]) -> frozenset[str]:
    """Marks of what the host computes from tensors that were taken out of their graphs."""
    found: set[str] = set()
    for one in tensors:
        if one.cut is not None and not one.passes:
            place = one.cut.place
            mark = f"{va.NUMBER}{place.path}:{place.span.line}:{place.span.column}"
            m.cuts.setdefault(mark, one.cut)
            found.add(mark)
    return frozenset(found)


def _cut_of_numbers(m: Machine, values: Iterable[va.Value]) -> va.Cut | None:
    given = list(values)
    inside = [item for value in given if isinstance(value, va.Obj) for item in m.items(value)]
    marks = sorted(mark for mark in m.taint(*given, *inside) if mark.startswith(va.NUMBER))
    return next((m.cuts[mark] for mark in marks if mark in m.cuts), None)


REDUCED = "reduced"  # taint of a tensor that holds what all ranks have
SHARD = "shard:"  # and the id of a loader that gives each rank a part: what a number computed from it is


def reduced(value: va.Value) -> va.Value:
    """The value after all ranks have put theirs together."""
    if isinstance(value, va.Unknown):
        return replace(value, taint=frozenset(one for one in value.taint if not one.startswith(SHARD)))
    if isinstance(value, va.Tensor):
        kept = frozenset(one for one in value.taint if not one.startswith(SHARD))
        return replace(value, taint=kept | {REDUCED})
    return value


def agreed(value: va.Value) -> va.Value:
    """The value where all ranks hold the same one, whatever each computed its own from."""
    if isinstance(value, (va.Unknown, va.Tensor)) and value.taint & _RANKED:
        return replace(value, taint=value.taint - _RANKED)
    return value


_RANKED = frozenset(["rank", "this rank"])


def content_taint(m: Machine, arguments: va.Arguments) -> frozenset[str]:
    """The taint of what is put into a new tensor; where it is put (`device=rank`) says nothing of it."""
    return m.taint(*arguments.positional, *(value for name, value in arguments.keywords if name != "device"))


def shards(m: Machine, value: va.Tensor) -> frozenset[str]:
    """The taint of numbers read from this tensor, where it comes from a part of the data only."""
    if REDUCED in value.taint:
        return frozenset()
    return frozenset(f"{SHARD}{one}" for one in value.sources if _is_sharded(m, one))


def _is_sharded(m: Machine, loader: int) -> bool:
    obj, owner = m.objects.get(loader), m.prepared.get(loader)
    if obj is None or obj.kind is not va.Kind.LOADER:
        return False
    if owner is not None:
        return owner.kind in (va.Kind.ACCELERATOR, va.Kind.FABRIC)
    sampler = first_known(obj.arguments.get("sampler", 3))
    return isinstance(sampler, va.Obj) and sampler.type_name.endswith("DistributedSampler")


def report(m: Machine, values: Iterable[va.Value], node: nd.Node, how: str) -> None:
    """Values are shown, logged or tested."""
    taint: set[str] = set()
    todo = [(value, 0) for value in values]
    while todo:
        value, depth = todo.pop()
        for member in va.alternatives(value):
            taint |= m.taint(member)
            if isinstance(member, va.Tensor):
                taint |= shards(m, member)
            elif isinstance(member, va.Obj) and depth < 2:
                todo += [(inner, depth + 1) for inner in (*m.items(member), *m.entries(member).values())]
    gradients.used(m, [va.unknown(None, taint=frozenset(taint))], node, how)
    loaders = frozenset(int(one.removeprefix(SHARD)) for one in taint if one.startswith(SHARD))
    if loaders:
        m.emit(ev.Reported, node, how=how, loaders=loaders, ranked="rank" in taint)


def cut(m: Machine, value: va.Tensor, node: nd.Node, how: str, **changes: object) -> va.Tensor:
    """The value without its graph, remembering where it lost it."""
    if value.passes:
        m.emit(ev.GraphCut, node, how=how, value=value)
    mark = va.Cut(m.place(node), how, value.passes) if value.passes else value.cut
    evidence = m.link(node, f"{how} leaves the graph", value.evidence) if value.passes else value.evidence
    return replace(
        value, passes=frozenset[int](), tokens=frozenset[va.Token](), cut=mark, evidence=evidence, **changes
    )


def dim_argument(call: Call, position: int) -> tuple[int | None, bool]:
    given = call.get("dim", position) or call.get("axis")
    if given is None:
        return None, False
    known = first_known(given)
    if isinstance(known, va.Const) and isinstance(known.value, int):
        return known.value, True
    return None, True


def activate(
    m: Machine, value: va.Tensor, name: str, node: nd.Node, dim: int | None, given: bool, place: object = None
) -> va.Tensor:
    """Apply an activation and record it."""
    from torchwise_analysis.findings import Place

    where = place if isinstance(place, Place) else m.place(node)
    if name in ("softmax", "log_softmax", "sigmoid", "log_sigmoid"):
        m.emit(ev.ActivationCall, where, name=name, input=value, dim=dim, dim_given=given)
    activation = va.Activation(name, where, dim, place is not None)
    recording = True in m.recording()
    return replace(
        value,
        activation=activation,
        passes=value.passes if recording else frozenset[int](),
        evidence=va.Link(where, f"{name} applied here", value.evidence),
    )


def write(m: Machine, node: nd.Node, receiver: va.Tensor, value: va.Value) -> None:
    """`counts[0] += x`: what holds the tensor holds one that comes from where `x` comes from too."""
    from torchwise_analysis.interp.abstract import expressions

    targets = (
        (node.target,)
        if isinstance(node, nd.AugAssign)
        else node.targets
        if isinstance(node, nd.Assign)
        else ()
    )
    target = targets[0] if len(targets) == 1 else None
    holder = target.value if isinstance(target, nd.Subscript) else None
    sources = frozenset(s for t in m.tensors(value) for s in t.sources) - receiver.sources
    if sources and isinstance(holder, nd.Name) and m.lookup(holder.id) is receiver:
        expressions.assign(m, holder, replace(receiver, sources=receiver.sources | sources), node)


def rebind(m: Machine, node: nd.Node, value: va.Value) -> None:
    """An in-place method changed its receiver: the name or attribute that holds it holds the new value."""
    from torchwise_analysis.interp.abstract import expressions

    func = node.func if isinstance(node, nd.Call) else None
    target = func.value if isinstance(func, nd.Attribute) else None
    if isinstance(target, (nd.Name, nd.Attribute, nd.Subscript)) and isinstance(value, va.Tensor):
        if isinstance(target, nd.Attribute) and target.attr in ("data", "grad"):
            return
        expressions.assign(m, target, value, node)


# --------------------------------------------------------------------------- attributes and methods


def attribute(m: Machine, value: va.Tensor, name: str, node: nd.Node) -> va.Value:
    if name in (
        "shape",
        "ndim",
        "is_cuda",
        "dtype",
        "layout",
        "names",
        "itemsize",
        "is_leaf",
    ):
        of_batch = frozenset([va.OF_BATCH]) if value.passes or value.sources else frozenset[str]()
        return va.unknown(None, taint=of_batch | {name})
    if name == "requires_grad":
        # with a graph it does; without one its maker may have asked for it
        return va.Const(None, True) if value.passes else va.unknown(None, taint=frozenset([name]))
    if name == "device":
        return va.unknown(value.device or "device")
    if name == "data":
        return cut(m, value, node, "data")
    if name == "grad":
        return va.Tensor(value.evidence, sources=value.sources)
    if name == "grad_fn":
        return va.UNKNOWN
    if name in ("T", "mT", "H", "mH"):
        return replace(value, shape=None)
    if name in (
        "real",
        "imag",
        "values",
        "indices",
        "logits",
        "loss",
        "last_hidden_state",
        "sample",
        "x",
        "probs",
    ):
        if name == "loss" and value.reduction is None and _is_of_transformers(m, value):
            return replace(value, activation=None, reduction="mean", taint=value.taint | {"loss"})
        return replace(value, activation=None if name == "loss" else value.activation)
    return va.Method(value.evidence, value, name)


def _is_of_transformers(m: Machine, value: va.Tensor) -> bool:
    """The `.loss` of a model of transformers is a mean over what has labels. [`transformers.loss`]"""
    forwards = [m.passes[p].forward for p in value.passes if p in m.passes]
    return bool(forwards) and all(f.module.type_name.startswith("transformers.") for f in forwards)


def call_method(m: Machine, value: va.Tensor, call: Call) -> va.Value:
    name, node = call.name, call.node
    if name == "backward":
        return backward(m, value, call)
    if name in _TO_HOST and name != "numpy":
        return number(m, value, node, name)
    if name in ("cpu", "numpy"):
        m.emit(ev.HostSync, node, how=name, value=value)
        value = replace(value, taint=value.taint | shards(m, value))
        return cut(m, value, node, "numpy", device="cpu") if name == "numpy" else replace(value, device="cpu")
    if name in _SAMPLING and DISTRIBUTION in value.taint:
        drawn = value.taint - {DISTRIBUTION}
        return replace(value, passes=frozenset[int](), tokens=frozenset[va.Token](), shape=None, taint=drawn)
    if name in _DETACHING:
        out = cut(m, value, node, "detach")
        if name == "detach_":
            rebind(m, node, out)
        return out
    if name in ("floor", "floor_") and _is_drawn(value):
        gate = _gate(m, call)
        if name == "floor_":
            rebind(m, node, gate)
        return gate
    if name in _CUTTING:
        if name == "argmax":
            _picked(m, value, call, 0)
        return replace(cut(m, value, node, name, activation=None, shape=None), taint=_chosen(value, name))
    if name in _FACTS:
        of_batch = frozenset([va.OF_BATCH]) if value.passes or value.sources else frozenset[str]()
        return va.unknown(None, taint=of_batch | size_taint(call))
    if name in ("to", "cuda", "type", "half", "float", "double", "bfloat16"):
        return _moved(m, value, call)
    if name in (
        "mean",
        "sum",
        "logsumexp",
        "norm",
        "prod",
        "nanmean",
        "nansum",
        "std",
        "var",
        "amax",
        "amin",
    ):
        return _reduced(m, value, name, call)
    if name in ("max", "min", "topk", "sort", "kthvalue", "median", "mode"):
        return _selected(m, value, call)
    if name in ACTIVATIONS:
        dim, given = dim_argument(call, 0)
        out = activate(m, value, ACTIVATIONS[name], node, dim, given)
        if name.endswith("_"):
            rebind(m, node, out)
        return out
    if name in _SPLITTING:
        return split(m, value, node)
    if name in KEEPING_ACTIVATION:
        return _kept(m, value, call)
    if name in ("div", "div_", "true_divide", "mul", "mul_", "multiply", "divide"):
        return _scaled(m, value, call)
    if name == "requires_grad_":
        return required(m, value, call.arguments, node)
    if name == "register_hook":
        return va.UNKNOWN
    if name.endswith("_") and not name.endswith("__"):
        m.touch(value, node)
    if name in ("zero_", "fill_", "normal_", "uniform_", "copy_") and name != "copy_":
        return value
    if name == "bernoulli_":
        gate = _gate(m, call)
        rebind(m, node, gate)
        return gate
    out = combine(m, [value, *m.all_tensors(call.arguments)], node)
    shape = value.shape if name in ("masked_fill", "masked_fill_") else None
    shape = ("batch", None, None) if name == "bmm" else shape
    out = replace(out, activation=None, shape=shape, taint=out.taint | m.taint(*call.arguments))
    out = _turned(out, name)
    if name.endswith("_") and not name.endswith("__"):
        rebind(m, node, out)
    return out


def required(m: Machine, value: va.Tensor, arguments: va.Arguments, node: nd.Node) -> va.Tensor:
    """`requires_grad_()` or `requires_grad = True`: of one that lost its graph, whatever holds it knows."""
    m.emit(ev.ApiCall, node, name="torch.Tensor.requires_grad=", arguments=arguments)
    if value.passes or truth_of(arguments.get("requires_grad", 0), True) is not True:
        return value
    lost = frozenset([va.REQUIRED]) if value.cut is not None else frozenset[str]()
    out = replace(value, taint=value.taint | {va.LEAF} | lost)
    m.exchange(value, out)
    return out


def _picked(m: Machine, value: va.Tensor, call: Call, position: int) -> None:
    dim, given = dim_argument(call, position)
    if dim is not None:
        m.emit(ev.ActivationCall, call.node, name="argmax", input=value, dim=dim, dim_given=given)


def size_taint(call: Call) -> frozenset[str]:
    """`x.size()` is a shape, `x.size(0)` how many rows there are: the samples of a batch, by convention."""
    if call.name != "size":
        return frozenset()
    if not call.arguments.positional and not call.arguments.keywords:
        return frozenset(["shape"])
    return frozenset(["size0"]) if int_of(first_known(call.get("dim", 0))) == 0 else frozenset()


def _chosen(value: va.Tensor, name: str) -> frozenset[str]:
    """The taint of integers and truths computed from a tensor."""
    kept = frozenset(mark for mark in value.taint - {"loss"} if not mark.startswith(va.MEASURED))
    return kept | ({"integer", "hits"} if name == "eq" else {"integer"})


def backward(m: Machine, value: va.Value, call: Call) -> va.Value:
    retain = call.get("retain_graph", 1)
    create = call.get("create_graph", 2)
    keeps = truth_of(retain, False)
    creates = truth_of(create, False)
    m.backward(
        value,
        call.node,
        keeps is not False,
        creates is not False,
        retain_known=keeps is not None,
        create_known=creates is not None,
    )
    for engine in m.engines_of(value):
        m.emit(ev.EngineBypassed, call.node, what="backward", engine=engine)
    if m.automatic is not None:
        m.emit(ev.ManualUnderAutomatic, call.node, what="backward")
    return va.NONE


def _moved(m: Machine, value: va.Tensor, call: Call) -> va.Tensor:
    target = first_known(call.first()) if call.first() is not None else None
    device = "cuda" if call.name == "cuda" else None
    if isinstance(target, va.Const) and isinstance(target.value, str):
        device = target.value.partition(":")[0]
    elif isinstance(target, (va.Unknown, va.Obj)) and target.symbol:
        device = target.symbol
    if device is not None:
        made = value.evidence.place if value.evidence else None
        known = m.fresh.get(id(value))
        m.emit(
            ev.Transfer,
            call.node,
            value=value,
            device=device,
            how=call.name,
            made=made,
            birth=known[1]
            if known is not None and known[0] is value and _is_held(call.node)
            else _birth_of_constant(m, call.node),
            factory=_factory(m, call.node),
        )
        return replace(value, device=device)
    return value


def _is_held(node: nd.Node) -> bool:
    """Does a name or an attribute of `self` hold what is moved? What is in another thing moves with that."""
    held = node.func.value if isinstance(node, nd.Call) and isinstance(node.func, nd.Attribute) else None
    if isinstance(held, nd.Attribute):
        return isinstance(held.value, nd.Name) and held.value.id == "self"
    return isinstance(held, nd.Name)


def _birth_of_constant(m: Machine, node: nd.Node) -> LoopPath | None:
    """The loops around the numbers in `torch.tensor([0.1, 0.9]).to(d)` or `torch.tensor(numbers).to(d)`."""
    made = node.func.value if isinstance(node, nd.Call) and isinstance(node.func, nd.Attribute) else None
    if not isinstance(made, nd.Call) or not isinstance(made.func, nd.Attribute) or len(made.args) != 1:
        return None
    if made.func.attr not in ("tensor", "as_tensor", "FloatTensor", "LongTensor"):
        return None
    numbers = made.args[0]
    if _is_literal(numbers):
        return ()
    if not isinstance(numbers, nd.Name):
        return None
    listed = first_known(m.eval(numbers))
    if not isinstance(listed, va.Obj) or listed.kind not in (va.Kind.LIST, va.Kind.TUPLE):
        return None
    is_open = bool(m.state.get(("open", listed.id)))
    are_numbers = all(isinstance(item, va.Const) and item.counter is None for item in m.items(listed))
    return listed.birth if are_numbers and not is_open and m.items(listed) else None


def _is_literal(node: nd.Expr) -> bool:
    """A list or tuple of written numbers, nested or not."""
    if isinstance(node, (nd.ListExpr, nd.TupleExpr)):
        return bool(node.elements) and all(_is_literal(e) or _is_number(e) for e in node.elements)
    return False


def _is_number(node: nd.Expr) -> bool:
    if isinstance(node, nd.Unary) and node.op == "-":
        node = node.operand
    return isinstance(node, nd.Constant) and isinstance(node.value, (int, float))


# Functions that give the same values wherever they run, and take a device.
_REPEATABLE = frozenset(["arange", "zeros", "ones", "full", "eye", "linspace", "logspace", "empty"])


def _factory(m: Machine, node: nd.Node) -> str:
    """`torch.arange(n)` in `torch.arange(n).to(device)`."""
    made = node.func.value if isinstance(node, nd.Call) and isinstance(node.func, nd.Attribute) else None
    if not isinstance(made, nd.Call) or not isinstance(made.func, (nd.Attribute, nd.Name)):
        return ""
    function_ = m.eval(made.func)
    if not isinstance(function_, va.Library) or any(k.name in ("device", None) for k in made.keywords):
        return ""
    is_torchs = function_.path == f"torch.{function_.last}"
    return function_.path if is_torchs and function_.last in _REPEATABLE else ""


def _reduced(m: Machine, value: va.Tensor, name: str, call: Call) -> va.Tensor:
    dim, given = dim_argument(call, 0)
    reduction = {"sum": "sum", "mean": "mean", "nanmean": "mean", "nansum": "sum"}.get(name, value.reduction)
    if given and name in ("sum", "mean") and value.reduction is not None:
        reduction = value.reduction
    del dim
    factors = value.factors
    return replace(
        value,
        activation=None,
        reduction=reduction,
        factors=factors,
        shape=None if given else (),
        passes=value.passes if True in m.recording() else frozenset[int](),
    )


def _selected(m: Machine, value: va.Tensor, call: Call) -> va.Value:
    dim, given = dim_argument(call, 0)
    del dim
    if call.name in ("max", "min") and not given:
        return replace(combine(m, [value, *m.all_tensors(call.arguments)], call.node), activation=None)
    indices = replace(
        value,
        passes=frozenset[int](),
        tokens=frozenset[va.Token](),
        activation=None,
        taint=value.taint | {"integer"},
    )
    values = replace(value, activation=None, shape=_best_shape(value, call))
    out = m.sequence((values, indices), None, va.Kind.TUPLE)
    m.state.set(("a", out.id, "values"), values)
    m.state.set(("a", out.id, "indices"), indices)
    return out


def _best_shape(value: va.Tensor, call: Call) -> tuple[int | str | None, ...] | None:
    """The best of each row of what a model gave: outputs with a row for each sample, by convention."""
    is_given = value.cut is not None and value.cut.how == va.UNRECORDED
    is_flat = call.get("keepdim", 1) is None and not call.arguments.open
    dim = int_of(call.first() or call.get("dim"))
    rank = 2 if value.shape is None else len(value.shape)
    if call.name in ("max", "min") and is_flat and is_given and rank == 2 and dim in (1, -1):
        return ("batch",)
    return None


def _is_drawn(value: va.Tensor) -> bool:
    """`keep + torch.rand(shape)`: its floor is a mask."""
    return "drawn" in value.taint and not value.passes and value.cut is None and not value.sources


def _gate(m: Machine, call: Call) -> va.Tensor:
    """Random zeros and ones; a "gate" when a forward draws them and no model decides how many: what dropout
    draws. Zeros and ones that are drawn outside are data."""
    is_decided = any(t.passes or t.cut for t in m.all_tensors(call.arguments))
    is_gate = m.forward is not None and not is_decided
    taint = frozenset(["random", "gate"]) if is_gate else frozenset(["random"])
    return va.Tensor(m.link(call.node, "random zeros and ones are drawn here"), taint=taint)


def split(m: Machine, value: va.Tensor, node: nd.Node) -> va.Value:
    out = m.sequence((replace(value, shape=None),), node, va.Kind.TUPLE, traits=frozenset(["chunks"]))
    m.state.set(("open", out.id), True)
    return out


# Taint of a tensor of unknown rank that got an axis of size 1 behind its first one, or as its last one.
_WIDENED = "widened"


def _kept(m: Machine, value: va.Tensor, call: Call) -> va.Tensor:
    passes = value.passes if True in m.recording() else frozenset[int]()
    is_widened = call.name == "unsqueeze" and value.shape is None and int_of(call.first()) in (1, -1)
    taint = (value.taint - {_WIDENED}) | ({_WIDENED} if is_widened else frozenset[str]())
    shape = _shape_after(value, call)
    if call.name in ("gather", "take_along_dim"):
        shape = _picked_shape(m, call.get("index", 1) or call.get("indices", 0))
    return replace(value, shape=shape, passes=passes, taint=taint)


def _picked_shape(m: Machine, index: va.Value | None) -> tuple[int | str | None, ...] | None:
    """`gather` gives the shape of the index, which has as many axes as what it picks from: two, usually."""
    for one in m.tensors(index):
        return (None, 1) if one.shape is None and _WIDENED in one.taint else one.shape
    return None


def _shape_after(value: va.Tensor, call: Call) -> tuple[int | str | None, ...] | None:
    shape = value.shape
    if call.name in ("view", "reshape"):
        return _sizes_given(call.arguments)
    if call.name == "flatten" and int_of(call.first()) == 1 and len(call.arguments.positional) == 1:
        return (shape[0] if shape else "batch", None)
    if shape is None:
        return None
    if call.name in ("contiguous", "clone", "type_as"):
        return shape
    position = int_of(call.first())
    if call.name == "squeeze":
        if call.first() is None:
            return tuple(d for d in shape if d != 1) if None not in shape else None
        if position is not None and -len(shape) <= position < len(shape) and shape[position] == 1:
            kept = list(shape)
            del kept[position]
            return tuple(kept)
        return shape
    if call.name == "unsqueeze" and position is not None and -len(shape) - 1 <= position <= len(shape):
        grown = list(shape)
        grown.insert(position if position >= 0 else len(shape) + 1 + position, 1)
        return tuple(grown)
    return None


def _sizes_given(arguments: va.Arguments) -> tuple[int | str | None, ...] | None:
    """The shape that `view(8, 4)` or `view(x.size(0), -1)` asks for; "batch" for the rows of a tensor."""
    out: list[int | str | None] = []
    for value in arguments.positional:
        size = int_of(value)
        if size is None and not isinstance(value, va.Unknown):
            return None
        is_rows = isinstance(value, va.Unknown) and "size0" in value.taint
        out.append("batch" if is_rows else None if size == -1 else size)
    return tuple(out) or None


def _scaled(m: Machine, value: va.Tensor, call: Call) -> va.Tensor:
    from torchwise_analysis.interp.abstract import expressions

    other = call.first()
    op = "/" if "div" in call.name else "*"
    out = expressions.operate(m, op, value, other if other is not None else va.UNKNOWN, call.node)
    result = first_known(out)
    assert isinstance(result, va.Tensor)
    if call.name.endswith("_"):
        rebind(m, call.node, result)
    return result


def compared(m: Machine, value: va.Tensor, node: nd.Node) -> va.Tensor:
    """A comparison: a boolean tensor without graph."""
    mark = va.Cut(m.place(node), "comparison", value.passes) if value.passes else value.cut
    is_equality = isinstance(node, nd.Compare) and node.ops == ("==",)
    return va.Tensor(
        value.evidence,
        cut=mark,
        sources=value.sources,
        device=value.device,
        taint=(value.taint - {"loss"}) | ({"mask", "hits"} if is_equality else {"mask"}),
        dtype="bool",
    )


# --------------------------------------------------------------------------- functions


@function(
    "torch.softmax",
    "torch.nn.functional.softmax",
    "torch.log_softmax",
    "torch.nn.functional.log_softmax",
    "torch.sigmoid",
    "torch.nn.functional.sigmoid",
    "torch.special.expit",
    "torch.nn.functional.logsigmoid",
    "torch.nn.functional.gumbel_softmax",
    "torch.nn.functional.softmin",
    "torch.tanh",
    "torch.nn.functional.tanh",
    "torch.relu",
    "torch.nn.functional.relu",
    "torch.clamp",
    "torch.clip",
    "torch.special.softmax",
    "torch.special.log_softmax",
    "torch.nn.functional.hardsigmoid",
)
def activation(m: Machine, call: Call) -> va.Value:
    value = call.get("input", 0)
    found = m.tensors(value)
    dim, given = (-1, True) if call.last == "gumbel_softmax" else dim_argument(call, 1)
    one = (
        combine(m, found, call.node)
        if found
        else va.Tensor(None, sources=m.sources_of((value,)) if value else frozenset())
    )
    return activate(m, one, ACTIVATIONS[call.last], call.node, dim, given)


@function("torch.autograd.backward")
def autograd_backward(m: Machine, call: Call) -> va.Value:
    m.backward(
        call.first(), call.node, truth_of(call.get("retain_graph", 2), False) is not False, how="tensor"
    )
    return va.NONE


@function(
    "torch.autograd.grad",
    "torch.autograd.functional.jacobian",
    "torch.autograd.functional.hessian",
    "torch.autograd.functional.vjp",
    "torch.autograd.functional.jvp",
    "torch.autograd.functional.hvp",
)
def autograd_grad(m: Machine, call: Call) -> va.Value:
    creates = truth_of(call.get("create_graph", 3), False) is not False
    retain = truth_of(call.get("retain_graph", 2), creates) is not False
    m.backward(call.first(), call.node, retain, creates, "autograd.grad")
    found = m.all_tensors(call.arguments)
    inputs = call.get("inputs", 1)
    if inputs is not None:
        # gradients at intermediate inputs also use the passes that made those inputs
        m.backed |= m.passes_of((inputs,))
    out = replace(combine(m, found, call.node), activation=None) if found else va.Tensor(None)
    if not creates:
        out = replace(out, passes=frozenset[int]())
    return m.sequence((out,), call.node, va.Kind.TUPLE)


@function(
    "torch.func.grad",
    "torch.func.value_and_grad",
    "torch.func.vjp",
    "torch.func.jvp",
    "torch.func.vmap",
    "torch.func.jacrev",
    "torch.func.jacfwd",
    "torch.func.grad_and_value",
    "torch.vmap",
    "torch.func.linearize",
)
def functional_transform(m: Machine, call: Call) -> va.Value:
    for value in call.arguments:
        m.backed |= m.passes_of((value,))
    return m.make(
        va.Kind.OPAQUE,
        call.node,
        call.name,
        over=tuple(call.arguments.positional[:1]),
        traits=frozenset(["functional"]),
    )


@function("torch.where", "torch.cat", "torch.concat", "torch.stack", "torch.vstack", "torch.hstack")
def joined(m: Machine, call: Call) -> va.Value:
    found = m.all_tensors(call.arguments)
    if not found:
        return va.Tensor(None, sources=m.sources_of(call.arguments))
    out = combine(m, found, call.node)
    return replace(out, shape=None, activation=out.activation if call.last != "where" else None)


@function("torch.chunk", "torch.split", "torch.unbind", "torch.tensor_split")
def split_function(m: Machine, call: Call) -> va.Value:
    value = call.first()
    found = m.tensors(value)
    if found:
        return split(m, combine(m, found, call.node), call.node)
    known = first_known(value) if value is not None else va.UNKNOWN
    if isinstance(known, va.Obj) and known.kind is va.Kind.OPAQUE:
        return split_data(m, known, call.node)
    return split(m, va.Tensor(None), call.node)


def split_data(m: Machine, value: va.Obj, node: nd.Node) -> va.Value:
    out = m.sequence((m.child(value, "[]"),), node, va.Kind.TUPLE, traits=frozenset(["chunks"]))
    m.state.set(("open", out.id), True)
    return out


@function(
    "torch.tensor",
    "torch.as_tensor",
    "torch.from_numpy",
    "torch.asarray",
    "torch.FloatTensor",
    "torch.LongTensor",
    "torch.Tensor",
    "torch.scalar_tensor",
)
def made(m: Machine, call: Call) -> va.Value:
    is_like = call.last.endswith("_like")  # takes the shape alone, no value
    found = [t for t in m.all_tensors(call.arguments) if t.passes and not is_like]
    if found and call.last not in ("as_tensor", "asarray"):
        return cut(m, combine(m, found, call.node), call.node, "tensor()", activation=None)
    if found:
        return combine(m, found, call.node)
    device = call.get("device")
    known = first_known(device) if device is not None else None
    name = (
        known.value
        if isinstance(known, va.Const)
        else known.symbol
        if isinstance(known, (va.Unknown, va.Obj))
        else "cpu"
    )
    cuts = [t for t in m.all_tensors(call.arguments) if t.cut and not is_like]
    return m.made(
        va.Tensor(
            m.link(call.node, f"{call.last} makes a new tensor"),
            cut=cuts[0].cut if cuts else None if is_like else _cut_of_numbers(m, call.arguments),
            device=str(name) if name else None,
            sources=m.sources_of(call.arguments),
            taint=content_taint(m, call.arguments),
            shape=_sizes(m, call),
        )
    )


def _sizes(m: Machine, call: Call) -> tuple[int | str | None, ...] | None:
    """The shape that `zeros(8, 4)` or `randn((8, 4))` names; None unless all sizes are numbers."""
    if call.last in ("tensor", "as_tensor", "from_numpy", "asarray", "FloatTensor", "Tensor"):
        return tables.shape_of(first_known(call.first()))
    if call.last not in ("randn", "rand", "zeros", "ones", "empty") or call.arguments.open:
        return None
    given: tuple[va.Value, ...] = call.arguments.positional
    first = first_known(given[0]) if len(given) == 1 else None
    if isinstance(first, va.Obj) and first.kind in (va.Kind.TUPLE, va.Kind.LIST):
        given = () if m.state.get(("open", first.id)) else m.items(first)
    sizes = [int_of(size) for size in given]
    return tuple(sizes) if sizes and None not in sizes else None


def _turned(value: va.Tensor, name: str) -> va.Tensor:
    """A loss whose sign or fraction is turned is no longer better when it is lower."""
    is_turned = name.rstrip("_") in ("neg", "negative", "reciprocal", "sub", "subtract", "rsub")
    return replace(value, taint=value.taint - {"loss", "hits"}) if is_turned else value


def _shape_of(
    m: Machine, last: str, call: Call, value: va.Tensor | None
) -> tuple[int | str | None, ...] | None:
    """What the name alone tells of a result's shape. [torch.bmm: (batch, n, p)]"""
    if last == "gather":
        return _picked_shape(m, call.get("index", 2))
    if last in ("bmm", "baddbmm"):
        return ("batch", None, None)
    if last != "flatten" or value is None:
        return None
    return _shape_after(value, Call(last, va.Arguments(call.arguments.positional[1:]), call.node))


def torch_function(m: Machine, call: Call) -> va.Value:
    """Any other function of torch on tensors: pure, the result carries graphs and tokens."""
    last = call.last
    given = gradients.found_in(m, call.arguments) if last not in _CREATING else ()
    if given:
        return gradients.measured(m, given, call.node, last)
    if last in _CREATING:
        out = made(m, call)
        if last in _RANDOM and isinstance(out, va.Tensor):
            drawn = {"random"} if call.get("generator") is not None else {"random", "drawn"}
            out = replace(out, passes=frozenset[int](), taint=out.taint | drawn)
            if last == "bernoulli":
                out = replace(out, taint=out.taint | _gate(m, call).taint)
        return m.made(out) if isinstance(out, va.Tensor) else out
    found = m.all_tensors(call.arguments)
    if last in ACTIVATIONS and last != "clamp":
        return activation(m, call)
    if last in _CUTTING:
        one = combine(m, found, call.node)
        if last == "argmax" and found:
            _picked(m, one, call, 1)
        return replace(cut(m, one, call.node, last, activation=None), taint=_chosen(one, last))
    if last in ("mean", "sum", "norm", "logsumexp") and found:
        return _reduced(
            m,
            combine(m, found, call.node),
            last,
            Call(last, va.Arguments(call.arguments.positional[1:], call.arguments.keywords), call.node),
        )
    if last in ("max", "min", "topk", "sort", "median", "kthvalue") and found:
        rest = va.Arguments(call.arguments.positional[1:], call.arguments.keywords)
        return _selected(m, combine(m, found, call.node), Call(last, rest, call.node))
    if last in ("div", "mul", "true_divide") and found:
        first = first_known(call.arguments.positional[0]) if call.arguments.positional else None
        if isinstance(first, va.Tensor):
            return _scaled(m, first, Call(last, va.Arguments(call.arguments.positional[1:]), call.node))
    if last in _FACTS or last in ("is_tensor", "numel", "is_grad_enabled", "equal"):
        return va.UNKNOWN
    if found:
        out = combine(m, found, call.node)
        kept = out.activation if last in KEEPING_ACTIVATION else None
        if last == "log":
            kept = (
                va.Activation("log_softmax", m.place(call.node))
                if out.activation and out.activation.name == "softmax"
                else va.Activation("log", m.place(call.node))
            )
        return _turned(replace(out, activation=kept, shape=_shape_of(m, last, call, out)), last)
    sources = m.sources_of(call.arguments)
    pass_ = m.forward[1] if m.forward is not None and True in m.passes[m.forward[1]].forward.grad else None
    if pass_ is not None and last not in _CREATING:
        # inside a forward on unknown data: a parameter is usually involved, the pass says it for sure later
        return replace(m.attach(None, call.arguments, call.node), shape=_shape_of(m, last, call, None))
    shape = _shape_of(m, last, call, None)
    link = m.link(call.node, f"{last} computed here") if shape is not None else None
    return va.Tensor(link, sources=sources, taint=content_taint(m, call.arguments), shape=shape)
