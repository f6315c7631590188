"""One change makes a quiet program faulty: the rule finds it in the middle of ordinary code."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings

PROGRAMS = Path(__file__).parents[2] / "data" / "rules" / "quiet"
ACCELERATE = "accelerate_language_model"
DDP = "ddp_evaluation_is_reduced"
ATTENTION = "attention_of_many_kinds"
PLATEAUS = "plateaus_of_both_modes"

# program, its changes (old, new), the rule, and the text at which it points
TWINS = (
    (
        ACCELERATE,
        (("=args.max_train_steps * accelerator.num_processes", "=args.max_train_steps"),),
        "scheduler-wrong-cadence",
        "get_scheduler(",
    ),
    (
        ACCELERATE,
        (
            (
                "model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = ",
                "model, optimizer, eval_dataloader, lr_scheduler = ",
            ),
            ("        model, optimizer, train_dataloader,", "        model, optimizer,"),
        ),
        "not-prepared",
        "DataLoader(\n        train_dataset",
    ),
    (
        ACCELERATE,
        (
            ("accelerator.gather_for_metrics(outputs.loss.repeat(8))", "outputs.loss.item()"),
            ("torch.mean(torch.cat(losses))", "sum(losses) / len(losses)"),
        ),
        "metric-on-local-shard",
        "accelerator.print(",
    ),
    (
        ACCELERATE,
        (("gather_for_metrics", "gather"),),
        "metric-on-local-shard",
        "accelerator.gather(",
    ),
    (DDP, (("    dist.all_reduce(counts)\n", ""),), "metric-on-local-shard", "accuracy > best"),
    (DDP, ((", map_location=device", ""),), "load-without-map-location", "torch.load(resume)"),
    (DDP, (('mode="max"', 'mode="min"'),), "scheduler-misused", "plateau.step(accuracy)"),
    (
        "hf_trainer_keeps_little",
        (("        preprocess_logits_for_metrics=preprocess_logits_for_metrics,\n", ""),),
        "eval-logits-on-device",
        "Trainer(",
    ),
    (ATTENTION, (("view(b * m, -1), dim=1)", "view(b * m, -1), dim=0)"),), "softmax-wrong-dim", "F.softmax("),
    (
        ATTENTION,
        (("F.softmax(scores.view(b * m, -1), dim=1).view(b, m, -1)", "F.softmax(scores)"),),
        "softmax-wrong-dim",
        "F.softmax(scores)",
    ),
    (
        ATTENTION,
        (("F.softmax(self.score(x), dim=1)", "F.softmax(self.score(x), dim=-1)"),),
        "softmax-wrong-dim",
        "F.softmax(self.score(x), dim=-1)",
    ),
    (
        "compiled_step_reads_outside",
        (
            (
                "    return nn.functional.cross_entropy(model(x), y)",
                "    return nn.functional.cross_entropy(model(x), y).item()",
            ),
        ),
        "graph-break-in-compiled-code",
        "nn.functional.cross_entropy(model(x), y).item()",
    ),
    (PLATEAUS, (('"min")', '"max")'),), "scheduler-misused", "by_loss.step(val_loss)"),
    (
        PLATEAUS,
        (("by_accuracy.step(val_acc)", "by_accuracy.step(val_loss)"),),
        "scheduler-misused",
        "by_accuracy.step(",
    ),
)


@pytest.mark.parametrize(("program", "changes", "rule", "at"), TWINS)
def test_the_change_is_found_where_it_is(
    program: str, changes: tuple[tuple[str, str], ...], rule: str, at: str
) -> None:
    text = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = SourceFile("/nowhere/twin.py", text)
    findings = judge(run(file.module, Project([])), file, Settings()).findings
    found = [file.slice(finding.place.span) for finding in findings if finding.rule == rule]
    assert len(found) == 1
    assert found[0].startswith(at)
