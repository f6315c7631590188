"""The incremental document equals a fresh one, whatever was typed into it.

`TORCHWISE_LONG_TESTS=1` runs the property on many more texts.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.shared_analysis.source.support import (
    BROKEN,
    NEWER,
    SNIPPETS,
    flat,
    library_files,
    library_text,
)

from torchwise_analysis.source import Document
from torchwise_analysis.source.document import CommentToken
from torchwise_analysis.source.lines import count_breaks, line_starts, split_lines
from torchwise_analysis.source.lower_text import whole
from torchwise_analysis.source.nodes import Block, Broken, ClassDef, FunctionDef, Placed
from torchwise_analysis.source.scanner import LineTable

SLOW_AND_LARGE = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)
EXAMPLES = 3_000 if os.environ.get("TORCHWISE_LONG_TESTS") else 120

TYPED = (
    *("(", ")", "[", "]", "{", "}", "'", '"', '"""', "'''", "\\", "\\\n", "#", ":", "=", ",", ";", ".", " "),
    *("\n", "\r\n", "\r", "\t", "\x0c", "\ufeff", "\u2028", "\n    ", "\n        ", "\n\n\n", "    "),
    *("é", "x = 1", "def f(x):", "class A:", "async ", "@dec\n", "else:", "elif x:", "except:", "finally:"),
    *("return", "import os", "from a import (", "with a as b:", "for x in y:", "if x:", "lambda", "yield"),
    *('f"{x', 'f"{a}"', 'f"{a["b"]}"', "match x:\n  case 1: pass\n", "type X = int\n", "def f[T](x): pass\n"),
    *("global x", "pass\n", "\x0c\n", "x = [\n", "]\n", "foo(\n"),
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A snippet, or some lines of a library file."""
    if draw(st.booleans()):
        pieces = draw(st.lists(st.sampled_from(SNIPPETS + NEWER + BROKEN), min_size=1, max_size=6))
        return "".join(pieces)
    files = library_files()
    text = library_text(files[draw(st.integers(0, len(files) - 1))]) or ""
    lines = text.split("\n")[:3_000]
    first = draw(st.integers(0, len(lines)))
    text = "\n".join(lines[first : first + draw(st.sampled_from([5, 60, 300]))])
    return text.replace("\n", "\r\n") if draw(st.integers(0, 4)) == 0 else text


def _edit(draw: st.DataObject, document: Document) -> None:
    """One edit of a document, checked against the same edit of its text."""
    text = document.text
    starts = line_starts(text)
    lines = split_lines(text)
    line = draw.draw(st.integers(0, len(lines) - 1))
    column = draw.draw(st.integers(0, len(lines[line])))
    end_line = min(len(lines) - 1, line + draw.draw(st.sampled_from([0, 0, 0, 1, 5, 40])))
    lowest = column if end_line == line else 0
    end_column = draw.draw(
        st.sampled_from([lowest, min(lowest + 1, len(lines[end_line])), len(lines[end_line])])
    )
    end_column = max(lowest, end_column)
    new = draw.draw(st.sampled_from(("", *TYPED)))
    expected = text[: starts[line] + column] + new + text[starts[end_line] + end_column :]
    document.edit(line, column, end_line, end_column, new)
    assert document.text == expected


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=SLOW_AND_LARGE)
@given(texts(), st.data())
def test_document_after_edits_equals_a_fresh_one(text: str, data: st.DataObject) -> None:
    document = Document("edited.py", text, stale_seconds=0)
    earlier: list[str] = []
    for _ in range(data.draw(st.integers(1, 8))):
        if earlier and data.draw(st.integers(0, 3)) == 0:
            document.replace(earlier.pop())
        else:
            earlier.append(document.text)
            _edit(data, document)
        if data.draw(st.booleans()):
            _assert_fresh(document)
    _assert_fresh(document)


def _assert_fresh(document: Document) -> None:
    text = document.text
    fresh = Document("edited.py", text, stale_seconds=0)
    assert document.module == fresh.module
    assert document.stale == ()
    assert document.line_count == fresh.module.line_count == count_breaks(text) + 1
    assert document.comments() == fresh.comments()
    try:
        expected: Block = whole(text)
    except (SyntaxError, RecursionError):
        return
    assert fresh.module.problems == ()
    assert flat(fresh.module.body) == flat(expected)


def test_documents_of_library_files_equal_one_parse() -> None:
    for file in random.Random(3).sample(library_files(), 30):
        text = library_text(file)
        if text is None or len(text) > 200_000:
            continue
        try:
            expected = whole(text)
        except SyntaxError:
            continue
        module = Document(str(file), text).module
        assert module.problems == (), file
        assert flat(module.body) == flat(expected), file


@pytest.mark.parametrize("text", SNIPPETS + NEWER + BROKEN)
def test_lines_of_the_table_are_the_text(text: str) -> None:
    for relaxed in (False, True):
        table = LineTable.of(text, relaxed)
        assert sum(table.sizes) == len(text)
        assert sum(table.rows) == count_breaks(text)


LONG_CLASS = "class A:\n" + "".join(f"    def m{i}(self):\n        return {i}\n\n" for i in range(30))


def test_a_literal_without_a_value_is_broken_and_nothing_more() -> None:
    for text in ('f"\\N{(EM DASH}{x}"\n', 'rf"\\{x}\\n"; f"\\N{(EM DASH}{x}"; f""; "" f"" ""\n'):
        module = Document("e.py", text + "after = 1\n", stale_seconds=0).module
        assert module.problems
        assert module.body


def test_an_edit_keeps_the_other_segments() -> None:
    document = Document("kept.py", LONG_CLASS + "\n\nx = 1\n")
    before = _members(document)
    document.edit(5, 15, 5, 16, "3 + 4")
    after = _members(document)
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, False, *[True] * 28]


def test_a_new_line_moves_what_is_below_and_lowers_nothing_again() -> None:
    document = Document("moved.py", LONG_CLASS)
    before = _members(document)
    document.edit(0, 0, 0, 0, "# a comment\n")
    after = _members(document)
    assert [new.line - old.line for old, new in zip(before, after, strict=True)] == [1] * 30
    assert all(new.body is old.body and new.key == old.key for old, new in zip(before, after, strict=True))


def _members(document: Document) -> list[Placed]:
    placed = document.module.body[0]
    assert isinstance(placed, Placed)
    cls = placed.body[0]
    assert isinstance(cls, ClassDef)
    return [member for member in cls.body if isinstance(member, Placed)]


def test_equal_text_shares_one_lowering() -> None:
    document = Document("twice.py", "def f():\n    return 1\n\ny = 2\n\ndef f():\n    return 1\n")
    first, _, second = document.module.body
    assert isinstance(first, Placed)
    assert isinstance(second, Placed)
    assert first.body is second.body
    assert first.line != second.line


def test_scope_of_a_split_function() -> None:
    lines = ["def f(a):", *(f"    x{i} = a" for i in range(45)), "    def g(): return x1, zz", "    yield x2"]
    document = Document("split.py", "\n".join(lines))
    placed = document.module.body[0]
    assert isinstance(placed, Placed)
    (function,) = placed.body
    assert isinstance(function, FunctionDef)
    assert any(isinstance(statement, Placed) for statement in function.body)
    assert function.scope.captured == {"x1"}
    assert function.scope.free == {"zz"}
    assert function.scope.is_generator
    assert function.scope.local == {"a", "g", *(f"x{i}" for i in range(45))}


# --------------------------------------------------------------------------- broken code


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_broken_segment_keeps_its_last_good_statements_for_a_while() -> None:
    clock = Clock()
    document = Document("stale.py", "a = 1\nb = foo(2)\nc = 3\n", clock=clock, stale_seconds=5.0)
    good = document.module
    document.edit(1, 9, 1, 10, "")
    assert document.module.body == good.body
    assert document.module.problems
    assert document.stale == ((1, 2),)
    assert document.stale_until == 105.0
    document.edit(0, 0, 0, 0, "# moved\n")
    stale = document.module.body[1]
    assert isinstance(stale, Placed)
    assert stale.line == 2
    clock.now = 104.9
    assert not any(isinstance(statement, Broken) for statement in document.module.body)
    clock.now = 105.0
    assert isinstance(document.module.body[1], Broken)
    assert not document.stale


def test_further_wrong_keystrokes_do_not_prolong_a_stand_in() -> None:
    clock = Clock()
    document = Document("stale.py", "b = foo(2)\n", clock=clock, stale_seconds=5.0)
    good = document.module.body
    document.edit(0, 9, 0, 10, "")
    assert document.module.body == good
    clock.now = 103.0
    document.edit(0, 9, 0, 9, ", 4")
    assert document.module.body == good
    assert document.stale_until == 105.0


def test_a_mended_segment_is_new() -> None:
    document = Document("mended.py", "b = foo(2)\n")
    good = document.module
    document.edit(0, 9, 0, 10, "")
    assert document.module.problems
    document.edit(0, 9, 0, 9, ")")
    assert document.module == good
    assert document.stale == ()


def test_an_open_bracket_or_string_darkens_one_statement() -> None:
    text = "def f():\n    a = 1\n    b = 2\n\n\ndef g():\n    '''doc'''\n    return 3\n\n\nx = 1\n"
    for line, column, typed in ((1, 8, "("), (1, 4, "'''"), (0, 0, '"""')):
        document = Document("open.py", text)
        document.edit(line, column, line, column, typed)
        fresh = Document("open.py", document.text).module
        assert sum(isinstance(statement, Broken) for statement in fresh.body) == 1
        assert fresh.body[-2:] == Document("open.py", document.text).module.body[-2:]
        assert all(isinstance(statement, Placed) for statement in fresh.body[-2:])


