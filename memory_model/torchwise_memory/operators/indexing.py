"""Subscripts, gathering and scattering."""

from __future__ import annotations

from math import ceil

from torchwise_memory.runtime.layout import broadcast
from torchwise_memory.runtime.sequences import is_sequence, is_slice

from .registry import method, operator
from .support import (
    BOOL,
    VALUE_LIMIT,
    Gradients,
    Saved,
    Shape,
    Tensor,
    UnknownScalar,
    Unsupported,
    World,
    dim_of,
    dtypes,
    extent,
    pass_through,
    prod,
    record,
    record_inplace,
    store_values,
    values_of,
    widest,
)
from .views import make_view, part, select, unsqueeze

# --- subscripts


@method("__getitem__")
def getitem(w: World, self: Tensor, index: object) -> Tensor:
    """Numbers, slices, None and Ellipsis one after the other as views; tensors and lists as one copy."""
    return _subscripted(w, self, _normalized(self, index), record_views=True)


def _normalized(tensor: Tensor, index: object) -> list[object]:
    items: list[object] = list(index) if is_sequence(index) and isinstance(index, tuple) else [index]
    used = 0
    for item in items:
        if isinstance(item, Tensor) and item.dtype.category == BOOL:
            used += max(item.ndim, 1) if item.ndim else 0
        elif item is not None and item is not Ellipsis and not isinstance(item, bool):
            used += 1
    if used > tensor.ndim:
        raise Unsupported(
            "Tensor.__getitem__", f"{used} indices for {tensor.ndim} dimensions; torch raises here"
        )
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = [slice(None)] * (tensor.ndim - used)
    return items


def _subscripted(w: World, tensor: Tensor, items: list[object], record_views: bool) -> Tensor:
    result = tensor
    dim = 0
    tensors: dict[int, Tensor] = {}
    for item in items:
        if item is None:
            result = unsqueeze(w, result, dim)
            dim += 1
        elif is_slice(item):
            result = _sliced(w, result, dim, item)
            dim += 1
        elif isinstance(item, bool):
            raise Unsupported("Tensor.__getitem__", "a bool index is not modelled")
        elif isinstance(item, int):
            result = select(w, result, dim, item)
        elif isinstance(item, Tensor):
            known = values_of(item) if item.ndim == 0 else None
            if item.ndim == 0 and item.dtype.category != BOOL and known is not None:
                result = select(w, result, dim, int(known[0]))
            else:
                tensors[dim] = item
                dim += item.ndim if item.dtype.category == BOOL and item.ndim else 1
        elif is_sequence(item) or isinstance(item, range):
            tensors[dim] = _index_tensor(w, list(item), result)
            dim += 1
        elif isinstance(item, UnknownScalar):
            # A select at an unknown place: same shape and storage wherever it is.
            result = select(w, result, dim, 0)
        else:
            raise Unsupported("Tensor.__getitem__", f"an index is not known ({type(item).__name__})")
    if tensors:
        return _advanced(w, result, tensors)
    if result is tensor and record_views:
        result = make_view(tensor, tensor.shape, tensor.strides, tensor.offset)
        record(w, "alias", (tensor,), (), pass_through, result)
    return result


def _index_tensor(w: World, items: list[object], like: Tensor) -> Tensor:
    from .factories import tensor

    return tensor(w, items, device=like.storage.device)


def _sliced(w: World, tensor: Tensor, dim: int, item: slice[object, object, object]) -> Tensor:
    if dim >= tensor.ndim:
        raise Unsupported("Tensor.__getitem__", "too many indices; torch raises here")
    size = tensor.shape[dim]
    start, stop, step = (
        None if bound is None else _bound(bound) for bound in (item.start, item.stop, item.step)
    )
    if step is not None and step <= 0:
        raise Unsupported("Tensor.__getitem__", "a slice step that is not positive; torch raises here")
    places = range(*slice(start, stop, step).indices(size))
    if len(places) == size and places.step == 1:
        return tensor
    shape = (*tensor.shape[:dim], len(places), *tensor.shape[dim + 1 :])
    strides = (*tensor.strides[:dim], tensor.strides[dim] * places.step, *tensor.strides[dim + 1 :])
    offset = tensor.offset + places.start * tensor.strides[dim]
    return part(w, tensor, shape, strides, offset, "slice")


def _bound(value: object) -> int:
    return extent(value, "Tensor.__getitem__")


class _IndexBack:
    """Zeros of the whole, into which the gradient is added; the indices are sorted for it on the card."""

    __slots__ = ("count", "shape")

    def __init__(self, shape: Shape, count: int) -> None:
        self.shape = shape
        self.count = count

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        device = gradient.storage.device
        result = w.new(self.shape, gradient.dtype, "index_backward", device)
        if device.on_card:
            held = [w.new((self.count,), dtypes.int64, "index sort", device) for _ in range(3)]
            held.clear()
        return [result]


