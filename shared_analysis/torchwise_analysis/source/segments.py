"""Segments: the pieces of a document that are parsed, lowered and cached on their own.

A segment is one statement (with the statements that share its lines) without the comments around
it. A class or function of more than `SPLIT_ROWS` lines is a header and the segments of its body.
Everything about a segment follows from its text, so equal text shares one segment and nothing in
it is absolute; `place` says where it stands.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from torchwise_analysis.source.lines import count_breaks, split_lines
from torchwise_analysis.source.lower_ast import AstLowering, taken
from torchwise_analysis.source.lower_ast import parse as parse_ast
from torchwise_analysis.source.nodes import (
    Block,
    Broken,
    ClassDef,
    FunctionDef,
    If,
    Placed,
    Problem,
    Span,
    Stmt,
)
from torchwise_analysis.source.scanner import BLANK, LineTable, bracket_depth
from torchwise_analysis.source.scopes import NameCollector, Names

if TYPE_CHECKING:
    import libcst

SPLIT_ROWS = 40

_MAX_DEPTH = 8
# LibCST recurses in native code, where too deep nesting ends the process: these bounds are far below
# the depth (about 5,000) at which it did, and its time grows faster than the text.
_MAX_CST_BRACKETS = 100
_MAX_CST_LINKS = 1_000
_MAX_CST_TEXT = 400_000
_CST_LINK = re.compile(r"\b(?:not|lambda|if|await)\b|[-+~*/%&|^@.(\[]|[\"']\s*[\"']")

_CONTINUING = frozenset({"else", "elif", "except", "finally"})
_BLANKS = " \t\f"

# What a Python of ours may not read and LibCST does. Half-typed code rarely looks like it, which
# saves the import of LibCST at the first wrong keystroke.
_NEWER_SYNTAX = re.compile(
    r"\b(?:def|class)\s+\w+\s*\[|\btype\s+\w+|\bexcept\s*\*|[\[,:]\s*\*"
    r"|(?<!\w)(?:[fFtT][rR]?|[rR][fFtT])[\"']"
)
_WRAPPER = "if 1:\n"
_ASYNC_DEF = re.compile(r"^[ \t\f]*async\b(?:\s|\\)*def\b", re.MULTILINE)


def key_of(text: str) -> str:
    """Names a piece of source by its text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Lowered:
    """What a segment's text means; spans count from its first line.

    `type_names` are the type parameters of a definition header. With an `error`, `body` is empty.
    """

    body: Block
    names: Names
    type_names: frozenset[str] = frozenset()
    error: Problem | None = None


class Segment:
    """One piece of source, or a definition split into its `header` and `children` (row, segment).

    Parts derived from the text are computed on first need and kept.
    """

    __slots__ = (
        "_has_problems",
        "_key",
        "_lower",
        "_lowered",
        "children",
        "header",
        "is_nested",
        "names",
        "placed",
        "rows",
        "shell",
        "text",
    )

    def __init__(
        self,
        text: str,
        is_nested: bool,
        lower: Callable[[Source], Lowered],
        header: Segment | None = None,
        children: tuple[tuple[int, Segment], ...] = (),
    ) -> None:
        self.text = text
        self._lower = lower
        self.is_nested = is_nested
        self.header = header
        self.children = children
        self.rows = count_breaks(text)
        self._key: str | None = None
        self._lowered: Lowered | None = None
        self._has_problems: bool | None = None
        # filled in by `Placer`, for a segment without problems only
        self.names: Names | None = None
        self.shell: FunctionDef | ClassDef | None = None
        self.placed: tuple[int, Stmt] | None = None

    @property
    def key(self) -> str:
        if self._key is None:
            self._key = key_of(self.text)
        return self._key

    @property
    def indent(self) -> str:
        return self.text[: len(self.text) - len(self.text.lstrip(_BLANKS))]

    @property
    def lowered(self) -> Lowered:
        """The lowering of the text itself: of a split definition, that of its header."""
        if self.header is not None:
            return self.header.lowered
        if self._lowered is None:
            self._lowered = self._lower(source_of(self.text, self.is_nested))
        return self._lowered

    @property
    def is_broken(self) -> bool:
        """Whether the segment as a whole has no meaning."""
        return self.lowered.error is not None

    @property
    def has_problems(self) -> bool:
        """Whether it is broken, or something in it is."""
        if self._has_problems is None:
            self._has_problems = self.is_broken or any(child.has_problems for _, child in self.children)
        return self._has_problems

    def source(self) -> Source:
        """The text to parse for the segment itself."""
        if self.header is not None:
            return self.header.source()
        return source_of(self.text, self.is_nested)


