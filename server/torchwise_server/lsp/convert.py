"""The border to the protocol: our frozen types here, lsprotocol's there, nothing else in between.

Positions of the protocol count UTF-8, UTF-16 or UTF-32 units, as agreed with the client; ours count
code points. No other module knows of units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lsprotocol import types as lsp
from pygls import uris

from torchwise_analysis.findings import Evidence, Finding, Place
from torchwise_analysis.policy import Display
from torchwise_analysis.source.nodes import Span
from torchwise_analysis.suppressions import UNUSED
from torchwise_server.lsp.text import Change, Position

SOURCE = "torchwise"

_SEVERITIES = {
    Display.ERROR: lsp.DiagnosticSeverity.Error,
    Display.WARNING: lsp.DiagnosticSeverity.Warning,
    Display.INFORMATION: lsp.DiagnosticSeverity.Information,
    Display.HINT: lsp.DiagnosticSeverity.Hint,
}


@dataclass(frozen=True, slots=True)
class Units:
    """Columns of one encoding <-> code points of a line."""

    encoding: lsp.PositionEncodingKind | str = lsp.PositionEncodingKind.Utf16

    @property
    def counts_code_points(self) -> bool:
        return self.encoding == lsp.PositionEncodingKind.Utf32

    def width(self, text: str) -> int:
        """How many units `text` takes."""
        if text.isascii() or self.counts_code_points:
            return len(text)
        if self.encoding == lsp.PositionEncodingKind.Utf8:
            return len(text.encode("utf-8", "surrogatepass"))
        return len(text) + sum(1 for character in text if character > "\uffff")

    def column(self, line: str, units: int) -> int:
        """The code point that holds unit number `units` of `line`; behind the line, its length."""
        if line.isascii() or self.counts_code_points:
            return min(units, len(line))
        seen = 0
        for column, character in enumerate(line):
            seen += self.width(character)
            if seen > units:
                return column
        return len(line)


@dataclass(frozen=True, slots=True)
class Located:
    """Where a place is for the client: a document of its own naming, the span in it, its lines."""

    uri: str
    span: Span
    line: Callable[[int], str]


Locate = Callable[[Place], "Located | None"]
"""None: the place cannot be shown, for example between two notebook cells."""


# --------------------------------------------------------------------------- from the client


def position_from(position: lsp.Position, line: Callable[[int], str], units: Units) -> Position:
    return Position(position.line, units.column(line(position.line), position.character))


def change_from(
    event: lsp.TextDocumentContentChangeEvent, line: Callable[[int], str], units: Units
) -> Change | str:
    """One change of didChange; a whole new text is a string."""
    if isinstance(event, lsp.TextDocumentContentChangeWholeDocument):
        return event.text
    return Change(
        position_from(event.range.start, line, units),
        position_from(event.range.end, line, units),
        event.text,
    )


# --------------------------------------------------------------------------- to the client


def range_to(span: Span, line: Callable[[int], str], units: Units) -> lsp.Range:
    return lsp.Range(
        lsp.Position(span.line, units.width(line(span.line)[: span.column])),
        lsp.Position(span.end_line, units.width(line(span.end_line)[: span.end_column])),
    )


def diagnostic(
    finding: Finding, display: Display, locate: Locate, units: Units, page: str | None, *, tags: bool = False
) -> tuple[str, lsp.Diagnostic] | None:
    """The client's document and the diagnostic; None where there is no place to show it.

    `page`: address of the rule's explanation. `tags`: the client shows what is not needed as faded.
    """
    located = locate(finding.place)
    severity = _SEVERITIES.get(display)
    if located is None or severity is None:
        return None
    return located.uri, lsp.Diagnostic(
        range=range_to(located.span, located.line, units),
        message=finding.message,
        severity=severity,
        code=finding.rule,
        code_description=lsp.CodeDescription(page) if page else None,
        source=SOURCE,
        tags=[lsp.DiagnosticTag.Unnecessary] if tags and finding.rule == UNUSED[1] else None,
        related_information=list(_related(finding, locate, units)) or None,
        data={"code": finding.code, "rule": finding.rule},
    )


def _related(finding: Finding, locate: Locate, units: Units) -> Iterable[lsp.DiagnosticRelatedInformation]:
    folded = (Evidence(also.place, f"{also.rule}: {also.message}") for also in finding.also)
    for link in (*finding.evidence, *folded):
        located = locate(link.place)
        if located is not None:
            place = lsp.Location(located.uri, range_to(located.span, located.line, units))
            yield lsp.DiagnosticRelatedInformation(place, link.message)


def plain_diagnostic(item: lsp.Diagnostic) -> dict[str, object]:
    """The diagnostic as JSON takes it: what the library's converter says, ten times as fast.

    A file may have dozens of them, each with half a dozen related places, at every keystroke.
    """
    made: dict[str, object] = {"range": _plain_range(item.range), "message": item.message}
    if item.severity is not None:
        made["severity"] = item.severity.value
    if item.code is not None:
        made["code"] = item.code
    if item.code_description is not None:
        made["codeDescription"] = {"href": item.code_description.href}
    if item.source is not None:
        made["source"] = item.source
    if item.tags is not None:
        made["tags"] = [tag.value for tag in item.tags]
    if item.related_information is not None:
        made["relatedInformation"] = [
            {
                "location": {"uri": one.location.uri, "range": _plain_range(one.location.range)},
                "message": one.message,
            }
            for one in item.related_information
        ]
    if item.data is not None:
        made["data"] = item.data
    return made


def _plain_range(where: lsp.Range) -> dict[str, dict[str, int]]:
    start, end = where.start, where.end
    return {
        "start": {"line": start.line, "character": start.character},
        "end": {"line": end.line, "character": end.character},
    }


def workspace_edit(
    edits: Sequence[tuple[Place, str]],
    locate: Locate,
    units: Units,
    versions: Callable[[str], int | None] | None,
) -> lsp.WorkspaceEdit | None:
    """Replace each place by its text. None if one of them cannot be shown: an edit is done whole or not.

    `versions`: of the client's documents, if it takes versioned edits.
    """
    by_uri: dict[str, list[lsp.TextEdit | lsp.AnnotatedTextEdit | lsp.SnippetTextEdit]] = {}
    for place, text in edits:
        located = locate(place)
        if located is None:
            return None
        edit = lsp.TextEdit(range_to(located.span, located.line, units), text)
        by_uri.setdefault(located.uri, []).append(edit)
    if versions is None:
        changes = {
            uri: [edit for edit in made if isinstance(edit, lsp.TextEdit)] for uri, made in by_uri.items()
        }
        return lsp.WorkspaceEdit(changes=changes)
    return lsp.WorkspaceEdit(
        document_changes=[
            lsp.TextDocumentEdit(lsp.OptionalVersionedTextDocumentIdentifier(uri, versions(uri)), made)
            for uri, made in by_uri.items()
        ]
    )


def address(path: str) -> str | None:
    """The URI of a file."""
    uri: str | None = uris.from_fs_path(path)  # untyped for mypy
    return uri


def path_of(uri: str) -> str:
    """The file of a URI; a document without one keeps its URI as name."""
    path = uris.to_fs_path(uri) if uri.startswith("file:") else None
    return path or uri


def markdown(text: str) -> lsp.MarkupContent:
    return lsp.MarkupContent(lsp.MarkupKind.Markdown, text)
