"""`torchwise estimate --model NAME`: a job described by options instead of a script."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise_memory.report import Estimate, GpuVerdict, Kind, Origin, PlanField, Remedy, Source, Verdict
from torchwise_server.cli import Exit, UsageError
from torchwise_server.cli.given import QUANTISED, trained_beside, with_machines
from torchwise_server.cli.output import complain, say
from torchwise_server.reporters.sources import Sources
from torchwise_server.reporters.words import amount

if TYPE_CHECKING:
    from torchwise_memory.hardware import Gpu
    from torchwise_memory.workload import Answer, Workload

_KINDS = {"train": Kind.TRAINING, "generate": Kind.GENERATION, "load": Kind.INFERENCE}
_PARALLEL = {
    "ddp": ("DDP", "DDP"),
    "fsdp": ("FSDP", "FSDP full shard (per transformer block)"),
    "zero-2": ("ZeRO", "ZeRO-2"),
    "zero-3": ("ZeRO", "ZeRO-3"),
    "tp": ("TP", "TP"),
}
_BADNESS = (
    Verdict.FITS,
    Verdict.PROBABLY_FITS,
    Verdict.BORDERLINE,
    Verdict.PROBABLY_OOM,
    Verdict.OOM,
)


def answer(options: argparse.Namespace) -> int:
    """Estimate, report, and return the exit status."""
    from torchwise_memory.hardware import UnknownGpuError, find

    if options.files:
        raise UsageError("--model describes a run without a script; leave the files out")
    if options.model == "list":
        return _list_models(options.format)
    if options.fail_on and not options.gpu:
        raise UsageError("--fail-on compares with a card: name one with --gpu")
    try:
        cards = [find(name) for name in options.gpu]
    except UnknownGpuError as error:
        raise UsageError(f"{error}; `torchwise gpus` lists them") from None
    workload = _workload(options)
    from torchwise_memory.workload import run

    answered = run(workload)
    if answered.peak.allocated is None:
        if answered.why.startswith("unknown model"):
            raise UsageError(f"{answered.why}; `torchwise estimate --model list` shows all")
        complain(f"no estimate: {answered.why}")
        return Exit.UNREAD
    estimate = with_machines(_estimate(options, workload, answered, cards), options.gpu, options.all_gpus)
    if any(gpu.verdict not in (Verdict.FITS, Verdict.UNKNOWN) for gpu in estimate.gpus):
        estimate = replace(estimate, remedies=_remedies(workload, cards[0]))
    _report(options, estimate)
    if options.fail_on:
        floor = _BADNESS.index(Verdict(options.fail_on))
        judged = [gpu.verdict for gpu in estimate.gpus if gpu.verdict is not Verdict.UNKNOWN]
        return Exit.FINDINGS if any(_BADNESS.index(v) >= floor for v in judged) else Exit.OK
    return Exit.OK


def _list_models(form: str) -> int:
    from torchwise_memory.families import torchvision, vision
    from torchwise_memory.jobs import has_family
    from torchwise_memory.presets import presets

    models = sorted((p for p in presets() if has_family(p.config)), key=lambda preset: preset.name)
    networks = sorted({*vision.TRANSFORMERS, *vision.STAGES, *torchvision.MODELS})
    if form != "text":
        rows = [{"name": each.name, "parameters": each.parameters, "source": each.source} for each in models]
        document = {"version": 1, "models": rows, "image_networks": networks}
        say(json.dumps(document, indent=1))
        return Exit.OK
    for each in models:
        say(f"{each.name:<28}  {amount(each.parameters):>8}  {each.source.removesuffix(' config.json')}")
    for name in networks:
        say(f"{name:<28}            torchvision or timm")
    return Exit.OK


def _workload(options: argparse.Namespace) -> Workload:
    from torchwise_memory.workload import Workload

    for name in ("batch_size", "seq_len", "image_size", "lora", "virtual_tokens", "accumulate", "gpus"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected a number of at least 1")
    if options.parallel and options.gpus < 2:
        raise UsageError(f"--parallel {options.parallel} needs --gpus 2 or more")
    if options.gpus > 1 and not options.parallel:
        raise UsageError("--gpus above 1 needs --parallel: how the work is divided decides what a card holds")
    parallel, words = _PARALLEL[options.parallel] if options.parallel else ("none", "")
    precision = options.precision or "bf16"
    half = precision.removeprefix("amp-")
    return Workload(
        model=options.model if options.parameters is None else None,
        config=options.model_config,
        parameters=options.parameters,
        task=options.task,
        gpu=options.gpu[0] if options.gpu else None,
        gpus=options.gpus,
        parallel=parallel,
        parallelism=words,
        micro_batch=options.batch_size or 1,
        accumulation=options.accumulate,
        seq_len=options.seq_len,
        image=None if options.image_size is None else (options.image_size, options.image_size),
        weights="fp32" if precision.startswith("amp") else half,
        autocast=half if precision.startswith("amp") else "none",
        quantisation=QUANTISED.get(options.quantise or ""),
        optimizer=options.optimizer or "AdamW",
        peft=trained_beside(options),
        checkpointing="true" if options.checkpointing else "false",
        compiled=options.compile,
        chunked=options.chunked_loss,
        framework="transformers",
        releases={name: version for name, (version, _) in _releases().items()},
    )


@cache
def _releases() -> dict[str, tuple[tuple[int, ...], str]]:
    """Of the libraries, as the working folder's environment, pins and locks say, and who says so."""
    from torchwise_analysis.names.environment import library_folders
    from torchwise_analysis.names.releases import release_run

    here = Path.cwd()
    folders = library_folders(here)
    found = {name: release_run(name, [str(here)], folders) for name in ("transformers", "torch", "peft")}
    return {name: (version, where) for name, (version, where) in found.items() if version is not None}


