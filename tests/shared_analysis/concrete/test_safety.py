"""Hostile source: nothing of ours is reachable, nothing runs without bound."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.shared_analysis.concrete.running import interpreter, run, shown

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.errors import OutOfFuel, Raised, Stopped
from torchwise_analysis.interp.concrete.values import Unknown

# Each reaches an interpreter's internals in CPython; here it must fail or give a value of the program's.
ESCAPES = {
    "mro of a tuple": "result = ().__class__.__mro__[-1].__subclasses__()",
    "function globals": "def f(): pass\nresult = f.__globals__",
    "function code": "def f(): pass\nresult = f.__code__.co_consts",
    "builtin self": "result = len.__self__",
    "builtin module": "result = [].append.__self__.__class__.__init__.__globals__",
    "format attribute": "def f(): pass\nresult = '{0.__globals__}'.format(f)",
    "generator frame": "g = (x for x in [])\nresult = g.gi_frame.f_globals",
    "traceback": "try:\n    1 / 0\nexcept Exception as e:\n    result = e.__traceback__.tb_frame.f_globals",
    "getattr of a host slot": "result = getattr('x', '_' + '_reduce_ex__')(2)",
    "import machinery": "result = __import__('os').system",
    "module loader": "import math\nresult = math.__loader__",
    "tensor internals": "import torch\nresult = torch.zeros(2).storage.ledger",
    "module internals": "import torch\nresult = torch.nn.Linear(2, 2).forward_override",
    "world through a module": "import torch\nresult = torch.nn.Linear(2, 2).to.__func__.__globals__",
    "type of a type": "result = type(type(5)).__subclasses__(type(type(5)))",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_no_host_object_is_reached(name: str) -> None:
    it = interpreter()
    try:
        module = run(ESCAPES[name], it)
    except (Raised, Stopped):
        return
    assert_of_the_program(module.names["result"])


def assert_of_the_program(value: object) -> None:
    plain = value is None or type(value) in (int, float, str, bool)
    if isinstance(value, (list, tuple, set)):
        for member in value:
            assert_of_the_program(member)
    elif isinstance(value, dict):
        assert_of_the_program(list(value.values()))
    elif not plain:
        assert type(value).__module__.startswith("torchwise_analysis.interp.concrete.values"), value


BOMBS = {
    "power": "result = 10 ** 10 ** 9",
    "repeated text": "result = 'a' * 10 ** 9",
    "repeated list": "result = [0] * 10 ** 9",
    "shift": "result = 1 << 10 ** 9",
    "doubling text": "x = 'ab'\nfor _ in range(60):\n    x = x + x\nresult = x",
    "padded text": "result = 'x'.ljust(10 ** 9)",
    "wide format": "result = '{:>999999999}'.format(1)",
    "percent format": "result = '%999999999d' % 1",
    "replace": "result = ('a' * 1000).replace('', 'b' * 100000)",
    "join": "result = ('x' * 100000).join('y' * 1000)",
    "factorial": "import math\nresult = math.factorial(10 ** 6)",
    "bytes": "result = bytes(10 ** 10)",
    "materialised range": "result = list(range(10 ** 12))",
    "sum of a range": "result = sum(range(10 ** 12))",
    "endless loop": "while True:\n    pass",
    "endless generator": "import itertools\nresult = list(itertools.count())",
    "endless recursion": "def f():\n    return f()\nresult = f()",
    "deep nesting": "x = []\nfor _ in range(10 ** 6):\n    x = [x]\nresult = repr(x)",
    "product": "import itertools\nresult = list(itertools.product(range(1000), repeat=9))",
    "growing dictionary": "d = {}\ni = 0\nwhile True:\n    d[i] = i\n    i += 1",
    "list that extends itself": "x = [0]\nwhile True:\n    x.extend(x)",
    "list that takes itself in": "x = [0]\nwhile True:\n    x[len(x):] = x",
    "lists that are kept": "x = []\nwhile True:\n    x.append([0] * 1000)",
    "texts that are kept": "x = []\nwhile True:\n    x.append('a' * 10000 + str(len(x)))",
    "equal pairs": "x = y = ()\nfor _ in range(60):\n    x, y = (x, x), (y, y)\nresult = x == (y, y)",
    "pairs of pairs as a key": "x = ()\nfor _ in range(60):\n    x = (x, x)\nresult = {x: 1}",
    "recursion with finally": "def f():\n    try:\n        f()\n    finally:\n        f()\nf()",
    "operators": "import torch\nx = torch.zeros(2)\nwhile True:\n    x = x + x * x - x / x",
    "rounding": "result = round(12345, -(10 ** 9))",
    "rounding to digits": "result = round(1.5, 10 ** 9)",
    "lambdas without a statement": "f = lambda n: n if n < 2 else f(n - 1) + f(n - 2)\nresult = f(99)",
    "copies of pairs of pairs": "import copy\nx = []\nfor _ in range(60):\n    x = (x, x)\ncopy.deepcopy(x)",
    "batches of no sample": (
        "from torch.utils.data import DataLoader\nresult = list(DataLoader([1, 2], batch_size=0))"
    ),
    "batches beyond memory": (
        "from torch.utils.data import DataLoader\n"
        "result = next(iter(DataLoader(list(range(9)), batch_size=10 ** 10, collate_fn=len)))"
    ),
    "int of long digits": "result = int('9' * 100000)",
}


@pytest.fixture
def deep_stack() -> Iterator[None]:
    """As an estimate runs: the program's own limit of calls comes before the host's."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("deep_stack")
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_bounded(name: str) -> None:
    it = interpreter(fuel=200_000)
    try:
        module = run(BOMBS[name], it)
    except (OutOfFuel, Raised, Stopped):
        return
    value = module.names.get("result")
    assert isinstance(value, Unknown) or len(text.repr_of(it, value)) < 1 << 21


def test_large_ranges_stay_lazy() -> None:
    assert (
        shown("r = range(10 ** 15)\nresult = (len(r), r[10 ** 14], 7 in r)") == f"({10**15}, {10**14}, True)"
    )


def test_a_programs_except_does_not_swallow_the_end_of_fuel() -> None:
    it = interpreter(fuel=10_000)
    with pytest.raises(OutOfFuel):
        run("while True:\n    try:\n        x = 1\n    except:\n        pass", it)
