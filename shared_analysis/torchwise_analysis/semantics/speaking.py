"""Can anything be found in a file? Told by its words, before it is run.

Every rule rests on things that a run sees happen: a backward, a step, a loss of a known kind, a file that is
loaded. Each of these needs words in the source: a method of that name, a class of `torch.nn`, an import. A
file that lacks the words of every rule, together with all project files that it imports, is silent whatever
it does, and need not be run.

The words are those of the interpreter, not of Python: what it takes for an optimizer without seeing it made
has a name like one (`beliefs`), and a name of a library is known through an import alone. Where a module of
a library is handed around as a value, or members are looked up by a text, any attribute may be the library's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from torchwise_analysis.interp.abstract import beliefs
from torchwise_analysis.interp.abstract.relevance import imported_files
from torchwise_analysis.interp.abstract.static import StaticCache
from torchwise_analysis.interp.abstract.values import Kind
from torchwise_analysis.names.project import Project
from torchwise_analysis.semantics import distributed, frameworks, losses, modules, optimizers, registry
from torchwise_analysis.source import nodes as nd
from torchwise_analysis.source.children import children_reversed


@dataclass(frozen=True, slots=True)
class Words:
    """What a file says.

    said: all words that are no texts: names, parameters, keywords, attributes, parts of imported names.
    attributes: what is taken of things that no import gave, of_imports: of those that one gave. texts: may
    be names. paths: members of libraries, as their packages export them. is_loose: an attribute of anything
    may be a library's. annotations: paths that parameters are annotated with. has_module: defines a class of
    modules. has_open_class: defines a class of which not all bases are known by name. runs_forward: calls a
    `forward` by name, other than that of a base.
    """

    said: frozenset[str]
    attributes: frozenset[str]
    of_imports: frozenset[str]
    texts: frozenset[str]
    paths: frozenset[str]
    is_loose: bool
    annotations: frozenset[str]
    has_module: bool
    has_open_class: bool
    runs_forward: bool
    imports: tuple[nd.Import | nd.ImportFrom, ...] = ()

    def of_project(self) -> Words:
        """The same of a file that imports others of the project: what it got from them may be anything."""
        return replace(self, attributes=self.attributes | self.of_imports)

    @staticmethod
    def together(files: Iterable[Words]) -> Words:
        """What several files say."""
        given = tuple(files)
        return Words(
            frozenset[str]().union(*(one.said for one in given)),
            frozenset[str]().union(*(one.attributes for one in given)),
            frozenset[str]().union(*(one.of_imports for one in given)),
            frozenset[str]().union(*(one.texts for one in given)),
            frozenset[str]().union(*(one.paths for one in given)),
            any(one.is_loose for one in given),
            frozenset[str]().union(*(one.annotations for one in given)),
            any(one.has_module for one in given),
            any(one.has_open_class for one in given),
            any(one.runs_forward for one in given),
        )


def is_silent(
    module: nd.Module, project: Project, static: StaticCache, most: int, all_grades: bool = True
) -> bool:
    """Is there nothing that a built-in rule could find when the file is run, with what it calls in others?

    most: files of the project that are looked into; one that imports more is not silent. all_grades: also
    what would only be possible.
    """
    own = words_of(module)  # not remembered: most files are asked about once
    if may_speak(own, all_grades):
        return False
    todo = list(imported_files(own.imports, module.path, project))
    if not todo:
        return True
    files = [own.of_project()]
    seen = {module.path}
    while todo:
        path = todo.pop()
        found = None if path in seen else project.load(path)
        seen.add(path)
        if found is None:
            continue
        said = static.once(found, "words", words_of).of_project()
        if len(seen) > most or may_speak(said, all_grades):
            return False
        files.append(said)
        todo += static.once(found, f"imported {project.version}", partial(_imports, said, project))
    return not may_speak(Words.together(files), all_grades)


def _imports(said: Words, project: Project, module: nd.Module) -> tuple[str, ...]:
    return imported_files(said.imports, module.path, project)


def may_speak(words: Words, all_grades: bool = True) -> bool:
    """May any built-in rule find something in code of these words?"""
    return any(may(words) for may in _SUBJECTS) or (all_grades and _keeps_graphs(words))


# --------------------------------------------------------------------------- what rules speak of


def _is_like(pattern: str) -> Callable[[Iterable[str]], bool]:
    """Is any of these names like that? Joined in lines they are searched at once."""
    matches = re.compile(pattern, re.MULTILINE).search
    return lambda names: matches("\n".join(names)) is not None


# Frameworks own loops, hooks and whole trainings.
_OWNS = _is_like(
    r"Trainer$|^(Accelerator|Fabric|Lightning(Module|DataModule)|accelerate|deepspeed|lightning|ignite"
    r"|pytorch_lightning|lightning_fabric|transformers|trl|horovod|apex|torch_geometric)$"
)
_BACKWARDS = frozenset(["backward", "grad", "jacobian", "hessian", "vjp", "jvp", "hvp"])
_SCALES = _is_like(r"(?i)scaler")
_OPTIMIZES = _is_like(r"(?i)(optim|optimi[sz]ers?)_*$")
_LOSES = _is_like(r"^[A-Z]\w*Loss$")
_ACTIVATES = frozenset(
    ["softmax", "log_softmax", "softmin", "gumbel_softmax", "Softmax", "LogSoftmax", "Softmin", "Softmax2d"]
)
_UNRECORDED = (
    frozenset(["no_grad", "inference_mode", "set_grad_enabled", "requires_grad", "requires_grad_", "freeze"])
    | modules.GUARDED_METHODS
)
_BY_MODE = _is_like(r"(Drop|Norm|Transformer)\w*$")
_CLIPS = _is_like(r"clip_grad")
_LOADS_DATA = _is_like(r"DataLoader$|_dataloader$")
_SCHEDULES = _is_like(r"lr_scheduler|LRScheduler$|^SWALR$")
_GETS_SCHEDULE = _is_like(r"(^|\.)get_\w*schedule\w*$")
_CHECKPOINTS = frozenset(["checkpoint", "checkpoint_sequential"])
_RANKS = _is_like(r"(?i)rank|^SLURM_PROCID$|_process(_index|es)?$|is_global_zero|^world")
_WRAPPERS = frozenset(["DistributedDataParallel", "DDP", "FSDP", "FullyShardedDataParallel", "fully_shard"])
_GROUPS = _is_like(
    r"^(distributed|init_(process_group|device_mesh|distributed)|spawn|start_processes)$|_launch$"
)
_KNOWN_OPTIMIZERS = optimizers.KNOWN_OPTIMIZERS


def _names_of(*meanings: object) -> frozenset[str]:
    """The last names of what has one of these meanings."""
    functions = {name.rpartition(".")[2] for name, one in registry.FUNCTIONS.items() if one in meanings}
    return frozenset(functions | {name for (_, name), one in registry.METHODS.items() if one in meanings})


_LOSS_FUNCTIONS = _names_of(losses.functional)
_MEETINGS = _names_of(frameworks.owned_collective, frameworks.engine_checkpoint) | {
    name.rpartition(".")[2]
    for name, meaning in registry.FUNCTIONS.items()
    if name.startswith("torch.distributed.") and meaning not in (distributed.rank, distributed.is_initialized)
}
_UNPICKLES = frozenset(["torch.load", "pickle.load", "joblib.load"])
_OF_MODULES = ("torch.nn.", "torch.hub.", "torchvision.models.", "timm.", "diffusers.", "torchaudio.models.")
_MAKERS = frozenset([modules.__name__, distributed.__name__, frameworks.__name__])
_OTHER_MODULES = _is_like(r"(Net|Model|Transformer|UNet|Conv|Encoder|Decoder)$")
_OLD_BEGINNINGS = ("functorch", "torchvision.models.", "torch.cuda.amp.", "torch.cpu.amp.")
_OLD_WORDS = frozenset(["Variable", "set_default_tensor_type", "amp", "init"])


def _trains(words: Words) -> bool:
    """A backward, or a step of an optimizer."""
    taken = words.attributes
    if not taken.isdisjoint(("backward", "manual_backward", "second_step", "unscale_", "get_scale")):
        return True
    if taken.issuperset(("scale", "update")) or _SCALES(words.said):
        return True
    if any(path.startswith("torch.autograd.") and _last(path) in _BACKWARDS for path in words.paths):
        return True
    if words.is_loose and not taken.isdisjoint(_BACKWARDS):
        return True
    if "step" not in taken:
        return False
    found = words.said
    is_optimizer = not taken.isdisjoint(("param_groups", "zero_grad"))
    if is_optimizer or _OPTIMIZES(found) or not found.isdisjoint(_KNOWN_OPTIMIZERS):
        return True
    return any(_believed(name) is Kind.OPTIMIZER for name in found)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _is_owned(words: Words) -> bool:
    return _OWNS(words.said)


def _computes_loss(words: Words) -> bool:
    found = words.said
    if _LOSES(found) or not found.isdisjoint(_LOSS_FUNCTIONS):
        return True
    return any(_believed(name) is Kind.CRITERION for name in found)


@lru_cache(maxsize=1 << 16)  # files have most of their words in common
def _believed(name: str) -> Kind | None:
    return beliefs.by_name(name)


def _activates(words: Words) -> bool:
    """A softmax, or the clipping of gradients."""
    if not words.attributes.isdisjoint(_ACTIVATES) or _CLIPS(words.said):
        return True
    return any(_last(path) in _ACTIVATES for path in words.paths) or (
        "argmax" in words.said and _builds_modules(words)
    )


def _keeps_state(words: Words) -> bool:
    """Weights that are loaded, kept or switched to another mode, and forwards that are run by name."""
    wanted = ("load_state_dict", "state_dict", "eval", "train")
    is_named = words.runs_forward or "from_pretrained" in words.said
    return is_named or not words.attributes.isdisjoint(wanted)


def _loads(words: Words) -> bool:
    if "trust_remote_code" in words.said or "trust_remote_code" in words.texts:
        return True
    if words.is_loose and "load" in words.attributes:
        return True
    return not words.paths.isdisjoint(_UNPICKLES)


def _meets(words: Words) -> bool:
    """Several ranks, which save, or which meet behind a test that parts them."""
    found = words.said
    if found.isdisjoint(_WRAPPERS) and not _GROUPS(found):
        return False
    if "save" in found:
        return True
    return not found.isdisjoint(_MEETINGS | _WRAPPERS) and (_RANKS(found) or _RANKS(words.texts))


def _feeds(words: Words) -> bool:
    """Loaders, schedules and checkpointed calls."""
    if _LOADS_DATA(words.said) or _SCHEDULES(words.said) or _GETS_SCHEDULE(words.paths):
        return True
    if words.is_loose and (_GETS_SCHEDULE(words.attributes) or not words.attributes.isdisjoint(_CHECKPOINTS)):
        return True
    return any(_last(path) in _CHECKPOINTS for path in words.paths)


def _compiles(words: Words) -> bool:
    if "compile" in words.attributes or "torch.compile" in words.paths:
        return True
    return "jit" in words.said and not words.said.isdisjoint(("script", "trace"))


def _defines_modules(words: Words) -> bool:
    """A class of modules: what its forward does is followed."""
    return words.has_module or (words.has_open_class and _builds_modules(words))


def _evaluates(words: Words) -> bool:
    """Modules made here that may run where nothing is recorded."""
    if not _builds_modules(words):
        return False
    return not words.said.isdisjoint(_UNRECORDED) or words.is_loose or _BY_MODE(words.paths)


def _builds_modules(words: Words) -> bool:
    if "from_pretrained" in words.said or any(map(_is_module, words.paths)):
        return True
    return words.is_loose and any(name[:1].isupper() for name in words.attributes)


def _keeps_graphs(words: Words) -> bool:
    """Modules of which something is kept. Where nothing trains or evaluates, that is possible at best."""
    return _builds_modules(words) or any(
        beliefs.by_annotation(path) is Kind.MODULE for path in words.annotations
    )


def _is_module(path: str) -> bool:
    last, meaning = _last(path), registry.FUNCTIONS.get(path)
    if meaning is not None and meaning.__module__ not in _MAKERS:
        return False
    if not path.startswith("torch."):
        return path.startswith(_OF_MODULES) or bool(_OTHER_MODULES((last,))) or ".nn." in path
    if path.startswith("torch.nn.functional."):
        return last in ("linear", "bilinear") or last.startswith("conv")
    is_class = path.startswith(_OF_MODULES) and last[:1].isupper()
    return is_class or path.startswith("torch.hub.") or last in ("functional_call", "AveragedModel")


def _is_old(words: Words) -> bool:
    """Names that PyTorch has given up."""
    if words.is_loose and not words.attributes.isdisjoint(_OLD_WORDS):
        return True
    return any(
        path.startswith(_OLD_BEGINNINGS)
        or _last(path) in _OLD_WORDS
        or (path.startswith("torch.nn.init.") and not path.endswith("_"))
        for path in words.paths
    )


_SUBJECTS: tuple[Callable[[Words], bool], ...] = (
    _is_owned,
    _defines_modules,
    _evaluates,
    _trains,
    _keeps_state,
    _computes_loss,
    _activates,
    _loads,
    _meets,
    _feeds,
    _compiles,
    _is_old,
)


# --------------------------------------------------------------------------- reading the words

# With these a text chooses what is looked up, in anything or in a module of its own choice.
_LOOKS_UP = frozenset(["getattr", "attrgetter", "methodcaller", "setattr", "eval"])
_IMPORTS = frozenset(["import_module", "__import__"])
# Modules whose members the subjects above are.
_PACKAGES = frozenset(
    path
    for name in registry.FUNCTIONS
    if name.startswith(("torch.", "pickle.", "joblib."))
    for path in (name.rpartition(".")[0], name.rpartition(".")[0].rpartition(".")[0])
    if path
) | frozenset(["torch.nn.init", "functorch"])
_BASES = frozenset(["Module", "LightningModule", "PreTrainedModel", "FlaxModule"])
_ASKS = frozenset(["isinstance", "issubclass", "hasattr"])


@dataclass(slots=True)
class _Reading:
    """What was found so far. chains: dotted names, as root and rest, bases: those that classes derive from,
    compared: those that go nowhere. alone: names without a dot. looked_up: `getattr` of a chain and a text.
    imported: what names of imports stand for, rebound: names that other statements bind as well, assigned: of
    these, those that no definition of a class or function binds."""

    names: set[str] = field(default_factory=set[str])
    attributes: set[str] = field(default_factory=set[str])
    texts: set[str] = field(default_factory=set[str])
    chains: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    bases: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    alone: set[str] = field(default_factory=set[str])
    looked_up: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    imported: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    annotations: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    compared: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    assigned: set[str] = field(default_factory=set[str])
    rebound: set[str] = field(default_factory=set[str])
    runs_forward: bool = False
    imports_by_text: bool = False
    has_vague_base: bool = False
    imports: list[nd.Import | nd.ImportFrom] = field(default_factory=list[nd.Import | nd.ImportFrom])


def words_of(module: nd.Module) -> Words:
    """What a file says, read once from its nodes."""
    found = _Reading()
    todo: list[nd.Node] = list(module.body)
    while todo:
        node = todo.pop()
        read = _READERS.get(node.__class__)
        if read is None or read(found, node, todo):
            todo += children_reversed(node)
    return _words(found)


def _words(found: _Reading) -> Words:
    paths = {path for name in found.alone for path in found.imported.get(name, ())}
    paths.update(map(registry.canonical, _started(found, found.chains)))
    attributes, of_imports = set(found.attributes), set[str]()
    for root, rest in found.chains | found.compared:
        is_import = root in found.imported and root not in found.rebound
        (of_imports if is_import else attributes).update(rest.split("."))
    for path in paths:  # `torch.Tensor.backward(loss)`
        whole, _, last = path.rpartition(".")
        if whole.rpartition(".")[2][:1].isupper():
            attributes.add(last)
    texts = {part for text in found.texts for part in text.split(".")}
    is_loose = found.imports_by_text or not paths.isdisjoint(_PACKAGES)
    if not (found.names | attributes).isdisjoint(_LOOKS_UP):
        attributes |= texts
    for root, rest, member in found.looked_up:
        of_imports.add(member)
        members = (member,) if member else texts
        starts = tuple(_started(found, ((root, rest),)))
        paths.update(registry.canonical(f"{path}.{one}") for path in starts for one in members)
    bases = {registry.canonical(path) for path in _started(found, found.bases)}
    bases.update(root for root, _ in found.bases)
    said = found.names.union(attributes, *(path.split(".") for path in paths))
    if found.imports_by_text:
        said |= texts
    return Words(
        frozenset(said),
        frozenset(attributes),
        frozenset(of_imports),
        frozenset(found.texts),
        frozenset(paths),
        is_loose,
        frozenset(map(registry.canonical, _started(found, found.annotations))),
        any(map(_is_base, bases)),
        found.has_vague_base or any(root in found.assigned for root, _ in found.bases),
        found.runs_forward,
        tuple(found.imports),
    )


def _started(found: _Reading, chains: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What chains of attributes of imported names stand for."""
    for root, rest in chains:
        for start in found.imported.get(root, ()):
            yield f"{start}{rest}"


