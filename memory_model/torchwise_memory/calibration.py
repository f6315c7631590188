"""Modelling error of described jobs, by metric.

Published peaks (`benchmarks/data/measured.jsonl`, confidence A and B) against the hull of what was run: the
5 % quantile of true over its low end and the 95 % quantile of true over its high end. Reserved and device
rows are pooled, since a device reads reserved memory and what stands beside it. With the document of a row
left out of the calibration each time, the interval covers 88 % of the rows
(`python benchmarks/accuracy.py --calibrate`). None of the shares belongs to a document, a library or a model.
"""

from __future__ import annotations

from torchwise_memory.report import Interval

#: Shares below and above the hull.
ERRORS = {"allocated": (0.139, 0.149), "reserved": (0.10, 0.10)}


def widened(hull: Interval, metric: str) -> Interval:
    """The hull of what was run, with the modelling error of the metric on both sides."""
    low, high = ERRORS[metric]
    return Interval(int(hull.low * (1 - low)), hull.point, int(hull.high * (1 + high)))
