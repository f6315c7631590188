"""Which functions can matter: may running one change or reveal anything that a rule looks at?

Decided by names, transitively over all files that the root file imports, as a fixpoint; so the answer
depends neither on the order of files nor on what was loaded before. Metrics, tokenizers and plotting
are passed over; they are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchwise_analysis.interp.abstract.static import Mentions, StaticCache
from torchwise_analysis.names.project import Project, SourceModule
from torchwise_analysis.source import nodes as nd

_STRONG = frozenset(
    [
        "backward",
        "zero_grad",
        "no_grad",
        "inference_mode",
        "set_grad_enabled",
        "enable_grad",
        "state_dict",
        "load_state_dict",
        "DataLoader",
        "ModuleList",
        "ModuleDict",
        "Sequential",
        "parameters",
        "named_parameters",
        "cross_entropy",
        "CrossEntropyLoss",
        "DistributedSampler",
        "init_process_group",
        "DistributedDataParallel",
        "DDP",
        "FSDP",
        "FullyShardedDataParallel",
        "fully_shard",
        "autograd",
        "register_forward_hook",
        "clip_grad_norm_",
        "clip_grad_value_",
        "GradScaler",
        "autocast",
        "Accelerator",
        "Fabric",
        "softmax",
        "sigmoid",
        "log_softmax",
        "lr_scheduler",
        "requires_grad_",
        "requires_grad",
        "LightningModule",
        "all_reduce",
        "barrier",
        "all_gather",
        "set_epoch",
        "manual_seed",
        "manual_backward",
        "empty_cache",
        "unscale_",
        "no_sync",
        "retain_graph",
        "create_graph",
        "dropout",
        "get_worker_info",
        "functional_call",
        "get_rank",
        "get_world_size",
        "Subset",
        "batch_sampler",
        "clip_gradients",
        "kl_div",
        "nll_loss",
        "binary_cross_entropy",
        "BCEWithLogitsLoss",
    ]
)
# Functions that rules from outside gave a meaning to; set once, before anything is analysed.
_TAUGHT: set[str] = set()

# These count only in a function that also speaks of one of the subjects.
_WEAK = frozenset(
    [
        "train",
        "eval",
        "step",
        "save",
        "load",
        "deepcopy",
        "detach",
        "gather",
        "broadcast",
        "initialize",
        "Module",
        "Linear",
        "Parameter",
        "optim",
        "half",
        "forward",
    ]
)
# A method that switches parts of what is no module, whatever these are called: `self.image_encoder.eval()`.
_MODES = frozenset(["train", "eval"])
# With these a function of torch makes a batch: that it is none is as good as known.
_MAKERS = frozenset(["stack", "from_numpy", "as_tensor", "tensor", "randint"])
_SUBJECTS = frozenset(
    [
        "torch",
        "nn",
        "model",
        "net",
        "optimizer",
        "optimizers",
        "accelerator",
        "fabric",
        "engine",
        "trainer",
        "scheduler",
        "network",
    ]
)
# Methods of containers, loggers and files: a project function of that name is not meant by them.
_COMMON = frozenset(
    [
        "update",
        "get",
        "append",
        "items",
        "keys",
        "values",
        "pop",
        "copy",
        "add",
        "clear",
        "close",
        "write",
        "read",
        "join",
        "split",
        "format",
        "index",
        "count",
        "run",
        "start",
        "stop",
        "print",
        "log",
        "info",
        "reset",
        "size",
        "to",
        "extend",
        "insert",
        "remove",
        "sort",
        "strip",
        "replace",
        "main",
        "setup",
        "name",
        "path",
        "open",
        "load",
        "save",
        "__init__",
        "__call__",
        "__getitem__",
        "__len__",
        "__repr__",
        "__iter__",
        "__enter__",
        "__exit__",
    ]
)


def teach(words: Iterable[str]) -> None:
    """Names that matter besides those known here."""
    _TAUGHT.update(words)


def has_effect(names: frozenset[str] | set[str]) -> bool:
    """May a body that mentions these names itself do something that a rule looks at?"""
    return not (_STRONG.isdisjoint(names) and _TAUGHT.isdisjoint(names)) or (
        (not _WEAK.isdisjoint(names) and not _SUBJECTS.isdisjoint(names)) or _switches_parts(names)
    )


def _switches_parts(names: frozenset[str] | set[str]) -> bool:
    return "self" in names and not _MODES.isdisjoint(names)


_SMALL = 40  # nodes; running such a function is cheaper than doubting


class Relevance:
    """The functions of the root file and of everything it imports that may matter."""

    def __init__(
        self, path: str, own: Sequence[Mentions], project: Project, files: int, cache: StaticCache
    ) -> None:
        """`own`: mentions of the root file `path`, in parts; `files`: how many others are read at most."""
        self._own = tuple(own)
        modules = tuple(_closure(path, own, project, files, cache))
        self.files = {module.path: module for module in modules}
        uses = [_uses_of(part) for part in own]
        uses += [cache.once(module, "uses", lambda m: _uses_of(cache.mentions(m))) for module in modules]
        self._defined = frozenset[str]().union(*(part.effects for part in uses))
        self._relevant = _fixpoint(uses) - _COMMON

    def holds_for(self, own: Sequence[Mentions]) -> bool:
        """Would it be the same for these parts, in other files as they were?"""
        return len(own) == len(self._own) and all(
            new is old or self._is_alike(new, old) for new, old in zip(own, self._own, strict=True)
        )

    def _is_alike(self, new: Mentions, old: Mentions) -> bool:
        return (
            new.names.keys() == old.names.keys()
            and _texts(new.imports) == _texts(old.imports)
            and all(
                has_effect(names) == has_effect(before) and self._defined.isdisjoint(names ^ before)
                for names, before in ((names, old.names[name]) for name, names in new.names.items())
            )
        )

    def matters(self, names: frozenset[str], size: int) -> bool:
        """May a function that mentions `names` matter?"""
        if size <= _SMALL or has_effect(names) or not self._relevant.isdisjoint(names):
            return True
        return "torch" in names and not _MAKERS.isdisjoint(names)


_DOES, _HALF, _SUBJECT = 1, 2, 4  # bits: alone, with a subject, speaks of one


@dataclass(frozen=True, slots=True)
class _Uses:
    """What the definitions of one part of the code do by themselves, as bits, and who uses a name."""

    effects: dict[str, int]
    users: dict[str, list[str]]


def _uses_of(mentions: Mentions) -> _Uses:
    users: dict[str, list[str]] = {}
    for name, names in mentions.names.items():
        for used in names:
            users.setdefault(used, []).append(name)
    for used in _COMMON:
        users.pop(used, None)
    return _Uses({name: _effect(names) for name, names in mentions.names.items()}, users)


def _effect(names: frozenset[str]) -> int:
    return (
        (0 if _STRONG.isdisjoint(names) and not _switches_parts(names) else _DOES)
        | (0 if _WEAK.isdisjoint(names) else _HALF)
        | (0 if _SUBJECTS.isdisjoint(names) else _SUBJECT)
    )


def _fixpoint(parts: Sequence[_Uses]) -> set[str]:
    """Names that do something, and names whose definitions use such a name. Definitions of one name count as
    one."""
    effects: dict[str, int] = {}
    for part in parts:
        for name, effect in part.effects.items():
            effects[name] = effects.get(name, 0) | effect
    whole = _HALF | _SUBJECT
    todo = [name for name, effect in effects.items() if effect & _DOES or effect & whole == whole]
    relevant = set(todo)
    users: dict[str, list[str]] = {}
    for part in parts:
        for used, by in part.users.items():
            users.setdefault(used, []).extend(by)
    while todo:
        for user in users.get(todo.pop(), ()):
            if user not in relevant:
                relevant.add(user)
                todo.append(user)
    return relevant


def _texts(imports: tuple[nd.Import | nd.ImportFrom, ...]) -> list[tuple[object, ...]]:
    return [
        (
            getattr(node, "module", None),
            getattr(node, "level", None),
            tuple((alias.name, alias.asname) for alias in node.names),
        )
        for node in imports
    ]


def _closure(
    root: str, own: Sequence[Mentions], project: Project, files: int, cache: StaticCache
) -> Iterator[nd.Module]:
    """Files of the project that the root imports, directly or not."""
    seen = {root}
    todo = deque(path for part in own for path in _imports(part, root, project))
    while todo:
        path = todo.popleft()
        if path in seen or len(seen) > files:
            continue
        seen.add(path)
        found = project.load(path)
        if found is not None:
            yield found
            todo += cache.once(
                found,
                f"imports {project.version}",
                lambda module: _imports(cache.mentions(module), module.path, project),
            )


def _imports(part: Mentions, importer: str, project: Project) -> tuple[str, ...]:
    return imported_files(part.imports, importer, project)


def imported_files(
    statements: Iterable[nd.Import | nd.ImportFrom], importer: str, project: Project
) -> tuple[str, ...]:
    """Files of the project that these statements of the file `importer` may import; of a library, none."""
    if project.is_library(importer):
        return ()
    return tuple(path for statement in statements for path in _imported(statement, importer, project))


def _imported(node: nd.Import | nd.ImportFrom, importer: str, project: Project) -> Iterator[str]:
    if isinstance(node, nd.Import):
        found = [project.find(alias.name, importer) for alias in node.names]
    else:
        module = _found(node, node.module, importer, project)
        if module is not None and module.is_library:
            return  # and so is all that it holds
        inside = f"{node.module}." if node.module else ""
        held = (alias.name for alias in node.names if alias.name != "*")
        found = [module, *(_found(node, f"{inside}{name}", importer, project) for name in held)]
    yield from (one.path for one in found if one is not None and not one.is_library)


def _found(node: nd.ImportFrom, name: str, importer: str, project: Project) -> SourceModule | None:
    if node.level:
        return project.find_relative(name, node.level, importer)
    return project.find(name, importer) if name else None
