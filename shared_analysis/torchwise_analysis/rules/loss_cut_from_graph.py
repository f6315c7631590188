"""loss-cut-from-graph: backward runs on a value that lost the model's graph on the way."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import Backward, Forward, LossCall
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import REQUIRED, UNRECORDED, Cut, Obj
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import called, distinct, forwards_of, grade, step

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def objective(prediction, target):
    difference = prediction.detach() - target
                 ^^^^^^^^^^^^^^^^^^^ loss-cut-from-graph error certain
    return difference.pow(2).mean()


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = objective(model(x), y).requires_grad_(True)
        loss.backward()
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def objective(prediction, target):
    difference = prediction - target
    return difference.pow(2).mean()


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = objective(model(x), y)
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW106",
    name="loss-cut-from-graph",
    category=Category.AUTOGRAD,
    severity=Severity.ERROR,
    claim="The loss, or a term of it, has lost the graph of the model: backward reaches none of its weights.",
    cost=(
        "`detach`, `.data`, NumPy and `torch.tensor(...)` give values without history. PyTorch would say so, "
        "but `requires_grad_(True)`, `Variable(..., requires_grad=True)` or another parameter in the loss "
        "keeps it quiet: the run goes through, the loss is logged, and the model never changes."
    ),
    wrong=Example("The prediction is detached inside the loss", WRONG),
    right=Example("The prediction keeps its graph", RIGHT),
    silent=(
        "the graph of some module still arrives in the loss",
        "another loss trains the module, or no optimizer in view owns it (a frozen encoder, a teacher)",
        "gradients are taken with respect to the input or to a tensor that is optimised itself",
        "a value is detached behind its loss, to be logged or added as a number",
        "discrete operations on the only path: those are nondifferentiable-loss",
    ),
    grading=(
        "Always an error. Certain when optimizer, model and the operation that cuts are resolved; likely "
        "when the model is only taken for one."
    ),
    fix="Advice only: compute the loss from the attached value.",
    references=(
        Reference("Tensor.detach", "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html"),
        Reference("Autograd mechanics", "https://docs.pytorch.org/docs/stable/notes/autograd.html"),
    ),
    examples=(
        Example(
            "Through NumPy and back",
            """
import torch
from torch import nn
from torch.autograd import Variable

model = nn.Linear(12, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        difference = model(x).detach().numpy() - y.numpy()
                     ^^^^^^^^^^^^^^^^^ loss-cut-from-graph error certain
        error = torch.as_tensor((difference**2).mean())
        loss = Variable(error, requires_grad=True)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ deprecated-api hint certain
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "The opinion of the discriminator is detached in the generator's loss",
            """
import torch
from torch import nn

generator, discriminator = nn.Linear(12, 8), nn.Linear(8, 1)
optimizer = torch.optim.Adam(generator.parameters())
adversarial, content = nn.BCEWithLogitsLoss(), nn.MSELoss()


def train(loader):
    for x, y in loader:
        fake = generator(x)
        opinion = discriminator(fake).detach()
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ loss-cut-from-graph error certain
        loss = content(fake, y) + 0.1 * adversarial(opinion, torch.ones_like(opinion))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "The target of a term may be detached, and a finished term may be added as a number",
            """
import torch
from torch import nn

encoder, book = nn.Linear(12, 8), nn.Linear(8, 8)
optimizer = torch.optim.Adam([*encoder.parameters(), *book.parameters()])


def train(loader):
    for x, y in loader:
        z = encoder(x)
        q = book(z)
        commitment = nn.functional.mse_loss(q.detach(), z)
        loss = nn.functional.mse_loss(q, z.detach()) + 0.25 * commitment
        logged = loss + nn.functional.mse_loss(q, y).detach()
        optimizer.zero_grad()
        logged.backward()
        optimizer.step()
""",
        ),
        Example(
            "An adversarial example: the gradient of the input is wanted",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        probe = x.detach().requires_grad_(True)
        nn.functional.cross_entropy(model(probe), y).backward()
        shifted = (x + 0.01 * probe.grad.sign()).detach()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(shifted), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A code is fitted to the features of a fixed encoder",
            """
import torch
from torch import nn

encoder = nn.Linear(12, 4)


def fit(image):
    target = encoder(image).detach()
    code = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.Adam([code], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(code, target)
        loss.backward()
        optimizer.step()
    return code
""",
        ),
        Example(
            "A baseline without graph beside a loss with one",
            """
import torch
from torch import nn

policy, value = nn.Linear(12, 4), nn.Linear(12, 1)
optimizer = torch.optim.SGD([*policy.parameters(), *value.parameters()], lr=0.1)


def update(x, action, reward):
    baseline = value(x).squeeze(-1)
    chosen = policy(x).log_softmax(-1).gather(1, action).squeeze(1)
    loss = -(chosen * (reward - baseline.detach())).mean() + (reward - baseline).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        ),
    ),
)

# A discrete result on the only path is another fault than a value taken out of the graph.
_TAKEN_OUT = frozenset(["detach", "data", "numpy", "tensor()", "item", "tolist", "float()"])


