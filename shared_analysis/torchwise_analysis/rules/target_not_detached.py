"""target-not-detached: a target carries the graph of the network that computed it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, append_call, expression_at
from torchwise_analysis.interp.abstract.events import Backward, Forward, LossCall
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, doubt, forwards_of
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn

net = nn.Linear(4, 2)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def update(s, a, r, s2):
    now = net(s).gather(1, a).squeeze(1)
    ahead = net(s2).max(1)[0]
    target = r + 0.95 * ahead
    loss = nn.functional.mse_loss(now, target)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ target-not-detached error likely
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

net = nn.Linear(4, 2)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def update(s, a, r, s2):
    now = net(s).gather(1, a).squeeze(1)
    ahead = net(s2).max(1)[0]
    target = r + 0.95 * ahead
    loss = nn.functional.mse_loss(now, target.detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

RULE = Rule(
    code="TW111",
    name="target-not-detached",
    category=Category.AUTOGRAD,
    severity=Severity.ERROR,
    claim="The target of a loss carries a graph: of the trained network, or of one that nobody trains.",
    cost=(
        "The update moves the target towards the prediction as well as the prediction towards the target. "
        "Bootstrapped values then drift to whatever makes the difference small, learning is slow or "
        "diverges, and the second forward keeps its activations for a backward that should not exist. Where "
        "a target network or a teacher computes the target, the update is right, but each step keeps the "
        "activations of its forward, runs a backward through it and fills gradients that no optimizer reads."
    ),
    wrong=Example("Both sides of the Bellman equation pull", WRONG, fixed=RIGHT),
    right=Example("The target stands still", RIGHT),
    silent=(
        "the target is computed without gradients or detached on its way",
        "both sides come from one forward (equations of physics, consistency of one output)",
        "two views are pulled together on purpose: the target is not discounted",
        "the network that computes the target is frozen (`requires_grad_(False)`), was handed in, or went "
        "where its parameters may have been frozen or given to an optimizer",
    ),
    grading=(
        "An error, and likely, where the trained network computes its own target: residual gradient methods "
        "let both sides pull on purpose, and say so. A warning, and certain, where it costs memory and time "
        "alone: every optimizer is in view and none has a parameter of the network behind the target."
    ),
    fix="`.detach()` on the target. Unsafe: gradients change, as meant.",
    references=(
        Reference(
            "Reinforcement Learning (DQN) tutorial: expected values are computed without gradients",
            "https://docs.pytorch.org/tutorials/intermediate/reinforcement_q_learning.html",
        ),
        Reference("Tensor.detach", "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html"),
        Reference("datawhalechina/easy-rl: Double DQN", "https://github.com/datawhalechina/easy-rl"),
    ),
    examples=(
        Example(
            "A method that computes the target",
            """
import torch
from torch import nn


class Agent:
    def __init__(self):
        self.critic = nn.Linear(4, 2)
        self.optimizer = torch.optim.Adam(self.critic.parameters())

    def target(self, reward, following):
        return reward + 0.99 * self.critic(following).max(1).values

    def learn(self, state, action, reward, following):
        value = self.critic(state).gather(1, action).squeeze(1)
        loss = nn.functional.mse_loss(value, self.target(reward, following))
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ target-not-detached
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
""",
        ),
        Example(
            "A discount that is configured, a smooth loss",
            """
import torch
from torch import nn

critic = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(critic.parameters())
smooth = nn.SmoothL1Loss()


def update(s, r, s2, gamma):
    loss = smooth(critic(s), r + critic(s2) * gamma)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ target-not-detached error likely
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        ),
        Example(
            "A target network that learns nothing keeps its graph",
            """
import copy

import torch
from torch import nn


class Learner:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        self.ahead = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def learn(self, s, a, r, s2, done):
        best = self.ahead(s2).max(1).values
        wanted = r + 0.99 * best * (1 - done)
        values = self.net(s).gather(1, a).squeeze(1)
        loss = nn.functional.smooth_l1_loss(values, wanted)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ target-not-detached warning certain
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
""",
        ),
        Example(
            "A teacher that is frozen has no graph",
            """
import torch
from torch import nn

student, teacher = nn.Linear(12, 4), nn.Linear(12, 4)
teacher.requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters())


def update(x):
    loss = nn.functional.mse_loss(student(x), teacher(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        ),
        Example(
            "A target network computes the target",
            """
import copy

import torch
from torch import nn

net = nn.Linear(4, 2)
target_net = copy.deepcopy(net)
optimizer = torch.optim.Adam(net.parameters())


def update(s, a, r, s2):
    with torch.no_grad():
        target = r + 0.95 * target_net(s2).max(1)[0]
    loss = nn.functional.mse_loss(net(s).gather(1, a).squeeze(1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        ),
        Example(
            "Two views are pulled together",
            """
import torch
from torch import nn

net = nn.Linear(12, 8)
optimizer = torch.optim.Adam(net.parameters())


def update(first, second):
    loss = nn.functional.mse_loss(net(first), net(second))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        ),
        Example(
            "An equation of physics holds for one forward",
            """
import torch
from torch import nn

net = nn.Linear(2, 1)
optimizer = torch.optim.Adam(net.parameters())


def update(points):
    points.requires_grad_(True)
    u = net(points)
    slope = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
    loss = nn.functional.mse_loss(slope[:, :1], 0.5 * u)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        ),
    ),
)

