"""What the configurations of docs/editors.md send is what the server understands."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.server.lsp.editor import launched

from torchwise_server.lsp.options import read_options

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "editors.md").read_text("utf-8")
WANTED = (("gpus", ["rtx-4090"]),)
SCRIPT = (ROOT / "tests" / "editors" / "workspace" / "train.py").read_text("utf-8")


def block(title: str, language: str) -> str:
    """The first block of a language in one section of the page."""
    section = DOCS.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found, title
    return found[1]


def helix() -> tuple[list[str], Any, Any]:
    """`config` goes into the initialization options; sections are looked up in it, and there is none."""
    server = tomllib.loads(block("Helix", "toml"))["language-server"]["torchwise"]
    return [server["command"], *server["args"]], server["config"], server["config"].get("torchwise")


def sublime() -> tuple[list[str], Any, Any]:
    """Dotted names are a tree, and the server asks for a branch of it."""
    client = json.loads(block("Sublime Text", "json"))["clients"]["torchwise"]
    table = {name.removeprefix("torchwise."): value for name, value in client["settings"].items()}
    return client["command"], None, table


def lsp4ij() -> tuple[list[str], Any, Any]:
    folder = ROOT / "editors" / "lsp4ij"
    template = json.loads((folder / "template.json").read_text("utf-8"))
    assert template["fileTypeMappings"][0]["languageId"] == "python"
    settings = json.loads((folder / "settings.json").read_text("utf-8"))
    assert settings == json.loads(block("JetBrains IDEs", "json"))
    options = json.loads((folder / "initializationOptions.json").read_text("utf-8"))
    return template["programArgs"]["default"].split(), options, settings["torchwise"]


def zed() -> tuple[list[str], Any, Any]:
    extension = tomllib.loads((ROOT / "editors" / "zed" / "extension.toml").read_text("utf-8"))
    assert list(extension["language_servers"]) == ["torchwise"]
    settings = json.loads(block("Zed", "json"))["lsp"]["torchwise"]["settings"]
    return ["torchwise", "server"], None, settings


@pytest.mark.parametrize("editor", [helix, sublime, lsp4ij, zed])
async def test_cards_of_the_configuration_arrive(editor: Any, tmp_path: Path) -> None:
    command, started, table = editor()
    assert command == ["torchwise", "server"]
    assert read_options(table if table is not None else started)[0].overrides == WANTED
    client = await launched("emacs", [sys.executable, "-I", "-m", "torchwise_server", *command[1:]])
    client.client.set_configuration({"torchwise": table} if table is not None else {})
    await client.start(started, tmp_path)
    await client.settings_read(1)
    uri = (tmp_path / "train.py").as_uri()
    client.open(uri, SCRIPT)
    await client.command("torchwise.showMemoryReport", uri)
    (lens,) = await client.lenses(uri)
    assert lens.command and "fits RTX 4090" in lens.command.title
    await client.stop()


def test_every_test_that_the_page_names_is_there() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests" / "server" / "lsp").glob("*.py"))
    named = set(re.findall(r"`(test_\w+)`", DOCS))
    assert len(named) > 25
    assert [name for name in sorted(named) if f"def {name}(" not in sources] == []
    for path in re.findall(r"`(tests/[\w/.-]+)`", DOCS):
        assert (ROOT / path).exists(), path