class _Header(Segment):
    """The decorators and the first line of a split definition."""

    __slots__ = ()

    @property
    def lowered(self) -> Lowered:
        if self._lowered is None:
            lowered = self._lower(self.source())
            if lowered.error is None and not _is_definition(lowered.body):
                problem = Problem(Span(0, 0, self.rows, 0), "invalid syntax")
                lowered = Lowered((), Names(), error=problem)
            self._lowered = lowered
        return self._lowered

    def source(self) -> Source:
        return source_of(self.text, self.is_nested, f"{self.indent} pass\n")


def _is_definition(body: Block) -> bool:
    return len(body) == 1 and isinstance(body[0], FunctionDef | ClassDef)


# --------------------------------------------------------------------------- lowering


@dataclass(frozen=True, slots=True)
class Source:
    """What to parse for a segment: its text below a line that allows its indentation."""

    text: str
    prefix: str
    suffix: str

    @property
    def whole(self) -> str:
        return f"{self.prefix}{self.text}{self.suffix}"


def source_of(text: str, is_nested: bool, suffix: str = "") -> Source:
    return Source(text, _WRAPPER if is_nested else "", suffix)


def lower_piece(source: Source) -> Lowered:
    """Lower by `ast`, or by LibCST what may be newer than the running Python; never raises."""
    whole, is_nested = source.whole, bool(source.prefix)
    try:
        lowered = _by_ast(whole, is_nested)
        if is_nested and not lowered.body:
            raise SyntaxError("expected an indented block")
        return lowered
    except (SyntaxError, RecursionError) as error:
        problem = _problem(error, source)
    if _NEWER_SYNTAX.search(source.text) is not None and is_safe_for_libcst(whole):
        try:
            return _by_libcst(_parse_libcst(whole), whole, is_nested)
        except (SyntaxError, RecursionError):
            # the running Python explains its own grammar better
            pass
    return Lowered((), Names(), error=problem)


def is_safe_for_libcst(text: str) -> bool:
    """Whether LibCST can be trusted to come back from this text, and soon."""
    if len(text) > _MAX_CST_TEXT or bracket_depth(text) > _MAX_CST_BRACKETS:
        return False
    table = LineTable.of(text)
    if len(set(table.indents)) > _MAX_CST_BRACKETS or table.words.count("elif") > _MAX_CST_LINKS:
        return False
    starts = table.starts()
    return all(len(_CST_LINK.findall(text, start, end)) <= _MAX_CST_LINKS for start, end in pairwise(starts))


def _by_ast(text: str, is_nested: bool) -> Lowered:
    tree = parse_ast(text)
    lowering = AstLowering(text)
    if not is_nested:
        return Lowered(lowering.statements(taken(tree.body)), lowering.block.freeze(), lowering.type_names)
    lowering.base = 1
    # the statement of the wrapper line holds them all
    inner = tree.body[0]
    body = lowering.statements(taken(inner.body) if isinstance(inner, ast.If) else ())
    return Lowered(body, lowering.block.freeze(), lowering.type_names)


def _parse_libcst(text: str) -> libcst.Module:
    # not at start-up: the import takes longer than most checks
    from torchwise_analysis.source import lower_cst

    return lower_cst.parse(text)


def _by_libcst(tree: libcst.Module, text: str, is_nested: bool) -> Lowered:
    from torchwise_analysis.source import lower_cst

    lowering = lower_cst.CstLowering(text)
    lowering.base = 1 if is_nested else 0
    body = lowering.module(tree)
    if is_nested and isinstance(body[0], If):
        body = body[0].body
    return Lowered(body, lowering.block.freeze(), lowering.type_names)


def _problem(error: SyntaxError | RecursionError, source: Source) -> Problem:
    if isinstance(error, RecursionError):
        return Problem(Span(0, 0, 0, 0), "nested too deeply")
    first = 1 if source.prefix else 0
    last = count_breaks(source.text)
    line = max(0, min((error.lineno or 1) - 1 - first, last))
    column = max(0, (error.offset or 1) - 1)
    return Problem(Span(line, column, line, column), error.msg)


# --------------------------------------------------------------------------- cutting


