"""Linear layers and what only reshapes."""

from __future__ import annotations

from typing import Any, cast

from torchwise_memory.modules.base import Module, Resettable
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class Identity(Module):
    native_name = "torch.nn.Identity"

    def init(self, w: World, *args: object, **kwargs: object) -> None:
        pass

    def forward(self, w: World, input: Any) -> Any:
        return input


class Linear(Resettable):
    native_name = "torch.nn.Linear"

    def init(
        self,
        w: World,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.fields.update(in_features=in_features, out_features=out_features)
        self.new_parameter(w, "weight", (out_features, in_features), device, dtype)
        if bias:
            self.new_parameter(w, "bias", (out_features,), device, dtype)
        else:
            self.parameters["bias"] = None

    def forward(self, w: World, input: Tensor) -> Any:
        return functional(w, "linear", input, self.tensor("weight"), self.parameter("bias"))


class NonDynamicallyQuantizableLinear(Linear):
    """The output projection of attention; its own class in torch too."""

    native_name = "torch.nn.modules.linear.NonDynamicallyQuantizableLinear"


class LazyLinear(Linear):
    """The first input decides `in_features`; parameters are registered then, not earlier."""

    native_name = "torch.nn.LazyLinear"

    def init(  # type: ignore[override]
        self, w: World, out_features: int, bias: bool = True, device: object = None, dtype: object = None
    ) -> None:
        self.fields.update(in_features=0, out_features=out_features)
        self.pending = (out_features, bias, device, dtype)

    def forward(self, w: World, input: Tensor) -> Any:
        if "weight" not in self.parameters:
            out_features, bias, device, dtype = self.pending
            Linear.init(self, w, input.shape[-1], out_features, bias, device or input.device, dtype)
        return super().forward(w, input)


class Bilinear(Resettable):
    native_name = "torch.nn.Bilinear"

    def init(
        self,
        w: World,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.fields.update(in1_features=in1_features, in2_features=in2_features, out_features=out_features)
        self.new_parameter(w, "weight", (out_features, in1_features, in2_features), device, dtype)
        if bias:
            self.new_parameter(w, "bias", (out_features,), device, dtype)
        else:
            self.parameters["bias"] = None

    def forward(self, w: World, input1: Tensor, input2: Tensor) -> Any:
        return functional(w, "bilinear", input1, input2, self.tensor("weight"), self.parameter("bias"))


class Flatten(Module):
    native_name = "torch.nn.Flatten"

    def init(self, w: World, start_dim: int = 1, end_dim: int = -1) -> None:
        self.fields.update(start_dim=start_dim, end_dim=end_dim)

    def forward(self, w: World, input: Tensor) -> Any:
        return method(w, "flatten", input, self.integer("start_dim"), self.integer("end_dim"))


class Unflatten(Module):
    native_name = "torch.nn.Unflatten"

    def init(self, w: World, dim: int, unflattened_size: Any) -> None:
        self.fields.update(dim=dim, unflattened_size=unflattened_size)

    def forward(self, w: World, input: Tensor) -> Any:
        return method(w, "unflatten", input, self.integer("dim"), self.fields["unflattened_size"])


class PReLU(Resettable):
    native_name = "torch.nn.PReLU"

    def init(
        self,
        w: World,
        num_parameters: int = 1,
        init: float = 0.25,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.fields.update(num_parameters=num_parameters)
        self.new_parameter(w, "weight", (num_parameters,), device, dtype)

    def forward(self, w: World, input: Tensor) -> Any:
        return functional(w, "prelu", input, self.tensor("weight"))


class Embedding(Resettable):
    native_name = "torch.nn.Embedding"

    def init(
        self,
        w: World,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        _freeze: bool = False,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.fields.update(
            num_embeddings=num_embeddings,
            embedding_dim=embedding_dim,
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            sparse=sparse,
        )
        if _weight is None:
            weight = self.new_parameter(w, "weight", (num_embeddings, embedding_dim), device, dtype)
        else:
            weight = self.adopt_parameter("weight", _weight)
        weight.requires_grad = not _freeze

    def forward(self, w: World, input: Tensor) -> Any:
        return functional(
            w,
            "embedding",
            input,
            self.tensor("weight"),
            self.fields["padding_idx"],
            self.fields["max_norm"],
            self.fields["norm_type"],
            self.fields["scale_grad_by_freq"],
            self.fields["sparse"],
        )


class EmbeddingBag(Resettable):
    native_name = "torch.nn.EmbeddingBag"

    def init(
        self,
        w: World,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.fields.update(
            num_embeddings=num_embeddings,
            embedding_dim=embedding_dim,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            mode=mode,
            sparse=sparse,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
        )
        if _weight is None:
            self.new_parameter(w, "weight", (num_embeddings, embedding_dim), device, dtype)
        else:
            self.adopt_parameter("weight", _weight)

    def forward(self, w: World, input: Tensor, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        return functional(
            w,
            "embedding_bag",
            input,
            self.tensor("weight"),
            offsets,
            max_norm=self.fields["max_norm"],
            norm_type=self.fields["norm_type"],
            scale_grad_by_freq=self.fields["scale_grad_by_freq"],
            mode=self.fields["mode"],
            sparse=self.fields["sparse"],
            per_sample_weights=per_sample_weights,
            include_last_offset=self.fields["include_last_offset"],
            padding_idx=self.fields["padding_idx"],
        )


class Pad(Module):
    """Constant, zero, reflection, replication and circular padding of one to three dimensions."""

    dimensions = 2
    mode = "constant"

    def init(self, w: World, padding: Any, value: float = 0.0) -> None:
        sides = (padding,) * (2 * self.dimensions) if isinstance(padding, int) else tuple(padding)
        self.fields.update(padding=sides, value=value)

    def forward(self, w: World, input: Tensor) -> Any:
        return functional(w, "pad", input, self.fields["padding"], self.mode, self.fields["value"])


class PadWithoutValue(Pad):
    def init(self, w: World, padding: Any) -> None:  # type: ignore[override]
        super().init(w, padding)


def _pads() -> tuple[type[Module], ...]:
    made: list[type[Module]] = []
    for prefix, mode, base in (
        ("Constant", "constant", Pad),
        ("Zero", "constant", PadWithoutValue),
        ("Reflection", "reflect", PadWithoutValue),
        ("Replication", "replicate", PadWithoutValue),
        ("Circular", "circular", PadWithoutValue),
    ):
        for dimensions in (1, 2, 3):
            name = f"{prefix}Pad{dimensions}d"
            members = {"native_name": f"torch.nn.{name}", "dimensions": dimensions, "mode": mode}
            made.append(cast("type[Module]", type(name, (base,), members)))
    return tuple(made)


class AdaptiveLogSoftmaxWithLoss(Resettable):
    """Clusters by `cutoffs`: the head, then a down-projection and an output layer for each tail cluster."""

    native_name = "torch.nn.AdaptiveLogSoftmaxWithLoss"

    def init(
        self,
        w: World,
        in_features: int,
        n_classes: int,
        cutoffs: Any,
        div_value: float = 4.0,
        head_bias: bool = False,
        device: object = None,
        dtype: object = None,
    ) -> None:
        bounds = [*cutoffs, n_classes]
        clusters = len(bounds) - 1
        self.fields.update(in_features=in_features, n_classes=n_classes, cutoffs=bounds)
        head = Linear()
        head.init(w, in_features, bounds[0] + clusters, head_bias, device, dtype)
        self.children["head"] = head
        for index in range(clusters):
            hidden = int(in_features // (div_value ** (index + 1)))
            projection, output = Linear(), Linear()
            projection.init(w, in_features, hidden, False, device, dtype)
            output.init(w, hidden, bounds[index + 1] - bounds[index], False, device, dtype)
            self.children[f"tail.{index}.0"] = projection
            self.children[f"tail.{index}.1"] = output

    def forward(self, w: World, input_: Tensor, target_: Tensor) -> Any:
        output = torch_function(w, "torch.nn.functional.log_softmax", self.run(w, "head", input_), 1)
        w.assume("adaptive softmax: every target falls into the head cluster")
        return output, functional(w, "nll_loss", output, target_)


LINEAR: tuple[type[Module], ...] = (
    Identity,
    Linear,
    NonDynamicallyQuantizableLinear,
    LazyLinear,
    Bilinear,
    Flatten,
    Unflatten,
    PReLU,
    Embedding,
    EmbeddingBag,
    AdaptiveLogSoftmaxWithLoss,
    *_pads(),
)
