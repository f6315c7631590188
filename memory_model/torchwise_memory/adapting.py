"""What a description says of parameter-efficient training, in the words of the layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


#: Which of a layer's products a word means, in the libraries' spellings.
_PLACES: Mapping[str, tuple[str, ...]] = {
    "q": ("q", "q_proj", "query", "q_lin", "wq", "query_proj", "q_a_proj", "q_b_proj"),
    "k": ("k", "k_proj", "key", "k_lin", "wk", "key_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
    "v": ("v", "v_proj", "value", "v_lin", "wv", "value_proj"),
    "qkv": ("c_attn", "qkv_proj", "query_key_value", "wqkv", "qkv", "linear_qkv", "in_proj", "w_pack"),
    "o": (
        "o", "o_proj", "output_proj", "projection", "proj", "dense", "attn.c_proj", "c_proj", "out_proj",
        "wo", "out_lin", "linear_proj", "attention.output.dense",
    ),
    "gate": ("gate_proj", "w1", "mlp", "gate_up_proj", "gate", "wi_0", "wi", "ffn", "linear_fc1"),
    "up": (
        "up_proj", "w2", "w3", "fc1", "mlp", "gate_up_proj", "c_fc", "dense_h_to_4h", "up", "wi_1", "wi",
        "ffn", "lin1", "intermediate.dense", "fc_in", "linear_fc1",
    ),
    "down": (
        "down_proj", "fc2", "mlp", "c_proj", "dense_4h_to_h", "down", "ffn", "lin2", "output.dense", "fc_out",
        "linear_fc2",
    ),
    "lm_head": ("head", "lm_head", "output"),
}  # fmt: skip
ALL_LINEAR = frozenset({"q", "k", "v", "qkv", "o", "gate", "up", "down"})
_GROUPS: Mapping[str, frozenset[str]] = {
    "attention": frozenset({"q", "k", "v", "qkv", "o"}),
    "attn": frozenset({"q", "k", "v", "qkv", "o"}),
    "all": ALL_LINEAR,
    "all linear": ALL_LINEAR,
    "all linear layers": ALL_LINEAR,
    "all layers": ALL_LINEAR,
    "linear": ALL_LINEAR,
}


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


#: LoRA by another name or another start: what is kept and computed is the same.
_LIKE_LORA = re.compile(
    r"q?lora|q?dora|rs-?lora|lora(\+|plus|-?fa|-?ga|-?pro)?|ada-?lora|pissa|olora|loftq|longlora|milora|eva"
)
#: Parameters that are trained as they are, by their names.
_PARTS: Sequence[tuple[str, re.Pattern[str]]] = (
    (r"bit-?fit|bias(es)?( only| tuning)?", re.compile(r"bias$")),
    (r"(layer ?)?norms?( tuning| only)|ln tuning", re.compile(r"norm")),
    (
        r"(linear|last layer|head)( probe| probing| only| tuning)?",
        re.compile(r"^(head|classifier|score|fc)\b"),
    ),
    (r"embeddings?( only| tuning)", re.compile(r"^embed")),
)


def method_of(peft: Mapping[str, Any] | None) -> str:
    """The way of adapting in lower case; empty where all parameters are trained."""
    said = re.sub(r"[\s_]+", " ", str((peft or {}).get("method") or "").lower()).strip()
    if peft is None or re.fullmatch(r"none|no|full( fine ?-?tuning| parameter)?|full-?ft|fft", said):
        return ""
    return said or "lora"


@dataclass(frozen=True, slots=True)
class _Named:
    """Whether a parameter's name has the pattern."""

    pattern: re.Pattern[str]

    def __call__(self, name: str) -> bool:
        return self.pattern.search(name) is not None


def part_of(peft: Mapping[str, Any] | None) -> Callable[[str], bool] | None:
    """Which parameters are trained where it is some of the model's own; None where it is not such a way."""
    method = method_of(peft)
    for words, pattern in _PARTS:
        if method and re.fullmatch(words, method):
            return _Named(pattern)
    return None


