"""Commands that the server runs. Editors show their answers, or the server does where the editor cannot."""

from __future__ import annotations

from pathlib import Path

from lsprotocol import types as lsp

from torchwise_analysis.rules import explain, rule_named
from torchwise_server import __version__
from torchwise_server.lsp.documents import OpenDocument
from torchwise_server.lsp.links import link_from
from torchwise_server.lsp.markdown import lens_title, memory_report
from torchwise_server.lsp.server import TorchwiseServer

SHOW_MEMORY_REPORT = "torchwise.showMemoryReport"
EXPLAIN_RULE = "torchwise.explainRule"
RESTART_ANALYSIS = "torchwise.restartAnalysis"
SHOW_STATISTICS = "torchwise.showStatistics"


def register(server: TorchwiseServer) -> None:
    server.run_command(SHOW_MEMORY_REPORT, show_memory_report)
    server.run_command(EXPLAIN_RULE, explain_rule)
    server.run_command(RESTART_ANALYSIS, restart_analysis)
    server.run_command(SHOW_STATISTICS, show_statistics)


async def show_memory_report(ls: TorchwiseServer, uri: str) -> str:
    """The memory of one document, as Markdown."""
    document = ls.session.document(uri)
    if document is None:
        return _shown(ls, "This document is not open.", "This document is not open.")
    answer = await ls.session.estimated(document)
    estimates = answer.estimates if answer else ()
    unanswered = answer.unanswered if answer else ()
    report = memory_report(Path(document.path).name, estimates, unanswered, link_from(ls.session, document))
    brief = [lens_title(estimate, stale=False) for estimate in estimates]
    brief += [f"line {entry.origin.line}: {entry.message}" for entry in unanswered]
    return _shown(ls, report, "\n".join(brief) or "No training loop was found in this file.")


def explain_rule(ls: TorchwiseServer, name: str) -> str:
    """The page of a rule, as Markdown."""
    rule = rule_named(name)
    page = explain(name)
    if rule is None or page is None:
        return _shown(ls, f"No rule is called {name}.", f"No rule is called {name}.")
    return _shown(ls, page, f"{rule.name} ({rule.code}): {rule.claim}")


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
