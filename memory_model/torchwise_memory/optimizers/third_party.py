"""Optimizers of other packages: bitsandbytes, torchao, GaLore, lion-pytorch, apex, transformers, more."""

from __future__ import annotations

from typing import Any, ClassVar

from torchwise_memory.optimizers.base import Group, Optimizer, State, state_like, state_of
from torchwise_memory.optimizers.torch_optim import factored_state
from torchwise_memory.runtime.dtypes import DType, float32, uint8
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class _AnyOptions(Optimizer):
    """Constructors that differ in options which do not change memory."""

    def init(self, w: World, params: Any, lr: Any = 1e-3, *args: Any, **kwargs: Any) -> None:
        self.setup(w, params, lr=lr, **kwargs)


class BitsAndBytes(_AnyOptions):
    """States in 8 bits with one fp32 scale for each block of 256, in fp32 below `min_8bit_size` elements.

    Paged states live in unified memory, outside what PyTorch allocates on the card.
    """

    states: ClassVar[int] = 2
    bits: ClassVar[int] = 8
    paged: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.quantisation_maps: list[Tensor] = []

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        state: State = {}
        if self.paged or group.get("is_paged"):
            w.assume("paged optimizer states stay outside the card's memory")
            return state
        bits = group.get("optim_bits", self.bits)
        quantised = bits == 8 and parameter.numel >= group.get("min_8bit_size", 4096)
        for index in range(1, self.states + 1):
            if not quantised:
                state[f"state{index}"] = state_like(w, parameter, float32)
                continue
            state[f"state{index}"] = state_like(w, parameter, uint8)
            blocks = -(-parameter.numel // 256)
            state[f"absmax{index}"] = state_of(w, (blocks,), float32, parameter)
            if len(self.quantisation_maps) < index:
                self.quantisation_maps.append(state_of(w, (256,), float32, parameter))
        return state


def _bitsandbytes() -> tuple[type[BitsAndBytes], ...]:
    made: list[type[BitsAndBytes]] = []
    for stem, states in (
        ("Adam", 2),
        ("AdamW", 2),
        ("Lion", 1),
        ("SGD", 1),
        ("RMSprop", 1),
        ("Adagrad", 1),
        ("LAMB", 2),
    ):
        for prefix, paged in (("", False), ("Paged", True)):
            for suffix, bits in (("", 32), ("8bit", 8), ("32bit", 32)):
                name = f"{prefix}{stem}{suffix}"
                members = {
                    "native_name": f"bitsandbytes.optim.{name}",
                    "states": states,
                    "bits": bits,
                    "paged": paged,
                }
                made.append(type(name, (BitsAndBytes,), members))
    return tuple(made)


class Lion(_AnyOptions):
    native_name = "lion_pytorch.Lion"

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        return {"exp_avg": state_like(w, parameter)}

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            update = w.like(parameter, "clone")
            del update


class FusedAdam(_AnyOptions):
    """apex and DeepSpeed: two fp32 states, no temporaries."""

    native_name = "apex.optimizers.FusedAdam"
    state_dtype: ClassVar[DType] = float32

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        return {name: state_like(w, parameter, self.state_dtype) for name in ("exp_avg", "exp_avg_sq")}


class HuggingFaceAdafactor(_AnyOptions):
    """transformers' Adafactor: factored moments, fp32 working copies of one parameter at a time."""

    native_name = "transformers.optimization.Adafactor"

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        state = factored_state(w, parameter)
        if group.get("beta1") is not None:
            state["exp_avg"] = state_like(w, parameter)
        return state

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            squared = w.like(parameter, "pow", float32)
            update = w.like(parameter, "mul", float32)
            del squared, update


class LowBit(_AnyOptions):
    """torchao: states in blocks with an fp32 scale each, as wide as the parameter below 4096 elements.

    Compiled steps of one parameter at a time work on fp32 copies of it and of its states.
    """

    bits: ClassVar[int] = 8
    block: ClassVar[int] = 256

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        block = group.get("block_size", self.block)
        if parameter.numel < 4096 or parameter.numel % block:
            return {name: state_like(w, parameter) for name in ("exp_avg", "exp_avg_sq")}
        state: State = {}
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = state_of(w, (parameter.numel * self.bits // 8,), uint8, parameter)
            state[f"{name}_scale"] = state_of(w, (parameter.numel // block,), float32, parameter)
        return state

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            wide = [w.like(parameter, "dequantised state", float32) for _ in range(2)]
            del wide


def _low_bit() -> tuple[type[LowBit], ...]:
    made: list[type[LowBit]] = []
    for stem in ("Adam", "AdamW"):
        for suffix, bits, block in (("8bit", 8, 256), ("4bit", 4, 128), ("Fp8", 8, 256)):
            members = {"native_name": f"torchao.optim.{stem}{suffix}", "bits": bits, "block": block}
            made.append(type(f"{stem}{suffix}", (LowBit,), members))
    return tuple(made)


class GaLore(_AnyOptions):
    """galore-torch: groups with a `rank` keep moments and a projection in that rank, others Adam's states."""

    native_name = "galore_torch.GaLoreAdamW"

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        rank = group.get("rank")
        if rank is None or len(parameter.shape) != 2:
            shape = tuple(parameter.shape)
            return {name: self.moment(w, shape, parameter) for name in ("exp_avg", "exp_avg_sq")}
        short, long = sorted(parameter.shape)
        rank = min(int(rank), short)
        state: State = {name: self.moment(w, (rank, long), parameter) for name in ("exp_avg", "exp_avg_sq")}
        return {**state, "projector": state_of(w, (short, rank), parameter.dtype, parameter)}

    def moment(self, w: World, shape: tuple[int, ...], parameter: Tensor) -> Tensor:
        return state_of(w, shape, parameter.dtype, parameter)

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            update = w.like(parameter, "projected back")
            del update


class GaLore8bit(GaLore):
    native_name = "galore_torch.GaLoreAdamW8bit"

    def moment(self, w: World, shape: tuple[int, ...], parameter: Tensor) -> Tensor:
        return state_of(w, shape, uint8, parameter)


class GaLoreAdafactor(_AnyOptions):
    native_name = "galore_torch.GaLoreAdafactor"

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        return factored_state(w, parameter)


class _Copies(_AnyOptions):
    """One parameter after the other, with so many states of its size."""

    names: ClassVar[tuple[str, ...]] = ()

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        return {name: state_like(w, parameter) for name in self.names}

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            update = w.like(parameter, "update")
            del update

    def train(self, w: World, mode: bool = True) -> None:
        """Schedule-free optimizers change between two points; no memory does."""

    def eval(self, w: World) -> None:
        """Likewise."""


def _copies() -> tuple[type[_Copies], ...]:
    known = {
        "schedulefree.AdamWScheduleFree": ("z", "exp_avg_sq"),
        "schedulefree.SGDScheduleFree": ("z",),
        "schedulefree.RAdamScheduleFree": ("z", "exp_avg_sq"),
        "prodigyopt.Prodigy": ("exp_avg", "exp_avg_sq", "s", "p0"),
        "dadaptation.DAdaptAdam": ("s", "exp_avg", "exp_avg_sq"),
        "adan_pytorch.Adan": ("m", "v", "n", "prev_grad"),
        "madgrad.MADGRAD": ("grad_sum_sq", "s", "x0"),
        "torch_optimizer.Lamb": ("exp_avg", "exp_avg_sq"),
        "timm.optim.Lamb": ("exp_avg", "exp_avg_sq"),
        "timm.optim.MADGRAD": ("grad_sum_sq", "s", "x0"),
        "timm.optim.Adan": ("exp_avg", "exp_avg_diff", "exp_avg_sq", "neg_pre_grad"),
    }
    return tuple(
        type(name.rpartition(".")[2], (_Copies,), {"native_name": name, "names": states})
        for name, states in known.items()
    )


THIRD_PARTY = (
    *_bitsandbytes(),
    *_low_bit(),
    *_copies(),
    Lion,
    FusedAdam,
    GaLore,
    GaLore8bit,
    GaLoreAdafactor,
    HuggingFaceAdafactor,
)
