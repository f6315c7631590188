"""What a description says of parameter-efficient training, in the words of the layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from torchwise_memory.families.projections import Adapter, PromptShape
from torchwise_memory.runtime.dtypes import DType, float32
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.versions import Installed

if TYPE_CHECKING:
    from torchwise_memory.workload import Workload


class Choices(Protocol):
    """Notes a fact that was not stated, and gives what is taken for it."""

    def pick(self, name: str, value: Any, others: tuple[Any, ...], sentence: str) -> Any: ...


_PLACES: Mapping[str, tuple[str, ...]] = {
    "q": ("q", "q_proj", "query", "q_lin"),
    "k": ("k", "k_proj", "key"),
    "v": ("v", "v_proj", "value", "v_lin"),
    "qkv": ("c_attn", "qkv_proj", "query_key_value", "wqkv", "qkv"),
    "o": ("o", "o_proj", "output_proj", "projection", "proj", "dense", "attn.c_proj", "c_proj", "out_proj"),
    "gate": ("gate_proj", "w1", "mlp", "gate_up_proj", "gate"),
    "up": ("up_proj", "w2", "w3", "fc1", "mlp", "gate_up_proj", "c_fc", "dense_h_to_4h", "up"),
    "down": ("down_proj", "fc2", "mlp", "c_proj", "dense_4h_to_h", "down"),
    "lm_head": ("head", "lm_head"),
}
ALL_LINEAR = frozenset({"q", "k", "v", "qkv", "o", "gate", "up", "down"})


#: Learned tokens where a description does not say how many; peft has no default, its examples take 20.
VIRTUAL_TOKENS = 20


def prompt_of(workload: Workload) -> PromptShape | None:
    """Learned tokens before the text, None where layers are adapted."""
    peft = workload.peft or {}
    words = re.sub(r"[\s_-]+", " ", str(peft.get("method") or "").lower()).strip()
    method = next((m for m, known in _PROMPTS.items() if words in known), None)
    if method is None:
        return None
    if method == "prefix" and workload.checkpointing not in (None, "false", "none", "no"):
        raise Unsupported("prefix tuning with checkpointing", "peft refuses it: keys and values are cached")
    tokens, inner = peft.get("virtual_tokens"), peft.get("encoder_hidden_size")
    return PromptShape(
        method,
        tokens if isinstance(tokens, int) else VIRTUAL_TOKENS,
        inner if isinstance(inner, int) else 0,
    )


_PROMPTS: Mapping[str, frozenset[str]] = {
    "prompt": frozenset({"prompt", "prompt tuning", "soft prompt", "soft prompts"}),
    "prefix": frozenset({"prefix", "prefix tuning"}),
    "p-tuning": frozenset({"p tuning", "ptuning", "prompt encoder"}),
}


def adapter_of(peft: Mapping[str, Any], library: str, installed: Installed, choices: Choices) -> Adapter:
    """How layers are adapted. Raises Unsupported for a way that is not modelled."""
    method = str(peft.get("method") or "LoRA").lower()
    native = library in ("litgpt", "torchtune")
    dtype: DType | None = None
    if not native and installed.value("adapter_type") == "float32":
        dtype = float32
    if "quant" in method or method.startswith("qlora"):
        dtype = dtype or (None if native else float32)
    if "adapter" in method:
        if "v2" in method:
            return Adapter("v2", 0, ALL_LINEAR | {"lm_head"}, dtype)
        return Adapter("lora", 1, frozenset({"o"}), dtype)
    method = re.sub(r"[()^\s]", "", method)
    if "ia3" in method:
        return Adapter("ia3", 0, _places(peft) or frozenset({"k", "v", "down"}), dtype)
    if not method.startswith(("lora", "qlora", "dora", "qdora", "rslora")):
        raise Unsupported(f"peft method {method!r}", "this way of adapting is not modelled")
    places = _places(peft)
    if not places:
        places = ALL_LINEAR if method.startswith("qlora") else frozenset({"q", "v"})
    rank = peft.get("rank")
    dropout = 0.0
    if library != "torchtune":
        sentence = "whether the adapters' inputs are dropped out is not stated: a rate above nothing assumed"
        dropout = float(choices.pick("adapter_dropout", 0.05, (0.0,), sentence))
    kind = "dora" if "dora" in method else "lora"
    return Adapter(kind, rank if isinstance(rank, int) else 8, places, dtype, dropout, not native)


def _places(peft: Mapping[str, Any]) -> frozenset[str]:
    """The places of a layer that the stated targets mean."""
    targets = peft.get("targets")
    listed = cast("Sequence[object]", targets) if isinstance(targets, list | tuple) else ()
    names = {str(target) for target in listed}
    if names & {"all-linear", "all"}:
        return ALL_LINEAR
    return frozenset(place for place, words in _PLACES.items() if names & set(words))


def saved_modules(peft: Mapping[str, Any] | None, adapter: Adapter | None) -> tuple[str, ...]:
    """Ends of the model that are trained as copies: "embed", "head"."""
    saved = (peft or {}).get("modules_to_save") or ()
    if adapter is None or not isinstance(saved, list | tuple):
        return ()
    words = {"wte": "embed", "embed_tokens": "embed", "lm_head": "head", "embedding": "embed"}
    return tuple(words[name] for name in cast("Sequence[str]", saved) if name in words)
