"""Tables of meanings and how entries get into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine
from torchwise_analysis.source import nodes as nd


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of a library function (`name` is qualified) or of a method (`name` is its own)."""

    name: str
    arguments: va.Arguments
    node: nd.Node

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    def get(self, name: str, position: int | None = None) -> va.Value | None:
        return self.arguments.get(name, position)

    def first(self) -> va.Value | None:
        """The first argument, however it is given."""
        for value in self.arguments:
            return value
        return None


Function: TypeAlias = "Callable[[Machine, Call], va.Value]"
Method: TypeAlias = "Callable[[Machine, va.Obj, Call], va.Value | None]"

FUNCTIONS: dict[str, Function] = {}
METHODS: dict[tuple[va.Kind, str], Method] = {}
FALLBACKS: dict[va.Kind, Method] = {}


def function(*names: str) -> Callable[[Function], Function]:
    """Register the meaning of qualified names (canonical ones, see `canonical`)."""

    def register(meaning: Function) -> Function:
        for name in names:
            FUNCTIONS[name] = meaning
        return meaning

    return register


def method(kind: va.Kind, *names: str) -> Callable[[Method], Method]:
    """Register methods of a kind of object; None as result means "not this one after all"."""

    def register(meaning: Method) -> Method:
        for name in names:
            METHODS[(kind, name)] = meaning
        return meaning

    return register


def fallback(*kinds: va.Kind) -> Callable[[Method], Method]:
    """Register what any other method of these kinds does."""

    def register(meaning: Method) -> Method:
        for kind in kinds:
            FALLBACKS[kind] = meaning
        return meaning

    return register


# Where classes and functions live and the shorter name under which their package exports them.
_REEXPORTS = (
    "torch.nn.functional",
    "torch.nn.parallel",
    "torch.nn.utils",
    "torch.nn.init",
    "torch.nn",
    "torch.optim.lr_scheduler",
    "torch.optim.swa_utils",
    "torch.optim",
    "torch.utils.data",
    "torch.utils.checkpoint",
    "torch.cuda.amp",
    "torch.amp",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.nn",
    "torch.distributed.checkpoint",
    "torch.distributed.tensor",
    "torch.distributed",
    "torch.distributions",
    "torch.autograd",
    "torch.func",
    "accelerate",
    "transformers",
    "deepspeed",
    "torch_geometric.loader",
)

_RENAMED = (
    ("pytorch_lightning.", "lightning."),
    ("lightning.pytorch.", "lightning."),
    ("lightning_fabric.", "lightning.fabric."),
    ("torch.nn.modules.", "torch.nn."),
    ("torch.distributed.algorithms.join.", "torch.distributed."),
    ("torch.functional.", "torch."),
    ("functorch.", "torch.func."),
    ("numpy.", "numpy."),
)

_KEPT_WHOLE = frozenset(["torch.autograd.functional", "torch.autograd.graph", "torch.autograd.profiler"])


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """The name under which its package exports it: `torch.nn.modules.loss.NLLLoss` is `torch.nn.NLLLoss`."""
    for old, new in _RENAMED:
        if name.startswith(old):
            name = new + name[len(old) :]
            break
    last = name.rpartition(".")[2]
    for package in _REEXPORTS:
        if name.startswith(package + "."):
            middle = name[len(package) + 1 : -len(last) - 1]
            private = middle and "." not in middle and f"{package}.{middle}" not in _KEPT_WHOLE
            if (
                private
                and middle.islower()
                and package != "torch.nn"
                and f"{package}.{middle}" not in _REEXPORTS
            ):
                return f"{package}.{last}"
            if (
                private
                and package == "torch.nn"
                and middle not in ("functional", "parallel", "utils", "init", "attention")
            ):
                return f"{package}.{last}"
            break
    if name.startswith("lightning."):
        return f"lightning.{last}" if last[:1].isupper() else name
    return name


def truth_of(value: va.Value | None, default: bool) -> bool | None:
    """A flag argument: its constant truth, `default` when not given, None when unknown."""
    if value is None:
        return default
    if isinstance(value, va.Const):
        return bool(value.value)
    return None


def text_of(value: va.Value | None) -> str | None:
    return value.value if isinstance(value, va.Const) and isinstance(value.value, str) else None


def int_of(value: va.Value | None) -> int | None:
    if isinstance(value, va.Const) and isinstance(value.value, int) and not isinstance(value.value, bool):
        return value.value
    return None
