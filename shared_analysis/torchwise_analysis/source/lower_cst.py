"""Lower LibCST to the small Python of `nodes`, equal in every node and span to `lower_ast`.

LibCST nodes know no position, and its position provider costs more than the parse. This lowering
walks the tree in source order and keeps a cursor in the text: every leaf is taken off the text
where the cursor stands, which gives its place for the price of a `startswith`.

Import this module where it is needed, not at start-up: `import libcst` is slow.
"""

from __future__ import annotations

import ast
import re
import unicodedata
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeAlias, cast

import libcst as cst

from torchwise_analysis.source.lines import BYTE_ORDER_MARK, line_starts
from torchwise_analysis.source.lower_ast import (
    MAX_CHAIN,
    bound_names,
    case_span,
    generator_span,
    item_span,
    merge_literals,
)
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

_TRIVIA = re.compile(r"(?:[ \t\f\r\n]+|\\(?:\r\n|\r|\n)|\#[^\r\n]*)+")
_BREAK = re.compile(r"\r\n|\r")
_SINGLETONS: dict[str, ConstantValue] = {"None": None, "True": True, "False": False}
_COMPARISON_WORDS: dict[type[cst.BaseCompOp], str] = {
    cst.Equal: "==",
    cst.NotEqual: "!=",
    cst.LessThan: "<",
    cst.LessThanEqual: "<=",
    cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=",
    cst.Is: "is",
    cst.IsNot: "is not",
    cst.In: "in",
    cst.NotIn: "not in",
}
_BINARY: dict[type[cst.CSTNode], str] = {
    cst.Add: "+",
    cst.Subtract: "-",
    cst.Multiply: "*",
    cst.Divide: "/",
    cst.FloorDivide: "//",
    cst.Modulo: "%",
    cst.Power: "**",
    cst.MatrixMultiply: "@",
    cst.BitAnd: "&",
    cst.BitOr: "|",
    cst.BitXor: "^",
    cst.LeftShift: "<<",
    cst.RightShift: ">>",
    cst.AddAssign: "+",
    cst.SubtractAssign: "-",
    cst.MultiplyAssign: "*",
    cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//",
    cst.ModuloAssign: "%",
    cst.PowerAssign: "**",
    cst.MatrixMultiplyAssign: "@",
    cst.BitAndAssign: "&",
    cst.BitOrAssign: "|",
    cst.BitXorAssign: "^",
    cst.LeftShiftAssign: "<<",
    cst.RightShiftAssign: ">>",
}
_UNARY: dict[type[cst.BaseUnaryOp], str] = {cst.Not: "not", cst.Minus: "-", cst.Plus: "+", cst.BitInvert: "~"}

# Brackets that belong to the node itself, as in `ast`.
_OWN_BRACKETS = frozenset({cst.Tuple, cst.GeneratorExp})

_Statement: TypeAlias = "cst.BaseStatement | cst.BaseSmallStatement"
_ExpressionTable: TypeAlias = (
    "dict[type[cst.BaseExpression], Callable[[CstLowering, cst.BaseExpression, int], Expr]]"
)
_StatementTable: TypeAlias = "dict[type[_Statement], Callable[[CstLowering, _Statement], Stmt]]"
_Comma: TypeAlias = "cst.Comma | cst.MaybeSentinel | None"


def parse(text: str) -> cst.Module:
    """`libcst.parse_module`; raises SyntaxError for text that does not parse."""
    try:
        return cst.parse_module(text.removeprefix(BYTE_ORDER_MARK))
    except cst.ParserSyntaxError as error:
        raise SyntaxError(error.message, (None, error.raw_line, error.raw_column + 1, None)) from None
    except cst.CSTLogicError:  # texts of kinds that LibCST does not know how to join: "a" t"b"
        raise SyntaxError("strings of different kinds beside each other") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise SyntaxError(str(error)) from None


