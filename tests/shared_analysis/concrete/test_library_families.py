"""Hand-written families against the libraries' own model files: parameters and peaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate

DATA = Path(__file__).parent / "data" / "library_families.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
ALLOWED = 0.005


def estimate(script: str) -> Estimate:
    module = lower_text("train.py", script)
    request = EstimateRequest(with_remedies=False, with_alternatives=False)
    report = estimate_module(module, Project([], []), request)
    assert not report.unanswered, report.unanswered
    return report.estimates[0]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_family_takes_what_its_library_takes(row: dict[str, Any]) -> None:
    found = estimate(row["script"])
    assert found.parameters == row["parameters"]
    assert found.peak.allocated is not None
    assert found.peak.allocated.point == pytest.approx(row["allocated"], rel=ALLOWED)


@pytest.mark.parametrize(
    "lines",
    [
        "from transformers import GemmaForCausalLM, GemmaConfig\n"
        "model = GemmaForCausalLM(GemmaConfig(num_hidden_layers=1, hidden_size=64, intermediate_size=64))",
        "from transformers import GPTNeoXConfig, GPTNeoXForCausalLM\n"
        "model = GPTNeoXForCausalLM(GPTNeoXConfig(num_hidden_layers=1, hidden_size=64, num_attention_heads=4,"
        " intermediate_size=64))",
        "from transformers import AutoModelForSeq2SeqLM\n"
        "model = AutoModelForSeq2SeqLM.from_pretrained('google-t5/t5-small')",
        "from transformers import WhisperForConditionalGeneration\n"
        "model = WhisperForConditionalGeneration.from_pretrained('openai/whisper-tiny')",
        "import timm\nmodel = timm.create_model('efficientnet_b0.ra_in1k', pretrained=True, num_classes=10)",
        "from diffusers import UNet2DConditionModel\n"
        "model = UNet2DConditionModel.from_pretrained('runwayml/stable-diffusion-v1-5', subfolder='unet')",
        "from torchvision.models.efficientnet import efficientnet_b1\n"
        "model = efficientnet_b1(weights='DEFAULT')",
    ],
)
def test_other_spellings_find_the_same_families(lines: str) -> None:
    script = (
        f"import torch\n{lines}\n"
        "model.cuda()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(3):\n"
        "    optimizer.zero_grad()\n"
        "    loss = sum(p.sum() for p in model.parameters())\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    assert estimate(script).breakdown["weights"] > 0


def test_tokens_are_generated_by_a_family() -> None:
    found = estimate(
        "import torch\n"
        "from transformers import AutoConfig, AutoModelForCausalLM\n"
        "config = AutoConfig.for_model('llama', hidden_size=256, intermediate_size=512, num_hidden_layers=2,"
        " num_attention_heads=4)\n"
        "model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda()\n"
        "ids = torch.randint(0, 1000, (2, 64), device='cuda')\n"
        "for step in range(2):\n"
        "    with torch.no_grad():\n"
        "        outputs = model.generate(ids, max_new_tokens=32)\n"
    )
    assert found.kind.value == "generation"


def test_an_option_that_changes_the_network_is_not_passed_over() -> None:
    module = lower_text(
        "train.py",
        "import torch, timm\nmodel = timm.create_model('resnet50', drop_path_rate=0.1).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for i in range(3):\n    model(torch.zeros(2, 3, 224, 224).cuda()).sum().backward()\n"
        "    optimizer.step()\n",
    )
    assert estimate_module(module, Project([], []), EstimateRequest(with_remedies=False)).unanswered
