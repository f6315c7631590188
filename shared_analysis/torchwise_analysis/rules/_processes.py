"""What rules about several processes share: what shows them, and whether two events can meet in one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torchwise_analysis.findings import Place, Severity
from torchwise_analysis.interp.abstract.events import Event, Guard, ProcessGroup, Wrapped
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Hit

SHARDED = ("ddp", "fsdp", "fsdp2")


def several_processes(trace: Trace) -> tuple[tuple[Event, str], ...]:
    """What shows that several processes run this script, with the fact in words; wrappers first."""
    wrapped = tuple(
        (event, "the model is wrapped for several ranks here")
        for event in trace.of(Wrapped)
        if event.how in SHARDED
    )
    groups = tuple(
        (group, f"`{group.how}`: several ranks run this script") for group in trace.of(ProcessGroup)
    )
    return (*wrapped, *groups)


_SPAWNS = ("torch.multiprocessing.", "multiprocessing.", "accelerate.notebook_launcher")


def said_of_ranks(trace: Trace, hits: Iterable[Hit]) -> Iterator[Hit]:
    """Findings that cost something only where several ranks run: hints, where the project's own launch lines
    all start one process and the script starts no more by itself."""
    found = list(hits)
    launches = trace.launches(trace.path) if found and not trace.api(*_SPAWNS) else None
    if launches is None or not launches.is_one:
        yield from found
        return
    said = f" It takes several ranks: the project's launch lines start one ({launches.where})."
    for hit in found:
        yield replace(hit, severity=Severity.HINT, message=hit.message + said)


def can_meet(first: Event, second: Event) -> bool:
    """Whether one run can hold both: no flag is on for one and off for the other (`if args.distributed`)."""
    settled = _flags(first)
    return all(settled.get(flag, value) == value for flag, value in _flags(second).items())


def rank_tests(event: Event) -> tuple[Guard, ...]:
    """The tests around an event that come out differently on the ranks."""
    return tuple(guard for guard in event.scene.guards if guard.parts)


def in_file(trace: Trace, event: Event) -> Place:
    """The event, or the call in the analysed file that leads to it in another one."""
    if event.place.path == trace.path:
        return event.place
    for caller in reversed(event.calls):
        if caller.place.path == trace.path:
            return caller.place
    return event.place


def _flags(event: Event) -> dict[str, bool]:
    guards = {guard.symbol: guard.taken for guard in event.scene.guards if guard.symbol is not None}
    return guards | dict(event.scene.world)
