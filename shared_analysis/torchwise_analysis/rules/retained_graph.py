"""retained-graph: a kept value holds the autograd graph of the iteration that made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, append_call, expression_at
from torchwise_analysis.interp.abstract.events import Backward, Emptied, Returned, Store
from torchwise_analysis.interp.abstract.loops import LoopKind, inside
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.unknowns import TRAINED_MODEL
from torchwise_analysis.interp.abstract.values import PART, Obj, Origin
from torchwise_analysis.policy import weaker
from torchwise_analysis.rules._frames import is_in_construction
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, doubt, forwards_of, grade, known_by, loop_words, step
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Span

WRONG = """
import torch
from torch import nn


def train(loader):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()
    history = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss)
                       ^^^^ retained-graph warning certain
    print(sum(history))
"""

RIGHT = WRONG.replace("                       ^^^^ retained-graph warning certain\n", "").replace(
    "history.append(loss)", "history.append(loss.detach())"
)

RULE = Rule(
    code="TW101",
    name="retained-graph",
    category=Category.AUTOGRAD,
    severity=Severity.ERROR,
    claim="A value that is kept beyond its iteration still carries the autograd graph that made it.",
    cost=(
        "A tensor with history keeps every node of its graph alive, and before a backward also all "
        "activations. One such tensor kept in each iteration makes memory grow until the run dies, "
        "hours later and far away from the line at fault. After a backward the activations are gone but "
        "the nodes stay: host memory grows, and a running sum gets a chain of thousands of nodes that "
        "has to be walked when it is freed."
    ),
    wrong=Example("A list of losses for a report", WRONG, fixed=RIGHT),
    right=Example("The same with detached losses", RIGHT),
    silent=(
        "the value has no graph: made under `no_grad` or `inference_mode`, or `detach`, `item`, `float` "
        "on the way",
        "a later backward uses what was kept (policy gradients, chunks concatenated for one loss), "
        "here, in a sibling method or in the caller",
        "the container is emptied inside the loop, or drops old elements (`deque(maxlen=...)`)",
        "the loop sets the sum back to a constant",
        "each turn runs another layer, or a model runs its parts while it is built",
        "the value goes to a caller or a call that cannot be seen, and nothing shows that its graph is "
        "done with",
    ),
    grading=(
        "Error when the kept graph was never used by a backward: activations stay too. Warning when a "
        "backward has freed it, so that only nodes grow. Hint when the loop is a small literal, or when "
        "nodes of some turns die with each batch. Certain "
        "when both the forward and the store are resolved, or when a backward proves that the value had "
        "a graph; likely when the forward is a call that is only taken for a model, and for one of several "
        "things that a model gave whose code is not seen."
    ),
    fix=(
        "`.detach()` behind the kept expression, element by element inside a list, tuple or dictionary: "
        "safe, because nothing differentiates through what was kept. A one-element tensor can also "
        "become a number with `.item()`: that waits for the GPU and changes the type, so it is offered "
        "as unsafe."
    ),
    references=(
        Reference(
            "PyTorch FAQ: My model reports out of memory",
            "https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory",
        ),
        Reference("Autograd mechanics", "https://docs.pytorch.org/docs/stable/notes/autograd.html"),
        Reference("google/brax#152: Remove memory leak", "https://github.com/google/brax/pull/152"),
        Reference(
            "huggingface/transformers#6999: fixed trainer tr_loss memory leak",
            "https://github.com/huggingface/transformers/pull/6999",
        ),
        Reference(
            "horovod/horovod#641: memory leak in an example", "https://github.com/horovod/horovod/pull/641"
        ),
    ),
    examples=(
        Example(
            "A list that each batch makes anew",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, passes):
    for x, y in loader:
        losses = []
        for _ in range(passes):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
                          ^^^^ retained-graph hint certain
        print(sum(losses))
""",
        ),
        Example(
            "A part of what an unseen loss gave, beside the one that is differentiated",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, criterion):
    rewards, total = 0.0, 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss, reward = criterion(model(x), y)
        rewards += reward.mean()
        total += loss
                 ^^^^ retained-graph warning certain
        loss.backward()
        optimizer.step()
    print(rewards, total)
