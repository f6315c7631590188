"""gan-generator-not-detached: one network's step runs through the other, or stops where it should not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, append_call, expression_at
from torchwise_analysis.interp.abstract.events import Backward, Forward, Step
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Obj, Tensor
from torchwise_analysis.policy import weaker
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import belief_in, called, distinct, forwards_of, grade, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
import torch.nn.functional as F
from torch import nn

G, D = nn.Linear(8, 12), nn.Linear(12, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())


def train(loader):
    for real in loader:
        fake = G(torch.randn(16, 8))
        loss_d = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
                                                          ^^^^^^^ gan-generator-not-detached warning certain
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = F.softplus(-D(G(torch.randn(16, 8)))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
"""

RIGHT = """
import torch
import torch.nn.functional as F
from torch import nn

G, D = nn.Linear(8, 12), nn.Linear(12, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())


def train(loader):
    for real in loader:
        fake = G(torch.randn(16, 8))
        loss_d = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = F.softplus(-D(G(torch.randn(16, 8)))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
"""

RULE = Rule(
    code="TW105",
    name="gan-generator-not-detached",
    category=Category.AUTOGRAD,
    severity=Severity.WARNING,
    claim="Of two chained networks, one's step runs backward through the other for nothing, or stops.",
    cost=(
        "In the discriminator's step the generator's graph is kept and its backward is run, and its "
        "gradients are cleared unused: time and memory of a generator pass in each step. The opposite slip "
        "is worse: with `detach` in the generator's own step its adversarial loss trains nothing, and only "
        "the other terms, if any, move it. And where nothing clears them, what the discriminator's loss left "
        "on the generator is applied in the generator's next step, against its own loss."
    ),
    wrong=Example("The fakes keep the generator's graph", WRONG, fixed=RIGHT),
    right=Example("The fakes are detached for the discriminator", RIGHT),
    silent=(
        "the gradients are used: the optimizer of the first network steps on them before they are cleared",
        "one optimizer owns both networks",
        "the fakes are made under `no_grad`",
        "the same output also feeds the generator's loss, or a gradient penalty with respect to the fakes",
        "an actor's step through its critic, whose gradients are a by-product that must be computed",
    ),
    grading=(
        "A warning for wasted work, an error for a generator that learns nothing from its loss. Certain when "
        "both optimizers show which network they own; likely when that follows from the order of steps "
        "or from their names."
    ),
    fix="Append `.detach()` to the discriminator's input. Unsafe, although results mostly stay the same.",
    references=(
        Reference("DCGAN tutorial", "https://docs.pytorch.org/tutorials/beginner/dcgan_faces_tutorial.html"),
        Reference(
            "heykeetae/Self-Attention-GAN#48", "https://github.com/heykeetae/Self-Attention-GAN/issues/48"
        ),
        Reference(
            "nikhilsinghmus/image2reverb#37 (confirmed, opposite form)",
            "https://github.com/nikhilsinghmus/image2reverb/issues/37",
        ),
    ),
    examples=(
        Example(
            "One output for both losses",
            """
import torch
import torch.nn.functional as F
from torch import nn

G, D = nn.Linear(12, 12), nn.Linear(12, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())


def train(loader):
    for real in loader:
        opt_g.zero_grad()
        fake = D(G(real))
        F.softplus(-fake).mean().backward(retain_graph=True)
        opt_g.step()
        opt_d.zero_grad()
        (F.softplus(-D(real)).mean() + F.softplus(fake).mean()).backward()
        opt_d.step()
""",
        ),
        Example(
            "A penalty on the gradient with respect to the fakes",
            """
import torch
from torch import nn

G, D = nn.Linear(12, 12), nn.Linear(12, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())


def train(loader):
    for real in loader:
        opt_d.zero_grad()
        images = G(real)
        fake = D(images)
        slopes = torch.autograd.grad(fake.sum(), images, create_graph=True)[0]
        loss_d = D(real).mean() - fake.mean() + slopes.pow(2).mean()
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = -D(G(real)).mean()
        loss_g.backward()
        opt_g.step()
""",
        ),
        Example(
            "The generator's own step on detached fakes",
            """
import torch
import torch.nn.functional as F
from torch import nn

G, D = nn.Linear(12, 12), nn.Linear(12, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())


def train(loader):
    for real in loader:
        fake = G(real)
        loss_d = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = F.softplus(-D(fake.detach())).mean() + F.l1_loss(fake, real)
                             ^^^^^^^^^^^^^^^^ gan-generator-not-detached error certain
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
""",
        ),
        Example(
            "A step on arguments, whose names tell which network is meant",
            """
import torch


def step_of_generator(generator, discriminator, optimizer_g, bce, n):
    optimizer_g.zero_grad()
    fake = generator(torch.randn(n, 64))
    loss = bce(discriminator(fake.detach()), torch.ones(n, 1))
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ gan-generator-not-detached error likely
    loss.backward()
    optimizer_g.step()


def step_of_discriminator(generator, discriminator, optimizer_d, bce, n):
    optimizer_d.zero_grad()
    fake = generator(torch.randn(n, 64))
    loss = bce(discriminator(fake.detach()), torch.zeros(n, 1))
    loss.backward()
    optimizer_d.step()


def step_of_somebody(generator, discriminator, optimizer, bce, n):
    optimizer.zero_grad()
    fake = generator(torch.randn(n, 64))
    loss = bce(discriminator(fake.detach()), torch.zeros(n, 1))
    loss.backward()
    optimizer.step()
""",
        ),
        Example(
            "An actor learns through its critic",
            """
import torch
import torch.nn.functional as F
from torch import nn

actor, critic = nn.Linear(12, 4), nn.Linear(4, 1)
opt_actor = torch.optim.Adam(actor.parameters())
opt_critic = torch.optim.Adam(critic.parameters())


def train(loader):
    for state, action, value in loader:
        loss_critic = F.mse_loss(critic(action), value)
        opt_critic.zero_grad()
        loss_critic.backward()
        opt_critic.step()
        loss_actor = -critic(actor(state)).mean()
        opt_actor.zero_grad()
        loss_actor.backward()
        opt_actor.step()
""",
        ),
        Example(
            "Both step on one loss",
            """
import torch
import torch.nn.functional as F
from torch import nn

encoder, decoder = nn.Linear(12, 4), nn.Linear(4, 12)
opt_encoder = torch.optim.Adam(encoder.parameters())
opt_decoder = torch.optim.Adam(decoder.parameters())


def train(loader):
    for x in loader:
        loss = F.mse_loss(decoder(encoder(x)), x)
        opt_encoder.zero_grad()
        opt_decoder.zero_grad()
        loss.backward()
        opt_encoder.step()
        opt_decoder.step()
""",
        ),
        Example(
            "Fakes without a graph",
            """
import torch
import torch.nn.functional as F
from torch import nn

G, D = nn.Linear(8, 12), nn.Linear(12, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())


def train(loader):
    for real in loader:
        with torch.no_grad():
            fake = G(torch.randn(16, 8))
        loss_d = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = F.softplus(-D(G(torch.randn(16, 8)))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
""",
        ),
    ),
)


