"""metric-on-local-shard: what one rank has seen is reported as the result of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import (
    ApiCall,
    Collective,
    Entry,
    Event,
    Guard,
    HostSync,
    LoaderBuilt,
    Prepared,
    Reported,
    Saved,
)
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj, Tensor, Value
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import said_of_ranks
from torchwise_analysis.rules._reading import called, distinct, doubt, step

WRONG = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


def evaluate(model, data, rank):
    loader = DataLoader(data, 64, sampler=DistributedSampler(data, shuffle=False))
    model.eval()
    right, seen = 0, 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x.cuda()).argmax(1) == y.cuda()).sum().item()
            seen += len(y)
    if rank == 0:
        print("accuracy", right / seen)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ metric-on-local-shard warning certain
"""

RIGHT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


def evaluate(model, data, rank):
    loader = DataLoader(data, 64, sampler=DistributedSampler(data, shuffle=False))
    model.eval()
    counts = torch.zeros(2, device="cuda")
    with torch.no_grad():
        for x, y in loader:
            counts[0] += (model(x.cuda()).argmax(1) == y.cuda()).sum()
            counts[1] += len(y)
    dist.all_reduce(counts)
    if rank == 0:
        print("accuracy", (counts[0] / counts[1]).item())
"""

RULE = Rule(
    code="TW608",
    name="metric-on-local-shard",
    category=Category.DISTRIBUTED,
    severity=Severity.WARNING,
    claim="A metric of the samples that one rank got is shown, logged or used as if it were that of all.",
    cost=(
        "With n ranks it rests on one n-th of the evaluation set: it is noisier by the root of n, it "
        "changes with the number of cards, and a checkpoint chosen by it is chosen by a part of the data. "
        "Ranks may also choose differently, and then wait for each other."
    ),
    wrong=Example("Rank 0 prints its own part", WRONG),
    right=Example("Counts of all ranks are added first", RIGHT),
    silent=(
        "the number is reduced or gathered over the ranks (`all_reduce`, `gather_for_metrics`), or something "
        "is whose use is not seen",
        "metrics of torchmetrics, which synchronise by themselves",
        "the rank is shown with the number, or the number is computed with the number of ranks",
        "losses and accuracies of the training batches, which are shown to follow a run",
        "evaluations in which every rank sees all of the data, or whose forwards record a graph",
        "what Lightning logs, where its `Trainer` is not seen to start several processes",
    ),
    grading=(
        "Certain: the loader shards, the number is computed from its batches alone, and nothing reduces. A "
        "warning; an error when the number decides which checkpoint is kept. Likely for `gather`, which "
        "counts the samples twice that fill up the last batch."
        " What Lightning logs without `sync_dist` is a hint, and a warning where a callback goes by it."
        " A hint where the project's own launch lines all start one process."
    ),
    fix="Advice: add up counts, not means, over the ranks before the division, or gather the predictions.",
    references=(
        Reference(
            "torch.utils.data.distributed.DistributedSampler",
            "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
        ),
        Reference(
            "Accelerate: gather_for_metrics",
            "https://huggingface.co/docs/accelerate/package_reference/accelerator",
        ),
    ),
    examples=(
        Example(
            "Lightning reduces only where it is told to",
            """
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("val_loss", loss)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^ metric-on-local-shard warning certain

    def test_step(self, batch, _):
        self.log("test_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def main(train, val):
    best = ModelCheckpoint(monitor="val_loss")
    L.Trainer(devices=4, strategy="ddp", callbacks=[best]).fit(Net(), train, val)
""",
        ),
        Example(
            "Fabric reduces in place",
            """
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader


def validate(model, loader):
    model.eval()
    losses = torch.zeros(10)
    with torch.no_grad():
        for k, (x, y) in enumerate(loader):
            losses[k] = nn.functional.cross_entropy(model(x), y)
    return losses.mean()


def main(val):
    fabric = L.Fabric(devices=4)
    fabric.launch()
    model = fabric.setup(nn.Linear(4, 4))
    loader = fabric.setup_dataloaders(DataLoader(val))
    loss = validate(model, loader).detach().clone()
    fabric.all_reduce(loss, reduce_op="mean")
    fabric.print(f"loss {loss.item():.4f}")
""",
        ),
        Example(
            "The best checkpoint of a part",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(data, held_out):
    accelerator = Accelerator()
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    train, val = DataLoader(data, 16, shuffle=True), DataLoader(held_out, 16)
    model, optimizer, train, val = accelerator.prepare(model, optimizer, train, val)
    best = 0.0
    for epoch in range(10):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
        model.eval()
        hits = 0
        with torch.no_grad():
            for x, y in val:
                hits += (model(x).argmax(1) == y).sum().item()
        if hits > best:
           ^^^^^^^^^^^ metric-on-local-shard error certain
            best = hits
            torch.save(accelerator.unwrap_model(model).state_dict(), "best.pt")
""",
        ),
        Example(
            "A loss in the log of a run",
            """
import torch
import wandb
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

fabric = Fabric(devices=4)
fabric.launch()


def validate(model, held_out):
    loader = fabric.setup_dataloaders(DataLoader(held_out, 16))
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += nn.functional.cross_entropy(model(x), y).item()
    wandb.log({"val/loss": total / len(loader)})
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ metric-on-local-shard warning certain
""",
        ),
        Example(
            "A metric of a library that sees one part",
            """
import evaluate
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(model, held_out):
    accelerator, metric = Accelerator(), evaluate.load("accuracy")
    model, loader = accelerator.prepare(model, DataLoader(held_out, 16))
    model.eval()
    for x, y in loader:
        with torch.no_grad():
            guessed = model(x).argmax(-1)
        metric.add_batch(predictions=guessed, references=y)
    accelerator.print(metric.compute())
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ metric-on-local-shard warning certain
""",
        ),
        Example(
            "Gathered with the samples that fill up",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator()


def evaluate(model, held_out):
    model, loader = accelerator.prepare(model, DataLoader(held_out, 16))
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            guessed = accelerator.gather(model(x).argmax(1))
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ metric-on-local-shard warning likely
            hits += (guessed == accelerator.gather(y)).sum().item()
    accelerator.print(hits / len(held_out))
""",
        ),
        Example(
            "Gathered for metrics",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator()


def evaluate(model, held_out):
    model, loader = accelerator.prepare(model, DataLoader(held_out, 16))
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            guessed, wanted = accelerator.gather_for_metrics((model(x).argmax(1), y))
            hits += (guessed == wanted).sum().item()
    accelerator.print(hits / len(held_out))
""",
        ),
        Example(
            "Another number is reduced",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


def evaluate(model, data):
    loader = DataLoader(data, 64, shuffle=False, sampler=DistributedSampler(data, shuffle=False))
    model.eval()
    total, hits = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")
    with torch.no_grad():
        for x, y in loader:
            scores = model(x.cuda())
            total += nn.functional.cross_entropy(scores, y.cuda())
            hits += (scores.argmax(1) == y.cuda()).sum()
    dist.all_reduce(total)
    print(total / len(loader) / dist.get_world_size())
    print(total.item())
    print(hits.item() / len(data))
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ metric-on-local-shard
""",
        ),
        Example(
            "All data on every rank",
            """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def evaluate(model, data):
    loader = DataLoader(data, 64)
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            hits += (model(x.cuda()).argmax(1) == y.cuda()).sum().item()
    if dist.get_rank() == 0:
        print(hits / len(data))
""",
        ),
        Example(
            "The rank is said, and training is only followed",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


def train(model, optimizer, data):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 64, sampler=sampler)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            scores = model(x)
            loss = nn.functional.cross_entropy(scores, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                share = (scores.argmax(1) == y).float().mean().item()
            if i % 100 == 0:
                print(f"rank {dist.get_rank()}: {loss.item():.3f} {share:.2f}")
                print(share)
""",
        ),
    ),
)

