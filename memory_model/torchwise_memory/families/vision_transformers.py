"""torchvision's VisionTransformer and SwinTransformer (`torchvision/models/{vision,swin}_transformer.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from torchwise_memory.families.layers import (
    Network,
    conv,
    drop_path,
    dropout_layer,
    flatten,
    layer_norm,
    linear,
    mlp,
    permute,
    sequence,
    simple,
)
from torchwise_memory.modules.attention import MultiheadAttention
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.containers import Sequential
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import float32, int64
from torchwise_memory.runtime.world import World

Maker: TypeAlias = "Callable[[World, int], Module]"


# --------------------------------------------------------------------------- VisionTransformer


class EncoderBlock(Module):
    native_name = "torchvision.models.vision_transformer.EncoderBlock"

    def build(self, w: World, hidden: int, heads: int, inner: int) -> EncoderBlock:
        attention = MultiheadAttention()
        attention.init(w, hidden, heads, dropout=0.0, batch_first=True)
        self.children.update(
            ln_1=layer_norm(w, hidden, 1e-6),
            self_attention=attention,
            dropout=dropout_layer(w, 0.0),
            ln_2=layer_norm(w, hidden, 1e-6),
            mlp=mlp(w, hidden, inner),
        )
        return self

    def forward(self, w: World, input: Any) -> Any:
        x = self.run(w, "ln_1", input)
        x, _ = self.run(w, "self_attention", x, x, x, need_weights=False)
        x = self.run(w, "dropout", x)
        x = torch_function(w, "torch.add", x, input)
        y = self.run(w, "mlp", self.run(w, "ln_2", x))
        return torch_function(w, "torch.add", x, y)


class Encoder(Module):
    native_name = "torchvision.models.vision_transformer.Encoder"

    def forward(self, w: World, input: Any) -> Any:
        input = torch_function(w, "torch.add", input, self.tensor("pos_embedding"))
        return self.run(w, "ln", self.run(w, "layers", self.run(w, "dropout", input)))


class VisionTransformer(Module):
    native_name = "torchvision.models.vision_transformer.VisionTransformer"

    def build(
        self, w: World, patch: int, layers: int, heads: int, hidden: int, inner: int, num_classes: int
    ) -> VisionTransformer:
        self.hidden = hidden
        self.children["conv_proj"] = conv(w, 3, hidden, patch, patch, padding=0, bias=True)
        self.new_parameter(w, "class_token", (1, 1, hidden), None, None)
        encoder = Encoder()
        encoder.new_parameter(w, "pos_embedding", (1, (224 // patch) ** 2 + 1, hidden), None, None)
        encoder.children["dropout"] = dropout_layer(w, 0.0)
        blocks: list[Module] = [EncoderBlock().build(w, hidden, heads, inner) for _ in range(layers)]
        encoder.children["layers"] = _named(blocks, "encoder_layer_{}")
        encoder.children["ln"] = layer_norm(w, hidden, 1e-6)
        self.children["encoder"] = encoder
        self.children["heads"] = _named([linear(w, hidden, num_classes)], "head")
        return self

    def forward(self, w: World, x: Any) -> Any:
        x = self.run(w, "conv_proj", x)
        x = method(w, "reshape", x, x.shape[0], self.hidden, -1)
        x = method(w, "permute", x, 0, 2, 1)
        token = method(w, "expand", self.tensor("class_token"), x.shape[0], -1, -1)
        x = torch_function(w, "torch.cat", [token, x], 1)
        x = self.run(w, "encoder", x)
        x = method(w, "__getitem__", x, (slice(None), 0))
        return self.run(w, "heads", x)


def _named(modules: list[Module], name: str) -> Sequential:
    """`nn.Sequential(OrderedDict(...))`: numbered by `name` where it has a place for the number."""
    layer = Sequential()
    layer.renumber(modules)
    layer.children = {name.format(index): module for index, module in enumerate(modules)}
    return layer


def _vit(patch: int, layers: int, heads: int, hidden: int, inner: int) -> Maker:
    return lambda w, classes: VisionTransformer().build(w, patch, layers, heads, hidden, inner, classes)


# --------------------------------------------------------------------------- SwinTransformer


class ShiftedWindowAttention(Module):
    native_name = "torchvision.models.swin_transformer.ShiftedWindowAttention"

    def build(self, w: World, width: int, heads: int, window: int, shift: int) -> ShiftedWindowAttention:
        self.heads, self.window, self.shift = heads, window, shift
        self.children["qkv"] = linear(w, width, 3 * width)
        self.children["proj"] = linear(w, width, width)
        self.new_parameter(w, "relative_position_bias_table", ((2 * window - 1) ** 2, heads), None, None)
        index = torch_function(w, "torch.empty", (window**4,), dtype=int64)
        self.register_buffer(w, "relative_position_index", index)
        return self

    def position_bias(self, w: World) -> Any:
        bias = method(
            w,
            "__getitem__",
            self.tensor("relative_position_bias_table"),
            self.tensor("relative_position_index"),
        )
        return self.arranged(w, bias)

    def arranged(self, w: World, bias: Any) -> Any:
        bias = method(w, "view", bias, self.window**2, self.window**2, -1)
        bias = method(w, "contiguous", method(w, "permute", bias, 2, 0, 1))
        return method(w, "unsqueeze", bias, 0)

    def forward(self, w: World, input: Any) -> Any:
        bias = self.position_bias(w)
        batch, height, width, channels = input.shape
        n, size = self.window, channels // self.heads
        x = functional(w, "pad", input, (0, 0, 0, -width % n, 0, -height % n))
        rows, columns = x.shape[1] // n, x.shape[2] // n
        shift = self.shift if n < x.shape[1] else 0
        if shift:
            x = torch_function(w, "torch.roll", x, (-shift, -shift), (1, 2))
        x = method(w, "view", x, batch, rows, n, columns, n, channels)
        x = method(w, "reshape", method(w, "permute", x, 0, 1, 3, 2, 4, 5), -1, n * n, channels)
        windows = x.shape[0]
        qkv = self.project(w, x)
        qkv = method(w, "reshape", qkv, windows, n * n, 3, self.heads, size)
        qkv = method(w, "permute", qkv, 2, 0, 3, 1, 4)
        q, k, v = (method(w, "__getitem__", qkv, index) for index in range(3))
        scores, q = self.scores(w, q, k)
        scores = torch_function(w, "torch.add", scores, bias)
        if shift:
            mask = self._mask(w, x, rows * columns)
            scores = method(w, "view", scores, batch, rows * columns, self.heads, n * n, n * n)
            mask = method(w, "unsqueeze", method(w, "unsqueeze", mask, 1), 0)
            scores = torch_function(w, "torch.add", scores, mask)
            scores = method(w, "view", scores, -1, self.heads, n * n, n * n)
        scores = functional(w, "softmax", scores, -1)
        scores = functional(w, "dropout", scores, 0.0, self.training)
        x = method(w, "transpose", torch_function(w, "torch.matmul", scores, v), 1, 2)
        x = method(w, "reshape", x, windows, n * n, channels)
        x = functional(w, "dropout", self.run(w, "proj", x), 0.0, self.training)
        x = method(w, "view", x, batch, rows, columns, n, n, channels)
        x = method(
            w, "reshape", method(w, "permute", x, 0, 1, 3, 2, 4, 5), batch, rows * n, columns * n, channels
        )
        if shift:
            x = torch_function(w, "torch.roll", x, (shift, shift), (1, 2))
        cut = (slice(None), slice(None, height), slice(None, width), slice(None))
        return method(w, "contiguous", method(w, "__getitem__", x, cut))

    def project(self, w: World, x: Any) -> Any:
        return self.run(w, "qkv", x)

    def scores(self, w: World, q: Any, k: Any) -> tuple[Any, Any]:
        """The products, and what the caller's name for the queries holds from here on."""
        q = torch_function(w, "torch.mul", q, (q.shape[-1]) ** -0.5)
        return torch_function(w, "torch.matmul", q, method(w, "transpose", k, -2, -1)), q

    def _mask(self, w: World, x: Any, windows: int) -> Any:
        pairs = (windows, self.window**2, self.window**2)
        differences = w.new(pairs, x.dtype, "sub", x.device)
        filled = torch_function(w, "torch.masked_fill", differences, method(w, "ne", differences, 0), -100.0)
        return torch_function(w, "torch.masked_fill", filled, method(w, "eq", filled, 0), 0.0)


