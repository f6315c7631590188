from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from torchwise_analysis import engine as engine_module
from torchwise_analysis.engine import Engine, ProblemKind, check_together, could_matter, open_project
from torchwise_analysis.findings import Confidence, Edit, Finding, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp import abstract
from torchwise_analysis.interp.abstract.events import Backward
from torchwise_analysis.interp.abstract.trace import Silence
from torchwise_analysis.rules import CheckResult, RuleFailure, Statistics
from torchwise_analysis.settings import Settings
from torchwise_analysis.source.nodes import Span

FAULTY = "import torch\nkeep(loss)\n"
FIXED = "import torch\nkeep(loss.detach())\n"


@dataclass(frozen=True, slots=True)
class FakeTrace:
    path: str
    silence: Silence = field(default_factory=Silence)
    analysed_files: tuple[str, ...] = ()
    reached: frozenset[tuple[str, int, int, str]] = frozenset()
    passed: dict[str, int] = field(default_factory=dict[str, int])
    backwards: tuple[Backward, ...] = ()

    def once(self, _: str, make: Callable[[], object]) -> object:
        return make()


def finding_at(path: str, text: str) -> Finding | None:
    """A finding where `loss` is kept as it is."""
    for number, line in enumerate(text.split("\n")):
        if line == "keep(loss)":
            end = Span(number, 9, number, 9)
            fix = Fix("detach", Safety.SAFE, (Edit(Place(path, end), ".detach()"),))
            return Finding(
                "TW101",
                "retained-graph",
                Severity.ERROR,
                Confidence.CERTAIN,
                "kept",
                Place(path, Span(number, 5, number, 9)),
                fixes=(fix,),
            )
    return None


