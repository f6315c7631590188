"""What real scripts lean on: files, options, configurations, data sets, launchers, frameworks, statements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchwise_analysis.interp.concrete.library import yaml_text
from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateReport, EstimateRequest, estimate_module
from torchwise_analysis.plan.stated import Shape, read_statements
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate, Source

LOOP = """
for _ in range(4):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MODEL = """
import torch
from torch import nn
model = nn.Linear(width, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(batch, width, device="cuda")
"""


def report(folder: Path, script: str, **files: str) -> EstimateReport:
    """The estimate for main.py beside further files; in names `__` is `/` and `_dot_` a dot."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    main = folder / "main.py"
    main.write_text(script)
    request = EstimateRequest(with_alternatives=False, with_remedies=False)
    return estimate_module(lower_text(str(main), script), Project([str(folder)]), request)


def estimate(folder: Path, script: str, **files: str) -> Estimate:
    answer = report(folder, script, **files)
    assert answer.estimates, answer.unanswered
    return answer.estimates[0]


def message(folder: Path, script: str, **files: str) -> str:
    answer = report(folder, script, **files)
    assert not answer.estimates
    return answer.unanswered[0].message


def model_of(width: str, batch: str) -> str:
    return f"width, batch = {width}, {batch}\n" + MODEL + LOOP


# --------------------------------------------------------------------------- files


def test_a_projects_own_json_is_read(tmp_path: Path) -> None:
    script = "import json\nwith open('c.json') as f:\n    c = json.load(f)\n" + model_of("c['width']", "8")
    found = estimate(tmp_path, script, c_dot_json=json.dumps({"width": 64}))
    assert found.parameters == 650
    assert any(path.endswith("c.json") for path in found.read_files)


def test_files_outside_the_project_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "outside.json"
    secret.write_text('{"width": 64}')
    inside = tmp_path / "project"
    inside.mkdir()
    script = "import json\nc = json.load(open('../outside.json'))\n" + model_of("c['width']", "8")
    assert "is not known" in message(inside, script)


def test_an_absent_file_neither_exists_nor_stops_an_assertion(tmp_path: Path) -> None:
    script = """
import os
assert os.path.exists("data/train.bin"), "no data"
if not os.path.isdir("data"):
    raise RuntimeError("download it first")
if os.path.exists("data"):
    pass
else:
    raise SystemExit(1)
""" + model_of("32", "8")
    assert estimate(tmp_path, script).parameters == 330


def test_a_vocabulary_counted_from_absent_text_is_not_guessed(tmp_path: Path) -> None:
    script = """
words = {}
names = []
with open("corpus.txt") as f:
    for line in f:
        for word in line.split():
            if word not in words:
                names.append(word)
                words[word] = len(names) - 1
""" + model_of("len(names)", "8")
    said = message(tmp_path, script)
    assert "the length of" in said and "corpus.txt" in said


# --------------------------------------------------------------------------- options


def test_a_required_option_comes_from_the_projects_launch_line(tmp_path: Path) -> None:
    script = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, required=True)
args = parser.parse_args()
""" + model_of("args.width", "8")
    readme = "Train:\n\n```\n$ python main.py \\\n    --width 48\n```\n"
    found = estimate(tmp_path, script, README_dot_md=readme)
    assert found.parameters == 490
    assert any("README.md:4" in one for one in found.assumptions)


@pytest.mark.parametrize(
    "line", ["python main.py --width $WIDTH", "python other.py --width 48", "see main.py --width 48"]
)
def test_other_lines_say_nothing(tmp_path: Path, line: str) -> None:
    script = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, required=True)
args = parser.parse_args()
""" + model_of("args.width", "8")
    assert "--width, which has no default" in message(tmp_path, script, run_dot_sh=line + "\n")


def test_a_parent_parsers_options_are_there(tmp_path: Path) -> None:
    script = """
