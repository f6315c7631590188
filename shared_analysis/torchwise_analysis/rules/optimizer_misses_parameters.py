"""optimizer-misses-parameters: a layer that trains came too late for the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import (
    Backward,
    Forward,
    GradientsReset,
    GraphCut,
    ModeChange,
    OptimizerBuilt,
    PartSet,
    RequiresGrad,
    WeightsLoaded,
    Wrapped,
)
from torchwise_analysis.interp.abstract.static import walk
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Kind, Obj, Origin
from torchwise_analysis.rules._frames import call_beside
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._hooks import hook_of, in_training
from torchwise_analysis.rules._moving import moved_before
from torchwise_analysis.rules._processes import can_meet, in_file
from torchwise_analysis.rules._reading import called, distinct, doubt, grade, step
from torchwise_analysis.rules.unregistered_submodules import is_parameter_free
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.head = nn.Linear(32, 1000)

    def forward(self, x):
        return self.head(self.body(x))


def finetune(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.head = nn.Linear(32, 5)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^ optimizer-misses-parameters error certain
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.head = nn.Linear(32, 1000)

    def forward(self, x):
        return self.head(self.body(x))


def finetune(loader):
    net = Net()
    net.head = nn.Linear(32, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW205",
    name="optimizer-misses-parameters",
    category=Category.LOOP,
    severity=Severity.ERROR,
    claim="Parameters that take part in training are in no optimizer: it was built before or without them.",
    cost=(
        "An optimizer holds the tensors that `parameters()` gave at its construction. A layer put in later, "
        "or a part that was frozen then and filtered out, gets gradients but never a step: a new head stays "
        "random, an unfrozen body stays as it was. The rest learns around it, so the loss falls all the same."
    ),
    wrong=Example("A head replaced after the optimizer was built", WRONG, fixed=RIGHT),
    right=Example("The optimizer is built last", RIGHT),
    silent=(
        "`add_param_group`, a second optimizer, or an optimizer built again afterwards takes them",
        "the new part has no parameters, is frozen, or no training forward runs it",
        "the part is only wrapped (compile, DDP, DataParallel): its parameters stay; FSDP makes new ones",
        "the optimizer was given a subset on purpose and nothing is switched on later; parts given one by "
        "one are no such subset when a single one is missing",
        "a network of the same class learns (teachers, target networks), or the weights come from a file",
    ),
    grading=(
        "Always an error. Certain when optimizer and part are built in one function or file in view; likely "
        "when the optimizer also goes into a call that cannot be seen, and for a module that no optimizer "
        "ever got, which may be meant to stay as it is."
    ),
    fix=(
        "Move the replacement above the construction of the optimizer when both stand in one block. Unsafe: "
        "the part begins to train. For unfreezing advice only: add a parameter group."
    ),
    references=(
        Reference(
            "torch.optim: constructing an optimizer",
            "https://docs.pytorch.org/docs/stable/optim.html#constructing-it",
        ),
        Reference(
            "zjunlp/HVPNeT#5: Not putting parameters into optimizer (confirmed)",
            "https://github.com/zjunlp/HVPNeT/issues/5",
        ),
        Reference("pytorch/pytorch#14467", "https://github.com/pytorch/pytorch/issues/14467"),
    ),
    examples=(
        Example(
            "Sharded behind the optimizer",
            """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def train(loader):
    model = nn.Sequential(nn.Linear(12, 32), nn.Linear(32, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    fully_shard(model)
    ^^^^^^^^^^^^^^^^^^ optimizer-misses-parameters
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The optimizer gets the shards",
            """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def train(loader):
    model = nn.Sequential(nn.Linear(12, 32), nn.Linear(32, 4)).cuda()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A helper replaces the head behind the optimizer",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(12, 32), nn.Linear(32, 1000)

    def forward(self, x):
        return self.head(self.body(x))


def adapt(net, classes):
    net.head = nn.Linear(32, classes)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ optimizer-misses-parameters


def finetune(loader):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    adapt(net, 4)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A body that was filtered out as frozen is unfrozen later",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.body(x))


def switch(part, flag):
    for p in part.parameters():
        p.requires_grad_(flag)


def finetune(loader):
    net = Net()
    switch(net.body, False)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad])
    for epoch in range(10):
        if epoch == 1:
            switch(net.body, True)
            ^^^^^^^^^^^^^^^^^^^^^^ optimizer-misses-parameters error certain
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "Unfrozen with a group of its own",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.body(x))


def finetune(loader):
    net = Net()
    net.body.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad])
    for epoch in range(10):
        if epoch == 1:
            net.body.requires_grad_(True)
            optimizer.add_param_group({"params": net.body.parameters()})
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "All parameters were given: freezing and unfreezing needs no group",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.body(x))


def finetune(loader):
    net = Net()
    net.body.requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(10):
        net.body.requires_grad_(epoch > 1)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
""",
        ),
        Example(
            "Wrapped after the optimizer was built, and an activation replaced",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.activation = nn.ReLU()
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.activation(self.body(x)))


def train(loader):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    net.body = torch.compile(net.body)
    net.activation = nn.GELU()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "The weights of the losses are learnt, but by nobody",
            """
import torch
from torch import nn


class Balance(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(count))

    def forward(self, losses):
        return (torch.exp(-self.log_vars) * torch.stack(losses) + self.log_vars).sum()


def train(net, loader):
    balance = Balance(2)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ optimizer-misses-parameters error likely
    for x, depth, normal in loader:
        first, second = net(x)
        loss = balance([nn.functional.l1_loss(first, depth), nn.functional.l1_loss(second, normal)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "A teacher, a loss net with weights from a file, and a head that is given as well",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 12)

    def forward(self, x):
        return self.layer(x)


class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(12, 64)

    def forward(self, x):
        return self.features(x)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(12, 4)

    def forward(self, x):
        return self.out(x)


def train(loader, path):
    model, teacher, perceptual, head = Net(), Net(), Perceptual(), Head()
    perceptual.load_state_dict(torch.load(path, weights_only=True))
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    for x, y in loader:
        out = model(x)
        loss = (perceptual(out) - perceptual(x)).pow(2).mean() + (teacher(out) - teacher(x)).abs().mean()
        loss = loss + nn.functional.cross_entropy(head(out), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "A new head with an optimizer of its own",
            """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 32)
        self.head = nn.Linear(32, 1000)

    def forward(self, x):
        return self.head(self.body(x))


