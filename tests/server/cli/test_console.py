"""The line that says how far a long run is: on a terminal only, never in a report."""

from __future__ import annotations

import io
import sys

import pytest

from torchwise_server.cli.console import Progress


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding: str, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    @property
    def said(self) -> str:
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode(self.encoding)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("torchwise_server.cli.console.time.monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    return now


def run(clock: list[float], seconds: float, files: int = 10) -> None:
    with Progress(files) as progress:
        for done in range(files):
            progress.advance(done, f"src/a{done}.py")
            clock[0] += seconds


@pytest.mark.parametrize(
    ("encoding", "half"), [("utf-8", "█" * 10 + "░" * 10), ("ascii", "#" * 10 + "." * 10)]
)
def test_a_long_run_shows_a_bar_and_takes_it_away(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, encoding: str, half: str
) -> None:
    terminal = Terminal(encoding, is_terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    run(clock, 1.0)
    assert f"checking {half} 6 of 10  src/a5.py" in terminal.said
    assert terminal.said.endswith("\r\x1b[2K")


@pytest.mark.parametrize(
    ("is_terminal", "term", "seconds"), [(False, "xterm", 1), (True, "dumb", 1), (True, "xterm", 0.01)]
)
def test_nothing_is_shown_where_nobody_needs_it(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, is_terminal: bool, term: str, seconds: float
) -> None:
    terminal = Terminal("utf-8", is_terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", term)
    run(clock, seconds)
    assert terminal.said == ""


def test_a_hostile_name_does_nothing_to_the_terminal(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal("utf-8", is_terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress(3) as progress:
        clock[0] = 5.0
        progress.advance(1, "a\x1b]0;owned\x07\n\r.py")
    assert terminal.said.count("\x1b") == 2  # ours: one line is cleared twice
    assert "\n" not in terminal.said
