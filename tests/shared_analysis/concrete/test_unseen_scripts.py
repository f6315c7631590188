"""Scripts written as people write them, before anything of this was looked at; peaks are a real PyTorch's.

Measured with torch 2.13 (CPU build), transformers 5.24, diffusers 0.42 and timm 1.0.31 on fake CUDA tensors:
a shim registers a do-nothing CUDA device, a `TorchDispatchMode` notes births and deaths of storages, and a
simulation of the caching allocator replays them (512 B rounding, split blocks). Bytes are
`max_memory_allocated` of the rounds behind the first optimizer step, with cuBLAS workspaces of a card of
compute capability 8.0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.shared_analysis.concrete.running import interpreter, run, shown

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.presets import pipelines
from torchwise_memory.report import Estimate, Kind, Phase


def estimate(source: str, folder: Path | None = None, files: dict[str, str] | None = None) -> Estimate:
    for name, content in (files or {}).items():
        assert folder is not None
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
    request = EstimateRequest(with_remedies=False, with_alternatives=False)
    roots = [] if folder is None else [str(folder)]
    path = "train.py" if folder is None else str(folder / "train.py")
    report = estimate_module(lower_text(path, source), Project(roots), request)
    assert not report.unanswered, report.unanswered
    return max(report.estimates, key=lambda found: found.peak.allocated.point if found.peak.allocated else 0)


def assert_peak(found: Estimate, measured: int, within: float = 0.005) -> None:
    assert found.kind is Kind.TRAINING
    assert found.peak.allocated is not None
    assert found.peak.allocated.point == pytest.approx(measured, rel=within)


FOLDER = Path(__file__).parent / "unseen_scripts"
MEASURED: dict[str, dict[str, Any]] = json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_a_script_never_seen_before(name: str) -> None:
    """Whole scripts: graphs, sequences, points, agents, detectors, flows, two optimizers in Lightning."""
    measured = MEASURED[name]
    found = estimate((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))
    assert_peak(found, measured["peak_allocated"], within=0.01)
    assert found.phase is Phase(measured["phase"])
    assert found.plan["micro_batch"].value == measured["batch"]
    if measured["trainable_parameters"] is not None:
        assert found.trainable_parameters == measured["trainable_parameters"]


AGENT = """
import random
from collections import deque, namedtuple
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", ("state", "action", "reward", "next_state", "done"))

class ReplayBuffer:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)
    def push(self, *args):
        self.memory.append(Transition(*args))
    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)
    def __len__(self):
        return len(self.memory)

class QNetwork(nn.Module):
    def __init__(self, n_actions):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
            nn.Linear(512, n_actions))
    def forward(self, x):
        return self.network(x / 255.0)

class Env:
    def reset(self):
        return np.zeros((4, 84, 84), dtype=np.float32)
    def step(self, a):
        return np.zeros((4, 84, 84), dtype=np.float32), 1.0, False

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH_SIZE = 32
q_network = QNetwork(6).to(device)
target_network = QNetwork(6).to(device)
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-4)
rb = ReplayBuffer(10000)
env = Env()

def select_action(state, eps):
    if random.random() < eps:
        return random.randrange(6)
    with torch.no_grad():
        return q_network(torch.from_numpy(state).unsqueeze(0).to(device)).argmax(1).item()

state = env.reset()
for global_step in range(ROUNDS):
    action = select_action(state, 0.1)
    next_state, reward, done = env.step(action)
    rb.push(state, action, reward, next_state, done)
    state = env.reset() if done else next_state
    if WAITS:
        continue
    batch = Transition(*zip(*rb.sample(BATCH_SIZE)))
    states = torch.tensor(np.stack(batch.state), device=device)
    actions = torch.tensor(batch.action, device=device).unsqueeze(1)
    rewards = torch.tensor(batch.reward, dtype=torch.float32, device=device)
    next_states = torch.tensor(np.stack(batch.next_state), device=device)
    dones = torch.tensor(batch.done, dtype=torch.float32, device=device)
    with torch.no_grad():
        target_max, _ = target_network(next_states).max(dim=1)
        td_target = rewards + 0.99 * target_max * (1 - dones)
    old_val = q_network(states).gather(1, actions).squeeze()
    loss = F.mse_loss(td_target, old_val)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("rounds", "waits"),
    [
        ("120", "len(rb) < BATCH_SIZE"),
        ("500_000", "len(rb) < BATCH_SIZE or global_step < 10_000"),
        ("500_000", "global_step <= 80_000 or global_step % 4"),
    ],
)
def test_an_agent_that_fills_its_memory_before_it_trains(rounds: str, waits: str) -> None:
    found = estimate(AGENT.replace("ROUNDS", rounds).replace("WAITS", waits))
    assert_peak(found, 68_194_304)
    assert found.parameters == 2 * 1_687_206
    assert found.plan["micro_batch"].value == 32


