"""Both front ends give equal nodes with equal places."""

from __future__ import annotations

import ast
import pickle
import random
import symtable
import sys

import pytest
from tests.shared_analysis.source.support import (
    BROKEN,
    NEWER,
    SNIPPETS,
    by_ast,
    by_libcst,
    flat,
    library_files,
    library_text,
)

from torchwise_analysis.source import lower_text
from torchwise_analysis.source.lower_text import whole
from torchwise_analysis.source.nodes import (
    Assign,
    Attribute,
    Broken,
    ClassDef,
    FunctionDef,
    Module,
    Node,
    Placed,
    Scope,
    Span,
)
from torchwise_analysis.source.segments import pieces

EVERY = 40
"""Which part of the standard library is compared by default."""


@pytest.mark.parametrize("text", SNIPPETS)
def test_equal_nodes_of_snippets(text: str) -> None:
    assert by_ast(text) == by_libcst(text)


@pytest.mark.parametrize("most", [1, 60, 2_000])
def test_a_text_parsed_in_pieces_gives_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files = random.Random(most).sample(library_files(), 12)
    texts = [text for file in files if (text := library_text(file)) is not None and len(text) < 150_000]
    expected = [lower_text("a.py", text) for text in [*SNIPPETS, *BROKEN, *texts]]
    monkeypatch.setattr(sys.modules["torchwise_analysis.source.lower_text"], "_PIECE", most)
    for text, module in zip([*SNIPPETS, *BROKEN, *texts], expected, strict=True):
        assert lower_text("a.py", text) == module, text


@pytest.mark.parametrize("text", ["x = 1\n\n@wrap\ndef f():\n    y = 2\nif x:\n    pass\nelse:\n    z = 1\n"])
def test_pieces_are_cut_between_statements_only(text: str) -> None:
    assert [row for row, _ in pieces(text, 1)] == [0, 2, 5]
    assert "".join(piece for _, piece in pieces(text, 1)) == text
    assert [row for row, _ in pieces("x = (\n1,\n)\n" + text, 1)] == [0, 3, 5, 8]


