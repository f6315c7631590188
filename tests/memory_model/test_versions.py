"""What changed between releases: the data, the page made of it, and its effect on the peak."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from torchwise_memory import versions
from torchwise_memory.runtime.world import World
from torchwise_memory.versions import Installed, behaviours
from torchwise_memory.workload import Workload, read, run

ROOT = Path(__file__).parents[2]
NAMES = sorted({row.name for row in behaviours()})


@pytest.mark.parametrize("name", NAMES)
def test_the_ranges_of_a_behaviour_leave_no_gap(name: str) -> None:
    rows = [row for row in behaviours() if row.name == name]
    assert rows[0].since is None and rows[-1].until is None
    assert len({row.library for row in rows}) == 1
    for earlier, later in pairwise(rows):
        assert earlier.until == later.since is not None


def test_rows_of_one_behaviour_stand_together_and_say_what_and_why() -> None:
    assert len([name for name, _ in groupby(behaviours(), key=lambda row: row.name)]) == len(NAMES)
    assert all(row.effect and row.source for row in behaviours())


def test_every_behaviour_is_used_and_no_other_is_asked_for() -> None:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "memory_model").rglob("*.py"))
    asked = {name for text in texts for name in re.findall(r"\"(\w+)\"", text) if name in NAMES}
    assert asked == set(NAMES)
    with pytest.raises(LookupError):
        Installed().value("no such thing")


def test_the_page_shows_today_s_table() -> None:
    page = (ROOT / "docs" / "memory-model.md").read_text(encoding="utf-8")
    assert versions.in_page(page) == page, "run `python -m torchwise_memory.versions docs/memory-model.md`"


@pytest.mark.parametrize(
    ("text", "version"), [("4.36.2", (4, 36, 2)), ("2.1.0+cu121", (2, 1, 0)), ("main", ())]
)
def test_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    assert versions.read(text) == version


def test_a_date_means_the_releases_of_its_time() -> None:
    then = Installed({"torch": (2, 0, 1)}, 2023.92)
    assert then.version("torch") == (2, 0, 1)
    assert then.version("transformers") == (4, 36)
    assert Installed({}, 1999.0).value("zero_grad") == "zeros"
    assert Installed().value("zero_grad") == "none"


def test_dates_and_releases_are_in_order() -> None:
    for library in ("torch", "transformers", "peft", "torchtitan"):
        known = versions.releases(library)
        assert sorted(known) == list(known)
        assert versions.date_of(library, known[-1][0]) == known[-1][1]
    assert versions.releases("unheard-of") == ()


GROUPED = Workload(
    config={
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 8000,
    },
    micro_batch=4,
    seq_len=512,
    weights="bf16",
    optimizer="AdamW",
    checkpointing="false",
    attention="sdpa",
    framework="transformers",
)


def allocated(library: str, version: tuple[int, ...], workload: Workload = GROUPED) -> int:
    peak = run(replace(workload, releases={library: version}), calibrated=False).peak.allocated
    assert peak is not None
    return peak.point


@pytest.mark.parametrize(
    ("library", "before", "after"), [("transformers", (4, 53), (4, 54)), ("torch", (1, 13, 1), (2, 0))]
)
def test_a_later_release_takes_less(library: str, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert allocated(library, before) > allocated(library, after)


def test_adapters_are_wider_from_peft_0_11_on() -> None:
    adapted = replace(GROUPED, peft={"method": "LoRA", "rank": 64, "targets": ["all-linear"]})
    assert allocated("peft", (0, 10), adapted) < allocated("peft", (0, 11), adapted)


def test_an_old_context_is_larger() -> None:
    old, new = (
        run(replace(GROUPED, gpu="v100-16gb", releases={"torch": version}), calibrated=False).peak
        for version in ((2, 0), (2, 1))
    )
    assert old.device is not None and new.device is not None
    assert old.reserved is not None and new.reserved is not None
    assert old.device.point - old.reserved.point > new.device.point - new.reserved.point


def test_a_description_states_releases_in_words() -> None:
    workload = read({"version": "snapshot 2025-09-11; transformers 4.49.0, torch==2.6"})
    assert workload.releases == {"transformers": (4, 49, 0), "torch": (2, 6)}
    assert workload.year == pytest.approx(2025.08, abs=0.01)


def test_an_assumed_release_is_named_once_it_matters() -> None:
    w = World(torch_version=(2, 8))
    w.torch_is_assumed = True
    assert not w.assumptions
    assert w.does("rms_norm") == "composite"
    assert any("2.8" in sentence for sentence in w.assumptions)
    assert World(torch_version=(2, 9)).does("rms_norm") == "fused"
