"""The comparison with other tools counts what it says it counts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.benchmarks.test_gpu_calibration import loaded

comparison = loaded("comparison")


def test_labels_of_cases_and_of_probes(tmp_path: Path) -> None:
    rows = [
        {
            "label": "positive",
            "files": ["a.py"],
            "fixed_files": ["a.ok.py"],
            "locations": [{"file": "a.py", "line": 3}],
            "alternatives": [{"file": "b/c.py", "line": 9}],
        },
        {"label": "control", "files": ["d.py"], "fixed_files": [], "locations": [], "alternatives": []},
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    labels = comparison.cases(tmp_path / "cases.jsonl", tmp_path)
    assert labels.faults == ((("a.py", 3), ("c.py", 9)),)
    assert labels.quiet == ("a.ok.py", "d.py")
    (tmp_path / "p.py").write_text("# expect: clip-order @ line 8; missing-step @ line 12\n")
    (tmp_path / "q.py").write_text("# expect: none\n")
    (tmp_path / "r.py").write_text("import torch\n")
    labels = comparison.probes(tmp_path)
    assert labels.faults == ((("p.py", 8),), (("p.py", 12),))
    assert labels.quiet == ("q.py",)


def test_a_table_counts_what_is_near_a_label_and_what_is_loud(tmp_path: Path) -> None:
    for name, head in (("a.py", "x @ line 6"), ("b.py", "x @ line 7"), ("c.py", "none"), ("d.py", "none")):
        (tmp_path / name).write_text(f"# expect: {head}\n")
    said = "".join(f"/x/{place}: T1 oh\n" for place in ("a.py:3:1", "b.py:3:1", "c.py:1:1"))
    script = tmp_path / "tool"
    script.write_text(f"print({said!r})")
    tool = comparison.Tool("toy", (sys.executable, str(script)), comparison._lines, ())
    *_, row = comparison.findings_table([comparison.probes(tmp_path)], [tool])
    assert row == "| toy | 1 of 2 (50%) | 1 of 2 (50%) |"


def test_who_takes_too_long_is_stopped_with_what_was_used(tmp_path: Path) -> None:
    busy = [sys.executable, "-c", "while True: pass"]
    one = comparison.cost(busy, limit_seconds=1)
    assert not one.is_done
    assert one.cpu_seconds >= 0.9
    assert comparison._cell(one, comparison.Cost(0.1, 0.1, True)).startswith("more than ")
    quick = comparison.cost([sys.executable, "-c", "raise SystemExit(1)"], limit_seconds=60)
    assert quick.is_done  # with findings, which is what the others' status 1 says
