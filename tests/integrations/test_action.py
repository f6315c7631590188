"""`action.yml`, run as a runner would: its steps in order, in a checkout of a pull request."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
FAULTY = """\
import torch
from torch import nn

model = nn.Linear(12, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()


train([(torch.randn(8, 12), torch.zeros(8, dtype=torch.long)) for _ in range(4)])
"""
GH = """\
#!/usr/bin/env bash
printf '%s\\n' "$*" >> "$GH_LOG"
for word in "$@"; do case "$word" in body=@*) cat "${word#body=@}" > "$GH_LOG.body" ;; esac; done
case "$*" in *comments\\ --paginate*) [ -f "$GH_LOG.own" ] && cat "$GH_LOG.own" ;; esac
exit 0
"""


@dataclass(slots=True)
class Runner:
    """What a runner keeps between the steps of a composite action."""

    folder: Path
    temp: Path
    inputs: dict[str, str]
    event: dict[str, str] = field(default_factory=dict)
    steps: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""
    used: list[str] = field(default_factory=list)

    def value(self, expression: str) -> str:
        """A context's value; what is not there is empty, as on GitHub."""
        expression = expression.strip()
        if expression.startswith("inputs."):
            return self.inputs[expression.removeprefix("inputs.")]
        match = re.fullmatch(r"steps\.([\w-]+)\.outputs\.([\w-]+)", expression)
        if match:
            return self.steps.get(match[1], {}).get(match[2], "")
        return self.event.get(expression, "")

    def filled(self, text: str) -> str:
        return re.sub(r"\$\{\{(.*?)\}\}", lambda match: self.value(match[1]), text)

    def is_wanted(self, condition: str | None) -> bool:
        if condition is None:
            return True
        return all(self._holds(part) for part in condition.split(" && "))

    def _holds(self, part: str) -> bool:
        left, operator, right = part.partition(" != " if " != " in part else " == ")
        assert operator, part
        return (self.value(left) == right.strip("'")) == (operator.strip() == "==")

    def run(self, step: dict[str, Any]) -> int:
        output, summary, path = (self.temp / name for name in ("output", "summary", "path"))
        output.write_text("")
        bin_ = self.temp / "bin"
        environment = {
            **os.environ,
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_PATH": str(path),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GH_LOG": str(self.temp / "gh"),
            **{name: self.filled(str(value)) for name, value in step.get("env", {}).items()},
        }
        script = self.temp / "step.sh"
        script.write_text(self.filled(step["run"]))
        # as GitHub starts `shell: bash`
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        self.log += done.stdout + done.stderr
        pairs = (line.split("=", 1) for line in output.read_text().splitlines())
        self.steps[step.get("id", step["name"])] = dict(pairs)
        return done.returncode

    def play(self) -> int:
        """All steps but the installation; the exit status of the first that fails."""
        for step in ACTION["runs"]["steps"]:
            if not self.is_wanted(step.get("if")):
                continue
            if "uses" in step:
                self.used.append(step["uses"])
                continue
            if step["name"] == "Install":
                continue
            status = self.run(step)
            if status:
                return status
        return 0


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    folder, temp = tmp_path / "checkout", tmp_path / "temp"
    folder.mkdir()
    for name, text in {
        "torchwise": f'#!/bin/sh\nexec "{sys.executable}" -m torchwise_server "$@"\n',
        "gh": GH,
    }.items():
        command = temp / "bin" / name
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(text)
        command.chmod(0o755)
    git(folder, "init", "-q")
    (folder / "old.py").write_text(FAULTY)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "base")
    inputs = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
    return Runner(folder, temp, inputs)


def test_findings_fail_the_job_and_are_uploaded(runner: Runner) -> None:
    assert runner.play() == 1
    assert "::error file=old.py,line=10," in runner.log
    assert runner.used[-1].startswith("github/codeql-action/upload-sarif@")
    log = json.loads(Path(runner.steps["check"]["sarif-file"]).read_text())
    assert [each["ruleId"] for each in log["runs"][0]["results"]] == ["TW201"]
    assert "missing-zero-grad" in (runner.temp / "summary").read_text()
    assert runner.steps["check"]["status"] == "1"


def test_nothing_found_passes(runner: Runner) -> None:
    (runner.folder / "old.py").write_text(
        FAULTY.replace("optimizer.step()", "optimizer.step()\n        optimizer.zero_grad()")
    )
    assert runner.play() == 0, runner.log
    assert "No findings in 1 file" in (runner.temp / "summary").read_text()


def test_only_what_a_pull_request_changes(runner: Runner) -> None:
    runner.event["github.event.pull_request.base.sha"] = git(runner.folder, "rev-parse", "HEAD")
    runner.inputs["only-changes"] = "true"
    assert runner.play() == 0, runner.log
    (runner.folder / "new.py").write_text(FAULTY)
    assert runner.play() == 1
    assert "file=new.py" in runner.log


def test_a_comment_is_written_once_and_then_kept(runner: Runner) -> None:
    runner.event |= {"github.event.pull_request.number": "7", "github.repository": "o/r"}
    runner.inputs |= {
        "comment": "true",
        "estimate": "old.py",
        "gpus": "t4 a100-80gb",
        "arguments": "--ignore TW2",
    }
    assert runner.play() == 0, runner.log
    calls = (runner.temp / "gh").read_text().splitlines()
    assert calls[-1].startswith("api repos/o/r/issues/7/comments --method POST")
    body = (runner.temp / "gh.body").read_text()
    assert body.startswith("<!-- torchwise -->\n### torchwise\n")
    assert "### torchwise: memory of a step" in body
    assert "Tesla T4" in body
    (runner.temp / "gh.own").write_text("4711\n")
    assert runner.play() == 0
    assert (
        (runner.temp / "gh")
        .read_text()
        .splitlines()[-1]
        .startswith("api repos/o/r/issues/comments/4711 --method PATCH")
    )


def test_memory_can_fail_the_job(runner: Runner) -> None:
    (runner.folder / "big.py").write_text(
        FAULTY.replace("12, 4)", "120000, 40000)").replace("8, 12)", "8, 120000)")
    )
    runner.inputs |= {"estimate": "big.py", "gpus": "t4", "arguments": "--ignore TW2"}
    assert runner.play() == 0
    runner.inputs["fail-on-memory"] = "probably-oom"
    assert runner.play() == 1, runner.log


def test_inputs_are_data(runner: Runner) -> None:
    """No input reaches a script as text of the script."""
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), step["name"]
    runner.inputs |= {"paths": "$(touch ran) `touch ran` ; touch ran", "arguments": "; touch ran"}
    runner.play()
    assert not (runner.folder / "ran").exists()


def test_bad_usage_fails_the_job(runner: Runner) -> None:
    runner.inputs["arguments"] = "--select no-such-rule"
    assert runner.play() == 2


def test_the_action_is_whole() -> None:
    names = set(ACTION["inputs"])
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert used == names
    for step in ACTION["runs"]["steps"]:
        assert "uses" in step or (step["shell"] == "bash" and step["name"])
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step["uses"])
