"""One thread for all analysis, so that documents need no locks and the message loop never waits.

Work is queued by key: what is asked again replaces what waits, and tells what runs to stop. Findings
go before estimates; an estimate that runs when a check arrives is stopped and starts again afterwards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

logger = logging.getLogger(__name__)

Stop = Callable[[], bool]


class Lane(IntEnum):
    """What goes first."""

    CHECK = 0
    VERIFY = 1
    ESTIMATE = 2
    SCAN = 3  # findings of a file that nobody has open


@dataclass(slots=True)
class Job:
    """Work that waits or runs. It polls its argument, and says whether it came to its end."""

    lane: Lane
    key: str
    due: float
    work: Callable[[Stop], bool]
    stopped: threading.Event = field(default_factory=threading.Event)
    gave_way: bool = False  # in the run at hand

    def stop(self) -> None:
        self.stopped.set()


class Worker:
    """Runs jobs one at a time in a daemon thread: leaving never waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[tuple[Lane, str], Job] = {}
        self._running: Job | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, lane: Lane, key: str, work: Callable[[Stop], bool], delay_s: float = 0.0) -> Job:
        """Run `work` after `delay_s`, instead of any earlier job of the same lane and key."""
        job = Job(lane, key, time.monotonic() + delay_s, work)
        with self._changed:
            self._stop_running(lane, key)
            self._waiting[lane, key] = job
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._serve, name="torchwise-analysis", daemon=True)
                self._thread.start()
            self._changed.notify()
        return job

    def hurry(self, lane: Lane, key: str) -> None:
        """Somebody waits for the answer: drop the rest of the delay."""
        with self._changed:
            job = self._waiting.get((lane, key))
            if job is not None:
                job.due = min(job.due, time.monotonic())  # never ahead of what was due before
                self._changed.notify()

    def cancel(self, lane: Lane, key: str) -> None:
        """Forget what waits and stop what runs."""
        with self._changed:
            self._waiting.pop((lane, key), None)
            self._stop_running(lane, key)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            if self._running is not None:
                self._running.stop()
            self._changed.notify()

    def _stop_running(self, lane: Lane, key: str) -> None:
        job = self._running
        if job is not None and job.lane is lane and job.key == key:
            job.stop()

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            finished = self._run(job)
            with self._changed:
                self._running = None
                job.gave_way = False
                if not finished and not job.stopped.is_set():
                    self._waiting.setdefault((job.lane, job.key), job)

    def _run(self, job: Job) -> bool:
        try:
            return job.work(lambda: self._must_stop(job))
        except Exception:
            logger.exception("analysis of %s failed", job.key)
            return True

    def _next(self) -> Job | None:
        """The next job that is due; blocks until there is one, None once closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                due = [job for job in self._waiting.values() if job.due <= now]
                if due:
                    job = min(due, key=lambda job: (job.lane, job.due))
                    del self._waiting[job.lane, job.key]
                    self._running = job
                    return job
                soonest = min((job.due for job in self._waiting.values()), default=None)
                self._changed.wait(None if soonest is None else soonest - now)
            return None

    def _must_stop(self, job: Job) -> bool:
        # read without the lock: a stale answer is repaired by the next poll
        if job.stopped.is_set() or self._closed or self._preempted(job):
            job.gave_way = True
        # for good: what stopped half-way must not pass for an answer because the reason has gone since
        return job.gave_way

    def _preempted(self, job: Job) -> bool:
        return any(lane < job.lane for lane, _ in list(self._waiting))
