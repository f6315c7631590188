"""Garbage is looked for in pauses, and what is made while somebody types is set aside."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from torchwise_server.lsp import collector
from torchwise_server.lsp.collector import PauseCollector


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the collector does, in order; nothing is really walked."""
    done: list[str] = []
    monkeypatch.setattr(collector, "_PAUSE_S", 0.01)
    monkeypatch.setattr(collector, "_MOST_NEW", 100)
    monkeypatch.setattr(collector, "_return_free_memory", lambda: done.append("return"))
    monkeypatch.setattr(collector, "_share_one_heap", lambda: None)
    monkeypatch.setattr(gc, "collect", lambda: len(done.__iadd__(["collect"])))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: done.append("unfreeze"))
    yield done
    monkeypatch.undo()
    gc.enable()


async def test_the_first_pause_walks_everything(walks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 0))
    pauses = PauseCollector()
    pauses.start()
    pauses.poke()
    assert walks == []
    await asyncio.sleep(0.05)
    assert walks == ["unfreeze", "collect", "freeze", "return"]
    pauses.poke()
    await asyncio.sleep(0.05)
    assert walks[4:] == ["collect", "freeze"], "what is new since then is enough"
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 10_000_000)
    pauses.poke()
    await asyncio.sleep(0.05)
    assert walks[6:] == ["unfreeze", "collect", "freeze", "return"], "much more is kept"


async def test_free_memory_is_given_back_now_and_then(
    walks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 0))
    monkeypatch.setattr(collector, "_RETURN_S", 0.0)
    pauses = PauseCollector()
    pauses.start()
    for _ in range(2):
        pauses.poke()
        await asyncio.sleep(0.05)
    assert walks[4:] == ["collect", "freeze", "return"]


async def test_nothing_is_walked_while_somebody_types(
    walks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "get_count", lambda: (101, 0, 0))
    pauses = PauseCollector()
    pauses.start()
    for _ in range(3):
        pauses.poke()
    assert walks == ["freeze"] * 3
    pauses.poke()
    assert "collect" in walks, "not for ever"