def detect(trace: Trace) -> Iterator[Hit]:
    steps = _steps_by_site(trace)
    for one in trace.backwards:
        if one.how in ("autograd.grad", "functional", "managed") or one.create_graph or not one.passes:
            continue
        applied = steps.get(one.place, frozenset())
        if len(applied) != 1:
            yield from _unapplied(trace, one) if not applied else _applied_by_both(trace, one, steps)
            continue
        stepping = trace.objects.get(next(iter(applied)))
        if stepping is None:
            continue
        for second in forwards_of(trace, one.passes):
            first = _feeder(trace, one, second)
            if first is not None and _has_further_use(trace, one, second):
                continue
            if first is not None and _is_wasted(trace, one, stepping, first, second):
                yield _wasted(trace, one, stepping, first, second)
            elif first is None:
                cut = _detached_feeder(trace, second)
                if cut is not None and _learns_nothing(trace, one, stepping, cut, second):
                    yield _useless(trace, one, stepping, cut, second)


def _unapplied(trace: Trace, one: Backward) -> Iterator[Hit]:
    """No optimizer applies what the backward makes: does the one that steps next own what was cut off?"""
    stepping = _next_to_step(trace, one)
    if stepping is None or trace.owns.get(stepping.id) is None:
        return
    for second in forwards_of(trace, one.passes):
        cut = _detached_feeder(trace, second)
        if cut is not None and _learns_nothing(trace, one, stepping, cut, second):
            yield _useless(trace, one, stepping, cut, second)


def _applied_by_both(trace: Trace, one: Backward, steps: Mapping[Place, frozenset[int]]) -> Iterator[Hit]:
    """Do gradients of the second network's loss get into a step of the first network on a loss of its own?

    That other loss runs through the second network as well, whose gradients of it are thrown away: two
    players, not two parts of one model.
    """
    stepping = _next_to_step(trace, one)
    owned = None if stepping is None else trace.owns.get(stepping.id)
    if stepping is None or owned is None:
        return
    for second in forwards_of(trace, one.passes):
        first = _feeder(trace, one, second)
        if first is None or not _belongs(trace, second, owned) or _belongs(trace, first, owned):
            continue
        other = _owner_of(trace, first, stepping)
        if other is None or steps[one.place] != frozenset((stepping.id, other)):
            continue
        mixed = _mixed_step(trace, one, other, second, steps)
        if mixed is not None:
            yield _leaked(trace, one, mixed, first, second)


