"""The small Python on which both interpreters run.

Every front end (LibCST for open documents, `ast` for batch work and libraries read as text) lowers
to these nodes and nothing else. They are frozen, picklable and position-relative:

* a `Span` counts lines from the first line of the *segment* that the node was parsed from, so two
  segments of equal text share one lowering and an edit above moves nothing;
* a `Placed` statement puts the statements of one segment at an absolute line. It is the only node
  that knows where in the document it stands, and it is rebuilt, cheaply, after every edit.

Lines and columns count from 0, columns in code points; reporters add what their format wants.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from torchwise_analysis.quick import record


class Span(NamedTuple):
    """Half-open range of source text; lines relative to the segment (absolute once placed)."""

    line: int
    column: int
    end_line: int
    end_column: int

    def shifted(self, lines: int) -> Span:
        """The same span, `lines` further down."""
        line, column, end_line, end_column = self
        return Span._make((line + lines, column, end_line + lines, end_column))


@record(frozen=True, slots=True)
class Node:
    """Anything with a place in the source."""

    span: Span


# --------------------------------------------------------------------------- expressions


@record(frozen=True, slots=True)
class Expr(Node):
    """An expression."""


ConstantValue: TypeAlias = "int | float | complex | str | bytes | bool | EllipsisType | None"


class EllipsisType(Enum):
    """Stands for `...`: the built-in singleton does not survive every pickle protocol by identity."""

    ELLIPSIS = "..."


@record(frozen=True, slots=True)
class Constant(Expr):
    """A literal; implicitly concatenated strings are one constant."""

    value: ConstantValue


@record(frozen=True, slots=True)
class Name(Expr):
    id: str


@record(frozen=True, slots=True)
class Attribute(Expr):
    """`value.attr`; the attribute's own text is the last `len(attr)` columns of the span."""

    value: Expr
    attr: str


@record(frozen=True, slots=True)
class Subscript(Expr):
    """`value[index]`; several indices are one `TupleExpr`."""

    value: Expr
    index: Expr


@record(frozen=True, slots=True)
class Slice(Expr):
    lower: Expr | None
    upper: Expr | None
    step: Expr | None


@record(frozen=True, slots=True)
class Keyword(Node):
    """`name=value` of a call or class header; `**value` has no name."""

    name: str | None
    value: Expr


@record(frozen=True, slots=True)
class Call(Expr):
    """Positional arguments (`*xs` as `Starred`) and keywords, each in source order."""

    func: Expr
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...]


@record(frozen=True, slots=True)
class Starred(Expr):
    value: Expr


@record(frozen=True, slots=True)
class Binary(Expr):
    """`op` is the source operator: + - * / // % ** @ & | ^ << >>."""

    op: str
    left: Expr
    right: Expr


@record(frozen=True, slots=True)
class Unary(Expr):
    """`op` is one of: not - + ~."""

    op: str
    operand: Expr


@record(frozen=True, slots=True)
class BoolOp(Expr):
    """`op` is `and` or `or`; two or more values."""

    op: str
    values: tuple[Expr, ...]


@record(frozen=True, slots=True)
class Compare(Expr):
    """Chained comparison; ops: == != < <= > >= is, is not, in, not in."""

    left: Expr
    ops: tuple[str, ...]
    comparators: tuple[Expr, ...]


@record(frozen=True, slots=True)
class IfExp(Expr):
    test: Expr
    body: Expr
    orelse: Expr


@record(frozen=True, slots=True)
class ListExpr(Expr):
    elements: tuple[Expr, ...]


@record(frozen=True, slots=True)
class TupleExpr(Expr):
    elements: tuple[Expr, ...]


@record(frozen=True, slots=True)
class SetExpr(Expr):
    elements: tuple[Expr, ...]


@record(frozen=True, slots=True)
class DictExpr(Expr):
    """`keys[i]` is None for `**values[i]`."""

    keys: tuple[Expr | None, ...]
    values: tuple[Expr, ...]


@record(frozen=True, slots=True)
class Generator(Node):
    """One `for target in iter if ...` of a comprehension."""

    target: Expr
    iter: Expr
    conditions: tuple[Expr, ...]
    is_async: bool


