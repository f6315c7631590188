"""best-state-aliased: the kept "best weights" are the live weights."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at, name_for_member, name_for_module, wrap
from torchwise_analysis.interp.abstract.events import (
    Event,
    Guard,
    ModuleKept,
    Saved,
    StateDictKept,
    StateDictUsed,
    Step,
    WeightsLoaded,
)
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import StateDict
from torchwise_analysis.policy import weaker
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import can_meet
from torchwise_analysis.rules._reading import belief_in, called, distinct, doubt, grade, known_by, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn


def fit(train_loader, val_loader):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    best_loss, best_state = float("inf"), None
    for epoch in range(20):
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            val_loss = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in val_loader)
        if val_loss < best_loss:
            best_loss = val_loss
            best_state = model.state_dict()
                         ^^^^^^^^^^^^^^^^^^ best-state-aliased error certain
    model.load_state_dict(best_state)
"""

RIGHT = """
import copy

import torch
from torch import nn


def fit(train_loader, val_loader):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    best_loss, best_state = float("inf"), None
    for epoch in range(20):
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            val_loss = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in val_loader)
        if val_loss < best_loss:
            best_loss = val_loss
            best_state = copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
"""

RULE = Rule(
    code="TW311",
    name="best-state-aliased",
    category=Category.MODE,
    severity=Severity.ERROR,
    claim=(
        "A state dict or a model that is kept for later holds the live tensors, which training or a load "
        "overwrites."
    ),
    cost=(
        "`state_dict()` returns references. Each optimizer step writes into the very tensors that were "
        'kept, so the "best" weights are the last ones: early stopping and model selection do nothing, '
        "and what is loaded, saved or published at the end is a worse model than the one that was paid "
        "for."
    ),
    wrong=Example("Best weights by reference", WRONG, fixed=RIGHT),
    right=Example("Best weights as a copy", RIGHT),
    silent=(
        "`copy.deepcopy`, or a clone of each tensor",
        "the state dict is written to a file at once, or the model does not train any further",
        "the weights are put back before the next step (swapping averaged weights in and out)",
        "`.cpu()` of a model that is on an accelerator: that copies",
        "a second name for the model that is not kept for being the best so far, or beside which its weights "
        "are written to a file",
    ),
    grading=(
        "Error. Certain when the kept state dict is later loaded, saved or returned and the model is stepped "
        "between; likely when the model is only taken for one, and when the model itself gets a second name."
    ),
    fix=(
        "`copy.deepcopy(...)` around the state dict, with the import when it is missing. Unsafe by "
        "policy, because it changes which weights are loaded, which is the point. It costs one more "
        "copy of the weights in memory."
    ),
    references=(
        Reference(
            "Saving and Loading Models",
            "https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html",
        ),
        Reference(
            "pytorch/tutorials#188: Fixed deep copying model.state_dict()",
            "https://github.com/pytorch/tutorials/pull/188",
        ),
        Reference(
            "WenjieDu/PyPOTS#667: Issue with saving the best model state",
            "https://github.com/WenjieDu/PyPOTS/issues/667",
        ),
        Reference("thunlp/OpenKE#131: deepcopy the model", "https://github.com/thunlp/OpenKE/pull/131"),
    ),
    examples=(
        Example(
            "Kept in an attribute",
            """
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(12, 4)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.best, self.kept = 0.0, None

    def fit(self, loader, score):
        for epoch in range(10):
            for x, y in loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
            now = score(epoch)
            if now > self.best:
                self.best = now
                self.kept = self.model.state_dict()
                            ^^^^^^^^^^^^^^^^^^^^^^^ best-state-aliased
        self.model.load_state_dict(self.kept)
""",
        ),
        Example(
            "The model itself under a second name",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def fit(loader, score):
    best, best_model = 0.0, None
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy = score(model)
        if accuracy > best:
            best = accuracy
            best_model = model
                         ^^^^^ best-state-aliased error likely
    torch.save(best_model.state_dict(), "best.pt")
""",
            fixed="""
import copy

import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def fit(loader, score):
    best, best_model = 0.0, None
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy = score(model)
        if accuracy > best:
            best = accuracy
            best_model = copy.deepcopy(model)
    torch.save(best_model.state_dict(), "best.pt")
""",
        ),
        Example(
            "A shallow copy of the dictionary still holds the same tensors",
            """
import copy

import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
best, best_state = 0.0, None


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def fit(loader, score, epochs):
    best, best_state = 0.0, None
    for epoch in range(epochs):
        train(loader)
        accuracy = score(epoch)
        if accuracy > best:
            best = accuracy
            best_state = model.state_dict().copy()
                         ^^^^^^^^^^^^^^^^^^ best-state-aliased error certain
    torch.save(best_state, "best.pt")
""",
        ),
        Example(
            "Made and saved under the same settings in each epoch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def states(epoch):
    return {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}


def fit(loader, args):
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if args.sharded or args.saving:
            kept = states(epoch)
        if args.saving:
            if epoch % args.often == 0:
                torch.save(kept, f"epoch{epoch}.pt")
            if args.latest:
                torch.save(kept, "latest.pt")
""",
        ),
        Example(
            "Each tensor is cloned",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def fit(loader, score):
    best, best_state = 0.0, None
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy = score(epoch)
        if accuracy > best:
            best = accuracy
            best_state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    model.load_state_dict(best_state)
""",
        ),
        Example(
            "Written to a file at once",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def fit(loader, score):
    best = 0.0
    for epoch in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy = score(epoch)
        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), "best.pt")
    model.load_state_dict(torch.load("best.pt"))
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    kept = {event.state.place: event for event in trace.of(StateDictKept)}
    for use in trace.of(StateDictUsed):
        state = use.state
        if state.copied or state.version >= use.current:
            continue
        keep = kept.get(state.place)
        if not _is_trained_between(trace, keep, use) or _is_made_anew(trace, use):
            continue
        is_unseen = _is_of_this_turn(trace, use)  # what else may train it is not seen
        if is_unseen and not _is_loaded_back(trace, use):
            continue
        if use.how == "return" and (keep is None or not trace.repeats(keep)):
            continue  # a caller that asks for the weights now does not keep them for later
        yield Hit(
            state.place,
            Severity.ERROR,
            weaker(_confidence(use), grade(int(is_unseen))),
            f"these kept weights of {called(state.owner, 'the model')} are its live tensors: training "
            "goes on and overwrites them, so the best checkpoint is lost. Keep a copy."
            + doubt(
                (belief_in(state.owner) > 0, known_by(state.owner)),
                (is_unseen, "what trains it in between is not seen"),
            ),
            _chain(trace, use, keep),
            frozenset({("state", state.place)}),
            use,
        )
    yield from _overwritten(trace)
    yield from _named_twice(trace)


_ORDERED = (">", "<", ">=", "<=")


def _named_twice(trace: Trace) -> Iterator[Hit]:
    """`if score > best: best_model = model`, in the loop that trains the model on."""
    told: set[Place] = set()
    for keep in trace.of(ModuleKept):
        guards = keep.scene.guards
        is_best = "best" in keep.name.lower() and guards and guards[-1].test in _ORDERED
        if not is_best or keep.place in told or _is_set_aside(trace, keep):
            continue
        one = next((one for one in trace.steps if _trains_on(trace, one, keep)), None)
        if one is None:
            continue
        told.add(keep.place)
        name = called(keep.module, "the model")
        yield Hit(
            keep.place,
            Severity.ERROR,
            grade(min(1 + belief_in(keep.module), 2)),
            f"`{keep.name}` is {name} itself and no copy: training goes on and changes it too, so the best "
            "weights are lost. Keep a copy." + doubt((belief_in(keep.module) > 0, known_by(keep.module))),
            distinct(
                (
                    *step(keep.module.place, f"{name} is made here"),
                    Evidence(keep.place, f"`{keep.name}` is a second name for it"),
                    Evidence(one.place, "each step of the same loop writes into its tensors"),
                )
            ),
            frozenset({("state", keep.place)}),
            keep,
        )


def _is_set_aside(trace: Trace, keep: ModuleKept) -> bool:
    """Are weights written to a file under the same test, or loaded back into the model later on?"""
    family = {keep.module.id, *trace.lineage(keep.module.id)}
    if any(one.target.id in family for one in trace.of(WeightsLoaded) if one.order > keep.order):
        return True
    tests = {guard.place for guard in keep.scene.guards}
    return any(
        keep.loops == one.loops and tests <= {g.place for g in one.scene.guards} for one in trace.of(Saved)
    )


def _trains_on(trace: Trace, one: Step, keep: ModuleKept) -> bool:
    """Does it step on the model in the loop of the keeping?"""
    around = [turn.loop.place for turn in keep.loops]
    if [turn.loop.place for turn in one.loops][: len(around)] != around:
        return False
    owned = trace.owns.get(one.optimizer.id)
    parts = {
        keep.module.id,
        *trace.lineage(keep.module.id),
        *(part.id for part in trace.parts(keep.module.id)),
    }
    return owned is not None and bool(owned & parts)


def _overwritten(trace: Trace) -> Iterator[Hit]:
    """Weights set aside by reference, others loaded over them, and what was set aside loaded back: it is what
    was loaded in between."""
    keeps: dict[Place, list[StateDictKept]] = {}
    for event in trace.of(StateDictKept):
        keeps.setdefault(event.state.place, []).append(event)
    told: set[Place] = set()
    for use in trace.of(StateDictUsed):
        before = [one for one in keeps.get(use.state.place, ()) if one.order < use.order]
        if use.how != "load" or use.state.copied or not before or use.state.place in told:
            continue
        over = next((one for one in _loads_over(trace, before[-1], use)), None)
        if over is not None:
            told.add(use.state.place)
            yield _lost(before[-1], over, use)


def _loads_over(trace: Trace, keep: StateDictKept, use: StateDictUsed) -> Iterator[WeightsLoaded]:
    owner = use.state.owner.id
    for one in trace.of(WeightsLoaded):
        is_own = isinstance(one.value, StateDict) and one.value.owner.id == owner
        if one.target.id != owner or is_own or not keep.order < one.order < use.order:
            continue
        if one.place == use.place:
            continue  # the same load, of what one of several paths made
        if can_meet(keep, one) and can_meet(one, use) and keep.loops == one.loops == use.loops:
            yield one


def _lost(keep: StateDictKept, over: WeightsLoaded, use: StateDictUsed) -> Hit:
    return Hit(
        use.state.place,
        Severity.ERROR,
        weaker(grade(min(belief_in(use.state.owner), 1))),
        f"these weights of {called(use.state.owner, 'the model')} are set aside by reference: what is loaded "
        "in between is written into the same tensors, and loading them back brings nothing back. Keep a copy."
        + doubt((belief_in(use.state.owner) > 0, known_by(use.state.owner))),
        distinct(
            (
                Evidence(use.state.place, "state_dict() gives references, not a copy"),
                *step(keep.place, f"kept as `{keep.name}`"),
                Evidence(over.place, "load_state_dict() writes into the same tensors"),
                Evidence(use.place, "loaded here, long after they have changed"),
            )
        ),
        frozenset({("state", use.state.place)}),
        use,
    )


def _is_trained_between(trace: Trace, keep: StateDictKept | None, use: StateDictUsed) -> bool:
    """A step in view, or a loop around the keeping, which calls what may train out of view."""
    if keep is None:
        return True
    if trace.repeats(keep):
        return True
    return any(keep.order < one.order < use.order for one in trace.steps)


def _is_of_this_turn(trace: Trace, use: StateDictUsed) -> bool:
    """Was it taken in the turn, or the call, that uses it, and is no step seen between the two?"""
    taken = [
        one.order
        for one in trace.of(StateDictKept)
        if one.state.place == use.state.place
        and one.state.version == use.state.version
        and one.loops == use.loops
        and one.order < use.order
    ]
    return bool(taken) and not any(max(taken) < one.order < use.order for one in trace.steps)


def _is_loaded_back(trace: Trace, use: StateDictUsed) -> bool:
    """Into the very module that it is of? Two of `modules()` are told apart by no name."""
    owner = use.state.owner
    loads = (one for one in trace.of(WeightsLoaded) if one.place == use.place and one.order > use.order)
    target = next(loads, None)
    return target is not None and target.target.id == owner.id and not owner.name.startswith("[")


def _is_made_anew(trace: Trace, use: StateDictUsed) -> bool:
    """Is it made in every turn that uses it, but for settings that do not change between turns?

    Then what an earlier turn made is never used: it seems so because a setting is asked twice.
    """
    makers = [
        one
        for one in trace.of_any(StateDictKept, StateDictUsed)
        if one.state.place == use.state.place
        and one.loops == use.loops
        and use.loops
        and one.order < use.order
        and one.place != use.place  # the alternatives of one value
        and (isinstance(one, StateDictKept) or one.how == "return")
        and one.state.version == use.current
    ]
    return any(all(guard.kind in ("flag", "none") for guard in _own(one, use)) for one in makers)


def _own(one: Event, use: Event) -> tuple[Guard, ...]:
    """Tests that only one of two events stands under."""
    others = {guard.place for guard in use.scene.guards}
    return tuple(guard for guard in one.scene.guards if guard.place not in others)


def _confidence(use: StateDictUsed) -> Confidence:
    return weaker(grade(min(belief_in(use.state.owner), 1)))


def _chain(trace: Trace, use: StateDictUsed, keep: StateDictKept | None) -> tuple[Evidence, ...]:
    links = [Evidence(use.state.place, "state_dict() gives references, not a copy")]
    if keep is not None:
        links += step(keep.place, f"kept as `{keep.name}`")
    between = [one for one in trace.steps if one.order < use.order]
    if between:
        links += step(between[-1].place, "each step writes into the same tensors")
    words = {"load": "loaded here", "save": "saved here", "return": "returned here"}
    links += step(use.place, f"{words.get(use.how, 'used here')}, long after they have changed")
    return distinct(links)


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Keep a deep copy of the weights (changes which weights are used)"
    if hit.place.path != file.path or not isinstance(
        expression_at(file.module, hit.place.span), nodes.Call | nodes.Name | nodes.Attribute
    ):
        yield Fix(title, Safety.ADVICE, ())
        return
    function, import_edit = name_for_member(file, "copy", "deepcopy"), None
    if function is None:
        module, import_edit = name_for_module(file, "copy")
        function = f"{module}.deepcopy"
    around = wrap(hit.place, f"{function}(", ")")
    yield Fix(title, Safety.UNSAFE, around if import_edit is None else (import_edit, *around))
