"""Commands that the server runs. Editors show their answers, or the server does where the editor cannot."""

from __future__ import annotations

from pathlib import Path

from lsprotocol import types as lsp

from torchwise_analysis.findings import Edit, Finding, Place
from torchwise_analysis.policy import display
from torchwise_analysis.rules import all_rules, explain, rule_named
from torchwise_analysis.source.nodes import Span
from torchwise_server import __version__
from torchwise_server.lsp.documents import OpenDocument
from torchwise_server.lsp.handlers.actions import edit_of
from torchwise_server.lsp.links import link_from
from torchwise_server.lsp.markdown import (
    analysis_report,
    evidence_report,
    findings_report,
    gpu_summary,
    lens_title,
    memory_report,
)
from torchwise_server.lsp.panel import memory_panel
from torchwise_server.lsp.server import TorchwiseServer

SHOW_MEMORY_REPORT = "torchwise.showMemoryReport"
MEMORY_PANEL = "torchwise.memoryPanel"
APPLY_REMEDY = "torchwise.applyRemedy"
SHOW_ALL_FINDINGS = "torchwise.showAllFindings"
SHOW_EVIDENCE = "torchwise.showEvidence"
REPORT_AS_MARKDOWN = "torchwise.reportAsMarkdown"
EXPLAIN_RULE = "torchwise.explainRule"
LIST_RULES = "torchwise.listRules"
CHOOSE_GPUS = "torchwise.chooseGpus"
LIST_GPUS = "torchwise.listGpus"
RESTART_ANALYSIS = "torchwise.restartAnalysis"
SHOW_ANALYSIS = "torchwise.showAnalysis"
SHOW_STATISTICS = "torchwise.showStatistics"

_NOT_OPEN = "This document is not open."
_NOT_ANALYSED = "This document was not analysed."
_NO_LOOP = "No training loop was found in this file."


def register(server: TorchwiseServer) -> None:
    server.run_command(SHOW_MEMORY_REPORT, show_memory_report)
    server.run_command(MEMORY_PANEL, show_memory_panel)
    server.run_command(APPLY_REMEDY, apply_remedy)
    server.run_command(SHOW_ALL_FINDINGS, show_all_findings)
    server.run_command(SHOW_EVIDENCE, show_evidence)
    server.run_command(REPORT_AS_MARKDOWN, report_as_markdown)
    server.run_command(EXPLAIN_RULE, explain_rule)
    server.run_command(LIST_RULES, list_rules)
    server.run_command(CHOOSE_GPUS, choose_gpus)
    server.run_command(LIST_GPUS, list_gpus)
    server.run_command(RESTART_ANALYSIS, restart_analysis)
    server.run_command(SHOW_ANALYSIS, show_analysis)
    server.run_command(SHOW_STATISTICS, show_statistics)


# --------------------------------------------------------------------------- one document


async def show_memory_report(ls: TorchwiseServer, uri: str) -> str:
    """The memory of one document, as Markdown."""
    document = ls.session.document(uri)
    if document is None:
        return _shown(ls, _NOT_OPEN, _NOT_OPEN)
    report = await _memory(ls, document)
    answer = document.estimated
    brief = [lens_title(estimate, stale=False) for estimate in (answer.estimates if answer else ())]
    brief += [f"line {entry.origin.line}: {entry.message}" for entry in (answer.unanswered if answer else ())]
    return _shown(ls, report, "\n".join(brief) or _NO_LOOP)


async def show_memory_panel(ls: TorchwiseServer, uri: str) -> dict[str, object] | None:
    """The memory of one document as plain values, for a client that draws it; None where it is not open."""
    document = ls.session.document(uri)
    if document is None:
        return None
    return memory_panel(ls.session, document, await ls.session.estimated(document))


async def apply_remedy(ls: TorchwiseServer, uri: str, version: int, loop: int, remedy: int) -> bool:
    """Have the client make the edit of one remedy; False where the code has changed since it was offered."""
    document = ls.session.document(uri)
    answer = document.estimated if document else None
    if document is None or answer is None or not document.version == version == answer.made_at:
        return False
    chosen = answer.estimates[loop].remedies[remedy]
    edits = [
        Edit(Place(edit.path, Span(edit.line, edit.column, edit.end_line, edit.end_column)), edit.text)
        for edit in chosen.edits
    ]
    made = edit_of(ls, edits) if edits else None
    if made is None:
        return False
    label = f"torchwise: {chosen.change}"
    answered = await ls.workspace_apply_edit_async(lsp.ApplyWorkspaceEditParams(made, label))
    return answered.applied


async def show_all_findings(ls: TorchwiseServer, uri: str) -> str:
    """Every finding of one document with its evidence, also those that rest on conventions, as Markdown."""
    document = ls.session.document(uri)
    if document is None:
        return _shown(ls, _NOT_OPEN, _NOT_OPEN)
    report, number = await _findings(ls, document)
    return _shown(ls, report, f"{number} findings" if number != 1 else "1 finding")


async def show_evidence(ls: TorchwiseServer, uri: str, line: int, character: int) -> str:
    """What proves the finding at a place: each link with its line of code, as Markdown."""
    document = ls.session.document(uri)
    if document is None:
        return _shown(ls, _NOT_OPEN, _NOT_OPEN)
    await ls.session.checked(document)
    here = ls.session.position(uri, lsp.Position(line, character))
    on_line = [
        finding
        for finding in (document.checked.findings if document.checked else ())
        if here is not None
        and finding.place.path == document.path
        and finding.place.span.line <= here[1].line <= finding.place.span.end_line
    ]
    if not on_line or here is None:
        nothing = f"No finding at line {line + 1}."
        return _shown(ls, nothing, nothing)
    column = here[1].column
    finding = min(on_line, key=lambda item: abs(item.place.span.column - column))
    return _shown(ls, _evidence(ls, document, finding), finding.message)