# Over the ranks. Where it is not seen what they make of the number, they are taken to do it for this one.
_REDUCING = ("reduce", "gather", "gather_for_metrics", "gather_object", "reduce_scatter")


def detect(trace: Trace) -> Iterator[Hit]:
    yield from said_of_ranks(trace, _found(trace))


def _found(trace: Trace) -> Iterator[Hit]:
    yield from _gathered(trace)
    yield from _logged(trace)
    vague = {event.scene.entry for event in trace.of(Collective) if _reduces(event) and not event.followed}
    if vague and (trace.silence.cut or trace.silence.fuel_spent):
        return  # it may be called where the run was cut off
    chosen = {guard.place: saved for saved in trace.of(Saved) for guard in saved.scene.guards}
    spoken: set[int] = set()
    evaluated = _evaluated(trace)
    skipped = _skipped_reductions(trace)
    reports = [
        event
        for event in trace.of(Reported)
        if not event.ranked
        and event.scene.entry not in vague
        and not any(tests - _tests(event) for tests in skipped.get(event.scene.entry, ()))
    ]
    # what decides comes first: a number is often printed too
    for event in sorted(reports, key=lambda event: (event.place not in chosen, event.order)):
        saved = chosen.get(event.place)
        if event.how == "if" and saved is None:
            continue
        for oid in sorted(event.loaders - spoken):
            loader = trace.objects.get(oid)
            if loader is not None and oid in evaluated:
                spoken.add(oid)
                yield _hit(trace, event, loader, saved)


