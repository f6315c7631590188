"""Correct programs, reduced from public code, on which no rule may say anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings

PROGRAMS = sorted((Path(__file__).parents[2] / "data" / "rules" / "quiet").glob("*.py"))


def findings(path: Path, text: str) -> list[tuple[str, str, int]]:
    """Rule, confidence and line (from 1) of everything that is found, whatever its grade."""
    file = SourceFile(str(path), text)
    assert file.module.problems == (), "the program must parse"
    trace = run(file.module, Project([str(path.parent)]))
    assert trace.silence.failed == ()
    result = judge(trace, file, Settings())
    assert result.failures == ()
    return [(f.rule, f.confidence.name.lower(), f.place.span.line + 1) for f in result.findings]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_nothing_is_said(path: Path) -> None:
    assert findings(path, path.read_text(encoding="utf-8")) == []


def spoiled(name: str, *changes: tuple[str, str]) -> list[tuple[str, str, int]]:
    """Findings on a quiet program after these replacements, which take away what excuses it."""
    path = next(p for p in PROGRAMS if p.stem == name)
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return findings(path, text)


def test_a_sampler_that_takes_every_index_does_not_shard() -> None:
    whole = ("if idx % self.num_replicas == self.rank:", "if idx >= 0:")
    told = ("rank=rank, num_replicas=num_gpus", "rank=0, num_replicas=1")
    found = spoiled("ddp_infinite_sampler_spawn", whole, told)
    assert [(rule, grade) for rule, grade, _ in found] == [("ddp-without-sharding", "certain")]


def test_random_data_from_one_seed_is_the_same_on_every_rank() -> None:
    seeded = ("def main(config):\n", "def main(config):\n    torch.manual_seed(0)\n")
    assert [rule for rule, _, _ in spoiled("ddp_random_data", seeded)] == ["ddp-without-sharding"]


def test_a_file_that_is_the_same_on_every_rank_does_not_shard() -> None:
    same = ("(index * self.world_size + self.rank)", "index")
    assert [rule for rule, _, _ in spoiled("ddp_file_by_rank", same)] == ["ddp-without-sharding"]


def test_guards_that_leave_a_count_without_a_clear_are_reported() -> None:
    gap = ("if self.accum_count > 1:", "if self.accum_count > 2:")
    assert [rule for rule, _, _ in spoiled("zero_grad_complementary_guards", gap)] == ["missing-zero-grad"]


def test_a_branch_that_never_clears_is_reported() -> None:
    lost = (
        "            optimizer.zero_grad()\n            scaler.scale(loss)",
        "            scaler.scale(loss)",
    )
    assert [rule for rule, _, _ in spoiled("zero_grad_invariant_branch", lost)] == ["missing-zero-grad"]


def test_a_clear_at_another_turn_is_not_enough() -> None:
    late = ("if i == 0:", "if i < 0:")
    assert [rule for rule, _, _ in spoiled("zero_grad_first_microbatch", late)] == ["missing-zero-grad"]


def test_a_loop_inside_a_test_is_a_loop() -> None:
    once = (
        "        output = self.model(self.x)\n        output[1].backward()\n        self.optimizer.step()\n"
    )
    body = "".join(f"    {line}\n" for line in once.splitlines())
    looped = (once, f"        for _ in range(9):\n{body}")
    assert [rule for rule, _, _ in spoiled("zero_grad_unittest_fixture", looped)] == ["missing-zero-grad"]


def test_a_mode_that_is_set_while_training_goes_on_is_reported() -> None:
    clear = "                optimizer.zero_grad()\n"
    later = (clear, f"{clear}                if step > 0:\n                    model.eval()\n")
    assert [rule for rule, _, _ in spoiled("eval_mode_chosen_by_flag", later)] == ["stuck-eval-mode"]


def test_what_a_known_layer_gives_is_kept_with_its_graph() -> None:
    called = ("tokenized = [tokenizer(text", "tokenized = [nn.Linear(4, 2)(text")
    kept = ("return [t.input_ids[0] for t in tokenized]", "print(len(tokenized))")
    found = spoiled("possible_unknown_callables", called, (', return_tensors="pt"', ""), kept)
    assert [(rule, grade) for rule, grade, _ in found] == [("retained-graph", "possible")]
