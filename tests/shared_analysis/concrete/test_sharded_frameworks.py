"""FSDP, DeepSpeed and DDP behind a framework's settings: the same peak as the same sharding by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.shared_analysis.concrete.test_scripts import message, report

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate

NET = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(512, 2048)
        self.down = nn.Linear(2048, 512)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(6)])
        self.head = nn.Linear(512, 10)

    def forward(self, inputs, labels=None):
        for layer in self.layers:
            inputs = layer(inputs)
        logits = self.head(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return {"inputs": torch.zeros(512), "labels": 1}
"""
BY_HAND = (
    NET
    + """
import functools
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
dist.init_process_group("nccl")
model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=0, backward_prefetch=None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Data(), batch_size=64)
for batch in loader:
    loss = model(batch["inputs"].cuda(), batch["labels"].cuda())["loss"]
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
)
TRAINER = (
    NET
    + """
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=64, optim="adamw_torch", %s)
trainer = Trainer(model=Net(), args=arguments, train_dataset=Data())
trainer.train()
"""
)
ACCELERATE = (
    NET
    + """
from accelerate import Accelerator
accelerator = Accelerator()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Data(), batch_size=64)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    loss = model(batch["inputs"], batch["labels"])["loss"]
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
)
TORCHRUN = "torchrun --nproc_per_node 4 main.py\n"


def launched(folder: Path, script: str, line: str = TORCHRUN, **files: str) -> Estimate:
    found = [e for e in report(folder, script, run_dot_sh=line, **files).estimates if e.launch is not None]
    assert found, report(folder, script, run_dot_sh=line, **files).unanswered
    return found[0]


def plain(folder: Path, script: str) -> Estimate:
    found = report(folder, script).estimates
    assert found, report(folder, script).unanswered
    return found[0]


def point(found: Estimate) -> int:
    assert found.peak.allocated is not None
    return found.peak.allocated.point


FSDP1 = '{"version": 1, "transformer_layer_cls_to_wrap": ["Block"]}'


def test_a_trainers_fsdp_is_that_of_the_wrapper_by_hand(tmp_path: Path) -> None:
    trainer = launched(tmp_path, TRAINER % f"fsdp='full_shard auto_wrap', fsdp_config={FSDP1}")
    by_hand = launched(tmp_path, BY_HAND)
    assert trainer.gpus_used == by_hand.gpus_used == 4
    assert abs(point(trainer) - point(by_hand)) <= 0.01 * point(by_hand)


def test_settings_of_fsdp_may_stand_in_a_file(tmp_path: Path) -> None:
    inline = launched(tmp_path, TRAINER % f"fsdp='full_shard auto_wrap', fsdp_config={FSDP1}")
    script = TRAINER % "fsdp='full_shard auto_wrap', fsdp_config='fsdp.json'"
    read = launched(tmp_path, script, fsdp_dot_json=FSDP1)
    assert point(read) == point(inline)


def test_more_processes_hold_less_each(tmp_path: Path) -> None:
    script = TRAINER % f"fsdp='full_shard auto_wrap', fsdp_config={FSDP1}"
    four = launched(tmp_path, script)
    sixteen = launched(tmp_path, script, "torchrun --nnodes 2 --nproc_per_node 8 main.py\n")
    assert sixteen.gpus_used == 16
    assert sixteen.breakdown["optimizer"] * 3.5 < four.breakdown["optimizer"]


def test_offload_leaves_no_states_on_the_card(tmp_path: Path) -> None:
    script = TRAINER % f"fsdp='full_shard auto_wrap offload', fsdp_config={FSDP1}"
    assert plain(tmp_path, script).breakdown.get("optimizer", 0) < 1 << 16


def test_a_number_of_processes_that_nothing_says_is_a_choice(tmp_path: Path) -> None:
    found = plain(tmp_path, TRAINER % f"fsdp='full_shard auto_wrap', fsdp_config={FSDP1}")
    assert found.gpus_used == 8
    assert any("nothing says over how many" in one for one in found.assumptions)
    script = "# torchwise: world_size=2\n" + TRAINER % f"fsdp='full_shard auto_wrap', fsdp_config={FSDP1}"
    assert plain(tmp_path, script).gpus_used == 2


