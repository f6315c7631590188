"""The shapes of samples and batches, where a data set was made of arrays in view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torchwise_analysis.interp.abstract import calls
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.interp.abstract.static import walk
from torchwise_analysis.semantics import tables
from torchwise_analysis.source import nodes as nd

Shape: TypeAlias = "tuple[int | str | None, ...] | None"

_DERIVED = (".random_split", ".Subset")
# Calls that leave the shape of their first argument, and methods that leave that of their receiver.
_SAME_FUNCTIONS = frozenset(["tensor", "as_tensor", "from_numpy", "float32", "float64", "asarray", "array"])
_SAME_METHODS = frozenset(["float", "long", "to", "astype", "double", "clone", "copy", "type"])


def of_batch(m: Machine, part: va.Obj) -> Shape:
    """The shape of a part of a batch: that of the part of a sample, behind the samples."""
    batch = m.objects.get(m.parents.get(part.id, 0))
    loader = m.objects.get(m.parents.get(batch.id, 0)) if batch is not None else None
    if batch is None or loader is None or loader.kind is not va.Kind.LOADER or batch.name != "[]":
        return None
    if loader.arguments.get("collate_fn", 6) is not None or loader.arguments.get("batch_size", 1) is None:
        return None
    held = first_known(loader.arguments.get("dataset", 0))
    while isinstance(held, va.Obj) and held.type_name.endswith(_DERIVED):
        held = first_known(held.arguments.get("dataset", 0))
    if not isinstance(held, va.Obj):
        return None
    key = part.name[1:-1].strip("'\"")
    sample = _of_tensors(held, key) if held.cls is None else _of_class(m, held, key)
    return None if sample is None else ("batch", *sample)


def _of_tensors(dataset: va.Obj, key: str) -> Shape:
    """Of `TensorDataset(x, y)`."""
    if not dataset.type_name.endswith(".TensorDataset") or not key.isdigit() or dataset.arguments.open:
        return None
    given = dataset.arguments.positional
    whole = first_known(given[int(key)]) if int(key) < len(given) else None
    return whole.shape[1:] if isinstance(whole, va.Tensor) and whole.shape else None


def _of_class(m: Machine, dataset: va.Obj, key: str) -> Shape:
    """Of a class whose `__getitem__` gives rows of what it holds: `return self.x[i], self.y[i]`."""
    assert dataset.cls is not None
    method = calls.find_member(m, dataset.cls, "__getitem__")
    if not isinstance(method, va.Function) or len(method.node.params) != 2:
        return None
    m.note_read(method.code)
    body = method.node.body if isinstance(method.node, nd.FunctionDef) else ()
    returns = [node for statement in body for node in walk(statement) if isinstance(node, nd.Return)]
    given = returns[0].value if len(returns) == 1 else None
    names = _Names(method.node.params[0].name, method.node.params[1].name, _assigned(body))
    part = _part(given, key)
    return None if part is None else _shape(m, dataset, part, names)


@dataclass(frozen=True, slots=True)
class _Names:
    """What names mean in a `__getitem__`: its object, its index, expressions that are given a name once."""

    self: str
    index: str
    values: Mapping[str, nd.Expr]


def _assigned(body: nd.Block) -> dict[str, nd.Expr]:
    values: dict[str, nd.Expr] = {}
    often: set[str] = set()
    for node in (inner for statement in body for inner in walk(statement)):
        targets = node.targets if isinstance(node, nd.Assign) else ()
        for target in targets:
            for name in (inner.id for inner in walk(target) if isinstance(inner, nd.Name)):
                often |= {name} & values.keys()
                if isinstance(node, nd.Assign) and isinstance(target, nd.Name):
                    values[name] = node.value
                else:
                    often.add(name)
        if isinstance(node, nd.AugAssign) and isinstance(node.target, nd.Name):
            often.add(node.target.id)
    return {name: value for name, value in values.items() if name not in often}


def _part(given: nd.Expr | None, key: str) -> nd.Expr | None:
    if isinstance(given, nd.TupleExpr) and key.isdigit() and int(key) < len(given.elements):
        return given.elements[int(key)]
    if isinstance(given, nd.DictExpr):
        named = zip(given.keys, given.values, strict=True)
        return next((v for k, v in named if isinstance(k, nd.Constant) and k.value == key), None)
    return None


def _shape(m: Machine, dataset: va.Obj, node: nd.Expr, names: _Names, depth: int = 0) -> Shape:
    if depth > 6:
        return None
    if isinstance(node, nd.Name):
        value = names.values.get(node.id)
        return None if value is None else _shape(m, dataset, value, names, depth + 1)
    if isinstance(node, nd.Call) and isinstance(node.func, nd.Attribute):
        if node.func.attr in _SAME_METHODS:
            return _shape(m, dataset, node.func.value, names, depth + 1)
        if node.func.attr in _SAME_FUNCTIONS and node.args:
            return _shape(m, dataset, node.args[0], names, depth + 1)
        return None
    if not isinstance(node, nd.Subscript) or not isinstance(node.index, nd.Name):
        return None
    if node.index.id != names.index or names.index in names.values:
        return None
    whole = _held(m, dataset, node.value, names)
    return whole[1:] if whole else None


def _held(m: Machine, dataset: va.Obj, node: nd.Expr, names: _Names) -> Shape:
    """The shape of `self.y`, of a column `self.table["y"]` or of its values."""
    if isinstance(node, nd.Attribute) and isinstance(node.value, nd.Name) and node.value.id == names.self:
        value = first_known(m.attribute(dataset, node.attr))
        return value.shape if isinstance(value, va.Tensor) else tables.shape_of(value)
    if isinstance(node, nd.Attribute) and node.attr == "values":
        return _held(m, dataset, node.value, names)
    if isinstance(node, nd.Subscript) and isinstance(node.index, nd.Constant):
        whole = _held(m, dataset, node.value, names)
        return whole[:1] if whole is not None and isinstance(node.index.value, str) else None
    return None