@pytest.fixture
def analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for the interpreter and the rules: these tests are about the border around them."""

    def run(module: object, project: object, **_: object) -> FakeTrace:
        return FakeTrace(module.path)  # type: ignore[attr-defined]

    def judge(trace: FakeTrace, document: SourceFile, settings: Settings, **_: object) -> CheckResult:
        found = finding_at(document.path, document.text)
        return CheckResult((found,) if found else (), Statistics(1, 1, 0, 0, trace.silence))

    monkeypatch.setattr(abstract, "run", run, raising=False)
    monkeypatch.setattr("torchwise_analysis.rules.judge", judge)


def make(tmp_path: Path, settings: Settings | None = None) -> Engine:
    chosen = settings or Settings()
    return Engine(chosen, tmp_path, open_project(str(tmp_path / "a.py"), chosen))


def document(tmp_path: Path, text: str) -> SourceFile:
    return SourceFile(str(tmp_path / "a.py"), text)


def replace_run(monkeypatch: pytest.MonkeyPatch, run: Callable[..., object]) -> None:
    monkeypatch.setattr(abstract, "run", run, raising=False)


@pytest.mark.usefixtures("analysis")
def test_findings_keep_the_fixes_that_help(tmp_path: Path) -> None:
    report = make(tmp_path).check(document(tmp_path, FAULTY))
    assert [finding.rule for finding in report.findings] == ["retained-graph"]
    assert report.findings[0].fixes[0].edits
    assert report.problems == ()


def test_a_fix_that_leaves_the_finding_becomes_advice(
    tmp_path: Path, analysis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(trace: FakeTrace, document: SourceFile, settings: Settings, **_: object) -> CheckResult:
        found = finding_at(document.path, FAULTY)
        assert found is not None
        return CheckResult((found,), Statistics(1, 1, 0, 0, trace.silence))

    monkeypatch.setattr("torchwise_analysis.rules.judge", judge)
    report = make(tmp_path).check(document(tmp_path, FAULTY))
    assert [(fix.safety, fix.edits) for fix in report.findings[0].fixes] == [(Safety.ADVICE, ())]


@pytest.mark.parametrize("error", [RuntimeError("oh"), RecursionError("deep"), MemoryError(), KeyError("k")])
def test_a_crash_of_the_analysis_is_one_problem(
    tmp_path: Path, analysis: None, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def crash(*_: object, **__: object) -> object:
        raise error

    replace_run(monkeypatch, crash)
    report = make(tmp_path).check(document(tmp_path, FAULTY))
    assert report.findings == ()
    assert [problem.kind for problem in report.problems] == [ProblemKind.FAILURE]
    assert type(error).__name__ in report.problems[0].message


def test_a_crash_is_logged_with_its_traceback(
    tmp_path: Path, analysis: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def crash(*_: object, **__: object) -> object:
        raise RuntimeError("oh")

    replace_run(monkeypatch, crash)
    make(tmp_path).check(document(tmp_path, FAULTY))
    assert caplog.records[0].exc_info


def test_a_crash_while_verifying_keeps_the_finding(
    tmp_path: Path, analysis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> object:
        raise RuntimeError("oh")

    monkeypatch.setattr("torchwise_analysis.rules.verified", crash)
    report = make(tmp_path).check(document(tmp_path, FAULTY))
    assert [finding.fixes for finding in report.findings] == [()]
    assert [problem.kind for problem in report.problems] == [ProblemKind.FAILURE]


def test_a_faulty_rule_is_a_problem_beside_the_findings(
    tmp_path: Path, analysis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(trace: FakeTrace, document: SourceFile, settings: Settings, **_: object) -> CheckResult:
        found = finding_at(document.path, document.text)
        failure = RuleFailure("double-softmax", "KeyError: 1")
        return CheckResult((found,) if found else (), Statistics(1, 1, 0, 0, trace.silence), (failure,))

    monkeypatch.setattr("torchwise_analysis.rules.judge", judge)
    report = make(tmp_path).check(document(tmp_path, FAULTY))
    assert len(report.findings) == 1
    assert "double-softmax" in report.problems[0].message


@pytest.mark.usefixtures("analysis")
def test_broken_syntax_is_a_problem_with_its_line(tmp_path: Path) -> None:
    report = make(tmp_path).check(document(tmp_path, "import torch\n\nx = )\n"))
    assert [(problem.kind, problem.line) for problem in report.problems] == [(ProblemKind.SYNTAX, 2)]


@pytest.mark.usefixtures("analysis")
def test_a_stopped_analysis_says_so(tmp_path: Path) -> None:
    report = make(tmp_path).check(document(tmp_path, FAULTY), lambda: True)
    assert report.is_stopped
    assert report.findings == ()


@pytest.mark.usefixtures("analysis")
@pytest.mark.parametrize(("pattern", "left"), [("a.py", 0), ("b.py", 1)])
def test_ignores_follow_the_file_that_a_finding_lies_in(tmp_path: Path, pattern: str, left: int) -> None:
    settings = Settings(per_file_ignores=((pattern, ("TW1",)),))
    assert len(make(tmp_path, settings).check(document(tmp_path, FAULTY)).findings) == left


def test_a_crash_of_the_estimate_is_one_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> object:
        raise RuntimeError("oh")

    monkeypatch.setattr(engine_module, "_estimate", crash)
    report = make(tmp_path).estimate(document(tmp_path, FAULTY), None)  # type: ignore[arg-type]
    assert report.estimates == ()
    assert [problem.kind for problem in report.problems] == [ProblemKind.FAILURE]


@pytest.mark.parametrize(
    ("text", "matters"),
    [
        ("import torch", True),
        ("from lightning import Trainer", True),
        ("def step(opt):\n    opt.step()", True),
        ("loss.backward()", True),
        ("x = 1\nprint(x)", False),
        ("def step_by_step(): pass", False),
    ],
)
def test_a_cheap_look_decides_what_cannot_matter(text: str, matters: bool) -> None:
    assert could_matter(text) == matters


@pytest.mark.parametrize("order", [1, -1])
def test_functions_that_another_file_calls_are_judged_there(
    tmp_path: Path, analysis: None, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    main, helper = str(tmp_path / "main.py"), str(tmp_path / "helper.py")
    key = (helper, 1, 0, "step")
    seen: list[tuple[str, frozenset[object]]] = []

    def run(module: object, project: object, *, reached: frozenset[object], **_: object) -> FakeTrace:
        path: str = module.path  # type: ignore[attr-defined]
        seen.append((path, reached))
        return FakeTrace(path, reached=frozenset({key}))

    replace_run(monkeypatch, run)
    engine = make(tmp_path)
    documents = [(engine, SourceFile(path, "import torch\n")) for path in (main, helper)][::order]
    reports = check_together(documents)
    assert len(reports) == 2
    assert (helper, frozenset({key})) in seen
    assert all(not reached for path, reached in seen if path == main)


def test_a_file_of_an_installed_package_is_followed_less_far(tmp_path: Path) -> None:
    long = "    x = torch.relu(x + 1)\n" * 3_000
    text = f"import torch\n\ndef train(x):\n{long}    x.sum().backward()\n"
    spent: dict[str, int] = {}
    for folder in ("code", "site-packages"):
        path = tmp_path / folder / "many.py"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        engine = Engine(Settings(), path.parent, open_project(str(path), Settings()))
        report = engine.check(SourceFile(str(path), text))
        spent[folder] = report.statistics.visits
        assert any(problem.kind is ProblemKind.UNFINISHED for problem in report.problems) == (
            folder != "code"
        )
    assert spent["site-packages"] < spent["code"]
