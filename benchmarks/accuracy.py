"""How far described jobs are from peaks that others measured and published.

    python benchmarks/accuracy.py [ROWS.jsonl] [--by FIELD] [--confidence AB]
                                  [--calibrate] [--report docs/accuracy.md]

FIELD is a field of the rows, or source or metric. A published number is compared with the peak of its own
metric; where its unit leaves two readings, the nearer counts. A published verdict (fits or OOM) is compared
with ours; borderline and unknown are counted apart. `--calibrate` prints the error quantiles of half of the
documents and the coverage of the interval on the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchwise_memory.report import Interval, Verdict
from torchwise_memory.workload import Answer, read, run

ROOT = Path(__file__).parent
DEFAULT_ROWS = ROOT / "data" / "measured.jsonl"
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
        readings = (self.row["value_gib_low"] * GIB, self.row["value_gib_high"] * GIB)
        return self.peak is not None and any(self.peak.low <= true <= self.peak.high for true in readings)


def kind_of(metric: str | None) -> str | None:
    """Which of our peaks a published metric is; None where its name does not say."""
    text = (metric or "").lower()
    if any(word in text for word in ("nvidia-smi", "nvml", "device", "context")):
        return "device"
    if "reserved" in text and "active/reserved" not in text:
        return "reserved"
    return "allocated" if "allocated" in text or "active" in text else None


def score(rows: Iterable[dict[str, Any]]) -> tuple[list[Scored], list[tuple[dict[str, Any], Answer]]]:
    numbers: list[Scored] = []
    verdicts: list[tuple[dict[str, Any], Answer]] = []
    for row in rows:
        kind = kind_of(row["metric"])
        if row["result"] == "number" and kind is None:
            continue
        question = {key: value for key, value in row.items() if key not in RESULTS}
        answer = run(read({**question, "metric_asked": kind}))
        if row["result"] != "number":
            verdicts.append((row, answer))
            continue
        peak = getattr(answer.peak, str(kind))
        readings = (row["value_gib_low"] * GIB, row["value_gib_high"] * GIB)
        point = peak.point if peak is not None else readings[0]
        numbers.append(Scored(row, str(kind), min(readings, key=lambda true: abs(point / true - 1)), peak))
    return numbers, verdicts


def group_of(row: dict[str, Any], by: str) -> str:
    if by == "source":
        return str(row["source"]["key"])
    if by == "metric":
        return kind_of(row["metric"]) or "verdict"
    return str(row.get(by))


def summary(numbers: list[Scored]) -> str:
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


def table(numbers: list[Scored], by: str) -> str:
    groups: dict[str, list[Scored]] = defaultdict(list)
    for item in numbers:
        groups[group_of(item.row, by)].append(item)
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    return "\n".join([HEADER, *(f"| {name} {summary(items)}" for name, items in ordered)])


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


def calibration(numbers: list[Scored]) -> str:
    """Quantiles of true over point, by metric, of half of the documents; coverage on the other half."""
    lines: list[str] = []
    for side in (0, 1):
        here = [item for item in numbers if zlib.crc32(item.row["source"]["key"].encode()) % 2 == side]
        for kind in ("allocated", "reserved", "device"):
            ratios = sorted(
                item.true_bytes / item.peak.point
                for item in here
                if item.kind == kind and item.peak is not None
            )
            if not ratios:
                continue
            low, high = ratios[int(0.05 * len(ratios))], ratios[min(len(ratios) - 1, int(0.95 * len(ratios)))]
            covered = statistics.fmean(item.is_covered for item in here if item.kind == kind and item.peak)
            name = "calibrate" if side == 0 else "validate"
            lines.append(
                f"{name:9} {kind:9} n={len(ratios):3} true/point 5 %: {low:.3f}, 95 %: {high:.3f}, "
                f"interval covers {covered:.0%}"
            )
    return "\n".join(lines)


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


def report(numbers: list[Scored], verdicts: list[tuple[dict[str, Any], Answer]]) -> str:
    """The tables of docs/accuracy.md that this script owns."""
    tight = [pair for pair in verdicts if (pair[0].get("pair_ratio") or 99) <= 2]
    first = [item for item in numbers if item.row["confidence"] == "A"]
    parts = [
        HEADER,
        f"| confidence A {summary(first)}",
        f"| confidence A and B {summary(numbers)}",
        "",
        "Whether a job fits a card, where a document says so (a *false fit* ran out of memory, and was "
        f"said to fit): {spoken(outcomes(verdicts))}. Of these with a like job of the opposite outcome "
        f"within a factor of two in size: {spoken(outcomes(tight))}.",
        "",
    ]
    for by in ("metric", "family", "parallel_class", "weights_dtype", "gpu", "source"):
        parts += [f"### By {by.replace('_', ' ')}", "", table(numbers, by), ""]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="?", type=Path, default=DEFAULT_ROWS)
    parser.add_argument("--by", default="family")
    parser.add_argument("--confidence", default="AB")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    rows = [
        json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    numbers, verdicts = score(row for row in rows if row["confidence"] in options.confidence)
    if options.calibrate:
        print(calibration(numbers))
        return 0
    if options.report:
        text = options.report.read_text(encoding="utf-8")
        before, mark, _ = text.partition("<!-- written by benchmarks/accuracy.py -->")
        options.report.write_text(f"{before}{mark}\n\n{report(numbers, verdicts)}", encoding="utf-8")
        (options.report.parent / "images" / "accuracy.svg").write_text(picture(numbers), encoding="utf-8")
        return 0
    print(table(numbers, options.by))
    print(f"| all {summary(numbers)}")
    print(dict(outcomes(verdicts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
