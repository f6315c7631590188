"""unregistered-submodules: layers or parameters kept in a plain container are not part of their module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, cast

from torchwise_analysis.findings import Confidence, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    SourceFile,
    expressions,
    innermost_statement,
    name_for_member,
    name_for_module,
    wrap,
)
from torchwise_analysis.interp.abstract.events import ModuleBuilt, OptimizerBuilt, PartSet
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Kind, Obj, Origin, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, forwards_of, grade, step
from torchwise_analysis.source import nodes

WRONG = """
import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = [nn.Linear(width, width) for _ in range(depth)]
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ unregistered-submodules error certain
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x)


net = Stack(12, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""

RIGHT = """
import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x)


net = Stack(12, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""

RULE = Rule(
    code="TW202",
    name="unregistered-submodules",
    category=Category.LOOP,
    severity=Severity.ERROR,
    claim="Layers or parameters that forward uses are kept in a plain list, tuple or dict of their module.",
    cost=(
        "`nn.Module` registers what is assigned to an attribute, but it does not look into plain "
        "containers. The parameters inside are missing from `parameters()`, so no optimizer trains them; "
        "`to()`, `half()` and `train()` pass them by; `state_dict()` leaves them out, so a checkpoint "
        "restores random weights. The loss still falls, because the registered rest learns around them."
    ),
    wrong=Example("Layers in a list", WRONG, fixed=RIGHT),
    right=Example("Layers in a ModuleList", RIGHT),
    silent=(
        "`register_parameter` gives weights to another module of the class, by hand",
        "the same objects are registered as well: `add_module`, `setattr`, another attribute, a `ModuleList` "
        "or `Sequential` made of the container later",
        "layers without parameters, and parameters that do not require gradients",
        "a module from elsewhere hidden in a container of one element, which is the usual way to keep a "
        "teacher out of `parameters()`",
        "an optimizer gets their parameters by hand",
        "no forward uses them, or the class is no `nn.Module`",
    ),
    grading=(
        "Always an error. Certain when the elements are layers of torch or modules and parameters built in "
        "view; likely when their class cannot be seen."
    ),
    fix=(
        "Wrap a list in `nn.ModuleList` (`nn.ParameterList` for parameters) when the attribute is only "
        "iterated, indexed, measured or appended to, and a dict literal with text keys in `nn.ModuleDict`. "
        "Unsafe, because the parameters start to train and keys of the state dict appear; advice otherwise."
    ),
    references=(
        Reference("ModuleList", "https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html"),
        Reference(
            "pytorch/pytorch#59925: Implicit module registration permits silent programming errors",
            "https://github.com/pytorch/pytorch/issues/59925",
        ),
        Reference(
            "asyml/texar-pytorch#72: Missing trainable variables from MergeLayer",
            "https://github.com/asyml/texar-pytorch/issues/72",
        ),
        Reference(
            "twitter/the-algorithm-ml#136: Swap python list for torch's ModuleList",
            "https://github.com/twitter/the-algorithm-ml/pull/136",
        ),
    ),
    examples=(
        Example(
            "Modules without parameters of their own",
            """
import torch
from torch import nn


class Trend(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mean = nn.AvgPool1d(width, stride=1)

    def forward(self, x):
        return self.mean(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trends = [Trend(3), Trend(5)]
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.cat([trend(x) for trend in self.trends], dim=-1))


def train(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Appended one by one",
            """
import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.stack = []
        ^^^^^^^^^^^^^^^ unregistered-submodules error certain
        for k in range(depth):
            self.stack.append(nn.Linear(width, width))
        self.readout = nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.stack:
            x = torch.tanh(layer(x))
        return self.readout(x)
""",
            fixed="""
import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.stack = nn.ModuleList([])
        for k in range(depth):
            self.stack.append(nn.Linear(width, width))
        self.readout = nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.stack:
            x = torch.tanh(layer(x))
        return self.readout(x)
""",
        ),
        Example(
            "Parameters in a dict whose keys are computed: no edit is offered",
            """
import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self, width, relations):
        super().__init__()
        self.gates = {}
        ^^^^^^^^^^^^^^^ unregistered-submodules error certain
        self.base = nn.Linear(width, 1)
        for relation in range(relations):
            self.gates[relation] = nn.Parameter(torch.ones(width))

    def forward(self, x, relation):
        return self.base(x * self.gates[relation])
""",
        ),
        Example(
            "Pairs of layers in a list of lists",
            """
from torch import nn


class Pairs(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.pairs = []
        ^^^^^^^^^^^^^^^ unregistered-submodules error certain
        for _ in range(depth):
            self.pairs.append([nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)])

    def forward(self, x):
        for conv, norm in self.pairs:
            x = norm(conv(x))
        return x
""",
        ),
        Example(
            "A list that is registered under names of its own",
            """
from torch import nn


class Stack(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = []
        for i in range(depth):
            layer = nn.Linear(8, 8)
            self.layers.append(layer)
            self.add_module(f"layer{i}", layer)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
        ),
        Example(
            "A list that becomes a ModuleList or a Sequential in the end",
            """
from torch import nn


class Stack(nn.Module):
    def __init__(self, depth):
        super().__init__()
        layers = []
        self.heads = []
        for i in range(depth):
            layers += [nn.Linear(8, 8), nn.ReLU()]
            self.heads.append(nn.Linear(8, 2))
        self.body = nn.Sequential(*layers)
        self.heads = nn.ModuleList(self.heads)

    def forward(self, x):
        x = self.body(x)
        return [head(x) for head in self.heads]
""",
        ),
        Example(
            "A teacher kept out of parameters() on purpose, and layers without parameters",
            """
import torch
from torch import nn


class Distilled(nn.Module):
    def __init__(self, teacher: nn.Module):
        super().__init__()
        self.teacher = [teacher]
        self.body = nn.Linear(8, 8)
        self.activations = [nn.ReLU(), nn.Tanh()]

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher[0](x)
        for activation in self.activations:
            x = activation(self.body(x))
        return x, target
""",
        ),
        Example(
            "Not a module: a trainer's list of networks",
            """
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.layers = [nn.Linear(8, 8), nn.Linear(8, 2)]
        weights = [p for layer in self.layers for p in layer.parameters()]
        self.optimizer = torch.optim.SGD(weights, lr=0.1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
        ),
    ),
)

_PLAIN = (Kind.LIST, Kind.TUPLE, Kind.DICT)
_FROZEN = frozenset([True])  # the state fact of parts whose requires_grad is off
# Layers of torch.nn that hold no parameters.
_WITHOUT_PARAMETERS = re.compile(
    r"(Leaky|R)?ReLU6?|[SCRG]?ELU|SiLU|GLU|(Hard)?[Tt]anh|Tanh(shrink)?|(Soft|Hard)shrink|(Log|Hard)?[Ss]igmoid"
    r"|Hardswish|Mish|Softplus|Softsign|Threshold|(Log)?Softmax(2d)?|Softmin|Identity|(Un)?[Ff]latten"
    r"|(Feature)?(Alpha)?Dropout[123]?d?|(Adaptive|Fractional|LP)?(Avg|Max)?Pool[123]d|Upsampl(e|ing\w+)"
    r"|(Pixel|Channel)(Un)?[Ss]huffle|\w+Pad[123]d|(Un)?[Ff]old|CosineSimilarity|PairwiseDistance"
)


class _Found(NamedTuple):
    """The attribute, the parts it hides, and whether a dict has text keys alone."""

    setting: PartSet
    lost: tuple[Obj, ...]
    has_text_keys: bool


def detect(trace: Trace) -> Iterator[Hit]:
    used = frozenset(m for pass_ in trace.passes.values() for m in pass_.modules)
    made = {event.module.id: event.order for event in trace.of(ModuleBuilt)}
    given = frozenset(root for owned in trace.owns.values() if owned is not None for root in owned)
    is_open = None in trace.owns.values()  # an optimizer got parameters that are not known: these, perhaps
    registered = {(one.module.cls, one.name) for one in trace.of(PartSet) if _is_registered(one)}
    by_hand = frozenset(one.scene.frame for one in trace.of(PartSet) if _gives_weights(one))
    for setting in trace.of(PartSet):
        container, owner = setting.value, setting.module
        if not isinstance(container, Obj) or container.kind not in _PLAIN or setting.how != "attribute":
            continue
        if owner.cls is None or owner.id not in used or (owner.cls, setting.name) in registered:
            continue
        if setting.scene.frame in by_hand:
            continue
        found = tuple(_modules_in(trace, container))
        if len(found) == 1 and _is_from_elsewhere(found[0], setting, made):
            continue  # the usual way to hide a module on purpose
        lost = [
            part
            for part in found
            if part.id not in trace.parents
            and part.id not in given
            and (part.id in used or part.kind is Kind.PARAMETER)
            and part.id not in trace.lineage(owner.id)  # what holds the owner is registered elsewhere
            and trace.facts.get(("frozen", part.id)) != _FROZEN
            and not is_parameter_free(trace, part)
        ]
        if lost and not (is_open and all(part.kind is Kind.PARAMETER for part in lost)):
            yield _hit(trace, setting, lost)


def _is_registered(setting: PartSet) -> bool:
    """Some value that the attribute gets is registered: wrapped later, or one of several that it may get."""
    return any(isinstance(v, Obj) and v.kind is Kind.MODULE for v in alternatives(setting.value))


def _gives_weights(setting: PartSet) -> bool:
    """`self.tables[name].register_parameter("weight", weight)`: another module gets the weights."""
    is_whole = setting.module.cls is not None
    is_weight = isinstance(setting.value, Obj) and setting.value.kind is Kind.PARAMETER
    return setting.how == "add_module" and not is_whole and is_weight


def _is_from_elsewhere(part: Obj, setting: PartSet, made: dict[int, int]) -> bool:
    """Not built in view, or built before its owner or around it: it was passed in."""
    part_made, owner_made = made.get(part.id), made.get(setting.module.id)
    if part.origin is not Origin.BUILT or part_made is None:
        return True
    return owner_made is not None and part_made < owner_made


def _modules_in(trace: Trace, container: Obj, depth: int = 0) -> Iterator[Obj]:
    for item in trace.items(container.id):
        for value in alternatives(item):
            if not isinstance(value, Obj):
                continue
            if value.kind in (Kind.MODULE, Kind.PARAMETER):
                yield value
            elif value.kind in _PLAIN and depth < 2:
                yield from _modules_in(trace, value, depth + 1)


_TRANSFORMS = ("torchaudio.transforms.", "torchvision.transforms.")  # modules that hold buffers at most


def is_parameter_free(trace: Trace, part: Obj) -> bool:
    """A layer of torch that is known to have no parameters, or a module or container of such alone."""
    if part.kind is Kind.PARAMETER:
        return False
    if part.cls is not None:
        inner = trace.parts(part.id)
        names = cast("tuple[str, ...]", trace.facts.get(("names", part.id), ()))
        held = [trace.facts.get(("a", part.id, name)) for name in names]
        transforms = any(isinstance(v, Obj) and v.type_name.startswith(_TRANSFORMS) for v in held)
        return (bool(inner) or transforms) and all(is_parameter_free(trace, one) for one in inner)
    if part.type_name.startswith(_TRANSFORMS):
        return True
    last = part.type_name.rpartition(".")[2]
    if last in ("Sequential", "ModuleList"):
        items = [v for item in trace.items(part.id) for v in alternatives(item)]
        return bool(items) and all(isinstance(v, Obj) and is_parameter_free(trace, v) for v in items)
    return _WITHOUT_PARAMETERS.fullmatch(last) is not None


def _hit(trace: Trace, setting: PartSet, lost: list[Obj]) -> Hit:
    container = setting.value
    assert isinstance(container, Obj)  # detect chose it
    kind = {Kind.LIST: "list", Kind.TUPLE: "tuple", Kind.DICT: "dict"}[container.kind]
    what = "parameters" if all(part.kind is Kind.PARAMETER for part in lost) else "layers"
    return Hit(
        setting.place,
        Severity.ERROR,
        _confidence(lost),
        f"the {what} in the plain {kind} `self.{setting.name}` are not registered: no optimizer trains them, "
        "they stay behind when the model moves, and checkpoints leave them out.",
        distinct(_chain(trace, setting, lost)),
        frozenset({("container", container.id)}),
        _Found(setting, tuple(lost), _keys_are_text(trace, container)),
    )


def _confidence(lost: list[Obj]) -> Confidence:
    in_view = any(
        part.origin is Origin.BUILT and (part.cls is not None or part.type_name.startswith("torch."))
        for part in lost
    )
    return grade(int(not in_view))


def _chain(trace: Trace, setting: PartSet, lost: list[Obj]) -> Iterator[Evidence]:
    yield from step(lost[0].place, "built here")
    yield Evidence(setting.place, f"`self.{setting.name}` holds it in a container that `nn.Module` ignores")
    ids = {part.id for part in lost} or {setting.module.id}
    passes = [p for p, run in trace.passes.items() if run.modules & ids or setting.module.id in run.modules]
    for forward in forwards_of(trace, passes)[:1]:
        yield from step(forward.place, "this forward uses it")
    for built in trace.of(OptimizerBuilt):
        if built.owns is not None and set(trace.lineage(setting.module.id)) & built.owns:
            yield from step(built.place, "this optimizer does not get its parameters")
            break


def _keys_are_text(trace: Trace, container: Obj) -> bool:
    keyed = trace.facts.get(("d", container.id))
    return isinstance(keyed, dict) and all(
        isinstance(key, str) for key in cast("dict[object, object]", keyed)
    )


# --------------------------------------------------------------------------- fix

_READING_METHODS = ("append", "extend", "insert")
_READING_FUNCTIONS = ("len", "enumerate", "zip", "reversed", "iter", "range")


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    if not isinstance(hit.facts, _Found):
        return
    setting, lost, has_text_keys = hit.facts
    found = innermost_statement(file.module, hit.place.span)
    container = _registering(setting, lost)
    title = f"Register them in an `nn.{container}` (changes training)"
    value = found[0].value if found is not None and isinstance(found[0], nodes.Assign) else None
    if found is None or value is None or not _can_wrap(value, container, has_text_keys):
        yield Fix(title, Safety.ADVICE, ())
        return
    if not _is_only_read(file, setting.name, container):
        yield Fix(title, Safety.ADVICE, ())
        return
    place = Place(file.path, value.span.shifted(found[1].line - found[0].span.line))
    direct = name_for_member(file, "torch.nn", container)
    shortened = name_for_member(file, "torch", "nn")
    if direct is not None:
        yield Fix(title, Safety.UNSAFE, wrap(place, f"{direct}(", ")"))
    elif shortened is not None:
        yield Fix(title, Safety.UNSAFE, wrap(place, f"{shortened}.{container}(", ")"))
    else:
        name, edit = name_for_module(file, "torch.nn")
        imports = () if edit is None else (edit,)
        yield Fix(title, Safety.UNSAFE, (*imports, *wrap(place, f"{name}.{container}(", ")")))


def _registering(setting: PartSet, lost: tuple[Obj, ...]) -> str:
    kind = "Parameter" if all(part.kind is Kind.PARAMETER for part in lost) else "Module"
    container = setting.value
    is_dict = isinstance(container, Obj) and container.kind is Kind.DICT
    return kind + ("Dict" if is_dict else "List")


def _can_wrap(value: nodes.Expr, container: str, has_text_keys: bool) -> bool:
    if container.endswith("Dict"):
        is_literal = isinstance(value, nodes.DictExpr) and bool(value.keys)
        return is_literal and has_text_keys
    if isinstance(value, nodes.Comprehension):
        return value.kind is nodes.ComprehensionKind.LIST
    return isinstance(value, nodes.ListExpr)


def _is_only_read(file: SourceFile, name: str, container: str) -> bool:
    """Is every use of `.name` in the file one that a registering container answers in the same way?"""
    for statement in file.statements_with(name):
        allowed = set(_plain_uses(statement, container))
        for expression in expressions(statement):
            is_use = isinstance(expression, nodes.Attribute) and expression.attr == name
            if is_use and id(expression) not in allowed:
                return False
    return True


def _plain_uses(statement: nodes.Stmt, container: str) -> Iterator[int]:
    """Identities of expressions that are iterated, indexed, appended to, measured, or assigned to."""
    if isinstance(statement, nodes.For):
        yield id(statement.iter)
    if isinstance(statement, nodes.Assign):
        yield from (id(target) for target in statement.targets if isinstance(target, nodes.Attribute))
    for expression in expressions(statement):
        if isinstance(expression, nodes.Subscript) and not isinstance(expression.index, nodes.Slice):
            yield id(expression.value)
        elif isinstance(expression, nodes.Comprehension):
            yield from (id(generator.iter) for generator in expression.generators)
        elif isinstance(expression, nodes.Call):
            yield from _uses_in_call(expression, container)


def _uses_in_call(call: nodes.Call, container: str) -> Iterator[int]:
    if isinstance(call.func, nodes.Name) and call.func.id in _READING_FUNCTIONS:
        yield from (id(argument) for argument in call.args)
    if isinstance(call.func, nodes.Attribute):
        methods = ("items", "values", "keys") if container.endswith("Dict") else _READING_METHODS
        if call.func.attr in methods:
            yield id(call.func.value)
