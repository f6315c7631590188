"""NumPy as training scripts use it: arrays are CPU tensors, reductions of unknown data unknown numbers."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from torchwise_analysis.interp.concrete import operators
from torchwise_analysis.interp.concrete.library.images import as_tensor
from torchwise_analysis.interp.concrete.library.stdlib import pure
from torchwise_analysis.interp.concrete.values import (
    Builtin,
    Keywords,
    Namespace,
    Opaque,
    Symbol,
    Unknown,
    Value,
)
from torchwise_analysis.interp.core.constants import MAX_ITEMS
from torchwise_memory.runtime.dtypes import DTYPES, DType
from torchwise_memory.runtime.tensor import Tensor

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

Call: TypeAlias = "Callable[[Interpreter, list[Value], Keywords], Value]"

# Stands for the length of a file that is mapped into memory; only slices of it are ever looked at.
MAPPED_LENGTH = 1 << 30

_TYPES = {
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "bool_": "bool",
    "float_": "float64",
    "int_": "int64",
}


# Names that torch has too, with the same arguments in the same places.
_OF_TORCH = {
    "einsum": "einsum", "outer": "outer", "matmul": "matmul", "dot": "matmul", "tile": "tile", "diag": "diag",
    "vstack": "vstack", "hstack": "hstack", "dstack": "dstack", "ravel": "flatten", "swapaxes": "swapaxes",
    "moveaxis": "moveaxis", "triu": "triu", "tril": "tril", "broadcast_to": "broadcast_to", "roll": "roll",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_not": "logical_not",
    "isinf": "isinf", "power": "pow", "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div",
    "argsort": "argsort", "reshape": "reshape", "allclose": "allclose",
}  # fmt: skip
# Functions of torch that take no mixture of types, and those that can be told one.
_STRICT = frozenset(f"torch.{name}" for name in ("einsum", "outer", "matmul"))
_TYPED = frozenset(
    f"torch.{name}" for name in ("arange", "linspace", "eye", "zeros_like", "ones_like", "empty_like")
)
# Where numpy says `axis` and `keepdims`, torch says `dim` and `keepdim`.
_TORCH_KEYWORDS = {
    "axis": "dim",
    "keepdims": "keepdim",
    "axes": "dims",
    "newshape": "shape",
    "shift": "shifts",
}
_REDUCTIONS = {
    "mean": "mean", "std": "std", "var": "var", "median": "", "percentile": "", "quantile": "", "sum": "sum",
    "argmax": "argmax", "argmin": "argmin", "min": "amin", "max": "amax", "amin": "amin", "amax": "amax",
    "any": "any", "all": "all",
}  # fmt: skip


def _chosen_objects(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`numpy.random.choice` among objects that are no numbers: the first of them; None for anything else."""
    items = cast("list[Value]", args[0]) if args and isinstance(args[0], (list, tuple)) else []
    if not items or isinstance(items[0], (int, float, Unknown, Symbol)):
        return None
    size = args[1] if len(args) > 1 else keywords.get("size")
    it.assume("a random choice is the first of its elements")
    return [items[0]] * size if isinstance(size, int) and 0 < size <= MAX_ITEMS else items[0]