def _chain(node: nd.Expr) -> tuple[str, str] | None:
    """`("torch", ".nn.Linear")` of a dotted name."""
    parts: list[str] = []
    while isinstance(node, nd.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, "".join(f".{part}" for part in reversed(parts))) if isinstance(node, nd.Name) else None


def _is_base(path: str) -> bool:
    return path.rpartition(".")[2] in _BASES or path.startswith(("torch.nn.", "transformers."))


def _name(found: _Reading, node: nd.Name, _: list[nd.Node]) -> bool:
    found.names.add(node.id)
    found.alone.add(node.id)
    return False


def _attribute(found: _Reading, node: nd.Attribute, todo: list[nd.Node]) -> bool:
    chain = _chain(node)
    if node.attr == "forward" and not _is_super(node.value):
        found.runs_forward = True
    if chain is None:
        found.attributes.add(node.attr)
        todo.append(node.value)
    else:
        found.names.add(chain[0])
        found.chains.add(chain)
    return False


def _constant(found: _Reading, node: nd.Constant, _: list[nd.Node]) -> bool:
    value = node.value
    if isinstance(value, str) and len(value) < _LONGEST and " " not in value:
        found.texts.add(value)
    return False


_LONGEST = 100  # characters of a text that may be a name


def _formatted(found: _Reading, node: nd.FormattedString, _: list[nd.Node]) -> bool:
    found.texts.update(part for part in node.parts if isinstance(part, str))
    return True


