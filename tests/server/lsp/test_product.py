"""The product itself: the real engine behind the real protocol, from a file in a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lsprotocol import types as lsp
from tests.server.lsp.editor import Editor, launched, lsp_range, soon

SAMPLE = Path(__file__).parents[2] / "editors" / "workspace" / "train.py"


async def test_finding_fix_and_estimate(real_editor: Editor, tmp_path: Path) -> None:
    editor = real_editor
    await editor.start({"gpus": ["rtx-4090"]}, tmp_path)
    uri, text = (tmp_path / "train.py").as_uri(), SAMPLE.read_text("utf-8")
    editor.open(uri, text)
    (found,) = await editor.diagnostics(uri)
    line = text.splitlines().index("    history.append(loss)")
    assert found.code == "retained-graph"
    assert found.range == lsp_range((line, 19), (line, 23))
    assert len(found.related_information or ()) >= 3

    preferred = [item for item in await editor.actions(uri, found.range, [found]) if item.is_preferred]
    action = await editor.resolved(preferred[0])
    assert action.edit
    (edit,) = _edits(action.edit)
    assert edit == lsp.TextEdit(lsp_range((line, 23), (line, 23)), ".detach()")

    await editor.command("torchwise.showMemoryReport", uri)
    (lens,) = await editor.lenses(uri)
    assert lens.command and lens.command.title.startswith("Peak 1.72 GiB")
    assert "fits RTX 4090" in lens.command.title
    hover = await editor.hover(uri, lens.range.start.line, 8)
    assert hover and "alive at the peak" in hover and "micro batch | `4096`" in hover

    editor.edit(uri, (line, 23), (line, 23), ".detach()")
    assert await editor.diagnostics(uri) == []


async def test_broken_code_keeps_the_findings_elsewhere(real_editor: Editor, tmp_path: Path) -> None:
    await real_editor.start(None, tmp_path)
    uri = (tmp_path / "train.py").as_uri()
    real_editor.open(uri, SAMPLE.read_text("utf-8") + "\n\ndef later():\n    pass\n")
    before = await real_editor.diagnostics(uri)
    end = len(SAMPLE.read_text("utf-8").splitlines())
    real_editor.edit(uri, (end + 3, 4), (end + 3, 8), "return (model(")
    after = await real_editor.diagnostics(uri)
    assert [item.range for item in after] == [item.range for item in before] != []


@pytest.mark.parametrize("client_name", ["visual-studio-code", "neovim"])
async def test_everything_else_with_the_real_engine(real_editor: Editor, tmp_path: Path) -> None:
    editor, text = real_editor, SAMPLE.read_text("utf-8")
    closed = tmp_path / "closed.py"
    closed.write_text(text, "utf-8")
    options = {"inlayHints": True, "workspaceDiagnostics": True, "clientShowsReports": True}
    await editor.start(options, tmp_path)
    uri = (tmp_path / "train.py").as_uri()
    editor.open(uri, text)
    (found,) = await editor.diagnostics(uri)

    (action,) = await editor.actions(uri, lsp_range((0, 0), (0, 0)), only=["source.fixAll"])
    fixed = editor.apply(text, (await editor.resolved(action)).edit, uri)
    assert fixed == text.replace("history.append(loss)", "history.append(loss.detach())")

    start = found.range.start
    evidence = await editor.command("torchwise.showEvidence", uri, start.line, start.character)
    assert isinstance(evidence, str) and "```python\n   loss.backward()\n" in evidence
    await editor.command("torchwise.showMemoryReport", uri)
    hints = {hint.position.line: str(hint.label) for hint in await editor.hints(uri)}
    forward = text.splitlines().index("    loss = F.cross_entropy(model(inputs), targets)")
    assert hints[forward].endswith("iB at the peak")

    report = await soon(editor.client.workspace_diagnostic_async(lsp.WorkspaceDiagnosticParams([])))
    (item,) = report.items
    assert isinstance(item, lsp.WorkspaceFullDocumentDiagnosticReport)
    assert (item.uri, [one.code for one in item.items]) == (closed.as_uri(), ["retained-graph"])

    ignore = [one for one in await editor.actions(uri, found.range) if "in this file" in one.title]
    edit = (await editor.resolved(ignore[0])).edit
    editor.replace(uri, editor.apply(text, edit, uri))
    assert await editor.diagnostics(uri) == []


async def test_each_start_of_the_script_has_a_lens(real_editor: Editor, tmp_path: Path) -> None:
    text = SAMPLE.read_text("utf-8").replace("batch_size=4096", "batch_size=int(sys.argv[1])")
    starts = tmp_path / "run.sh"
    starts.write_text("python train.py 1024\npython train.py 4096\n", "utf-8")
    await real_editor.start(None, tmp_path)
    uri = (tmp_path / "train.py").as_uri()
    real_editor.open(uri, f"import sys\n{text}")
    await real_editor.command("torchwise.showMemoryReport", uri)
    titles = await _titles(real_editor, uri)
    assert [title.rpartition(" · ")[2] for title in titles] == ["with 1024", "with 4096"]
    assert titles[1].startswith("Peak 1.72 GiB") and not titles[0].startswith("Peak 1.72 GiB")
    hover = await real_editor.hover(uri, _line_of(text, "for inputs") + 1, 8)
    assert hover and "run.sh:1" in hover and "run.sh:2" in hover

    starts.write_text("python train.py 2048\n", "utf-8")
    changed = lsp.FileEvent(starts.as_uri(), lsp.FileChangeType.Changed)
    real_editor.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([changed]))
    await real_editor.diagnostics(uri)
    await real_editor.command("torchwise.showMemoryReport", uri)
    (title,) = await _titles(real_editor, uri)
    assert title.endswith("with 2048")


async def _titles(editor: Editor, uri: str) -> list[str]:
    return [lens.command.title if lens.command else "" for lens in await editor.lenses(uri)]


def _line_of(text: str, words: str) -> int:
    return text[: text.index(words)].count("\n")


@pytest.mark.parametrize("client_name", ["visual-studio-code"])
async def test_settings_of_the_project_count(real_editor: Editor, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.torchwise]\nignore = ["retained-graph"]\n')
    await real_editor.start(None, tmp_path)
    uri = (tmp_path / "train.py").as_uri()
    real_editor.open(uri, SAMPLE.read_text("utf-8"))
    assert await real_editor.diagnostics(uri) == []
    (tmp_path / "pyproject.toml").write_text("")
    changed = lsp.FileEvent((tmp_path / "pyproject.toml").as_uri(), lsp.FileChangeType.Changed)
    real_editor.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([changed]))
    assert len(await real_editor.diagnostics(uri)) == 1


@pytest.mark.parametrize(
    "start", [["-I", "-m", "torchwise_server.lsp"], ["-I", "LAUNCHER", "--from-environment", "--stdio"]]
)
async def test_workspace_modules_are_never_imported(
    start: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "executed"
    for name in ("json", "typing", "asyncio", "torch", "collections", "sitecustomize", "libcst"):
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launcher = Path(__file__).parents[3] / "vscode-extension" / "launcher" / "launch.py"
    command = [str(launcher) if word == "LAUNCHER" else word for word in start]
    editor = await launched("visual-studio-code", [sys.executable, *command])
    await editor.start(None, tmp_path)
    uri = (tmp_path / "train.py").as_uri()
    editor.open(uri, SAMPLE.read_text("utf-8"))
    assert len(await editor.diagnostics(uri)) == 1
    await editor.stop()
    assert not mark.exists()


def _edits(edit: lsp.WorkspaceEdit) -> list[object]:
    if edit.document_changes:
        return [
            item
            for change in edit.document_changes
            if isinstance(change, lsp.TextDocumentEdit)
            for item in change.edits
        ]
    return [item for edits in (edit.changes or {}).values() for item in edits]
