"""torch.nn.init: values do not exist here, so each function returns its tensor; storages stay."""

from __future__ import annotations

from torchwise_memory.operators.registry import Function, Param
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

_TENSOR = Param("tensor")
_GENERATOR = Param("generator", None)

#: name -> parameters after the tensor
_SIGNATURES: dict[str, tuple[Param, ...]] = {
    "uniform_": (Param("a", 0.0), Param("b", 1.0), _GENERATOR),
    "normal_": (Param("mean", 0.0), Param("std", 1.0), _GENERATOR),
    "trunc_normal_": (Param("mean", 0.0), Param("std", 1.0), Param("a", -2.0), Param("b", 2.0), _GENERATOR),
    "constant_": (Param("val"),),
    "ones_": (),
    "zeros_": (),
    "eye_": (),
    "dirac_": (Param("groups", 1),),
    "xavier_uniform_": (Param("gain", 1.0), _GENERATOR),
    "xavier_normal_": (Param("gain", 1.0), _GENERATOR),
    "kaiming_uniform_": (
        Param("a", 0),
        Param("mode", "fan_in"),
        Param("nonlinearity", "leaky_relu"),
        _GENERATOR,
    ),
    "kaiming_normal_": (
        Param("a", 0),
        Param("mode", "fan_in"),
        Param("nonlinearity", "leaky_relu"),
        _GENERATOR,
    ),
    "orthogonal_": (Param("gain", 1), _GENERATOR),
    "sparse_": (Param("sparsity"), Param("std", 0.01), _GENERATOR),
}
#: Spellings without the underscore that torch still accepts.
_OLD_NAMES = (
    "uniform",
    "normal",
    "constant",
    "eye",
    "dirac",
    "xavier_uniform",
    "xavier_normal",
    "kaiming_uniform",
    "kaiming_normal",
    "orthogonal",
    "sparse",
)


def init_functions() -> dict[str, Function]:
    """Qualified name -> function."""
    made: dict[str, Function] = {}
    for name, params in _SIGNATURES.items():
        for spelling in (name, name[:-1]) if name[:-1] in _OLD_NAMES else (name,):
            qualified = f"torch.nn.init.{spelling}"
            made[qualified] = Function(qualified, (_TENSOR, *params), _returns_tensor)
    made["torch.nn.init.calculate_gain"] = Function(
        "torch.nn.init.calculate_gain", (Param("nonlinearity"), Param("param", None)), _gain
    )
    made["torch.nn.init._calculate_fan_in_and_fan_out"] = Function(
        "torch.nn.init._calculate_fan_in_and_fan_out", (_TENSOR,), _fans
    )
    return made


def _returns_tensor(w: World, tensor: Tensor, *_args: object, **_kwargs: object) -> Tensor:
    tensor.storage.values = None
    return tensor


def _gain(w: World, nonlinearity: str, param: float | None = None) -> float:
    gains: dict[str, float] = {"tanh": 5.0 / 3, "relu": 2**0.5, "selu": 3.0 / 4}
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return float((2.0 / (1 + slope**2)) ** 0.5)
    return gains.get(nonlinearity, 1.0)


def _fans(w: World, tensor: Tensor) -> tuple[int, int]:
    receptive = 1
    for extent in tensor.shape[2:]:
        receptive *= extent
    return tensor.shape[1] * receptive, tensor.shape[0] * receptive
