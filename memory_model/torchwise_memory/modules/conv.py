"""Convolutions of one to three dimensions and their transposes."""

from __future__ import annotations

from typing import Any, ClassVar

from torchwise_memory.modules.base import Module, Resettable
from torchwise_memory.modules.ops import functional
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class _Conv(Resettable):
    native_name = "torch.nn.modules.conv._ConvNd"
    dimensions: ClassVar[int] = 2

    def init(
        self,
        w: World,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: object = None,
        dtype: object = None,
    ) -> None:
        kernel = self.spread(kernel_size)
        if in_channels % groups or out_channels % groups:
            raise Unsupported(self.native_name, "channels must be divisible by groups")
        self.fields.update(
            in_channels=in_channels,
            out_channels=out_channels,
            kernel_size=kernel,
            stride=self.spread(stride),
            padding=padding if isinstance(padding, str) else self.spread(padding),
            dilation=self.spread(dilation),
            groups=groups,
            padding_mode=padding_mode,
            transposed=False,
            output_padding=(0,) * self.dimensions,
        )
        self.new_parameter(w, "weight", (out_channels, in_channels // groups, *kernel), device, dtype)
        if bias:
            self.new_parameter(w, "bias", (out_channels,), device, dtype)
        else:
            self.parameters["bias"] = None

    def spread(self, value: Any) -> tuple[int, ...]:
        """One number for all dimensions, or one for each."""
        values = (value,) * self.dimensions if isinstance(value, int) else tuple(value)
        if len(values) == 1:
            values = values * self.dimensions
        if len(values) != self.dimensions or not all(isinstance(item, int) for item in values):
            raise Unsupported(self.native_name, f"{value!r} is no size of {self.dimensions} dimensions")
        return values

    def forward(self, w: World, input: Tensor) -> Any:
        padding = self.fields["padding"]
        if self.fields["padding_mode"] != "zeros":
            input = functional(w, "pad", input, self._sides(), self.fields["padding_mode"])
            padding = (0,) * self.dimensions
        return functional(
            w,
            f"conv{self.dimensions}d",
            input,
            self.tensor("weight"),
            self.parameter("bias"),
            self.fields["stride"],
            padding,
            self.fields["dilation"],
            self.fields["groups"],
        )

    def _sides(self) -> tuple[int, ...]:
        """Padding of both sides of each dimension, the last dimension first, as `pad` takes it."""
        padding: Any = self.fields["padding"]
        kernel: Any = self.fields["kernel_size"]
        dilation: Any = self.fields["dilation"]
        if padding == "same":
            totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
            pairs = [(total // 2, total - total // 2) for total in totals]
        elif padding == "valid":
            pairs = [(0, 0)] * self.dimensions
        else:
            pairs = [(item, item) for item in padding]
        return tuple(side for pair in reversed(pairs) for side in pair)


class _ConvTranspose(_Conv):
    native_name = "torch.nn.modules.conv._ConvTransposeNd"

    def init(  # type: ignore[override]
        self,
        w: World,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: object = None,
        dtype: object = None,
    ) -> None:
        kernel = self.spread(kernel_size)
        self.fields.update(
            in_channels=in_channels,
            out_channels=out_channels,
            kernel_size=kernel,
            stride=self.spread(stride),
            padding=self.spread(padding),
            output_padding=self.spread(output_padding),
            dilation=self.spread(dilation),
            groups=groups,
            padding_mode=padding_mode,
            transposed=True,
        )
        self.new_parameter(w, "weight", (in_channels, out_channels // groups, *kernel), device, dtype)
        if bias:
            self.new_parameter(w, "bias", (out_channels,), device, dtype)
        else:
            self.parameters["bias"] = None

    def forward(self, w: World, input: Tensor, output_size: Any = None) -> Any:
        output_padding = self.fields["output_padding"]
        if output_size is not None:
            output_padding = self._output_padding(input, output_size)
        return functional(
            w,
            f"conv_transpose{self.dimensions}d",
            input,
            self.tensor("weight"),
            self.parameter("bias"),
            self.fields["stride"],
            self.fields["padding"],
            output_padding,
            self.fields["groups"],
            self.fields["dilation"],
        )

    def _output_padding(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        fields: dict[str, Any] = self.fields
        wanted = tuple(output_size)[-self.dimensions :]
        extents = input.shape[-self.dimensions :]
        return tuple(
            wanted[i]
            - (
                (extents[i] - 1) * fields["stride"][i]
                - 2 * fields["padding"][i]
                + fields["dilation"][i] * (fields["kernel_size"][i] - 1)
                + 1
            )
            for i in range(self.dimensions)
        )


class Conv1d(_Conv):
    native_name = "torch.nn.Conv1d"
    dimensions = 1


class Conv2d(_Conv):
    native_name = "torch.nn.Conv2d"
    dimensions = 2


class Conv3d(_Conv):
    native_name = "torch.nn.Conv3d"
    dimensions = 3


class ConvTranspose1d(_ConvTranspose):
    native_name = "torch.nn.ConvTranspose1d"
    dimensions = 1


class ConvTranspose2d(_ConvTranspose):
    native_name = "torch.nn.ConvTranspose2d"
    dimensions = 2


class ConvTranspose3d(_ConvTranspose):
    native_name = "torch.nn.ConvTranspose3d"
    dimensions = 3


CONVOLUTIONS: tuple[type[Module], ...] = (
    _Conv,
    _ConvTranspose,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
