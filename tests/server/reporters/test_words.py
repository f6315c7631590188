from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchwise_memory.report import Moment, Phase
from torchwise_server.reporters.words import amount, count, one_line, phase_words, size, visible

GIB = 1 << 30


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536 << 10, "1.50 MiB"),
        (GIB, "1.00 GiB"),
        (int(9.999 * GIB), "10.0 GiB"),
        (int(23.51 * GIB), "23.5 GiB"),
        (640 * GIB, "640 GiB"),
        (-GIB, "-1.00 GiB"),
    ],
)
def test_size(number: int, words: str) -> None:
    assert size(number) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(999, "999"), (12_345, "12,345"), (124_439_808, "124.4 M"), (7_241_732_096, "7.24 B")],
)
def test_amount(number: int, words: str) -> None:
    assert amount(number) == words


def test_count() -> None:
    assert (count(1, "file"), count(0, "file")) == ("1 file", "0 files")


@given(st.text())
def test_nothing_that_acts_on_a_terminal_is_left(text: str) -> None:
    left = visible(text)
    assert not {unicodedata.category(character) for character in left.replace("\t", "").replace("\n", "")} & {
        "Cc",
        "Cs",
    }
    assert not set("\u202e\u2066\u200f\ufeff\u2028") & set(left)


@given(st.text(st.characters(codec="utf-8")))
def test_the_result_can_always_be_encoded(text: str) -> None:
    visible(text).encode("utf-8")


def test_undecodable_file_names_can_be_printed() -> None:
    assert one_line("a\udcff.py") == "a\\udcff.py"


def test_one_line_is_one_line() -> None:
    assert one_line("a\n  b\tc") == "a b c"


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ("fbo", "forward backward optimizer"),
        ("fbfo", "forward backward between optimizer"),
        ("fbfbfo", "forward backward forward backward between optimizer"),
        ("fo", "forward optimizer"),  # nothing went back
        ("fbf", "forward backward forward"),
        ("ofb", "optimizer forward backward"),
        ("", ""),
    ],
)
def test_between_backward_and_step_nothing_goes_forward(phases: str, words: str) -> None:
    named = {"f": Phase.FORWARD, "b": Phase.BACKWARD, "o": Phase.OPTIMIZER}
    assert " ".join(phase_words([Moment(named[letter], None, {}) for letter in phases])) == words
