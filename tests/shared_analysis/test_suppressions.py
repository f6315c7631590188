"""Which comments silence what, and what is said about those that silence nothing."""

from __future__ import annotations

import pytest

from torchwise_analysis.findings import Also, Confidence, Finding, Place, Severity
from torchwise_analysis.fixes import SourceFile, apply_edits
from torchwise_analysis.settings import Settings
from torchwise_analysis.source.nodes import Span
from torchwise_analysis.suppressions import apply, comments, ignore_here, ignore_in_file, named_in_comments

NAMES = {
    "retained-graph": "retained-graph",
    "TW101": "retained-graph",
    "unguarded-eval": "unguarded-eval",
    "TW102": "unguarded-eval",
}
ALL = frozenset(NAMES.values())


def finding(rule: str, line: int, end_line: int | None = None, also: tuple[Also, ...] = ()) -> Finding:
    place = Place("a.py", Span(line, 0, line if end_line is None else end_line, 1))
    return Finding("TW000", rule, Severity.ERROR, Confidence.CERTAIN, rule, place, also=also)


def check(
    text: str,
    *findings: Finding,
    settings: Settings | None = None,
    enabled: frozenset[str] = ALL,
    is_complete: bool = True,
) -> tuple[list[str], list[Finding], SourceFile]:
    """Rules left, rules of hints, and the file after all removing fixes (last fix of each hint)."""
    file = SourceFile("a.py", text)
    left, silenced = apply(file, findings, settings or Settings(), NAMES, enabled, is_complete)
    hints = [f for f in left if f.severity is Severity.HINT]
    kept = [f.rule for f in left if f.severity is not Severity.HINT]
    assert len(kept) + silenced == len(findings)
    return kept, hints, file


@pytest.mark.parametrize(
    "comment",
    [
        "# torchwise: ignore[retained-graph]",
        "# torchwise: ignore[retained-graph] -- three iterations",
        "# torchwise:ignore[ unguarded-eval , retained-graph ]",
        "# type: ignore  # torchwise: ignore[retained-graph]",
        "# torchwise: ignore[TW101]",
        "# noqa: TW101",
        "# noqa: E501, TW101",
        "# NOQA:tw101",
    ],
)
def test_silenced_on_its_line(comment: str) -> None:
    kept, _, _ = check(f"x = 1\nxs.append(loss)  {comment}\n", finding("retained-graph", 1))
    assert kept == []


@pytest.mark.parametrize(
    "line",
    [
        "xs.append(loss)  # noqa",
        "xs.append(loss)  # noqa: E501",
        "xs.append(loss)  # torchwise: ignore",
        "xs.append(loss)  # torchwise: ignore[]",
        "xs.append(loss)  # torchwise: ignore[unguarded-eval]",
        "xs.append('# torchwise: ignore[retained-graph]')",
        "xs.append(f'''# noqa: TW101''')",
    ],
)
def test_not_silenced(line: str) -> None:
    kept, _, _ = check(f"x = 1\n{line}\n", finding("retained-graph", 1))
    assert kept == ["retained-graph"]


def test_first_and_last_line_count_and_no_other() -> None:
    text = "xs.append(\n    loss  # torchwise: ignore[retained-graph]\n)\n"
    assert check(text, finding("retained-graph", 0, 1))[0] == []
    assert check(text, finding("retained-graph", 1, 2))[0] == []
    assert check(text, finding("retained-graph", 0, 2))[0] == ["retained-graph"]


def test_text_in_docstrings_is_no_comment() -> None:
    text = '"""\n# torchwise: ignore-file[retained-graph]\n"""\nxs.append(loss)\n'
    assert check(text, finding("retained-graph", 3))[0] == ["retained-graph"]


def test_a_file_is_ignored_by_a_line_of_its_own_on_top() -> None:
    top = "# torchwise: ignore-file[retained-graph] -- generated\nimport torch\nxs.append(loss)\n"
    assert check(top, finding("retained-graph", 2), finding("unguarded-eval", 2))[0] == ["unguarded-eval"]
    late = "import torch\n# torchwise: ignore-file[retained-graph]\nxs.append(loss)\n"
    assert check(late, finding("retained-graph", 2))[0] == ["retained-graph"]


def test_settings_accept_bare_noqa() -> None:
    text = "xs.append(loss)  # noqa\n"
    assert check(text, finding("retained-graph", 0), settings=Settings(accept_bare_noqa=True))[0] == []


def test_settings_require_a_reason() -> None:
    settings = Settings(require_suppression_reason=True)
    bare = "xs.append(loss)  # torchwise: ignore[retained-graph]\n"
    kept, hints, _ = check(bare, finding("retained-graph", 0), settings=settings)
    assert kept == ["retained-graph"]
    assert [hint.rule for hint in hints] == ["suppression-without-reason"]
    reasoned = "xs.append(loss)  # torchwise: ignore[retained-graph] -- short run\n"
    assert check(reasoned, finding("retained-graph", 0), settings=settings)[:2] == ([], [])


