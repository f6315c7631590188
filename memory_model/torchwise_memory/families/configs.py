"""`config.json` of a decoder -> its shape. One entry a model type; fields have transformers' names.

Defaults are those of the configuration classes of transformers, for fields that files leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torchwise_memory.families.decoder import DecoderShape, Latent
from torchwise_memory.runtime.errors import Unsupported

Fields = Mapping[str, Any]


def decoder_shape(config: Fields) -> DecoderShape:
    """Raises Unsupported for a model type without an entry or a field that is missing or of another kind."""
    kind = str(config.get("model_type", "llama"))
    make = _KINDS.get(kind)
    if make is None:
        raise Unsupported(f"model_type {kind!r}", "no decoder of this type is known")
    try:
        return make(config)
    except (KeyError, TypeError) as error:
        raise Unsupported(f"config of {kind}", f"a size is missing ({error})") from None
    except (ValueError, ArithmeticError, AttributeError) as error:
        raise Unsupported(f"config of {kind}", f"a field holds what it cannot ({error})") from None


def _basic(c: Fields, **changes: Any) -> DecoderShape:
    """What Llama and most others share."""
    hidden, heads = int(c["hidden_size"]), int(c["num_attention_heads"])
    kv = int(c.get("num_key_value_heads") or heads)
    shape = DecoderShape(
        vocab=int(c["vocab_size"]),
        hidden=hidden,
        layers=int(c["num_hidden_layers"]),
        heads=heads,
        kv_heads=kv,
        head_dim=int(c.get("head_dim") or hidden // heads),
        inner=int(c.get("intermediate_size") or 4 * hidden),
        act=str(c.get("hidden_act", "silu")),
        tied=bool(c.get("tie_word_embeddings", False)),
        window=c.get("sliding_window"),
    )
    bias = bool(c.get("attention_bias", False))
    shape = replace(shape, q_bias=bias, kv_bias=bias, out_bias=bias, mlp_bias=bool(c.get("mlp_bias", False)))
    return replace(shape, **changes)


def _mixtral(c: Fields) -> DecoderShape:
    return _basic(
        c,
        experts=int(c["num_local_experts"]),
        experts_used=int(c.get("num_experts_per_tok", 2)),
        router="wide",
    )


def _qwen2(c: Fields) -> DecoderShape:
    return _basic(c, q_bias=True, kv_bias=True)


def _qwen_moe(c: Fields, **changes: Any) -> DecoderShape:
    return _basic(
        c,
        inner=int(c["moe_intermediate_size"]),
        experts=int(c["num_experts"]),
        experts_used=int(c["num_experts_per_tok"]),
        shared_inner=int(c.get("shared_expert_intermediate_size") or 0),
        shared_gate=bool(c.get("shared_expert_intermediate_size")),
        router="narrow",
        **changes,
    )


def _qwen(c: Fields) -> DecoderShape:
    """The first Qwen: `intermediate_size` counts both halves of the gated feed-forward."""
    return _basic(
        c,
        inner=int(c["intermediate_size"]) // 2,
        fused_qkv=True,
        q_bias=True,
        kv_heads=int(c["num_attention_heads"]),
    )


def _gemma(c: Fields) -> DecoderShape:
    return _basic(c, act="gelu_pytorch_tanh", tied=True, head_dim=int(c.get("head_dim", 256)), norm_wide=True)


def _gemma2(c: Fields) -> DecoderShape:
    shape = replace(_gemma(c), sandwich=True, attention_softcap=True, logit_softcap=True)
    return replace(shape, window=c.get("sliding_window", 4096), full_every=2)


def _gemma3(c: Fields) -> DecoderShape:
    pattern = int(c.get("sliding_window_pattern") or 6)
    return replace(
        _gemma(c), sandwich=True, qk_norm="head", window=c.get("sliding_window", 4096), full_every=pattern
    )


def _phi(c: Fields) -> DecoderShape:
    return _basic(
        c,
        act="gelu_new",
        gated=False,
        norm="layer",
        parallel=True,
        shared_norm=True,
        rotary=float(c.get("partial_rotary_factor", 0.5)),
        q_bias=True,
        kv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
    )


def _phi3(c: Fields) -> DecoderShape:
    return _basic(
        c,
        fused_qkv=True,
        fused_gate=True,
        rotary=float(c.get("partial_rotary_factor", 1.0)),
        rotary_copies=True,
    )


def _falcon(c: Fields) -> DecoderShape:
    new = bool(c.get("new_decoder_architecture", False))
    heads = int(c["num_attention_heads"])
    kv = int(c.get("num_kv_heads") or heads) if new else (1 if c.get("multi_query", True) else heads)
    alibi = bool(c.get("alibi", False))
    parallel = bool(c.get("parallel_attn", True))
    bias = bool(c.get("bias", False))
    return _basic(
        c,
        inner=int(c.get("ffn_hidden_size") or 4 * int(c["hidden_size"])),
        kv_heads=kv,
        act="gelu",
        gated=False,
        norm="layer",
        parallel=parallel,
        shared_norm=not new,
        fused_qkv=True,
        splits="groups" if new else "shared" if kv == 1 else "interleaved",
        masked=True,
        rotary=0.0 if alibi else 1.0,
        alibi=alibi,
        broadcasts_kv=kv == 1,
        tied=bool(c.get("tie_word_embeddings", True)),
        q_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )


def _mpt(c: Fields) -> DecoderShape:
    hidden, heads = int(c["d_model"]), int(c["n_heads"])
    attention: Fields = c.get("attn_config") or dict[str, Any]()
    kv = int(attention.get("kv_n_heads") or heads)
    return DecoderShape(
        vocab=int(c["vocab_size"]),
        hidden=hidden,
        layers=int(c["n_layers"]),
        heads=heads,
        kv_heads=kv,
        head_dim=hidden // heads,
        inner=int(c.get("expansion_ratio", 4)) * hidden,
        gated=False,
        act="gelu",
        norm="layer",
        norm_bias=False,
        rotary=0.0,
        alibi=True,
        eager_only=True,
        scores="mpt",
        holds_attended=True,
        fused_qkv=True,
        tied=True,
    )


def _opt(c: Fields) -> DecoderShape:
    hidden = int(c["hidden_size"])
    embed = int(c.get("word_embed_proj_dim") or hidden)
    pre = bool(c.get("do_layer_norm_before", True))
    return _basic(
        c,
        kv_heads=int(c["num_attention_heads"]),
        inner=int(c["ffn_dim"]),
        act="relu",
        gated=False,
        norm="layer",
        rotary=0.0,
        positions=int(c.get("max_position_embeddings", 2048)) + 2,
        q_bias=True,
        kv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tied=True,
        embed_size=embed if embed != hidden else 0,
        final_norm=pre,
        dropout=float(c.get("dropout", 0.1)),
    )


def _bloom(c: Fields) -> DecoderShape:
    hidden = int(c.get("hidden_size") or c["n_embed"])
    heads = int(c.get("n_head") or c["num_attention_heads"])
    return DecoderShape(
        vocab=int(c["vocab_size"]),
        hidden=hidden,
        layers=int(c.get("n_layer") or c["num_hidden_layers"]),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        inner=4 * hidden,
        gated=False,
        act="bloom_gelu",
        norm="layer",
        embed_norm=True,
        rotary=0.0,
        alibi=True,
        eager_only=True,
        scores="bloom",
        splits="interleaved",
        fused_qkv=True,
        q_bias=True,
        out_bias=True,
        mlp_bias=True,
        tied=True,
    )


def _gpt_neox(c: Fields) -> DecoderShape:
    return _basic(
        c,
        kv_heads=int(c["num_attention_heads"]),
        act=str(c.get("hidden_act", "gelu")),
        gated=False,
        norm="layer",
        parallel=bool(c.get("use_parallel_residual", True)),
        rotary=float(c.get("rotary_pct", 0.25)),
        fused_qkv=True,
        q_bias=True,
        out_bias=True,
        mlp_bias=True,
    )


def _gptj(c: Fields) -> DecoderShape:
    shape = _gpt2_sizes(c)
    return replace(
        shape,
        positions=0,
        parallel=True,
        shared_norm=True,
        rotary=float(c.get("rotary_dim", 64)) / shape.head_dim,
        fused_qkv=False,
        q_bias=False,
        out_bias=False,
        mlp_bias=True,
        head_bias=True,
        tied=False,
        dropout=0.0,
        embed_dropout=0.0,
        attention_dropout=0.0,
    )


def _gpt2_sizes(c: Fields) -> DecoderShape:
    hidden, heads = int(c["n_embd"]), int(c["n_head"])
    return DecoderShape(
        vocab=int(c["vocab_size"]),
        hidden=hidden,
        layers=int(c["n_layer"]),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        inner=int(c.get("n_inner") or 4 * hidden),
        gated=False,
        act=str(c.get("activation_function", "gelu_new")),
        norm="layer",
        rotary=0.0,
        positions=int(c.get("n_positions", 1024)),
        fused_qkv=True,
        q_bias=True,
        out_bias=True,
        mlp_bias=True,
        tied=True,
        holds_attended=True,
        dropout=float(c.get("resid_pdrop", 0.1)),
        embed_dropout=float(c.get("embd_pdrop", 0.1)),
        attention_dropout=float(c.get("attn_pdrop", 0.1)),
    )


def _gpt_bigcode(c: Fields) -> DecoderShape:
    shape = _gpt2_sizes(c)
    return replace(
        shape,
        kv_heads=1 if c.get("multi_query", True) else shape.heads,
        act="gelu_pytorch_tanh",
    )


def _gpt_neo(c: Fields) -> DecoderShape:
    hidden, heads = int(c["hidden_size"]), int(c["num_heads"])
    return DecoderShape(
        vocab=int(c["vocab_size"]),
        hidden=hidden,
        layers=int(c["num_layers"]),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        inner=int(c.get("intermediate_size") or 4 * hidden),
        gated=False,
        act="gelu_new",
        norm="layer",
        rotary=0.0,
        positions=int(c.get("max_position_embeddings", 2048)),
        out_bias=True,
        mlp_bias=True,
        tied=True,
        eager_only=True,
        scores="gpt_neo",
        holds_attended=True,
    )


def _stablelm(c: Fields) -> DecoderShape:
    bias = bool(c.get("use_qkv_bias", False))
    return _basic(
        c,
        norm="layer",
        rotary=float(c.get("partial_rotary_factor", 0.25)),
        q_bias=bias,
        kv_bias=bias,
        parallel=bool(c.get("use_parallel_residual", False)),
        shared_norm=bool(c.get("use_parallel_residual", False)),
        qk_norm="head" if c.get("qk_layernorm") else "",
        holds_attended=True,
    )


def _starcoder2(c: Fields) -> DecoderShape:
    return _basic(
        c,
        act="gelu_pytorch_tanh",
        gated=False,
        norm="layer",
        q_bias=True,
        kv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tied=bool(c.get("tie_word_embeddings", True)),
    )


def _cohere(c: Fields) -> DecoderShape:
    return _basic(
        c,
        norm="wide",
        parallel=True,
        shared_norm=True,
        rotary_wide=True,
        tied=True,
        qk_norm="head" if c.get("use_qk_norm") else "",
    )


def _nemotron(c: Fields) -> DecoderShape:
    return _basic(
        c,
        gated=False,
        act=str(c.get("hidden_act", "relu2")),
        norm="layer",
        rotary=float(c.get("partial_rotary_factor", 0.5)),
        rotary_copies=True,
    )


def _codegen(c: Fields) -> DecoderShape:
    return replace(_gptj(c), fused_qkv=True, splits="copied", rotary_copies=True)


def _glm(c: Fields, **changes: Any) -> DecoderShape:
    """GLM-4: one product for gate and up, biased queries, keys and values, half of a head turns."""
    bias = bool(c.get("attention_bias", True))
    return _basic(
        c,
        fused_gate=True,
        q_bias=bias,
        kv_bias=bias,
        out_bias=False,
        rotary=float(c.get("partial_rotary_factor", 0.5)),
        rotary_copies=True,
        **changes,
    )


def _chatglm(c: Fields) -> DecoderShape:
    """ChatGLM2 and 3 in their own code: queries, keys and values in one product."""
    return _glm(c, fused_qkv=True)


def _shared_experts(c: Fields, count: str = "n_shared_experts", usual: int = 0) -> int:
    number = c.get(count)
    return int(usual if number is None else number) * int(c["moe_intermediate_size"])


def _glm_moe(c: Fields) -> DecoderShape:
    bias = bool(c.get("attention_bias", True))
    return _basic(
        c,
        inner=int(c["moe_intermediate_size"]),
        dense_inner=int(c["intermediate_size"]),
        dense_layers=int(c.get("first_k_dense_replace", 1)),
        experts=int(c["n_routed_experts"]),
        experts_used=int(c["num_experts_per_tok"]),
        shared_inner=_shared_experts(c, usual=1),
        q_bias=bias,
        kv_bias=bias,
        out_bias=False,
        rotary=float(c.get("partial_rotary_factor", 0.5)),
        rotary_copies=True,
        qk_norm="head" if c.get("use_qk_norm") else "",
        router="sigmoid",
    )


def _deepseek(c: Fields) -> DecoderShape:
    """DeepSeek V2 and V3, Kimi K2: latent attention, a few dense layers, then experts with shared ones."""
    still, turning = int(c["qk_nope_head_dim"]), int(c["qk_rope_head_dim"])
    value = int(c["v_head_dim"])
    return _basic(
        c,
        head_dim=still + turning,
        inner=int(c["moe_intermediate_size"]),
        dense_inner=int(c["intermediate_size"]),
        dense_layers=int(c.get("first_k_dense_replace", 0)),
        experts=int(c["n_routed_experts"]),
        experts_used=int(c["num_experts_per_tok"]),
        shared_inner=_shared_experts(c, usual=2 if c.get("model_type") == "deepseek_v2" else 1),
        router="sigmoid" if c.get("model_type") != "deepseek_v2" else "scaled",
        rotary_complex=c.get("model_type") == "deepseek_v2",
        latent=Latent(int(c.get("q_lora_rank") or 0), int(c["kv_lora_rank"]), still, turning, value),
    )


def _deepseek_moe(c: Fields) -> DecoderShape:
    """The first mixture of DeepSeek, and ERNIE 4.5's: attention as in Llama."""
    return _basic(
        c,
        inner=int(c["moe_intermediate_size"]),
        dense_inner=int(c["intermediate_size"]),
        dense_layers=int(c.get("first_k_dense_replace", c.get("moe_layer_start_index", 1))),
        experts=int(c.get("n_routed_experts") or c["moe_num_experts"]),
        experts_used=int(c.get("num_experts_per_tok") or c["moe_k"]),
        shared_inner=_shared_experts(c) or _shared_experts(c, "moe_num_shared_experts"),
    )