def _next_to_step(trace: Trace, one: Backward) -> Obj | None:
    """The optimizer that steps first behind a backward, before any other backward."""
    following = trace.once("what follows a backward", lambda: _followers(trace))
    found = following.get(one.order)
    return None if found is None else found.optimizer


def _followers(trace: Trace) -> dict[int, Step]:
    last, found = -1, dict[int, Step]()
    for event in trace.of_any(Backward, Step):
        if isinstance(event, Backward):
            last = event.order
        elif last >= 0:
            found.setdefault(last, event)
    return found


def _mixed_step(
    trace: Trace, one: Backward, optimizer: int, second: Forward, steps: Mapping[Place, frozenset[int]]
) -> Step | None:
    """A step of `optimizer` on gradients of `one` and of a loss of its own that runs through `second`."""
    through = {
        backward.place
        for backward in trace.backwards
        if steps.get(backward.place) == frozenset((optimizer,))
        and any(forward.module.id == second.module.id for forward in forwards_of(trace, backward.passes))
    }
    for candidate in trace.steps:
        if candidate.optimizer.id != optimizer:
            continue
        for atom in candidate.before:
            places = {place for place, _ in atom.sites}
            if not atom.applied and one.place in places and places & through:
                return candidate
    return None


def _steps_by_site(trace: Trace) -> dict[Place, frozenset[int]]:
    """The optimizers that ever apply what a backward at a place makes."""
    out: dict[Place, frozenset[int]] = {}
    for one in trace.steps:
        for atom in one.before:
            for place, _ in atom.sites:
                out[place] = out.get(place, frozenset()) | {one.optimizer.id}
    return out


def _feeder(trace: Trace, one: Backward, second: Forward) -> Forward | None:
    """A forward of another module whose result `second` takes in with its graph."""
    for number in sorted(second.inputs & one.passes):
        first = trace.forward_of(number)
        if first.module.id != second.module.id and first.through not in ("loss", "entry"):
            return first
    return None


def _has_further_use(trace: Trace, one: Backward, second: Forward) -> bool:
    """Another backward, or a gradient penalty, needs the graph that the second network took in.

    In some turns at least: such a backward may stand behind a test.
    """
    return any(
        forward.calls == second.calls and other.place != one.place
        for forward, other in trace.backwards_over(second.place)
    )


def _is_wasted(trace: Trace, one: Backward, stepping: Obj, first: Forward, second: Forward) -> bool:
    """The step is the second network's alone, and what the first one got is cleared."""
    owned = trace.owns.get(stepping.id)
    if owned is not None:
        other = _owner_of(trace, first, stepping)
        is_second = _belongs(trace, second, owned) and not _belongs(trace, first, owned)
        return is_second and other is not None and _is_cleared(trace, one, other)
    # Owners unknown: another forward of the second network that the first does not feed shows whose step
    # it is.
    alone = any(
        f.module.id == second.module.id and not f.inputs & {first.pass_}
        for f in forwards_of(trace, one.passes)
        if f.pass_ != second.pass_
    )
    others = {o for o in one.before if o != stepping.id and trace.owns.get(o) is None and o in trace.stepped}
    return alone and len(others) == 1 and _is_cleared(trace, one, next(iter(others)))


def _belongs(trace: Trace, forward: Forward, owned: frozenset[int]) -> bool:
    return bool(set(trace.lineage(forward.module.id)) & owned)


def _owner_of(trace: Trace, forward: Forward, stepping: Obj) -> int | None:
    for oid, owned in trace.owns.items():
        is_other = oid != stepping.id and oid in trace.stepped
        if is_other and owned is not None and _belongs(trace, forward, owned):
            return oid
    return None


def _is_cleared(trace: Trace, one: Backward, optimizer: int) -> bool:
    """Do this optimizer's clears take the gradients of `one` away before any step of it?"""
    cleared = (atom for clear in trace.clears if clear.optimizer.id == optimizer for atom in clear.before)
    return any(place == one.place for atom in cleared for place, _ in atom.sites)


def _detached_feeder(trace: Trace, second: Forward) -> Tensor | None:
    """What `second` takes in after it was detached from another module's graph."""
    for value in second.arguments:
        if isinstance(value, Tensor) and value.cut is not None and value.cut.how == "detach":
            passes = [p for p in value.cut.passes if p in trace.passes]
            if passes and all(trace.forward_of(p).module.id != second.module.id for p in passes):
                return value
    return None


