"""What fuzzing found worth keeping, once more; without atheris."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")
KEPT = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", KEPT, ids=[str(path.relative_to(CORPUS)) for path in KEPT])
def test_kept_inputs_are_survived(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_target_has_a_corpus() -> None:
    assert {path.parent.name for path in KEPT} == set(TARGETS)