# Characters of new segments between two sweeps: as many as in the text, and some. What is lowered of them
# takes a hundred times as many bytes.
_SWEEP_FLOOR = 8_000
# Characters of segments of earlier texts that are kept then: an undo may bring them back.
_MAX_RETIRED = 8_000

_Key: TypeAlias = "tuple[str, bool, bool]"


class TreeCache:
    """LibCST trees of segments by the text that was parsed; the least recently used go first."""

    def __init__(self, max_trees: int) -> None:
        self._trees: OrderedDict[str, libcst.Module] = OrderedDict()
        self._max_trees = max_trees

    def get(self, text: str) -> libcst.Module | None:
        """The tree of a text; None where LibCST refuses it or would not come back from it."""
        tree = self._trees.get(text)
        if tree is None:
            if not is_safe_for_libcst(text):
                return None
            try:
                tree = _parse_libcst(text)
            except (SyntaxError, RecursionError):
                return None
            self._trees[text] = tree
            if len(self._trees) > self._max_trees:
                self._trees.popitem(last=False)
        self._trees.move_to_end(text)
        return tree

    def lower(self, source: Source) -> Lowered:
        """Lower by LibCST; what it refuses, `ast` reads or explains."""
        whole, is_nested = source.whole, bool(source.prefix)
        tree = self.get(whole)
        if tree is None:
            return lower_piece(source)
        try:
            lowered = _by_libcst(tree, whole, is_nested)
        except (SyntaxError, RecursionError):  # a literal that has no value, such as "\\N{no name}"
            return lower_piece(source)
        return lower_piece(source) if is_nested and not lowered.body else lowered


class SegmentCache:
    """Segments by their text: those of the text at hand, and some of earlier ones.

    A key is (text, whether it is nested, whether a relaxed table cut it): lines of a long segment
    depend on the table, those of a short one do not matter. `lower` gives a segment its meaning.
    """

    def __init__(self, lower: Callable[[Source], Lowered] = lower_piece) -> None:
        self.lower = lower
        self._segments: dict[_Key, Segment] = {}
        self._characters = 0

    def get(self, key: _Key) -> Segment | None:
        return self._segments.get(key)

    def put(self, key: _Key, segment: Segment) -> None:
        self._segments[key] = segment
        self._characters += len(key[0])

    def sweep(self, live: Sequence[tuple[int, Segment]], text_length: int) -> None:
        """Once a text's worth has gathered, drop all but the live segments and the latest short ones.

        Sweeping after every edit would cost more than the edit.
        """
        if self._characters < text_length + _SWEEP_FLOOR:
            return
        kept = {id(segment) for segment in _all_of(live)}
        retired: list[tuple[_Key, Segment]] = []
        left = _MAX_RETIRED
        for key, segment in reversed(self._segments.items()):
            if id(segment) in kept or segment.header is not None or segment.rows > SPLIT_ROWS:
                continue
            left -= len(segment.text)
            if left < 0:
                break
            retired.append((key, segment))
        alive = [(key, segment) for key, segment in self._segments.items() if id(segment) in kept]
        self._segments = dict([*reversed(retired), *alive])
        # what is live is paid for: only what comes on top brings the next sweep nearer
        self._characters = 0


def _all_of(segments: Sequence[tuple[int, Segment]]) -> Iterator[Segment]:
    for _, segment in segments:
        yield segment
        yield from _all_of(segment.children)


def _key(text: str, rows: int, is_nested: bool, is_relaxed: bool) -> _Key:
    return text, is_nested, is_relaxed and rows > SPLIT_ROWS


def cut(text: str, table: LineTable, cache: SegmentCache) -> tuple[tuple[int, Segment], ...]:
    """The segments of a text with their rows, in order."""
    segments = _Cutter(text, table, cache).block(0, len(table.sizes), 0, is_nested=False, depth=0)
    cache.sweep(segments, len(text))
    return segments


def pieces(text: str, most: int) -> list[tuple[int, str]]:
    """A text in pieces of whole statements with their first rows, each cut at the first chance behind `most`
    characters; one piece where it is not sure that every cut is one between statements."""
    table = LineTable.of(text) if len(text) > most else None
    if table is None or table.ends_open or table.has_guess:
        return [(0, text)]
    starts, rows = table.starts(), table.row_starts()
    cuts = [0]
    for begin, _ in _Cutter(text, table, SegmentCache()).statements(0, len(table.sizes), 0):
        if starts[begin] - starts[cuts[-1]] >= most:
            cuts.append(begin)
    ends = [*(starts[each] for each in cuts[1:]), len(text)]
    return [(rows[each], text[starts[each] : end]) for each, end in zip(cuts, ends, strict=True)]


