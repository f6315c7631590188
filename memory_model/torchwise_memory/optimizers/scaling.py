"""Gradient scaling and learning-rate schedules: small tensors and no tensors."""

from __future__ import annotations

from typing import Any, cast

from torchwise_memory.modules.native import attribute, visible
from torchwise_memory.modules.ops import torch_function
from torchwise_memory.optimizers.base import Optimizer
from torchwise_memory.runtime.device import CUDA, Device
from torchwise_memory.runtime.dtypes import float32, float64, int32
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class GradScaler:
    """`torch.amp.GradScaler`: a scale and a growth counter on the card from the first use on."""

    native_name = "torch.amp.GradScaler"

    def __init__(self) -> None:
        self.enabled = True
        self.initial = 65536.0
        self.scale_tensor: Tensor | None = None
        self.growth: Tensor | None = None

    def init(
        self,
        w: World,
        device: Any = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self.enabled = bool(enabled)
        self.initial = init_scale

    @visible("scale")
    def scale(self, w: World, outputs: Any) -> Any:
        if not self.enabled:
            return outputs
        if isinstance(outputs, list | tuple):
            scaled = [self.scale(w, item) for item in cast("list[Any]", outputs)]
            return scaled if isinstance(outputs, list) else tuple(scaled)
        if not isinstance(outputs, Tensor):
            raise Unsupported(f"{self.native_name}.scale", "a loss that is not known")
        self._prepare(w, outputs.device)
        return torch_function(w, "torch.mul", outputs, self.scale_tensor)

    @visible("unscale_")
    def unscale_(self, w: World, optimizer: Any) -> None:
        """Divides in place; a few scalars on the way."""
        if self.enabled:
            self._prepare(w, CUDA)
            inverse = [
                w.new((), float64, "reciprocal"),
                w.new((), float32, "to"),
                w.new((), float32, "found_inf"),
            ]
            del inverse

    @visible("step")
    def step(self, w: World, optimizer: Any, *args: Any, **kwargs: Any) -> object:
        if not isinstance(optimizer, Optimizer):
            raise Unsupported(f"{self.native_name}.step", "an optimizer that is not known")
        self.unscale_(w, optimizer)
        if optimizer.step_override is not None:
            return optimizer.step_override(*args, **kwargs)
        return optimizer.step(w, *args, **kwargs)

    @visible("update")
    def update(self, w: World, new_scale: object = None) -> None:
        pass

    @visible("get_scale")
    def get_scale(self, w: World) -> float:
        return self.initial if self.enabled else 1.0

    @visible("is_enabled")
    def is_enabled(self, w: World) -> bool:
        return self.enabled

    @visible("state_dict")
    def state_dict(self, w: World) -> dict[str, float]:
        return {"scale": self.initial} if self.enabled else {}

    @visible("load_state_dict")
    def load_state_dict(self, w: World, state_dict: object) -> None:
        pass

    def _prepare(self, w: World, device: Device) -> None:
        if self.scale_tensor is None:
            self.scale_tensor = w.new((), float32, "full", device)
            self.growth = w.new((), int32, "full", device)


class CudaGradScaler(GradScaler):
    """`torch.cuda.amp.GradScaler`, which takes no device."""

    native_name = "torch.cuda.amp.GradScaler"

    def init(  # type: ignore[override]
        self,
        w: World,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().init(w, "cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


class Scheduler:
    """A learning-rate schedule: it changes numbers that memory does not depend on."""

    native_name = "torch.optim.lr_scheduler.LRScheduler"

    def __init__(self) -> None:
        self.optimizer: object = None
        self.steps = 0

    def init(self, w: World, optimizer: Any, *args: object, **kwargs: object) -> None:
        self.optimizer = optimizer

    @attribute("optimizer")
    def get_optimizer(self, w: World) -> object:
        return self.optimizer

    @attribute("last_epoch")
    def get_last_epoch(self, w: World) -> int:
        return self.steps

    @attribute("base_lrs")
    def get_base_lrs(self, w: World) -> list[Any]:
        return self.get_last_lr(w)

    @visible("step")
    def step(self, w: World, *args: object, **kwargs: object) -> None:
        self.steps += 1

    @visible("get_last_lr", "get_lr")
    def get_last_lr(self, w: World) -> list[Any]:
        groups = self.optimizer.param_groups if isinstance(self.optimizer, Optimizer) else []
        return [group.get("lr") for group in groups]

    @visible("state_dict")
    def state_dict(self, w: World) -> dict[str, int]:
        return {"last_epoch": self.steps}

    @visible("load_state_dict")
    def load_state_dict(self, w: World, state_dict: object) -> None:
        pass


SCHEDULES = (
    "LRScheduler",
    "LambdaLR",
    "MultiplicativeLR",
    "StepLR",
    "MultiStepLR",
    "ConstantLR",
    "LinearLR",
    "ExponentialLR",
    "PolynomialLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ChainedScheduler",
    "SequentialLR",
    "ReduceLROnPlateau",
    "CyclicLR",
    "OneCycleLR",
)
