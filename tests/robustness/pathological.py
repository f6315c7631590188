"""Files of a megabyte made to exhaust whoever analyses them.

`INPUTS` gives a name, and a function from a size in bytes to the files of a workspace; the first one is
checked and estimated. The tests use small sizes, `benchmarks/budget.py` uses a megabyte.
"""

from __future__ import annotations

import json
from collections.abc import Callable

Files = dict[str, str]

HEAD = """\
import torch
from torch import nn
model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """\
losses = []
for step in range(10):
    loss = model(torch.randn(4, 8).cuda()).sum()
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""


def _script(text: str) -> Files:
    return {"train.py": HEAD + text + "\n" + LOOP}


def _repeated(row: str, size: int, end: str = "\n") -> str:
    return end.join([row] * max(1, size // (len(row) + len(end))))


def _numbered(row: str, size: int, end: str = "\n") -> str:
    """`row` with 0, 1, 2, ... for each `@` (and the number before for each `~`)."""
    rows: list[str] = []
    total = number = 0
    while total < size:
        made = row.replace("@", str(number)).replace("~", str(max(0, number - 1)))
        rows.append(made)
        total += len(made) + len(end)
        number += 1
    return end.join(rows)


def _nested(start: str, end: str, size: int, inside: str = "1") -> str:
    depth = max(1, size // (len(start) + len(end)))
    return start * depth + inside + end * depth


def _blocks(header: str, size: int, depth: int = 90) -> str:
    """Blocks as deep as Python allows, as many as fit."""
    one = "".join("    " * level + header.replace("@", str(level)) + "\n" for level in range(depth))
    one += "    " * depth + "x = 1\n"
    return one * max(1, size // len(one))


def _in_loop(text: str) -> Files:
    body = "".join(f"    {row}\n" for row in text.split("\n"))
    return {
        "train.py": HEAD + "losses = []\nfor step in range(10):\n" + body + LOOP.split("\n", 2)[2],
    }


def _chained_assignments(size: int) -> Files:
    names = " = ".join(f"a{number}" for number in range(250))
    return _in_loop(_repeated(f"{names} = model(torch.randn(4, 8).cuda())", size))


def _joins(size: int) -> Files:
    return _in_loop(
        _numbered("if step % (@ + 2): a@ = a~ if step > 1 else loss\nelse: a@ = [a~, step]", size)
    )


def _doubling_calls(size: int) -> Files:
    text = "def f0(x):\n    return model(x)\n"
    number = 1
    while len(text) < size:
        text += f"def f{number}(x):\n    return f{number - 1}(x) + f{number - 1}(f{number - 1}(x))\n"
        number += 1
    return {"train.py": HEAD + text + LOOP.replace("model(torch", f"f{number - 1}(torch")}


def _recursive_classes(size: int) -> Files:
    text = _numbered(
        "class C@(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = C~1()\n"
        "        self.b = nn.Linear(8, 8)\n    def forward(self, x):\n        return self.a(self.b(x))",
        size,
    )
    return _script(text + "\nC01 = C3\nmodel = C3()")


def _inheritance(size: int) -> Files:
    text = (
        "class C0(nn.Module): pass\n"
        + _numbered("class C@(C~): a@ = 1", size)[len("class C0(C0): a0 = 1\n") :]
    )
    return _script(text)


def _many_layers(size: int) -> Files:
    layers = _repeated("nn.Linear(8, 8), nn.ReLU()", size, ",\n")
    return {"train.py": HEAD + f"model = nn.Sequential(\n{layers})\nmodel.cuda()\n" + LOOP}


def _notebook(cells: list[dict[str, object]]) -> Files:
    return {"book.ipynb": json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})}


def _outputs(size: int) -> Files:
    output = {"output_type": "stream", "name": "stdout", "text": ["loss 0.1\n"] * (size // 14)}
    cell: dict[str, object] = {
        "cell_type": "code",
        "source": HEAD + LOOP,
        "outputs": [output],
        "metadata": {},
    }
    return _notebook([cell])


def _cells(size: int) -> Files:
    one: dict[str, object] = {"cell_type": "code", "source": "x = 1\n%time x\n!ls\nx += 1", "outputs": []}
    last: dict[str, object] = {"cell_type": "code", "source": HEAD + LOOP, "outputs": []}
    return _notebook([one] * (size // 90) + [last])


def _settings(text: str, name: str, read: str) -> Files:
    return {
        "train.py": f"import json, yaml\nsettings = {read}\n{HEAD}n = settings['n']\n{LOOP}",
        name: text,
    }


def _aliases(size: int) -> Files:
    levels = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, size // 60))
    return _settings(f"a0: &a0 [x]\n{levels}n: 8\n", "c.yaml", "yaml.safe_load(open('c.yaml'))")


def _open_flow(size: int) -> Files:
    return _settings(f"n: 8\nx: [\n{_repeated(' 1, ', size)}", "c.yaml", "yaml.safe_load(open('c.yaml'))")


def _steps(size: int) -> Files:
    return _in_loop(
        _repeated("loss = model(x).sum(); loss.backward(); optimizer.step(); losses.append(loss)", size)
    )


def _nested_loops(size: int) -> Files:
    one = "".join("    " * level + f"for i{level} in range(10):\n" for level in range(18))
    one += "    " * 18 + "loss = model(x).sum(); loss.backward(); optimizer.step()\n"
    return _script(one * max(1, size // len(one)))


INPUTS: dict[str, Callable[[int], Files]] = {
    "brackets, nested": lambda size: _script("x = " + _nested("(", ")", size)),
    "brackets, never closed": lambda size: _script("x = " + "[(" * (size // 2)),
    "lists, nested 90 deep": lambda size: _script(_repeated("x = " + _nested("[", "]", 180), size)),
    "signs before a number": lambda size: _script("x = " + "-" * size + "1"),
    "calls in a chain": lambda size: _script("x = model" + ".to(1)" * (size // 6)),
    "a sum of many terms": lambda size: _script("x = 1" + " + x" * (size // 4)),
    "comparisons in a chain": lambda size: _script("x = 1" + " < 2" * (size // 4)),
    "lambdas in lambdas": lambda size: _script("x = " + "lambda: " * (size // 8) + "1"),
    "conditional expressions in a chain": lambda size: _script("x = " + "1 if x else " * (size // 12) + "2"),
    "comprehensions, nested": lambda size: _script(
        _repeated("x = " + _nested("[", " for y in range(9)]", 20 * 60, "y"), size)
    ),
    "assignments in a chain, in the loop": _chained_assignments,
    "branches that join, in the loop": _joins,
    "calls that double": _doubling_calls,
    "loops in loops": _nested_loops,
    "steps, one below another": _steps,
    "blocks, nested": lambda size: _script(_blocks("if x@:", size)),
    "try, nested": lambda size: _script(_blocks("with x@:", size, 40)),
    "functions in functions": lambda size: _script(_blocks("def f@():", size)),
    "elif, one below another": lambda size: _script(
        "x = 1\nif x == -1: pass\n" + _numbered("elif x == @: y@ = x", size)
    ),
    "cases of a match": lambda size: _script("match x:\n" + _numbered("    case [@, *y@]: z = y@", size)),
    "tiny functions": lambda size: _script(_numbered("def f@(): pass", size)),
    "functions that call the next": lambda size: _script(
        _numbered("def f@(x): return f~(x)", size) + "\nf9(model)"
    ),
    "classes that inherit": _inheritance,
    "classes that hold each other": _recursive_classes,
    "decorators": lambda size: _script(_repeated("@torch.no_grad()", size) + "\ndef f(): pass"),
    "names": lambda size: _script(_numbered("name@ = name~ = model", size)),
    "imports": lambda size: _script(_numbered("from package@.module import name@ as n@", size)),
    "star imports": lambda size: _script(_numbered("from package@ import *", size)),
    "statements on one line": lambda size: _script(_repeated("x = 1", size, "; ")),
    "one long list": lambda size: _script("x = [" + _numbered("@", size, ", ") + "]"),
    "one long dictionary": lambda size: _script("x = {" + _numbered("'k@': @", size, ", ") + "}"),
    "one long text": lambda size: _script("x = '" + "a" * size + "'"),
    "one long f-string": lambda size: _script('x = f"' + _repeated("{model!r:>{1}}", size, "") + '"'),
    "texts side by side": lambda size: _script("x = (" + _repeated("'a' f'{model}'", size, " ") + ")"),
    "one long name": lambda size: _script("a" * size + " = 1"),
    "one long number": lambda size: _script("x = " + "9" * size),
    "arguments of one call": lambda size: _script("x = f(" + _numbered("k@=model", size, ", ") + ")"),
    "powers of powers": lambda size: _script(_repeated("x = 9 ** 9 ** 9 ** 9 << 9 ** 9", size)),
    "texts times texts": lambda size: _script("x = 'a'\n" + _repeated("x = x * 2 + x % x", size)),
    "lists that double": lambda size: _script("x = [1]\n" + _repeated("x = [*x, *x, x]", size)),
    "layers of a model": _many_layers,
    "blank space": lambda size: _script("x = 1" + " " * size + "# y"),
    "empty lines": lambda size: _script("\n" * size),
    "continued lines": lambda size: _script("x = 1 \\\n" + "\\\n" * (size // 2) + "\n"),
    "a text that never ends": lambda size: _script("x = '''" + _repeated("def f(): pass", size)),
    "suppressions": lambda size: _script(_repeated("x = 1  # torchwise: ignore[retained-graph] -- y", size)),
    "hash signs": lambda size: _script("x = 1 " + "# noqa " * (size // 7)),
    "quotes": lambda size: _script("x = " + "'" * size),
    "line endings of all kinds": lambda size: _script("x = 1\r\n\r\n\r" * (size // 9)),
    "a notebook with long outputs": _outputs,
    "a notebook of many cells": _cells,
    "a YAML file of aliases": _aliases,
    "a YAML list that never ends": _open_flow,
    "a JSON file, nested": lambda size: _settings("[" * size, "c.json", "json.load(open('c.json'))"),
}
