"""Hostile source ends, nothing escapes, and what was not followed is counted."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.limits import Limits
from torchwise_analysis.interp.abstract.machine import Machine
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text
from torchwise_analysis.source.collector import collector_paused

LIMITS = Limits(visits=60_000, entry_visits=30_000)


def traced(text: str, limits: Limits = LIMITS) -> Trace:
    return run(lower_text("hostile.py", text), Project(()), limits)


def chained_assignments() -> str:
    body = "\n".join(f"    a{i + 1} = a{i} + a{i}" for i in range(250))
    start = "import torch\na0 = torch.nn.Linear(2, 2)(torch.zeros(1))\nfor i in range(1000):\n"
    return f"{start}{body}\n    a0 = a250\n"


def deep_branches() -> str:
    lines = ["def f(a, b, x):"]
    lines += ["    " * (depth + 1) + f"if a[{depth}]:" for depth in range(60)]
    lines.append("    " * 61 + "x.backward()")
    return "\n".join(lines) + "\n"


def exponential_joins() -> str:
    tests = "\n".join(f"    if p[{i}]:\n        x = f{i}\n    else:\n        y = x" for i in range(300))
    return f"def f(p, x, y):\n{tests}\n    return x\n"


def flags_everywhere() -> str:
    tests = "\n".join(
        f"    if flag{i}:\n        o.step()\n    if flag{i}:\n        o.zero_grad()" for i in range(40)
    )
    names = ", ".join(f"flag{i}" for i in range(40))
    return f"def f(o, {names}):\n{tests}\n"


HOSTILE = {
    "chained assignments in a loop": chained_assignments(),
    "nested branches": deep_branches(),
    "long attribute chain": "x = a" + ".b" * 1000 + "\n",
    "long call chain": "x = f" + "(1)" * 1000 + "\n",
    "long sum": "x = " + " + ".join(["y"] * 1000) + "\n",
    "exponential joins": exponential_joins(),
    "flags everywhere": flags_everywhere(),
    "class of itself": "class A(A):\n    def f(self):\n        return A().f()\nA().f()\n",
    "recursive class": "class A:\n    def __init__(self):\n        self.a = A()\nA()\n",
    "class as its own attribute": "class A: pass\na = A()\na.a = a\na.a.a.a.b = [a]\na.b.append(a.b)\n",
    "mutual recursion": "def f(x): return g(x)\ndef g(x): return f(x)\nf(1)\n",
    "recursive lambda": "f = lambda g: g(g)\nf(f)\n",
    "recursive generator": "def g():\n    yield from g()\nfor x in g(): pass\n",
    "recursive property": "class A:\n    @property\n    def p(self): return self.p\nA().p\n",
    "recursive decorator": "def d(f): return d(f)\n@d\ndef h(): pass\nh()\n",
    "list in itself": "a = []\na.append(a)\nfor x in a:\n    for y in x:\n        a.extend(y)\n",
    "dictionary in itself": "d = {}\nd['d'] = d\nimport torch\ntorch.save(d, 'f')\nd.update(d)\n",
    "huge constants": "x = 10 ** 10 ** 9\ny = 'a' * 10 ** 9\nfor i in range(10 ** 18): x += 1 << i ** 9\n",
    "module in itself": "import torch.nn as nn\nm = nn.Sequential()\nm.m = m\nm.append(m)\nm.eval()\nm(1)\n",
    "many nested loops": "".join("    " * d + f"for i{d} in x{d}:\n" for d in range(15))
    + "    " * 15
    + "y = 1\n",
    "nested calls of nested functions": "def f(n):\n    def g(): return f(n)\n    return g\nf(1)()()()()\n",
    "while true": "while True:\n    x = f(x)\n",
    "broken": "def f(:\n    pass\nx = 1\n",
    "star arguments": "def f(*a, **k): return f(*a, *a, **k, **k)\nf(*[1], **{'a': 1})\n",
    "metaclass nonsense": "class A(type, metaclass=A, x=1): pass\nclass B(A, A): pass\nclass C(B, A): pass\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_source_ends(name: str) -> None:
    trace = traced(HOSTILE[name])
    assert not trace.silence.failed
    assert trace.silence.visits <= LIMITS.visits


def test_a_thousandfold_nesting_is_cut_and_counted() -> None:
    trace = traced("x = a" + ".b" * 1000 + "\n")
    assert trace.silence.cut > 0


def test_spent_fuel_is_said() -> None:
    trace = traced(chained_assignments() * 20, Limits(visits=2_000, entry_visits=2_000))
    assert any("too large" in why for _, why in trace.silence.not_analysed)


def test_the_caller_can_stop() -> None:
    module = lower_text("slow.py", chained_assignments() * 5)
    assert run(module, Project(()), stop=lambda: True).silence.visits < 10_000


def test_recursion_does_not_lose_the_rest() -> None:
    text = "import torch\ndef f(x): return f(x)\nf(1)\nm = torch.nn.Linear(2, 2)\nm.eval()\n"
    assert [type(e).__name__ for e in traced(text).events][-1] == "ModeChange"


def test_skipped_callees_are_counted() -> None:
    lines = "\n".join(f"    a{i} = b{i} + c{i} * {i}" for i in range(40))
    trace = traced(f"def plot(x):\n{lines}\n    return x\nfor i in z:\n    plot(i)\n")
    assert trace.silence.skipped > 0


def test_thousands_of_functions_are_run_as_far_as_fuel_goes_and_the_rest_is_named() -> None:
    text = "".join(f"def f{i}(model, x):\n    model(x).backward()\n" for i in range(50))
    whole = traced(text)
    part = traced(text, replace(LIMITS, copies=20 * 50))
    assert not whole.silence.fuel_spent
    assert part.silence.fuel_spent
    left_out = [
        place for place, reason in part.silence.not_analysed if reason.startswith("too many functions")
    ]
    assert 20 <= len(left_out) < 50


def test_ranges_beyond_a_machine_word() -> None:
    loop = "for step in range({}):\n    model(x).backward()\n    optimizer.step()\n"
    for arguments in ("10 ** 99", "-(10 ** 99), 10 ** 99, 7", "10 ** 99, 0, -1", "10 ** 99, 0"):
        assert traced("import torch\n" + loop.format(arguments)).silence.failed == ()


DYING = """\
def refuse(x):
    y = x + 1
    print(y)
    raise ValueError(y)

def f(x, flag):
    y = refuse(x) if flag else x
    if flag > 1:
        refuse(y)
    return y
"""


@pytest.mark.parametrize("text", [DYING, flags_everywhere()])
def test_a_run_leaves_nothing_to_the_collector(text: str) -> None:
    gc.collect()
    with collector_paused():
        traced(text)
        left = [thing for thing in gc.get_objects() if isinstance(thing, Machine)]
    assert left == []
