"""Evaluation of expression nodes.

Operands live in host locals of these functions for as long as CPython keeps them on its value stack:
until the operation that consumes them is done, and no longer.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import operators, recovery, text
from torchwise_analysis.interp.concrete.costs import CALL_STEPS, DESCRIPTION_STEPS
from torchwise_analysis.interp.concrete.errors import Stopped
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    Frame,
    Function,
    Int,
    Iter,
    ModuleValue,
    Super,
    Unknown,
    Value,
)
from torchwise_analysis.source import lower_text, nodes
from torchwise_memory.runtime.tensor import Tensor

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

FEW_BATCHES = 2
# Of texts that `eval` is given, and how deep they may call it.
EVALUATED_CHARACTERS = 2_000
EVALUATIONS = 60

Evaluate = Callable[["Interpreter", nodes.Expr, Frame], Value]


def constant(it: Interpreter, node: nodes.Constant, frame: Frame) -> Value:
    value = node.value
    if type(value) is int and not frame.module.is_library and it.module_depth == 0:
        return literal(it, value, node, frame)
    return Ellipsis if value is nodes.EllipsisType.ELLIPSIS else value


def literal(it: Interpreter, value: int, node: nodes.Constant, frame: Frame) -> Value:
    """A whole number of the script with its place; a run that tries a change may put another one here."""
    origin = it.origin_of(node, frame)
    columns = (node.span.column, node.span.end_column)
    if it.literals:
        value = it.literals.get((origin, columns), value)
    return Int(value, origin, columns)


def name(it: Interpreter, node: nodes.Name, frame: Frame) -> Value:
    wanted = node.id
    found = frame.names.get(wanted, MISSING)
    if found is not MISSING:
        return found
    scope = frame.outer
    while scope is not None:
        if wanted in scope.names and not scope.is_class:
            return scope.names[wanted]
        scope = scope.outer
    return it.global_name(wanted, frame, node)


def attribute(it: Interpreter, node: nodes.Attribute, frame: Frame) -> Value:
    inner = node.value
    owner = frame.names.get(inner.id, MISSING) if isinstance(inner, nodes.Name) else MISSING
    if owner is MISSING:
        owner = EXPRESSIONS[inner.__class__](it, inner, frame)
    value = it.find_attribute(owner, node.attr)
    if value is MISSING:
        it.place(node, frame)
        return it.missing_attribute(owner, node.attr)
    return value


def subscript(it: Interpreter, node: nodes.Subscript, frame: Frame) -> Value:
    first, second = node.value, node.index
    owner = EXPRESSIONS[first.__class__](it, first, frame)
    index = EXPRESSIONS[second.__class__](it, second, frame)
    it.place(node, frame)
    return it.get_item(owner, index)


def slice_(it: Interpreter, node: nodes.Slice, frame: Frame) -> Value:
    lower = None if node.lower is None else it.evaluate(node.lower, frame)
    upper = None if node.upper is None else it.evaluate(node.upper, frame)
    step = None if node.step is None else it.evaluate(node.step, frame)
    return slice(lower, upper, step)


def call(it: Interpreter, node: nodes.Call, frame: Frame) -> Value:
    called = node.func
    if not node.args and isinstance(called, nodes.Name) and called.id == "super":
        return zero_argument_super(it, frame)
    callee = EXPRESSIONS[called.__class__](it, called, frame)
    if not node.args and isinstance(callee, Builtin) and callee.name in ("locals", "vars"):
        return dict(frame.names)
    names = frame.names
    args: list[Value] = []
    for argument in node.args:
        if isinstance(argument, nodes.Name) and argument.id in names:
            args.append(names[argument.id])
        elif isinstance(argument, nodes.Starred):
            args.extend(it.iterate(it.evaluate(argument.value, frame)))
        else:
            args.append(EXPRESSIONS[argument.__class__](it, argument, frame))
    keywords: dict[str, Value] = {}
    for keyword in node.keywords:
        given = keyword.value
        if keyword.name is None:
            keywords.update(it.as_keywords(it.evaluate(given, frame)))
        elif isinstance(given, nodes.Name) and given.id in names:
            keywords[keyword.name] = names[given.id]
        else:
            keywords[keyword.name] = EXPRESSIONS[given.__class__](it, given, frame)
    module = frame.module
    if not module.is_text:
        # `place`, for what comes most often
        line = frame.base + node.span.line + 1
        it.ledger.origin = found = module.places.get(line) or module.place(line)
        if not module.is_library:
            it.own_place = found
    if isinstance(callee, Builtin):
        if callee.name == "eval" and len(args) == 1 and isinstance(args[0], str):
            return value_of_text(it, args[0], frame)
        return it.call_builtin(callee, args, keywords)
    if isinstance(callee, Unknown) and isinstance(called, nodes.Attribute):
        if it.recovers:
            recovery.note_call(it, called.attr, (*args, *keywords.values()))
        elif called.attr == "backward" and it.loops.calls:
            # without its backward a step would look small
            raise Stopped(f"the loss is not known: {callee.why}", callee.origin or it.origin())
    return it.call(callee, args, keywords)


def value_of_text(it: Interpreter, content: str, frame: Frame) -> Value:
    """`eval` of a short text that is known: an expression like any other of the program."""
    it.burn_for(content)
    lowered = lower_text("<text>", content.strip()) if len(content) <= EVALUATED_CHARACTERS else None
    statement = lowered.body[0] if lowered is not None and len(lowered.body) == 1 else None
    while isinstance(statement, nodes.Placed) and len(statement.body) == 1:
        statement = statement.body[0]
    if lowered is None or lowered.problems or not isinstance(statement, nodes.ExprStmt):
        it.assume("eval() is not followed")
        return Unknown("eval()", it.origin())
    it.depth += 1
    try:
        if it.depth > EVALUATIONS:
            raise it.error("RecursionError", "maximum recursion depth exceeded")
        # numbers of the text have no place in the file
        module = ModuleValue(frame.module.name, "<text>", is_package=False, is_library=True)
        module.names, module.lazy = frame.module.names, frame.module.lazy
        return it.evaluate(statement.value, Frame(module, frame, 0))
    finally:
        it.depth -= 1


def zero_argument_super(it: Interpreter, frame: Frame) -> Value:
    scope: Frame | None = frame
    while scope is not None:
        if scope.cell is not None and scope.cell.cls is not None and scope.first in scope.names:
            return Super(scope.cell.cls, scope.names[scope.first])
        scope = scope.outer
    raise it.error("RuntimeError", "super(): no arguments")


def binary(it: Interpreter, node: nodes.Binary, frame: Frame) -> Value:
    first, second = node.left, node.right
    left = EXPRESSIONS[first.__class__](it, first, frame)
    right = EXPRESSIONS[second.__class__](it, second, frame)
    if left.__class__ in operators.PLAIN and right.__class__ in operators.PLAIN:
        return operators.plain_binary(it, node.op, left, right)
    it.place(node, frame)
    return operators.binary(it, node.op, left, right)


def unary(it: Interpreter, node: nodes.Unary, frame: Frame) -> Value:
    inner = node.operand
    operand = EXPRESSIONS[inner.__class__](it, inner, frame)
    if node.op == "not":
        if operand is True or operand is False or operand is None:
            return not operand
        undecided = it.undecided(operand)
        if undecided and it.module_depth:
            # inside a model a path is taken all the same: the opposite of what counts as false is true
            return not it.truth(operand, node, frame)
        if undecided:
            return Unknown(f"the opposite of {undecided}", it.origin())
        return not it.truth(operand, node, frame)
    it.place(node, frame)
    return operators.unary(it, node.op, operand)


def bool_op(it: Interpreter, node: nodes.BoolOp, frame: Frame) -> Value:
    is_and = node.op == "and"
    value: Value = None
    last = len(node.values) - 1
    for index, operand in enumerate(node.values):
        value = EXPRESSIONS[operand.__class__](it, operand, frame)
        if index < last and it.truth(value, operand, frame) != is_and:
            return value
    return value


def compare(it: Interpreter, node: nodes.Compare, frame: Frame) -> Value:
    first = node.left
    left = EXPRESSIONS[first.__class__](it, first, frame)
    if len(node.ops) == 1:
        second = node.comparators[0]
        right = EXPRESSIONS[second.__class__](it, second, frame)
        it.place(node, frame)
        return operators.compare(it, node.ops[0], left, right)
    result: Value = True
    last = len(node.ops) - 1
    for index, (op, operand) in enumerate(zip(node.ops, node.comparators, strict=True)):
        right = it.evaluate(operand, frame)
        it.place(node, frame)
        result = operators.compare(it, op, left, right)
        if index < last and not it.truth(result, node, frame):
            return result
        left = right
    return result


def if_exp(it: Interpreter, node: nodes.IfExp, frame: Frame) -> Value:
    condition = node.test
    test = EXPRESSIONS[condition.__class__](it, condition, frame)
    chosen = node.body if test is True or it.truth(test, condition, frame) else node.orelse
    del test
    return EXPRESSIONS[chosen.__class__](it, chosen, frame)


def elements(it: Interpreter, members: tuple[nodes.Expr, ...], frame: Frame) -> list[Value]:
    out: list[Value] = []
    for member in members:
        if isinstance(member, nodes.Starred):
            out.extend(it.iterate(it.evaluate(member.value, frame)))
        else:
            out.append(EXPRESSIONS[member.__class__](it, member, frame))
    return out


def list_expr(it: Interpreter, node: nodes.ListExpr, frame: Frame) -> Value:
    return elements(it, node.elements, frame)


def tuple_expr(it: Interpreter, node: nodes.TupleExpr, frame: Frame) -> Value:
    return tuple(elements(it, node.elements, frame))


def set_expr(it: Interpreter, node: nodes.SetExpr, frame: Frame) -> Value:
    out: set[Value] = set()
    for value in elements(it, node.elements, frame):
        operators.add_to_set(it, out, value)
    return out


def dict_expr(it: Interpreter, node: nodes.DictExpr, frame: Frame) -> Value:
    out: dict[Value, Value] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            out.update(it.as_mapping(it.evaluate(value, frame)))
        else:
            operators.store(it, out, it.evaluate(key, frame), it.evaluate(value, frame))
    return out


def comprehension(it: Interpreter, node: nodes.Comprehension, frame: Frame) -> Value:
    it.burn(CALL_STEPS)
    inner = it.inner_frame(frame)
    if node.kind is nodes.ComprehensionKind.GENERATOR:
        first = _source(it, node.generators[0], frame)
        return Iter(_generate(it, node, inner, first), "generator")
    doubts = it.doubts
    source = _source(it, node.generators[0], frame)
    doubted = [it.uncertain_why] if it.doubts > doubts else []
    made = _collected(it, node, inner, source, doubted)
    if doubted and not it.module_depth:
        it.mark_open(made, doubted[0])
    return made


def _collected(
    it: Interpreter, node: nodes.Comprehension, inner: Frame, source: Iterator[Value], doubted: list[str]
) -> Value:
    rounds = _rounds(it, node.generators, 0, inner, source, doubted)
    if node.kind is nodes.ComprehensionKind.LIST:
        return [it.evaluate(node.element, inner) for _ in rounds]
    if node.kind is nodes.ComprehensionKind.SET:
        out: set[Value] = set()
        for _ in rounds:
            operators.add_to_set(it, out, it.evaluate(node.element, inner))
        return out
    made: dict[Value, Value] = {}
    assert node.value is not None
    for _ in rounds:
        operators.store(it, made, it.evaluate(node.element, inner), it.evaluate(node.value, inner))
    return made


def _generate(
    it: Interpreter, node: nodes.Comprehension, inner: Frame, first: Iterator[Value]
) -> Iterator[Value]:
    for _ in _rounds(it, node.generators, 0, inner, first, []):
        yield it.evaluate(node.element, inner)


def _rounds(
    it: Interpreter,
    generators: tuple[nodes.Generator, ...],
    index: int,
    inner: Frame,
    source: Iterator[Value],
    doubted: list[str],
) -> Iterator[None]:
    """One item for each round of the innermost `for`; a generator, so that no closure keeps values.

    `doubted` takes what an inner `for` runs over where it is not known how often.
    """
    generator = generators[index]
    for item in source:
        it.burn()
        it.assign(generator.target, item, inner)
        del item
        if not all(_keeps(it, test, inner) for test in generator.conditions):
            continue
        if index + 1 == len(generators):
            yield None
        else:
            doubts = it.doubts
            deeper = _source(it, generators[index + 1], inner)
            if it.doubts > doubts:
                doubted.append(it.uncertain_why)
            yield from _rounds(it, generators, index + 1, inner, deeper, doubted)


def _source(it: Interpreter, generator: nodes.Generator, frame: Frame) -> Iterator[Value]:
    """What a comprehension goes over; of a loader a few batches show all there is to see."""
    value = it.evaluate(generator.iter, frame)
    if isinstance(value, Iter) and value.kind == "range":
        # a range whose end is not known: some of its numbers stand for all
        return it.in_doubt(list(islice(value.source, FEW_BATCHES)), "a range whose end is not known")
    items = it.iterate(value)
    return islice(items, FEW_BATCHES) if it.library.is_loader(value) else items


def _keeps(it: Interpreter, test: nodes.Expr, inner: Frame) -> bool:
    """A condition of a comprehension; what may pass is kept, as the element of a list that is not known."""
    value = it.evaluate(test, inner)
    why = it.undecided(value)
    if why and not it.module_depth:
        it.assume(f"{why} is taken to hold")
        return True
    return it.truth(value, test, inner)


def lambda_(it: Interpreter, node: nodes.Lambda, frame: Frame) -> Value:
    return make_function(it, node, "<lambda>", frame)


def make_function(
    it: Interpreter, node: nodes.FunctionDef | nodes.Lambda, name: str, frame: Frame
) -> Function:
    """A function object: defaults are evaluated now, free names are looked up when it runs."""
    scope: Frame | None = frame
    cell = frame.cell if frame.is_class else None
    while scope is not None and scope.is_class:
        scope = scope.outer
    function = Function(node, name, frame.module, scope, frame.base)
    function.cell = cell
    for param in node.params:
        if param.default is not None:
            function.defaults[param.name] = it.evaluate(param.default, frame)
    return function


def formatted(it: Interpreter, node: nodes.FormattedString, frame: Frame) -> Value:
    pieces: list[str] = []
    for part in node.parts:
        if isinstance(part, str):
            pieces.append(part)
            continue
        value = it.evaluate(part, frame)
        if isinstance(value, Unknown):
            return Unknown(f"a text made of {value.why}", value.origin)
        if isinstance(value, Tensor) and value.ndim == 0:
            # a scalar tensor formats as its number
            known = it.library.known_number(value)
            value = value if known is None else known
        if not isinstance(value, (str, int, float)):
            it.burn(DESCRIPTION_STEPS)
        pieces.append(text.text_of(it, value))
    return text.bounded("".join(pieces))


def starred(it: Interpreter, node: nodes.Starred, frame: Frame) -> Value:
    return tuple(it.iterate(it.evaluate(node.value, frame)))


def named(it: Interpreter, node: nodes.NamedExpr, frame: Frame) -> Value:
    value = it.evaluate(node.value, frame)
    target = frame
    while target.function is None and target.outer is not None and target.names is not target.module.names:
        target = target.outer
    it.assign(node.target, value, target)
    return value


def await_(it: Interpreter, node: nodes.Await, frame: Frame) -> Value:
    return it.evaluate(node.value, frame)


def yielded(it: Interpreter, node: nodes.Expr, frame: Frame) -> Value:
    """The value of a `yield` that the statement's generator has already carried out."""
    scope: Frame | None = frame
    while scope is not None:
        if scope.sent is not None and id(node) in scope.sent:
            return scope.sent[id(node)]
        scope = scope.outer
    return None


EXPRESSIONS: dict[type[nodes.Expr], Evaluate] = cast(
    "dict[type[nodes.Expr], Evaluate]",
    {
        nodes.Constant: constant,
        nodes.Name: name,
        nodes.Attribute: attribute,
        nodes.Subscript: subscript,
        nodes.Slice: slice_,
        nodes.Call: call,
        nodes.Starred: starred,
        nodes.Binary: binary,
        nodes.Unary: unary,
        nodes.BoolOp: bool_op,
        nodes.Compare: compare,
        nodes.IfExp: if_exp,
        nodes.ListExpr: list_expr,
        nodes.TupleExpr: tuple_expr,
        nodes.SetExpr: set_expr,
        nodes.DictExpr: dict_expr,
        nodes.Comprehension: comprehension,
        nodes.Lambda: lambda_,
        nodes.FormattedString: formatted,
        nodes.NamedExpr: named,
        nodes.Await: await_,
        nodes.Yield: yielded,
        nodes.YieldFrom: yielded,
    },
)

__all__ = ["EXPRESSIONS", "Class", "elements", "make_function"]
