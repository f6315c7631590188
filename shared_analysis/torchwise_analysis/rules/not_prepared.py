"""not-prepared: one of the things that train was not given to Accelerate or Fabric with the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at, innermost_statement, insert_at
from torchwise_analysis.interp.abstract.events import Forward, LoaderBuilt, Prepared, Step
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Const, Kind, Obj, Origin
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(data):
    accelerator = Accelerator()
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=16, shuffle=True)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ not-prepared error certain
    model, optimizer = accelerator.prepare(model, optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
"""

RIGHT = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(data):
    accelerator = Accelerator()
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
"""

RULE = Rule(
    code="TW611",
    name="not-prepared",
    category=Category.DISTRIBUTED,
    severity=Severity.ERROR,
    claim="A model, an optimizer or a loader trains that was not prepared while the others were.",
    cost=(
        "What Accelerate or Fabric did not get, they do not manage. A loader is not sharded: every process "
        "walks over the whole data, n cards do the work of one and cost n times as much. A model is not "
        "wrapped: each process trains its own copy. An optimizer steps in each micro-step and knows nothing "
        "of mixed precision. On one card all of it works."
    ),
    wrong=Example("The loader was left out", WRONG, fixed=RIGHT),
    right=Example("All that trains is prepared", RIGHT),
    silent=(
        "what is prepared was collected elsewhere (`prepare(*objects)`, unknown arguments)",
        "loaders that shard by themselves: a DistributedSampler, an iterable data set, parts by rank",
        "evaluation loaders, and models that do not learn (a teacher, a frozen encoder)",
        "`device_placement=False`: things are moved by hand on purpose",
        "schedulers, which may be stepped by hand",
    ),
    grading=(
        "Certain: everything is made in view and every call of `prepare` is seen. An error for a loader or a "
        "model, a warning for an optimizer."
    ),
    fix=(
        "Add it to the `prepare` whose results are unpacked behind it. Unsafe: batches and steps change, "
        "which is the point."
    ),
    references=(
        Reference(
            "Accelerate: Accelerator.prepare",
            "https://huggingface.co/docs/accelerate/package_reference/accelerator",
        ),
        Reference(
            "Lightning Fabric: setup and setup_dataloaders",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/403d232c43320846b48299c9995d098dee1c49f4/docs/source-fabric/api/fabric_methods.rst",
        ),
    ),
    examples=(
        Example(
            "Fabric does not get the loader",
            """
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

fabric = Fabric(accelerator="cuda", devices=4)
fabric.launch()


def main(data):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = fabric.setup(model, optimizer)
    loader = DataLoader(data, batch_size=16, shuffle=True)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ not-prepared error certain
    for x, y in loader:
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
""",
        ),
        Example(
            "The second of two models",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(data):
    accelerator = Accelerator()
    body, head = nn.Linear(12, 16), nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(list(body.parameters()) + list(head.parameters()))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    body, optimizer, loader = accelerator.prepare(body, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        scores = head(body(x))
                 ^^^^^^^^^^^^^ not-prepared error certain
        accelerator.backward(nn.functional.cross_entropy(scores, y))
        optimizer.step()
""",
        ),
        Example(
            "The optimizer was left out",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(data):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, loader = accelerator.prepare(model, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            ^^^^^^^^^^^^^^^^ not-prepared warning certain
            optimizer.zero_grad()
""",
        ),
        Example(
            "The results are thrown away",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(data):
    accelerator = Accelerator()
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=16, shuffle=True)
    accelerator.prepare(model, optimizer, loader)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ not-prepared error certain
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
""",
        ),
        Example(
            "A teacher and an evaluation loader need not be",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(data, held_out):
    accelerator = Accelerator()
    model, teacher = nn.Linear(12, 4), nn.Linear(12, 4).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    loader, check = DataLoader(data, 16, shuffle=True), DataLoader(held_out, 16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), wanted))
        optimizer.step()
    model.eval()
    if accelerator.is_main_process:
        with torch.no_grad():
            for x, y in check:
                print((model(x).argmax(1) == y).sum().item())
