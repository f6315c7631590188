"""What the documentation site has beyond the files in `docs/`: a hook of mkdocs (`mkdocs.yml`).

The release notes are the changelog. The pages of rules lie in `docs/rules/`, written by
`python -m torchwise_analysis.rules.pages`, and go into the navigation here; the site also marks the lines at
fault in their examples.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from torchwise_analysis.rules import rule_named
from torchwise_analysis.rules._snippets import parse

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


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The wrong program of a rule, which comes first on its page, with the lines at fault marked."""
    folder, _slash, name = page.file.src_uri.rpartition("/")
    rule = rule_named(name.removesuffix(".md")) if folder == "rules" else None
    if rule is None:
        return markdown
    lines = sorted({one.span.line + 1 for one in parse(rule.wrong.code).expected})
    marked = f'```python hl_lines="{" ".join(map(str, lines))}"'
    return markdown.replace("```python", marked, 1)
