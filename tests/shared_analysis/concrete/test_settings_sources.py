"""Settings out of pydantic models, Python files, and recipes that name their components."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shared_analysis.concrete.test_scripts import LOOP, MODEL, estimate, message, report

from torchwise_memory.report import Source

TRAINING = MODEL + LOOP


def parameters_of(folder: Path, script: str, **files: str) -> int | None:
    return estimate(folder, script, **files).parameters


# --------------------------------------------------------------------------- pydantic

SETTINGS = """
from pydantic import BaseModel, Field

class Net(BaseModel):
    width: int = 64
    depth: int = Field(1, gt=0)

class Run(BaseModel):
    net: Net = Field(default_factory=Net)
    batch: int
    names: list[str] = []

run = %s
width, batch = run.net.width, run.batch
"""


@pytest.mark.parametrize(
    ("made", "width"),
    [
        ("Run(batch=8)", 64),
        ("Run(batch=8, net=Net(width=32))", 32),
        ("Run(batch=8, net={'width': 16})", 16),
        ("Run.model_validate({'batch': 8, 'net': {'width': 128}})", 128),
        ("Run.parse_obj({'batch': 8}).model_copy(update={'net': Net(width=8)})", 8),
        ('Run.model_validate_json(\'{"batch": 8, "net": {"width": 24}}\')', 24),
        ("Run(**Run(batch=8, net=Net(width=40)).model_dump())", 40),
    ],
)
def test_models_are_filled_as_pydantic_fills_them(tmp_path: Path, made: str, width: int) -> None:
    assert parameters_of(tmp_path, SETTINGS % made + TRAINING) == width * 10 + 10


def test_a_field_that_must_be_given_raises(tmp_path: Path) -> None:
    assert "batch" in message(tmp_path, SETTINGS % "Run()" + TRAINING)


ENVIRONMENT = """
from pydantic_settings import BaseSettings, SettingsConfigDict

class Run(BaseSettings):
    model_config = SettingsConfigDict(env_file=".env", env_prefix="RUN_")
    width: int = 64
    batch: int = 8

run = Run()
width, batch = run.width, run.batch
"""


def test_settings_take_what_the_projects_file_says(tmp_path: Path) -> None:
    assert parameters_of(tmp_path, ENVIRONMENT + TRAINING) == 650
    (tmp_path / ".env").write_text("# sizes\nRUN_WIDTH=32\nexport RUN_BATCH='4'\nOTHER=1\n")
    found = estimate(tmp_path, ENVIRONMENT + TRAINING)
    assert found.parameters == 330
    assert found.plan["micro_batch"].value == 4


# --------------------------------------------------------------------------- settings in Python

MMENGINE = """
from mmengine.config import Config
config = Config.fromfile("configs/large.py")
config.merge_from_dict({"data.batch": 4})
width, batch = config.model.width, config.data.batch
"""
BASE = "model = dict(width=64, norm='bn')\ndata = dict(batch=8)\n_private = 3\n"


def test_settings_in_python_lie_over_their_base(tmp_path: Path) -> None:
    large = "_base_ = ['./base.py']\nfactor = 2\nmodel = dict(width=64 * factor)\n"
    found = estimate(tmp_path, MMENGINE + TRAINING, configs__large_dot_py=large, configs__base_dot_py=BASE)
    assert found.parameters == 1290
    assert found.plan["micro_batch"].value == 4
    assert any(path.endswith("base.py") for path in found.read_files)


def test_a_section_may_be_replaced_whole(tmp_path: Path) -> None:
    large = "_base_ = './base.py'\nmodel = dict(_delete_=True, width=32)\n"
    script = MMENGINE + "assert 'norm' not in config.model\n" + TRAINING
    assert parameters_of(tmp_path, script, configs__large_dot_py=large, configs__base_dot_py=BASE) == 330


def test_settings_that_are_not_there_stop(tmp_path: Path) -> None:
    assert "configs/large.py" in message(tmp_path, MMENGINE + TRAINING)
    large = "from mmengine.config import read_base\nwith read_base():\n    from .a import *\n"
    assert "configs/large.py" in message(tmp_path, MMENGINE + TRAINING, configs__large_dot_py=large)


@pytest.mark.parametrize("names", ["*", "model, data"])
def test_settings_in_python_may_import_their_base(tmp_path: Path, names: str) -> None:
    large = f"""from mmengine.config import read_base
with read_base():
    from .base import {names}
model.update(width=128)
"""
    found = estimate(tmp_path, MMENGINE + TRAINING, configs__large_dot_py=large, configs__base_dot_py=BASE)
    assert found.parameters == 1290
    assert found.plan["micro_batch"].value == 4


def test_a_flag_may_name_a_settings_file(tmp_path: Path) -> None:
    script = (
        """
from absl import app, flags
from ml_collections import config_flags
FLAGS = flags.FLAGS
config_flags.DEFINE_config_file("config", "configs/small.py")

def main(_):
    config = FLAGS.config
    width, batch = config.model.width, config.batch
"""
        + "".join(f"    {line}\n" for line in TRAINING.splitlines())
        + "app.run(main)\n"
    )
    small = """
import ml_collections

def get_config():
    config = ml_collections.ConfigDict()
    config.batch = 8
    config.model = ml_collections.ConfigDict(dict(width=48))
    return config
"""
    assert parameters_of(tmp_path, script, configs__small_dot_py=small) == 490


# --------------------------------------------------------------------------- torchtune

RECIPE = """
import sys
import torch
from torchtune import config

class Recipe:
    def __init__(self, cfg):
        self.model = config.instantiate(cfg.model).cuda()
        self.optimizer = config.instantiate(cfg.optimizer, self.model.parameters())
        self.batch = cfg.batch_size

    def train(self):
        x = torch.randn(self.batch, 64, device="cuda")
        for _ in range(3):
            self.model(x).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

@config.parse
def recipe_main(cfg):
    Recipe(cfg).train()

if __name__ == "__main__":
    sys.exit(recipe_main())
"""
YAML = """
# tune run main --config tiny.yaml
model:
  _component_: nets.build
  width: 64
  head:
    _component_: torch.nn.Linear
    in_features: 32
    out_features: 4
optimizer:
  _component_: torch.optim.AdamW
  lr: 1e-3
batch_size: 8
"""
NETS = (
    "from torch import nn\n\ndef build(width, head):\n    return nn.Sequential(nn.Linear(width, 32), head)\n"
)


def test_a_recipe_is_made_of_what_its_settings_name(tmp_path: Path) -> None:
    line = "tune run main.py --config tiny.yaml batch_size=16\n"
    found = report(tmp_path, RECIPE, run_dot_sh=line, tiny_dot_yaml=YAML, nets_dot_py=NETS).estimates
    assert [e.parameters for e in found][:1] == [64 * 32 + 32 + 32 * 4 + 4]
    assert found[0].plan["optimizer"].value == "AdamW"
    assert found[0].plan["micro_batch"].value == 16
    assert found[0].plan["micro_batch"].source in (Source.READ, Source.CONFIGURED)


def test_a_recipe_without_settings_says_what_is_missing(tmp_path: Path) -> None:
    assert "--config" in message(tmp_path, RECIPE, nets_dot_py=NETS)
