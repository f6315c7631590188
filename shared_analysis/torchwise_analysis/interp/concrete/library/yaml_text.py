"""A reader for the YAML that configuration files are written in.

Block and flow collections, quoted and plain scalars, literal and folded blocks, comments, anchors, aliases
and merge keys. Scalars follow YAML 1.1 as PyYAML reads it. Tags are passed over. Whole numbers remember their
place, so that a plan can point at the line that sets a batch size. Raises ValueError for what is no YAML.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias, cast

from torchwise_analysis.interp.concrete.values import Int, Value
from torchwise_memory.report import Origin

MAX_LINES = 20_000
_MAX_LENGTH = 1 << 19
_MAX_DEPTH = 64

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
_FLOAT = re.compile(
    r"[-+]?([0-9][0-9_]*)?\.[0-9_]*([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
)
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")
_WORDS: dict[str, Value] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"\s*|'(?:[^']|'')*'\s*|[^\s#&*!|>%@`"'\[\]{},:-][^#]*?|-[^\s\-#:][^#]*?):(?=\s|$)"""
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "/": "/"}


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


def load(text: str, path: str, floats_without_dot: bool = False) -> Value:
    """The first document of `text`.

    `floats_without_dot`: `1e-4` is a number, as OmegaConf reads it, and not a text, as PyYAML does.
    """
    rows = text.split("\n")
    if len(rows) > MAX_LINES or len(text) > _MAX_LENGTH:
        raise ValueError("the file is too long")
    reader = _Reader(rows, path, floats_without_dot)
    return reader.document()