def _advanced(w: World, tensor: Tensor, indices: dict[int, Tensor]) -> Tensor:
    """Keeps the indices. Masks pick an unknown number of elements: all of them, the most it can be."""
    shape, saved, count = _advanced_shape(w, tensor, indices)
    result = w.new(shape, tensor.dtype, "index", tensor.storage.device)
    result.storage.share = tensor.storage.share
    if tensor.ndim == 1 and len(saved) == 1 and saved[0].ndim == 1:
        source, places = values_of(tensor), values_of(saved[0])
        if source is not None and places is not None:
            store_values(result, [source[int(place)] for place in places])
    record(w, "index", (tensor,), saved, _IndexBack(tensor.shape, count), result)
    return result


def _advanced_shape(w: World, tensor: Tensor, indices: dict[int, Tensor]) -> tuple[Shape, list[Tensor], int]:
    common: Shape = ()
    covered: list[int] = []
    saved: list[Tensor] = []
    for dim, index in indices.items():
        if index.dtype.category == BOOL:
            spans = list(range(dim, dim + index.ndim))
            if tuple(tensor.shape[i] for i in spans) != tuple(index.shape):
                raise Unsupported(
                    "Tensor.__getitem__",
                    f"mask {tuple(index.shape)} on {tuple(tensor.shape)}; torch raises here",
                )
            count = _true_count(w, index)
            shape: Shape = (count,)
            saved += [w.new((count,), dtypes.int64, "nonzero", index.storage.device) for _ in spans]
        else:
            spans, shape = [dim], index.shape
            saved.append(index)
        covered += spans
        joined = broadcast(common, shape)
        if joined is None:
            raise Unsupported("Tensor.__getitem__", "index tensors do not broadcast; torch raises here")
        common = joined
    rest = [size for i, size in enumerate(tensor.shape) if i not in covered]
    adjacent = covered == list(range(covered[0], covered[-1] + 1))
    place = covered[0] if adjacent else 0
    return (*rest[:place], *common, *rest[place:]), saved, prod(common)


def _true_count(w: World, mask: Tensor) -> int:
    known = values_of(mask)
    if known is not None:
        return len([value for value in known if value])
    if mask.storage.share is not None:
        w.assume("a mask picks its known share of elements (experts get equal shares of the tokens)")
        return ceil(mask.numel * mask.storage.share)
    w.assume("a mask picks every element (the number of true ones is not known)")
    return mask.numel


class _IndexPutBack:
    """The old values get the gradient with zeros at the indices, the new ones its elements there."""

    def __init__(self, value_shape: Shape | None) -> None:
        self.value_shape = value_shape

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        kept = w.like(gradient, "index_put")
        if self.value_shape is None:
            return [kept, None]
        return [kept, w.new(self.value_shape, gradient.dtype, "index", gradient.storage.device)]


@method("__setitem__")
def setitem(w: World, self: Tensor, index: object, value: object) -> None:
    """In place: through a view where the index is one, else `index_put_`."""
    items = _normalized(self, index)
    source = value if isinstance(value, Tensor) else None
    if any(
        isinstance(item, Tensor | list) and not (isinstance(item, Tensor) and item.ndim == 0)
        for item in items
    ):
        trained = source if source is not None and source.requires_grad else None
        back = _IndexPutBack(trained.shape if trained is not None else None)
        kept = [item for item in items if isinstance(item, Tensor)]
        record_inplace(w, "index_put_", self, (source,), kept, back)
        return
    from .factories import copy_, fill_

    target = _subscripted(w, self, items, record_views=False)
    if source is None:
        fill_(w, target, value)
    else:
        if broadcast(source.shape, target.shape) is None:
            raise Unsupported(
                "Tensor.__setitem__", f"{tuple(source.shape)} into {tuple(target.shape)}; torch raises here"
            )
        copy_(w, target, source)
    self.storage.values = None


@method("__len__")
def length(w: World, self: Tensor) -> int:
    if not self.shape:
        raise Unsupported("len", "a zero-dimensional tensor has no length; torch raises here")
    return self.shape[0]


@method("__contains__")
def contains(w: World, self: Tensor, element: object) -> object:
    known = values_of(self)
    if known is not None and isinstance(element, int | float):
        return element in known
    return UnknownScalar("bool", "whether a tensor contains a value")


# --- gathering


class _ScatterBack:
    """Zeros of the whole, then scattered into."""

    __slots__ = ("name", "shape")

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [w.new(self.shape, gradient.dtype, self.name, gradient.storage.device)]


