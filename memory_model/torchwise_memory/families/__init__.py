"""Hand-written architectures: the fallback where a library's source cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torchwise_memory.families import (
    bart,
    bert,
    clip,
    deberta,
    decoders,
    encoders,
    gemma3_olmo2,
    gpt2,
    llama,
    mixtures,
    mpnet,
    t5,
    vit,
)
from torchwise_memory.families.base import Config, PreTrainedModel, in_dtype
from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.world import World


@dataclass(frozen=True, slots=True)
class Family:
    """defaults: of the configuration class; heads: auto class -> model; checkpoints: name -> changes."""

    model_type: str
    defaults: Mapping[str, object]
    spellings: Mapping[str, str]
    heads: Mapping[str, type[PreTrainedModel]]
    checkpoints: Mapping[str, Mapping[str, object]]

    def config(self, **changes: object) -> Config:
        """The default configuration with some fields changed."""
        attention = changes.pop("attn_implementation", None) or "sdpa"
        return Config(
            self.model_type, {**self.defaults, "_attn_implementation": attention, **changes}, self.spellings
        )


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.model_type: family
        for family in (
            Family("gpt2", gpt2.DEFAULTS, gpt2.SPELLINGS, gpt2.HEADS, gpt2.CHECKPOINTS),
            Family("bert", bert.BERT, {}, bert.BERT_HEADS, bert.BERT_CHECKPOINTS),
            Family("roberta", bert.ROBERTA, {}, bert.ROBERTA_HEADS, bert.ROBERTA_CHECKPOINTS),
            Family(
                "distilbert",
                bert.DISTILBERT,
                bert.DISTILBERT_SPELLINGS,
                bert.DISTILBERT_HEADS,
                bert.DISTILBERT_CHECKPOINTS,
            ),
            Family(
                "xlm-roberta",
                encoders.XLM_ROBERTA,
                {},
                encoders.roberta_heads("XLMRoberta"),
                encoders.XLM_ROBERTA_CHECKPOINTS,
            ),
            Family(
                "camembert",
                encoders.XLM_ROBERTA,
                {},
                encoders.roberta_heads("Camembert"),
                encoders.CAMEMBERT_CHECKPOINTS,
            ),
            Family("electra", encoders.ELECTRA, {}, encoders.ELECTRA_HEADS, encoders.ELECTRA_CHECKPOINTS),
            Family("deberta-v2", deberta.DEBERTA_V2, {}, deberta.HEADS, deberta.CHECKPOINTS),
            Family("albert", encoders.ALBERT, {}, encoders.ALBERT_HEADS, encoders.ALBERT_CHECKPOINTS),
            Family("mpnet", mpnet.MPNET, {}, mpnet.HEADS, mpnet.CHECKPOINTS),
            Family("llama", llama.LLAMA, {}, llama.HEADS, {}),
            Family("mistral", llama.MISTRAL, {}, llama.HEADS, {}),
            Family("qwen2", llama.QWEN2, {}, llama.HEADS, {}),
            Family("qwen3", llama.QWEN3, {}, llama.HEADS, {}),
            Family("gemma", decoders.GEMMA, {}, decoders.causal("Gemma", decoders.GemmaModel), {}),
            Family(
                "gemma2",
                decoders.GEMMA2,
                {"hidden_activation": "hidden_act"},
                decoders.causal("Gemma2", decoders.Gemma2Model, cap=True),
                {},
            ),
            Family("phi", decoders.PHI, {}, decoders.causal("Phi", decoders.PhiModel, head_bias=True), {}),
            Family("phi3", decoders.PHI3, {}, decoders.causal("Phi3", decoders.Phi3Model), {}),
            Family(
                "gpt_neox",
                decoders.GPT_NEOX,
                {"rotary_pct": "partial_rotary_factor"},
                decoders.causal("GPTNeoX", decoders.GPTNeoXModel, body="gpt_neox"),
                {},
            ),
            Family("opt", decoders.OPT, {"intermediate_size": "ffn_dim"}, decoders.OPT_HEADS, {}),
            Family("mixtral", mixtures.MIXTRAL, {}, decoders.causal("Mixtral", mixtures.MixtralModel), {}),
            Family(
                "qwen3_moe", mixtures.QWEN3_MOE, {}, decoders.causal("Qwen3Moe", mixtures.Qwen3MoeModel), {}
            ),
            Family(
                "gemma3_text",
                gemma3_olmo2.GEMMA3,
                {"hidden_activation": "hidden_act"},
                decoders.causal("Gemma3", gemma3_olmo2.Gemma3TextModel, cap=True),
                {},
            ),
            Family("olmo2", gemma3_olmo2.OLMO2, {}, decoders.causal("Olmo2", gemma3_olmo2.Olmo2Model), {}),
            Family("clip", clip.CLIP, {}, clip.HEADS, clip.CHECKPOINTS),
            Family("vit", vit.DEFAULTS, {}, vit.HEADS, vit.CHECKPOINTS),
            Family("t5", t5.T5, t5.SPELLINGS, t5.HEADS, t5.CHECKPOINTS),
            Family("mt5", t5.MT5, t5.SPELLINGS, t5.MT5_HEADS, t5.MT5_CHECKPOINTS),
            Family("bart", bart.BART, bart.SPELLINGS, bart.HEADS, bart.BART_CHECKPOINTS),
            Family("mbart", bart.MBART, bart.SPELLINGS, bart.MBART_HEADS, bart.MBART_CHECKPOINTS),
            Family("pegasus", bart.PEGASUS, bart.SPELLINGS, bart.PEGASUS_HEADS, bart.PEGASUS_CHECKPOINTS),
            Family("marian", bart.MARIAN, bart.SPELLINGS, bart.MARIAN_HEADS, bart.MARIAN_CHECKPOINTS),
            Family(
                "blenderbot",
                bart.BLENDERBOT,
                bart.SPELLINGS,
                bart.BLENDERBOT_HEADS,
                bart.BLENDERBOT_CHECKPOINTS,
            ),
            Family("m2m_100", bart.M2M100, bart.SPELLINGS, bart.M2M100_HEADS, bart.M2M100_CHECKPOINTS),
            Family("whisper", bart.WHISPER, bart.SPELLINGS, bart.WHISPER_HEADS, bart.WHISPER_CHECKPOINTS),
        )
    }
)


def config_of(name: str, **changes: object) -> Config:
    """The configuration of a model type ("gpt2") or a checkpoint ("openai-community/gpt2-medium")."""
    if name in FAMILIES:
        return FAMILIES[name].config(**changes)
    short = name.rpartition("/")[2].lower()
    for family in FAMILIES.values():
        if short in family.checkpoints:
            return family.config(**{**family.checkpoints[short], **changes})
    raise Unsupported(name, "no hand-written family has this model; its library's source is not readable")


def build(
    w: World,
    head: str,
    config: Config,
    dtype: DType | None = None,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """A model by auto class ("AutoModelForCausalLM") or model class ("GPT2LMHeadModel") and configuration."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise Unsupported(config.model_type, "no hand-written family has this architecture")
    by_class: dict[str, Any] = {cls.__name__: cls for cls in family.heads.values()}
    cls = family.heads.get(head) or by_class.get(head)
    if cls is None:
        raise Unsupported(f"{head} of {config.model_type}", "this head is not modelled")
    if attn_implementation is not None:
        config.assign("_attn_implementation", attn_implementation)
    model = cls()
    in_dtype(w, dtype, lambda: model.build(w, config))
    return model
