"""Cut a text into logical lines, again and again while it is being edited.

The scanner knows strings, brackets and continuations and nothing else of the grammar. It forgets
everything at the start of a logical line, so after an edit it scans from the line before and stops
at the first old boundary behind the edit: the table is always the one that a fresh scan would give.

Half-typed code must not swallow what follows. A bracket left open ends

* for certain before a line that starts with a keyword which no expression contains, and
* when the bracket never closes (before such a keyword, or the end), already before the first line
  that is not indented deeper and starts like a statement.

A bracket whose fate is still open after `_PATIENCE` lines is cut there too, as a *guess*: a legal
text might go on. Strings in triple quotes have no such evidence, for they may contain anything;
only in a text that ends inside a string (`LineTable.ends_open`) a relaxed table ends them before
the next line that looks like a definition.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from torchwise_analysis.source.lines import BYTE_ORDER_MARK, count_breaks

# Indents of lines without code, above every real one.
BLANK = 1 << 30
COMMENT = BLANK + 1

_GUESS = 1
_OPEN_STRING = 2

_PATIENCE = 30
_TO_THE_END = 1 << 60
_MAX_FIELD_DEPTH = 6

# A line with at most two levels of brackets and strings of the simplest kind needs one match only.
_FLAT = r"[^\r\n()\[\]{}\"'#\\]*"
_STRING = r"(?:\"(?!\"\")[^\"\\\r\n{]*\"|'(?!'')[^'\\\r\n{]*')"
_INNER = rf"{_FLAT}(?:{_STRING}{_FLAT})*"
_BRACKETS = rf"(?:\({_INNER}\)|\[{_INNER}\]|\{{{_INNER}\}})"
_OUTER = rf"{_FLAT}(?:(?:{_STRING}|{_BRACKETS}){_FLAT})*"
_NESTED = rf"(?:\({_OUTER}\)|\[{_OUTER}\]|\{{{_OUTER}\}})"
_EASY_LINE = re.compile(rf"{_FLAT}(?:(?:{_STRING}|{_NESTED}){_FLAT})*(?:\#[^\r\n]*)?(\r\n|\r|\n|\Z)")

_TOKEN = re.compile(r"[()\[\]{}]|\#[^\r\n]*|'''|\"\"\"|'|\"|\\(?:\r\n|\r|\n)|\r\n|\r|\n")
_INDENT = re.compile(r"[ \t\f]*")
_WORD = re.compile(r"[^\W\d]\w*|.", re.DOTALL)
_COMMENT_LINE = re.compile(r"\#[^\r\n]*(?:\r\n|\r|\n|\Z)")
_BREAK = re.compile(r"\r\n|\r|\n")
_STRING_END = {
    "'": re.compile(r"(?:[^'\\\r\n]|\\(?:\r\n|[\s\S]))*(?:(')|(?=[\r\n])|\Z|\\\Z)"),
    '"': re.compile(r"(?:[^\"\\\r\n]|\\(?:\r\n|[\s\S]))*(?:(\")|(?=[\r\n])|\Z|\\\Z)"),
    "'''": re.compile(r"(?:[^'\\]|\\[\s\S]|'(?!''))*(?:(''')|\Z|\\\Z)"),
    '"""': re.compile(r"(?:[^\"\\]|\\[\s\S]|\"(?!\"\"))*(?:(\"\"\")|\Z|\\\Z)"),
}
_FORMATTED_PREFIX = re.compile(r"(?<!\w)(?:[fFtT][rR]?|[rR][fFtT])\Z")

# Keywords that cannot begin a line inside brackets in any valid Python.
_STATEMENT_LINE = re.compile(
    r"[ \t\f]*(?:(?:def|class|import|return|while|try|raise|del|global|nonlocal|assert|pass|break|continue"
    r"|except|finally|elif|with)\b|from[ \t]+[\w.]+[ \t]+import\b|async[ \t]+def\b)"
)
_LIKE_A_STATEMENT = re.compile(r"(?!(?:and|or|in|is|else)\b|[A-Za-z]{1,2}[\"'])[^\W\d]|@")
_LIKE_A_DEFINITION = re.compile(r"(?:def|class|async[ \t]+def|import|from|if[ \t]+__name__)\b|@\w")


