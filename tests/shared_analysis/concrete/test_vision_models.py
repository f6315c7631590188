"""torchvision's networks without torchvision: the family stands in and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate

SCRIPT = """
import torch
import torch.nn as nn
{lines}
model.cuda()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
for i in range(10):
    optimizer.zero_grad()
    images, labels = torch.zeros(2, 3, 224, 224), torch.zeros(2, dtype=torch.int64)
    loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    loss.backward()
    optimizer.step()
"""
RESNET18, RESNET50, VGG16, ALEXNET = 11_689_512, 25_557_032, 138_357_544, 61_100_840


def estimate(lines: str) -> Estimate:
    module = lower_text("train.py", SCRIPT.format(lines=lines))
    report = estimate_module(module, Project([], []), EstimateRequest(with_remedies=False))
    assert not report.unanswered
    return report.estimates[0]


@pytest.mark.parametrize(
    ("lines", "parameters"),
    [
        ("import torchvision\nmodel = torchvision.models.resnet50()", RESNET50),
        ("from torchvision import models\nmodel = models.resnet18(True)", RESNET18),
        ("import torchvision.models as models\nmodel = models.vgg16(pretrained=True)", VGG16),
        ("from torchvision.models.alexnet import alexnet\nmodel = alexnet(weights=None)", ALEXNET),
        ("from torchvision.models import *\nprint(len('x'))\nmodel = resnet18()", RESNET18),
        ("from torchvision import models\nmodel = models.__dict__['resnet18']()", RESNET18),
        ("from torchvision import models\nmodel = models.get_model('resnet18', weights='DEFAULT')", RESNET18),
        (
            "from torchvision.models import resnet50, ResNet50_Weights\n"
            "model = resnet50(weights=ResNet50_Weights.IMAGENET1K_V2, num_classes=10)",
            RESNET50 - 990 * 2049,
        ),
        (
            "from torchvision import models\nmodel = models.resnet50(weights='DEFAULT')\n"
            "model.fc = nn.Linear(model.fc.in_features, 10)",
            RESNET50 - 990 * 2049,
        ),
        (
            "from torchvision import models\nmodel = models.vgg16()\n"
            "model.classifier[6] = nn.Linear(model.classifier[6].in_features, 10)",
            VGG16 - 990 * 4097,
        ),
        (
            "from torchvision import models\nbody = models.resnet50()\n"
            "model = nn.Sequential(*list(body.children())[:-1], nn.Flatten(), nn.Linear(2048, 10))",
            RESNET50 - 990 * 2049,
        ),
    ],
)
def test_a_network_has_the_parameters_of_torchvisions(lines: str, parameters: int) -> None:
    assert estimate(lines).parameters == parameters


def test_what_stood_in_is_said_and_named_in_the_plan() -> None:
    found = estimate("import torchvision\nmodel = torchvision.models.alexnet()")
    assert found.plan["model"].value == "AlexNet (alexnet)"
    assert "torchvision's source was not found: a model of ours stands in for alexnet" in found.assumptions


def test_a_frozen_body_trains_its_head_and_last_stage() -> None:
    found = estimate(
        "from torchvision import models\nmodel = models.resnet18(weights='DEFAULT')\n"
        "for p in model.parameters():\n    p.requires_grad = False\n"
        "for p in model.layer4.parameters():\n    p.requires_grad = True\n"
        "model.fc = nn.Linear(512, 10)"
    )
    assert found.parameters == RESNET18 - 990 * 513
    assert found.trainable_parameters == 8_393_728 + 5130


def test_the_transforms_of_a_checkpoint_settle_the_size_of_images() -> None:
    source = """
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, models
weights = models.ResNet18_Weights.DEFAULT
loader = DataLoader(datasets.ImageFolder("data", weights.transforms()), batch_size=4)
model = models.resnet18(weights=weights).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    optimizer.step()
"""
    report = estimate_module(lower_text("train.py", source), Project([], []), EstimateRequest())
    assert report.estimates[0].plan["image_size"].value == (224, 224)


def test_a_readable_package_is_read_instead(tmp_path: Path) -> None:
    models = tmp_path / "torchvision" / "models"
    models.mkdir(parents=True)
    (tmp_path / "torchvision" / "__init__.py").write_text("")
    (models / "__init__.py").write_text(
        "from torch import nn\nresnet50 = lambda: nn.Sequential(nn.Flatten(), nn.Linear(150528, 2))\n"
    )
    module = lower_text(
        "train.py", SCRIPT.format(lines="import torchvision\nmodel = torchvision.models.resnet50()")
    )
    report = estimate_module(module, Project([], [str(tmp_path)]), EstimateRequest(with_remedies=False))
    assert report.estimates[0].parameters == 301_058
    assert not any("stands in" in one for one in report.estimates[0].assumptions)


def test_options_that_change_the_network_are_not_guessed() -> None:
    lines = "import torchvision\nmodel = torchvision.models.resnet50(replace_stride_with_dilation=[0, 1, 1])"
    module = lower_text("train.py", SCRIPT.format(lines=lines))
    (unanswered,) = estimate_module(module, Project([], []), EstimateRequest()).unanswered
    assert "replace_stride_with_dilation" in unanswered.message
