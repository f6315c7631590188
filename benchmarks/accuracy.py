"""How far estimates are from known peaks: described jobs from published ones, scripts from real PyTorch's.

    python benchmarks/accuracy.py [ROWS.jsonl] [--by FIELD] [--confidence AB] [--calibrate]
    python benchmarks/accuracy.py --scripts [--site-packages FOLDER]
    python benchmarks/accuracy.py --report docs/accuracy.md

FIELD is a field of the rows, or source, metric or precision. A published number is compared with the peak of
its own metric; where its unit leaves two readings, the nearer counts. A published verdict (fits or OOM) is
compared with ours; borderline and unknown are counted apart. Any file of the same schema will do.
`--calibrate` prints the shares that `torchwise_memory/calibration.py` holds, and the coverage of the interval
when each document in turn is left out of them. `--report` rewrites the tables and the picture of the page.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchwise_memory.report import Interval, Verdict
from torchwise_memory.workload import Answer, read, run

ROOT = Path(__file__).parent
DEFAULT_ROWS = ROOT / "data" / "measured.jsonl"
SCRIPTS = ROOT / "data" / "scripts.jsonl"
RESULTS = frozenset(
    [
        "value",
        "value_gib_low",
        "value_gib_high",
        "result",
        "unit",
        "boundary",
        "pair_id",
        "pair_ratio",
        "confidence",
        "notes",
        "split",
        "incumbent",
        "metric",
    ]
)
GIB = 1 << 30
ANSWER_OOM = (Verdict.OOM, Verdict.PROBABLY_OOM)
ANSWER_FITS = (Verdict.FITS, Verdict.PROBABLY_FITS)
GROUPS = ("metric", "confidence", "family", "parallel_class", "precision", "gpu", "source")
#: Quantile of the errors that lies outside the interval on each side.
TAIL = 0.05
CARDS = {75: "t4", 80: "a100-80gb", 90: "h100-80gb", None: "a100-80gb"}
MARK = "<!-- written by benchmarks/accuracy.py -->"


@dataclass(frozen=True, slots=True)
class Scored:
    """A published number beside ours. true_bytes: the reading nearer to our point."""

    row: dict[str, Any]
    kind: str
    true_bytes: float
    peak: Interval | None

    @property
    def error(self) -> float | None:
        return None if self.peak is None else self.peak.point / self.true_bytes - 1

    @property
    def is_covered(self) -> bool:
        return self.peak is not None and self.is_within(self.peak.low, self.peak.high)

    def is_within(self, low: float, high: float) -> bool:
        readings = (self.row["value_gib_low"] * GIB, self.row["value_gib_high"] * GIB)
        return any(low <= true <= high for true in readings)


def kind_of(metric: str | None) -> str | None:
    """Which of our peaks a published metric is; None where its name does not say."""
    text = (metric or "").lower()
    if any(word in text for word in ("nvidia-smi", "nvml", "device", "context")):
        return "device"
    if "reserved" in text and "active/reserved" not in text:
        return "reserved"
    return "allocated" if "allocated" in text or "active" in text else None


def score(
    rows: Iterable[dict[str, Any]], calibrated: bool = True
) -> tuple[list[Scored], list[tuple[dict[str, Any], Answer]]]:
    asked = [row for row in rows if row["result"] != "number" or kind_of(row["metric"]) is not None]
    with ProcessPoolExecutor() as pool:
        answers = list(pool.map(_answered, asked, [calibrated] * len(asked), chunksize=8))
    numbers: list[Scored] = []
    verdicts: list[tuple[dict[str, Any], Answer]] = []
    for row, answer in zip(asked, answers, strict=True):
        if row["result"] != "number":
            verdicts.append((row, answer))
            continue
        kind = str(kind_of(row["metric"]))
        peak = getattr(answer.peak, kind)
        readings = (row["value_gib_low"] * GIB, row["value_gib_high"] * GIB)
        point = peak.point if peak is not None else readings[0]
        numbers.append(Scored(row, kind, min(readings, key=lambda true: abs(point / true - 1)), peak))
    return numbers, verdicts


def _answered(row: dict[str, Any], calibrated: bool) -> Answer:
    question = {key: value for key, value in row.items() if key not in RESULTS}
    return run(read({**question, "metric_asked": kind_of(row["metric"])}), calibrated)


def group_of(row: dict[str, Any], by: str) -> str:
    if by == "source":
        return str(row["source"]["key"])
    if by == "metric":
        return kind_of(row["metric"]) or "verdict"
    if by == "precision":
        autocast = row.get("autocast") or "none"
        mixed = "" if autocast.startswith("none") else f" + {autocast.split(' ')[0].rstrip(',')}"
        return f"{row.get('weights_dtype') or 'not stated'}{mixed}"
    return str(row.get(by))


def summary(numbers: Sequence[Scored]) -> str:
    """Median and 90th percentile of the absolute error, bias, coverage, half width."""
    errors = [item.error for item in numbers if item.error is not None]
    if not errors:
        return f"| {len(numbers)} | 0 | - | - | - | - | - |"
    sizes = sorted(map(abs, errors))
    widths = [(p.high - p.low) / 2 / p.point for item in numbers if (p := item.peak) is not None]
    covered = sum(item.is_covered for item in numbers) / len(errors)
    return (
        f"| {len(numbers)} | {len(errors)} | {statistics.median(sizes):.1%} | "
        f"{sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]:.1%} | {statistics.median(errors):+.1%} | "
        f"{covered:.0%} | {statistics.median(widths):.0%} |"
    )


HEADER = (
    "| group | numbers | answered | median error | 90th percentile | bias | interval covers | half width |\n"
    "|---|---|---|---|---|---|---|---|"
)
_COLUMNS = ("group", "verdicts", "right", "false fit", "false OOM", "borderline", "unknown")
VERDICTS = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|"


def table(numbers: list[Scored], by: str) -> str:
    groups: dict[str, list[Scored]] = defaultdict(list)
    for item in numbers:
        groups[group_of(item.row, by)].append(item)
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    return "\n".join([HEADER, *(f"| {name} {summary(items)}" for name, items in ordered)])


def verdict_table(verdicts: list[tuple[dict[str, Any], Answer]], by: str) -> str:
    groups: dict[str, list[tuple[dict[str, Any], Answer]]] = defaultdict(list)
    for row, answer in verdicts:
        groups[group_of(row, by)].append((row, answer))
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    return "\n".join([VERDICTS, *(f"| {name} {_verdict_row(pairs)}" for name, pairs in ordered)])


def _verdict_row(pairs: list[tuple[dict[str, Any], Answer]]) -> str:
    counted = outcomes(pairs)
    cells = [counted[name] for name in ("right", "false fit", "false OOM", "borderline", "unknown")]
    return f"| {len(pairs)} | " + " | ".join(map(str, cells)) + " |"


def outcomes(verdicts: list[tuple[dict[str, Any], Answer]]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for row, answer in verdicts:
        if answer.verdict not in (*ANSWER_OOM, *ANSWER_FITS):
            counted[answer.verdict.value] += 1
        elif (answer.verdict in ANSWER_OOM) == (row["result"] == "OOM"):
            counted["right"] += 1
        else:
            counted["false fit" if row["result"] == "OOM" else "false OOM"] += 1
    return counted


def spoken(counted: Counter[str]) -> str:
    """`60 right, 2 false fit`, the most frequent first."""
    return ", ".join(f"{number} {outcome}" for outcome, number in counted.most_common())


# --------------------------------------------------------------------------- calibration


def shares(numbers: Sequence[Scored]) -> tuple[float, float]:
    """What the low and the high end of the hull are multiplied with."""
    low = sorted(item.true_bytes / item.peak.low for item in numbers if item.peak is not None)
    high = sorted(item.true_bytes / item.peak.high for item in numbers if item.peak is not None)
    return (
        min(1.0, low[int(TAIL * len(low))]),
        max(1.0, high[min(len(high) - 1, int((1 - TAIL) * len(high)))]),
    )


def pooled(numbers: Sequence[Scored], kind: str) -> list[Scored]:
    return [
        item
        for item in numbers
        if item.peak is not None and (item.kind == "allocated") == (kind == "allocated")
    ]


def calibration(numbers: Sequence[Scored]) -> str:
    """The shares by metric, and the coverage with the document of each row left out. Hulls, not widened."""
    lines: list[str] = []
    for kind in ("allocated", "reserved"):
        low, high = shares(pooled(numbers, kind))
        lines.append(f"{kind:9} n={len(pooled(numbers, kind)):3} below {1 - low:.3f}, above {high - 1:.3f}")
    answered = [item for item in numbers if item.peak is not None]
    found: dict[tuple[str, str], tuple[float, float]] = {}
    covered = 0
    for item in answered:
        source, kind = item.row["source"]["key"], item.kind
        if (source, kind) not in found:
            others = [other for other in answered if other.row["source"]["key"] != source]
            found[source, kind] = shares(pooled(others, kind))
        low, high = found[source, kind]
        assert item.peak is not None
        covered += item.is_within(item.peak.low * low, item.peak.high * high)
    lines.append(f"with each document left out in turn the interval covers {covered / len(answered):.1%}")
    return "\n".join(lines)


# --------------------------------------------------------------------------- scripts


def script_table(site_packages: Sequence[str] = ()) -> str:
    """Scripts of known peak, with the libraries' source or without any."""
    rows = [json.loads(line) for line in SCRIPTS.read_text(encoding="utf-8").splitlines()]
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(_script_answer, rows, [tuple(site_packages)] * len(rows), chunksize=4))
    answered = [(row, answer) for row, answer in zip(rows, found, strict=True) if answer is not None]
    if not answered:
        return f"0 of {len(rows)} answered"
    errors = sorted(abs(a["point"] / r["peak_allocated"] - 1) for r, a in answered)
    reserved = sorted(abs(a["reserved"] / r["peak_reserved"] - 1) for r, a in answered)
    covered = sum(a["low"] <= r["peak_allocated"] <= a["high"] for r, a in answered) / len(answered)
    width = statistics.median((a["high"] - a["low"]) / 2 / a["point"] for _, a in answered)
    exact = sum(a["parameters"] == r["parameters"] for r, a in answered)
    phases = sum(a["phase"] == r["phase"] for r, a in answered)
    return (
        f"{len(answered)} of {len(rows)} answered; peak allocated: median error "
        f"{statistics.median(errors):.2%}, 95th percentile {quantile(errors, 0.95):.2%}, "
        f"worst {errors[-1]:.2%}; reserved: median {statistics.median(reserved):.2%}, 90th percentile "
        f"{quantile(reserved, 0.9):.1%}; interval covers {covered:.0%} at a half width of {width:.1%}; "
        f"parameters exact in {exact}, phase right in {phases}"
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _script_answer(row: dict[str, Any], site_packages: tuple[str, ...]) -> dict[str, Any] | None:
    from torchwise_analysis.names.project import Project
    from torchwise_analysis.plan import EstimateRequest, estimate_module
    from torchwise_analysis.source import lower_text

    request = EstimateRequest(gpus=(CARDS[row["sm"]],), with_remedies=False)
    module = lower_text(f"{row['id']}.py", row["script"])
    report = estimate_module(module, Project([], list(site_packages)), request)
    known = [each for each in report.estimates if each.peak.allocated is not None]
    if not known:
        return None
    best = max(known, key=lambda each: each.peak.allocated.point if each.peak.allocated else 0)
    allocated, reserved = best.peak.allocated, best.peak.reserved
    assert allocated is not None
    return {
        "low": allocated.low,
        "point": allocated.point,
        "high": allocated.high,
        "reserved": reserved.point if reserved is not None else 0,
        "parameters": best.parameters,
        "phase": best.phase.value if best.phase is not None else "",
    }


# --------------------------------------------------------------------------- the page


def picture(numbers: list[Scored]) -> str:
    """Predicted against measured, both logarithmic, as SVG."""
    from math import log10

    side, margin, low, high = 560, 60, 0.0, 2.4

    def place(gib: float) -> float:
        return margin + (log10(gib) - low) / (high - low) * (side - 2 * margin)

    colours = {"allocated": "#1f77b4", "reserved": "#d95f02", "device": "#5e3c99"}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="predicted against measured peak memory">',
        f'<rect width="{side}" height="{side}" fill="white"/>',
        f'<line x1="{margin}" y1="{side - margin}" x2="{side - margin}" y2="{margin}" stroke="#888"/>',
    ]
    for gib in (1, 3, 10, 30, 100, 200):
        at = place(gib)
        parts.append(f'<text x="{at:.0f}" y="{side - margin + 20}" text-anchor="middle">{gib}</text>')
        parts.append(f'<text x="{margin - 8}" y="{side - at + 4:.0f}" text-anchor="end">{gib}</text>')
    for item in numbers:
        if item.peak is None:
            continue
        x, y = place(item.true_bytes / GIB), side - place(max(1.0, item.peak.point / GIB))
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[item.kind]}" fill-opacity="0.6"/>'
        )
    for index, (kind, colour) in enumerate(colours.items()):
        parts.append(f'<circle cx="{margin + 20}" cy="{margin + 20 * index}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{margin + 30}" y="{margin + 4 + 20 * index}">{kind}</text>')
    parts.append(f'<text x="{side / 2}" y="{side - 12}" text-anchor="middle">measured, GiB</text>')
    parts.append(f'<text x="16" y="{side / 2}" transform="rotate(-90 16 {side / 2})" text-anchor="middle">')
    return "\n".join([*parts, "predicted, GiB</text></svg>"]) + "\n"


