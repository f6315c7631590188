"""Linear layers of described workloads: plain, quantised, with adapters; and prompts that are learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchwise_memory.families.base import add, embedding, linear
from torchwise_memory.families.fused import fused, grouped_linear
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import DType, float32, uint8
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tape import Gradients, Saved, record
from torchwise_memory.runtime.tensor import Parameter, Tensor
from torchwise_memory.runtime.world import World


@dataclass(frozen=True, slots=True)
class Quantised:
    """How weights of linear layers are stored.

    bits a weight; block: weights that share one scale of `scale_bytes`; dequantises: the whole matrix is made
    in the computing type at each use (bitsandbytes, torchao), else a kernel reads packed weights.
    """

    bits: float
    block: int
    scale_bytes: float
    dequantises: bool = True
    row_scales: bool = False

    def bytes_of(self, rows: int, columns: int) -> int:
        count = rows * columns
        scales = rows * 4 if self.row_scales else int(count / self.block * self.scale_bytes)
        return int(count * self.bits / 8) + scales


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA and its kin on the layers named in `targets`. dtype: of adapter weights; None follows the model.

    method: "lora", "dora" (LoRA with a learned magnitude), "ia3" (a learned scale), "v2" (scale and bias,
    LLaMA-Adapter v2). cast_inputs: inputs are cast to `dtype` first.
    """

    method: str
    rank: int
    targets: frozenset[str]
    dtype: DType | None = None
    dropout: float = 0.0
    cast_inputs: bool = False


@dataclass(frozen=True, slots=True)
class PromptShape:
    """Learned tokens before the text. method: "prompt", "p-tuning" (through a network of `inner`), "prefix"
    (keys and values of every layer).
    """

    method: str
    tokens: int
    inner: int = 0


@dataclass(frozen=True, slots=True)
class Projections:
    """Makes the linear layers of a model, by the name of their place.

    tensor_parallel: how many processes divide each matrix. packs_experts: those of mixtures are packed like
    other layers, or as `experts_packed` where they differ.
    """

    quantised: Quantised | None = None
    adapter: Adapter | None = None
    tensor_parallel: int = 1
    compute: DType | None = None
    kept_plain: frozenset[str] = field(default=frozenset({"lm_head", "router", "shared_gate"}))
    packs_experts: bool = False
    experts_packed: Quantised | None = None

    def __call__(self, w: World, name: str, columns: int, rows: int, bias: bool) -> Module:
        layer = Projection()
        quantised = None if name in self.kept_plain else self.quantised
        layer.build(w, columns, rows, bias, quantised, self.compute)
        adapter = self.adapter
        if adapter is None or not targeted(adapter.targets, name):
            return layer
        adapted = Adapted()
        adapted.build(w, name, layer, adapter)
        return adapted

    def grouped(self, w: World, experts: int, rows: int, columns: int, bias: bool = False) -> Module:
        """Products of all experts: plain, or packed where experts are (`experts_packed`)."""
        layer = GroupedProjection()
        packed = self.quantised if self.experts_packed is None else self.experts_packed
        layer.build(w, experts, rows, columns, bias, packed if self.packs_experts else None, self.compute)
        return layer


def targeted(targets: frozenset[str], name: str) -> bool:
    """A fused layer has an adapter when one of its parts is meant, and a part when the fused one is."""
    parts = {"qkv": {"q", "k", "v"}, "gate_up": {"gate", "up"}}.get(name, set())
    return name in targets or bool(parts & targets) or (name in ("q", "k", "v") and "qkv" in targets)


class Projection(Module):
    native_name = "torch.nn.Linear"

    def build(
        self,
        w: World,
        columns: int,
        rows: int,
        bias: bool,
        quantised: Quantised | None,
        compute: DType | None,
    ) -> None:
        self.rows, self.columns = rows, columns
        self.quantised, self.compute = quantised, compute
        if quantised is None:
            self.new_parameter(w, "weight", (rows, columns), None, None)
        else:
            packed = w.new(
                (quantised.bytes_of(rows, columns),), uint8, "packed weight", kind=StorageKind.WEIGHTS
            )
            self.adopt_parameter("weight", Parameter(packed, requires_grad=False))
        self.parameters["bias"] = None
        if bias:
            self.new_parameter(w, "bias", (rows,), None, None)

    def share(self, embedding: Module) -> None:
        """Tied to a table of tokens."""
        if self.quantised is None:
            self.parameters["weight"] = embedding.parameters["weight"]

    @property
    def count(self) -> int:
        """Weights, however they are packed."""
        bias = self.parameters.get("bias")
        return self.rows * self.columns + (bias.numel if bias is not None else 0)

    def forward(self, w: World, x: Any) -> Any:
        weight, bias = self.tensor("weight"), self.parameter("bias")
        if self.quantised is None:
            if x.dtype is not weight.dtype and w.autocast_dtype is None:
                x = method(w, "to", x, weight.dtype)
            return functional(w, "linear", x, weight, bias)
        given = x.dtype
        dtype = w.autocast_dtype or self.compute or given
        if x.dtype is not dtype:
            x = method(w, "to", x, dtype)
        w.matrix_workspace(x.device)
        whole = self._whole(w, dtype, x)
        result = w.new((*x.shape[:-1], self.rows), dtype, "quantised linear", x.device)
        del whole
        record(w, "quantised linear", (x,), (weight,), _QuantisedBack(self, x, dtype), result)
        return result if w.autocast_dtype is not None else method(w, "to", result, given)

    def whole_weight(self, w: World, dtype: DType) -> Any:
        """The weight as a matrix of that type; a packed one is unpacked."""
        weight = self.tensor("weight")
        if self.quantised is None:
            return method(w, "to", weight, dtype)
        whole = w.new((self.rows, self.columns), self.compute or dtype, "dequantised weight", weight.device)
        return method(w, "to", whole, dtype)

    def _whole(self, w: World, dtype: DType, x: Tensor) -> Tensor | None:
        if self.quantised is None or not self.quantised.dequantises:
            return None
        return w.new((self.rows, self.columns), dtype, "dequantised weight", x.device)


