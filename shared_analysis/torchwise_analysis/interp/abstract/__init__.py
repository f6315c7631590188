"""The rules driver: runs a file in the head over joined, symbolic paths and writes the trace."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

from torchwise_analysis.interp.abstract.entries import FunctionKey
from torchwise_analysis.interp.abstract.limits import Limits, StoppedError
from torchwise_analysis.interp.abstract.runs import FileRun, Memory
from torchwise_analysis.interp.abstract.static import StaticCache
from torchwise_analysis.interp.abstract.trace import Silence, Trace
from torchwise_analysis.interp.core.frames import with_room
from torchwise_analysis.names.project import Project
from torchwise_analysis.source.nodes import Module

# Nested source makes nested calls of ours; `Limits.nesting` bounds them far below this.
_RECURSION_LIMIT = 8000

DEFAULT_LIMITS = Limits()
# What a file of an installed package may cost. Nobody's training stands there, and whoever checks one checks
# thousands of files: each function is followed less far, and what that leaves out is said as ever.
LIBRARY_LIMITS = Limits(visits=100_000, entry_visits=10_000, late_visits=5_000)

# Bodies and loops whose facts are kept from one edit to the next. An edit runs a few; a file run anew finds
# those of all its functions in a tenth of the time that the run takes.
_MOST_BODIES = 600

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
    memory: Memory | None = None,
) -> Trace:
    """The trace of one file, the files it imports included where it calls into them.

    `reached`: functions that other files of the project are known to call (`Trace.reached` of their
    runs); they are no entries here. `memory`: of runs of earlier texts of this file; what did not change
    since is taken from there, and the trace is the same as without. Places of a trace are right until the
    next run with its memory. No exception escapes: what could not be followed is counted in `Trace.silence`
    as not analysed.
    """
    if sys.getrecursionlimit() < _RECURSION_LIMIT:
        sys.setrecursionlimit(_RECURSION_LIMIT)
    memory = Memory() if memory is None else memory
    # the run makes many small objects that live until its end: looking for cycles among them is waste
    collecting = gc.isenabled()
    gc.disable()
    failed: tuple[str, ...] = ()
    runs: FileRun | None = None
    try:
        static = _static_facts(project)
        if memory.prepare(module, project, limits):
            static.bound(_MOST_BODIES)
        runs = FileRun(module.path, project, limits, stop, static, reached, memory)
        with_room(runs.run)
    except StoppedError:
        pass
    except Exception as error:  # the border: a fault of ours must not take the file's other findings along
        failed = (f"{type(error).__name__}: {error}",)
        memory.forget()
    finally:
        if collecting:
            gc.enable()
    trace = runs.trace() if runs is not None else _empty(module.path)
    trace = replace(trace, releases=project.releases, launches=project.launches)
    return trace if not failed else replace(trace, silence=replace(trace.silence, failed=failed))


def _static_facts(project: Project) -> StaticCache:
    """What was read off the nodes of a project's files."""
    return _STATIC.setdefault(project, StaticCache())


def _empty(path: str) -> Trace:
    none: frozenset[int] = frozenset()
    return Trace(path, (), {}, {}, {}, frozenset(), none, none, frozenset(), none, {}, {}, Silence())
