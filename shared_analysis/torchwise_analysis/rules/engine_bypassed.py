"""engine-bypassed: a backward or step goes past the engine that owns them."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import EngineBypassed, Event
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import can_meet, in_file
from torchwise_analysis.rules._reading import called, distinct, doubt, step

WRONG = """
import deepspeed
from torch import nn


def train(loader, config):
    net = nn.Linear(12, 4)
    engine, optimizer, _, _ = deepspeed.initialize(model=net, config=config)
    for x, y in loader:
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        optimizer.step()
        ^^^^^^^^^^^^^^^^ engine-bypassed error certain
        optimizer.zero_grad()
"""

RIGHT = """
import deepspeed
from torch import nn


def train(loader, config):
    net = nn.Linear(12, 4)
    engine, optimizer, _, _ = deepspeed.initialize(model=net, config=config)
    for x, y in loader:
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
"""

RULE = Rule(
    code="TW610",
    name="engine-bypassed",
    category=Category.DISTRIBUTED,
    severity=Severity.ERROR,
    claim="`backward` or `step` is called on the loss or the optimizer itself although an engine owns both.",
    cost=(
        "DeepSpeed scales the loss, divides it by the accumulation window, gathers and reduces gradients in "
        "`engine.backward`, and counts micro-batches, clips, unscales and moves the schedule in "
        "`engine.step`. Past the engine these things do not happen: gradients are not reduced or are "
        "applied on every micro-batch, and the schedule stands still. The ranks train on without a message."
    ),
    wrong=Example("The optimizer is stepped past the engine", WRONG),
    right=Example("The engine steps", RIGHT),
    silent=(
        "an optimizer or a model that was never given to the engine",
        "`zero_grad` alone, which does no harm",
        "a loss that no module of the engine made",
        "a branch of its own for runs without the engine, beside one that calls the engine",
    ),
    grading=(
        "Always an error. Certain for a step: the optimizer is seen to come from, or to go into, the engine. "
        "Releases of DeepSpeed after 0.18.1 take over a plain `loss.backward()`: that is certain where the "
        "project asks for an older one, nothing where it asks for a newer one, and possible otherwise."
    ),
    fix="Advice: `engine.backward(loss)` and `engine.step()`; a `zero_grad` of one's own has to go too.",
    references=(
        Reference(
            "DeepSpeed: getting started, training", "https://www.deepspeed.ai/getting-started/#training"
        ),
        Reference(
            "deepspeedai/DeepSpeed#7665: PyTorch-compatible backward API",
            "https://github.com/deepspeedai/DeepSpeed/pull/7665",
        ),
        Reference(
            "DeepSpeed training API",
            "https://deepspeed.readthedocs.io/en/latest/training.html",
        ),
    ),
    examples=(
        Example(
            "The optimizer steps by itself",
            """
import deepspeed
import torch
from torch import nn


def train(loader, config):
    net = nn.Linear(12, 4)
    adam = torch.optim.Adam(net.parameters())
    engine, adam, _, _ = deepspeed.initialize(model=net, optimizer=adam, config=config)
    for x, y in loader:
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        adam.step()
        ^^^^^^^^^^^ engine-bypassed
""",
        ),
        Example(
            "The loss runs its own backward",
            """
import deepspeed
from torch import nn


def train(loader, config):
    net = nn.Linear(12, 4)
    engine, _, _, _ = deepspeed.initialize(model=net, config=config)
    for x, y in loader:
        loss = nn.functional.cross_entropy(engine(x), y)
        loss.backward()
        ^^^^^^^^^^^^^^^ engine-bypassed error possible
        engine.step()
""",
        ),
        Example(
            "A second optimizer of a second model",
            """
import deepspeed
import torch
from torch import nn


def train(loader, config):
    net, critic = nn.Linear(12, 4), nn.Linear(12, 1)
    engine, _, _, _ = deepspeed.initialize(model=net, config=config)
    own = torch.optim.Adam(critic.parameters())
    for x, y in loader:
        engine.backward(nn.functional.cross_entropy(engine(x), y))
        engine.step()
        own.zero_grad()
        critic(x).pow(2).mean().backward()
        own.step()
""",
        ),
        Example(
            "Gradients are cleared through the optimizer",
            """
import deepspeed
from torch import nn


def train(loader, config):
    net = nn.Linear(12, 4)
    engine, optimizer, _, _ = deepspeed.initialize(model=net, config=config)
    optimizer.zero_grad()
    for x, y in loader:
        engine.backward(nn.functional.cross_entropy(engine(x), y))
        engine.step()
""",
        ),
        Example(
            "A choice between the engine and a plain run",
            """
import deepspeed
from torch import nn


def train(loader, config, args):
    net = nn.Linear(12, 4)
    engine, optimizer, _, _ = deepspeed.initialize(model=net, config=config)
    for x, y in loader:
        loss = nn.functional.cross_entropy(engine(x), y)
        if args.deepspeed:
            engine.backward(loss)
            engine.step()
        else:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
""",
        ),
        Example(
            "No engine at all",
            """
import torch
from torch import nn


def train(loader):
    net = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
""",
        ),
    ),
)


_TAKING_OVER = (0, 18, 2)  # of DeepSpeed: `loss.backward()` runs the engine's


def detect(trace: Trace) -> Iterator[Hit]:
    for event in trace.of(EngineBypassed):
        if event.what not in ("backward", "step") or not _can_follow_engine(trace, event):
            continue
        known = trace.releases("deepspeed") if event.what == "backward" else None
        if known is not None and known.surely_from(_TAKING_OVER):
            continue
        is_sure = event.what != "backward" or (known is not None and known.surely_before(_TAKING_OVER))
        name = called(event.engine, "the engine")
        lost = (
            "scaling, division and reduction"
            if event.what == "backward"
            else "clipping, windows and schedule"
        )
        yield Hit(
            in_file(trace, event),
            Severity.ERROR,
            Confidence.CERTAIN if is_sure else Confidence.POSSIBLE,
            f"this `{event.what}` goes past {name}, which owns it: {lost} are left out. Call the engine's "
            f"own `{event.what}`." + doubt((not is_sure, "releases of DeepSpeed after 0.18.1 take it over")),
            distinct(
                (
                    *step(event.engine.place, "the engine takes model and optimizer here"),
                    Evidence(event.place, f"`{event.what}` is called past it"),
                )
            ),
            frozenset({("engine", event.engine.id)}),
        )


def _can_follow_engine(trace: Trace, event: EngineBypassed) -> bool:
    """Not so where a test chooses between this and the engine's own calls."""
    owned: list[Event] = [one for one in trace.backwards if one.how == "engine"]
    owned += [one for one in trace.steps if one.via == "engine"]
    return not owned or any(can_meet(one, event) for one in owned)


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Use `engine.backward(loss)` and `engine.step()`", Safety.ADVICE, ())