# --------------------------------------------------------------------------- trees and comments


def test_tree_of_the_segment_at_a_line() -> None:
    text = LONG_CLASS + "\nx = f( a )  # c\n"
    document = Document("tree.py", text)
    found = document.tree_for(4)
    assert found is not None
    assert found.text_of(found.module) == "    def m1(self):\n        return 1\n"
    # line 1 of the tree is the wrapper above line 3 of the document... counted from 0
    assert found.line == 3
    top = document.tree_for(92)
    assert top is not None
    assert top.text_of(top.module) == "x = f( a )  # c\n"
    header = document.tree_for(0)
    assert header is not None
    assert header.text_of(header.module) == "class A:\n"


def test_no_tree_of_broken_code() -> None:
    document = Document("tree.py", "x = (\ndef f(): pass\n")
    assert document.tree_for(0) is None
    assert document.tree_for(1) is not None
    assert Document("empty.py", "").tree_for(0) is None


def test_comments_are_tokens() -> None:
    text = "\ufeff# a\nx = '#no' # b\ny = f(  # c\n  1)\n'''\n# no\n'''\nf'{x:#>3}'\nz = (  # d"
    assert Document("comments.py", text).comments() == (
        CommentToken(0, 1, "# a"),
        CommentToken(1, 10, "# b"),
        CommentToken(2, 8, "# c"),
        CommentToken(8, 7, "# d"),
    )