""",
        ),
        Example(
            "Prepared one by one, and by a list",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(data, more):
    accelerator = Accelerator()
    model = accelerator.prepare(nn.Linear(12, 4))
    optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters()))
    loader, extra = accelerator.prepare(DataLoader(data, 16, shuffle=True), *more)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
""",
        ),
        Example(
            "A sampler that knows the rank",
            """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


def main(data, epochs):
    accelerator = Accelerator()
    model = nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = DistributedSampler(data, accelerator.num_processes, accelerator.process_index)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model, optimizer = accelerator.prepare(model, optimizer)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
""",
        ),
    ),
)


class _Found(NamedTuple):
    """A loader that was left out, and a call of prepare behind its making."""

    loader: Place
    prepared: Place


def detect(trace: Trace) -> Iterator[Hit]:
    calls = [event for event in trace.of(Prepared) if event.owner.kind in (Kind.ACCELERATOR, Kind.FABRIC)]
    for event in calls:
        if event.lost and trace.steps and any(obj.kind in _TRAINING for obj in event.objects):
            yield _thrown_away(trace, event)
    if not calls or any(event.open or _is_by_hand(event.owner) for event in calls):
        return
    ready = {obj.id for event in calls for obj in event.objects}
    kinds = {obj.kind for event in calls for obj in event.objects}
    if Kind.MODULE in kinds:
        yield from _loaders(trace, calls, ready)
        yield from _optimizers(trace, calls, ready)
    if Kind.OPTIMIZER in kinds:
        yield from _models(trace, calls, ready)


_TRAINING = (Kind.MODULE, Kind.OPTIMIZER, Kind.LOADER)


def _thrown_away(trace: Trace, event: Prepared) -> Hit:
    modules = {obj.id for obj in event.objects if obj.kind is Kind.MODULE}
    passes = (f for f in trace.forwards if modules & set(trace.lineage(f.module.id)))
    return Hit(
        event.place,
        Severity.ERROR,
        Confidence.CERTAIN,
        f"what {_owner(event)} gives back is thrown away: the loop goes on with the loader, the model and "
        "the optimizer as they were, which are not managed. Bind the result.",
        (Evidence(event.place, "the prepared things are the results of this call"),),
        frozenset({("prepare", event.place), *(("pass", forward.pass_) for forward in passes)}),
    )


def _is_by_hand(owner: Obj) -> bool:
    flag = owner.arguments.get("device_placement", 0)
    is_off = isinstance(flag, Const) and flag.value is False and owner.kind is Kind.ACCELERATOR
    return is_off or owner.origin is not Origin.BUILT


def _loaders(trace: Trace, calls: list[Prepared], ready: set[int]) -> Iterator[Hit]:
    for built in trace.of(LoaderBuilt):
        loader = built.loader
        if loader.id in ready | trace.escaped or built.sharding is not None:
            continue
        if (
            not trace.is_training_source(loader.id)
            or not set(built.scene.guards) <= set(calls[0].scene.guards)
            or not _trains_prepared(trace, loader, ready)
        ):
            continue
        event = calls[0]
        yield Hit(
            built.place,
            Severity.ERROR,
            Confidence.CERTAIN,
            f"{called(loader, 'this loader')} trains and was not given to {_owner(event)} with the others: "
            "every process walks over all of the data. Prepare it too.",
            distinct(
                (
                    Evidence(event.place, "these are prepared"),
                    Evidence(built.place, "this loader is not"),
                    *_first_use(trace, loader),
                )
            ),
            frozenset({("loader", loader.id)}),
            _Found(built.place, event.place),
        )


def _trains_prepared(trace: Trace, loader: Obj, ready: set[int]) -> bool:
    """Do its batches train a model that was prepared? A file may hold a plain loop too."""
    fed = (trace.forward_of(p) for p in trace.trained if p in trace.passes)
    runs = [forward for forward in fed if loader.id in forward.sources]
    return any(ready & set(trace.lineage(run.module.id)) or run.wrapped == "prepared" for run in runs)


def _first_use(trace: Trace, loader: Obj) -> tuple[Evidence, ...]:
    run = next((f for f in trace.forwards if loader.id in f.sources), None)
    return step(run.place, "and its batches train here") if run is not None else ()


