"""Settings of editors, and their declaration in the extension's manifest."""

from __future__ import annotations

import json
from pathlib import Path

from torchwise_analysis.policy import Surface
from torchwise_analysis.settings import Settings
from torchwise_server import __version__
from torchwise_server.lsp.manifest import properties, render
from torchwise_server.lsp.options import EditorOptions, read_options

MANIFEST = Path(__file__).parents[3] / "vscode-extension" / "package.json"


def test_editor_wins_over_the_project_and_silence_leaves_it() -> None:
    options, problems = read_options({"gpus": ["t4"], "select": None, "strict": True, "codeLens": False})
    assert problems == ()
    assert (options.surface, options.code_lens) == (Surface.EDITOR_STRICT, False)
    made = options.applied_to(Settings(gpus=("a100-80gb",), select=("TW1",)))
    assert (made.gpus, made.select) == (("t4",), ("TW1",))


def test_wrong_values_leave_the_default_and_are_named() -> None:
    options, problems = read_options({"runOn": "sometimes", "gpus": "t4", "strict": 1, "hover": False})
    assert options == EditorOptions(hover=False)
    assert len(problems) == 3
    assert read_options([1])[1] == ("torchwise: the settings must be a table",)


def test_what_the_extension_keeps_for_itself_is_no_mistake() -> None:
    defaults = {name.removeprefix("torchwise."): entry["default"] for name, entry in properties().items()}
    defaults["trace"] = {"server": "off"}
    assert read_options(defaults) == (EditorOptions(), ())


def test_manifest_is_up_to_date() -> None:
    text = MANIFEST.read_text("utf-8")
    assert text == render(text), "run python -m torchwise_server.lsp.manifest vscode-extension/package.json"
    assert json.loads(text)["version"] == __version__