class ShiftedWindowAttentionV2(ShiftedWindowAttention):
    native_name = "torchvision.models.swin_transformer.ShiftedWindowAttentionV2"

    def build(self, w: World, width: int, heads: int, window: int, shift: int) -> ShiftedWindowAttentionV2:
        super().build(w, width, heads, window, shift)
        del self.parameters["relative_position_bias_table"]
        self.new_parameter(w, "logit_scale", (heads, 1, 1), None, None)
        table = torch_function(w, "torch.empty", (1, 2 * window - 1, 2 * window - 1, 2), dtype=float32)
        self.register_buffer(w, "relative_coords_table", table)
        relu = simple(w, "ReLU", True)
        self.children["cpb_mlp"] = sequence(linear(w, 2, 512), relu, linear(w, 512, heads, bias=False))
        return self

    def position_bias(self, w: World) -> Any:
        table = self.run(w, "cpb_mlp", self.tensor("relative_coords_table"))
        table = method(w, "view", table, -1, self.heads)
        bias = method(w, "__getitem__", table, self.tensor("relative_position_index"))
        return torch_function(w, "torch.mul", torch_function(w, "torch.sigmoid", self.arranged(w, bias)), 16)

    def scores(self, w: World, q: Any, k: Any) -> tuple[Any, Any]:
        scale = torch_function(w, "torch.clamp", self.tensor("logit_scale"), max=4.6)
        scale = torch_function(w, "torch.exp", scale)
        scores = torch_function(
            w,
            "torch.matmul",
            functional(w, "normalize", q, dim=-1),
            method(w, "transpose", functional(w, "normalize", k, dim=-1), -2, -1),
        )
        return torch_function(w, "torch.mul", scores, scale), q