def numpy_module(it: Interpreter) -> Namespace:
    members: dict[str, Value] = {name: DTYPES[dtype] for name, dtype in _TYPES.items()}
    members |= {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None}
    for name in ("sqrt", "log", "log2", "log10", "exp", "sin", "cos", "tan", "floor", "ceil", "fabs"):
        members[name] = _elementwise(pure(name, getattr(math, name)))
    members["abs"] = members["absolute"] = _elementwise(pure("abs", abs))
    for name in ("cumsum", "cumprod"):
        members[name] = Builtin(f"numpy.{name}", _accumulated(f"torch.{name}"))
    for name in (
        "clip",
        "round",
        "square",
        "sign",
        "flip",
        "fliplr",
        "flipud",
        "sort",
        "copy",
    ):
        members[name] = _elementwise(Builtin(f"numpy.{name}", _unknown_number(name)))
    members["append"] = Builtin("numpy.append", _append)
    members["transpose"] = Builtin("numpy.transpose", _transpose)
    members["expand_dims"] = Builtin("numpy.expand_dims", _renamed("torch.unsqueeze"))
    members["squeeze"] = Builtin("numpy.squeeze", _renamed("torch.squeeze"))
    members["maximum"] = Builtin("numpy.maximum", _pairwise("torch.maximum"))
    members["minimum"] = Builtin("numpy.minimum", _pairwise("torch.minimum"))
    for name in ("zeros_like", "ones_like", "empty_like"):
        members[name] = Builtin(f"numpy.{name}", _renamed(f"torch.{name}"))
    members["finfo"] = Builtin("numpy.finfo", lambda it, a, k: _limits(it, "torch.finfo", a))
    members["iinfo"] = Builtin("numpy.iinfo", lambda it, a, k: _limits(it, "torch.iinfo", a))
    for name in ("zeros", "ones", "empty", "full"):
        members[name] = Builtin(f"numpy.{name}", _factory(f"torch.{name}", "float64"))
    for name in ("arange", "linspace", "eye", "stack", "where"):
        members[name] = Builtin(f"numpy.{name}", _made_of(f"torch.{name}"))
    members["concatenate"] = Builtin("numpy.concatenate", _made_of("torch.cat"))
    for name in ("array", "asarray", "ascontiguousarray"):
        members[name] = Builtin(f"numpy.{name}", _array)
    members["memmap"] = Builtin("numpy.memmap", _mapped)
    members["fromfile"] = Builtin("numpy.fromfile", _mapped)
    members["prod"] = Builtin("numpy.prod", _product)
    for name in _REDUCTIONS:
        members[name] = Builtin(f"numpy.{name}", _reduced(name))
    for name, of_torch in _OF_TORCH.items():
        members[name] = Builtin(f"numpy.{name}", _made_of(f"torch.{of_torch}"))
    members["identity"] = members["eye"]
    members["meshgrid"] = Builtin("numpy.meshgrid", _meshgrid)
    members["array_split"] = members["split"] = Builtin("numpy.split", _unknown_array("split"))
    members["random"] = Namespace("numpy.random", _random(), resolve=None)
    members["ndarray"] = it.types.named("ndarray")
    members["isnan"] = members["isfinite"] = pure("isnan", math.isnan)
    return Namespace("numpy", members)


def scipy_optimize(it: Interpreter) -> Namespace:
    """`scipy.optimize`, as far as a training step uses it."""
    return Namespace(
        "scipy.optimize", {"linear_sum_assignment": Builtin("linear_sum_assignment", _assignment)}
    )


