"""Other files of the project are read as far as their names are used, whoever uses them first."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.events import Forward, LoaderBuilt, OptimizerBuilt
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text

NET = """
from torch import nn


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x)
"""

TRAIN = """
import torch
{imports}

model = {model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


def traced(folder: Path, files: dict[str, str], text: str) -> Trace:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    trace = run(lower_text(str(folder / "train.py"), text), Project([str(folder)]))
    assert trace.silence.failed == ()
    return trace


def is_known(trace: Trace) -> bool:
    """Does the optimizer own a class of the project, whose forwards run?"""
    (built,) = trace.of(OptimizerBuilt)
    (root,) = built.owns or (0,)
    return trace.objects[root].cls is not None and {f.module.id for f in trace.of(Forward)} == {root}


def test_a_package_costs_what_is_used_of_it(tmp_path: Path) -> None:
    files = {f"zoo/net{n}.py": NET.format(name=f"Net{n}") for n in range(200)}
    files["zoo/__init__.py"] = "".join(f"from .net{n} import Net{n}\n" for n in range(200))
    trace = traced(tmp_path, files, TRAIN.format(imports="from zoo import Net150", model="Net150()"))
    assert is_known(trace)
    assert [Path(path).name for path in trace.analysed_files] == ["train.py", "__init__.py", "net150.py"]


@pytest.mark.parametrize(
    ("inside", "imports", "model"),
    [
        ("from .net import Net", "import zoo", "zoo.Net()"),
        ("from .net import Net", "import zoo as animals", "animals.Net()"),
        ("from .net import *", "from zoo import Net", "Net()"),
        ("from .net import *", "from zoo import *", "Net()"),
        ("from .net import Net as Old\nNew = Old", "from zoo import New", "New()"),
        ("from . import net", "import zoo", "zoo.net.Net()"),
        ("import zoo.net\nmake = zoo.net.Net", "from zoo import make", "make()"),
        (
            "try:\n    from .fast import Net\nexcept ImportError:\n    from .net import Net",
            "from zoo import Net",
            "Net()",
        ),
        ("from .net import Net\nclass Wide(Net):\n    pass", "from zoo import Wide", "Wide()"),
        ("from .net import Net\ndef build():\n    return Net()", "from zoo import build", "build()"),
        ("from .net import Net\nTABLE = {'net': Net}", "from zoo import TABLE", "TABLE['net']()"),
    ],
)
def test_every_way_to_a_name(tmp_path: Path, inside: str, imports: str, model: str) -> None:
    files = {"zoo/__init__.py": inside, "zoo/net.py": NET.format(name="Net")}
    assert is_known(traced(tmp_path, files, TRAIN.format(imports=imports, model=model)))


def test_files_that_import_each_other(tmp_path: Path) -> None:
    files = {
        "first.py": "from second import Base\n\n\nclass Net(Base):\n    pass\n\n\nclass Other:\n    pass\n",
        "second.py": "from first import Other\n" + NET.format(name="Base"),
    }
    assert is_known(traced(tmp_path, files, TRAIN.format(imports="from first import Net", model="Net()")))


def test_what_one_branch_used_first_is_known_behind_it(tmp_path: Path) -> None:
    text = """
import sys
import zoo

if len(sys.argv) > 3:
    zoo.Net()
    raise SystemExit
"""
    files = {"zoo/__init__.py": "from .net import Net\n", "zoo/net.py": NET.format(name="Net")}
    assert is_known(traced(tmp_path, files, text + TRAIN.format(imports="", model="zoo.Net()")))


def test_names_that_are_bound_twice_keep_their_order(tmp_path: Path) -> None:
    twice = (
        "Net = None\nif True:\n    from net import Net\n\nmade = Net\n\n\ndef build():\n    return Net()\n"
    )
    files = {"zoo.py": twice, "net.py": NET.format(name="Net")}
    assert is_known(traced(tmp_path, files, TRAIN.format(imports="from zoo import build", model="build()")))


LOADERS = """
from torch.utils.data import DataLoader


class Plain(DataLoader):
    pass


class Own(DataLoader):
    def __init__(self, data, size, mixed=False):
        self.size = size
        super().__init__(data, batch_size=size, shuffle=mixed, collate_fn=list)

    def __iter__(self):
        for batch in super().__iter__():
            yield batch
"""


@pytest.mark.parametrize(
    ("made", "shuffle"),
    [
        ("Plain(data, batch_size=4)", False),
        ("Plain(data, 4, True)", True),
        ("Own(data, 4)", False),
        ("Own(data, size=4, mixed=True)", True),
    ],
)
def test_loaders_of_the_project_are_loaders(tmp_path: Path, made: str, shuffle: bool) -> None:
    text = f"from loaders import Own, Plain\n\nloader = {made}\n" + TRAIN.format(
        imports="", model="torch.nn.Linear(8, 4)"
    )
    trace = traced(tmp_path, {"loaders.py": LOADERS}, text)
    (built,) = trace.of(LoaderBuilt)
    assert (built.shuffle, built.place.span.line, built.place.path) == (
        shuffle,
        2,
        str(tmp_path / "train.py"),
    )
    assert {tuple(f.sources) for f in trace.of(Forward)} == {(built.loader.id,)}