""",
        ),
        Example(
            "A running sum that the loop sets back for each window",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, window):
    running = 0
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / window
        running += loss
        loss.backward()
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()
            print(running.item())
            running = 0
""",
        ),
        Example(
            "Twenty losses of a test are few",
            """
import torch
from torch import nn


def losses(x, y, epochs=20):
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss)
                     ^^^^ retained-graph hint certain
    return found


assert losses(torch.randn(8, 12), torch.randn(8, 4)) == losses(torch.randn(8, 12), torch.randn(8, 4))
""",
        ),
        Example(
            "A running total of the epoch",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def epoch(loader):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss * len(x)
                 ^^^^^^^^^^^^^ retained-graph warning certain
    return float(total)
""",
            fixed="""
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def epoch(loader):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += (loss * len(x)).detach()
    return float(total)
""",
        ),
        Example(
            "A dictionary of values: each tensor is detached, never the dictionary",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    log = []
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.append({"step": step, "loss": loss})
                                          ^^^^ retained-graph warning certain
    print(len(log))
""",
            fixed="""
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    log = []
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.append({"step": step, "loss": loss.detach()})
    print(len(log))
""",
        ),
        Example(
            "A moving average kept on the object",
            """
import torch
from torch import nn


class Learner:
    def __init__(self):
        self.net = nn.Linear(12, 1)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.smooth = torch.zeros(())

    def learn(self, x, y):
        loss = (self.net(x) - y).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.smooth = 0.9 * self.smooth + 0.1 * loss
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ retained-graph warning certain


def main(loader):
    learner = Learner()
    for x, y in loader:
        learner.learn(x, y)
    print(learner.smooth)
""",
        ),
        Example(
            "Policy gradients: a later backward uses the kept values",
            """
import torch
from torch import nn


def reinforce(env, policy=nn.Linear(4, 2)):
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for episode in range(1000):
        state = env.reset()
        log_probs, rewards = [], []
        for _ in range(200):
            dist = torch.distributions.Categorical(logits=policy(state))
            action = dist.sample()
            log_probs.append(dist.log_prob(action))
            state, reward = env.step(action)
            rewards.append(reward)
        loss = -(torch.stack(log_probs) * sum(rewards)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Numbers have no graph",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    total, count, curve = 0.0, 0, []
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        count += (out.argmax(1) == y).sum()
        curve.append(float(loss))
    return total, count, curve
""",
        ),
        Example(
            "A container that lives for one step, whose backward goes another way",
            """
import torch
from torch import nn

first, second = nn.Linear(12, 4), nn.Linear(12, 4)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)


def train(loader):
    for x, y in loader:
        outputs, loss = [], 0.0
        for head in (first, second):
            out = head(x)
            outputs.append(out)
            loss = loss + nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(len(outputs))
""",
        ),
        Example(
            "A container that starts afresh in each step",
            """
import torch
from torch import nn

first, second = nn.Linear(12, 4), nn.Linear(12, 4)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)


def train(loader):
    for x, y in loader:
        losses = []
        for head in (first, second):
            losses.append(nn.functional.cross_entropy(head(x), y))
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
""",
        ),
    ),
)


class _Found(NamedTuple):
    """The store; whether the value is known to have one element."""

    store: Store
    is_scalar: bool


def detect(trace: Trace) -> Iterator[Hit]:
    runs = _backwards_by_pass(trace)
    for store in trace.stores:
        if store.token in trace.consumed or store.bounded or not store.passes:
            continue
        if store.holder is not None and _is_emptied(trace, store, store.holder):
            continue
        if _is_reset(store):
            continue
        over_each = [[b for b in runs.get(p, ()) if not b.create_graph] for p in sorted(store.passes)]
        is_freed = all(over_each)
        backwards = [backward for over_one in over_each for backward in over_one]
        if store.how == "chain" and any(backward.passes >= store.passes for backward in backwards):
            continue  # differentiated with all that came before it, as a state through time
        if not is_freed and any(b.create_graph for p in store.passes for b in runs.get(p, ())):
            continue  # differentiated again on purpose
        if is_freed and not any(_outlives(store, backward) for backward in backwards):
            continue  # it dies with the iteration whose backward used the graph
        is_proven = not is_freed or _is_proven(store, backwards)
        if not is_proven and not _is_of_a_model(trace, store):
            continue  # a part of what an unseen call gave: another part was differentiated
        is_open = not is_freed and not _is_evaluation(trace, store)
        if is_open and (_may_be_used(trace, store) or not _is_of_a_module(trace, store)):
            continue
        if not is_freed and any(False in forward.grad for forward in forwards_of(trace, store.passes)):
            continue  # a setting switches autograd: it is off unless gradients are wanted
        if not is_freed and (is_in_construction(store) or _runs_through_layers(trace, store)):
            continue
        yield Hit(
            store.graph_places[0] if store.graph_places else store.value_place or store.place,
            _severity(trace, store, is_freed),
            _confidence(trace, store, is_freed) if is_proven else Confidence.LIKELY,
            _message(trace, store, is_freed)
            + doubt((not is_proven, "it is a part of what a model that is not seen gave, maybe a number"))
            + ("" if is_freed else _doubts(trace, store)),
            _chain(trace, store),
            frozenset(("pass", p) for p in store.passes),
            _Found(store, _is_scalar(runs, store)),
        )