class _Reader:
    def __init__(self, rows: list[str], path: str, floats_without_dot: bool) -> None:
        self.rows = rows
        self.path = path
        self.floats_without_dot = floats_without_dot
        self.lines = _significant(rows)
        self.position = 0
        self.behind_number = (0, 0)  # where the last whole number ended: each is looked for behind it
        self.anchors: dict[str, Value] = {}

    def document(self) -> Value:
        return self.block(0, 0) if self.lines else None

    def peek(self) -> _Line | None:
        return self.lines[self.position] if self.position < len(self.lines) else None

    # -- block collections

    def block(self, indent: int, depth: int) -> Value:
        """The node that starts at the current line, which is indented by at least `indent`."""
        line = self.peek()
        if line is None or line.indent < indent:
            return None
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deep")
        if line.text.startswith("- ") or line.text == "-":
            return self.sequence(line.indent, depth)
        if _KEY.match(line.text):
            return self.mapping(line.indent, depth)
        self.position += 1
        return self.scalar_or_flow(line.text, line, line.indent)

    def sequence(self, indent: int, depth: int) -> list[Value]:
        out: list[Value] = []
        while (line := self.peek()) is not None and line.indent == indent:
            if not (line.text.startswith("- ") or line.text == "-"):
                break
            rest = line.text[1:].lstrip()
            inner = indent + len(line.text) - len(rest)
            if not rest:
                self.position += 1
                out.append(self.block(indent + 1, depth + 1))
                continue
            if _KEY.match(rest) or rest.startswith("- "):
                self.lines[self.position] = _Line(line.number, inner, rest)
                out.append(self.block(inner, depth + 1))
                continue
            self.position += 1
            out.append(self.value(rest, line, indent, depth))
        return out

    def mapping(self, indent: int, depth: int) -> dict[Value, Value]:
        out: dict[Value, Value] = {}
        merged: list[Value] = []
        while (line := self.peek()) is not None and line.indent == indent:
            match = _KEY.match(line.text)
            if match is None:
                raise ValueError(f"line {line.number + 1} is no `key: value`")
            self.position += 1
            key = self.scalar(match.group(1), line)
            rest = line.text[match.end() :].strip()
            value = self.value(rest, line, indent, depth)
            if key == "<<":
                merged.append(value)
            else:
                out[key] = value
        for source in merged:
            for one in cast("list[Value]", source) if isinstance(source, list) else [source]:
                if isinstance(one, dict):
                    out = {**one, **out}
        return out

    def value(self, rest: str, line: _Line, indent: int, depth: int) -> Value:
        """What stands behind a colon or a dash: on the same line or in the lines below."""
        rest = _without_comment(rest)
        if rest.startswith("!"):
            tag, _, rest = rest.partition(" ")
            plain = self.value(rest.strip(), line, indent, depth)
            return _tagged(tag, plain)
        if rest.startswith("&"):
            name, _, rest = rest[1:].partition(" ")
            value = self.value(rest.strip(), line, indent, depth)
            self.anchors[name] = value
            return value
        if rest.startswith("*"):
            return self.anchors.get(rest[1:].strip())
        if rest[:1] in ("|", ">"):
            return self.text_block(line, indent, folded=rest[0] == ">", strips=rest[1:2] == "-")
        if rest:
            return self.scalar_or_flow(rest, line, indent + 1)
        following = self.peek()
        if following is not None and (following.indent > indent or _is_item_of(following, indent, line)):
            return self.block(min(following.indent, indent + 1), depth + 1)
        return None

    def text_block(self, line: _Line, indent: int, folded: bool, strips: bool) -> str:
        start = line.number + 1
        end = start
        while end < len(self.rows) and (not self.rows[end].strip() or _indent(self.rows[end]) > indent):
            end += 1
        while self.position < len(self.lines) and self.lines[self.position].number < end:
            self.position += 1
        body = self.rows[start:end]
        margin = min((_indent(row) for row in body if row.strip()), default=0)
        joined = (" " if folded else "\n").join(row[margin:] for row in body).rstrip()
        return joined if strips else joined + "\n"

    def scalar_or_flow(self, text: str, line: _Line, indent: int) -> Value:
        """A scalar or flow collection, which may go on in more indented lines."""
        text = _without_comment(text)
        opened = text[:1] in ("[", "{")
        quote = text[:1] if text[:1] in ("'", '"') else ""
        if opened or quote:
            end: _End = _Brackets() if opened else _Quotes(quote)
            parts = [text]
            while not end.is_behind(parts[-1]):
                following = self.peek()
                if following is None:
                    raise ValueError(f"line {line.number + 1} is not closed")
                self.position += 1
                parts.append(" " + _without_comment(following.text))
            text = "".join(parts)
        if not opened and not quote:
            parts = [text]
            while (
                (following := self.peek()) is not None
                and following.indent >= indent
                and following.number > line.number
            ):
                if _KEY.match(following.text) or following.text.startswith("- "):
                    break
                self.position += 1
                parts.append(_without_comment(following.text))
            text = " ".join(parts)
        return _Flow(self, text, line).whole() if opened else self.scalar(text, line)

    # -- scalars

    def scalar(self, text: str, line: _Line) -> Value:
        text = text.strip()
        if text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
            return text[1:-1].replace("''", "'")
        if text[:1] == '"' and text[-1:] == '"' and len(text) > 1:
            return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(1)), text[1:-1])
        if text in _WORDS:
            return _WORDS[text]
        if _INT.match(text) and len(text) < 40:
            return self._whole_number(text, line)
        if _FLOAT.match(text) or (self.floats_without_dot and _EXPONENT.match(text)):
            return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
        return text

    def _whole_number(self, text: str, line: _Line) -> Value:
        row = self.rows[line.number]
        number, start = self.behind_number
        column = row.find(text, start if number == line.number else 0)
        if column < 0:
            column = max(row.find(text), 0)
        self.behind_number = (line.number, column + len(text))
        return Int(
            int(text.replace("_", ""), 0), Origin(self.path, line.number + 1), (column, column + len(text))
        )


