"""A decoder of which only the number of parameters is known: shapes published ones of its size have.

Depths are those of table 2.1 of the GPT-3 paper (arXiv 2005.14165) below 2 billion parameters and of the
papers on Llama and Llama 2 (arXiv 2302.13971, 2307.09288) above. The width follows from the number of
parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

FORMS = ("llama-2", "llama-3", "gpt-2")

SMALLEST = 25_000_000
LARGEST = 2_000_000_000_000
_DEPTHS = (
    (125e6, 12), (350e6, 24), (1.3e9, 24), (2.7e9, 32), (6.7e9, 32), (13e9, 40), (32.5e9, 60), (65.2e9, 80),
    (175e9, 96), (405e9, 126),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Form:
    """inner: width of the feed-forward over that of the model; products: how many it has; kv: over heads.

    tied_below: smaller models share the table of the input with the head.
    """

    model_type: str
    vocab: int
    tied_below: float
    inner: float
    products: int
    kv: float


_FORMS = {
    "llama-2": _Form("llama", 32_000, 0, 8 / 3, 3, 1.0),
    "llama-3": _Form("llama", 128_256, 4e9, 3.5, 3, 0.25),
    "gpt-2": _Form("gpt2", 50_257, math.inf, 4.0, 2, 1.0),
}


#: What a name says of the shape, where it is no model's own.
_SAID = (
    (r"llama[\s_-]*3", "llama-3"), (r"llama", "llama-2"), (r"\bgpt", "gpt-2"),
    (r"causal lm|language model|\bllms?\b|decoder(?:-only)?\b|transformer lm", "llama-2"),
)  # fmt: skip


def size_said(name: str) -> tuple[str, int] | None:
    """The shape and the number of parameters that words like "3B causal LM" or "Llama-like 350M" say."""
    lowered = name.lower()
    sizes = re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)\s?([bm])\b", lowered)
    form = next((shape for pattern, shape in _SAID if re.search(pattern, lowered)), None)
    if form is None or len(sizes) != 1 or re.search(r"moe|expert|vision|multimodal|\bvl\b", lowered):
        return None
    number, unit = sizes[0]
    return form, int(float(number) * (1e9 if unit == "b" else 1e6))


def config_of_size(parameters: int, form: str = FORMS[0]) -> Mapping[str, object]:
    """The `config.json` of a decoder with about so many parameters, in one of `FORMS`.

    Raises ValueError for a number that no decoder of this form has.
    """
    if not SMALLEST <= parameters <= LARGEST:
        raise ValueError(f"{parameters:,} parameters: expected {SMALLEST:,} to {LARGEST:,}")
    made = _FORMS[form]
    layers = min(_DEPTHS, key=lambda row: abs(math.log(row[0] / parameters)))[1]
    head = 64 if parameters < 2e9 else 128
    tied = parameters < made.tied_below
    hidden = step = 4 * head
    while _count(made, tied, layers, hidden + step, int(made.inner * (hidden + step))) <= parameters:
        hidden += step
    rest = parameters - _count(made, tied, layers, hidden, 0)
    inner = rest // (made.products * layers * hidden)
    if inner < hidden:
        raise ValueError(f"{parameters:,} parameters are too few for a vocabulary of {made.vocab:,}")
    heads = hidden // head
    if made.model_type == "gpt2":
        return {
            "model_type": "gpt2", "vocab_size": made.vocab, "n_embd": hidden, "n_layer": layers,
            "n_head": heads, "n_inner": inner, "n_positions": 2048,
        }  # fmt: skip
    return {
        "model_type": "llama", "vocab_size": made.vocab, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": int(heads * made.kv), "intermediate_size": inner,
        "tie_word_embeddings": tied, "max_position_embeddings": 4096,
    }  # fmt: skip


def _count(form: _Form, tied: bool, layers: int, hidden: int, inner: int) -> int:
    """Products and embeddings; norms and biases are a thousandth."""
    attention = hidden * hidden * (2 + 2 * form.kv)
    tables = form.vocab * hidden * (1 if tied else 2)
    return int(tables + layers * (attention + form.products * hidden * inner))
