"""What torchwise and its neighbours find on labelled files, and what they cost, in one run.

    python benchmarks/comparison.py --torch-preflight BIN --torchfix BIN \\
        --cases CASES.jsonl FOLDER --probes FOLDER --cost FOLDER... [--tree FOLDER] [--limit 420]

Prints the tables of docs/comparison.md in Markdown. Findings: a tool *speaks at* a labelled fault when it
reports anything, under any of its rules, within three lines of a labelled one; it is *loud* on a correct file
when it reports anything there. Of tools that have levels, errors and warnings count, notes and hints do not.
Nobody is asked whether the message names the fault, which favours whoever reports much.

`--cases` takes JSON lines (`label`, `files`, `fixed_files`, `locations`, `alternatives`) and the folder of
the files; `--probes` a folder of scripts that begin with `# expect: RULE @ line N` or `# expect: none`.

Costs: CPU seconds (user and system), ratios to torchwise in the same run. Every tool runs in one process and
is stopped after `--limit` seconds of CPU. `--tree` measures an installed package: torchwise where it lies,
with two processes, cold and warm, and with one; the others on a copy of its Python files, as most pass over
`site-packages`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SLACK_LINES = 3
_EXPECTED = re.compile(r"@\s*line\s*(\d+)")

Reports = dict[str, list[int]]  # name of a file -> lines (from 1) that something is said about


@dataclass(frozen=True, slots=True)
class Tool:
    """check: the command of a report that `read` understands; cost: the same for nothing but its cost."""

    name: str
    check: tuple[str, ...]
    read: Callable[[str], Reports]
    cost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Labels:
    """faults: for each, the places at any of which it may be reported. quiet: names of correct files."""

    title: str
    folder: Path
    faults: tuple[tuple[tuple[str, int], ...], ...]
    quiet: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one command; is_done: it ended by itself."""

    wall_seconds: float
    cpu_seconds: float
    is_done: bool


# --------------------------------------------------------------------------- the tools


def tools(preflight: str | None, torchfix: str | None, ruff: str) -> list[Tool]:
    """torchwise, and those of the others that are there."""
    own = (sys.executable, "-m", "torchwise_server", "check", "--no-cache", "--format", "json", "--jobs", "1")
    found = [Tool("torchwise", own, _torchwise, own)]
    if preflight:
        base = (preflight, "check", "--format", "json", "--jobs", "1")
        found.append(Tool("torch-preflight", base, _preflight, base))
    if torchfix:
        found.append(Tool("TorchFix", (torchfix, "--jobs", "1"), _lines, (torchfix, "--jobs", "1")))
    base = (ruff, "check", "--isolated", "--no-cache", "--output-format", "concise")
    found.append(Tool("ruff", base, _lines, base))
    found.append(
        Tool("ruff, all rules", (*base, "--select", "ALL"), _lines, (*base, "--select", "ALL", "--quiet"))
    )
    return found


def _torchwise(text: str) -> Reports:
    return _named(
        (each["path"], each["line"]) for each in json.loads(text)["findings"] if each["severity"] != "hint"
    )


def _preflight(text: str) -> Reports:
    return _named(
        (each["path"], each["line"])
        for each in json.loads(text)["diagnostics"]
        if each["severity"] in ("error", "warning")
    )


def _lines(text: str) -> Reports:
    found = re.finditer(r"^(\S[^:\n]*\.py):(\d+):\d+: ", text, re.MULTILINE)
    return _named((match[1], int(match[2])) for match in found)


def _named(places: Iterator[tuple[str, int]]) -> Reports:
    reports: Reports = defaultdict(list)
    for path, line in places:
        reports[Path(path).name].append(line)
    return reports


# --------------------------------------------------------------------------- labels


def cases(listing: Path, folder: Path) -> Labels:
    """Faults with their mended twins, and correct files, of a list in JSON lines."""
    rows = [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines() if line.strip()]
    faulty = [row for row in rows if row["label"] == "positive"]
    quiet = [name for row in rows for name in row["fixed_files" if row in faulty else "files"]]
    faults = [
        tuple(
            (Path(place["file"]).name, int(place["line"])) for place in row["locations"] + row["alternatives"]
        )
        for row in faulty
    ]
    return Labels("faults of public bug reports", folder, tuple(faults), tuple(Path(n).name for n in quiet))


def probes(folder: Path) -> Labels:
    """Scripts whose first lines say what is expected of them."""
    faults: list[tuple[tuple[str, int], ...]] = []
    quiet: list[str] = []
    for path in sorted(folder.glob("*.py")):
        head = [
            line for line in path.read_text(encoding="utf-8").splitlines()[:8] if line.startswith("# expect")
        ]
        lines = [int(line) for text in head for line in _EXPECTED.findall(text)]
        faults += [((path.name, line),) for line in lines]
        if head and not lines:
            quiet.append(path.name)
    return Labels("probes", folder, tuple(faults), tuple(quiet))


def speaks_at(reports: Reports, places: Sequence[tuple[str, int]]) -> bool:
    """Whether anything is said near one of these places."""
    return any(abs(said - line) <= _SLACK_LINES for name, line in places for said in reports.get(name, ()))