def test_positions_beyond_the_end_are_the_end() -> None:
    document = Document("end.py", "a\r\nbb")
    document.edit(0, 99, 0, 99, "!")
    document.edit(9, 9, 9, 9, "?")
    assert document.text == "a!\r\nbb?"
    document.edit(-1, 0, 99, 0, "")
    assert document.text == ""
    assert document.module.body == ()


# --------------------------------------------------------------------------- hostile texts

HOSTILE = {
    "1,000 nested parentheses": "x = " + "(" * 1_000 + "1" + ")" * 1_000 + "\ny = 2\n",
    "10,000 nested lists": "x = " + "[" * 10_000 + "]" * 10_000 + "\ny = 2\n",
    "10,000 open lists": "x = " + "[" * 10_000 + "\ny = 2\n",
    "20,000 signs": "x = " + "-" * 20_000 + "1\ny = 2\n",
    "20,000 terms": "x = " + "+".join(["a"] * 20_000) + "\ny = 2\n",
    "20,000 attributes": "x = a" + ".b" * 20_000 + "\ny = 2\n",
    "5,000 elifs": "if a: pass\n" + "elif a: pass\n" * 5_000 + "y = 2\n",
    "500 levels": "".join(" " * i + "if a:\n" for i in range(500)) + " " * 500 + "pass\ny = 2\n",
    "nested fields": "x = f'{" + "f'{" * 5_000 + "\ny = 2\n",
    "newer syntax, nested": "def f[" + "def f[" * 5_000 + "\ny = 2\n",
    "lambdas": "type X = " + "lambda: " * 20_000 + "1\ny = 2\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_deep_nesting_is_a_problem_and_no_crash(name: str) -> None:
    document = Document("deep.py", HOSTILE[name])
    module = document.module
    assert isinstance(module.body[-1], Placed)
    assert len(module.problems) == 1
    document.edit(0, 0, 0, 0, "z")
    assert document.module.problems
    assert document.tree_for(0) is None


def test_a_line_of_a_megabyte() -> None:
    document = Document("wide.py", "x = '" + "a" * 1_000_000 + "'\ny = 2\n")
    assert len(document.module.body) == 2
    document.edit(0, 500_000, 0, 500_001, "b")
    assert len(document.module.body) == 2
    assert document.module.problems == ()


def test_two_hundred_thousand_lines() -> None:
    document = Document("long.py", "x = 1\n\n" * 100_000)
    assert len(document.module.body) == 100_000
    document.edit(100_000, 4, 100_000, 5, "2")
    assert document.module.problems == ()


def test_many_open_lines_are_bounded() -> None:
    document = Document("open.py", "foo(\n" * 2_000)
    assert len(document.module.problems) == 2_000


def test_memory_is_bounded_while_typing() -> None:
    text = LONG_CLASS * 40
    document = Document("typed.py", text)
    for i in range(600):
        document.edit(5, 15, 5, 16, str(i % 10))
        assert document.module.problems == ()
    kept = sum(len(key[0]) for key in document._cache._segments)
    assert kept < 6 * len(text) + 2_000_000


def test_old_text_is_kept_within_bounds() -> None:
    document = Document("train.py", "def f():\n    pass\n" * 20)
    for number in range(3_000):
        document.edit(1, 4, 1, 100, f"value = {number}")
        assert document.module.problems == ()
    kept = sum(len(key[0]) for key in document._cache._segments)
    assert kept < 20_000
    assert document.module == Document("train.py", document.text).module