class _Cutter:
    """Cuts one text; lives for one call of `cut`."""

    def __init__(self, text: str, table: LineTable, cache: SegmentCache) -> None:
        self._text = text
        self._indents = table.indents
        self._words = table.words
        self._starts = table.starts()
        self._rows = table.row_starts()
        self._cache = cache
        self._is_relaxed = table.relaxed

    def block(
        self, first: int, last: int, level: int, *, is_nested: bool, depth: int
    ) -> tuple[tuple[int, Segment], ...]:
        """Segments of the lines [first, last), a block whose statements are indented by `level`."""
        base = self._rows[first] if first < last and is_nested else 0
        out: list[tuple[int, Segment]] = []
        for begin, end in self.statements(first, last, level):
            out.append((self._rows[begin] - base, self._segment(begin, end, level, is_nested, depth)))
        return tuple(out)

    def statements(self, first: int, last: int, level: int) -> Iterator[tuple[int, int]]:
        """Lines [begin, end) of each statement, without the comments and blank lines around it."""
        indents, words = self._indents, self._words
        window = indents if first == 0 and last == len(indents) else indents[first:last]
        begin = -1
        decorated = False
        for index in [index for index, indent in enumerate(window, first) if indent <= level]:
            word = words[index]
            if begin < 0:
                # code before it is indented although nothing is open: broken, and a statement too
                stray = self._first_code(first, index)
                if stray < index:
                    yield stray, self._code_end(stray, index)
            elif decorated or word in _CONTINUING:
                decorated = word == "@"
                continue
            else:
                yield begin, self._code_end(begin, index)
            begin = index
            decorated = word == "@"
        if begin < 0:
            begin = self._first_code(first, last)
        if begin < last:
            yield begin, self._code_end(begin, last)

    def _first_code(self, first: int, last: int) -> int:
        while first < last and self._indents[first] >= BLANK:
            first += 1
        return first

    def _code_end(self, begin: int, end: int) -> int:
        while end > begin and self._indents[end - 1] >= BLANK:
            end -= 1
        return end

    def _segment(self, begin: int, end: int, level: int, is_nested: bool, depth: int) -> Segment:
        text = self._text[self._starts[begin] : self._starts[end]]
        rows = self._rows[end] - self._rows[begin]
        key = _key(text, rows, is_nested, self._is_relaxed)
        segment = self._cache.get(key)
        if segment is None:
            if rows > SPLIT_ROWS and depth < _MAX_DEPTH:
                segment = self._split(begin, end, level, text, is_nested, depth)
            if segment is None:
                segment = Segment(text, is_nested, self._cache.lower)
            self._cache.put(key, segment)
        return segment

    def _split(
        self, begin: int, end: int, level: int, text: str, is_nested: bool, depth: int
    ) -> Segment | None:
        """A definition as header and members; None for any other statement."""
        indents, words = self._indents, self._words
        head = begin
        while head < end and (words[head] == "@" or indents[head] >= BLANK):
            head += 1
        body = self._first_code(head + 1, end)
        if head >= end or body >= end or words[head] not in ("class", "def", "async"):
            return None
        inner = indents[body]
        if indents[head] > level or inner <= level or min(indents[body:end]) < inner:
            return None
        header_text = self._text[self._starts[begin] : self._starts[head + 1]]
        if words[head] == "async" and _ASYNC_DEF.search(header_text) is None:
            return None
        header = _Header(header_text, is_nested, self._cache.lower)
        offset = self._rows[body] - self._rows[begin]
        children = self.block(body, end, inner, is_nested=True, depth=depth + 1)
        return Segment(
            text,
            is_nested,
            self._cache.lower,
            header,
            tuple([(row + offset, child) for row, child in children]),
        )


# --------------------------------------------------------------------------- placing


@dataclass(frozen=True, slots=True)
class Stale:
    """Last good segments (row in the broken segment, segment) to stand in until `expires`."""

    segments: tuple[tuple[int, Segment], ...]
    expires: float