import argparse
base = argparse.ArgumentParser(add_help=False)
base.add_argument("--width", type=int, default=24)
parser = argparse.ArgumentParser(parents=[base])
args = parser.parse_args()
""" + model_of("args.width", "8")
    assert estimate(tmp_path, script).parameters == 250


# --------------------------------------------------------------------------- statements of the person


def test_a_stated_tensor_stands_for_data_that_is_not_there(tmp_path: Path) -> None:
    script = "import torch\n# torchwise: data=float32[16,32]\ndata = torch.load('x.pt')\n"
    script += model_of("data.shape[1]", "data.shape[0]")
    assert estimate(tmp_path, script).parameters == 330


def test_without_the_statement_the_message_says_how_to_state_it(tmp_path: Path) -> None:
    script = "import torch\ndata = torch.load('x.pt')\n" + model_of("data.shape[1]", "8")
    assert "state it above line 2: `# torchwise: data=...`" in message(tmp_path, script)


def test_a_statement_answers_an_option_and_is_named(tmp_path: Path) -> None:
    script = """# torchwise: width=16
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("width", type=int)
args = parser.parse_args()
""" + model_of("args.width", "8")
    found = estimate(tmp_path, script)
    assert found.parameters == 170
    assert any("line 1 states" in one for one in found.assumptions)


def test_statements_are_read_from_comments_only() -> None:
    text = 's = "# torchwise: a=1"\nb = 2  # torchwise: b=3\n# torchwise: c=int64[2,3] d=x\n\nc = f()\n'
    text += "# torchwise: ignore[x]\n"
    stated = read_statements("m.py", text)
    assert stated.by_line == {2: {"b": 3}, 5: {"c": Shape("int64", (2, 3)), "d": "x"}}


# --------------------------------------------------------------------------- configurations


def test_yaml_follows_the_standard_reader() -> None:
    text = """
# comment
name: "a # b"   # tail
list: [1, 2.5, yes, ~, 'x, y']
nested: {a: 1, b: {c: two}}
items:
- one
-  key: 55_000
   other: 1e-4
- [a, b]
block: |
  line 1
    line 2
folded: >-
  a
  b
base: &base {x: 1}
copy:
  <<: *base
  y: 2
empty:
"""
    assert yaml_text.load(text, "c.yaml") == {
        "name": "a # b",
        "list": [1, 2.5, True, None, "x, y"],
        "nested": {"a": 1, "b": {"c": "two"}},
        "items": ["one", {"key": 55000, "other": "1e-4"}, ["a", "b"]],
        "block": "line 1\n  line 2\n",
        "folded": "a b",
        "base": {"x": 1},
        "copy": {"x": 1, "y": 2},
        "empty": None,
    }


@pytest.mark.parametrize("text", ["a: [1, 2", "a: {b", "\ta: 1", "a: 'x", "a: b\nc"])
def test_what_is_no_yaml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        yaml_text.load(text, "c.yaml")


def test_a_batch_size_of_a_yaml_file_has_its_place(tmp_path: Path) -> None:
    script = (
        """
import yaml
with open("c.yaml") as f:
    c = yaml.safe_load(f)
width, batch = c["model"]["width"], c["batch_size"]
"""
        + MODEL
        + LOOP
    )
    found = estimate(tmp_path, script, c_dot_yaml="# sizes\nbatch_size: 8\nmodel:\n  width: 20\n")
    field = found.plan["micro_batch"]
    assert (field.value, field.source) == (8, Source.CONFIGURED)
    assert field.origin is not None and field.origin.path.endswith("c.yaml") and field.origin.line == 2


def test_an_absent_settings_file_stops_with_its_name(tmp_path: Path) -> None:
    script = "import yaml\nc = yaml.safe_load(open('conf/c.yaml'))\n" + model_of("c['w']", "8")
    assert message(tmp_path, script) == "the settings are not known: conf/c.yaml is not in the project"


def test_hydra_composes_defaults_packages_and_references(tmp_path: Path) -> None:
    script = (
        """
import hydra
from hydra.utils import instantiate
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    width, batch = cfg.data.width, cfg.data.batch
    import torch
    model = instantiate(cfg.model).cuda()
    optimizer = instantiate(cfg.optimizer, params=model.parameters())
    x = torch.randn(batch, width, device="cuda")
