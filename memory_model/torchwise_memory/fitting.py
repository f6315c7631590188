"""What would make a described job fit: changes and small combinations, batches, cards, numbers of cards.

Every answer comes from running the changed description again; nothing is added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from torchwise_memory.hardware import Gpu, Instance, gpus, instances
from torchwise_memory.jobs import Options, job_of
from torchwise_memory.report import Remedy, Verdict
from torchwise_memory.runtime.errors import OutOfFuel, Unsupported
from torchwise_memory.simulation import simulate
from torchwise_memory.verdict import beside_pytorch
from torchwise_memory.workload import Answer, Workload

FITS = (Verdict.FITS, Verdict.PROBABLY_FITS)
MAX_BATCH = 1 << 16
MAX_GPUS = 4096
#: Between the live peak and what the allocator keeps, where an answer must be quick.
CACHE_SHARE = 0.06
#: A change that saves less is not worth naming.
WORTH = 0.01


@dataclass(frozen=True, slots=True)
class Change:
    """One way to need less.

    applies: whether the description leaves room for it. options: of the command line that say the changed
    job; empty where none does.
    """

    name: str
    cost: str
    applies: Callable[[Workload], bool]
    apply: Callable[[Workload], Workload]
    options: str | Callable[[Workload], str] = ""

    def options_of(self, changed: Workload) -> str:
        """The options for a job that was changed so."""
        return self.options if isinstance(self.options, str) else self.options(changed)


def _trains(w: Workload) -> bool:
    return w.task == "train"


CHANGES: tuple[Change, ...] = (
    Change(
        "use the fused optimizer",
        "none: the same update without a temporary copy",
        lambda w: _trains(w) and (w.optimizer or "AdamW").lower() in ("adamw", "adam"),
        lambda w: replace(w, optimizer=f"{w.optimizer or 'AdamW'} fused"),
        "--optimizer 'adamw fused'",
    ),
    Change(
        "use attention through SDPA",
        "none: the same result up to rounding",
        lambda w: "eager" in (w.attention or "") or "manual" in (w.attention or ""),
        lambda w: replace(w, attention="SDPA"),
    ),
    Change(
        "checkpoint activations",
        "time: the forward pass is computed again, about a third more",
        lambda w: _trains(w) and w.checkpointing in (None, "false", "none", "no"),
        lambda w: replace(w, checkpointing="true"),
        "--checkpointing",
    ),
    Change(
        "compute head and loss in chunks",
        "a fused or chunked loss (Liger, torchtune)",
        lambda w: _trains(w) and not w.chunked and w.image is None,
        lambda w: replace(w, chunked=True),
        "--chunked-loss",
    ),
    Change(
        "halve the batch and accumulate",
        "time: more and smaller steps; gradients of earlier micro-batches stay",
        lambda w: _trains(w) and (w.micro_batch or 1) >= 2,
        lambda w: replace(w, micro_batch=(w.micro_batch or 2) // 2, accumulation=2 * (w.accumulation or 1)),
        lambda w: f"--batch-size {w.micro_batch} --accumulate {w.accumulation}",
    ),
    Change(
        "run products in bf16 (autocast)",
        "numerics: products in 8 bits of mantissa",
        lambda w: _trains(w) and "32" in (w.weights or "") and (w.autocast or "none").startswith("none"),
        lambda w: replace(w, autocast="bf16"),
        "--precision amp-bf16",
    ),
    Change(
        "keep optimizer states in 8 bits",
        "numerics: states are quantised; needs bitsandbytes or torchao",
        lambda w: _trains(w) and w.peft is None and "8" not in (w.optimizer or "").lower(),
        lambda w: replace(w, optimizer="AdamW 8-bit (bitsandbytes)"),
        "--optimizer adamw-8bit",
    ),
    Change(
        "shard over the processes (FSDP)",
        "communication: parameters are gathered for each layer",
        lambda w: _trains(w) and w.gpus > 1 and w.parallel == "DDP",
        lambda w: replace(w, parallel="FSDP", parallelism="FSDP full shard (per transformer block)"),
        "--parallel fsdp",
    ),
    Change(
        "keep weights, gradients and states in bf16",
        "changes training: small updates are lost without an fp32 copy",
        lambda w: _trains(w) and "32" in (w.weights or "") and w.image is None,
        lambda w: replace(w, weights="bf16", autocast="none"),
        "--precision bf16",
    ),
    Change(
        "train adapters of rank 16 (LoRA)",
        "changes training: only adapters learn",
        lambda w: _trains(w) and w.peft is None and w.image is None and w.quantisation is None,
        lambda w: replace(w, peft={"method": "LoRA", "rank": 16, "targets": ["q_proj", "v_proj"]}),
        "--lora 16",
    ),
    Change(
        "hold weights in 4 bits (nf4)",
        "numerics and time: weights are unpacked at each use",
        lambda w: w.quantisation is None and (w.peft is not None or not _trains(w)) and w.image is None,
        lambda w: replace(w, quantisation="bnb nf4"),
        "--quantise nf4",
    ),
    Change(
        "use a key/value cache of 8 bits",
        "numerics: keys and values are quantised",
        lambda w: w.task == "generate" and w.quantisation is None,
        lambda w: replace(w, quantisation="int8 KV cache"),
        "--quantise int8-kv",
    ),
)


def live_bytes(workload: Workload, card: Gpu | None = None) -> int | None:
    """The allocated peak, None where nothing can be said."""
    try:
        return simulate(job_of(workload, Options(), card)[0]).allocated
    except (Unsupported, OutOfFuel, LookupError):
        return None


def remedies(workload: Workload, card: Gpu | None = None, limit: int = 6) -> tuple[Remedy, ...]:
    """Single changes, most saved first; then the combination of fewest changes that fits the card.

    Free changes come before others that save as much. Without a card, or where one change suffices, there is
    no combination.
    """
    base = live_bytes(workload, card)
    if base is None:
        return ()
    found: list[tuple[Change, int, str]] = []
    for change in CHANGES:
        if not change.applies(workload):
            continue
        changed = change.apply(workload)
        peak = live_bytes(changed, card)
        if peak is not None and peak < base * (1 - WORTH):
            found.append((change, peak, change.options_of(changed)))
    found.sort(key=lambda entry: entry[1])
    made = [
        Remedy(change.name, base - peak, peak, change.cost, options=options)
        for change, peak, options in found[:limit]
    ]
    if card is None or not found or _fits(base, card, workload) or _fits(found[0][1], card, workload):
        return tuple(made)
    combined = _combination(workload, [change for change, _, _ in found], base, card)
    return (*made, combined) if combined is not None else tuple(made)


def _combination(workload: Workload, changes: list[Change], base: int, card: Gpu) -> Remedy | None:
    """The first pair that fits, else the first triple, among the six that save most."""
    for size in (2, 3):
        for chosen in combinations(changes[:6], size):
            changed = workload
            options: list[str] = []
            for change in chosen:
                if change.applies(changed):
                    changed = change.apply(changed)
                    options.append(change.options_of(changed))
            peak = live_bytes(changed, card)
            if peak is not None and _fits(peak, card, changed):
                names = " and ".join(change.name for change in chosen)
                costs = "; ".join(dict.fromkeys(change.cost for change in chosen))
                said = " ".join(options) if all(options) else ""
                return Remedy(names, base - peak, peak, costs, options=said)
    return None


def _fits(peak: int, card: Gpu, workload: Workload) -> bool:
    """Whether the point with some cache fits beside context and libraries."""
    beside = beside_pytorch(card, workload.gpus)[1]
    return peak * (1 + CACHE_SHARE) + beside <= card.total_bytes * 0.98


def largest_batch(workload: Workload, card: Gpu) -> int | None:
    """The largest batch of one GPU whose estimate fits, 0 where not even one sample does.

    The peak is piecewise linear in the batch: doubled until it no longer fits, then halved in between.
    """

    def fits(batch: int) -> bool | None:
        peak = live_bytes(replace(workload, micro_batch=batch), card)
        return None if peak is None else _fits(peak, card, workload)

    first = fits(1)
    if not first:
        return None if first is None else 0
    low, high = 1, 2
    while high <= MAX_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def smallest_number(workload: Workload, card: Gpu) -> int | None:
    """How many such cards hold the job when it is sharded over them: a power of two, None where none does."""
    return smallest_numbers(workload, (card,))[0]


def smallest_numbers(workload: Workload, cards: Sequence[Gpu]) -> list[int | None]:
    """`smallest_number` of each card; cards that choose the same kernels share their runs."""
    peaks: dict[tuple[int, int | None], int | None] = {}

    def number(card: Gpu) -> int | None:
        count = 1
        while count <= MAX_GPUS:
            changed = sharded(workload, count)
            if (count, card.sm) not in peaks:
                peaks[count, card.sm] = live_bytes(changed, card)
            peak = peaks[count, card.sm]
            if peak is None:
                return None
            if _fits(peak, card, changed):
                return count
            count *= 2
        return None

    return [number(card) for card in cards]


def sharded(workload: Workload, count: int) -> Workload:
    """The job over so many cards by FSDP, on one card whole."""
    if count == 1:
        return replace(workload, gpus=1, parallel="none", parallelism="")
    words = "FSDP full shard (per transformer block)"
    return replace(workload, gpus=count, parallel="FSDP", parallelism=words)


def fitting_cards(answer: Answer, workload: Workload, limit: int = 5) -> tuple[Gpu, ...]:
    """The smallest cards that hold what was estimated, one of each size."""
    if answer.peak.allocated is None or answer.peak.reserved is None:
        return ()
    seen: set[int] = set()
    found: list[Gpu] = []
    for card in sorted(gpus(), key=lambda gpu: gpu.total_bytes):
        if answer.fits(card, workload.gpus).verdict in FITS and card.total_bytes >> 30 not in seen:
            seen.add(card.total_bytes >> 30)
            found.append(card)
    return tuple(found[:limit])


def fitting_instances(answer: Answer, workload: Workload, limit: int = 5) -> tuple[Instance, ...]:
    """The smallest cloud machines with enough such cards, by memory of all their cards."""
    if answer.peak.allocated is None or answer.peak.reserved is None:
        return ()

    def holds() -> Iterator[tuple[float, Instance]]:
        for machine in instances():
            if machine.count is None or machine.count < workload.gpus:
                continue
            if answer.fits(machine.gpu, workload.gpus).verdict in FITS:
                yield machine.count * machine.gpu.total_bytes, machine

    ordered = sorted(holds(), key=lambda pair: (pair[0], pair[1].provider, pair[1].name))
    return tuple(machine for _, machine in ordered[:limit])