class Placer:
    """Puts segments at their rows; collects the problems and the stand-ins met on the way.

    `stale` says which broken segments have a stand-in. Lines are absolute.
    """

    def __init__(self, stale: Mapping[Segment, Stale] | None = None) -> None:
        self.problems: list[Problem] = []
        self.stale_lines: list[tuple[int, int]] = []
        self._stale = stale or {}

    def block(self, segments: Sequence[tuple[int, Segment]], base: int = 0) -> Block:
        out: list[Stmt] = []
        for row, segment in segments:
            line = base + row
            placed = segment.placed
            if placed is not None and placed[0] == line:
                out.append(placed[1])
            else:
                out += self._place(segment, line)
        return tuple(out)

    def _place(self, segment: Segment, line: int) -> list[Stmt]:
        if segment.is_broken:
            return self._broken(segment, line)
        lowered = segment.lowered
        if not lowered.body:
            # a lone continuation
            return []
        if segment.header is None:
            body, last = lowered.body, lowered.body[-1].span
        else:
            node = self._definition(segment, line)
            body, last = (node,), node.span
        span = Span(line, body[0].span.column, line + last.end_line, last.end_column)
        placed = Placed(span, line, body, segment.key)
        if not segment.has_problems:
            segment.placed = (line, placed)
        return [placed]

    def _broken(self, segment: Segment, line: int) -> list[Stmt]:
        problem = segment.lowered.error
        message = "invalid syntax" if problem is None else problem.message
        if problem is not None:
            self.problems.append(Problem(problem.span.shifted(line), message))
        stale = self._stale.get(segment)
        if stale is not None:
            self.stale_lines.append((line, line + segment.rows))
            return list(self.block(stale.segments, line))
        last = split_lines(segment.text.removesuffix("\n").removesuffix("\r"))
        span = Span(line, len(segment.indent), line + len(last) - 1, len(last[-1]))
        return [Broken(span, message)]

    def _definition(self, segment: Segment, line: int) -> FunctionDef | ClassDef:
        body = self.block(segment.children, line)
        shell = segment.shell
        if shell is None:
            shell = self._shell(segment)
            if not segment.has_problems:
                segment.shell = shell
        return replace(shell, body=body)

    def _shell(self, segment: Segment) -> FunctionDef | ClassDef:
        """The definition with its scope and span, but not yet a body."""
        header = segment.lowered.body[0]
        row, last = segment.children[-1]
        end = self._end(last)
        span = Span(header.span.line, header.span.column, row + end[0], end[1])
        if isinstance(header, FunctionDef):
            block = self._collected(segment)
            scope = block.close_function((param.name for param in header.params), into=NameCollector())
            return replace(header, span=span, scope=scope)
        if isinstance(header, ClassDef):
            return replace(header, span=span)
        raise TypeError("a header is a definition")

    def _end(self, segment: Segment) -> tuple[int, int]:
        if segment.header is not None and not segment.is_broken:
            row, last = segment.children[-1]
            end = self._end(last)
            return row + end[0], end[1]
        if segment.lowered.body:
            span = segment.lowered.body[-1].span
            return span.end_line, span.end_column
        lines = split_lines(segment.text.removesuffix("\n").removesuffix("\r"))
        return len(lines) - 1, len(lines[-1])

    def _collected(self, segment: Segment) -> NameCollector:
        """What the body of a split definition does to names."""
        block = NameCollector()
        for _, child in segment.children:
            block.add(self._names(child))
        return block

    def _names(self, segment: Segment) -> Names:
        """What a segment does to the names of the block around it."""
        if segment.names is not None:
            return segment.names
        names = self._names_of_broken(segment) if segment.is_broken else self._names_of(segment)
        if not segment.has_problems:
            segment.names = names
        return names

    def _names_of_broken(self, segment: Segment) -> Names:
        block = NameCollector()
        stale = self._stale.get(segment)
        for _, stand_in in () if stale is None else stale.segments:
            block.add(self._names(stand_in))
        return block.freeze()

    def _names_of(self, segment: Segment) -> Names:
        lowered = segment.lowered
        if segment.header is None:
            return lowered.names
        definition = lowered.body[0]
        outer = NameCollector()
        outer.add(lowered.names)
        generic = NameCollector()
        generic.bound |= lowered.type_names
        block = self._collected(segment)
        if isinstance(definition, FunctionDef):
            block.close_function((param.name for param in definition.params), into=generic)
        else:
            block.close_class(into=generic)
        generic.close_comprehension(is_lazy=False, into=outer)
        return outer.freeze()
