"""The server with an engine that reads words instead of code: for tests of the protocol alone.

BUG        one finding on the word, with a safe and an unsafe fix, evidence at the start of the text
MAYBE      a finding that rests on conventions
STALE      a comment that silences nothing
CRASH      the analysis raises
READ name  the answer rests on that file beside it
WAIT       the analysis goes on until it is told to stop; the log says so
for ...:   an estimate whose peak is the number of lines in GiB; none while the text holds `def def`
"""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import replace

from torchwise_analysis.engine import CheckStatistics
from torchwise_analysis.findings import Confidence, Edit, Evidence, Finding, Fix, Place, Safety, Severity
from torchwise_analysis.settings import Settings
from torchwise_analysis.source.nodes import Span
from torchwise_memory.report import (
    Alive,
    Estimate,
    GpuVerdict,
    Interval,
    Kind,
    ModuleMemory,
    Moment,
    Origin,
    Peak,
    Phase,
    PlanField,
    Remedy,
    Source,
    TextEdit,
    Unanswered,
    Verdict,
)
from torchwise_server.lsp.documents import Checked, Estimated, Update
from torchwise_server.lsp.options import EditorOptions
from torchwise_server.lsp.server import create_server
from torchwise_server.lsp.text import Text
from torchwise_server.lsp.worker import Stop

GIB = 1 << 30
GPU_TITLES = {"rtx-4090": "RTX 4090", "t4": "Tesla T4"}


class FakeBackend:
    def __init__(self) -> None:
        self._texts: dict[str, Text] = {}
        self._paths: dict[str, str] = {}

    def update(self, uri: str, path: str, update: Update) -> None:
        self._paths[uri] = path
        for change in update.changes:
            if isinstance(change, str):
                self._texts[uri] = Text(change)
            else:
                self._texts[uri].apply(change)

    def check(self, uri: str, options: EditorOptions, stop: Stop) -> Checked | None:
        text = self._texts[uri]
        folder, name = os.path.split(self._paths[uri])
        print(f"checking {name}", file=sys.stderr, flush=True)
        if "CRASH" in str(text):
            raise RuntimeError("the word CRASH")
        if "WAIT" in str(text):
            wait(stop)
            return None
        read = frozenset(os.path.join(folder, other) for other in re.findall(r"READ (\S+)", str(text)))
        counted = CheckStatistics(
            1, 1234, ((Place(self._paths[uri], Span(0, 0, 0, 1)), "too <deep>"),), (("cut", 2),)
        )
        return Checked(
            tuple(self._findings(uri)), is_broken="def def" in str(text), read=read, statistics=counted
        )

    def verify(self, uri: str, options: EditorOptions, stop: Stop) -> Checked | None:
        return self.check(uri, options, stop)

    def estimate(self, uri: str, options: EditorOptions, stop: Stop) -> Estimated | None:
        text = self._texts[uri]
        if "LONG" in str(text):
            wait(stop)
            return None
        if "def def" in str(text):
            return Estimated(is_broken=True)
        loops = [number for number, line in enumerate(text.lines) if re.match(r"\s*for .*:", line)]
        unanswered = [number for number, line in enumerate(text.lines) if "UNKNOWN" in line]
        path, gpus = self._paths[uri], options.applied_to(Settings(gpus=("rtx-4090",))).gpus
        return Estimated(
            tuple(estimate(path, line, len(text.lines), gpus) for line in loops),
            tuple(Unanswered(Origin(path, line + 1), "the size of UNKNOWN") for line in unanswered),
        )

    def saved(self, path: str) -> None: ...

    def forget(self, uri: str) -> None:
        self._texts.pop(uri)

    def warm(self) -> None: ...

    def reload(self) -> None: ...

    def _findings(self, uri: str) -> list[Finding]:
        path, found = self._paths[uri], []
        for number, line in enumerate(self._texts[uri].lines):
            for match in re.finditer("BUG", line):
                place = Place(path, Span(number, match.start(), number, match.end()))
                found.append(finding(place))
            for match in re.finditer("MAYBE|STALE", line):
                place = Place(path, Span(number, match.start(), number, match.end()))
                found.append(maybe(place) if match[0] == "MAYBE" else stale(place))
        return found


def maybe(place: Place) -> Finding:
    return replace(finding(place), confidence=Confidence.POSSIBLE, message="a MAYBE", fixes=())


def stale(place: Place) -> Finding:
    hint = "'x' silences nothing here"
    return Finding("TW001", "unused-suppression", Severity.HINT, Confidence.CERTAIN, hint, place)


def finding(place: Place) -> Finding:
    return Finding(
        "TW101",
        "retained-graph",
        Severity.ERROR,
        Confidence.CERTAIN,
        "a BUG",
        place,
        (Evidence(Place(place.path, Span(0, 0, 0, 1)), "the text starts here"),),
        (
            Fix("Write FIXED", Safety.SAFE, (Edit(place, "FIXED"),)),
            Fix("Write OTHER", Safety.UNSAFE, (Edit(place, "OTHER"),)),
            Fix("Think about it", Safety.ADVICE, ()),
        ),
    )


def estimate(path: str, line: int, size_gib: int, gpus: tuple[str, ...]) -> Estimate:
    peak = Interval(size_gib * GIB - GIB // 2, size_gib * GIB, size_gib * GIB + GIB // 2)
    return Estimate(
        Origin(path, line + 1),
        Kind.TRAINING,
        {"micro_batch": PlanField(8, Source.READ, Origin(path, 1))},
        1_000_000,
        1_000_000,
        Peak(peak, peak, peak),
        Phase.BACKWARD,
        {"weights": GIB},
        (Alive(GIB, "activations of fc", Origin(path, line + 1)),),
        ("the card is not known",),
        tuple(GpuVerdict(name, GPU_TITLES.get(name, name), 24 * GIB, Verdict.FITS) for name in gpus),
        (
            Remedy("micro-batch 4", GIB, GIB, "more steps", (TextEdit(path, 0, 0, 0, 1, "4"),)),
            Remedy("something else", GIB, GIB, "time"),
        ),
        timeline=(
            Moment(Phase.FORWARD, Origin(path, line + 1), {"weights": GIB // 2}),
            Moment(Phase.BACKWARD, Origin(path, line + 1), {"weights": GIB}),
            Moment(Phase.FORWARD, None, {"weights": GIB // 2}),
            Moment(Phase.OPTIMIZER, Origin(path, line + 1), {"weights": GIB // 2}),
        ),
        modules=(ModuleMemory(Origin(path, 1), "Net", 2, 1_000_000, 4_000_000, size_gib * GIB // 4),),
    )


def wait(stop: Stop) -> None:
    print("waiting", file=sys.stderr, flush=True)
    while not stop():
        time.sleep(0.001)
    print("stopped", file=sys.stderr, flush=True)


if __name__ == "__main__":
    create_server(FakeBackend()).start_io()