"""
        + LOOP.replace("\n", "\n    ")
        + """
if __name__ == "__main__":
    main()
"""
    )
    found = estimate(
        tmp_path,
        script,
        conf__config_dot_yaml="defaults:\n  - _self_\n  - data: small\n  - model: linear\n"
        "  - optional local: none\n\n"
        "optimizer:\n  _target_: torch.optim.Adam\n  lr: 1e-3\n",
        conf__data__small_dot_yaml="width: 40\nbatch: 8\n",
        conf__model__linear_dot_yaml="_target_: torch.nn.Linear\nin_features: ${data.width}\n"
        "out_features: 10\n",
    )
    assert found.parameters == 410
    assert found.plan["optimizer"].value == "Adam"


def test_yacs_merges_a_file(tmp_path: Path) -> None:
    script = """
from yacs.config import CfgNode as CN
_C = CN()
_C.MODEL = CN()
_C.MODEL.WIDTH = 8
_C.MODEL.NAME = "a"
cfg = _C.clone()
cfg.merge_from_file("c.yaml")
cfg.freeze()
assert cfg.MODEL.NAME == "a"
""" + model_of("cfg.MODEL.WIDTH", "8")
    assert estimate(tmp_path, script, c_dot_yaml="MODEL:\n  WIDTH: 28\n").parameters == 290


# --------------------------------------------------------------------------- data


def test_an_image_folder_of_a_projects_own_class(tmp_path: Path) -> None:
    script = """
import os
import torch
from torch import nn
from PIL import Image
from torch.utils.data import Dataset, DataLoader
from torchvision import transforms

class Pictures(Dataset):
    def __init__(self, folder, transform):
        self.names = [os.path.join(folder, n) for n in os.listdir(folder) if n.endswith(".png")]
        self.transform = transform
    def __len__(self):
        return len(self.names)
    def __getitem__(self, index):
        y, _, _ = Image.open(self.names[index]).convert("YCbCr").split()
        return self.transform(y)

