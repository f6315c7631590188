"""Settings of editors, and their declaration in the extension's manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from scripts.l10n_bundle import texts

from torchwise_analysis.policy import Surface
from torchwise_analysis.settings import Settings
from torchwise_server import __version__
from torchwise_server.lsp.manifest import properties, render
from torchwise_server.lsp.options import EditorOptions, read_options

SHOWN = {"title", "description", "markdownDescription", "category", "altText", "markdown", "displayName"}
NOT_SHOWN = {
    "'not installed'",
    "'pip install torchwise'",
    "'part reserved'",
}  # looked for, a command, classes of a style
EXTENSION = Path(__file__).parents[3] / "vscode-extension"
MANIFEST = EXTENSION / "package.json"
STRINGS = EXTENSION / "package.nls.json"


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
    for address in ("docs.example.org", "file:///etc/passwd", "javascript:alert(1)", "https://a b"):
        assert len(read_options({"docsUrl": address})[1]) == 1
    assert read_options([1])[1] == ("torchwise: the settings must be a table",)


def test_what_the_extension_keeps_for_itself_is_no_mistake() -> None:
    defaults = {name.removeprefix("torchwise."): entry["default"] for name, entry in properties().items()}
    defaults["trace"] = {"server": "off"}
    assert read_options(defaults) == (EditorOptions(), ())


def test_every_text_of_the_manifest_has_its_words() -> None:
    used = set(re.findall(r"%([\w.]+)%", MANIFEST.read_text("utf-8")))
    assert used == set(json.loads(STRINGS.read_text("utf-8")))


def test_every_text_of_the_extension_can_be_translated() -> None:
    listed = json.loads((EXTENSION / "l10n" / "bundle.l10n.json").read_text("utf-8"))
    assert listed == {text: text for text in texts(EXTENSION / "src")}, "run python scripts/l10n_bundle.py"


def test_no_text_of_the_extension_is_written_for_one_language_only() -> None:
    """Sentences stand in `t(...)` or are for the log; names of one word are the product's own."""
    for source in (EXTENSION / "src").rglob("*.ts"):
        code = re.sub(
            r"/\*.*?\*/|(?:^|\s)//\s.*?$", "", source.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        code = re.sub(r"\bt\(\s*'(?:[^'\\]|\\.)*'", "", code)
        code = re.sub(r"\.(?:log|output)\.\w+\((?:'[^'\n]*'|`[^`]*`)", "", code)
        literals = re.findall(r"'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`", code)
        said = [text for text in literals if re.search(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}", text)]
        assert [text for text in said if text not in NOT_SHOWN and "<!DOCTYPE" not in text] == [], source.name


def test_no_text_of_the_manifest_is_written_for_one_language_only() -> None:
    def texts_in(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in SHOWN and isinstance(inner, str):
                    yield inner
                yield from texts_in(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from texts_in(inner)

    shown = list(texts_in(json.loads(MANIFEST.read_text("utf-8"))))
    assert len(shown) > 40
    assert {text for text in shown if not text.startswith("%")} == {"torchwise"}  # the name
    named = json.loads(STRINGS.read_text("utf-8"))
    assert all((EXTENSION / path).is_file() for key, path in named.items() if key.endswith(".media"))


def test_manifest_is_up_to_date() -> None:
    text, strings = MANIFEST.read_text("utf-8"), STRINGS.read_text("utf-8")
    assert (text, strings) == render(text, strings), "run python -m torchwise_server.lsp.manifest"
    assert json.loads(text)["version"] == __version__
