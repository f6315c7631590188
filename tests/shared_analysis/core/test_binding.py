"""Binding agrees with CPython's own `inspect.Signature.bind` on random calls."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given

from torchwise_analysis.interp.core.binding import bind
from torchwise_analysis.source.nodes import ParamKind

_KINDS = {
    ParamKind.POSITIONAL_ONLY: inspect.Parameter.POSITIONAL_ONLY,
    ParamKind.POSITIONAL: inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ParamKind.VAR_POSITIONAL: inspect.Parameter.VAR_POSITIONAL,
    ParamKind.KEYWORD_ONLY: inspect.Parameter.KEYWORD_ONLY,
    ParamKind.VAR_KEYWORD: inspect.Parameter.VAR_KEYWORD,
}


@dataclass(frozen=True)
class P:
    name: str
    kind: ParamKind


@st.composite
def signatures(draw: st.DrawFn) -> list[P]:
    names = iter("abcdefgh")
    params = [P(next(names), ParamKind.POSITIONAL_ONLY) for _ in range(draw(st.integers(0, 2)))]
    params += [P(next(names), ParamKind.POSITIONAL) for _ in range(draw(st.integers(0, 2)))]
    if draw(st.booleans()):
        params.append(P("args", ParamKind.VAR_POSITIONAL))
    params += [P(next(names), ParamKind.KEYWORD_ONLY) for _ in range(draw(st.integers(0, 2)))]
    if draw(st.booleans()):
        params.append(P("kwargs", ParamKind.VAR_KEYWORD))
    return params


@given(
    signatures(),
    st.lists(st.integers(), max_size=5),
    st.dictionaries(st.sampled_from("abcdefghxy"), st.integers(), max_size=4),
)
def test_binds_as_cpython_does(params: list[P], args: list[int], keywords: dict[str, int]) -> None:
    signature = inspect.Signature([inspect.Parameter(p.name, _KINDS[p.kind]) for p in params])
    binding = bind(params, args, keywords)
    try:
        expected = signature.bind(*args, **keywords).arguments
    except TypeError:
        assert binding.errors or binding.missing
        return
    assert not binding.errors
    assert not binding.missing
    assert binding.extra_positional == list(expected.pop("args", ()))
    assert binding.extra_keywords == expected.pop("kwargs", {})
    assert binding.values == dict(expected)


def test_parameters_without_argument_are_missing_in_order() -> None:
    params = [P("a", ParamKind.POSITIONAL), P("b", ParamKind.POSITIONAL), P("c", ParamKind.KEYWORD_ONLY)]
    assert bind(params, [], {"b": 1}).missing == ["a", "c"]
