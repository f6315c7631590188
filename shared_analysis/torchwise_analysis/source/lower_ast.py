"""Lower `ast` to the small Python of `nodes`.

The fast front end: it reads what the running Python reads. Positions of `ast` are UTF-8 byte
columns; ours are code points.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias, cast

from torchwise_analysis.source.lines import BYTE_ORDER_MARK, split_lines
from torchwise_analysis.source.nodes import (
    Alias,
    AnnAssign,
    Assert,
    Assign,
    Attribute,
    AugAssign,
    Await,
    Binary,
    Block,
    BoolOp,
    Break,
    Call,
    ClassDef,
    Compare,
    Comprehension,
    ComprehensionKind,
    Constant,
    ConstantValue,
    Continue,
    Delete,
    DictExpr,
    EllipsisType,
    Expr,
    ExprStmt,
    For,
    FormattedString,
    FunctionDef,
    Generator,
    Global,
    Handler,
    If,
    IfExp,
    Import,
    ImportFrom,
    Keyword,
    Lambda,
    ListExpr,
    Match,
    MatchAs,
    MatchCase,
    MatchClass,
    MatchMapping,
    MatchOr,
    MatchSequence,
    MatchStar,
    MatchValue,
    Name,
    NamedExpr,
    Nonlocal,
    Param,
    ParamKind,
    Pass,
    Pattern,
    Raise,
    Return,
    SetExpr,
    Slice,
    Span,
    Starred,
    Stmt,
    Subscript,
    Try,
    TupleExpr,
    TypeAliasStmt,
    Unary,
    While,
    With,
    WithItem,
    Yield,
    YieldFrom,
)
from torchwise_analysis.source.scopes import NameCollector, kept

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
_UNARY: dict[type[ast.unaryop], str] = {ast.Not: "not", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
# Terms of one chain of operators: everybody who walks the nodes recurses into them.
MAX_CHAIN = 400

_COLON_OR_COMMENT = re.compile(r":|#[^\r\n]*")

_Located: TypeAlias = (
    "ast.expr | ast.stmt | ast.arg | ast.keyword | ast.alias | ast.pattern | ast.excepthandler"
)


# Up to Python 3.11 the fields of a formatted string take time by the square of their number. A large file
# that holds as many braces is parsed statement by statement instead.
_MAX_FIELDS = 10_000
_FORMATTED = re.compile(r"""(?<!\w)[rR]?[fF][rR]?["']""")


def parse(text: str) -> ast.Module:
    """`ast.parse` without warnings about the user's escapes on our standard error.

    Raises SyntaxError for text that does not parse, for whichever reason: null bytes, lone
    surrogates and too deep nesting have other types in CPython.
    """
    if text.count("{") > _MAX_FIELDS and _FORMATTED.search(text) is not None:
        raise SyntaxError(f"more than {_MAX_FIELDS} braces around formatted strings")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text.removeprefix(BYTE_ORDER_MARK))
        except (ValueError, OverflowError) as error:
            raise SyntaxError(str(error)) from None
        except (RecursionError, MemoryError):
            raise SyntaxError("nested too deeply") from None


