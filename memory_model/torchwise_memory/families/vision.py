"""Image classifiers by timm's and torchvision's names: ViT and its kin, ConvNeXt, Swin, and torchvision's.

Layers follow timm 0.6 to 1.0; attention written out ("eager") is what timm ran before it used SDPA.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torchwise_memory.families import timm, torchvision
from torchwise_memory.families.base import add, layer_norm, linear, members, module_list
from torchwise_memory.families.fused import fused
from torchwise_memory.modules.base import Module, call
from torchwise_memory.modules.conv import Conv2d
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.checkpoint import checkpoint
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.world import World


@dataclass(frozen=True, slots=True)
class Options:
    """How it is run; see `decoder.Style`."""

    checkpointing: bool = False
    fused: bool = False
    attention: str = "sdpa"


@dataclass(frozen=True, slots=True)
class Transformer:
    """Sizes of a ViT. inner: width of the feed-forward; gated: SwiGLU; scale: layer scale; bias: relative
    position bias a head; mixer: tokens are mixed by a feed-forward of `token_inner` in place of attention.
    """

    hidden: int
    layers: int
    heads: int
    patch: int
    image: int = 224
    inner: int = 0
    gated: bool = False
    scale: bool = False
    bias: bool = False
    token_inner: int = 0


@dataclass(frozen=True, slots=True)
class Stages:
    """Sizes of a hierarchical network: `kind` "convnext" or "swin"."""

    kind: str
    depths: tuple[int, int, int, int]
    width: int
    heads: tuple[int, int, int, int] = (1, 1, 1, 1)
    window: int = 7


def _transformers() -> dict[str, Transformer]:
    table: dict[str, Transformer] = {}
    sizes = {
        "tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16),
        "huge": (1280, 32, 16),
    }  # fmt: skip
    for size, (hidden, layers, heads) in sizes.items():
        for patch in (8, 14, 16, 32):
            for image in (224, 384, 448, 512):
                shape = Transformer(hidden, layers, heads, patch, image)
                table[f"vit_{size}_patch{patch}_{image}"] = shape
                table[f"deit_{size}_patch{patch}_{image}"] = shape
        table[f"beit_{size}_patch16_224"] = Transformer(hidden, layers, heads, 16, scale=True, bias=True)
        table[f"vit_{size}_patch14_dinov2"] = Transformer(hidden, layers, heads, 14, 518, scale=True)
    table["vit_giant_patch14_dinov2"] = Transformer(1536, 40, 24, 14, 518, 4096, gated=True, scale=True)
    table["mixer_b16_224"] = Transformer(768, 12, 1, 16, token_inner=384)
    table["mixer_l16_224"] = Transformer(1024, 24, 1, 16, token_inner=512)
    return table


TRANSFORMERS: Mapping[str, Transformer] = MappingProxyType(_transformers())
STAGES: Mapping[str, Stages] = MappingProxyType(
    {
        "convnext_tiny": Stages("convnext", (3, 3, 9, 3), 96),
        "convnext_small": Stages("convnext", (3, 3, 27, 3), 96),
        "convnext_base": Stages("convnext", (3, 3, 27, 3), 128),
        "convnext_large": Stages("convnext", (3, 3, 27, 3), 192),
        "convnext_xlarge": Stages("convnext", (3, 3, 27, 3), 256),
        "swin_tiny_patch4_window7_224": Stages("swin", (2, 2, 6, 2), 96, (3, 6, 12, 24)),
        "swin_small_patch4_window7_224": Stages("swin", (2, 2, 18, 2), 96, (3, 6, 12, 24)),
        "swin_base_patch4_window7_224": Stages("swin", (2, 2, 18, 2), 128, (4, 8, 16, 32)),
        "swin_large_patch4_window7_224": Stages("swin", (2, 2, 18, 2), 192, (6, 12, 24, 48)),
        "swin_base_patch4_window12_384": Stages("swin", (2, 2, 18, 2), 128, (4, 8, 16, 32), 12),
        "swin_large_patch4_window12_384": Stages("swin", (2, 2, 18, 2), 192, (6, 12, 24, 48), 12),
    }
)


_SIZES = {"t": "tiny", "s": "small", "b": "base", "l": "large", "h": "huge", "g": "giant", "x": "xlarge"}
#: Papers' and the hub's spellings, as (what is written, our name); `{size}` is a letter spelt out.
_WRITTEN: Sequence[tuple[str, str]] = (
    (r"dino_?v2[_ ](?:vit)?[_ ]?(?P<size>[sblg])\w*?(?:_14)?(?:_reg\w*)?$", "vit_{size}_patch14_dinov2"),
    (r"dinov2_vit(?P<size>[sblg])14(?:_reg)?$", "vit_{size}_patch14_dinov2"),
    (r"vit_(?P<size>[tsblh])_?(?P<patch>8|14|16|32)$", "vit_{size}_patch{patch}_224"),
    (r"vit_(?P<size>tiny|small|base|large|huge|[tsbl])$", "vit_{size}_patch16_224"),
    (r"(?P<kind>vit|deit|beit)_(?P<size>tiny|small|base|large|huge)(?:_distilled)?_patch(?P<patch>\d+)"
     r"_(?P<side>\d+)(?:_in\d+k|_ft\w*|_pt\w*)?$", "{kind}_{size}_patch{patch}_{side}"),
    (r"deit_(?P<size>[tsb])(?:i|_?16)?$|deit_(?P<other>tiny|small|base)$", "deit_{size}_patch16_224"),
    (r"(?:microsoft_)?swin_(?P<size>[tsbl])$|swin_(?P<other>tiny|small|base|large)$",
     "swin_{size}_patch4_window7_224"),
    (r"convnext_(?P<size>[tsblx])l?$", "convnext_{size}"),
    (r"convnext_(?P<size>tiny|small|base|large|xlarge)_(?:\d+)(?:_\w+)?$", "convnext_{size}"),
    (r"res_?net_?(?P<depth>18|34|50|101|152)(?:_v1|_a\d|_tv|v1)?$", "resnet{depth}"),
    (r"resnext_?(?P<depth>50|101)_(?P<groups>\d+)x(?P<width>\d+)d?$", "resnext{depth}_{groups}x{width}d"),
    (r"mobilenet_?v2(?:_1_0_224|_100)?$", "mobilenet_v2"),
    (r"vgg_(?P<depth>\d+)(?P<bn>_bn)?$", "vgg{depth}{bn}"),
    (r"densenet_(?P<depth>\d+)$", "densenet{depth}"),
    (r"wide_?resnet_?(?P<depth>50|101)(?:_2)?$|wrn_?(?P<other>50|101)_2$", "wide_resnet{depth}_2"),
    (r"inception_v3$|inceptionv3$", "inception_v3"),
)  # fmt: skip


def resolve(text: str) -> str:
    """Our spelling; tags after a dot ("vit_base_patch16_224.augreg"), owners and library prefixes do not
    matter. "ViT-B/16", "DINOv2 ViT-L/14" and "Swin-T" are found as papers write them.
    """
    name = re.sub(r"^(timm|torchvision)[ /.]", "", text.strip().lower())
    name = re.sub(r"\.(?=\w*[a-z])\w+$", "", re.sub(r"\([^)]*\)", "", name).strip())
    name = re.sub(r"^(google|facebook|microsoft|timm|apple|openai)/", "", name)
    name = re.sub(r"[\s/-]+", "_", name)
    if timm.plain(name) in timm.MODELS:
        return timm.plain(name)
    return name if _is_named(name) else _as_written(name)


def _as_written(name: str) -> str:
    for pattern, ours in _WRITTEN:
        found = re.match(pattern, name)
        if found is None:
            continue
        parts = {key: value or "" for key, value in found.groupdict().items()}
        other = parts.pop("other", "")
        for key in ("size", "depth"):
            if f"{{{key}}}" in ours:
                parts[key] = parts.get(key) or other
        if "size" in parts:
            parts["size"] = _SIZES.get(parts["size"], parts["size"])
        meant = ours.format(**parts)
        if _is_named(meant):
            return meant
    return name


def _is_named(name: str) -> bool:
    return any(name in table for table in (TRANSFORMERS, STAGES, timm.MODELS, torchvision.MODELS))


def knows(text: str) -> bool:
    return _is_named(resolve(text))


def image_size(name: str) -> tuple[int, int]:
    side = TRANSFORMERS[name].image if name in TRANSFORMERS else timm.IMAGES.get(name, 224)
    if name in STAGES and STAGES[name].window == 12:
        side = 384
    return side, side


def depth(name: str) -> int:
    """How many layers are alike; 1 where they are not."""
    return TRANSFORMERS[name].layers if name in TRANSFORMERS else 1


def build(w: World, name: str, classes: int, image: tuple[int, int], options: Options, layers: int) -> Module:
    if name in TRANSFORMERS:
        model = VisionTransformer()
        model.build(w, TRANSFORMERS[name], classes, image, options, layers)
        return model
    if name in STAGES:
        staged = Staged()
        staged.build(w, STAGES[name], classes, options)
        return staged
    if name in timm.MODELS:
        return timm.MODELS[name](w, classes)
    if name in torchvision.MODELS:
        return torchvision.MODELS[name](w, classes)
    raise Unsupported(name, "no family of image models has this one")


def blocks(name: str, model: Module) -> list[Module]:
    return members(model.child("blocks")) if isinstance(model, VisionTransformer) else []


class SelfAttention(Module):
    native_name = "timm.layers.Attention"

    def build(
        self,
        w: World,
        hidden: int,
        heads: int,
        options: Options,
        bias_tokens: int = 0,
        windowed: bool = False,
    ) -> None:
        """windowed: Swin's, which writes attention out; BEiT's gives its position bias to the kernel."""
        self.heads, self.options, self.windowed = heads, options, windowed
        self.keyless = bool(bias_tokens) and not windowed
        self.children["qkv"] = linear(w, hidden, 3 * hidden, bias=not self.keyless)
        if self.keyless:
            for name in ("q_bias", "v_bias"):
                self.new_parameter(w, name, (hidden,), None, None)
            self.register_buffer(w, "k_bias", torch_function(w, "torch.zeros", (hidden,)), persistent=False)
        self.children["proj"] = linear(w, hidden, hidden)
        self.bias_tokens = bias_tokens
        if bias_tokens:
            side = int(bias_tokens**0.5)
            self.new_parameter(
                w, "bias_table", ((2 * side - 1) ** 2 + 3 * (bias_tokens % side > 0), heads), None, None
            )

    def forward(self, w: World, x: Any, masked: bool = False) -> Any:
        batch, tokens, hidden = x.shape
        size = hidden // self.heads
        qkv = method(w, "reshape", self._projected(w, x), batch, tokens, 3, self.heads, size)
        q, k, v = method(w, "unbind", method(w, "permute", qkv, 2, 0, 3, 1, 4), 0)
        del qkv
        if self.options.attention != "eager" and not self.windowed:
            bias = self._position_bias(w, tokens)
            x = functional(w, "scaled_dot_product_attention", q, k, v, bias)
            del bias
        else:
            scores = torch_function(
                w,
                "torch.matmul",
                torch_function(w, "torch.mul", q, 0.125),
                method(w, "transpose", k, -2, -1),
            )
            del q, k
            bias = self._position_bias(w, tokens)
            if bias is not None:
                scores = add(w, scores, bias)
            del bias
            if masked:
                # one mask a window, spread over batch and heads
                scores = add(w, scores, w.new((1, 1, tokens, tokens), scores.dtype, "window mask"))
            scores = functional(w, "softmax", scores, -1)
            x = torch_function(w, "torch.matmul", scores, v)
            del scores
        x = method(w, "reshape", method(w, "transpose", x, 1, 2), batch, tokens, hidden)
        return self.run(w, "proj", x)

    def _projected(self, w: World, x: Any) -> Any:
        if not self.keyless:
            return self.run(w, "qkv", x)
        biases = (self.tensor("q_bias"), self.tensor("k_bias"), self.tensor("v_bias"))
        bias = torch_function(w, "torch.cat", biases)
        return functional(w, "linear", x, self.child("qkv").tensor("weight"), bias)

    def _position_bias(self, w: World, tokens: int) -> Any:
        if not self.bias_tokens:
            return None
        table = self.tensor("bias_table")
        return fused(w, "index", (table,), (1, self.heads, tokens, tokens), table.dtype, saved=())


class FeedForward(Module):
    native_name = "timm.layers.Mlp"

    def build(self, w: World, hidden: int, inner: int, gated: bool, options: Options) -> None:
        self.gated, self.options = gated, options
        self.children["fc1"] = linear(w, hidden, 2 * inner if gated else inner)
        self.children["fc2"] = linear(w, inner, hidden)

    def forward(self, w: World, x: Any) -> Any:
        x = self.run(w, "fc1", x)
        if self.gated:
            gate, up = torch_function(w, "torch.chunk", x, 2, -1)
            del x
            if self.options.fused:
                x = fused(w, "gated activation", (gate, up), gate.shape, gate.dtype, saved=(gate, up))
            else:
                x = torch_function(w, "torch.mul", functional(w, "silu", gate), up)
        else:
            x = functional(w, "gelu", x)
        return self.run(w, "fc2", x)


class Block(Module):
    native_name = "timm.models.vision_transformer.Block"

    def build(self, w: World, shape: Transformer, tokens: int, options: Options) -> None:
        hidden = shape.hidden
        self.shape = shape
        if shape.token_inner:
            mixing = FeedForward()
            mixing.build(w, tokens, shape.token_inner, False, options)
            self.children["attn"] = mixing
        else:
            attention = SelfAttention()
            attention.build(w, hidden, shape.heads, options, tokens if shape.bias else 0)
            self.children["attn"] = attention
        mlp = FeedForward()
        mlp.build(w, hidden, shape.inner or 4 * hidden, shape.gated, options)
        self.children.update(norm1=layer_norm(w, hidden, 1e-6), norm2=layer_norm(w, hidden, 1e-6), mlp=mlp)
        if shape.scale:
            for name in ("gamma1", "gamma2"):
                self.new_parameter(w, name, (hidden,), None, None)

    def forward(self, w: World, x: Any) -> Any:
        if self.shape.token_inner:
            h = method(w, "transpose", self.run(w, "norm1", x), 1, 2)
            x = add(w, x, method(w, "transpose", self.run(w, "attn", h), 1, 2))
            del h
        else:
            x = add(w, x, self._scaled(w, "gamma1", self.run(w, "attn", self.run(w, "norm1", x))))
        return add(w, x, self._scaled(w, "gamma2", self.run(w, "mlp", self.run(w, "norm2", x))))

    def _scaled(self, w: World, name: str, x: Any) -> Any:
        return torch_function(w, "torch.mul", x, self.tensor(name)) if self.shape.scale else x


class VisionTransformer(Module):
    native_name = "timm.models.vision_transformer.VisionTransformer"

    def build(
        self,
        w: World,
        shape: Transformer,
        classes: int,
        image: tuple[int, int],
        options: Options,
        layers: int,
    ) -> None:
        self.options, self.shape = options, shape
        patches = (image[0] // shape.patch) * (image[1] // shape.patch)
        self.children["patch_embed"] = conv(w, 3, shape.hidden, shape.patch, shape.patch)
        tokens = patches
        if not shape.token_inner:
            tokens += 1
            self.new_parameter(w, "cls_token", (1, 1, shape.hidden), None, None)
            if not shape.bias:
                self.new_parameter(w, "pos_embed", (1, tokens, shape.hidden), None, None)
        made: list[Module] = []
        for _ in range(layers):
            block = Block()
            block.build(w, shape, tokens, options)
            made.append(block)
        self.children["blocks"] = module_list(made)
        self.children["norm"] = layer_norm(w, shape.hidden, 1e-6)
        self.children["head"] = linear(w, shape.hidden, classes)

    def forward(self, w: World, x: Any) -> Any:
        x = method(w, "transpose", method(w, "flatten", self.run(w, "patch_embed", x), 2), 1, 2)
        if not self.shape.token_inner:
            token = method(w, "expand", self.tensor("cls_token"), x.shape[0], -1, -1)
            x = torch_function(w, "torch.cat", (method(w, "to", token, x.dtype), x), 1)
            del token
            if not self.shape.bias:
                x = add(w, x, self.tensor("pos_embed"))
        for block in members(self.child("blocks")):
            x = run(w, block, x, self.options.checkpointing)
        x = self.run(w, "norm", x)
        return self.run(w, "head", method(w, "__getitem__", x, (slice(None), 0)))


def run(w: World, block: Module, x: Any, checkpointing: bool) -> Any:
    if not checkpointing:
        return call(w, block, (x,), {})

    def body(*args: object) -> object:
        return call(w, block, args, {})

    return checkpoint(w, body, (x,), {}, reentrant=False)


class ConvNextBlock(Module):
    native_name = "timm.models.convnext.ConvNeXtBlock"

    def build(self, w: World, width: int, options: Options) -> None:
        self.children["conv_dw"] = conv(w, width, width, 7, 1, 3, groups=width)
        self.children["norm"] = layer_norm(w, width, 1e-6)
        mlp = FeedForward()
        mlp.build(w, width, 4 * width, False, options)
        self.children["mlp"] = mlp
        self.new_parameter(w, "gamma", (width,), None, None)

    def forward(self, w: World, x: Any) -> Any:
        shortcut = x
        x = method(w, "permute", self.run(w, "conv_dw", x), 0, 2, 3, 1)
        x = self.run(w, "mlp", self.run(w, "norm", x))
        x = method(w, "permute", x, 0, 3, 1, 2)
        gamma = method(w, "reshape", self.tensor("gamma"), 1, -1, 1, 1)
        return add(w, torch_function(w, "torch.mul", x, gamma), shortcut)


class SwinBlock(Module):
    native_name = "timm.models.swin_transformer.SwinTransformerBlock"

    def build(self, w: World, width: int, heads: int, window: int, shifted: bool, options: Options) -> None:
        self.window, self.shifted = window, shifted
        attention = SelfAttention()
        attention.build(w, width, heads, options, window * window, windowed=True)
        mlp = FeedForward()
        mlp.build(w, width, 4 * width, False, options)
        self.children.update(
            norm1=layer_norm(w, width, 1e-5), attn=attention, norm2=layer_norm(w, width, 1e-5), mlp=mlp
        )

    def forward(self, w: World, x: Any) -> Any:
        batch, side, _, width = x.shape
        n = self.window
        h = self.run(w, "norm1", x)
        shifts = self.shifted and side > n
        if shifts:
            h = torch_function(w, "torch.roll", h, (-3, -3), (1, 2))
        h = method(w, "reshape", h, batch, side // n, n, side // n, n, width)
        h = method(w, "reshape", method(w, "permute", h, 0, 1, 3, 2, 4, 5), -1, n * n, width)
        h = self.run(w, "attn", h, shifts)
        h = method(w, "reshape", h, batch, side // n, side // n, n, n, width)
        h = method(w, "reshape", method(w, "permute", h, 0, 1, 3, 2, 4, 5), batch, side, side, width)
        if shifts:
            h = torch_function(w, "torch.roll", h, (3, 3), (1, 2))
        x = add(w, x, h)
        del h
        return add(w, x, self.run(w, "mlp", self.run(w, "norm2", x)))


class Staged(Module):
    """Four stages, each half as wide in pixels and twice in channels."""

    native_name = "timm.models.Staged"

    def build(self, w: World, shape: Stages, classes: int, options: Options) -> None:
        self.shape, self.options = shape, options
        width = shape.width
        self.children["stem"] = conv(w, 3, width, 4, 4)
        self.children["stem_norm"] = layer_norm(w, width, 1e-6)
        stages: list[Module] = []
        for stage, (count, heads) in enumerate(zip(shape.depths, shape.heads, strict=True)):
            here = width << stage
            part = Module()
            if stage and shape.kind == "convnext":
                part.children["norm"] = layer_norm(w, here // 2, 1e-6)
                part.children["down"] = conv(w, here // 2, here, 2, 2)
            elif stage:
                part.children["norm"] = layer_norm(w, 2 * here, 1e-5)
                part.children["down"] = linear(w, 2 * here, here, bias=False)
            made: list[Module] = []
            for index in range(count):
                if shape.kind == "convnext":
                    convnext = ConvNextBlock()
                    convnext.build(w, here, options)
                    made.append(convnext)
                else:
                    swin = SwinBlock()
                    swin.build(w, here, heads, shape.window, index % 2 == 1, options)
                    made.append(swin)
            part.children["blocks"] = module_list(made)
            stages.append(part)
        self.children["stages"] = module_list(stages)
        self.children["norm"] = layer_norm(w, width * 8, 1e-6)
        self.children["head"] = linear(w, width * 8, classes)

    def forward(self, w: World, x: Any) -> Any:
        convolutional = self.shape.kind == "convnext"
        x = method(w, "permute", self.run(w, "stem", x), 0, 2, 3, 1)
        x = self.run(w, "stem_norm", x)
        if convolutional:
            x = method(w, "permute", x, 0, 3, 1, 2)
        for stage, part in enumerate(members(self.child("stages"))):
            if stage:
                x = self._smaller(w, part, x, convolutional)
            for block in members(part.child("blocks")):
                x = run(w, block, x, self.options.checkpointing)
        if convolutional:
            x = self.run(w, "norm", method(w, "mean", x, (2, 3)))
        else:
            x = method(w, "mean", self.run(w, "norm", x), (1, 2))
        return self.run(w, "head", x)

    def _smaller(self, w: World, part: Module, x: Any, convolutional: bool) -> Any:
        if convolutional:
            x = part.run(w, "norm", method(w, "permute", x, 0, 2, 3, 1))
            return part.run(w, "down", method(w, "permute", x, 0, 3, 1, 2))
        batch, side, _, width = x.shape
        x = method(w, "reshape", x, batch, side // 2, 2, side // 2, 2, width)
        x = method(w, "reshape", method(w, "permute", x, 0, 1, 3, 4, 2, 5), batch, side // 2, side // 2, -1)
        return part.run(w, "down", part.run(w, "norm", x))


def conv(w: World, i: int, o: int, kernel: int, stride: int, padding: int = 0, groups: int = 1) -> Conv2d:
    layer = Conv2d()
    layer.init(w, i, o, kernel, stride=stride, padding=padding, groups=groups, bias=True)
    return layer
