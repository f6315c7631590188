"""What automatic fixes do to real files: a table of fixes tried, kind by kind.

python benchmarks/fixes.py FOLDER...                       torchwise, safe fixes and all fixes
python benchmarks/fixes.py FOLDER... --other 'COMMAND {}'  another tool, `{}` is the file it rewrites

Every folder is copied and the copy is fixed. Counted are files that changed, those that no longer parse,
whose findings got more, that change again when fixed again, and that do not come back byte for byte when the
printed patch is reversed.
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

TORCHWISE = (sys.executable, "-m", "torchwise_server")
PATIENCE_SECONDS = 1800


@dataclass(slots=True)
class Tally:
    """Counts over all folders; `by_kind` by rule and safety."""

    files: int = 0
    changed: int = 0
    unparsable: list[str] = field(default_factory=list[str])
    unstable: list[str] = field(default_factory=list[str])
    worse: list[str] = field(default_factory=list[str])
    not_undone: list[str] = field(default_factory=list[str])
    applied: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    left: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    failures: list[str] = field(default_factory=list[str])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--other", metavar="COMMAND", help="another tool's command, {} for the file")
    parser.add_argument("--only", choices=("safe", "all"), help="one of the two tables")
    parser.add_argument("--no-undo", action="store_true", help="do not print and reverse the patch")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.other:
        tally = Tally()
        for folder in options.folders:
            rewrite_with(options.other, folder, tally, options.jobs)
        show(options.other.split()[0], tally)
        return 0
    for kind, title, extra in (("safe", "safe fixes", ()), ("all", "all fixes (--unsafe)", ("--unsafe",))):
        if options.only not in (None, kind):
            continue
        tally = Tally()
        for folder in options.folders:
            fix(folder, extra, tally, undo=not options.no_undo)
        show(title, tally)
    return 0


def fix(folder: Path, extra: Sequence[str], tally: Tally, *, undo: bool) -> None:
    """Fix a copy of the folder with torchwise."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / folder.name
        shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        before = contents(copy)
        tally.files += len(before)
        patch = run((*TORCHWISE, "fix", "--diff", *extra, "."), copy) if undo else None
        done = run((*TORCHWISE, "fix", "--format", "json", *extra, "."), copy)
        if done is None or done.returncode not in (0, 1, 3):
            tally.failures.append(
                f"{folder.name}: {'too long' if done is None else done.stderr.decode()[:300]}"
            )
            return
        said = json.loads(done.stdout)
        tally.applied.update((row["rule"], row["safety"]) for row in said["fixed"])
        tally.left.update((row["rule"], row["fix"]) for row in said["left"] if row["fix"])
        changed = judge(folder.name, copy, before, tally)
        again = run((*TORCHWISE, "fix", "--format", "json", *extra, "."), copy)
        if again is not None and again.returncode in (0, 1, 3):
            tally.unstable += [f"{folder.name}/{row['path']}" for row in json.loads(again.stdout)["fixed"]]
        if patch is not None and changed:
            (copy / "undo.patch").write_bytes(patch.stdout)
            run(("patch", "-R", "-p1", "--binary", "-s", "-i", "undo.patch"), copy)
            tally.not_undone += [
                f"{folder.name}/{path}" for path in changed if (copy / path).read_bytes() != before[path]
            ]


def rewrite_with(command: str, folder: Path, tally: Tally, jobs: int) -> None:
    """Let another tool rewrite each file of a copy of the folder."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / folder.name
        shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        before = contents(copy)
        tally.files += len(before)
        with ThreadPoolExecutor(jobs) as pool:
            list(
                pool.map(
                    lambda path: run(tuple(shlex.split(command.format(shlex.quote(path)))), copy), before
                )
            )
        changed = judge(folder.name, copy, before, tally)
        middle = {path: (copy / path).read_bytes() for path in changed}
        for path in changed:
            run(tuple(shlex.split(command.format(shlex.quote(path)))), copy)
            if (copy / path).read_bytes() != middle[path]:
                tally.unstable.append(f"{folder.name}/{path}")


def judge(label: str, copy: Path, before: dict[str, bytes], tally: Tally) -> list[str]:
    """Compare the files with what they were: changed ones, by path."""
    changed = [path for path, data in before.items() if (copy / path).read_bytes() != data]
    tally.changed += len(changed)
    for path in changed:
        after = (copy / path).read_bytes()
        if parses(before[path], path) and not parses(after, path):
            tally.unparsable.append(f"{label}/{path}")
            continue
        new = findings(copy, path) - findings(copy, path, before[path])
        if new:
            tally.worse.append(f"{label}/{path}: {', '.join(sorted(new))}")
    return changed


def findings(copy: Path, path: str, data: bytes | None = None) -> Counter[str]:
    """How often each rule speaks of a file, with the text it has or another."""
    now = (copy / path).read_bytes()
    if data is not None:
        (copy / path).write_bytes(data)
    done = run((*TORCHWISE, "check", "--format", "json", "--min-confidence", "likely", path), copy)
    (copy / path).write_bytes(now)
    rows = json.loads(done.stdout)["findings"] if done is not None and done.stdout else []
    return Counter(row["rule"] for row in rows if row["path"] == path and row["severity"] != "hint")


def parses(data: bytes, path: str) -> bool:
    if path.endswith(".ipynb"):
        try:
            json.loads(data)
        except ValueError:
            return False
        return True
    try:
        ast.parse(data)
    except (SyntaxError, ValueError):
        return False
    return True


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for suffix in ("*.py", "*.ipynb") for path in folder.rglob(suffix))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files if path.is_file()}


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None


def show(title: str, tally: Tally) -> None:
    print(f"\n{title}: {tally.files} files, {tally.changed} changed")
    for words, names in (
        ("no longer parse", tally.unparsable),
        ("more findings than before", tally.worse),
        ("change again when fixed again", tally.unstable),
        ("not the same bytes after reversing", tally.not_undone),
        ("failed", tally.failures),
    ):
        print(f"  {len(names):>4}  {words}")
        for name in names[:20]:
            print(f"          {name}")
    if tally.applied or tally.left:
        print(f"  {'rule':<40}{'safety':<10}{'applied':>8}{'left':>8}")
        for kind in sorted({*tally.applied, *tally.left}):
            print(f"  {kind[0]:<40}{kind[1]:<10}{tally.applied[kind]:>8}{tally.left[kind]:>8}")


if __name__ == "__main__":
    sys.exit(main())