def test_what_a_finding_folded_in_can_be_silenced_alone() -> None:
    also = (Also("retained-graph", Place("a.py", Span(1, 0, 1, 1)), ""),)
    text = "y = m(x)\nxs.append(y)  # torchwise: ignore[retained-graph]\n"
    file = SourceFile("a.py", text)
    left, _ = apply(file, [finding("unguarded-eval", 0, also=also)], Settings(), NAMES, ALL)
    assert [(f.rule, f.also) for f in left] == [("unguarded-eval", ())]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = 1  # torchwise: ignore[retained-graph]", "x = 1"),
        ("x = 1  # torchwise: ignore[retained-graph] -- why not", "x = 1"),
        ("x = 1  # noqa: TW101", "x = 1"),
        ("x = 1  # noqa: E501, TW101", "x = 1  # noqa: E501"),
        ("x = 1  # noqa: TW101,E501", "x = 1  # noqa: E501"),
        ("x = 1  # keep  # torchwise: ignore[retained-graph]", "x = 1  # keep"),
        ("x = 1  # torchwise: ignore[retained-graph]  # keep", "x = 1  # keep"),
        ("# torchwise: ignore-file[retained-graph]", None),
    ],
)
def test_an_unused_comment_is_a_hint_with_a_removing_fix(line: str, expected: str | None) -> None:
    _, hints, file = check(f"{line}\ny = 2\n")
    (hint,) = hints
    assert hint.rule == "unused-suppression"
    fixed = apply_edits(file, hint.fixes[-1].edits)
    assert fixed == ("y = 2\n" if expected is None else f"{expected}\ny = 2\n")


@pytest.mark.parametrize(
    ("line", "named", "removed"),
    [
        (
            "xs.append(loss)  # torchwise: ignore",
            "xs.append(loss)  # torchwise: ignore[retained-graph]",
            "xs.append(loss)",
        ),
        (
            "xs.append(loss)  # torchwise: ignore -- on purpose",
            "xs.append(loss)  # torchwise: ignore[retained-graph] -- on purpose",
            "xs.append(loss)",
        ),
        (
            "xs.append(loss)  # torchwise: ignore[ ]",
            "xs.append(loss)  # torchwise: ignore[retained-graph]",
            "xs.append(loss)",
        ),
        (
            "xs.append(loss)  # torchwise: ignore # type: ignore",
            "xs.append(loss)  # torchwise: ignore[retained-graph] # type: ignore",
            "xs.append(loss)  # type: ignore",
        ),
    ],
)
def test_a_comment_without_names_is_a_hint_that_names_or_removes(line: str, named: str, removed: str) -> None:
    text = f"x = 1\n{line}\ny = 2\n"
    kept, hints, file = check(text, finding("retained-graph", 1))
    assert kept == ["retained-graph"]
    (hint,) = hints
    assert (hint.rule, hint.place.span.line) == ("unused-suppression", 1)
    texts = [apply_edits(file, fix.edits) for fix in hint.fixes]
    assert texts == [f"x = 1\n{new}\ny = 2\n" for new in (named, removed)]
    assert check(texts[0], finding("retained-graph", 1))[:2] == ([], [])
    assert check(texts[1])[:2] == ([], [])


def test_a_comment_without_names_where_nothing_is_reported_can_only_go() -> None:
    _, (hint,), file = check("# torchwise: ignore\nx = 1\n")
    assert [apply_edits(file, fix.edits) for fix in hint.fixes] == ["x = 1\n"]


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n# torchwise: ignore-file[retained-graph]\nxs.append(loss)\n",
        "xs.append(loss)  # torchwise: ignore-file[retained-graph]\n",
    ],
)
def test_a_comment_for_the_file_in_another_place_is_a_hint(text: str) -> None:
    kept, (hint,), file = check(text, finding("retained-graph", text.count("\n") - 1))
    assert kept == ["retained-graph"]
    assert "first statement" in hint.message
    assert "torchwise" not in apply_edits(file, hint.fixes[-1].edits)


def test_a_comment_for_the_file_without_names_gets_them() -> None:
    text = "# torchwise: ignore-file\nxs.append(loss)\n"
    _, (hint,), file = check(text, finding("retained-graph", 1), finding("unguarded-eval", 1))
    named = apply_edits(file, hint.fixes[0].edits)
    assert named.splitlines()[0] == "# torchwise: ignore-file[retained-graph, unguarded-eval]"


def test_other_words_of_ours_are_no_suppressions() -> None:
    text = "x = f()  # torchwise: batch=8\n# torchwise is a tool to ignore\n"
    assert check(text)[:2] == ([], [])


def test_one_unused_name_of_several_goes_alone() -> None:
    text = "xs.append(loss)  # torchwise: ignore[retained-graph, unguarded-eval] -- ok\n"
    _, hints, file = check(text, finding("retained-graph", 0))
    (hint,) = hints
    assert apply_edits(file, hint.fixes[-1].edits) == (
        "xs.append(loss)  # torchwise: ignore[retained-graph] -- ok\n"
    )
    _, hints, file = check(text, finding("unguarded-eval", 0))
    assert apply_edits(file, hints[0].fixes[-1].edits) == (
        "xs.append(loss)  # torchwise: ignore[unguarded-eval] -- ok\n"
    )