def test_equal_nodes_of_library_files() -> None:
    # LibCST reads no annotation of a target in brackets, and `ast` drops comments from `{x = # c}`
    files = [file for file in library_files() if file.name not in ("test_grammar.py", "test_fstring.py")]
    compared = 0
    for file in random.Random(1).sample(files, len(files) // EVERY):
        text = library_text(file)
        if text is None or len(text) > 150_000:
            continue
        try:
            expected = by_ast(text)
        except SyntaxError:
            continue  # some test files are broken on purpose
        assert by_libcst(text) == expected, file
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("text", NEWER)
def test_newer_syntax_is_read_on_any_python(text: str) -> None:
    module = lower_text("new.py", text)
    assert module.problems == ()
    assert module.body
    if sys.version_info >= (3, 12):
        assert by_ast(text) == by_libcst(text)


@pytest.mark.parametrize("text", BROKEN)
def test_broken_text_is_a_problem(text: str) -> None:
    module = lower_text("broken.py", text)
    assert module.problems
    lines = text.count("\n") + 1
    assert all(0 <= problem.span.line < lines for problem in module.problems)


@pytest.mark.parametrize("text", SNIPPETS)
def test_nodes_survive_pickling(text: str) -> None:
    module = lower_text("snippet.py", text)
    assert pickle.loads(pickle.dumps(module)) == module


def test_places_are_those_of_the_text() -> None:
    text = 'x = 1\n\nclass A:\n    é = "é"; y = é.bb\n'
    module = lower_text("places.py", text)
    placed = module.body[1]
    assert isinstance(placed, Placed)
    assert placed.span == Span(2, 0, 3, 21)
    (cls,) = placed.body
    assert isinstance(cls, ClassDef)
    assert cls.header == Span(0, 0, 0, 8)
    second = cls.body[1]
    assert isinstance(second, Assign)
    assert isinstance(second.value, Attribute)
    assert second.value.span == Span(1, 17, 1, 21)


def test_headers_and_decorators() -> None:
    text = "@a\n@b(1)\nasync def f(x=':', # :\n      y={1: 2}) -> (lambda: 0): # c\n  pass\n"
    for body, _ in (by_ast(text), by_libcst(text)):
        (function,) = body
        assert isinstance(function, FunctionDef)
        assert function.span == Span(0, 0, 4, 6)
        assert function.header == Span(2, 0, 3, 31)


def test_one_broken_statement_leaves_the_others() -> None:
    module = lower_text("part.py", "a = 1\nb = (\ndef f():\n    return 1\n")
    assert [type(statement) for statement in module.body] == [Placed, Broken, Placed]
    assert module.body[1].span == Span(1, 0, 1, 5)
    assert len(module.problems) == 1


def test_escapes_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    lower_text("escape.py", "x = '\\d'\nf'\\{x}'\n")
    assert not recwarn.list


# --------------------------------------------------------------------------- scopes


def _functions(value: object) -> list[tuple[str, Scope]]:
    out: list[tuple[str, Scope]] = []
    if isinstance(value, tuple):
        for item in value:
            out += _functions(item)
    elif isinstance(value, Node):
        if isinstance(value, FunctionDef):
            out.append((value.name, value.scope))
        for name in value.__dataclass_fields__:
            out += _functions(getattr(value, name))
    return out


def _tables(table: symtable.SymbolTable) -> list[symtable.Function]:
    out: list[symtable.Function] = []
    for child in table.get_children():
        if isinstance(child, symtable.Function) and child.get_name() not in _NO_FUNCTIONS:
            out.append(child)
        out += _tables(child)
    return out


_NO_FUNCTIONS = {"lambda", "listcomp", "setcomp", "dictcomp", "genexpr", "top"}


def test_scopes_are_those_of_the_compiler() -> None:
    compared = 0
    files = [file for file in library_files() if "test" not in file.parts]
    for file in random.Random(2).sample(files, 25):
        text = library_text(file)
        if text is None:
            continue
        body, _ = by_ast(text)
        by_name: dict[str, list[Scope]] = {}
        for name, scope in _functions(body):
            by_name.setdefault(name, []).append(scope)
        for table in _tables(symtable.symtable(text, str(file), "exec")):
            # mangled names and the hidden ones of comprehensions are no names of the source
            local = {name for name in table.get_locals() if name[0] not in "._"}
            scopes = [_plain(scope.local) for scope in by_name.get(table.get_name(), [])]
            # since 3.12 the targets of most comprehensions are locals of the function
            is_same = set.issubset if sys.version_info >= (3, 12) else set.__eq__
            assert any(is_same(own, local) for own in scopes), (file, table.get_name())
            compared += 1
    assert compared > 100


def _plain(names: frozenset[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_scope_of_nested_functions() -> None:
    text = (
        "def f(a):\n"
        "    b = c = d = 1\n"
        "    def g():\n"
        "        nonlocal b\n"
        "        global c\n"
        "        b = c = 2\n"
        "    e = [a for x in d if (w := x)]\n"
        "    return (d for y in e)\n"
    )
    ((_, outer), (_, inner)) = _functions(by_ast(text)[0])
    assert outer.local == {"a", "b", "c", "d", "e", "g", "w"}
    assert outer.captured == {"b", "d"}
    assert inner.local == set()
    assert inner.nonlocal_ == {"b"}
    assert inner.global_ == {"c"}
    assert not outer.is_generator


def test_every_expression_kind_is_known() -> None:
    from torchwise_analysis.source import lower_ast

    unknown = {
        kind.__name__
        for kind in ast.expr.__subclasses__()
        if kind not in lower_ast._EXPRESSIONS and kind.__module__ in ("ast", "_ast")
    }
    # a part of an f-string, and of a t-string
    assert unknown <= {"FormattedValue", "Interpolation"}


def test_module_of_one_parse_equals_module_of_segments() -> None:
    for text in SNIPPETS:
        module: Module = lower_text("same.py", text)
        assert flat(module.body) == flat(whole(text))


def test_a_formatted_string_of_thousands_of_fields_is_refused() -> None:
    """CPython's parser takes time by the square of their number; nothing else of the file is lost."""
    module = lower_text("bomb.py", 'x = 1\ny = f"' + "{a}" * 150_000 + '"\nz = 2\n')
    assert [problem.message for problem in module.problems] == [
        "more than 10000 braces around formatted strings"
    ]
    assert len(module.body) == 3


def test_many_braces_beside_a_formatted_string_are_no_problem() -> None:
    module = lower_text("data.py", "d = {\n" + "{1: 2},\n" * 20_000 + '}\nx = f"{a}"\n')
    assert module.problems == ()
    assert len(module.body) == 2
