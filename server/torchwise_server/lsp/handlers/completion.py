"""Completion where only we know the words: in our comments and in our table of pyproject.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from enum import Enum

from lsprotocol import types as lsp

from torchwise_analysis.rules import all_rules
from torchwise_analysis.settings import Settings
from torchwise_server.lsp import project_file
from torchwise_server.lsp.convert import Units, markdown, position_from
from torchwise_server.lsp.documents import OpenFile
from torchwise_server.lsp.handlers import contained
from torchwise_server.lsp.markdown import gpu_help, gpu_summary, rule_help
from torchwise_server.lsp.server import TorchwiseServer
from torchwise_server.lsp.text import Position

_RULE_KEYS = ("select", "ignore", "per-file-ignores")
_IN_BRACKETS = re.compile(r"#\s*torchwise:\s*ignore(?:-file)?\s*\[[^\]]*?(?P<word>[\w-]*)$")
_IN_DIRECTIVE = re.compile(r"#\s*torchwise:\s*(?P<word>[\w-]*)$")


def register(server: TorchwiseServer) -> None:
    options = lsp.CompletionOptions(trigger_characters=["[", ",", ":", '"', "-"])
    server.handle(lsp.TEXT_DOCUMENT_COMPLETION, contained(completion), options)


def completion(ls: TorchwiseServer, params: lsp.CompletionParams) -> list[lsp.CompletionItem] | None:
    uri, units = params.text_document.uri, ls.session.client.units
    file = ls.session.files.get(uri)
    if file is not None:
        place = position_from(params.position, file.text.line, units)
        return _readable(ls, _in_settings(file, place, units))
    document = ls.session.document(uri)
    if document is None:
        return None
    line = document.line_of(uri, params.position.line)
    column = units.column(line, params.position.character)
    return _readable(ls, _in_comment(line, params.position.line, column, units)) or None


def _readable(ls: TorchwiseServer, items: Iterable[lsp.CompletionItem]) -> list[lsp.CompletionItem]:
    """With explanations as the client can show them: Markdown reads well as plain text too."""
    made = list(items)
    if not ls.session.client.completes_in_markdown:
        for item in made:
            if isinstance(item.documentation, lsp.MarkupContent):
                item.documentation = item.documentation.value
    return made


# --------------------------------------------------------------------------- comments


def _in_comment(line: str, number: int, column: int, units: Units) -> Iterator[lsp.CompletionItem]:
    before = line[:column]
    if match := _IN_BRACKETS.search(before):
        after = re.match(r"[\w-]*", line[column:])
        where = _range(line, number, match.start("word"), column + (after.end() if after else 0), units)
        yield from _rules(where)
    elif match := _IN_DIRECTIVE.search(before):
        where = _range(line, number, match.start("word"), column, units)
        for name, detail in (("ignore", "on this line"), ("ignore-file", "in this file, above its code")):
            yield lsp.CompletionItem(
                f"{name}[...]",
                kind=lsp.CompletionItemKind.Keyword,
                detail=f"silence a rule {detail}",
                filter_text=name,
                text_edit=lsp.TextEdit(where, f"{name}["),
            )


# --------------------------------------------------------------------------- pyproject.toml


def _in_settings(file: OpenFile, position: Position, units: Units) -> Iterator[lsp.CompletionItem]:
    spot = project_file.spot_at(file.text, position)
    if spot is None:
        return
    where = _range(file.text.line(spot.line), spot.line, spot.start, spot.end, units)
    quote = "" if spot.in_string else '"'
    if spot.key is None:
        if spot.table == "tool.torchwise":
            yield from _keys(where)
    elif spot.key in _RULE_KEYS or spot.table.endswith("per-file-ignores"):
        yield from _rules(where, quote)
    elif spot.key == "gpus":
        yield from _gpus(where, quote)
    else:
        default = getattr(Settings(), spot.key.replace("-", "_"), None)
        if isinstance(default, Enum):
            yield from _words(where, [f"{quote}{member.value}{quote}" for member in type(default)])
        elif isinstance(default, bool):
            yield from _words(where, ["true", "false"])


def _keys(where: lsp.Range) -> Iterator[lsp.CompletionItem]:
    for item in fields(Settings):
        name = item.name.replace("_", "-")
        is_table = item.name in ("per_file_ignores", "severity")
        value = "{}" if is_table else "[]" if isinstance(item.default, tuple) else ""
        yield lsp.CompletionItem(
            name,
            kind=lsp.CompletionItemKind.Property,
            documentation=markdown(item.metadata["help"]),
            text_edit=lsp.TextEdit(where, f"{name} = {value}"),
        )


def _gpus(where: lsp.Range, quote: str) -> Iterator[lsp.CompletionItem]:
    from torchwise_memory.hardware import gpus

    for number, gpu in enumerate(gpus()):
        yield lsp.CompletionItem(
            gpu.name,
            kind=lsp.CompletionItemKind.EnumMember,
            detail=gpu_summary(gpu),
            documentation=markdown(gpu_help(gpu)),
            sort_text=f"{number:03}",
            filter_text=f"{quote}{gpu.name}",
            text_edit=lsp.TextEdit(where, f"{quote}{gpu.name}{quote}"),
        )


def _rules(where: lsp.Range, quote: str = "") -> Iterator[lsp.CompletionItem]:
    """Each rule by its name, and behind all of them by its code."""
    for rule in (entry.rule for entry in all_rules()):
        for order, (word, other) in enumerate(((rule.name, rule.code), (rule.code, rule.name))):
            yield lsp.CompletionItem(
                word,
                kind=lsp.CompletionItemKind.EnumMember,
                detail=other,
                documentation=markdown(rule_help(rule)),
                sort_text=f"{order}{word}",
                filter_text=f"{quote}{word}",
                text_edit=lsp.TextEdit(where, f"{quote}{word}{quote}"),
            )


def _words(where: lsp.Range, words: Sequence[str]) -> Iterator[lsp.CompletionItem]:
    for number, word in enumerate(words):
        yield lsp.CompletionItem(
            word,
            kind=lsp.CompletionItemKind.Value,
            sort_text=str(number),
            text_edit=lsp.TextEdit(where, word),
        )


def _range(line: str, number: int, start: int, end: int, units: Units) -> lsp.Range:
    return lsp.Range(
        lsp.Position(number, units.width(line[:start])), lsp.Position(number, units.width(line[:end]))
    )
