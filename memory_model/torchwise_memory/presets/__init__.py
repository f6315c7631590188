"""Published models by every usual spelling of their name.

`models.json` holds `config.json` facts with their source and the number of parameters, which a test compares
with what the family builds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Preset:
    """parameters: exact count; source: where the configuration was read."""

    name: str
    source: str
    parameters: int
    aliases: tuple[str, ...]
    config: Mapping[str, Any]


class UnknownModelError(LookupError):
    """No preset has this name; `suggestions` are close ones."""

    def __init__(self, name: str, suggestions: tuple[str, ...]) -> None:
        hint = f"; did you mean {', '.join(suggestions)}?" if suggestions else ""
        super().__init__(f"unknown model {name!r}{hint}")
        self.suggestions = suggestions


@cache
def presets() -> tuple[Preset, ...]:
    text = files("torchwise_memory.presets").joinpath("models.json").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)["models"]
    return tuple(
        Preset(r["name"], r["source"], r["parameters"], tuple(r["aliases"]), r["config"]) for r in rows
    )


def find(name: str) -> Preset:
    """The preset of that name, whatever the separators, the owner or the tuning. Raises UnknownModelError."""
    table = _by_key()
    # a language model inside of another is a part, not the model
    keys = [_squash(name)] if _WITH_PICTURES.search(name) else _keys(name)
    for key in keys:
        if key in table:
            return table[key]
    close = get_close_matches(_squash(name), table, n=3, cutoff=0.75)
    raise UnknownModelError(name, tuple(dict.fromkeys(table[key].name for key in close)))


@cache
def _by_key() -> dict[str, Preset]:
    table: dict[str, Preset] = {}
    for preset in presets():
        repository = preset.source.removeprefix("https://huggingface.co/").partition(" ")[0]
        for name in (preset.name, *preset.aliases, repository.rpartition("/")[2]):
            table.setdefault(_squash(name), preset)
    return table


#: Models that read pictures or sound beside text, and are named after the language model in them.
_WITH_PICTURES = re.compile(
    r"blip|llava|\bvl\b|-vl|vision|multimodal|idefics|flamingo|minigpt|cogvlm|internvl|paligemma|\bomni\b"
    r"|audio|video|speech",
    re.IGNORECASE,
)
#: Words that say how a model was tuned or stored, not how large it is.
_TUNING = re.compile(
    r"\b(instruct|chat|base|hf|it|pt|sft|dpo|fp16|bf16|fp32|4k|8k|16k|32k|128k|1m|meta|nf4|4bit|8bit|bnb|gptq|awq"
    r"|unsloth|tuned|think|thinking|reasoning|coder|math|2\d{3}|1\d{3}|0\d{3}|v\d(\.\d)*)\b",
    re.IGNORECASE,
)


def _keys(name: str) -> list[str]:
    """Spellings to look up, the most literal first."""
    last = name.strip().rpartition("/")[2]
    spaced = re.sub(r"[-_/]", " ", last)
    bare = re.sub(r"\([^)]*\)", " ", spaced)
    inside = re.findall(r"\(([^)]*)\)", last)
    keys = [_squash(last), _squash(bare), _squash(_TUNING.sub(" ", bare))]
    for extra in inside:
        # "gemma-2b (Gemma 2)": the generation stands beside the size
        size = re.search(r"\d+(\.\d+)?[bm]\b", bare, re.IGNORECASE)
        if size:
            keys.insert(0, _squash(f"{extra} {size.group(0)}"))
    words = bare.split()
    # "modded-nanogpt GPT-2 124M", "RoBERTa-large classifier": a word of context beside the name
    keys += [_squash(" ".join(words[n:])) for n in (1, 2) if len(words) > n + 1]
    keys += [_squash(" ".join(words[:-1]))] if len(words) > 2 else []
    return [key for key in dict.fromkeys(keys) if key]


def _squash(text: str) -> str:
    """Points inside numbers stay apart: 1.3b is not 13b."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"(?<=\d)\.(?=\d)", "p", text.lower()).replace("+", "plus"))