def test_a_loop_that_only_evaluates_stays_an_inference() -> None:
    found = estimate(
        """
import torch
model = torch.nn.Linear(64, 64).cuda().eval()
for batch in range(1000):
    with torch.no_grad():
        y = model(torch.randn(8, 64, device="cuda"))
"""
    )
    assert found.kind is Kind.INFERENCE


STREAM = """
import torch
from torch.utils.data import DataLoader, IterableDataset

class Chunks(IterableDataset):
    def __init__(self, length):
        self.length = length
    def __iter__(self):
        while True:
            yield torch.randn(self.length)

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Chunks(1024), batch_size=16)
done = 0
while done < 1000:
    for step, batch in enumerate(loader, start=1):
        loss = model(batch.cuda()).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
"""


def test_a_stream_has_no_length_and_needs_none() -> None:
    assert estimate(STREAM).plan["micro_batch"].value == 16


PACKED = """
import torch
from datasets import load_dataset
from torch.utils.data import DataLoader, IterableDataset
from transformers import GPT2Tokenizer

class Packed(IterableDataset):
    def __init__(self, tokenizer, data, length):
        self.tokenizer, self.data, self.length = tokenizer, data, length
    def __iter__(self):
        rows = iter(self.data)
        while True:
            buffer, size = [], 0
            while size < 16 * self.length:
                try:
                    buffer.append(next(rows)["content"])
                    size += len(buffer[-1])
                except StopIteration:
                    rows = iter(self.data)
            ids = []
            for one in self.tokenizer(buffer)["input_ids"]:
                EXTEND
            for i in range(0, len(ids), self.length):
                part = ids[i:i + self.length]
                if len(part) == self.length:
                    yield torch.tensor(part)

tokenizer = GPT2Tokenizer.from_pretrained("gpt2")
data = load_dataset("codeparrot/codeparrot-clean-train", split="train")
loader = DataLoader(Packed(tokenizer, data, 768), batch_size=3)
model = torch.nn.Sequential(torch.nn.Embedding(50257, 64), torch.nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("extend", ["ids.extend(one + [0])", "ids += one + [0]", "ids.extend(one)"])
def test_texts_that_are_packed_to_one_length(extend: str) -> None:
    found = estimate(PACKED.replace("EXTEND", extend))
    assert found.plan["micro_batch"].value == 3
    assert found.plan["seq_len"].value == 768


CONFIGURED = """
import os
import torch
from omegaconf import OmegaConf