def _skipped_reductions(trace: Trace) -> dict[Entry, list[frozenset[Place]]]:
    """By entry: the tests for ranks around reductions. Where one is false there are no other ranks, and what
    is reported behind both branches is the number of one of them."""
    found: dict[Entry, list[frozenset[Place]]] = {}
    for event in trace.of(Collective):
        if _reduces(event) and _tests(event):
            found.setdefault(event.scene.entry, []).append(_tests(event))
    return found


def _tests(event: Event) -> frozenset[Place]:
    return frozenset(guard.place for guard in event.scene.guards if _asks_for_ranks(guard))


def _asks_for_ranks(guard: Guard) -> bool:
    """Does the test ask whether there are several ranks? Not which one this is."""
    return (guard.kind == "rank" and not guard.parts) or (guard.symbol or "").startswith("is_initialized")


def _reduces(event: Collective) -> bool:
    return event.name.rpartition(".")[2].removeprefix("all_").startswith(_REDUCING)


def _evaluated(trace: Trace) -> frozenset[int]:
    """Loaders whose batches are run only where nothing is recorded, and that are not asked to shuffle."""
    ordered = {built.loader.id for built in trace.of(LoaderBuilt) if built.shuffle is False}
    ordered |= _prepared_unseen(trace)
    grads: dict[int, set[bool]] = {}
    for forward in trace.forwards:
        for source in forward.sources:
            grads.setdefault(source, set()).update(forward.grad)
    return frozenset(source for source, found in grads.items() if found == {False} and source in ordered)


def _prepared_unseen(trace: Trace) -> frozenset[int]:
    """Loaders that were made out of view, and prepared here."""
    seen = {built.loader.id for built in trace.of(LoaderBuilt)}
    given = {obj.id for event in trace.of(Prepared) for obj in event.objects if obj.kind is Kind.LOADER}
    return frozenset(given - seen)


def _is_optional(trace: Trace, event: Reported, loader: Obj) -> bool:
    """Is the loader divided behind a test (`if args.distributed`) that the report does not stand behind?"""
    told = {guard.place for guard in event.scene.guards}
    prepared = [one for one in trace.of(Prepared) if any(obj.id == loader.id for obj in one.objects)]
    return bool(prepared) and all(
        any(guard.kind in ("flag", "value") and guard.place not in told for guard in one.scene.guards)
        for one in prepared
    )


def _hit(trace: Trace, event: Reported, loader: Obj, saved: Saved | None) -> Hit:
    read = next((r for r in trace.of(HostSync) if r.value is not None and loader.id in r.value.sources), None)
    what = "decides which checkpoint is kept" if saved is not None else "is reported"
    is_optional = _is_optional(trace, event, loader)
    return Hit(
        event.place,
        Severity.WARNING if saved is None else Severity.ERROR,
        Confidence.CERTAIN if loader.place is not None and not is_optional else Confidence.LIKELY,
        f"this number rests on the part of {called(loader, 'the data')} that this rank got, and {what} as "
        "that of all. Reduce it over the ranks first."
        + doubt((is_optional, "whether there are several ranks depends on a setting")),
        distinct(
            (
                *step(loader.place, "each rank gets a part of this loader"),
                *(step(read.place, "read from its batches") if read is not None else ()),
                Evidence(event.place, f"and it {what}, with nothing that reduces"),
                *(step(saved.place, "this is kept") if saved is not None else ()),
            )
        ),
        frozenset({("shard", loader.id)}),
    )


def _gathered(trace: Trace) -> Iterator[Hit]:
    """Accelerate's `gather` brings back the samples that filled up the last batch too."""
    spoken: set[int] = set()
    evaluated = _evaluated(trace)
    if trace.api("a slice of what was gathered"):
        return
    for event in trace.of(Collective):
        if event.name != "accelerate.Accelerator.gather" or not event.loops:
            continue
        read = next(
            (r for r in trace.of(HostSync) if r.order > event.order and _is_gathered(r, event.sources)), None
        )
        for oid in sorted(event.sources - spoken):
            loader = trace.objects.get(oid)
            if loader is None or read is None or oid not in evaluated:
                continue
            spoken.add(oid)
            yield Hit(
                event.place,
                Severity.WARNING,
                Confidence.LIKELY,
                f"`gather` also brings the samples with which Accelerate fills up the last batch of "
                f"{called(loader, 'this loader')}: they count twice. Use `gather_for_metrics`. Not certain: "
                "whether the batches come out even is not known.",
                distinct(
                    (
                        *step(loader.place, "each rank gets a part of this loader, filled up to be even"),
                        Evidence(event.place, "gathered with what fills up"),
                        Evidence(read.place, "and counted"),
                    )
                ),
                frozenset({("shard", oid)}),
            )


