"""What would make a script smaller: the edits, and that the edited text takes what was promised."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.plan.edits import applied, overlap
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate, Remedy, TextEdit, Verdict

PLAIN = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-3,  # a comment, and a comma
    )
    x = torch.randn(4096, 1024, device="cuda")
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        model(x).sum().backward()
        optimizer.step()
"""
FEW_ROWS = PLAIN.replace("randn(4096,", "randn(64,")
LOADED = """
    import torch
    from transformers import AutoModelForCausalLM

    def main():
        model = AutoModelForCausalLM.from_pretrained("gpt2", attn_implementation="eager")  # the model
        model.train().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = torch.randint(0, 50257, (8, 256), device="cuda")
        for step in range(3):
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()

    main()
"""
TRAINER = """
    import torch
    from torch.utils.data import Dataset
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    class Tokens(Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            ids = torch.zeros(256, dtype=torch.long)
            return {"input_ids": ids, "labels": ids}

    model = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=8, gradient_checkpointing=False)
    Trainer(model=model, args=args, train_dataset=Tokens()).train()
"""


def estimate(folder: Path, script: str, *gpus: str) -> Estimate:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(script), encoding="utf-8")
    module = lower_text(str(path), path.read_text(encoding="utf-8"))
    request = EstimateRequest(gpus=gpus, with_alternatives=False)
    report = estimate_module(module, Project([str(folder)], []), request)
    assert not report.unanswered, report.unanswered
    return report.estimates[0]


def edited(folder: Path, remedy: Remedy) -> str:
    return applied((folder / "train.py").read_text(encoding="utf-8"), remedy.edits)


def by_title(found: Estimate, words: str) -> Remedy:
    remedy = next((each for each in found.remedies if words in each.change), None)
    assert remedy is not None, [each.change for each in found.remedies]
    return remedy


@pytest.mark.parametrize(
    ("script", "words", "line"),
    [
        (FEW_ROWS, "fused=True", "lr=1e-3, fused=True,  # a comment, and a comma"),
        (PLAIN, "set_to_none", "optimizer.zero_grad(set_to_none=True)"),
        (FEW_ROWS, "8bit", "optimizer = bnb.optim.AdamW8bit("),
        (LOADED, "sdpa", 'attn_implementation="sdpa")  # the model'),
        (LOADED, "gradient_checkpointing_enable", "    model.gradient_checkpointing_enable()"),
        (TRAINER, "gradient_checkpointing=True", "gradient_checkpointing=True)"),
        (TRAINER, "bf16=True", "gradient_checkpointing=False, bf16=True)"),
        (TRAINER, "micro-batch 4", "per_device_train_batch_size=4"),
    ],
)
def test_the_edited_text_takes_what_the_remedy_says(
    tmp_path: Path, script: str, words: str, line: str
) -> None:
    found = estimate(tmp_path, script)
    remedy = by_title(found, words)
    text = edited(tmp_path, remedy)
    assert line in text
    assert found.peak.allocated is not None
    assert remedy.saves_bytes == found.peak.allocated.point - remedy.peak_bytes > 0
    again = estimate(tmp_path, text)
    assert again.peak.allocated is not None
    assert again.peak.allocated.point == remedy.peak_bytes


def shallow(layers: int) -> str:
    small = f"from_config(AutoConfig.for_model('gpt2', n_layer={layers}))"
    script = TRAINER.replace('from_pretrained("gpt2")', small)
    return script.replace("import Auto", "import AutoConfig, Auto")


def test_a_card_that_is_too_small_gets_a_batch_and_a_combination(tmp_path: Path) -> None:
    small = "from_config(AutoConfig.for_model('gpt2', n_layer=2))"
    script = TRAINER.replace('from_pretrained("gpt2")', small).replace(
        "import Auto", "import AutoConfig, Auto"
    )
    found = estimate(tmp_path, script.replace("batch_size=8", "batch_size=256"), "t4")
    batch = by_title(found, "the largest that fits the card")
    again = estimate(tmp_path, edited(tmp_path, batch), "t4")
    assert again.gpus[0].verdict in (Verdict.FITS, Verdict.PROBABLY_FITS)


def test_two_changes_together_where_one_is_not_enough(tmp_path: Path) -> None:
    small = "from_config(AutoConfig.for_model('gpt2', n_layer=8))"
    script = TRAINER.replace('from_pretrained("gpt2")', small).replace(
        "import Auto", "import AutoConfig, Auto"
    )
    found = estimate(tmp_path, script.replace("batch_size=8", "batch_size=96"), "t4")
    together = by_title(found, " and ")
    assert together is found.remedies[-1]
    again = estimate(tmp_path, edited(tmp_path, together), "t4")
    assert again.gpus[0].verdict in (Verdict.FITS, Verdict.PROBABLY_FITS)
    assert again.peak.allocated is not None
    assert again.peak.allocated.point == together.peak_bytes


def test_what_no_call_shows_is_told_without_an_edit(tmp_path: Path) -> None:
    script = FEW_ROWS.replace("    optimizer = torch", "    kind = torch.optim.AdamW\n    optimizer = torch")
    found = estimate(tmp_path, script.replace("torch.optim.AdamW(", "kind("))
    assert not by_title(found, "fused=True").edits


def test_edits_of_one_place_do_not_go_together() -> None:
    one, other = TextEdit("a.py", 3, 4, 3, 8, "x"), TextEdit("a.py", 3, 8, 3, 8, "y")
    assert overlap((one, other))
    assert not overlap((one, TextEdit("b.py", 3, 8, 3, 8, "y")))
    assert not overlap((one, TextEdit("a.py", 3, 9, 3, 9, "y")))
