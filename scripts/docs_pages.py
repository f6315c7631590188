"""Pages of the documentation that lie elsewhere in the repository.

A hook of mkdocs (`mkdocs.yml`). The release notes are the changelog. The pages of rules lie in `docs/rules/`,
written by `python -m torchwise_analysis.rules.pages`, and go into the navigation here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_config(config: Any) -> Any:
    """Every page of a rule stands under Rules."""
    pages = sorted((ROOT / "docs" / "rules").glob("*.md"))
    rules = [{page.stem: f"rules/{page.name}"} for page in pages if page.name != "README.md"]
    own = [{"All rules": "rules/README.md"}, *rules]
    config.nav = [{"Rules": own} if "Rules" in entry else entry for entry in config.nav]
    return config


def on_files(files: Files, config: Any) -> Files:
    """The changelog, whose links are those of the repository's root."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    notes = text.replace("# Changelog", "# Release notes", 1).replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=notes))
    return files