def _is_gathered(read: HostSync, sources: frozenset[int]) -> bool:
    return read.value is not None and "gathered" in read.value.taint and bool(read.value.sources & sources)


_EVALUATING = ("validation_step", "test_step", "on_validation_epoch_end", "on_test_epoch_end")


def _logged(trace: Trace) -> Iterator[Hit]:
    """What Lightning logs in an evaluation is of one rank, where `sync_dist` does not ask for that of all."""
    trainers = trace.api("lightning.Trainer")
    if not trainers or not all(_shares(trainer) for trainer in trainers):
        return
    monitored = {
        name.value: event
        for event in trace.of(ApiCall)
        if isinstance(name := event.arguments.get("monitor"), Const) and isinstance(name.value, str)
    }
    logs = trace.api("lightning.LightningModule.log", "lightning.LightningModule.log_dict")
    local = [(event, _monitor(trace, event, monitored)) for event in logs if _is_local(trace, event)]
    spoken: set[int] = set()
    # what a callback goes by comes first
    for event, monitor in sorted(local, key=lambda one: (one[1] is None, one[0].order)):
        module = event.receiver
        if isinstance(module, Obj) and module.id not in spoken:
            spoken.add(module.id)
            yield _hit_of_log(event, module, trainers[0], monitor)


def _monitor(trace: Trace, event: ApiCall, monitored: Mapping[str, ApiCall]) -> ApiCall | None:
    names = sorted(_logged_names(trace, event) & monitored.keys())
    return monitored[names[0]] if names else None


def _hit_of_log(event: ApiCall, module: Obj, trainer: ApiCall, monitor: ApiCall | None) -> Hit:
    return Hit(
        event.place,
        Severity.HINT if monitor is None else Severity.WARNING,
        Confidence.LIKELY if monitor is None else Confidence.CERTAIN,
        "this number rests on the part of the data that this rank got"
        + ("" if monitor is None else ", and a callback goes by it")
        + ": Lightning reduces what is logged only where it is told to. Log it with `sync_dist=True`."
        + doubt((monitor is None, "it may be meant for a look only")),
        distinct(
            (
                Evidence(trainer.place, "several devices: each gets a part of the data"),
                Evidence(event.place, "logged without `sync_dist`"),
                *(step(monitor.place, "this decides by it") if monitor is not None else ()),
            )
        ),
        frozenset({("shard", module.id)}),
        facts=_SYNC,
    )


_SYNC = "sync_dist"


def _shares(trainer: ApiCall) -> bool:
    """Does it certainly run several processes, each on its own part of the data?"""
    given = trainer.arguments
    if given.open or any(
        given.get(name) is not None for name in ("use_distributed_sampler", "replace_sampler_ddp")
    ):
        return False
    numbers = [given.get(name) for name in ("devices", "gpus", "num_nodes")]
    return any(isinstance(n, Const) and isinstance(n.value, int) and n.value > 1 for n in numbers)


def _is_local(trace: Trace, event: ApiCall) -> bool:
    if event.scene.entry.kind != "hook" or not event.scene.entry.name.endswith(_EVALUATING):
        return False
    given = event.arguments
    if given.open or given.get("sync_dist") is not None or given.get("rank_zero_only") is not None:
        return False
    values = _logged_values(trace, event)
    return bool(values) and all(isinstance(value, Tensor) for value in values)


def _logged_values(trace: Trace, event: ApiCall) -> tuple[Value, ...]:
    given = (
        event.arguments.get("value", 1)
        if event.name.endswith(".log")
        else event.arguments.get("dictionary", 0)
    )
    if isinstance(given, Obj) and given.kind is Kind.DICT:
        return tuple(trace.entries(given.id).values())
    return () if given is None else (given,)


def _logged_names(trace: Trace, event: ApiCall) -> frozenset[str]:
    name = event.arguments.get("name", 0)
    if isinstance(name, Const) and isinstance(name.value, str):
        return frozenset([name.value])
    given = event.arguments.get("dictionary", 0)
    if not isinstance(given, Obj):
        return frozenset()
    return frozenset(key for key in trace.entries(given.id) if isinstance(key, str))


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    is_logged = hit.facts == _SYNC
    title = (
        "Log it with `sync_dist=True`" if is_logged else "Add up counts over the ranks before the division"
    )
    yield Fix(title, Safety.ADVICE, ())