data = Pictures("images", transforms.Compose([transforms.CenterCrop(64), transforms.ToTensor()]))
model = nn.Conv2d(1, 4, 3, padding=1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(data, batch_size=16, shuffle=True):
    loss = model(batch.cuda()).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    found = estimate(tmp_path, script)
    assert found.plan["micro_batch"].value == 16
    assert found.plan["image_size"].value == (64, 64)
    assert found.breakdown["inputs"] == 16 * 64 * 64 * 4
    assert not any("images of" in one for one in found.assumptions)


def test_a_class_derived_from_a_known_data_set(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
from torchvision import datasets, transforms

class Twice(datasets.MNIST):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, image, label

data = Twice("data", train=True, transform=transforms.ToTensor())
sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 32, drop_last=True)
model = nn.Linear(784, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for a, b, label in torch.utils.data.DataLoader(data, batch_sampler=sampler):
    loss = (model(a.cuda().flatten(1)) + model(b.cuda().flatten(1))).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert estimate(tmp_path, script).plan["micro_batch"].value == 32


# --------------------------------------------------------------------------- launchers, frameworks


@pytest.mark.parametrize(
    "start",
    [
        "import torch.multiprocessing as mp\nmp.spawn(main, args=(24,), nprocs=4)",
        "import fire\nfire.Fire(lambda width=24: main(0, width))",
        "import click\n@click.command()\n@click.option('--width', default=24)\n"
        "def cli(width):\n    main(0, width)\ncli()",
        "import multiprocessing as mp\np = mp.Process(target=main, args=(0, 24))\np.start()\np.join()",
    ],
)
def test_launchers_start_the_main_function(tmp_path: Path, start: str) -> None:
    body = (MODEL + LOOP).replace("\n", "\n    ")
    assert estimate(tmp_path, f"def main(rank, width):\n    batch = 8{body}\n{start}\n").parameters == 250


LIGHTNING = """
import torch
from torch import nn
import lightning as L

class Net(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(self.hparams.width, 10)
    def training_step(self, batch, index):
        loss = self.layer(batch[0]).sum()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
"""
FIT = """
data = torch.utils.data.TensorDataset(torch.randn(640, 64))
trainer = L.Trainer(precision="bf16-mixed", accumulate_grad_batches=2)
trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=32))
"""


def test_lightning_steps_where_fit_is_called(tmp_path: Path) -> None:
    found = estimate(tmp_path, LIGHTNING + FIT)
    assert (
        found.origin.line
        == (LIGHTNING + FIT)
        .split("\n")
        .index("trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=32))")
        + 1
    )
    plan = {name: field.value for name, field in found.plan.items()}
    assert (plan["micro_batch"], plan["accumulation"], plan["precision"]) == (32, 2, "bfloat16 autocast")
    assert plan["optimizer"] == "AdamW"
    assert all(group.origin is None or group.origin.path.endswith("main.py") for group in found.alive)


def test_a_module_that_is_trained_elsewhere_says_so(tmp_path: Path) -> None:
    assert "no trainer's fit() is called in this file" in message(tmp_path, LIGHTNING)


def test_accelerate_accumulates_and_casts(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)
model = nn.Linear(64, 10)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(640, 64)), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (x,) in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
"""
    plan = {name: field.value for name, field in estimate(tmp_path, script).plan.items()}
    assert (plan["micro_batch"], plan["accumulation"], plan["precision"]) == (16, 4, "bfloat16 autocast")


# --------------------------------------------------------------------------- messages


def test_a_loop_that_nobody_calls_is_named(tmp_path: Path) -> None:
    script = "def train(model, loader):\n    for x in loader:\n        model(x).backward()\n"
    said = message(tmp_path, script)
    assert said.startswith("train() holds the training loop, but nothing in this file calls it")
    assert "model and loader are not known" in said


def test_a_script_that_leaves_early_says_where(tmp_path: Path) -> None:
    script = "import sys\nsys.exit()\n" + model_of("8", "8")
    answer = report(tmp_path, script)
    assert answer.unanswered[0].origin.line == 2
    assert "ends here" in answer.unanswered[0].message


def test_messages_hold_no_absolute_path(tmp_path: Path) -> None:
    script = f"import os\nraise ValueError(os.path.abspath('{tmp_path}/data/x'))\n"
    assert message(tmp_path, script) == "the script would raise ValueError: data/x"


# --------------------------------------------------------------------------- loops without an optimizer


def test_weights_changed_in_place_after_a_backward_are_a_step(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
model = nn.Linear(64, 10).cuda()
for _ in range(8):
    model.zero_grad()
    model(torch.randn(16, 64, device="cuda")).sum().backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
"""
    found = estimate(tmp_path, script)
    assert (found.kind.value, found.origin.line) == ("training", 5)
    assert found.plan["optimizer"].value == "in place, without an optimizer"
    assert found.breakdown["optimizer"] == 0


GAN = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ConvTranspose2d(100, 3, 32)
    def forward(self, z):
        return self.layer(z)

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 1, 32)
    def forward(self, x):
        return self.layer(x).view(-1)

change = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
loader = DataLoader(datasets.CelebA("data", transform=change), batch_size=8)
g, d, judge = Generator().cuda(), Critic().cuda(), Critic().cuda()
{lines}
opt_g, opt_d = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
for real, _ in loader:
    fake = g(torch.randn(8, 100, 1, 1).cuda())
    (d(real.cuda()) - d(fake) + judge(fake)).mean().backward()
    opt_d.step()
    opt_g.step()
"""


@pytest.mark.parametrize(
    ("lines", "shown"),
    [("judge.requires_grad_(False)", "Generator + Critic"), ("", "Generator + 2 x Critic")],
)
def test_a_plan_names_every_model_that_trains_and_the_size_of_real_images(
    tmp_path: Path, lines: str, shown: str
) -> None:
    plan = estimate(tmp_path, GAN.format(lines=lines)).plan
    assert plan["model"].value == shown
    assert plan["image_size"].value == (32, 32)