here = os.path.dirname(os.path.abspath(__file__))
base = OmegaConf.load(os.path.join(here, "conf/config.yaml"))
model = OmegaConf.load(os.path.join(here, "conf/model.yaml"))
data = OmegaConf.load(os.path.join(here, "conf/data.yaml"))
cfg = OmegaConf.merge({"model": model, "data": data}, base)
net = torch.nn.Linear(cfg.model.width, int(cfg.model.name.split("-")[1])).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(10):
    net(torch.randn(cfg.data.batch_size, cfg.model.width).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_reference_into_another_file_is_found_when_both_are_merged(tmp_path: Path) -> None:
    files = {
        "conf/config.yaml": "trainer:\n  epochs: 3\n",
        "conf/model.yaml": "width: ${data.image_size}\nname: net-${data.classes}\n",
        "conf/data.yaml": "image_size: 96\nclasses: 10\nbatch_size: 24\n",
    }
    found = estimate(CONFIGURED, tmp_path, files)
    assert found.parameters == 96 * 10 + 10
    assert found.plan["micro_batch"].value == 24


MANUAL = """
import torch
import pytorch_lightning as pl

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.layer = torch.nn.Linear(512, 512)
    def training_step(self, PARAMETERS):
        optimizer = self.optimizers()
        loss = self.layer(batch[0]).sum()
        self.manual_backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

data = torch.utils.data.TensorDataset(torch.randn(100, 512))
trainer = pl.Trainer(accelerator="gpu", devices=1)
trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
"""


@pytest.mark.parametrize("parameters", ["batch", "batch, batch_idx", "batch, index", "batch, *rest"])
def test_a_training_step_that_takes_the_batch_alone(parameters: str) -> None:
    found = estimate(MANUAL.replace("PARAMETERS", parameters))
    assert found.parameters == 512 * 512 + 512


PIPELINE = "stable-diffusion-v1-5/stable-diffusion-v1-5"


@pytest.mark.parametrize(
    ("name", "length"), [(PIPELINE, "77"), ("stabilityai/stable-diffusion-xl-base-1.0", "77")]
)
def test_the_tokenizer_of_a_pipeline_is_as_long_as_its_text_encoder_reads(name: str, length: str) -> None:
    made = f"CLIPTokenizer.from_pretrained({name!r}, subfolder='tokenizer')"
    assert shown(f"from transformers import CLIPTokenizer\nresult = {made}.model_max_length") == length


def test_parts_of_pipelines() -> None:
    encoder = pipelines.part_of("stabilityai/stable-diffusion-2-1", "text_encoder")
    assert encoder is not None
    assert (encoder["hidden_size"], encoder["num_hidden_layers"]) == (1024, 23)
    assert pipelines.part_of("stabilityai/sd-vae-ft-mse", "") is not None
    assert pipelines.part_of("somebody/something", "unet") is None


IMPORTS = """
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
"""


@pytest.mark.parametrize(
    ("snippet", "expected"),
    [
        ("np.mean(np.random.rand(5, 3), axis=0).shape", "(3,)"),
        ("np.expand_dims(np.max(np.ones((4, 2)), axis=1, keepdims=True), 0).shape", "(1, 4, 1)"),
        ("np.random.rand(9, 3)[np.random.choice(9, 4, replace=True), :].shape", "(4, 3)"),
        ("np.random.uniform(-1, 1, (2, 5)).shape", "(2, 5)"),
        ("np.random.default_rng(0).normal(size=7).shape", "(7,)"),
        ("np.random.randint(0, 9, 6).dtype is torch.int64", "True"),
        ("np.arange(4, dtype=np.float32).dtype is torch.float32", "True"),
        ("np.linspace(0, 1, 5).dtype is torch.float64", "True"),
        ("np.array([1.0, 2.0]).dtype is torch.float64", "True"),
        ("np.array([1, 2], dtype=np.float32).dtype is torch.float32", "True"),
        ("np.eye(3).flatten().astype(np.float32).shape", "(9,)"),
        ("np.einsum('m,d->md', np.arange(4), np.ones(3)).shape", "(4, 3)"),
        ("[g.shape for g in np.meshgrid(np.arange(3), np.arange(5))]", "[(5, 3), (5, 3)]"),
        ("np.outer(np.arange(2), np.ones(3)).dtype is torch.float64", "True"),
        ("np.random.permutation(8).shape", "(8,)"),
        ("list(torch.tensor([5, 5, 2, 5]).unique_consecutive(return_counts=True)[1].tolist())", "[2, 1, 1]"),
        ("torch.unique_consecutive(torch.tensor([5, 5, 2]), return_inverse=True)[1].tolist()", "[0, 0, 1]"),
        ("[p.shape[0] for p in torch.ones(5).split(split_size=2)]", "[2, 2, 1]"),
        ("[p.shape[0] for p in torch.ones(5).split(split_size=[1, 4], dim=0)]", "[1, 4]"),
        ("nn.Transformer.generate_square_subsequent_mask(6).shape", "(6, 6)"),
        ("pad_sequence([torch.ones(3, 2), torch.ones(5, 2)]).shape", "(5, 2, 2)"),
        ("pad_sequence([torch.ones(3), torch.ones(5)], batch_first=True).shape", "(2, 5)"),
    ],
)
def test_helpers_of_data_code(snippet: str, expected: str) -> None:
    outcome = shown(f"{IMPORTS}result = {snippet}").replace("torch.Size([", "(").replace("])", ")")
    assert outcome.replace(",)", ")") == expected.replace(",)", ")")


LAYERS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))

class Net(nn.Module):
    def __init__(self, d=512, n=4):
        super().__init__()
        self.emb = nn.Embedding(1000, d)
        self.blocks = nn.ModuleList([Block(d) for _ in range(n)])
        self.head = nn.Linear(d, 1000)
    def forward(self, x):
        x = self.emb(x)
        LOOP
        return self.head(x)

def loss_of(model, x):
    x = model.emb(x)
    for i in range(4):
        x = model.blocks[i](x)
    return model.head(x).sum()

def also(model, x):
    x = model.emb(x)
    for name, block in model.blocks.named_children():
        x = block(x)
    return model.head(x).sum()

