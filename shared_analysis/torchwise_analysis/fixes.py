"""Edits that a rule proposes: built from source text, applied byte for byte, verified before offered.

An edit never reprints code: it inserts, deletes or replaces a range and leaves every other character alone
(line endings, BOM, indentation, comments). Positions are absolute, lines and columns from 0, columns in
code points.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from torchwise_analysis.findings import Edit, Finding, Fix, Place
from torchwise_analysis.source import nodes
from torchwise_analysis.source.children import children_reversed
from torchwise_analysis.source.lines import count_breaks, line_starts
from torchwise_analysis.source.lower_text import Parsed, lower_text
from torchwise_analysis.source.nodes import Span

Reanalyse: TypeAlias = Callable[[str, str], "Sequence[Finding] | None"]
"""(path, new text) -> all findings of the changed file, None where it does not parse."""


class SourceFile:
    """The text of one file with its lowered module: what fixes and suppressions read.

    `lower` gives the module when it is first asked for, where the caller has none.
    """

    def __init__(
        self,
        path: str,
        text: str,
        module: nodes.Module | None = None,
        lower: Callable[[str, str, Parsed | None], nodes.Module] = lower_text,
    ) -> None:
        self.path = path
        self.text = text
        self.parsed = Parsed(text)
        self._module = module
        self._lower = lower

    @property
    def module(self) -> nodes.Module:
        """The lowered module; parsed on first use when the caller had none."""
        if self._module is None:
            self._module = self._lower(self.path, self.text, self.parsed)
        return self._module

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Physical lines with their endings; the last has none and may be empty."""
        ends = [*self._line_starts[1:], len(self.text)]
        return tuple(self.text[start:end] for start, end in zip(self._line_starts, ends, strict=True))

    @cached_property
    def newline(self) -> str:
        """The ending of the first line, a line feed for a file of one line."""
        for line in self.lines[:1]:
            ending = line[len(line.rstrip("\r\n")) :]
            if ending:
                return ending
        return "\n"

    def statements_with(self, attribute: str) -> tuple[nodes.Stmt, ...]:
        """The statements that take or set `.attribute` of something, not counting statements inside them."""
        return tuple(self._by_attribute.get(attribute, ()))

    @cached_property
    def _by_attribute(self) -> dict[str, list[nodes.Stmt]]:
        found: dict[str, list[nodes.Stmt]] = {}
        for statement, _ in statements(self.module):
            for name in {e.attr for e in expressions(statement) if isinstance(e, nodes.Attribute)}:
                found.setdefault(name, []).append(statement)
        return found

    @cached_property
    def _line_starts(self) -> list[int]:
        return line_starts(self.text)

    def offset(self, line: int, column: int) -> int:
        """Index into `text`; a position past the end is the end."""
        if line >= len(self._line_starts):
            return len(self.text)
        return min(self._line_starts[line] + column, len(self.text))

    def slice(self, span: Span) -> str:
        """The text of a range."""
        return self.text[self.offset(span.line, span.column) : self.offset(span.end_line, span.end_column)]

    def line(self, line: int) -> str:
        """One line without its ending; empty past the end."""
        return self.lines[line].rstrip("\r\n") if line < len(self.lines) else ""

    def indentation(self, line: int) -> str:
        """Leading blanks and tabs of a line."""
        text = self.line(line)
        return text[: len(text) - len(text.lstrip(" \t\f"))]


# --------------------------------------------------------------------------- builders


def insert_at(file: SourceFile, line: int, column: int, text: str) -> Edit:
    return Edit(Place(file.path, Span(line, column, line, column)), text)


def append_to(place: Place, suffix: str) -> Edit:
    """Text right behind an expression, for example `.detach()`."""
    end_line, end_column = place.span.end_line, place.span.end_column
    return Edit(Place(place.path, Span(end_line, end_column, end_line, end_column)), suffix)


def append_call(file: SourceFile, expression: nodes.Expr, span: Span, call: str) -> tuple[Edit, ...]:
    """`<expression>.call()`, with brackets around an expression that binds weaker than a dot."""
    if isinstance(expression, nodes.Name | nodes.Attribute | nodes.Subscript | nodes.Call) or _is_bracketed(
        file, span
    ):
        return (append_to(Place(file.path, span), call),)
    return (
        insert_at(file, span.line, span.column, "("),
        insert_at(file, span.end_line, span.end_column, ")" + call),
    )


