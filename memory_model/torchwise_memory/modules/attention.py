"""Multi-head attention and the transformer layers built on it, step by step as torch's Python code does them.

The fused inference kernels of torch (`_transformer_encoder_layer_fwd`) are not modelled: without gradients
they hold less than this path for the length of one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise_memory.modules.base import Module, Resettable, call
from torchwise_memory.modules.containers import ModuleList
from torchwise_memory.modules.copying import copy_module
from torchwise_memory.modules.linear import Linear, NonDynamicallyQuantizableLinear
from torchwise_memory.modules.native import static
from torchwise_memory.modules.norm import LayerNorm
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.modules.simple import DROPOUTS
from torchwise_memory.operators.multihead import float_mask
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

Dropout = DROPOUTS[0]


class MultiheadAttention(Resettable):
    native_name = "torch.nn.MultiheadAttention"

    def init(
        self,
        w: World,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: object = None,
        dtype: object = None,
    ) -> None:
        if embed_dim % num_heads:
            raise Unsupported(self.native_name, "embed_dim must be divisible by num_heads")
        if add_bias_kv or add_zero_attn:
            raise Unsupported(self.native_name, "add_bias_kv and add_zero_attn are not modelled")
        same = kdim in (None, embed_dim) and vdim in (None, embed_dim)
        self.fields.update(
            embed_dim=embed_dim,
            num_heads=num_heads,
            head_dim=embed_dim // num_heads,
            kdim=kdim or embed_dim,
            vdim=vdim or embed_dim,
            dropout=dropout,
            batch_first=batch_first,
            _qkv_same_embed_dim=same,
            bias_k=None,
            bias_v=None,
        )
        if same:
            self.new_parameter(w, "in_proj_weight", (3 * embed_dim, embed_dim), device, dtype)
            self.parameters.update(q_proj_weight=None, k_proj_weight=None, v_proj_weight=None)
        else:
            self.new_parameter(w, "q_proj_weight", (embed_dim, embed_dim), device, dtype)
            self.new_parameter(w, "k_proj_weight", (embed_dim, kdim or embed_dim), device, dtype)
            self.new_parameter(w, "v_proj_weight", (embed_dim, vdim or embed_dim), device, dtype)
            self.parameters["in_proj_weight"] = None
        if bias:
            self.new_parameter(w, "in_proj_bias", (3 * embed_dim,), device, dtype)
        else:
            self.parameters["in_proj_bias"] = None
        out_proj = NonDynamicallyQuantizableLinear()
        out_proj.init(w, embed_dim, embed_dim, bias, device, dtype)
        self.children["out_proj"] = out_proj

    def forward(
        self,
        w: World,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        batched = query.ndim == 3
        swap = self.flag("batch_first") and batched
        if swap:
            # torch keeps "is the same tensor": it decides how the projection is packed
            same_key, same_value = key is query, value is key
            query = method(w, "transpose", query, 1, 0)
            key = query if same_key else method(w, "transpose", key, 1, 0)
            value = key if same_value else method(w, "transpose", value, 1, 0)
        out_proj = self.child("out_proj")
        output, weights = functional(
            w,
            "multi_head_attention_forward",
            query,
            key,
            value,
            self.integer("embed_dim"),
            self.integer("num_heads"),
            self.parameter("in_proj_weight"),
            self.parameter("in_proj_bias"),
            None,
            None,
            False,
            self.number("dropout"),
            out_proj.tensor("weight"),
            out_proj.parameter("bias"),
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self.flag("_qkv_same_embed_dim"),
            q_proj_weight=self.parameter("q_proj_weight"),
            k_proj_weight=self.parameter("k_proj_weight"),
            v_proj_weight=self.parameter("v_proj_weight"),
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return (method(w, "transpose", output, 1, 0) if swap else output), weights


class _Layer(Module):
    """What encoder and decoder layers share."""

    def activation(self, w: World, x: Any) -> Any:
        chosen = self.fields["activation"]
        if "activation" in self.children:
            return self.run(w, "activation", x)
        if isinstance(chosen, str):
            return functional(w, chosen, x)
        if callable(chosen):
            return chosen(x)
        raise Unsupported(self.native_name, "an activation that is not known")

    def set_activation(self, activation: object) -> None:
        if isinstance(activation, Module):
            self.children["activation"] = activation
        self.fields["activation"] = activation

    def linear(self, w: World, name: str, i: int, o: int, bias: bool, device: object, dtype: object) -> None:
        layer = Linear()
        layer.init(w, i, o, bias, device, dtype)
        self.children[name] = layer

    def norm(
        self, w: World, name: str, d: int, eps: float, bias: bool, device: object, dtype: object
    ) -> None:
        layer = LayerNorm()
        layer.init(w, d, eps, True, bias, device, dtype)
        self.children[name] = layer

    def dropout(self, w: World, name: str, p: float) -> None:
        layer = Dropout()
        layer.init(w, p)
        self.children[name] = layer

    def attention(
        self,
        w: World,
        name: str,
        d: int,
        heads: int,
        p: float,
        bias: bool,
        first: bool,
        device: object,
        dtype: object,
    ) -> None:
        layer = MultiheadAttention()
        layer.init(w, d, heads, dropout=p, bias=bias, batch_first=first, device=device, dtype=dtype)
        self.children[name] = layer

    def feed_forward(self, w: World, x: Any, last_dropout: str) -> Any:
        x = self.run(w, "linear2", self.run(w, "dropout", self.activation(w, self.run(w, "linear1", x))))
        return self.run(w, last_dropout, x)


class TransformerEncoderLayer(_Layer):
    native_name = "torch.nn.TransformerEncoderLayer"

    def init(
        self,
        w: World,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: object = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.attention(w, "self_attn", d_model, nhead, dropout, bias, batch_first, device, dtype)
        self.linear(w, "linear1", d_model, dim_feedforward, bias, device, dtype)
        self.dropout(w, "dropout", dropout)
        self.linear(w, "linear2", dim_feedforward, d_model, bias, device, dtype)
        self.fields["norm_first"] = norm_first
        for name in ("norm1", "norm2"):
            self.norm(w, name, d_model, layer_norm_eps, bias, device, dtype)
        for name in ("dropout1", "dropout2"):
            self.dropout(w, name, dropout)
        self.set_activation(activation)

    def forward(
        self,
        w: World,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        padding = float_mask(w, src_key_padding_mask, src)
        mask = float_mask(w, src_mask, src)
        x = src
        if self.flag("norm_first"):
            x = torch_function(
                w, "torch.add", x, self._self_attention(w, self.run(w, "norm1", x), mask, padding, is_causal)
            )
            return torch_function(
                w, "torch.add", x, self.feed_forward(w, self.run(w, "norm2", x), "dropout2")
            )
        x = self.run(
            w,
            "norm1",
            torch_function(w, "torch.add", x, self._self_attention(w, x, mask, padding, is_causal)),
        )
        return self.run(w, "norm2", torch_function(w, "torch.add", x, self.feed_forward(w, x, "dropout2")))

    def _self_attention(self, w: World, x: Any, mask: Any, padding: Any, is_causal: bool) -> Any:
        x = self.run(
            w,
            "self_attn",
            x,
            x,
            x,
            attn_mask=mask,
            key_padding_mask=padding,
            need_weights=False,
            is_causal=is_causal,
        )[0]
        return self.run(w, "dropout1", x)


class TransformerDecoderLayer(_Layer):
    native_name = "torch.nn.TransformerDecoderLayer"

    def init(
        self,
        w: World,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: object = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: object = None,
        dtype: object = None,
    ) -> None:
        for name in ("self_attn", "multihead_attn"):
            self.attention(w, name, d_model, nhead, dropout, bias, batch_first, device, dtype)
        self.linear(w, "linear1", d_model, dim_feedforward, bias, device, dtype)
        self.dropout(w, "dropout", dropout)
        self.linear(w, "linear2", dim_feedforward, d_model, bias, device, dtype)
        self.fields["norm_first"] = norm_first
        for name in ("norm1", "norm2", "norm3"):
            self.norm(w, name, d_model, layer_norm_eps, bias, device, dtype)
        for name in ("dropout1", "dropout2", "dropout3"):
            self.dropout(w, name, dropout)
        self.set_activation(activation)

    def forward(
        self,
        w: World,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        own = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        cross = (memory_mask, memory_key_padding_mask, memory_is_causal)
        x = tgt
        if self.flag("norm_first"):
            x = torch_function(w, "torch.add", x, self._own(w, self.run(w, "norm1", x), *own))
            x = torch_function(w, "torch.add", x, self._cross(w, self.run(w, "norm2", x), memory, *cross))
            return torch_function(
                w, "torch.add", x, self.feed_forward(w, self.run(w, "norm3", x), "dropout3")
            )
        x = self.run(w, "norm1", torch_function(w, "torch.add", x, self._own(w, x, *own)))
        x = self.run(w, "norm2", torch_function(w, "torch.add", x, self._cross(w, x, memory, *cross)))
        return self.run(w, "norm3", torch_function(w, "torch.add", x, self.feed_forward(w, x, "dropout3")))

    def _own(self, w: World, x: Any, mask: Any, padding: Any, is_causal: bool) -> Any:
        x = self.run(
            w,
            "self_attn",
            x,
            x,
            x,
            attn_mask=mask,
            key_padding_mask=padding,
            is_causal=is_causal,
            need_weights=False,
        )[0]
        return self.run(w, "dropout1", x)

    def _cross(self, w: World, x: Any, memory: Any, mask: Any, padding: Any, is_causal: bool) -> Any:
        x = self.run(
            w,
            "multihead_attn",
            x,
            memory,
            memory,
            attn_mask=mask,
            key_padding_mask=padding,
            is_causal=is_causal,
            need_weights=False,
        )[0]
        return self.run(w, "dropout2", x)


class _Stack(Resettable):
    def fill(self, w: World, layer: Module, num_layers: int, norm: Module | None) -> None:
        layers = ModuleList()
        layers.renumber([copy_module(w, layer) for _ in range(num_layers)])
        self.children["layers"] = layers
        self.children["norm"] = norm
        self.fields["num_layers"] = num_layers

    def layers(self) -> list[Module]:
        stack = self.children["layers"]
        return stack.items_in_order() if isinstance(stack, ModuleList) else []

    def finish(self, w: World, x: Any) -> Any:
        return x if self.children.get("norm") is None else self.run(w, "norm", x)


class TransformerEncoder(_Stack):
    native_name = "torch.nn.TransformerEncoder"

    def init(
        self,
        w: World,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        self.fill(w, encoder_layer, num_layers, norm)

    def forward(
        self,
        w: World,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Any:
        padding = float_mask(w, src_key_padding_mask, src)
        mask = float_mask(w, mask, src)
        output = src
        for layer in self.layers():
            options = {"src_mask": mask, "is_causal": bool(is_causal), "src_key_padding_mask": padding}
            output = call(w, layer, (output,), options)  # type: ignore[assignment]
        return self.finish(w, output)


class TransformerDecoder(_Stack):
    native_name = "torch.nn.TransformerDecoder"

    def init(self, w: World, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        self.fill(w, decoder_layer, num_layers, norm)

    def forward(
        self,
        w: World,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        output = tgt
        options = {
            "tgt_mask": tgt_mask,
            "memory_mask": memory_mask,
            "tgt_key_padding_mask": tgt_key_padding_mask,
            "memory_key_padding_mask": memory_key_padding_mask,
            "tgt_is_causal": bool(tgt_is_causal),
            "memory_is_causal": memory_is_causal,
        }
        for layer in self.layers():
            output = call(w, layer, (output, memory), options)  # type: ignore[assignment]
        return self.finish(w, output)


class Transformer(Resettable):
    native_name = "torch.nn.Transformer"

    def init(
        self,
        w: World,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: object = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: object = None,
        dtype: object = None,
    ) -> None:
        common = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)
        tail = (batch_first, norm_first, bias, device, dtype)
        makers: tuple[tuple[str, Module | None, Callable[[], _Layer], Callable[[], _Stack], int], ...] = (
            ("encoder", custom_encoder, TransformerEncoderLayer, TransformerEncoder, num_encoder_layers),
            ("decoder", custom_decoder, TransformerDecoderLayer, TransformerDecoder, num_decoder_layers),
        )
        for name, custom, make_layer, make_stack, count in makers:
            if custom is not None:
                self.children[name] = custom
                continue
            layer, norm, stack = make_layer(), LayerNorm(), make_stack()
            layer.init(w, *common, *tail)
            norm.init(w, d_model, layer_norm_eps, True, bias, device, dtype)
            stack.init(w, layer, count, norm)
            self.children[name] = stack
        self.fields.update(d_model=d_model, nhead=nhead, batch_first=batch_first)

    def forward(
        self,
        w: World,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        memory = self.run(
            w,
            "encoder",
            src,
            mask=src_mask,
            src_key_padding_mask=src_key_padding_mask,
            is_causal=src_is_causal,
        )
        return self.run(
            w,
            "decoder",
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    @static("generate_square_subsequent_mask")
    def generate_square_subsequent_mask(
        w: World, sz: int, device: object = None, dtype: object = None
    ) -> Tensor:
        full: Tensor = torch_function(
            w, "torch.full", (sz, sz), float("-inf"), dtype=dtype or DTYPES["float32"], device=device or "cpu"
        )
        mask: Tensor = torch_function(w, "torch.triu", full, 1)
        return mask


ATTENTION = (
    MultiheadAttention,
    TransformerEncoderLayer,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerDecoder,
    Transformer,
)
