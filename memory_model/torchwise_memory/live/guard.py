"""Whether a run fits, told from the live objects before it starts; how right that was, told at its end."""

# PyTorch is not installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from torchwise_memory.allocator import ALLOCATOR_VARIABLES, AllocatorSettings
from torchwise_memory.hardware import Gpu, UnknownGpuError, find
from torchwise_memory.live.recording import Recorder, Replayed, replay
from torchwise_memory.live.sharded import gathered_bytes
from torchwise_memory.live.step import Step, record
from torchwise_memory.report import GpuVerdict, Interval, Peak, Phase, Verdict
from torchwise_memory.runtime.world import cublas_workspace_bytes
from torchwise_memory.verdict import device_peak, verdict

GIB = 1 << 30
MIB = 1 << 20
#: Shares of the point below and above it. Traced with the card's own kernels: fake CUDA tensors were within
#: 0.9 % of 17 runs on real cards and within 5 % of two more (docs/accuracy.md). Traced on the CPU: its other
#: kernels stand for the card's, save those that are put in their place (kernels.py).
ERRORS_ON_CARD = (0.03, 0.05)
ERRORS_ON_CPU = (0.06, 0.12)
#: Smaller shares of the peak are left out of the text.
NOTICED = 0.001
_DEFAULT_SM = 80
F = TypeVar("F", bound=Callable[..., Any])


class WillNotFitError(RuntimeError):
    """Even the low end of the interval is more than the card offers."""


@dataclass(frozen=True, slots=True)
class Exact:
    """Bytes of the live objects in this process, each storage counted once."""

    parameters: int
    buffers: int
    gradients: int
    optimizer: int


@dataclass(frozen=True, slots=True)
class LiveReport:
    """What the guard knows. peak is None where the step could not be run on fake tensors (`why` says so).

    measured: what `torch.cuda` counted, allocated and reserved, once a step has run.
    """

    exact: Exact
    peak: Peak | None
    phase: Phase | None
    by_purpose: dict[str, int]
    card: GpuVerdict | None
    assumptions: tuple[str, ...]
    why: str = ""
    measured: tuple[int, int] | None = None

    def text(self) -> str:
        """A few lines for a terminal or a log."""
        lines = [self._headline(), *self._parts()]
        if self.measured is not None:
            lines.append(self._comparison(self.measured))
        lines += [f"  assumed: {each}" for each in self.assumptions]
        return "\n".join(lines)

    def _headline(self) -> str:
        if self.peak is None or self.peak.allocated is None:
            return f"torchwise: peak unknown: {self.why}"
        allocated = self.peak.allocated
        phase = f" in {self.phase.value}" if self.phase else ""
        card = f"; {self.card.title}: {_words(self.card.verdict)}" if self.card else ""
        low, point, high = (_size(each) for each in (allocated.low, allocated.point, allocated.high))
        return f"torchwise: peak {point} allocated ({low} – {high}){phase}{card}"

    def _parts(self) -> list[str]:
        if self.by_purpose:
            least = sum(self.by_purpose.values()) * NOTICED
            parts = sorted(self.by_purpose.items(), key=lambda item: -item[1])
            named = [f"{name} {_size(size)}" for name, size in parts if size >= least]
            return ["  at the peak: " + ", ".join(named)]
        exact = self.exact
        return [
            f"  exact: parameters {_size(exact.parameters)}, buffers {_size(exact.buffers)}, "
            f"gradients {_size(exact.gradients)}, optimizer {_size(exact.optimizer)}"
        ]

    def _comparison(self, measured: tuple[int, int]) -> str:
        text = f"  measured: {_size(measured[0])} allocated, {_size(measured[1])} reserved"
        if self.peak is None or self.peak.allocated is None:
            return text
        return f"{text}; the estimate was {self.peak.allocated.point / measured[0] - 1:+.1%} off"