def _call(found: _Reading, node: nd.Call, todo: list[nd.Node]) -> bool:
    func = node.func
    if isinstance(func, nd.Name) and func.id in _ASKS and node.args:
        found.names.add(func.id)
        # which class something is, or whether it has a member, makes nothing of that class
        _compared(found, node.args, todo)
        return False
    if isinstance(func, nd.Name) and func.id == "getattr" and len(node.args) > 1:
        chain, member = _chain(node.args[0]), node.args[1]
        if chain is not None:
            found.looked_up.add((*chain, _text(member) or ""))
            found.names.update((func.id, chain[0]))
            found.attributes.update(chain[1].split("."))
            todo.extend(node.args[1:])
            todo.extend(node.keywords)
            return False
    called = func.id if isinstance(func, nd.Name) else func.attr if isinstance(func, nd.Attribute) else ""
    if called in _IMPORTS and node.args:
        name = _text(node.args[0])
        if name is None or name.partition(".")[0] == "torch":
            found.imports_by_text = True
    return True


def _text(node: nd.Expr) -> str | None:
    return node.value if isinstance(node, nd.Constant) and isinstance(node.value, str) else None


def _is_super(node: nd.Expr) -> bool:
    return isinstance(node, nd.Call) and isinstance(node.func, nd.Name) and node.func.id == "super"


