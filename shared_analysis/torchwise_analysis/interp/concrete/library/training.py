"""Frameworks that own the training loop or its step, by replacement texts.

Lightning and its Fabric, Accelerate, transformers' Trainer, TRL, DeepSpeed, and what prepares their data
(datasets, tokenizers, collators). What these texts cannot say in the language of a program is below.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import classes, operators, text
from torchwise_analysis.interp.concrete.errors import Stopped
from torchwise_analysis.interp.concrete.library import data
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    BoundMethod,
    Builtin,
    Class,
    Function,
    Instance,
    Int,
    Iter,
    Keywords,
    Namespace,
    Symbol,
    Unknown,
    Value,
)
from torchwise_analysis.source import nodes
from torchwise_memory.modules.base import Module
from torchwise_memory.policies.sharding import is_sharded, whole_numel
from torchwise_memory.policies.zero import REDUCE_BUCKET, SUB_GROUP, zero_buffers
from torchwise_memory.report import Origin
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tensor import Tensor

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

#: Roots of which every module shows the names of one replacement text.
ROOTS = {
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "lightning_fabric": "lightning",
    "accelerate": "accelerate",
    "datasets": "datasets",
    "trl": "trl",
    "deepspeed": "deepspeed",
    "pydantic": "pydantic",
    "pydantic_settings": "pydantic",
}

#: Modules of transformers whose names come from the text of its trainer.
TRAINER_MODULES = frozenset(
    f"transformers.{name}"
    for name in (
        "trainer",
        "optimization",
        "trainer_utils",
        "trainer_callback",
        "trainer_seq2seq",
        "training_args",
        "training_args_seq2seq",
        "hf_argparser",
        "data",
        "data.data_collator",
        "tokenization_utils",
        "tokenization_utils_base",
        "tokenization_utils_fast",
    )
)
TRAINER = "transformers.trainer"
#: Over how many processes a model may be sharded where nothing says it; the first is taken.
PROCESSES = (8, 1)

_SUBMODULES = frozenset(
    {
        "pytorch",
        "fabric",
        "trainer",
        "core",
        "utilities",
        "callbacks",
        "loggers",
        "strategies",
        "cli",
        "plugins",
    }
    | {"zero", "ops", "adam", "utils", "state", "models", "commands", "launchers", "profilers", "demos"}
)


# A folder of the project with a framework's name is the framework if its text has this name.
_MARKS = {
    "lightning": "LightningModule",
    "pytorch_lightning": "LightningModule",
    "lightning_fabric": "Fabric",
    "accelerate": "Accelerator",
    "datasets": "load_dataset",
    "trl": "SFTTrainer",
    "deepspeed": "initialize",
    "pydantic": "BaseModel",
    "pydantic_settings": "BaseSettings",
}


def _is_shadowed(it: Interpreter, root: str) -> bool:
    """Whether the project has a module of its own by a framework's name."""
    source = it.project.find(root, it.library.imports.main_path)
    if source is None or source.is_library:
        return False
    return _MARKS[root] not in (it.project.text(source.path) or "")


def training_space(it: Interpreter, name: str) -> Namespace | None:
    """`lightning.pytorch.trainer` and its like: the text's names wherever a program imports them from."""
    root = name.partition(".")[0]
    if _is_shadowed(it, root):
        return None
    scope = it.library.imports.replacement(ROOTS[root])
    if scope is None:
        return None
    lookup = scope.lookup
    text_names = scope.binders

    def resolve(member: str) -> Value:
        if member in text_names:
            return lookup(member)
        native = it.library.qualified(f"{name}.{member}")
        if native is not MISSING or member.startswith("__"):
            return native
        if root == "trl" and member.endswith("Trainer") and member[:1].isupper():
            return _unmodelled_trainer(member)
        if member in _SUBMODULES:
            return it.library.known_module(f"{name}.{member}")
        return Unknown(f"{name}.{member}", it.origin())

    return Namespace(name, resolve=resolve)