@operator("torch.gather", method="gather")
def gather(
    w: World, input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False, out: None = None
) -> Tensor:
    """Keeps the index, and the input only to know its size."""
    dim_of(dim, input.ndim, "torch.gather")
    if input.ndim != index.ndim:
        raise Unsupported(
            "torch.gather", f"index {tuple(index.shape)} for {tuple(input.shape)}; torch raises here"
        )
    result = w.new(index.shape, input.dtype, "gather", input.storage.device)
    record(w, "gather", (input,), (input, index), _ScatterBack("gather_backward", input.shape), result)
    return result


@operator("torch.take_along_dim", method="take_along_dim")
def take_along_dim(
    w: World, input: Tensor, indices: Tensor, dim: int | None = None, *, out: None = None
) -> Tensor:
    if dim is None:
        result = w.new((indices.numel,), input.dtype, "gather", input.storage.device)
    else:
        at = dim_of(dim, input.ndim)
        shape = tuple(
            indices.shape[i] if i == at else max(a, b)
            for i, (a, b) in enumerate(zip(input.shape, indices.shape, strict=True))
        )
        result = w.new(shape, input.dtype, "gather", input.storage.device)
    record(w, "gather", (input,), (input, indices), _ScatterBack("gather_backward", input.shape), result)
    return result


@operator("torch.take", method="take")
def take(w: World, input: Tensor, index: Tensor) -> Tensor:
    result = w.new(index.shape, input.dtype, "take", input.storage.device)
    record(w, "take", (input,), (index,), _ScatterBack("take_backward", input.shape), result)
    return result


@operator("torch.index_select", method="index_select")
def index_select(w: World, input: Tensor, dim: int, index: Tensor, *, out: None = None) -> Tensor:
    """Keeps the index."""
    at = dim_of(dim, input.ndim, "torch.index_select")
    shape = (*input.shape[:at], index.numel, *input.shape[at + 1 :])
    result = w.new(shape, input.dtype, "index_select", input.storage.device)
    record(w, "index_select", (input,), (index,), _ScatterBack("index_select_backward", input.shape), result)
    return result


@operator("torch.masked_select", method="masked_select")
def masked_select(w: World, input: Tensor, mask: Tensor, *, out: None = None) -> Tensor:
    result = w.new((_true_count(w, mask),), input.dtype, "masked_select", input.storage.device)
    record(w, "masked_select", (input,), (mask,), _ScatterBack("masked_select_backward", input.shape), result)
    return result


@operator("torch.nonzero", method="nonzero")
def nonzero(w: World, input: Tensor, *, out: None = None, as_tuple: bool = False) -> object:
    count = _true_count(w, input)
    if count == input.numel and input.ndim == 1 and not as_tuple and count <= VALUE_LIMIT:
        # all of them: the positions are known, on the card too
        every = w.new((count, 1), dtypes.int64, "nonzero", input.storage.device)
        every.storage.values = list(range(count))
        return every
    if as_tuple:
        return tuple(
            w.new((count,), dtypes.int64, "nonzero", input.storage.device) for _ in range(max(input.ndim, 1))
        )
    return w.new((count, input.ndim), dtypes.int64, "nonzero", input.storage.device)


@operator("torch.argwhere", method="argwhere")
def argwhere(w: World, input: Tensor) -> object:
    return nonzero(w, input)


# --- scattering


class _ScatterIntoBack:
    """The old values get the gradient (a masked copy where they were overwritten), the source its gathered
    elements.
    """

    __slots__ = ("copies", "source")

    def __init__(self, copies: bool, source: Shape | None) -> None:
        self.copies = copies
        self.source = source

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        old = w.like(gradient, "scatter") if self.copies else gradient
        if self.source is None:
            return [old, None]
        return [old, w.new(self.source, gradient.dtype, "gather", gradient.storage.device)]


def _scatter(
    w: World, name: str, input: Tensor, index: Tensor, src: object, adds: bool, inplace: bool = False
) -> Tensor:
    source = src if isinstance(src, Tensor) else None
    needed = source.shape if source is not None and source.requires_grad else None
    back = _ScatterIntoBack(not adds, needed)
    # `index_add` keeps its source only to know how many dimensions it has.
    saved = (index, source if needed is not None and name == "index_add" else None)
    if inplace:
        return record_inplace(w, name + "_", input, (source,), saved, back)
    result = w.like(input, name)
    record(w, name, (input, source), saved, back, result)
    return result


@operator("torch.scatter", method="scatter")
def scatter(
    w: World,
    input: Tensor,
    dim: int,
    index: Tensor,
    src: object = None,
    *,
    value: object = None,
    reduce: str | None = None,
    out: None = None,
) -> Tensor:
    return _scatter(w, "scatter", input, index, src, reduce is not None)


