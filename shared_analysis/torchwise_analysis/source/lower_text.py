"""Lower a whole file that nobody is editing: batch work and libraries read as text."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator

from torchwise_analysis.source.lines import count_breaks, line_starts
from torchwise_analysis.source.lower_ast import AstLowering, parse
from torchwise_analysis.source.nodes import Block, Broken, Module, Placed, Problem, Span


def lower_text(path: str, text: str) -> Module:
    """The module of a text; never raises.

    What the running Python cannot parse is read by LibCST (newer syntax), and a text that is broken
    statement by statement, with `Broken` for the statements that do not parse.
    """
    try:
        tree = parse(text)
        body = _place(text, tree)
    except (SyntaxError, RecursionError) as error:
        return _broken(path, text, error)
    return Module(path, body, (), count_breaks(text) + 1)


def key_of(text: str) -> str:
    """Names a piece of source by its text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _place(text: str, tree: ast.Module) -> Block:
    starts = [*line_starts(text), len(text)]
    lowering = AstLowering(text)
    placed: list[Placed] = []
    for group in _by_lines(tree.body):
        lowering.base = lowering.first_line(group[0])
        body = lowering.statements(group)
        end_line = body[-1].span.end_line
        piece = text[starts[lowering.base] : starts[min(lowering.base + end_line + 1, len(starts) - 1)]]
        span = Span(lowering.base, body[0].span.column, lowering.base + end_line, body[-1].span.end_column)
        placed.append(Placed(span, lowering.base, body, key_of(piece)))
    return tuple(placed)


def _by_lines(statements: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Statements that share a line (semicolons) stay together."""
    group: list[ast.stmt] = []
    for statement in statements:
        if group and statement.lineno > (group[-1].end_lineno or 0):
            yield group
            group = []
        group.append(statement)
    if group:
        yield group


def _broken(path: str, text: str, error: SyntaxError | RecursionError) -> Module:
    lines = count_breaks(text) + 1
    message = error.msg if isinstance(error, SyntaxError) else "nested too deeply"
    line = max(0, min(lines - 1, (getattr(error, "lineno", None) or 1) - 1))
    problem = Problem(Span(line, 0, line, 0), message)
    return Module(path, (Broken(Span(0, 0, lines - 1, 0), message),), (problem,), lines)
