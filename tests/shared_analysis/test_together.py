"""A check of many files says what each says by itself, less what its callers know better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from torchwise_analysis.engine import CheckReport, Engine, check_together, open_project
from torchwise_analysis.findings import Confidence, Finding, Place, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.limits import Limits
from torchwise_analysis.settings import Settings
from torchwise_analysis.source.nodes import Span
from torchwise_analysis.together import Caller, Callers, agreed, is_test

DATA = Path(__file__).parents[1] / "data"

Key = tuple[str, int, str]  # file, line from 1, rule

FAULT = ("library.py", 15, "dropout-always-on")

LIBRARY = """\
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, fast, rate):
        super().__init__()
        self.fast = fast
        self.rate = rate

    def forward(self, q, k, v):
        if self.fast:
            return q @ k.transpose(-2, -1) @ v
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate)
"""
CALLER = """\
import torch
from library import Attention

net = Attention({fast}, {rate})
net.eval()
out = net(torch.randn(1, 2, 3), torch.randn(1, 2, 3), torch.randn(1, 2, 3))
out.sum().backward()
"""


def written(folder: Path, files: Mapping[str, str]) -> list[Path]:
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return [folder / name for name in files]


def document(path: Path) -> tuple[Engine, SourceFile]:
    settings = Settings()
    engine = Engine(settings, path.parent, open_project(str(path), settings))
    return engine, SourceFile(str(path), path.read_text("utf-8"), lower=engine.project.lowered)


def keys(findings: Iterable[Finding]) -> set[Key]:
    return {(Path(one.place.path).name, one.place.span.line + 1, one.rule) for one in findings}


def by_themselves(paths: Iterable[Path]) -> set[Key]:
    reports = [engine.check(file) for engine, file in map(document, paths)]
    return set[Key]().union(*(keys(report.findings) for report in reports))


def at_once(paths: Iterable[Path]) -> set[Key]:
    reports = check_together([document(path) for path in paths])
    return set[Key]().union(*(keys(report.findings) for report in reports))


def test_what_no_caller_reaches_stays(tmp_path: Path) -> None:
    paths = written(tmp_path, {"library.py": LIBRARY, "main.py": CALLER.format(fast=True, rate=0.1)})
    assert FAULT in by_themselves(paths[:1])
    assert FAULT in at_once(paths)
    assert at_once(paths) == at_once(paths[::-1]) == by_themselves(paths)


def test_what_a_caller_reaches_is_the_callers_to_judge(tmp_path: Path) -> None:
    paths = written(tmp_path, {"library.py": LIBRARY, "main.py": CALLER.format(fast=False, rate=0.0)})
    assert FAULT in by_themselves(paths[:1])
    assert FAULT not in at_once(paths)
    paths += written(tmp_path, {"other.py": CALLER.format(fast=False, rate=0.1)})
    assert FAULT in at_once(paths)


def test_a_test_is_no_caller(tmp_path: Path) -> None:
    paths = written(tmp_path, {"library.py": LIBRARY, "test_it.py": CALLER.format(fast=False, rate=0.0)})
    assert FAULT in at_once(paths)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("/a/tests/run.py", True),
        ("/a/test/run.py", True),
        ("/a/test_run.py", True),
        ("/a/run_test.py", True),
        ("C:\\a\\tests\\run.py", True),
        ("/a/conftest.py", True),
        ("/a/test.py", False),  # of a model
        ("/a/latest/run.py", False),
        ("/a/contest.py", False),
        ("/a/testbed.py", False),
    ],
)
def test_names_of_tests(path: str, is_one: bool) -> None:
    assert is_test(path) is is_one


# --------------------------------------------------------------------------- the rule, exactly


def found(path: str, line: int, rule: str = "retained-graph") -> Finding:
    place = Place(path, Span(line, 4, line, 9))
    return Finding("TW101", rule, Severity.WARNING, Confidence.LIKELY, "kept", place)


def callers(**passed: Mapping[str, int]) -> Callers:
    told = Callers()
    for path, lines in passed.items():
        told.add(Caller(path, [], lines))
    return told


def test_a_folder_around_all_files_makes_no_tests(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    paths = written(folder, {"library.py": LIBRARY, "main.py": CALLER.format(fast=False, rate=0.0)})
    assert FAULT not in at_once(paths)


def test_only_a_statement_that_another_file_executed_is_dropped() -> None:
    alone = [found("helper", 3), found("helper", 5), found("helper", 7)]
    told = callers(main={"helper": 1 << 3 | 1 << 4 | 1 << 6}, other={"other": 1 << 5})
    assert agreed("helper", alone, [], told) == (alone[1], alone[2])
    assert agreed("helper", alone, [alone[0]], told) == tuple(alone)


def test_a_file_does_not_speak_against_itself() -> None:
    in_third = [found("third", 3)]
    told = callers(helper={"third": 1 << 3})
    assert agreed("helper", in_third, [], told) == tuple(in_third)
    told.add(Caller("main", [], {"third": 1 << 3}))
    assert agreed("helper", in_third, [], told) == ()


def test_what_callers_prove_less_keeps_its_own_grade() -> None:
    alone = [found("helper", 3)]
    told = Callers()
    less = replace(alone[0], confidence=Confidence.POSSIBLE)
    told.add(Caller("main", [], {"helper": 1 << 3}, [less]))
    assert agreed("helper", alone, [], told) == tuple(alone)
    told.add(Caller("other", [], {"helper": 1 << 3}, alone))
    assert agreed("helper", alone, [], told) == ()  # it is told from there


def test_nothing_is_said_that_no_file_says_by_itself() -> None:
    assert agreed("helper", [], [found("helper", 1)], callers()) == ()


# --------------------------------------------------------------------------- many programs


def lines_passed(reports: Iterable[tuple[Path, CheckReport]]) -> dict[str, dict[str, int]]:
    return {str(path): dict(report.passed) for path, report in reports}


def test_programs_of_several_files(tmp_path: Path) -> None:
    """All examples in one folder, some of which call each other: what is dropped was executed elsewhere."""
    texts = {
        "library.py": LIBRARY,
        "main.py": CALLER.format(fast=False, rate=0.0),
        **{
            path.name: path.read_text("utf-8") for path in sorted((DATA.parents[1] / "examples").glob("*.py"))
        },
    }
    paths = written(tmp_path, texts)
    alone, together = by_themselves(paths), at_once(paths)
    assert together <= alone
    first = [(path, engine.check_quickly(file)) for path in paths for engine, file in [document(path)]]
    passed = lines_passed(first)
    for name, line, rule in alone - together:
        path = str(tmp_path / name)
        assert any(seen.get(path, 0) >> (line - 1) & 1 for one, seen in passed.items() if one != path), (
            name,
            line,
            rule,
        )
    assert alone - together


@pytest.mark.parametrize(("visits", "is_known"), [(4_000, True), (4, False)])
def test_a_call_that_was_cut_short_knows_no_better(tmp_path: Path, visits: int, is_known: bool) -> None:
    paths = written(tmp_path, {"library.py": LIBRARY, "main.py": CALLER.format(fast=False, rate=0.0)})
    engine, file = document(paths[1])
    trace = run(file.module, engine.project, Limits(forward_visits=visits))
    assert bool(trace.passed.get(str(paths[0]), 0) >> (FAULT[1] - 1) & 1) is is_known


CHOSEN = """\
import sys

import torch
from library import Attention

net = Attention(False, 0.0)
net.eval()


def run(q, k, v):
    return net(q, k, v)


def same(q, k, v):
    return v


step = {step}
out = step(torch.randn(1, 2, 3), torch.randn(1, 2, 3), torch.randn(1, 2, 3))
"""


@pytest.mark.parametrize(("step", "is_known"), [("run", True), ("run if len(sys.argv) > 2 else same", False)])
def test_a_call_of_one_of_several_functions_knows_no_better(
    tmp_path: Path, step: str, is_known: bool
) -> None:
    paths = written(tmp_path, {"library.py": LIBRARY, "main.py": CHOSEN.format(step=step)})
    engine, file = document(paths[1])
    trace = run(file.module, engine.project)
    assert bool(trace.passed.get(str(paths[0]), 0) >> (FAULT[1] - 1) & 1) is is_known
    assert (FAULT in at_once(paths)) is not is_known