_REGRESSIONS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_WITH_SOFT_TARGETS = (*_REGRESSIONS, "kl_div", "cross_entropy", "bce_with_logits", "binary_cross_entropy")


def detect(trace: Trace) -> Iterator[Hit]:
    for loss in trace.losses:
        guess, target = loss.input, loss.target
        if loss.name not in _WITH_SOFT_TARGETS or guess is None or target is None or len(loss.inputs) != 1:
            continue
        if not target.passes or not guess.passes or target.passes & guess.passes:
            continue
        backward = next((b for p in sorted(target.passes) if (b := trace.trained.get(p))), None)
        if backward is None or not backward.before:
            continue
        ahead, now = forwards_of(trace, target.passes), forwards_of(trace, guess.passes)
        if _is_own(loss, ahead, now):
            yield _pulling(loss, ahead[0], now[0], backward)
        elif all(_is_idle(trace, forward) for forward in ahead) and _is_stepped(trace, now):
            yield _idle(loss, ahead[0], now[0], backward)


def _is_own(loss: LossCall, ahead: tuple[Forward, ...], now: tuple[Forward, ...]) -> bool:
    """Did the network that is trained compute a discounted target for itself?"""
    if loss.name not in _REGRESSIONS or loss.target is None or len(ahead) != 1:
        return False
    is_discounted = any(factor.op == "*" for factor in loss.target.factors)
    own = {forward.module.id for forward in now}
    return is_discounted and ahead[0].module.id in own and ahead[0].module.place is not None


def _is_idle(trace: Trace, forward: Forward) -> bool:
    """Is it a forward with gradients of a network in full view that no optimizer has a parameter of?"""
    module = forward.module
    if module.place is None or forward.belief or forward.grad != frozenset([True]) or forward.inputs:
        return False
    ran = {module.id}
    if "copy" not in module.traits:  # a copy is told by the layers of what it is a copy of
        ran |= trace.passes[forward.pass_].modules
    family = {member for one in ran for member in trace.lineage(one)}
    owned = _owned(trace.owns.values())
    if owned is None or family & (owned | trace.escaped):
        return False
    if any(not family.isdisjoint(trace.lineage(one)) for one in owned):
        return False
    return all(trace.facts.get(("frozen", member)) is None for member in family)


def _is_stepped(trace: Trace, now: tuple[Forward, ...]) -> bool:
    """Has an optimizer the parameters of what made the prediction?"""
    owned = _owned(trace.owns.values()) or frozenset[int]()
    return any(not owned.isdisjoint(trace.lineage(forward.module.id)) for forward in now)


def _owned(all_owned: Iterable[frozenset[int] | None]) -> frozenset[int] | None:
    """What the optimizers have; None: of one of them it is not known."""
    found: set[int] = set()
    for owned in all_owned:
        if owned is None:
            return None
        found |= owned
    return frozenset(found)


def _pulling(loss: LossCall, ahead: Forward, now: Forward, backward: Backward) -> Hit:
    return Hit(
        loss.place,
        Severity.ERROR,
        Confidence.LIKELY,
        f"the target carries the graph of {called(ahead.module, 'the network')}, which the loss trains: the "
        "backward moves the target as well as the prediction. Detach the target."
        + doubt((True, "a residual gradient method would mean it so")),
        _chain(loss, ahead, now, backward, "the target is computed by the same network, with a graph"),
        frozenset({("loss", loss.place)}),
    )


def _idle(loss: LossCall, ahead: Forward, now: Forward, backward: Backward) -> Hit:
    return Hit(
        loss.place,
        Severity.WARNING,
        Confidence.CERTAIN,
        f"the target carries the graph of {called(ahead.module, 'a network')}, which no optimizer trains: "
        "its activations are kept and a backward fills gradients that nobody reads. Compute the target under "
        "no_grad or detach it.",
        _chain(loss, ahead, now, backward, "the target is computed here, with a graph"),
        frozenset({("loss", loss.place)}),
    )


def _chain(
    loss: LossCall, ahead: Forward, now: Forward, backward: Backward, how: str
) -> tuple[Evidence, ...]:
    return distinct(
        (
            Evidence(now.place, "the prediction"),
            Evidence(ahead.place, how),
            Evidence(loss.place, "both meet here"),
            Evidence(backward.place, "and this backward goes through both"),
        )
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Detach the target (changes gradients)"
    call = expression_at(file.module, hit.place.span)
    if not isinstance(call, nodes.Call) or any(isinstance(a, nodes.Starred) for a in call.args[:2]):
        yield Fix(title, Safety.ADVICE, ())
        return
    named = next((k.value for k in call.keywords if k.name == "target"), None)
    target = named or (call.args[1] if len(call.args) > 1 else None)
    if target is None:
        yield Fix(title, Safety.ADVICE, ())
        return
    span = target.span.shifted(hit.place.span.line - call.span.line)
    yield Fix(title, Safety.UNSAFE, append_call(file, target, Place(file.path, span).span, ".detach()"))
