"""The pages in docs/rules are those that the rule files render to."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.rules import all_rules, explain
from torchwise_analysis.rules._framework import RegisteredRule
from torchwise_analysis.rules.pages import drift, main, pages

DOCS = Path(__file__).parents[3] / "docs" / "rules"


def test_pages_are_current() -> None:
    assert drift(DOCS) == (), "run `python -m torchwise_analysis.rules.pages`"


def test_drift_names_missing_stale_and_extra_pages(tmp_path: Path) -> None:
    assert main(["--folder", str(tmp_path)]) == 0
    assert drift(tmp_path) == ()
    (tmp_path / "retained-graph.md").write_text("old", encoding="utf-8")
    (tmp_path / "README.md").unlink()
    (tmp_path / "no-such-rule.md").write_text("", encoding="utf-8")
    assert drift(tmp_path) == (
        "README.md is missing",
        "retained-graph.md differs from its rule",
        "no-such-rule.md belongs to no rule",
    )
    assert main(["--folder", str(tmp_path), "--check"]) == 1
    assert main(["--folder", str(tmp_path)]) == 0
    assert drift(tmp_path) == ()


@pytest.mark.parametrize("entry", all_rules(), ids=lambda entry: entry.rule.name)
def test_explain_answers_to_name_and_code(entry: RegisteredRule) -> None:
    page = explain(entry.rule.name)
    assert page is not None
    assert page == explain(entry.rule.code) == explain(entry.rule.code.lower())
    assert "^^" not in page, "marks belong to the tests, not to the page"
    for heading in ("Why it costs money", "Wrong", "Right", "When it stays silent", "How sure it is", "Fix"):
        assert f"## {heading}\n" in page


def test_explain_knows_no_unknown_rule() -> None:
    assert explain("no-such-rule") is None


def test_the_index_lists_every_rule() -> None:
    index = pages()["README.md"]
    assert all(f"[{entry.rule.name}]({entry.rule.name}.md)" in index for entry in all_rules())