def _learns_nothing(trace: Trace, one: Backward, stepping: Obj, fake: Tensor, second: Forward) -> bool:
    """The step is the first network's alone, so the second one's forward reaches nothing that it moves."""
    owned = trace.owns.get(stepping.id)
    if fake.cut is None:
        return False
    makers = forwards_of(trace, fake.cut.passes)
    if owned is None:  # the names must say whose step it is: a discriminator's own looks the same
        named = _role(stepping.name)
        return (
            named != ""
            and named != _role(second.module.name)
            and named in {_role(f.module.name) for f in makers}
        )
    if _belongs(trace, second, owned):
        return False
    other = _owner_of(trace, second, stepping)
    is_first = any(_belongs(trace, maker, owned) for maker in makers)
    return is_first and other is not None and _is_cleared(trace, one, other)


def _role(name: str) -> str:
    """What is left of a name without the words for what it is: "g" of `opt_g`, `netG` and `generator`."""
    words = re.sub(r"optimi[sz]er|optim|opt|network|net|model|[^a-z]", "", name.lower())
    return {"generator": "g", "gen": "g", "discriminator": "d", "disc": "d", "dis": "d"}.get(words, words)


def _wasted(trace: Trace, one: Backward, stepping: Obj, first: Forward, second: Forward) -> Hit:
    name = called(first.module, "the other network")
    links = [*step(first.place, f"{name} makes this graph")]
    links += [Evidence(second.place, "its result goes in with the graph")]
    links += [Evidence(one.place, f"so this backward runs through {name} as well")]
    links += _step_link(trace, one, stepping)
    return Hit(
        second.place,
        Severity.WARNING,
        _confidence(trace, stepping, first, second),
        f"the step of {called(stepping, 'the optimizer')} runs backward through {name}, whose gradients are "
        "then cleared unused: time and memory for nothing. Detach the input.",
        distinct(links),
        frozenset({("forward", second.place)}),
        second,
    )


def _leaked(trace: Trace, one: Backward, mixed: Step, first: Forward, second: Forward) -> Hit:
    name = called(first.module, "the first network")
    links = [*step(first.place, f"{name} makes this graph")]
    links += [Evidence(second.place, "its result goes in with the graph")]
    links += [Evidence(one.place, f"so this backward leaves gradients on {name} too")]
    links += [Evidence(mixed.place, "this step applies them, beside those of its own loss")]
    return Hit(
        second.place,
        Severity.ERROR,
        weaker(Confidence.LIKELY, _confidence(trace, mixed.optimizer, first, second)),
        f"the step of {called(mixed.optimizer, 'the other optimizer')} applies gradients that {name} got "
        f"from the loss of {called(second.module, 'the other network')} as well: nothing clears them in "
        "between. Detach the input.",
        distinct(links),
        frozenset({("forward", second.place), ("window", one.place), ("optimizer", mixed.optimizer.id)}),
        second,
    )


def _useless(trace: Trace, one: Backward, stepping: Obj, fake: Tensor, second: Forward) -> Hit:
    cut = fake.cut
    assert cut is not None  # the caller looked
    makers = forwards_of(trace, cut.passes)
    name = called(makers[0].module, "the network") if makers else "the network"
    links = [link for maker in makers[:1] for link in step(maker.place, f"{name} makes a graph")]
    links += [Evidence(cut.place, "detach leaves it")]
    links += step(one.place, "this backward therefore stops at the other network")
    links += _step_link(trace, one, stepping)
    return Hit(
        second.place,
        Severity.ERROR,
        _confidence(trace, stepping, second, second),
        f"{name} learns nothing from this loss: its output is detached in its own step. Pass it with its "
        "graph.",
        distinct(links),
        frozenset({("forward", second.place)}),
        None,
    )


def _step_link(trace: Trace, one: Backward, stepping: Obj) -> list[Evidence]:
    applied: Step | None = next(
        (s for s in trace.steps if s.order > one.order and s.optimizer.id == stepping.id), None
    )
    return [] if applied is None else [Evidence(applied.place, "and this step uses it for one of them only")]


def _confidence(trace: Trace, stepping: Obj, first: Forward, second: Forward) -> Confidence:
    owners = int(trace.owns.get(stepping.id) is None)
    modules = int(first.belief or second.belief)
    return grade(min(owners + modules + belief_in(stepping), 1))


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    second = hit.facts
    if not isinstance(second, Forward):
        yield Fix("Pass the value with its graph", Safety.ADVICE, ())
        return
    call = expression_at(file.module, hit.place.span) if hit.place.path == file.path else None
    edits = None
    if isinstance(call, nodes.Call) and len(call.args) == 1 and not call.keywords:
        argument = call.args[0]
        if isinstance(argument, nodes.Name | nodes.Attribute | nodes.Call):
            span = argument.span.shifted(hit.place.span.line - call.span.line)
            edits = append_call(file, argument, span, ".detach()")
    yield Fix(
        "Detach the input of this forward (saves a backward)",
        Safety.ADVICE if edits is None else Safety.UNSAFE,
        edits or (),
    )
