"""Analysts in processes of their own.

One thread here talks to all of them, so that a process that dies is noticed at once, the file it was at is
known, and Ctrl-C ends everything. Each process is given the files of one stretch of the list: neighbours
import the same modules. Who is done takes from the end of the longest stretch that is left.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import TYPE_CHECKING, cast

from torchwise_analysis.findings import Finding
from torchwise_server.batch.work import Analyst, Answer, Job, Key, Plan, failed

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext

Done = Callable[[int, Answer], None]

# A process is worth starting for this many files.
FILES_PER_PROCESS = 6
_ATTEMPTS = 3  # to start a process in the place of one that died


def default_jobs() -> int:
    """One process for each processor that we may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Task:
    """A question to an analyst: the second one where functions are given that other files call, the third one
    where findings are given."""

    number: int
    job: Job
    called: frozenset[Key] | None = None
    tried: tuple[Finding, ...] = ()


def answer(analyst: Analyst, task: Task) -> Answer:
    """Never raises for what a file can hold: what breaks outside the engine's border is contained here."""
    try:
        if task.tried:
            return analyst.tried(task.job, task.called or frozenset(), task.tried)
        return analyst.first(task.job) if task.called is None else analyst.again(task.job, task.called)
    except Exception as error:  # the border
        return failed(task.job, f"the check failed ({type(error).__name__}: {error})")


class Here:
    """One analyst in this process; it makes no cycles, so looking for some would only take time."""

    def __init__(self, plan: Plan) -> None:
        self._analyst = Analyst(plan)
        self._is_collecting = gc.isenabled()

    def run(self, tasks: Sequence[Task], done: Done) -> None:
        for task in tasks:
            done(task.number, answer(self._analyst, task))

    def __enter__(self) -> Here:
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        del self._analyst  # the collector would look through all that it knows
        if self._is_collecting:
            gc.enable()


@dataclass(slots=True)
class _Lane:
    """A process, its connection, what it is at, what is planned for it, and the files it knows."""

    process: BaseProcess
    connection: Connection
    current: Task | None = None
    planned: deque[Task] = field(default_factory=deque[Task])
    known: set[str] = field(default_factory=set[str])
    deaths: int = 0


class Processes:
    """Analysts in several processes, which end with the `with` block."""

    def __init__(self, plan: Plan, count: int) -> None:
        self._plan = plan
        method = "fork" if sys.platform == "linux" else "spawn"
        self._is_forked = method == "fork"
        # both kinds have `Process`, which the type of their base does not say
        self._context = cast("SpawnContext", multiprocessing.get_context(method))
        self._lanes: list[_Lane] = []
        for _ in range(count):
            self._lanes.append(self._started())

    def run(self, tasks: Sequence[Task], done: Done) -> None:
        """Ask all questions; `done` hears each answer, in no order.

        A process that dies is replaced; the file it was at is answered with what happened.
        """
        self._share(tasks)
        for lane in self._lanes:
            self._feed(lane)
        while busy := [lane for lane in self._lanes if lane.current is not None]:
            ready = wait([thing for lane in busy for thing in (lane.connection, lane.process.sentinel)])
            for lane in busy:
                if lane.connection in ready or lane.process.sentinel in ready:
                    self._hear(lane, done)

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lane in self._lanes:
            lane.connection.close()
            if kind is not None:
                lane.process.kill()
        for lane in self._lanes:
            lane.process.join(timeout=5)
            if lane.process.is_alive():
                lane.process.kill()
                lane.process.join()

    # ------------------------------------------------------------------ inside

    def _share(self, tasks: Sequence[Task]) -> None:
        """Plan: who knows a file gets it again, the others are divided into stretches."""
        new: list[Task] = []
        for task in tasks:
            knowing = next((lane for lane in self._lanes if task.job.path in lane.known), None)
            if knowing is not None:
                knowing.planned.append(task)
            else:
                new.append(task)
        for lane, stretch in zip(self._lanes, _stretches(new, len(self._lanes)), strict=True):
            lane.planned.extend(stretch)

    def _feed(self, lane: _Lane) -> None:
        """Give a lane its next task."""
        task = self._next(lane)
        lane.current = task
        if task is None:
            return
        lane.known.add(task.job.path)
        # whoever has died will be heard of by its sentinel
        with contextlib.suppress(OSError):
            lane.connection.send(task)

    def _next(self, lane: _Lane) -> Task | None:
        if lane.planned:
            return lane.planned.popleft()
        longest = max(self._lanes, key=lambda one: len(one.planned))
        return longest.planned.pop() if longest.planned else None

    def _hear(self, lane: _Lane, done: Done) -> None:
        task = lane.current
        assert task is not None
        try:
            said = lane.connection.recv() if lane.connection.poll() else None
        except (EOFError, OSError):
            said = None
        if said is None:
            said = failed(task.job, self._replace(lane))
        self._feed(lane)
        done(task.number, cast("Answer", said))

    def _replace(self, lane: _Lane) -> str:
        """Start a process in the place of a dead one; says how it died."""
        lane.process.join(timeout=5)
        code = lane.process.exitcode
        lane.connection.close()
        lane.deaths += 1
        if lane.deaths > _ATTEMPTS:
            raise WorkersDieError(f"processes of the check keep dying ({_how(code)}); --jobs 1 uses none")
        fresh = self._started()
        lane.process, lane.connection = fresh.process, fresh.connection
        lane.known.clear()
        return f"the process that checked it {_how(code)}; the file was not checked, the others were"

    def _started(self) -> _Lane:
        ours, theirs = self._context.Pipe()
        # a forked process holds our ends too; unless it lets go of them nobody would notice that we are gone
        held = [ours, *(lane.connection for lane in self._lanes)] if self._is_forked else []
        process = self._context.Process(target=_serve, args=(theirs, held, self._plan), daemon=True)
        with _interrupts_held():
            process.start()
        theirs.close()
        return _Lane(process, ours)


@contextlib.contextmanager
def _interrupts_held() -> Generator[None, None, None]:
    """Ctrl-C reaches all processes of a terminal: a new one must not hear it before it ignores it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkersDieError(Exception):
    """Processes die as fast as they are started; the message says how."""


def _stretches(tasks: Sequence[Task], count: int) -> Iterator[Sequence[Task]]:
    for index in range(count):
        yield tasks[index * len(tasks) // count : (index + 1) * len(tasks) // count]


def _how(code: int | None) -> str:
    if code is None:
        return "gave no answer"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"


def _serve(connection: Connection, held: Sequence[Connection], plan: Plan) -> None:
    """The life of a process: answer until the other end closes."""
    for other in held:
        with contextlib.suppress(OSError):  # of a process that was replaced
            other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks ends us
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    gc.disable()  # nothing here makes cycles, see engine.check_together_quickly
    analyst = Analyst(plan)
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(answer(analyst, connection.recv()))
    os._exit(0)  # letting go of millions of objects, one by one, takes half a second that somebody waits for