def _compare(found: _Reading, node: nd.Compare, todo: list[nd.Node]) -> bool:
    _compared(found, (node.left, *node.comparators), todo)
    return False


def _compared(found: _Reading, sides: Iterable[nd.Expr], todo: list[nd.Node]) -> None:
    """Names that go nowhere, alone or in a literal list."""
    for side in sides:
        members = side.elements if isinstance(side, nd.TupleExpr | nd.ListExpr | nd.SetExpr) else (side,)
        for one in members:
            chain = _chain(one)
            if chain is None:
                todo.append(one)
            else:
                found.names.add(chain[0])
                found.compared.add(chain)


def _keyword(found: _Reading, node: nd.Keyword, _: list[nd.Node]) -> bool:
    if node.name is not None:
        found.names.add(node.name)
    return True


def _param(found: _Reading, node: nd.Param, todo: list[nd.Node]) -> bool:
    found.names.add(node.name)
    found.rebound.add(node.name)
    found.assigned.add(node.name)
    if node.default is not None:
        todo.append(node.default)
    kind = node.annotation
    if isinstance(kind, nd.Subscript):  # of `Optional[X]`
        kind = kind.index
    if isinstance(kind, nd.Binary):
        kind = kind.left
    chain = None if kind is None else _chain(kind)
    if chain is not None:
        found.annotations.add(chain)
    return False