#: On the same 295 numbers and 99 verdicts, as they were measured when this project began.
OTHERS = """\
| estimator | numbers answered | median error | interval covers | OOMs called a fit |
|---|---|---|---|---|
{ours}
| torch-preflight 0.5.0, told every fact by flags | 56 of 295 | 21 % | 59 % | 30 of 43 that it answers |
| the broadest other estimators | 170 to 178 of 295 | 37 to 40 % | none given | - |
| 16 bytes a parameter | 295 of 295 | 54 % | none given | - |
"""


def beside_others(numbers: list[Scored], verdicts: list[tuple[dict[str, Any], Answer]]) -> str:
    answered = [item for item in numbers if item.error is not None]
    sizes = [abs(item.error) for item in answered if item.error is not None]
    covered = sum(item.is_covered for item in answered) / len(answered)
    ooms = [pair for pair in verdicts if pair[0]["result"] == "OOM"]
    known = [pair for pair in ooms if pair[1].verdict in (*ANSWER_OOM, *ANSWER_FITS)]
    wrong = outcomes(known)["false fit"]
    ours = (
        f"| torchwise | {len(answered)} of {len(numbers)} | {statistics.median(sizes):.1%} | {covered:.0%} | "
        f"{wrong} of {len(known)} that it answers |"
    )
    return OTHERS.format(ours=ours)


