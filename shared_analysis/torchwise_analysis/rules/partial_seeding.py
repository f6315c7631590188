"""partial-seeding: torch is seeded and another generator that training draws from is not."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise_analysis.findings import Confidence, Evidence, Fix, Safety, Severity
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract.events import ApiCall, FunctionEntered
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct

WRONG = """
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        x = x + torch.as_tensor(np.random.normal(0, 0.1, 12))
                                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ partial-seeding hint certain
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RIGHT = """
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        x = x + torch.as_tensor(np.random.normal(0, 0.1, 12))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RULE = Rule(
    code="TW706",
    name="partial-seeding",
    category=Category.DATA,
    severity=Severity.HINT,
    claim="torch is seeded, and code of the run draws from NumPy's or Python's generator, which is not.",
    cost=(
        "Two runs with equal settings differ, although the seed says that they should not. A difference "
        "between two models cannot be told from luck, and runs are repeated until it can."
    ),
    wrong=Example("NumPy's numbers are different in each run", WRONG),
    right=Example("Both are seeded", RIGHT),
    silent=(
        "nothing is seeded: nobody asked for equal runs",
        "a helper or a framework seeds everything, also one that is not seen but called for it",
        "generators of one's own (`default_rng(seed)`, `Random(seed)`)",
        "draws in a data set: the loader seeds its workers from torch",
    ),
    grading="Always a hint. Certain: seed and draw are seen and no other seed is.",
    fix="Advice: seed every generator that the run draws from, in one place.",
    references=(
        Reference("Reproducibility", "https://docs.pytorch.org/docs/stable/notes/randomness.html"),
        Reference("Code Smells for Machine Learning Applications", "https://arxiv.org/abs/2203.13746"),
    ),
    examples=(
        Example(
            "Random choices of NumPy",
            """
import numpy as np
import torch
from torch import nn

torch.manual_seed(1234)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(x, y):
    for step in range(1000):
        rows = np.random.choice(len(x), 32)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ partial-seeding
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
""",
        ),
        Example(
            "Python's generator",
            """
import random

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(batches):
    random.shuffle(batches)
    ^^^^^^^^^^^^^^^^^^^^^^^ partial-seeding hint certain
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A helper seeds all",
            """
import random

import numpy as np
import torch
from torch import nn


def fix(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


fix(0)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        x = x + torch.as_tensor(np.random.normal(0, 0.1, 12))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "Nothing is seeded",
            """
import numpy as np
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        x = x + torch.as_tensor(np.random.normal(0, 0.1, 12))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
        Example(
            "A generator with a seed of its own",
            """
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        x = x + torch.as_tensor(rng.normal(0, 0.1, 12))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        ),
    ),
)

_DRAWS = frozenset(
    [
        "rand",
        "randn",
        "randint",
        "random",
        "random_sample",
        "normal",
        "uniform",
        "choice",
        "choices",
        "sample",
        "shuffle",
        "permutation",
        "gauss",
        "beta",
        "standard_normal",
    ]
)
_LIBRARIES = {"numpy.random.": "NumPy", "random.": "Python's `random`"}


def detect(trace: Trace) -> Iterator[Hit]:
    seeds = trace.api("torch.manual_seed")
    if not seeds or not trace.updates or not trace.backwards:
        return
    for prefix, library in _LIBRARIES.items():
        draws = [c for c in trace.api(prefix) if c.name[len(prefix) :] in _DRAWS and not _in_data_set(c)]
        if draws and not _is_seeded(trace, prefix):
            yield Hit(
                draws[0].place,
                Severity.HINT,
                Confidence.CERTAIN,
                f"torch is seeded, {library} is not: equal settings give different runs. Seed it as well.",
                distinct(
                    (
                        Evidence(seeds[0].place, "torch is seeded here"),
                        Evidence(draws[0].place, "this draws from a generator that is not"),
                    )
                ),
                frozenset({("draws", prefix)}),
            )


def _in_data_set(call: ApiCall) -> bool:
    functions = {caller.function for caller in call.calls} | {call.scene.function}
    return bool(functions & {"__getitem__", "__iter__", "__next__"})


def _is_seeded(trace: Trace, prefix: str) -> bool:
    """Is that generator seeded, or may something that is called for it do so?"""
    for call in trace.of(ApiCall):
        last = call.name.rpartition(".")[2].lower()
        if call.name.startswith(prefix) and last in ("seed", "set_state", "setstate"):
            return True
        other = not call.name.startswith(("torch.", "numpy.", "random."))
        if other and any(word in last for word in ("seed", "rng", "determin", "random")):
            return True
    entered = (event.name.lower() for event in trace.of(FunctionEntered))
    return any("deterministic" in name for name in entered)


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:  # noqa: ARG001 - advice needs no text
    yield Fix("Seed every generator that the run draws from, in one place", Safety.ADVICE, ())