class GroupedProjection(Module):
    """Products of experts: rows of the input by the matrix of their expert."""

    native_name = "torchwise.GroupedLinear"

    def build(
        self,
        w: World,
        experts: int,
        rows: int,
        columns: int,
        bias: bool,
        quantised: Quantised | None,
        compute: DType | None,
    ) -> None:
        self.experts, self.rows, self.columns = experts, rows, columns
        self.quantised, self.compute = quantised, compute
        if quantised is None:
            self.new_parameter(w, "weight", (experts, rows, columns), None, None)
        else:
            size = experts * quantised.bytes_of(rows, columns)
            packed = w.new((size,), uint8, "packed experts", kind=StorageKind.WEIGHTS)
            self.adopt_parameter("weight", Parameter(packed, requires_grad=False))
        self.parameters["bias"] = None
        if bias:
            self.new_parameter(w, "bias", (experts, rows), None, None)

    @property
    def packed_away(self) -> int:
        """Weights that the packed storage stands for beyond its own elements."""
        if self.quantised is None:
            return 0
        return self.experts * self.rows * self.columns - self.tensor("weight").numel

    def forward(self, w: World, x: Any, adds_bias: bool = True) -> Any:
        weight, bias = self.tensor("weight"), self.parameter("bias")
        if self.quantised is None:
            out = grouped_linear(w, x, weight)
        else:
            out = self._unpacked_product(w, x, weight)
        if bias is None or not adds_bias:
            return out
        return fused(w, "add", (out, bias), out.shape, out.dtype, saved=())

    def _unpacked_product(self, w: World, x: Any, weight: Tensor) -> Any:
        """One expert after the other is unpacked, where a kernel does not read packed weights."""
        assert self.quantised is not None
        w.matrix_workspace(x.device)
        whole = None
        if self.quantised.dequantises:
            whole = w.new((self.rows, self.columns), x.dtype, "dequantised expert", x.device)
        result = w.new((x.shape[0], self.rows), x.dtype, "packed experts", x.device)
        del whole
        record(w, "packed experts", (x,), (weight,), _QuantisedBack(self, x, x.dtype), result)
        return result


class _QuantisedBack:
    __slots__ = ("columns", "dequantises", "dtype", "rows", "shape")

    def __init__(self, layer: Projection | GroupedProjection, x: Tensor, dtype: DType) -> None:
        self.rows, self.columns = layer.rows, layer.columns
        self.shape, self.dtype = x.shape, dtype
        self.dequantises = layer.quantised is not None and layer.quantised.dequantises

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        w.matrix_workspace(gradient.device)
        whole = w.new((self.rows, self.columns), self.dtype, "dequantised weight", gradient.device)
        result = w.new(self.shape, self.dtype, "quantised linear backward", gradient.device)
        del whole
        return [result]


