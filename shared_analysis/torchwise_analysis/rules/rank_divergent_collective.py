"""rank-divergent-collective: some ranks wait in a collective that the others never enter."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Collective, Guard
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import in_file, rank_tests, said_of_ranks
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
    claim="A collective call stands where only some ranks come.",
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


def detect(trace: Trace) -> Iterator[Hit]:
    yield from said_of_ranks(trace, _found(trace))


def _found(trace: Trace) -> Iterator[Hit]:
    found = [(event, rank_tests(event)) for event in trace.of(Collective)]
    for event, tests in found:
        if not tests or not _is_known(event) or not _is_for_all(event):
            continue
        partners = (other for other, theirs in found if _pairs(event, tests, other, theirs))
        if next(partners, None) is None:
            yield _hit(trace, event, tests[-1])


def _is_known(event: Collective) -> bool:
    return event.name.startswith("torch.distributed.") or event.name.rpartition(".")[2] in _WAITING


def _is_for_all(event: Collective) -> bool:
    return event.group is None or (isinstance(event.group, Const) and event.group.value is None)


def _pairs(event: Collective, tests: tuple[Guard, ...], other: Collective, theirs: tuple[Guard, ...]) -> bool:
    """May the other ranks call `other` while these call `event`? The same kind of call behind the contrary
    test, or behind a test of the rank elsewhere in the same function."""
    if other.name != event.name:
        return False
    sides = {(test.place, test.taken) for test in tests}
    for test in theirs:
        if (test.place, not test.taken) in sides:
            return True
        is_elsewhere = all(test.place != place for place, _ in sides)
        if is_elsewhere and other.scene.function == event.scene.function:
            return True
    return False


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