model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(10):
    x = torch.randint(0, 1000, (8, 128)).cuda()
    loss = CALL
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loop", "call"),
    [
        ("for b in self.blocks: x = b.forward(x)", "model.forward(x).sum()"),
        ("for b in self.blocks: x = b(x)", "model(x).sum()"),
        ("for i in range(4): x = self.blocks[i].forward(x)", "model.forward(x).sum()"),
        ("pass", "loss_of(model, x)"),
        ("pass", "also(model, x)"),
    ],
)
def test_layers_run_one_after_the_other_however_they_are_called(loop: str, call: str) -> None:
    found = estimate(LAYERS.replace("LOOP", loop).replace("CALL", call))
    assert_peak(found, 218_554_880, within=0.001)
    assert found.parameters == 9_423_848


ACCUMULATED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
opt = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(64 * 400, 1024)), batch_size=64)
accumulate = 64
for epoch in range(2):
    for i, (x,) in enumerate(loader):
        x = x.cuda()
        loss = model(x).pow(2).mean() / accumulate
        loss.backward()
        if CONDITION:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
"""


@pytest.mark.parametrize(
    "condition",
    [
        "(i + 1) % accumulate == 0",
        "(i + 1) % accumulate == 0 or (i + 1) == len(loader)",
        "not (i + 1) % accumulate",
        "i % accumulate == accumulate - 1",
    ],
)
def test_micro_steps_are_counted_without_running_them_all(condition: str) -> None:
    source = ACCUMULATED.replace("CONDITION", condition)
    found = estimate(source)
    assert_peak(found, 185_176_576, within=0.001)
    assert found.plan["accumulation"].value == 64
    it = interpreter(fuel=40_000)
    run(source, it)
    assert it.loops.backwards >= 128


def test_a_condition_that_never_comes_true_does_not_run_for_ever() -> None:
    it = interpreter(fuel=60_000)
    run(ACCUMULATED.replace("CONDITION", "i == -1"), it)
    assert it.loops.steps == 0


@pytest.mark.parametrize(
    ("snippet", "expected"),
    [
        ("np.cumsum([1, 2, 3]).tolist()", "[1, 3, 6]"),
        ("np.cumsum(np.ones((2, 3)), axis=1).shape", "(2, 3)"),
        ("np.array((0, *np.cumsum([4, 5])[:-1]), dtype=np.int64).tolist()", "[0, 4]"),
        ("np.square([1.0, 2.0]).shape", "(2,)"),
    ],
)
def test_sums_along_an_array(snippet: str, expected: str) -> None:
    assert shown(f"import numpy as np\nresult = {snippet}") == expected


def test_a_list_times_an_unknown_number_is_as_long_as_its_slice() -> None:
    source = (
        "from transformers import AutoTokenizer\ntok = AutoTokenizer.from_pretrained('gpt2')\n"
        "prompt, answer = tok.encode('a'), tok.encode('b') + [0]\n"
        "result = [len(part[:16]) for part in ([-100] * len(prompt) + answer, prompt + answer, [5] + answer)]"
    )
    assert shown(source) == "[16, 16, 16]"


def test_what_is_loaded_is_in_evaluation_mode_until_somebody_trains_it() -> None:
    made = "from transformers import AutoModelForCausalLM\nm = AutoModelForCausalLM.from_pretrained('gpt2')\n"
    assert shown(f"{made}result = (m.training, m.train().training)") == "(False, True)"


KEPT = MANUAL.replace(
    "self.layer = ", "self.frozen = torch.nn.Dropout(0.5).eval()\n        self.layer = "
).replace("loss = self", "assert self.layer.training and not self.frozen.training\n        loss = self")


def test_a_trainer_keeps_the_mode_that_parts_of_a_module_were_put_into() -> None:
    """Lightning 2.2 and later: `fit` calls no `train()`."""
    assert estimate(KEPT.replace("PARAMETERS", "batch, index")).kind is Kind.TRAINING


JUDGE = """
import torch
from torch import nn

class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256)
    def forward(self, x):
        return self.layer(x)
    def over(self, loader):
        total = 0
        for x in loader:
            total += self(x.cuda()).sum().item()
        return total

loader = torch.utils.data.DataLoader(torch.randn(1_000_000, 256), batch_size=8)
judge = Judge().cuda()
optimizer = torch.optim.SGD(judge.parameters(), lr=0.1)
for epoch in range(3):
    judge.over(loader)
    for x in loader:
        judge(x.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_an_evaluation_in_a_method_is_left_early() -> None:
    it = interpreter(fuel=20_000)
    run(JUDGE, it)
    assert any(measured.kind is Kind.TRAINING for measured in it.loops.measured)
