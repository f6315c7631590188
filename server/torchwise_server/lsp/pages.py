"""Pages of rules: files, so that an editor can open the explanation of a finding without a network, or, where
somebody publishes the documentation, the page there."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from pathlib import Path

from torchwise_analysis.cache_folder import default_folder
from torchwise_analysis.rules import explain, rule_named
from torchwise_server import __version__
from torchwise_server.lsp.convert import address

logger = logging.getLogger(__name__)


@functools.cache
def page_address(rule: str, published: str = "") -> str | None:
    """The address of the rule's page; None if it has none or cannot be written.

    `published`: the address of a documentation site; without one the page is a file on this machine.
    """
    try:
        found, page = rule_named(rule), explain(rule)
        if found is None or page is None:
            return None
        if published:
            return f"{published.rstrip('/')}/rules/{found.name}.html"
        path = _folder() / f"{found.name}.md"
        _write(path, page)
    except Exception as error:  # a diagnostic without its page is still a diagnostic
        logger.warning("the page of %s cannot be written: %s", rule, error)
        return None
    return address(str(path))


def _folder() -> Path:
    folder = default_folder() / __version__ / "rules"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, text: str) -> None:
    """Whole or not at all: several servers may run."""
    if path.exists() and path.read_text("utf-8") == text:
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).replace(path)
