"""What torchwise reports on public training code, and what a reader made of every error and warning.

    python benchmarks/field_report.py CHECKOUTS [--only OWNER/NAME ...] [--unread]
                                      [--report docs/field-report.md] [--incumbent TORCH_PREFLIGHT]

CHECKOUTS is a folder with one folder per repository, called OWNER_NAME, at the commits of
`data/field_report/repositories.json`. Each repository is checked, every error and warning is looked up among
the verdicts of `data/field_report/verdicts.jsonl`, and the tables are printed or written. `--unread` prints,
as lines of that file, the findings that nobody has judged. `--incumbent` runs torch-preflight on the same
files and keeps its errors and warnings in `data/field_report/incumbent.json`.

A verdict is one of
    defect       the code does what the finding says, and it costs what the finding says;
    intentional  the finding is true, and the author wants it so or it does no harm there;
    limitation   the finding is wrong: a fact that the analyser did not have;
    unresolved   a reader could not settle it, or readers disagree.
A row may hold the verdicts of a second and a third reader; of two, both have to agree, of three, two.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "field_report"
VERDICTS = ("defect", "intentional", "limitation", "unresolved")
LOUD = ("error", "warning")
GRADES = ("certain", "likely", "possible")
GOALS = {"certain": 0.98, "likely": 0.90, "possible": 0.70}  # docs/policy.md
NEAR_LINES = 3  # another tool that marks the same defect may mark a neighbouring line
TIMEOUT_S = 1800
# which framework a finding belongs to: the first of these that its file imports
FRAMEWORKS = (
    ("Lightning", ("lightning", "pytorch_lightning")),
    ("DeepSpeed", ("deepspeed",)),
    ("Accelerate", ("accelerate",)),
    ("TRL", ("trl",)),
    ("Transformers", ("transformers",)),
    ("PyTorch Geometric", ("torch_geometric",)),
    ("torch.distributed", ("torch.distributed", "torch.nn.parallel")),
)


PREFACE = """\
What torchwise reports on {repositories} public repositories ({files:,} Python files, {lines:,}
lines), and what readers made of every error and warning. The verdicts are in
`benchmarks/data/field_report/verdicts.jsonl`; `make field-report CHECKOUTS=folder` checks a folder
of checkouts at the commits below again and rewrites this page.

A **defect** does what the finding says, and costs what it says. **Intentional**: true, but wanted
or harmless there. **Limitation**: the finding is wrong, for want of a fact. **Unresolved**: a
reader could not settle it, or readers disagree. Only defects count as confirmed. Error-level
verdicts were read a second time, independently.

The rules were mended on this code while it was read. The figures say how the tool does on code that
it has been tuned with; on code that it has never seen expect less."""

LIBRARIES = """\
{count} libraries from the Python Package Index ({files:,} files, {lines:,} lines), each checked as a
project of its own in December 2026, before anybody had looked at what the tool says there. One reader
read every error and warning. Then the missing facts were mended: what stands under "reported still" is
a fit. Libraries train little and repeat themselves: 29 of the wrong findings have two causes in one
library (a scaler that is made in two ways, models that come out of a table). Since more code is
followed, the mended rules say two things more there, both wrong, which the tables leave out. Places
and reasons are in `benchmarks/data/field_report/libraries.json`."""

SECOND_LIBRARIES = """\
{count} more libraries ({files:,} files, {lines:,} lines), read in the same way by somebody else after the
first ones had been mended, and again before anything was mended for them: this says how much of the mending
carries over. Places and reasons are in `benchmarks/data/field_report/libraries_second.json`."""

THIRD_LIBRARIES = """\
{count} more libraries ({files:,} files, {lines:,} lines), of kinds that the first two sets have few of, read
by one reader in December 2026 after both had been mended, and again before anything was mended for them. 17
of the wrong findings are in one library, whose training loops were copied from one another and have two
causes between them. What stands under "reported still" is a fit; the mended rules say two things more there,
one of them right, which the tables leave out. Of the 21 wrong findings that were called certain, three came
from callers out of view, so what is certain is not graded by how many callers are seen. Places and reasons
are in `benchmarks/data/field_report/libraries_third.json`."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A public repository at a commit. scope: files and folders that are checked, relative to its root."""

    name: str
    commit: str
    scope: tuple[str, ...]

    def folder(self, checkouts: Path) -> Path:
        return checkouts / self.name.replace("/", "_")

    def link(self, path: str, line: int) -> str:
        return f"[{path}:{line}](https://github.com/{self.name}/blob/{self.commit}/{path}#L{line})"


