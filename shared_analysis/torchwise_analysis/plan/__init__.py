"""From a script to an estimate: the plan that was read, the peak of its step, and what would change it."""

from __future__ import annotations

from torchwise_analysis.plan.estimate import estimate_module
from torchwise_analysis.plan.request import EstimateReport, EstimateRequest

__all__ = ["EstimateReport", "EstimateRequest", "estimate_module"]
