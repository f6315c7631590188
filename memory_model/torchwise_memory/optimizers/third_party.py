"""Optimizers of other packages: bitsandbytes, lion-pytorch, apex, transformers."""

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


THIRD_PARTY = (*_bitsandbytes(), Lion, FusedAdam, HuggingFaceAdafactor)