def wrap(place: Place, before: str, after: str) -> tuple[Edit, Edit]:
    """`before<expression>after`."""
    start = Span(place.span.line, place.span.column, place.span.line, place.span.column)
    return Edit(Place(place.path, start), before), append_to(place, after)


def replace(place: Place, text: str) -> Edit:
    return Edit(place, text)


def insert_statement_before(file: SourceFile, line: int, column: int, statement: str) -> Edit | None:
    """`statement` on a line of its own above the statement at (line, column).

    None where no line can be added there: behind a semicolon, or in a compound statement of one line.
    """
    lead = file.line(line)[:column]
    if lead.strip(" \t\f\ufeff"):
        return None
    column = 1 if lead.startswith("\ufeff") else 0
    return insert_at(file, line, column, lead[column:] + statement + file.newline)


def insert_statement_after(file: SourceFile, span: Span, statement: str) -> Edit | None:
    """`statement` on a line of its own below the simple statement of `span`, in its block; None as above."""
    lead = file.line(span.line)[: span.column]
    rest = file.line(span.end_line)[span.end_column :].strip()
    if lead.strip(" \t\f\ufeff") or (rest and not rest.startswith("#")):
        return None
    line = span.end_line
    if line >= len(file.lines):
        return None  # it stands in for a part that is broken
    if line + 1 >= len(file.lines):
        return insert_at(file, line, len(file.lines[line]), file.newline + lead.lstrip("\ufeff") + statement)
    return insert_at(file, line + 1, 0, lead.lstrip("\ufeff") + statement + file.newline)


def indent_under(file: SourceFile, span: Span, header: str) -> tuple[Edit, ...] | None:
    """Put the statement of `span` below `header` (for example `with torch.no_grad():`), one level deeper.

    None where that would change more than layout: the statement does not begin its line, or one of its lines
    begins inside a string.
    """
    lead = file.line(span.line)[: span.column]
    if lead.strip(" \t\f"):
        return None
    if _has_multiline_string(file, span):
        return None
    step = indentation_unit(file)
    edits = [insert_at(file, span.line, 0, lead + header + file.newline + step)]
    edits += [
        insert_at(file, line, 0, step)
        for line in range(span.line + 1, span.end_line + 1)
        if file.line(line).strip()
    ]
    return tuple(edits)


def indentation_unit(file: SourceFile) -> str:
    """One level of the file's own indentation, four blanks where nothing is indented."""
    for number in range(1, len(file.lines)):
        outer, inner = file.indentation(number - 1), file.indentation(number)
        opens_block = file.line(number - 1).rstrip().endswith(":")
        if opens_block and file.line(number).strip() and len(inner) > len(outer) and inner.startswith(outer):
            return inner[len(outer) :]
    return "    "


def name_for_module(file: SourceFile, dotted: str) -> tuple[str, Edit | None]:
    """How the module `dotted` is written in this file, and the import to add when it is not bound yet."""
    for statement in _top_level(file.module):
        if isinstance(statement, nodes.Import):
            for alias in statement.names:
                if alias.asname is not None and alias.name == dotted:
                    return alias.asname, None
                if alias.asname is None and (alias.name == dotted or alias.name.startswith(dotted + ".")):
                    return dotted, None
    return dotted, _import_edit(file, f"import {dotted}")


def name_for_member(file: SourceFile, module: str, member: str) -> str | None:
    """The local name of `from module import member`, if the file has that import."""
    for statement in _top_level(file.module):
        if isinstance(statement, nodes.ImportFrom) and statement.module == module and statement.level == 0:
            for alias in statement.names:
                if alias.name == member:
                    return alias.asname or alias.name
    return None


def is_imported(file: SourceFile, expression: nodes.Expr) -> bool:
    """Whether a dotted name begins with one that an import of the file binds."""
    while isinstance(expression, nodes.Attribute):
        expression = expression.value
    if not isinstance(expression, nodes.Name):
        return False
    return any(
        expression.id == (alias.asname or alias.name.partition(".")[0])
        for statement, _ in statements(file.module)
        if isinstance(statement, nodes.Import | nodes.ImportFrom)
        for alias in statement.names
    )


