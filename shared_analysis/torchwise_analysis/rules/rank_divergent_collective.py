"""rank-divergent-collective: some ranks wait in a collective that the others never enter."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Collective, Event, Forward, Guard, LoopLeft
from torchwise_analysis.interp.abstract.loops import LoopKind
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import SHARDED, can_meet, in_file, rank_tests, said_of_ranks
from torchwise_analysis.rules._reading import distinct, doubt

WRONG = """
import torch
import torch.distributed as dist


def save(model, path):
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
        dist.barrier()
        ^^^^^^^^^^^^^^ rank-divergent-collective error certain
"""

RIGHT = """
import torch
import torch.distributed as dist


def save(model, path):
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
"""

RULE = Rule(
    code="TW604",
    name="rank-divergent-collective",
    category=Category.DISTRIBUTED,
    severity=Severity.ERROR,
    claim="A collective call stands where only some ranks come, or some ranks leave a loop of such calls.",
    cost=(
        "A collective returns when every rank of the group has called it. The ranks that call it alone wait "
        "until the watchdog kills the job, by default after ten minutes with NCCL and half an hour with "
        "gloo, or pair up with the next collective of the others and hang or mix data there. All GPUs are "
        "paid for while nothing happens."
    ),
    wrong=Example("A barrier for rank 0 alone", WRONG),
    right=Example("A barrier for all", RIGHT),
    silent=(
        "the other ranks call it too, in the other branch or at another place (first process downloads, the "
        "others wait)",
        "the call names a group of its own",
        "the test comes out the same on every rank: the number of ranks, whether there is a group at all",
        "calls that only some ranks have to make (send, receive, RPC)",
        "the other ranks leave the loop too, on the other side of the test or for the same reason",
    ),
    grading=(
        "Always an error. Certain for `torch.distributed` under a test of the rank; likely for calls of a "
        "framework that wait inside."
        " A hint where the project's own launch lines all start one process."
    ),
    fix="Advice: move the call out of the test. Where all ranks pass is for the author to say.",
    references=(
        Reference(
            "torch.distributed: collective functions",
            "https://docs.pytorch.org/docs/stable/distributed.html#collective-functions",
        ),
        Reference(
            "speechbrain/speechbrain#2401: possible NCCL-level deadlock during checkpointing",
            "https://github.com/speechbrain/speechbrain/issues/2401",
        ),
        Reference(
            "OpenRLHF/OpenRLHF#1126: save model nccl timeout",
            "https://github.com/OpenRLHF/OpenRLHF/issues/1126",
        ),
    ),
    examples=(
        Example(
            "An early return of the other ranks",
            """
import torch.distributed as dist


def report(loss):
    if dist.get_rank() != 0:
        return
    dist.all_reduce(loss)
    ^^^^^^^^^^^^^^^^^^^^^ rank-divergent-collective error certain
    print(loss / dist.get_world_size())
""",
        ),
        Example(
            "A helper that waits, called on the main process",
            """
from accelerate import Accelerator

accelerator = Accelerator()


def finish(model, path):
    if accelerator.is_main_process:
        accelerator.save_model(model, path)
        accelerator.wait_for_everyone()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ rank-divergent-collective error likely
""",
        ),
        Example(
            "The first rank stops early, the others go on",
            """
import torch.distributed as dist


def train(loader, learn, stopper):
    for x, y in loader:
        loss = learn(x, y)
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            stopper.see(loss)
            if stopper.has_enough():
                break
                ^^^^^ rank-divergent-collective error certain
""",
        ),
        Example(
            "All stop together",
            """
import torch
import torch.distributed as dist


def train(loader, learn, stopper):
    stop = torch.zeros(1, device="cuda")
    for x, y in loader:
        loss = learn(x, y)
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            stop.fill_(float(stopper.has_enough(loss)))
        dist.broadcast(stop, src=0)
        if stop.item():
            break
""",
        ),
        Example(
            "Both sides call it",
            """
import torch.distributed as dist


