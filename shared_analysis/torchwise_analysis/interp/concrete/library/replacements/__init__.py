"""Replacements for library machinery, as source text that the evaluator runs like any other.

A model file of a library is interpreted as it is; what surrounds it (registries, caches, mask builders,
configuration and base classes, decorators) is replaced where its own text would cost much and say
nothing about memory. Each text file holds sections, `# module: <dotted name>`; a name defined in a
section wins over the library's own, every other name still comes from the library; `transformers.*` is a
section of names wherever in the package they are defined. The first line says
for which versions a file was tested.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from torchwise_analysis.source import lower_text
from torchwise_analysis.source.nodes import Module

_FILES = (
    "transformers_5.txt", "vision.txt", "diffusers.txt", "peft.txt",
    "training.txt", "trainer.txt", "trl.txt", "datasets.txt", "deepspeed.txt",
    "distributions.txt", "einops.txt", "settings.txt",
)  # fmt: skip
_SECTION = re.compile(r"^# module: ([\w.*]+)$", re.MULTILINE)


@cache
def sections() -> dict[str, str]:
    """Dotted module name -> replacement text."""
    found: dict[str, str] = {}
    for name in _FILES:
        text = resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
        parts = _SECTION.split(text)
        found.update(zip(parts[1::2], parts[2::2], strict=True))
    return found


@cache
def lowered(name: str) -> Module | None:
    """The replacement section of a module, lowered once per process."""
    text = sections().get(name)
    return None if text is None else lower_text(f"<replacement of {name}>", text)