def _has_multiline_string(file: SourceFile, span: Span) -> bool:
    for statement, place in statements(file.module):
        if not _holds(span, place):
            continue
        for expression in expressions(statement):
            is_text = isinstance(expression, nodes.FormattedString) or (
                isinstance(expression, nodes.Constant) and isinstance(expression.value, str | bytes)
            )
            if is_text and expression.span.end_line > expression.span.line:
                return True
    return False


def _is_bracketed(file: SourceFile, span: Span) -> bool:
    text = file.slice(span)
    if not (text.startswith(("(", "[", "{")) and text.endswith((")", "]", "}"))):
        return False
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and index < len(text) - 1:
            return False
    return True


def _import_edit(file: SourceFile, statement: str) -> Edit:
    """Above the first import that is not from `__future__`, else below docstring and future imports."""
    below = 0
    for place, node in _top_level_placed(file.module):
        if isinstance(node, nodes.ImportFrom) and node.module == "__future__":
            below = place.end_line + 1
        elif isinstance(node, nodes.Import | nodes.ImportFrom):
            group_ends = _is_standard(statement.split()[1]) and not _is_standard(_imported_module(node))
            gap = file.newline if group_ends else ""
            edit = insert_statement_before(file, place.line, place.column, statement + gap)
            if edit is not None:
                return edit
        elif (
            isinstance(node, nodes.ExprStmt)
            and isinstance(node.value, nodes.Constant)
            and isinstance(node.value.value, str)
        ):
            below = max(below, place.end_line + 1)
        else:
            break
    if below == 0:
        below = _first_line_below_header_comments(file)
    lead = file.newline if below >= len(file.lines) else ""
    return insert_at(file, below, 0, lead + statement + file.newline)


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _imported_module(node: nodes.Import | nodes.ImportFrom) -> str:
    return node.names[0].name if isinstance(node, nodes.Import) else node.module


def _first_line_below_header_comments(file: SourceFile) -> int:
    line = 0
    while line < len(file.lines) and file.line(line).startswith(("#!", "# -*-", "# coding", "\ufeff#!")):
        line += 1
    return line


# --------------------------------------------------------------------------- statements of a module


def statements(module: nodes.Module) -> Iterator[tuple[nodes.Stmt, Span]]:
    """All statements, outer before inner, with their absolute spans."""
    yield from _placed_statements(module.body, 0)


def innermost_statement(module: nodes.Module, span: Span) -> tuple[nodes.Stmt, Span] | None:
    """The innermost statement whose range holds `span`."""
    found = None
    todo: list[tuple[nodes.Node, int]] = [(outer, 0) for outer in _near(module.body, span.line)]
    while todo:
        node, line = todo.pop()
        if isinstance(node, nodes.Placed):
            if _holds(node.span, span):
                todo += [(inner, node.line) for inner in _near(node.body, span.line - node.line)]
            continue
        if isinstance(node, nodes.Stmt):
            place = node.span.shifted(line)
            if not _holds(place, span):
                continue
            found = (node, place)
        # of the many statements of a block most are passed at the price of two numbers
        at = span.line - line
        todo += [
            (child, line)
            for child in children_reversed(node)
            if (child.span.line <= at <= child.span.end_line or child.__class__ is nodes.Placed)
            and _may_hold_statements(child)
        ]
    return found


def _near(block: Sequence[nodes.Node], line: int) -> Sequence[nodes.Node]:
    """The statements of a block that touch a line, last first; the block is in order."""
    first = bisect_left(block, line, key=lambda node: node.span.end_line)
    last = bisect_right(block, line, lo=first, key=lambda node: node.span.line)
    return block[first:last][::-1]


def innermost_expression(
    module: nodes.Module, span: Span, kind: type[nodes.Expr] = nodes.Expr
) -> tuple[nodes.Expr, Span] | None:
    """The innermost expression of class `kind` that holds `span`."""
    found = innermost_statement(module, span)
    if found is None:
        return None
    statement, place = found
    shift = place.line - statement.span.line
    best: tuple[nodes.Expr, Span] | None = None
    for expression in expressions(statement):
        absolute = expression.span.shifted(shift)
        if isinstance(expression, kind) and _holds(absolute, span):
            best = (expression, absolute)
    return best


