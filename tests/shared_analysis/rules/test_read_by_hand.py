"""Kinds that a reader found in public training code and the rules did not, each beside its correct twins.

A line that ends in `# here` holds a finding of the rule that the test names; no other line does.
"""

from __future__ import annotations

import textwrap

import pytest

from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.limits import Limits
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings


def lines_of(rule: str, text: str, limits: Limits | None = None) -> list[int]:
    """The lines, from 1, at which the rule finds something, in order."""
    file = SourceFile("/nowhere/program.py", text)
    trace = run(file.module, Project([]), limits or Limits())
    assert trace.silence.failed == ()
    findings = judge(trace, file, Settings()).findings
    return sorted(finding.place.span.line + 1 for finding in findings if finding.rule == rule)


def check(rule: str, text: str) -> None:
    program = textwrap.dedent(text)
    wanted = [n for n, line in enumerate(program.splitlines(), start=1) if line.endswith("# here")]
    assert lines_of(rule, program) == wanted


@pytest.mark.parametrize(
    "text",
    [
        # of two things that an unseen call gave, the other one was differentiated
        """
        class Trainer:
            def __init__(self, model, train_loss, optimizer):
                self.model, self.train_loss, self.optimizer = model, train_loss, optimizer

            def train(self, batches):
                total = 0.0
                for batch in batches:
                    self.optimizer.zero_grad()
                    out, attention = self.model(batch)
                    loss, statistics = self.train_loss(batch, out, attention)
                    loss.backward()
                    total += statistics.loss
                    self.optimizer.step()
                return total
        """,
        # the same one was
        """
        class Trainer:
            def __init__(self, model, train_loss, optimizer):
                self.model, self.train_loss, self.optimizer = model, train_loss, optimizer

            def train(self, batches):
                total = 0.0
                for batch in batches:
                    self.optimizer.zero_grad()
                    out, attention = self.model(batch)
                    loss, statistics = self.train_loss(batch, out, attention)
                    loss.backward()
                    total += loss  # here
                    self.optimizer.step()
                return total
        """,
        # what a later unseen call used of it was
        """
        class Trainer:
            def __init__(self, model, train_loss, optimizer):
                self.model, self.train_loss, self.optimizer = model, train_loss, optimizer

            def train(self, batches):
                outputs = []
                for batch in batches:
                    self.optimizer.zero_grad()
                    out, attention = self.model(batch)
                    loss, statistics = self.train_loss(batch, out, attention)
                    loss.backward()
                    outputs.append(out)  # here
                    self.optimizer.step()
                return len(outputs)
        """,
    ],
)
def test_parts_of_what_an_unseen_call_gave_need_proof(text: str) -> None:
    check("retained-graph", text)


READS = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def start(loader):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


class Agent:
    def train(self, loader):
        for x, y in loader:
            out = model(x)
            if (out > 4).any():
                print(out.detach().max())
{padding}
            nn.functional.cross_entropy(out, y).backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_part_that_was_not_followed_to_its_end_is_not_judged() -> None:
    padding = "\n".join(f"            a{n} = {n} + {n}" for n in range(60))
    text = READS.format(padding=padding)
    assert lines_of("unguarded-eval", text) == []
    for visits in range(60, 400, 20):
        assert lines_of("unguarded-eval", text, Limits(entry_visits=visits)) == []