class CstLowering:
    """Lowers the statements of one parsed text.

    `base` is the line (from 0) that spans count from; the names of the block at hand are collected
    in `block`. May raise RecursionError on deep nesting and SyntaxError for literals that no
    Python would read.
    """

    def __init__(self, text: str) -> None:
        self.base = 0
        self.block = NameCollector()
        self.type_names: frozenset[str] = frozenset()
        """Type parameters of the last definition."""
        self._text = text
        self._starts = line_starts(text)
        self._at = len(BYTE_ORDER_MARK) if text.startswith(BYTE_ORDER_MARK) else 0
        self._end = self._at
        self._is_target = False

    # ----------------------------------------------------------------- cursor

    def _start(self) -> int:
        """Offset of the next token."""
        trivia = _TRIVIA.match(self._text, self._at)
        if trivia is not None:
            self._at = trivia.end()
        return self._at

    def _take(self, token: str) -> None:
        """Move past the next token, which is known from the tree."""
        start = self._start()
        if not self._text.startswith(token, start):
            found = self._text[start : start + 20]
            raise SyntaxError(f"cannot place {token!r} at {found!r}")
        self._at = self._end = start + len(token)

    def _take_commas(self, comma: _Comma) -> None:
        if isinstance(comma, cst.Comma):
            self._take(",")

    def _span(self, start: int) -> Span:
        """From an offset to the last token taken."""
        starts = self._starts
        line = bisect_right(starts, start) - 1
        end_line = bisect_right(starts, self._end, line) - 1
        base = self.base
        return Span(line - base, start - starts[line], end_line - base, self._end - starts[end_line])

    # ----------------------------------------------------------------- blocks

    def module(self, tree: cst.Module) -> Block:
        return self._statements(tree.body)

    def _statements(self, body: Iterable[_Statement]) -> Block:
        out: list[Stmt] = []
        for statement in body:
            if isinstance(statement, cst.SimpleStatementLine):
                self._small(statement.body, out)
            else:
                out.append(self._STATEMENTS[statement.__class__](self, statement))
        return tuple(out)

    def _small(self, body: Iterable[cst.BaseSmallStatement], out: list[Stmt]) -> None:
        for statement in body:
            out.append(self._STATEMENTS[statement.__class__](self, statement))
            if isinstance(statement.semicolon, cst.Semicolon):
                self._take(";")

    def _suite(self, suite: cst.BaseSuite) -> Block:
        self._take(":")
        if isinstance(suite, cst.SimpleStatementSuite):
            out: list[Stmt] = []
            self._small(suite.body, out)
            return tuple(out)
        return self._statements(cast("Sequence[cst.BaseStatement]", suite.body))

    def _orelse(self, orelse: cst.Else | None) -> Block:
        if orelse is None:
            return ()
        self._take("else")
        return self._suite(orelse.body)

    # ----------------------------------------------------------------- expressions

    def expression(self, node: cst.BaseExpression) -> Expr:
        """An expression; brackets around it are passed over, as `ast` does."""
        brackets = len(node.lpar)
        if brackets and node.__class__ in _OWN_BRACKETS:
            brackets -= 1
        for _ in range(brackets):
            self._take("(")
        lowered = self._EXPRESSIONS[node.__class__](self, node, self._start())
        for _ in range(brackets):
            self._take(")")
        return lowered

    def optional(self, node: cst.BaseExpression | None) -> Expr | None:
        return None if node is None else self.expression(node)

    def _target(self, node: cst.BaseExpression) -> Expr:
        """An expression that is assigned to or deleted."""
        outer = self._is_target
        self._is_target = True
        lowered = self.expression(node)
        self._is_target = outer
        return lowered

    def _used(self, node: cst.BaseExpression) -> Expr:
        """An expression inside a target that is read itself, as `a` in `a.b = 1`."""
        if not self._is_target:
            return self.expression(node)
        self._is_target = False
        lowered = self.expression(node)
        self._is_target = True
        return lowered

    def _identifier(self, node: cst.Name) -> str:
        self._take(node.value)
        return _normal(node.value)

    def _name(self, node: cst.Name, start: int) -> Expr:
        identifier = self._identifier(node)
        if identifier in _SINGLETONS:
            return Constant(self._span(start), _SINGLETONS[identifier])
        (self.block.bound if self._is_target else self.block.used).add(identifier)
        return Name(self._span(start), identifier)

    def _integer(self, node: cst.Integer, start: int) -> Expr:
        self._take(node.value)
        return Constant(self._span(start), _number(node.value, lambda digits: int(digits, 0)))

    def _float(self, node: cst.Float, start: int) -> Expr:
        self._take(node.value)
        return Constant(self._span(start), _number(node.value, float))

    def _imaginary(self, node: cst.Imaginary, start: int) -> Expr:
        self._take(node.value)
        return Constant(self._span(start), _number(node.value, complex))

    def _ellipsis(self, _node: cst.Ellipsis, start: int) -> Expr:
        self._take("...")
        return Constant(self._span(start), EllipsisType.ELLIPSIS)

    def _string(self, node: cst.SimpleString, start: int) -> Expr:
        self._take(node.value)
        return Constant(self._span(start), _string_value(node.value))

    def _strings(self, node: cst.ConcatenatedString, start: int) -> Expr:
        parts: list[str | Expr] = []
        literals: list[str | bytes] = []
        formatted = False
        rest: cst.BaseExpression = node
        while isinstance(rest, cst.ConcatenatedString):
            formatted |= self._string_piece(rest.left, parts, literals)
            rest = rest.right
        formatted |= self._string_piece(rest, parts, literals)
        if formatted:
            return FormattedString(self._span(start), merge_literals(parts))
        if isinstance(literals[0], bytes):
            joined = b"".join(piece for piece in literals if isinstance(piece, bytes))
            return Constant(self._span(start), joined)
        return Constant(self._span(start), "".join(piece for piece in literals if isinstance(piece, str)))

    def _string_piece(
        self, node: cst.BaseExpression, parts: list[str | Expr], literals: list[str | bytes]
    ) -> bool:
        """Take one literal of several; whether it was an f-string."""
        if isinstance(node, cst.SimpleString):
            self._take(node.value)
            value = _string_value(node.value)
            literals.append(value)
            if isinstance(value, str):
                parts.append(value)
            return False
        parts += self._formatted_parts(node)
        return True

    def _formatted(self, node: cst.BaseExpression, start: int) -> Expr:
        parts = self._formatted_parts(node)
        return FormattedString(self._span(start), merge_literals(parts))

    def _formatted_parts(self, node: cst.BaseExpression) -> list[str | Expr]:
        # f-strings and t-strings have the same fields; the latter are newer than our oldest LibCST
        formatted = cast("cst.FormattedString", node)
        self._take(formatted.start)
        quote = formatted.start.lstrip("rRfFtT")
        is_raw = "r" in formatted.start[: -len(quote)].lower()
        parts = self._fields(formatted.parts, quote, is_raw)
        self._at = self._end = self._at + len(formatted.end)
        return parts

    def _fields(
        self, contents: Sequence[cst.BaseFormattedStringContent], quote: str, is_raw: bool
    ) -> list[str | Expr]:
        """Literal pieces and expressions; blanks count here, so tokens are not taken by `_take`."""
        out: list[str | Expr] = []
        for content in contents:
            value: object = getattr(content, "value", None)
            if isinstance(value, str):
                self._at += len(value)
                out.append(_piece_value(value, quote, is_raw))
                continue
            field = cast("cst.FormattedStringExpression", content)
            self._at += 1
            opened = self._at
            lowered = self.expression(field.expression)
            if field.equal is not None:
                self._take("=")
                # the text before a conversion, a format or the closing bracket is part of the output
                self._start_of_field_end()
                out.append(_BREAK.sub("\n", self._text[opened : self._at]))
            out.append(lowered)
            self._start_of_field_end()
            if field.conversion is not None:
                self._take("!")
                self._take(field.conversion)
            if field.format_spec is not None:
                self._take(":")
                self._fields(field.format_spec, quote, is_raw)
            self._start_of_field_end()
            self._at += 1
        return out

    def _start_of_field_end(self) -> None:
        trivia = _TRIVIA.match(self._text, self._at)
        if trivia is not None and self._text[trivia.end() : trivia.end() + 1] in ("}", "!", ":"):
            self._at = trivia.end()

    def _attribute(self, node: cst.Attribute, start: int) -> Expr:
        value = self._used(node.value)
        self._take(".")
        attr = self._identifier(node.attr)
        return Attribute(self._span(start), value, attr)

    def _subscript(self, node: cst.Subscript, start: int) -> Expr:
        value = self._used(node.value)
        was_target, self._is_target = self._is_target, False
        self._take("[")
        index = self._index(node.slice)
        self._take("]")
        self._is_target = was_target
        return Subscript(self._span(start), value, index)

    def _index(self, elements: Sequence[cst.SubscriptElement]) -> Expr:
        start = self._start()
        lowered: list[Expr] = []
        is_tuple = len(elements) > 1
        for element in elements:
            lowered.append(self._slice(element.slice))
            if isinstance(element.comma, cst.Comma):
                self._take(",")
                is_tuple = True
        if is_tuple or isinstance(lowered[0], Starred):
            return TupleExpr(self._span(start), tuple(lowered))
        return lowered[0]

    def _slice(self, node: cst.BaseSlice) -> Expr:
        start = self._start()
        if isinstance(node, cst.Index):
            if node.star is None:
                return self.expression(node.value)
            self._take("*")
            return self._starred_from(start, node.value)
        slice_ = cast("cst.Slice", node)
        lower = self.optional(slice_.lower)
        self._take(":")
        upper = self.optional(slice_.upper)
        step: Expr | None = None
        if isinstance(slice_.second_colon, cst.Colon):
            self._take(":")
            step = self.optional(slice_.step)
        return Slice(self._span(start), lower, upper, step)

    def _starred_from(self, start: int, value: cst.BaseExpression) -> Starred:
        lowered = self.expression(value)
        return Starred(self._span(start), lowered)

    def _call(self, node: cst.Call, start: int) -> Expr:
        func = self.expression(node.func)
        opening = self._start()
        self._take("(")
        alone = node.args[0].value if len(node.args) == 1 and not node.args[0].star else None
        if isinstance(alone, cst.GeneratorExp) and not alone.lpar:
            # the brackets of the call are those of the generator expression
            lowered = self._generator_in(alone, opening)
            return Call(self._span(start), func, (lowered,), ())
        args, keywords = self._arguments(node.args)
        self._take(")")
        return Call(self._span(start), func, args, keywords)

    def _generator_in(self, node: cst.GeneratorExp, opening: int) -> Expr:
        return self._comprehension(node, ComprehensionKind.GENERATOR, opening, ")")

    def _arguments(self, arguments: Iterable[cst.Arg]) -> tuple[tuple[Expr, ...], tuple[Keyword, ...]]:
        args: list[Expr] = []
        keywords: list[Keyword] = []
        for argument in arguments:
            start = self._start()
            if argument.keyword is not None:
                name = self._identifier(argument.keyword)
                self._take("=")
                value = self.expression(argument.value)
                keywords.append(Keyword(self._span(start), name, value))
            elif argument.star == "**":
                self._take("**")
                value = self.expression(argument.value)
                keywords.append(Keyword(self._span(start), None, value))
            elif argument.star == "*":
                self._take("*")
                args.append(self._starred_from(start, argument.value))
            else:
                args.append(self.expression(argument.value))
            self._take_commas(argument.comma)
        return tuple(args), tuple(keywords)

    def _starred(self, node: cst.StarredElement, start: int) -> Expr:
        self._take("*")
        return self._starred_from(start, node.value)

    def _binary(self, node: cst.BinaryOperation, start: int) -> Expr:
        # a chain `a + b + c + ...` leans left: no recursion for what is not deep to its author
        chain = [node]
        while isinstance(chain[-1].left, cst.BinaryOperation) and not chain[-1].left.lpar:
            chain.append(chain[-1].left)
        if len(chain) > MAX_CHAIN:
            raise SyntaxError("nested too deeply")
        left = self.expression(chain[-1].left)
        for link in reversed(chain):
            op = _BINARY[link.operator.__class__]
            self._take(op)
            right = self.expression(link.right)
            left = Binary(self._span(start), op, left, right)
        return left

    def _unary(self, node: cst.UnaryOperation, start: int) -> Expr:
        op = _UNARY[node.operator.__class__]
        self._take(op)
        operand = self.expression(node.expression)
        return Unary(self._span(start), op, operand)

    def _bool_op(self, node: cst.BooleanOperation, start: int) -> Expr:
        # `a and b and c` leans left in LibCST and is one node in ours
        op = "and" if isinstance(node.operator, cst.And) else "or"
        chain = [node]
        while True:
            left = chain[-1].left
            if not isinstance(left, cst.BooleanOperation) or left.lpar:
                break
            if left.operator.__class__ is not node.operator.__class__:
                break
            chain.append(left)
        values = [self.expression(chain[-1].left)]
        for link in reversed(chain):
            self._take(op)
            values.append(self.expression(link.right))
        return BoolOp(self._span(start), op, tuple(values))

    def _comparison(self, node: cst.Comparison, start: int) -> Expr:
        left = self.expression(node.left)
        ops: list[str] = []
        comparators: list[Expr] = []
        for target in node.comparisons:
            op = _COMPARISON_WORDS[target.operator.__class__]
            spelled = target.operator.value if isinstance(target.operator, cst.NotEqual) else op
            for word in spelled.split():
                self._take(word)
            ops.append(op)
            comparators.append(self.expression(target.comparator))
        return Compare(self._span(start), left, tuple(ops), tuple(comparators))

    def _if_exp(self, node: cst.IfExp, start: int) -> Expr:
        body = self.expression(node.body)
        self._take("if")
        test = self.expression(node.test)
        self._take("else")
        orelse = self.expression(node.orelse)
        return IfExp(self._span(start), test, body, orelse)

    def _elements(self, elements: Iterable[cst.BaseElement]) -> tuple[Expr, ...]:
        out: list[Expr] = []
        for element in elements:
            if isinstance(element, cst.StarredElement):
                out.append(self.expression(element))
            else:
                out.append(self.expression(element.value))
            self._take_commas(element.comma)
        return tuple(out)

    def _list(self, node: cst.List, start: int) -> Expr:
        self._take("[")
        elements = self._elements(node.elements)
        self._take("]")
        return ListExpr(self._span(start), elements)

    def _set(self, node: cst.Set, start: int) -> Expr:
        self._take("{")
        elements = self._elements(node.elements)
        self._take("}")
        return SetExpr(self._span(start), elements)

    def _tuple(self, node: cst.Tuple, start: int) -> Expr:
        if node.lpar:
            self._take("(")
        elements = self._elements(node.elements)
        if node.lpar:
            self._take(")")
        return TupleExpr(self._span(start), elements)

    def _dict(self, node: cst.Dict, start: int) -> Expr:
        self._take("{")
        keys: list[Expr | None] = []
        values: list[Expr] = []
        for element in node.elements:
            if isinstance(element, cst.DictElement):
                keys.append(self.expression(element.key))
                self._take(":")
            else:
                keys.append(None)
                self._take("**")
            values.append(self.expression(element.value))
            self._take_commas(element.comma)
        self._take("}")
        return DictExpr(self._span(start), tuple(keys), tuple(values))

    def _list_comp(self, node: cst.ListComp, start: int) -> Expr:
        self._take("[")
        return self._comprehension(node, ComprehensionKind.LIST, start, "]")

    def _set_comp(self, node: cst.SetComp, start: int) -> Expr:
        self._take("{")
        return self._comprehension(node, ComprehensionKind.SET, start, "}")

    def _dict_comp(self, node: cst.DictComp, start: int) -> Expr:
        self._take("{")
        return self._comprehension(node, ComprehensionKind.DICT, start, "}")

    def _generator_exp(self, node: cst.GeneratorExp, start: int) -> Expr:
        if not node.lpar:
            return self._comprehension(node, ComprehensionKind.GENERATOR, start, "")
        self._take("(")
        return self._comprehension(node, ComprehensionKind.GENERATOR, start, ")")

    def _comprehension(self, node: cst.BaseComp, kind: ComprehensionKind, start: int, closing: str) -> Expr:
        outer = self.block
        self.block = inner = NameCollector(enclosing=outer)
        value: Expr | None = None
        if isinstance(node, cst.DictComp):
            element = self.expression(node.key)
            self._take(":")
            value = self.expression(node.value)
        else:
            element = self.expression(cast("cst.BaseSimpleComp", node).elt)
        generators = self._generators(node.for_in, inner, outer)
        self.block = outer
        inner.close_comprehension(is_lazy=kind is ComprehensionKind.GENERATOR, into=outer)
        self._take(closing)
        return Comprehension(self._span(start), kind, element, value, generators)

    def _generators(
        self, first: cst.CompFor, inner: NameCollector, outer: NameCollector
    ) -> tuple[Generator, ...]:
        out: list[Generator] = []
        link: cst.CompFor | None = first
        while link is not None:
            if link.asynchronous is not None:
                self._take("async")
            self._take("for")
            target = self._target(link.target)
            self._take("in")
            # the first iterable is evaluated outside, before the comprehension runs
            self.block = inner if out else outer
            iterable = self.expression(link.iter)
            self.block = inner
            conditions = tuple([self._condition(condition) for condition in link.ifs])
            span = generator_span(target, iterable, conditions)
            out.append(Generator(span, target, iterable, conditions, link.asynchronous is not None))
            link = link.inner_for_in
        return tuple(out)

    def _condition(self, node: cst.CompIf) -> Expr:
        self._take("if")
        return self.expression(node.test)

    def _lambda(self, node: cst.Lambda, start: int) -> Expr:
        self._take("lambda")
        params = self._parameters(node.params)
        self._take(":")
        outer = self.block
        self.block = inner = NameCollector()
        body = self.expression(node.body)
        self.block = outer
        scope = inner.close_function((param.name for param in params), into=outer)
        return Lambda(self._span(start), params, body, scope)

    def _await(self, node: cst.Await, start: int) -> Expr:
        self._take("await")
        value = self.expression(node.expression)
        return Await(self._span(start), value)

    def _yield(self, node: cst.Yield, start: int) -> Expr:
        self.block.yields = True
        self._take("yield")
        if isinstance(node.value, cst.From):
            self._take("from")
            value = self.expression(node.value.item)
            return YieldFrom(self._span(start), value)
        optional = self.optional(node.value)
        return Yield(self._span(start), optional)

    def _named_expr(self, node: cst.NamedExpr, start: int) -> Expr:
        name_start = self._start()
        name = self._identifier(cst.ensure_type(node.target, cst.Name))
        target = Name(self._span(name_start), name)
        self.block.bind_walrus(name)
        self._take(":=")
        value = self.expression(node.value)
        return NamedExpr(self._span(start), target, value)

    # ----------------------------------------------------------------- parameters

    def _parameters(self, node: cst.Parameters) -> tuple[Param, ...]:
        out = [self._parameter(param, ParamKind.POSITIONAL_ONLY) for param in node.posonly_params]
        if isinstance(node.posonly_ind, cst.ParamSlash):
            self._take("/")
            self._take_commas(node.posonly_ind.comma)
        out += [self._parameter(param, ParamKind.POSITIONAL) for param in node.params]
        if isinstance(node.star_arg, cst.Param):
            self._take("*")
            out.append(self._parameter(node.star_arg, ParamKind.VAR_POSITIONAL))
        elif isinstance(node.star_arg, cst.ParamStar):
            self._take("*")
            self._take(",")
        out += [self._parameter(param, ParamKind.KEYWORD_ONLY) for param in node.kwonly_params]
        if node.star_kwarg is not None:
            self._take("**")
            out.append(self._parameter(node.star_kwarg, ParamKind.VAR_KEYWORD))
        return tuple(out)

    def _parameter(self, node: cst.Param, kind: ParamKind) -> Param:
        start = self._start()
        name = self._identifier(node.name)
        annotation: Expr | None = None
        if node.annotation is not None:
            self._take(":")
            annotation = self.expression(node.annotation.annotation)
        span = self._span(start)
        default: Expr | None = None
        if node.default is not None:
            self._take("=")
            default = self.expression(node.default)
        self._take_commas(node.comma)
        return Param(span, name, kind, annotation, default)

    def _type_parameters(self, node: cst.TypeParameters | None) -> None:
        if node is None:
            return
        self._take("[")
        for parameter in node.params:
            kind = parameter.param
            if isinstance(kind, cst.TypeVarTuple):
                self._take("*")
            elif isinstance(kind, cst.ParamSpec):
                self._take("**")
            self.block.bound.add(self._identifier(kind.name))
            if isinstance(kind, cst.TypeVar) and kind.bound is not None:
                self._take(":")
                self.expression(kind.bound)
            if parameter.default is not None:
                self._take("=")
                if parameter.star == "*":
                    self._take("*")
                self.expression(parameter.default)
            self._take_commas(parameter.comma)
        self._take("]")

    # ----------------------------------------------------------------- simple statements

    def _expr_stmt(self, node: cst.Expr) -> Stmt:
        start = self._start()
        value = self.expression(node.value)
        return ExprStmt(self._span(start), value)

    def _assign(self, node: cst.Assign) -> Stmt:
        start = self._start()
        targets: list[Expr] = []
        for target in node.targets:
            targets.append(self._target(target.target))
            self._take("=")
        value = self.expression(node.value)
        return Assign(self._span(start), tuple(targets), value)

    def _ann_assign(self, node: cst.AnnAssign) -> Stmt:
        start = self._start()
        target = self._target(node.target)
        self._take(":")
        annotation = self.expression(node.annotation.annotation)
        value: Expr | None = None
        if node.value is not None:
            self._take("=")
            value = self.expression(node.value)
        return AnnAssign(self._span(start), target, annotation, value)

    def _aug_assign(self, node: cst.AugAssign) -> Stmt:
        start = self._start()
        target = self._target(node.target)
        if isinstance(target, Name):
            self.block.used.add(target.id)
        op = _BINARY[node.operator.__class__]
        self._take(op + "=")
        value = self.expression(node.value)
        return AugAssign(self._span(start), target, op, value)

    def _return(self, node: cst.Return) -> Stmt:
        start = self._start()
        self._take("return")
        value = self.optional(node.value)
        return Return(self._span(start), value)

    def _delete(self, node: cst.Del) -> Stmt:
        start = self._start()
        self._take("del")
        if isinstance(node.target, cst.Tuple) and not node.target.lpar:
            self._is_target = True
            targets = self._elements(node.target.elements)
            self._is_target = False
        else:
            targets = (self._target(node.target),)
        return Delete(self._span(start), targets)

    def _pass(self, _node: cst.Pass) -> Stmt:
        start = self._start()
        self._take("pass")
        return Pass(self._span(start))

    def _break(self, _node: cst.Break) -> Stmt:
        start = self._start()
        self._take("break")
        return Break(self._span(start))

    def _continue(self, _node: cst.Continue) -> Stmt:
        start = self._start()
        self._take("continue")
        return Continue(self._span(start))

    def _raise(self, node: cst.Raise) -> Stmt:
        start = self._start()
        self._take("raise")
        exception = self.optional(node.exc)
        cause: Expr | None = None
        if node.cause is not None:
            self._take("from")
            cause = self.expression(node.cause.item)
        return Raise(self._span(start), exception, cause)

    def _assert(self, node: cst.Assert) -> Stmt:
        start = self._start()
        self._take("assert")
        test = self.expression(node.test)
        message: Expr | None = None
        if node.msg is not None:
            self._take(",")
            message = self.expression(node.msg)
        return Assert(self._span(start), test, message)

    def _global(self, node: cst.Global) -> Stmt:
        start = self._start()
        self._take("global")
        names = self._name_items(node.names)
        self.block.global_.update(names)
        return Global(self._span(start), names)

    def _nonlocal(self, node: cst.Nonlocal) -> Stmt:
        start = self._start()
        self._take("nonlocal")
        names = self._name_items(node.names)
        self.block.nonlocal_.update(names)
        return Nonlocal(self._span(start), names)

    def _name_items(self, items: Iterable[cst.NameItem]) -> tuple[str, ...]:
        names: list[str] = []
        for item in items:
            names.append(self._identifier(item.name))
            self._take_commas(item.comma)
        return tuple(names)

    def _import(self, node: cst.Import) -> Stmt:
        start = self._start()
        self._take("import")
        names = self._aliases(node.names)
        return Import(self._span(start), names)

    def _import_from(self, node: cst.ImportFrom) -> Stmt:
        start = self._start()
        self._take("from")
        for _ in node.relative:
            self._take(".")
        module = "" if node.module is None else self._dotted(node.module)
        self._take("import")
        if isinstance(node.names, cst.ImportStar):
            star = self._start()
            self._take("*")
            names: tuple[Alias, ...] = (Alias(self._span(star), "*", None),)
        elif node.lpar is not None:
            self._take("(")
            names = self._aliases(node.names)
            self._take(")")
        else:
            names = self._aliases(node.names)
        return ImportFrom(self._span(start), module, names, len(node.relative))

    def _aliases(self, nodes: Iterable[cst.ImportAlias]) -> tuple[Alias, ...]:
        out: list[Alias] = []
        for node in nodes:
            start = self._start()
            name = self._dotted(node.name)
            asname = self._as_name(node.asname)
            out.append(Alias(self._span(start), name, asname))
            self._take_commas(node.comma)
        self.block.bound.update(bound_names(out))
        return tuple(out)

    def _as_name(self, node: cst.AsName | None) -> str | None:
        if node is None:
            return None
        self._take("as")
        return self._identifier(cst.ensure_type(node.name, cst.Name))

    def _dotted(self, node: cst.BaseExpression) -> str:
        if isinstance(node, cst.Name):
            return self._identifier(node)
        attribute = cst.ensure_type(node, cst.Attribute)
        front = self._dotted(attribute.value)
        self._take(".")
        return f"{front}.{self._identifier(attribute.attr)}"

    def _type_alias(self, node: cst.TypeAlias) -> Stmt:
        start = self._start()
        self._take("type")
        name = self._identifier(node.name)
        outer = self.block
        outer.bound.add(name)
        self.block = inner = NameCollector(enclosing=outer)
        self._type_parameters(node.type_parameters)
        self._take("=")
        value = self.expression(node.value)
        self.block = outer
        inner.close_comprehension(is_lazy=True, into=outer)
        return TypeAliasStmt(self._span(start), name, value)

    # ----------------------------------------------------------------- compound statements

    def _if(self, node: cst.If, keyword: str = "if") -> Stmt:
        start = self._start()
        self._take(keyword)
        test = self.expression(node.test)
        body = self._suite(node.body)
        if isinstance(node.orelse, cst.If):
            orelse: Block = (self._if(node.orelse, "elif"),)
        else:
            orelse = self._orelse(node.orelse)
        return If(self._span(start), test, body, orelse)

    def _for(self, node: cst.For) -> Stmt:
        start = self._start()
        self._async(node.asynchronous)
        self._take("for")
        target = self._target(node.target)
        self._take("in")
        iterable = self.expression(node.iter)
        body = self._suite(node.body)
        orelse = self._orelse(node.orelse)
        return For(self._span(start), target, iterable, body, orelse, node.asynchronous is not None)

    def _async(self, node: cst.Asynchronous | None) -> None:
        if node is not None:
            self._take("async")

    def _while(self, node: cst.While) -> Stmt:
        start = self._start()
        self._take("while")
        test = self.expression(node.test)
        body = self._suite(node.body)
        orelse = self._orelse(node.orelse)
        return While(self._span(start), test, body, orelse)

    def _with(self, node: cst.With) -> Stmt:
        start = self._start()
        self._async(node.asynchronous)
        self._take("with")
        has_brackets = isinstance(node.lpar, cst.LeftParen)
        if has_brackets:
            self._take("(")
        items: list[WithItem] = []
        for item in node.items:
            context = self.expression(item.item)
            target: Expr | None = None
            if item.asname is not None:
                self._take("as")
                target = self._target(item.asname.name)
            items.append(WithItem(item_span(context, target), context, target))
            self._take_commas(item.comma)
        if has_brackets:
            self._take(")")
        body = self._suite(node.body)
        return With(self._span(start), tuple(items), body, node.asynchronous is not None)

    def _try(self, node: cst.Try | cst.TryStar) -> Stmt:
        start = self._start()
        is_star = isinstance(node, cst.TryStar)
        self._take("try")
        body = self._suite(node.body)
        handlers = tuple([self._handler(handler, is_star) for handler in node.handlers])
        orelse = self._orelse(node.orelse)
        final: Block = ()
        if node.finalbody is not None:
            self._take("finally")
            final = self._suite(node.finalbody.body)
        return Try(self._span(start), body, handlers, orelse, final, is_star)

    def _handler(self, node: cst.ExceptHandler | cst.ExceptStarHandler, is_star: bool) -> Handler:
        start = self._start()
        self._take("except")
        if is_star:
            self._take("*")
        kind = self.optional(node.type)
        name = self._as_name(node.name)
        if name is not None:
            self.block.bound.add(name)
        body = self._suite(node.body)
        return Handler(self._span(start), kind, name, body)

    def _decorators(self, nodes: Iterable[cst.Decorator]) -> tuple[Expr, ...]:
        out: list[Expr] = []
        for node in nodes:
            self._take("@")
            out.append(self.expression(node.decorator))
        return tuple(out)

    def _function_def(self, node: cst.FunctionDef) -> Stmt:
        start = self._start()
        outer = self.block
        decorators = self._decorators(node.decorators)
        header_start = self._start()
        self._async(node.asynchronous)
        self._take("def")
        name = self._identifier(node.name)
        outer.bound.add(name)
        # type parameters live in a scope of their own around the function
        self.block = generic = NameCollector(enclosing=outer)
        self._type_parameters(node.type_parameters)
        self._take("(")
        params = self._parameters(node.params)
        self._take(")")
        returns: Expr | None = None
        if node.returns is not None:
            self._take("->")
            returns = self.expression(node.returns.annotation)
        header = self._header(header_start)
        self.block = inner = NameCollector()
        body = self._suite(node.body)
        self.block = outer
        scope = inner.close_function((param.name for param in params), into=generic)
        generic.close_comprehension(is_lazy=False, into=outer)
        self.type_names = kept(generic.bound)
        return FunctionDef(
            self._span(start),
            name,
            params,
            returns,
            decorators,
            body,
            scope,
            node.asynchronous is not None,
            header,
        )

    def _header(self, start: int) -> Span:
        """From a definition's keyword to its colon, which the suite takes again."""
        colon = self._start()
        self._end = colon + 1
        return self._span(start)

    def _class_def(self, node: cst.ClassDef) -> Stmt:
        start = self._start()
        outer = self.block
        decorators = self._decorators(node.decorators)
        header_start = self._start()
        self._take("class")
        name = self._identifier(node.name)
        outer.bound.add(name)
        self.block = generic = NameCollector(enclosing=outer)
        self._type_parameters(node.type_parameters)
        bases: tuple[Expr, ...] = ()
        keywords: tuple[Keyword, ...] = ()
        if isinstance(node.lpar, cst.LeftParen):
            self._take("(")
            bases, keywords = self._arguments([*node.bases, *node.keywords])
            self._take(")")
        header = self._header(header_start)
        self.block = inner = NameCollector()
        body = self._suite(node.body)
        self.block = outer
        inner.close_class(into=generic)
        generic.close_comprehension(is_lazy=False, into=outer)
        self.type_names = kept(generic.bound)
        return ClassDef(self._span(start), name, bases, keywords, decorators, body, header)

    # ----------------------------------------------------------------- match

    def _match(self, node: cst.Match) -> Stmt:
        start = self._start()
        self._take("match")
        subject = self.expression(node.subject)
        self._take(":")
        cases = tuple([self._case(case) for case in node.cases])
        return Match(self._span(start), subject, cases)

    def _case(self, node: cst.MatchCase) -> MatchCase:
        self._take("case")
        pattern = self._pattern(node.pattern)
        guard: Expr | None = None
        if node.guard is not None:
            self._take("if")
            guard = self.expression(node.guard)
        body = self._suite(node.body)
        return MatchCase(case_span(pattern, body), pattern, guard, body)

    def _pattern(self, node: cst.MatchPattern) -> Pattern:
        if isinstance(node, cst.MatchValue):
            value = self.expression(node.value)
            return MatchValue(value.span, value)
        if isinstance(node, cst.MatchSingleton):
            singleton = self.expression(node.value)
            return MatchValue(singleton.span, singleton)
        brackets = len(cast("Sequence[cst.LeftParen]", getattr(node, "lpar", ())))
        if brackets and isinstance(node, cst.MatchTuple):
            brackets -= 1
        for _ in range(brackets):
            self._take("(")
        lowered = self._bare_pattern(node, self._start())
        for _ in range(brackets):
            self._take(")")
        return lowered

    def _bare_pattern(self, node: cst.MatchPattern, start: int) -> Pattern:
        if isinstance(node, cst.MatchAs):
            return self._match_as(node, start)
        if isinstance(node, cst.MatchOr):
            patterns: list[Pattern] = []
            for alternative in node.patterns:
                patterns.append(self._pattern(alternative.pattern))
                if isinstance(alternative.separator, cst.BitOr):
                    self._take("|")
            return MatchOr(self._span(start), tuple(patterns))
        if isinstance(node, cst.MatchTuple):
            opening, closing = ("(", ")") if node.lpar else ("", "")
            return self._match_sequence(node.patterns, opening, closing, start)
        if isinstance(node, cst.MatchList):
            opening, closing = ("[", "]") if node.lbracket is not None else ("", "")
            return self._match_sequence(node.patterns, opening, closing, start)
        if isinstance(node, cst.MatchMapping):
            return self._match_mapping(node, start)
        return self._match_class(cst.ensure_type(node, cst.MatchClass), start)

    def _capture(self, node: cst.Name | None) -> str | None:
        """The name of a capture; `_` captures nothing."""
        name = "_" if node is None else _normal(node.value)
        self._take("_" if node is None else node.value)
        if name == "_":
            return None
        self.block.bound.add(name)
        return name

    def _match_as(self, node: cst.MatchAs, start: int) -> Pattern:
        if node.pattern is None:
            name = self._capture(node.name)
            return MatchAs(self._span(start), None, name)
        pattern = self._pattern(node.pattern)
        self._take("as")
        name = self._capture(node.name)
        return MatchAs(self._span(start), pattern, name)

    def _match_sequence(
        self,
        nodes: Iterable[cst.MatchSequenceElement | cst.MatchStar],
        opening: str,
        closing: str,
        start: int,
    ) -> Pattern:
        self._take(opening)
        patterns = self._sequence_elements(nodes)
        self._take(closing)
        return MatchSequence(self._span(start), patterns)

    def _sequence_elements(
        self, nodes: Iterable[cst.MatchSequenceElement | cst.MatchStar]
    ) -> tuple[Pattern, ...]:
        out: list[Pattern] = []
        for node in nodes:
            if isinstance(node, cst.MatchStar):
                start = self._start()
                self._take("*")
                name = self._capture(node.name)
                out.append(MatchStar(self._span(start), name))
            else:
                out.append(self._pattern(node.value))
            self._take_commas(node.comma)
        return tuple(out)

    def _match_mapping(self, node: cst.MatchMapping, start: int) -> Pattern:
        self._take("{")
        keys: list[Expr] = []
        patterns: list[Pattern] = []
        for element in node.elements:
            keys.append(self.expression(element.key))
            self._take(":")
            patterns.append(self._pattern(element.pattern))
            self._take_commas(element.comma)
        rest: str | None = None
        if node.rest is not None:
            self._take("**")
            rest = self._capture(node.rest)
            self._take_commas(node.trailing_comma)
        self._take("}")
        return MatchMapping(self._span(start), tuple(keys), tuple(patterns), rest)

    def _match_class(self, node: cst.MatchClass, start: int) -> Pattern:
        cls = self.expression(node.cls)
        self._take("(")
        patterns = self._sequence_elements(node.patterns)
        keywords: list[tuple[str, Pattern]] = []
        for element in node.kwds:
            name = self._identifier(element.key)
            self._take("=")
            keywords.append((name, self._pattern(element.pattern)))
            self._take_commas(element.comma)
        self._take(")")
        return MatchClass(self._span(start), cls, patterns, tuple(keywords))

    # ----------------------------------------------------------------- dispatch

    # The casts forget that each method takes the one class that it is registered for.
    _EXPRESSIONS: ClassVar[_ExpressionTable] = cast(
        "_ExpressionTable",
        {
            cst.Name: _name,
            cst.Integer: _integer,
            cst.Float: _float,
            cst.Imaginary: _imaginary,
            cst.Ellipsis: _ellipsis,
            cst.SimpleString: _string,
            cst.ConcatenatedString: _strings,
            cst.FormattedString: _formatted,
            getattr(cst, "TemplatedString", None): _formatted,
            cst.Attribute: _attribute,
            cst.Subscript: _subscript,
            cst.Call: _call,
            cst.StarredElement: _starred,
            cst.BinaryOperation: _binary,
            cst.UnaryOperation: _unary,
            cst.BooleanOperation: _bool_op,
            cst.Comparison: _comparison,
            cst.IfExp: _if_exp,
            cst.List: _list,
            cst.Set: _set,
            cst.Tuple: _tuple,
            cst.Dict: _dict,
            cst.ListComp: _list_comp,
            cst.SetComp: _set_comp,
            cst.DictComp: _dict_comp,
            cst.GeneratorExp: _generator_exp,
            cst.Lambda: _lambda,
            cst.Await: _await,
            cst.Yield: _yield,
            cst.NamedExpr: _named_expr,
        },
    )
    _STATEMENTS: ClassVar[_StatementTable] = cast(
        "_StatementTable",
        {
            cst.Expr: _expr_stmt,
            cst.Assign: _assign,
            cst.AnnAssign: _ann_assign,
            cst.AugAssign: _aug_assign,
            cst.Return: _return,
            cst.Del: _delete,
            cst.Pass: _pass,
            cst.Break: _break,
            cst.Continue: _continue,
            cst.Raise: _raise,
            cst.Assert: _assert,
            cst.Global: _global,
            cst.Nonlocal: _nonlocal,
            cst.Import: _import,
            cst.ImportFrom: _import_from,
            cst.TypeAlias: _type_alias,
            cst.If: _if,
            cst.For: _for,
            cst.While: _while,
            cst.With: _with,
            cst.Try: _try,
            cst.TryStar: _try,
            cst.FunctionDef: _function_def,
            cst.ClassDef: _class_def,
            cst.Match: _match,
        },
    )