def _function(found: _Reading, node: nd.FunctionDef, todo: list[nd.Node]) -> bool:
    found.names.add(node.name)
    found.rebound.add(node.name)
    todo += node.body
    todo += node.decorators
    todo += node.params
    return False


def _class(found: _Reading, node: nd.ClassDef, todo: list[nd.Node]) -> bool:
    found.names.add(node.name)
    found.rebound.add(node.name)
    for base in node.bases:
        chain = _chain(base.value if isinstance(base, nd.Subscript) else base)
        if chain is None:
            todo.append(base)
            found.has_vague_base = True
        else:
            found.bases.add(chain)
            found.names.update((chain[0], *chain[1].split(".")))
    todo += node.keywords
    todo += node.decorators
    todo += node.body
    return False


def _assign(found: _Reading, node: nd.Assign, todo: list[nd.Node]) -> bool:
    for target in node.targets:
        _rebind(found, target)
    return True


def _annotated(found: _Reading, node: nd.AnnAssign, todo: list[nd.Node]) -> bool:
    _rebind(found, node.target)
    todo.append(node.target)
    if node.value is not None:
        todo.append(node.value)
    return False


def _targeted(found: _Reading, node: Any, _: list[nd.Node]) -> bool:
    if node.target is not None:
        _rebind(found, node.target)
    return True


