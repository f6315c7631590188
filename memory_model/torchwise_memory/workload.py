"""A job described by facts instead of a script: read strictly, run on the runtime, answered with intervals.

What a description leaves out is filled by what the named library does by default, and each such filling is a
`Choice` with its alternatives. The interval is the hull of the alternatives widened by the modelling error of
the metric (`calibration.py` says where that comes from).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torchwise_memory import hardware
from torchwise_memory.calibration import widened
from torchwise_memory.hardware import Gpu
from torchwise_memory.jobs import Choice, Options, job_of
from torchwise_memory.report import GpuVerdict, Interval, Peak, Phase, PlanField, Source, Verdict
from torchwise_memory.reserved import needed_bytes, reserved_interval
from torchwise_memory.runtime.errors import OutOfFuel, Unsupported
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.simulation import Simulated, simulate
from torchwise_memory.verdict import device_peak, verdict
from torchwise_memory.versions import Installed, Version, date_of
from torchwise_memory.versions import read as read_version
from torchwise_memory.wording import task_of

MAX_ALTERNATIVES = 6


class WorkloadError(ValueError):
    """A description that cannot be read; the message names the field."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The facts. None: not stated. Sizes are those of one GPU.

    config: fields of a `config.json`, in place of a known model. task: "train", "generate", "inference" or
    "load". parallel: "none", "DDP", "FSDP", "ZeRO", or words that contain them. metric: the one asked for.
    allocator: the value of `PYTORCH_CUDA_ALLOC_CONF`. releases: of libraries; year: when the others were
    current.
    """

    model: str | None = None
    config: Mapping[str, Any] | None = None
    parameters: int | None = None
    trainable: int | None = None
    task: str = "train"
    gpu: str | None = None
    gpus: int = 1
    parallel: str = "none"
    parallelism: str = ""
    offload: str = ""
    micro_batch: int | None = None
    accumulation: int | None = None
    seq_len: int | None = None
    image: tuple[int, int] | None = None
    classes: int | None = None
    weights: str | None = None
    autocast: str | None = None
    quantisation: str | None = None
    optimizer: str | None = None
    peft: Mapping[str, Any] | None = None
    checkpointing: str | None = None
    attention: str | None = None
    compiled: bool = False
    loss_chunk: int | None = None
    chunked: bool = False
    framework: str = ""
    year: float | None = None
    releases: Mapping[str, Version] = field(default_factory=dict[str, Version])
    metric: str | None = None
    assumption: str = ""
    new_tokens: int | None = None
    beams: int | None = None
    allocator: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """peak: all three metrics; None inside where nothing can be said, and `why` says what was missing.

    needed: what a card must have beside context and libraries, then the same for each alternative.
    """

    peak: Peak
    verdict: Verdict
    why: str = ""
    phase: Phase | None = None
    parameters: int | None = None
    trainable: int | None = None
    breakdown: Mapping[str, int] = field(default_factory=dict[str, int])
    plan: Mapping[str, PlanField] = field(default_factory=dict[str, PlanField])
    assumptions: tuple[str, ...] = ()
    gpu: GpuVerdict | None = None
    needed: tuple[int, ...] = ()

    def fits(self, card: Gpu, gpus: int = 1) -> GpuVerdict:
        """The verdict for another card."""
        first, *others = self.needed or (None,)
        return verdict(
            self.peak.reserved, self.peak.allocated, card, gpus, first, tuple(o for o in others if o)
        )


UNKNOWN = Peak(None, None, None)


def read(row: Mapping[str, Any]) -> Workload:
    """A JSON object. Raises WorkloadError for a field of the wrong kind."""
    source = _mapping(row, "source") or {}
    texts = [str(source.get(k) or "") for k in ("path", "document", "key", "version")] if source else []
    version = str(row.get("version") or (texts[3] if texts else ""))
    checkpointing = row.get("grad_checkpointing")
    chunk = row.get("loss_chunk")
    return Workload(
        model=_text(row, "model"),
        config=_mapping(row, "config"),
        parameters=_integer(row, "params_count"),
        trainable=_integer(row, "trainable_params"),
        task=_task(row),
        gpu=_text(row, "gpu"),
        gpus=_integer(row, "n_gpus") or 1,
        parallel=_text(row, "parallel_class") or "none",
        parallelism=_text(row, "parallelism") or "",
        offload=_text(row, "offload") or "",
        micro_batch=_integer(row, "micro_batch"),
        accumulation=_integer(row, "grad_accum"),
        seq_len=_integer(row, "seq_len"),
        image=_image(row),
        classes=_integer(row, "num_classes"),
        weights=_text(row, "weights_dtype"),
        autocast=_text(row, "autocast"),
        quantisation=_text(row, "quantisation"),
        optimizer=_text(row, "optimizer"),
        peft=_mapping(row, "peft"),
        checkpointing=None if checkpointing is None else str(checkpointing).lower(),
        attention=_text(row, "attention"),
        compiled=bool(row.get("compile")),
        loss_chunk=chunk if isinstance(chunk, int) and not isinstance(chunk, bool) else None,
        chunked=chunk is not None and chunk is not False,
        framework=_text(row, "framework") or _framework(" ".join(texts[:3])),
        year=_year(version),
        releases=_releases(version),
        metric=_text(row, "metric_asked"),
        assumption=_text(row, "assumption") or "",
        new_tokens=_integer(row, "new_tokens"),
        beams=_integer(row, "num_beams"),
        allocator=_text(row, "alloc_conf") or "",
    )


def _task(row: Mapping[str, Any]) -> str:
    try:
        return task_of(_text(row, "task"))
    except Unsupported as error:
        raise WorkloadError(str(error)) from None


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is None or isinstance(value, str):
        return value
    raise WorkloadError(f"{name}: expected a string, found {type(value).__name__}")


def _integer(row: Mapping[str, Any], name: str) -> int | None:
    value: object = row.get(name)
    if value is None:
        return None
    said = re.fullmatch(r"(\d[\d,_]*)\s*([kK]?)", value.strip()) if isinstance(value, str) else None
    if said is not None:
        value = int(re.sub(r"[,_]", "", said[1])) * (1024 if said[2] else 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1 != 0:
        raise WorkloadError(f"{name}: expected a whole number of at least 0, found {value!r}")
    return int(value)


def _mapping(row: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = row.get(name)
    if value is None or isinstance(value, Mapping):
        return cast("Mapping[str, Any] | None", value)
    raise WorkloadError(f"{name}: expected an object, found {type(value).__name__}")


def _image(row: Mapping[str, Any]) -> tuple[int, int] | None:
    value = row.get("image_size")
    if value is None:
        return None
    if isinstance(value, int):
        return value, value
    numbers = [int(n) for n in re.findall(r"\d+", str(value))]
    if len(numbers) == 1:
        return numbers[0], numbers[0]
    # "shorter edge 640-800, longer edge <= 1333": the largest image
    return (numbers[-2], numbers[-1]) if len(numbers) > 1 else None


_FRAMEWORKS = (
    ("litgpt", r"lit-?gpt|lightning-ai"),
    ("torchtitan", r"torchtitan|workflows/training|pretraining\.rst|moe_training|float8nocompile"),
    ("torchtune", r"torchtune"),
    ("timm", r"timm|pytorch-image-models"),
    ("detectron2", r"detectron2"),
    ("openmmlab", r"open-?mmlab|mmdet|mmseg"),
    ("diffusers", r"diffusers"),
    ("unsloth", r"unsloth"),
    ("transformers", r"huggingface|transformers|peft|\btrl|accelerate|deepspeed|qwen"),
    # trainers around the models of transformers
    (
        "transformers",
        r"axolotl|llama-?factory|fastchat|alpaca|qlora|lomo|galore|lmflow|ms-swift|modelscope|xtuner|h2o"
        r"|open-?instruct|firefly|loftq|badam|vicuna|baichuan|chatglm|internlm|bitsandbytes|autotrain|setfit",
    ),
)


def _framework(text: str) -> str:
    lowered = text.lower()
    return next((name for name, pattern in _FRAMEWORKS if re.search(pattern, lowered)), "")


def _year(version: str) -> float | None:
    """When the library was current, in years: by its version, else the first date of the text."""
    transformers = _releases(version).get("transformers")
    if transformers is not None:
        return date_of("transformers", transformers)
    dated = re.search(r"(20\d\d)-(\d\d)", version)
    if dated:
        return int(dated[1]) + (int(dated[2]) - 1) / 12
    year = re.search(r"\b(20\d\d)\b", version)
    return int(year[1]) + 0.5 if year else None


def _releases(version: str) -> dict[str, Version]:
    """`torch 2.4, transformers 4.49.0`; the first of each name."""
    found: dict[str, Version] = {}
    for name, number in re.findall(
        r"\b(torch|transformers|peft|torchtitan)[\s=]*v?(\d+\.\d+(?:\.\d+)*)", version
    ):
        found.setdefault(name, read_version(number))
    return found


def run(workload: Workload, calibrated: bool = True) -> Answer:
    """The peak of a warm step. Raises nothing for what cannot be known: the answer's `why` says it.

    calibrated: widen the hull of what was run by the modelling error.
    """
    card, larger = _cards(workload.gpu)
    try:
        first, choices = job_of(workload, Options(), card)
        simulated = simulate(first)
    except (Unsupported, OutOfFuel, LookupError) as error:
        return Answer(UNKNOWN, Verdict.UNKNOWN, why=str(error))
    others: list[int] = []
    for name, value in [(c.name, v) for c in choices for v in c.others][:MAX_ALTERNATIVES]:
        try:
            others.append(simulate(job_of(workload, Options({name: value}), card)[0]).allocated)
        except (Unsupported, OutOfFuel, LookupError):
            continue
    allocated = _hull(simulated.allocated, others)
    # only what was asked for is worth the replay: a row that asks for live bytes does without
    kept = reserved_interval(simulated, first, card, replay=workload.metric != "allocated")
    # the cache of an alternative is taken to be in proportion
    ends = [kept, *(_scaled(kept, other, simulated.allocated) for other in others)]
    reserved = Interval(min(each.low for each in ends), kept.point, max(each.high for each in ends))
    if calibrated:
        allocated, reserved = widened(allocated, "allocated"), widened(reserved, "reserved")
    need = needed_bytes(kept)
    needs = [need, *(need * other // max(simulated.allocated, 1) for other in others)]
    answered = _answer(workload, card, simulated, allocated, reserved, choices, needs)
    if larger is not None and not _agree(answered.verdict, answered.fits(larger, workload.gpus).verdict):
        # a card of this name would do and another would not
        return replace(answered, verdict=Verdict.BORDERLINE)
    return answered


def _agree(one: Verdict, other: Verdict) -> bool:
    fits = (Verdict.FITS, Verdict.PROBABLY_FITS)
    return (one in fits) == (other in fits)


def _no_card(name: str | None) -> str:
    if not name or re.match(r"not stated|unknown", name.lower()):
        return "the card is not stated"
    return f"the card {name!r} is not known"


def _hull(point: int, others: list[int]) -> Interval:
    return Interval(min([point, *others]), point, max([point, *others]))


def _scaled(interval: Interval, by: int, over: int) -> Interval:
    return Interval(*(bound * by // max(over, 1) for bound in (interval.low, interval.point, interval.high)))


def _answer(
    workload: Workload,
    card: Gpu | None,
    simulated: Simulated,
    allocated: Interval,
    reserved: Interval,
    choices: tuple[Choice, ...],
    needs: list[int],
) -> Answer:
    device = device_peak(reserved, _with_context(card or _ANY_CARD, workload), workload.gpus)
    judged = None
    if card is not None:
        judged = verdict(reserved, allocated, card, workload.gpus, needs[0], tuple(needs[1:]))
    # tensor and pipeline parallelism leave a part of the model here, which is not its size
    divided = "TP" in workload.parallelism or "PP" in workload.parallelism or "split" in workload.parallelism
    return Answer(
        Peak(allocated, reserved, device),
        judged.verdict if judged is not None else Verdict.UNKNOWN,
        "" if card is not None else _no_card(workload.gpu),
        simulated.phase,
        None if divided else simulated.parameters,
        None if divided else simulated.trainable,
        breakdown(simulated.kinds),
        plan_of(workload),
        tuple(choice.sentence for choice in choices),
        judged,
        tuple(needs),
    )


def breakdown(kinds: Mapping[StorageKind, int]) -> dict[str, int]:
    """Bytes by purpose, as estimates of scripts name them; their sum is the allocated peak."""

    def get(*wanted: StorageKind) -> int:
        return sum(kinds.get(kind, 0) for kind in wanted)

    return {
        "weights": get(StorageKind.WEIGHTS, StorageKind.BUFFERS),
        "gradients": get(StorageKind.GRADIENTS),
        "optimizer": get(StorageKind.OPTIMIZER),
        "activations": get(StorageKind.ACTIVATION),
        "inputs": get(StorageKind.INPUT),
        "temporaries": get(StorageKind.TEMPORARY),
        "workspaces": get(StorageKind.WORKSPACE),
    }


def plan_of(workload: Workload) -> dict[str, PlanField]:
    """What was stated, as the plan of an estimate."""
    stated: dict[str, str | int | None] = {
        "model": workload.model,
        "micro_batch": workload.micro_batch,
        "seq_len": workload.seq_len,
        "precision": workload.weights,
        "autocast": workload.autocast,
        "optimizer": workload.optimizer,
        "checkpointing": workload.checkpointing,
        "quantisation": workload.quantisation,
        "parallel": workload.parallel if workload.gpus > 1 else None,
        "gpus": workload.gpus,
    }
    return {name: PlanField(value, Source.CONFIGURED) for name, value in stated.items() if value is not None}


def _cards(name: str | None) -> tuple[Gpu | None, Gpu | None]:
    """The card, and the largest that the name may mean where it leaves that open."""
    if name is None:
        return None, None
    try:
        return hardware.find(name), hardware.largest_meant(name)
    except LookupError:
        return None, None


def _with_context(card: Gpu, workload: Workload) -> Gpu:
    """Before lazy loading a context held every kernel: 1343 MB on a V100 with CUDA 11.2."""
    if Installed(workload.releases, workload.year).value("kernel_loading") == "lazy":
        return card
    return replace(card, context_bytes=(800 * hardware.MIB, 1280 * hardware.MIB, 1800 * hardware.MIB))


#: Stands in for a card that is not stated, where only the context matters.
_ANY_CARD = hardware.find("a100-80gb")
