"""The memory of a document as plain values, the edits of remedies, and help on layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.server.lsp.editor import Editor, plain

from torchwise_memory.report import Kind, Moment, Origin, Phase
from torchwise_server.lsp.documents import Cell, Estimated, OpenDocument, OpenNotebook
from torchwise_server.lsp.panel import memory_panel
from torchwise_server.lsp.session import Session
from torchwise_server.lsp.text import Text

SHOWS = {"clientShowsReports": True}
LOOP = "net = Net(Net)\nfor batch in loader:\n    pass\n"


async def panel(editor: Editor, uri: str) -> Any:
    return plain(await editor.command("torchwise.memoryPanel", uri))


async def test_the_panel_says_what_the_estimate_knows(editor: Editor, tmp_path: Path) -> None:
    await editor.start(SHOWS)
    uri = (tmp_path / "<b>train.py").as_uri()
    editor.open(uri, LOOP)
    shown = await panel(editor, uri)
    assert (shown["uri"], shown["name"], shown["version"], shown["isKept"]) == (uri, "<b>train.py", 1, False)
    (loop,) = shown["loops"]
    assert loop["place"] == {"label": "line 2", "uri": uri, "line": 1}
    assert (loop["peak"], loop["range"], loop["where"]) == (
        "4.00 GiB",
        "3.50–4.50 GiB",
        "in the backward pass",
    )
    assert loop["facts"] == ["1.00 M parameters"]
    assert [row["name"] for row in loop["peaks"]] == ["allocated", "reserved", "on the card"]
    assert loop["gpus"][0] | {"bytes": 0} == {
        "title": "RTX 4090", "verdict": "fits", "words": "fits", "bytes": 0, "size": "24.0 GiB",
        "apart": None,
    }  # fmt: skip
    assert loop["purposes"][0] == {"name": "Weights", "bytes": 1 << 30, "size": "1.00 GiB"}
    assert [moment["phase"] for moment in loop["timeline"]] == [
        "forward", "backward", "between", "optimizer",
    ]  # fmt: skip
    assert all(len(moment["bytes"]) == len(loop["purposes"]) for moment in loop["timeline"])
    assert loop["modules"][0]["name"] == "Net"
    assert loop["alive"][0]["place"]["line"] == 1
    assert loop["remedies"][0]["edits"] == [
        {"place": {"label": "line 1", "uri": uri, "line": 0}, "text": "4"}
    ]
    assert loop["plan"][0] == {
        "name": "micro batch", "value": "8", "note": "", "place": {"label": "line 1", "uri": uri, "line": 0},
    }  # fmt: skip


async def test_the_panel_follows_and_says_what_is_not_known(editor: Editor) -> None:
    await editor.start(SHOWS)
    editor.open("file:///train.py", LOOP)
    await panel(editor, "file:///train.py")
    editor.edit("file:///train.py", (0, 0), (0, 0), "def def\n")
    kept = await panel(editor, "file:///train.py")
    assert kept["isKept"] and kept["loops"][0]["place"]["line"] == 2
    editor.replace("file:///train.py", "x = UNKNOWN\n")
    nothing = await panel(editor, "file:///train.py")
    assert nothing["loops"] == []
    assert nothing["unanswered"] == [
        {"place": {"label": "line 1", "uri": "file:///train.py", "line": 0}, "message": "the size of UNKNOWN"}
    ]
    assert await editor.command("torchwise.memoryPanel", "file:///other.py") is None


async def test_remedy_is_applied_only_to_the_text_it_was_made_for(editor: Editor) -> None:
    await editor.start(SHOWS)
    editor.open("file:///train.py", LOOP)
    shown = await panel(editor, "file:///train.py")
    version = shown["version"]
    assert await editor.command("torchwise.applyRemedy", "file:///train.py", version, 0, 0) is True
    (applied,) = editor.applied
    assert applied.label == "torchwise: micro-batch 4"
    assert editor.apply(LOOP, applied.edit, "file:///train.py").startswith("4et = Net")
    # one that is advice only has nothing to apply
    assert await editor.command("torchwise.applyRemedy", "file:///train.py", version, 0, 1) is False
    editor.edit("file:///train.py", (0, 0), (0, 0), "x = 1\n")
    assert await editor.command("torchwise.applyRemedy", "file:///train.py", version, 0, 0) is False
    assert len(editor.applied) == 1


async def test_clients_that_show_reports_are_told_of_estimates(editor: Editor) -> None:
    await editor.start(SHOWS)
    editor.open("file:///train.py", LOOP)
    await editor.until(lambda: editor.estimated)
    assert editor.estimated[0] == {
        "uri": "file:///train.py",
        "brief": "4.00 GiB · fits RTX 4090",
        "titles": ["Peak 4.00 GiB (3.50–4.50) per GPU · fits RTX 4090 · backward"],
        "verdict": "fits",
    }


async def test_other_clients_are_not(editor: Editor) -> None:
    await editor.start()
    editor.open("file:///train.py", LOOP)
    await editor.command("torchwise.showMemoryReport", "file:///train.py")
    assert editor.estimated == []


async def test_hover_tells_what_a_layer_holds(editor: Editor) -> None:
    await editor.start()
    editor.open("file:///train.py", LOOP)
    await editor.command("torchwise.showMemoryReport", "file:///train.py")
    text = await editor.hover("file:///train.py", 0, 7)
    assert text is not None
    assert text.startswith("**Net × 2**: 1.00 M parameters, 3.81 MiB of weights")
    assert "1.00 GiB that their forward passes made is alive at the peak, 25 % of it." in text
    assert await editor.hover("file:///train.py", 0, 1) is None  # another name
    editor.edit("file:///train.py", (0, 0), (0, 0), "\n")
    text = await editor.hover("file:///train.py", 1, 7)
    assert text is not None and text.startswith("**Net × 2**")


def test_places_of_a_notebook_are_named_by_cell() -> None:
    session = Session(None)  # type: ignore[arg-type]  # nothing is analysed
    cells = {f"cell:{name}": Cell(f"cell:{name}", 1, Text("x = 1\n")) for name in "ab"}
    notebook = OpenNotebook("file:///book.ipynb", "/book.ipynb", list(cells), cells)
    session._documents[notebook.uri] = notebook  # without asking for an analysis
    assert isinstance(notebook, OpenDocument)
    from tests.server.lsp.fake_server import estimate

    notebook.estimated = Estimated((estimate("/book.ipynb", 1, 4, ()),))
    (loop,) = json.loads(json.dumps(memory_panel(session, notebook, notebook.estimated)))["loops"]
    assert loop["place"] == {"label": "cell 2, line 1", "uri": "cell:b", "line": 0}
    assert loop["title"] == f"{Kind.TRAINING.value.capitalize()} loop"
    assert Moment(Phase.FORWARD, Origin("p", 1), {"weights": 2, "inputs": 3}).bytes == 5
