"""torch.nn.utils: clipping, vectors, weight and spectral normalisation."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import torch_function
from torchwise_memory.operators.registry import Function, Registration, function_of, operator, registrations
from torchwise_memory.runtime.device import CPU
from torchwise_memory.runtime.dtypes import float32
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tape import record
from torchwise_memory.runtime.tensor import Parameter, Tensor
from torchwise_memory.runtime.world import World


def utility_functions() -> dict[str, Function]:
    """Qualified name -> function."""
    found: list[Registration] = registrations(globals())
    return {name: function_of(name, entry.call) for entry in found for name in entry.names}


def _with_gradients(parameters: Any) -> list[Tensor]:
    tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise Unsupported("torch.nn.utils.clip_grad_norm_", "a parameter that is not known")
    return [tensor for tensor in tensors if tensor.grad is not None]


@operator("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")
def clip_grad_norm_(
    w: World,
    parameters: Any,
    max_norm: Any,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """One scalar a gradient, their stack, and scaling in place. Returns the total norm."""
    total = get_total_norm(w, _gradients(parameters), norm_type)
    scalars = [w.new((), float32, name, total.device) for name in ("add", "div", "clamp")]
    del scalars
    return total


@operator("torch.nn.utils.get_total_norm")
def get_total_norm(
    w: World,
    tensors: Any,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    gradients = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not gradients:
        return w.new((), float32, "tensor", w.default_device or CPU)
    norms = [w.new((), gradient.dtype, "_foreach_norm", gradient.device) for gradient in gradients]
    first = norms[0]
    stacked = w.new((len(norms),), first.dtype, "stack", first.device)
    total = w.new((), first.dtype, "linalg_vector_norm", first.device)
    del norms, stacked
    return total


@operator("torch.nn.utils.clip_grads_with_norm_")
def clip_grads_with_norm_(
    w: World, parameters: Any, max_norm: Any, total_norm: Any, foreach: bool | None = None
) -> None:
    """Scales in place."""


@operator("torch.nn.utils.clip_grad_value_")
def clip_grad_value_(w: World, parameters: Any, clip_value: Any, foreach: bool | None = None) -> None:
    """Clamps in place."""


@operator("torch.nn.utils.parameters_to_vector", "torch.nn.utils.convert_parameters.parameters_to_vector")
def parameters_to_vector(w: World, parameters: Iterable[Tensor]) -> Any:
    flat = [torch_function(w, "torch.reshape", parameter, (-1,)) for parameter in parameters]
    return torch_function(w, "torch.cat", flat)


@operator("torch.nn.utils.vector_to_parameters", "torch.nn.utils.convert_parameters.vector_to_parameters")
def vector_to_parameters(w: World, vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Each parameter's data becomes a view of the vector."""
    for parameter in parameters:
        parameter.storage = vec.storage


class _Reparametrised:
    """The policy of a reparametrised weight: computed on entering forward, dropped on leaving."""

    def __init__(self, name: str) -> None:
        self.name = name

    def enter(self, w: World, module: Module) -> None:
        module.fields[self.name] = self.compute(w, module)

    def leave(self, w: World, module: Module, output: object) -> object:
        del module.fields[self.name]
        return output

    def compute(self, w: World, module: Module) -> Tensor:
        raise NotImplementedError


class _WeightNorm(_Reparametrised):
    """`_weight_norm`: one node that keeps direction, magnitude and the norms."""

    def __init__(self, name: str, direction: str, magnitude: str) -> None:
        super().__init__(name)
        self.direction = direction
        self.magnitude = magnitude

    def compute(self, w: World, module: Module) -> Tensor:
        v, g = module.tensor(self.direction), module.tensor(self.magnitude)
        weight = w.like(v, "_weight_norm")
        norms = w.like(g, "_weight_norm", float32)
        record(w, "WeightNormInterface", (v, g), (v, g, norms), _weight_norm_backward, weight)
        return weight


def _weight_norm_backward(
    w: World, saved: list[Tensor | None], gradients: list[Tensor | None]
) -> list[Tensor]:
    v, g = saved[0], saved[1]
    assert v is not None
    assert g is not None
    return [w.like(v, "_weight_norm_backward"), w.like(g, "_weight_norm_backward")]


class _SpectralNorm(_Reparametrised):
    """The weight divided by its largest singular value, which power iteration estimates without gradients."""

    def compute(self, w: World, module: Module) -> Tensor:
        original = module.tensor(f"{self.name}_orig")
        weight = w.like(original, "div")
        sigma = w.new((), original.dtype, "dot", original.device)
        record(w, "SpectralNorm", (original,), (original, sigma), _spectral_norm_backward, weight)
        return weight


def _spectral_norm_backward(
    w: World, saved: list[Tensor | None], gradients: list[Tensor | None]
) -> list[Tensor]:
    gradient = gradients[0]
    assert gradient is not None
    outer = w.like(gradient, "ger")
    result = w.like(gradient, "add")
    del outer
    return [result]


@operator("torch.nn.utils.weight_norm", "torch.nn.utils.parametrizations.weight_norm")
def weight_norm(w: World, module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    weight = module.parameters.pop(name)
    if weight is None:
        raise Unsupported("torch.nn.utils.weight_norm", f"the module has no parameter {name!r}")
    shape = [1] * weight.ndim
    if dim is not None:
        shape[dim] = weight.shape[dim]
    magnitude = Parameter(w.new(shape, weight.dtype, "norm_except_dim", weight.device))
    module.adopt_parameter(f"{name}_g", magnitude)
    module.adopt_parameter(f"{name}_v", weight)
    module.policies.append(_WeightNorm(name, f"{name}_v", f"{name}_g"))
    return module


@operator("torch.nn.utils.spectral_norm", "torch.nn.utils.parametrizations.spectral_norm")
def spectral_norm(
    w: World,
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: Any = None,
) -> Module:
    weight = module.parameters.pop(name)
    if weight is None:
        raise Unsupported("torch.nn.utils.spectral_norm", f"the module has no parameter {name!r}")
    rows = weight.shape[dim or 0]
    columns = prod(weight.shape) // rows
    module.adopt_parameter(f"{name}_orig", weight)
    for suffix, extent in (("u", rows), ("v", columns)):
        module.register_buffer(
            w, f"{name}_{suffix}", w.new((extent,), weight.dtype, "normalize", weight.device)
        )
    module.policies.append(_SpectralNorm(name))
    return module


@operator("torch.nn.utils.remove_weight_norm", "torch.nn.utils.remove_spectral_norm")
def remove_reparametrisation(w: World, module: Module, name: str = "weight") -> Module:
    for policy in list(module.policies):
        if isinstance(policy, _Reparametrised) and policy.name == name:
            module.policies.remove(policy)
            kept = module.parameters.pop(f"{name}_v", None) or module.parameters.pop(f"{name}_orig", None)
            module.parameters.pop(f"{name}_g", None)
            module.parameters[name] = kept
    return module


def _gradients(parameters: Any) -> list[Tensor]:
    return [tensor.grad for tensor in _with_gradients(parameters) if tensor.grad is not None]
