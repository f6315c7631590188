"""How many fields of the training plan are read from public training scripts, by kind.

    python benchmarks/plan_fields.py CHECKOUTS [--site-packages DIR] [--against COMMAND] [--scripts FILE]

CHECKOUTS holds a folder `owner_name` for each repository of data/plan_scripts.txt, at the commit that stands
there. A field counts as found when it has a value, from the script or its settings or as a library's default;
whether an estimate of the peak came out is counted apart. With `--against`, the same scripts are given to
torch-preflight (the path of its executable); its fields count where it names a source for them or takes a
value other than its own fallback.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchwise_analysis.engine import open_project
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.settings import Settings
from torchwise_memory.report import PlanField

ROOT = Path(__file__).parent
SCRIPTS = ROOT / "data" / "plan_scripts.txt"
CENTRAL = ("micro_batch", "precision", "optimizer", "model")
FIELDS = (*CENTRAL, "seq_len", "image_size", "accumulation", "checkpointing")
# What torch-preflight answers where nothing was read.
FALLBACKS: dict[str, object] = {"batch_size": 1, "precision": "fp32", "optimizer": "adamw"}


@dataclass(slots=True)
class Row:
    """What one script gave: values by field, whether its peak was estimated, and the seconds it took."""

    script: str
    values: dict[str, object] = field(default_factory=dict[str, object])
    sources: dict[str, str] = field(default_factory=dict[str, str])
    is_estimated: bool = False
    why: str = ""
    seconds: float = 0.0


def main() -> None:
    options = _options()
    rows: list[Row] = []
    for path, shown in _scripts(options):
        rows.append(row := _ours(path, shown, options.site_packages))
        missing = [name for name in CENTRAL if name not in row.values]
        said = "estimated" if row.is_estimated else f"no estimate: {row.why[:110]}"
        print(
            f"{shown}  {row.seconds:.1f} s  {said}{'; no ' if missing else ''}{', '.join(missing)}",
            flush=True,
        )
    _report("torchwise", rows)
    if options.against:
        theirs = [_theirs(path, shown, options.against) for path, shown in _scripts(options)]
        _report("torch-preflight", theirs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--site-packages", action="append", default=[])
    parser.add_argument("--against", default="", metavar="COMMAND")
    parser.add_argument("--scripts", type=Path, default=SCRIPTS)
    return parser.parse_args()


def _scripts(options: argparse.Namespace) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    for line in options.scripts.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            repository, _, script = line.split()
            path = options.checkouts / repository.replace("/", "_") / script
            if not path.is_file():
                raise SystemExit(f"{path} is not there; check out {repository}")
            found.append((path.absolute(), f"{repository} {script}"))
    return found


def _ours(path: Path, shown: str, libraries: list[str]) -> Row:
    settings = replace(Settings(), site_packages=tuple(libraries)) if libraries else Settings()
    file = SourceFile(str(path), path.read_text(encoding="utf-8", errors="replace"))
    project = open_project(str(path), settings)
    started = time.perf_counter()
    report = estimate_module(
        file.module, project, EstimateRequest(with_alternatives=False, with_remedies=False)
    )
    row = Row(shown, seconds=time.perf_counter() - started)
    plans = [estimate.plan for estimate in report.estimates] or [one.plan for one in report.unanswered]
    row.is_estimated = bool(report.estimates)
    row.why = report.unanswered[0].message if report.unanswered else ""
    for name, found in (plans[0] if plans else {}).items():
        if _is_found(found):
            row.values[name] = found.value
            row.sources[name] = found.source.value
    return row


def _is_found(found: PlanField) -> bool:
    return found.value is not None and found.source.value in ("read", "default", "configured")


def _theirs(path: Path, shown: str, command: str) -> Row:
    row = Row(shown)
    try:
        done = subprocess.run(
            [command, "estimate", "-f", "json", str(path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        row.why = str(error)
        return row
    config, sources = answer.get("config", {}), answer.get("config", {}).get("sources", {})
    names = {"micro_batch": "batch_size", "seq_len": "seq_len", "image_size": "image_size"}
    names |= {"precision": "precision", "optimizer": "optimizer", "checkpointing": "gradient_checkpointing"}
    for name, theirs in names.items():
        value = config.get(theirs)
        if theirs in sources or (value is not None and theirs in FALLBACKS and value != FALLBACKS[theirs]):
            row.values[name] = value
    # single precision without an autocast is a fact where the optimizer of the same script was read
    if "optimizer" in row.values and config.get("precision") == "fp32":
        row.values["precision"] = "fp32"
    if answer.get("resolved"):
        row.values["model"] = answer["model"]["name"]
        row.is_estimated = True
    return row


def _report(name: str, rows: list[Row]) -> None:
    counts = Counter(found for row in rows for found in row.values)
    print(f"{name}: {len(rows)} scripts, {sum(row.is_estimated for row in rows)} estimated")
    for one in FIELDS:
        kinds = Counter(row.sources[one] for row in rows if one in row.sources)
        shown = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        print(f"  {one:14} {counts[one]:3}  {counts[one] / len(rows):4.0%}  {shown}")
    together = sum(all(one in row.values for one in CENTRAL) for row in rows)
    print(f"  {'all four':14} {together:3}  {together / len(rows):4.0%}")
    share = sum(counts[one] for one in CENTRAL) / (len(rows) * len(CENTRAL))
    print(f"  of the four    {share:8.0%}")
    seconds = sorted(row.seconds for row in rows)
    if seconds[-1]:
        print(f"  seconds a script: median {seconds[len(seconds) // 2]:.2f}, largest {seconds[-1]:.1f}")


if __name__ == "__main__":
    main()