def taken(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements in order, out of their list: what is lowered makes room for what is lowered next."""
    statements.reverse()
    while statements:
        yield statements.pop()


class AstLowering:
    """Lowers statements of one parsed text.

    `base` is the line (from 0) that spans count from; the names of the block at hand are collected
    in `block`. May raise RecursionError on deep nesting.
    """

    def __init__(self, text: str) -> None:
        self.base = 0
        self.block = NameCollector()
        self.type_names: frozenset[str] = frozenset()
        """Type parameters of the last definition."""
        self._lines = split_lines(text)
        # column tables are needed for lines with anything outside ASCII only
        self._bytes: dict[int, bytes] | None = None if text.isascii() else {}
        self._mark = len(BYTE_ORDER_MARK) if text.startswith(BYTE_ORDER_MARK) else 0

    def statements(self, body: Iterable[ast.stmt]) -> Block:
        return tuple([_STATEMENTS[statement.__class__](self, statement) for statement in body])

    def expression(self, node: ast.expr) -> Expr:
        return _EXPRESSIONS[node.__class__](self, node)

    def expressions(self, nodes: Iterable[ast.expr]) -> tuple[Expr, ...]:
        return tuple([_EXPRESSIONS[node.__class__](self, node) for node in nodes])

    def optional(self, node: ast.expr | None) -> Expr | None:
        return None if node is None else _EXPRESSIONS[node.__class__](self, node)

    # ----------------------------------------------------------------- positions

    def span(self, node: _Located) -> Span:
        line, end_line = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        column, end_column = node.col_offset, node.end_col_offset or node.col_offset
        if self._bytes is not None:
            column = self._code_points(line, column)
            end_column = self._code_points(end_line, end_column)
        return Span._make((line - self.base, column, end_line - self.base, end_column))

    def character(self, span: Span) -> str:
        """The first character of a span."""
        return self._lines[span.line + self.base][span.column : span.column + 1]

    def _code_points(self, line: int, column: int) -> int:
        tables = self._bytes
        if tables is None or line >= len(self._lines):
            return column
        mark = self._mark if line == 0 else 0
        if self._lines[line].isascii():
            return column
        encoded = tables.get(line)
        if encoded is None:
            encoded = tables[line] = self._lines[line][mark:].encode()
        return mark + len(encoded[:column].decode(errors="replace"))

    def decorated(self, span: Span, decorators: Iterable[Expr]) -> Span:
        """The span of a definition from the `@` of its first decorator."""
        first = next(iter(decorators), None)
        if first is None:
            return span
        line = self._at_line(first.span.line + self.base)
        return Span(line - self.base, self._lines[line].find("@"), span.end_line, span.end_column)

    def _at_line(self, line: int) -> int:
        # nothing but opening brackets, comments and continuations may stand between `@` and the expression
        while line > 0 and not self._lines[line].lstrip(" \t\f\ufeff").startswith("@"):
            line -= 1
        return line

    def first_line(self, statement: ast.stmt) -> int:
        """Line (from 0) of a statement with its decorators."""
        decorators = cast("list[ast.expr]", getattr(statement, "decorator_list", []))
        if not decorators:
            return statement.lineno - 1
        return self._at_line(decorators[0].lineno - 1)

    def header(self, start: Span, last: Span | None) -> Span:
        """From a definition's keyword to its colon; `last` is the last piece of the header."""
        line, column = (start.line, start.column) if last is None else (last.end_line, last.end_column)
        line += self.base
        while line < len(self._lines):
            for match in _COLON_OR_COMMENT.finditer(self._lines[line], column):
                if match.group() == ":":
                    return Span(start.line, start.column, line - self.base, match.end())
            line, column = line + 1, 0
        return start

    # ----------------------------------------------------------------- functions

    def parameters(self, arguments: ast.arguments) -> tuple[Param, ...]:
        """Parameters in source order; defaults and annotations belong to the block around."""
        positional = [
            *((a, ParamKind.POSITIONAL_ONLY) for a in arguments.posonlyargs),
            *((a, ParamKind.POSITIONAL) for a in arguments.args),
        ]
        missing = len(positional) - len(arguments.defaults)
        out: list[Param] = []
        for index, (argument, kind) in enumerate(positional):
            default = arguments.defaults[index - missing] if index >= missing else None
            out.append(self._parameter(argument, kind, default))
        if arguments.vararg is not None:
            out.append(self._parameter(arguments.vararg, ParamKind.VAR_POSITIONAL, None))
        for argument, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            out.append(self._parameter(argument, ParamKind.KEYWORD_ONLY, keyword_default))
        if arguments.kwarg is not None:
            out.append(self._parameter(arguments.kwarg, ParamKind.VAR_KEYWORD, None))
        return tuple(out)

    def _parameter(self, argument: ast.arg, kind: ParamKind, default: ast.expr | None) -> Param:
        annotation = self.optional(argument.annotation)
        return Param(self.span(argument), argument.arg, kind, annotation, self.optional(default))

    def type_parameters(self, node: ast.stmt) -> Span | None:
        """Bind PEP 695 type parameters in the current block; the span of the last one."""
        last: Span | None = None
        for parameter in cast("list[_TypeParam]", getattr(node, "type_params", [])):
            self.block.bound.add(parameter.name)
            self.optional(getattr(parameter, "bound", None))
            self.optional(getattr(parameter, "default_value", None))
            last = self.span(parameter)
        return last


class _TypeParam(ast.expr):
    """What `ast.TypeVar`, `ast.ParamSpec` and `ast.TypeVarTuple` of 3.12 have in common."""

    name: str


def header_end(*parts: Iterable[Expr | Param | Keyword]) -> Span | None:
    """The span that ends last, defaults of parameters included."""
    last: Span | None = None
    for part in (part for group in parts for part in group):
        spans = [part.span]
        if isinstance(part, Param) and part.default is not None:
            spans.append(part.default.span)
        for span in spans:
            if last is None or span[2:] > last[2:]:
                last = span
    return last


# --------------------------------------------------------------------------- expressions


def _constant(lowering: AstLowering, node: ast.Constant) -> Expr:
    value = EllipsisType.ELLIPSIS if node.value is ... else cast("ConstantValue", node.value)
    return Constant(lowering.span(node), value)


def _name(lowering: AstLowering, node: ast.Name) -> Expr:
    if node.ctx.__class__ is ast.Load:
        lowering.block.used.add(node.id)
    else:
        lowering.block.bound.add(node.id)
    return Name(lowering.span(node), node.id)


def _attribute(lowering: AstLowering, node: ast.Attribute) -> Expr:
    return Attribute(lowering.span(node), lowering.expression(node.value), node.attr)


def _subscript(lowering: AstLowering, node: ast.Subscript) -> Expr:
    return Subscript(lowering.span(node), lowering.expression(node.value), lowering.expression(node.slice))


def _slice(lowering: AstLowering, node: ast.Slice) -> Expr:
    return Slice(
        lowering.span(node),
        lowering.optional(node.lower),
        lowering.optional(node.upper),
        lowering.optional(node.step),
    )


def _keywords(lowering: AstLowering, nodes: Iterable[ast.keyword]) -> tuple[Keyword, ...]:
    return tuple([Keyword(lowering.span(k), k.arg, lowering.expression(k.value)) for k in nodes])


def _call(lowering: AstLowering, node: ast.Call) -> Expr:
    return Call(
        lowering.span(node),
        lowering.expression(node.func),
        lowering.expressions(node.args),
        _keywords(lowering, node.keywords),
    )


def _starred(lowering: AstLowering, node: ast.Starred) -> Expr:
    return Starred(lowering.span(node), lowering.expression(node.value))


def _binary(lowering: AstLowering, node: ast.BinOp) -> Expr:
    # a chain `a + b + c + ...` leans left: no recursion for what is not deep to its author
    chain = [node]
    while isinstance(chain[-1].left, ast.BinOp):
        chain.append(chain[-1].left)
    if len(chain) > MAX_CHAIN:
        raise SyntaxError("nested too deeply")
    left = lowering.expression(chain[-1].left)
    for link in reversed(chain):
        right = lowering.expression(link.right)
        left = Binary(lowering.span(link), _BINARY[link.op.__class__], left, right)
    return left


def _unary(lowering: AstLowering, node: ast.UnaryOp) -> Expr:
    return Unary(lowering.span(node), _UNARY[node.op.__class__], lowering.expression(node.operand))


def _bool_op(lowering: AstLowering, node: ast.BoolOp) -> Expr:
    op = "and" if isinstance(node.op, ast.And) else "or"
    return BoolOp(lowering.span(node), op, lowering.expressions(node.values))


def _compare(lowering: AstLowering, node: ast.Compare) -> Expr:
    return Compare(
        lowering.span(node),
        lowering.expression(node.left),
        tuple([_COMPARE[op.__class__] for op in node.ops]),
        lowering.expressions(node.comparators),
    )


def _if_exp(lowering: AstLowering, node: ast.IfExp) -> Expr:
    body = lowering.expression(node.body)
    test = lowering.expression(node.test)
    return IfExp(lowering.span(node), test, body, lowering.expression(node.orelse))


def _list(lowering: AstLowering, node: ast.List) -> Expr:
    return ListExpr(lowering.span(node), lowering.expressions(node.elts))


def _tuple(lowering: AstLowering, node: ast.Tuple) -> Expr:
    return TupleExpr(lowering.span(node), lowering.expressions(node.elts))


def _set(lowering: AstLowering, node: ast.Set) -> Expr:
    return SetExpr(lowering.span(node), lowering.expressions(node.elts))


def _dict(lowering: AstLowering, node: ast.Dict) -> Expr:
    keys = tuple([lowering.optional(key) for key in node.keys])
    return DictExpr(lowering.span(node), keys, lowering.expressions(node.values))


def _comprehension(
    lowering: AstLowering,
    node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp,
    kind: ComprehensionKind,
    element: ast.expr,
    value: ast.expr | None = None,
) -> Expr:
    outer = lowering.block
    first_iterable = lowering.expression(node.generators[0].iter)
    lowering.block = inner = NameCollector(enclosing=outer)
    generators: list[Generator] = []
    for index, generator in enumerate(node.generators):
        target = lowering.expression(generator.target)
        iterable = lowering.expression(generator.iter) if index else first_iterable
        conditions = lowering.expressions(generator.ifs)
        generators.append(
            Generator(
                generator_span(target, iterable, conditions),
                target,
                iterable,
                conditions,
                bool(generator.is_async),
            )
        )
    lowered = lowering.expression(element)
    lowered_value = lowering.optional(value)
    lowering.block = outer
    inner.close_comprehension(is_lazy=kind is ComprehensionKind.GENERATOR, into=outer)
    return Comprehension(lowering.span(node), kind, lowered, lowered_value, tuple(generators))


def generator_span(target: Expr, iterable: Expr, conditions: tuple[Expr, ...]) -> Span:
    """`ast` gives no place for one `for` of a comprehension: from its target to its last part."""
    last = conditions[-1] if conditions else iterable
    return Span(target.span.line, target.span.column, last.span.end_line, last.span.end_column)


def _list_comp(lowering: AstLowering, node: ast.ListComp) -> Expr:
    return _comprehension(lowering, node, ComprehensionKind.LIST, node.elt)


def _set_comp(lowering: AstLowering, node: ast.SetComp) -> Expr:
    return _comprehension(lowering, node, ComprehensionKind.SET, node.elt)


def _generator_exp(lowering: AstLowering, node: ast.GeneratorExp) -> Expr:
    return _comprehension(lowering, node, ComprehensionKind.GENERATOR, node.elt)


def _dict_comp(lowering: AstLowering, node: ast.DictComp) -> Expr:
    return _comprehension(lowering, node, ComprehensionKind.DICT, node.key, node.value)


def _joined_str(lowering: AstLowering, node: ast.JoinedStr) -> Expr:
    parts: list[str | Expr] = []
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            parts.append(_field(lowering, value.value))
            # a format may use names; the node keeps none of it
            lowering.optional(value.format_spec)
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            parts.append(value.value)
    return FormattedString(lowering.span(node), merge_literals(parts))


def _field(lowering: AstLowering, node: ast.expr) -> Expr:
    """An expression in an f-string; before 3.12 a bare tuple is given the braces as its brackets."""
    lowered = lowering.expression(node)
    if not isinstance(lowered, TupleExpr) or not lowered.elements or lowering.character(lowered.span) != "{":
        return lowered
    first, last = lowered.elements[0].span, lowered.elements[-1].span
    return replace(lowered, span=Span(first.line, first.column, last.end_line, last.end_column))


def merge_literals(parts: Iterable[str | Expr]) -> tuple[str | Expr, ...]:
    """Join neighbouring literal pieces and drop empty ones: Pythons differ in how they cut them."""
    out: list[str | Expr] = []
    for part in parts:
        if isinstance(part, str) and out and isinstance(out[-1], str):
            out[-1] += part
        elif part != "":
            out.append(part)
    return tuple(out)


def _template_str(lowering: AstLowering, node: ast.expr) -> Expr:
    """A t-string (3.14): its parts are those of an f-string."""
    parts: list[str | Expr] = []
    for value in cast("list[ast.expr]", getattr(node, "values", [])):
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
            continue
        parts.append(lowering.expression(cast("ast.expr", getattr(value, "value"))))  # noqa: B009
        lowering.optional(getattr(value, "format_spec", None))
    return FormattedString(lowering.span(node), merge_literals(parts))


def _await(lowering: AstLowering, node: ast.Await) -> Expr:
    return Await(lowering.span(node), lowering.expression(node.value))


def _yield(lowering: AstLowering, node: ast.Yield) -> Expr:
    lowering.block.yields = True
    return Yield(lowering.span(node), lowering.optional(node.value))


def _yield_from(lowering: AstLowering, node: ast.YieldFrom) -> Expr:
    lowering.block.yields = True
    return YieldFrom(lowering.span(node), lowering.expression(node.value))


def _named_expr(lowering: AstLowering, node: ast.NamedExpr) -> Expr:
    lowering.block.bind_walrus(node.target.id)
    target = Name(lowering.span(node.target), node.target.id)
    return NamedExpr(lowering.span(node), target, lowering.expression(node.value))


def _lambda(lowering: AstLowering, node: ast.Lambda) -> Expr:
    params = lowering.parameters(node.args)
    outer = lowering.block
    lowering.block = inner = NameCollector()
    body = lowering.expression(node.body)
    lowering.block = outer
    scope = inner.close_function((param.name for param in params), into=outer)
    return Lambda(lowering.span(node), params, body, scope)


# --------------------------------------------------------------------------- statements


def _expr_stmt(lowering: AstLowering, node: ast.Expr) -> Stmt:
    return ExprStmt(lowering.span(node), lowering.expression(node.value))


def _assign(lowering: AstLowering, node: ast.Assign) -> Stmt:
    targets = lowering.expressions(node.targets)
    return Assign(lowering.span(node), targets, lowering.expression(node.value))


def _ann_assign(lowering: AstLowering, node: ast.AnnAssign) -> Stmt:
    target = lowering.expression(node.target)
    annotation = lowering.expression(node.annotation)
    return AnnAssign(lowering.span(node), target, annotation, lowering.optional(node.value))


def _aug_assign(lowering: AstLowering, node: ast.AugAssign) -> Stmt:
    target = lowering.expression(node.target)
    if isinstance(target, Name):
        lowering.block.used.add(target.id)
    return AugAssign(lowering.span(node), target, _BINARY[node.op.__class__], lowering.expression(node.value))


def _return(lowering: AstLowering, node: ast.Return) -> Stmt:
    return Return(lowering.span(node), lowering.optional(node.value))


def _delete(lowering: AstLowering, node: ast.Delete) -> Stmt:
    return Delete(lowering.span(node), lowering.expressions(node.targets))


def _pass(lowering: AstLowering, node: ast.Pass) -> Stmt:
    return Pass(lowering.span(node))


def _break(lowering: AstLowering, node: ast.Break) -> Stmt:
    return Break(lowering.span(node))


def _continue(lowering: AstLowering, node: ast.Continue) -> Stmt:
    return Continue(lowering.span(node))


def _raise(lowering: AstLowering, node: ast.Raise) -> Stmt:
    return Raise(lowering.span(node), lowering.optional(node.exc), lowering.optional(node.cause))


def _assert(lowering: AstLowering, node: ast.Assert) -> Stmt:
    return Assert(lowering.span(node), lowering.expression(node.test), lowering.optional(node.msg))


def _global(lowering: AstLowering, node: ast.Global) -> Stmt:
    lowering.block.global_.update(node.names)
    return Global(lowering.span(node), tuple(node.names))


def _nonlocal(lowering: AstLowering, node: ast.Nonlocal) -> Stmt:
    lowering.block.nonlocal_.update(node.names)
    return Nonlocal(lowering.span(node), tuple(node.names))


def _aliases(lowering: AstLowering, nodes: Iterable[ast.alias]) -> tuple[Alias, ...]:
    aliases = tuple([Alias(lowering.span(node), node.name, node.asname) for node in nodes])
    lowering.block.bound.update(bound_names(aliases))
    return aliases


def bound_names(aliases: Iterable[Alias]) -> set[str]:
    """What an import binds: `import a.b` binds `a`, a star nothing that is known."""
    return {alias.asname or alias.name.partition(".")[0] for alias in aliases if alias.name != "*"}


def _import(lowering: AstLowering, node: ast.Import) -> Stmt:
    return Import(lowering.span(node), _aliases(lowering, node.names))


def _import_from(lowering: AstLowering, node: ast.ImportFrom) -> Stmt:
    return ImportFrom(lowering.span(node), node.module or "", _aliases(lowering, node.names), node.level or 0)


def _if(lowering: AstLowering, node: ast.If) -> Stmt:
    test = lowering.expression(node.test)
    body = lowering.statements(node.body)
    return If(lowering.span(node), test, body, lowering.statements(node.orelse))


def _for(lowering: AstLowering, node: ast.For | ast.AsyncFor) -> Stmt:
    target = lowering.expression(node.target)
    iterable = lowering.expression(node.iter)
    body = lowering.statements(node.body)
    orelse = lowering.statements(node.orelse)
    return For(lowering.span(node), target, iterable, body, orelse, isinstance(node, ast.AsyncFor))


def _while(lowering: AstLowering, node: ast.While) -> Stmt:
    test = lowering.expression(node.test)
    body = lowering.statements(node.body)
    return While(lowering.span(node), test, body, lowering.statements(node.orelse))


def _with(lowering: AstLowering, node: ast.With | ast.AsyncWith) -> Stmt:
    items: list[WithItem] = []
    for item in node.items:
        context = lowering.expression(item.context_expr)
        target = lowering.optional(item.optional_vars)
        items.append(WithItem(item_span(context, target), context, target))
    body = lowering.statements(node.body)
    return With(lowering.span(node), tuple(items), body, isinstance(node, ast.AsyncWith))


def item_span(context: Expr, target: Expr | None) -> Span:
    """`ast` gives no place for an item of `with`: from its context to its target."""
    last = context if target is None else target
    return Span(context.span.line, context.span.column, last.span.end_line, last.span.end_column)


def _handler(lowering: AstLowering, node: ast.excepthandler) -> Handler:
    if not isinstance(node, ast.ExceptHandler):
        raise SyntaxError(f"unknown handler {node.__class__.__name__}")
    kind = lowering.optional(node.type)
    if node.name is not None:
        lowering.block.bound.add(node.name)
    return Handler(lowering.span(node), kind, node.name, lowering.statements(node.body))


def _try(lowering: AstLowering, node: ast.Try) -> Stmt:
    body = lowering.statements(node.body)
    handlers = tuple([_handler(lowering, handler) for handler in node.handlers])
    orelse = lowering.statements(node.orelse)
    final = lowering.statements(node.finalbody)
    return Try(lowering.span(node), body, handlers, orelse, final, node.__class__.__name__ == "TryStar")


def _function_def(lowering: AstLowering, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Stmt:
    outer = lowering.block
    outer.bound.add(node.name)
    decorators = lowering.expressions(node.decorator_list)
    # type parameters live in a scope of their own around the function
    lowering.block = generic = NameCollector(enclosing=outer)
    last_type_parameter = lowering.type_parameters(node)
    params = lowering.parameters(node.args)
    returns = lowering.optional(node.returns)
    lowering.block = inner = NameCollector()
    body = lowering.statements(node.body)
    lowering.block = outer
    scope = inner.close_function((param.name for param in params), into=generic)
    generic.close_comprehension(is_lazy=False, into=outer)
    lowering.type_names = kept(generic.bound)

    span = lowering.span(node)
    last = header_end(params, () if returns is None else (returns,)) or last_type_parameter
    return FunctionDef(
        lowering.decorated(span, decorators),
        node.name,
        params,
        returns,
        decorators,
        body,
        scope,
        isinstance(node, ast.AsyncFunctionDef),
        lowering.header(span, last),
    )


def _class_def(lowering: AstLowering, node: ast.ClassDef) -> Stmt:
    outer = lowering.block
    outer.bound.add(node.name)
    decorators = lowering.expressions(node.decorator_list)
    lowering.block = generic = NameCollector(enclosing=outer)
    last_type_parameter = lowering.type_parameters(node)
    bases = lowering.expressions(node.bases)
    keywords = _keywords(lowering, node.keywords)
    lowering.block = inner = NameCollector()
    body = lowering.statements(node.body)
    lowering.block = outer
    inner.close_class(into=generic)
    generic.close_comprehension(is_lazy=False, into=outer)
    lowering.type_names = kept(generic.bound)

    span = lowering.span(node)
    last = header_end(bases, keywords) or last_type_parameter
    return ClassDef(
        lowering.decorated(span, decorators),
        node.name,
        bases,
        keywords,
        decorators,
        body,
        lowering.header(span, last),
    )


def _type_alias(lowering: AstLowering, node: ast.stmt) -> Stmt:
    name = cast("ast.Name", getattr(node, "name"))  # noqa: B009
    value = cast("ast.expr", getattr(node, "value"))  # noqa: B009
    outer = lowering.block
    outer.bound.add(name.id)
    lowering.block = inner = NameCollector(enclosing=outer)
    lowering.type_parameters(node)
    lowered = lowering.expression(value)
    lowering.block = outer
    inner.close_comprehension(is_lazy=True, into=outer)
    return TypeAliasStmt(lowering.span(node), name.id, lowered)


# --------------------------------------------------------------------------- match


def _match(lowering: AstLowering, node: ast.Match) -> Stmt:
    subject = lowering.expression(node.subject)
    cases: list[MatchCase] = []
    for case in node.cases:
        pattern = _pattern(lowering, case.pattern)
        guard = lowering.optional(case.guard)
        body = lowering.statements(case.body)
        cases.append(MatchCase(case_span(pattern, body), pattern, guard, body))
    return Match(lowering.span(node), subject, tuple(cases))


def case_span(pattern: Pattern, body: Block) -> Span:
    """`ast` gives no place for a `case`: from its pattern to the end of its body."""
    last = body[-1].span
    return Span(pattern.span.line, pattern.span.column, last.end_line, last.end_column)


def _pattern(lowering: AstLowering, node: ast.pattern) -> Pattern:
    span = lowering.span(node)
    bound = lowering.block.bound
    match node:
        case ast.MatchValue(value=value):
            return MatchValue(span, lowering.expression(value))
        case ast.MatchSingleton(value=singleton):
            return MatchValue(span, Constant(span, singleton))
        case ast.MatchAs(pattern=inner, name=name):
            if name is not None:
                bound.add(name)
            return MatchAs(span, None if inner is None else _pattern(lowering, inner), name)
        case ast.MatchOr(patterns=patterns):
            return MatchOr(span, _patterns(lowering, patterns))
        case ast.MatchSequence(patterns=patterns):
            return MatchSequence(span, _patterns(lowering, patterns))
        case ast.MatchStar(name=name):
            if name is not None:
                bound.add(name)
            return MatchStar(span, name)
        case ast.MatchMapping(keys=keys, patterns=patterns, rest=rest):
            if rest is not None:
                bound.add(rest)
            return MatchMapping(span, lowering.expressions(keys), _patterns(lowering, patterns), rest)
        case ast.MatchClass(cls=cls, patterns=patterns, kwd_attrs=names, kwd_patterns=values):
            positional = _patterns(lowering, patterns)
            keywords = tuple(zip(names, _patterns(lowering, values), strict=True))
            return MatchClass(span, lowering.expression(cls), positional, keywords)
        case _:
            raise SyntaxError(f"unknown pattern {node.__class__.__name__}")


def _patterns(lowering: AstLowering, nodes: Iterable[ast.pattern]) -> tuple[Pattern, ...]:
    return tuple([_pattern(lowering, node) for node in nodes])


# --------------------------------------------------------------------------- dispatch

# The casts forget that each function takes the one class that it is registered for.
_EXPRESSIONS = cast(
    "dict[type[ast.expr], Callable[[AstLowering, ast.expr], Expr]]",
    {
        ast.Constant: _constant,
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.Subscript: _subscript,
        ast.Slice: _slice,
        ast.Call: _call,
        ast.Starred: _starred,
        ast.BinOp: _binary,
        ast.UnaryOp: _unary,
        ast.BoolOp: _bool_op,
        ast.Compare: _compare,
        ast.IfExp: _if_exp,
        ast.List: _list,
        ast.Tuple: _tuple,
        ast.Set: _set,
        ast.Dict: _dict,
        ast.ListComp: _list_comp,
        ast.SetComp: _set_comp,
        ast.DictComp: _dict_comp,
        ast.GeneratorExp: _generator_exp,
        ast.JoinedStr: _joined_str,
        ast.Await: _await,
        ast.Yield: _yield,
        ast.YieldFrom: _yield_from,
        ast.NamedExpr: _named_expr,
        ast.Lambda: _lambda,
        getattr(ast, "TemplateStr", None): _template_str,
    },
)
_STATEMENTS = cast(
    "dict[type[ast.stmt], Callable[[AstLowering, ast.stmt], Stmt]]",
    {
        ast.Expr: _expr_stmt,
        ast.Assign: _assign,
        ast.AnnAssign: _ann_assign,
        ast.AugAssign: _aug_assign,
        ast.Return: _return,
        ast.Delete: _delete,
        ast.Pass: _pass,
        ast.Break: _break,
        ast.Continue: _continue,
        ast.Raise: _raise,
        ast.Assert: _assert,
        ast.Global: _global,
        ast.Nonlocal: _nonlocal,
        ast.Import: _import,
        ast.ImportFrom: _import_from,
        ast.If: _if,
        ast.For: _for,
        ast.AsyncFor: _for,
        ast.While: _while,
        ast.With: _with,
        ast.AsyncWith: _with,
        ast.Try: _try,
        getattr(ast, "TryStar", None): _try,
        ast.FunctionDef: _function_def,
        ast.AsyncFunctionDef: _function_def,
        ast.ClassDef: _class_def,
        ast.Match: _match,
        getattr(ast, "TypeAlias", None): _type_alias,
    },
)
