"""Every class that a program may use without its source: torch.nn, torch.optim, scaling, schedules.

`CLASSES` maps qualified names, aliases included, to entries; `CLASS_FUNCTIONS` work on modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torchwise_memory.modules.attention import ATTENTION
from torchwise_memory.modules.base import Handle, Module
from torchwise_memory.modules.containers import CONTAINERS
from torchwise_memory.modules.conv import CONVOLUTIONS
from torchwise_memory.modules.initialisation import init_functions
from torchwise_memory.modules.linear import LINEAR
from torchwise_memory.modules.native import NativeClass, native_class
from torchwise_memory.modules.norm import NORMS
from torchwise_memory.modules.parallel import PARALLEL
from torchwise_memory.modules.rnn import (
    RECURRENT,
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
)
from torchwise_memory.modules.simple import ACTIVATIONS, DROPOUTS, LOSSES, POOLING, SIMPLE
from torchwise_memory.modules.utilities import utility_functions
from torchwise_memory.operators.registry import Function, function_of
from torchwise_memory.optimizers.scaling import SCHEDULES, CudaGradScaler, GradScaler, Scheduler
from torchwise_memory.optimizers.third_party import THIRD_PARTY
from torchwise_memory.optimizers.torch_optim import TORCH_OPTIMIZERS
from torchwise_memory.policies.fsdp import FSDP, fsdp_functions
from torchwise_memory.policies.tensor_parallel import (
    TENSOR_PARALLEL,
    TENSOR_PARALLEL_ALIASES,
    tensor_parallel_functions,
)

_MODULES: tuple[type[Module], ...] = (
    Module,
    *LINEAR,
    *CONVOLUTIONS,
    *NORMS,
    *SIMPLE,
    *CONTAINERS,
    *ATTENTION,
    *RECURRENT,
    *PARALLEL,
)

#: Other spellings of a qualified name.
_ALIASES: dict[str, tuple[str, ...]] = {
    "torch.nn.Module": ("torch.nn.modules.Module", "torch.nn.modules.module.Module"),
    "torch.nn.DataParallel": ("torch.nn.parallel.DataParallel",),
    "torch.nn.parallel.DistributedDataParallel": (
        "torch.nn.parallel.distributed.DistributedDataParallel",
        "apex.parallel.DistributedDataParallel",
    ),
    "torch.distributed.fsdp.FullyShardedDataParallel": (
        "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel",
    ),
    "torch.distributed.fsdp.MixedPrecision": (
        "torch.distributed.fsdp.fully_sharded_data_parallel.MixedPrecision",
        "torch.distributed.fsdp.api.MixedPrecision",
    ),
    "torch.amp.GradScaler": ("torch.amp.grad_scaler.GradScaler",),
    "torch.cuda.amp.GradScaler": ("torch.cuda.amp.grad_scaler.GradScaler",),
    "torch.optim.lr_scheduler.LRScheduler": ("torch.optim.lr_scheduler._LRScheduler",),
    "lion_pytorch.Lion": ("lion_pytorch.lion_pytorch.Lion", "timm.optim.Lion", "timm.optim.lion.Lion"),
    "apex.optimizers.FusedAdam": ("deepspeed.ops.adam.FusedAdam",),
    "transformers.optimization.Adafactor": ("transformers.Adafactor",),
    **TENSOR_PARALLEL_ALIASES,
}


#: Where torch.nn defines its classes: `torch.nn.modules.<file>.<class>` is another spelling.
_FILES: dict[str, tuple[type[Any], ...]] = {
    "linear": LINEAR[:6],
    "flatten": LINEAR[5:7],
    "conv": CONVOLUTIONS,
    "activation": (*ACTIVATIONS, ATTENTION[0]),
    "dropout": DROPOUTS,
    "pooling": POOLING,
    "loss": LOSSES,
    "container": CONTAINERS,
    "transformer": ATTENTION[1:],
    "rnn": RECURRENT,
    "batchnorm": NORMS[3:],
    "normalization": NORMS[:3],
    "instancenorm": NORMS[3:],
    "sparse": LINEAR,
}


def _defined_in() -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for file, hosts in _FILES.items():
        for host in hosts:
            stem = host.native_name.rpartition(".")[2]
            names[host.native_name] = (
                *names.get(host.native_name, ()),
                f"torch.nn.modules.{file}.{stem}",
                f"torch.nn.modules.{stem}",
            )
    for optimizer in TORCH_OPTIMIZERS:
        stem = optimizer.native_name.rpartition(".")[2]
        names[optimizer.native_name] = (f"torch.optim.{stem.lower()}.{stem}",)
    return names


def _classes() -> dict[str, NativeClass]:
    others: tuple[Any, ...] = (GradScaler, CudaGradScaler, Scheduler, PackedSequence, Handle)
    everything: tuple[Any, ...] = (
        *_MODULES,
        *TORCH_OPTIMIZERS,
        *THIRD_PARTY,
        *FSDP,
        *TENSOR_PARALLEL,
        *others,
    )
    hosts: dict[type[Any], str] = {host: host.native_name for host in everything}
    table: dict[str, NativeClass] = {}
    for host, name in hosts.items():
        bases = [hosts[base] for base in host.__mro__[1:] if base in hosts][:1]
        table[name] = native_class(host, name, bases)
    for schedule in SCHEDULES:
        name = f"torch.optim.lr_scheduler.{schedule}"
        if name not in table:
            base = table["torch.optim.lr_scheduler.LRScheduler"]
            table[name] = replace(base, name=name, bases=(base.name,))
    defined_in = _defined_in()
    for name, entry in list(table.items()):
        for alias in (*_ALIASES.get(name, ()), *defined_in.get(name, ())):
            table.setdefault(alias, entry)
        if name.startswith("torchao.optim."):
            table.setdefault(name.replace("torchao.optim.", "torchao.prototype.low_bit_optim."), entry)
        if name.startswith("bitsandbytes.optim."):
            table.setdefault(name.replace("bitsandbytes.optim.", "bitsandbytes.optim.adamw."), entry)
    return table


def _functions() -> dict[str, Function]:
    return {
        **init_functions(),
        **utility_functions(),
        **fsdp_functions(),
        **tensor_parallel_functions(),
        **{
            f"torch.nn.utils.rnn.{call.__name__}": function_of(f"torch.nn.utils.rnn.{call.__name__}", call)
            for call in (pack_padded_sequence, pad_packed_sequence, pad_sequence, pack_sequence)
        },
    }


#: "torch.nn.Linear" -> NativeClass
CLASSES: Mapping[str, NativeClass] = MappingProxyType(_classes())
#: "torch.nn.init.xavier_uniform_" -> Function
CLASS_FUNCTIONS: Mapping[str, Function] = MappingProxyType(_functions())


def class_of(value: object) -> NativeClass | None:
    """The entry of a native object the program holds, for attribute and method look-ups."""
    name = getattr(type(value), "native_name", None)
    return CLASSES.get(name) if isinstance(name, str) else None
