"""Modelling error of described jobs by metric."""

from __future__ import annotations

from torchwise_memory.report import Interval

#: Shares of the point below and above it.
ERRORS = {
    ("allocated", "train"): (0.15, 0.15),
    ("reserved", "train"): (0.15, 0.20),
}


def widened(hull: Interval, metric: str, task: str) -> Interval:
    low, high = ERRORS.get((metric, task), ERRORS[metric, "train"])
    return Interval(int(hull.low * (1 - low)), hull.point, int(hull.high * (1 + high)))
