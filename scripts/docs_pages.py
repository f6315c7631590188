"""Pages of the documentation that are rendered from their declarations when the site is built.

A hook of mkdocs (`mkdocs.yml`). The command-line page is what each command prints for `--help`; the pages of
rules lie in `docs/rules/` already, written by `python -m torchwise_analysis.rules.pages`, and go into the
navigation here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
COLUMNS = "84"  # what the page is wide
HEAD = """\
# Command line

What every command says of itself. The same texts are printed by `torchwise COMMAND --help`.
"""


def on_config(config: Any) -> Any:
    """Every page of a rule stands under Rules."""
    pages = sorted((ROOT / "docs" / "rules").glob("*.md"))
    rules = [{page.stem: f"rules/{page.name}"} for page in pages if page.name != "README.md"]
    own = [{"All rules": "rules/README.md"}, *rules]
    config.nav = [{"Rules": own} if "Rules" in entry else entry for entry in config.nav]
    return config


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "cli.md", content=command_line()))
    return files


def command_line() -> str:
    from torchwise_server.cli import COMMANDS

    parts = [HEAD]
    for name, purpose in COMMANDS.items():
        parts.append(
            f"## torchwise {name}\n\n{purpose[0].upper()}{purpose[1:]}.\n\n```text\n{help_of(name)}\n```\n"
        )
    return "\n".join(parts)


def help_of(command: str) -> str:
    """Raises CalledProcessError, which fails the build, for a command without help."""
    done = subprocess.run(
        [sys.executable, "-m", "torchwise_server", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": COLUMNS, "NO_COLOR": "1"},
    )
    return done.stdout.strip()
