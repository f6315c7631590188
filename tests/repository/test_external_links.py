"""Addresses outside of the repository, as far as they can be judged without a network.

Each is whole, encrypted and of a host that is expected; code on GitHub is named at a commit, so that its
lines stay what they are. Whether what PyTorch's pages are about still exists is asked of an installed one.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.repository.test_repository import ROOT, tracked

HOSTS = {
    "arxiv.org", "deepspeed.readthedocs.io", "docs.oasis-open.org", "docs.pytorch.org", "github.com",
    "huggingface.co", "json-schema.org", "semver.org", "www.deepspeed.ai",
}  # fmt: skip
NAMESPACE = "http://www.w3.org/2000/svg"
ADDRESS = re.compile(r"""https?://[^\s<>"'`\\)\]}]+""")
ON_GITHUB = re.compile(
    r"/[\w-]+/[\w.-]+(?:/(?:issues|pull)/\d+(?:#[\w-]+)?|/(?:blob|tree)/[0-9a-f]{40}(?:/[^#]+(?:#L\d+(?:-L\d+)?)?)?)?/?"
)


def addresses() -> Iterator[tuple[str, Path]]:
    """Every address that a reader may follow; those of tests and of other people's packages are no links."""
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("tests/") or name == "package-lock.json":
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for found in ADDRESS.findall(text):
            if "{" not in found and found != NAMESPACE:
                yield found.rstrip(".,;:"), path


@pytest.fixture(scope="module")
def links() -> list[tuple[str, Path]]:
    return list(addresses())


def test_every_address_is_whole_and_of_an_expected_host(links: list[tuple[str, Path]]) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {link}"
        for link, path in links
        if not link.startswith("https://") or urlsplit(link).hostname not in HOSTS or "…" in link
    ]
    assert wrong == []
    assert len(links) > 500


def test_code_on_github_is_named_at_a_commit(links: list[tuple[str, Path]]) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {link}"
        for link, path in links
        if (parts := urlsplit(link)).hostname == "github.com"
        and not ON_GITHUB.fullmatch(parts.path + (f"#{parts.fragment}" if parts.fragment else ""))
    ]
    assert wrong == []


@pytest.mark.torch
def test_what_pages_of_pytorch_are_about_exists(links: list[tuple[str, Path]]) -> None:
    torch = pytest.importorskip("torch")
    for module in ("nn.utils", "utils.data.distributed", "optim.lr_scheduler", "utils.checkpoint"):
        importlib.import_module(f"torch.{module}")
    pages = {link for link, _ in links if urlsplit(link).hostname == "docs.pytorch.org"}
    named = [
        (name, link)
        for link in pages
        for name in re.findall(r"(?:/generated/|#)torch\.([\w.]+?)(?:\.html|#|$)", link)
    ]
    assert len(named) > 30
    for name, link in named:
        assert reduce(getattr, name.split("."), torch), link