class Adapted(Module):
    """A frozen layer and what is trained beside it, as peft computes it."""

    native_name = "torchwise.Adapted"

    def build(self, w: World, name: str, base: Projection, adapter: Adapter) -> None:
        self.adapter = adapter
        self.scales_input = name == "down"
        for parameter in base.parameters.values():
            if parameter is not None:
                parameter.requires_grad = False
        self.children["base"] = base
        rows, columns, dtype = base.rows, base.columns, adapter.dtype
        if adapter.method == "v2":
            self.new_parameter(w, "scale", (rows,), None, dtype)
            self.new_parameter(w, "shift", (rows,), None, dtype)
        elif adapter.method == "ia3":
            self.new_parameter(w, "scale", (columns if self.scales_input else rows,), None, dtype)
        else:
            self.new_parameter(w, "a", (adapter.rank, columns), None, dtype)
            self.new_parameter(w, "b", (rows, adapter.rank), None, dtype)
            if adapter.method == "dora":
                self.new_parameter(w, "magnitude", (rows,), None, dtype)

    def forward(self, w: World, x: Any) -> Any:
        if self.adapter.method == "ia3":
            return self._scaled(w, x)
        result = self.run(w, "base", x)
        if self.adapter.method == "v2":
            shifted = add(w, result, self.tensor("shift"))
            return torch_function(w, "torch.mul", shifted, self.tensor("scale"))
        dtype = result.dtype
        a, b = self.tensor("a"), self.tensor("b")
        if self.adapter.cast_inputs and w.autocast_dtype is None and x.dtype is not a.dtype:
            x = method(w, "to", x, a.dtype)
        dropped = self.adapter.dropout > 0 and self.training
        if dropped:
            x = functional(w, "dropout", x, self.adapter.dropout, True)
        if self.adapter.method == "dora":
            return method(w, "to", add(w, result, self._magnified(w, x, None if dropped else result)), dtype)
        low = functional(w, "linear", x, a)
        del x
        high = functional(w, "linear", low, b)
        del low
        scaled = torch_function(w, "torch.mul", high, 2.0)
        del high
        result = add(w, result, scaled)
        return method(w, "to", result, dtype)

    def _scaled(self, w: World, x: Any) -> Any:
        """`peft/tuners/ia3/layer.py`: the input of the feed-forward's last layer, else the output."""
        scale = self.tensor("scale")
        given = x.dtype
        if self.scales_input:
            x = method(w, "to", x, scale.dtype)
            x = method(w, "to", torch_function(w, "torch.mul", x, scale), given)
            return self.run(w, "base", x)
        result = self.run(w, "base", x)
        return method(w, "to", torch_function(w, "torch.mul", result, scale), result.dtype)

    def _magnified(self, w: World, x: Any, base_result: Any) -> Any:
        """`peft/tuners/lora/dora.py`: the norm of the whole weight with its change, made anew at each use."""
        a, b = self.tensor("a"), self.tensor("b")
        base = self.child("base")
        assert isinstance(base, Projection)
        eye = torch_function(w, "torch.eye", base.columns, dtype=a.dtype, device=a.device)
        change = method(w, "t", functional(w, "linear", functional(w, "linear", eye, a), b))
        del eye
        change = method(w, "to", change, x.dtype)
        weight = base.whole_weight(w, x.dtype)
        whole = add(w, weight, torch_function(w, "torch.mul", method(w, "detach", change), 2.0))
        norm = torch_function(w, "torch.linalg.norm", whole, dim=1)
        del whole
        scale = torch_function(w, "torch.div", self.tensor("magnitude"), method(w, "detach", norm))
        scale = method(w, "view", scale, 1, -1)
        high = functional(w, "linear", functional(w, "linear", x, a), b)
        if base_result is None:
            base_result = functional(w, "linear", x, weight)
        elif base.parameters["bias"] is not None:
            base_result = torch_function(w, "torch.sub", base_result, base.tensor("bias"))
        first = torch_function(w, "torch.mul", torch_function(w, "torch.sub", scale, 1), base_result)
        second = torch_function(w, "torch.mul", torch_function(w, "torch.mul", scale, high), 2.0)
        return add(w, first, second)


class Prompt(Module):
    """The tokens, or keys and values, that are learned before the text."""

    native_name = "torchwise.Prompt"

    def build(self, w: World, shape: PromptShape, width: int) -> None:
        """width: of a token; for a prefix, of the keys and values of all layers together."""
        self.shape = shape
        self.children["embedding"] = embedding(w, shape.tokens, width).to(w, float32)
        if shape.method == "p-tuning":
            inner = shape.inner or width
            for name, (i, o) in {
                "in": (width, inner),
                "middle": (inner, inner),
                "out": (inner, width),
            }.items():
                self.children[name] = linear(w, i, o).to(w, float32)

    def forward(self, w: World, batch: int) -> Any:
        """(batch, tokens, width); a prefix is looked up for each sample, tokens once."""
        device = self.child("embedding").tensor("weight").device
        rows = method(w, "unsqueeze", torch_function(w, "torch.arange", self.shape.tokens, device=device), 0)
        if self.shape.method == "prefix":
            return self.run(w, "embedding", method(w, "expand", rows, batch, -1))
        x = self.run(w, "embedding", rows)
        if self.shape.method == "p-tuning":
            for name in ("in", "middle"):
                x = functional(w, "relu", self.run(w, name, x))
            x = self.run(w, "out", x)
        return method(w, "repeat", x, batch, 1, 1)


__all__ = ["Adapted", "Adapter", "Projection", "Projections", "Prompt", "PromptShape", "Quantised"]
