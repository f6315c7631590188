"""However a check is carried out, it says the same."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchwise_analysis.cache_folder import default_folder
from torchwise_analysis.engine import CheckStatistics, Problem, ProblemKind
from torchwise_analysis.findings import Confidence, Evidence, Finding, Place, Severity
from torchwise_analysis.settings import Settings
from torchwise_analysis.source.nodes import Span
from torchwise_server.batch import codec, executors, run
from torchwise_server.batch.processes import Here, Processes, Task
from torchwise_server.batch.store import MOST_BYTES, Store, digest
from torchwise_server.batch.work import Analyst, Answer, Basis, Entry, Job, Plan
from torchwise_server.cli import main

FORKS = sys.platform == "linux"

HELPER = """\
import torch

def fit(model, loader, optimizer, criterion):
    history = []
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            history.append(loss)
    return history
"""
MAIN = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from helper import fit

model = nn.Linear(4, 2)
loader = DataLoader(data, batch_size=4, shuffle=True)
fit(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
"""
FAULTS = """\
import torch
from torch import nn

def step(model, x, y, optimizer):
    probabilities = torch.softmax(model(x), dim=-1)
    loss = nn.functional.cross_entropy(probabilities, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (folder / "helper.py").write_text(HELPER)
    (folder / "main.py").write_text(MAIN)
    (folder / "plain.py").write_text("answer = 42\n")
    (folder / "broken.py").write_text("import torch\ndef f(:\n")
    for number in range(4):
        (folder / f"faults{number}.py").write_text(FAULTS)
    return folder


def jobs_of(folder: Path) -> list[Job]:
    return [Job(str(path), explicit=False) for path in sorted(folder.glob("*.py"))]


def plan_of(folder: Path, cache: Path | None = None, settings: Settings | None = None) -> Plan:
    return Plan(((settings or Settings(), str(folder)),), str(cache) if cache else None, tool="test")


def fresh(folder: Path) -> list[Answer]:
    return run.check_files(jobs_of(folder), plan_of(folder))


def rules_of(answers: list[Answer]) -> list[str]:
    return sorted({finding.rule for answer in answers for finding in answer.findings})


# --------------------------------------------------------------------------- the store


def test_the_project_has_something_to_say(project: Path) -> None:
    answers = fresh(project)
    assert rules_of(answers) == ["double-softmax", "retained-graph"]
    assert [answer.is_skipped for answer in answers].count(True) == 1
    assert any(answer.calls for answer in answers)
    assert any(problem.kind is ProblemKind.SYNTAX for answer in answers for problem in answer.problems)


def test_what_is_remembered_equals_what_is_fresh(project: Path, tmp_path: Path) -> None:
    plan = plan_of(project, tmp_path / "cache")
    assert run.check_files(jobs_of(project), plan) == fresh(project)
    assert run.check_files(jobs_of(project), plan) == fresh(project)


def test_nothing_is_analysed_twice(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(project, tmp_path / "cache")
    before = run.check_files(jobs_of(project), plan)
    asked: list[str] = []
    first = Analyst.first

    def noted(self: Analyst, job: Job) -> Answer:
        asked.append(Path(job.path).name)
        return first(self, job)

    monkeypatch.setattr(Analyst, "first", noted)
    monkeypatch.setattr(Analyst, "again", noted)
    assert run.check_files(jobs_of(project), plan) == before
    assert asked == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("helper.py", HELPER.replace("append(loss)", "append(loss.item())"), ["double-softmax"]),
        ("helper.py", HELPER.replace("optimizer.zero_grad()", "pass"), None),
        ("helper.py", None, ["double-softmax"]),
        ("plain.py", FAULTS.replace("torch.softmax(model(x), dim=-1)", "model(x)"), None),
        ("torch.py", "nothing = 1\n", None),  # hides what was a library
    ],
)
def test_a_change_is_noticed(
    project: Path, tmp_path: Path, name: str, text: str | None, expected: list[str] | None
) -> None:
    plan = plan_of(project, tmp_path / "cache")
    run.check_files(jobs_of(project), plan)
    if text is None:
        (project / name).unlink()
    else:
        (project / name).write_text(text)
    again = run.check_files(jobs_of(project), plan)
    assert again == fresh(project)
    assert expected is None or rules_of(again) == expected


def test_a_module_that_appears_is_found(project: Path, tmp_path: Path) -> None:
    (project / "main.py").write_text(MAIN.replace("from helper", "from better"))
    plan = plan_of(project, tmp_path / "cache")
    run.check_files(jobs_of(project), plan)
    (project / "better.py").write_text(HELPER)
    assert run.check_files(jobs_of(project), plan) == fresh(project)


def test_other_settings_have_other_results(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run.check_files(jobs_of(project), plan_of(project, cache))
    quiet = plan_of(project, cache, Settings(ignore=("double-softmax",)))
    assert rules_of(run.check_files(jobs_of(project), quiet)) == ["retained-graph"]
    other_tool = replace(plan_of(project, cache), tool="another")
    assert run.check_files(jobs_of(project), other_tool) == fresh(project)


def test_fixes_in_a_called_file_are_tried_from_the_file_that_tells_of_them(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "another.py").write_text(MAIN)
    asked: list[str] = []
    tried = Analyst.tried

    def noted(self: Analyst, job: Job, *rest: Any) -> Answer:
        asked.append(Path(job.path).name)
        return tried(self, job, *rest)

    monkeypatch.setattr(Analyst, "tried", noted)
    plan = plan_of(project, tmp_path / "cache")
    answers = run.check_files(jobs_of(project), plan)
    assert asked == ["another.py"]
    told = [
        (Path(job.path).name, finding.has_edits)
        for job, answer in zip(jobs_of(project), answers, strict=True)
        for finding in answer.findings
        if Path(finding.place.path).name == "helper.py"
    ]
    assert told == [("another.py", True), ("main.py", False)]
    assert run.check_files(jobs_of(project), plan) == answers
    assert asked == ["another.py"]


def test_what_is_told_of_a_called_file_has_no_edits_that_do_harm(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchwise_analysis.rules.is_offerable", lambda *_: False)
    findings = [finding for answer in fresh(project) for finding in answer.findings]
    assert any(Path(finding.place.path).name == "helper.py" for finding in findings)
    assert not any(finding.has_edits for finding in findings)


@pytest.mark.parametrize("damage", ["empty", "cut", "turned", "text"])
def test_damaged_entries_are_made_again(project: Path, tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "cache"
    plan = plan_of(project, cache)
    run.check_files(jobs_of(project), plan)
    entries = [path for path in cache.glob("??/*") if path.is_file()]
    assert entries
    for entry in entries:
        data = entry.read_bytes()
        middle = len(data) // 2
        entry.write_bytes(
            {
                "empty": b"",
                "cut": data[:middle],
                "turned": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "text": b"{}",
            }[damage]
        )
    assert run.check_files(jobs_of(project), plan) == fresh(project)
    assert run.check_files(jobs_of(project), plan) == fresh(project)


def test_a_sound_entry_of_another_shape_is_none(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    plan = plan_of(project, cache)
    run.check_files(jobs_of(project), plan)
    store = Store(cache)
    for entry in cache.glob("??/*"):
        store.put(entry.parent.name + entry.name, [1, {"a": None}])
    assert run.check_files(jobs_of(project), plan) == fresh(project)


def test_a_cache_that_cannot_be_written_is_none(project: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert run.check_files(jobs_of(project), plan_of(project, tmp_path / "file" / "cache")) == fresh(project)


@pytest.mark.skipif(not FORKS or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_is_read(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run.check_files(jobs_of(project), plan_of(project, cache))
    for folder in (*cache.glob("??"), cache):
        folder.chmod(0o500)
    (project / "main.py").write_text(MAIN + "\n")
    assert run.check_files(jobs_of(project), plan_of(project, cache)) == fresh(project)


def test_runs_at_the_same_time_do_not_disturb_each_other(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    plan = plan_of(project, cache)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: run.check_files(jobs_of(project), plan), range(4)))
    assert all(answers == fresh(project) for answers in found)
    assert not list(cache.glob("??/.new-*"))
    assert run.check_files(jobs_of(project), plan) == fresh(project)


def test_the_oldest_entries_go_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", most_bytes=3000)
    names = [digest(str(number)) for number in range(10)]
    for age, name in enumerate(names):
        store.put(name, "x" * 900)
        used = 1_600_000_000 - age
        os.utime(tmp_path / "cache" / name[:2] / name[2:], (used, used))
    store.prune()
    left = [name for name in names if (tmp_path / "cache" / name[:2] / name[2:]).exists()]
    assert left == names[:3]
    store.put(digest("new"), "x" * 9000)
    store.prune()  # once a day is enough
    assert store.get(digest("new")) is not None
    assert MOST_BYTES > 3000


def test_only_a_cache_is_cleaned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = tmp_path / "ab"
    foreign.mkdir()
    (foreign / "mine").write_text("keep")
    assert main(["clean", "--cache-dir", str(tmp_path)]) == 0
    assert (foreign / "mine").read_text() == "keep"
    cache = tmp_path / "cache"
    Store(cache).put(digest("a"), 1)
    assert main(["clean", "--cache-dir", str(cache)]) == 0
    assert "removed 1 results" in capsys.readouterr().out
    assert Store(cache).get(digest("a")) is None


def test_the_cache_is_never_in_the_workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHWISE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path.parent / "home"))
    assert default_folder().is_absolute()
    assert tmp_path not in default_folder().parents
    monkeypatch.setenv("TORCHWISE_CACHE_DIR", str(tmp_path / "asked"))
    assert default_folder() == tmp_path / "asked"


# --------------------------------------------------------------------------- processes


def test_parallel_equals_serial(project: Path, tmp_path: Path) -> None:
    assert run.check_files(jobs_of(project), plan_of(project), processes=2) == fresh(project)
    plan = plan_of(project, tmp_path / "cache")
    assert run.check_files(jobs_of(project), plan, processes=2) == fresh(project)
    assert run.check_files(jobs_of(project), plan) == fresh(project)


def test_the_order_of_files_does_not_matter(project: Path) -> None:
    jobs = jobs_of(project)
    backwards = run.check_files(jobs[::-1], plan_of(project))
    assert backwards[::-1] == fresh(project)


@pytest.mark.skipif(not FORKS, reason="the patch reaches forked processes only")
def test_a_process_that_dies_takes_one_file_along(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Analyst.first

    def deadly(self: Analyst, job: Job) -> Answer:
        if job.path.endswith("faults1.py"):
            os.kill(os.getpid(), signal.SIGKILL)
        return first(self, job)

    expected = fresh(project)
    monkeypatch.setattr(Analyst, "first", deadly)
    answers = run.check_files(jobs_of(project), plan_of(project), processes=2)
    names = [Path(job.path).name for job in jobs_of(project)]
    lost = names.index("faults1.py")
    assert answers[:lost] + answers[lost + 1 :] == expected[:lost] + expected[lost + 1 :]
    (problem,) = answers[lost].problems
    assert problem.kind is ProblemKind.FAILURE
    assert "SIGKILL" in problem.message


@pytest.mark.skipif(not FORKS, reason="the patch reaches forked processes only")
def test_processes_that_keep_dying_are_given_up(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def deadly(*_: object) -> Answer:
        os._exit(7)

    monkeypatch.setattr(Analyst, "first", deadly)
    for number in range(8):
        (project / f"more{number}.py").write_text(FAULTS)
    assert main(["check", str(project), "--no-cache", "--jobs", "2"]) == 2
    assert "ended with status 7" in capsys.readouterr().err


def test_an_interruption_ends_the_processes_at_once(project: Path) -> None:
    tasks = [Task(number, job) for number, job in enumerate(jobs_of(project))]

    def interrupt(number: int, answer: Answer) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Processes(plan_of(project), 2) as workers:
        workers.run(tasks, interrupt)
    assert not multiprocessing.active_children()


def test_a_failure_outside_the_engine_is_an_answer(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Answer:
        raise RuntimeError("no luck")

    monkeypatch.setattr(Analyst, "first", fail)
    answers = run.check_files(jobs_of(project), plan_of(project))
    assert all("no luck" in answer.problems[0].message for answer in answers)


def test_memory_is_bounded_and_forgetting_changes_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fresh(project)
    monkeypatch.setattr("torchwise_server.batch.work._REMEMBERED", 1)
    monkeypatch.setattr("torchwise_server.batch.work._LOWERED_LINES", 1)
    assert fresh(project) == expected


# --------------------------------------------------------------------------- files that call each other

LIBRARY = """\
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self, fast, rate):
        super().__init__()
        self.fast = fast
        self.rate = rate

    def forward(self, q):
        if self.fast:
            return F.scaled_dot_product_attention(q, q, q, dropout_p=self.rate)
        return F.scaled_dot_product_attention(q, q, q, None, self.rate)
