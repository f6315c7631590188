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
    "distributions.txt", "einops.txt", "kernels.txt", "settings.txt",
)  # fmt: skip
#: Between which releases (major, minor) of a library a text holds: both ends were read or tested.
RELEASES: dict[str, dict[str, tuple[tuple[int, int], tuple[int, int]]]] = {
    "transformers_5.txt": {"transformers": ((4, 57), (5, 24))},
    "trainer.txt": {"transformers": ((4, 57), (5, 24))},
    "vision.txt": {"torchvision": ((0, 23), (0, 28)), "timm": ((1, 0), (1, 0))},
    "diffusers.txt": {"diffusers": ((0, 35), (0, 42))},
    "peft.txt": {"peft": ((0, 17), (0, 21))},
    "training.txt": {
        "lightning": ((2, 5), (2, 6)),
        "pytorch_lightning": ((2, 5), (2, 6)),
        "accelerate": ((1, 10), (1, 15)),
    },
    "trl.txt": {"trl": ((0, 24), (1, 16))},
    "datasets.txt": {"datasets": ((4, 0), (4, 99))},
    "deepspeed.txt": {"deepspeed": ((0, 19), (0, 19))},
    "einops.txt": {"einops": ((0, 8), (0, 8))},
    "kernels.txt": {
        "flash_attn": ((2, 3), (2, 8)),
        "xformers": ((0, 0), (0, 0)),
        "liger_kernel": ((0, 4), (0, 6)),
        "torchao": ((0, 7), (0, 14)),
        "torch_ema": ((0, 3), (0, 3)),
        "ema_pytorch": ((0, 4), (0, 7)),
    },
    "settings.txt": {"pydantic": ((1, 10), (2, 14)), "pydantic_settings": ((2, 0), (2, 12))},
}
_SECTION = re.compile(r"^# module: ([\w.*]+)$", re.MULTILINE)


@cache
def _text(file: str) -> str:
    return resources.files(__name__).joinpath(file).read_text(encoding="utf-8")


@cache
def sections() -> dict[str, str]:
    """Dotted module name -> replacement text."""
    found: dict[str, str] = {}
    for name in _FILES:
        parts = _SECTION.split(_text(name))
        found.update(zip(parts[1::2], parts[2::2], strict=True))
    return found


@cache
def home(name: str) -> str:
    """The file that holds the section of a module; empty where there is none."""
    return next((file for file in _FILES if name in _SECTION.findall(_text(file))), "")


@cache
def lowered(name: str) -> Module | None:
    """The replacement section of a module, lowered once per process."""
    text = sections().get(name)
    return None if text is None else lower_text(f"<replacement of {name}>", text)
