"""torch.optim. What each step allocates follows the foreach and single-tensor code of torch 2.x."""

from __future__ import annotations

from typing import Any, ClassVar

from torchwise_memory.optimizers.base import (
    Group,
    Optimizer,
    State,
    buffers_like,
    by_type,
    state_like,
    state_of,
    step_counter,
    uses_foreach,
)
from torchwise_memory.runtime.dtypes import bfloat16
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


class _PerParameter(Optimizer):
    """States shaped like the parameter, and buffers of that shape while a group is updated.

    foreach_buffers: how many buffers of all parameters a foreach update holds at once; single_buffers: how
    many of one parameter the other implementation does. decay_stays: the copy of the gradients that coupled
    weight decay makes is alive beside them.
    """

    states: ClassVar[tuple[str, ...]] = ()
    foreach_buffers: ClassVar[int] = 1
    single_buffers: ClassVar[int] = 1
    decay_stays: ClassVar[bool] = True
    has_step: ClassVar[bool] = True

    def state_names(self, group: Group) -> tuple[str, ...]:
        return self.states

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        state: State = {}
        if self.has_step:
            on_device = bool(group.get("fused") or group.get("capturable"))
            state["step"] = step_counter(w, parameter, on_device)
        for name in self.state_names(group):
            state[name] = state_like(w, parameter)
        return state

    def decays_gradient(self, group: Group) -> bool:
        """Weight decay added to the gradient, which takes a new tensor."""
        return bool(group.get("weight_decay"))

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        if group.get("fused"):
            return
        decays = self.decays_gradient(group)
        if uses_foreach(group, parameters):
            for part in by_type(parameters):
                self._foreach(w, part, decays)
            return
        for parameter in parameters:
            decayed = [w.like(parameter, "add")] if decays else []
            held = [w.like(parameter, "optimizer buffer") for _ in range(self.single_buffers)]
            del decayed, held

    def _foreach(self, w: World, parameters: list[Tensor], decays: bool) -> None:
        decayed = buffers_like(w, parameters, "_foreach_add") if decays else []
        if not self.decay_stays:
            decayed.clear()
        held = [buffers_like(w, parameters, "_foreach_sqrt") for _ in range(self.foreach_buffers)]
        del held


class SGD(_PerParameter):
    native_name = "torch.optim.SGD"
    foreach_buffers = 0
    single_buffers = 0
    has_step = False

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        self.setup(
            w,
            params,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
            foreach=foreach,
            differentiable=differentiable,
            fused=fused,
        )

    def state_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group.get("momentum") else ()


class Adam(_PerParameter):
    native_name = "torch.optim.Adam"
    states = ("exp_avg", "exp_avg_sq")
    # the decayed gradients are deleted before the square root is taken
    decay_stays = False
    decoupled: ClassVar[bool] = False
    default_decay: ClassVar[float] = 0.0

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        self.setup(
            w,
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=decoupled_weight_decay,
        )

    def state_names(self, group: Group) -> tuple[str, ...]:
        return (*self.states, "max_exp_avg_sq") if group.get("amsgrad") else self.states

    def decays_gradient(self, group: Group) -> bool:
        return bool(group.get("weight_decay")) and not group.get("decoupled_weight_decay")


