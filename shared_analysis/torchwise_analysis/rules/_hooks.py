"""What Lightning calls in which order, as far as rules ask: between two hooks it leaves modes as they are.

[lightning 2.6: `configure_optimizers` runs before `on_train_start`; modes are set back behind a validation,
and nothing else switches them]
"""

from __future__ import annotations

from torchwise_analysis.interp.abstract.events import Event

_TRAINING = frozenset(
    [
        *("training_step", "on_train_start", "on_train_epoch_start", "on_train_epoch_end"),
        *("on_train_batch_start", "on_train_batch_end", "on_before_backward", "on_after_backward"),
        *("on_before_optimizer_step", "on_before_zero_grad", "optimizer_step"),
    ]
)


def hook_of(event: Event) -> str:
    """The hook of Lightning's that is running, or nothing."""
    entry = event.scene.entry
    is_hook = entry.kind == "hook" and entry.framework == "lightning"
    return entry.name.rpartition(".")[2] if is_hook else ""


def in_training(event: Event) -> bool:
    """Does it happen in a hook between the start and the end of training, and not for an evaluation?"""
    return hook_of(event) in _TRAINING


def is_same_call(first: Event, second: Event) -> bool:
    """Do both happen in one call of one hook?"""
    turns = (first.loops[:1], second.loops[:1])
    return first.scene.entry.place == second.scene.entry.place and turns[0] == turns[1]