def _models(trace: Trace, calls: list[Prepared], ready: set[int]) -> Iterator[Hit]:
    prepared_optimizers = {obj.id for event in calls for obj in event.objects if obj.kind is Kind.OPTIMIZER}
    owned = frozenset[int]().union(*(trace.owns.get(oid) or frozenset() for oid in prepared_optimizers))
    spoken: set[int] = set()
    for pass_ in sorted(trace.trained):
        run = trace.passes[pass_].forward if pass_ in trace.passes else None
        if run is None or not _is_plain(run) or run.module.id in spoken:
            continue
        lineage = set(trace.lineage(run.module.id))
        if lineage & ready or not lineage & owned or run.module.id in trace.escaped:
            continue
        spoken.add(run.module.id)
        event = calls[0]
        yield Hit(
            run.place,
            Severity.ERROR,
            Confidence.CERTAIN,
            f"{called(run.module, 'this model')} trains and was not given to {_owner(event)}: each process "
            "trains a copy of its own, and they drift apart. Prepare it too.",
            distinct(
                (
                    *step(run.module.place, "the model is made here"),
                    Evidence(event.place, "these are prepared"),
                    Evidence(run.place, "this model is not, and it trains"),
                )
            ),
            frozenset({("model", run.module.id)}),
        )


def _is_plain(run: Forward) -> bool:
    return not run.wrapped and not run.bypassed and not run.belief and run.module.origin is Origin.BUILT


def _optimizers(trace: Trace, calls: list[Prepared], ready: set[int]) -> Iterator[Hit]:
    spoken: set[int] = set()
    for one in trace.steps:
        optimizer = one.optimizer
        if optimizer.id in ready | spoken | trace.escaped or optimizer.origin is not Origin.BUILT:
            continue
        owned = trace.owns.get(optimizer.id)
        if not owned or not any(ready & set(trace.lineage(root)) for root in owned):
            continue
        spoken.add(optimizer.id)
        yield _left_out(calls[0], one)


def _left_out(event: Prepared, one: Step) -> Hit:
    return Hit(
        one.place,
        Severity.WARNING,
        Confidence.CERTAIN,
        f"{called(one.optimizer, 'this optimizer')} steps and was not given to {_owner(event)}: it steps in "
        "each micro-step and without what mixed precision needs. Prepare it too.",
        distinct(
            (
                *step(one.optimizer.place, "the optimizer is made here"),
                Evidence(event.place, "the model is prepared, the optimizer is not"),
                Evidence(one.place, "and it steps here"),
            )
        ),
        frozenset({("optimizer", one.optimizer.id)}),
    )


def _owner(event: Prepared) -> str:
    return "Fabric" if event.owner.kind is Kind.FABRIC else "Accelerate"


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    edits = _edits(file, hit.facts) if isinstance(hit.facts, _Found) else ()
    title = "Prepare it with the others (changes training)"
    yield Fix(title, Safety.UNSAFE if edits else Safety.ADVICE, edits)


def _edits(file: SourceFile, found: _Found) -> tuple[Edit, ...]:
    """`a, b = x.prepare(a, b)` -> `a, b, loader = x.prepare(a, b, loader)`."""
    made, prepared = found.loader.span, found.prepared.span
    if found.loader.path != file.path or found.prepared.path != file.path or made.line >= prepared.line:
        return ()
    making = innermost_statement(file.module, made)
    whole = innermost_statement(file.module, prepared)
    call = expression_at(file.module, prepared)
    if making is None or whole is None or not isinstance(call, nodes.Call) or not call.args:
        return ()
    name = _only_name(making[0])
    statement, span = whole
    targets = (
        statement.targets[0] if isinstance(statement, nodes.Assign) and len(statement.targets) == 1 else None
    )
    if name is None or not isinstance(targets, nodes.TupleExpr) or len(targets.elements) != len(call.args):
        return ()
    if call.keywords or making[1].column != span.column:
        return ()
    last_target = targets.elements[-1].span.shifted(span.line - statement.span.line)
    last_argument = call.args[-1].span.shifted(prepared.line - call.span.line)
    return tuple(
        insert_at(file, end.end_line, end.end_column, f", {name}") for end in (last_target, last_argument)
    )


def _only_name(statement: nodes.Stmt) -> str | None:
    if not isinstance(statement, nodes.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    return target.id if isinstance(target, nodes.Name) else None
