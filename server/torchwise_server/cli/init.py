"""`torchwise init`: the configuration and the CI files of a project, shown and then written."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from torchwise_analysis.settings import SettingsFinder
from torchwise_server import __version__
from torchwise_server.cli import Exit, UsageError
from torchwise_server.cli.console import report_console
from torchwise_server.cli.given import require_known_gpus
from torchwise_server.cli.options import Parser
from torchwise_server.cli.output import complain, say

_DESCRIPTION = """\
Write what a project needs to use torchwise: a [tool.torchwise] table in pyproject.toml, and a file for each
CI system that is in use (or that --ci names). Everything is shown first, and written only after a yes.
Files that exist are not changed, except pyproject.toml, which gets a table at its end if it has none; for
others the lines to add are printed."""

_EPILOG = """\
examples:
  torchwise init                            look at what would be written, then decide
  torchwise init --gpu a100-80gb --ci github --yes
  torchwise init --ci pre-commit --ci gitlab"""

CI = ("github", "gitlab", "pre-commit")

# A release is what a project pins; installing it is the same in every file below.
_PACKAGE = f"torchwise=={__version__}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """One file: what is written to it (all of it, or at its end), or lines that its owner has to add."""

    path: Path
    text: str
    verb: str  # "write", "add to", or "add by hand to"


def run(words: list[str]) -> int:
    """Show, ask, write."""
    options = parser().parse(words)
    folder = Path(options.folder)
    if not folder.is_dir():
        raise UsageError(f"{options.folder}: no such folder")
    require_known_gpus(options.gpu)
    plans = [_configuration(folder, options.gpu)]
    plans += [_ci_file(name, folder) for name in options.ci or _in_use(folder)]
    found = [plan for plan in plans if plan is not None]
    if not found:
        say("nothing to write: the configuration and the CI files are there")
        return Exit.OK
    for plan in found:
        _show(plan)
    todo = [plan for plan in found if plan.verb != "add by hand to"]
    if not todo:
        return Exit.OK
    if not options.yes and not _agreed(len(todo)):
        complain("nothing was written; --yes writes without asking")
        return Exit.FINDINGS
    for plan in todo:
        _write(plan)
        say(f"wrote {plan.path}")
    return Exit.OK


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("init", _DESCRIPTION, _EPILOG)
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="the project (default: .)")
    parser.add_argument(
        "--ci", action="append", choices=CI, help="a file for this system (default: those in use); repeat it"
    )
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="NAME",
        help="card that estimates compare with; repeat it",
    )
    parser.add_argument("--yes", action="store_true", help="write without asking")
    return parser


# --------------------------------------------------------------------------- what to write


def _configuration(folder: Path, gpus: list[str]) -> _Plan | None:
    loaded = SettingsFinder().find(folder.absolute())
    file = folder / "pyproject.toml"
    if loaded.path is not None and loaded.path.parent == folder.absolute():
        if loaded.problems:
            raise UsageError(f"{file}: {loaded.problems[0].message}")
        return None
    listed = ", ".join(f'"{name}"' for name in gpus)
    lines = [
        "[tool.torchwise]",
        '# select = ["TW1", "missing-zero-grad"]   rules to run; all by default',
        '# ignore = ["per-step-host-sync"]         rules not to run',
        '# extend-exclude = ["third_party"]        folders and files to pass over',
        f"gpus = [{listed}]"
        if gpus
        else '# gpus = ["rtx-4090"]                     cards to compare estimates with',
        "",
    ]
    if not file.exists():
        return _Plan(file, "\n".join(lines), "write")
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    gap = "" if text.endswith("\n\n") or not text else "\n" if text.endswith("\n") else "\n\n"
    return _Plan(file, gap + "\n".join(lines), "add to")


def _in_use(folder: Path) -> list[str]:
    """The CI systems that the folder shows signs of."""
    signs = {
        "github": folder / ".github",
        "gitlab": folder / ".gitlab-ci.yml",
        "pre-commit": folder / ".pre-commit-config.yaml",
    }
    return [name for name, sign in signs.items() if sign.exists()]


def _ci_file(name: str, folder: Path) -> _Plan | None:
    path, text = _CI_FILES[name]
    file = folder / path
    if not file.exists():
        return _Plan(file, _CI_HEADS.get(name, "") + text, "write")
    if "torchwise" in file.read_text(encoding="utf-8", errors="replace"):
        return None
    return _Plan(file, text, "add by hand to")


_GITHUB = f"""\
name: torchwise
on:
  push:
    branches: [main, master]
  pull_request:
permissions:
  contents: read
  security-events: write  # to upload findings to code scanning
jobs:
  torchwise:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683  # v4.2.2
        with:
          persist-credentials: false
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065  # v5.6.0
        with:
          python-version: "3.12"
      - run: python -m pip install {_PACKAGE}
      - run: torchwise check . --format sarif --output-file torchwise.sarif
      - uses: github/codeql-action/upload-sarif@ff0a06e83cb2de871e5a09832bc6a81e7276941f  # v3.28.18
        if: always() && hashFiles('torchwise.sarif') != ''
        with:
          sarif_file: torchwise.sarif
          category: torchwise
"""

_GITLAB = f"""\
torchwise:
  stage: test
  image: python:3.12-slim
  script:
    - python -m pip install {_PACKAGE}
    - torchwise check . --format gitlab --output-file gl-code-quality-report.json
  artifacts:
    when: always
    reports:
      codequality: gl-code-quality-report.json
"""

_PRE_COMMIT = f"""\
  - repo: local
    hooks:
      - id: torchwise
        name: torchwise check
        entry: torchwise check
        language: python
        additional_dependencies: ["{_PACKAGE}"]
        types_or: [python, jupyter]
        require_serial: true
"""

_CI_FILES = {
    "github": (".github/workflows/torchwise.yml", _GITHUB),
    "gitlab": (".gitlab-ci.yml", _GITLAB),
    "pre-commit": (".pre-commit-config.yaml", _PRE_COMMIT),
}
_CI_HEADS = {"pre-commit": "repos:\n"}


# --------------------------------------------------------------------------- showing and writing


def _show(plan: _Plan) -> None:
    from rich.text import Text

    console = report_console()
    console.print(Text(f"{plan.verb} {plan.path}", style="bold"))
    for line in plan.text.strip("\n").split("\n"):
        console.print(Text(f"  {line}", style="green"), no_wrap=True, overflow="ignore", crop=False)
    console.print()


def _agreed(number: int) -> bool:
    if not sys.stdin.isatty():
        return False
    sys.stdout.write(f"Write {'this file' if number == 1 else f'these {number} files'}? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _write(plan: _Plan) -> None:
    from torchwise_server.cli.writing import NotWrittenError, write_new

    try:
        before = plan.path.read_bytes() if plan.verb == "add to" else b""
        newline = b"\r\n" if b"\r\n" in before else b"\n"
        plan.path.parent.mkdir(parents=True, exist_ok=True)
        write_new(plan.path, before + plan.text.encode().replace(b"\n", newline))
    except (OSError, NotWrittenError) as error:
        raise UsageError(f"{plan.path}: {getattr(error, 'strerror', None) or error}") from None