def _gpt_oss(c: Fields) -> DecoderShape:
    bias = bool(c.get("attention_bias", True))
    return _basic(
        c,
        head_dim=int(c.get("head_dim", 64)),
        act="clamped",
        q_bias=bias,
        kv_bias=bias,
        out_bias=bias,
        experts=int(c["num_local_experts"]),
        experts_used=int(c["num_experts_per_tok"]),
        experts_bias=True,
        router="narrow",
        norm_wide=True,
        sinks=True,
        window=c.get("sliding_window", 128),
        full_every=2,
        rotary_copies=True,
    )


def _llama4(c: Fields) -> DecoderShape:
    """Scout and Maverick: every expert reads every token, which its score scales, beside a shared one."""
    inner = int(c["intermediate_size"])
    return _basic(
        c,
        head_dim=int(c.get("head_dim", 128)),
        inner=inner,
        dense_inner=int(c.get("intermediate_size_mlp") or inner),
        experts=int(c["num_local_experts"]),
        experts_used=int(c.get("num_experts_per_tok", 1)),
        experts_see_all=True,
        experts_every=int(c.get("interleave_moe_layer_step", 1)),
        shared_inner=inner,
        rotary_complex=True,
        window=c.get("attention_chunk_size", 8192),
        full_every=4,
        still_full=True,
        qk_norm="plain" if c.get("use_qk_norm", True) else "",
        holds_attended=True,
    )