def report(numbers: list[Scored], verdicts: list[tuple[dict[str, Any], Answer]], scripts: str) -> str:
    """The tables of docs/accuracy.md that this script owns."""
    tight = [pair for pair in verdicts if (pair[0].get("pair_ratio") or 99) <= 2]
    first = [item for item in numbers if item.row["confidence"] == "A"]
    by_source: dict[str, list[float]] = defaultdict(list)
    for item in numbers:
        if item.error is not None:
            by_source[item.row["source"]["key"]].append(abs(item.error))
    mean = statistics.fmean(statistics.median(errors) for errors in by_source.values())
    parts = [
        f"Scripts without any library's source: {scripts}.",
        "",
        HEADER,
        f"| confidence A {summary(first)}",
        f"| confidence A and B {summary(numbers)}",
        "",
        f"Mean of the {len(by_source)} documents' median errors: {mean:.1%}.",
        "",
        beside_others(numbers, verdicts),
        "Whether a job fits a card, where a document says so (a *false fit* ran out of memory, and was "
        f"said to fit): {spoken(outcomes(verdicts))}. Of these with a like job of the opposite outcome "
        f"within a factor of two in size: {spoken(outcomes(tight))}.",
        "",
    ]
    for by in GROUPS:
        parts += [f"### By {by.replace('_', ' ')}", "", table(numbers, by), ""]
        if by != "metric":
            parts += [verdict_table(verdicts, by), ""]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="?", type=Path, default=DEFAULT_ROWS)
    parser.add_argument("--by", default="family")
    parser.add_argument("--confidence", default="AB")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--scripts", action="store_true", help="score scripts instead of described jobs")
    parser.add_argument("--site-packages", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    if options.scripts:
        print(script_table(options.site_packages))
        return 0
    rows = [
        json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    chosen = [row for row in rows if row["confidence"] in options.confidence]
    numbers, verdicts = score(chosen, calibrated=not options.calibrate)
    if options.calibrate:
        print(calibration(numbers))
        return 0
    if options.report:
        text = options.report.read_text(encoding="utf-8")
        before, mark, _ = text.partition(MARK)
        page = report(numbers, verdicts, script_table())
        options.report.write_text(f"{before}{mark}\n\n{page}", encoding="utf-8")
        (options.report.parent / "images" / "accuracy.svg").write_text(picture(numbers), encoding="utf-8")
        print(page.partition("### By")[0])
        return 0
    print(table(numbers, options.by))
    print(f"| all {summary(numbers)}")
    print(verdict_table(verdicts, options.by))
    print(dict(outcomes(verdicts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
