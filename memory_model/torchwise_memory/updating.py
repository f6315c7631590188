"""From the words for an optimizer to its states and its step.

Classes that the runtime knows are run with their own states and temporaries; of others the values of state a
parameter are known from their papers and repositories, and their step is taken to need no copies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.simulation import Update

#: By name, the most particular first. bitsandbytes' stem where it has one in 8 bits.
_CLASSES: Sequence[tuple[str, str, str]] = (
    (r"nadam", "torch.optim.NAdam", ""),
    (r"radam(?!.*schedule)", "torch.optim.RAdam", ""),
    (r"adamax", "torch.optim.Adamax", ""),
    (r"adadelta", "torch.optim.Adadelta", ""),
    (r"adagrad", "torch.optim.Adagrad", "Adagrad"),
    (r"rms-?prop", "torch.optim.RMSprop", "RMSprop"),
    (r"lamb", "timm.optim.Lamb", "LAMB"),
    (r"madgrad", "timm.optim.MADGRAD", ""),
    (r"adan\b", "timm.optim.Adan", ""),
    (r"\basgd", "torch.optim.ASGD", ""),
    (r"rprop", "torch.optim.Rprop", ""),
    (r"d-?adapt", "dadaptation.DAdaptAdam", ""),
    (r"schedule-?\s?free.*sgd|sgd.*schedule-?\s?free", "torch.optim.SGD", ""),
    (r"schedule-?\s?free", "schedulefree.AdamWScheduleFree", ""),
)
#: Values of state a parameter: moments, and what a method keeps beside them.
_VALUES: Sequence[tuple[str, float]] = (
    (r"ademamix", 3),
    (r"prodigy", 4),
    (r"soap", 5),
    (r"shampoo", 4),
    (r"sophia", 2),
    (r"adam-?\s?mini", 1),
    (r"novograd|lars\b", 1),
    (r"came\b", 1),
)
#: What reads as none of them, with the reason.
_REFUSED: Sequence[tuple[str, str]] = (
    (r"mezo|zeroth", "no backward pass: not a step that is modelled"),
    (r"b-?adam\b|lisa\b", "which layers are trained changes during the run"),
    (r"fira|flora", "this optimizer is not known"),
)


def update_of(
    text: str,
    *,
    library: str,
    weights: DType,
    hidden: int,
    single_loop: bool,
    offloaded: frozenset[str],
) -> Update:
    """text: of the optimizer. hidden: the model's width, over which projections are taken.

    single_loop: whether the release steps one parameter after the other. Raises Unsupported.
    """
    lowered = text.lower()
    for pattern, why in _REFUSED:
        if re.search(pattern, lowered):
            raise Unsupported(f"optimizer {text!r}", why)
    options: dict[str, Any] = {"lr": 1e-4}
    common: dict[str, Any] = {
        "in_backward": re.search(r"in bac|per-?layer|gradient release|lomo", lowered) is not None,
        "on_host": "optimizer" in offloaded,
        "gradients_on_host": "gradients" in offloaded,
    }
    size = weights.itemsize
    bits = _state_bits(lowered)
    if re.search(r"galore|apollo", lowered):
        return Update(
            "torch.optim.AdamW", options, state_bytes=_projected(lowered, bits, hidden, size), **common
        )
    if "lbfgs" in lowered or "l-bfgs" in lowered:
        # two vectors a step of the history (100 by default), the direction and the last gradient
        history = int(found[1]) if (found := re.search(r"history\D*(\d+)", lowered)) else 100
        return Update("torch.optim.SGD", options, state_bytes=(2 * history + 2) * size, **common)
    if "adafactor" in lowered or "adalomo" in lowered:
        name = "torch.optim.Adafactor" if library == "torchtune" else "transformers.optimization.Adafactor"
        return Update(name, options, **common)
    if "lomo" in lowered:
        return Update("torch.optim.SGD", options, **common)
    if "muon" in lowered:
        return Update("torch.optim.SGD", {**options, "momentum": 0.9}, **common)
    for pattern, values in _VALUES:
        if re.search(pattern, lowered):
            each = 1 + 4 / 256 if bits == 8 else size
            return Update("torch.optim.AdamW", options, state_bytes=values * each, **common)
    if "lion" in lowered:
        name = "bitsandbytes.optim.Lion8bit" if bits == 8 else "lion_pytorch.Lion"
        return Update(name, options, **common)
    for pattern, name, packed in _CLASSES:
        if re.search(pattern, lowered):
            known = f"bitsandbytes.optim.{packed}8bit" if bits == 8 and packed else name
            return Update(known, options, **common)
    if "sgd" in lowered or re.fullmatch(r"momentum|nesterov", lowered):
        return _sgd(lowered, bits, options, common)
    if "adam" not in lowered and not common["in_backward"]:
        raise Unsupported(f"optimizer {text!r}", "this optimizer is not known")
    return _adam(lowered, bits, library, single_loop, size, options, common)


def _state_bits(lowered: str) -> int:
    """Of the states: 4, 8, or 0 where nothing of the kind is said."""
    found = re.search(r"([48])-?\s?bit|adamw?([48])bit", lowered)
    return int(found[1] or found[2]) if found else 0


def _projected(lowered: str, bits: int, hidden: int, size: int) -> float:
    """Bytes a parameter of states that live in a subspace of `rank` rows.

    GaLore keeps two moments and the projector (GaLore, arXiv 2403.03507), APOLLO the moments alone, its
    projection being drawn anew from a seed (arXiv 2412.05270).
    """
    rank = int(found[1]) if (found := re.search(r"rank\D{0,3}(\d+)", lowered)) else 128
    if "mini" in lowered:
        rank = 1
    moment = 1.0 if bits == 8 else float(size)
    projector = 0.0 if "apollo" in lowered else 0.5 if re.search(r"q-?galore", lowered) else float(size)
    return min(1.0, rank / max(hidden, 1)) * (2 * moment + projector)


def _sgd(lowered: str, bits: int, options: dict[str, Any], common: dict[str, Any]) -> Update:
    none = re.search(r"(without|no|w/o) (any )?momentum|momentum\s*=?\s*0(\.0+)?(?![.\d])|no state", lowered)
    momentum = 0.9 if none is None and re.search(r"momentum|nesterov", lowered) else 0.0
    name = "bitsandbytes.optim.SGD8bit" if bits == 8 and momentum else "torch.optim.SGD"
    return Update(name, options if "bits" in name else {**options, "momentum": momentum}, **common)


def _adam(
    lowered: str,
    bits: int,
    library: str,
    single_loop: bool,
    size: int,
    options: dict[str, Any],
    common: dict[str, Any],
) -> Update:
    name = "torch.optim.AdamW"
    if bits == 4:
        return Update(name, options, state_bytes=1 + 8 / 128, **common)
    if "fp8" in lowered:
        return Update(name, options, state_bytes=2 + 8 / 256, **common)
    if bits == 8:
        paged = "Paged" if "paged" in lowered else ""
        return Update(f"bitsandbytes.optim.{paged}AdamW8bit", options, **common)
    if "paged" in lowered:
        return Update("bitsandbytes.optim.PagedAdamW", options, **common)
    wide = re.search(r"(fp|float)-?32 (master|states?|moments?|copy)|master (weights|copy)", lowered)
    if wide and size == 2:
        # two moments, and the copy that is updated where one is kept
        return Update(name, options, state_bytes=12 if "master" in lowered else 8, **common)
    if ("fused" in lowered and "backward" not in lowered) or library in ("torchtitan", "torchtune"):
        # both set it in the configurations they ship
        options["fused"] = True
    elif single_loop or lowered.startswith("hf") or re.search(r"foreach\s*=?\s*(false|off)", lowered):
        options["foreach"] = False
    return Update(name, options, **common)