# --------------------------------------------------------------------------- literals


def _normal(identifier: str) -> str:
    return identifier if identifier.isascii() else unicodedata.normalize("NFKC", identifier)


def _number(literal: str, convert: Callable[[str], int | float | complex]) -> int | float | complex:
    try:
        return convert(literal.replace("_", ""))
    except ValueError as error:
        raise SyntaxError(str(error)) from None


def _string_value(literal: str) -> str | bytes:
    """The value of one string literal with its prefix and quotes."""
    if "\\" in literal:
        return _evaluate(literal)
    body = literal.lstrip("rRbBuU")
    quotes = 3 if body[:3] in ('"""', "'''") else 1
    value = body[quotes:-quotes]
    if "\r" in value:
        value = _BREAK.sub("\n", value)
    if "b" in literal[: len(literal) - len(body)].lower():
        try:
            return value.encode("ascii")
        except UnicodeEncodeError:
            raise SyntaxError("bytes can only contain ASCII literal characters") from None
    return value


def _piece_value(text: str, quote: str, is_raw: bool) -> str:
    """The value of a literal piece of an f-string."""
    value = text.replace("{{", "{").replace("}}", "}")
    if is_raw or "\\" not in value:
        return _BREAK.sub("\n", value) if "\r" in value else value
    if (len(value) - len(value.rstrip("\\"))) % 2:
        # `\` before a field stands for itself
        value += "\\"
    evaluated = _evaluate(quote + value + quote)
    return evaluated if isinstance(evaluated, str) else ""


def _evaluate(literal: str) -> str | bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return cast("str | bytes", ast.literal_eval(literal))
        except ValueError as error:
            raise SyntaxError(str(error)) from None
