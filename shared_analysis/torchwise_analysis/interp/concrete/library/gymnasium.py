"""Gym environments: what an observation and an action are, for those whose spaces are part of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise_analysis.interp.concrete.values import (
    Builtin,
    Keywords,
    Namespace,
    Opaque,
    Symbol,
    Unknown,
    Value,
)
from torchwise_memory.runtime.dtypes import DTYPES

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# name without version -> (shape of an observation, its type, number of actions or 0, extent of an action)
_SPACES: dict[str, tuple[tuple[int, ...], str, int, int]] = {
    "CartPole": ((4,), "float32", 2, 0),
    "MountainCar": ((2,), "float32", 3, 0),
    "MountainCarContinuous": ((2,), "float32", 0, 1),
    "Acrobot": ((6,), "float32", 3, 0),
    "Pendulum": ((3,), "float32", 0, 1),
    "LunarLander": ((8,), "float32", 4, 0),
    "LunarLanderContinuous": ((8,), "float32", 0, 2),
    "BipedalWalker": ((24,), "float32", 0, 4),
    "CarRacing": ((96, 96, 3), "uint8", 0, 3),
}


def gymnasium_module(it: Interpreter) -> Namespace:
    """`gymnasium` and `gym`."""
    return Namespace("gymnasium", {"make": Builtin("gymnasium.make", _make)})


def _make(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    name = args[0] if args else keywords.get("id")
    known = _SPACES.get(name.rpartition("/")[2].partition("-v")[0]) if isinstance(name, str) else None
    if known is None:
        return Unknown(f"the environment {name}" if isinstance(name, str) else "an environment", it.origin())
    shape, dtype, actions, extent = known

    def observation() -> Value:
        return it.library.call_function(it, "torch.empty", [shape], {"dtype": DTYPES[dtype]})

    def action() -> Value:
        if actions:
            return Symbol("an action")
        return it.library.call_function(it, "torch.empty", [(extent,)], {"dtype": DTYPES["float32"]})

    def step(it: Interpreter, given: list[Value], named: Keywords) -> Value:
        reward = Symbol("a reward", is_int=False)
        return (
            observation(),
            reward,
            Unknown("whether an episode ended", it.origin()),
            False,
            dict[Value, Value](),
        )

    spaces: dict[str, Value] = {
        "observation_space": Opaque("gymnasium.Box", {"shape": shape, "dtype": DTYPES[dtype]}),
        "action_space": Opaque(
            "gymnasium.Space",
            {
                "sample": Builtin("sample", lambda it, a, k: action()),
                **({"n": actions, "shape": ()} if actions else {"shape": (extent,)}),
            },
        ),
    }
    inert = {n: Builtin(n, lambda it, a, k: None) for n in ("render", "close", "seed")}
    return Opaque(
        f"the environment {name}",
        {
            "reset": Builtin("reset", lambda it, a, k: (observation(), dict[Value, Value]())),
            "step": Builtin("step", step),
            **spaces,
            **inert,
        },
    )