def expression_at(module: nodes.Module, span: Span) -> nodes.Expr | None:
    """The outermost expression that stands exactly at `span`."""
    found = innermost_statement(module, span)
    if found is None:
        return None
    statement, place = found
    shift = place.line - statement.span.line
    for expression in expressions(statement):
        if expression.span.shifted(shift) == span:
            return expression
    return None


def expressions(node: nodes.Node) -> Iterator[nodes.Expr]:
    """Expressions below `node`, outer before inner, without those of inner statements."""
    todo = children_reversed(node)
    while todo:
        child = todo.pop()
        if isinstance(child, nodes.Stmt):
            continue
        if isinstance(child, nodes.Expr):
            yield child
        todo += children_reversed(child)


def _placed_statements(block: Iterable[nodes.Node], line: int) -> Iterator[tuple[nodes.Stmt, Span]]:
    for node in block:
        if isinstance(node, nodes.Placed):
            yield from _placed_statements(node.body, node.line)
            continue
        if isinstance(node, nodes.Stmt):
            yield node, node.span.shifted(line)
        inner = [child for child in children_reversed(node) if _may_hold_statements(child)]
        if inner:
            yield from _placed_statements(inner[::-1], line)


def _may_hold_statements(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Stmt | nodes.Handler | nodes.MatchCase)


def _top_level_placed(module: nodes.Module) -> Iterator[tuple[Span, nodes.Stmt]]:
    for outer in module.body:
        if isinstance(outer, nodes.Placed):
            for statement in outer.body:
                yield statement.span.shifted(outer.line), statement
        else:
            yield outer.span, outer


def _top_level(module: nodes.Module) -> Iterator[nodes.Stmt]:
    return (statement for _, statement in _top_level_placed(module))


def _holds(outer: Span, inner: Span) -> bool:
    starts_before = (outer.line, outer.column) <= (inner.line, inner.column)
    return starts_before and (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)


# --------------------------------------------------------------------------- applying and verifying


def apply_edits(file: SourceFile, edits: Iterable[Edit]) -> str:
    """The text of `file` after `edits` (those of other files are left out).

    Insertions at one position keep their given order.

    Raises:
        OverlappingEditsError: two edits change the same characters.
    """
    ranges = [
        (
            file.offset(edit.place.span.line, edit.place.span.column),
            file.offset(edit.place.span.end_line, edit.place.span.end_column),
            edit.text,
        )
        for edit in edits
        if edit.place.path == file.path
    ]
    ranges.sort(key=lambda entry: entry[:2])
    pieces: list[str] = []
    position = 0
    for start, end, text in ranges:
        if start < position:
            raise OverlappingEditsError(file.path, start)
        pieces += [file.text[position:start], text]
        position = end
    return "".join([*pieces, file.text[position:]])


class OverlappingEditsError(ValueError):
    """Two edits of one set change the same characters."""

    def __init__(self, path: str, offset: int) -> None:
        super().__init__(f"overlapping edits in {path} at character {offset}")


def is_offerable(
    file: SourceFile, finding: Finding, fix: Fix, findings: Sequence[Finding], reanalyse: Reanalyse
) -> bool:
    """Whether the fixed file parses, loses `finding` and gains no finding of any rule.

    `findings` are all findings of the file before the fix, of every grade.
    """
    if not fix.edits:
        return True
    if any(edit.place.path != file.path for edit in fix.edits):
        return False
    try:
        text = apply_edits(file, fix.edits)
    except OverlappingEditsError:
        return False
    after = reanalyse(file.path, text)
    return after is not None and _is_better(Applied(finding, fix), findings, after)


@dataclass(frozen=True, slots=True)
class Applied:
    """A fix that was applied; `line` (from 0) is where its finding stood at that moment."""

    finding: Finding
    fix: Fix

    @property
    def line(self) -> int:
        return self.finding.place.span.line


