"""Tables of pandas: a column has one axis, a table two. Their symbols tell them apart."""

from __future__ import annotations

import re

from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.semantics.registry import Call, function

_TABLE = "table@"
# Attributes of a DataFrame that are no columns.
_NO_COLUMN = frozenset(
    ["T", "at", "attrs", "axes", "columns", "dtypes", "flags", "iat", "iloc", "index", "loc", "ndim", "shape"]
) | frozenset(["size", "style", "values"])
_COLUMN = re.compile(r"table@[^\[\].]*(?:\['[^']*'\]|\.(?P<name>\w+))(?:\.values)?")
_ARRAY = re.compile(r"array@\d+:\d+:(?P<axes>\d)")
_CHANGED = re.compile(r";\w+")
_WHOLE = re.compile(r"table@[^\[\].]*(?:\.values)?")
# Methods and functions of numpy after which a table is as it was, or has other rows.
_SAME = frozenset(
    ["astype", "copy", "dropna", "fillna", "head", "tail", "sample", "reset_index", "clip", "round", "drop"]
) | frozenset(["sort_values", "drop_duplicates", "replace", "query", "array", "asarray", "float32", "log1p"])


@function(
    "pandas.read_csv",
    "pandas.read_parquet",
    "pandas.read_excel",
    "pandas.read_feather",
    "pandas.read_table",
)
def table(m: Machine, call: Call) -> va.Value:
    """A table with named columns."""
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    place = m.place(call.node)
    return va.unknown(f"{_TABLE}{place.span.line}:{place.span.column}", taint=m.taint(*call.arguments))


def converted(call: Call) -> va.Unknown | None:
    """What a function of numpy gives, where it has a number for each of a table or column."""
    given = first_known(call.first())
    is_table = isinstance(given, va.Unknown) and shape_of(given) is not None
    return given if isinstance(given, va.Unknown) and is_table and call.last in _SAME else None


def made(m: Machine, call: Call) -> va.Unknown | None:
    """An array of sizes that are listed: `np.zeros((n, 3))`, `np.random.randn(n)`."""
    given = call.arguments.positional
    if call.arguments.open or call.last not in (*_BY_SIZES, *_BY_SHAPE) or not given:
        return None
    axes = len(given)
    if call.last in _BY_SHAPE:
        shape = first_known(given[0])
        is_listed = isinstance(shape, va.Obj) and shape.kind in (va.Kind.TUPLE, va.Kind.LIST)
        axes = len(m.items(shape)) if isinstance(shape, va.Obj) and is_listed else 1
        if not is_listed and not isinstance(shape, va.Const | va.Unknown):
            return None
        if isinstance(shape, va.Unknown) and shape.taint & {"shape"}:
            return None
    place = m.place(call.node)
    is_drawn = ".random." in call.name
    taint = m.taint(*call.arguments) | (frozenset(["random"]) if is_drawn else frozenset[str]())
    symbol = f"array@{place.span.line}:{place.span.column}:{axes}"
    return va.unknown(symbol, taint=taint, varies=is_drawn)


_BY_SIZES = frozenset(["randn", "rand"])
_BY_SHAPE = frozenset(["zeros", "ones", "random_sample", "random"])


def after(value: va.Unknown, call: Call) -> va.Unknown | None:
    """What a method gives, where it is a table or column as before."""
    symbol = value.symbol or ""
    if not symbol.startswith((_TABLE, "array@")):
        return None
    if call.name in ("to_numpy", "values"):
        return va.unknown(f"{symbol}.values", taint=value.taint)
    return va.unknown(f"{symbol};{call.name}", taint=value.taint) if call.name in _SAME else None


def shape_of(value: va.Value | None) -> tuple[int | str | None, ...] | None:
    """One axis for a column, two for a table, those of an array; None for anything else."""
    symbol = value.symbol if isinstance(value, va.Unknown) else None
    array = None if symbol is None else _ARRAY.fullmatch(_CHANGED.sub("", symbol))
    if array is not None:
        return (None,) * int(array.group("axes"))
    if symbol is None or not symbol.startswith(_TABLE):
        return None
    symbol = _CHANGED.sub("", symbol)
    column = _COLUMN.fullmatch(symbol)
    if column is not None and column.group("name") not in _NO_COLUMN:
        return (None,)
    return (None, None) if _WHOLE.fullmatch(symbol) else None