class SwinBlock(Module):
    native_name = "torchvision.models.swin_transformer.SwinTransformerBlock"

    def build(
        self,
        w: World,
        width: int,
        heads: int,
        window: int,
        shift: int,
        drop: float,
        kind: type[ShiftedWindowAttention],
    ) -> SwinBlock:
        self.drop, self.second = drop, issubclass(kind, ShiftedWindowAttentionV2)
        attention = kind()
        attention.build(w, width, heads, window, shift)
        self.children.update(
            norm1=layer_norm(w, width, 1e-5),
            attn=attention,
            norm2=layer_norm(w, width, 1e-5),
            mlp=mlp(w, width, 4 * width),
        )
        return self

    def forward(self, w: World, x: Any) -> Any:
        for norm, part in (("norm1", "attn"), ("norm2", "mlp")):
            first, then = (part, norm) if self.second else (norm, part)
            h = drop_path(w, self.run(w, then, self.run(w, first, x)), self.drop, self.training)
            x = torch_function(w, "torch.add", x, h)
            del h
        return x


class PatchMerging(Module):
    native_name = "torchvision.models.swin_transformer.PatchMerging"

    def build(self, w: World, width: int, second: bool) -> PatchMerging:
        self.second = second
        self.children["reduction"] = linear(w, 4 * width, 2 * width, bias=False)
        self.children["norm"] = layer_norm(w, (2 if second else 4) * width, 1e-5)
        return self

    def forward(self, w: World, x: Any) -> Any:
        x = merged_pixels(w, x)
        first, then = ("reduction", "norm") if self.second else ("norm", "reduction")
        return self.run(w, then, self.run(w, first, x))


def merged_pixels(w: World, x: Any) -> Any:
    """Four neighbours side by side in the channels; odd sizes are padded first."""
    x = functional(w, "pad", x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
    parts = [
        method(w, "__getitem__", x, (Ellipsis, slice(row, None, 2), slice(column, None, 2), slice(None)))
        for column in (0, 1)
        for row in (0, 1)
    ]
    return torch_function(w, "torch.cat", parts, -1)


def swin(
    depths: tuple[int, ...],
    width: int,
    heads: tuple[int, ...],
    drop: float,
    window: int = 7,
    kind: type[ShiftedWindowAttention] = ShiftedWindowAttention,
) -> Maker:
    second = issubclass(kind, ShiftedWindowAttentionV2)

    def make(w: World, num_classes: int) -> Module:
        features: list[Module] = [
            sequence(
                conv(w, 3, width, 4, 4, padding=0, bias=True), permute(0, 2, 3, 1), layer_norm(w, width, 1e-5)
            )
        ]
        done, here = 0, width
        for stage, (count, number) in enumerate(zip(depths, heads, strict=True)):
            here = width << stage
            blocks: list[Module] = []
            for index in range(count):
                share = drop * done / (sum(depths) - 1)
                shift = window // 2 if index % 2 else 0
                blocks.append(SwinBlock().build(w, here, number, window, shift, share, kind))
                done += 1
            features.append(sequence(*blocks))
            if stage + 1 < len(depths):
                features.append(PatchMerging().build(w, here, second))
        parts: dict[str, Module | None] = {
            "features": sequence(*features),
            "norm": layer_norm(w, here, 1e-5),
            "permute": permute(0, 3, 1, 2),
            "avgpool": simple(w, "AdaptiveAvgPool2d", 1),
            "head": linear(w, here, num_classes),
        }
        return Network().assemble(parts, ("features", "norm", "permute", "avgpool", flatten, "head"))

    return make


_T, _S, _B = (
    ((2, 2, 6, 2), 96, (3, 6, 12, 24)),
    ((2, 2, 18, 2), 96, (3, 6, 12, 24)),
    (
        (2, 2, 18, 2),
        128,
        (4, 8, 16, 32),
    ),
)

MODELS: Mapping[str, Maker] = MappingProxyType(
    {
        "vit_b_16": _vit(16, 12, 12, 768, 3072),
        "vit_b_32": _vit(32, 12, 12, 768, 3072),
        "vit_l_16": _vit(16, 24, 16, 1024, 4096),
        "vit_l_32": _vit(32, 24, 16, 1024, 4096),
        "vit_h_14": _vit(14, 32, 16, 1280, 5120),
        "swin_t": swin(*_T, 0.2),
        "swin_s": swin(*_S, 0.3),
        "swin_b": swin(*_B, 0.5),
        "swin_v2_t": swin(*_T, 0.2, 8, ShiftedWindowAttentionV2),
        "swin_v2_s": swin(*_S, 0.3, 8, ShiftedWindowAttentionV2),
        "swin_v2_b": swin(*_B, 0.5, 8, ShiftedWindowAttentionV2),
    }
)