def share(objects, load):
    if dist.get_rank() == 0:
        objects = [load()]
        dist.broadcast_object_list(objects, src=0)
    else:
        objects = [None]
        dist.broadcast_object_list(objects, src=0)
    return objects[0]
""",
        ),
        Example(
            "The first process prepares, the others wait",
            """
import torch.distributed as dist


def download(local_rank, fetch):
    if local_rank not in (-1, 0):
        dist.barrier()
    data = fetch()
    if local_rank == 0:
        dist.barrier()
    return data
""",
        ),
        Example(
            "Tests that all ranks answer alike",
            """
import torch.distributed as dist


def mean(loss, local_rank):
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(loss)
    if local_rank != -1:
        dist.barrier()
    return loss
""",
        ),
        Example(
            "A group of its own",
            """
import torch.distributed as dist


def leaders(x):
    group = dist.new_group([0, 8])
    if dist.get_rank() % 8 == 0:
        dist.all_reduce(x, group=group)
    return x
""",
        ),
    ),
)

# Frameworks whose call waits for all ranks inside. [Accelerate: wait_for_everyone, gather; Fabric: barrier,
# save, which ends in a barrier; DeepSpeed: save_checkpoint must be called by all processes]
_WAITING = (
    "wait_for_everyone",
    "gather",
    "gather_for_metrics",
    "reduce",
    "barrier",
    "all_gather",
    "all_reduce",
    "broadcast",
    "save_checkpoint",
)


_Tested: TypeAlias = "tuple[Collective, tuple[Guard, ...]]"  # with the tests of the rank around it


def detect(trace: Trace) -> Iterator[Hit]:
    yield from said_of_ranks(trace, _found(trace))


def _found(trace: Trace) -> Iterator[Hit]:
    found = [(event, rank_tests(event)) for event in trace.of(Collective)]
    alone = [
        (event, tests)
        for event, tests in found
        if tests
        and _is_known(event)
        and not _may_not_wait(trace, event)
        and _is_for_all(event)
        and not any(_pairs(event, tests, other, theirs) for other, theirs in found)
    ]
    served = _served(found, alone)
    for event, tests in alone:
        if not served & _endless(event, tests):
            yield _hit(trace, event, tests[-1])
    yield from _left(trace)


def _served(found: list[_Tested], alone: list[_Tested]) -> set[Place]:
    """Endless loops in which the ranks on one side of a test answer the others: those call some of what is
    called there too."""
    unmet = {event.order for event, _ in alone}
    return {
        place
        for event, tests in found
        if tests and event.order not in unmet
        for place in _endless(event, tests)
    }


def _endless(event: Collective, tests: tuple[Guard, ...]) -> set[Place]:
    """The endless loops around an event that only some ranks come to."""
    inside = event.loops[min(test.loops for test in tests) :]
    return {turn.loop.place for turn in inside if turn.loop.kind is LoopKind.UNBOUNDED}


# Older ones save on rank 0 and go on. [lightning `Trainer.save_checkpoint`: a barrier behind it]
_WAITS_SINCE = (2, 0)


def _may_not_wait(trace: Trace, event: Collective) -> bool:
    """Does the project allow for a release of Lightning in which saving is no collective?"""
    if event.name != "lightning.Trainer.save_checkpoint":
        return False
    known = trace.releases("pytorch-lightning") or trace.releases("lightning")
    return known is not None and known.may_be_before(_WAITS_SINCE)


def _left(trace: Trace) -> Iterator[Hit]:
    """Ranks that leave a loop in which the others go on to meet."""
    exits = trace.of(LoopLeft)
    met: dict[Place, list[Collective | Forward]] = {}
    for event in trace.of_any(Collective, Forward):
        if _is_met_by_all(event):
            for turn in event.loops:
                met.setdefault(turn.loop.place, []).append(event)
    said: set[Place] = set()
    for one in exits:
        tests = [test for test in rank_tests(one) if test.loops >= len(one.loops)]
        loop = one.loops[-1].loop.place
        if not tests or loop in said or any(_goes_along(one, tests, other) for other in exits):
            continue
        partner = next((event for event in met.get(loop, ()) if can_meet(one, event)), None)
        if partner is not None:
            said.add(loop)
            yield _hit_of_exit(one, tests[-1], partner)


def _is_met_by_all(event: Collective | Forward) -> bool:
    if _parting(event):
        return False
    if isinstance(event, Forward):
        return event.wrapped in SHARDED and True in event.grad
    return _is_known(event) and _is_for_all(event)


def _parting(event: Event) -> list[Guard]:
    """The tests of the rank around an event; one that some ranks left the loop at is behind them all."""
    return [test for test in rank_tests(event) if not test.ends]


def _goes_along(one: LoopLeft, tests: list[Guard], other: LoopLeft) -> bool:
    """Do the other ranks leave the loop as well, on the other side of the test or for the same reason?"""
    if other is one or other.loops[-1].loop.place != one.loops[-1].loop.place:
        return False
    theirs = _parting(other)
    if theirs:
        return any(
            test.place == their.place and test.taken != their.taken for test in tests for their in theirs
        )
    own, last = one.scene.guards[-1], other.scene.guards[-1:]
    return not last or (last[0].kind, last[0].symbol, last[0].test) == (own.kind, own.symbol, own.test)


def _hit_of_exit(one: LoopLeft, test: Guard, partner: Collective | Forward) -> Hit:
    is_forward = isinstance(partner, Forward)
    what = "pass" if isinstance(partner, Forward) else f"`{partner.name.rpartition('.')[2]}`"
    return Hit(
        one.place,
        Severity.ERROR,
        Confidence.LIKELY if is_forward else Confidence.CERTAIN,
        f"only some ranks leave the loop here, the others wait for them in its next {what}: the job hangs. "
        "Share the decision first, so that all leave together."
        + doubt((is_forward, "whether the others leave in another way is not seen")),
        distinct(
            (
                Evidence(test.place, "the ranks part at this test"),
                Evidence(one.place, "those on one side leave the loop"),
                Evidence(partner.place, "the others come here again and wait"),
            )
        ),
        frozenset({("collective", partner.place)}),
    )


def _is_known(event: Collective) -> bool:
    return event.name.startswith("torch.distributed.") or event.name.rpartition(".")[2] in _WAITING


def _is_for_all(event: Collective) -> bool:
    return event.group is None or (isinstance(event.group, Const) and event.group.value is None)


def _pairs(event: Collective, tests: tuple[Guard, ...], other: Collective, theirs: tuple[Guard, ...]) -> bool:
    """May the other ranks call `other` while these call `event`? The same kind of call, or one in the same
    helper, behind the contrary test, or behind a test of the rank elsewhere in the same function."""
    helps = _helpers(event) & _helpers(other)
    if other.name != event.name and not helps:
        return False
    sides = {(test.place, test.taken) for test in tests}
    for test in theirs:
        if (test.place, not test.taken) in sides:
            return True
        is_elsewhere = all(test.place != place for place, _ in sides)
        if is_elsewhere and (helps or other.scene.function == event.scene.function):
            return True
    return False


def _helpers(event: Collective) -> set[tuple[str, str]]:
    """The functions that were called on the way to an event, each with the function that called it."""
    path = [*(caller.function for caller in event.calls), event.scene.function]
    return set(pairwise(path))


def _hit(trace: Trace, event: Collective, test: Guard) -> Hit:
    last = event.name.rpartition(".")[2]
    waits_inside = not event.name.startswith("torch.distributed.")
    return Hit(
        in_file(trace, event),
        Severity.ERROR,
        Confidence.LIKELY if waits_inside else Confidence.CERTAIN,
        f"only some ranks reach this `{last}`, which returns when all have called it: the job hangs. Move it "
        "out of the test of the rank." + doubt((waits_inside, "whether it waits depends on the framework")),
        distinct(
            (
                Evidence(test.place, "the ranks part at this test"),
                Evidence(event.place, "only the ranks on one side call this"),
            )
        ),
        frozenset({("collective", event.place)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Let every rank reach this call", Safety.ADVICE, ())
