"""The plan: what the script says about model, batch, length, precision and optimizer, and where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchwise_analysis.interp.concrete.recovery import stays_in_single_precision
from torchwise_analysis.interp.concrete.values import Int, Symbol, Unknown
from torchwise_analysis.names.launches import GIVEN
from torchwise_memory.report import Kind, Origin, PlanField, Source

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter
    from torchwise_analysis.interp.concrete.library import ModelInput
    from torchwise_analysis.interp.concrete.loops import Measured

# Grey, colour, and colour with transparency.
_CHANNELS = (1, 3, 4)
# Sources that say something else than the one that a field was read from; more are no help.
MAX_SAID_OTHERWISE = 3


@dataclass(frozen=True, slots=True)
class Literal:
    """A whole number as it stands in the script; columns from 0 on the line of `origin`."""

    value: int
    origin: Origin
    columns: tuple[int, int]


def count_parameters(it: Interpreter) -> tuple[int | None, int | None]:
    """Parameters and trainable ones of all models called, shared ones once."""
    counted = it.library.counted
    return (None, None) if counted is None else (counted.parameters, counted.trainable)


def read_plan(it: Interpreter, measured: list[Measured]) -> dict[str, PlanField]:
    plan: dict[str, PlanField] = {}
    _model(it, plan)
    _batch(it, plan)
    _precision(it, plan)
    met = it.library.met
    if "optimizer" in met:
        name, origin = met["optimizer"]
        plan["optimizer"] = PlanField(str(name), _chosen_by(it, "optimizer"), origin)
    elif "updates" in met:
        name, origin = met["updates"]
        plan["optimizer"] = PlanField(str(name), Source.READ, origin)
    training = next((m for m in measured if m.kind is Kind.TRAINING), None)
    if training is not None:
        plan["accumulation"] = PlanField(training.window, Source.READ, training.origin)
    if "checkpointing" in met:
        source = _chosen_by(it, "checkpointing")
        plan["checkpointing"] = PlanField(True, source, met["checkpointing"][1])
    elif training is not None:
        plan["checkpointing"] = PlanField(False, Source.READ)
    if "quantisation" in met:
        plan["quantisation"] = PlanField(str(met["quantisation"][0]), Source.READ, met["quantisation"][1])
    for name, field in plan.items():
        others = _said_otherwise(it, name, field)
        if others and not field.why:
            plan[name] = replace(field, why=f"but {', '.join(others)}")
    return plan


def _said_otherwise(it: Interpreter, name: str, field: PlanField) -> list[str]:
    """What other sources say of a field: comments, settings, further loaders that mix their samples."""
    found = [(value, origin) for one, value, origin in it.library.conflicts if one == name]
    if name in it.stated and name not in it.chosen:
        found.append(it.stated[name])
    if name == "micro_batch" and _first_input(it) is None:
        # else it is known from which loader the step takes its batches
        found += [(made.batch_size, made.origin) for made in it.library.loaders if made.shuffles]
    others: dict[str, None] = {}
    for value, origin in found:
        if origin is not None and isinstance(value, (int, str)) and value != field.value:
            place = "by --set" if origin.path == GIVEN else f"in line {origin.line} of {origin.path}"
            others[f"{value} {place}"] = None
    return list(others)[:MAX_SAID_OTHERWISE]


def _model(it: Interpreter, plan: dict[str, PlanField]) -> None:
    counted = it.library.counted or it.library.trained
    unread = it.library.unread_model
    if counted is not None:
        plan["model"] = PlanField(counted.name, Source.READ, counted.origin)
    elif it.library.named_model is not None:
        name, origin = it.library.named_model
        plan["model"] = PlanField(name, Source.READ, origin)
    elif it.library.failed_model is not None:
        failed = it.library.failed_model
        plan["model"] = PlanField(failed.name, Source.READ, failed.origin, "its sizes are not known")
    elif unread is not None:
        plan["model"] = PlanField(None, Source.UNKNOWN, unread.origin, unread.why)


def _first_input(it: Interpreter) -> ModelInput | None:
    """What the model was given first for training; an agent that acts without a graph comes later."""
    inputs = it.library.model_inputs
    return next((given for given in inputs if given.has_graph), next(iter(inputs), None))


def _batch(it: Interpreter, plan: dict[str, PlanField]) -> None:
    given = _first_input(it)
    met = it.library.met
    if "micro_batch" in met:
        plan["micro_batch"] = _placed(it, "micro_batch", *met["micro_batch"])
    elif given is not None and len(given.shape) > 1:
        plan["micro_batch"] = _extent(given, 0)
    elif it.library.loaders:
        _loader(it, plan)
    if given is not None and not given.is_floating and len(given.shape) == 2:
        plan["seq_len"] = _extent(given, 1)
        return
    image = _image(it)
    if image is not None:
        size = image.shape[-2], image.shape[-1]
        # a number that is the batch, too, may be the batch's
        extents = [] if image.shape[0] == size[1] else [e for e in image.extents if e == size[1]]
        stated = it.library.image_places.get(size) or next(iter(extents), None)
        plan["image_size"] = (
            PlanField(size, _source_of(stated), stated.origin)
            if isinstance(stated, Int)
            else PlanField(size, Source.READ, stated or image.origin)
        )


def _loader(it: Interpreter, plan: dict[str, PlanField]) -> None:
    """The batch size of the loader for training, of which no batch was seen: the first that mixes samples."""
    loaders = it.library.loaders
    made = next((loader for loader in loaders if loader.shuffles), loaders[0])
    size = made.batch_size
    if isinstance(size, int):
        plan["micro_batch"] = _placed(it, "micro_batch", size, made.origin)
    elif isinstance(size, (Unknown, Symbol)):
        plan["micro_batch"] = PlanField(None, Source.UNKNOWN, made.origin, size.why)


def _image(it: Interpreter) -> ModelInput | None:
    """What a model was given that looks like a batch of images; noise for a generator does not."""
    maps = [m for m in it.library.model_inputs if m.is_floating and len(m.shape) == 4]
    wide = [m for m in maps if m.shape[-2] > 1 and m.shape[-1] > 1]
    return next((m for m in wide if m.shape[1] in _CHANNELS), next(iter(wide), None))


def _placed(it: Interpreter, name: str, value: object, origin: Origin | None) -> PlanField:
    if name in it.chosen:
        return PlanField(int(str(value)), Source.ASSUMED, origin, "nothing in the script says it")
    if isinstance(value, Int):
        return PlanField(int(value), _source_of(value), value.origin)
    return PlanField(int(str(value)), _chosen_by(it, name), origin)


def _chosen_by(it: Interpreter, name: str) -> Source:
    """Who settled a fact that was met: the program, or a library where the program left it to that."""
    return Source.DEFAULT if name in it.library.by_default else Source.READ


def _source_of(value: Int) -> Source:
    if value.source == "default":
        return Source.DEFAULT
    return Source.READ if value.origin.path.endswith((".py", ".ipynb")) else Source.CONFIGURED


def _extent(given: ModelInput, axis: int) -> PlanField:
    value = given.shape[axis]
    literal = next((e for e in given.extents if e == value), None)
    if literal is None:
        return PlanField(value, Source.READ, given.origin)
    return PlanField(value, _source_of(literal), literal.origin)


def micro_batch_literals(it: Interpreter) -> tuple[Literal, ...]:
    """The literals that together set the micro-batch: one name, or one in each tensor that is made."""
    value = it.library.met.get("micro_batch", (None, None))[0]
    if isinstance(value, Int):
        return (Literal(int(value), value.origin, value.columns),)
    given = _first_input(it)
    if given is None or not given.shape:
        return ()
    batch = given.shape[0]
    found = [
        next((e for e in extents if e == batch), None)
        for shape, extents in it.library.made
        if shape[0] == batch
    ]
    literals = [Literal(int(e), e.origin, e.columns) for e in found if e is not None]
    return tuple(dict.fromkeys(literals))


def _precision(it: Interpreter, plan: dict[str, PlanField]) -> None:
    if "precision" in it.library.met:
        value, origin = it.library.met["precision"]
        plan["precision"] = PlanField(str(value), _chosen_by(it, "precision"), origin)
        return
    counted = it.library.counted or it.library.trained
    if counted is None and it.recovers and stays_in_single_precision(it):
        plan["precision"] = PlanField("float32", Source.DEFAULT, None, "nothing on the way to backward casts")
    if it.recovers and not it.library.called and not it.loops.steps:
        return  # whether the loop casts was not seen
    if counted is not None:
        source = Source.DEFAULT if counted.dtype == "float32" else Source.READ
        plan["precision"] = PlanField(counted.dtype, source, counted.origin)