@dataclass(frozen=True, slots=True)
class Repair:
    """A file after its fixes. left: what is still found, with fixes that are not verified.

    refused: fixes that were wanted and would not have left the file better (it would not parse, the finding
    would stay, or a new one come).
    """

    file: SourceFile
    applied: tuple[Applied, ...]
    left: tuple[Finding, ...]
    refused: tuple[Applied, ...] = ()


# Fixes may undo each other, and each costs an analysis; nobody's file holds more.
_MOST_APPLIED = 500
_MOST_TRIES = 2_000


def apply_plainly(file: SourceFile, finding: Finding, fix: Fix) -> str | None:  # noqa: ARG001
    """The text after a fix; None where it reaches into other files or its edits overlap."""
    if any(edit.place.path != file.path for edit in fix.edits):
        return None
    try:
        return apply_edits(file, fix.edits)
    except OverlappingEditsError:
        return None


def repair(
    file: SourceFile,
    findings: Sequence[Finding],
    wanted: Callable[[Finding, Fix], bool],
    reanalyse: Reanalyse,
    apply: Callable[[SourceFile, Finding, Fix], str | None] = apply_plainly,
) -> Repair:
    """Apply the wanted fixes of `findings` one at a time, each only if the file then parses, has lost the
    finding and gained none; then those of what is found in the result, until nothing changes.

    Analysing between two fixes is what makes overlapping edits harmless: the second is computed on the
    result of the first. `findings`, like what `reanalyse` gives, may be those of several analyses that read
    this file, one after the other; a fix is judged by all of them.
    """
    applied: list[Applied] = []
    left = tuple(findings)
    refused: dict[tuple[str, str, int, str], Applied] = {}
    tries = applied_before = 0
    while len(applied) < _MOST_APPLIED and tries < _MOST_TRIES:
        candidate = next((c for c in _candidates(file, left, wanted) if _title_key(c) not in refused), None)
        if candidate is None:
            if not refused or len(applied) == applied_before:
                break
            # what was refused may be possible on what the others left
            applied_before, refused = len(applied), {}
            continue
        tries += 1
        text = apply(file, candidate.finding, candidate.fix)
        after = None if text is None or text == file.text else reanalyse(file.path, text)
        if text is None or after is None or not _is_better(candidate, left, after):
            refused[_title_key(candidate)] = candidate
            continue
        applied.append(candidate)
        refused = {
            (*_moved_key(one.finding, candidate.fix.edits), one.fix.title): one for one in refused.values()
        }
        file, left = SourceFile(file.path, text), tuple(after)
    return Repair(file, tuple(applied), left, tuple(refused.values()))


def _title_key(one: Applied) -> tuple[str, str, int, str]:
    return (*_key(one.finding), one.fix.title)


def _candidates(
    file: SourceFile, findings: Sequence[Finding], wanted: Callable[[Finding, Fix], bool]
) -> Iterator[Applied]:
    for finding in findings:
        if finding.place.path != file.path:
            continue
        for fix in finding.fixes:
            if fix.edits and wanted(finding, fix):
                yield Applied(finding, fix)


def _is_better(one: Applied, before: Sequence[Finding], after: Sequence[Finding]) -> bool:
    """Whether `after` holds nothing but what `before` held, without the finding of the fix."""
    finding = one.finding
    others = (each for each in before if (each.rule, each.place) != (finding.rule, finding.place))
    allowed = Counter(_moved_key(each, one.fix.edits) for each in others)
    keys = Counter(map(_key, after))
    return not keys - allowed and _moved_key(finding, one.fix.edits) not in keys


_Key: TypeAlias = "tuple[str, str, int]"


def _key(finding: Finding) -> _Key:
    return finding.place.path, finding.rule, finding.place.span.line


def _moved_key(finding: Finding, edits: Iterable[Edit]) -> _Key:
    """Path, rule and line of a finding after `edits` have moved lines."""
    line, column = finding.place.span.line, finding.place.span.column
    moved = line
    for edit in edits:
        span = edit.place.span
        if edit.place.path == finding.place.path and (span.end_line, span.end_column) <= (line, column):
            moved += count_breaks(edit.text) - (span.end_line - span.line)
    return finding.place.path, finding.rule, moved