class VRAMGuard:
    """Runs the step of these objects on fake tensors and says whether it fits, before the first real step.

    batch: a batch as the model takes it (a mapping by name, a tuple by position, else one argument); its
    tensors are only looked at. shapes: the same without tensors, as (shape, dtype). step: what else a step
    does. gpu: a card's name; without it the current CUDA device, if there is one. strict: raise also where it
    probably does not fit. rows: a file to which `close` appends the measurement.

    As a context manager or a decorator it checks on entry and compares on exit; `after_step()` may be called
    after each real step and replaces the estimate by what was measured from the second on.
    Raises WillNotFitError on entry, never for want of knowledge.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        *,
        batch: Any = None,
        shapes: Any = None,
        step: Step | None = None,
        gpu: str | None = None,
        strict: bool = False,
        rows: str | Path | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        if (batch is None) == (shapes is None):
            raise TypeError("give either batch=, an example, or shapes=, as (shape, dtype)")
        self.model = model
        self.optimizer = optimizer
        self.batch = batch if shapes is None else _from_shapes(shapes)
        self.step = step or Step()
        self.strict = strict
        self.rows = Path(rows) if rows is not None else None
        self.say = say
        self.card = _card(gpu)
        self.report: LiveReport | None = None
        self._steps = 0

    def check(self) -> LiveReport:
        """The estimate; nothing is raised or printed."""
        self.report = self._estimated()
        return self.report

    def after_step(self) -> None:
        """Call it after a real step: the second and third correct the estimate by what was measured."""
        self._steps += 1
        if self._steps in (2, 3) and torch.cuda.is_available() and self.report is not None:
            self.report = _corrected(self.report, _measured(), self.card)

    def close(self) -> LiveReport:
        """Compares with the measured peak where there is a card, and writes the row that was asked for."""
        report = self.report or self.check()
        if torch.cuda.is_available():
            report = replace(report, measured=_measured())
            if self.rows is not None:
                _append_row(self.rows, report)
        self.report = report
        return report

    def __enter__(self) -> VRAMGuard:
        report = self.check()
        self.say(report.text())
        self._judge(report)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        report = self.close()
        if report.measured is not None:
            self.say(report.text())

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return guarded  # type: ignore[return-value]

    def _judge(self, report: LiveReport) -> None:
        if report.card is None or report.peak is None:
            return
        banned = {Verdict.OOM, Verdict.PROBABLY_OOM} if self.strict else {Verdict.OOM}
        if report.card.verdict in banned:
            raise WillNotFitError(report.text())
        if report.card.verdict in (Verdict.PROBABLY_OOM, Verdict.BORDERLINE):
            warnings.warn(report.text(), ResourceWarning, stacklevel=3)

    def _estimated(self) -> LiveReport:
        model, assumptions, extra = _unwrapped(self.model)
        exact = exact_bytes(model, self.optimizer)
        device = _device_of(model)
        try:
            recorder, shares = record(model, self.optimizer, self.batch, self.step, device, _sm(self.card))
        except Exception as problem:
            why = f"the step does not run on fake tensors: {type(problem).__name__}: {_first_line(problem)}"
            return LiveReport(exact, None, None, {}, None, tuple(assumptions), why)
        replayed = _replayed(recorder, shares, self.card if device == "cpu" else None)
        if device == "cpu":
            assumptions.append("traced on the CPU, with the card's ways to keep what backward needs")
        if self.step.loss is None and self.step.run is None:
            assumptions.append(
                "no loss was given: the output's own loss, or the sum of the output, stands for it"
            )
        errors = ERRORS_ON_CPU if device == "cpu" else ERRORS_ON_CARD
        beside = sum(extra.values())
        allocated = _around(replayed.allocated + beside, errors)
        reserved = _around(replayed.reserved + beside, errors)
        peak = Peak(allocated, reserved, device_peak(reserved, self.card))
        card = verdict(reserved, allocated, self.card) if self.card else None
        parts = {purpose.value: bytes_ for purpose, bytes_ in replayed.by_purpose.items()}
        parts.update(extra)
        return LiveReport(exact, peak, replayed.phase, parts, card, tuple(assumptions))


def exact_bytes(model: Any, optimizer: Any = None) -> Exact:
    """Bytes of parameters, buffers, gradients and optimizer state that exist now, in this process."""
    parameters = list(model.parameters())
    state = optimizer.state.values() if optimizer is not None else ()
    states = [each for entry in state for each in entry.values() if isinstance(each, torch.Tensor)]
    return Exact(
        parameters=_bytes_of(parameters),
        buffers=_bytes_of(model.buffers()),
        gradients=_bytes_of(each.grad for each in parameters if each.grad is not None),
        optimizer=_bytes_of(states),
    )


def _bytes_of(tensors: Iterable[Any]) -> int:
    storages = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        storage = local.untyped_storage()
        storages[storage.data_ptr() or id(tensor)] = storage.nbytes()
    return sum(storages.values())


def _unwrapped(model: Any) -> tuple[Any, list[str], dict[str, int]]:
    """The module that is stepped, what was assumed, and what else it holds meanwhile, in bytes."""
    if gathered := gathered_bytes(model):
        said = "of sharded parameters the root's are whole at the peak, and those of two units more"
        return model, [said], {"gathered parameters": gathered}
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return model, [], {}
    if model.gradient_as_bucket_view:
        return model.module, [], {}
    trained = sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)
    said = "DDP keeps its gradient buckets beside the gradients"
    return model.module, [said], {"gradient buckets": trained}


def _replayed(recorder: Recorder, shares: dict[int, float], card: Gpu | None) -> Replayed:
    """Where the CPU's kernels were traced, a card's matrix products add their workspace, one a thread."""
    threads = sum(recorder.multiplies.values())
    workspace = threads * cublas_workspace_bytes(_sm(card))
    settings = AllocatorSettings.parse(_allocator_options())
    return replay(recorder.settled_events(), recorder.purposes, settings, shares, workspace)


def _sm(card: Gpu | None) -> int:
    return (card.sm if card else None) or _DEFAULT_SM


def _allocator_options() -> str:
    return next((os.environ[name] for name in ALLOCATOR_VARIABLES if name in os.environ), "")


def _card(name: str | None) -> Gpu | None:
    """Raises UnknownGpuError for a name that was given and is unknown."""
    if name is not None:
        return find(name)
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        return replace(find(properties.name), total_bytes=properties.total_memory)
    except UnknownGpuError:
        return None


def _device_of(model: Any) -> str:
    """Where the step is run; a model on meta is traced with the CPU's kernels."""
    found = next((str(each.device.type) for each in model.parameters()), "cpu")
    return "cpu" if found == "meta" else found


