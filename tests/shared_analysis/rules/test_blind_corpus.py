"""Programs written by somebody who knew no rule: the faults are found, and the correct twins are quiet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from torchwise_analysis.engine import Engine, check_together, open_project
from torchwise_analysis.findings import Confidence, Finding, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings

CORPUS = Path(__file__).parents[2] / "data" / "rules" / "blind"
MARK = re.compile(r"\s*#([-+]?[!?]?)$")

# What no rule finds today. C50, F41 and J48 are found at the grade "possible": new releases of DeepSpeed take
# them over. C59 is a choice of method, D36 a question to the data, J29 a reference whose gradients are lost.
# G15 takes its column by an argument, J01 what a hook gets from another class, J55 weights by a list. J06 is
# an optimizer with steps of other names.
# Q04 optimises tensors without a module, Q16 counts in a lambda, Q24 mixes one-hot rows, Q42 picks its
# parameters by words in their names, and Q25, Q57, Q70 and Q81 ask for shapes that are not known.
# Q45 has another loss that does train, Q52 is recurrent, Q54 reads in a loop without a loader,
# and the order of Q79 was drawn once. V06 may be run as one process, V15 averages parameters and no results,
# V21 asks for the release of trl, and in V26 the numbers that the ranks part at are no ranks.
NOT_FOUND = frozenset(
    [
        *("C50", "C59", "D36", "F41", "G15", "J01", "J06", "J29", "J48", "J55"),
        *("Q04", "Q16", "Q24", "Q25", "Q42", "Q45", "Q52", "Q54", "Q57", "Q70", "Q79", "Q81"),
        *("V06", "V15", "V21", "V26"),
    ]
)


class Case(NamedTuple):
    """One fault and its twin. texts: by name of the file. places: file and line, from 1, that will do."""

    name: str
    rules: frozenset[str]
    faulty: dict[str, str]
    correct: dict[str, str]
    places: frozenset[tuple[str, int]]


def cases() -> list[Case]:
    """Every case of the corpus, in order."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(CORPUS.glob("*.txt")))
    blocks = (block for text in texts for block in re.split(r"^@@ ", text, flags=re.MULTILINE)[1:])
    return [_case(block) for block in blocks]


def _case(block: str) -> Case:
    header, _, body = block.partition("\n")
    name, rules, _, _ = (part.strip() for part in header.split("|"))
    faulty: dict[str, str] = {}
    correct: dict[str, str] = {}
    places: set[tuple[str, int]] = set()
    for file, part in _files(body):
        wrong: list[str] = []
        right: list[str] = []
        for line in part.splitlines():
            found = MARK.search(line)
            marks = found.group(1) if found else ""
            code = line[: found.start()] if found and marks else line
            if "+" not in marks:
                wrong.append(code)
                if marks[-1:] in ("!", "?"):
                    places.add((Path(file).name, len(wrong)))
            if "-" not in marks:
                right.append(code)
        faulty[file], correct[file] = "\n".join(wrong) + "\n", "\n".join(right) + "\n"
    return Case(name, frozenset(rules.split()), faulty, correct, frozenset(places))


def _files(body: str) -> list[tuple[str, str]]:
    first, *others = re.split(r"^@@file ", body, flags=re.MULTILINE)
    named = (part.partition("\n") for part in others)
    main = [("train.py", first)] if first.strip() else []
    return [*main, *((name, text) for name, _, text in named)]


CASES = cases()


def findings(folder: Path, texts: dict[str, str]) -> list[Finding]:
    """What is found in each file of a program, grades that are shown by default only."""
    written(folder, texts)
    return [finding for name, text in texts.items() for finding in findings_from(folder, name, text)]


def findings_from(folder: Path, name: str, text: str) -> list[Finding]:
    """What one file tells, also of others that it calls."""
    file = SourceFile(str(folder / name), text)
    trace = run(file.module, Project([str(folder)]))
    assert trace.silence.failed == ()
    found = judge(trace, file, Settings()).findings
    return [finding for finding in found if finding.confidence is not Confidence.POSSIBLE]


def is_found(case: Case, found: list[Finding]) -> bool:
    """Is a finding, or one that was folded into it, of a rule of the case and at one of its places?"""
    for finding in found:
        shown = (Path(finding.place.path).name, finding.place.span.line + 1)
        if finding.rule in case.rules and shown in case.places:
            return True
        for also in finding.also:
            at = (Path(also.place.path).name, also.place.span.line + 1)
            if also.rule in case.rules and (at in case.places or shown in case.places):
                return True
    return False


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_fault_is_found(case: Case, tmp_path: Path) -> None:
    assert is_found(case, findings(tmp_path, case.faulty)) is (case.name not in NOT_FOUND)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_file_that_tells_of_a_fault_is_never_silent(case: Case, tmp_path: Path) -> None:
    written(tmp_path, case.faulty)
    engine = Engine(Settings(), tmp_path, Project([str(tmp_path)]))
    for name, text in case.faulty.items():
        if findings_from(tmp_path, name, text):
            assert not engine.is_silent(SourceFile(str(tmp_path / name), text))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_twin_is_quiet(case: Case, tmp_path: Path) -> None:
    loud = [finding for finding in findings(tmp_path, case.correct) if finding.severity is not Severity.HINT]
    assert loud == []


def test_the_corpus_is_whole() -> None:
    assert len(CASES) == 466
    assert all(case.places and case.faulty != case.correct for case in CASES)
    assert {case.name for case in CASES} >= NOT_FOUND


# --------------------------------------------------------------------------- all files of a folder at once


def document(path: Path) -> tuple[Engine, SourceFile]:
    settings = Settings()
    engine = Engine(settings, path.parent, open_project(str(path), settings))
    return engine, SourceFile(str(path), path.read_text("utf-8"), lower=engine.project.lowered)


def key(finding: Finding) -> tuple[str, int, str]:
    return finding.place.path, finding.place.span.line + 1, finding.rule


def written(folder: Path, texts: dict[str, str]) -> list[Path]:
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n", encoding="utf-8")
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


SEVERAL = [case for case in CASES if len(case.faulty) > 1]


@pytest.mark.parametrize("case", SEVERAL, ids=[case.name for case in SEVERAL])
def test_a_fault_in_several_files_stands_in_a_check_of_all(case: Case, tmp_path: Path) -> None:
    paths = written(tmp_path, case.faulty)
    alone = [engine.check(file) for engine, file in map(document, paths)]
    together = check_together([document(path) for path in paths])
    told = [one for report in together for one in report.findings]
    said = {key(one) for report in alone for one in report.findings}
    assert {key(one) for one in told} <= said
    # what is no longer said is at a statement that a run from another file executed
    first = [(path, engine.check_quickly(file)) for path in paths for engine, file in [document(path)]]
    for path, line, rule in said - {key(one) for one in told}:
        passed = [dict(report.passed).get(path, 0) for one, report in first if str(one) != path]
        assert any(lines >> (line - 1) & 1 for lines in passed), (path, line, rule)
    shown = [one for one in told if one.confidence is not Confidence.POSSIBLE]
    assert is_found(case, shown) is (case.name not in NOT_FOUND)


def test_programs_of_one_file_say_the_same_beside_others(tmp_path: Path) -> None:
    single = [case for case in CASES if len(case.faulty) == 1][::4]
    paths = written(tmp_path, {f"{case.name}.py": text for case in single for text in case.faulty.values()})
    alone = [engine.check(file).findings for engine, file in map(document, paths)]
    together = [report.findings for report in check_together([document(path) for path in paths])]
    assert together == alone