def _estimate(
    options: argparse.Namespace, workload: Workload, answered: Answer, cards: list[Gpu]
) -> Estimate:
    plan = {"model": PlanField(options.model, Source.CONFIGURED), **answered.plan}
    for name, given, why in (
        ("micro_batch", options.batch_size, "no --batch-size was given"),
        ("precision", options.precision, "no --precision was given"),
        ("optimizer", options.optimizer, "no --optimizer was given"),
    ):
        if given is None and name in plan:
            plan[name] = PlanField(plan[name].value, Source.ASSUMED, None, why)
    assumed_length = next((words for words in answered.assumptions if words.endswith("tokens assumed")), "")
    if options.seq_len is None and assumed_length:
        plan["seq_len"] = PlanField(None, Source.UNKNOWN, None, "no --seq-len was given; see what is assumed")
    if options.image_size is not None:
        plan["image_size"] = PlanField((options.image_size, options.image_size), Source.CONFIGURED)
    plan["checkpointing"] = PlanField(options.checkpointing, Source.CONFIGURED)
    if options.lora is not None:
        adapters = f"rank {options.lora}, on {options.lora_targets or 'q_proj,v_proj'}"
        plan["lora"] = PlanField(adapters, Source.CONFIGURED)
    if options.adapter is not None:
        plan["adapter"] = PlanField(options.adapter, Source.CONFIGURED)
    if options.accumulate is not None:
        plan["accumulation"] = PlanField(options.accumulate, Source.CONFIGURED)
    if options.task != "train":
        plan.pop("optimizer", None)
        plan.pop("checkpointing", None)
    peak = answered.peak
    return Estimate(
        origin=Origin(options.model, 1),
        kind=_KINDS[options.task],
        plan=plan,
        parameters=answered.parameters,
        trainable_parameters=answered.trainable,
        peak=peak if cards else replace(peak, device=None),
        phase=answered.phase,
        breakdown=dict(answered.breakdown),
        alive=(),
        assumptions=(*(f"releases: {where}" for _, where in _releases().values()), *answered.assumptions),
        gpus=tuple(_verdicts(workload, answered, cards)),
        gpus_used=workload.gpus,
    )


def _verdicts(workload: Workload, answered: Answer, cards: list[Gpu]) -> Iterator[GpuVerdict]:
    """For each card, by a run of its own where it runs other kernels than the first one."""
    from torchwise_memory.hardware import kernels
    from torchwise_memory.verdict import device_peak
    from torchwise_memory.workload import run

    runs: dict[object, Answer] = {kernels(card.sm): answered for card in cards[:1]}
    for card in cards:
        key = kernels(card.sm)
        if key is not None and key not in runs:
            runs[key] = run(replace(workload, gpu=card.name))
        there = runs.get(key, answered)
        judged = there.fits(card, workload.gpus)
        if there.peak.allocated != answered.peak.allocated:
            device = device_peak(there.peak.reserved, card, workload.gpus)
            judged = replace(judged, peak=replace(there.peak, device=device))
        yield judged


def _remedies(workload: Workload, card: Gpu) -> tuple[Remedy, ...]:
    """What would make it fit the first card: changes, a smaller batch, more cards."""
    from torchwise_memory import fitting

    base = fitting.live_bytes(workload, card)
    if base is None:
        return ()
    found = list(fitting.remedies(workload, card))
    batch = fitting.largest_batch(workload, card)
    if batch and batch < (workload.micro_batch or 1):
        peak = fitting.live_bytes(replace(workload, micro_batch=batch), card) or base
        cost = "the largest that fits this card"
        options = f"--batch-size {batch}"
        found.append(Remedy(f"lower the batch to {batch}", base - peak, peak, cost, options=options))
    count = fitting.smallest_number(workload, card) if workload.task == "train" else None
    if count is not None and count > workload.gpus:
        peak = fitting.live_bytes(fitting.sharded(workload, count), card) or base
        cost = "the smallest number, a power of two, that holds it"
        options = f"--gpus {count} --parallel fsdp"
        found.append(Remedy(f"shard over {count} such cards", base - peak, peak, cost, options=options))
    return tuple(found)


def _report(options: argparse.Namespace, estimate: Estimate) -> None:
    from torchwise_server.cli.estimate import report

    report(options, (estimate,), (), Sources(_same, _same, _no_lines, _no_cell), described=True)


def _same(name: str) -> str:
    return name


def _no_lines(path: str) -> tuple[str, ...]:  # noqa: ARG001 -- a model is no file
    return ()


def _no_cell(path: str, line: int) -> None:  # noqa: ARG001
    return None
