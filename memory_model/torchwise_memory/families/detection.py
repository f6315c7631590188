"""Detectors: proposals, regions, masks, keypoints and dense heads over a residual network.

Follows detectron2 0.6 (`modeling/{proposal_generator,roi_heads,meta_arch}`). How many boxes an image has is
not known; what depends on it is taken at the limits of the samplers: 256 anchors and 512 regions an image, a
quarter of them positive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from torchwise_memory.families.backbones import ConvNorm, Plan, Pyramid, ResNet, Stage
from torchwise_memory.families.base import add, linear
from torchwise_memory.families.fused import fused
from torchwise_memory.families.layers import conv
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.conv import ConvTranspose2d
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import float32, int64
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

#: Regions an image that heads are trained on, and the share of them that hold an object.
REGIONS, POSITIVE = 512, 4
#: Boxes an image, where every anchor is compared with each of them.
BOXES = 20


@dataclass(frozen=True, slots=True)
class Detector:
    """neck: "fpn", "c4" (heads on the fourth stage, the fifth in the head), "dc5". head: "rpn", "box",
    "cascade", "dense" (RetinaNet) or "points" (FCOS). masks, keypoints, panoptic: heads beside.
    """

    backbone: Plan
    neck: str = "fpn"
    head: str = "box"
    masks: bool = False
    keypoints: bool = False
    panoptic: bool = False
    head_norm: str = ""


def detector(name: str, framework: str = "") -> Detector | None:
    """From names as model zoos write them: "Mask R-CNN R50-FPN", "RetinaNet X101-64x4d"; None for others."""
    text = re.sub(r"[\s_-]+", " ", name.lower())
    head = _head(text)
    if head is None:
        return None
    plan = _backbone(text)
    if plan is None:
        return None
    neck = "c4" if re.search(r"\bc4\b", text) else "dc5" if re.search(r"\bdc5\b", text) else "fpn"
    if framework != "detectron2":
        # statistics of batch norms stay, their factors are trained; strides lie in the middle convolution
        plan = replace(plan, norm="eval", early=False)
    norm = ""
    if re.search(r"\bgn\b|group ?norm", text):
        plan, norm = replace(plan, norm="group"), "group"
    if re.search(r"deform|\bdconv|\bdcn", text):
        plan = replace(plan, deformable=3)
    if neck == "dc5":
        plan = replace(plan, strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2))
    masks = "mask" in text or "panoptic" in text
    return Detector(
        plan, neck, head, masks, "keypoint" in text, "panoptic" in text, norm if neck == "fpn" else ""
    )


def _head(text: str) -> str | None:
    if re.search(r"cascade", text):
        return "cascade"
    if re.search(r"retina ?net", text):
        return "dense"
    if re.search(r"\bfcos\b", text):
        return "points"
    if re.search(r"(faster|mask|keypoint) ?r ?cnn|(faster|mask|keypoint)rcnn|panoptic fpn", text):
        return "box"
    if re.match(r"rpn\b", text):
        return "rpn"
    return None


def _backbone(text: str) -> Plan | None:
    grouped = re.search(r"x(?:t|next)? ?(50|101|152)\D{0,3}(\d+)x(\d+)d", text)
    if grouped:
        return Plan(int(grouped[1]), groups=int(grouped[2]), width=int(grouped[3]))
    plain = re.search(r"\br(?:es ?net)? ?(18|34|50|101|152)\b", text)
    return Plan(int(plain[1]), early=True) if plain else None


class DetectionModel(Module):
    """Pixels to the sum of all losses."""

    native_name = "torchwise.Detector"

    def build(self, w: World, plan: Detector, classes: int) -> DetectionModel:
        self.plan, self.classes = plan, classes
        body = replace(plan.backbone, stages=3) if plan.neck == "c4" else plan.backbone
        resnet = ResNet().build(w, body)
        self.children["backbone"] = resnet
        channels = resnet.channels[-1]
        if plan.neck == "fpn":
            dense = plan.head in ("dense", "points")
            self.children["neck"] = Pyramid().build(
                w,
                resnet.channels,
                first=1 if dense else 0,
                extra="convolutions" if dense else "pool",
                norm=plan.head_norm,
            )
            channels = 256
        if plan.head in ("dense", "points"):
            self.children["head"] = DenseHead().build(w, classes, plan.head == "points")
            return self
        self.children["rpn"] = Proposals().build(w, channels, 3 if plan.neck == "fpn" else 15)
        if plan.head != "rpn":
            self.children["regions"] = Regions().build(w, plan, channels, classes)
        if plan.panoptic:
            self.children["semantic"] = SemanticHead().build(w)
        return self

    def forward(self, w: World, pixels: Tensor) -> Any:
        features = self.run(w, "backbone", pixels)
        if "neck" in self.children:
            features = self.run(w, "neck", features)
        else:
            features = [features[-1]]
        if "head" in self.children:
            return self.run(w, "head", features)
        total: Any = None
        if "semantic" in self.children:
            total = self.run(w, "semantic", features[:4], pixels)
        loss = self.run(w, "rpn", features)
        total = loss if total is None else add(w, total, loss)
        if "regions" in self.children:
            # the last level of a pyramid serves proposals alone
            levels = features[:4] if self.plan.neck == "fpn" else features
            total = add(w, total, self.run(w, "regions", levels))
        return total


class Proposals(Module):
    """`StandardRPNHead` with its losses."""

    native_name = "torchwise.RPN"

    def build(self, w: World, channels: int, anchors: int) -> Proposals:
        self.anchors = anchors
        self.children["conv"] = ConvNorm().build(w, channels, channels)
        self.children["scores"] = conv(w, channels, anchors, 1, bias=True)
        self.children["deltas"] = conv(w, channels, 4 * anchors, 1, bias=True)
        return self

    def forward(self, w: World, features: list[Any]) -> Any:
        scores: list[Any] = []
        deltas: list[Any] = []
        for level in features:
            hidden = self.run(w, "conv", level)
            for name, into, size in (("scores", scores, 1), ("deltas", deltas, 4)):
                out = method(w, "permute", self.run(w, name, hidden), 0, 2, 3, 1)
                into.append(method(w, "reshape", out, out.shape[0], -1, size))
            del hidden
        count = sum(each.shape[1] for each in scores)
        batch, device = scores[0].shape[0], scores[0].device
        anchors = w.new((count, 4), float32, "anchors", device)
        labels = _matched(w, count, batch, device)
        score = method(w, "squeeze", torch_function(w, "torch.cat", scores, 1), -1)
        delta = torch_function(w, "torch.cat", deltas, 1)
        del scores, deltas
        boxes = fused(w, "decoded proposals", (method(w, "detach", delta),), delta.shape, delta.dtype, ())
        picked = fused(w, "index", (score,), (batch * 256,), score.dtype, saved=())
        target = w.new(picked.shape, float32, "labels", device)
        loss = functional(w, "binary_cross_entropy_with_logits", picked, target, reduction="sum")
        chosen = fused(w, "index", (delta,), (batch * 128, 4), delta.dtype, saved=())
        goal = w.new(chosen.shape, float32, "targets", device)
        loss = add(w, loss, functional(w, "l1_loss", chosen, goal, reduction="sum"))
        del boxes, anchors, labels
        return loss


def _matched(w: World, count: int, batch: int, device: Any) -> Tensor:
    """Overlaps of every anchor with every box, image by image; labels stay."""
    overlaps = w.new((BOXES, count, 2), float32, "overlaps", device)
    quality = w.new((BOXES, count), float32, "overlaps", device)
    del overlaps, quality
    return w.new((batch, count), float32, "labels", device)


class Regions(Module):
    """Heads over the regions that proposals leave."""

    native_name = "torchwise.ROIHeads"

    def build(self, w: World, plan: Detector, channels: int, classes: int) -> Regions:
        self.plan, self.classes, self.channels = plan, classes, channels
        self.heads = 3 if plan.head == "cascade" else 1
        if plan.neck == "c4":
            # the fifth stage works on each region
            stage = Stage()
            channels = stage.build(w, replace(plan.backbone, frozen=0), 3, channels)
            self.children["stage"] = stage
            self._predictors(w, 0, channels, classes)
        else:
            for index in range(self.heads):
                self._box_head(w, index, channels, plan.head_norm)
                self._predictors(w, index, 1024, classes)
        if plan.masks:
            self.children["mask"] = MaskHead().build(
                w, channels, classes, convs=0 if plan.neck == "c4" else 4, norm=plan.head_norm
            )
        if plan.keypoints:
            self.children["keypoint"] = KeypointHead().build(w, channels)
        return self

    def _box_head(self, w: World, index: int, channels: int, norm: str) -> None:
        wide = channels
        for number in range(4 if norm else 0):
            self.children[f"conv{index}_{number}"] = ConvNorm().build(w, channels, 256, norm=norm)
            wide = 256
        self.children[f"fc{index}_0"] = linear(w, wide * 49, 1024)
        if not norm:
            self.children[f"fc{index}_1"] = linear(w, 1024, 1024)

    def _predictors(self, w: World, index: int, width: int, classes: int) -> None:
        agnostic = self.heads > 1
        self.children[f"scores{index}"] = linear(w, width, classes + 1)
        self.children[f"boxes{index}"] = linear(w, width, 4 if agnostic else 4 * classes)

    def forward(self, w: World, levels: list[Any]) -> Any:
        batch = levels[0].shape[0]
        total: Any = None
        kept: Any = None
        for index in range(self.heads):
            if "stage" in self.children:
                pooled = self.run(w, "stage", _pooled(w, levels, batch * REGIONS, self.channels, 14))
                hidden = method(w, "mean", pooled, (2, 3))
                kept = pooled
                del pooled
            else:
                hidden = self._boxed(w, index, _pooled(w, levels, batch * REGIONS, self.channels, 7))
            loss = self._loss(w, index, hidden)
            del hidden
            total = loss if total is None else add(w, total, loss)
        positives = batch * REGIONS // POSITIVE
        if "mask" in self.children:
            if kept is not None:
                shape = (positives, *kept.shape[1:])
                regions = fused(w, "index", (kept,), shape, kept.dtype, saved=())
            else:
                regions = _pooled(w, levels, positives, self.channels, 14)
            del kept
            total = add(w, total, self.run(w, "mask", regions))
            del regions
        if "keypoint" in self.children:
            regions = _pooled(w, levels, positives, self.channels, 14)
            total = add(w, total, self.run(w, "keypoint", regions))
        return total

    def _boxed(self, w: World, index: int, x: Any) -> Any:
        for name in [n for n in self.children if n.startswith(f"conv{index}_")]:
            x = self.run(w, name, x)
        x = method(w, "flatten", x, 1)
        for name in [n for n in self.children if n.startswith(f"fc{index}_")]:
            x = functional(w, "relu", self.run(w, name, x), True)
        return x

    def _loss(self, w: World, index: int, hidden: Any) -> Any:
        scores, boxes = self.run(w, f"scores{index}", hidden), self.run(w, f"boxes{index}", hidden)
        labels = w.new((scores.shape[0],), int64, "labels", scores.device)
        loss = functional(w, "cross_entropy", scores, labels)
        chosen = fused(w, "index", (boxes,), (boxes.shape[0] // POSITIVE, 4), boxes.dtype, saved=())
        goal = w.new(chosen.shape, float32, "targets", chosen.device)
        return add(w, loss, functional(w, "l1_loss", chosen, goal, reduction="sum"))


def _pooled(w: World, levels: list[Any], regions: int, channels: int, side: int) -> Any:
    """ROIAlign: keeps boxes alone; its backward makes a gradient for each level."""
    shape = (regions, channels, side, side)
    if len(levels) == 1:
        return fused(w, "roi_align", levels, shape, levels[0].dtype, saved=())
    # each level's regions are pooled apart and put into one result
    first = fused(w, "roi_align", levels, shape, levels[0].dtype, saved=())
    return fused(w, "index_put", (first,), shape, first.dtype, saved=())


class MaskHead(Module):
    native_name = "torchwise.MaskHead"

    def build(self, w: World, channels: int, classes: int, convs: int, norm: str) -> MaskHead:
        for index in range(convs):
            self.children[f"conv{index}"] = ConvNorm().build(
                w, channels if index == 0 else 256, 256, norm=norm
            )
        up = ConvTranspose2d()
        up.init(w, 256 if convs else channels, 256, 2, stride=2)
        self.children["up"] = up
        self.children["masks"] = conv(w, 256, classes, 1, bias=True)
        return self

    def forward(self, w: World, x: Any) -> Any:
        for name in [n for n in self.children if n.startswith("conv")]:
            x = self.run(w, name, x)
        x = functional(w, "relu", self.run(w, "up", x), True)
        logits = self.run(w, "masks", x)
        del x
        count, _, height, width = logits.shape
        picked = fused(w, "index", (logits,), (count, height, width), logits.dtype, saved=())
        del logits
        target = w.new(picked.shape, float32, "masks", picked.device)
        return functional(w, "binary_cross_entropy_with_logits", picked, target)


class KeypointHead(Module):
    native_name = "torchwise.KeypointHead"

    def build(self, w: World, channels: int) -> KeypointHead:
        for index in range(8):
            self.children[f"conv{index}"] = ConvNorm().build(w, channels if index == 0 else 512, 512)
        up = ConvTranspose2d()
        up.init(w, 512, 17, 4, stride=2, padding=1)
        self.children["up"] = up
        return self

    def forward(self, w: World, x: Any) -> Any:
        for index in range(8):
            x = self.run(w, f"conv{index}", x)
        x = self.run(w, "up", x)
        x = functional(w, "interpolate", x, scale_factor=2, mode="bilinear", align_corners=False)
        rows = method(w, "reshape", x, x.shape[0] * 17, -1)
        labels = w.new((rows.shape[0],), int64, "labels", rows.device)
        return functional(w, "cross_entropy", rows, labels)


class SemanticHead(Module):
    """`SemSegFPNHead`: every level is brought to a quarter of the image, and the sum to all of it."""

    native_name = "torchwise.SemSegFPNHead"

    def build(self, w: World, width: int = 128, classes: int = 54) -> SemanticHead:
        for level in range(4):
            for index in range(max(1, level)):
                self.children[f"conv{level}_{index}"] = ConvNorm().build(
                    w, 256 if index == 0 else width, width, norm="group"
                )
        self.children["predictor"] = conv(w, width, classes, 1, bias=True)
        return self

    def forward(self, w: World, levels: list[Any], pixels: Tensor) -> Any:
        total: Any = None
        for number, x in enumerate(levels):
            for name in [n for n in self.children if n.startswith(f"conv{number}_")]:
                x = self.run(w, name, x)
                if number:
                    x = functional(w, "interpolate", x, scale_factor=2, mode="bilinear", align_corners=False)
            total = x if total is None else add(w, total, x)
        logits = self.run(w, "predictor", total)
        del total
        return pixel_loss(w, logits, pixels)


def pixel_loss(w: World, logits: Any, pixels: Tensor) -> Any:
    """Logits brought to the size of the image, and their cross entropy."""
    size = (pixels.shape[-2], pixels.shape[-1])
    logits = functional(w, "interpolate", logits, size=size, mode="bilinear", align_corners=False)
    labels = w.new((logits.shape[0], *size), int64, "labels", logits.device)
    return functional(w, "cross_entropy", logits, labels)


class DenseHead(Module):
    """RetinaNet's towers over every level; FCOS has one anchor a place and norms in its towers."""

    native_name = "torchwise.DenseHead"

    def build(self, w: World, classes: int, points: bool) -> DenseHead:
        self.points = points
        anchors = 1 if points else 9
        norm = "group" if points else ""
        for tower in ("scores", "boxes"):
            for index in range(4):
                self.children[f"{tower}{index}"] = ConvNorm().build(w, 256, 256, norm=norm)
        self.children["scores"] = conv(w, 256, anchors * classes, 3, bias=True)
        self.children["boxes"] = conv(w, 256, anchors * 4, 3, bias=True)
        self.classes = classes
        return self

    def forward(self, w: World, levels: list[Any]) -> Any:
        scores: list[Any] = []
        boxes: list[Any] = []
        # what the heads gave stays beside its copies in another order until the loss is there
        given: list[Any] = []
        for level in levels:
            for tower, into, size in (("scores", scores, self.classes), ("boxes", boxes, 4)):
                x = level
                for index in range(4):
                    x = self.run(w, f"{tower}{index}", x)
                given.append(self.run(w, tower, x))
                out = method(w, "permute", given[-1], 0, 2, 3, 1)
                into.append(method(w, "reshape", out, out.shape[0], -1, size))
                del x, out
        count, batch = sum(each.shape[1] for each in scores), scores[0].shape[0]
        device = scores[0].device
        labels = _matched(w, count, batch, device)
        score, box = (torch_function(w, "torch.cat", each, 1) for each in (scores, boxes))
        loss = _focal(w, score)
        del score, scores, boxes, given
        chosen = fused(w, "index", (box,), (batch * 512, 4), box.dtype, saved=())
        goal = w.new(chosen.shape, float32, "targets", device)
        del labels
        return add(w, loss, functional(w, "l1_loss", chosen, goal, reduction="sum"))


def _focal(w: World, logits: Any) -> Any:
    """`sigmoid_focal_loss` on valid anchors, which are copied out beside their targets one-hot."""
    valid = fused(w, "index", (logits,), logits.shape, logits.dtype, saved=())
    del logits
    wide = (*valid.shape[:-1], valid.shape[-1] + 1)
    one_hot = w.new(wide, int64, "one-hot targets", valid.device)
    target = w.new(valid.shape, float32, "one-hot targets", valid.device)
    f = torch_function
    p = f(w, "torch.sigmoid", valid)
    loss = functional(w, "binary_cross_entropy_with_logits", valid, target, reduction="none")
    del valid
    inverse = w.new(target.shape, float32, "1 - targets", target.device)
    kept = add(w, f(w, "torch.mul", p, target), f(w, "torch.mul", f(w, "torch.sub", 1, p), inverse))
    loss = f(w, "torch.mul", loss, f(w, "torch.pow", f(w, "torch.sub", 1, kept), 2.0))
    weight = w.new(target.shape, float32, "class weights", target.device)
    total = method(w, "sum", f(w, "torch.mul", weight, loss))
    del one_hot
    return total