@dataclass(frozen=True, slots=True)
class Reported:
    """An error or a warning of ours and what its readers said. line counts from 1."""

    repository: Repository
    path: str
    line: int
    rule: str
    severity: str
    confidence: str
    message: str
    framework: str
    verdict: str | None
    why: str
    is_read_twice: bool

    @property
    def key(self) -> Key:
        return (self.repository.name, self.path, self.line, self.rule)


Key = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class Judged:
    """What the first reader wrote, and the verdicts of the second and third where there were any."""

    verdict: str
    why: str
    second: str | None
    third: str | None

    @property
    def settled(self) -> str:
        """Two readers have to agree, where two have read."""
        verdicts = [each for each in (self.verdict, self.second, self.third) if each]
        verdict, count = Counter(verdicts).most_common(1)[0]
        return verdict if count > len(verdicts) / 2 else "unresolved"


def main() -> int:
    arguments = parse_arguments()
    repositories = [
        repository
        for repository in read_repositories()
        if not arguments.only or repository.name in arguments.only
    ]
    missing = [each.name for each in repositories if not each.folder(arguments.checkouts).is_dir()]
    if missing:
        print(f"not in {arguments.checkouts}: {', '.join(missing)}", file=sys.stderr)
        return 2
    judged = read_verdicts()
    reported = [
        finding for repository in repositories for finding in check(repository, arguments.checkouts, judged)
    ]
    if arguments.incumbent:
        keep_incumbent(arguments.incumbent, repositories, arguments.checkouts)
    if arguments.unread:
        print_unread(reported)
        return 0
    sizes = {each.name: size_of(each, arguments.checkouts) for each in repositories}
    text = report(repositories, reported, judged, sizes, read_incumbent())
    if arguments.report:
        arguments.report.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="OWNER/NAME")
    parser.add_argument("--unread", action="store_true")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--incumbent", type=Path, metavar="TORCH_PREFLIGHT")
    return parser.parse_args()


def read_repositories() -> list[Repository]:
    rows = json.loads((DATA / "repositories.json").read_text(encoding="utf-8"))
    return [Repository(row["repo"], row["commit"], tuple(row["scope"])) for row in rows]


def read_verdicts() -> dict[Key, Judged]:
    lines = (DATA / "verdicts.jsonl").read_text(encoding="utf-8").splitlines()
    judged: dict[Key, Judged] = {}
    for number, line in enumerate(lines, start=1):
        row = json.loads(line)
        for verdict in (row["verdict"], row.get("second"), row.get("third")):
            if verdict is not None and verdict not in VERDICTS:
                raise SystemExit(f"verdicts.jsonl:{number}: {verdict!r} is none of {', '.join(VERDICTS)}")
        key = (row["repo"], row["path"], row["line"], row["rule"])
        if key in judged:
            raise SystemExit(f"verdicts.jsonl:{number}: judged before: {key}")
        judged[key] = Judged(row["verdict"], row["why"], row.get("second"), row.get("third"))
    return judged


def check(repository: Repository, checkouts: Path, judged: dict[Key, Judged]) -> list[Reported]:
    """All errors and warnings of any grade in the repository's scope."""
    folder = repository.folder(checkouts)
    command = [sys.executable, "-m", "torchwise_server", "check", "--format", "json"]
    command += ["--min-confidence", "possible", *repository.scope]
    answer = json.loads(output_of(command, folder))
    loud = [row for row in answer["findings"] if row["severity"] in LOUD]
    frameworks = {path: framework_of(folder / path) for path in {row["path"] for row in loud}}
    return [reported(row, repository, frameworks[row["path"]], judged) for row in loud]


def reported(
    row: dict[str, Any], repository: Repository, framework: str, judged: dict[Key, Judged]
) -> Reported:
    verdict = judged.get((repository.name, row["path"], row["line"], row["rule"]))
    return Reported(
        repository=repository,
        path=row["path"],
        line=row["line"],
        rule=row["rule"],
        severity=row["severity"],
        confidence=row["confidence"],
        message=row["message"],
        framework=framework,
        verdict=verdict.settled if verdict else None,
        why=verdict.why if verdict else "",
        is_read_twice=bool(verdict and verdict.second),
    )