def _unmodelled_trainer(name: str) -> Builtin:
    """A trainer of TRL that has no replacement text: what its step holds is not guessed."""

    def make(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        raise Stopped(f"the step of TRL's {name} is not modelled", it.origin())

    return Builtin(f"trl.{name}", make)


DISTRIBUTIONS = "torch.distributions"


def distributions_space(it: Interpreter, name: str) -> Namespace | None:
    """`torch.distributions` and its modules, each with the names of all."""
    scope = it.library.imports.replacement(DISTRIBUTIONS)
    if scope is None:
        return None
    names, lookup = scope.binders, scope.lookup

    def resolve(member: str) -> Value:
        if member in names:
            return lookup(member)
        if member.islower():
            return it.library.known_module(f"{name}.{member}")
        return Unknown(f"{name}.{member}", it.origin())

    return Namespace(name, resolve=resolve)


def trainer_space(it: Interpreter, name: str) -> Namespace | None:
    """`transformers.trainer` and the modules around it."""
    scope = it.library.imports.replacement(TRAINER)
    if scope is None:
        return None
    names, lookup = scope.binders, scope.lookup

    def resolve(member: str) -> Value:
        return lookup(member) if member in names else it.library.qualified(f"{name}.{member}")

    return Namespace(name, resolve=resolve)


def trainer_name(it: Interpreter, name: str) -> Value:
    """A name of transformers' top level that belongs to training, else MISSING."""
    scope = it.library.imports.replacement(TRAINER)
    if scope is None or name.startswith("_"):
        return MISSING
    if name in scope.binders:
        return scope.lookup(name)
    if name.endswith(("Tokenizer", "TokenizerFast")):
        return scope.lookup("PreTrainedTokenizerBase")
    return MISSING


def helpers() -> dict[str, Value]:
    """Names that only the replacement texts see."""
    table = {
        "arguments": _arguments,
        "entry": _entry,
        "assume": _assume,
        "stop": _stop,
        "unknown": lambda it, a, k: Unknown(text.text_of(it, a[0]), it.origin()),
        "symbol": lambda it, a, k: Symbol(text.text_of(it, a[0])),
        "is_unknown": lambda it, a, k: isinstance(a[0], (Unknown, Symbol)) or bool(it.open_reason(a[0])),
        "is_source": lambda it, a, k: (
            isinstance(a[0], Class) and isinstance(a[0].members.get("forward"), Function)
        ),
        "is_text": lambda it, a, k: isinstance(a[0], (str, Unknown)),
        "unknown_times": _unknown_times,
        "endless": _endless,
        "slice_length": _slice_length,
        "choose": _choose,
        "met": _met,
        "note_model": _note_model,
        "note_arguments": _note_arguments,
        "note_settings": _note_settings,
        "note_loader": _note_loader,
        "processes": lambda it, a, k: it.world.world_size,
        "runs_over": _runs_over,
        "whole_numel": lambda it, a, k: whole_numel(a[0]) if isinstance(a[0], Tensor) else 0,
        "has_share": _has_share,
        "is_sharded": lambda it, a, k: isinstance(a[0], Tensor) and is_sharded(a[0]),
        "zero_buffers": _zero_buffers,
        "padded_mask": _padded_mask,
        "forward_parameters": _forward_parameters,
        "fields_of_library": _fields_of_library,
        "library_has_field": _library_has_field,
        "library_says": _library_says,
        "vocabulary": _vocabulary,
        "configured": _configured,
        "note_trainer": _note_trainer,
        "mark": _mark,
    }
    return {f"__{name}__": Builtin(name, call) for name, call in table.items()}


def _arguments(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The arguments that an object under construction was given, by parameter."""
    return dict(it.library.arguments.get(id(args[0]), {}))


def _entry(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """A function of the text whose loops stand where the program calls it."""
    function = args[0]

    def call(it: Interpreter, given: list[Value], named: Keywords) -> Value:
        before = it.loops.stands_at
        it.loops.stands_at = before or it.origin()
        try:
            return it.call(function, given, named)
        finally:
            it.loops.stands_at = before

    return Builtin("entry", call)


def _assume(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    it.assume(text.text_of(it, args[0]))
    return None


def _stop(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    raise Stopped(text.text_of(it, args[0]), it.origin())


def bound_arguments(function: Function, args: list[Value], keywords: Keywords) -> dict[str, Value]:
    """What `__init__` will be given, defaults included; the receiver is no argument."""
    names = [param.name for param in function.node.params][1:]
    given = {name: function.defaults[name] for name in names if name in function.defaults}
    given.update(zip(names, args, strict=False))
    given.update(keywords)
    return given


# --------------------------------------------------------------------------- data of unknown size


def _unknown_times(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """One value again and again, as often as is asked for: how often is not known."""
    value = args[0]

    def rounds() -> Iterator[Value]:
        for _ in range(data.MANY):
            yield value

    return Iter(rounds(), "loader")


def _endless(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Batches like the one that is given, each with storages of its own."""
    batch = cast("dict[Value, Value]", args[0])

    def rounds() -> Iterator[Value]:
        for _ in range(data.MANY):
            yield {key: _copied(it, value) for key, value in batch.items()}

    return Iter(rounds(), "loader")


def _copied(it: Interpreter, value: Value) -> Value:
    return it.library.call_method(it, value, "clone", [], {}) if isinstance(value, Tensor) else value


def _slice_length(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """How many items `x[a:b]` has of a sequence that is long enough; None where that is not known."""
    return operators.slice_length(args[0]) if isinstance(args[0], slice) else None


def _choose(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    name, options, sentence = args
    found: list[object] = []
    for option in cast("tuple[Value, ...]", options):
        if isinstance(option, (Unknown, Symbol)):
            raise Stopped(f"{option.why} is not known and decides about the length of sequences", it.origin())
        found.append(option)
    return it.choose(text.text_of(it, name), tuple(dict.fromkeys(found)), text.text_of(it, sentence))


def _has_share(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`__has_share__(mask, count)`: so many elements of the mask are true."""
    mask, count = args
    if isinstance(mask, Tensor) and isinstance(count, int):
        mask.storage.share = count / max(mask.numel, 1)
        mask.storage.values = None  # which ones is not known
    return mask


def _zero_buffers(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`__zero_buffers__(stage, part, largest, bucket, overlaps, on_host, sub_group)`; None is DeepSpeed's
    default. In elements: what is held, what is made in each backward, what the step copies at once.
    """
    numbers = [one if isinstance(one, int) else None for one in args]
    stage, part, largest, bucket, overlaps, on_host, sub_group = numbers
    if stage is None or part is None or largest is None:
        raise Stopped("the sizes of what DeepSpeed divides are not known", it.origin())
    buffers = zero_buffers(
        stage,
        part,
        largest,
        REDUCE_BUCKET if bucket is None else bucket,
        bool(overlaps),
        bool(on_host),
        SUB_GROUP if sub_group is None else sub_group,
    )
    return (buffers.held, buffers.in_backward, buffers.in_step)


def _runs_over(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`__runs_over__(stated, what)`: how many processes share the work, from now on.

    As the script is launched, else as a setting states it, else 1; a choice where `what` is shared and
    nothing says over how many.
    """
    stated, what = args
    return processes(it, stated, what if isinstance(what, str) else "")


def processes(it: Interpreter, stated: Value, what: str) -> int:
    """See `_runs_over`. Also what a program's own calls of sharding ask for."""
    launch = it.launch
    if launch is not None and (launch.processes > 1 or launch.starts_one_process):
        return it.world.world_size
    if isinstance(stated, int) and not isinstance(stated, bool) and stated > 1:
        it.world.world_size = int(stated)
    elif what and (it.world.world_size == 1 or "world_size" in it.chosen):
        sentence = f"{what} over {{}} processes: nothing says over how many"
        chosen = it.choose("world_size", PROCESSES, sentence)
        it.world.world_size = int(chosen) if isinstance(chosen, int) else 1
    return it.world.world_size


def _padded_mask(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """A mask of ones of which some may turn out to be zeros."""
    mask = args[0]
    if isinstance(mask, Tensor):
        it.library.ones.discard(mask.storage)
    return mask


# --------------------------------------------------------------------------- facts of the plan


def _mark(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """A tensor that counts as weights or gradients although no module or backward pass made it."""
    tensor, kind = args
    if isinstance(tensor, Tensor):
        tensor.storage.mark(StorageKind(text.text_of(it, kind)))
    return tensor


def _met(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    name, value = args
    if not isinstance(value, (Unknown, Symbol)) and value is not None:
        it.library.note(text.text_of(it, name), value, _place_of(it, value))
    return None


def _place_of(it: Interpreter, value: Value) -> Origin | None:
    return value.origin if isinstance(value, Int) else it.origin()


def _note_loader(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return _met(it, ["micro_batch", args[0]], {})


def _note_model(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """What a trainer is to train: a checkpoint's name, or something that is not known."""
    model = args[0]
    if isinstance(model, Unknown):
        it.library.unread_model = it.library.unread_model or model
    elif isinstance(model, str):
        it.library.named_model = it.library.named_model or (model, it.origin())
    elif isinstance(model, Module) and it.recovers:
        it.library.note_trained([model])
    return None


_OPTIMIZERS = {
    "adamw_torch": "AdamW",
    "adamw_hf": "AdamW",
    "adamw_torch_fused": "AdamW (fused)",
    "adafactor": "Adafactor",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
}


def _note_arguments(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The plan as `TrainingArguments` say it."""
    given = args[0]

    def field(name: str) -> Value:
        value = it.find_attribute(given, name)
        return None if value is MISSING else value

    def note(fact: str, value: Value, option: str) -> None:
        if isinstance(value, (Unknown, Symbol)) or value is None:
            return
        is_default = option in left and left[option] is it.find_attribute(given, option)
        place = it.library.own(_place_of(it, value))
        it.library.note(fact, value, place, is_default)

    if isinstance(given, Unknown):
        return None
    left = it.library.defaults.get(given, {}) if isinstance(given, Instance) else {}
    note("micro_batch", field("per_device_train_batch_size"), "per_device_train_batch_size")
    if field("bf16") is True:
        note("precision", "bfloat16 autocast", "bf16")
    elif field("fp16") is True:
        note("precision", "float16 autocast", "fp16")
    name = field("optim")
    if isinstance(name, Instance):
        name = name.attributes.get("value", name.payload)
    if isinstance(name, str):
        note("optimizer", _OPTIMIZERS.get(name, name), "optim")
    if field("gradient_checkpointing") is True:
        note("checkpointing", True, "gradient_checkpointing")
    return None


_PRECISIONS = {
    "16": "float16 autocast",
    "16-mixed": "float16 autocast",
    "bf16": "bfloat16 autocast",
    "bf16-mixed": "bfloat16 autocast",
    "bf16-true": "bfloat16",
    "16-true": "float16",
    "64": "float64",
    "64-true": "float64",
}


def _note_trainer(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The plan as Lightning's options say it."""
    precision = args[0]
    if isinstance(precision, (str, int)) and str(precision) in _PRECISIONS:
        _met(it, ["precision", _PRECISIONS[str(precision)]], {})
    return None


def _note_settings(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The plan as DeepSpeed's settings say it."""
    settings, micro_batch = args
    _met(it, ["micro_batch", micro_batch], {})
    table = cast("dict[Value, Value]", settings)
    for name, shown in (("fp16", "float16"), ("bf16", "bfloat16"), ("bfloat16", "bfloat16")):
        section = table.get(name)
        if isinstance(section, dict) and cast("dict[Value, Value]", section).get("enabled") is True:
            _met(it, ["precision", shown], {})
    optimizer = table.get("optimizer")
    if isinstance(optimizer, dict):
        _met(it, ["optimizer", cast("dict[Value, Value]", optimizer).get("type")], {})
    return None


def _forward_parameters(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Names that a model's `forward` takes; None where they are not known."""
    model = args[0]
    if not isinstance(model, Module):
        return None
    base = it.find_attribute(model, "get_base_model")
    if base is not MISSING:
        model = cast(Module, it.call(base, [], {}))
    forward: Value = it.library.class_of(model).find("forward")
    if isinstance(forward, BoundMethod):
        forward = forward.function
    while isinstance(forward, Function) and isinstance(forward.attributes.get("__wrapped__"), Function):
        forward = forward.attributes["__wrapped__"]
    if isinstance(forward, Function):
        return [param.name for param in forward.node.params[1:]]
    return it.library.forward_names(model)


# --------------------------------------------------------------------------- what the installed library says


# The versions that the replacement texts were written after.
_WRITTEN_AFTER = {"transformers": "transformers 5.24", "trl": "TRL 1.16"}


def _fields_of_library(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """A dataclass of ours with the defaults and further fields that the installed library's text gives it."""
    cls, module, name = args
    assert isinstance(cls, Class)
    found = _read_fields(it, text.text_of(it, module), text.text_of(it, name))
    if not found:
        package = text.text_of(it, module).partition(".")[0]
        version = _WRITTEN_AFTER.get(package, package)
        it.assume(f"{cls.name} has the defaults of {version}: no installed text says others")
    fields = dict(classes.fields_of(cls))
    for field, default in found.items():
        known = fields.get(field)
        if default is MISSING and known is not None:
            continue
        value = None if default is MISSING else default
        fields[field] = classes.Field(field, value, MISSING, True, False, False, True, None)
    cls.traits["dataclass"] = fields
    it.library.library_fields[cls.name] = frozenset(found)
    return cls


def _read_fields(it: Interpreter, module: str, name: str) -> dict[str, Value]:
    """Fields of a dataclass as its source gives them: constants, MISSING for any other default."""
    source = it.project.find(module, "")
    lowered = None if source is None else it.project.load(source.path)
    if lowered is None:
        return {}
    constants: dict[str, Value] = {}
    found: dict[str, Value] = {}
    for body in _class_bodies(lowered.body, name):
        _fields_in(body, constants, found)
    return found


def _class_bodies(block: nodes.Block, name: str) -> Iterator[nodes.Block]:
    for statement in block:
        if isinstance(statement, nodes.Placed):
            yield from _class_bodies(statement.body, name)
        elif isinstance(statement, nodes.ClassDef) and statement.name == name:
            yield statement.body


def _fields_in(block: nodes.Block, constants: dict[str, Value], found: dict[str, Value]) -> None:
    for statement in block:
        if isinstance(statement, nodes.Placed):
            _fields_in(statement.body, constants, found)
        elif isinstance(statement, nodes.If):
            # `if torch is new enough: default_optim = ...`
            _fields_in(statement.body, constants, found)
        elif isinstance(statement, nodes.Assign) and isinstance(statement.value, nodes.Constant):
            for target in statement.targets:
                if isinstance(target, nodes.Name):
                    constants[target.id] = cast(Value, statement.value.value)
        elif isinstance(statement, nodes.AnnAssign) and isinstance(statement.target, nodes.Name):
            found[statement.target.id] = _default_of(statement.value, constants)


def _default_of(node: nodes.Expr | None, constants: dict[str, Value]) -> Value:
    if isinstance(node, nodes.Call):
        node = next((k.value for k in node.keywords if k.name == "default"), None)
    if isinstance(node, nodes.Constant):
        return cast(Value, node.value)
    if isinstance(node, nodes.Name):
        return constants.get(node.id, MISSING)
    return MISSING


def _library_has_field(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Whether the installed library's arguments have a field: it tells major versions apart."""
    return text.text_of(it, args[0]) in it.library.library_fields.get("TrainingArguments", frozenset())


def has_field_of_version_4(it: Interpreter) -> bool:
    """Whether the installed transformers is an older one than 5, told by a field that it took away."""
    return "no_cuda" in _read_fields(it, "transformers.training_args", "TrainingArguments")


def _library_says(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Whether a module of the installed library names something; None where it cannot be read."""
    source = it.project.find(text.text_of(it, args[0]), it.library.imports.main_path)
    content = None if source is None else it.project.text(source.path)
    return None if content is None else text.text_of(it, args[1]) in content


def _vocabulary(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    found = _configured(it, [args[0], ("vocab_size",)], {})
    return Symbol(f"the size of the vocabulary of {args[0]}") if found is None else found


def _configured(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The first field that the configuration of a checkpoint has, where the checkpoint is known."""
    name, names = args
    facts = it.library.transformers.sizes_of(name) if isinstance(name, str) else {}
    for one in cast("tuple[str, ...]", names):
        value = facts.get(one)
        if isinstance(value, int):
            return value
    return None


__all__ = [
    "ROOTS",
    "TRAINER_MODULES",
    "bound_arguments",
    "helpers",
    "trainer_name",
    "trainer_space",
    "training_space",
]
