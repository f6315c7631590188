"""Modelling error of described jobs, by metric.

Published peaks of half of the documents in `benchmarks/data/measured.jsonl` (those whose key has an even
CRC-32) give the 5 % and 95 % quantiles of true over predicted; the other half checks the coverage
(`python benchmarks/accuracy.py --calibrate`). Shares are per metric only: none belongs to a document, a
library or a model. Allocated: 58 rows, 0.830 to 1.141. Reserved has 14 rows on that half (0.913 to 1.372),
too few for a tail: its upper share lies between that quantile and the one of allocated. What the allocator
keeps grows with the free room of the card, so the upper side is the wider one.
"""

from __future__ import annotations

from torchwise_memory.report import Interval

#: Shares of the point below and above it.
ERRORS = {"allocated": (0.17, 0.14), "reserved": (0.15, 0.25)}


def widened(hull: Interval, metric: str) -> Interval:
    """The hull of what was run, with the modelling error of the metric on both sides."""
    low, high = ERRORS[metric]
    return Interval(int(hull.low * (1 - low)), hull.point, int(hull.high * (1 + high)))
