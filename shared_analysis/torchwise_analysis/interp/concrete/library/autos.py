"""transformers' auto classes: which class of which file stands for a model type, by the package's own tables.

The tables are lists of pairs of texts; they are searched as text, nothing of them is evaluated.
"""

from __future__ import annotations

import re
from functools import lru_cache

from torchwise_analysis.names.project import Project

_QUOTED = re.compile(r'"(\w+)"')
_PAIR = re.compile(r"\(\s*\"([\w.-]+)\",\s*(\"\w+\"|\([^()]*\))\s*,?\s*\)")
_CONFIG_TABLES = ("auto_mappings", "configuration_auto")


class AutoTables:
    """The tables of one installed package."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._models: dict[str, dict[str, str]] = {}

    def config_class(self, model_type: str) -> tuple[str, str] | None:
        """(module, class) of the configuration of a model type."""
        values = [v for table in _CONFIG_TABLES for key, v in self._table(table) if key == model_type]
        name = next((v for v in values if v.endswith("Config")), None)
        if name is None:
            return None
        folder = next((v for v in values if v.islower()), model_type.replace("-", "_"))
        return f"transformers.models.{folder}.configuration_{folder}", name

    def model_class(self, auto: str, model_type: str) -> str | None:
        """The class that `auto` makes of a model type."""
        if auto not in self._models:
            self._models[auto] = _mapping(auto, self._text("modeling_auto"))
        return self._models[auto].get(model_type)

    def autos(self) -> frozenset[str]:
        """Names of the auto classes of models."""
        text = self._text("modeling_auto")
        return frozenset(re.findall(r"^class (AutoModel\w*|AutoBackbone)\(", text, re.MULTILINE))

    def _table(self, name: str) -> tuple[tuple[str, str], ...]:
        return _pairs(self._text(name))

    def _text(self, name: str) -> str:
        source = self._project.find(f"transformers.models.auto.{name}", "")
        return "" if source is None else self._project.text(source.path) or ""


@lru_cache(maxsize=64)
def _mapping(auto: str, text: str) -> dict[str, str]:
    """Model type -> class of an auto class. Kept like the pairs; nobody changes it."""
    used = re.search(rf"^class {auto}\(.*?\):.*?_model_mapping = (\w+)", text, re.MULTILINE | re.DOTALL)
    made = used and re.search(rf"^{used[1]} = \w+\(\s*\w+,\s*(\w+)\s*\)", text, re.MULTILINE)
    if not made:
        return {}
    table = re.search(rf"^{made[1]} = (.*?)^\)", text, re.MULTILINE | re.DOTALL)
    return dict(_pairs(table[1])) if table else {}


@lru_cache(maxsize=16)
def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of texts; of several classes the first. Kept: every run asks the same tables."""
    found: list[tuple[str, str]] = []
    for match in _PAIR.finditer(text):
        value = _QUOTED.search(match[2])
        if value:
            found.append((match[1], value[1]))
    return tuple(found)
