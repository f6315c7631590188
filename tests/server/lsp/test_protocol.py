"""The protocol, with an engine that reads words: see fake_server.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
from lsprotocol import types as lsp
from tests.server.lsp.editor import Editor, lsp_range, soon

ROOT = Path(__file__).parents[3]
URI = "file:///project/train%20%28copy%29.py"
EMOJI = "😋é"

# what does not depend on the client is tested with one
only_vscode = pytest.mark.parametrize("client_name", ["visual-studio-code"])


async def test_capabilities_follow_the_client(editor: Editor) -> None:
    await editor.start()
    expected = {"visual-studio-code": "utf-16", "neovim": "utf-8", "emacs": "utf-32"}
    assert editor.server.position_encoding == expected[editor.name]
    actions = editor.server.code_action_provider
    assert isinstance(actions, lsp.CodeActionOptions)
    assert actions.resolve_provider
    assert editor.server.code_lens_provider and editor.server.code_lens_provider.resolve_provider


async def test_diagnostic_says_where_why_and_more(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, f"start\n{EMOJI} BUG\n")
    (found,) = await editor.diagnostics(URI)
    column = editor.units(EMOJI + " ")
    assert found.range == lsp_range((1, column), (1, column + 3))
    assert (found.source, found.code, found.severity) == (
        "torchwise",
        "retained-graph",
        lsp.DiagnosticSeverity.Error,
    )
    assert found.data == {"code": "TW101", "rule": "retained-graph"}
    assert found.code_description and found.code_description.href.endswith("/retained-graph.md")
    (link,) = list(found.related_information or ())
    assert link.message == "the text starts here"
    assert link.location == lsp.Location(URI, lsp_range((0, 0), (0, 1)))


async def test_the_page_of_a_rule_is_the_published_one_where_there_is_one(editor: Editor) -> None:
    await editor.start({"docsUrl": "https://docs.example.org/torchwise/"})
    editor.open(URI, "BUG\n")
    (found,) = await editor.diagnostics(URI)
    assert found.code_description
    assert found.code_description.href == "https://docs.example.org/torchwise/rules/retained-graph.html"
    assert (ROOT / "docs/rules/retained-graph.md").is_file()  # from which the published page is made


@only_vscode
async def test_links_follow_the_settings(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "BUG\n")
    (found,) = await editor.diagnostics(URI)
    assert found.code_description and found.code_description.href.startswith("file:")
    before = editor.configurations
    editor.client.set_configuration({"torchwise": {"docsUrl": "http://docs"}})
    editor.client.workspace_did_change_configuration(lsp.DidChangeConfigurationParams(None))
    await editor.settings_read(before + 1)
    (found,) = await editor.diagnostics(URI)
    assert found.code_description and found.code_description.href == "http://docs/rules/retained-graph.html"


async def test_diagnostics_follow_typing(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, f"{EMOJI} \n")
    assert await editor.diagnostics(URI) == []
    for number, letter in enumerate("BUG"):
        at = (0, editor.units(EMOJI + " ") + number)
        editor.edit(URI, at, at, letter)
    assert len(await editor.diagnostics(URI)) == 1
    editor.edit(URI, (0, 0), (0, editor.units(EMOJI + " B")), "")
    assert await editor.diagnostics(URI) == []
    editor.replace(URI, "BUG BUG")
    assert len(await editor.diagnostics(URI)) == 2


@only_vscode
@pytest.mark.parametrize("separator", ["\f\n", "\u2028\n", "\x85\x1c\n", "\r\n", "\r", "\v\r\n"])
async def test_only_line_endings_end_lines(editor: Editor, separator: str) -> None:
    await editor.start()
    editor.open(URI, separator.join(["one", "two", "BUG here", "four"]))
    (before,) = await editor.diagnostics(URI)
    assert before.range == lsp_range((2, 0), (2, 3))
    editor.edit(URI, (1, 0), (2, 0), "")
    editor.edit(URI, (1, 8), (1, 8), " BUG")
    assert [item.range for item in await editor.diagnostics(URI)] == [
        lsp_range((1, 0), (1, 3)),
        lsp_range((1, 9), (1, 12)),
    ]


async def test_safe_fix_is_preferred_and_exact(editor: Editor) -> None:
    await editor.start()
    text = f"\f\n{EMOJI} BUG {EMOJI}\r\nend"
    editor.open(URI, text)
    (found,) = await editor.diagnostics(URI)
    safe, unsafe, ignore, in_file = await editor.actions(URI, found.range, [found])
    assert (safe.title, safe.is_preferred) == ("Write FIXED", True)
    assert (unsafe.title, unsafe.is_preferred) == ("Write OTHER (changes training)", None)
    assert (ignore.title, ignore.is_preferred) == ("Ignore retained-graph here", None)
    assert (in_file.title, in_file.is_preferred) == ("Ignore retained-graph in this file", None)
    assert all(action.kind == lsp.CodeActionKind.QuickFix for action in (safe, unsafe, ignore, in_file))
    assert list(safe.diagnostics or ()) == [found]
    assert _applied(editor, text, await editor.resolved(safe)) == text.replace("BUG", "FIXED")
    silenced = _applied(editor, text, await editor.resolved(ignore))
    assert silenced == f"\f\n{EMOJI} BUG {EMOJI}  # torchwise: ignore[retained-graph]\r\nend"


async def test_edits_carry_the_version_where_the_client_takes_it(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "BUG")
    editor.edit(URI, (0, 3), (0, 3), " ")
    (found,) = await editor.diagnostics(URI)
    action = await editor.resolved((await editor.actions(URI, found.range))[0])
    assert action.edit
    if editor.name == "neovim":  # does not say that it takes versions
        assert list(action.edit.changes or ()) == [URI]
        return
    (change,) = list(action.edit.document_changes or ())
    assert isinstance(change, lsp.TextDocumentEdit)
    assert change.text_document == lsp.OptionalVersionedTextDocumentIdentifier(URI, 2)


@only_vscode
async def test_no_actions_elsewhere_or_of_other_kinds(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "BUG\n\n")
    assert await editor.actions(URI, lsp_range((1, 0), (1, 0))) == []
    params = lsp.CodeActionParams(
        lsp.TextDocumentIdentifier(URI),
        lsp_range((0, 0), (0, 3)),
        lsp.CodeActionContext([], only=[lsp.CodeActionKind.Refactor]),
    )
    assert not await soon(editor.client.text_document_code_action_async(params))


async def test_hover_explains_the_finding_and_the_loop(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, f"# {EMOJI}\nfor {EMOJI} in BUG:\n    pass\n")
    (found,) = await editor.diagnostics(URI)
    await editor.lenses(URI)
    await editor.command("torchwise.showMemoryReport", URI)
    text = await editor.hover(URI, found.range.start.line, found.range.start.character)
    assert text and "retained-graph" in text and "Peak 4.00 GiB" in text
    assert "| 1.00 GiB | activations of fc | [line 2](" in text
    assert "micro batch" in text and "micro-batch 4" in text and "Fits RTX 4090" in text
    assert await editor.hover(URI, 2, 4) is None
    assert await editor.hover(URI, 99, 4) is None


async def test_lens_is_resolved_refreshed_and_kept_while_broken(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "\nfor x in y:\n    pass\n")
    lens = await _lens(editor, "Peak 4.00 GiB (3.50–4.50) per GPU · fits RTX 4090 · backward")
    assert lens.range.start.line == 1
    assert lens.command and list(lens.command.arguments or ()) == [URI]
    editor.edit(URI, (0, 0), (0, 0), "def def\n")
    lens = await _lens(
        editor,
        "Peak 4.00 GiB (3.50–4.50) per GPU · fits RTX 4090 · backward · as of the last complete code",
    )
    assert lens.range.start.line == 2
    editor.edit(URI, (0, 0), (0, 7), "")
    await _lens(editor, "Peak 5.00 GiB (4.50–5.50) per GPU · fits RTX 4090 · backward")


async def _lens(editor: Editor, title: str) -> lsp.CodeLens:
    """The lens, asked again at every refresh until it has this title."""
    while True:
        refreshes = editor.lens_refreshes
        found = [lens for lens in await editor.lenses(URI) if lens.command and lens.command.title == title]
        if found:
            return found[0]
        await editor.lens_refresh(after=refreshes)


@only_vscode
async def test_memory_report_is_markdown(editor: Editor) -> None:
    await editor.start({"clientShowsReports": True})
    editor.open(URI, "for x in y:\n    UNKNOWN\n")
    report = await editor.command("torchwise.showMemoryReport", URI)
    assert isinstance(report, str)
    assert report.startswith("# Memory of train (copy).py\n")
    assert "## Training loop at [line 1](file:///project/train%20%28copy%29.py#L1)" in report
    assert "## Not answered\n\n- [line 2]" in report and "the size of UNKNOWN" in report
    assert not editor.client.messages


@only_vscode
async def test_client_that_shows_no_reports_gets_a_message(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "for x in y:\n    pass\n")
    await editor.command("torchwise.showMemoryReport", URI)
    await editor.until(lambda: editor.client.messages)
    assert editor.client.messages[0].message.startswith("Peak 3.00 GiB")


async def test_crash_is_contained_told_once_and_survived(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "CRASH")
    if editor.pulls:
        assert await editor.diagnostics(URI) == []
    await editor.until(lambda: editor.client.log_messages)
    for _ in "again":
        editor.edit(URI, (0, 5), (0, 5), "!")
        if editor.pulls:
            assert await editor.diagnostics(URI) == []
    editor.edit(URI, (0, 0), (0, 5), "BUG")
    assert len(await editor.diagnostics(URI)) == 1
    assert len([item for item in editor.client.log_messages if "CRASH" in item.message]) == 1
    assert not editor.client.messages


@only_vscode
async def test_running_work_stops_for_a_newer_version(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "WAIT")
    await editor.until(lambda: "waiting" in editor.stderr)
    editor.edit(URI, (0, 0), (0, 4), "BUG")
    assert len(await editor.diagnostics(URI)) == 1
    assert "stopped" in editor.stderr


@only_vscode
async def test_estimate_gives_way_to_findings(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "LONG")
    await editor.until(lambda: "waiting" in editor.stderr)
    editor.edit(URI, (0, 4), (0, 4), " BUG")
    assert len(await editor.diagnostics(URI)) == 1


@only_vscode
async def test_requests_are_answered_while_work_runs(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "WAIT")
    await editor.until(lambda: "waiting" in editor.stderr)
    assert await editor.hover(URI, 0, 0) is None
    assert "stopped" not in editor.stderr


@only_vscode
async def test_cancelled_request_is_answered_at_once(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "WAIT")
    await editor.until(lambda: "waiting" in editor.stderr)
    params = lsp.CodeActionParams(
        lsp.TextDocumentIdentifier(URI), lsp_range((0, 0), (0, 1)), lsp.CodeActionContext([])
    )
    request = editor.client.protocol.send_request(lsp.TEXT_DOCUMENT_CODE_ACTION, params, msg_id="asked")
    editor.client.cancel_request(lsp.CancelParams("asked"))
    with pytest.raises(Exception, match="canceled"):
        await soon(asyncio.wrap_future(request))


@only_vscode
async def test_analysis_on_save_waits_for_it(editor: Editor) -> None:
    await editor.start({"runOn": "save"})
    editor.open(URI, "")
    assert await editor.diagnostics(URI) == []
    editor.edit(URI, (0, 0), (0, 0), "BUG")
    assert await editor.diagnostics(URI) == []
    editor.client.text_document_did_save(lsp.DidSaveTextDocumentParams(lsp.TextDocumentIdentifier(URI)))
    assert len(await editor.diagnostics(URI)) == 1


@only_vscode
async def test_leaves_at_once_while_work_runs(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "WAIT")
    await editor.until(lambda: "waiting" in editor.stderr)
    await soon(editor.client.shutdown_session())
    assert editor.client._server and editor.client._server.returncode == 0


@only_vscode
async def test_long_work_shows_progress_that_can_be_cancelled(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "WAIT")
    await editor.until(lambda: any(editor.client.progress_reports.values()))
    (token,) = editor.client.progress_reports
    (begin,) = editor.client.progress_reports[token]
    assert isinstance(begin, lsp.WorkDoneProgressBegin)
    assert begin.title == "torchwise: reading the code"
    editor.client.window_work_done_progress_cancel(lsp.WorkDoneProgressCancelParams(token))
    await editor.until(lambda: "stopped" in editor.stderr)


async def test_closing_takes_everything_back(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "BUG")
    assert len(await editor.diagnostics(URI)) == 1
    editor.close(URI)
    if editor.pulls:
        assert await editor.diagnostics(URI) == []
    else:
        last = await editor.publication(lambda item: item.version is None)
        assert list(last.diagnostics) == []


@only_vscode
async def test_unchanged_diagnostics_are_not_sent_again(editor: Editor) -> None:
    await editor.start()
    editor.open(URI, "BUG\n")

    def asked(previous: str | None) -> Awaitable[lsp.DocumentDiagnosticReport]:
        return editor.client.text_document_diagnostic_async(
            lsp.DocumentDiagnosticParams(lsp.TextDocumentIdentifier(URI), previous_result_id=previous)
        )

    first = await soon(asked(None))
    editor.edit(URI, (1, 0), (1, 0), "more")
    assert (await soon(asked(first.result_id))).kind == "unchanged"
    editor.edit(URI, (0, 0), (0, 0), " ")
    moved = await soon(asked(first.result_id))
    assert isinstance(moved, lsp.RelatedFullDocumentDiagnosticReport)
    assert moved.items[0].range == lsp_range((0, 1), (0, 4))


@only_vscode
async def test_untitled_documents_work(editor: Editor) -> None:
    await editor.start()
    editor.open("untitled:Untitled-1", "BUG")
    (found,) = await editor.diagnostics("untitled:Untitled-1")
    assert found.related_information
    assert found.related_information[0].location.uri == "untitled:Untitled-1"


@only_vscode
async def test_wrong_settings_are_told_and_the_rest_is_used(editor: Editor) -> None:
    await editor.start({"codeLens": "yes", "hover": False, "sekect": ["x"]})
    await editor.until(lambda: len(editor.client.log_messages) == 2)
    text = " ".join(item.message for item in editor.client.log_messages)
    assert "torchwise.codeLens" in text and "did you mean 'select'" in text
    editor.open(URI, "BUG")
    await editor.diagnostics(URI)
    assert await editor.hover(URI, 0, 0) is None


def _applied(editor: Editor, text: str, action: lsp.CodeAction) -> str:
    return editor.apply(text, action.edit, URI)
