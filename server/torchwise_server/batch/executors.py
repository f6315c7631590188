"""Analysts behind any `concurrent.futures` executor, a cluster of Dask's among them.

The workers must have this torchwise and see the files under the same paths.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future, as_completed
from types import TracebackType
from typing import Any, cast

from torchwise_server.batch.processes import Done, Task, answer
from torchwise_server.batch.work import Analyst, Answer, Plan, failed

_CHUNKS = 256  # at most; each is one round trip
_LEAST_IN_CHUNK = 4

_LOCAL = threading.local()


class NoSchedulerError(Exception):
    """No cluster can be reached; the message says why."""


def answers(plan: Plan, tasks: Sequence[Task]) -> list[Answer]:
    """Run on a worker: the answers to some questions. An analyst is kept for each thread."""
    known = getattr(_LOCAL, "analyst", None)
    if not isinstance(known, Analyst) or known.plan != plan:
        known = _LOCAL.analyst = Analyst(plan)
    return [answer(known, task) for task in tasks]


class OnExecutor:
    """Asks an executor's workers. What a worker does not live to answer is answered with what happened."""

    def __init__(self, executor: Executor, plan: Plan) -> None:
        self._executor = executor
        self._plan = plan
        self._waiting: list[Future[list[Answer]]] = []

    def run(self, tasks: Sequence[Task], done: Done) -> None:
        chunks = _chunks(tasks)
        asked = {self._executor.submit(answers, self._plan, chunk): chunk for chunk in chunks}
        self._waiting = list(asked)
        for future in as_completed(asked):
            chunk = asked[future]
            try:
                found = future.result()
            except Exception as error:  # a worker died, or cannot run what it was sent
                what = f"the worker failed ({type(error).__name__}: {error}); the file was not checked"
                found = [failed(task.job, what) for task in chunk]
            for task, one in zip(chunk, found, strict=True):
                done(task.number, one)
        self._waiting = []

    def __enter__(self) -> OnExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for future in self._waiting:
            future.cancel()


def dask_executor(address: str) -> Executor:
    """The executor of the Dask cluster whose scheduler listens at `address`.

    Raises:
        NoSchedulerError: Dask is not installed, or nobody answers there.
    """
    try:
        from distributed import Client  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        message = "--scheduler needs Dask: pip install 'torchwise[dask]'"
        raise NoSchedulerError(message) from None
    try:
        client = cast("Any", Client)(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise NoSchedulerError(f"no Dask scheduler at {address}: {error}") from None
    return cast("Executor", client.get_executor())


def _chunks(tasks: Sequence[Task]) -> list[Sequence[Task]]:
    size = max(_LEAST_IN_CHUNK, -(-len(tasks) // _CHUNKS))
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]