"""
CALLER = """\
import torch
from library import Attention

net = Attention({fast}, 0.0)
net.eval()
net(torch.randn(1, 2, 3))
"""


@pytest.fixture
def calling(tmp_path: Path) -> Path:
    """Two statements of the library are faults by themselves; each caller executes one of them, rightly."""
    folder = tmp_path / "calling"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (folder / "a_fast.py").write_text(CALLER.format(fast=True))
    (folder / "library.py").write_text(LIBRARY)
    (folder / "z_slow.py").write_text(CALLER.format(fast=False))
    return folder


def lines_of(answers: list[Answer]) -> list[int]:
    return sorted(finding.place.span.line for answer in answers for finding in answer.findings)


@pytest.mark.parametrize(
    ("left_out", "lines"), [("z_slow.py", [13]), ("a_fast.py", [12]), (None, []), ("both", [12, 13])]
)
def test_what_callers_come_by_is_theirs_to_judge(
    calling: Path, tmp_path: Path, left_out: str | None, lines: list[int]
) -> None:
    for name in ("a_fast.py", "z_slow.py") if left_out == "both" else (left_out,):
        if name is not None:
            (calling / name).unlink()
    assert lines_of(fresh(calling)) == lines
    plan = plan_of(calling, tmp_path / "cache")
    assert lines_of(run.check_files(jobs_of(calling), plan)) == lines
    assert run.check_files(jobs_of(calling), plan) == fresh(calling)
    assert lines_of(run.check_files(jobs_of(calling)[::-1], plan_of(calling))) == lines


def test_a_caller_that_changes_changes_what_stands(calling: Path, tmp_path: Path) -> None:
    plan = plan_of(calling, tmp_path / "cache")
    assert lines_of(run.check_files(jobs_of(calling), plan)) == []
    (calling / "z_slow.py").write_text(CALLER.format(fast=True))
    assert lines_of(run.check_files(jobs_of(calling), plan)) == [13]


@pytest.mark.parametrize("of", [1, 2, 3])
def test_shards_do_not_know_all_callers(
    calling: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    of: int,
) -> None:
    monkeypatch.chdir(calling)
    files = [str(tmp_path / f"shard-{number}.json") for number in range(1, of + 1)]
    for number, file in enumerate(files, start=1):
        assert main(["check", "--no-cache", "--shard", f"{number}/{of}", "--output-file", file]) == 0
    capsys.readouterr()
    assert main(["merge", *files, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


# --------------------------------------------------------------------------- executors, shards


@pytest.fixture(params=["threads", "dask"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
        return
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        yield executors.dask_executor(cluster.scheduler_address)


def test_any_executor_gives_the_same(project: Path, executor: Executor) -> None:
    assert run.check_files(jobs_of(project), plan_of(project), executor=executor) == fresh(project)


def test_a_worker_that_fails_is_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[Answer]:
        raise MemoryError("full")

    monkeypatch.setattr(executors, "answers", fail)
    with ThreadPoolExecutor(1) as pool:
        answers = run.check_files(jobs_of(project), plan_of(project), executor=pool)
    assert all("MemoryError: full" in answer.problems[0].message for answer in answers)


def test_nobody_at_the_address_is_said(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    assert main(["check", str(project), "--no-cache", "--scheduler", "nowhere"]) == 2
    assert "Dask" in capsys.readouterr().err


@pytest.mark.parametrize("of", [1, 2, 5])
def test_shards_put_together_equal_one_run(
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    of: int,
) -> None:
    monkeypatch.chdir(project)
    whole = main(["check", "--no-cache", "--format", "json"])
    expected = json.loads(capsys.readouterr().out)
    files = [str(tmp_path / f"shard-{number}.json") for number in range(1, of + 1)]
    for number, file in enumerate(files, 1):
        assert main(["check", "--no-cache", "--shard", f"{number}/{of}", "--output-file", file]) == 0
    capsys.readouterr()
    assert main(["merge", "--no-cache", "--format", "json", *reversed(files)]) == whole
    assert json.loads(capsys.readouterr().out) == expected


def test_shards_that_do_not_fit_are_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    one, two = str(tmp_path / "1.json"), str(tmp_path / "2.json")
    main(["check", "--no-cache", "--shard", "1/2", "--output-file", one])
    main(["check", "--no-cache", "--shard", "2/2", "--output-file", two])
    main(["check", "--no-cache", "--shard", "1/3", "--output-file", str(tmp_path / "3.json")])
    for files, words in (
        ([one], "2/2 is missing"),
        ([one, one], "2/2 is missing"),
        ([one, two, two], "1/2, 2/2, 2/2"),
        ([str(tmp_path / "3.json")], "2/3, 3/3 are missing"),
        ([str(tmp_path / "3.json"), two], "1/3, 2/2"),
    ):
        assert main(["merge", "--no-cache", *files]) == 2
        assert f"not those of one run: {words}\n" in capsys.readouterr().err
    for word in ("3/2", "0/2", "a", "1", "1/2/3", "-1/2"):
        assert main(["check", f"--shard={word}"]) == 2
        assert f"--shard: {word!r} is no part; of four, they are 1/4," in capsys.readouterr().err
    assert main(["merge", "--no-cache", "--ignore", "double-softmax", one, two]) == 2
    assert "other settings" in capsys.readouterr().err
    (tmp_path / "none.json").write_text('["pickle"]')
    assert main(["merge", "--no-cache", str(tmp_path / "none.json"), two]) == 2
    assert "not the result of" in capsys.readouterr().err
    (project / "main.py").write_text("import torch\n")
    assert main(["merge", "--no-cache", one, two]) == 2
    assert "not as the shard saw it" in capsys.readouterr().err


# --------------------------------------------------------------------------- codes


def test_types_survive_json() -> None:
    place = Place("a.py", Span(1, 2, 3, 4))
    finding = Finding(
        "TW101", "r", Severity.ERROR, Confidence.LIKELY, "m", place, (Evidence(place, "because"),)
    )
    problem = Problem("b.py", None, "p", ProblemKind.FAILURE)
    statistics = CheckStatistics(1, 2, ((place, "deep"),), (("dead", 3),))
    answer = Answer(True, False, (finding,), (problem,), statistics, (("c.py", 1, 2, "f"),))
    entry = Entry(Basis(("x",), "1", ("y",), "2", (("torch", "None"),), ()), answer)
    assert codec.decoded(Entry, json.loads(json.dumps(codec.encoded(entry)))) == entry


@pytest.mark.parametrize("data", [None, [], {}, 1, [[1, 2], 3], [["x"], "1", ["y"], "2", [["a"]]]])
def test_other_json_is_refused(data: object) -> None:
    with pytest.raises(codec.NotOfThisKindError):
        codec.decoded(Entry, data)


def test_here_answers_like_the_rest(project: Path) -> None:
    found: dict[int, Answer] = {}
    with Here(plan_of(project)) as here:
        here.run([Task(number, job) for number, job in enumerate(jobs_of(project))], found.__setitem__)
    assert len(found) == len(jobs_of(project))


def test_ctrl_c_leaves_no_process_behind(project: Path, tmp_path: Path) -> None:
    if not FORKS:
        pytest.skip("signals of a terminal")
    for number in range(60):
        (project / f"more{number}.py").write_text(FAULTS.replace("step", f"step{number}"))
    process = subprocess.Popen(
        [sys.executable, "-m", "torchwise_server", "check", str(project), "--no-cache", "--jobs", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd=tmp_path,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and len(children.read_text().split()) < 2:
        pass
    workers = [int(word) for word in children.read_text().split()] if process.poll() is None else []
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert b"Traceback" not in errors
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_passing_over_files_loses_nothing(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    skipping = run.check_files(jobs_of(project), plan_of(project, cache))
    full = run.check_files(jobs_of(project), replace(plan_of(project, cache), is_complete=True))
    assert not any(answer.is_skipped for answer in full)
    assert [answer.findings for answer in full] == [answer.findings for answer in skipping]
    assert run.check_files(jobs_of(project), plan_of(project, cache)) == skipping