class AdamW(Adam):
    native_name = "torch.optim.AdamW"

    def init(  # type: ignore[override]
        self,
        w: World,
        params: Any,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().init(
            w,
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )


class NAdam(_PerParameter):
    native_name = "torch.optim.NAdam"
    states = ("exp_avg", "exp_avg_sq")

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 2e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        self.setup(
            w,
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            momentum_decay=momentum_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
        )

    def decays_gradient(self, group: Group) -> bool:
        return bool(group.get("weight_decay")) and not group.get("decoupled_weight_decay")


class RAdam(NAdam):
    native_name = "torch.optim.RAdam"

    def init(  # type: ignore[override]
        self,
        w: World,
        params: Any,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        self.setup(
            w,
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
        )


class RMSprop(_PerParameter):
    native_name = "torch.optim.RMSprop"
    states = ("square_avg",)

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        self.setup(
            w,
            params,
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            capturable=capturable,
            foreach=foreach,
            maximize=maximize,
            differentiable=differentiable,
        )

    def state_names(self, group: Group) -> tuple[str, ...]:
        names: tuple[str, ...] = self.states
        if group.get("momentum"):
            names = (*names, "momentum_buffer")
        if group.get("centered"):
            names = (*names, "grad_avg")
        return names


class Adagrad(_PerParameter):
    """The states exist from construction on."""

    native_name = "torch.optim.Adagrad"
    states = ("sum",)
    single_buffers = 1

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        self.setup(
            w,
            params,
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            eps=eps,
            foreach=foreach,
            maximize=maximize,
            differentiable=differentiable,
            fused=fused,
        )
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = self.new_state(w, group, parameter)

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        if not uses_foreach(group, parameters):
            super().update(w, group, parameters)
            return
        for part in by_type(parameters):
            # the gradient times the step size, in place where decay already made a copy
            numerator = buffers_like(w, part, "_foreach_mul")
            deviation = buffers_like(w, part, "_foreach_sqrt")
            del numerator, deviation


class Adadelta(_PerParameter):
    native_name = "torch.optim.Adadelta"
    states = ("square_avg", "acc_delta")
    foreach_buffers = 2
    single_buffers = 2

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        self.setup(
            w,
            params,
            lr=lr,
            rho=rho,
            eps=eps,
            weight_decay=weight_decay,
            foreach=foreach,
            capturable=capturable,
            maximize=maximize,
            differentiable=differentiable,
        )


class Adamax(_PerParameter):
    native_name = "torch.optim.Adamax"
    states = ("exp_avg", "exp_inf")

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 2e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        self.setup(
            w,
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            foreach=foreach,
            maximize=maximize,
            differentiable=differentiable,
            capturable=capturable,
        )


class ASGD(_PerParameter):
    native_name = "torch.optim.ASGD"
    states = ("ax",)

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        self.setup(
            w, params, lr=lr, weight_decay=weight_decay, foreach=foreach, differentiable=differentiable
        )


class Rprop(_PerParameter):
    native_name = "torch.optim.Rprop"
    states = ("prev", "step_size")
    foreach_buffers = 2
    single_buffers = 2

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 1e-2,
        etas: Any = (0.5, 1.2),
        step_sizes: Any = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        self.setup(w, params, lr=lr, foreach=foreach, capturable=capturable, differentiable=differentiable)


class Adafactor(Optimizer):
    """Second moments as a row and a column; one parameter at a time unless foreach is asked for."""

    native_name = "torch.optim.Adafactor"

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 1e-2,
        beta2_decay: float = -0.8,
        eps: Any = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        self.setup(w, params, lr=lr, weight_decay=weight_decay, foreach=foreach, maximize=maximize)

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        return factored_state(w, parameter)

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        if uses_foreach(group, parameters, default=False):
            for part in by_type(parameters):
                estimates = buffers_like(w, part, "matmul")
                del estimates
            return
        for parameter in parameters:
            estimate = w.like(parameter, "matmul")
            del estimate


def factored_state(w: World, parameter: Tensor) -> State:
    shape = parameter.shape
    state: State = {"step": step_counter(w, parameter, False)}
    if len(shape) > 1:
        state["row_var"] = state_of(w, (*shape[:-1], 1), parameter.dtype, parameter)
        state["col_var"] = state_of(w, (*shape[:-2], 1, shape[-1]), parameter.dtype, parameter)
    else:
        state["variance"] = state_like(w, parameter)
    return state


class Muon(Optimizer):
    """Momentum, and a Newton-Schulz iteration in bf16 on one matrix at a time."""

    native_name = "torch.optim.Muon"

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Any = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        self.setup(w, params, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov)

    def new_state(self, w: World, group: Group, parameter: Tensor) -> State:
        return {"momentum_buffer": state_like(w, parameter)}

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            update = w.like(parameter, "lerp") if group["nesterov"] else parameter
            ortho = w.like(parameter, "bfloat16", bfloat16)
            side = min(parameter.shape[0], parameter.shape[1])
            gram = w.new((side, side), bfloat16, "matmul", parameter.device)
            gram_update = w.new((side, side), bfloat16, "addmm", parameter.device)
            following = w.like(ortho, "addmm")
            del update, ortho, gram, gram_update, following


class LBFGS(Optimizer):
    """Keeps up to `history_size` pairs of flat vectors; counted as full from the first step on."""

    native_name = "torch.optim.LBFGS"

    def init(
        self,
        w: World,
        params: Any,
        lr: Any = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        self.setup(w, params, lr=lr, history_size=history_size)

    def update(self, w: World, group: Group, parameters: list[Tensor]) -> None:
        first = parameters[0]
        count = sum(parameter.numel for parameter in parameters)
        if "d" not in self.state[first]:
            w.assume("LBFGS: the history of gradients is full")
            names = ["d", "prev_flat_grad"]
            names += [f"old_dirs.{i}" for i in range(group["history_size"])]
            names += [f"old_stps.{i}" for i in range(group["history_size"])]
            self.state[first].update({name: state_of(w, (count,), first.dtype, first) for name in names})
        flat = [w.new((count,), first.dtype, "cat", first.device) for _ in range(2)]
        del flat


TORCH_OPTIMIZERS = (
    Optimizer,
    SGD,
    Adam,
    AdamW,
    NAdam,
    RAdam,
    RMSprop,
    Adagrad,
    Adadelta,
    Adamax,
    ASGD,
    Rprop,
    Adafactor,
    Muon,
    LBFGS,
)
