# ruff: noqa: E501 - a snippet is easier to read beside its name than cut into pieces
"""The driver's Python against CPython's: each snippet sets `result`, both must agree on its repr."""

from __future__ import annotations

import pytest
from tests.shared_analysis.concrete.running import shown

SNIPPETS: dict[str, str] = {
    "arithmetic": "result = [7 // -2, 7 % -2, -7 // 2, 2 ** 10, 2 ** -1, 1 / 3, 5 & 3, 5 | 3, 5 ^ 3, ~5, 1 << 4]",
    "chained comparison": "result = [1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, 'a' < 'b', (1, 2) < (1, 3), [1] == [1]]",
    "boolean operators": "result = [0 or 'x', 1 and 2, not [], None or 0, '' or {} or 5]",
    "strings": "result = ['a-b'.split('-'), ' x '.strip(), 'abc'[::-1], 'x'.join('abc'), 'A'.lower(), 'abc'.replace('b', 'zz')]",
    "formats": "result = ['{} {}'.format(1, 'a'), '{a:.2f}'.format(a=1.5), '%d-%s' % (3, 'x'), '{0[k]}'.format({'k': 4}), '{:>5}|'.format('x')]",
    "f-string": "n = 3\nresult = f'{n} and {n + 1}'",
    "slices": "x = list(range(10))\nresult = [x[2:5], x[-3:], x[::3], x[5:2:-1], x[:]]",
    "slice assignment": "x = [1, 2, 3, 4]\nx[1:3] = [9]\ndel x[0]\nresult = x",
    "unpacking": "a, (b, *c), d = 1, (2, 3, 4), 5\n*e, f = 'xyz'\nresult = (a, b, c, d, e, f)",
    "star arguments": "def f(a, *b, c=3, **d):\n    return a, b, c, d\nresult = [f(1), f(1, 2, 3, c=4, e=5), f(*[1, 2], **{'c': 9})]",
    "positional only": "def f(a, /, b, *, c):\n    return a, b, c\nresult = f(1, b=2, c=3)",
    "keyword collision": "def f(a, /, **k):\n    return a, k\nresult = f(1, a=2)",
    "too many arguments": "def f(a):\n    return a\ntry:\n    f(1, 2)\n    result = 'no'\nexcept TypeError:\n    result = 'TypeError'",
    "missing argument": "def f(a, b):\n    return a\ntry:\n    f(1)\n    result = 'no'\nexcept TypeError:\n    result = 'TypeError'",
    "default evaluated once": "def f(x=[]):\n    x.append(1)\n    return x\nf()\nresult = f()",
    "closures": "def outer():\n    n = 0\n    def inc():\n        nonlocal n\n        n += 1\n        return n\n    return inc\ni = outer()\ni()\nresult = i()",
    "late binding": "fs = [lambda: i for i in range(3)]\nresult = [f() for f in fs]",
    "bound default": "fs = [lambda i=i: i for i in range(3)]\nresult = [f() for f in fs]",
    "global statement": "n = 1\ndef f():\n    global n\n    n = 5\nf()\nresult = n",
    "comprehension scope": "x = 'outer'\ny = [x for x in range(3)]\nresult = (x, y)",
    "nested comprehension": "result = [(i, j) for i in range(3) for j in range(i) if j != 1]",
    "dict comprehension": "result = {k: v for k, v in zip('ab', (1, 2))}",
    "set comprehension": "result = sorted({x % 3 for x in range(10)})",
    "walrus": "result = [y := 5, y ** 2, [z := i for i in range(3)], z]",
    "generator": "def g(n):\n    for i in range(n):\n        x = yield i * 2\nresult = list(g(4))",
    "generator laziness": "log = []\ndef g():\n    log.append('start')\n    yield 1\n    log.append('end')\nit = g()\nlog.append('made')\nnext(it)\nresult = log",
    "infinite generator": "def count():\n    n = 0\n    while True:\n        yield n\n        n += 1\nresult = [x for _, x in zip(range(4), count())]",
    "yield from": "def a():\n    yield 1\n    yield from [2, 3]\nresult = list(a())",
    "yield in try": "def g():\n    try:\n        yield 1\n        raise ValueError('x')\n    except ValueError:\n        yield 2\n    finally:\n        log.append('f')\nlog = []\nresult = (list(g()), log)",
    "generator expression": "result = sum(x * x for x in range(5))",
    "for else": "for i in range(3):\n    if i == 5:\n        break\nelse:\n    i = 'else'\nresult = i",
    "while else break": "n = 0\nwhile n < 10:\n    n += 1\n    if n == 4:\n        break\nelse:\n    n = -1\nresult = n",
    "continue": "out = []\nfor i in range(5):\n    if i % 2:\n        continue\n    out.append(i)\nresult = out",
    "try flow": "def f(x):\n    try:\n        if x == 0:\n            raise KeyError('k')\n        if x == 1:\n            return 'ret'\n    except LookupError as e:\n        return repr(e)\n    else:\n        return 'else'\n    finally:\n        log.append(x)\nlog = []\nresult = [f(0), f(1), f(2), log]",
    "exception name is unbound": "try:\n    raise ValueError(1)\nexcept ValueError as e:\n    pass\nresult = 'e' in globals()",
    "reraise": "def f():\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        raise\ntry:\n    f()\nexcept ArithmeticError as e:\n    result = type(e).__name__",
    "exception attributes": "class E(Exception):\n    def __init__(self, a, b):\n        super().__init__(a)\n        self.b = b\ntry:\n    raise E(1, 2)\nexcept E as e:\n    result = (e.args, e.b, str(e))",
    "finally overrides": "def f():\n    try:\n        return 1\n    finally:\n        return 2\nresult = f()",
    "with": "class M:\n    def __enter__(self):\n        log.append('in')\n        return 5\n    def __exit__(self, t, v, tb):\n        log.append(t is None)\n        return True\nlog = []\nwith M() as m:\n    raise ValueError\nresult = (m, log)",
    "contextmanager": "from contextlib import contextmanager\n@contextmanager\ndef c():\n    log.append(1)\n    yield 'v'\n    log.append(2)\nlog = []\nwith c() as v:\n    log.append(v)\nresult = log",
    "classes": "class A:\n    n = 1\n    def __init__(self, x):\n        self.x = x\n    def f(self):\n        return self.x + self.n\nresult = A(4).f()",
    "inheritance": "class A:\n    def f(self):\n        return 'A'\nclass B(A):\n    def f(self):\n        return 'B' + super().f()\nclass C(A):\n    def f(self):\n        return 'C' + super().f()\nclass D(B, C):\n    def f(self):\n        return 'D' + super().f()\nresult = (D().f(), [k.__name__ for k in D.__mro__])",
    "class body scope": "x = 'g'\nclass A:\n    x = 'c'\n    y = [x for _ in range(1)]\n    def f(self):\n        return x\nresult = A().f()",
    "property": "class A:\n    def __init__(self):\n        self._v = 1\n    @property\n    def v(self):\n        return self._v\n    @v.setter\n    def v(self, n):\n        self._v = n * 2\na = A()\na.v = 4\nresult = a.v",
    "static and class methods": "class A:\n    n = 3\n    @staticmethod\n    def s(x):\n        return x\n    @classmethod\n    def c(cls, x):\n        return cls.n + x\nclass B(A):\n    n = 10\nresult = [A.s(1), A().s(2), B.c(1), B().c(2)]",
    "getattr hook": "class A:\n    def __getattr__(self, n):\n        if n == 'zz':\n            raise AttributeError(n)\n        return n.upper()\na = A()\nresult = [a.foo, getattr(a, 'zz', 'd'), hasattr(a, 'zz')]",
    "setattr hook": "class A:\n    def __setattr__(self, n, v):\n        object.__setattr__(self, n, v + 1)\na = A()\na.x = 1\nresult = a.x",
    "operators": "class V:\n    def __init__(self, x):\n        self.x = x\n    def __add__(self, o):\n        return V(self.x + (o.x if isinstance(o, V) else o))\n    __radd__ = __add__\n    def __eq__(self, o):\n        return self.x == o.x\n    def __len__(self):\n        return self.x\n    def __getitem__(self, i):\n        if i > 2:\n            raise IndexError\n        return i * self.x\n    def __contains__(self, i):\n        return i == 7\n    def __call__(self, y):\n        return y\nresult = [(V(1) + V(2)).x, (1 + V(2)).x, V(1) == V(1), V(1) != V(2), len(V(4)), list(V(2)), 7 in V(1), V(1)(9), bool(V(0))]",
    "iterator protocol": "class It:\n    def __init__(self):\n        self.n = 0\n    def __iter__(self):\n        return self\n    def __next__(self):\n        self.n += 1\n        if self.n > 3:\n            raise StopIteration\n        return self.n\nresult = list(It())",
    "dataclass": "from dataclasses import dataclass, field, replace, asdict\n@dataclass\nclass C:\n    a: int\n    b: int = 2\n    c: list = field(default_factory=list)\n    def __post_init__(self):\n        self.d = self.a + self.b\nx = C(1)\nresult = (x, x.d, replace(x, a=5).d, asdict(C(3)), C(1) == C(1))",
    "dataclass inheritance": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\n@dataclass\nclass B(A):\n    y: int = 2\n    x: int = 5\nresult = B(y=7)",
    "enum": "from enum import Enum, IntEnum\nclass C(Enum):\n    A = 1\n    B = 'x'\n    @property\n    def low(self):\n        return self.name.lower()\nclass I(IntEnum):\n    P = 4\nresult = [C(1).name, C['B'].value, C.A.low, C.A is C(1), [m.name for m in C], I.P + 1, I.P == 4, C.A == 1]",
    "namedtuple": "from collections import namedtuple\nP = namedtuple('P', 'x y', defaults=(7,))\np = P(1)\na, b = p\nresult = [p.x, p.y, a, b, p[1], len(p), p == (1, 7)]",
    "typed namedtuple": "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 3\nresult = (P(1).y, P(1, 2)[0])",
    "collections": "from collections import OrderedDict, defaultdict, Counter, deque\nd = defaultdict(list)\nd['a'].append(1)\nc = Counter('abca')\nq = deque([1, 2, 3], maxlen=2)\nq.append(4)\nresult = [dict(d), c['a'], c['z'], c.most_common(1), list(q), list(OrderedDict(a=1).items())]",
    "dict subclass": "class D(dict):\n    def __getattr__(self, n):\n        return self[n]\nd = D(a=1)\nd['b'] = 2\nresult = [d.a, d.b, sorted(d), len(d), 'a' in d, {**d}]",
    "dict methods": "d = {'a': 1}\nd.update(b=2)\nd.setdefault('c', 3)\nresult = [d.pop('a'), d.get('z', 0), sorted(d.items()), list(d), d | {'q': 1}]",
    "sorting": "result = [sorted([3, 1, 2], reverse=True), sorted('bca', key=lambda c: -ord(c)), min([4, 2], key=lambda x: -x), max(3, 9, 2)]",
    "functools": "from functools import partial, reduce\nf = partial(lambda a, b, c: (a, b, c), 1, c=3)\nresult = [f(2), reduce(lambda a, b: a * b, [1, 2, 3, 4])]",
    "itertools": "import itertools as i\nresult = [list(i.chain([1], [2])), list(i.islice(i.count(5), 3)), list(i.product('ab', [1])), list(i.accumulate([1, 2, 3])), list(i.zip_longest([1], [2, 3]))]",
    "decorators": "import functools\ndef d(n):\n    def w(f):\n        @functools.wraps(f)\n        def g(*a):\n            return f(*a) * n\n        return g\n    return w\n@d(3)\ndef f(x):\n    return x + 1\nresult = (f(1), f.__name__)",
    "class decorator": "def add(c):\n    c.extra = 5\n    return c\n@add\nclass A:\n    pass\nresult = A().extra",
    "method in wrapper": "def deco(f):\n    def g(self, *a):\n        return f(self, *a)\n    return g\nclass A:\n    def m(self):\n        return 'A'\nclass B(A):\n    @deco\n    def m(self):\n        return super().m() + 'B'\nresult = B().m()",
    "new": "class S:\n    one = None\n    def __new__(cls):\n        if cls.one is None:\n            cls.one = object.__new__(cls)\n        return cls.one\nresult = S() is S()",
    "init subclass": "class A:\n    subs = []\n    def __init_subclass__(cls, **k):\n        A.subs.append((cls.__name__, k))\nclass B(A, tag=1):\n    pass\nresult = A.subs",
    "match": "def f(x):\n    match x:\n        case 1 | 2:\n            return 'small'\n        case [a, *rest]:\n            return a, rest\n        case {'k': v, **r}:\n            return v, r\n        case str() as s if s:\n            return s\n        case _:\n            return None\nresult = [f(1), f([1, 2, 3]), f({'k': 4, 'z': 5}), f('q'), f(3.5)]",
    "conversions": "result = [int('7'), int(3.9), float('2.5'), str(5), bool([]), list('ab'), tuple([1]), int('ff', 16), round(2.567, 2)]",
    "type and isinstance": "class A: pass\nclass B(A): pass\nresult = [isinstance(B(), A), isinstance(True, int), type(5) is int, issubclass(B, (str, A)), type(B()).__name__, isinstance([], (tuple, list))]",
    "swap": "a, b = 1, 2\na, b = b, a\nresult = (a, b)",
    "augmented": "x = [1]\ny = x\nx += [2]\nz = (1,)\nz += (2,)\nresult = (y, z)",
    "del and in": "d = {1: 2, 3: 4}\ndel d[1]\nresult = (1 in d, 3 in d, 2 not in [1])",
    "assert message": "try:\n    assert 1 == 2, 'no'\nexcept AssertionError as e:\n    result = str(e)",
    "recursion": "def f(n):\n    return 1 if n == 0 else n * f(n - 1)\nresult = f(20)",
    "conditional expression": "result = [x if x % 2 else -x for x in range(4)]",
    "math": "import math\nresult = [math.ceil(2.1), math.sqrt(9), math.prod([2, 3]), math.gcd(12, 8), math.log2(8)]",
    "vars and setattr": "class A: pass\na = A()\nsetattr(a, 'x', 1)\nvars(a)['y'] = 2\nresult = (a.x, a.y, sorted(vars(a)))",
    "cached property": "from functools import cached_property\nclass A:\n    n = 0\n    @cached_property\n    def v(self):\n        A.n += 1\n        return A.n\na = A()\nresult = (a.v, a.v, A.n)",
    "frozen dataclass key": "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass K:\n    a: int\nd = {K(1): 'x'}\nresult = d[K(1)]",
    "uncaught": "raise ValueError('boom')",
    "unknown name": "result = undefined_name",
    "key error": "result = {}['k']",
    "index error": "result = [1][3]",
}


def cpython(source: str) -> str:
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        exec(source, names)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return repr(names["result"])


@pytest.mark.parametrize("name", SNIPPETS)
def test_agrees_with_cpython(name: str) -> None:
    source = SNIPPETS[name]
    assert shown(source).replace("__main__.", "") == cpython(source).replace("__main__.", "")


def test_pairs_that_are_none() -> None:
    assert shown("result = dict([(1, 2, 3)])").startswith("raised ValueError")
    assert shown("result = {**[(1,)]}").startswith("raised ")
    assert shown("result = 0\nfor i in range(-(10 ** 99), 10 ** 99):\n    result = i\n    break") == str(
        -(10**99)
    )
