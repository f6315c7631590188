"""The memory of one document as plain values, for a client that draws it.

All words and numbers are made here, as in the other texts, so that a client only lays them out. Sizes come
twice: `bytes` to draw with, text to read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torchwise_analysis.findings import Place
from torchwise_analysis.source.nodes import Span
from torchwise_memory.report import Estimate, GpuVerdict, Interval, Moment, Origin, PlanField, Remedy
from torchwise_server.lsp.documents import Estimated, OpenDocument
from torchwise_server.lsp.markdown import (
    LOOPS,
    headline_facts,
    interval,
    launch_words,
    lens_title,
    peak_phase,
    plain_value,
    plan_note,
    verdict,
    verdict_word,
)
from torchwise_server.lsp.session import Session
from torchwise_server.reporters.words import amount, one_line, phase_words, size

Json = dict[str, object]

PURPOSES = {
    "weights": "Weights",
    "gradients": "Gradients",
    "optimizer": "Optimizer states",
    "activations": "Activations",
    "inputs": "Inputs",
    "temporaries": "Temporaries",
    "workspaces": "Workspaces",
}
"""Keys of a breakdown in the order they are stacked: what stays at the bottom, what comes and goes on top."""

_MAX_MODULES = 40
_MAX_SHARE = 0.001  # a layer with less of the peak than this is not listed


def memory_panel(session: Session, document: OpenDocument, answer: Estimated | None) -> Json:
    """Everything that is known of the memory of `document`."""
    places = _Places(session, document)
    known = answer or Estimated()
    return {
        "uri": document.uri,
        "name": Path(document.path).name,
        "version": document.version,
        "isKept": known.is_kept,
        "loops": [_loop(places, number, estimate) for number, estimate in enumerate(known.estimates)],
        "unanswered": [
            {"place": places.of(entry.origin), "message": one_line(entry.message)}
            for entry in known.unanswered
        ],
    }


def estimated_brief(document: OpenDocument) -> Json:
    """The highest peak of `document` in half a line, and what stands above its loops."""
    answer = document.estimated or Estimated()
    known = [one for one in answer.estimates if one.peak.allocated is not None]
    highest = max(known, key=lambda one: one.peak.allocated.point if one.peak.allocated else 0, default=None)
    gpu = highest.gpus[0] if highest and highest.gpus else None
    peak = size(highest.peak.allocated.point) if highest and highest.peak.allocated else ""
    return {
        "uri": document.uri,
        "brief": f"{peak} · {verdict(gpu)}" if gpu else peak,
        "titles": [lens_title(one, stale=answer.is_kept) for one in answer.estimates],
        "verdict": gpu.verdict.value if gpu else None,
    }


class _Places:
    """Places as the client opens them, lines and columns from 0."""

    def __init__(self, session: Session, document: OpenDocument) -> None:
        self._session = session
        self._document = document

    def of(self, origin: Origin | None) -> Json | None:
        if origin is None:
            return None
        document, answer = self._document, self._document.estimated
        line = max(origin.line - 1, 0)
        is_own = origin.path == document.path
        if is_own and answer is not None:
            line = document.current_line(line, answer.made_at)
        located = self._session.locate(Place(origin.path, Span(line, 0, line, 0)))
        name = one_line(Path(origin.path).name)
        if located is None:
            return {
                "label": f"line {line + 1}" if is_own else f"{name}:{line + 1}",
                "uri": None,
                "line": line,
            }
        shown = located.span.line
        label = f"line {shown + 1}" if is_own else f"{name}:{shown + 1}"
        if is_own and len(document.uris) > 1:
            label = f"cell {document.uris.index(located.uri) + 1}, line {shown + 1}"
        return {"label": label, "uri": located.uri, "line": shown}


def _loop(places: _Places, number: int, estimate: Estimate) -> Json:
    peak = estimate.peak
    return {
        "number": number,
        "title": LOOPS[estimate.kind].capitalize(),
        "place": places.of(estimate.origin),
        "peak": size(peak.allocated.point) if peak.allocated else None,
        "range": interval(peak.allocated) if peak.allocated else None,
        "where": peak_phase(estimate),
        "facts": headline_facts(estimate),
        "launch": None
        if estimate.launch is None
        else {
            "words": one_line(estimate.launch.words),
            "short": launch_words(estimate.launch),
            "place": places.of(estimate.launch.origin),
        },
        "peaks": [
            _peak("allocated", "torch.cuda.max_memory_allocated()", peak.allocated),
            _peak("reserved", "torch.cuda.max_memory_reserved()", peak.reserved),
            _peak("on the card", "nvidia-smi", peak.device),
        ],
        "gpus": [
            {
                "title": one_line(gpu.title),
                "verdict": gpu.verdict.value,
                "words": verdict_word(gpu.verdict),
                "bytes": gpu.total_bytes,
                "size": size(gpu.total_bytes),
                "apart": _apart(gpu),
            }
            for gpu in estimate.gpus
        ],
        "purposes": [
            {"name": PURPOSES[key], "bytes": bytes_, "size": size(bytes_)}
            for key, bytes_ in _ordered(estimate.breakdown)
        ],
        "timeline": [
            _moment(places, moment, phase)
            for moment, phase in zip(estimate.timeline, phase_words(estimate.timeline), strict=True)
        ],
        "alive": [
            {
                "bytes": group.bytes,
                "size": size(group.bytes),
                "what": one_line(group.what),
                "count": group.count,
                "place": places.of(group.origin),
            }
            for group in estimate.alive
        ],
        "modules": list(_modules(places, estimate)),
        "remedies": [_remedy(places, index, remedy) for index, remedy in enumerate(estimate.remedies)],
        "plan": [
            {
                "name": name.replace("_", " "),
                "value": plain_value(entry),
                "note": _note(entry),
                "place": places.of(entry.origin),
            }
            for name, entry in estimate.plan.items()
            if plain_value(entry)
        ],
        "assumptions": [one_line(text) for text in estimate.assumptions],
    }


def _apart(gpu: GpuVerdict) -> Json | None:
    """The peaks on a card whose kernels are others than those that everything else tells of."""
    if gpu.peak is None or gpu.peak.allocated is None or gpu.peak.reserved is None:
        return None
    allocated, reserved = gpu.peak.allocated.point, gpu.peak.reserved.point
    return {"bytes": allocated, "size": size(allocated), "reserved": reserved}


def _peak(name: str, source: str, value: Interval | None) -> Json:
    return {
        "name": name,
        "source": source,
        "bytes": value.point if value else None,
        "size": size(value.point) if value else "not known",
        "range": interval(value) if value else "",
    }


def _ordered(breakdown: dict[str, int]) -> Iterable[tuple[str, int]]:
    return ((key, breakdown.get(key, 0)) for key in PURPOSES)


def _moment(places: _Places, moment: Moment, phase: str) -> Json:
    return {
        "phase": phase,
        "place": places.of(moment.origin),
        "bytes": [bytes_ for _, bytes_ in _ordered(moment.by_purpose)],
        "size": size(moment.bytes),
    }


def _modules(places: _Places, estimate: Estimate) -> Iterable[Json]:
    """The layers that hold most, largest first."""
    peak = estimate.peak.allocated.point if estimate.peak.allocated else 0
    rows = sorted(estimate.modules, key=lambda item: -(item.weight_bytes + (item.alive_bytes or 0)))
    for entry in rows[:_MAX_MODULES]:
        if entry.weight_bytes + (entry.alive_bytes or 0) > peak * _MAX_SHARE:
            yield {
                "name": one_line(entry.name),
                "count": entry.count,
                "place": places.of(entry.origin),
                "parameters": amount(entry.parameters),
                "weights": size(entry.weight_bytes),
                "alive": None if entry.alive_bytes is None else size(entry.alive_bytes),
            }


def _remedy(places: _Places, index: int, remedy: Remedy) -> Json:
    return {
        "number": index,
        "change": one_line(remedy.change),
        "cost": one_line(remedy.cost),
        "saves": size(remedy.saves_bytes),
        "peak": size(remedy.peak_bytes),
        "peakBytes": remedy.peak_bytes,
        "edits": [
            {"place": places.of(Origin(edit.path, edit.line + 1)), "text": one_line(edit.text)}
            for edit in remedy.edits
        ],
    }


def _note(entry: PlanField) -> str:
    return ", ".join(part for part in (plan_note(entry), one_line(entry.why)) if part)
