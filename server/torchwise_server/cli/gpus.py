"""`torchwise gpus`: the cards and cloud machines that estimates know."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from torchwise_memory.hardware import Gpu, Instance
from torchwise_server.cli import Exit, UsageError
from torchwise_server.cli.console import report_console
from torchwise_server.cli.given import QUANTISED, adapters
from torchwise_server.cli.options import Parser
from torchwise_server.cli.output import say
from torchwise_server.reporters.words import size

if TYPE_CHECKING:
    from torchwise_memory.workload import Workload

_DESCRIPTION = """\
List the GPUs that estimates know, with the memory that PyTorch sees (less than the data sheet says), or
show which one a name means. Names are found in every usual spelling. With --for, say how many of each card
hold the training of a model that is sharded over them (FSDP)."""

_EPILOG = """\
examples:
  torchwise gpus
  torchwise gpus "Tesla T4" "A100-SXM4-80GB" g5.xlarge
  torchwise gpus --instances
  torchwise gpus --for llama-3-8b --seq-len 4096 --checkpointing rtx-4090 h100
  torchwise gpus --for llama-3-70b --lora 16 --quantise nf4 --seq-len 2048 --checkpointing
  torchwise gpus --format json"""


def run(words: list[str]) -> int:
    """Print the table."""
    options = parser().parse(words)
    if options.model:
        _print_numbers(options)
    elif options.instances:
        _print_instances(options.format)
    else:
        _print_gpus(_chosen(options.names), options.format)
    return Exit.OK


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("gpus", _DESCRIPTION, _EPILOG)
    parser.add_argument("names", nargs="*", metavar="NAME", help="show only the cards that these names mean")
    parser.add_argument("--instances", action="store_true", help="list cloud machines instead")
    job = parser.add_argument_group("the smallest number of cards")
    job.add_argument("--for", dest="model", metavar="MODEL", help="a model of `estimate --model list`")
    job.add_argument("--batch-size", type=int, metavar="N", help="of each card; default: 1")
    job.add_argument("--seq-len", type=int, metavar="N", help="tokens a sample")
    job.add_argument("--precision", default="bf16", help="bf16, fp32, amp-bf16; default: bf16")
    job.add_argument("--optimizer", default="AdamW", metavar="NAME", help="default: AdamW")
    job.add_argument("--checkpointing", action="store_true", help="recompute activations")
    job.add_argument(
        "--lora", type=int, nargs="?", const=8, metavar="RANK", help="train adapters (default rank: 8)"
    )
    job.add_argument(
        "--lora-targets", metavar="NAMES", help="by commas, or all-linear (default: q_proj,v_proj)"
    )
    job.add_argument("--quantise", choices=tuple(QUANTISED), help="how frozen weights are stored")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    return parser


def _chosen(names: list[str]) -> tuple[Gpu, ...]:
    from torchwise_memory.hardware import UnknownGpuError, find, gpus

    try:
        return tuple(find(name) for name in names) or gpus()
    except UnknownGpuError as error:
        raise UsageError(f"{error}; `torchwise gpus` lists them") from None


def _print_gpus(gpus: tuple[Gpu, ...], form: str) -> None:
    if form == "json":
        say(json.dumps({"version": 1, "gpus": [_gpu_as_dict(gpu) for gpu in gpus]}, indent=1))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header, justify in (("name", "left"), ("memory", "right"), ("compute", "right"), ("card", "left")):
        table.add_column(header, justify="right" if justify == "right" else "left", no_wrap=True)
    table.add_column("")
    for gpu in gpus:
        compute = "" if gpu.sm is None else f"{gpu.sm // 10}.{gpu.sm % 10}"
        note = "" if gpu.total_seen else "inferred"
        table.add_row(
            Text(gpu.name, style="bold"), size(gpu.total_bytes), compute, gpu.title, Text(note, style="dim")
        )
    console = report_console()
    console.print(table)
    if not all(gpu.total_seen for gpu in gpus):
        note = "\ninferred: from the data sheet and like cards; no report of a device was seen"
        console.print(Text(note, style="dim"))


#: What is listed where no card is named.
_USUAL = (
    "t4", "rtx-3090", "rtx-4090", "a10g", "l4", "l40s", "a100-40gb", "a100-80gb", "h100-80gb", "h200", "b200",
)  # fmt: skip


def _print_numbers(options: argparse.Namespace) -> None:
    from torchwise_memory.fitting import (
        fitting_cards,
        fitting_instances,
        live_bytes,
        sharded,
        smallest_numbers,
    )
    from torchwise_memory.workload import Workload, run

    for name in ("batch_size", "seq_len", "lora"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected a number of at least 1")
    half = options.precision.removeprefix("amp-")
    mixed = options.precision != half
    job = Workload(
        model=options.model,
        micro_batch=options.batch_size or 1,
        seq_len=options.seq_len,
        weights="fp32" if mixed else half,
        autocast=half if mixed else "none",
        optimizer=options.optimizer,
        checkpointing="true" if options.checkpointing else "false",
        peft=None if options.lora is None else adapters(options.lora, options.lora_targets),
        quantisation=QUANTISED.get(options.quantise or ""),
        framework="transformers",
    )
    if live_bytes(job) is None:
        raise UsageError(f"{_why_nothing(job)}; `torchwise estimate --model list` shows all")
    cards = _chosen(options.names or list(_USUAL))
    rows = [
        (card, count, None if count is None else live_bytes(sharded(job, count), card))
        for card, count in zip(cards, smallest_numbers(job, cards), strict=True)
    ]
    answered = run(job)
    smallest, machines = fitting_cards(answered, job), fitting_instances(answered, job)
    if options.format == "json":
        numbers = [{"gpu": card.name, "count": count, "peak_bytes": peak} for card, count, peak in rows]
        document = {
            "version": 1,
            "model": options.model,
            "smallest": numbers,
            "smallest_cards": [card.name for card in smallest],
            "smallest_instances": [machine.name for machine in machines],
        }
        say(json.dumps(document, indent=1))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in ("card", "memory", "how many", "peak of each"):
        table.add_column(header, justify="left" if header == "card" else "right", no_wrap=True)
    for card, count, peak in rows:
        many = "none suffices" if count is None else str(count)
        table.add_row(card.name, size(card.total_bytes), many, "" if peak is None else size(peak))
    console = report_console()
    console.print(table)
    for what, names in (
        ("smallest cards that hold it alone", [card.name for card in smallest]),
        ("smallest cloud machines", [f"{machine.name} ({machine.provider})" for machine in machines]),
    ):
        console.print(Text(f"\n{what}: {', '.join(names) or 'none'}"))
    if not options.checkpointing and any(count is None for _, count, _ in rows):
        note = "\nnone suffices: activations are not sharded; --checkpointing and smaller batches lower them"
        console.print(Text(note, style="dim"))


def _why_nothing(job: Workload) -> str:
    from torchwise_memory.presets import UnknownModelError, find

    try:
        find(job.model or "")
    except UnknownModelError as error:
        return str(error)
    return f"no estimate for {job.model!r}"


def _gpu_as_dict(gpu: Gpu) -> dict[str, object]:
    low, point, high = gpu.context_bytes
    return {
        "name": gpu.name,
        "title": gpu.title,
        "vendor": gpu.vendor,
        "total_bytes": gpu.total_bytes,
        "total_seen": gpu.total_seen,
        "compute_capability": None if gpu.sm is None else f"{gpu.sm // 10}.{gpu.sm % 10}",
        "context_bytes": {"low": low, "point": point, "high": high},
    }


def _print_instances(form: str) -> None:
    from torchwise_memory.hardware import instances

    if form == "json":
        rows = [_instance_as_dict(instance) for instance in instances()]
        say(json.dumps({"version": 1, "instances": rows}, indent=1))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in ("instance", "GPUs", "provider"):
        table.add_column(header, no_wrap=True)
    for instance in instances():
        count = "?" if instance.count is None else f"{instance.count:g}"
        table.add_row(Text(instance.name, style="bold"), f"{count} × {instance.gpu.name}", instance.provider)
    report_console().print(table)


def _instance_as_dict(instance: Instance) -> dict[str, object]:
    return {
        "name": instance.name,
        "provider": instance.provider,
        "gpu": instance.gpu.name,
        "count": instance.count,
    }
