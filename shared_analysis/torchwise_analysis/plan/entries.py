"""Where the training loop of a file stands that nobody started, said in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from torchwise_analysis.source import nodes

_STEPS = frozenset({"step", "optimizer_step", "training_step"})
_GUARDS = (nodes.If, nodes.Try, nodes.With)


@dataclass(frozen=True, slots=True)
class Trainer:
    """A function whose text goes backward or steps: its name, line from 1, and parameters without default."""

    name: str
    line: int
    open_parameters: tuple[str, ...]


def trainers(module: nodes.Module) -> tuple[Trainer, ...]:
    """Functions and methods of a file whose own text holds a training step."""
    return tuple(_in_block(module.body, "", 0))


def _in_block(block: nodes.Block, prefix: str, base: int) -> Iterator[Trainer]:
    for statement in block:
        if isinstance(statement, nodes.Placed):
            yield from _in_block(statement.body, prefix, statement.line)
        elif isinstance(statement, nodes.ClassDef):
            yield from _in_block(statement.body, f"{prefix}{statement.name}.", base)
        elif isinstance(statement, nodes.FunctionDef):
            if _goes_backward(statement.body) or statement.name == "training_step":
                yield _trainer(statement, prefix, base)
        elif isinstance(statement, _GUARDS):
            yield from _in_block(statement.body, prefix, base)


def _trainer(node: nodes.FunctionDef, prefix: str, base: int) -> Trainer:
    plain = (nodes.ParamKind.POSITIONAL, nodes.ParamKind.POSITIONAL_ONLY, nodes.ParamKind.KEYWORD_ONLY)
    params = [p.name for p in node.params if p.kind in plain and p.default is None]
    skipped = 1 if prefix and params[:1] == ["self"] else 0
    return Trainer(f"{prefix}{node.name}", base + node.span.line + 1, tuple(params[skipped:]))


def _goes_backward(block: nodes.Block) -> bool:
    names = set(called_names(block))
    return "backward" in names or bool(names & _STEPS and "zero_grad" in names)


def called_names(node: object) -> Iterator[str]:
    """Attributes and names of functions that a piece of text calls."""
    if isinstance(node, tuple):
        for member in cast("tuple[object, ...]", node):
            yield from called_names(member)
        return
    if not isinstance(node, nodes.Node):
        return
    if isinstance(node, nodes.Call):
        if isinstance(node.func, nodes.Attribute):
            yield node.func.attr
        elif isinstance(node.func, nodes.Name):
            yield node.func.id
    for name in type(node).__dataclass_fields__:
        if name != "span":
            yield from called_names(getattr(node, name))


def assigned_names(module: nodes.Module, line: int) -> tuple[str, ...]:
    """Plain names that the assignment on a line (from 1) binds."""
    return tuple(_assigned(module.body, line, 0))


def _assigned(block: object, line: int, base: int) -> Iterator[str]:
    if isinstance(block, tuple):
        for member in cast("tuple[object, ...]", block):
            yield from _assigned(member, line, base)
    elif isinstance(block, nodes.Placed):
        yield from _assigned(block.body, line, block.line)
    elif isinstance(block, nodes.Assign) and base + block.span.line + 1 == line:
        for target in block.targets:
            members = target.elements if isinstance(target, nodes.TupleExpr) else (target,)
            yield from (member.id for member in members if isinstance(member, nodes.Name))
    elif isinstance(block, nodes.Stmt):
        for name in ("body", "orelse", "final", "handlers"):
            inner = getattr(block, name, ())
            if isinstance(inner, tuple):
                yield from _assigned(cast("tuple[object, ...]", inner), line, base)
    elif isinstance(block, nodes.Handler):
        yield from _assigned(block.body, line, base)
