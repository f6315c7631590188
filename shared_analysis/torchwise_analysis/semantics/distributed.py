"""Processes, ranks, wrappers and collectives."""

from __future__ import annotations

from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.quick import replace
from torchwise_analysis.semantics import tensors
from torchwise_analysis.semantics.registry import FUNCTIONS, Call, function
from torchwise_analysis.source import nodes as nd

_COLLECTIVES = frozenset(
    [
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "broadcast",
        "broadcast_object_list",
        "reduce",
        "gather",
        "scatter",
        "barrier",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "all_to_all",
        "all_to_all_single",
        "monitored_barrier",
        "gather_object",
        "scatter_object_list",
    ]
)
_WRAPPERS = {
    "DistributedDataParallel": "ddp",
    "FullyShardedDataParallel": "fsdp",
    "DataParallel": "dataparallel",
    "compile": "compile",
    "OptimizedModule": "compile",
    "PipelineParallel": "pipeline",
}


def wrap(m: Machine, inner: va.Value, how: str, call: Call) -> va.Value:
    """A new module around another; the parts keep their identity."""
    known = first_known(inner)
    m.emit(
        ev.Wrapped,
        call.node,
        module=known if isinstance(known, va.Obj) else None,
        how=how,
        arguments=call.arguments,
    )
    if not isinstance(known, va.Obj) or known.kind not in (va.Kind.MODULE, va.Kind.OPAQUE):
        return inner
    outer = m.make(
        va.Kind.MODULE,
        call.node,
        call.name,
        over=(known,),
        traits=frozenset(["wrapper", how]),
        arguments=call.arguments,
    )
    m.put_mode(outer.id, m.mode(known))
    m.adopt(known, outer)
    if how != "compile":
        m.wrapped[known.id] = how
    m.state.set(("a", outer.id, "_orig_mod" if how == "compile" else "module"), known)
    return outer


@function(
    "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel",
    "apex.parallel.DistributedDataParallel",
    "torch.nn.parallel.DistributedDataParallelCPU",
    "torch.distributed.DistributedDataParallel",
)
def wrapper(m: Machine, call: Call) -> va.Value:
    how = _WRAPPERS.get(call.last, "ddp")
    if how in ("ddp", "fsdp"):
        m.emit(ev.ProcessGroup, call.node, how=call.name)
    inner = call.get("module", 0)
    return wrap(m, inner if inner is not None else va.UNKNOWN, how, call)


COMPILER = "torchwise.compiler"  # what `torch.compile(mode=...)` returns: it compiles what it is given


@function("torch.compile", "torch.jit.script", "torch.jit.trace", COMPILER)
def compile_(m: Machine, call: Call) -> va.Value:
    target = call.get("model", 0)
    if call.name != COMPILER:
        m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    if target is None:
        return va.Library(None, COMPILER if call.name == "torch.compile" else "torchwise.identity")
    known = first_known(target)
    if isinstance(known, va.Obj) and call.name in ("torch.compile", COMPILER):
        return wrap(m, target, "compile", call)
    m.emit(ev.Wrapped, call.node, module=None, how="compile", arguments=call.arguments)
    if isinstance(known, va.Function) and call.name in ("torch.compile", COMPILER):
        return compiled(m, known, call.node)
    return target


def compiled(m: Machine, target: va.Function, node: nd.Node) -> va.Function:
    """A function that torch.compile traces when it is called."""
    context = va.Context(m.link(node, "compiled here"), "compiled")
    return replace(target, wraps=(*target.wraps, context))


_QUANTIZERS = ("torch.quantization", "torch.ao.quantization", "torch.ao.quantization.quantize_fx")
_OBSERVING = ("prepare", "prepare_qat", "prepare_fx", "prepare_qat_fx", "fuse_modules", "fuse_modules_qat")
_CONVERTING = ("convert", "convert_fx", "quantize", "quantize_dynamic")


@function(*(f"{package}.{name}" for package in _QUANTIZERS for name in _OBSERVING))
def prepared_for_quantization(m: Machine, call: Call) -> va.Value:
    """The model, with observers in it: it still learns."""
    return call.get("model", 0) or va.UNKNOWN


@function(*(f"{package}.{name}" for package in _QUANTIZERS for name in _CONVERTING))
def quantized(m: Machine, call: Call) -> va.Value:
    """A model of integers, of which no gradient is recorded."""
    return va.unknown(None)


@function(
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed._composable.fsdp.fully_shard",
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.parallelize_module",
)
def shard_in_place(m: Machine, call: Call) -> va.Value:
    target = first_known(call.get("module", 0) or va.UNKNOWN)
    how = "fsdp" if call.last == "fully_shard" else "tensor parallel"
    m.emit(
        ev.Wrapped,
        call.node,
        module=target if isinstance(target, va.Obj) else None,
        how=how,
        arguments=call.arguments,
    )
    if call.last == "fully_shard":
        m.emit(ev.ProcessGroup, call.node, how=call.name)
    if isinstance(target, va.Obj):
        m.in_place[target.id] = how
    return target


