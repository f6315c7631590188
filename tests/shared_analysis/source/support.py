"""Texts to try the front ends on, and modules made comparable."""

from __future__ import annotations

import dataclasses
import sysconfig
from functools import cache
from pathlib import Path

from torchwise_analysis.source import lower_ast
from torchwise_analysis.source.nodes import Block, Broken, Node, Placed, Span
from torchwise_analysis.source.scopes import Names


@cache
def library_files() -> tuple[Path, ...]:
    """Python files of the standard library, by name."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [*root.glob("*.py"), *root.glob("[a-z]*/*.py")]
    return tuple(sorted(file for file in files if "site-packages" not in file.parts))


@cache
def library_text(file: Path) -> str | None:
    """The text with its own line breaks; None for the few that are not UTF-8."""
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError:
        return None


def by_ast(text: str) -> tuple[Block, Names]:
    lowering = lower_ast.AstLowering(text)
    return lowering.statements(lower_ast.parse(text).body), lowering.block.freeze()


def by_libcst(text: str) -> tuple[Block, Names]:
    from torchwise_analysis.source import lower_cst

    lowering = lower_cst.CstLowering(text)
    return lowering.module(lower_cst.parse(text)), lowering.block.freeze()


def flat(value: object, line: int = 0) -> object:
    """A block or node with absolute spans and the statements of `Placed` in its place."""
    if isinstance(value, Span):
        return value.shifted(line)
    if isinstance(value, tuple):
        out: list[object] = []
        for item in value:
            if isinstance(item, Placed):
                inner = flat(item.body, item.line)
                assert isinstance(inner, tuple)
                out += inner
            else:
                out.append(item if isinstance(item, Broken) else flat(item, line))
        return tuple(out)
    if isinstance(value, Node):
        return type(value).__name__, *(flat(getattr(value, f.name), line) for f in dataclasses.fields(value))
    return value


# Valid for every Python that we run on and for LibCST.
SNIPPETS = (
    'f"a{x!r:>{w}}b{{\\n" "c"\n',
    'f"{x = }"; f"{x=!r}"; f"{ x = :>3}"\n',
    "f'{a[\"b\"]}' f'{c}' 'd'\n",
    'x = f"""é\n {a +\n b} {c}"""\n',
    'x = f"é{a}ü{b}"; y = (f"{a, b}", f"{a:%H:%M}", f"{a!r:{b}.{c}}")\n',
    'rf"\\{x}\\n"; f"\\N{EM DASH}{x}"; f""; "" f"" ""\n',
    "with (a as b, c): pass\n",
    "with (a) as b, (c): pass\n",
    "with (a, b): pass\n",
    "x = a[1:2, ::3], a[1,], a[:], a[b:], a[(1):(2)], a[::]\n",
    "class A(B, metaclass=M, **k): pass\nclass C(): x = 1;\n",
    "match x:\n case {'a': 1, **r} if y: pass\n case A(1, b=[*_]): pass\n case -1 | 's' 't': pass\n"
    " case (1,): pass\n case a, *b: pass\n case (c): pass\n case (1 | 2) as d: pass\n case [1, 2,]: pass\n"
    " case {}: pass\n case None | True: pass\n case x.y: pass\n case ((1)): pass\n case A(): pass\n"
    " case 1+2j: pass\n case {x.y: _,}: pass\n case e,: pass\n case _: pass\n",
    "match (a, b):\n case _: pass\nmatch a, b:\n case _: pass\nmatch = case = type = _ = 3\n",
    "for x in *a, b: pass\nfor (x, y), *z in ((q)): pass\nelse: pass;\n",
    "def f(a, /, b=(1), *, c): ...\ndef g(*a: int, **k: str) -> (int): ...\ndef h(*, a): pass\n",
    "lambda *a, b=1, **k: (yield)\nlambda: 0\nlambda a, /, b: a\n",
    "f(x for x in y); f((x for x in y)); f((x for x in y), 1); f(*a, k=(1), **(b))\n",
    "f(a)(b)[c].d; ((a)).b; (a, b) = c; ((a, b)) = c; a, b = c = d; a, = b; ()\n",
    "del a, b\ndel (a, b)\ndel (a), b[0]\ndel a,\n",
    "x: int\nx.y: int = 3\nx += (1)\n(x) += 1\n",
    "if a:\n  pass\nelif (b):\n  pass;\nelse: pass;\n",
    "from . import a\nfrom .. b import (c as d, e,)\nfrom ... import *\nimport a . b as c, d.e\n",
    "global a, b\nraise (A) from (b)\nraise\nassert (a), (b)\n",
    "async def f():\n  async with a as b: pass\n  async for x in y: pass\n"
    "  return [z async for z in w if a if (b)]\n  await (x)\n",
    "@a\n@b.c(1)\ndef f(): pass\n@(  # c\n a)\nclass X: pass\n",
    "x = a if b else c if d else e; x = not (a) and b and c or d and (e and f)\n",
    "a < b <= (c) is not d not in e != f; -a ** -b; ~a @ +b // c << d >> e & f ^ g | h\n",
    "x = (a\n\n # comment\n  + b) ; y = \\\n 3\na;b ;\n",
    "\ufeffx = 1\n",
    '\ufeffé = "é"; y = é\n',
    'def f():\r\n\treturn """a\r\nb"""\r\nx = "a\\\r\nb"\r\n',
    "x = 1\ry = 2\r",
    "\x0cx = 1\n\x0cdef f():\n\x0c  pass\n",
    "x = 0xFF + 0o17 + 1_000 + 1e3 + 1j + .5 + 5. + 1_0.0_1\n",
    "x = b\"a\" b\"\\n\" rb\"\\n\"; y = u'a'; z = '' \"\" ''''''\n",
    "ﬁ = 1; ﬁ.ﬁ\n",
    "{**a, b: c, (d): (e),}; {a, *b,}; {k: v for k, v in x}; {a for a in b for c in a if (d)}; [*a, (b),]\n",
    "print((a := 1), [b := 2 for c in d]); x[(a:=1)]; f(a:=1)\n",
    "def f():\n    x = 1\n    def g():\n        nonlocal x\n        def h(): global x; x = 2\n"
    "        class C:\n            x = x\n            def m(self): return x, y\n        y = 2\n"
    "    z = (x for q in x)\n    return [x for x in z]\n",
    "try:\n a\nexcept (A, B) as e:\n b\nexcept C:\n c\nelse:\n d\nfinally:\n e\n",
    "while (a): break\nelse: continue\n",
    "def f(a):\n  # leading\n\n  pass\n  # trailing\n",
    "a if b else(c)\nreturn *a, b\na = yield\nprint(*a or b)\nx = yield a, b\nyield from (a)\n",
    '""" doc """\n#only',
    "",
    "\n\n",
)

# Newer than the oldest Python that we run on: read by LibCST there.
NEWER = (
    'f"{a["b"]}"\n',
    "def f[T: int](x: T) -> T:\n    y: T = x\n    return lambda: (T, y, z)\n",
    "class A[*T, **P](B[T]): pass\n",
    "type X[T] = list[T]\n",
    "f'{'a' + f'{b}'}'\n",
)

# No Python reads these.
BROKEN = (
    "def f(x\n    return 1\nx = 2\n",
    "x = (\ny = 2\ndef f(): pass\n",
    'def f():\n    """doc\n    return 1\n\ndef g():\n    """doc"""\n    return 2\n',
    "class A:\n    def f(self):\n        x = foo(1,\n        y = 2\n    def g(self): pass\n",
    "if x\n    y\nz = 1\n",
    "x = 'a\ny = 2\n",
    "f'{x\ny = 1\n",
    "@dec\n",
    "else:\n    pass\n",
    "    x = 1\ny = 2\n",
    "x = 1\n  y = 2\n",
    "x = \\",
    "a = ]\nb = [\nc\n",
    "\ufeff\ufeffx\n",
    "x = 1\0\ny = 2\n",
    "x = '\ud800'\ny = 2\n",
    "print 'a'\nx = 1\n",
)
