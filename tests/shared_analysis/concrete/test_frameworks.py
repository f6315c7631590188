"""Steps that frameworks take for a script: the same peak as the loop that one would write by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shared_analysis.concrete.test_scripts import estimate, message, report

from torchwise_memory.report import Estimate, Kind

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6)])
        self.head = nn.Linear(512, 10)

    def forward(self, inputs, labels=None):
        logits = self.head(self.layers(inputs))
        loss = nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return {"inputs": torch.zeros(512), "labels": 1}
"""


def point(found: Estimate) -> int:
    assert found.peak.allocated is not None
    return found.peak.allocated.point


def plan_of(found: Estimate) -> dict[str, object]:
    return {name: field.value for name, field in found.plan.items()}


# --------------------------------------------------------------------------- transformers' Trainer

TRAINER = (
    NET
    + """
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=256, %s)
trainer = Trainer(model=Net(), args=arguments, train_dataset=Data())
trainer.train()
"""
)
BY_HAND = (
    NET
    + """
loader = torch.utils.data.DataLoader(Data(), batch_size=256)
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for batch in loader:
    batch = {key: value.cuda() for key, value in batch.items()}
    %s
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
)


def test_the_trainers_step_takes_what_the_loop_by_hand_takes(tmp_path: Path) -> None:
    found = estimate(tmp_path, TRAINER % "")
    by_hand = estimate(tmp_path, BY_HAND % 'loss = model(**batch)["loss"]')
    assert point(found) == pytest.approx(point(by_hand), rel=0.01)
    plan = plan_of(found)
    assert (plan["micro_batch"], plan["precision"]) == (256, "float32")
    assert (plan["model"], plan["optimizer"]) == ("Net", "AdamW (fused)")
    assert found.origin.line == (TRAINER % "").split("\n").index("trainer.train()") + 1


def test_bf16_runs_the_trainers_model_under_autocast(tmp_path: Path) -> None:
    found = estimate(tmp_path, TRAINER % "bf16=True")
    under = "with torch.autocast('cuda', dtype=torch.bfloat16):\n        loss = model(**batch)['loss']"
    by_hand = estimate(tmp_path, BY_HAND % under)
    assert point(found) == pytest.approx(point(by_hand), rel=0.01)
    assert plan_of(found)["precision"] == "bfloat16 autocast"


def test_accumulation_of_the_trainer_keeps_gradients(tmp_path: Path) -> None:
    once = estimate(tmp_path, TRAINER % "")
    twice = estimate(tmp_path, TRAINER % "gradient_accumulation_steps=2")
    assert plan_of(twice)["accumulation"] == 2
    assert point(twice) > point(once)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("adamw_torch", "AdamW"), ("sgd", "SGD"), ("adamw_bnb_8bit", "AdamW8bit"), ("adafactor", "Adafactor")],
)
def test_the_optimizer_that_is_named_is_made(tmp_path: Path, name: str, shown: str) -> None:
    found = estimate(tmp_path, TRAINER % f"optim={name!r}")
    assert plan_of(found)["optimizer"] in (shown, name)


def test_an_optimizer_that_is_not_modelled_stops_with_its_name(tmp_path: Path) -> None:
    assert "galore_adamw of TrainingArguments is not modelled" in message(
        tmp_path, TRAINER % "optim='galore_adamw'"
    )


def test_an_overridden_loss_is_the_one_that_runs(tmp_path: Path) -> None:
    script = (
        NET
        + """
from transformers import Trainer, TrainingArguments
class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        logits = model(**inputs)["logits"]
        wide = logits @ torch.zeros(10, 200_000, device="cuda")
        return wide.float().pow(2).mean()
arguments = TrainingArguments("out", per_device_train_batch_size=256)
trainer = Own(model=Net(), args=arguments, train_dataset=Data())
trainer.train()
"""
    )
    assert point(estimate(tmp_path, script)) > 256 * 200_000 * 4


def test_what_an_installed_version_says_goes_before_our_defaults(tmp_path: Path) -> None:
    text = """
from dataclasses import dataclass, field
@dataclass
class TrainingArguments:
    default_optim = "adamw_torch"
    per_device_train_batch_size: int = field(default=4)
    optim: str = field(default=default_optim)
    no_cuda: bool = field(default=False)
"""
    files = {"transformers____init___dot_py": "", "transformers__training_args_dot_py": text}
    script = TRAINER.replace("per_device_train_batch_size=256, ", "") % ""
    plan = plan_of(estimate(tmp_path, script, **files))
    assert (plan["micro_batch"], plan["optimizer"]) == (4, "AdamW")


SEQUENCES = """
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
from transformers import Trainer, TrainingArguments
data = load_dataset("some/reviews")
tokenizer = AutoTokenizer.from_pretrained("distilbert-base-uncased")
data = data.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=128%s), batched=True)
model = AutoModelForSequenceClassification.from_pretrained("distilbert-base-uncased", num_labels=2)
trainer = Trainer(
    model=model, args=TrainingArguments("out", per_device_train_batch_size=4), train_dataset=data["train"],
    data_collator=DataCollatorWithPadding(tokenizer),
)
trainer.train()
"""


def test_padding_to_max_length_is_read(tmp_path: Path) -> None:
    found = estimate(tmp_path, SEQUENCES % ', padding="max_length"')
    assert plan_of(found)["seq_len"] == 128
    assert not any("padded to 128" in one for one in found.assumptions)


def test_padding_to_the_longest_takes_the_bound_and_says_so(tmp_path: Path) -> None:
    found = estimate(tmp_path, SEQUENCES % "")
    assert plan_of(found)["seq_len"] == 128
    assert "sequences are padded to 128 tokens, of at most 128" in found.assumptions


def test_a_stated_length_answers_for_padding(tmp_path: Path) -> None:
    found = estimate(tmp_path, "# torchwise: seq_len=64\n" + SEQUENCES % "")
    assert plan_of(found)["seq_len"] == 64


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    script = """
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
four = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=four)
"""
    assert "quantised" in message(tmp_path, script)


def test_a_checkpoint_of_the_project_is_read_from_its_config(tmp_path: Path) -> None:
    script = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("checkpoints/own").cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.zeros((2, 16), dtype=torch.long, device="cuda")
for _ in range(3):
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    config = '{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100, '
    config += '"n_positions": 32}'
    found = estimate(tmp_path, script, checkpoints__own__config_dot_json=config)
    per_block = 12 * 64 * 64 + 13 * 64
    assert found.parameters == 100 * 64 + 32 * 64 + 2 * per_block + 2 * 64
    assert any("checkpoints/own/config.json" in one for one in found.assumptions)


# --------------------------------------------------------------------------- TRL

SFT = """
import torch
from trl import SFTConfig, SFTTrainer
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("distilgpt2", dtype=torch.float32)
arguments = SFTConfig("out", per_device_train_batch_size=2, max_length=128%s)
SFTTrainer(model=model, args=arguments, train_dataset=None).train()
"""


def test_sft_pads_to_its_bound_checkpoints_and_casts(tmp_path: Path) -> None:
    plan = plan_of(estimate(tmp_path, SFT % ""))
    assert (plan["micro_batch"], plan["seq_len"], plan["checkpointing"]) == (2, 128, True)
    assert plan["precision"] == "bfloat16 autocast"


def test_sft_without_checkpointing_takes_more(tmp_path: Path) -> None:
    more = estimate(tmp_path, SFT % ", gradient_checkpointing=False")
    assert point(more) > point(estimate(tmp_path, SFT % ""))


def test_dpo_holds_a_reference_model_and_twice_the_rows(tmp_path: Path) -> None:
    script = (SFT % "").replace("SFT", "DPO")
    found = estimate(tmp_path, script)
    sft = estimate(tmp_path, SFT % "")
    assert found.parameters is not None and sft.parameters is not None
    assert point(found) - point(sft) > sft.parameters * 4


# --------------------------------------------------------------------------- Fabric, Lightning

FABRIC = (
    NET
    + """
