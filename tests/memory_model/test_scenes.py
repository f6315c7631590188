"""Detectors and segmenters of described jobs: names, sizes, and what decides their memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchwise_memory.families.backbones import Plan
from torchwise_memory.families.detection import DetectionModel, Detector, detector
from torchwise_memory.families.segmentation import SegmentationModel, Segmenter, segmenter
from torchwise_memory.modules.base import Module
from torchwise_memory.operators.convolution import winograd_bytes
from torchwise_memory.runtime.world import World
from torchwise_memory.workload import Workload, run

BASE = Workload(
    model="Faster R-CNN R50-FPN",
    gpu="v100-32gb",
    gpus=8,
    parallel="DDP",
    micro_batch=1,
    image=(320, 480),
    weights="fp32",
    autocast="none",
    optimizer="SGD momentum 0.9",
    framework="detectron2",
    metric="allocated",
)


def live(workload: Workload) -> int:
    peak = run(workload).peak.allocated
    assert peak is not None
    return peak.point


def count(model: Module) -> int:
    return sum(parameter.numel for _, parameter in model.walk_parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # torchvision's counts for 91 classes, and a row of the box head for the background
        ("Faster R-CNN R50-FPN", 41_755_286 + 1025),
        ("Mask R-CNN R50-FPN", 44_401_393 + 1025),
        ("RetinaNet R50-FPN", 34_014_999),
    ],
)
def test_detectors_have_the_size_of_torchvisions(name: str, parameters: int) -> None:
    plan = detector(name, "detectron2")
    assert plan is not None
    assert count(DetectionModel().build(World(), plan, 91)) == parameters


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("Faster R-CNN R50-FPN", Detector(Plan(50, early=True))),
        ("Mask R-CNN R101-C4", Detector(Plan(101, early=True), "c4", masks=True)),
        ("Mask R-CNN X101-32x8d-FPN", Detector(Plan(101, 32, 8), masks=True)),
        ("Cascade Mask R-CNN R-50-FPN", Detector(Plan(50, early=True), head="cascade", masks=True)),
        ("RetinaNet ResNet-101", Detector(Plan(101, early=True), head="dense")),
        ("RPN R50-FPN", Detector(Plan(50, early=True), head="rpn")),
        ("Keypoint R-CNN R50-FPN", Detector(Plan(50, early=True), keypoints=True)),
        ("FCOS R50", Detector(Plan(50, early=True), head="points")),
    ],
)
def test_names_of_detectors(name: str, plan: Detector) -> None:
    assert detector(name, "detectron2") == plan
    other = detector(name)
    assert other is not None
    assert other.backbone.norm == "eval"


@pytest.mark.parametrize("name", ["Mask R-CNN Swin-T", "YOLOv5s", "DETR R50", "resnet50", "llama-2-7b", ""])
def test_what_is_not_known_is_no_detector(name: str) -> None:
    assert detector(name) is None
    assert segmenter(name) is None


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("FCN R-50-D8", "fcn"),
        ("PSPNet R101-D8", "psp"),
        ("DeepLabV3 R50-D8", "aspp"),
        ("DeepLabV3+ R-101-D8", "aspp+"),
        ("DeepLabv3plus ResNet-50", "aspp+"),
        ("UPerNet R50", "uper"),
    ],
)
def test_names_of_segmenters(name: str, head: str) -> None:
    plan = segmenter(name)
    assert plan is not None
    assert plan.head == head
    # a stride of 8 but for UPerNet
    assert plan.backbone.strides == ((1, 2, 2, 2) if head == "uper" else (1, 2, 1, 1))


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("RPN R50-FPN", "Faster R-CNN R50-FPN"),
        ("Faster R-CNN R50-FPN", "Mask R-CNN R50-FPN"),
        ("Faster R-CNN R50-FPN", "Faster R-CNN R101-FPN"),
        ("Faster R-CNN R101-FPN", "Faster R-CNN X101-32x8d-FPN"),
        ("Mask R-CNN R50-FPN", "Cascade Mask R-CNN R50-FPN"),
        ("Mask R-CNN R50-FPN", "Mask R-CNN R50-FPN GN"),
        ("Mask R-CNN R50-FPN", "Mask R-CNN R50-FPN + deformable conv"),
        ("Faster R-CNN R50-FPN", "Faster R-CNN R50-DC5"),
        ("Faster R-CNN R50-C4", "Mask R-CNN R50-C4"),
        ("Faster R-CNN R50-FPN", "Panoptic FPN R50"),
        ("PSPNet R50-D8", "PSPNet R101-D8"),
        ("FCN R50-D16", "FCN R50-D8"),
        ("DeepLabV3 R50-D8", "DeepLabV3+ R50-D8"),
    ],
)
def test_more_parts_need_more(less: str, more: str) -> None:
    assert live(replace(BASE, model=less)) < live(replace(BASE, model=more))


def test_masks_of_more_classes_need_more() -> None:
    masks = replace(BASE, model="Mask R-CNN R50-FPN")
    assert live(replace(masks, classes=1230)) > live(masks) + 4 * 128 * 1000 * 28 * 28


def test_frozen_norms_keep_one_tensor_where_trained_factors_keep_two() -> None:
    assert live(replace(BASE, framework="openmmlab")) > 1.08 * live(BASE)


def test_which_kernels_convolutions_take_is_stated() -> None:
    answer = run(replace(BASE, gpu="v100-16gb"))
    assert any("Winograd" in words for words in answer.assumptions)
    peak = answer.peak.allocated
    assert peak is not None
    ampere = run(replace(BASE, gpu="a100-40gb"))
    assert ampere.peak.allocated is not None
    # TF32 kernels take none: that is the low end of what an older card may need
    assert ampere.peak.allocated.point < peak.point
    assert peak.low < ampere.peak.allocated.point < peak.high
    assert not any("Winograd" in words for words in ampere.assumptions)


def test_workspace_of_winograd_kernels() -> None:
    # 2 x 25 x 42 tiles of 4 by 4 in a map of 100 by 168; 36 values of fp32 for each tile and channel
    tiles = 2 * 25 * 42
    expected = 4 * 36 * (tiles * (256 + 256) + 256 * 256)
    assert winograd_bytes((2, 256, 100, 168), (256, 256, 3, 3), (100, 168)) == expected


def test_segmenters_train_all_of_their_parameters() -> None:
    plan = segmenter("FCN R50-D8")
    assert isinstance(plan, Segmenter)
    model = SegmentationModel().build(World(), plan, 19)
    # published: 49.5 million with both heads
    assert count(model) == pytest.approx(49.5e6, rel=0.002)
    answer = run(replace(BASE, model="FCN R50-D8", framework="openmmlab"))
    assert answer.parameters == answer.trainable == count(model)


def test_only_training_is_described() -> None:
    assert "training" in run(replace(BASE, task="inference")).why
