"""What DeepSpeed's engine takes for ZeRO besides weights, gradients and states.

Read from DeepSpeed 0.19 (runtime/zero/stage_1_and_2.py, stage3.py, config.py). A bucket is allocated as large
as the settings say, however small the model is. Stages 1 and 2 make it when the first gradient of a backward
is ready and drop it after the last (`setup_buckets`, `_release_ipg_buffers`), twice where reduction overlaps
with backward; stage 3 makes one with the optimizer and keeps it. Where states live on the host, stages 1 and
2 keep room for the largest parameter on the card. The step flattens the gradients of this process and copies
them to fp32: all of them, at stage 3 those of one sub-group after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Defaults of DeepSpeed, in elements: `reduce_bucket_size`, `sub_group_size` and
#: `stage3_param_persistence_threshold`, up to which parameters stay whole.
REDUCE_BUCKET = 500_000_000
SUB_GROUP = 1_000_000_000
PERSISTENCE = 100_000


@dataclass(frozen=True, slots=True)
class ZeroBuffers:
    """Elements. held: from the optimizer on; in_backward: from the first gradient to the last; in_step: how
    many gradients the step flattens, in their own type, and copies to fp32 at once, on the card.
    """

    held: int
    in_backward: int
    in_step: int


def zero_buffers(
    stage: int,
    part: int,
    largest: int,
    bucket: int = REDUCE_BUCKET,
    overlaps: bool = False,
    on_host: bool = False,
    sub_group: int = SUB_GROUP,
) -> ZeroBuffers:
    """stage: 1 to 3. part: elements this process updates, largest: of the largest parameter that is trained.

    overlaps: `overlap_comm`; on_host: `offload_optimizer`.
    """
    if stage >= 3:
        return ZeroBuffers(held=bucket, in_backward=0, in_step=0 if on_host else min(part, sub_group))
    return ZeroBuffers(
        held=largest if on_host else 0,
        in_backward=bucket * (2 if overlaps else 1),
        in_step=0 if on_host else part,
    )


def bucket_of_transformers(hidden: int) -> int:
    """Elements of `"reduce_bucket_size": "auto"` (transformers/integrations/deepspeed.py)."""
    return hidden * hidden
