"""`action.yml`, run as a runner would: its steps in order, in a checkout of a pull request."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from torchwise_server.cli import init

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
    installs: Path | None = None
    python: Path = Path(sys.executable)
    uploaded: dict[str, Any] | None = None
    event: dict[str, str] = field(default_factory=dict)
    steps: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""
    said: dict[str, str] = field(default_factory=dict)
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
        folders = [str(self.temp / "bin")]
        if path.exists():  # what steps add for the steps behind them
            folders = [*path.read_text().split(), *folders]
        environment = {
            **os.environ,
            "PATH": ":".join((*folders, os.environ["PATH"])),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_PATH": str(path),
            "GITHUB_ACTION_PATH": str(self.installs or ROOT),
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
        self.said[step["name"]] = done.stdout + done.stderr
        pairs = (line.split("=", 1) for line in output.read_text().splitlines())
        self.steps[step.get("id", step["name"])] = dict(pairs)
        return done.returncode

    def play(self) -> int:
        """All steps, the installation only if there is something to install; the status of the first that
        fails."""
        for step in ACTION["runs"]["steps"]:
            if not self.is_wanted(step.get("if")):
                continue
            if "uses" in step:
                self.used.append(step["uses"])
                if "setup-python" in step["uses"]:
                    self.steps[step["id"]] = {"python-path": str(self.python)}
                if "upload-sarif" in step["uses"]:
                    self.uploaded = upload(Path(self.filled(step["with"]["sarif_file"])), self.folder)
                continue
            if step["name"] == "Install" and self.installs is None:
                continue
            status = self.run(step)
            if status:
                return status
        return 0


def upload(file: Path, checkout: Path) -> dict[str, Any]:
    """What code scanning takes in, refused as it refuses.

    The limits are those of "SARIF support for code scanning" in GitHub's documentation.
    """
    packed = base64.b64encode(gzip.compress(file.read_bytes()))
    assert len(packed) <= 10 << 20
    log: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    schema = json.loads((ROOT / "tests/data/sarif/sarif-2.1.0-rtm.4.json").read_text(encoding="utf-8"))
    jsonschema.validate(log, schema, cls=jsonschema.Draft4Validator)
    assert log["version"] == "2.1.0"
    assert 1 <= len(log["runs"]) <= 20
    for run in log["runs"]:
        assert len(run["results"]) <= 25_000
        assert len(run["tool"]["driver"]["rules"]) <= 25_000
        for result in run["results"]:
            assert result["partialFingerprints"]
            assert len(result["locations"]) <= 1000
            assert (
                sum(
                    len(one["locations"])
                    for flow in result.get("codeFlows", ())
                    for one in flow["threadFlows"]
                )
                <= 10_000
            )
            for location in result["locations"]:
                place = location["physicalLocation"]
                uri = place["artifactLocation"]["uri"]
                lines = (checkout / uri).read_text().split("\n")
                assert 1 <= place["region"]["startLine"] <= len(lines)
    return log


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
    log = runner.uploaded
    assert log is not None
    assert [each["ruleId"] for each in log["runs"][0]["results"]] == ["TW201"]
    assert "missing-zero-grad" in (runner.temp / "summary").read_text()
    assert runner.steps["check"]["status"] == "1"


def python_without_an_index(folder: Path) -> Path:
    """An interpreter whose environments have the libraries that torchwise needs, and no torchwise."""
    python = folder / "python"
    libraries = sysconfig.get_paths()["purelib"]
    python.write_text(
        f"""#!/bin/sh
"{sys.executable}" "$@" || exit
[ "$1 $2" = "-m venv" ] || exit 0
"$3/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' > "$3/where"
echo '{libraries}' > "$(cat "$3/where")/libraries.pth"
"""
    )
    python.chmod(0o755)
    return python


def test_the_first_step_installs_what_the_others_run(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps as they stand: a wheel in an environment of its own, then found on PATH."""
    wheel_builder = pytest.importorskip("hatchling.builders.wheel")
    (wheel,) = wheel_builder.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_DEPS", "1")
    (runner.temp / "bin/torchwise").unlink()
    runner.installs = Path(wheel)
    runner.python = python_without_an_index(tmp_path)
    runner.inputs |= {"estimate": "old.py", "gpus": "t4"}
    assert runner.play() == 1, runner.log
    assert runner.said["Install"] == ""
    added = Path((runner.temp / "path").read_text().strip())
    assert added.parent == runner.temp / "torchwise"
    shown = subprocess.run(
        [added / "python", "-c", "import torchwise_server; print(torchwise_server.__file__)"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert shown.stdout.startswith(str(runner.temp / "torchwise"))
    assert "::error file=old.py,line=10," in runner.said["Check"]
    assert "Tesla T4" in Path(runner.steps["estimate"]["summary-file"]).read_text()


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
            assert re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}", step["uses"])


def test_foreign_actions_are_pinned_and_say_their_version() -> None:
    """A tag can be moved to other code; a commit cannot. Everything that we hand out names the same ones."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("action.yml", "docs/ci.md")]
    texts.append(init._GITHUB)
    used = [line for text in texts for line in re.findall(r"uses: (\S+@.*)", text)]
    foreign = [line for line in used if not line.startswith("torchwise/")]
    assert len(foreign) >= 6
    for line in foreign:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line), line
    by_name = {line.partition("@")[0]: line for line in foreign}
    assert set(by_name.values()) == set(foreign)