async def show_analysis(ls: TorchwiseServer, uri: str) -> str:
    """What of one document was analysed and what was not, with reasons, as Markdown."""
    document = ls.session.document(uri)
    if document is None:
        return _shown(ls, _NOT_OPEN, _NOT_OPEN)
    checked = await ls.session.checked(document)
    if checked is None:
        return _shown(ls, _NOT_ANALYSED, _NOT_ANALYSED)
    report = analysis_report(Path(document.path).name, checked, link_from(ls.session, document))
    passed_over = len(checked.statistics.not_analysed)
    return _shown(
        ls, report, f"{passed_over} places were not analysed" if passed_over != 1 else "1 place was"
    )


async def report_as_markdown(ls: TorchwiseServer, uri: str) -> str:
    """Findings and memory of one document as one Markdown text, for an issue or a pull request."""
    document = ls.session.document(uri)
    if document is None:
        return ""
    findings, _ = await _findings(ls, document, with_links=False)
    return findings + "\n" + await _memory(ls, document, with_links=False)


async def _memory(ls: TorchwiseServer, document: OpenDocument, *, with_links: bool = True) -> str:
    answer = await ls.session.estimated(document)
    return memory_report(
        Path(document.path).name,
        answer.estimates if answer else (),
        answer.unanswered if answer else (),
        link_from(ls.session, document, with_links=with_links),
    )


async def _findings(
    ls: TorchwiseServer, document: OpenDocument, *, with_links: bool = True
) -> tuple[str, int]:
    checked = await ls.session.checked(document)
    surface = ls.session.options_for(document).surface
    found = checked.findings if checked else ()
    link = link_from(ls.session, document, with_links=with_links)
    rows = [(finding, display(finding, surface).is_listed) for finding in found]
    return findings_report(Path(document.path).name, rows, link), len(found)


def _evidence(ls: TorchwiseServer, document: OpenDocument, finding: Finding) -> str:
    def code(place: Place) -> str:
        located = ls.session.locate(Place(place.path, Span(place.span.line, 0, place.span.line, 0)))
        return located.line(located.span.line).strip() if located else ""

    return evidence_report(finding, rule_named(finding.rule), link_from(ls.session, document), code)


# --------------------------------------------------------------------------- rules and cards


def explain_rule(ls: TorchwiseServer, name: str) -> str:
    """The page of a rule, as Markdown."""
    rule = rule_named(name)
    page = explain(name)
    if rule is None or page is None:
        return _shown(ls, f"No rule is called {name}.", f"No rule is called {name}.")
    return _shown(ls, page, f"{rule.name} ({rule.code}): {rule.claim}")


def list_rules(_: TorchwiseServer) -> list[dict[str, str]]:
    """All rules, for a menu."""
    rules = (entry.rule for entry in all_rules())
    return [{"name": rule.name, "code": rule.code, "claim": rule.claim} for rule in rules]


def list_gpus(_: TorchwiseServer) -> list[dict[str, str]]:
    """All cards, for a menu."""
    from torchwise_memory.hardware import gpus

    newest_first = sorted(gpus(), key=lambda gpu: -(gpu.sm or 0))
    return [{"name": gpu.name, "title": gpu.title, "summary": gpu_summary(gpu)} for gpu in newest_first]


def choose_gpus(ls: TorchwiseServer, *names: str) -> str:
    """Compare estimates with these cards until the settings change; without names, as the settings say."""
    from torchwise_memory.hardware import UnknownGpuError, find

    try:
        chosen = tuple(find(str(name)).name for name in names)
    except UnknownGpuError as error:
        return _shown(ls, str(error), str(error))
    ls.session.choose_gpus(chosen or None)
    told = f"Estimates are compared with {', '.join(chosen) or 'the cards of the settings'}."
    return _shown(ls, told, told)


# --------------------------------------------------------------------------- the server itself


def restart_analysis(ls: TorchwiseServer) -> None:
    """Forget everything that was read, and analyse all open documents again."""
    ls.session.reload()


def show_statistics(ls: TorchwiseServer) -> str:
    """What the server did, as Markdown: for bug reports."""
    rows = [_statistics(document) for document in ls.session.documents()]
    head = f"torchwise {__version__}, position encoding {_encoding(ls)}"
    table = [
        "| document | version | findings | check | estimates | estimate |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    report = "\n".join([head, "", *table]) if rows else head
    return _shown(ls, report, report)


def _statistics(document: OpenDocument) -> str:
    checked, estimated = document.checked, document.estimated
    cells = [
        Path(document.path).name,
        str(document.version),
        str(len(checked.findings)) if checked else "-",
        f"{checked.seconds * 1000:.0f} ms" if checked else "-",
        str(len(estimated.estimates)) if estimated else "-",
        f"{estimated.seconds * 1000:.0f} ms" if estimated else "-",
    ]
    return "| " + " | ".join(cells) + " |"


def _encoding(ls: TorchwiseServer) -> str:
    encoding = ls.session.client.units.encoding
    return str(getattr(encoding, "value", encoding))


def _shown(ls: TorchwiseServer, report: str, brief: str) -> str:
    """The answer; a client that does not show it itself gets the short form as a message."""
    if not ls.session.client.shows_reports:
        ls.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Info, brief))
    return report