def adapter_of(peft: Mapping[str, Any], library: str, installed: Installed, choices: Choices) -> Adapter:
    """How layers are adapted. Raises Unsupported for a way that is not modelled."""
    method = method_of(peft)
    native = library in ("litgpt", "torchtune")
    dtype: DType | None = None
    if not native and installed.value("adapter_type") == "float32":
        dtype = float32
    if method.startswith(("qlora", "qdora")) or "quant" in method:
        dtype = dtype or (None if native else float32)
    if re.fullmatch(r"(llama-?\s?)?adapter\s?v2", method):
        return Adapter("v2", 0, ALL_LINEAR | {"lm_head"}, dtype)
    if re.fullmatch(r"(llama-?\s?)adapter( v1)?|adapter( v1)?|adaption prompt", method):
        return Adapter("lora", 1, frozenset({"o"}), dtype, cast_inputs=not native)
    plain = re.sub(r"[()^\s]", "", method)
    if "ia3" in plain:
        return Adapter("ia3", 0, _places(peft) or frozenset({"k", "v", "down"}), dtype)
    if not _LIKE_LORA.match(plain):
        raise Unsupported(f"peft method {peft.get('method')!r}", "this way of adapting is not modelled")
    places = _places(peft)
    if not places:
        places = ALL_LINEAR if plain.startswith(("qlora", "qdora")) else frozenset({"q", "v"})
    dropout = 0.0
    if library != "torchtune":
        sentence = "whether the adapters' inputs are dropped out is not stated: a rate above nothing assumed"
        dropout = float(choices.pick("adapter_dropout", 0.05, (0.0,), sentence))
    kind = "dora" if "dora" in plain else "lora"
    return Adapter(kind, _rank(peft, choices), places, dtype, dropout, not native)


def _rank(peft: Mapping[str, Any], choices: Choices) -> int:
    for name in ("rank", "r", "lora_r", "lora_rank", "dim"):
        value = peft.get(name)
        if isinstance(value, int) and value > 0:
            return value
        if isinstance(value, str) and value.isdigit():
            return int(value)
    return int(choices.pick("rank", 8, (), "the rank of the adapters is not stated: 8 assumed"))


def _places(peft: Mapping[str, Any]) -> frozenset[str]:
    """The places of a layer that the stated targets mean."""
    targets = peft.get("targets") or peft.get("target_modules")
    if isinstance(targets, str):
        targets = re.split(r"[,\s]+", targets) if "," in targets else [targets]
    listed = cast("Sequence[object]", targets) if isinstance(targets, list | tuple) else ()
    names = {str(target).strip().lower() for target in listed}
    found = {place for place, words in _PLACES.items() if names & set(words)}
    for name in names:
        found |= _GROUPS.get(re.sub(r"[\s_-]+", " ", name), frozenset())
    return frozenset(found)


def places_called(name: str) -> frozenset[str]:
    """What a layer of that name is in a model: "query" -> q; several where libraries differ."""
    last = name.rpartition(".")[2].lower()
    return frozenset(place for place, words in _PLACES.items() if last in words)


def saved_modules(peft: Mapping[str, Any] | None, adapter: Adapter | None) -> tuple[str, ...]:
    """Ends of the model that are trained as copies, "embed" and "head"; and "norm"."""
    saved = (peft or {}).get("modules_to_save") or ()
    if adapter is None or not isinstance(saved, list | tuple):
        return ()
    words = {
        "wte": "embed", "embed_tokens": "embed", "embed": "embed", "embedding": "embed",
        "embeddings": "embed", "lm_head": "head", "head": "head", "norm": "norm", "norms": "norm",
    }  # fmt: skip
    return tuple(words[name] for name in cast("Sequence[str]", saved) if name in words)