from lightning.fabric import Fabric
fabric = Fabric(precision=%r)
fabric.launch()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(Data(), batch_size=256))
for batch in loader:
    loss = model(**batch)["loss"]
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""
)


def test_fabric_stores_the_model_in_its_true_precision(tmp_path: Path) -> None:
    half, full = (estimate(tmp_path, FABRIC % precision) for precision in ("bf16-true", "32-true"))
    assert half.breakdown["weights"] * 2 == pytest.approx(full.breakdown["weights"], rel=0.02)
    assert plan_of(half)["precision"] == "bfloat16"


def test_fabric_casts_under_its_mixed_precision(tmp_path: Path) -> None:
    assert plan_of(estimate(tmp_path, FABRIC % "bf16-mixed"))["precision"] == "bfloat16 autocast"


def test_lightning_steps_by_hand_where_a_module_says_so(tmp_path: Path) -> None:
    script = """
import pytorch_lightning as pl
import torch
from torch import nn
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 64)
    def training_step(self, batch, index):
        (x,) = batch
        for part, optimizer in zip((self.one, self.other), self.optimizers()):
            optimizer.zero_grad()
            self.manual_backward(part(x).sum())
            optimizer.step()
    def configure_optimizers(self):
        return torch.optim.Adam(self.one.parameters()), torch.optim.Adam(self.other.parameters())
data = torch.utils.data.TensorDataset(torch.randn(640, 64))
pl.Trainer(max_epochs=1).fit(Net(), torch.utils.data.DataLoader(data, batch_size=32))
"""
    found = estimate(tmp_path, script)
    assert found.kind is Kind.TRAINING
    assert found.breakdown["optimizer"] >= 2 * (64 * 64 + 64) * 8


CLI_MODULES = """
import lightning as L
import torch
from torch import nn
from lightning.pytorch.cli import LightningCLI

class Net(L.LightningModule):
    def __init__(self, width: int = 16):
        super().__init__()
        self.layer = nn.Linear(64, width)
    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Data(L.LightningDataModule):
    def __init__(self, batch_size: int = 8):
        super().__init__()
        self.batch_size = batch_size
    def train_dataloader(self):
        data = torch.utils.data.TensorDataset(torch.randn(640, 64))
        return torch.utils.data.DataLoader(data, batch_size=self.batch_size)

LightningCLI(Net, Data)
"""