@function(
    "torch.distributed.init_process_group",
    "torch.distributed.init_device_mesh",
    "deepspeed.init_distributed",
    "torch.distributed.device_mesh.init_device_mesh",
    "horovod.torch.init",
    "ignite.distributed.initialize",
)
def init_process_group(m: Machine, call: Call) -> va.Value:
    m.emit(ev.ProcessGroup, call.node, how=call.name)
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    return va.unknown(None, taint=frozenset(["rank"]))


@function(
    "torch.distributed.get_rank",
    "torch.distributed.get_world_size",
    "torch.distributed.get_node_local_rank",
    "horovod.torch.rank",
    "horovod.torch.size",
    "horovod.torch.local_rank",
    "ignite.distributed.get_rank",
    "ignite.distributed.get_world_size",
    "torch.distributed.get_global_rank",
    "mpi4py.MPI.COMM_WORLD.Get_rank",
    "mpi4py.MPI.COMM_WORLD.Get_size",
)
def rank(m: Machine, call: Call) -> va.Value:
    own = frozenset[str]() if "size" in call.last.lower() else frozenset(["this rank"])
    return va.unknown(call.last, taint=frozenset(["rank"]) | own)


@function(
    "torch.distributed.is_initialized",
    "torch.distributed.is_available",
    "torch.distributed.is_torchelastic_launched",
)
def is_initialized(m: Machine, call: Call) -> va.Value:
    return va.unknown(call.last)


def collective(m: Machine, call: Call, followed: bool = False) -> va.Value:
    m.emit(ev.Collective, call.node, name=call.name, group=call.get("group"), followed=followed)
    value = call.first()
    return va.NONE if value is None else value


for _name in _COLLECTIVES:
    FUNCTIONS[f"torch.distributed.{_name}"] = collective


@function(
    "torch.distributed.all_gather",
    "torch.distributed.all_gather_into_tensor",
    "torch.distributed.all_gather_object",
    "torch.distributed.broadcast",
    "torch.distributed.broadcast_object_list",
)
def share(m: Machine, call: Call) -> va.Value:
    """Fills the first argument with the same on every rank."""
    value = collective(m, call)
    known = first_known(value)
    held = m.items(known) if isinstance(known, va.Obj) else (known,)
    for one in held:
        m.exchange(one, tensors.agreed(one))
    _fill(m, known)
    return value


@function("torch.distributed.scatter_object_list", "torch.distributed.gather_object")
def fill(m: Machine, call: Call) -> va.Value:
    """Fills a list with what other ranks gave."""
    is_gathered = call.last == "gather_object"
    name, position = ("object_gather_list", 1) if is_gathered else ("scatter_object_output_list", 0)
    _fill(m, first_known(call.get(name, position) or va.NONE))
    return collective(m, call)


def _fill(m: Machine, value: va.Value) -> None:
    """The places that a list kept free hold anything now."""
    if not isinstance(value, va.Obj) or value.kind is not va.Kind.LIST:
        return
    held = tuple(va.UNKNOWN if isinstance(v, va.Const) and v.value is None else v for v in m.items(value))
    m.state.set(("c", value.id), held)


@function("torch.distributed.all_reduce", "torch.distributed.reduce")
def all_reduce(m: Machine, call: Call) -> va.Value:
    """In place: whoever holds the tensor finds the sum in it."""
    value = call.first()
    known = first_known(value) if value is not None else va.NONE
    given = call.node.args[0] if isinstance(call.node, nd.Call) and call.node.args else None
    is_view = isinstance(given, nd.Attribute) and given.attr == "data"
    is_named = isinstance(given, (nd.Name, nd.Attribute, nd.Subscript)) and not is_view
    is_followed = isinstance(known, va.Tensor) and known is value and is_named
    collective(m, call, is_followed)
    if is_followed:
        found = tensors.reduced(known)
        m.exchange(known, tensors.agreed(found) if call.last == "all_reduce" else found)
    if isinstance(known, va.Parameters) and known.gradients:
        m.emit(ev.ApiCall, call.node, name="all_reduce of gradients", arguments=call.arguments)
    return va.NONE


@function(
    "torch.multiprocessing.spawn",
    "torch.distributed.launcher.api.elastic_launch",
    "torch.multiprocessing.start_processes",
)
def spawn(m: Machine, call: Call) -> va.Value:
    from torchwise_analysis.interp.abstract import calls

    target = first_known(call.get("fn", 0) or va.UNKNOWN)
    if isinstance(target, va.Function):
        args = first_known(call.get("args", 1) or va.UNKNOWN)
        given = m.items(args) if isinstance(args, va.Obj) else ()
        first = va.unknown("rank", taint=frozenset(["rank", "this rank"]))
        return calls.call_function(m, target, va.Arguments((first, *given), (), not given), call.node)
    return va.NONE
