"""What a keystroke runs again, and that the answer is always the one of a fresh analysis."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchwise_analysis.findings import Finding
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.recall import Noted, Recall
from torchwise_analysis.interp.abstract.runs import Memory
from torchwise_analysis.interp.abstract.trace import Silence, Trace
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import all_rules, judge
from torchwise_analysis.rules._framework import RegisteredRule
from torchwise_analysis.rules._snippets import parse
from torchwise_analysis.settings import Settings
from torchwise_analysis.source import Document

HEAD = '''"""Training code."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
'''

MODULE = """

class Net{n}(nn.Module):
    def __init__(self, width=64, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
"""

LOOP = """

def train{n}(model, loader, optimizer, epochs=3):
    criterion = nn.CrossEntropyLoss()
    history = []
    for epoch in range(epochs):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        evaluate{n}(model, loader)
    return history


@torch.no_grad()
def evaluate{n}(model, loader):
    model.eval()
    right = 0
    for inputs, targets in loader:
        right += (model(inputs).argmax(-1) == targets).sum().item()
    return right
"""

TRAINER = """

class Trainer{n}:
    lr = 1e-3

    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr)
        self.losses = []

    def step(self, inputs, targets):
        loss = F.cross_entropy(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss)
        return loss

    def fit(self, epochs=2):
        for _ in range(epochs):
            for inputs, targets in self.loader:
                self.step(inputs, targets)
            self.validate()

    def validate(self):
        self.model.eval()
        total = 0.0
        for inputs, targets in self.loader:
            total += F.cross_entropy(self.model(inputs), targets)
        return total
"""

GUARD = """

def main():
    model = Net0()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train0(model, DataLoader([]), optimizer)


if __name__ == "__main__":
    main()
"""

SCRIPT = """

model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []


def once(x):
    kept.append(model(x).sum())


for x in DataLoader([]):
    once(x)
    optimizer.step()
"""


def long_function(lines: int) -> str:
    """One that is kept in several segments."""
    body = "".join(f"        extra{i} = model(inputs) * {i}\n" for i in range(lines))
    return (
        "\n\ndef long(model, loader, optimizer):\n    seen = []\n    for inputs in loader:\n"
        f"{body}        loss = extra0.sum()\n        loss.backward()\n        seen.append(loss)\n"
    )


def generated(*parts: str) -> str:
    return HEAD + "".join(part.replace("{n}", str(n)) for n, part in enumerate(parts))


NESTED = """

class Suite{n}:
    class Base:
        width = 3

        class Inner:
            def touch(self, optimizer, loss):
                loss.backward()
                optimizer.step()

        def fit(self, model, loader, optimizer):
            kept = []
            for inputs in loader:
                loss = model(inputs).sum()
                loss.backward()
                if self.width:
                    kept.append(loss)
                optimizer.step()
            return kept

    def other(self, model):
        model.eval()
"""

TEXTS = [
    generated(MODULE, LOOP, TRAINER),
    generated(MODULE, TRAINER, LOOP, MODULE, LOOP),
    HEAD + MODULE.replace("{n}", "0") + LOOP.replace("{n}", "0") + GUARD,
    generated(MODULE, LOOP) + SCRIPT,
    generated(MODULE, TRAINER) + long_function(50) + LOOP.replace("{n}", "9"),
    generated(MODULE, NESTED, TRAINER),
]
EXAMPLES = [parse(example.code).text for entry in all_rules() for example in entry.rule.all_examples]

TYPED = [
    "x",
    "\n\n",
    "            # a remark\n",
    "            loss\n",
    "        best = model.head\n",
    "            self.model\n",
    "        optimizer\n",
    "(",
    ")",
    "\n",
    "    ",
    "# a remark\n",
    "  # torchwise: ignore[retained-graph]",
    "history.append(loss)\n",
    "            history.append(loss)\n",
    "        loss.backward()\n",
    "    model.eval()\n",
    "        if flag:\n            optimizer.step()\n",
    "def helper(x):\n    return x.detach()\n\n\n",
    "import os\n",
    '"""',
    "\nclass Other(nn.Module):\n    pass\n",
    "global model\n",
    "@torch.no_grad()\n",
]


class Editor:
    """A text under edit, analysed with and without memory."""

    def __init__(self, text: str, project: Project | None = None) -> None:
        self.now = 0.0
        self.document = Document("train.py", text, clock=lambda: self.now)
        self.project = Project(()) if project is None else project
        self.memory = Memory(recall=Recall())
        self.check()

    def analysed(self, memory: Memory | None) -> tuple[Trace, tuple[Finding, ...]]:
        document = self.document
        trace = run(document.module, self.project, memory=memory)
        result = judge(trace, SourceFile(document.path, document.text, document.module), Settings())
        assert all("its fix" in failure.message for failure in result.failures)  # of a part that is broken
        return trace, result.findings

    def check(self) -> tuple[Finding, ...]:
        """The findings; they and the trace are those of a fresh analysis."""
        trace, findings = self.analysed(self.memory)
        fresh, wanted = self.analysed(None)
        assert findings == wanted
        assert outline(trace) == outline(fresh)
        assert trace.reached == fresh.reached
        assert comparable(trace.silence) == comparable(fresh.silence)
        return findings

    def type(self, line: int, column: int, text: str) -> None:
        self.document.edit(line, column, line, column, text)

    def line_of(self, text: str) -> int:
        return self.document.text[: self.document.text.index(text)].count("\n")


def outline(trace: Trace) -> list[tuple[object, ...]]:
    return [
        (type(e).__name__, e.order, e.place.path, e.place.span, [t.loop.place.span for t in e.loops])
        for e in trace.events
    ]


def comparable(silence: Silence) -> Silence:
    return replace(silence, not_analysed=tuple(sorted(silence.not_analysed, key=repr)))


@st.composite
def edits(draw: st.DrawFn) -> tuple[float, float, int, str, float]:
    """Where in the file and in the line, how many characters go, what comes, how much time passes."""
    place = st.floats(0, 1, allow_nan=False)
    gone = draw(st.sampled_from([0, 0, 0, 1, 1, 5, 40]))
    return (
        draw(place),
        draw(place),
        gone,
        draw(st.sampled_from(["", *TYPED])),
        draw(st.sampled_from([0.1, 9.0])),
    )


def apply(editor: Editor, edit: tuple[float, float, int, str, float]) -> None:
    at_line, at_column, gone, text, pause = edit
    document = editor.document
    lines = document.text.split("\n")
    line = min(int(at_line * len(lines)), len(lines) - 1)
    column = int(at_column * (len(lines[line]) + 1)) if "\n" not in text else 0
    start = sum(len(one) + 1 for one in lines[:line]) + column
    end = min(start + gone, len(document.text))
    last = document.text[:end]
    document.edit(line, column, last.count("\n"), end - (last.rfind("\n") + 1), text)
    editor.now += pause


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(TEXTS), st.lists(edits(), min_size=1, max_size=12))
def test_random_edits_of_generated_files(
    text: str, sequence: list[tuple[float, float, int, str, float]]
) -> None:
    editor = Editor(text)
    for edit in sequence:
        apply(editor, edit)
        editor.check()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(EXAMPLES), st.lists(edits(), min_size=1, max_size=8))
def test_random_edits_of_examples(text: str, sequence: list[tuple[float, float, int, str, float]]) -> None:
    editor = Editor(text)
    for edit in sequence:
        apply(editor, edit)
        editor.check()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(TEXTS), st.lists(edits(), min_size=1, max_size=4))
def test_random_edits_are_undone_and_done_again(
    text: str, sequence: list[tuple[float, float, int, str, float]]
) -> None:
    editor = Editor(text)
    texts = [text]
    for edit in sequence:
        apply(editor, edit)
        editor.check()
        texts.append(editor.document.text)
    for wanted in [*texts[-2::-1], *texts[1:]]:
        change_to(editor, wanted)
        editor.check()


def change_to(editor: Editor, wanted: str) -> None:
    """One edit that leads to the text `wanted`."""
    before = editor.document.text
    start = same_start(before, wanted)
    same = min(same_start(before[::-1], wanted[::-1]), min(len(before), len(wanted)) - start)
    end = len(before) - same
    row, column = before.count("\n", 0, start), start - (before.rfind("\n", 0, start) + 1)
    last, last_column = before.count("\n", 0, end), end - (before.rfind("\n", 0, end) + 1)
    editor.document.edit(row, column, last, last_column, wanted[start : len(wanted) - same])
    assert editor.document.text == wanted


def same_start(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("text", TEXTS)
def test_typing_and_deleting_a_line_everywhere(text: str) -> None:
    editor = Editor(text)
    for line in range(6, text.count("\n"), 7):
        editor.type(line, 0, "            kept.append(loss)\n")
        editor.check()
        editor.document.edit(line, 0, line + 1, 0, "")
        editor.check()


# --------------------------------------------------------------------------- what runs again


def test_a_keystroke_runs_the_functions_that_reach_it() -> None:
    editor = Editor(generated(MODULE, LOOP, TRAINER, LOOP))
    line = editor.line_of("history.append")
    for index, character in enumerate("history.append(loss)"):
        editor.type(line, 12 + index, character)
        editor.check()
        assert set(editor.memory.ran) <= {"train1"}
    line = editor.line_of("right += ")
    editor.type(line, 8, "right = 0; ")
    editor.check()
    assert editor.memory.ran == ["train1"], "evaluate1 is run where train1 calls it"


def test_a_method_runs_its_class_and_whoever_calls_it() -> None:
    editor = Editor(generated(MODULE, LOOP, TRAINER, MODULE))
    editor.type(editor.line_of("self.losses.append(loss)") + 1, 0, "        print(loss)\n")
    editor.check()
    assert set(editor.memory.ran) == {"Trainer2"}


def test_nothing_runs_for_comments_and_for_lines_that_move() -> None:
    editor = Editor(generated(MODULE, TRAINER, LOOP))
    before = editor.check()
    assert before
    editor.type(0, 0, "# a remark\n\n")
    after = editor.check()
    assert editor.memory.ran == []
    assert [f.place.span.line for f in after] == [f.place.span.line + 2 for f in before]
    editor.type(editor.line_of("def fit") - 1, 0, "    # another one\n")
    editor.check()
    assert editor.memory.ran == []
    editor.type(editor.line_of("def fit"), len("    def fit(self, epochs=2):"), "  # and one more")
    editor.check()
    assert editor.memory.ran == []


def test_a_line_that_is_not_yet_python_runs_nothing() -> None:
    editor = Editor(generated(MODULE, LOOP, TRAINER))
    line = editor.line_of("history.append")
    editor.type(line, 0, "            history.append(\n")
    editor.check()
    assert editor.memory.ran == []


def test_a_name_that_stands_alone_runs_nothing() -> None:
    editor = Editor(generated(MODULE, LOOP, TRAINER, NESTED) + long_function(50))
    for before in ("optimizer.step()", "self.validate()", "if self.width:", "seen.append(loss)", "seen = []"):
        line = editor.line_of(before)
        indent = " " * editor.document.text.split("\n")[line].index(before)
        editor.type(line, 0, f"{indent}\n")
        editor.check()
        for index, character in enumerate("backward"):
            editor.type(line, len(indent) + index, character)
            editor.check()
            assert editor.memory.ran == []


def test_a_name_given_to_a_variable_that_nobody_reads_runs_nothing() -> None:
    editor = Editor(generated(MODULE, LOOP, TRAINER))
    line = editor.line_of("self.losses.append")
    editor.type(line, 0, "        \n")
    for index, character in enumerate("kept = self.model.head"):
        editor.type(line, 8 + index, character)
        editor.check()
        assert editor.memory.ran == []
    editor.type(editor.line_of("return loss"), len("        return "), "kept, ")
    editor.check()
    assert editor.memory.ran == ["Trainer2"], "somebody reads it"


def test_an_edit_that_is_undone_runs_nothing() -> None:
    editor = Editor(generated(MODULE, LOOP, TRAINER))
    places = [("history.append", "print(loss); history.append(loss); ", "train1")]
    places += [("self.losses.append", "self.losses.append(loss); ", "Trainer2")]
    for statement, typed, part in places:
        line = editor.line_of(statement)
        column = editor.document.text.split("\n")[line].index(statement)
        for _ in range(2):
            editor.type(line, column, typed)
            editor.check()
            assert set(editor.memory.ran) <= {part}
            editor.document.edit(line, column, line, column + len(typed), "")
            editor.check()
            assert editor.memory.ran == []
        editor.type(line, column, typed)
        editor.check()
        assert editor.memory.ran == [], "done again"
        editor.type(line, 0, "\n")
        editor.check()
        editor.document.edit(line + 1, column, line + 1, column + len(typed), "")
        editor.check()
        assert editor.memory.ran == [], "undone further down"
        editor.type(line, 0, "    # a remark\n")
        editor.type(line + 2, column, "loss.backward(); ")
        editor.check()
        assert editor.memory.ran == [part]


def test_lines_between_statements_run_nothing() -> None:
    editor = Editor(generated(MODULE, LOOP, TRAINER, NESTED) + long_function(50))
    before = editor.check()
    statements = ("loss.backward()", "history.append", "self.validate()", "kept.append", "seen.append(loss)")
    for number, statement in enumerate(statements):
        line = editor.line_of(statement)
        editor.type(line, 0, "\n")
        assert len(editor.check()) == len(before)
        editor.type(line, 0, "# a remark\n" * number)
        assert len(editor.check()) == len(before)
        assert editor.memory.ran == []
    editor.type(editor.line_of("history.append"), 12, "print(loss); ")
    editor.check()
    assert editor.memory.ran == ["train1"]
    line = editor.line_of("kept.append")
    editor.document.edit(line - 1, 0, line, 0, "")
    editor.check()
    assert editor.memory.ran == []


def test_statements_that_part_from_a_line_are_run_again() -> None:
    editor = Editor(generated(MODULE, LOOP))
    line = editor.line_of("loss.backward()")
    editor.type(line, 12, "if loss: ")
    editor.check()
    column = len("            if loss: ")
    editor.document.edit(line, column - 1, line, column, "\n" + " " * column)
    editor.check()
    assert editor.memory.ran == ["train1"]


def test_a_class_in_a_class_is_edited_like_any_other() -> None:
    editor = Editor(generated(MODULE, NESTED, TRAINER))
    line = editor.line_of("kept.append")
    editor.type(line, 20, "print(loss); ")
    editor.check()
    assert "module" not in editor.memory.ran
    editor.type(editor.line_of("class Inner"), 0, "        # a remark\n")
    editor.check()
    assert editor.memory.ran == []
    editor.type(editor.line_of("optimizer.step()"), 16, "print(loss); ")
    editor.check()
    assert "module" not in editor.memory.ran


def test_a_new_default_runs_everything() -> None:
    editor = Editor(generated(MODULE, LOOP, TRAINER))
    editor.type(editor.line_of("def train1"), len("def train1(model, loader, optimizer, epochs=3"), "0")
    editor.check()
    assert {"module", "train1", "Trainer2"} <= set(editor.memory.ran)


def test_the_main_guard_does_not_run_for_what_it_does_not_reach() -> None:
    editor = Editor(
        HEAD + MODULE.replace("{n}", "0") + LOOP.replace("{n}", "0") + TRAINER.replace("{n}", "1") + GUARD
    )
    editor.type(editor.line_of("self.model.eval()"), 8, "print(self); ")
    editor.check()
    assert set(editor.memory.ran) == {"Trainer1"}
    editor.type(editor.line_of("history.append"), 12, "print(loss); ")
    editor.check()
    assert set(editor.memory.ran) == {"rest"}, "what main() does stays in its own variables"


def test_another_file_that_changed_runs_everything(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("def step(loss):\n    loss.backward()\n", encoding="utf-8")
    project = Project([str(tmp_path)])
    editor = Editor("from other import step\n" + generated(MODULE, LOOP), project)
    editor.type(0, 0, "\n")
    editor.check()
    assert editor.memory.ran == []
    other.write_text("def step(loss):\n    pass\n", encoding="utf-8")
    project.forget(str(other))
    editor.check()
    assert "train1" in editor.memory.ran


# --------------------------------------------------------------------------- which rules are asked again


def test_only_rules_that_read_what_changed_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    editor = Editor(generated(MODULE, LOOP, TRAINER))
    asked: list[str] = []
    recalled = Noted.recalled

    def noting(trace: Noted, name: str, make: Callable[[], object]) -> object:
        if name not in trace.recall.found:
            asked.append(name)
        return recalled(trace, name, make)

    monkeypatch.setattr(Noted, "recalled", noting)
    editor.type(editor.line_of("optimizer.step()"), 12, "history.append(loss); ")
    assert any(finding.rule == "retained-graph" for finding in editor.check())
    assert "retained-graph" in asked
    assert len(asked) < len(all_rules()) / 3


@pytest.mark.parametrize("text", EXAMPLES[::9])
def test_statements_that_come_and_go_in_examples(text: str) -> None:
    """Each makes rules read the trace again that read its events, and leaves the others what they found."""
    editor = Editor(text)
    lines = text.split("\n")
    for row in range(len(lines) - 1, 0, -max(1, len(lines) // 5)):
        indent = lines[row][: len(lines[row]) - len(lines[row].lstrip())]
        for statement in ("model.eval()", "optimizer.step()", "loss.backward()", "kept.append(loss)"):
            editor.type(row, 0, f"{indent}{statement}\n")
            editor.check()
            editor.document.edit(row, 0, row + 1, 0, "")
            editor.check()


# --------------------------------------------------------------------------- growth


def test_what_is_kept_does_not_grow_with_the_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchwise_analysis.interp.abstract.units._MOST_LEFT_BLOCKS", 20)
    monkeypatch.setattr("torchwise_analysis.interp.abstract._MOST_BODIES", 10)
    editor = Editor(generated(MODULE, LOOP, TRAINER))
    line = editor.line_of("def train1")
    for number in range(40):
        editor.document.edit(
            line - 1, 0, line - 1, len(f"width = {number - 1}") if number else 0, f"width = {number}"
        )
        editor.check()
    blocks = sum(len(unit.blocks) for unit in editor.memory.source.units)
    assert len(editor.memory.source.ground.shifts) < 20 + 3 * blocks


def calls_of(work: Callable[[], object]) -> int:
    """How many functions of Python are called."""
    count = 0

    def profile(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def trace_of(text: str) -> Trace:
    return run(Document("train.py", text).module, Project(()))


@cache
def traces() -> tuple[Trace, Trace]:
    return trace_of(SMALL), trace_of(LARGE)


SMALL, LARGE = (generated(*([MODULE, LOOP, TRAINER] * n)) for n in (8, 32))


def test_a_file_four_times_as_long_costs_four_times_as_much() -> None:
    trace_of(SMALL)  # what is made once is made
    assert calls_of(lambda: trace_of(LARGE)) < 5.5 * calls_of(lambda: trace_of(SMALL))


@pytest.mark.parametrize("entry", all_rules(), ids=lambda entry: entry.rule.name)
def test_rules_grow_with_the_file(entry: RegisteredRule) -> None:
    small, large = traces()
    once = calls_of(lambda: tuple(entry.detect(small)))
    assert calls_of(lambda: tuple(entry.detect(large))) < 6 * once + 500
