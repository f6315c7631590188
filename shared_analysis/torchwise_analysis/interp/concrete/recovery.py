"""Going on after a failure, to read what else a script says; such a run measures nothing.

A statement that cannot be followed is passed over: what it would bind is not known. Inside a model and inside
libraries nothing is recovered, because what comes out would be another model; the statement of the script
that called it is passed over as a whole.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchwise_analysis.interp.concrete.errors import OutOfFuel, Raised, Stopped
from torchwise_analysis.interp.concrete.values import Frame, Unknown, Value
from torchwise_analysis.source import nodes
from torchwise_memory.report import Origin
from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.errors import RuntimeStop

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# Exceptions by which programs steer themselves; they are on their way to somebody.
_SIGNALS = frozenset({"KeyboardInterrupt", "GeneratorExit"})
# As many failures say all there is to say.
MAX_FAILURES = 200
# So deep do programs call before they recurse.
SHALLOW = 3
# Words by which a model's own text may hold something else than single precision.
_OTHER_TYPES = re.compile(r"\b(half|float16|bfloat16|autocast|fp16|bf16|double|float64|set_default_dtype)\b")
_CASTS = frozenset({"half", "bfloat16", "double"})


@dataclass(frozen=True, slots=True)
class FailedModel:
    """A model that could not be made: its class, the module that defines it, and where it is asked for."""

    name: str
    module: str
    origin: Origin | None


@dataclass(slots=True)
class Unread:
    """What a run saw done to values that are not known: backward passes, casts, and contexts entered."""

    backwards: int = 0
    casts: int = 0
    contexts: int = 0


def note_call(it: Interpreter, name: str, given: tuple[Value, ...]) -> None:
    """A method of a value that is not known was called by the program."""
    if name == "backward":
        it.unread.backwards += 1
    elif name in _CASTS or (name == "to" and any(isinstance(one, (DType, Unknown)) for one in given)):
        it.unread.casts += 1


def note_context(it: Interpreter, why: str) -> None:
    """A context that is not known was entered; those of the standard library cast nothing."""
    words = why.removeprefix("what ").partition(" ")[0]
    if words.partition(".")[0] not in sys.stdlib_module_names:
        it.unread.contexts += 1


def stays_in_single_precision(it: Interpreter) -> bool:
    """Whether the run came to the backward pass of a model that could not be made, and nothing casts.

    Everything that was entered or called on the way is known, and so is the text that defines the model.
    """
    failed = it.library.failed_model
    if failed is None or it.library.named_model is not None or not it.unread.backwards:
        return False
    if it.unread.casts or it.unread.contexts or it.world.default_dtype.name != "float32":
        return False
    source = it.library.imports.text_of(failed.module)
    return source is not None and _OTHER_TYPES.search(source) is None


def may_pass_over(it: Interpreter, frame: Frame, failure: Exception) -> bool:
    """Whether the run goes on behind the statement of `frame` that ended with `failure`."""
    if it.module_depth or it.making or frame.module.is_library or it.passed_over >= MAX_FAILURES:
        return False
    if isinstance(failure, Raised):
        name = failure.value.cls.name
        if name == "StopIteration" and _steps_by_itself(frame):
            return False
        if name == "RecursionError" and it.depth > SHALLOW:
            return False  # the outermost call is passed over, not each of them
        return name not in _SIGNALS and not _is_awaited(it, failure)
    return isinstance(failure, (Stopped, RuntimeStop)) and not isinstance(failure, OutOfFuel)


def _is_awaited(it: Interpreter, failure: Raised) -> bool:
    """Whether an enclosing `try` of the program handles an exception."""
    from torchwise_analysis.interp.concrete.statements import matching_handler

    return any(matching_handler(it, node, failure.value, frame) is not None for node, frame in it.tries)


def _steps_by_itself(frame: Frame) -> bool:
    """Whether a frame is that of an iterator, which ends by an exception."""
    function = frame.function
    return function is not None and (function.name == "__next__" or function.node.scope.is_generator)


def pass_over(it: Interpreter, statement: nodes.Stmt, frame: Frame, failure: Exception) -> Unknown:
    """Bind what the statement would have bound; the unknown that stands for all of it."""
    it.passed_over += 1
    why, origin = _reason(failure)
    unknown = Unknown(why, origin or it.origin_of(statement, frame))
    for target in _targets(statement):
        _bind(it, target, unknown, frame)
    return unknown


def _reason(failure: Exception) -> tuple[str, Origin | None]:
    if isinstance(failure, Stopped):
        return failure.message, failure.origin
    if isinstance(failure, Raised):
        return f"what {failure.value.cls.name} ended", failure.origin
    return str(failure), None


def _bind(it: Interpreter, target: nodes.Expr, unknown: Unknown, frame: Frame) -> None:
    try:
        it.assign(target, unknown, frame)
    except (Raised, Stopped, RuntimeStop):
        return  # its owner is not known either


def _targets(statement: nodes.Stmt) -> Iterator[nodes.Expr]:
    span = statement.span
    if isinstance(statement, nodes.Assign):
        yield from statement.targets
    elif isinstance(statement, (nodes.AnnAssign, nodes.AugAssign, nodes.For)):
        yield statement.target
    elif isinstance(statement, nodes.With):
        for item in statement.items:
            if item.target is not None:
                yield item.target
    elif isinstance(statement, (nodes.FunctionDef, nodes.ClassDef)):
        yield nodes.Name(span, statement.name)
    elif isinstance(statement, (nodes.Import, nodes.ImportFrom)):
        for alias in statement.names:
            if alias.name != "*":
                yield nodes.Name(span, alias.asname or alias.name.partition(".")[0])
