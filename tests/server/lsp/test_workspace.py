"""Several folders, files that are not open, and texts as editors save them."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as lsp
from tests.server.lsp.editor import Editor, lsp_range, soon

EMOJI = "😋"
two_clients = pytest.mark.parametrize("client_name", ["visual-studio-code", "neovim"])


def configured(editor: Editor, folder: Path, table: dict[str, object]) -> None:
    """The settings of one workspace folder."""
    editor.client.set_configuration({"torchwise": table}, scope_uri=folder.as_uri())


@two_clients
async def test_each_folder_has_its_own_settings(editor: Editor, tmp_path: Path) -> None:
    strict, lax = tmp_path / "strict", tmp_path / "strict" / "lax"
    lax.mkdir(parents=True)
    configured(editor, strict, {"strict": True})
    configured(editor, lax, {"strict": False, "codeLens": False})
    await editor.start(None, strict, more_folders=(lax,))
    await editor.settings_read(1)
    for folder, number in ((strict, 2), (lax, 1)):
        uri = (folder / "train.py").as_uri()
        editor.open(uri, "BUG MAYBE\nfor x in y:\n")
        assert len(await editor.diagnostics(uri)) == number
        await editor.command("torchwise.showMemoryReport", uri)
        assert len(await editor.lenses(uri)) == number - 1


@two_clients
async def test_folders_come_and_go(editor: Editor, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    configured(editor, other, {"strict": True})
    await editor.start(None, one)
    uri = (other / "train.py").as_uri()
    editor.open(uri, "BUG MAYBE")
    assert len(await editor.diagnostics(uri)) == 1
    folder = lsp.WorkspaceFolder(other.as_uri(), "other")
    for times, (added, removed, number) in enumerate((([folder], [], 2), ([], [folder], 1)), 2):
        event = lsp.WorkspaceFoldersChangeEvent(added, removed)
        editor.client.workspace_did_change_workspace_folders(lsp.DidChangeWorkspaceFoldersParams(event))
        await editor.settings_read(times)
        assert len(await editor.diagnostics(uri)) == number


def checks_of(editor: Editor, name: str) -> int:
    return editor.stderr.count(f"checking {name}")


async def pulled(editor: Editor, known: list[lsp.PreviousResultId]) -> lsp.WorkspaceDiagnosticReport:
    params = lsp.WorkspaceDiagnosticParams(known)
    return await soon(editor.client.workspace_diagnostic_async(params))


def result_ids(report: lsp.WorkspaceDiagnosticReport) -> list[lsp.PreviousResultId]:
    return [lsp.PreviousResultId(item.uri, item.result_id or "") for item in report.items]


def changed(editor: Editor, path: Path, how: lsp.FileChangeType = lsp.FileChangeType.Changed) -> None:
    event = lsp.FileEvent(path.as_uri(), how)
    editor.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([event]))


@two_clients
async def test_only_files_that_a_change_concerns_are_read_again(editor: Editor, tmp_path: Path) -> None:
    caller, callee, apart = (tmp_path / f"{name}.py" for name in ("caller", "callee", "apart"))
    caller.write_text("torch BUG READ callee.py")
    callee.write_text("torch")
    apart.write_text("torch BUG")
    await editor.start({"workspaceDiagnostics": True}, tmp_path)
    first = await pulled(editor, [])
    assert {item.uri for item in first.items} == {caller.as_uri(), apart.as_uri()}
    callee.write_text("torch BUG BUG")
    asked = editor.client.workspace_diagnostic_async(lsp.WorkspaceDiagnosticParams(result_ids(first)))
    changed(editor, callee)
    second = await soon(asked)
    assert {item.uri: item.kind for item in second.items} == {
        caller.as_uri(): "unchanged",
        callee.as_uri(): "full",
        apart.as_uri(): "unchanged",
    }
    assert [checks_of(editor, path.name) for path in (caller, callee, apart)] == [2, 2, 1]
    # a new file may be what a name meant all the time: everything is read again
    new = tmp_path / "new.py"
    new.write_text("torch BUG")
    asked = editor.client.workspace_diagnostic_async(lsp.WorkspaceDiagnosticParams(result_ids(second)))
    changed(editor, new, lsp.FileChangeType.Created)
    third = await soon(asked)
    assert len(third.items) == 4
    assert checks_of(editor, "apart.py") == 2


@two_clients
async def test_what_rests_on_an_open_file_is_not_kept(editor: Editor, tmp_path: Path) -> None:
    caller, callee, other = (tmp_path / f"{name}.py" for name in ("caller", "callee", "other"))
    caller.write_text("torch BUG READ callee.py")
    callee.write_text("torch")
    other.write_text("torch")
    await editor.start({"workspaceDiagnostics": True}, tmp_path)
    editor.open(callee.as_uri(), "torch")
    first = await pulled(editor, [])
    other.write_text("torch BUG")
    asked = editor.client.workspace_diagnostic_async(lsp.WorkspaceDiagnosticParams(result_ids(first)))
    changed(editor, other)
    await soon(asked)
    assert checks_of(editor, "caller.py") == 2


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
async def test_places_and_fixes_are_exact_with_any_line_ending(editor: Editor, ending: str) -> None:
    await editor.start()
    text = ending.join(["\ufeffimport torch", f"{EMOJI} BUG", "x"])
    editor.open("file:///train.py", text)
    (found,) = await editor.diagnostics("file:///train.py")
    column = editor.units(f"{EMOJI} ")
    assert found.range == lsp_range((1, column), (1, column + 3))
    action = (await editor.actions("file:///train.py", found.range, [found]))[0]
    fixed = editor.apply(text, (await editor.resolved(action)).edit, "file:///train.py")
    assert fixed == text.replace("BUG", "FIXED")
    editor.edit("file:///train.py", (0, 0), (1, 0), "")
    (found,) = await editor.diagnostics("file:///train.py")
    assert found.range == lsp_range((0, column), (0, column + 3))


async def test_what_was_analysed_is_told_with_what_was_not(editor: Editor) -> None:
    await editor.start({"clientShowsReports": True})
    editor.open("file:///train.py", "BUG")
    text = str(await editor.command("torchwise.showAnalysis", "file:///train.py"))
    assert text.startswith("# Analysis of train.py\n")
    assert "- 1,234 steps of the program were followed" in text
    assert "- 1 finding of every grade, 1 silenced by comments" in text
    assert "| [line 1](file:///train.py#L1) | too \\<deep\\> |" in text
    assert "- 2: cut" in text
    assert "not open" in str(await editor.command("torchwise.showAnalysis", "file:///other.py"))
