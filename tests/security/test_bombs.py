"""Files made to exhaust their reader end soon, with an answer or with a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torchwise_analysis.engine import Engine, EstimateReport, open_project
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.plan import EstimateRequest
from torchwise_analysis.settings import Settings, load_settings

SCRIPT = """\
import json
import torch
import yaml
from omegaconf import OmegaConf

settings = {read}
width = settings["n"]
model = torch.nn.Linear(width, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    model(torch.randn(4, width).cuda()).sum().backward()
    optimizer.step()
"""

# Every alias stands for ten of the one before.
ALIASES = "a0: &a0 [x]\n" + "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12))
TEXTS = 'a0: "x"\n' + "\n".join(f'a{i}: "${{a{i - 1}}}${{a{i - 1}}}${{a{i - 1}}}"' for i in range(1, 41))
NODES = 'a: {p: "${b}", q: "${b}"}\nb: {p: "${a}", q: "${a}"}'
YAML = "yaml.safe_load(open('c'))"
OMEGA = "OmegaConf.to_container(OmegaConf.load('c'), resolve=True)"
JSON = "json.load(open('c'))"

FILES = {
    "aliases": (YAML, f"{ALIASES}\nn: 8\n"),
    "alias of itself": (YAML, "a: &a [*a]\nn: 8\n"),
    "flow as deep as a well": (YAML, "n: 8\nx: " + "[" * 50_000 + "]" * 50_000),
    "code in a tag": (YAML, 'n: !!python/object/apply:os.system ["true"]\n'),
    "texts of texts": (OMEGA, f"{TEXTS}\nn: 8\n"),
    "nodes of nodes": (OMEGA, f"{NODES}\nn: 8\n"),
    "a ring of references": (OMEGA, "n: ${a}\na: ${b}\nb: ${a}\n"),
    "JSON as deep as a well": (JSON, '{"n": 8, "x": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "a number of 100,000 digits": (JSON, '{"n": ' + "9" * 100_000 + "}"),
    "no number": (JSON, '{"n": NaN}'),
    "a negative width": (JSON, '{"n": -8}'),
    "a width beyond any card": (JSON, '{"n": 1' + "0" * 30 + "}"),
}


def estimated(folder: Path, text: str) -> EstimateReport:
    path = folder / "train.py"
    path.write_text(text)
    project = open_project(str(path), Settings())
    return Engine(Settings(), folder, project).estimate(SourceFile(str(path), text), EstimateRequest(("t4",)))


@pytest.mark.parametrize("name", FILES)
def test_settings_that_a_script_reads(name: str, tmp_path: Path) -> None:
    read, content = FILES[name]
    (tmp_path / "c").write_text(content)
    report = estimated(tmp_path, SCRIPT.format(read=read))
    assert report.estimates or report.unanswered
    assert not report.problems


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**9},
        {"hidden_size": 10**30},
        {"hidden_size": -64, "num_hidden_layers": -5},
        {"num_attention_heads": 0},
        {"hidden_size": 64.5, "num_hidden_layers": 1e300},
        {"hidden_size": [1] * 1000, "num_hidden_layers": {}},
        {"model_type": "../../etc/passwd"},
        {"architectures": ["__import__('os').system('true')"]},
        {"vocab_size": 10**18},
    ],
    ids=lambda change: ",".join(change),
)
def test_configurations_of_models(change: dict[str, object], tmp_path: Path) -> None:
    settings = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
        "auto_map": {"AutoModelForCausalLM": "evil.Evil"},
        **change,
    }
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(settings))
    report = estimated(
        tmp_path,
        "import torch\nfrom transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained('./m', trust_remote_code=True).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for step in range(9):\n"
        "    x = torch.zeros(1, 8, dtype=torch.long).cuda()\n"
        "    model(input_ids=x, labels=x).loss.backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n",
    )
    assert report.estimates or report.unanswered
    assert not report.problems


SETTINGS: dict[str, Callable[[], str]] = {
    "deep lists": lambda: "[tool.torchwise]\nselect = " + "[" * 100_000,
    "deep tables": lambda: "[tool.torchwise]\nx = " + "{a=" * 5_000 + "1" + "}" * 5_000,
    "a number of 100,000 digits": lambda: "[tool.torchwise]\nx = " + "9" * 100_000,
    "ten megabytes": lambda: "[tool.torchwise]\n" + "# x\n" * 2_500_000,
    "wrong types": lambda: "[tool.torchwise]\nselect = 5\nper-file-ignores = [1]\nmin-confidence = []\n",
    "no table": lambda: "[tool]\ntorchwise = 5\n",
    "a date": lambda: "[tool.torchwise]\nselect = 1979-05-27\n",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_a_project(name: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(SETTINGS[name]())
    loaded = load_settings(tmp_path / "pyproject.toml")
    assert loaded is not None
    assert loaded.settings == Settings()
    assert loaded.problems
    assert all(len(problem.message) < 400 for problem in loaded.problems)
