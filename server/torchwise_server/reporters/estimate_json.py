"""`torchwise estimate --format json|jsonl`: the shape of schemas/estimate.schema.json. Bytes per GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence

from torchwise_analysis.engine import Problem
from torchwise_memory.report import Alive, Estimate, GpuVerdict, Interval, Origin, Peak, PlanField, Remedy
from torchwise_server.reporters.sources import Sources

VERSION = 1


def render(estimates: Sequence[Estimate], problems: Sequence[Problem], sources: Sources) -> str:
    """One JSON document for all files."""
    document = {
        "version": VERSION,
        "estimates": [as_dict(estimate, sources) for estimate in estimates],
        "problems": [problem_as_dict(problem, sources) for problem in problems],
    }
    return json.dumps(document, indent=1)


def render_lines(estimates: Sequence[Estimate], problems: Sequence[Problem], sources: Sources) -> str:
    """One JSON object a line: an estimate, or `{"problem": ...}`."""
    rows = [as_dict(estimate, sources) for estimate in estimates]
    for problem in problems:
        row: dict[str, object] = {"problem": problem_as_dict(problem, sources)}
        rows.append(row)
    return "\n".join(json.dumps(row) for row in rows)


def as_dict(estimate: Estimate, sources: Sources) -> dict[str, object]:
    """One estimate as plain values."""
    return {
        **_origin(estimate.origin, sources),
        "kind": estimate.kind.value,
        **_launch(estimate, sources),
        "plan": {key: _plan_field(value, sources) for key, value in estimate.plan.items()},
        "parameters": estimate.parameters,
        "trainable_parameters": estimate.trainable_parameters,
        "per_gpu": True,
        "gpus_used": estimate.gpus_used,
        "peak": peak_as_dict(estimate.peak),
        "phase": estimate.phase.value if estimate.phase else None,
        "breakdown": dict(estimate.breakdown),
        "alive": [_alive(group, sources) for group in estimate.alive],
        "assumptions": list(estimate.assumptions),
        "gpus": [_gpu(gpu) for gpu in estimate.gpus],
        "remedies": [_remedy(remedy, sources) for remedy in estimate.remedies],
    }


def _launch(estimate: Estimate, sources: Sources) -> dict[str, object]:
    if estimate.launch is None:
        return {}
    return {"launch": {"words": estimate.launch.words, **_origin(estimate.launch.origin, sources)}}


def peak_as_dict(peak: Peak) -> dict[str, object]:
    """The three peaks; null for what is not known."""
    return {
        "allocated": _interval(peak.allocated),
        "reserved": _interval(peak.reserved),
        "device": _interval(peak.device),
    }


def problem_as_dict(problem: Problem, sources: Sources) -> dict[str, object]:
    """A problem with its line from 1."""
    return {
        "path": sources.name(problem.path),
        "line": None if problem.line is None else problem.line + 1,
        **({} if problem.line is None else sources.notebook_fields(problem.path, problem.line)),
        "message": problem.message,
        **(
            {"plan": {key: _plan_field(value, sources) for key, value in problem.plan}}
            if problem.plan
            else {}
        ),
    }


def _interval(interval: Interval | None) -> dict[str, int] | None:
    if interval is None:
        return None
    return {"low": interval.low, "point": interval.point, "high": interval.high}


def _origin(origin: Origin | None, sources: Sources) -> dict[str, object]:
    if origin is None:
        return {}
    return {
        "path": sources.name(origin.path),
        "line": origin.line,
        **sources.notebook_fields(origin.path, origin.line - 1),
    }


def _plan_field(plan_field: PlanField, sources: Sources) -> dict[str, object]:
    value = plan_field.value
    field: dict[str, object] = {
        "value": list(value) if isinstance(value, tuple) else value,
        "source": plan_field.source.value,
        **_origin(plan_field.origin, sources),
    }
    if plan_field.why:
        field["why"] = plan_field.why
    return field


def _alive(group: Alive, sources: Sources) -> dict[str, object]:
    return {
        "bytes": group.bytes,
        "what": group.what,
        "count": group.count,
        **_origin(group.origin, sources),
    }


def _gpu(gpu: GpuVerdict) -> dict[str, object]:
    return {
        "name": gpu.name,
        "title": gpu.title,
        "total_bytes": gpu.total_bytes,
        "verdict": gpu.verdict.value,
        **({"machine": gpu.machine, "cards": gpu.cards} if gpu.machine else {}),
        **({} if gpu.peak is None else {"peak": peak_as_dict(gpu.peak)}),
    }


def _remedy(remedy: Remedy, sources: Sources) -> dict[str, object]:
    return {
        "change": remedy.change,
        "saves_bytes": remedy.saves_bytes,
        "peak_bytes": remedy.peak_bytes,
        "cost": remedy.cost,
        "edits": [
            {
                "path": sources.name(edit.path),
                "line": edit.line + 1,
                "column": edit.column + 1,
                "end_line": edit.end_line + 1,
                "end_column": edit.end_column + 1,
                "text": edit.text,
            }
            for edit in remedy.edits
        ],
        **({"options": remedy.options} if remedy.options else {}),
    }
