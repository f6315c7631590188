"""What rules about waiting for a device share: is there a device at all?"""

from __future__ import annotations

from torchwise_analysis.interp.abstract.events import Transfer
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import OF_GRADIENTS, UNRECORDED, Tensor


def first_transfer(trace: Trace) -> Transfer | None:
    """The first move of data to something that is not the CPU; None for a script that stays there."""
    return next((move for move in trace.of(Transfer) if move.device not in (None, "cpu")), None)


def is_made_by_model(value: Tensor | None) -> bool:
    """Does the value carry, or did it lose, the graph of a forward? Then it lies where the model lies."""
    if value is None or value.device == "cpu":
        return False
    is_cut = value.cut is not None and value.cut.how != UNRECORDED and bool(value.cut.passes)
    return bool(value.passes) or is_cut or OF_GRADIENTS in value.taint
