"""Which functions can matter: may running one change or reveal anything that a rule looks at?

Decided by names, transitively over all files that the root file imports, as a fixpoint; so the answer
depends neither on the order of files nor on what was loaded before. Metrics, tokenizers and plotting
are passed over; they are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchwise_analysis.interp.abstract.static import walk
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import nodes as nd

_STRONG = frozenset(
    """backward zero_grad no_grad inference_mode set_grad_enabled enable_grad state_dict load_state_dict DataLoader
    ModuleList ModuleDict Sequential parameters named_parameters cross_entropy CrossEntropyLoss DistributedSampler
    init_process_group DistributedDataParallel DDP FSDP FullyShardedDataParallel fully_shard autograd
    register_forward_hook clip_grad_norm_ clip_grad_value_ GradScaler autocast Accelerator Fabric softmax sigmoid
    log_softmax lr_scheduler requires_grad_ requires_grad LightningModule all_reduce barrier all_gather set_epoch
    manual_seed manual_backward empty_cache unscale_ no_sync retain_graph create_graph dropout get_worker_info
    functional_call get_rank get_world_size Subset batch_sampler clip_gradients kl_div nll_loss
    binary_cross_entropy BCEWithLogitsLoss""".split()
)
# These count only in a function that also speaks of one of the subjects.
_WEAK = frozenset(
    "train eval step save load deepcopy detach gather broadcast initialize Module Linear Parameter optim half forward".split()
)
_SUBJECTS = frozenset("torch nn model net optimizer optimizers accelerator fabric engine trainer scheduler network".split())
# Methods of containers, loggers and files: a project function of that name is not meant by them.
_COMMON = frozenset(
    """update get append items keys values pop copy add clear close write read join split format index count run start
    stop print log info reset size to extend insert remove sort strip replace main setup name path open load save
    __init__ __call__ __getitem__ __len__ __repr__ __iter__ __enter__ __exit__""".split()
)


def has_effect(names: frozenset[str] | set[str]) -> bool:
    """May a body that mentions these names itself do something that a rule looks at?"""
    return not _STRONG.isdisjoint(names) or not _WEAK.isdisjoint(names) and not _SUBJECTS.isdisjoint(names)


_SMALL = 40  # nodes; running such a function is cheaper than doubting


class Relevance:
    """The functions of the root file and of everything it imports that may matter."""

    def __init__(self, root: nd.Module, project: Project, files: int) -> None:
        self._names: dict[str, frozenset[str]] = {}
        self._relevant: set[str] = set()
        self._complete = True
        self._collect(root, project, files)

    def matters(self, name: str, names: frozenset[str], size: int) -> bool:
        """May a function of this name, mentioning `names`, matter?"""
        return size <= _SMALL or has_effect(names) or not self._relevant.isdisjoint(names)

    def _collect(self, root: nd.Module, project: Project, files: int) -> None:
        mentions: dict[str, set[str]] = {}
        for module in _closure(root, project, files):
            for node in (n for s in module.body for n in walk(s)):
                if isinstance(node, (nd.FunctionDef, nd.ClassDef)):
                    into = mentions.setdefault(node.name, set())
                    for inner in (n for s in node.body for n in walk(s)):
                        if isinstance(inner, nd.Attribute):
                            into.add(inner.attr)
                        elif isinstance(inner, nd.Name):
                            into.add(inner.id)
        users: dict[str, list[str]] = {}
        for name in mentions:
            for used in mentions[name]:
                if used in mentions and used != name and used not in _COMMON:
                    users.setdefault(used, []).append(name)
        todo = [name for name, used in mentions.items() if has_effect(used)]
        self._relevant = set(todo)
        while todo:
            for user in users.get(todo.pop(), ()):
                if user not in self._relevant:
                    self._relevant.add(user)
                    todo.append(user)
        self._relevant -= _COMMON


def _closure(root: nd.Module, project: Project, files: int) -> Iterator[nd.Module]:
    seen = {root.path}
    todo = [root]
    while todo and len(seen) <= files:
        module = todo.pop(0)
        yield module
        for path in _imported(module, project):
            if path in seen or len(seen) > files:
                continue
            seen.add(path)
            found = project.load(path)
            if found is not None:
                todo.append(found)


def _imported(module: nd.Module, project: Project) -> Iterable[str]:
    for node in (n for s in module.body for n in walk(s)):
        if isinstance(node, nd.Import):
            for alias in node.names:
                found = project.find(alias.name, module.path)
                if found is not None and not found.is_library:
                    yield found.path
        elif isinstance(node, nd.ImportFrom):
            yield from _imported_from(node, module, project)


def _imported_from(node: nd.ImportFrom, module: nd.Module, project: Project) -> Iterator[str]:
    names = [node.module, *(f"{node.module}.{a.name}" if node.module else a.name for a in node.names if a.name != "*")]
    for name in names:
        if node.level:
            found = project.find_relative(name, node.level, module.path)
        else:
            found = project.find(name, module.path) if name else None
        if found is not None and not found.is_library:
            yield found.path