class ComprehensionKind(Enum):
    LIST = "list"
    SET = "set"
    DICT = "dict"
    GENERATOR = "generator"


@record(frozen=True, slots=True)
class Comprehension(Expr):
    """`element` is the key and `value` the value of a dict comprehension."""

    kind: ComprehensionKind
    element: Expr
    value: Expr | None
    generators: tuple[Generator, ...]


@record(frozen=True, slots=True)
class FormattedString(Expr):
    """An f-string: literal pieces and expressions; conversions and formats are dropped."""

    parts: tuple[str | Expr, ...]


@record(frozen=True, slots=True)
class Await(Expr):
    value: Expr


@record(frozen=True, slots=True)
class Yield(Expr):
    value: Expr | None


@record(frozen=True, slots=True)
class YieldFrom(Expr):
    value: Expr


@record(frozen=True, slots=True)
class NamedExpr(Expr):
    """`target := value`."""

    target: Name
    value: Expr


# --------------------------------------------------------------------------- functions


class ParamKind(Enum):
    POSITIONAL_ONLY = "positional only"
    POSITIONAL = "positional or keyword"
    VAR_POSITIONAL = "*args"
    KEYWORD_ONLY = "keyword only"
    VAR_KEYWORD = "**kwargs"


@record(frozen=True, slots=True)
class Param(Node):
    name: str
    kind: ParamKind
    annotation: Expr | None
    default: Expr | None


@record(frozen=True, slots=True)
class Scope:
    """The names of one function or lambda, resolved as Python's compiler would.

    `captured` are own locals that an inner function uses: they outlive the call. `free` are names
    used here or inside that belong to an enclosing function, the module or the built-ins.
    """

    local: frozenset[str]
    captured: frozenset[str]
    free: frozenset[str]
    global_: frozenset[str]
    nonlocal_: frozenset[str]
    is_generator: bool


@record(frozen=True, slots=True)
class Lambda(Expr):
    params: tuple[Param, ...]
    body: Expr
    scope: Scope


# --------------------------------------------------------------------------- statements


@record(frozen=True, slots=True)
class Stmt(Node):
    """A statement; compound statements span their whole body."""


Block: TypeAlias = "tuple[Stmt, ...]"


@record(frozen=True, slots=True)
class Placed(Stmt):
    """The statements of one segment; their spans count from document line `line`.

    The span of a `Placed` itself is absolute. `key` identifies the segment's text: equal keys mean
    equal statements, so results may be cached under it.
    """

    line: int
    body: Block
    key: str


@record(frozen=True, slots=True)
class Broken(Stmt):
    """Source that does not parse; the interpreters pass over it and count it.

    Its span is absolute, also inside a body: like `Placed` it belongs to no segment.
    """

    message: str


@record(frozen=True, slots=True)
class ExprStmt(Stmt):
    value: Expr


@record(frozen=True, slots=True)
class Assign(Stmt):
    """`a = b = value` has two targets."""

    targets: tuple[Expr, ...]
    value: Expr


@record(frozen=True, slots=True)
class AnnAssign(Stmt):
    target: Expr
    annotation: Expr
    value: Expr | None


@record(frozen=True, slots=True)
class AugAssign(Stmt):
    """`op` without the equals sign."""

    target: Expr
    op: str
    value: Expr


@record(frozen=True, slots=True)
class Return(Stmt):
    value: Expr | None


@record(frozen=True, slots=True)
class Delete(Stmt):
    targets: tuple[Expr, ...]


@record(frozen=True, slots=True)
class Pass(Stmt):
    pass


@record(frozen=True, slots=True)
class Break(Stmt):
    pass


@record(frozen=True, slots=True)
class Continue(Stmt):
    pass


@record(frozen=True, slots=True)
class Raise(Stmt):
    exception: Expr | None
    cause: Expr | None


@record(frozen=True, slots=True)
class Assert(Stmt):
    test: Expr
    message: Expr | None


@record(frozen=True, slots=True)
class Global(Stmt):
    names: tuple[str, ...]


@record(frozen=True, slots=True)
class Nonlocal(Stmt):
    names: tuple[str, ...]


