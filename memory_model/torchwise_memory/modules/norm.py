"""Normalisation layers."""

from __future__ import annotations

from typing import Any

from torchwise_memory.modules.base import Module, Resettable, new_tensor
from torchwise_memory.modules.native import static
from torchwise_memory.modules.ops import functional
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class LayerNorm(Resettable):
    native_name = "torch.nn.LayerNorm"

    def init(
        self,
        w: World,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: object = None,
        dtype: object = None,
    ) -> None:
        shape = _shape(normalized_shape)
        self.fields.update(normalized_shape=shape, eps=eps, elementwise_affine=elementwise_affine)
        self.parameters.update(weight=None, bias=None)
        if elementwise_affine:
            self.new_parameter(w, "weight", shape, device, dtype)
            if bias:
                self.new_parameter(w, "bias", shape, device, dtype)

    def forward(self, w: World, input: Tensor) -> Any:
        shape, eps = self.fields["normalized_shape"], self.fields["eps"]
        return functional(
            w, "layer_norm", input, shape, self.parameter("weight"), self.parameter("bias"), eps
        )


class RMSNorm(Resettable):
    native_name = "torch.nn.RMSNorm"

    def init(
        self,
        w: World,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: object = None,
        dtype: object = None,
    ) -> None:
        shape = _shape(normalized_shape)
        self.fields.update(normalized_shape=shape, eps=eps, elementwise_affine=elementwise_affine)
        self.parameters["weight"] = None
        if elementwise_affine:
            self.new_parameter(w, "weight", shape, device, dtype)

    def forward(self, w: World, x: Tensor) -> Any:
        return functional(
            w, "rms_norm", x, self.fields["normalized_shape"], self.parameter("weight"), self.fields["eps"]
        )


class GroupNorm(Resettable):
    native_name = "torch.nn.GroupNorm"

    def init(
        self,
        w: World,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.fields.update(num_groups=num_groups, num_channels=num_channels, eps=eps, affine=affine)
        self.parameters.update(weight=None, bias=None)
        if affine:
            self.new_parameter(w, "weight", (num_channels,), device, dtype)
            self.new_parameter(w, "bias", (num_channels,), device, dtype)

    def forward(self, w: World, input: Tensor) -> Any:
        groups, eps = self.integer("num_groups"), self.fields["eps"]
        return functional(
            w, "group_norm", input, groups, self.parameter("weight"), self.parameter("bias"), eps
        )


class _BatchStatistics(Resettable):
    def init(
        self,
        w: World,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.fields.update(
            num_features=num_features,
            eps=eps,
            momentum=momentum,
            affine=affine,
            track_running_stats=track_running_stats,
        )
        self.parameters.update(weight=None, bias=None)
        if affine:
            self.new_parameter(w, "weight", (num_features,), device, dtype)
            self.new_parameter(w, "bias", (num_features,), device, dtype)
        if track_running_stats:
            kind = StorageKind.BUFFERS
            self.buffers["running_mean"] = new_tensor(w, (num_features,), device, dtype, kind)
            self.buffers["running_var"] = new_tensor(w, (num_features,), device, dtype, kind)
            self.buffers["num_batches_tracked"] = new_tensor(w, (), device, DTYPES["int64"], kind)
        else:
            self.buffers.update(running_mean=None, running_var=None, num_batches_tracked=None)


class BatchNorm(_BatchStatistics):
    """BatchNorm1d, 2d, 3d, and SyncBatchNorm on one process."""

    native_name = "torch.nn.modules.batchnorm._BatchNorm"

    def forward(self, w: World, input: Tensor) -> Any:
        mean, variance = self.buffers["running_mean"], self.buffers["running_var"]
        tracks = self.flag("track_running_stats")
        return functional(
            w,
            "batch_norm",
            input,
            mean if not self.training or tracks else None,
            variance if not self.training or tracks else None,
            self.parameter("weight"),
            self.parameter("bias"),
            self.training or (mean is None and variance is None),
            self.fields["momentum"] or 0.0,
            self.fields["eps"],
        )


class BatchNorm1d(BatchNorm):
    native_name = "torch.nn.BatchNorm1d"


class BatchNorm2d(BatchNorm):
    native_name = "torch.nn.BatchNorm2d"


class BatchNorm3d(BatchNorm):
    native_name = "torch.nn.BatchNorm3d"


class SyncBatchNorm(BatchNorm):
    native_name = "torch.nn.SyncBatchNorm"

    def init(  # type: ignore[override]
        self,
        w: World,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: object = None,
        device: object = None,
        dtype: object = None,
    ) -> None:
        super().init(w, num_features, eps, momentum, affine, track_running_stats, device, dtype)

    @staticmethod
    @static("convert_sync_batchnorm")
    def convert_sync_batchnorm(w: World, module: Module, process_group: object = None) -> Module:
        """The same module tree with its batch norms replaced; they keep their parameters."""
        if isinstance(module, BatchNorm) and not isinstance(module, SyncBatchNorm):
            twin = SyncBatchNorm()
            twin.fields = dict(module.fields)
            twin.parameters = dict(module.parameters)
            twin.buffers = dict(module.buffers)
            twin.training = module.training
            return twin
        for name, child in module.children.items():
            if child is not None:
                module.children[name] = SyncBatchNorm.convert_sync_batchnorm(w, child, process_group)
        return module


class InstanceNorm(_BatchStatistics):
    native_name = "torch.nn.modules.instancenorm._InstanceNorm"

    def init(
        self,
        w: World,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: object = None,
        dtype: object = None,
    ) -> None:
        super().init(w, num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, w: World, input: Tensor) -> Any:
        return functional(
            w,
            "instance_norm",
            input,
            self.buffers["running_mean"],
            self.buffers["running_var"],
            self.parameter("weight"),
            self.parameter("bias"),
            self.training or not self.flag("track_running_stats"),
            self.fields["momentum"] or 0.0,
            self.fields["eps"],
        )


class InstanceNorm1d(InstanceNorm):
    native_name = "torch.nn.InstanceNorm1d"


class InstanceNorm2d(InstanceNorm):
    native_name = "torch.nn.InstanceNorm2d"


class InstanceNorm3d(InstanceNorm):
    native_name = "torch.nn.InstanceNorm3d"


def _shape(normalized_shape: Any) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


NORMS = (
    LayerNorm,
    RMSNorm,
    GroupNorm,
    BatchNorm,
    InstanceNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    SyncBatchNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