def test_an_unknown_name_gets_a_suggestion() -> None:
    text = "xs.append(loss)  # torchwise: ignore[retain-graph]\n"
    kept, hints, file = check(text, finding("retained-graph", 0))
    assert kept == ["retained-graph"]
    (hint,) = hints
    assert hint.rule == "unknown-suppression"
    assert "did you mean 'retained-graph'?" in hint.message
    assert apply_edits(file, hint.fixes[0].edits) == "xs.append(loss)  # torchwise: ignore[retained-graph]\n"


def test_nothing_is_called_unused_when_its_rule_did_not_run() -> None:
    text = "x = 1  # torchwise: ignore[retained-graph]\n"
    assert check(text, enabled=frozenset({"unguarded-eval"}))[1] == []
    assert check(text, is_complete=False)[1] == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("xs.append(loss)", "xs.append(loss)  # torchwise: ignore[retained-graph]"),
        ("x = a # b c", "x = a # b c  # torchwise: ignore[retained-graph]"),
        ("xs.append(loss)  # why", "xs.append(loss)  # why  # torchwise: ignore[retained-graph]"),
        (
            "xs.append(loss)  # torchwise: ignore[unguarded-eval] -- x",
            "xs.append(loss)  # torchwise: ignore[unguarded-eval, retained-graph] -- x",
        ),
    ],
)
def test_the_ignoring_fix_silences_the_finding(line: str, expected: str) -> None:
    file = SourceFile("a.py", line + "\r\n")
    fix = ignore_here(file, finding("retained-graph", 0))
    text = apply_edits(file, fix.edits)
    assert text == expected + "\r\n"
    assert check(text, finding("retained-graph", 0))[0] == []


def test_the_ignoring_fix_completes_a_comment_without_names() -> None:
    file = SourceFile("a.py", "xs.append(loss)  # torchwise: ignore\n")
    text = apply_edits(file, ignore_here(file, finding("retained-graph", 0)).edits)
    assert text == "xs.append(loss)  # torchwise: ignore[retained-graph]\n"


def test_comments_are_found_in_code_that_does_not_parse() -> None:
    text = 'x = (  # one\ns = \'#no\' # two\nt = """# no\n# no"""  # three\nu = \'open # no\nv = 1  # four'
    assert [(c.line, c.text) for c in comments(text)] == [
        (0, "# one"),
        (1, "# two"),
        (3, "# three"),
        (5, "# four"),
    ]


def test_the_ignoring_fix_uses_the_last_line_when_the_first_ends_in_a_string() -> None:
    file = SourceFile("a.py", 'xs.append(f("""a\nb""", loss))\n')
    target = finding("retained-graph", 0, 1)
    text = apply_edits(file, ignore_here(file, target).edits)
    assert text == 'xs.append(f("""a\nb""", loss))  # torchwise: ignore[retained-graph]\n'
    assert check(text, target)[0] == []


def test_comments_of_another_file_silence_what_lies_there() -> None:
    other = SourceFile("b.py", "x = 1  # torchwise: ignore[retained-graph]\n")
    place = Place("b.py", Span(0, 0, 0, 1))
    there = Finding("TW101", "retained-graph", Severity.ERROR, Confidence.CERTAIN, "", place)
    left, silenced = apply(SourceFile("a.py", "y = 1\n"), [there], Settings(), NAMES, ALL, others=[other])
    assert (left, silenced) == ((), 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "# torchwise: ignore-file[retained-graph]\r\n"),
        (
            "#!/usr/bin/python\r\n# -*- coding: utf-8 -*-\r\n",
            "#!/usr/bin/python\r\n# -*- coding: utf-8 -*-\r\n# torchwise: ignore-file[retained-graph]\r\n",
        ),
        ("# why\r\n", "# torchwise: ignore-file[retained-graph]\r\n# why\r\n"),
        (
            "# torchwise: ignore-file[unguarded-eval] -- x\r\n",
            "# torchwise: ignore-file[unguarded-eval, retained-graph] -- x\r\n",
        ),
    ],
)
def test_the_fix_for_the_whole_file_silences_every_line(before: str, after: str) -> None:
    code = '"""Doc."""\r\nxs.append(loss)\r\n'
    file = SourceFile("a.py", before + code)
    line = before.count("\n") + 1
    text = apply_edits(file, ignore_in_file(file, finding("retained-graph", line)).edits)
    assert text == after + code
    assert check(text, finding("retained-graph", 5), finding("retained-graph", 9))[0] == []


def test_words_in_brackets_are_found_in_comments_only() -> None:
    text = 's = "# torchwise: ignore[no]"\nx = 1  # torchwise: ignore[retained-graph, TW2]\n'
    assert [(word, span.line, span.column) for word, span in named_in_comments(text)] == [
        ("retained-graph", 1, 27),
        ("TW2", 1, 43),
    ]