def test_the_same_holds_for_fsdp_by_hand(tmp_path: Path) -> None:
    found = plain(tmp_path, BY_HAND)
    assert found.gpus_used == 8


ALONE_OR_NOT = (
    NET
    + """
from torch.distributed.fsdp import fully_shard
model = Net().cuda()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    labels = torch.zeros(8, dtype=torch.int64, device="cuda")
    model(torch.zeros(8, 512, device="cuda"), labels)["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)


def test_the_interval_spans_what_the_number_of_processes_may_be(tmp_path: Path) -> None:
    main = tmp_path / "main.py"
    main.write_text(ALONE_OR_NOT)
    request = EstimateRequest(with_remedies=False)
    report = estimate_module(lower_text(str(main), ALONE_OR_NOT), Project([str(tmp_path)]), request)
    (found,) = report.estimates
    assert found.gpus_used == 8
    assert found.peak.allocated is not None and found.parameters is not None
    # alone a process holds the weights, gradients and states itself
    assert found.peak.allocated.high > found.parameters * 16
    assert found.peak.allocated.point < found.parameters * 8


CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch_policy: NO_PREFETCH
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_version: 1
mixed_precision: 'no'
num_machines: 1
num_processes: 4
"""


def test_accelerates_file_says_how_the_model_is_sharded(tmp_path: Path) -> None:
    found = launched(
        tmp_path, ACCELERATE, "accelerate launch --config_file fsdp.yaml main.py\n", fsdp_dot_yaml=CONFIG
    )
    by_hand = launched(tmp_path, BY_HAND)
    assert found.gpus_used == 4
    assert abs(point(found) - point(by_hand)) <= 0.01 * point(by_hand)


def test_options_of_accelerate_launch_say_the_same(tmp_path: Path) -> None:
    line = (
        "accelerate launch --num_processes 4 --use_fsdp --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
        " --fsdp_transformer_layer_cls_to_wrap Block --fsdp_sharding_strategy FULL_SHARD main.py\n"
    )
    by_hand = launched(tmp_path, BY_HAND)
    assert abs(point(launched(tmp_path, ACCELERATE, line)) - point(by_hand)) <= 0.01 * point(by_hand)


def test_several_processes_without_sharding_hold_buckets(tmp_path: Path) -> None:
    alone = plain(tmp_path, ACCELERATE)
    found = launched(tmp_path, ACCELERATE, "accelerate launch --num_processes 2 --multi_gpu main.py\n")
    assert found.parameters is not None
    assert 0.9 * found.parameters * 4 < point(found) - point(alone) < 1.1 * found.parameters * 4


# --------------------------------------------------------------------------- DeepSpeed

AUTO = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1_000_000},
}
ENGINE = (
    NET
    + """
import deepspeed
settings = {"train_micro_batch_size_per_gpu": 64, "gradient_clipping": 1.0, "bf16": {"enabled": True},
    "zero_optimization": {"stage": %d, "reduce_bucket_size": 1000000}}
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
loader = torch.utils.data.DataLoader(Data(), batch_size=64)
for batch in loader:
    loss = engine(batch["inputs"].cuda().bfloat16(), batch["labels"].cuda())["loss"]
    engine.backward(loss)
    engine.step()
"""
)


def stage(number: int) -> str:
    zero = {**AUTO["zero_optimization"], "stage": number}  # type: ignore[dict-item]
    return json.dumps({**AUTO, "zero_optimization": zero})


# float32 inputs of a bfloat16 model: the engine casts nothing, so the network does
FORWARD = "    def forward(self, inputs, labels=None):\n"
CAST = NET.replace(FORWARD, FORWARD + "        inputs = inputs.bfloat16()\n")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_trainers_deepspeed_is_the_engine_by_hand(tmp_path: Path, number: int) -> None:
    script = (TRAINER % "deepspeed='ds.json', bf16=True").replace(NET, CAST)
    trainer = launched(tmp_path, script, ds_dot_json=stage(number))
    by_hand = launched(tmp_path, ENGINE % number)
    assert trainer.plan["precision"].value == "bfloat16 autocast"
    assert abs(point(trainer) - point(by_hand)) <= 0.02 * point(by_hand)


