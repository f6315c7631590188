"""The words in which people describe a job, as facts: how it is divided, stored, cast and computed.

Every function takes free text and raises Unsupported for words that it does not know: a description that is
misread would be answered with a number of another job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from torchwise_memory.families.projections import Quantised
from torchwise_memory.runtime.dtypes import DType, bfloat16, float16, float32
from torchwise_memory.runtime.errors import Unsupported

_NOTHING = re.compile(
    r"(none|no|false|off|disabled|-|n/?a|unquanti[sz]ed|not (quanti[sz]ed|used|applicable)|full precision"
    r"|(b?fp?|float)?(16|32)(-?bit)?|bf(loat)?16)\b.*"
)


def says_nothing(text: str | None) -> bool:
    """Whether a field is empty in words: "none", "not quantised", "bf16" as a way of packing."""
    lowered = (text or "").strip().lower()
    return not lowered or _NOTHING.fullmatch(lowered) is not None


# --------------------------------------------------------------------------- types


def dtype_of(text: str | None) -> DType | None:
    """Of weights or products; None where nothing is said."""
    lowered = (text or "").strip().lower()
    if not lowered or lowered.startswith(("none", "not stated", "mixed", "amp")):
        return None
    for pattern, dtype in (
        (r"bf-?16|bfloat", bfloat16),
        (r"fp-?16|float-?16|\bf16|half|\b16", float16),
        (r"fp-?32|float-?32|\bf32|tf-?32|single|full|\b32", float32),
    ):
        if re.search(pattern, lowered):
            return dtype
    raise Unsupported(f"weights of type {text!r}", "this type is not known")


def autocast_of(text: str | None, weights: DType, sm: int) -> DType | None:
    """The type of products under autocast, None without it. "amp" alone means fp16, as it did in its time."""
    lowered = (text or "").strip().lower()
    if not lowered or re.match(r"(none|no\b|false|off|fp-?32|tf-?32|32)", lowered):
        return None
    if re.search(r"bf-?16|bfloat", lowered):
        return bfloat16
    if re.search(r"\bfp-?16|float-?16|\bf?16\b|\b16-mixed|half|apex|\bo[12]\b", lowered):
        return float16
    if "amp" in lowered:
        return bfloat16 if weights is bfloat16 else float16
    if re.search(r"true|yes|mixed|autocast|on\b|fp-?8|float-?8|transformer ?engine", lowered):
        # products in 8 bits are scaled from and back to the 16 bits that autocast gives
        return bfloat16 if sm >= 80 else float16
    raise Unsupported(f"autocast {text!r}", "this way of mixing types is not known")


# --------------------------------------------------------------------------- packed weights

#: Formats of other programs than PyTorch.
_FOREIGN = re.compile(r"gguf|ggml|llama\.?cpp|\bq\d_[k\d]|mlx|tensorrt|openvino|onnx")
_METHODS = r"gptq|awq|hqq|eetq|quanto|aqlm|exl2|exllama|torchao|tinygemm|marlin|w\d+a\d+|compressed"


def quantised_of(text: str | None, *, training: bool) -> Quantised | None:
    """How weights are packed, None where they are not.

    Training in 8 bits (float8, MXFP8, NVFP4) converts at each product and stores what it stored before; the
    same words said of inference mean that weights are stored so.
    """
    lowered = (text or "").strip().lower()
    if says_nothing(text) or ("kv" in lowered and "cache" in lowered):
        return None
    if _FOREIGN.search(lowered):
        raise Unsupported(f"quantisation {text!r}", "a format of another program than PyTorch")
    if re.search(r"nvfp4", lowered):
        return None if training else Quantised(4, 16, 1, dequantises=False)
    if re.search(r"mxfp4", lowered):
        return Quantised(4, 32, 1, dequantises=training)
    if re.search(r"mxfp8|mxfp6", lowered):
        return None if training else Quantised(8, 32, 1, dequantises=False)
    if re.search(r"float-?8|fp-?8|transformer ?engine", lowered):
        return None if training else Quantised(8, 1, 0, dequantises=False, row_scales=True)
    bits = _bits(lowered)
    if re.search(r"hqq", lowered) and not re.search(r"awq|gptq", lowered):
        # two values of 16 bits for a group of 64
        return Quantised(bits or 4, 64, 4)
    if re.search(r"gptq|awq|aqlm|exl2|exllama|marlin|compressed", lowered):
        return Quantised(bits or 4, 128, 2.5, dequantises="gptq" in lowered)
    if re.search(r"nf4|fp4|qlora|loftq|bnb int4|bitsandbytes int4|4-?\s?bit", lowered):
        if "double" in lowered or "torchao" in lowered:
            return Quantised(4, 64, 1.016)
        return Quantised(4, 64, 4)
    if re.search(r"int4|w4a", lowered):
        return Quantised(4, 128, 2.5, dequantises=False)
    eight = re.search(r"llm\.int8|8-?\s?bit|(bnb|bitsandbytes).*int8", lowered)
    if eight and not re.search(_METHODS, lowered):
        return Quantised(8, 1, 0, dequantises=False, row_scales=True)
    if re.search(r"int8|8-?\s?bit|w8a", lowered):
        return Quantised(8, 1, 0, row_scales=True)
    raise Unsupported(f"quantisation {text!r}", "this way of storing weights is not known")


def _bits(lowered: str) -> float | None:
    """Bits of a weight: "4-bit", "int8", "3.5bpw", "w4a16"."""
    for pattern in (r"(\d(?:\.\d+)?)\s*-?\s*b(?:its?|pw)\b", r"\bu?int(\d)\b", r"\bw(\d)a\d+", r"\bq(\d)\b"):
        found = re.search(pattern, lowered)
        if found:
            return float(found[1])
    return None


def packs_with_bitsandbytes(text: str | None, library: str) -> bool:
    """Whether bitsandbytes packs, which leaves what it does not pack to others to cast."""
    return library != "torchtune" and re.search(_METHODS, (text or "").lower()) is None


# --------------------------------------------------------------------------- several processes


@dataclass(frozen=True, slots=True)
class Division:
    """How a job is divided. kind: "none", "DDP", "FSDP" or "ZeRO".

    stage: of ZeRO, 0 where it is not said. group: processes that shard between them. keeps_whole: parameters
    stay whole from forward to backward. Degrees are 1 where nothing is divided so.
    """

    kind: str = "none"
    stage: int = 0
    group: int = 1
    keeps_whole: bool = False
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    experts: int = 1

    @property
    def parts(self) -> bool:
        """Whether this process has a part of the model alone."""
        return self.tensor > 1 or self.pipeline > 1


_DEGREES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "tensor": ("tp", r"tensor(?:[\s-]*model)?[\s-]*parallel\w*"),
        "pipeline": ("pp", r"(?:pipeline(?:[\s-]*model)?[\s-]*(?:parallel\w*|stages?)|gpipe)"),
        "context": ("cp|sp", r"(?:context[\s-]*parallel\w*|ring[\s-]*attention|ulysses)"),
        "experts": ("ep", r"expert[\s-]*parallel\w*"),
    }
)
_LAYERS_SPLIT = re.compile(
    r"layer\w*[\s-]*(?:split|sequential)|split\w* (?:by|over) layers|device_map"
    r"|naive (?:mp|model|layer|pipeline)|model parallel \(naive\)"
)


def division_of(kind: str, text: str, gpus: int) -> Division:
    """kind: the class of parallelism; text: its words ("FSDP2 8 x TP 4", "DeepSpeed ZeRO stage 3")."""
    degrees = {name: _degree(text.lower(), *words) for name, words in _DEGREES.items()}
    known = 1
    for degree in degrees.values():
        known *= degree or 1
    for name, words in _DEGREES.items():
        if degrees[name] is None and _is_alone(name, words, kind, text):
            degrees[name] = max(1, gpus // known)
    if _LAYERS_SPLIT.search(text.lower()):
        degrees["pipeline"] = gpus
    found = Division(
        tensor=degrees["tensor"] or 1,
        pipeline=degrees["pipeline"] or 1,
        context=degrees["context"] or 1,
        experts=degrees["experts"] or 1,
    )
    return _with_kind(found, kind, text.lower(), gpus)


def _degree(text: str, short: str, words: str) -> int | None:
    """ "TP 8", "tp=8", "8-way tensor parallel", "tensor parallel of 8"; None where none is said."""
    for pattern in (
        rf"\b(?:{short})\s*[=:x×-]?\s*(\d+)",
        rf"(\d+)[\s-]*way[\s-]+{words}",
        rf"{words}(?:\s*(?:degree|size|of|=|:|x|×|\(|-))*\s*(\d+)",
    ):
        found = re.search(pattern, text)
        if found:
            return int(found[1])
    return None


def _is_alone(name: str, words: tuple[str, str], kind: str, text: str) -> bool:
    """Whether this is the one way in which all processes divide the work, its degree left out."""
    lowered = text.lower().strip()
    said = re.search(rf"\b(?:{words[0]})\b|{words[1]}", lowered) is not None
    others = any(
        re.search(rf"\b(?:{short})\b|{long}", lowered)
        for other, (short, long) in _DEGREES.items()
        if other != name
    )
    return said and not others and "FSDP" not in kind and not re.search(r"fsdp|zero|ddp|async", lowered)


def _with_kind(found: Division, kind: str, text: str, gpus: int) -> Division:
    both = f"{kind.lower()} {text}"
    rest = max(1, gpus // found.pipeline)
    if re.search(r"fsdp|hsdp|fully[\s_-]*shard", both):
        if "no_shard" in both or "no shard" in both:
            return replace(found, kind="DDP", group=rest)
        return replace(
            found,
            kind="FSDP",
            group=_sharding_group(both, rest),
            keeps_whole=re.search(r"shard_grad_op|grad[\s_-]op|reshard_after_forward\s*=?\s*false", both)
            is not None,
        )
    if re.search(r"\bzero|deepspeed|sharded ddp|\boss\b|distributed optimizer", both):
        stage = re.search(r"zero[\s_-]*(?:stage[\s_-]*)?([0-3])|stage[\s_-]*([0-3])", both)
        number = int(stage[1] or stage[2]) if stage else 0
        if re.search(r"zero\+\+|infinity", both):
            number = 3
        elif not number and re.search(r"\boss\b|distributed optimizer", both):
            number = 1
        return replace(found, kind="ZeRO", stage=number, group=gpus)
    if re.search(r"\bddp\b|distributed[\s-]*data", both):
        return replace(found, kind="DDP", group=gpus)
    return replace(found, group=rest)


def _sharding_group(text: str, processes: int) -> int:
    """Processes that hold one copy between them: all, or those of a machine where copies are kept."""
    if not re.search(r"hsdp|hybrid", text):
        return processes
    sizes = re.search(r"(\d+)\s*[x×]\s*(\d+)", text)
    return min(processes, int(sizes[2]) if sizes else 8)


_OFFLOADED: Mapping[str, str] = MappingProxyType(
    {
        "params": r"param|weights?\b|model",
        "gradients": r"\bgrad",
        "optimizer": r"optim|states?\b",
        "activations": r"activation",
    }
)


def offloaded_of(offload: str, parallelism: str, optimizer: str, division: Division) -> frozenset[str]:
    """What lives on the host: "params", "gradients", "optimizer", "activations".

    Where only "CPU" is said, it is what the way of sharding moves there by default.
    """
    text = "" if says_nothing(offload) else offload.lower()
    found = {name for name, pattern in _OFFLOADED.items() if re.search(pattern, text)}
    if re.search(r"cpu[\s_-]*offload|zero[\s_-]*offload|cpu[\s_-]*adam", optimizer.lower()):
        found.add("optimizer")
    said = re.search(r"off-?load|nvme|infinity", f"{parallelism.lower()} ") is not None
    if found and not said:
        return frozenset(found)
    if not said and not text:
        return frozenset(found)
    if division.kind == "FSDP":
        return frozenset({*found, "params"})
    if division.kind == "ZeRO":
        return frozenset({*found, "optimizer", *(("params",) if division.stage == 3 else ())})
    if found:
        return frozenset(found)
    raise Unsupported(f"offload {offload or parallelism!r}", "what is moved to the host is not said")


# --------------------------------------------------------------------------- computing


def writes_attention_out(text: str | None) -> bool:
    """Whether scores are made as a tensor. Words for a fused kernel win where both kinds are named."""
    lowered = (text or "").lower()
    if lowered.startswith("sdpa") or re.search(r"default|xformers|memory[\s-]*efficient", lowered):
        return False
    if re.search(r"\b(no|without|not) flash|flash[\s_-]*attn?\w* (?:off|disabled)", lowered):
        return True
    if "flash" in lowered:
        return False
    return re.search(r"eager|manual|vanilla|naive|standard|written out|\bmath\b", lowered) is not None


def task_of(text: str | None) -> str:
    """ "train", "generate", "inference" or "load"."""
    lowered = (text or "train").strip().lower()
    words = re.sub(r"[\s_-]+", " ", lowered)
    if re.fullmatch(
        r"(pre ?|post ?|continued )?(train|training|pretrain|pretraining)|(full )?fine ?tun(e|ing)|sft"
        r"|instruction tuning|(q?lora|peft)( fine ?tuning)?|adaptation",
        words,
    ):
        return "train"
    if re.fullmatch(r"generat(e|ion|ing)|decod(e|ing)|chat|serv(e|ing)|text generation", words):
        return "generate"
    if re.fullmatch(r"infer(ence)?|forward|prefill|eval(uate|uation)?|predict(ion)?|test(ing)?", words):
        return "inference"
    if re.fullmatch(r"load(ing)?|weights( only)?", words):
        return "load"
    raise Unsupported(f"task {text!r}", "a step of this kind has more than one model, or is not known")