def output_of(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if not done.stdout:
        raise SystemExit(f"{folder.name}: {done.stderr.strip()}")
    return done.stdout


def framework_of(path: Path) -> str:
    """The first framework of FRAMEWORKS that the file imports; plain PyTorch without any."""
    try:
        imported = imports_of(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError):  # a notebook, or Python 2
        return "other"
    for name, packages in FRAMEWORKS:
        if any(module == each or module.startswith(f"{each}.") for module in imported for each in packages):
            return name
    return "plain PyTorch"


def imports_of(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def size_of(repository: Repository, checkouts: Path) -> tuple[int, int]:
    """Python files and lines of the scope."""
    folder = repository.folder(checkouts)
    files = {
        path
        for part in repository.scope
        for path in ([folder / part] if part.endswith(".py") else (folder / part).rglob("*.py"))
    }
    return len(files), sum(path.read_bytes().count(b"\n") for path in files if path.is_file())


# ---- torch-preflight on the same files


def keep_incumbent(executable: Path, repositories: Iterable[Repository], checkouts: Path) -> None:
    kept = read_incumbent()
    for repository in repositories:
        folder = repository.folder(checkouts)
        output = output_of([str(executable), "check", "--format", "json", *repository.scope], folder)
        rows = incumbent_rows(json.loads(output))
        kept[repository.name] = [row for row in rows if row["severity"] in LOUD]
    text = json.dumps(dict(sorted(kept.items())), indent=1)
    (DATA / "incumbent.json").write_text(text + "\n", encoding="utf-8")


def incumbent_rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"path": row["path"], "line": row["line"], "rule": row["code"], "severity": row["severity"]}
        for row in answer["diagnostics"]
    ]


def read_incumbent() -> dict[str, list[dict[str, Any]]]:
    path = DATA / "incumbent.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


# ---- the report


def print_unread(findings: Iterable[Reported]) -> None:
    for each in findings:
        if each.verdict is None:
            row = {"repo": each.repository.name, "path": each.path, "line": each.line, "rule": each.rule}
            told = {"severity": each.severity, "confidence": each.confidence, "message": each.message}
            print(json.dumps({**row, "verdict": "", "why": "", "told": told}))


