"""Pieces that image networks share, as short constructors: a network is then a list of its sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torchwise_memory.families.base import dropout_layer, layer_norm, linear
from torchwise_memory.modules.base import Module, call
from torchwise_memory.modules.containers import Sequential
from torchwise_memory.modules.conv import Conv2d
from torchwise_memory.modules.norm import BatchNorm2d, GroupNorm
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.modules.simple import ACTIVATIONS, POOLING
from torchwise_memory.runtime.world import World

#: One number or two: a kernel, a padding.
Size: TypeAlias = "int | tuple[int, int]"
#: x -> result, for pieces that are a function and no module.
Step: TypeAlias = "Callable[[World, Any], Any]"

_SIMPLE = {cls.__name__: cls for cls in (*ACTIVATIONS, *POOLING)}
#: Activations whose constructor knows `inplace`.
_INPLACE = frozenset({"ReLU", "ReLU6", "SiLU", "Hardswish", "Hardsigmoid", "ELU"})


def simple(w: World, name: str, *args: object, **options: object) -> Module:
    """A declared module of torch.nn by its name."""
    layer = _SIMPLE[name]()
    layer.init(w, *args, **options)
    return layer


def activation_layer(w: World, name: str, inplace: bool = True) -> Module:
    return simple(w, name, True) if inplace and name in _INPLACE else simple(w, name)


def conv(
    w: World,
    i: int,
    o: int,
    kernel: Size,
    stride: Size = 1,
    groups: int = 1,
    padding: Size | None = None,
    bias: bool = False,
    dilation: int = 1,
) -> Conv2d:
    """Padding keeps the size unless it is given."""
    layer = Conv2d()
    pad: Size = padding if padding is not None else _same(kernel, dilation)
    layer.init(w, i, o, kernel, stride=stride, padding=pad, groups=groups, bias=bias, dilation=dilation)
    return layer


def _same(kernel: Size, dilation: int) -> Size:
    if isinstance(kernel, int):
        return (kernel - 1) // 2 * dilation
    return ((kernel[0] - 1) // 2 * dilation, (kernel[1] - 1) // 2 * dilation)


def batch_norm(w: World, channels: int) -> BatchNorm2d:
    layer = BatchNorm2d()
    layer.init(w, channels)
    return layer


def group_norm(w: World, groups: int, channels: int, eps: float = 1e-5) -> GroupNorm:
    layer = GroupNorm()
    layer.init(w, groups, channels, eps)
    return layer


def sequence(*modules: Module) -> Sequential:
    layer = Sequential()
    layer.renumber(modules)
    return layer


def conv_norm(
    w: World,
    i: int,
    o: int,
    kernel: Size = 3,
    stride: int = 1,
    groups: int = 1,
    act: str | None = "ReLU",
    padding: Size | None = None,
    inplace: bool = True,
) -> Sequential:
    """Convolution without bias, batch norm, activation in place."""
    parts: list[Module] = [conv(w, i, o, kernel, stride, groups, padding), batch_norm(w, o)]
    if act is not None:
        parts.append(activation_layer(w, act, inplace))
    return sequence(*parts)


class Do(Module):
    """A step without parameters as a module, so that it can stand in a sequence."""

    native_name = "torchwise.Do"

    def set(self, step: Step) -> Do:
        self.step = step
        return self

    def forward(self, w: World, x: Any) -> Any:
        return self.step(w, x)


def do(step: Step) -> Module:
    return Do().set(step)


def flatten(w: World, x: Any) -> Any:
    return method(w, "flatten", x, 1)


def mean_of_pixels(w: World, x: Any) -> Any:
    return method(w, "mean", x, (2, 3))


def permute(*order: int) -> Module:
    return do(lambda w, x: method(w, "permute", x, *order))


class Residual(Module):
    """`shortcut(x) + body(x)`, then an activation.

    inplace: `result = body(x); result += x`; drop: the probability of stochastic depth, by rows of the batch.
    """

    native_name = "torchwise.Residual"

    def build(
        self,
        body: Module,
        shortcut: Module | None = None,
        act: Module | None = None,
        inplace: bool = False,
        drop: float = 0.0,
    ) -> Residual:
        self.children.update(body=body, shortcut=shortcut, act=act)
        self.inplace, self.drop = inplace, drop
        return self

    def forward(self, w: World, x: Any) -> Any:
        if self.inplace:
            result = drop_path(w, self.run(w, "body", x), self.drop, self.training)
            result = method(w, "add_", result, x)
        elif self.children["shortcut"] is not None:
            result = torch_function(w, "torch.add", self.run(w, "shortcut", x), self.run(w, "body", x))
        else:
            result = torch_function(
                w, "torch.add", x, drop_path(w, self.run(w, "body", x), self.drop, self.training)
            )
        return result if self.children["act"] is None else self.run(w, "act", result)


def drop_path(w: World, x: Any, p: float, training: bool) -> Any:
    """Stochastic depth: whole samples are dropped by a factor of one number each."""
    if not p or not training:
        return x
    noise = w.new((x.shape[0],) + (1,) * (len(x.shape) - 1), x.dtype, "stochastic depth", x.device)
    return torch_function(w, "torch.mul", x, noise)


class SqueezeExcite(Module):
    """A factor a channel, from the mean over pixels through two convolutions."""

    native_name = "torchwise.SqueezeExcite"

    def build(
        self,
        w: World,
        channels: int,
        squeezed: int,
        act: str = "ReLU",
        gate: str = "Sigmoid",
        scale_first: bool = True,
    ) -> SqueezeExcite:
        self.scale_first = scale_first
        self.children.update(
            fc1=conv(w, channels, squeezed, 1, bias=True),
            fc2=conv(w, squeezed, channels, 1, bias=True),
            activation=activation_layer(w, act),
            scale_activation=activation_layer(w, gate, inplace=False),
        )
        return self

    def forward(self, w: World, x: Any) -> Any:
        if self.scale_first:
            scale = functional(w, "adaptive_avg_pool2d", x, 1)
        else:
            scale = method(w, "mean", x, (2, 3), True)
        for name in ("fc1", "activation", "fc2", "scale_activation"):
            scale = self.run(w, name, scale)
        return torch_function(w, "torch.mul", scale, x)


class Branches(Module):
    """Several ways from one input, joined by channels."""

    native_name = "torchwise.Branches"

    def build(self, *branches: Module) -> Branches:
        for index, branch in enumerate(branches):
            self.children[f"branch{index + 1}"] = branch
        return self

    def forward(self, w: World, x: Any) -> Any:
        return torch_function(w, "torch.cat", [self.run(w, name, x) for name in self.children], 1)


class Network(Module):
    """Named parts that run in the order of `order`; steps without a module stand between them."""

    native_name = "torchwise.Network"

    def assemble(self, parts: dict[str, Module | None], order: Sequence[str | Step]) -> Network:
        self.children.update(parts)
        self.order = tuple(order)
        return self

    def forward(self, w: World, x: Any) -> Any:
        for step in self.order:
            x = self.run(w, step, x) if isinstance(step, str) else step(w, x)
        return x


class ChannelsFirstNorm(Module):
    """LayerNorm over channels of (batch, channels, height, width), through a view with channels last."""

    native_name = "torchvision.models.convnext.LayerNorm2d"

    def build(self, w: World, channels: int, eps: float = 1e-6) -> ChannelsFirstNorm:
        self.eps, self.channels = eps, channels
        for name in ("weight", "bias"):
            self.new_parameter(w, name, (channels,), None, None)
        return self

    def forward(self, w: World, x: Any) -> Any:
        x = method(w, "permute", x, 0, 2, 3, 1)
        x = functional(
            w, "layer_norm", x, (self.channels,), self.tensor("weight"), self.tensor("bias"), self.eps
        )
        return method(w, "permute", x, 0, 3, 1, 2)


def mlp(w: World, hidden: int, inner: int, dropout: float = 0.0, drops: bool = True) -> Sequential:
    """torchvision's `MLP` of two layers: linear, GELU, dropout, linear, dropout."""
    parts: list[Module] = [linear(w, hidden, inner), simple(w, "GELU")]
    parts += [dropout_layer(w, dropout)] if drops else []
    parts.append(linear(w, inner, hidden))
    parts += [dropout_layer(w, dropout)] if drops else []
    return sequence(*parts)


def divisible(value: float, by: int = 8) -> int:
    """`_make_divisible`: to the nearest multiple, never more than a tenth below."""
    rounded = max(by, int(value + by / 2) // by * by)
    return rounded + by if rounded < 0.9 * value else rounded


__all__ = [
    "Branches",
    "ChannelsFirstNorm",
    "Network",
    "Residual",
    "SqueezeExcite",
    "activation_layer",
    "batch_norm",
    "call",
    "conv",
    "conv_norm",
    "divisible",
    "do",
    "drop_path",
    "dropout_layer",
    "flatten",
    "group_norm",
    "layer_norm",
    "linear",
    "mean_of_pixels",
    "mlp",
    "permute",
    "sequence",
    "simple",
]