@method("scatter_")
def scatter_(
    w: World,
    self: Tensor,
    dim: int,
    index: Tensor,
    src: object = None,
    *,
    value: object = None,
    reduce: str | None = None,
) -> Tensor:
    return _scatter(w, "scatter", self, index, src, reduce is not None, inplace=True)


@operator("torch.scatter_add", method="scatter_add")
def scatter_add(w: World, input: Tensor, dim: int, index: Tensor, src: Tensor, *, out: None = None) -> Tensor:
    target, source = widest(w, input, src)
    return _scatter(w, "scatter_add", target, index, source, True)


@method("scatter_add_")
def scatter_add_(w: World, self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(w, "scatter_add", self, index, src, True, inplace=True)


@operator("torch.scatter_reduce", method="scatter_reduce")
def scatter_reduce(
    w: World,
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: None = None,
) -> Tensor:
    """Everything but sums keeps its operands and result too."""
    result = w.like(input, "scatter_reduce")
    saved = (index,) if reduce == "sum" else (index, input, src, result)
    back = _ScatterIntoBack(reduce != "sum", src.shape if src.requires_grad else None)
    record(w, "scatter_reduce", (input, src), saved, back, result)
    return result


@method("scatter_reduce_")
def scatter_reduce_(
    w: World, self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _scatter(w, "scatter_reduce", self, index, src, reduce == "sum", inplace=True)


@operator("torch.index_add", method="index_add")
def index_add(
    w: World, input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: object = 1, out: None = None
) -> Tensor:
    return _scatter(w, "index_add", input, index, source, True)


@method("index_add_")
def index_add_(
    w: World, self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: object = 1
) -> Tensor:
    return _scatter(w, "index_add", self, index, source, True, inplace=True)


@operator("torch.index_copy", method="index_copy")
def index_copy(
    w: World, input: Tensor, dim: int, index: Tensor, source: Tensor, *, out: None = None
) -> Tensor:
    return _scatter(w, "index_copy", input, index, source, False)


@method("index_copy_")
def index_copy_(w: World, self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _scatter(w, "index_copy", self, index, source, False, inplace=True)


@operator("torch.index_fill", method="index_fill")
def index_fill(w: World, input: Tensor, dim: int, index: Tensor, value: object) -> Tensor:
    return _scatter(w, "index_fill", input, index, None, False)


@method("index_fill_")
def index_fill_(w: World, self: Tensor, dim: int, index: Tensor, value: object) -> Tensor:
    return _scatter(w, "index_fill", self, index, None, False, inplace=True)


@operator("torch.index_put", method="index_put")
def index_put(w: World, input: Tensor, indices: object, values: Tensor, accumulate: bool = False) -> Tensor:
    result = w.like(input, "index_put")
    kept = [item for item in indices if isinstance(item, Tensor)] if is_sequence(indices) else []
    back = _ScatterIntoBack(not accumulate, values.shape if values.requires_grad else None)
    record(w, "index_put", (input, values), kept, back, result)
    return result


@method("index_put_")
def index_put_(w: World, self: Tensor, indices: object, values: Tensor, accumulate: bool = False) -> Tensor:
    kept = [item for item in indices if isinstance(item, Tensor)] if is_sequence(indices) else []
    back = _ScatterIntoBack(not accumulate, values.shape if values.requires_grad else None)
    return record_inplace(w, "index_put_", self, (values,), kept, back)


@operator("torch.masked_scatter", method="masked_scatter")
def masked_scatter(w: World, input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Keeps the mask."""
    result = w.like(input, "masked_scatter")
    back = _ScatterIntoBack(True, source.shape if source.requires_grad else None)
    record(w, "masked_scatter", (input, source), (mask,), back, result)
    return result


@method("masked_scatter_")
def masked_scatter_(w: World, self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    back = _ScatterIntoBack(True, source.shape if source.requires_grad else None)
    return record_inplace(w, "masked_scatter_", self, (source,), (mask,), back)


@operator("torch.select_scatter", method="select_scatter")
def select_scatter(w: World, input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    return _written(w, "select_scatter", input, src)


@operator("torch.slice_scatter", method="slice_scatter")
def slice_scatter(
    w: World,
    input: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    return _written(w, "slice_scatter", input, src)


def _written(w: World, name: str, input: Tensor, src: Tensor) -> Tensor:
    """A copy of the whole with a part of it from `src`."""
    result = w.like(input, name)
    back = _ScatterIntoBack(True, src.shape if src.requires_grad else None)
    record(w, name, (input, src), (), back, result)
    return result


@operator("torch.isin")
def isin(
    w: World, elements: Tensor, test_elements: object, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    return w.new(elements.shape, dtypes.boolean, "isin", elements.storage.device)
