"""ddp-forward-bypassed: the training forward goes past the wrapper that averages gradients."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at
from torchwise_analysis.interp.abstract.events import Backward, Forward, Wrapped
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Obj
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._processes import can_meet, in_file
from torchwise_analysis.rules._reading import called, distinct, doubt, grade, step
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import Span

WRONG = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model.module(x), y)
                                           ^^^^^^^^^^^^^^^ ddp-forward-bypassed error certain
        loss.backward()
        optimizer.step()
"""

RIGHT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW603",
    name="ddp-forward-bypassed",
    category=Category.DISTRIBUTED,
    severity=Severity.ERROR,
    claim="The forward that trains calls the module inside a distributed wrapper, so gradients stay local.",
    cost=(
        "DistributedDataParallel prepares the averaging of gradients in its own forward. A call of "
        "`.module`, of the unwrapped model or of the name it had before skips that: each rank steps with "
        "the gradient of its own batch. With inputs 1 and 2 on two ranks the wrapper gives gradient 1.5 on "
        "both, the module inside 1.0 and 2.0, without an error. The copies drift apart, and N GPUs train N "
        "different models of which one is saved."
    ),
    wrong=Example("The loss comes from `.module`", WRONG, fixed=RIGHT),
    right=Example("The loss comes from the wrapper", RIGHT),
    silent=(
        "the forward is not trained: evaluation, generation, sampling",
        "a backward that also reaches a forward of the wrapper itself: the averaging is prepared then",
        "gradients are averaged by hand (`all_reduce` of `.grad`)",
        "a branch without a wrapper, for a single process",
        "the wrapper shards nothing and averages nothing (`torch.compile`, `DataParallel`)",
    ),
    grading=(
        "Always an error. Certain when wrapper and call are both resolved; likely under Accelerate, where "
        "the same script may run as one process, or when the module is only known by its name."
    ),
    fix="Call the wrapper in place of `.module`. Unsafe: gradients are averaged from then on.",
    references=(
        Reference(
            "DistributedDataParallel",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
        ),
        Reference(
            "Distributed Data Parallel, internal design",
            "https://docs.pytorch.org/docs/stable/notes/ddp.html",
        ),
        Reference(
            "jingyaogong/minimind#854: route RL trainer forward through DDP so gradients all-reduce",
            "https://github.com/jingyaogong/minimind/pull/854",
        ),
    ),
    examples=(
        Example(
            "The name from before wrapping",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(loader):
    dist.init_process_group("nccl")
    net = nn.Linear(12, 4)
    parallel = DDP(net)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
                                    ^^^^^^ ddp-forward-bypassed error certain
        optimizer.step()
""",
        ),
        Example(
            "Accelerate: the model is unwrapped before the loss",
            """
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator()
net = nn.Linear(12, 4)
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
raw = accelerator.unwrap_model(model)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(raw(x), y))
                                                         ^^^^^^ ddp-forward-bypassed error likely
        optimizer.step()
""",
        ),
        Example(
            "The module inside evaluates and samples",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, held_out):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in held_out:
            print(nn.functional.cross_entropy(model.module(x), y).item())
    model.train()
""",
        ),
        Example(
            "Wrapped only when there are several processes",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(args, loader):
    model = nn.Linear(12, 4)
    if args.distributed:
        dist.init_process_group("nccl")
        model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A penalty of the module inside joins a forward of the wrapper",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) + model.module(x).pow(2).mean()
        loss.backward()
        optimizer.step()
""",
        ),
        Example(
            "Gradients are averaged by hand",
            """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model.module(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
""",
        ),
    ),
)

_AVERAGING = ("ddp", "fsdp", "prepared")


def detect(trace: Trace) -> Iterator[Hit]:
    if trace.api("all_reduce of gradients"):
        return
    by_wrapper = {f.place for f in trace.forwards if f.wrapped}
    for forward in trace.forwards:
        is_past = forward.bypassed in _AVERAGING or _is_part(trace, forward)
        if not is_past or True not in forward.grad or forward.place in by_wrapper:
            continue
        backward = trace.trained.get(forward.pass_)
        wrap = _wrap_of(trace, forward)
        if backward is None or wrap is None or _is_prepared(trace, forward, backward):
            continue
        yield _hit(trace, forward, backward, wrap)


def _is_part(trace: Trace, forward: Forward) -> bool:
    """A layer inside of a wrapped module is run by itself: by another method of it, say."""
    if forward.wrapped or forward.through not in ("call", "forward", "method"):
        return False
    inside = trace.once("inside of wrappers", lambda: _wrapped_modules(trace))
    return bool(inside.intersection(trace.lineage(forward.module.id)[1:]))


def _past(trace: Trace, forward: Forward, wrap: Wrapped) -> Place:
    """The call that goes past the wrapper: of a method of the module, where a part of it is run in there."""
    if wrap.module is None or not forward.calls:
        return in_file(trace, forward)
    if wrap.module.id == forward.module.id:
        return _caller_of(trace, forward)
    beside = [caller.place for caller in forward.calls if caller.frame == wrap.scene.frame]
    return beside[-1] if beside else forward.calls[-1].place


def _caller_of(trace: Trace, forward: Forward) -> Place:
    """The call that goes past the wrapper: of a method in which the module calls itself."""
    if not _is_own(trace, forward.module, forward.place):
        return in_file(trace, forward)
    outside = (c.place for c in reversed(forward.calls) if not _is_own(trace, forward.module, c.place))
    place = next(outside, forward.place)
    return place if place.path == trace.path else in_file(trace, forward)


def _is_own(trace: Trace, module: Obj, place: Place) -> bool:
    """Does it stand in the source of the module's own class or of one of its bases?"""
    for cls in module.cls.mro if module.cls is not None else ():
        span = trace.place(cls.path, cls.node.span.shifted(cls.line)).span
        if cls.path == place.path and span.line <= place.span.line <= span.end_line:
            return True
    return False


def _wrapped_modules(trace: Trace) -> frozenset[int]:
    wraps = (wrap for wrap in trace.of(Wrapped) if wrap.how in ("ddp", "fsdp"))
    return frozenset(wrap.module.id for wrap in wraps if wrap.module is not None)


def _wrap_of(trace: Trace, forward: Forward) -> Wrapped | None:
    """Where the module of this forward, or one around it, was wrapped, in a run that can be the same."""
    around = trace.lineage(forward.module.id)
    for wrap in trace.of(Wrapped):
        is_same = wrap.module is not None and wrap.module.id in around
        if is_same and wrap.how in _AVERAGING and wrap.order < forward.order and can_meet(wrap, forward):
            return wrap
    return None


def _is_prepared(trace: Trace, forward: Forward, backward: Backward) -> bool:
    """Does that backward also reach a forward of the wrapper, which prepares the averaging?"""
    others = (trace.passes[p].forward for p in backward.passes if p in trace.passes)
    around = trace.lineage(forward.module.id)
    return any(other.module.id in around and other.wrapped for other in others)


def _hit(trace: Trace, forward: Forward, backward: Backward, wrap: Wrapped) -> Hit:
    may_be_one = wrap.how == "prepared"
    name = called(forward.module, "the model")
    return Hit(
        _past(trace, forward, wrap),
        Severity.ERROR,
        grade(int(may_be_one)),
        f"this training forward goes past the wrapper of {name}: gradients are not averaged, and each rank "
        "trains a model of its own. Call the wrapper."
        + doubt((may_be_one, "with a single process nothing has to be averaged")),
        distinct(
            (
                Evidence(wrap.place, "the model is wrapped here"),
                *step(forward.place, "the module inside is called"),
                Evidence(backward.place, "this backward trains it without the wrapper"),
            )
        ),
        frozenset({("pass", forward.pass_)}),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    title = "Call the wrapper (averages gradients: changes training)"
    call = expression_at(file.module, hit.place.span)
    func = call.func if isinstance(call, nodes.Call) else None
    if isinstance(call, nodes.Call) and isinstance(func, nodes.Attribute) and func.attr == "module":
        shift = hit.place.span.line - call.span.line
        inner, outer = func.value.span.shifted(shift), func.span.shifted(shift)
        cut = Span(inner.end_line, inner.end_column, outer.end_line, outer.end_column)
        yield Fix(title, Safety.UNSAFE, (Edit(Place(file.path, cut), ""),))
        return
    yield Fix(title, Safety.ADVICE, ())
