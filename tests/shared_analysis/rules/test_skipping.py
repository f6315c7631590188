"""A batch run passes over files in which, by their text or by their words, nothing can be found. Nothing may
be lost by that."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.engine import Engine, could_matter, open_project
from torchwise_analysis.findings import Confidence
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.rules import all_rules
from torchwise_analysis.rules._framework import Example
from torchwise_analysis.rules._snippets import parse
from torchwise_analysis.settings import Settings

FAULTY = [
    pytest.param(example, id=f"{entry.rule.name}: {example.title}")
    for entry in all_rules()
    for example in entry.rule.all_examples
    if parse(example.code).expected
]


@pytest.mark.parametrize("example", FAULTY)
def test_a_file_with_a_finding_is_never_passed_over(example: Example) -> None:
    assert could_matter(parse(example.code).text)


@pytest.mark.parametrize(
    "text", ["", "import json\nprint(json.dumps({}))\n", "def step(x):\n    return x + 1\n"]
)
def test_a_file_without_any_word_of_training_is(text: str) -> None:
    assert not could_matter(text)


# --------------------------------------------------------------------------- silent by their words

ALL_GRADES = Settings(min_confidence=Confidence.POSSIBLE)


def is_silent(folder: Path, texts: dict[str, str], settings: Settings = ALL_GRADES) -> bool:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    path = str(folder / "main.py")
    file = SourceFile(path, texts["main.py"])
    return Engine(settings, folder, open_project(path, settings)).is_silent(file)


@pytest.mark.parametrize("example", FAULTY)
def test_a_file_with_a_finding_is_never_silent(example: Example, tmp_path: Path) -> None:
    assert not is_silent(tmp_path, {**example.files, "main.py": parse(example.code).text})


SILENT = {
    "numbers": """
import torch

def norm(x, eps=1e-6):
    x = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return torch.stack([row for row in x])
""",
    "questions": """
import torch

KINDS = ("Linear", "Conv2d")

def is_layer(mod):
    return isinstance(mod, (torch.nn.Linear, torch.nn.Module)) or type(mod) in (torch.nn.Conv2d,)
""",
    "patterns": """
import re
import torch

def find(text):
    return re.compile("a+").search(text), torch.is_tensor(text)
""",
    "steps of ranges": """
import torch

def turns(one):
    return range(one.start, one.stop, one.step), torch.arange(3)
""",
    "names that only begin like an optimizer's": """
import torch

def turns(one, optimal_step, optimize_more, optree):
    return one.step(optimal_step), torch.arange(3)
""",
    "a package that is handed around and leads to no modules": """
import torch

def made(library, kinds):
    return [library.ops.get(kind) for kind in (kinds.Small, kinds.Large)]

made(torch, None)
""",
    "a forward that is replaced": """
import torch

def lazy(cls, run):
    cls.forward = run
    return torch.is_tensor(cls)
""",
    "how numbers are written": """
import torch

def shown(x, width):
    return f"{x:{width}.2f}", getattr(x, "dtype"), torch.is_tensor(x)
""",
}


@pytest.mark.parametrize("name", SILENT)
def test_a_file_without_the_words_of_any_rule_is_silent(name: str, tmp_path: Path) -> None:
    assert is_silent(tmp_path, {"main.py": SILENT[name]})


# What is said here reaches a library by another way than its name.
ROUNDABOUT = {
    "a member looked up by a text": """
import torch

layer = getattr(torch.nn, "Dropout")(0.5)
for x in [torch.ones(3)]:
    layer(x)
""",
    "a module of a library as a value": """
import torch

def read(library, path):
    return library.load(path)

read(torch, "a.pt")
""",
    "a module imported by its name": """
import importlib

torch = importlib.import_module("torch")
torch.load("a.pt")
""",
    "a name that is an import and a variable": """
import torch

try:
    import optimizer
except ImportError:
    optimizer = torch.made()

def train(x):
    optimizer.step()
""",
    "a package that is handed around and holds modules": """
import torch

def made(library, x):
    return library.nn.Linear(3, 3)(x)

with torch.no_grad():
    made(torch, torch.ones(3))
""",
    "a package looked up by a text": """
import torch

layer = getattr(torch, "nn").Dropout(0.5)
with torch.no_grad():
    layer(torch.ones(3))
""",
    "another name for a method": """
import torch

def train(loss):
    go = loss.backward
    go()
""",
    "another name for a class": """
import torch

Base = torch.nn.Module

class Net(Base):
    def forward(self, x):
        return torch.relu(x)
""",
}


@pytest.mark.parametrize("name", ROUNDABOUT)
def test_words_are_found_in_roundabout_ways(name: str, tmp_path: Path) -> None:
    assert not is_silent(tmp_path, {"main.py": ROUNDABOUT[name]})


def test_what_a_file_imports_from_the_project_counts(tmp_path: Path) -> None:
    quiet = "from helper import run\n\ndef main(x):\n    return run(x)\n"
    loud = "import torch\n\ndef run(loss):\n    loss.backward()\n"
    assert not is_silent(tmp_path, {"main.py": quiet, "helper.py": loud})
    assert is_silent(tmp_path, {"main.py": quiet, "helper.py": "def run(loss):\n    return loss\n"})


def test_what_is_imported_from_the_project_may_be_anything(tmp_path: Path) -> None:
    main = "from made import thing\n\ndef main(x):\n    thing.backward()\n"
    made = "import torch\nthing = torch.ones(3)\n"
    assert not is_silent(tmp_path, {"main.py": main, "made.py": made})


def test_what_is_only_possible_counts_where_it_is_shown(tmp_path: Path) -> None:
    text = "import torch\nnet = torch.nn.Linear(3, 3)\nkept = []\nfor x in xs:\n    kept.append(net(x))\n"
    assert not is_silent(tmp_path, {"main.py": text})
    assert is_silent(tmp_path, {"main.py": text}, Settings())


def test_a_file_that_speaks_to_torchwise_or_does_not_parse_is_never_silent(tmp_path: Path) -> None:
    assert not is_silent(tmp_path, {"main.py": "x = 1  # torchwise: ignore\n"})
    assert not is_silent(tmp_path, {"main.py": "x = (\n"})
    assert not is_silent(tmp_path, {"main.py": "import helper\n", "helper.py": "x = (\n"})


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    plain = "".join(f"x_{number} = torch.ones({number})\n" for number in range(20_000))
    assert len(plain) > 400_000
    assert is_silent(tmp_path, {"main.py": f"import torch\n{plain}"})
    assert not is_silent(tmp_path, {"main.py": f"import torch\n{plain}x_1.sum().backward()\n"})


def test_a_file_that_was_asked_about_is_lowered_as_ever(tmp_path: Path) -> None:
    path, text = str(tmp_path / "main.py"), "import torch\n\n\nclass A:\n    def f(self):\n        return 1\n"
    project = open_project(path, ALL_GRADES)
    asked = SourceFile(path, text, lower=project.lowered)
    assert Engine(ALL_GRADES, tmp_path, project).is_silent(asked)
    assert asked.module == SourceFile(path, text).module


def test_a_fault_of_ours_makes_nothing_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise LookupError

    monkeypatch.setattr("torchwise_analysis.semantics.speaking.words_of", fail)
    assert not is_silent(tmp_path, {"main.py": "import torch\n"})