def _runs_through_layers(trace: Trace, store: Store) -> bool:
    """Does each turn run another element of a container, as the next layer, and not the same on new data?"""
    growing = inside(store.loops, store.holder.birth if store.holder else ())
    if not growing or growing[-1].loop.takes_batches:
        return False
    if growing[-1].loop.kind is LoopKind.MODULES:
        return True
    place = growing[-1].loop.place
    last = forwards_of(trace, frozenset([max(store.passes)]))
    runs = [forward for forward in last if any(turn.loop.place == place for turn in forward.loops)]
    return bool(runs) and all(_is_element(trace, forward.module) for forward in runs)


def _is_element(trace: Trace, module: Obj) -> bool:
    whole = next((trace.objects.get(oid) for oid in trace.lineage(module.id) if oid != module.id), None)
    kind = whole.type_name.rpartition(".")[2] if whole is not None else ""
    return kind in ("ModuleList", "ModuleDict", "Sequential") or module.name.startswith("[")


_OF_EPOCHS = ("epoch_end", "epoch_start", "train_start", "train_end", "fit_start", "fit_end")


def _is_emptied(trace: Trace, store: Store, holder: Obj) -> bool:
    """Is the container emptied while the steps go on, as far as is known? Once in an epoch is too rarely."""
    if holder.id not in trace.emptied:
        return False
    loop = store.loops[-1].loop if store.loops else None
    emptied = [event for event in trace.of(Emptied) if event.holder.id == holder.id]
    if loop is not None and store.scene.entry.framework == "lightning":
        return not all(event.scene.entry.name.endswith(_OF_EPOCHS) for event in emptied)
    if loop is None or loop.kind is not LoopKind.BATCHES:
        return True
    around = [turn.loop.place for turn in store.loops[:-1]]
    return not all([turn.loop.place for turn in event.loops] == around for event in emptied)


def _is_reset(store: Store) -> bool:
    """Does the loop that adds up set the sum back to a constant now and then?"""
    if store.how != "chain" or not store.loops:
        return False
    name = store.name if store.holder is None else f"self.{store.name}"
    return name in store.loops[-1].loop.resets


def _backwards_by_pass(trace: Trace) -> dict[int, list[Backward]]:
    runs: dict[int, list[Backward]] = {}
    for backward in trace.backwards:
        for p in backward.passes:
            runs.setdefault(p, []).append(backward)
    return runs


def _outlives(store: Store, backward: Backward) -> bool:
    """What keeps the value lives longer than one iteration of a loop around the backward."""
    kept_over = {turn.loop.place for turn in inside(store.loops, store.holder.birth if store.holder else ())}
    return any(turn.loop.place in kept_over for turn in backward.loops)


def _is_proven(store: Store, backwards: Sequence[Backward]) -> bool:
    """Did the backwards run over this very value, if an unseen call gave it beside others?

    Of several such calls the last one gave it: it only used what the others gave.
    """
    last = f"{PART}{max(store.passes)}:"
    parts = {mark for mark in store.value.taint if mark.startswith(last)}
    return not parts or any(
        backward.loss is not None and parts & backward.loss.taint for backward in backwards
    )