def _olmoe(c: Fields) -> DecoderShape:
    return _basic(
        c,
        experts=int(c["num_experts"]),
        experts_used=int(c["num_experts_per_tok"]),
        qk_norm="all",
        router="narrow",
    )


def _olmo3(c: Fields) -> DecoderShape:
    return _basic(c, only_after=True, qk_norm="all", norm_wide=True, full_every=4)


def _phimoe(c: Fields) -> DecoderShape:
    shape = _mixtral(c)
    bias = bool(c.get("attention_bias", True))
    return replace(
        shape,
        norm="layer",
        q_bias=bias,
        kv_bias=bias,
        out_bias=bias,
        head_bias=bool(c.get("lm_head_bias", True)),
        window=None,
        router="narrow",
    )


def _seed_oss(c: Fields) -> DecoderShape:
    dropout = float(c.get("residual_dropout", 0.1))
    return _basic(c, q_bias=True, kv_bias=True, out_bias=False, dropout=dropout)


def _exaone4(c: Fields) -> DecoderShape:
    return _basic(c, only_after=True, qk_norm="head")


def _minimax(c: Fields) -> DecoderShape:
    shape = _mixtral(c)
    turning = float(c.get("partial_rotary_factor", 1.0))
    return replace(shape, qk_norm="all", rotary=turning, rotary_copies=True)