class LogicalLine(NamedTuple):
    """`indent` is BLANK or COMMENT for lines without code, `word` the first word or sign of code.

    `lookahead` counts the characters behind the line that decided where it ends.
    """

    end: int
    indent: int
    word: str
    lookahead: int
    flags: int


@dataclass(slots=True)
class LineTable:
    """The logical lines of one text: every character belongs to exactly one.

    Parallel lists, for they are spliced and summed after every keystroke.
    """

    relaxed: bool = False
    indents: list[int] = field(default_factory=list[int])
    words: list[str] = field(default_factory=list[str])
    sizes: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])
    lookaheads: list[int] = field(default_factory=list[int])
    flags: list[int] = field(default_factory=list[int])
    _starts: list[int] | None = field(default=None, compare=False, repr=False)
    _row_starts: list[int] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, text: str, relaxed: bool = False) -> LineTable:
        table = cls(relaxed)
        table._splice(0, 0, text, 0, _lines(text, 0, relaxed))
        return table

    @property
    def ends_open(self) -> bool:
        """Whether the text ends inside a triple-quoted string."""
        return bool(self.flags) and bool(self.flags[-1] & _OPEN_STRING)

    @property
    def has_guess(self) -> bool:
        """Whether some line may have been cut although the text is valid."""
        return _GUESS in self.flags or _GUESS | _OPEN_STRING in self.flags

    def starts(self) -> list[int]:
        """Offset of every line, and the length of the text."""
        if self._starts is None:
            self._starts = list(accumulate(self.sizes, initial=0))
        return self._starts

    def row_starts(self) -> list[int]:
        """Row of every line, and the number of line breaks."""
        if self._row_starts is None:
            self._row_starts = list(accumulate(self.rows, initial=0))
        return self._row_starts

    def edit(self, text: str, start: int, old_end: int, new_end: int) -> None:
        """Follow an edit: `text` is the new one, [start, old_end) of the old became [start, new_end)."""
        starts = self.starts()
        first = self._first_affected(starts, start)
        shift = new_end - old_end
        fresh: list[LogicalLine] = []
        last = len(self.sizes)
        for line in _lines(text, starts[first], self.relaxed):
            fresh.append(line)
            if line.end >= new_end:
                # never at the old beginning, where a byte order mark was one
                index = max(1, bisect_left(starts, max(line.end - shift, old_end)))
                if index < len(self.sizes) and starts[index] == line.end - shift:
                    last = index
                    break
        self._splice(first, last, text, starts[first], fresh)

    def _first_affected(self, starts: list[int], offset: int) -> int:
        # a line break right before the offset may join with what is inserted, hence "left"
        first = max(0, bisect_left(starts, offset) - 1)
        if any(self.lookaheads):
            for index, lookahead in enumerate(self.lookaheads[:first]):
                if lookahead and starts[index + 1] + lookahead >= offset:
                    return index
        return first

    def _splice(
        self, first: int, last: int, text: str, start: int, lines: list[LogicalLine] | Iterator[LogicalLine]
    ) -> None:
        lines = list(lines)
        self._starts = self._row_starts = None
        sizes: list[int] = []
        rows: list[int] = []
        for line in lines:
            sizes.append(line.end - start)
            rows.append(_rows(text, start, line.end))
            start = line.end
        self.indents[first:last] = [line.indent for line in lines]
        self.words[first:last] = [line.word for line in lines]
        self.sizes[first:last] = sizes
        self.rows[first:last] = rows
        self.lookaheads[first:last] = [line.lookahead for line in lines]
        self.flags[first:last] = [line.flags for line in lines]


