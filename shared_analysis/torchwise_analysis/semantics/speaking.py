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

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torchwise_analysis.interp.abstract import beliefs
from torchwise_analysis.interp.abstract.relevance import imported_files
from torchwise_analysis.interp.abstract.values import Kind
from torchwise_analysis.names.project import Project
from torchwise_analysis.semantics import distributed, frameworks, losses, modules, optimizers, registry
from torchwise_analysis.semantics.words import Words, words_of
from torchwise_analysis.source.lower_text import Parsed


def is_silent(path: str, trees: Iterable[ast.Module], project: Project, most: int, all_grades: bool) -> bool:
    """Is there nothing that a built-in rule could find when the file is run, with what it calls in others?

    trees: of the file's statements. most: files of the project that are looked into; one that imports more is
    not silent. all_grades: also what would only be possible. Raises SyntaxError where an imported file does
    not parse.
    """
    own = words_of(trees)  # not remembered: most files are asked about once
    if may_speak(own, all_grades):
        return False
    todo = list(imported_files(own.imports, path, project))
    if not todo:
        return True
    files = [own.of_project()]
    seen = {path}
    while todo:
        path = todo.pop()
        found = None if path in seen else _imported(path, project)
        seen.add(path)
        if found is None:
            continue
        if len(seen) > most or may_speak(found.said, all_grades):
            return False
        files.append(found.said)
        todo += found.imports
    return not may_speak(Words.together(files), all_grades)


@dataclass(frozen=True, slots=True)
class _Imported:
    """A file of the project, as it was at `version` of the project. said: as one that imports others."""

    said: Words
    imports: tuple[str, ...]
    text: str
    version: int


def _imported(path: str, project: Project) -> _Imported | None:
    """What the file says, asked once; None for one that cannot be read."""
    text = project.source(path)
    if text is None:
        return None
    key = "words", path
    known = project.derived.get(key)
    if isinstance(known, _Imported) and known.text is text and known.version == project.version:
        return known
    words = words_of(Parsed(text).trees())
    found = _Imported(words.of_project(), imported_files(words.imports, path, project), text, project.version)
    project.derived[key] = found
    return found


def may_speak(words: Words, all_grades: bool = True) -> bool:
    """May any built-in rule find something in code of these words?"""
    return any(may(words) for may in _SUBJECTS) or (all_grades and _keeps_graphs(words))


# --------------------------------------------------------------------------- what rules speak of


def _is_among(holds: Callable[[str], object]) -> Callable[[frozenset[str]], bool]:
    """A question: is any of these names one that `holds`? Files have most names in common, and each is asked
    about once."""
    known, members = set[str](), set[str]()

    def is_among(names: frozenset[str]) -> bool:
        if not members.isdisjoint(names):
            return True
        if len(known) > _MOST_NAMES:
            known.clear()
            members.clear()
        new = names - known
        known.update(new)
        members.update(filter(holds, new))
        return not members.isdisjoint(names)

    return is_among


_MOST_NAMES = 1 << 18


def _is_like(pattern: str) -> Callable[[frozenset[str]], bool]:
    """Is any of these names like that?"""
    return _is_among(re.compile(pattern).search)


def _is_believed(kind: Kind) -> Callable[[frozenset[str]], bool]:
    """Would the interpreter take something of any of these names for that?"""
    return _is_among(lambda name: beliefs.by_name(name) is kind)


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
_IS_OPTIMIZER = _is_believed(Kind.OPTIMIZER)
_IS_CRITERION = _is_believed(Kind.CRITERION)


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
_PACKAGES_OF_MODULES = ("torch.nn", "torch.hub")
_MAKERS = frozenset([modules.__name__, distributed.__name__, frameworks.__name__])
_OTHER_MODULES = re.compile(r"(Net|Model|Transformer|UNet|Conv|Encoder|Decoder)$").search
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
    if words.may_reach("torch.autograd") and not taken.isdisjoint(_BACKWARDS):
        return True
    if "step" not in taken:
        return False
    found = words.said
    is_optimizer = not taken.isdisjoint(("param_groups", "zero_grad"))
    is_known = _OPTIMIZES(found) or not found.isdisjoint(_KNOWN_OPTIMIZERS)
    return is_optimizer or is_known or _IS_OPTIMIZER(found)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _is_owned(words: Words) -> bool:
    return _OWNS(words.said)


def _computes_loss(words: Words) -> bool:
    found = words.said
    return _LOSES(found) or not found.isdisjoint(_LOSS_FUNCTIONS) or _IS_CRITERION(found)


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
    if "load" in words.attributes and words.may_reach("torch", "pickle", "joblib"):
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
    is_told = not words.said.isdisjoint(_UNRECORDED) or _BY_MODE(words.paths)
    return is_told or words.may_reach(*_PACKAGES_OF_MODULES)


def _builds_modules(words: Words) -> bool:
    if "from_pretrained" in words.said or any(map(_is_module, words.paths)):
        return True
    is_reached = words.may_reach(*_PACKAGES_OF_MODULES)
    return is_reached and any(name[:1].isupper() for name in words.attributes)


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
        return path.startswith(_OF_MODULES) or bool(_OTHER_MODULES(last)) or ".nn." in path
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