def test_lightnings_command_line_takes_defaults_and_a_settings_file(tmp_path: Path) -> None:
    assert plan_of(estimate(tmp_path, CLI_MODULES))["micro_batch"] == 8
    settings = "model:\n  width: 32\ndata:\n  batch_size: 24\ntrainer:\n  precision: bf16-mixed\n"
    files = {"settings_dot_yaml": settings, "run_dot_sh": "python main.py fit --config settings.yaml\n"}
    found = estimate(tmp_path, CLI_MODULES, **files)
    plan = plan_of(found)
    assert (plan["micro_batch"], plan["precision"], found.parameters) == (
        24,
        "bfloat16 autocast",
        64 * 32 + 32,
    )


# --------------------------------------------------------------------------- DeepSpeed

DEEPSPEED = (
    NET
    + """
import deepspeed
settings = {"train_micro_batch_size_per_gpu": 256, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}, %s}
model = Net()
engine, _, loader, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=settings, training_data=Data()
)
for batch in loader:
    inputs = batch["inputs"].cuda()%s
    loss = engine(inputs, batch["labels"].cuda())["loss"]
    engine.backward(loss)
    engine.step()
"""
)
HALF = '"bf16": {"enabled": True}, "zero_optimization": {"stage": %d}'


def test_deepspeed_keeps_single_precision_copies_beside_half_weights(tmp_path: Path) -> None:
    script = "# torchwise: world_size=1\n" + DEEPSPEED % (HALF % 1, ".bfloat16()")
    found = estimate(tmp_path, script)
    assert found.parameters is not None
    plan = plan_of(found)
    assert (plan["micro_batch"], plan["precision"]) == (256, "bfloat16")
    # weights of 2 and 4 bytes, two states of 4
    assert found.breakdown["weights"] >= found.parameters * 6
    assert found.breakdown["optimizer"] >= found.parameters * 8


def test_deepspeed_parts_its_states_over_the_processes_of_a_launch_line(tmp_path: Path) -> None:
    script = DEEPSPEED % (HALF % 2, ".bfloat16()")
    answer = report(tmp_path, script, run_dot_sh="deepspeed --num_gpus 4 main.py\n")
    assumed, launched = answer.estimates
    assert launched.launch is not None and launched.gpus_used == 4
    assert assumed.gpus_used == 8
    assert (
        launched.breakdown["optimizer"] * 0.4
        < assumed.breakdown["optimizer"]
        < launched.breakdown["optimizer"]
    )


# --------------------------------------------------------------------------- einops, distributions


@pytest.mark.parametrize(
    ("pattern", "options", "shape"),
    [
        ("b c h w -> b (c h w)", "", (2, 48)),
        ("b (h p) w c -> b h p w c", "p=2, ", None),
        ("b c h w -> b h w c", "", (2, 4, 4, 3)),
        ("b c (h p) (w q) -> b (h w) (p q c)", "p=2, q=2, ", (2, 4, 12)),
        ("... w -> ... 1 w", "", (2, 3, 4, 1, 4)),
    ],
)
def test_einops_rearranges(tmp_path: Path, pattern: str, options: str, shape: tuple[int, ...] | None) -> None:
    from tests.shared_analysis.concrete.running import run

    source = "import torch\nfrom einops import rearrange\n"
    source += f"x = torch.zeros(2, 3, 4, 4)\nif {shape is None}:\n    x = torch.zeros(2, 4, 5, 6)\n"
    source += f"result = list(rearrange(x, {pattern!r}, {options}).shape)\n"
    found = run(source).names["result"]
    assert found == (list(shape) if shape is not None else [2, 2, 2, 5, 6])


def test_einops_reduces_and_repeats() -> None:
    from tests.shared_analysis.concrete.running import run

    source = """
import torch
from einops import reduce, repeat
x = torch.zeros(2, 3, 4, 4)
result = [list(reduce(x, "b c h w -> b c", "mean").shape), list(repeat(x, "b c h w -> b r c h w", r=5).shape),
          list(reduce(x, "b c (h p) (w q) -> b c h w", "max", p=2, q=2).shape)]
"""
    assert run(source).names["result"] == [[2, 3], [2, 5, 3, 4, 4], [2, 3, 2, 2]]


def test_a_policy_samples_from_a_distribution(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence
policy = nn.Linear(16, 4).cuda()
optimizer = torch.optim.Adam(policy.parameters())
for _ in range(3):
    x = torch.randn(32, 16, device="cuda")
    choices = Categorical(logits=policy(x))
    action = choices.sample()
    spread = Normal(policy(x).mean(-1), 1.0)
    loss = -choices.log_prob(action).mean() - choices.entropy().mean()
    loss = loss + kl_divergence(spread, Normal(0.0, 1.0)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert estimate(tmp_path, script).parameters == 68
