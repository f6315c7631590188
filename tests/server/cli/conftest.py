"""A fake engine: it reports what comments in the checked text ask for, so that these tests are about the
command line alone and do not change with any rule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from torchwise_analysis.engine import Analysable, CheckReport, EstimateReport, Problem, ProblemKind
from torchwise_analysis.findings import (
    Confidence,
    Edit,
    Evidence,
    Finding,
    Fix,
    Place,
    Safety,
    Severity,
)
from torchwise_analysis.source.nodes import Span
from torchwise_memory.report import (
    Alive,
    Estimate,
    GpuVerdict,
    Interval,
    Kind,
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
from torchwise_server.cli import main

_FAULT = re.compile(r"# fault: (?P<severity>\w+) (?P<confidence>\w+)")
_GIB = 1 << 30


class FakeEngine:
    def __init__(self, settings: object, root: Path, project: object) -> None:
        self.settings = settings
        self.root = root
        self.project = project

    def with_verified_fixes(
        self, document: Analysable, report: CheckReport, *_: object, **__: object
    ) -> CheckReport:
        return report

    def is_silent(self, document: Analysable) -> bool:
        return False

    def check_quickly(self, document: Analysable, *_: object, **__: object) -> CheckReport:
        if "# crash" in document.text:
            problem = Problem(document.path, None, "the analysis failed", ProblemKind.FAILURE)
            return CheckReport(problems=(problem,))
        problems = tuple(
            Problem(document.path, problem.span.line, problem.message, ProblemKind.SYNTAX)
            for problem in document.module.problems
        )
        found = []
        for number, line in enumerate(document.text.splitlines()):
            match = _FAULT.search(line)
            if match:
                found.append(_finding(document.path, number, line, match))
        return CheckReport(tuple(found), problems)

    def estimate(self, document: Analysable, request: object) -> EstimateReport:
        if "# unanswered" in document.text:
            plan = {"optimizer": PlanField("SGD", Source.READ, Origin(document.path, 1))}
            read = plan if "# plan" in document.text else {}
            stop = Unanswered(Origin(document.path, 2), "`n` is not known", read)
            return EstimateReport(unanswered=(stop,))
        return EstimateReport((_estimate(document.path),))


def _finding(path: str, number: int, line: str, match: re.Match[str]) -> Finding:
    indent = len(line) - len(line.lstrip())
    place = Place(path, Span(number, indent, number, match.start()))
    end = Place(path, Span(number, indent, number, indent))
    return Finding(
        "TW101",
        "retained-graph",
        Severity(match["severity"]),
        Confidence(match["confidence"]),
        "kept with its graph",
        place,
        (Evidence(Place(path, Span(0, 0, 0, 6)), "imported here"),),
        (Fix("say it", Safety.SAFE, (Edit(end, "fixed = "),)), Fix("think", Safety.ADVICE, ())),
    )


def _estimate(path: str) -> Estimate:
    interval = Interval(9 * _GIB, 10 * _GIB, 11 * _GIB)
    return Estimate(
        Origin(path, 2),
        Kind.TRAINING,
        {
            "micro_batch": PlanField(8, Source.READ, Origin(path, 1)),
            "image": PlanField((3, 224, 224), Source.ASSUMED, None, "nothing says it"),
            "seq_len": PlanField(None, Source.UNKNOWN),
        },
        1000,
        900,
        Peak(interval, interval, None),
        Phase.BACKWARD,
        {"weights": _GIB, "activations": 9 * _GIB},
        (Alive(_GIB, "logits", Origin(path, 1), 2),),
        ("CUDA is there",),
        (
            GpuVerdict("t4", "Tesla T4", 15 * _GIB, Verdict.PROBABLY_OOM),
            GpuVerdict("x", "X", 80 * _GIB, Verdict.FITS),
        ),
        (Remedy("checkpoint", 5 * _GIB, 5 * _GIB, "time", (TextEdit(path, 0, 0, 0, 0, "x"),)),),
    )


@dataclass(frozen=True, slots=True)
class Result:
    status: int
    out: str
    err: str

    def json(self) -> dict[str, list[dict[str, object]]]:
        document: dict[str, list[dict[str, object]]] = json.loads(self.out)
        return document


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in an empty folder, with the fake engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torchwise_server.cli.reading.Engine", FakeEngine)
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Result:
        status = main(arguments)
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def validate() -> Callable[[str, object], None]:
    """Validate a report against a schema that is shipped."""

    def check(name: str, document: object) -> None:
        text = files("torchwise_server").joinpath(f"schemas/{name}.schema.json").read_text(encoding="utf-8")
        schema = json.loads(text)
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)

    return check