def finetune(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    net.head = nn.Linear(32, 5)
    head_optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        head_optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        head_optimizer.step()
""",
        ),
    ),
)

_FROZEN = frozenset([True])  # the state fact of parts whose requires_grad is off


class _Found(NamedTuple):
    """Where the part is put in, and where the optimizer is built."""

    setting: Place
    optimizer: Place


def detect(trace: Trace) -> Iterator[Hit]:
    built = [event for event in trace.of(OptimizerBuilt) if event.parts is not None]
    held = _held(trace, built)
    for setting in trace.of(PartSet):
        if isinstance(setting.value, Obj) and setting.how in ("attribute", "add_module", "append", "item"):
            for optimizer in _missing(trace, built, held, setting, setting.value):
                yield _late_part(trace, optimizer, setting, setting.value)
                break
    for switch in trace.of(RequiresGrad):
        for optimizer in built:
            if switch.value is not True or not _came_before(trace, optimizer, switch):
                continue
            if _was_filtered_out(trace, optimizer, switch) or _was_left_out(trace, optimizer, switch):
                yield _late_switch(trace, optimizer, switch)
                break
    yield from _switched_in_hooks(trace, built)
    yield from _replaced_by_shards(trace, built)
    yield from _left_out(trace)


# --------------------------------------------------------------------------- parameters sharded later


def _replaced_by_shards(trace: Trace, built: list[OptimizerBuilt]) -> Iterator[Hit]:
    """FSDP gives a module new parameters, so the optimizer keeps the old ones, which get no gradients.

    [torch.distributed.fsdp: "the optimizer must be initialized after the module has been wrapped"]
    """
    told: set[int] = set()
    for wrapped in trace.of(Wrapped):
        if wrapped.how not in ("fsdp", "fsdp2") or wrapped.module is None:
            continue
        if wrapped.arguments.get("use_orig_params") is not None:
            continue
        lineage = set(trace.lineage(wrapped.module.id))
        for optimizer in built:
            owns = optimizer.owns or frozenset[int]()
            is_of_it = bool(lineage & owns) and optimizer.order < wrapped.order
            is_last = not any(later.order > wrapped.order for later in built)
            if (
                not is_of_it
                or not is_last
                or optimizer.optimizer.id in told
                or not can_meet(optimizer, wrapped)
            ):
                continue
            if _steps_after(trace, optimizer, wrapped):
                told.add(optimizer.optimizer.id)
                yield _of_shards(trace, optimizer, wrapped)


def _of_shards(trace: Trace, optimizer: OptimizerBuilt, wrapped: Wrapped) -> Hit:
    name = called(optimizer.optimizer, "the optimizer")
    return Hit(
        in_file(trace, wrapped),
        Severity.ERROR,
        _confidence(trace, optimizer),
        f"sharding replaces the parameters that {name} was built with: it steps the old ones, which get no "
        "gradients, and the model does not learn. Build the optimizer afterwards.",
        distinct(
            (
                *step(optimizer.place, f"{name} takes the parameters that exist here"),
                Evidence(wrapped.place, "and these are replaced by shards here"),
            )
        ),
        frozenset({("optimizer", optimizer.optimizer.id)}),
        _Found(in_file(trace, wrapped), optimizer.place),
    )


# --------------------------------------------------------------------------- parts that come later


def _missing(
    trace: Trace, built: list[OptimizerBuilt], held: _Held, setting: PartSet, part: Obj
) -> Iterator[OptimizerBuilt]:
    """Optimizers of the whole that were built before `part` came, when none was built for it."""
    found = [p for p in (part, *trace.parts(part.id)) if _has_own_parameters(trace, p)]
    new = [p for p in found if p.id not in held.parts and held.added.isdisjoint(trace.lineage(p.id))]
    # what wraps an old layer may bring parameters of its own; of layers, one that is held speaks for all
    if len(new) < len(found) and any(p.kind is not Kind.PARAMETER for p in new):
        return
    if not new or not _is_trained_later(trace, setting, new):
        return
    if any(owned is None for owned in trace.owns.values()):
        return  # an optimizer of unknown parameters may have them
    whole = frozenset(trace.lineage(setting.module.id))
    for optimizer in built:
        # what is set on a part that is new itself is told of where that part is put in
        known = (optimizer.owns or frozenset()) | (optimizer.parts or frozenset())
        is_earlier = (
            optimizer.order < setting.order and optimizer.owns is not None and setting.module.id in known
        )
        if is_earlier and whole & (optimizer.owns or frozenset()) and _steps_after(trace, optimizer, setting):
            yield optimizer


def _has_own_parameters(trace: Trace, part: Obj) -> bool:
    if trace.facts.get(("frozen", part.id)) == _FROZEN or "wrapper" in part.traits:
        return False
    if part.kind is Kind.PARAMETER:
        return True
    return (
        part.kind is Kind.MODULE
        and part.type_name.startswith("torch.nn.")
        and not (is_parameter_free(trace, part) or part.type_name.endswith(("Sequential", "List", "Dict")))
    )


class _Held(NamedTuple):
    """What optimizers were built of, and what they got afterwards."""

    parts: frozenset[int]
    added: frozenset[int]


def _held(trace: Trace, built: list[OptimizerBuilt]) -> _Held:
    parts: set[int] = set()
    added: set[int] = set()
    for optimizer in built:
        parts |= optimizer.parts or frozenset()
        added |= (trace.owns.get(optimizer.optimizer.id) or frozenset()) - (optimizer.owns or frozenset())
    return _Held(frozenset(parts), frozenset(added))


def _is_trained_later(trace: Trace, setting: PartSet, new: list[Obj]) -> bool:
    owners = [trace.lineage(p.id)[:2] if p.kind is Kind.PARAMETER else (p.id,) for p in new]
    return trace.is_trained_after(setting.order, (oid for ids in owners for oid in ids))


def _steps_after(trace: Trace, optimizer: OptimizerBuilt, event: PartSet | RequiresGrad | Wrapped) -> bool:
    return any(one.optimizer.id == optimizer.optimizer.id and one.order > event.order for one in trace.steps)


def _late_part(trace: Trace, optimizer: OptimizerBuilt, setting: PartSet, part: Obj) -> Hit:
    name = called(optimizer.optimizer, "the optimizer")
    links = [*step(optimizer.place, f"{name} takes the parameters that exist here")]
    links += [Evidence(setting.place, "this part comes later")]
    links += [*_used(trace, setting, {part.id})]
    return Hit(
        setting.place,
        Severity.ERROR,
        _confidence(trace, optimizer),
        f"`{setting.name}` is put in after {name} was built: it gets gradients but never a step. Build the "
        "optimizer afterwards.",
        distinct(links),
        frozenset({("optimizer", optimizer.optimizer.id)}),
        _Found(setting.place, optimizer.place),
    )


# --------------------------------------------------------------------------- parts switched on later


def _came_before(trace: Trace, optimizer: OptimizerBuilt, switch: RequiresGrad) -> bool:
    """Was it built, the last one, while what is switched on was off, and does it step on as it was built?"""
    if optimizer.owns is None or optimizer.order > switch.order:
        return False
    if trace.owns.get(optimizer.optimizer.id) != optimizer.owns:
        return False  # a group was added
    if any(later.order > optimizer.order for later in trace.of(OptimizerBuilt)):
        return False
    off = [
        event
        for event in trace.of(RequiresGrad)
        if event.order < optimizer.order
        and event.value is False
        and any(event.roots & set(trace.lineage(root)) for root in switch.roots)
    ]
    return bool(off) and _steps_after(trace, optimizer, switch)


def _was_filtered_out(trace: Trace, optimizer: OptimizerBuilt, switch: RequiresGrad) -> bool:
    owns = optimizer.owns or frozenset()
    return optimizer.filtered and any(set(trace.lineage(root)) & owns for root in switch.roots)


def _was_left_out(trace: Trace, optimizer: OptimizerBuilt, switch: RequiresGrad) -> bool:
    """Is it another part of the model that the optimizer was given a part of, and in nobody's hands?"""
    if any(owned is None for owned in trace.owns.values()):
        return False
    owned = frozenset[int]().union(*(one for one in trace.owns.values() if one is not None))
    around = {oid for root in optimizer.owns or () for oid in trace.lineage(root)}
    for root in switch.roots:
        lineage = trace.lineage(root)
        has_parts = any(root in trace.lineage(one) for one in owned)
        is_beside = not owned & set(lineage) and not has_parts and bool(around & set(lineage))
        if not is_beside or not trace.is_trained_after(switch.order, lineage):
            return False
    return bool(switch.roots)


def _switched_in_hooks(trace: Trace, built: list[OptimizerBuilt]) -> Iterator[Hit]:
    """`configure_optimizers` takes what requires gradients, and a hook of the training switches more on."""
    events = trace.of(RequiresGrad)
    for switch in events:
        if switch.value is not True or not in_training(switch):
            continue
        roots = {oid for root in switch.roots for oid in trace.lineage(root)}
        was_off = any(e.value is False and e.roots & roots and not in_training(e) for e in events)
        for optimizer in built if was_off else ():
            owns = optimizer.owns or frozenset()
            is_of_it = hook_of(optimizer) == "configure_optimizers" and optimizer.filtered and owns & roots
            if is_of_it and roots & trace.trained_modules and not _adds_groups(trace, owns):
                yield _late_switch(trace, optimizer, switch)
                break


def _adds_groups(trace: Trace, owns: frozenset[int]) -> bool:
    """Does a class of these modules call `add_param_group`?"""
    classes = [obj.cls for oid in owns if (obj := trace.objects.get(oid)) is not None and obj.cls is not None]
    return any(
        isinstance(node, nodes.Attribute) and node.attr == "add_param_group"
        for cls in classes
        for node in walk(cls.node)
    )


def _late_switch(trace: Trace, optimizer: OptimizerBuilt, switch: RequiresGrad) -> Hit:
    name = called(optimizer.optimizer, "the optimizer")
    place = call_beside(switch, optimizer)
    taken = "only what requires gradients" if optimizer.filtered else "its parameters"
    links = [*step(optimizer.place, f"{name} takes {taken} here")]
    links += [Evidence(place, "this part is switched on later")]
    links += [*_used(trace, switch, set(switch.roots))]
    return Hit(
        place,
        Severity.ERROR,
        _confidence(trace, optimizer),
        f"what is unfrozen here was left out when {name} was built: it gets gradients but never a step. "
        "Add it as a parameter group.",
        distinct(links),
        frozenset({("optimizer", optimizer.optimizer.id)}),
        None,
    )


# --------------------------------------------------------------------------- parts that nobody has


def _left_out(trace: Trace) -> Iterator[Hit]:
    """Modules made in view whose parameters a training backward reaches, and which no optimizer ever got."""
    owned = _all_owned(trace)
    if owned is None:
        return
    told: set[int] = set()
    for number, backward in sorted(trace.trained.items()):
        forward = trace.forward_of(number)
        if forward.belief or forward.module.id in told:
            continue
        told.add(forward.module.id)
        optimizer = _stepping_on(trace, backward)
        if optimizer is None:
            continue
        if _is_left_out(trace, forward, owned):
            yield _without_optimizer(optimizer, forward.module, "", forward, backward)
        else:
            yield from _parts_left_out(trace, optimizer, forward, backward, owned)


def _parts_left_out(
    trace: Trace, optimizer: OptimizerBuilt, forward: Forward, backward: Backward, owned: frozenset[int]
) -> Iterator[Hit]:
    """The optimizer was given the parts of a model one by one, and one of them is not among them."""
    whole, number = forward.module.id, forward.pass_
    if (
        owned.intersection(trace.lineage(whole))
        or optimizer.filtered
        or not _is_all_new(trace, forward, number)
    ):
        return
    settings = [event for event in trace.of(PartSet) if event.module.id == whole and event.how == "attribute"]
    parts = {event.value.id: event for event in settings if isinstance(event.value, Obj)}
    given = [oid for oid in parts if oid in (optimizer.owns or ())]
    left = [
        event
        for event in parts.values()
        if isinstance(event.value, Obj)
        and event.scene.function == "__init__"
        and _is_forgotten(trace, event.value, number, owned)
    ]
    if len(given) > 1 and len(left) == 1 and isinstance(left[0].value, Obj):
        yield _without_optimizer(optimizer, left[0].value, left[0].name, forward, backward)


def _is_all_new(trace: Trace, forward: Forward, number: int) -> bool:
    """Is the model made in view, its weights drawn, and its graph left nowhere inside of the forward?"""
    ids = {*trace.lineage(forward.module.id), *(part.id for part in trace.parts(forward.module.id))}
    if forward.module.origin is not Origin.BUILT or forward.through not in ("call", "forward"):
        return False
    if ids & trace.escaped or ids & _touched(trace) or forward.version:
        return False
    return not any(cut.scene.forward == number for cut in trace.of(GraphCut))


def _is_forgotten(trace: Trace, part: Obj, number: int, owned: frozenset[int]) -> bool:
    """Does it learn in this pass, for all that is known, and has no optimizer any of it?"""
    family = (part, *trace.parts(part.id))
    ids = {one.id for one in family}
    if ids & owned or not any(_is_new_weight(trace, one) for one in family):
        return False
    if any("wrapper" in one.traits or trace.facts.get(("frozen", one.id)) is not None for one in family):
        return False
    if part.cls is not None and any(trace.objects[o].cls is part.cls for o in owned if o in trace.objects):
        return False  # a teacher, a target network, an average of the one that learns
    running = trace.passes[number]
    return part.id in running.modules and not ids & running.unrecorded


def _all_owned(trace: Trace) -> frozenset[int] | None:
    """Roots and parts of all that optimizers have; None when one of them may have anything."""
    if trace.silence.fuel_spent or trace.silence.lost or any(o is None for o in trace.owns.values()):
        return None
    given = [owned or frozenset[int]() for owned in trace.owns.values()]
    reached = [event.parts or frozenset[int]() for event in trace.of(OptimizerBuilt)]
    return frozenset[int]().union(*given, *reached)


def _stepping_on(trace: Trace, backward: Backward) -> OptimizerBuilt | None:
    """The optimizer, built beside the loop, that steps on what this backward made."""
    for one in trace.steps:
        sites = {place for atom in one.before if not atom.applied for place, _ in atom.sites}
        if one.order > backward.order and backward.place in sites and one.scene.entry == backward.scene.entry:
            return next((e for e in trace.of(OptimizerBuilt) if e.optimizer.id == one.optimizer.id), None)
    return None


def _is_left_out(trace: Trace, forward: Forward, owned: frozenset[int]) -> bool:
    """Is it new, in training mode, of the project's own making, and in no hands but these?"""
    module = forward.module
    family = (
        *(trace.objects[oid] for oid in trace.lineage(module.id) if oid in trace.objects),
        *trace.parts(module.id),
    )
    ids = {one.id for one in family}
    if module.origin is not Origin.BUILT or module.cls is None or forward.through not in ("call", "forward"):
        return False
    if ids & owned or ids & trace.escaped or not any(_is_new_weight(trace, one) for one in family):
        return False
    if any(trace.objects[oid].cls is module.cls for oid in sorted(owned) if oid in trace.objects):
        return False  # a teacher, a target network, an average of the one that learns
    if any("wrapper" in one.traits or trace.facts.get(("frozen", one.id)) is not None for one in family):
        return False
    if any(mode.name == "eval" for mode in forward.modes) or forward.version:
        return False
    return not ids & _touched(trace) and not any(
        event.module.id in ids for event in trace.of(ModeChange) if event.to == "eval"
    )


def _touched(trace: Trace) -> set[int]:
    """What gets its weights from somewhere, or whose gradients are read or set by hand."""
    loaded = {event.target.id for event in trace.of(WeightsLoaded)}
    return loaded | {root for event in trace.of(GradientsReset) for root in event.roots}


def _is_new_weight(trace: Trace, part: Obj) -> bool:
    return part.origin is Origin.BUILT and _has_own_parameters(trace, part)


def _without_optimizer(
    optimizer: OptimizerBuilt, module: Obj, attribute: str, forward: Forward, backward: Backward
) -> Hit:
    name = f"`{attribute}`" if attribute else called(module, f"this {module.type_name or 'module'}")
    links = [*step(module.place, f"{name} is made here, with parameters")]
    links += [Evidence(optimizer.place, "the optimizer is given others")]
    links += [Evidence(forward.place, "this training forward runs it")]
    links += [Evidence(backward.place, "and its parameters get gradients here, which nothing applies")]
    return Hit(
        optimizer.place,
        Severity.ERROR,
        Confidence.LIKELY,
        f"no optimizer has the parameters of {name}, which get gradients in training: they stay as they were "
        "drawn. Give them to the optimizer." + doubt((True, "they may be meant to stay")),
        distinct(links),
        frozenset({("optimizer", optimizer.optimizer.id), ("module", module.id)}),
        None,
    )


# --------------------------------------------------------------------------- both


def _used(trace: Trace, event: PartSet | RequiresGrad, ids: set[int]) -> Iterator[Evidence]:
    later = (trace.forward_of(p) for p in sorted(trace.trained) if trace.passes[p].modules & ids)
    first: Forward | None = next((f for f in later if f.order > event.order), None)
    if first is not None:
        yield from step(first.place, "this training forward runs it")


def _confidence(trace: Trace, optimizer: OptimizerBuilt) -> Confidence:
    return grade(int(optimizer.optimizer.id in trace.escaped))


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        yield Fix("Give the optimizer a parameter group for it", Safety.ADVICE, ())
        return
    setting, optimizer = hit.facts
    edits = moved_before(file, setting, optimizer)
    yield Fix(
        "Put the part in before the optimizer is built (changes training)",
        Safety.ADVICE if edits is None else Safety.UNSAFE,
        edits or (),
    )
