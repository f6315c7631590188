"""The code of docs/live-guard.md, run as it stands there in a program that has what it names."""

# PyTorch is not installed where the types are checked.
# pyright: reportMissingImports=false
from __future__ import annotations

import json
import re
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from torchwise_server.cli import main

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed in this environment (see `make test-torch`)"
)
pytestmark = pytest.mark.torch

PAGE = (Path(__file__).parents[2] / "docs/live-guard.md").read_text(encoding="utf-8")


def block(holding: str) -> str:
    """The one block of Python that holds some words."""
    blocks = [
        textwrap.dedent(body)
        for _, body in re.findall(r"^( *)```python\n(.*?)^\1```", PAGE, re.DOTALL | re.MULTILINE)
    ]
    (found,) = (each for each in blocks if holding in each)
    return found


def program() -> dict[str, Any]:
    """A model, an optimizer, a batch and a loader, as most programs have them."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 10)

        def forward(self, x: Any, labels: Any = None) -> Any:
            return self.layer(x)

    model = Model()
    batch = {"x": torch.randn(4, 64), "labels": torch.zeros(4, dtype=torch.long)}
    return {
        "torch": torch,
        "F": torch.nn.functional,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), foreach=True),
        "batch": batch,
        "loader": [batch],
        "ran": [],
    }


def test_the_first_example(capsys: Any) -> None:
    names = program()
    names["train"] = lambda *arguments: names["ran"].append(arguments)
    before = {name: value.clone() for name, value in names["model"].state_dict().items()}
    exec(block("train(model, optimizer, loader)"), names)
    assert names["ran"] == [(names["model"], names["optimizer"], names["loader"])]
    assert capsys.readouterr().out.startswith("torchwise: peak ")
    assert all(torch.equal(value, before[name]) for name, value in names["model"].state_dict().items())


def test_what_a_step_does() -> None:
    names = program()
    exec("from torchwise_memory.live import VRAMGuard\n" + block("accumulate=4"), names)
    report = names["guard"].check()
    assert report.peak is not None, report.why
    assert report.card.name == "a100-80gb"
    assert names["guard"].strict


def test_lightning(capsys: Any) -> None:
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed in this environment")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 10)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), foreach=True)

    def quiet(**options: Any) -> Any:
        return lightning.Trainer(
            **options, max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 64)), batch_size=4)
    names: dict[str, Any] = {"batch": next(iter(data)), "Trainer": quiet}
    exec(block("lightning_callback(batch"), names)
    names["trainer"].fit(Module(), data)
    assert "A100 SXM4 80GB: fits" in capsys.readouterr().out


def test_transformers(tmp_path: Path, capsys: Any) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="Transformers is not installed in this environment"
    )
    pytest.importorskip("accelerate", reason="Accelerate is not installed in this environment")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=500, eos_token_id=0, bos_token_id=0
    )
    ids = torch.randint(0, 500, (4, 64))
    rows = [{"input_ids": ids[0], "labels": ids[0]} for _ in range(8)]
    names: dict[str, Any] = {
        "model": transformers.GPT2LMHeadModel(config),
        "args": transformers.TrainingArguments(
            str(tmp_path), max_steps=2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True
        ),
        "batch": {"input_ids": ids, "labels": ids},
        "Trainer": lambda *arguments, **options: transformers.Trainer(
            *arguments, train_dataset=rows, **options
        ),
    }
    exec(block("transformers_callback(batch"), names)
    names["trainer"].train()
    assert "torchwise: peak " in capsys.readouterr().out


def test_accelerate(capsys: Any) -> None:
    accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed in this environment")
    names = program()
    names |= {"accelerator": accelerate.Accelerator(cpu=True), "train": lambda: names["ran"].append(True)}
    data = [(torch.randn(64), torch.zeros(1)) for _ in range(8)]
    names["model"] = torch.nn.Sequential(torch.nn.Linear(64, 10))
    names["optimizer"] = torch.optim.AdamW(names["model"].parameters(), foreach=True)
    names["loader"] = torch.utils.data.DataLoader([x for x, _ in data], batch_size=4)
    exec("from torchwise_memory.live import VRAMGuard\n" + block("accelerator.prepare"), names)
    assert names["ran"] == [True]
    assert "torchwise: peak " in capsys.readouterr().out


def test_the_command(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (command,) = re.findall(r"^torchwise (profile .*)$", PAGE, re.MULTILINE)
    (tmp_path / "train.py").write_text(
        "import torch\n\n\ndef make():\n    model = torch.nn.Linear(64, 10)\n"
        "    return model, torch.optim.AdamW(model.parameters()), torch.randn(4, 64)\n\n\n"
        "def guard():\n    from torchwise_memory.live import VRAMGuard\n\n"
        "    return VRAMGuard(*make()[:2], batch=make()[2], gpu='t4')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.delitem(__import__("sys").modules, "train", raising=False)
    assert main(command.split()) == 0
    assert "A100 SXM4 80GB: fits" in capsys.readouterr().out
    # a card that is named counts for a guard, too
    assert main(["profile", "train:guard", "--gpu", "h100-80gb"]) == 0
    assert "H100" in capsys.readouterr().out
    assert main(["profile", "train:guard"]) == 0
    assert "Tesla T4" in capsys.readouterr().out
    schema = files("torchwise_server").joinpath("schemas/profile.schema.json").read_text(encoding="utf-8")
    for gpu in ((), ("--gpu", "t4")):
        assert main(["profile", "train:make", *gpu, "--format", "json"]) == 0
        jsonschema.validate(json.loads(capsys.readouterr().out), json.loads(schema))
    assert main(["profile", "train:make", "--gpu", "h10"]) == 2
    assert "did you mean" in capsys.readouterr().err