def test_stage_three_divides_the_weights_too(tmp_path: Path) -> None:
    two, three = launched(tmp_path, ENGINE % 2), launched(tmp_path, ENGINE % 3)
    assert three.parameters == two.parameters
    assert point(three) < point(two)


def test_accelerate_takes_deepspeed_from_its_file(tmp_path: Path) -> None:
    config = """
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 2
  gradient_accumulation_steps: 1
mixed_precision: bf16
num_processes: 4
"""
    script = ACCELERATE.replace(NET, CAST)
    found = launched(tmp_path, script, "accelerate launch --config_file z.yaml main.py\n", z_dot_yaml=config)
    assert found.gpus_used == 4
    assert found.parameters is not None
    assert found.breakdown["optimizer"] < found.parameters * 8 / 3


@pytest.mark.parametrize(
    ("script", "files", "said"),
    [
        (TRAINER % "deepspeed='absent.json'", {}, "not in the project"),
        (TRAINER % "fsdp='full_shard', fsdp_config='absent.json'", {}, "absent.json"),
        (
            TRAINER % "deepspeed='ds.json'",
            {"ds_dot_json": '{"zero_optimization": {"stage": 3, "mics_shard_size": 4}}'},
            "MiCS",
        ),
    ],
)
def test_what_cannot_be_followed_stops_by_name(
    tmp_path: Path, script: str, files: dict[str, str], said: str
) -> None:
    assert said in message(tmp_path, script, **files)


# --------------------------------------------------------------------------- Lightning and Fabric

LIGHTNING = (
    NET
    + """
import lightning as L
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy

class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, index):
        return self.net(batch["inputs"], batch["labels"])["loss"]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

trainer = L.Trainer(max_epochs=1, gradient_clip_val=1.0, %s)
trainer.fit(Task(), torch.utils.data.DataLoader(Data(), batch_size=64))
"""
)
FABRIC = (
    NET
    + """
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy
fabric = Fabric(%s)
fabric.launch()
model = fabric.setup_module(Net())
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(Data(), batch_size=64))
for batch in loader:
    loss = model(batch["inputs"], batch["labels"])["loss"]
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
)
PREFETCHING = BY_HAND.replace(", backward_prefetch=None", "")


@pytest.mark.parametrize("script", [LIGHTNING, FABRIC])
def test_lightnings_fsdp_is_that_of_the_wrapper_by_hand(tmp_path: Path, script: str) -> None:
    found = plain(tmp_path, script % "devices=4, strategy=FSDPStrategy(auto_wrap_policy={Block})")
    by_hand = launched(tmp_path, PREFETCHING)
    assert found.gpus_used == 4
    assert abs(point(found) - point(by_hand)) <= 0.01 * point(by_hand)


@pytest.mark.parametrize("script", [LIGHTNING, FABRIC])
@pytest.mark.parametrize("devices", ["devices=4", "devices=[0, 1]", "devices='2'", "devices=1, num_nodes=2"])
def test_lightnings_replicas_hold_buckets(tmp_path: Path, script: str, devices: str) -> None:
    alone = plain(tmp_path, script % "devices=1")
    found = plain(tmp_path, script % f"{devices}, strategy='ddp'")
    assert found.gpus_used > 1
    assert found.parameters is not None
    assert 0.9 * found.parameters * 4 < point(found) - point(alone) < 1.1 * found.parameters * 4


def test_gradients_may_be_views_of_the_buckets(tmp_path: Path) -> None:
    alone = plain(tmp_path, LIGHTNING % "devices=1")
    found = plain(tmp_path, LIGHTNING % "devices=2, strategy=DDPStrategy(gradient_as_bucket_view=True)")
    assert abs(point(found) - point(alone)) < 0.05 * point(alone)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_lightnings_deepspeed_divides_by_stage(tmp_path: Path, number: int) -> None:
    options = f"devices=4, strategy='deepspeed_stage_{number}', precision='bf16-mixed'"
    found = plain(tmp_path, LIGHTNING % options)
    assert found.gpus_used == 4
    assert found.parameters is not None
    assert found.breakdown["optimizer"] < found.parameters * 8 / 3


def test_a_strategy_that_is_not_followed_stops_by_name(tmp_path: Path) -> None:
    assert "xla" in message(tmp_path, LIGHTNING % "devices=4, strategy='xla'")