def _is_of_a_model(trace: Trace, store: Store) -> bool:
    """Did what is a model by its annotation give it? Models give tensors, and now and then a number."""
    is_loss = store.value.reduction in ("mean", "sum")
    return not is_loss and all(
        forward.module.origin is Origin.ANNOTATED and forward.module.cls is None and not forward.belief
        for forward in forwards_of(trace, store.passes)
    )


def _may_be_used(trace: Trace, store: Store) -> bool:
    """Whether something that is not seen may still run a backward over the kept graph."""
    if store.scene.forward is not None or store.token in trace.escaped_tokens:
        return True
    if any(not backward.passes for backward in trace.backwards):
        return True
    returned = trace.of(Returned)
    return any(store.token in event.tokens or store.passes & event.passes for event in returned)


def _is_of_a_module(trace: Trace, store: Store) -> bool:
    """Some graph in it comes from a known module, not from a callable that may give anything."""
    known = (Origin.BUILT, Origin.ANNOTATED)
    return any(not one.belief and one.module.origin in known for one in forwards_of(trace, store.passes))


def _is_scalar(runs: dict[int, list[Backward]], store: Store) -> bool:
    """Some backward ran on this very value without an argument, so it has one element."""
    losses = (backward.loss for p in store.passes for backward in runs.get(p, ()))
    value = store.value
    return any(loss and (loss.passes, loss.reduction) == (value.passes, value.reduction) for loss in losses)


def _is_evaluation(trace: Trace, store: Store) -> bool:
    """Every graph in it was made in eval mode with autograd on: nobody differentiates that on purpose."""
    forwards = forwards_of(trace, store.passes)
    return bool(forwards) and all(
        {mode.name for mode in forward.modes} == {"eval"} and True in forward.grad for forward in forwards
    )


# Turns of a literal loop that are harmless: with activations, and with bare nodes of some hundred bytes each.
_FEW_GRAPHS, _FEW_NODES = 16, 32


def _severity(trace: Trace, store: Store, is_freed: bool) -> Severity:
    growing = [turn.loop for turn in inside(store.loops, store.holder.birth if store.holder else ())]
    few = _FEW_NODES if is_freed else _FEW_GRAPHS
    if growing and all(loop.count is not None and loop.count <= few for loop in growing):
        return Severity.HINT
    if is_freed and _dies_with_a_batch(trace, store):
        return Severity.HINT
    return Severity.WARNING if is_freed else Severity.ERROR


def _dies_with_a_batch(trace: Trace, store: Store) -> bool:
    """Is what keeps it made anew for each batch, and only grows by turns that a setting counts, or for each
    step, and grows by its micro-batches?"""
    if store.holder is None:
        return False
    around = [turn.loop for turn in store.holder.birth]
    growing = [turn.loop for turn in inside(store.loops, store.holder.birth)]
    if not around or not growing:
        return False
    is_of_a_batch = any(loop.kind in (LoopKind.BATCHES, LoopKind.UNBOUNDED) for loop in around)
    if is_of_a_batch and all(loop.kind is LoopKind.RANGE for loop in growing):
        return True
    if around[-1].kind not in (LoopKind.BATCHES, LoopKind.UNBOUNDED, LoopKind.UNKNOWN):
        return False
    steps = trace.once("loops of steps", lambda: [{t.loop.place for t in e.loops} for e in trace.steps])
    is_stepped = any(around[-1].place in places for places in steps)
    return is_stepped and not any(loop.place in places for loop in growing for places in steps)


def _confidence(trace: Trace, store: Store, is_freed: bool) -> Confidence:
    if is_freed:
        return Confidence.CERTAIN  # a backward ran on it, so it had a graph, whatever the callee was
    is_trained = _is_trained_around(trace, store) or _is_looked_at(trace, store)
    if not _is_evaluation(trace, store) and not is_trained:
        return Confidence.POSSIBLE  # neither trained nor evaluated in view: what it is for is not known
    believed = any(forward.belief for forward in forwards_of(trace, store.passes))
    unsure = store.token in trace.escaped_tokens or not _is_evaluation(trace, store)
    return weaker(grade(int(believed)), grade(int(unsure)))


def _is_looked_at(trace: Trace, store: Store) -> bool:
    """Does a callback of transformers' run the model that the Trainer trains, and no backward itself?"""
    forwards = forwards_of(trace, store.passes)
    return bool(forwards) and all(forward.module.type_name == TRAINED_MODEL for forward in forwards)


