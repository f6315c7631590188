"""What entering a context does: lexical scopes, which leaving by any way undoes."""

from __future__ import annotations

from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.frames import Scopes
from torchwise_analysis.interp.abstract.machine import NOT_RECORDING, RECORDING, Machine, first_known

_WITNESS = 2


def inside(m: Machine, scopes: Scopes, context: va.Context) -> Scopes:
    """The scopes inside this context."""
    what = context.what
    if what == "grad":
        return scopes._replace(grad=context.flags)
    if what == "autocast":
        return scopes._replace(autocast=_autocast(m, context))
    if what == "accumulate":
        return scopes._replace(sync=_synchronises(m, context))
    if what == "no_sync":
        return scopes._replace(no_sync=context.owner)
    if what == "anomaly":
        return scopes._replace(anomaly=True)
    if what == "compiled":
        return scopes._replace(compiled=context.evidence.place if context.evidence else None)
    return scopes


def _autocast(m: Machine, context: va.Context) -> str | None:
    enabled = context.arguments.get("enabled", 2)
    if isinstance(enabled, va.Const) and enabled.value is False:
        return None
    dtype = context.arguments.get("dtype", 1)
    if dtype is None:
        return context.name or "default"
    value = first_known(dtype)
    if isinstance(value, va.Library):
        return value.last
    return value.symbol or "unknown" if isinstance(value, (va.Unknown, va.Obj)) else "unknown"


def _synchronises(m: Machine, context: va.Context) -> frozenset[bool]:
    """Does this micro-step step? Counted with the witness, as the owner counts its own calls."""
    owner = context.owner
    if owner is None:
        return RECORDING
    steps = owner.arguments.get("gradient_accumulation_steps")
    if (
        steps is None
        and owner.arguments.get("gradient_accumulation_plugin") is None
        and not owner.arguments.open
    ):
        return RECORDING
    if isinstance(steps, va.Const) and steps.value == 1:
        return RECORDING
    count = m.accumulations[owner.id] = m.accumulations.get(owner.id, 0) + 1
    return RECORDING if count % _WITNESS == 0 else NOT_RECORDING
