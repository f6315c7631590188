"""What an editor offers beyond findings, fixes and lenses; with the engine that reads words."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as lsp
from tests.server.lsp.editor import Editor, lsp_range, soon

URI = "file:///project/train.py"
EMOJI = "😋é"

only_vscode = pytest.mark.parametrize("client_name", ["visual-studio-code"])
two_clients = pytest.mark.parametrize("client_name", ["visual-studio-code", "neovim"])


# --------------------------------------------------------------------------- actions


async def test_fix_all_applies_the_safe_fixes_only_when_asked(editor: Editor) -> None:
    await editor.start()
    text = f"{EMOJI} BUG\r\nMAYBE\r\n{EMOJI} BUG BUG"
    editor.open(URI, text)
    await editor.diagnostics(URI)
    everywhere = lsp_range((0, 0), (2, 0))
    kinds = [action.kind for action in await editor.actions(URI, everywhere)]
    assert kinds and set(kinds) == {lsp.CodeActionKind.QuickFix}
    for asked in ("source", "source.fixAll", "source.fixAll.torchwise"):
        (action,) = await editor.actions(URI, everywhere, only=[asked])
        assert action.kind == "source.fixAll.torchwise"
        edit = (await editor.resolved(action)).edit
        assert editor.apply(text, edit, URI) == text.replace("BUG", "FIXED")
    assert await editor.actions(URI, everywhere, only=["source.fixAll.other"]) == []
    (action,) = await editor.actions(URI, everywhere, only=["notebook.source.fixAll"])
    assert action.kind == "notebook.source.fixAll.torchwise"
    editor.replace(URI, "nothing")
    await editor.diagnostics(URI)
    assert await editor.actions(URI, lsp_range((0, 0), (0, 0)), only=["source.fixAll"]) == []


async def test_ignore_in_the_file(editor: Editor) -> None:
    await editor.start()
    text = f"#!/usr/bin/python\n{EMOJI} BUG\n"
    editor.open(URI, text)
    (found,) = await editor.diagnostics(URI)
    action = await _titled(editor, found, "Ignore retained-graph in this file")
    assert editor.apply(text, action.edit, URI) == (
        f"#!/usr/bin/python\n# torchwise: ignore-file[retained-graph]\n{EMOJI} BUG\n"
    )


async def test_ignore_in_the_project(editor: Editor, tmp_path: Path) -> None:
    settings = tmp_path / "pyproject.toml"
    settings.write_text('# 😋\n[tool.torchwise]\nignore = ["TW2"]\n')
    (tmp_path / "src").mkdir()
    uri = (tmp_path / "src" / "train.py").as_uri()
    await editor.start(None, tmp_path)
    editor.open(uri, "BUG")
    (found,) = await editor.diagnostics(uri)
    action = await _titled(editor, found, "Ignore retained-graph in this project (pyproject.toml)", uri)
    assert editor.apply(settings.read_text(), action.edit, settings.as_uri()) == (
        '# 😋\n[tool.torchwise]\nignore = ["TW2", "retained-graph"]\n'
    )


async def test_ignore_in_the_project_edits_the_open_file(editor: Editor, tmp_path: Path) -> None:
    settings = tmp_path / "pyproject.toml"
    settings.write_text("")
    await editor.start(None, tmp_path)
    text = "[project]\r\n"
    editor.open(settings.as_uri(), "")
    editor.edit(settings.as_uri(), (0, 0), (0, 0), text)
    uri = (tmp_path / "train.py").as_uri()
    editor.open(uri, "BUG")
    (found,) = await editor.diagnostics(uri)
    action = await _titled(editor, found, "Ignore retained-graph in this project (pyproject.toml)", uri)
    assert editor.apply(text, action.edit, settings.as_uri()) == (
        '[project]\r\n\r\n[tool.torchwise]\r\nignore = ["retained-graph"]\r\n'
    )
    for change in (action.edit.document_changes if action.edit else None) or ():
        assert isinstance(change, lsp.TextDocumentEdit)
        assert change.text_document.version == 2


async def test_a_project_without_settings_gets_a_file_where_the_client_can_make_one(
    editor: Editor, tmp_path: Path
) -> None:
    uri = (tmp_path / "train.py").as_uri()
    await editor.start(None, tmp_path)
    editor.open(uri, "BUG")
    (found,) = await editor.diagnostics(uri)
    titles = [action.title for action in await editor.actions(uri, found.range, [found])]
    offered = "Ignore retained-graph in this project (pyproject.toml)"
    if editor.name != "visual-studio-code":
        assert offered not in titles
        return
    action = await _titled(editor, found, offered, uri)
    assert action.edit and action.edit.document_changes
    create, change = action.edit.document_changes
    assert isinstance(create, lsp.CreateFile) and isinstance(change, lsp.TextDocumentEdit)
    assert create.uri == change.text_document.uri == (tmp_path / "pyproject.toml").as_uri()
    assert editor.apply("", action.edit, create.uri) == '[tool.torchwise]\nignore = ["retained-graph"]\n'


async def _titled(editor: Editor, found: lsp.Diagnostic, title: str, uri: str = URI) -> lsp.CodeAction:
    actions = await editor.actions(uri, found.range, [found])
    (action,) = [item for item in actions if item.title == title]
    assert action.is_preferred is None
    return await editor.resolved(action)


async def test_comments_that_silence_nothing_are_faded(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "BUG STALE")
    bug, stale = await editor.diagnostics(URI)
    assert bug.tags is None
    assert list(stale.tags or ()) == [lsp.DiagnosticTag.Unnecessary]
    assert stale.severity == lsp.DiagnosticSeverity.Hint
    titles = [action.title for action in await editor.actions(URI, stale.range, [stale])]
    assert not any("unused" in title for title in titles)


# --------------------------------------------------------------------------- words


async def test_rules_are_completed_in_comments(editor: Editor) -> None:
    await editor.start()
    text = f"x = '{EMOJI}'  # torchwise: ignore[TW2, reta"
    editor.open(URI, text + "]\nfor x in y: pass")
    items = await editor.completions(URI, 0, editor.units(text))
    item = items["retained-graph"]
    assert item.detail == "TW101"
    if editor.name == "emacs":  # does not say that it knows Markdown
        assert isinstance(item.documentation, str) and "autograd graph" in item.documentation
    else:
        assert isinstance(item.documentation, lsp.MarkupContent)
        assert "autograd graph" in item.documentation.value
    assert isinstance(item.text_edit, lsp.TextEdit)
    end = editor.units(text)
    assert item.text_edit == lsp.TextEdit(lsp_range((0, end - 4), (0, end)), "retained-graph")
    assert items["TW101"].detail == "retained-graph"
    assert await editor.completions(URI, 1, 5) == {}
    editor.replace(URI, "# torchwise: ")
    assert set(await editor.completions(URI, 0, 13)) == {"ignore[...]", "ignore-file[...]"}


async def test_our_table_of_the_settings_is_completed_and_explained(editor: Editor, tmp_path: Path) -> None:
    await editor.start(None, tmp_path)
    uri = (tmp_path / "pyproject.toml").as_uri()
    lines = [
        "[tool.torchwise]",
        "",
        'ignore = ["retained-graph", ""]',
        'gpus = ["a100-80gb"]',
        "[tool.x]",
        "",
    ]
    editor.open(uri, "\n".join(lines))
    keys = await editor.completions(uri, 1, 0)
    assert {"select", "ignore", "gpus", "min-confidence"} <= set(keys)
    rules = await editor.completions(uri, 2, len(lines[2]) - 2)
    assert isinstance(rules["unguarded-eval"].text_edit, lsp.TextEdit)
    assert rules["unguarded-eval"].text_edit.new_text == "unguarded-eval"
    cards = await editor.completions(uri, 3, 10)
    assert cards["rtx-4090"].detail == "RTX 4090, 23.6 GiB"
    assert await editor.completions(uri, 5, 0) == {}
    rule = await editor.hover(uri, 2, 14)
    assert rule and rule.startswith("**retained-graph** (TW101): ")
    key = await editor.hover(uri, 2, 2)
    assert key and "Rules not to run" in key
    card = await editor.hover(uri, 3, 12)
    assert card and "79.2 GiB of memory as PyTorch sees it" in card
    editor.close(uri)
    assert await editor.completions(uri, 1, 0) == {}


async def test_hover_explains_rules_in_comments_and_cards_in_code(editor: Editor) -> None:
    await editor.start()
    lines = [
        f"s = '{EMOJI}'  # torchwise: ignore[retained-graph]",
        f"parser.add_argument('--gpu', default='{EMOJI}', choices=['NVIDIA A100-SXM4-80GB'])",
        "rank = 't4'",
        "for x in y: pass",
    ]
    editor.open(URI, "\n".join(lines))
    await editor.diagnostics(URI)
    await editor.command("torchwise.showMemoryReport", URI)
    rule = await editor.hover(URI, 0, editor.units(lines[0]) - 3)
    assert rule and rule.startswith("**retained-graph** (TW101): ")
    card = await editor.hover(URI, 1, editor.units(lines[1]) - 8)
    assert card and card.startswith("**A100 SXM4 80GB**") and "on the data sheet" in card
    assert "The loop at line 4 fits A100" in card and "peak 4.00 GiB" in card
    assert await editor.hover(URI, 1, 3) is None
    assert await editor.hover(URI, 2, 9) is None  # nothing says that this is a card


# --------------------------------------------------------------------------- hints


async def test_hints_are_off_by_default(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "for x in y:\n    pass\n")
    await editor.command("torchwise.showMemoryReport", URI)
    assert await editor.hints(URI) == []


async def test_hints_tell_what_a_line_holds_at_the_peak(editor: Editor) -> None:
    await editor.start({"inlayHints": True})
    loop = f"for {EMOJI} in y:  "
    editor.open(URI, f"{EMOJI}\n{loop}\n    pass\n")
    await editor.command("torchwise.showMemoryReport", URI)
    (hint,) = await editor.hints(URI)
    assert hint.label == "1.00 GiB at the peak"
    assert hint.position == lsp.Position(1, editor.units(loop.rstrip()))
    assert isinstance(hint.tooltip, lsp.MarkupContent)
    assert "activations of fc" in hint.tooltip.value
    assert await editor.hints(URI, last_line=0) == []
    editor.edit(URI, (0, 0), (0, 0), "\n")
    (hint,) = await editor.hints(URI)
    assert hint.position.line == 2
    if editor.name == "visual-studio-code":
        await editor.until(lambda: editor.hint_refreshes)


@only_vscode
async def test_hints_and_lenses_go_when_they_are_switched_off(editor: Editor) -> None:
    def set_to(shown: bool) -> None:
        editor.client.set_configuration({"torchwise": {"inlayHints": shown, "codeLens": shown}})
        changed = lsp.DidChangeConfigurationParams(None)
        editor.client.workspace_did_change_configuration(changed)

    await editor.start()
    set_to(True)
    editor.open(URI, "for x in y:\n    pass\n")
    await editor.until(lambda: editor.hint_refreshes == editor.lens_refreshes == 1)
    assert len(await editor.hints(URI)) == len(await editor.lenses(URI)) == 1
    set_to(False)
    await editor.until(lambda: editor.hint_refreshes == editor.lens_refreshes == 2)
    assert not await editor.hints(URI) and not await editor.lenses(URI)


# --------------------------------------------------------------------------- commands


@two_clients
async def test_all_findings_are_shown_with_their_grade(editor: Editor) -> None:
    await editor.start({"clientShowsReports": True})
    editor.open(URI, "start\nBUG\nMAYBE\n")
    assert len(await editor.diagnostics(URI)) == 1
    report = await editor.command("torchwise.showAllFindings", URI)
    assert isinstance(report, str)
    heading = "## retained-graph at [line 2](file:///project/train.py#L2)"
    assert report.startswith(f"# Findings in train.py\n\n{heading}\n\n**a BUG** (error, certain)\n")
    assert "error, possible; not shown in the editor" in report
    assert "1. [line 1](file:///project/train.py#L1): the text starts here" in report


@two_clients
async def test_evidence_of_one_finding(editor: Editor) -> None:
    await editor.start({"clientShowsReports": True})
    editor.open(URI, f"start ```here```\n{EMOJI} BUG\n")
    report = await editor.command("torchwise.showEvidence", URI, 1, editor.units(EMOJI) + 2)
    assert isinstance(report, str)
    assert report.startswith("# retained-graph at [line 2](")
    assert "\n\n**a BUG**\n\n" in report
    assert f"```python\n{EMOJI} BUG\n```" in report
    said = "1. [line 1](file:///project/train.py#L1): the text starts here"
    assert f"{said}\n\n   ````python\n   start ```here```\n   ````" in report
    assert "What to do:\n\n- Write FIXED\n- Write OTHER\n- Think about it (by hand)" in report
    assert await editor.command("torchwise.showEvidence", URI, 0, 0) == "No finding at line 1."


@two_clients
async def test_report_to_copy_has_no_links(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "for x in BUG:\n    pass\n")
    report = await editor.command("torchwise.reportAsMarkdown", URI)
    assert isinstance(report, str)
    assert "# Findings in train.py" in report and "# Memory of train.py" in report
    assert "## retained-graph at line 1\n" in report and "file://" not in report
    assert not editor.client.messages


@two_clients
async def test_cards_are_listed_and_chosen(editor: Editor) -> None:
    await editor.start({"clientShowsReports": True, "gpus": ["rtx-4090"]})
    editor.open(URI, "for x in y:\n    pass\n")
    await editor.command("torchwise.showMemoryReport", URI)
    cards = await editor.command("torchwise.listGpus")
    assert isinstance(cards, list) and len(cards) > 50
    names = [card["name"] if isinstance(card, dict) else card.name for card in cards]
    assert "t4" in names
    answer = await editor.command("torchwise.chooseGpus", "Tesla T4", "A100-80GB")
    assert answer == "Estimates are compared with t4, a100-80gb."
    report = await editor.command("torchwise.showMemoryReport", URI)
    assert isinstance(report, str) and "| Tesla T4 |" in report and "RTX 4090" not in report
    answer = await editor.command("torchwise.chooseGpus", "a1000gb")
    assert isinstance(answer, str) and answer.startswith("unknown GPU 'a1000gb'")
    await editor.command("torchwise.chooseGpus")
    report = await editor.command("torchwise.showMemoryReport", URI)
    assert isinstance(report, str) and "RTX 4090" in report


@two_clients
async def test_rules_are_listed_and_explained(editor: Editor) -> None:
    await editor.start({"clientShowsReports": True})
    rules = await editor.command("torchwise.listRules")
    assert isinstance(rules, list) and len(rules) >= 8
    page = await editor.command("torchwise.explainRule", "TW101")
    assert isinstance(page, str) and page.startswith("# retained-graph")
    assert await editor.command("torchwise.explainRule", "nope") == "No rule is called nope."


@two_clients
async def test_analysis_restarts(editor: Editor) -> None:
    await editor.start({"clientShowsReports": True})
    editor.open(URI, "BUG")
    await editor.diagnostics(URI)
    await editor.command("torchwise.restartAnalysis")
    assert len(await editor.diagnostics(URI)) == 1
    statistics = await editor.command("torchwise.showStatistics")
    assert isinstance(statistics, str) and "| train.py | 1 | 1 |" in statistics


# --------------------------------------------------------------------------- workspace


def _pulled(known: list[lsp.PreviousResultId], **tokens: str) -> lsp.WorkspaceDiagnosticParams:
    return lsp.WorkspaceDiagnosticParams(known, **tokens)


def _workspace(folder: Path) -> tuple[str, str]:
    bad, good = folder / "a" / "bad.py", folder / "good.py"
    bad.parent.mkdir()
    bad.write_text(f"import torch\n{EMOJI} BUG MAYBE\n")
    good.write_text("import torch\n")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "lib.py").write_text("import torch\nBUG\n")
    return bad.as_uri(), good.as_uri()


@two_clients
async def test_workspace_findings_come_in_parts_with_progress(editor: Editor, tmp_path: Path) -> None:
    bad, _ = _workspace(tmp_path)
    await editor.start({"workspaceDiagnostics": True}, tmp_path)
    params = _pulled([], partial_result_token="part", work_done_token="work")
    report = await soon(editor.client.workspace_diagnostic_async(params))
    assert list(report.items) == []
    (part,) = editor.parts
    assert isinstance(part, lsp.WorkspaceFullDocumentDiagnosticReport)
    column = editor.units(EMOJI + " ")
    assert (part.uri, [item.range for item in part.items]) == (bad, [lsp_range((1, column), (1, column + 3))])
    kinds = [getattr(item, "kind", None) for item in editor.client.progress_reports["work"]]
    assert kinds == ["begin", "report", "report", "end"]


@two_clients
async def test_workspace_request_waits_until_something_changes(editor: Editor, tmp_path: Path) -> None:
    bad, good = _workspace(tmp_path)
    await editor.start({"workspaceDiagnostics": True}, tmp_path)
    first = await soon(editor.client.workspace_diagnostic_async(_pulled([])))
    (report,) = first.items
    assert isinstance(report, lsp.WorkspaceFullDocumentDiagnosticReport) and report.result_id
    known = [lsp.PreviousResultId(bad, report.result_id)]
    asked = editor.client.workspace_diagnostic_async(_pulled(known))
    Path(tmp_path / "good.py").write_text("import torch\nBUG\n")
    event = lsp.FileEvent(good, lsp.FileChangeType.Changed)
    editor.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([event]))
    second = await soon(asked)
    found = {item.uri: item.kind for item in second.items}
    assert found == {bad: "unchanged", good: "full"}
    # a file that is open is no longer the workspace's business
    known = [lsp.PreviousResultId(item.uri, item.result_id or "") for item in second.items]
    asked = editor.client.workspace_diagnostic_async(_pulled(known))
    editor.open(bad, "BUG BUG")
    third = await soon(asked)
    emptied = {item.uri: item for item in third.items}[bad]
    assert isinstance(emptied, lsp.WorkspaceFullDocumentDiagnosticReport) and not emptied.items
    assert len(await editor.diagnostics(bad)) == 2


@two_clients
async def test_workspace_findings_are_off_by_default(editor: Editor, tmp_path: Path) -> None:
    bad, _ = _workspace(tmp_path)
    await editor.start(None, tmp_path)
    known = [lsp.PreviousResultId(bad, "1")]  # from before the setting was changed
    report = await soon(editor.client.workspace_diagnostic_async(_pulled(known)))
    (emptied,) = report.items
    assert isinstance(emptied, lsp.WorkspaceFullDocumentDiagnosticReport)
    assert (emptied.uri, list(emptied.items)) == (bad, [])


# --------------------------------------------------------------------------- watching


@pytest.mark.parametrize("client_name", ["visual-studio-code", "emacs"])
async def test_files_that_answers_depend_on_are_watched(editor: Editor, tmp_path: Path) -> None:
    await editor.start(None, tmp_path)
    registrations = await editor.until(
        lambda: [item for item in editor.registered if item.method == "workspace/didChangeWatchedFiles"]
    )
    assert "config" not in str(registrations) and "*.json" in str(registrations)


@only_vscode
@pytest.mark.parametrize(
    ("name", "matters"),
    [
        ("pyproject.toml", True),
        ("other.py", True),
        ("my-model/config.json", True),
        ("conf/base.yaml", True),
        ("runs/metrics.json", False),
        ("run.sh", True),  # starts the script
        ("other.sh", False),
        ("train.py", False),  # open: the editor's text counts
    ],
)
async def test_only_changes_that_matter_start_over(
    editor: Editor, tmp_path: Path, name: str, matters: bool
) -> None:
    (tmp_path / "run.sh").write_text("python train.py --size 3\n", "utf-8")
    (tmp_path / "other.sh").write_text("python prepare.py\n", "utf-8")
    await editor.start(None, tmp_path)
    uri = (tmp_path / "train.py").as_uri()
    editor.open(uri, "load('my-model', hydra='base') BUG")
    await editor.diagnostics(uri)
    event = lsp.FileEvent((tmp_path / name).as_uri(), lsp.FileChangeType.Changed)
    editor.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([event]))
    await editor.command("torchwise.listRules")  # the server has read the event
    assert len(await editor.diagnostics(uri)) == 1
    assert (editor.diagnostic_refreshes > 0) == matters
