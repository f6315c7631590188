"""What is asked, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise_analysis.names.launches import LaunchLine
from torchwise_memory.report import Estimate, Unanswered


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """`gpus` are names in any usual spelling; the first decides what depends on the card.

    `with_alternatives` re-runs the options of facts that could not be read; `with_remedies` re-runs the
    script with one thing changed; `with_launches` answers for the project's launch lines besides. `launch` is
    the start to answer for in place of all these. `given` holds statements (`batch_size=8`) that count like
    comments of the script. `text` is the script's text as it is being edited: statements in its comments are
    read from it, from the file if it is None.
    """

    gpus: tuple[str, ...] = ()
    with_alternatives: bool = True
    with_remedies: bool = True
    with_launches: bool = True
    launch: LaunchLine | None = None
    given: tuple[str, ...] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True)
class EstimateReport:
    """An estimate for each loop that was measured; what stopped the trace otherwise.

    entered: lines (from 1) of the file's functions that any run called; entered_elsewhere: those of the
    project's other files, each with its path.
    """

    estimates: tuple[Estimate, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()
    entered: frozenset[int] = frozenset()
    entered_elsewhere: frozenset[tuple[str, int]] = frozenset()