def findings_table(labels: Sequence[Labels], among: Sequence[Tool]) -> Iterator[str]:
    """A row for each tool: faults that it speaks at, correct files that it is loud on."""
    heads = [f"{one.title}: spoken at | correct files: loud" for one in labels]
    yield f"| tool | {' | '.join(heads)} |"
    yield "|---|" + "---:|---:|" * len(labels)
    for tool in among:
        cells: list[str] = []
        for one in labels:
            done = subprocess.run(
                [*tool.check, str(one.folder)], capture_output=True, text=True, check=False, cwd=one.folder
            )
            reports = tool.read(done.stdout)
            found = sum(speaks_at(reports, places) for places in one.faults)
            loud = sum(name in reports for name in one.quiet)
            cells += [
                f"{found} of {len(one.faults)} ({found / len(one.faults):.0%})",
                f"{loud} of {len(one.quiet)} ({loud / len(one.quiet):.0%})",
            ]
        yield f"| {tool.name} | {' | '.join(cells)} |"


# --------------------------------------------------------------------------- costs


def cost(command: Sequence[str], limit_seconds: int, environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command, its output thrown away; each of its processes may use this much CPU."""
    before, start = _used(), time.monotonic()
    done = subprocess.run(
        ["sh", "-c", f'ulimit -t {limit_seconds}; exec "$@"', "sh", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    return Cost(time.monotonic() - start, _used() - before, done.returncode >= 0)


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cost_table(
    folders: Sequence[Path], among: Sequence[Tool], limit_seconds: int, installed: Path | None = None
) -> Iterator[str]:
    """A row for each folder: CPU seconds of each tool, and how many times those of torchwise, the first one.
    installed: where torchwise finds what the folders are a copy of."""
    yield f"| | files, lines | {' | '.join(tool.name for tool in among)} |"
    yield "|---|---:|" + "---:|" * len(among)
    for folder in folders:
        texts = [path.read_bytes() for path in folder.rglob("*.py") if path.is_file()]
        lines = sum(text.count(b"\n") for text in texts)
        own, *others = among
        costs = [cost([*own.cost, str(installed or folder)], limit_seconds)]
        costs += [cost([*tool.cost, str(folder)], limit_seconds) for tool in others]
        cells = [_cell(one, costs[0]) for one in costs]
        yield f"| {folder.name} | {len(texts):,}, {lines:,} | {' | '.join(cells)} |"


def _cell(one: Cost, own: Cost) -> str:
    seconds = f"{one.cpu_seconds:.2f} s" if one.cpu_seconds < 10 else f"{one.cpu_seconds:.0f} s"
    ratio = "" if one is own else f" ({one.cpu_seconds / own.cpu_seconds:.2g} x)"
    return f"{seconds}{ratio}" if one.is_done else f"more than {seconds}, stopped{ratio}"


def tree_rows(folder: Path, jobs: int, limit_seconds: int) -> Iterator[str]:
    """torchwise on one large folder with several processes: cold, and once more."""
    with tempfile.TemporaryDirectory() as cache:
        kept = {"TORCHWISE_CACHE_DIR": cache}
        command = [sys.executable, "-m", "torchwise_server", "check", "--format", "json"]
        command += ["--jobs", str(jobs), str(folder)]
        for name in ("cold", "warm"):
            one = cost(command, limit_seconds, kept)
            seconds = f"{one.wall_seconds:.1f} s, {one.cpu_seconds:.1f} s of CPU"
            yield f"torchwise where it lies, {jobs} processes, {name}: {seconds}"


def copied(tree: Path, folder: Path) -> Path:
    """The Python files of a folder, in a folder of the same name elsewhere."""
    for path in tree.rglob("*.py"):
        target = folder / tree.name / path.relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return folder / tree.name


def main() -> None:
    """Print the tables that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch-preflight", metavar="BIN", help="the program of torch-preflight")
    parser.add_argument("--torchfix", metavar="BIN", help="the program of TorchFix")
    parser.add_argument(
        "--ruff", default=str(Path(sys.executable).with_name("ruff")), metavar="BIN", help="default: ours"
    )
    parser.add_argument("--cases", nargs=2, type=Path, metavar=("LIST", "FOLDER"))
    parser.add_argument("--probes", type=Path, metavar="FOLDER")
    parser.add_argument("--cost", nargs="+", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--tree", type=Path, metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=420, metavar="SECONDS", help="of CPU, for each tool")
    options = parser.parse_args()
    among = tools(options.torch_preflight, options.torchfix, options.ruff)
    labels = [cases(*(path.resolve() for path in options.cases))] if options.cases else []
    labels += [probes(options.probes.resolve())] if options.probes else []
    if labels:
        _print(findings_table(labels, among))
    if options.cost:
        _print(cost_table([path.resolve() for path in options.cost], among, options.limit))
    if options.tree:
        tree = options.tree.resolve()
        _print(tree_rows(tree, options.jobs, options.limit))
        with tempfile.TemporaryDirectory() as folder:
            _print(cost_table([copied(tree, Path(folder))], among, options.limit, tree))


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(line, flush=True)
    print()


if __name__ == "__main__":
    main()
