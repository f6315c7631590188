"""Writes the settings into the extension's manifest: `python -m torchwise_server.lsp.manifest`.

Settings are declared once, in `options` and in the analysis. A project setting has no default in the
editor (null): what is not chosen there is left to the project's pyproject.toml. The texts go to
package.nls.json beside it, where translations start from.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import Field, fields
from enum import Enum
from pathlib import Path
from typing import cast

from torchwise_analysis.findings import Severity
from torchwise_analysis.settings import Settings
from torchwise_server.lsp.options import EDITOR_FIELDS

# What decides the exit status, or which files a folder stands for, means nothing in an editor
_COMMAND_LINE_ONLY = ("fail_on", "fail_confidence", "exclude", "extend_exclude", "min_confidence")

_PREFIX = "setting."
_CHOICES = {"run_on": ["type", "save"]}

_OF_THE_EXTENSION: dict[str, dict[str, object]] = {
    "torchwise.interpreter": {
        "type": "string",
        "default": "",
        "scope": "machine-overridable",
        "markdownDescription": "Python 3.10 or newer that runs the server. Empty: the selected environment, "
        "else the one on `PATH`. The analysed code needs none.",
    },
    "torchwise.importStrategy": {
        "type": "string",
        "enum": ["useBundled", "fromEnvironment"],
        "enumDescriptions": [
            "The torchwise that came with the extension; no environment needs it.",
            "The torchwise that is installed for the chosen Python, to have the same version as elsewhere.",
        ],
        "default": "useBundled",
        "scope": "machine-overridable",
        "description": "Which torchwise runs.",
    },
    "torchwise.trace.server": {
        "type": "string",
        "enum": ["off", "messages", "verbose"],
        "default": "off",
        "scope": "window",
        "description": "Log the messages between the editor and the server.",
    },
}


def properties() -> dict[str, dict[str, object]]:
    """The settings as the manifest declares them."""
    made: dict[str, dict[str, object]] = {}
    for item in EDITOR_FIELDS:
        made[_name(item)] = _editor(item)
    for setting in fields(Settings):
        if setting.name not in _COMMAND_LINE_ONLY:
            made[_name(setting)] = _project(setting)
    return {**made, **_OF_THE_EXTENSION}


def render(manifest: str, strings: str) -> tuple[str, str]:
    """The manifest and its texts (package.nls.json) with their settings up to date."""
    package = cast("dict[str, dict[str, object]]", json.loads(manifest))
    known = cast("dict[str, str]", json.loads(strings))
    texts = {key: text for key, text in known.items() if not key.startswith(_PREFIX)}
    named = {name: _keyed(name, declared, texts) for name, declared in properties().items()}
    package["contributes"]["configuration"] = {"title": "torchwise", "properties": named}
    return _written(package), _written(texts)


def _keyed(name: str, declared: dict[str, object], texts: dict[str, str]) -> dict[str, object]:
    """The declaration with keys in place of texts, which are put into `texts`."""
    made: dict[str, object] = {}
    key = _PREFIX + name.removeprefix("torchwise.")
    for field, value in declared.items():
        if field in ("description", "markdownDescription"):
            texts[key] = str(value)
            made[field] = f"%{key}%"
        elif field == "enumDescriptions":
            said = [str(text) for text in cast("list[object]", value)]
            texts.update({f"{key}.{number}": text for number, text in enumerate(said)})
            made[field] = [f"%{key}.{number}%" for number in range(len(said))]
        else:
            made[field] = value
    return made


def _written(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _name(item: Field[object]) -> str:
    return "torchwise." + re.sub(r"_(\w)", lambda match: match[1].upper(), item.name)


def _editor(item: Field[object]) -> dict[str, object]:
    kind = "boolean" if isinstance(item.default, bool) else "string"
    made: dict[str, object] = {"type": kind, "default": item.default}
    made["scope"] = item.metadata.get("scope", "resource")
    if item.name in _CHOICES:
        made["enum"] = _CHOICES[item.name]
    return {**made, "description": item.metadata["help"]}


def _project(item: Field[object]) -> dict[str, object]:
    made: dict[str, object] = {"default": None, "scope": "resource"}
    if isinstance(item.default, bool):
        made["type"] = ["boolean", "null"]
    elif isinstance(item.default, Enum):
        made["enum"] = [*(member.value for member in type(item.default)), None]
    elif item.name == "per_file_ignores":
        names = {"type": "array", "items": {"type": "string"}}
        made |= {"type": ["object", "null"], "additionalProperties": names}
    elif item.name == "severity":
        levels = {"enum": [level.value for level in Severity]}
        made |= {"type": ["object", "null"], "additionalProperties": levels}
    else:
        made |= {"type": ["array", "null"], "items": {"type": "string"}}
    return {**made, "markdownDescription": f"{item.metadata['help']} Not set: as in `pyproject.toml`."}


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("vscode-extension/package.json")
    beside = target.with_name("package.nls.json")
    made, texts = render(target.read_text("utf-8"), beside.read_text("utf-8"))
    target.write_text(made, "utf-8")
    beside.write_text(texts, "utf-8")
