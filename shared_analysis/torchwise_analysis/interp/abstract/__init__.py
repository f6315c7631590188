"""The rules driver: runs a file in the head over joined, symbolic paths and writes the trace."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from weakref import WeakKeyDictionary

from torchwise_analysis.interp.abstract.entries import FunctionKey, run_module
from torchwise_analysis.interp.abstract.expressions import EXPRESSIONS
from torchwise_analysis.interp.abstract.limits import Limits, OutOfFuelError, StoppedError
from torchwise_analysis.interp.abstract.machine import Machine
from torchwise_analysis.interp.abstract.relevance import Relevance
from torchwise_analysis.interp.abstract.statements import STATEMENTS
from torchwise_analysis.interp.abstract.static import StaticCache
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.names.project import Project
from torchwise_analysis.semantics.dispatch import LIBRARY
from torchwise_analysis.source.nodes import Module

# Nested source makes nested calls of ours; `Limits.nesting` bounds them far below this.
_RECURSION_LIMIT = 8000

DEFAULT_LIMITS = Limits()

# What can be read off nodes is the same in every run; it lives as long as the project does.
_STATIC: WeakKeyDictionary[Project, StaticCache] = WeakKeyDictionary()


def never() -> bool:
    """A `stop` that never stops."""
    return False


def run(
    module: Module,
    project: Project,
    limits: Limits = DEFAULT_LIMITS,
    stop: Callable[[], bool] = never,
    reached: frozenset[FunctionKey] = frozenset(),
) -> Trace:
    """The trace of one file, the files it imports included where it calls into them.

    `reached`: functions that other files of the project are known to call (`Trace.reached` of their
    runs); they are no entries here. No exception escapes: what could not be followed is counted in
    `Trace.silence` as not analysed.
    """
    if sys.getrecursionlimit() < _RECURSION_LIMIT:
        sys.setrecursionlimit(_RECURSION_LIMIT)
    machine: Machine | None = None
    # the run makes many small objects that live until its end: looking for cycles among them is waste
    collecting = gc.isenabled()
    gc.disable()
    try:
        static = _STATIC.setdefault(project, StaticCache())
        relevance = Relevance(module, project, limits.files, static)
        machine = Machine(
            module.path, project, limits, stop, EXPRESSIONS, STATEMENTS, relevance, LIBRARY, static
        )
        run_module(machine, module, reached)
    except (StoppedError, OutOfFuelError):
        pass
    except Exception as error:  # the border: a fault of ours must not take the file's other findings along
        if machine is None:
            return _empty(module.path, f"{type(error).__name__}: {error}")
        machine.counts.failed.append(f"{type(error).__name__}: {error}")
    finally:
        if collecting:
            gc.enable()
    return _trace(machine) if machine is not None else _empty(module.path, "stopped")


def _trace(m: Machine) -> Trace:
    return Trace(
        path=m.path,
        events=tuple(m.events),
        passes=m.passes,
        objects=m.objects,
        parents=m.parents,
        consumed=frozenset(m.consumed),
        backed=frozenset(m.backed),
        escaped_passes=frozenset(m.escaped_passes),
        escaped_tokens=frozenset(m.escaped_tokens),
        escaped=frozenset(m.escaped),
        owns=m.owns,
        facts=m.state.facts,
        silence=m.counts.silence(m.visits, m.visits >= m.limits.visits),
        analysed_files=(m.path, *m.modules),
        reached=frozenset(m.reached),
    )


def _empty(path: str, error: str) -> Trace:
    from torchwise_analysis.interp.abstract.trace import Silence

    none: frozenset[int] = frozenset()
    return Trace(
        path, (), {}, {}, {}, frozenset(), none, none, frozenset(), none, {}, {}, Silence(failed=(error,))
    )