def _assignment(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Rows and columns of an assignment: one pair for each row or column, whichever are fewer."""
    costs = args[0]
    if not isinstance(costs, Tensor) or costs.ndim != 2:
        return Unknown("an assignment", it.origin())
    count = min(costs.shape)
    kind = {"dtype": DTYPES["int64"]}
    return tuple(it.library.call_function(it, "torch.empty", [(count,)], dict(kind)) for _ in range(2))


def astype(tensor: Tensor) -> Builtin:
    """`array.astype(type)`."""

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        dtype = _dtype(args[0] if args else keywords.get("dtype"))
        return tensor if dtype is None else it.library.call_method(it, tensor, "to", [dtype], {})

    return Builtin("astype", call)


def _dtype(value: Value) -> DType | None:
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        return DTYPES.get(value)
    return None


def _factory(name: str, default: str) -> Call:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        dtype = _dtype(keywords.pop("dtype", None)) or DTYPES[default]
        extents = args[0] if args else keywords.get("shape")
        items = list(it.iterate(extents)) if isinstance(extents, (list, tuple)) else [extents]
        unknown = next((v for v in items if isinstance(v, (Unknown, Symbol))), None)
        if unknown is not None:
            return Unknown(f"an array whose size is {unknown.why}", it.origin())
        return it.library.call_function(it, name, args, {**keywords, "dtype": dtype})

    return call


def _renamed(name: str) -> Call:
    """torch's function of that name; arrays are made of the type asked for, or of numpy's own."""
    own = {"torch.linspace": "float64", "torch.eye": "float64"}.get(name)

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        dtype = _dtype(keywords.pop("dtype", None)) or (DTYPES[own] if own is not None else None)
        if name == "torch.arange" and any(isinstance(a, float) for a in args):
            dtype = dtype or DTYPES["float64"]
        given = _as_torch_says(keywords)
        if dtype is not None and name in _TYPED:
            given["dtype"] = dtype
        return it.library.call_function(it, name, _of_one_type(it, args) if name in _STRICT else args, given)

    return call


def _of_one_type(it: Interpreter, args: list[Value]) -> list[Value]:
    """Arrays brought to the widest of their types, as numpy does before it multiplies them."""
    types = [a.dtype for a in args if isinstance(a, Tensor)]
    if len(set(types)) < 2:
        return args
    widest = max(types, key=lambda dtype: (dtype.category, dtype.itemsize))
    return [it.library.call_method(it, a, "to", [widest], {}) if isinstance(a, Tensor) else a for a in args]


def _as_torch_says(keywords: Keywords) -> Keywords:
    return {_TORCH_KEYWORDS.get(name, name): value for name, value in keywords.items()}


def _reduced(name: str) -> Call:
    """A reduction: an array where it goes along an axis, else a number that is not known."""
    number = _unknown_number(name)
    of_torch = _REDUCTIONS[name]

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        array = args[0] if args else None
        axis = keywords.get("axis", args[1] if len(args) > 1 else None)
        if isinstance(array, (list, tuple)) and axis is not None:
            array = _array(it, [array], {})
        if not of_torch or not isinstance(array, Tensor) or not isinstance(axis, (int, tuple)):
            return array if isinstance(array, Unknown) and axis is not None else number(it, args, keywords)
        if of_torch in ("mean", "std", "var") and not array.dtype.is_floating_point:
            array = it.library.call_method(it, array, "to", [DTYPES["float64"]], {})
        kept = {"keepdim": keywords["keepdims"]} if "keepdims" in keywords else {}
        return it.library.call_function(it, f"torch.{of_torch}", [array, axis], kept)

    return call


def _meshgrid(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Rows and columns come the other way round than torch's, unless `indexing` says so."""
    unknown = next((a for a in args if isinstance(a, Unknown)), None)
    if unknown is not None:
        return unknown
    indexing = keywords.get("indexing", "xy")
    return it.library.call_function(it, "torch.meshgrid", args, {"indexing": indexing})


def _unknown_array(name: str) -> Call:
    return lambda it, a, k: Unknown(f"what numpy.{name} gives", it.origin())


def _made_of(name: str) -> Call:
    """An array of numbers or arrays; outside of models (schedules of rates) one of them may be unknown."""
    make = _renamed(name)

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        parts = it.iterate(args[0]) if args and isinstance(args[0], (list, tuple)) else ()
        unknown = next((v for v in (*args, *parts) if isinstance(v, (Unknown, Symbol))), None)
        if unknown is not None and not it.module_depth:
            return Unknown(f"an array whose size is {unknown.why}", it.origin())
        return make(it, args, keywords)

    return call


def _array(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[0]
    if isinstance(value, Tensor):
        dtype = _dtype(keywords.get("dtype"))
        return value if dtype is None else _typed(it, value, dtype)
    if isinstance(value, Unknown):
        return value
    if isinstance(value, Opaque) and value.kind == "image":
        return as_tensor(it, value, "uint8", channels_last=True)
    if (
        any(isinstance(v, (Unknown, Symbol)) for v in it.iterate(value))
        if isinstance(value, (list, tuple))
        else False
    ):
        return Unknown("an array of values that are not known", it.origin())
    made = it.library.call_function(it, "torch.tensor", [value], {})
    return _typed(it, made, keywords.get("dtype", args[1] if len(args) > 1 else None))


def _typed(it: Interpreter, array: Value, dtype: Value) -> Value:
    """An array of the type asked for; without one, numbers with a point take eight bytes."""
    if not isinstance(array, Tensor):
        return array
    wanted = _dtype(dtype) or (DTYPES["float64"] if array.dtype.is_floating_point else array.dtype)
    return array if wanted is array.dtype else it.library.call_method(it, array, "to", [wanted], {})


def _mapped(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    dtype = _dtype(keywords.get("dtype", args[1] if len(args) > 1 else None)) or DTYPES["uint8"]
    it.assume("a mapped data file is long enough")
    return it.library.call_function(it, "torch.empty", [(MAPPED_LENGTH,)], {"dtype": dtype})


def _product(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if isinstance(args[0], Unknown):
        return Symbol(args[0].why)
    if isinstance(args[0], (int, float)):
        return args[0]
    result: Value = 1
    for item in it.iterate(args[0]):
        result = operators.binary(it, "*", result, item)
    return result


def _elementwise(scalar: Builtin) -> Builtin:
    """A function of numbers that goes over arrays element by element."""

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        array = args[0] if args else None
        if isinstance(array, (list, tuple)):
            array = _array(it, [array], {})
        if isinstance(array, Unknown):
            return array
        if isinstance(array, Tensor) and array.ndim:
            dtype = array.dtype if array.dtype.is_floating_point else DTYPES["float64"]
            return it.library.call_function(it, "torch.empty", [tuple(array.shape)], {"dtype": dtype})
        return scalar.call(it, args[:1], {})

    return Builtin(scalar.name, call)


def _accumulated(name: str) -> Call:
    """`numpy.cumsum` and its like: along an axis, or over all elements one behind the other."""

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        array = args[0] if args else None
        if isinstance(array, (list, tuple)):
            array = _array(it, [array], {})
        if not isinstance(array, Tensor):
            return Unknown(f"what {name.replace('torch', 'numpy')} gives", it.origin())
        axis = keywords.get("axis", args[1] if len(args) > 1 else None)
        if axis is None:
            array, axis = it.library.call_function(it, "torch.flatten", [array], {}), 0
        return it.library.call_function(it, name, [array, axis], {})

    return call


def _append(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`numpy.append` without an axis: both flattened, one behind the other."""
    count = 0
    for value in args[:2]:
        if isinstance(value, Unknown):
            return value
        count += value.numel if isinstance(value, Tensor) else 1
    return it.library.call_function(it, "torch.empty", [(count,)], {"dtype": DTYPES["float64"]})


def _transpose(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    array = args[0]
    if not isinstance(array, Tensor):
        return Unknown("a transposed array", it.origin())
    axes = args[1] if len(args) > 1 else keywords.get("axes")
    order = list(range(array.ndim))[::-1] if axes is None else list(it.iterate(axes))
    return it.library.call_method(it, array, "permute", [order], {})


def _pairwise(name: str) -> Call:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        tensors = [a for a in args[:2] if isinstance(a, Tensor)]
        unknown = next((a for a in args[:2] if isinstance(a, Unknown)), None)
        if unknown is not None:
            return unknown
        if len(tensors) == 2:
            return it.library.call_function(it, name, list(args[:2]), {})
        if tensors:
            return tensors[0]
        return Symbol(f"{name} of numbers", is_int=False)

    return call


def _limits(it: Interpreter, name: str, args: list[Value]) -> Value:
    space = it.library.known_module("torch")
    return it.call(it.get_attribute(space, name.rpartition(".")[2]), args[:1], {})


def _unknown_number(name: str) -> Call:
    return lambda it, a, k: Symbol(f"numpy.{name} of data", is_int=False)


def _random() -> dict[str, Value]:
    def of_extents(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return _drawn(it, tuple(args), "float64") if args else Symbol("a random number", is_int=False)

    def none(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return None

    def permutation(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        if isinstance(args[0], int):
            return _drawn(it, args[0], "int64")
        return args[0] if isinstance(args[0], Tensor) else Unknown("a permutation", it.origin())

    members: dict[str, Value] = {
        "randn": Builtin("randn", of_extents),
        "rand": Builtin("rand", of_extents),
        "choice": Builtin("choice", _choice),
        "seed": Builtin("seed", none),
        "shuffle": Builtin("shuffle", none),
        "permutation": Builtin("permutation", permutation),
    }
    # the place of `size` among the arguments
    places = {
        "random": 0, "random_sample": 0, "standard_normal": 0, "randint": 2, "integers": 2, "uniform": 2,
        "normal": 2, "beta": 2, "gamma": 2, "binomial": 2, "laplace": 2, "lognormal": 2, "poisson": 1,
        "exponential": 1, "dirichlet": 1, "geometric": 1,
    }  # fmt: skip
    for name, place in places.items():
        members[name] = Builtin(
            name, _sized_draw(place, name in ("randint", "integers", "binomial", "poisson"))
        )
    generator = Opaque("numpy.random.Generator", dict(members))
    for name in ("default_rng", "RandomState"):
        members[name] = Builtin(name, lambda it, a, k: generator)
    return members


def _choice(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    chosen = _chosen_objects(it, args, keywords)
    if chosen is not None:
        return chosen
    given = _sized_draw(1, True)(it, args, keywords)
    source = args[0] if args else None
    if isinstance(source, Tensor) and isinstance(given, Tensor):
        return it.library.call_method(it, given, "to", [source.dtype], {})
    return given


def _sized_draw(place: int, is_int: bool) -> Call:
    """Random numbers as many as `size` says, one without it."""

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        size = keywords.get("size", args[place] if len(args) > place else None)
        if size is None:
            return Symbol("a random number", is_int=is_int)
        return _drawn(it, size, "int64" if is_int else "float64")

    return call


def _drawn(it: Interpreter, size: Value, dtype: str) -> Value:
    extents = tuple(it.iterate(size)) if isinstance(size, (list, tuple)) else (size,)
    unknown = next((v for v in extents if isinstance(v, (Unknown, Symbol))), None)
    if unknown is not None:
        return Unknown(f"an array whose size is {unknown.why}", it.origin())
    return it.library.call_function(it, "torch.empty", [extents], {"dtype": DTYPES[dtype]})
