"""`torchwise estimate --workload FILE.jsonl`: described workloads instead of scripts, one answer a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from pathlib import Path
from typing import cast

from torchwise_memory.report import Peak, Verdict
from torchwise_server.cli import Exit, UsageError
from torchwise_server.cli.output import complain, say
from torchwise_server.reporters.estimate_json import peak_as_dict

#: From how many rows on it pays to start processes.
MANY = 16
_UNKNOWN_PEAK = Peak(None, None, None)


def answer(filename: str, files: Sequence[str]) -> int:
    """Answer each line of the file in its order."""
    if files:
        raise UsageError("--workload describes runs without a script; leave the files out")
    rows = list(_rows(filename))
    for number, row in enumerate(rows, start=1):
        if row is None:
            complain(f"{filename}:{number}: not a JSON object with an id; passed over")
    for answered in _answers([row for row in rows if row is not None]):
        say(json.dumps(answered))
    return Exit.UNREAD if None in rows else Exit.OK


def _answers(rows: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    """In the order of the rows; many of them on all processors."""
    if len(rows) < MANY or (os.cpu_count() or 1) < 2:
        yield from map(_answer, rows)
        return
    done = 0
    try:
        with ProcessPoolExecutor() as pool:
            for answered in pool.map(_answer, rows, chunksize=4):
                done += 1
                yield answered
    except (OSError, BrokenExecutor):
        # no processes to be had here: go on alone
        yield from map(_answer, rows[done:])


def _answer(row: dict[str, object]) -> dict[str, object]:
    """What is said of one workload: unknown sizes are null, and `why` says what is missing."""
    from torchwise_memory.workload import WorkloadError, read, run

    try:
        answered = run(read(row))
    except WorkloadError as error:
        return _unanswered(row, str(error))
    except Exception as error:
        return _unanswered(row, f"the estimate failed ({type(error).__name__}: {error})")
    said: dict[str, object] = {
        "id": row["id"],
        "peak": peak_as_dict(answered.peak),
        "verdict": answered.verdict.value,
    }
    if answered.why:
        said["why"] = answered.why
    if answered.assumptions:
        said["assumptions"] = list(answered.assumptions)
    return said


def _unanswered(row: dict[str, object], why: str) -> dict[str, object]:
    return {
        "id": row["id"],
        "peak": peak_as_dict(_UNKNOWN_PEAK),
        "verdict": Verdict.UNKNOWN.value,
        "why": why,
    }


def _rows(filename: str) -> Iterator[dict[str, object] | None]:
    try:
        text = Path(filename).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--workload {filename}: {getattr(error, 'strerror', None) or error}") from None
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            row: object = json.loads(line)
        except ValueError:
            row = None
        yield cast("dict[str, object]", row) if isinstance(row, dict) and "id" in row else None
