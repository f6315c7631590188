"""Our linearisation is CPython's."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from torchwise_analysis.interp.core.imports import absolute_module
from torchwise_analysis.interp.core.mro import MAX_ANCESTORS, InconsistentMro, linearize


@given(st.lists(st.lists(st.integers(0, 8), max_size=3, unique=True), max_size=9))
def test_agrees_with_type(graph: list[list[int]]) -> None:
    classes: list[type] = []
    mros: dict[type, tuple[type, ...]] = {object: (object,)}
    for index, picks in enumerate(graph):
        bases = [classes[pick % len(classes)] for pick in picks if classes] or [object]
        bases = list(dict.fromkeys(bases))
        marker = type(f"marker{index}", (), {})
        try:
            cls = type(f"C{index}", tuple(bases), {})
        except TypeError:
            with pytest.raises(InconsistentMro):
                linearize(marker, bases, mros.__getitem__)
            continue
        classes.append(cls)
        mros[cls] = cls.__mro__
        assert linearize(cls, bases, mros.__getitem__) == cls.__mro__


@pytest.mark.parametrize(
    ("module", "level", "importer", "package", "expected"),
    [
        ("torch.nn", 0, "a.b", False, "torch.nn"),
        ("utils", 1, "pkg.train", False, "pkg.utils"),
        ("utils", 1, "pkg", True, "pkg.utils"),
        ("", 1, "pkg.train", False, "pkg"),
        ("data", 2, "pkg.sub.train", False, "pkg.data"),
        ("x", 3, "pkg.train", False, None),
    ],
)
def test_relative_imports(
    module: str, level: int, importer: str, package: bool, expected: str | None
) -> None:
    assert absolute_module(module, level, importer, package) == expected


def test_a_long_chain_ends() -> None:
    """Each class keeps its whole chain: without a bound, a file of a megabyte would take gigabytes."""
    mros: dict[object, tuple[object, ...]] = {}
    bases: list[object] = []
    with pytest.raises(InconsistentMro):
        for _ in range(MAX_ANCESTORS + 1):
            cls = object()
            mros[cls] = linearize(cls, bases, mros.__getitem__)
            bases = [cls]
    assert len(mros) > MAX_ANCESTORS // 2 - 1