def _around(point: int, errors: tuple[float, float]) -> Interval:
    return Interval(int(point * (1 - errors[0])), point, int(point * (1 + errors[1])))


def _measured() -> tuple[int, int]:
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def _corrected(report: LiveReport, measured: tuple[int, int], card: Gpu | None) -> LiveReport:
    """What was measured is a floor; later steps of other shapes may still need more."""
    around = [_around(bytes_, (0.0, ERRORS_ON_CARD[1])) for bytes_ in measured]
    peak = Peak(around[0], around[1], device_peak(around[1], card))
    judged = verdict(around[1], around[0], card) if card else None
    return replace(report, peak=peak, card=judged, measured=measured)


def _append_row(path: Path, report: LiveReport) -> None:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    predicted = report.peak.allocated.point if report.peak and report.peak.allocated else None
    assert report.measured is not None
    row = {
        "gpu": properties.name,
        "torch": torch.__version__,
        "predicted_allocated_bytes": predicted,
        "measured_allocated_bytes": report.measured[0],
        "measured_reserved_bytes": report.measured[1],
        "parameters_bytes": report.exact.parameters,
        "phase": report.phase.value if report.phase else None,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _from_shapes(shapes: Any) -> Any:
    """(shape, dtype) pairs become tensors on the meta device, in the same nesting."""
    if _is_shape(shapes):
        return torch.empty(shapes[0], dtype=shapes[1], device="meta")
    if isinstance(shapes, dict):
        return {name: _from_shapes(each) for name, each in shapes.items()}
    if isinstance(shapes, (tuple, list)):
        return tuple(_from_shapes(each) for each in shapes)
    raise TypeError(f"a shape is given as (sizes, dtype), not as {shapes!r}")


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[1], torch.dtype)


def _size(bytes_: int) -> str:
    """Three digits, as elsewhere: 23.6 GiB, 328 MiB."""
    value, unit = (bytes_ / GIB, "GiB") if bytes_ >= GIB else (bytes_ / MIB, "MiB")
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def _words(band: Verdict) -> str:
    return band.value.replace("-", " ").replace("oom", "OOM")


def _first_line(problem: BaseException) -> str:
    return (str(problem).splitlines() or [""])[0]
