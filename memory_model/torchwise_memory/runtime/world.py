"""Everything that is global in a training process, in one object that is passed explicitly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from torchwise_memory.report import Origin, Phase
from torchwise_memory.versions import Installed

from . import dtypes
from .device import CUDA, Device
from .dtypes import DType
from .errors import OutOfFuel, Unsupported
from .layout import Shape, elementwise_strides, is_contiguous, is_dense
from .ledger import Allocator, Ledger, StorageKind, SummingAllocator
from .storage import Storage
from .tensor import Tensor

if TYPE_CHECKING:
    import weakref

    from .tape import SavePolicy

OPERATOR_FUEL = 50_000
#: The release whose behaviour is modelled where nothing says which one runs.
LATEST_TORCH = (2, 13)

#: Called with a leaf whose gradient has just been accumulated (sharding and bucketing policies).
GradientReady = Callable[["World", Tensor], None]


class Keeper(Protocol):
    """Is told of each new storage while it is on top of `World.keepers`."""

    def note(self, operator: str, storage: Storage) -> None:
        """operator: the name of the one that made it."""
        ...


class World:
    """One simulated process with one card.

    allocator: of the card. sm: compute capability times ten (75 for a T4, 80 for an A100); it decides which
    attention kernels exist and how large workspaces are. torch_version: (major, minor), for behaviour that
    changed between releases. fuel: how many operators may run.

    Set from outside while the program runs: `origin`, `module_path`, `phase`, and `world_size`, the number of
    processes that share the work. `module_depth` counts the module calls the program is inside of. Set by
    contexts: `grad_enabled`, `inference_mode`, the autocast fields, `save_policies`. `assumptions` collects
    sentences for the answer. `generations` counts how often hand-written models generated, `generator` is the
    last that did. `torch_is_assumed`: nothing says that it is that release. `convolution_workspaces`: times
    what cuDNN's Winograd kernels take for an fp32 convolution, 0 for kernels that take nothing.
    """

    def __init__(
        self,
        allocator: Allocator | None = None,
        sm: int = 80,
        fuel: int = OPERATOR_FUEL,
        torch_version: tuple[int, int] = LATEST_TORCH,
    ) -> None:
        self.ledger = Ledger(allocator if allocator is not None else SummingAllocator())
        self.sm = sm
        self.fuel = fuel
        self.torch_version = torch_version
        self.torch_is_assumed = False
        self.behaviours: dict[str, str] = {}
        self.grad_enabled = True
        self.inference_mode = False
        self.autocast_dtype: DType | None = None
        self.autocast_cpu_dtype: DType | None = None
        self.autocast_depth = 0
        self.autocast_cache_enabled = True
        self.autocast_cache: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        self.save_policies: list[SavePolicy] = []
        self.keepers: list[Keeper] = []
        self.sequence = 0
        self.module_depth = 0
        self.generations = 0
        self.generator: weakref.ref[Any] | None = None
        self.world_size = 1
        self.backward_depth = 0
        self.workspaces: dict[str, Storage] = {}
        self.convolution_workspaces = 0.0
        self.gradient_ready: list[GradientReady] = []
        self.default_dtype = dtypes.float32
        self.default_device: Device | None = None
        self.sdpa_backends: frozenset[str] = frozenset({"flash", "efficient", "math"})
        self.assumptions: dict[str, Origin | None] = {}

    def does(self, behaviour: str) -> str:
        """What this release of PyTorch does where releases differ (`versions`)."""
        known = self.behaviours.get(behaviour)
        if known is None:
            known = self.behaviours[behaviour] = Installed({"torch": self.torch_version}).value(behaviour)
            if self.torch_is_assumed:
                release = ".".join(map(str, self.torch_version))
                self.assumptions.setdefault(f"PyTorch {release} runs: nothing says which release does", None)
        return known

    @property
    def origin(self) -> Origin | None:
        return self.ledger.origin

    @origin.setter
    def origin(self, origin: Origin | None) -> None:
        self.ledger.origin = origin

    @property
    def module_path(self) -> str:
        return self.ledger.module_path

    @module_path.setter
    def module_path(self, path: str) -> None:
        self.ledger.module_path = path

    @property
    def phase(self) -> Phase:
        return self.ledger.phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self.ledger.phase = phase

    def assume(self, sentence: str) -> None:
        """Note something the program did not say; the first origin is kept."""
        self.assumptions.setdefault(sentence, self.ledger.origin)

    def burn(self) -> None:
        """One operator's worth of fuel."""
        self.fuel -= 1
        if self.fuel < 0:
            raise OutOfFuel("the program ran more operators than an estimate may take")

    def new(
        self,
        shape: Iterable[int],
        dtype: DType,
        operator: str,
        device: Device = CUDA,
        strides: Shape | None = None,
        kind: StorageKind | None = None,
    ) -> Tensor:
        """A tensor on a new storage that holds exactly its elements. strides: dense, None for row-major."""
        self.fuel -= 1
        if self.fuel < 0:
            raise OutOfFuel("the program ran more operators than an estimate may take")
        shape = tuple(shape)
        count = prod(shape)
        if count < 0:
            raise Unsupported(operator, f"negative extent in {shape}")
        storage = Storage(self.ledger, count * dtype.itemsize, device, operator, dtype.name, shape, kind)
        if self.keepers:
            self.keepers[-1].note(operator, storage)
        return Tensor(shape, dtype, storage, strides)

    def like(self, tensor: Tensor, operator: str, dtype: DType | None = None) -> Tensor:
        """A new tensor of the same shape: dense inputs keep their strides, others the order of their
        dimensions.
        """
        shape, strides = tensor.shape, tensor.strides
        if not is_contiguous(shape, strides) and not is_dense(shape, strides):
            strides = elementwise_strides(shape, [(shape, strides)])
        return self.new(shape, dtype or tensor.dtype, operator, tensor.storage.device, strides)

    def scratch(self, bytes_: int, operator: str) -> None:
        """Memory that an operator takes and gives back before it returns."""
        if bytes_ > 0:
            Storage(self.ledger, bytes_, CUDA, operator, "uint8", (bytes_,), StorageKind.WORKSPACE)

    def matrix_workspace(self, device: Device) -> None:
        """The cuBLAS workspace of the calling thread, which stays; the engine has a thread of its own."""
        if device.type != "cuda":
            return
        thread = "backward" if self.backward_depth else "forward"
        if thread not in self.workspaces:
            bytes_ = cublas_workspace_bytes(self.sm)
            self.workspaces[thread] = Storage(
                self.ledger, bytes_, CUDA, "cublas workspace", "uint8", (bytes_,), StorageKind.WORKSPACE
            )

    def warm(self, device: Device) -> None:
        """What earlier steps left: a workspace for each of the two threads that multiply."""
        outer = self.backward_depth
        for depth in (0, 1):
            self.backward_depth = depth
            self.matrix_workspace(device)
        self.backward_depth = outer

    def close(self) -> None:
        """Let go of everything the world itself holds; what is alive afterwards, the program holds."""
        self.workspaces.clear()
        self.autocast_cache.clear()
        self.save_policies.clear()
        self.gradient_ready.clear()


def cublas_workspace_bytes(sm: int) -> int:
    """Default of `CUBLAS_WORKSPACE_CONFIG` in torch: `:4096:2:16:8`, on Hopper and data-centre Blackwell
    `:4096:8`.
    """
    if sm in (90, 100, 103):
        return 4096 * 8 * 1024
    return 4096 * 2 * 1024 + 16 * 8 * 1024
