"""target-not-detached: a target that the same network computed pulls on that network."""

from __future__ import annotations

from collections.abc import Iterator

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
    claim="The target of a regression is a discounted output of the trained network and carries its graph.",
    cost=(
        "The update moves the target towards the prediction as well as the prediction towards the target. "
        "Bootstrapped values then drift to whatever makes the difference small, learning is slow or "
        "diverges, and the second forward keeps its activations for a backward that should not exist."
    ),
    wrong=Example("Both sides of the Bellman equation pull", WRONG, fixed=RIGHT),
    right=Example("The target stands still", RIGHT),
    silent=(
        "the target is computed without gradients or detached on its way",
        "both sides come from one forward (equations of physics, consistency of one output)",
        "two views are pulled together on purpose: the target is not discounted",
        "a network that no optimizer trains",
    ),
    grading=(
        "Always an error, and likely: residual gradient methods let both sides pull on purpose, and say so."
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


def detect(trace: Trace) -> Iterator[Hit]:
    for loss in trace.losses:
        guess, target = loss.input, loss.target
        if loss.name not in _REGRESSIONS or guess is None or target is None or len(loss.inputs) != 1:
            continue
        if not target.passes or not guess.passes or target.passes & guess.passes:
            continue
        if not any(factor.op == "*" for factor in target.factors):
            continue
        ahead, now = forwards_of(trace, target.passes), forwards_of(trace, guess.passes)
        own = {forward.module.id for forward in now}
        same = [forward for forward in ahead if forward.module.id in own and forward.module.place is not None]
        backward = next((b for p in sorted(target.passes) if (b := trace.trained.get(p))), None)
        if same and len(ahead) == 1 and backward is not None and backward.before:
            yield _hit(loss, same[0], now[0], backward)


def _hit(loss: LossCall, ahead: Forward, now: Forward, backward: Backward) -> Hit:
    return Hit(
        loss.place,
        Severity.ERROR,
        Confidence.LIKELY,
        f"the target carries the graph of {called(ahead.module, 'the network')}, which the loss trains: the "
        "backward moves the target as well as the prediction. Detach the target."
        + doubt((True, "a residual gradient method would mean it so")),
        distinct(
            (
                Evidence(now.place, "the prediction"),
                Evidence(ahead.place, "the target is computed by the same network, with a graph"),
                Evidence(loss.place, "both meet here"),
                Evidence(backward.place, "and this backward goes through both"),
            )
        ),
        frozenset({("loss", loss.place)}),
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
