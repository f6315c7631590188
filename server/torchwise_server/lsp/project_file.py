"""pyproject.toml as text: what stands at a place in our table, and the edit that ignores a rule.

Edits change a few characters and leave the file's own layout alone. Whether one did what it should is
decided by parsing the result, so an unusual layout leads to no edit instead of a wrong one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from torchwise_server.lsp.text import Change, Position, Text, difference

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "pyproject.toml"

_HEADER = re.compile(r"^[ \t]*\[{1,2}\s*(?P<name>[^\]\r\n]+?)\s*\]{1,2}", re.MULTILINE)
_OURS = "tool.torchwise"
_KEY = re.compile(r"^[ \t]*(?P<key>\"[^\"\r\n]*\"|'[^'\r\n]*'|[\w.-]+)[ \t]*=[ \t]*", re.MULTILINE)
_STRING_OR_COMMENT = re.compile(r"#[^\r\n]*|\"(?:\\.|[^\"\\\r\n])*\"?|'[^'\r\n]*'?")
_WORD_AT = re.compile(r"[\w.-]*")


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in one of our tables.

    table: the header's name. key: the key whose value the place is in; None where a key belongs.
    word: what is written around the place, without quotes, from `start` to `end` in its line. in_string:
    quotes are there already.
    """

    table: str
    key: str | None
    word: str
    line: int
    start: int
    end: int
    in_string: bool


def spot_at(text: Text, position: Position) -> Spot | None:
    """What is at `position`; None outside our tables and in comments."""
    line = text.line(position.line)
    column = min(position.column, len(line))
    whole = str(text)
    offset = sum(len(item) for item in text.lines[: position.line]) + column
    headers = [match for match in _HEADER.finditer(whole, 0, offset) if not _in_array(whole, match.start())]
    if not headers or not (headers[-1]["name"] == _OURS or headers[-1]["name"].startswith(_OURS + ".")):
        return None
    begin = headers[-1].end()
    if offset <= whole.find("\n", begin) or _in_comment(line, column):
        return None
    string = next((found for found in _strings(line) if found[0] <= column <= found[1]), None)
    is_closed = string is not None and string[1] < len(line)
    start, end = string if string and is_closed else _word(line, column)
    key = _open_key(whole, begin, offset)
    return Spot(headers[-1]["name"], key, line[start:end], position.line, start, end, string is not None)


def ignoring(text: Text, rule: str) -> Change | None:
    """The change that adds `rule` to `ignore` of our table; None where it is there or cannot be written."""
    before = str(text)
    table = _table(before)
    if table is None:
        return None
    ignored = table.get("ignore", [])
    if not isinstance(ignored, list) or rule in ignored:
        return None
    after = _with_rule(before, rule)
    if _table(after) != {**table, "ignore": [*cast("list[object]", ignored), rule]}:
        return None
    return difference(text, Text(after))


def new_file(rule: str) -> str:
    """A pyproject.toml that ignores `rule`."""
    return f'[{_OURS}]\nignore = ["{rule}"]\n'


def _table(text: str) -> dict[str, object] | None:
    """Our table, empty where there is none; None for text that is not TOML."""
    try:
        found: object = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    for name in _OURS.split("."):
        found = cast("dict[str, object]", found).get(name, {}) if isinstance(found, dict) else {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else None


def _with_rule(text: str, rule: str) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    header = next((match for match in _HEADER.finditer(text) if match["name"] == _OURS), None)
    if header is None:
        gap = "" if not text else newline if text.endswith("\n") else newline * 2
        return f'{text}{gap}[{_OURS}]{newline}ignore = ["{rule}"]{newline}'
    end = next((match.start() for match in _HEADER.finditer(text, header.end())), len(text))
    opening = re.compile(r"^[ \t]*ignore[ \t]*=[ \t]*\[", re.MULTILINE).search(text, header.end(), end)
    if opening is None:
        line_end = text.find("\n", header.end())
        if line_end < 0:
            return f'{text}{newline}ignore = ["{rule}"]{newline}'
        return f'{text[: line_end + 1]}ignore = ["{rule}"]{newline}{text[line_end + 1 :]}'
    closing = _closing(text, opening.end())
    if closing is None:
        return text
    return text[: opening.end()] + _extended(text[opening.end() : closing], rule) + text[closing:]


def _extended(items: str, rule: str) -> str:
    """The inside of an array with one more string, laid out as the others."""
    strings = [match for match in _STRING_OR_COMMENT.finditer(items) if not match[0].startswith("#")]
    if not strings:
        return f'"{rule}"' + items.lstrip() if not items.strip() else f'"{rule}", {items.lstrip()}'
    last = strings[-1]
    head, tail = items[: last.end()], items[last.end() :]
    lead = items[: last.start()].rpartition("\n")[2]
    trailing_comma = tail.lstrip().startswith(",")
    if lead.strip() or "\n" not in items[: last.start()]:  # several on a line
        return f'{head}, "{rule}"{tail}'
    newline = "\r\n" if "\r\n" in items else "\n"
    return f'{head},{newline}{lead}"{rule}"{tail if trailing_comma else "," + tail}'


def _closing(text: str, start: int) -> int | None:
    """Where the array that was opened before `start` ends."""
    for match in re.compile(_STRING_OR_COMMENT.pattern + r"|\]").finditer(text, start):
        if match[0] == "]":
            return match.start()
    return None


def _open_key(text: str, begin: int, offset: int) -> str | None:
    """The key whose value reaches to `offset`: on its line, or an array that is still open."""
    last = None
    for match in _KEY.finditer(text, begin, offset):
        if not _in_array(text, match.start(), begin):
            last = match
    if last is None:
        return None
    is_same_line = "\n" not in text[last.end() : offset]
    is_open = text[last.end() :].startswith("[") and (_closing(text, last.end() + 1) or len(text)) >= offset
    return last["key"].strip("\"'") if is_same_line or is_open else None


def _in_array(text: str, offset: int, begin: int = 0) -> bool:
    """Whether an array of strings is open at `offset`."""
    depth = 0
    pattern = re.compile(_STRING_OR_COMMENT.pattern + r"|=[ \t]*\[|\]")
    for match in pattern.finditer(text, begin, offset):
        if match[0].startswith("="):
            depth = 1
        elif match[0] == "]":
            depth = 0
    return depth > 0


def _in_comment(line: str, column: int) -> bool:
    found = (match for match in _STRING_OR_COMMENT.finditer(line) if match[0].startswith("#"))
    return any(match.start() < column for match in found)


def _strings(line: str) -> Iterator[tuple[int, int]]:
    """The insides of the strings of a line."""
    for match in _STRING_OR_COMMENT.finditer(line):
        if not match[0].startswith("#"):
            is_closed = len(match[0]) > 1 and match[0][-1] == match[0][0]
            yield match.start() + 1, match.end() - (1 if is_closed else 0)


def _word(line: str, column: int) -> tuple[int, int]:
    start = column
    while start and _WORD_AT.fullmatch(line[start - 1]):
        start -= 1
    end = column
    while end < len(line) and _WORD_AT.fullmatch(line[end]):
        end += 1
    return start, end