def detect(trace: Trace) -> Iterator[Hit]:
    yield from _dead_terms(trace)
    for one in trace.backwards:
        cut = one.loss.cut if one.loss is not None and not one.loss.passes else None
        if cut is None or one.loss is None or one.how in ("autograd.grad", "functional"):
            continue
        if cut.how == UNRECORDED and REQUIRED in one.loss.taint:
            yield from _unrecorded(trace, one, cut)
        if cut.how not in _TAKEN_OUT:
            continue
        lost = [f for f in forwards_of(trace, behind(trace, cut)) if should_train(trace, f)]
        if lost:
            yield _hit(one, cut, lost[0])


def behind(trace: Trace, cut: Cut) -> set[int]:
    """The passes whose graph was lost, and those whose graphs had flown into these: the loss is a module."""
    found, todo = set[int](), list(cut.passes)
    while todo:
        one = todo.pop()
        if one not in found and one in trace.passes:
            found.add(one)
            todo += trace.passes[one].inputs
    return found


def _dead_terms(trace: Trace) -> Iterator[Hit]:
    """Losses of a detached prediction that are added to a loss with a graph: constants, however large."""
    by_cut: dict[Cut, list[LossCall]] = {}
    alive = {loss.place for loss in trace.losses if _has_graph(loss)}
    for loss in trace.losses:
        for value in loss.inputs:
            if value.cut is not None and value.cut.how in _TAKEN_OUT and loss.place not in alive:
                by_cut.setdefault(value.cut, []).append(loss)
    for one in trace.backwards:
        if one.loss is None or not one.loss.passes:
            continue
        for cut in sorted(one.loss.dead, key=lambda cut: (cut.place.path, cut.place.span)):
            makers = forwards_of(trace, cut.passes)
            for loss in by_cut.get(cut, ())[:1]:
                if makers:
                    yield _dead_hit(one, cut, loss, makers[0])


def _has_graph(loss: LossCall) -> bool:
    given = (*loss.inputs, loss.target) if loss.target is not None else loss.inputs
    return any(value.passes for value in given)


def _dead_hit(one: Backward, cut: Cut, loss: LossCall, forward: Forward) -> Hit:
    name = called(forward.module, "the model")
    links = [*step(forward.place, f"{name} makes a graph"), Evidence(cut.place, f"`{cut.how}` leaves it")]
    links += [Evidence(loss.place, "so this term of the loss has no gradient")]
    links += step(one.place, "backward runs on the sum")
    return Hit(
        cut.place,
        Severity.ERROR,
        _confidence(forward),
        f"the prediction of {name} is detached before its loss: this term is a constant, it changes the "
        "number and trains nothing.",
        distinct(links),
        frozenset({("loss", loss.place)}),
        cut,
    )


def _unrecorded(trace: Trace, one: Backward, cut: Cut) -> Iterator[Hit]:
    """The forward ran without autograd, and the loss was told to require gradients all the same."""
    told = [
        call
        for call in trace.api("torch.Tensor.requires_grad=")
        if call.order < one.order and call.scene.frame == one.scene.frame
    ]
    for forward in forwards_of(trace, cut.passes):
        if not _is_trainable(trace, forward.module):
            continue
        name = called(forward.module, "the model")
        place = told[-1].place if told else one.place
        links = [*step(forward.place, f"{name} runs without autograd here: no graph")]
        links += step(place, "the loss is told to require gradients: it has none to pass on")
        links += step(one.place, "backward ends at the loss itself")
        yield Hit(
            place,
            Severity.ERROR,
            _confidence(forward),
            f"the loss has no graph, since {name} ran without autograd: `requires_grad` on the loss silences "
            "the error, and backward reaches no weight. Let autograd record the forward.",
            distinct(links),
            frozenset({("backward", one.place)}),
            cut,
        )
        return


def _is_trainable(trace: Trace, module: Obj) -> bool:
    """Does an optimizer that steps own the module or a part of it, and does nothing else train it?"""
    parts = {part.id for part in trace.parts(module.id)} | set(trace.lineage(module.id))
    is_owned = any(
        owned is not None and oid in trace.stepped and owned & parts for oid, owned in trace.owns.items()
    )
    return is_owned and not parts & trace.trained_modules


def should_train(trace: Trace, forward: Forward) -> bool:
    """Does an optimizer that steps own the module, and does nothing else train it?"""
    lineage = set(trace.lineage(forward.module.id))
    is_owned = any(
        owned is not None and oid in trace.stepped and owned & lineage for oid, owned in trace.owns.items()
    )
    return is_owned and not lineage & trace.trained_modules and True in forward.grad


def _hit(one: Backward, cut: Cut, forward: Forward) -> Hit:
    name = called(forward.module, "the model")
    return Hit(
        cut.place,
        Severity.ERROR,
        _confidence(forward),
        f"the loss loses the graph of {name} here: backward reaches none of its weights, and the optimizer "
        "has nothing to apply.",
        distinct(_chain(one, cut, forward)),
        frozenset({("backward", one.place)}),
        cut,
    )


def _confidence(forward: Forward) -> Confidence:
    return grade(int(forward.belief))


def _chain(one: Backward, cut: Cut, forward: Forward) -> Iterator[Evidence]:
    yield from step(forward.place, "this forward makes a graph")
    yield Evidence(cut.place, f"`{cut.how}` leaves it")
    yield from step(one.place, "backward runs on what is left")


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - the signature of BuildFixes
    yield Fix("Compute the loss from the value that has the graph", Safety.ADVICE, ())