_KINDS: Mapping[str, Callable[[Fields], DecoderShape]] = MappingProxyType(
    {
        "llama": _basic,
        "mistral": _basic,
        "granite": _basic,
        "mixtral": _mixtral,
        "qwen": _qwen,
        "qwen2": _qwen2,
        "qwen3": lambda c: _basic(c, qk_norm="head", head_dim=int(c.get("head_dim", 128))),
        "qwen2_moe": lambda c: _qwen_moe(c, q_bias=True, kv_bias=True),
        "qwen3_moe": lambda c: _qwen_moe(c, qk_norm="head", head_dim=int(c.get("head_dim", 128))),
        "gemma": _gemma,
        "gemma2": _gemma2,
        "gemma3_text": _gemma3,
        "phi": _phi,
        "phi3": _phi3,
        "falcon": _falcon,
        "mpt": _mpt,
        "opt": _opt,
        "bloom": _bloom,
        "gpt_neox": _gpt_neox,
        "gptj": _gptj,
        "gpt_neo": _gpt_neo,
        "gpt2": _gpt2_sizes,
        "gpt_bigcode": _gpt_bigcode,
        "stablelm": _stablelm,
        "starcoder2": _starcoder2,
        "olmo": lambda c: _basic(c, norm="plain"),
        "olmo2": lambda c: _basic(c, only_after=True, qk_norm="all", norm_wide=True),
        "olmo3": _olmo3,
        "olmoe": _olmoe,
        "smollm3": lambda c: _basic(c, tied=bool(c.get("tie_word_embeddings", True))),
        "cohere": _cohere,
        "nemotron": _nemotron,
        "codegen": _codegen,
        "glm": _glm,
        "glm4": lambda c: _glm(c, sandwich=True),
        "glm4_moe": _glm_moe,
        "chatglm": _chatglm,
        "deepseek": _deepseek_moe,
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
        "kimi_k2": _deepseek,
        "ernie4_5": _basic,
        "ernie4_5_moe": _deepseek_moe,
        "gpt_oss": _gpt_oss,
        "llama4_text": _llama4,
        "phimoe": _phimoe,
        "granitemoe": lambda c: replace(_mixtral(c), router="narrow"),
        "seed_oss": _seed_oss,
        "exaone4": _exaone4,
        "internlm": lambda c: _basic(c, q_bias=True, kv_bias=True, out_bias=True),
        "internlm2": lambda c: _basic(c, fused_qkv=True),
        "minimax_m2": _minimax,
        "hunyuan_v1_dense": lambda c: _basic(c, qk_norm="head"),
    }
)


def is_decoder(config: Fields) -> bool:
    return str(config.get("model_type", "llama")) in _KINDS