def report(
    repositories: Sequence[Repository],
    findings: Sequence[Reported],
    judged: dict[Key, Judged],
    sizes: dict[str, tuple[int, int]],
    incumbent: dict[str, list[dict[str, Any]]],
) -> str:
    files, lines = (sum(size[i] for size in sizes.values()) for i in (0, 1))
    errors = [each for each in findings if each.severity == "error"]
    parts = [
        "# Field report",
        PREFACE.format(repositories=len(repositories), files=files, lines=lines),
        "## How often a finding is right",
        rates("grade", findings, lambda each: each.confidence, GRADES, goals=GOALS),
        "What is shown by default (certain and likely):",
        rates("severity", [each for each in findings if each.confidence != "possible"], severity_of, LOUD),
        f"Errors of any grade: {len(errors)}, read twice: {sum(each.is_read_twice for each in errors)}.",
        "## By rule",
        rates("rule", findings, lambda each: each.rule),
        "## By framework",
        "The framework is that of the file's imports.",
        rates("framework", findings, lambda each: each.framework),
        "## By repository",
        "torch-preflight 0.5.0 on the same files: its errors and warnings, and how many of our confirmed "
        f"defects it reports within {NEAR_LINES} lines, under any of its rules; a dash: not run.",
        by_repository(repositories, findings, sizes, incumbent),
        *libraries(),
        "## Every finding",
        *(every(findings, verdict) for verdict in (*VERDICTS, None)),
        "## Mended",
        "What an earlier state reported wrongly and no longer does; kept, so that it does not come back.",
        mended(repositories, findings, judged),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def rates(
    title: str,
    findings: Sequence[Reported],
    group: Callable[[Reported], str],
    order: Sequence[str] = (),
    goals: dict[str, float] | None = None,
) -> str:
    groups: dict[str, Counter[str | None]] = defaultdict(Counter)
    for each in findings:
        groups[group(each)][each.verdict] += 1
    names = order or sorted(groups, key=lambda name: (-groups[name].total(), name))
    head = [title, "findings", *VERDICTS, "unread", "confirmed", "95 % interval"]
    rows = [
        [
            name,
            str(groups[name].total()),
            *(str(groups[name][verdict]) for verdict in (*VERDICTS, None)),
            share(groups[name]),
            interval(groups[name]),
        ]
        for name in names
        if groups[name]
    ]
    if goals is None:
        return table(head, rows)
    return table([*head, "goal"], [[*row, f"{goals[row[0]]:.0%}"] for row in rows])


def share(counts: Counter[str | None]) -> str:
    read = counts.total() - counts[None]
    return f"{counts['defect'] / read:.0%}" if read else "–"


def interval(counts: Counter[str | None]) -> str:
    """Wilson's score interval of the confirmed share."""
    n = counts.total() - counts[None]
    if not n:
        return "–"
    z = 1.96
    p = counts["defect"] / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return f"{max(0.0, middle - half):.0%}–{min(1.0, middle + half):.0%}"


def by_repository(
    repositories: Sequence[Repository],
    findings: Sequence[Reported],
    sizes: dict[str, tuple[int, int]],
    incumbent: dict[str, list[dict[str, Any]]],
) -> str:
    rows: list[list[str]] = []
    for repository in sorted(repositories, key=lambda each: each.name.lower()):
        own = [each for each in findings if each.repository == repository]
        defects = [each for each in own if each.verdict == "defect"]
        theirs = incumbent.get(repository.name)
        rows.append(
            [
                f"[{repository.name}](https://github.com/{repository.name}/tree/{repository.commit})",
                f"`{repository.commit[:10]}`",
                f"{sizes[repository.name][1]:,}",
                str(len(own)),
                str(len(defects)),
                "–" if theirs is None else str(len(theirs)),
                "–" if theirs is None else str(sum(is_also_reported(each, theirs) for each in defects)),
            ]
        )
    head = ["repository", "commit", "lines", "reported", "confirmed", "torch-preflight", "of ours"]
    return table(head, rows)


def libraries() -> list[str]:
    """What was found in installed libraries that nothing had been tuned with, and what is left of it."""
    return [
        "## On libraries",
        *_read_in("libraries.json", LIBRARIES),
        "### A second set, after the first was mended",
        *_read_in("libraries_second.json", SECOND_LIBRARIES),
        "### A third set, after both were mended",
        *_read_in("libraries_third.json", THIRD_LIBRARIES),
    ]


def _read_in(name: str, words: str) -> list[str]:
    read = json.loads((DATA / name).read_text(encoding="utf-8"))
    found = [row for library in read for row in library["findings"]]
    rows = [[grade, *_counts([row for row in found if row["confidence"] == grade])] for grade in GRADES]
    shown = [row for row in found if row["confidence"] != "possible"]
    rows += [[level, *_counts([row for row in shown if row["severity"] == level])] for level in LOUD]
    by_library = [
        [f"{one['name']} {one['version']}", str(one["files"]), f"{one['lines']:,}", *_counts(one["findings"])]
        for one in read
        if one["findings"]
    ]
    silent = [f"{one['name']} {one['version']}" for one in read if not one["findings"]]
    files, lines = (sum(one[key] for one in read) for key in ("files", "lines"))
    return [
        words.format(count=len(read), files=files, lines=lines),
        table([*_OF_LIBRARIES[:1], *_OF_LIBRARIES[3:]], rows),
        table(_OF_LIBRARIES, by_library),
        f"No error or warning in: {', '.join(silent)}.",
    ]


_OF_LIBRARIES = (
    "",
    "files",
    "lines",
    "findings",
    "defect",
    "intentional",
    "limitation",
    "confirmed",
    "reported still",
    "limitation still",
)


def _counts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Findings by verdict; how many of all, and of the wrong ones, are reported after mending."""
    counts = Counter(row["verdict"] for row in rows)
    still = [row for row in rows if row["is_still_reported"]]
    wrong = sum(row["verdict"] == "limitation" for row in still)
    share_right = f"{counts['defect'] / len(rows):.0%}" if rows else "-"
    numbers = [len(rows), counts["defect"], counts["intentional"], counts["limitation"]]
    return [*map(str, numbers), share_right, str(len(still)), str(wrong)]


def severity_of(finding: Reported) -> str:
    return finding.severity


def is_also_reported(finding: Reported, theirs: Iterable[dict[str, Any]]) -> bool:
    return any(
        row["path"] == finding.path and abs(row["line"] - finding.line) <= NEAR_LINES for row in theirs
    )


def every(findings: Sequence[Reported], verdict: str | None) -> str:
    chosen = sorted(
        (each for each in findings if each.verdict == verdict),
        key=lambda each: (each.rule, each.repository.name.lower(), each.path, each.line),
    )
    if not chosen:
        return ""
    rows = [
        [
            each.rule,
            f"{each.repository.name} {each.repository.link(each.path, each.line)}",
            f"{each.severity}, {each.confidence}",
            each.why,
        ]
        for each in chosen
    ]
    title = (verdict or "not read yet").capitalize()
    return f"### {title} ({len(chosen)})\n\n" + table(["rule", "place", "graded", "because"], rows)


def mended(
    repositories: Sequence[Repository], findings: Iterable[Reported], judged: dict[Key, Judged]
) -> str:
    """Verdicts that were no defect, on findings that are no longer reported."""
    still = {each.key for each in findings}
    by_name = {each.name: each for each in repositories}
    rows = [
        [rule, f"{name} {by_name[name].link(path, line)}", verdict.settled, verdict.why]
        for (name, path, line, rule), verdict in sorted(judged.items())
        if (name, path, line, rule) not in still and verdict.settled != "defect" and name in by_name
    ]
    return table(["rule", "place", "verdict", "because"], rows) if rows else "None."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
