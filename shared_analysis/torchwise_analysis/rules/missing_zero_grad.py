"""missing-zero-grad: a step applies gradients that an earlier step has already applied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    SourceFile,
    innermost_expression,
    innermost_statement,
    insert_statement_after,
    insert_statement_before,
    statements,
)
from torchwise_analysis.interp.abstract.events import Clear, Step
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Atom
from torchwise_analysis.policy import one_weaker
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import (
    belief_in,
    called,
    distinct,
    doubt,
    grade,
    known_by,
    loop_words,
    step,
)
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Span

WRONG = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        ^^^^^^^^^^^^^^^ missing-zero-grad error certain
        optimizer.step()
"""

RIGHT = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW201",
    name="missing-zero-grad",
    category=Category.LOOP,
    severity=Severity.ERROR,
    claim=(
        "A step applies gradients that an earlier step has already applied, because nothing clears them "
        "between."
    ),
    cost=(
        "`backward` adds to `.grad`. Without a clear, step n applies the sum of all gradients since the "
        "start: old directions are applied again and again, the effective learning rate grows, and the "
        "loss oscillates or diverges. Nothing raises, so the whole run is spent before anybody looks at "
        "the optimiser."
    ),
    wrong=Example("A loop without a clear", WRONG, fixed=RIGHT),
    right=Example("Cleared before each backward", RIGHT),
    silent=(
        "gradients are cleared anywhere between the steps: `zero_grad` of optimizer or model, `p.grad = "
        "None`, a helper, a closure, a hook",
        "a framework clears them (Lightning's automatic optimisation, a Trainer, an engine), decided "
        "for the very object and never for the file",
        "no step uses the gradients, or `autograd.grad` and functional gradients are used",
        "several backwards before one step (accumulation, several losses): they are meant to add up",
    ),
    grading=(
        "Always an error. Certain when the optimizer is made in view or annotated; likely when it is "
        "only taken for one, or when it went into a call that cannot be seen and might clear it there."
    ),
    fix=(
        "Insert `optimizer.zero_grad()` before the backward, or behind the step when several backwards "
        "belong to one step. Unsafe, because training changes on purpose: it is offered with a preview "
        "and never applied in bulk without asking."
    ),
    references=(
        Reference(
            "Optimizer.zero_grad",
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
        ),
        Reference(
            "Optimizing Model Parameters",
            "https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html",
        ),
        Reference(
            "wenet-e2e/wekws#73: add optimizer.zero_grad()", "https://github.com/wenet-e2e/wekws/pull/73"
        ),
        Reference(
            "meta-pytorch/torchforge#71: zero grad every step",
            "https://github.com/meta-pytorch/torchforge/pull/71",
        ),
        Reference(
            "tatsu-lab/alpaca_farm#58: fix zero grad bug", "https://github.com/tatsu-lab/alpaca_farm/pull/58"
        ),
    ),
    examples=(
        Example(
            "Cleared once in an epoch is not cleared between steps",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(loader, epochs):
    for epoch in range(epochs):
        optimizer.zero_grad()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            ^^^^^^^^^^^^^^^ missing-zero-grad error certain
            optimizer.step()
""",
        ),
        Example(
            "A generator's optimizer is cleared, the discriminator's is not",
            """
import torch
from torch import nn

G, D = nn.Linear(8, 12), nn.Linear(12, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()


def train(loader):
    for real in loader:
        noise = torch.randn(16, 8)
        d_loss = bce(D(real), torch.ones(16, 1)) + bce(D(G(noise).detach()), torch.zeros(16, 1))
        d_loss.backward()
        ^^^^^^^^^^^^^^^^^ missing-zero-grad error certain
        opt_d.step()
        opt_g.zero_grad()
        g_loss = bce(D(G(noise)), torch.ones(16, 1))
        g_loss.backward()
        opt_g.step()
""",
        ),
        Example(
            "Accumulation whose step forgets the clear: it belongs behind the step",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / 4
        loss.backward()
        ^^^^^^^^^^^^^^^ missing-zero-grad error certain
        if (i + 1) % 4 == 0:
            optimizer.step()
""",
            fixed="""
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "Cleared by a helper",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def apply(loss):
    loss.backward()
    optimizer.step()
    for p in model.parameters():
        p.grad = None


def train(loader):
    for x, y in loader:
        apply(nn.functional.cross_entropy(model(x), y))
""",
        ),
        Example(
            "Accumulation that clears at the end of each window",
            """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Example(
            "A closure that clears",
            """
import torch
from torch import nn


def fit(x, y):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(50):
        optimizer.step(closure)
""",
        ),
    ),
)


class _Found(NamedTuple):
    """The step at fault; whether several backwards belong to one step."""

    step: Step
    has_window: bool


_LONGEST_CHAIN = 8


def detect(trace: Trace) -> Iterator[Hit]:
    clears = _Clears(trace)
    for one in trace.steps:
        stale = [atom for atom in one.before if atom.applied and atom.sites]
        if not stale:
            continue
        is_outside = bool(one.loops) and one.loops[-1].loop.is_call and one.optimizer.id in trace.cleared
        if is_outside and not _ran_before(trace, one):
            continue  # a sibling method clears it between two calls that we do not see
        if _opens_window(trace, one):
            continue
        site = _site(trace, one, {place for atom in stale for place, _ in atom.sites})
        name = called(one.optimizer, "the optimizer")
        yield Hit(
            site,
            Severity.ERROR,
            _confidence(trace, one),
            f"gradients of earlier steps are applied again: nothing clears {name} between two steps, so each "
            "update repeats all former ones and training diverges."
            + doubt(
                (belief_in(one.optimizer) > 0, known_by(one.optimizer)),
                (one.optimizer.id in trace.escaped, "it went into a call that is not seen"),
            ),
            _chain(clears, one, site),
            frozenset({("optimizer", one.optimizer.id)}),
            _Found(one, _has_window(stale)),
        )


def _opens_window(trace: Trace, one: Step) -> bool:
    """Is it cleared at the head of each window (`(i - 1) % n == 0`), at whose end (`i % n == 0`), or behind
    the last of which, it steps?"""
    counts = {divisor for divisor, _ in _remainders(one)}
    return any(
        clear.optimizer.id == one.optimizer.id
        and any(is_hit and d in counts for d, is_hit in _remainders(clear))
        for clear in (trace.clears if counts else ())
    )


def _remainders(event: Clear | Step) -> Iterator[tuple[str, bool]]:
    """By what a count is divided in the tests around an event, and whether nothing is to remain."""
    for guard in event.scene.guards:
        symbol = guard.symbol or ""
        if "%" in symbol and symbol.endswith(") == 0"):
            yield symbol.rpartition("%")[2], guard.taken


def _ran_before(trace: Trace, one: Step) -> bool:
    """Has its closure run before in this very call?"""
    return one.via == "closure" and any(
        other.place == one.place and other.loops == one.loops and other.order < one.order
        for other in trace.steps
    )


def _site(trace: Trace, one: Step, places: set[Place]) -> Place:
    """The first backward of the window; the last before the step where any may have reached its weights."""
    if len(places) > 1 and trace.owns.get(one.optimizer.id) is None:
        before = [b for b in trace.backwards if b.order < one.order and b.place in places]
        if before:
            return before[-1].place
    return min(places, key=_position)


def _position(place: Place) -> tuple[str, Span]:
    return place.path, place.span


def _has_window(atoms: list[Atom]) -> bool:
    """Several backwards belong to one step: clearing before each would drop all but the last."""
    return any(len(atom.sites) > 1 or any(many > 1 for _, many in atom.sites) for atom in atoms)


def _confidence(trace: Trace, one: Step) -> Confidence:
    confidence = grade(min(belief_in(one.optimizer), 1))
    return one_weaker(confidence) if one.optimizer.id in trace.escaped else confidence


class _Clears:
    """The clears of a trace by what they clear and by the loop they stand in."""

    def __init__(self, trace: Trace) -> None:
        self.of: dict[int, list[Clear]] = {}
        self.inside: dict[int, list[Clear]] = {}
        for clear in trace.clears:
            self.of.setdefault(clear.optimizer.id, []).append(clear)
            if clear.loops:
                self.inside.setdefault(id(clear.loops[-1].loop), []).append(clear)


def _chain(clears: _Clears, one: Step, site: Place) -> tuple[Evidence, ...]:
    name = called(one.optimizer, "the optimizer")
    links = [Evidence(site, "this backward adds to the gradients that are there")]
    links += step(one.place, f"this step of {name} has used them before and uses them again")
    others: list[Clear] = []
    if one.loops:
        loop = one.loops[-1].loop
        links += step(loop.place, f"the {loop_words(loop)} runs both again")
        others = clears.inside.get(id(loop), [])
    for clear in clears.of.get(one.optimizer.id, [])[:_LONGEST_CHAIN]:
        links += step(clear.place, "this clear does not count: it does not run between two steps")
    for clear in others[:_LONGEST_CHAIN]:
        if clear.optimizer.id != one.optimizer.id:
            links += step(
                clear.place,
                f"this clear does not count: it is for {called(clear.optimizer, 'another optimizer')}",
            )
    return distinct(links)[:_LONGEST_CHAIN]


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    one, has_window = hit.facts
    if one.place.path != file.path:
        return
    receiver = _optimizer_text(file, one)
    title = "Clear the gradients between steps (changes training)"
    if receiver is None:
        yield Fix(title, Safety.ADVICE, ())
        return
    statement = f"{receiver}.zero_grad()"
    is_local = _function_of(file, one.place) == _function_of(file, hit.place)
    if has_window or (one.via != "closure" and not is_local):
        found = innermost_statement(file.module, one.place.span)
        edit = None if found is None else insert_statement_after(file, found[1], statement)
    else:
        found = innermost_statement(file.module, hit.place.span)
        edit = (
            None
            if found is None
            else insert_statement_before(file, found[1].line, found[1].column, statement)
        )
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))


def _optimizer_text(file: SourceFile, one: Step) -> str | None:
    """How the optimizer is written where it steps: `optimizer.step()` or `scaler.step(optimizer)`."""
    found = innermost_expression(file.module, one.place.span, nodes.Call)
    if found is None:
        return None
    call, span = found
    assert isinstance(call, nodes.Call)  # the search was for calls
    if not isinstance(call.func, nodes.Attribute):
        return None
    subject = call.args[0] if one.via == "scaler" and call.args else call.func.value
    if not isinstance(subject, nodes.Name | nodes.Attribute):
        return None  # anything else would run twice
    return file.slice(subject.span.shifted(span.line - call.span.line))


def _function_of(file: SourceFile, place: Place) -> tuple[int, int] | None:
    """Where the innermost function around `place` begins."""
    inner = None
    for statement, span in statements(file.module):
        if isinstance(statement, nodes.FunctionDef) and span.line <= place.span.line <= span.end_line:
            inner = (span.line, span.column)
    return inner
