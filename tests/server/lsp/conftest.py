"""Editors under test: VS Code (UTF-16, pulls), Neovim (UTF-8, pulls), Emacs (UTF-32, is pushed to)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.server.lsp.editor import Editor, launched

_HERE = Path(__file__).parent

FAKE = [sys.executable, "-I", str(_HERE / "fake_server.py")]
REAL = [sys.executable, "-I", "-m", "torchwise_server.lsp", "--stdio"]


@pytest.fixture(params=["visual-studio-code", "neovim", "emacs"])
def client_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def editor(client_name: str) -> AsyncIterator[Editor]:
    """Connected to the server whose engine reads words."""
    async for made in _running(client_name, FAKE):
        yield made


@pytest_asyncio.fixture
async def real_editor(client_name: str) -> AsyncIterator[Editor]:
    """Connected to the product."""
    async for made in _running(client_name, REAL):
        yield made


async def _running(name: str, command: list[str]) -> AsyncIterator[Editor]:
    editor = await launched(name, command)
    yield editor
    await editor.stop()