def _is_trained_around(trace: Trace, store: Store) -> bool:
    """Is every module behind it trained in a loop around the store, by backwards over other passes of it?"""
    by_loop = trace.once("modules trained by loop", lambda: _trained_by_loop(trace))
    growing = {turn.loop.place for turn in store.loops if not turn.loop.is_call}
    trained = {module for place in growing for module in by_loop.get(place, ())}
    return bool(trained) and {f.module.id for f in forwards_of(trace, store.passes)} <= trained


def _trained_by_loop(trace: Trace) -> dict[Place, set[int]]:
    """Modules that backwards inside of each loop run over."""
    found: dict[Place, set[int]] = {}
    for backward in trace.backwards:
        modules = [forward.module.id for forward in forwards_of(trace, backward.passes)]
        for turn in backward.loops:
            found.setdefault(turn.loop.place, set()).update(modules)
    return found


def _doubts(trace: Trace, store: Store) -> str:
    believed = [forward.module for forward in forwards_of(trace, store.passes) if forward.belief]
    return doubt(
        (not _is_evaluation(trace, store), "what the value is for is not seen"),
        (bool(believed), known_by(believed[0]) if believed else ""),
        (store.token in trace.escaped_tokens, "it goes into a call that is not seen"),
    )


def _message(trace: Trace, store: Store, is_freed: bool) -> str:
    kept = f"`{store.name}`" if store.name else "this container"
    if store.holder is not None and store.holder.name:
        kept = f"`{store.holder.name}`"
    if is_freed and _dies_with_a_batch(trace, store):
        return (
            f"{kept} keeps the autograd graphs of all turns until the next batch makes it anew. Keep a "
            "detached value."
        )
    if is_freed:
        return (
            f"{kept} keeps the autograd graph of every iteration: host memory grows with each step. "
            "Keep a detached value."
        )
    return (
        f"{kept} keeps the whole autograd graph of every iteration, activations included: memory grows until "
        "the run dies. Keep a detached value."
    )


_HOW = {
    "chain": "computed from what earlier iterations kept, and kept again",
    "append": "appended here",
    "extend": "added here",
    "item": "put under a key here",
    "comprehension": "collected here",
    "attribute": "kept on the object here",
    "yield": "handed out here",
}


def _chain(trace: Trace, store: Store) -> tuple[Evidence, ...]:
    links: list[Evidence] = []
    for forward in forwards_of(trace, store.passes)[-1:]:
        links += step(forward.place, "this forward makes the graph")
    for p in sorted(store.passes)[-1:]:
        if p in trace.trained:
            links += step(trace.trained[p].place, "this backward frees the activations; the nodes stay")
    if store.holder is not None:
        links += step(store.holder.place, "what keeps it is made here, outside the loop")
    for turn in store.loops[-1:]:
        links += step(turn.loop.place, f"each turn of this {loop_words(turn.loop)} adds one")
    links += step(store.place, _HOW.get(store.how, f"kept here ({store.how})"))
    return distinct(links)


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    store, is_scalar = hit.facts
    if any(place.path != file.path for place in store.graph_places):
        return
    spans = [place.span for place in store.graph_places]
    detached = _appended(file, spans, ".detach()")
    if detached:
        yield Fix("Keep a detached value: add `.detach()`", Safety.SAFE, detached)
    if detached and len(spans) == 1 and is_scalar:
        title = "Keep a number: add `.item()` (waits for the GPU in every step)"
        yield Fix(title, Safety.UNSAFE, _appended(file, spans, ".item()"))


def _appended(file: SourceFile, spans: Sequence[Span], call: str) -> tuple[Edit, ...]:
    """`call` behind each expression; nothing where one of them is no single value."""
    edits: list[Edit] = []
    for span in spans:
        expression = expression_at(file.module, span)
        if expression is None or isinstance(expression, _NO_SINGLE_VALUE):
            return ()
        edits += append_call(file, expression, span, call)
    return tuple(edits)


_NO_SINGLE_VALUE = (
    nodes.ListExpr,
    nodes.TupleExpr,
    nodes.SetExpr,
    nodes.DictExpr,
    nodes.Comprehension,
    nodes.Starred,
)
