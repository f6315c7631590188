"""Hover: help on a finding, the estimate on a loop, what a word of ours means; from the last results, so
that nobody waits for new ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

from lsprotocol import types as lsp

from torchwise_analysis.findings import Finding
from torchwise_analysis.rules import rule_named
from torchwise_analysis.settings import Settings
from torchwise_analysis.suppressions import named_in_comments
from torchwise_memory.report import Estimate, Origin
from torchwise_server.lsp import project_file
from torchwise_server.lsp.convert import markdown, position_from
from torchwise_server.lsp.documents import OpenDocument, OpenFile
from torchwise_server.lsp.handlers import contained
from torchwise_server.lsp.links import link_from
from torchwise_server.lsp.markdown import (
    estimate_hover,
    finding_hover,
    gpu_help,
    layer_hover,
    rule_help,
    unanswered_hover,
)
from torchwise_server.lsp.server import TorchwiseServer
from torchwise_server.lsp.text import Position

_NAME = re.compile(r"[^\W\d]\w*")
_STRING = re.compile(r"\"([^\"\\\r\n]+)\"|'([^'\\\r\n]+)'")
# A string names a card only where the line is about one: "a10" and "t4" are words of other trades too.
_ABOUT_CARDS = re.compile(r"gpu|device.?name|accelerator|nvidia|geforce|tesla|radeon|instinct", re.IGNORECASE)


def register(server: TorchwiseServer) -> None:
    server.handle(lsp.TEXT_DOCUMENT_HOVER, contained(hover))


def hover(ls: TorchwiseServer, params: lsp.HoverParams) -> lsp.Hover | None:
    file = ls.session.files.get(params.text_document.uri)
    if file is not None:
        text = _setting(file, position_from(params.position, file.text.line, ls.session.client.units))
        return lsp.Hover(markdown(text)) if text else None
    found = ls.session.position(params.text_document.uri, params.position)
    if found is None or not ls.session.options_for(found[0]).hover:
        return None
    document, place = found
    parts = [
        *_findings(ls, document, place),
        *_estimates(ls, document, place),
        *_layers(document, place),
        *_comment_words(document, place),
        *_cards(document, place),
    ]
    return lsp.Hover(markdown("\n\n---\n\n".join(parts))) if parts else None


def _findings(ls: TorchwiseServer, document: OpenDocument, place: Position) -> Iterator[str]:
    for finding, _ in ls.session.shown(document):
        if finding.place.path == document.path and _covers(document, finding, place):
            text = finding_hover(finding, rule_named(finding.rule))
            if text:
                yield text


def _estimates(ls: TorchwiseServer, document: OpenDocument, place: Position) -> Iterator[str]:
    answer = document.estimated
    if answer is None:
        return
    link = link_from(ls.session, document)

    def is_here(origin: Origin) -> bool:
        line = document.current_line(origin.line - 1, answer.made_at)
        return origin.path == document.path and line == place.line

    yield from (estimate_hover(estimate, link) for estimate in answer.estimates if is_here(estimate.origin))
    yield from (unanswered_hover(entry) for entry in answer.unanswered if is_here(entry.origin))


def _layers(document: OpenDocument, place: Position) -> Iterator[str]:
    """What the modules hold whose class is named here, where this line makes them; in the highest loop."""
    answer = document.estimated
    known = [one for one in answer.estimates if one.peak.allocated] if answer else []
    if answer is None or not known:
        return
    name = _name_at(document.text.line(place.line), place.column)
    highest = max(known, key=lambda one: one.peak.allocated.point if one.peak.allocated else 0)
    for entry in highest.modules:
        line = document.current_line(entry.origin.line - 1, answer.made_at)
        if entry.origin.path == document.path and line == place.line and entry.name == name:
            yield layer_hover(entry, highest)


def _name_at(line: str, column: int) -> str | None:
    return next((match[0] for match in _NAME.finditer(line) if match.start() <= column <= match.end()), None)


def _comment_words(document: OpenDocument, place: Position) -> Iterator[str]:
    """Rules named in `# torchwise: ignore[...]`."""
    if "torchwise:" not in document.text.line(place.line):
        return
    for word, span in named_in_comments(str(document.text)):
        if span.line == place.line and span.column <= place.column <= span.end_column:
            rule = rule_named(word)
            if rule is not None:
                yield rule_help(rule)


def _cards(document: OpenDocument, place: Position) -> Iterator[str]:
    line = document.text.line(place.line)
    if _ABOUT_CARDS.search(line) is None:
        return
    for match in _STRING.finditer(line):
        if match.start() <= place.column < match.end():
            estimates = document.estimated.estimates if document.estimated else ()
            yield from _card(match[1] or match[2], estimates)


def _card(name: str, estimates: tuple[Estimate, ...] = ()) -> Iterator[str]:
    from torchwise_memory.hardware import UnknownGpuError, find

    try:
        gpu = find(name)
    except UnknownGpuError:
        return
    yield gpu_help(gpu, estimates)


def _setting(file: OpenFile, place: Position) -> str | None:
    """Help on a key, rule or card in our table of pyproject.toml."""
    spot = project_file.spot_at(file.text, place)
    if spot is None or not spot.word:
        return None
    if not spot.in_string:
        help_by_key = {item.name.replace("_", "-"): str(item.metadata["help"]) for item in fields(Settings)}
        return help_by_key.get(spot.word.replace("_", "-"))
    if spot.key == "gpus":
        return next(_card(spot.word), None)
    rule = rule_named(spot.word)
    return rule_help(rule) if rule else None


def _covers(document: OpenDocument, finding: Finding, place: Position) -> bool:
    span, version = finding.place.span, document.checked.version if document.checked else 0
    start = document.current_line(span.line, version), span.column
    end = document.current_line(span.end_line, version), span.end_column
    return start <= (place.line, place.column) <= end
