"""Edits keep every other byte, stand where they belong, and are verified before they are offered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchwise_analysis.findings import Confidence, Edit, Finding, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import (
    OverlappingEditsError,
    SourceFile,
    append_call,
    apply_edits,
    expression_at,
    indent_under,
    indentation_unit,
    innermost_statement,
    insert_statement_after,
    insert_statement_before,
    is_offerable,
    name_for_member,
    name_for_module,
    repair,
    wrap,
)
from torchwise_analysis.source.nodes import Span


def source(text: str) -> SourceFile:
    return SourceFile("a.py", text)


def span_of(text: str, part: str) -> Span:
    """Where the only occurrence of `part` stands (on one line)."""
    assert text.count(part) == 1
    before = text[: text.index(part)].replace("\r\n", "\n").replace("\r", "\n")
    line, column = before.count("\n"), len(before) - (before.rfind("\n") + 1)
    return Span(line, column, line, column + len(part))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_statement_is_inserted_with_the_file_s_newline_and_indentation(newline: str) -> None:
    text = newline.join(
        ["def f(loss, opt):", "\tif loss:", "\t\tloss.backward()  # go", "\t\topt.step()", ""]
    )
    file = source(text)
    before = insert_statement_before(file, 2, 2, "opt.zero_grad()")
    assert before is not None
    assert apply_edits(file, [before]) == text.replace(
        "\t\tloss.b", f"\t\topt.zero_grad(){newline}\t\tloss.b"
    )
    after = insert_statement_after(file, span_of(text, "opt.step()"), "opt.zero_grad()")
    assert after is not None
    assert apply_edits(file, [after]) == text + f"\t\topt.zero_grad(){newline}"


def test_a_statement_after_the_last_line_without_newline() -> None:
    file = source("opt.step()")
    edit = insert_statement_after(file, Span(0, 0, 0, 10), "opt.zero_grad()")
    assert edit is not None
    assert apply_edits(file, [edit]) == "opt.step()\nopt.zero_grad()"


def test_a_byte_order_mark_stays_in_front() -> None:
    file = source("\ufeffopt.step()\n")
    edit = insert_statement_before(file, 0, 1, "opt.zero_grad()")
    assert edit is not None
    assert apply_edits(file, [edit]) == "\ufeffopt.zero_grad()\nopt.step()\n"


@pytest.mark.parametrize("text", ["x = 1; loss.backward()\n", "if x: loss.backward()\n"])
def test_no_statement_is_inserted_where_no_line_fits(text: str) -> None:
    file, span = source(text), span_of(text, "loss.backward()")
    assert insert_statement_before(file, span.line, span.column, "pass") is None
    assert insert_statement_after(file, span, "pass") is None


def test_no_statement_is_inserted_before_a_semicolon() -> None:
    file = source("loss.backward(); opt.step()\n")
    assert insert_statement_after(file, Span(0, 0, 0, 15), "pass") is None


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("loss", "loss.detach()"),
        ("out['loss']", "out['loss'].detach()"),
        ("f(x)", "f(x).detach()"),
        ("a.b", "a.b.detach()"),
        ("loss * n", "(loss * n).detach()"),
        ("(loss * n)", "(loss * n).detach()"),
        ("(a) + (b)", "((a) + (b)).detach()"),
        ("-loss", "(-loss).detach()"),
        ("a if b else c", "(a if b else c).detach()"),
    ],
)
def test_a_call_is_appended_to_the_whole_expression(expression: str, expected: str) -> None:
    text = f"xs.append({expression})\n"
    file = source(text)
    span = Span(0, 10, 0, 10 + len(expression))
    node = expression_at(file.module, span)
    if node is None:  # redundant brackets belong to no node
        node = expression_at(file.module, Span(0, 11, 0, 9 + len(expression)))
    assert node is not None
    assert apply_edits(file, append_call(file, node, span, ".detach()")) == f"xs.append({expected})\n"


def test_a_loop_is_put_under_a_with_and_keeps_blank_lines_and_comments() -> None:
    text = "def f(m, xs):\n  for x in xs:\n    m(x)  # one\n\n    # two\n    g(x,\n      1)\n  return 1\n"
    file = source(text)
    edits = indent_under(file, Span(1, 2, 6, 8), "with torch.no_grad():")
    assert edits is not None
    assert apply_edits(file, edits) == (
        "def f(m, xs):\n  with torch.no_grad():\n    for x in xs:\n      m(x)  # one\n\n"
        "      # two\n      g(x,\n"
        "        1)\n  return 1\n"
    )


def test_a_loop_with_a_multiline_string_is_not_indented() -> None:
    text = 'for x in xs:\n    s = """a\nb"""\n    m(x)\n'
    assert indent_under(source(text), Span(0, 0, 3, 8), "with torch.no_grad():") is None


@pytest.mark.parametrize(
    ("text", "name", "added"),
    [
        ("import torch\n", "torch", None),
        ("import torch as t\n", "t", None),
        ("import torch.nn as nn\n", "torch", "import torch\nimport torch.nn as nn\n"),
        ("import torch.nn\n", "torch", None),
        ("from torch import nn\n", "torch", "import torch\nfrom torch import nn\n"),
        ('"""Doc."""\n\nx = 1\n', "torch", '"""Doc."""\nimport torch\n\nx = 1\n'),
        (
            "from __future__ import annotations\nimport os\n",
            "torch",
            "from __future__ import annotations\nimport torch\nimport os\n",
        ),
        ("#!/usr/bin/env python\nx = 1\n", "torch", "#!/usr/bin/env python\nimport torch\nx = 1\n"),
        ("", "torch", "import torch\n"),
    ],
)
def test_an_import_is_added_when_the_name_is_not_bound(text: str, name: str, added: str | None) -> None:
    file = source(text)
    found, edit = name_for_module(file, "torch")
    assert found == name
    assert (None if edit is None else apply_edits(file, [edit])) == added


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch\n", "import copy\n\nimport torch\n"),
        ("import os\n\nimport torch\n", "import copy\nimport os\n\nimport torch\n"),
        ("from . import x\r\n", "import copy\r\n\r\nfrom . import x\r\n"),
    ],
)
def test_imports_of_the_standard_library_stay_a_group(text: str, expected: str) -> None:
    file = source(text)
    _, edit = name_for_module(file, "copy")
    assert edit is not None
    assert apply_edits(file, [edit]) == expected


def test_a_member_import_is_found_under_its_local_name() -> None:
    assert name_for_member(source("from copy import deepcopy as dc\n"), "copy", "deepcopy") == "dc"
    assert name_for_member(source("import copy\n"), "copy", "deepcopy") is None


@pytest.mark.parametrize(
    ("text", "unit"), [("x = 1\n", "    "), ("if x:\n  y\n", "  "), ("def f():\n\treturn\n", "\t")]
)
def test_the_file_s_indentation_is_found(text: str, unit: str) -> None:
    assert indentation_unit(source(text)) == unit


def test_the_innermost_statement_is_absolute() -> None:
    text = "import a\n\n\nclass C:\n    def f(self):\n        if self:\n            self.g()\n"
    found = innermost_statement(source(text).module, span_of(text, "self.g()"))
    assert found is not None
    assert found[1] == span_of(text, "self.g()")


def test_overlapping_edits_are_refused() -> None:
    file = source("abcdef\n")
    edits = [Edit(Place("a.py", Span(0, 0, 0, 4)), "x"), Edit(Place("a.py", Span(0, 3, 0, 5)), "y")]
    with pytest.raises(OverlappingEditsError):
        apply_edits(file, edits)


@given(st.text(alphabet="ab \n\r\tü\f\u2028", max_size=60), st.data())
def test_an_edit_keeps_every_other_character(text: str, data: st.DataObject) -> None:
    file = source(text)
    line = data.draw(st.integers(0, len(file.lines) - 1))
    column = data.draw(st.integers(0, len(file.line(line))))
    end = data.draw(st.integers(column, len(file.line(line))))
    edited = apply_edits(file, [Edit(Place("a.py", Span(line, column, line, end)), "N")])
    start = sum(len(each) for each in file.lines[:line]) + column
    assert edited == text[:start] + "N" + text[start + end - column :]


def finding(rule: str, span: Span, fix: Fix | None = None) -> Finding:
    fixes = () if fix is None else (fix,)
    return Finding("TW000", rule, Severity.ERROR, Confidence.CERTAIN, rule, Place("a.py", span), fixes=fixes)


def test_a_fix_is_offered_only_when_the_finding_goes_and_none_comes() -> None:
    file = source("a\nb\n")
    fix = Fix("wrap", Safety.SAFE, wrap(Place("a.py", Span(0, 0, 0, 1)), "f(\n", ")"))
    mine, other = finding("one", Span(0, 0, 0, 1), fix), finding("two", Span(1, 0, 1, 1))
    moved = finding("two", Span(2, 0, 2, 1))
    before = [mine, other]
    assert is_offerable(file, mine, fix, before, lambda path, text: [moved])
    assert is_offerable(file, mine, fix, before, lambda path, text: [])
    assert not is_offerable(file, mine, fix, before, lambda path, text: None)
    assert not is_offerable(file, mine, fix, before, lambda path, text: [mine, moved])
    assert not is_offerable(
        file, mine, fix, before, lambda path, text: [moved, finding("three", Span(2, 0, 2, 1))]
    )
    assert not is_offerable(file, mine, fix, before, lambda path, text: [moved, moved])


def rename(file: SourceFile, letter: str, text: str) -> Finding | None:
    """A finding about a letter, with a fix that replaces it."""
    if letter not in file.text:
        return None
    column = file.text.index(letter)
    place = Place("a.py", Span(0, column, 0, column + 1))
    return replace(finding(letter, place.span), fixes=(Fix("y", Safety.SAFE, (Edit(place, text),)),))


def always(_: Finding, __: Fix) -> bool:
    return True


def test_fixes_are_applied_one_at_a_time_on_the_result_of_the_last() -> None:
    def found(path: str, text: str) -> list[Finding]:
        one = rename(SourceFile(path, text), "x", "yy")
        return [] if one is None else [one]

    # the finding of the second letter has the key of the first: it is new to the check, and so refused
    repaired = repair(source("axb"), found("a.py", "axb"), always, found)
    assert (repaired.file.text, len(repaired.applied), repaired.left) == ("ayyb", 1, ())
    repaired = repair(source("axbxc"), found("a.py", "axbxc"), always, found)
    assert (repaired.file.text, len(repaired.refused)) == ("axbxc", 1)


def test_overlapping_fixes_are_computed_anew() -> None:
    def found(path: str, text: str) -> list[Finding]:
        file = SourceFile(path, text)
        return [one for letter in "pq" if (one := rename(file, letter, "r")) is not None]

    repaired = repair(source("pq"), found("a.py", "pq"), always, found)
    assert (repaired.file.text, [one.finding.rule for one in repaired.applied]) == ("rr", ["p", "q"])


def test_what_was_refused_is_tried_again_on_what_the_others_left() -> None:
    def found(path: str, text: str) -> list[Finding]:
        file = SourceFile(path, text)
        letters = [one for letter in "pq" if (one := rename(file, letter, "r")) is not None]
        # without q, p brings a new finding
        return [*letters, finding("new", Span(0, 0, 0, 1))] if "q" in text and "p" not in text else letters

    repaired = repair(source("pq"), found("a.py", "pq"), always, found)
    assert (repaired.file.text, [one.finding.rule for one in repaired.applied]) == ("rr", ["q", "p"])
    assert repaired.refused == ()


def test_a_fix_that_never_ends_is_stopped() -> None:
    def found(path: str, text: str) -> list[Finding]:
        place = Place("a.py", Span(0, 0, 0, 0))
        rule = "odd" if len(text) % 2 else "even"
        other = "even" if len(text) % 2 else "odd"
        grow = Fix("grow", Safety.SAFE, (Edit(place, "x"),))
        return [replace(finding(rule, place.span), fixes=(grow,)), finding(other, place.span)]

    def oscillating(path: str, text: str) -> list[Finding]:
        return found(path, text)[:1]

    repaired = repair(source("a"), oscillating("a.py", "a"), always, oscillating)
    assert (repaired.file.text, repaired.applied) == ("a", ())


def test_only_wanted_fixes_are_applied() -> None:
    def found(path: str, text: str) -> list[Finding]:
        one = rename(SourceFile(path, text), "p", "r")
        return [] if one is None else [one]

    repaired = repair(source("p"), found("a.py", "p"), lambda *_: False, found)
    assert (repaired.file.text, len(repaired.left)) == ("p", 1)