class _Flow:
    """`[a, b]` and `{a: b}`."""

    def __init__(self, reader: _Reader, text: str, line: _Line) -> None:
        self.reader = reader
        self.text = text
        self.line = line
        self.at = 0

    def whole(self) -> Value:
        return self.node(0)

    def node(self, depth: int) -> Value:
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deep")
        self.blanks()
        if self.text[self.at : self.at + 1] == "[":
            return self.items(depth)
        if self.text[self.at : self.at + 1] == "{":
            return self.pairs(depth)
        return self.reader.scalar(self.word(",]}"), self.line)

    def items(self, depth: int) -> list[Value]:
        self.at += 1
        out: list[Value] = []
        while not self.closes("]"):
            out.append(self.node(depth + 1))
            self.comma("]")
        return out

    def pairs(self, depth: int) -> dict[Value, Value]:
        self.at += 1
        out: dict[Value, Value] = {}
        while not self.closes("}"):
            key = self.reader.scalar(self.word(":,}"), self.line)
            self.blanks()
            if self.text[self.at : self.at + 1] == ":":
                self.at += 1
                out[key] = self.node(depth + 1)
            else:
                out[key] = None
            self.comma("}")
        return out

    def closes(self, end: str) -> bool:
        self.blanks()
        if self.at >= len(self.text):
            raise ValueError(f"line {self.line.number + 1} is not closed")
        if self.text[self.at] != end:
            return False
        self.at += 1
        return True

    def comma(self, end: str) -> None:
        self.blanks()
        if self.text[self.at : self.at + 1] == ",":
            self.at += 1
        elif self.text[self.at : self.at + 1] != end:
            raise ValueError(f"line {self.line.number + 1} is no list")

    def blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1

    def word(self, ends: str) -> str:
        self.blanks()
        start = self.at
        quote = self.text[start : start + 1]
        if quote in ("'", '"'):
            self.at += 1
            while self.at < len(self.text) and self.text[self.at] != quote:
                self.at += 2 if self.text[self.at] == "\\" and quote == '"' else 1
            self.at += 1
            return self.text[start : self.at]
        braces = 0
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == "{" and self.text[self.at - 1 : self.at] == "$":
                braces += 1
            elif letter == "}" and braces:
                braces -= 1
            elif letter in ends and not braces:
                break
            self.at += 1
        return self.text[start : self.at]


def _significant(rows: list[str]) -> list[_Line]:
    """Lines that hold something, of the first document."""
    found: list[_Line] = []
    for number, row in enumerate(rows):
        stripped = row.strip()
        if not stripped or stripped.startswith("#") or (stripped.startswith("%") and not found):
            continue
        if stripped == "---" or stripped == "...":
            if found:
                break
            continue
        if "\t" in row[: len(row) - len(row.lstrip())]:
            raise ValueError(f"line {number + 1} is indented by tabs")
        found.append(_Line(number, _indent(row), _without_comment(stripped)))
    return found


def _tagged(tag: str, value: Value) -> Value:
    """`!!float 1` and `!!str 1`; other tags are passed over."""
    if tag == "!!float" and isinstance(value, str) and _EXPONENT.match(value):
        return float(value)
    if tag == "!!float" and isinstance(value, int):
        return float(value)
    if tag == "!!str":
        return str(value)
    return value


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip(" "))


def _is_item_of(following: _Line, indent: int, line: _Line) -> bool:
    """Items of a list may stand as far left as the key that holds them."""
    return following.indent == indent and following.text.startswith("- ") and not line.text.startswith("- ")


def _without_comment(text: str) -> str:
    quote = ""
    for position, letter in enumerate(text):
        if quote:
            if letter == quote:
                quote = ""
        elif letter in "'\"" and (position == 0 or text[position - 1] in " [{,:"):
            quote = letter
        elif letter == "#" and (position == 0 or text[position - 1] in " \t"):
            return text[:position].rstrip()
    return text.rstrip()


class _Brackets:
    """Follows a flow collection from piece to piece until its last bracket."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""

    def is_behind(self, piece: str) -> bool:
        for letter in piece:
            if self._quote:
                self._quote = "" if letter == self._quote else self._quote
            elif letter in "'\"":
                self._quote = letter
            elif letter in "[{":
                self._depth += 1
            elif letter in "]}":
                self._depth -= 1
        return self._depth <= 0


class _Quotes:
    """Follows a quoted scalar from piece to piece; nothing may stand behind its end."""

    def __init__(self, quote: str) -> None:
        self._inside = _INSIDE[quote]
        self._start = 1

    def is_behind(self, piece: str) -> bool:
        match = self._inside.match(piece, self._start)
        assert match is not None
        self._start = 0
        if match.end() == len(piece):
            return False
        if match.end() + 1 < len(piece):
            raise ValueError("something follows a quoted text")
        return True


_INSIDE = {
    "'": re.compile(r"(?:[^']+|'')*"),
    '"': re.compile(r'(?:[^"\\]+|\\.|\\\Z)*', re.DOTALL),
}
_End: TypeAlias = "_Brackets | _Quotes"
