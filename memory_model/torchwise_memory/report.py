"""What an estimate says. Bytes are integers per GPU; an unknown size is None, never invented."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Origin(NamedTuple):
    """Who asked for something: a line of a file. Opaque to this package; lines count from 1."""

    path: str
    line: int


class Phase(Enum):
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"

    __hash__ = object.__hash__


class Kind(Enum):
    TRAINING = "training"
    GENERATION = "generation"
    INFERENCE = "inference"


class Source(Enum):
    """How a plan field came to be known."""

    READ = "read"
    DEFAULT = "default"
    CONFIGURED = "configured"
    ASSUMED = "assumed"
    UNKNOWN = "unknown"


class Verdict(Enum):
    FITS = "fits"
    PROBABLY_FITS = "probably-fits"
    BORDERLINE = "borderline"
    PROBABLY_OOM = "probably-oom"
    OOM = "oom"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Interval:
    """A 90 % interval in bytes."""

    low: int
    point: int
    high: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The three peaks of a warm step.

    allocated: what `torch.cuda.max_memory_allocated()` would say; reserved: likewise
    `max_memory_reserved()`; device: reserved plus context and libraries, what nvidia-smi shows.
    """

    allocated: Interval | None
    reserved: Interval | None
    device: Interval | None


@dataclass(frozen=True, slots=True)
class PlanField:
    """One fact of the training plan and where it was read."""

    value: str | int | float | bool | tuple[int, ...] | None
    source: Source
    origin: Origin | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Alive:
    """A group of tensors alive at the peak."""

    bytes: int
    what: str
    origin: Origin | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Moment:
    """The highest moment of a stretch of the measured step: what the card holds then, by purpose.

    The stretches follow each other; operations, not seconds, set them apart. `by_purpose` has the keys of
    `Estimate.breakdown`; origin is the line that took memory last.
    """

    phase: Phase
    origin: Origin | None
    by_purpose: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.by_purpose.values())


@dataclass(frozen=True, slots=True)
class ModuleMemory:
    """What the modules that one line makes hold, those of one class together.

    alive_bytes: made by their forward passes and alive at the peak; None where it cannot be told apart.
    """

    origin: Origin
    name: str
    count: int
    parameters: int
    weight_bytes: int
    alive_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """Whether the peak fits a card; `total_bytes` is what PyTorch sees as total memory.

    machine: the cloud machine in place of which the card stands, empty for a card by itself; cards: how many
    of them it has, below 1 for a slice of one, None where that is not known. peak: with this card's kernels,
    where they are others than those that the estimate tells of.
    """

    name: str
    title: str
    total_bytes: int
    verdict: Verdict
    machine: str = ""
    cards: float | None = None
    peak: Peak | None = None


@dataclass(frozen=True, slots=True)
class TextEdit:
    """A mechanical edit of a remedy; positions count from 0, columns in code points."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change, the peak it leads to and what it costs.

    edits: of a script. options: of the command line, for a job that it describes.
    """

    change: str
    saves_bytes: int
    peak_bytes: int
    cost: str
    edits: tuple[TextEdit, ...] = ()
    options: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the project's own texts start a script: the words after its name, and the line that says so."""

    words: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Estimate:
    """The answer for one loop. `origin` is the line of the loop.

    launch: the start of the script that this answer is for; None: as the script stands, without arguments.
    """

    origin: Origin
    kind: Kind
    plan: dict[str, PlanField]
    parameters: int | None
    trainable_parameters: int | None
    peak: Peak
    phase: Phase | None
    breakdown: dict[str, int]
    alive: tuple[Alive, ...]
    assumptions: tuple[str, ...]
    gpus: tuple[GpuVerdict, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    gpus_used: int = 1
    read_files: tuple[str, ...] = field(default=())
    timeline: tuple[Moment, ...] = ()
    modules: tuple[ModuleMemory, ...] = ()
    launch: Launch | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why a file got no estimate: the first thing that was not known, and where.

    plan: what was read of the training plan all the same.
    """

    origin: Origin
    message: str
    plan: dict[str, PlanField] = field(default_factory=dict[str, PlanField])