@record(frozen=True, slots=True)
class Alias(Node):
    """`name as asname`; `name` is dotted in an `Import`, may be `*` in an `ImportFrom`."""

    name: str
    asname: str | None


@record(frozen=True, slots=True)
class Import(Stmt):
    names: tuple[Alias, ...]


@record(frozen=True, slots=True)
class ImportFrom(Stmt):
    """`level` counts the leading dots."""

    module: str
    names: tuple[Alias, ...]
    level: int


@record(frozen=True, slots=True)
class If(Stmt):
    """`elif` is an `If` alone in `orelse`."""

    test: Expr
    body: Block
    orelse: Block


@record(frozen=True, slots=True)
class For(Stmt):
    target: Expr
    iter: Expr
    body: Block
    orelse: Block
    is_async: bool


@record(frozen=True, slots=True)
class While(Stmt):
    test: Expr
    body: Block
    orelse: Block


@record(frozen=True, slots=True)
class WithItem(Node):
    context: Expr
    target: Expr | None


@record(frozen=True, slots=True)
class With(Stmt):
    items: tuple[WithItem, ...]
    body: Block
    is_async: bool


@record(frozen=True, slots=True)
class Handler(Node):
    """`except type as name:`"""

    type: Expr | None
    name: str | None
    body: Block


@record(frozen=True, slots=True)
class Try(Stmt):
    body: Block
    handlers: tuple[Handler, ...]
    orelse: Block
    final: Block
    is_star: bool


@record(frozen=True, slots=True)
class FunctionDef(Stmt):
    """`header` spans `def` to the colon, without decorators; `span` includes the decorators."""

    name: str
    params: tuple[Param, ...]
    returns: Expr | None
    decorators: tuple[Expr, ...]
    body: Block
    scope: Scope
    is_async: bool
    header: Span


@record(frozen=True, slots=True)
class ClassDef(Stmt):
    """`header` spans `class` to the colon, without decorators."""

    name: str
    bases: tuple[Expr, ...]
    keywords: tuple[Keyword, ...]
    decorators: tuple[Expr, ...]
    body: Block
    header: Span


@record(frozen=True, slots=True)
class TypeAliasStmt(Stmt):
    """`type name = value` (PEP 695)."""

    name: str
    value: Expr


# --------------------------------------------------------------------------- match


@record(frozen=True, slots=True)
class Pattern(Node):
    """A pattern of a `case`."""


@record(frozen=True, slots=True)
class MatchValue(Pattern):
    """A literal, `None`/`True`/`False` or dotted name to compare with."""

    value: Expr


@record(frozen=True, slots=True)
class MatchAs(Pattern):
    """`pattern as name`; a bare capture has no pattern, `_` has neither."""

    pattern: Pattern | None
    name: str | None


@record(frozen=True, slots=True)
class MatchOr(Pattern):
    patterns: tuple[Pattern, ...]


@record(frozen=True, slots=True)
class MatchSequence(Pattern):
    patterns: tuple[Pattern, ...]


@record(frozen=True, slots=True)
class MatchStar(Pattern):
    name: str | None


@record(frozen=True, slots=True)
class MatchMapping(Pattern):
    keys: tuple[Expr, ...]
    patterns: tuple[Pattern, ...]
    rest: str | None


@record(frozen=True, slots=True)
class MatchClass(Pattern):
    cls: Expr
    patterns: tuple[Pattern, ...]
    keywords: tuple[tuple[str, Pattern], ...]


@record(frozen=True, slots=True)
class MatchCase(Node):
    pattern: Pattern
    guard: Expr | None
    body: Block


@record(frozen=True, slots=True)
class Match(Stmt):
    subject: Expr
    cases: tuple[MatchCase, ...]


# --------------------------------------------------------------------------- modules


@record(frozen=True, slots=True)
class Problem:
    """Why a part of a file could not be read; `span` is absolute."""

    span: Span
    message: str


@record(frozen=True, slots=True)
class Module:
    """A whole file. Every top-level statement is `Placed` (or `Broken`, with an absolute span).

    Members of long classes and functions are `Placed` again inside their parent's body; an inner
    `Placed.line` is absolute too.
    """

    path: str
    body: Block
    problems: tuple[Problem, ...]
    line_count: int
