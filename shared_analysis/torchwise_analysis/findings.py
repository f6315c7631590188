"""What the analysis says: findings, their evidence, their fixes.

Plain frozen types, known to every layer above; reporters and the protocol border convert them.
Positions are absolute, lines and columns from 0, columns in code points.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchwise_analysis.source.nodes import Span


class Severity(Enum):
    """What happens if the finding is true."""

    ERROR = "error"  # the run is wrong, hangs or dies
    WARNING = "warning"  # real but bounded waste or risk
    HINT = "hint"  # the code is right; another choice may be cheaper


class Confidence(Enum):
    """How well the finding is proven (grades of docs/policy.md)."""

    CERTAIN = "certain"  # every link is resolved to a binding or a documented API
    LIKELY = "likely"  # one link rests on a convention or one unseen caller, named in the message
    POSSIBLE = "possible"  # two or more such links


class Safety(Enum):
    """What applying a fix can do to the program."""

    SAFE = "safe"  # same values, gradients and updates on every input
    UNSAFE = "unsafe"  # changes training, on purpose
    ADVICE = "advice"  # text only: no edit can be right without knowledge we lack


@dataclass(frozen=True, slots=True)
class Place:
    """A range in a file."""

    path: str
    span: Span


@dataclass(frozen=True, slots=True)
class Evidence:
    """One link of the chain that a person can check: at this place, this fact holds."""

    place: Place
    message: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text of `place` by `text`; an insertion has an empty span."""

    place: Place
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that removes the finding. Advice has no edits."""

    title: str
    safety: Safety
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Also:
    """A finding of another rule that precedence folded into this one, or another place of the same cause."""

    rule: str
    place: Place
    message: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, one finding."""

    code: str
    rule: str
    severity: Severity
    confidence: Confidence
    message: str
    place: Place
    evidence: tuple[Evidence, ...] = ()
    fixes: tuple[Fix, ...] = ()
    also: tuple[Also, ...] = ()

    @property
    def has_edits(self) -> bool:
        """Is there a fix that is more than advice?"""
        return any(fix.edits for fix in self.fixes)
