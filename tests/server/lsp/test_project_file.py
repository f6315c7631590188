"""pyproject.toml as text: where a place is, and the edit that ignores a rule."""

from __future__ import annotations

import sys

import pytest

from torchwise_server.lsp.project_file import Spot, ignoring, new_file, spot_at
from torchwise_server.lsp.text import Position, Text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RULE = "retained-graph"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[tool.torchwise]\nignore = ["retained-graph"]\n'),
        ("[project]\nname = 'x'", None),
        ("[a]\nb = 1\n", '[a]\nb = 1\n\n[tool.torchwise]\nignore = ["retained-graph"]\n'),
        (
            '[tool.torchwise]  # ours\ngpus = ["t4"]\n[b]\nignore = ["E5"]\n',
            '[tool.torchwise]  # ours\nignore = ["retained-graph"]\ngpus = ["t4"]\n[b]\nignore = ["E5"]\n',
        ),
        ("[tool.torchwise]", None),
        ("[tool.torchwise]\nignore = []\n", '[tool.torchwise]\nignore = ["retained-graph"]\n'),
        ('[tool.torchwise]\nignore = ["TW2"]\n', '[tool.torchwise]\nignore = ["TW2", "retained-graph"]\n'),
        (
            '[tool.torchwise]\r\nignore = [\r\n  "TW2",  # why ] not\r\n]\r\n',
            '[tool.torchwise]\r\nignore = [\r\n  "TW2",\r\n  "retained-graph",  # why ] not\r\n]\r\n',
        ),
        (
            '[tool.torchwise]\nignore = [\n  "TW2"\n]\n',
            '[tool.torchwise]\nignore = [\n  "TW2",\n  "retained-graph",\n]\n',
        ),
        ('[tool.torchwise]\nignore = ["TW2",]\n', None),
        ("[tool.torchwise]\nignore = [  # none yet\n]\n", None),
        ("[tool.torchwise.per-file-ignores]\n'a' = ['TW1']\n", None),
    ],
)
def test_the_rule_is_added_and_nothing_else_changes(before: str, after: str | None) -> None:
    text = Text(before)
    change = ignoring(text, RULE)
    assert change is not None
    text.apply(change)
    was, now = tomllib.loads(before), tomllib.loads(str(text))
    table = now["tool"]["torchwise"]
    assert table["ignore"][-1] == RULE
    table["ignore"].pop()
    was.setdefault("tool", {}).setdefault("torchwise", {}).setdefault("ignore", [])
    assert now == was
    assert after is None or str(text) == after


@pytest.mark.parametrize(
    "text",
    [
        "[tool.torchwise\n",
        '[tool.torchwise]\nignore = ["retained-graph"]\n',
        'tool.torchwise = { ignore = ["TW2"] }\n',
        '[tool]\ntorchwise.ignore = ["TW2"]\n',
        "[tool.torchwise]\nignore = 1\n",
    ],
)
def test_nothing_is_offered_where_it_cannot_be_right(text: str) -> None:
    assert ignoring(Text(text), RULE) is None


def test_a_new_file_is_read_back() -> None:
    assert tomllib.loads(new_file(RULE)) == {"tool": {"torchwise": {"ignore": [RULE]}}}


def spot(marked: str) -> Spot | None:
    """The spot at the bar."""
    before, _, after = marked.partition("|")
    line = before.count("\n")
    return spot_at(Text(before + after), Position(line, len(before.rpartition("\n")[2])))


@pytest.mark.parametrize(
    ("marked", "key", "word"),
    [
        ("[tool.torchwise]\n|", None, ""),
        ("[tool.torchwise]\nign|", None, "ign"),
        ("[tool.torchwise]\n[tool.x]\na = ['|']", "", "nothing"),
        ("[project]\nname = '|'\n[tool.torchwise]\n", "", "nothing"),
        ('[tool.torchwise]\nignore = ["retained-|"]\ngpus = []', "ignore", "retained-"),
        ('[tool.torchwise]\nignore = [\n  "TW1",\n  "ret|"\n]\n', "ignore", "ret"),
        ('[tool.torchwise]\nignore = [\n  "TW1",\n]\n|', None, ""),
        ("[tool.torchwise]\ngpus = [|]\n", "gpus", ""),
        ('[tool.torchwise]\ngpus = ["NVIDIA A1|00"]\n', "gpus", "NVIDIA A100"),
        ("[tool.torchwise]\nmin-confidence = '|'\n", "min-confidence", ""),
        ('[tool.torchwise]\nper-file-ignores = { "old/*" = ["TW|"] }\n', "per-file-ignores", "TW"),
        ('[tool.torchwise.per-file-ignores]\n"old/*" = ["TW|"]\n', "old/*", "TW"),
        ("[tool.torchwise]\n# ignore = |\n", "", "nothing"),
        ("[tool.tor|chwise]\n", "", "nothing"),
    ],
)
def test_what_stands_at_a_place(marked: str, key: str | None, word: str) -> None:
    found = spot(marked)
    if word == "nothing":
        assert found is None
    else:
        assert found is not None
        assert (found.key, found.word) == (key, word)
