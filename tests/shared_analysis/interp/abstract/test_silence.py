"""What is lost on the way is counted, in which function and why."""

from __future__ import annotations

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text

TEXT = """
import sys
import torch
import unseen


def stop():
    print("no")
    raise SystemExit


def check(flag):
    if flag:
        stop()
        print("never")


def again(n):
    return again(n - 1)


def train(loader, flag):
    check(flag)
    again(3)
    for batch in loader:
        unseen.thing.other(batch)[0](batch).backward()
"""


def test_losses_are_counted_by_function() -> None:
    silence = run(lower_text("train.py", TEXT), Project(())).silence
    assert silence.failed == ()
    found = {(function, what) for _, function, what, _ in silence.by_function}
    assert {("check", "dead_paths"), ("again", "cut"), ("train", "unknown_calls")} <= found
    for what in ("dead_paths", "cut", "unknown_calls", "skipped", "lost", "unknown_backwards"):
        assert getattr(silence, what) == sum(n for *_, name, n in silence.by_function if name == what)