def _named(found: _Reading, node: nd.Handler | nd.MatchAs | nd.MatchStar, _: list[nd.Node]) -> bool:
    if node.name is not None:
        found.rebound.add(node.name)
    return True


def _mapped(found: _Reading, node: nd.MatchMapping, _: list[nd.Node]) -> bool:
    if node.rest is not None:
        found.rebound.add(node.rest)
    return True


def _rebind(found: _Reading, target: nd.Expr) -> None:
    todo: list[nd.Node] = [target]
    while todo:
        node = todo.pop()
        if isinstance(node, nd.Name):
            found.rebound.add(node.id)
            found.assigned.add(node.id)
        elif isinstance(node, nd.TupleExpr | nd.ListExpr | nd.Starred):
            todo += children_reversed(node)


def _import(found: _Reading, node: nd.Import, _: list[nd.Node]) -> bool:
    found.imports.append(node)
    for alias in node.names:
        parts = alias.name.split(".")
        found.names.update(parts)
        means = alias.name if alias.asname else parts[0]
        found.imported.setdefault(alias.asname or means, set()).add(means)
    return False


def _import_from(found: _Reading, node: nd.ImportFrom, _: list[nd.Node]) -> bool:
    found.imports.append(node)
    found.names.update(node.module.split("."))
    for alias in node.names:
        found.names.add(alias.name)
        if not node.level:  # what a library has beside itself stays unknown
            found.imported.setdefault(alias.asname or alias.name, set()).add(f"{node.module}.{alias.name}")
    return False


_Read = Callable[[_Reading, Any, "list[nd.Node]"], bool]
_READERS: dict[type, _Read] = {
    nd.Name: _name,
    nd.Attribute: _attribute,
    nd.Constant: _constant,
    nd.FormattedString: _formatted,
    nd.Call: _call,
    nd.Compare: _compare,
    nd.Keyword: _keyword,
    nd.Param: _param,
    nd.FunctionDef: _function,
    nd.ClassDef: _class,
    nd.Assign: _assign,
    nd.AnnAssign: _annotated,
    nd.AugAssign: _targeted,
    nd.For: _targeted,
    nd.WithItem: _targeted,
    nd.NamedExpr: _targeted,
    nd.Generator: _targeted,
    nd.Handler: _named,
    nd.MatchAs: _named,
    nd.MatchStar: _named,
    nd.MatchMapping: _mapped,
    nd.Import: _import,
    nd.ImportFrom: _import_from,
}
