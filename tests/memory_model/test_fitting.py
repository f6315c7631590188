"""What would make a described job fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchwise_memory import fitting, hardware
from torchwise_memory.report import Verdict
from torchwise_memory.workload import Workload, run

CONFIG = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
JOB = Workload(
    config=CONFIG,
    gpu="a100-80gb",
    micro_batch=8,
    seq_len=2048,
    weights="fp32",
    autocast="bf16",
    optimizer="AdamW",
    checkpointing="false",
    framework="transformers",
)
SMALL_CARD = hardware.find("rtx-3090")
LARGE_CARD = hardware.find("a100-80gb")


def test_remedies_say_what_the_changed_job_takes() -> None:
    base = fitting.live_bytes(JOB)
    found = fitting.remedies(JOB)
    assert base is not None and found
    for remedy in found:
        assert remedy.peak_bytes == base - remedy.saves_bytes < base
        assert remedy.cost
    assert any("checkpoint" in remedy.change for remedy in found)
    assert [r.peak_bytes for r in found] == sorted(r.peak_bytes for r in found)


def test_where_no_single_change_suffices_the_smallest_combination_does() -> None:
    singles = fitting.remedies(JOB)
    card = hardware.find("rtx-4090")
    with_card = fitting.remedies(JOB, card)
    if min(remedy.peak_bytes for remedy in singles) * 1.06 < card.total_bytes * 0.9:
        pytest.fail("the job is too small for this test")
    assert " and " in with_card[-1].change
    assert with_card[-1].peak_bytes < card.total_bytes


def test_nothing_is_proposed_that_is_already_done() -> None:
    done = replace(JOB, checkpointing="true", optimizer="AdamW fused", chunked=True, micro_batch=1)
    changes = {remedy.change for remedy in fitting.remedies(done)}
    assert not changes & {
        "checkpoint activations",
        "use the fused optimizer",
        "compute head and loss in chunks",
        "halve the batch and accumulate",
    }


def test_the_largest_batch_fits_and_much_more_does_not() -> None:
    job = replace(JOB, checkpointing="true")
    batch = fitting.largest_batch(job, LARGE_CARD)
    assert batch is not None and batch >= 8
    peak, more = (fitting.live_bytes(replace(job, micro_batch=n), LARGE_CARD) for n in (batch, batch * 2))
    assert peak is not None and more is not None
    assert peak < LARGE_CARD.total_bytes < more * 1.1


def test_no_batch_fits_where_one_sample_does_not() -> None:
    assert fitting.largest_batch(replace(JOB, seq_len=65536), SMALL_CARD) == 0


def test_states_that_one_card_cannot_hold_are_sharded_over_several() -> None:
    job = replace(JOB, micro_batch=1, checkpointing="true")
    assert fitting.smallest_number(job, LARGE_CARD) == 1
    count = fitting.smallest_number(job, hardware.find("t4"))
    assert count is not None and count > 1


def test_cards_and_machines_that_fit_are_the_smallest_first() -> None:
    answered = run(JOB)
    cards = fitting.fitting_cards(answered, JOB)
    assert cards and [card.total_bytes for card in cards] == sorted(card.total_bytes for card in cards)
    assert all(answered.fits(card).verdict in (Verdict.FITS, Verdict.PROBABLY_FITS) for card in cards)
    machines = fitting.fitting_instances(answered, JOB)
    assert machines and all((machine.count or 0) >= 1 for machine in machines)


def test_an_unknown_job_has_no_remedies() -> None:
    unknown = replace(JOB, config={"model_type": "no-such-model"})
    assert fitting.remedies(unknown) == ()
    assert fitting.largest_batch(unknown, LARGE_CARD) is None
    assert fitting.smallest_number(unknown, LARGE_CARD) is None
    assert fitting.fitting_cards(run(unknown), unknown) == ()
