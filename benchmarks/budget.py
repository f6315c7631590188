"""What files made to exhaust their reader cost.

    python benchmarks/budget.py [--bytes N] [--tool NAME=PATH] [WORD ...]

Each input of tests/robustness/pathological.py is checked, estimated, and opened in a language server that is
asked for its diagnostics, each by a process of its own; seconds of CPU and the largest resident memory are
printed, and what was said. The aim for a megabyte: 5 s and 400 MB.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple, cast

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.robustness.pathological import INPUTS
from tests.robustness.wire import Wire

_MOST_SECONDS, _MOST_BYTES = 60, 8 << 30
_AIM_SECONDS, _AIM_MB = 5.0, 400.0


class Cost(NamedTuple):
    """Of one run; status: negative where a signal ended it."""

    status: int
    seconds: float
    megabytes: float
    said: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only inputs whose name holds one of these")
    parser.add_argument("--bytes", type=int, default=1_000_000)
    parser.add_argument("--tool", help="NAME=PATH of another checker, called as PATH check FILE")
    options = parser.parse_args()
    ours = [sys.executable, "-I", "-m", "torchwise_server"]
    commands = {
        "check": [*ours, "check", "--no-cache", "-j", "1"],
        "estimate": [*ours, "estimate", "--gpu", "t4"],
    }
    if options.tool:
        name, _, path = options.tool.partition("=")
        commands = {name: [path, "check"]}
    for name, make in INPUTS.items():
        if options.words and not any(word in name for word in options.words):
            continue
        files = make(options.bytes)
        for what, command in commands.items():
            _show(name, what, _cost(command, files))
        if not options.tool and next(iter(files)).endswith(".py"):
            _show(name, "server", _cost_of_server(files))


def _show(name: str, what: str, cost: Cost) -> None:
    mark = " !" if cost.seconds > _AIM_SECONDS or cost.megabytes > _AIM_MB else ""
    figures = f"{cost.status:>4} {cost.seconds:6.1f} s {cost.megabytes:6.0f} MB{mark:2}"
    print(f"{name:<36} {what:<9} {figures} {cost.said}", flush=True)


def _cost_of_server(files: dict[str, str]) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8", newline="")
        name, text = next(iter(files.items()))
        wire = Wire(Path(folder))
        document = {"uri": (Path(folder) / name).as_uri(), "languageId": "python", "version": 1, "text": text}
        wire.tell("textDocument/didOpen", {"textDocument": document})
        answer = wire.ask("textDocument/diagnostic", {"textDocument": {"uri": document["uri"]}})
        found = cast("dict[str, list[object]]", answer.get("result") or {}).get("items", [])
        spent = Path(f"/proc/{wire.pid}/stat").read_text().rsplit(")", 1)[1].split()
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{wire.pid}/status").read_text())
        status = wire.close()
    seconds = (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")
    return Cost(status, seconds, int(peak[1]) / 1024 if peak else 0.0, f"{len(found)} diagnostics")


def _cost(command: list[str], files: dict[str, str]) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8", newline="")
        output = Path(folder) / "said"
        with output.open("wb") as out:
            process = subprocess.Popen(
                [*command, next(iter(files))],
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=_limited,
            )
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        lines = [line for line in output.read_text("utf-8", "replace").splitlines() if line.strip()]
    spent = usage.ru_utime + usage.ru_stime
    return Cost(process.returncode, spent, usage.ru_maxrss / 1024, lines[-1][:60] if lines else "")


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))


if __name__ == "__main__":
    main()