def comments_of(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Start and end of every comment in the logical line [start, end)."""
    position = start
    while position < end:
        match = _TOKEN.search(text, position, end)
        if match is None:
            return
        token = match.group()
        position = match.end()
        if token[0] == "#":
            yield match.span()
        elif token[0] in "'\"":
            position = _string_end(text, match.start(), token).end


def bracket_depth(text: str) -> int:
    """Deepest nesting of brackets; strings count as code, so this is an upper bound."""
    depth = deepest = 0
    for match in re.finditer(r"([(\[{])|[)\]}]", text):
        if match.group(1):
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth = max(0, depth - 1)
    return deepest


def _rows(text: str, start: int, end: int) -> int:
    rows = text.count("\n", start, end)
    if text.find("\r", start, end) >= 0:
        rows = count_breaks(text[start:end])
    return rows


def _lines(text: str, position: int, relaxed: bool) -> Iterator[LogicalLine]:
    """Logical lines from an offset where one starts."""
    length = len(text)
    while position < length:
        line = logical_line(text, position, relaxed)
        yield line
        position = line.end


def logical_line(text: str, start: int, relaxed: bool = False) -> LogicalLine:
    """The logical line that starts at an offset before the end of the text."""
    position = start + len(BYTE_ORDER_MARK) if start == 0 and text.startswith(BYTE_ORDER_MARK) else start
    code = _end(_INDENT, text, position)
    indent = _width(text[position:code])
    while text.startswith("\\", code) and text[code + 1 : code + 2] in ("\r", "\n"):
        # a continuation before any code: the first indentation counts, unless it is none
        position = _end(_BREAK, text, code + 1)
        code = _end(_INDENT, text, position)
        indent = indent or _width(text[position:code])
    if code >= len(text):
        return LogicalLine(code, BLANK, "", 0, 0)
    sign = text[code]
    if sign in "\r\n":
        return LogicalLine(_end(_BREAK, text, code), BLANK, "", 0, 0)
    if sign == "#":
        return LogicalLine(_end(_COMMENT_LINE, text, code), COMMENT, "", 0, 0)
    match = _WORD.match(text, code)
    word = sign if match is None else match.group()
    easy = _EASY_LINE.match(text, code)
    if easy is not None:
        return LogicalLine(easy.end(), indent, word, 0, 0)
    return _hard_line(text, code, indent, word, relaxed)


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


def _width(blanks: str) -> int:
    """Column behind some indentation: tabs go to multiples of eight, a form feed starts again."""
    if "\f" in blanks:
        blanks = blanks[blanks.rindex("\f") + 1 :]
    return len(blanks.expandtabs(8)) if "\t" in blanks else len(blanks)


class _Suspicion(NamedTuple):
    """A line inside brackets that looks like the next statement."""

    position: int
    row: int


def _hard_line(text: str, position: int, indent: int, word: str, relaxed: bool) -> LogicalLine:
    """A logical line with anything that a single match cannot see through."""
    depth = row = 0
    flags = 0
    suspicion: _Suspicion | None = None
    while True:
        match = _TOKEN.search(text, position)
        if match is None:
            position = len(text)
            break
        token = match.group()
        position = match.end()
        sign = token[0]
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth = max(0, depth - 1)
        elif sign in "'\"":
            string = _string_end(text, match.start(), token)
            flags |= string.flags
            if relaxed and len(token) == 3:
                cut = _definition_inside(text, position, string.end, indent)
                if cut is not None:
                    return LogicalLine(cut[0], indent, word, cut[1] - cut[0] + 1, flags & ~_OPEN_STRING)
            position = string.end
            if string.flags & _OPEN_STRING:
                return LogicalLine(position, indent, word, _TO_THE_END, flags)
        elif sign in "\r\n":
            if depth == 0:
                return LogicalLine(position, indent, word, 0, flags)
            row += 1
            statement = _STATEMENT_LINE.match(text, position)
            if statement is not None:
                cut_at = position if suspicion is None else suspicion.position
                return LogicalLine(cut_at, indent, word, statement.end() - cut_at + 1, flags)
            if suspicion is None:
                suspicion = _suspect(text, position, indent, row)
            elif row - suspicion.row >= _PATIENCE:
                lookahead = position - suspicion.position + 1
                return LogicalLine(suspicion.position, indent, word, lookahead, flags | _GUESS)
    if depth and suspicion is not None:
        return LogicalLine(suspicion.position, indent, word, _TO_THE_END, flags)
    return LogicalLine(position, indent, word, _TO_THE_END if depth else 0, flags)


def _suspect(text: str, position: int, indent: int, row: int) -> _Suspicion | None:
    code = _end(_INDENT, text, position)
    if _width(text[position:code]) > indent or _LIKE_A_STATEMENT.match(text, code) is None:
        return None
    return _Suspicion(position, row)


def _definition_inside(text: str, start: int, end: int, indent: int) -> tuple[int, int] | None:
    """Start and end of the first words in a string that look like a definition of the code around."""
    position = start
    while True:
        line_break = _BREAK.search(text, position, end)
        if line_break is None:
            return None
        position = line_break.end()
        code = _end(_INDENT, text, position)
        if _width(text[position:code]) <= indent:
            match = _LIKE_A_DEFINITION.match(text, code)
            if match is not None:
                return position, match.end()


# --------------------------------------------------------------------------- strings


class _StringEnd(NamedTuple):
    end: int
    flags: int


def _string_end(text: str, start: int, quote: str) -> _StringEnd:
    """Where the string ends whose opening quote stands at `start`."""
    body = start + len(quote)
    end, is_closed = _plain_end(text, body, quote)
    if _FORMATTED_PREFIX.search(text, max(0, start - 3), start) is not None:
        content = text[body:end]
        if content.count("{") != content.count("}"):
            nested = _formatted_end(text, body, quote, 0)
            if nested is not None:
                return _StringEnd(nested, 0)
            # since 3.12 a field may go on in the next line
            return _StringEnd(end, _GUESS if len(quote) == 1 or is_closed else _OPEN_STRING)
    if not is_closed and len(quote) == 3:
        return _StringEnd(end, _OPEN_STRING)
    return _StringEnd(end, 0)


def _plain_end(text: str, body: int, quote: str) -> tuple[int, bool]:
    if len(quote) == 3:
        # most docstrings have no backslash: then the first quotes end it
        found = text.find(quote, body)
        if found >= 0 and text.find("\\", body, found) < 0:
            return found + 3, True
    match = _STRING_END[quote].match(text, body)
    if match is None:
        return len(text), False
    return match.end(), match.group(1) is not None


def _formatted_end(text: str, position: int, quote: str, level: int) -> int | None:
    """End of an f-string whose fields may contain its own quotes (3.12); None if it has none."""
    depth = 0
    length = len(text)
    while position < length:
        sign = text[position]
        if depth == 0 and text.startswith(quote, position):
            return position + len(quote)
        if sign in "\r\n" and len(quote) == 1:
            return None
        if depth == 0 and sign == "\\":
            position += 3 if text.startswith("\r\n", position + 1) else 2
        elif depth == 0 and text.startswith(("{{", "}}"), position):
            position += 2
        elif sign == "{":
            depth += 1
            position += 1
        elif sign == "}":
            depth = max(0, depth - 1)
            position += 1
        elif sign in "'\"":
            inner = sign * 3 if text.startswith(sign * 3, position) else sign
            if depth == 0:
                position += 1
                continue
            end = _inner_end(text, position, inner, level)
            if end is None:
                return None
            position = end
        else:
            position += 1
    return None


def _inner_end(text: str, start: int, quote: str, level: int) -> int | None:
    """End of a string inside a field of an f-string."""
    body = start + len(quote)
    if _FORMATTED_PREFIX.search(text, max(0, start - 3), start) is not None:
        return None if level >= _MAX_FIELD_DEPTH else _formatted_end(text, body, quote, level + 1)
    end, is_closed = _plain_end(text, body, quote)
    return end if is_closed else None
