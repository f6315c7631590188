"""Matrix products. All of the autocast class "lower precision"; on the card each thread takes a cuBLAS
workspace once.
"""

from __future__ import annotations

from torchwise_memory.runtime.layout import broadcast, view_strides
from torchwise_memory.runtime.sequences import is_sequence

from .registry import method, operator
from .support import (
    DType,
    Gradients,
    Saved,
    Scalar,
    Shape,
    Tensor,
    Unsupported,
    World,
    integers,
    low,
    prod,
    record,
)
from .views import contiguous, expand_to, permuted, reshape_to, transpose, unsqueeze

# --- the products autograd knows


class _LinearBack:
    """dx = g w, dw = g' x, and the sum of g for the bias, each only where it is needed."""

    __slots__ = ("input_shape", "needs", "weight_shape")

    def __init__(self, input_shape: Shape, weight_shape: Shape, needs: tuple[bool, bool, bool]) -> None:
        self.input_shape = input_shape
        self.weight_shape = weight_shape
        self.needs = needs

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        device, dtype = gradient.storage.device, gradient.dtype
        w.matrix_workspace(device)
        rows = gradient.numel // max(gradient.shape[-1], 1)
        if view_strides(gradient.shape, gradient.strides, (rows, gradient.shape[-1])) is None:
            gradient = w.new(gradient.shape, dtype, "clone", device)
        dx = w.new(self.input_shape, dtype, "linear_dx", device) if self.needs[0] else None
        dw = w.new(self.weight_shape, dtype, "linear_dw", device) if self.needs[1] else None
        db = w.new((self.weight_shape[0],), dtype, "linear_db", device) if self.needs[2] else None
        return [dx, dw, db]


@operator("torch.nn.functional.linear")
def linear(w: World, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x w' + b. Keeps x only if the weight trains, and the weight only if x needs a gradient."""
    x, matrix = low(w, input), low(w, weight)
    offset = None if bias is None else low(w, bias)
    columns = matrix.shape[-1]
    if not x.shape or x.shape[-1] != columns:
        raise Unsupported(
            "torch.nn.functional.linear", f"{tuple(x.shape)} by {tuple(matrix.shape)}; torch raises here"
        )
    _same_type("torch.nn.functional.linear", x, matrix)
    if x.ndim > 2 and view_strides(x.shape, x.strides, (x.numel // max(columns, 1), columns)) is None:
        x = contiguous(w, x)
    w.matrix_workspace(x.storage.device)
    name = "linear" if bias is None else "linear with bias"
    result = w.new((*x.shape[:-1], *matrix.shape[:-1]), x.dtype, name, x.storage.device)
    needs = (x.requires_grad, matrix.requires_grad, offset is not None and offset.requires_grad)
    if any(needs):
        saved = (x if needs[1] else None, matrix if needs[0] else None)
        record(w, "linear", (x, matrix, offset), saved, _LinearBack(x.shape, matrix.shape, needs), result)
    return result


def _same_type(name: str, a: Tensor, b: Tensor) -> None:
    if a.dtype is not b.dtype:
        raise Unsupported(name, f"operands of types {a.dtype} and {b.dtype}; torch raises here")
    if a.storage.device != b.storage.device:
        raise Unsupported(name, f"operands on {a.storage.device} and {b.storage.device}; torch raises here")


class _MatrixBack:
    """Gradients of a (batched) product in the layout of the operands."""

    __slots__ = ("name", "needs", "shapes", "strides")

    def __init__(self, name: str, a: Tensor, b: Tensor) -> None:
        self.name = name
        self.needs = (a.requires_grad, b.requires_grad)
        self.shapes = (a.shape, b.shape)
        self.strides = (_column_major(a), _column_major(b))

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        device = gradient.storage.device
        w.matrix_workspace(device)
        return [
            w.new(shape, gradient.dtype, self.name, device, strides) if needed else None
            for needed, shape, strides in zip(self.needs, self.shapes, self.strides, strict=True)
        ]


def _column_major(tensor: Tensor) -> Shape | None:
    """`mm` returns the gradient of a transposed operand transposed too."""
    if tensor.ndim == 2 and tensor.strides[0] == 1 and tensor.strides[1] == tensor.shape[0]:
        return (1, tensor.shape[0])
    return None


def _product(w: World, name: str, a: Tensor, b: Tensor, shape: Shape) -> Tensor:
    _same_type(f"torch.{name}", a, b)
    w.matrix_workspace(a.storage.device)
    result = w.new(shape, a.dtype, name, a.storage.device)
    if a.requires_grad or b.requires_grad:
        saved = (a if b.requires_grad else None, b if a.requires_grad else None)
        record(w, name, (a, b), saved, _MatrixBack(name + "_backward", a, b), result)
    return result


@operator("torch.mm", method="mm")
def mm(w: World, input: Tensor, mat2: Tensor, *, out: None = None) -> Tensor:
    a, b = low(w, input), low(w, mat2)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise Unsupported("torch.mm", f"{tuple(a.shape)} by {tuple(b.shape)}; torch raises here")
    return _product(w, "mm", a, b, (a.shape[0], b.shape[1]))


@operator("torch.bmm", method="bmm")
def bmm(w: World, input: Tensor, mat2: Tensor, *, out: None = None) -> Tensor:
    a, b = low(w, input), low(w, mat2)
    if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise Unsupported("torch.bmm", f"{tuple(a.shape)} by {tuple(b.shape)}; torch raises here")
    return _product(w, "bmm", a, b, (a.shape[0], a.shape[1], b.shape[2]))


@operator("torch.mv", method="mv")
def mv(w: World, input: Tensor, vec: Tensor, *, out: None = None) -> Tensor:
    a, b = low(w, input), low(w, vec)
    return _product(w, "mv", a, b, (a.shape[0],))


@operator("torch.dot", method="dot")
def dot(w: World, input: Tensor, tensor: Tensor, *, out: None = None) -> Tensor:
    return inner(w, input, tensor)


@operator("torch.inner", "torch.vdot", method=("inner", "vdot"))
def inner(w: World, input: Tensor, other: Tensor, *, out: None = None) -> Tensor:
    if input.ndim == 1 and other.ndim == 1:
        return _product(w, "dot", input, other, ())
    return tensordot(w, input, other, ([input.ndim - 1], [other.ndim - 1]))


class _AddmmBack:
    """The gradient of the addend is that of the result (the engine reduces it); then the two products."""

    __slots__ = ("product", "scaled")

    def __init__(self, product: _MatrixBack, scaled: bool) -> None:
        self.product = product
        self.scaled = scaled

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        products = self.product(w, saved, gradients)
        return [w.like(gradient, "mul") if self.scaled else gradient, *products]


def _add_product(
    w: World, name: str, input: Tensor, a: Tensor, b: Tensor, shape: Shape, beta: Scalar, alpha: Scalar
) -> Tensor:
    addend, a, b = low(w, input), low(w, a), low(w, b)
    _same_type(f"torch.{name}", a, b)
    if broadcast(addend.shape, shape) != tuple(shape):
        raise Unsupported(
            f"torch.{name}", f"{tuple(addend.shape)} does not broadcast to {tuple(shape)}; torch raises here"
        )
    w.matrix_workspace(a.storage.device)
    result = w.new(shape, a.dtype, name, a.storage.device)
    if addend.requires_grad or a.requires_grad or b.requires_grad:
        saved = (a if b.requires_grad else None, b if a.requires_grad else None)
        back = _AddmmBack(_MatrixBack(name + "_backward", a, b), beta != 1)
        record(w, name, (addend, a, b), saved, back, result)
    return result


@operator("torch.addmm", method="addmm")
def addmm(
    w: World,
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
    out: None = None,
) -> Tensor:
    return _add_product(w, "addmm", input, mat1, mat2, (mat1.shape[0], mat2.shape[1]), beta, alpha)


@operator("torch.addmv", method="addmv")
def addmv(
    w: World,
    input: Tensor,
    mat: Tensor,
    vec: Tensor,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
    out: None = None,
) -> Tensor:
    return _add_product(w, "addmv", input, mat, vec, (mat.shape[0],), beta, alpha)


@operator("torch.baddbmm", method="baddbmm")
def baddbmm(
    w: World,
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
    out: None = None,
) -> Tensor:
    shape = (batch1.shape[0], batch1.shape[1], batch2.shape[2])
    return _add_product(w, "baddbmm", input, batch1, batch2, shape, beta, alpha)


@operator("torch.addbmm", method="addbmm")
def addbmm(
    w: World,
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
    out: None = None,
) -> Tensor:
    shape = (batch1.shape[1], batch2.shape[2])
    return _add_product(w, "addbmm", input, batch1, batch2, shape, beta, alpha)


@method("baddbmm_")
def baddbmm_(
    w: World, self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    return addmm_(w, self, batch1, batch2, beta=beta, alpha=alpha)


@method("addmm_")
def addmm_(
    w: World, self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    from .support import record_inplace

    w.matrix_workspace(self.storage.device)
    back = _AddmmBack(_MatrixBack("addmm_backward", mat1, mat2), beta != 1)
    return record_inplace(w, "addmm_", self, (mat1, mat2), (mat1, mat2), back)


@operator("torch.outer", "torch.ger", method=("outer", "ger"))
def outer(w: World, input: Tensor, vec2: Tensor, *, out: None = None) -> Tensor:
    from .pointwise import mul

    return mul(w, unsqueeze(w, input, 1), vec2)


# --- what is composed of them


@operator("torch.matmul", method=("matmul", "__matmul__"))
def matmul(w: World, input: Tensor, other: Tensor, *, out: None = None) -> Tensor:
    """As torch folds it: a matrix operand makes one `mm` of all rows, else both become batches of `bmm`."""
    return _matmul(w, low(w, input), low(w, other))


def _matmul(w: World, a: Tensor, b: Tensor) -> Tensor:
    if not a.shape or not b.shape:
        raise Unsupported("torch.matmul", "a zero-dimensional operand; torch raises here")
    inner = a.shape[-1], b.shape[-2] if b.ndim > 1 else b.shape[0]
    if inner[0] != inner[1]:
        raise Unsupported("torch.matmul", f"{tuple(a.shape)} by {tuple(b.shape)}; torch raises here")
    if a.ndim == 1 and b.ndim == 1:
        return _product(w, "dot", a, b, ())
    if a.ndim == 2 and b.ndim == 1:
        return _product(w, "mv", a, b, (a.shape[0],))
    if a.ndim == 1:
        product = _matmul(w, unsqueeze(w, a, 0), b)
        return reshape_to(w, product, (*product.shape[:-2], product.shape[-1]))
    if a.ndim == 2 and b.ndim == 2:
        return _product(w, "mm", a, b, (a.shape[0], b.shape[1]))
    if a.ndim > 2 and b.ndim <= 2:
        rows = reshape_to(w, a, (prod(a.shape[:-1]), a.shape[-1]))
        if b.ndim == 1:
            return reshape_to(w, _product(w, "mv", rows, b, (rows.shape[0],)), a.shape[:-1])
        return reshape_to(
            w, _product(w, "mm", rows, b, (rows.shape[0], b.shape[1])), (*a.shape[:-1], b.shape[1])
        )
    if a.ndim == 2 and b.ndim > 2 and _folds(a, b):
        swapped = _matmul(w, transpose(w, b, -1, -2), transpose(w, a, 0, 1))
        return transpose(w, swapped, -1, -2)
    return _batched(w, a, b)


def _folds(a: Tensor, b: Tensor) -> bool:
    """`should_fold` of a matrix before a batch: when the batch trains or its transpose is row-major."""
    if b.requires_grad and not a.requires_grad:
        return True
    if a.ndim == 1:
        return True
    return (
        view_strides(b.shape, b.strides, (prod(b.shape[:-1]), b.shape[-1])) is not None and b.strides[-2] == 1
    )


def _batched(w: World, a: Tensor, b: Tensor) -> Tensor:
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    if batch is None:
        raise Unsupported("torch.matmul", f"{tuple(a.shape)} by {tuple(b.shape)}; torch raises here")
    left = _as_batch(w, a, batch)
    right = _as_batch(w, b, batch)
    rows, columns = a.shape[-2], b.shape[-1]
    product = _product(w, "bmm", left, right, (left.shape[0], rows, columns))
    return reshape_to(w, product, (*batch, rows, columns))


def _as_batch(w: World, tensor: Tensor, batch: Shape) -> Tensor:
    full = (*batch, *tensor.shape[-2:])
    expanded = tensor if tuple(tensor.shape) == full else expand_to(w, tensor, full)
    return expanded if expanded.ndim == 3 else reshape_to(w, expanded, (prod(batch), *tensor.shape[-2:]))


@method("__rmatmul__")
def rmatmul(w: World, self: Tensor, other: Tensor) -> Tensor:
    return matmul(w, other, self)


@operator("torch.linalg.multi_dot")
def multi_dot(w: World, tensors: object, *, out: None = None) -> Tensor:
    return chain_matmul(w, tensors)


@operator("torch.chain_matmul")
def chain_matmul(w: World, *matrices: object) -> Tensor:
    from .support import tensor_list

    first = matrices[0]
    chain = tensor_list(first if is_sequence(first) else matrices, "torch.chain_matmul")
    product = chain[0]
    for matrix in chain[1:]:
        product = matmul(w, product, matrix)
    return product


@operator("torch.tensordot")
def tensordot(w: World, a: Tensor, b: Tensor, dims: object = 2, out: None = None) -> Tensor:
    if isinstance(dims, int):
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        if not is_sequence(dims) or len(dims) != 2:
            raise Unsupported("torch.tensordot", "dims is not a pair")
        left = [dim % a.ndim for dim in integers(dims[0])]
        right = [dim % b.ndim for dim in integers(dims[1])]
    a_free = [i for i in range(a.ndim) if i not in left]
    b_free = [i for i in range(b.ndim) if i not in right]
    inner = prod(a.shape[i] for i in left)
    rows = prod(a.shape[i] for i in a_free)
    columns = prod(b.shape[i] for i in b_free)
    x = reshape_to(w, permuted(w, a, tuple(a_free + left)), (rows, inner))
    y = reshape_to(w, permuted(w, b, tuple(right + b_free)), (inner, columns))
    product = mm(w, x, y)
    return reshape_to(w, product, tuple(a.shape[i] for i in a_free) + tuple(b.shape[i] for i in b_free))


@operator("torch.einsum")
def einsum(w: World, equation: object, *operands: object) -> Tensor:
    """Contracted pairwise from the left, each pair as one `bmm`, as torch does without opt_einsum's help."""
    from .support import tensor_list

    if not isinstance(equation, str):
        raise Unsupported("torch.einsum", "the equation is not known")
    first = operands[0] if operands else ()
    tensors = tensor_list(first if is_sequence(first) else operands, "torch.einsum")
    inputs, output, sizes = _parsed(equation.replace(" ", ""), tensors)
    tensors = [low(w, tensor) for tensor in tensors]
    current, labels = _without_repeats(w, tensors[0], inputs[0])
    for i in range(1, len(tensors)):
        tensor, others = _without_repeats(w, tensors[i], inputs[i])
        needed = set(output).union(*inputs[i + 1 :])
        current, labels = _contract(w, current, labels, tensor, others, needed, sizes)
    return _finished(w, current, labels, output)


def _parsed(equation: str, tensors: list[Tensor]) -> tuple[list[str], str, dict[str, int]]:
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise Unsupported("torch.einsum", f"{equation!r} with {len(tensors)} operands; torch raises here")
    spare = [chr(code) for code in range(0x3B1, 0x3C9)]
    widest = 0
    for term, tensor in zip(terms, tensors, strict=True):
        if "..." in term:
            widest = max(widest, tensor.ndim - len(term.replace("...", "")))
    inputs: list[str] = []
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        count = tensor.ndim - len(term.replace("...", ""))
        labels = term.replace("...", "".join(spare[widest - count : widest]))
        if len(labels) != tensor.ndim:
            raise Unsupported("torch.einsum", f"{term!r} for {tensor.ndim} dimensions; torch raises here")
        inputs.append(labels)
        for label, size in zip(labels, tensor.shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    ellipsis = "".join(spare[:widest])
    if arrow:
        return inputs, right.replace("...", ellipsis), sizes
    counts = "".join(inputs)
    once = sorted(label for label in set(counts) if counts.count(label) == 1 and label not in ellipsis)
    return inputs, ellipsis + "".join(once), sizes


def _without_repeats(w: World, tensor: Tensor, labels: str) -> tuple[Tensor, str]:
    from .views import diagonal

    for label in labels:
        while labels.count(label) > 1:
            first, second = labels.index(label), labels.rindex(label)
            tensor = diagonal(w, tensor, 0, first, second)
            labels = "".join(x for i, x in enumerate(labels) if i not in (first, second)) + label
    return tensor, labels


def _contract(
    w: World, a: Tensor, left: str, b: Tensor, right: str, needed: set[str], sizes: dict[str, int]
) -> tuple[Tensor, str]:
    from .reductions import total

    for label in [x for x in left if x not in right and x not in needed]:
        a, left = total(w, a, left.index(label)), left.replace(label, "")
    for label in [x for x in right if x not in left and x not in needed]:
        b, right = total(w, b, right.index(label)), right.replace(label, "")
    batch = [x for x in left if x in right and x in needed]
    inner = [x for x in left if x in right and x not in needed]
    rows = [x for x in left if x not in right]
    columns = [x for x in right if x not in left]
    x = _arranged(w, a, left, batch, rows, inner, sizes)
    y = _arranged(w, b, right, batch, inner, columns, sizes)
    product = bmm(w, x, y)
    order = batch + rows + columns
    return reshape_to(w, product, tuple(sizes[label] for label in order)), "".join(order)


def _arranged(w: World, tensor: Tensor, labels: str, *groups_and_sizes: list[str] | dict[str, int]) -> Tensor:
    *groups, sizes = groups_and_sizes
    assert isinstance(sizes, dict)
    order = [label for group in groups for label in group]
    moved = permuted(w, tensor, tuple(labels.index(label) for label in order))
    full = tuple(sizes[label] for label in order)
    if tuple(moved.shape) != full:
        moved = expand_to(w, moved, full)
    return reshape_to(w, moved, tuple(prod(sizes[label] for label in group) for group in groups))


def _finished(w: World, tensor: Tensor, labels: str, output: str) -> Tensor:
    from .reductions import total

    gone = [i for i, label in enumerate(labels) if label not in output]
    if gone:
        tensor, labels = total(w, tensor, gone), "".join(x for x in labels if x in output)
    return permuted(w, tensor, tuple(labels.index(label) for label in output))


@operator("torch.nn.functional.grouped_mm")
def grouped_mm(
    w: World,
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """Rows of one matrix by one of several matrices each (`offs` says where a group ends), or groups by
    groups.
    """
    name = "torch.nn.functional.grouped_mm"
    _same_type(name, mat_a, mat_b)
    if mat_a.ndim == 2 and mat_b.ndim == 3:
        shape: Shape = (mat_a.shape[0], mat_b.shape[-1])
    elif mat_a.ndim == 2 and mat_b.ndim == 2 and offs is not None:
        shape = (offs.shape[0], mat_a.shape[0], mat_b.shape[1])
    elif mat_a.ndim == 3 and mat_b.ndim == 2:
        shape = (mat_a.shape[1], mat_b.shape[1])
    else:
        shape = (mat_a.shape[0], mat_a.shape[1], mat_b.shape[-1])
    w.matrix_workspace(mat_a.storage.device)
    result = w.new(shape, out_dtype or mat_a.dtype, "grouped_mm", mat_a.storage.device)
    if mat_a.requires_grad or mat_b.requires_grad:
        saved = (mat_a if mat_b.requires_grad else None, mat_b if mat_a.requires_grad else None, offs)
        record(
            w, "grouped_mm", (mat_a, mat_b), saved, _MatrixBack("grouped_mm_backward", mat_a, mat_b), result
        )
    return result


@operator("torch._grouped_mm")
def torch_grouped_mm(
    w: World,
    input: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    return grouped_mm(w, input, mat2, offs=offs, bias=bias, out_dtype=out_dtype)


class _BilinearBack:
    def __init__(self, shapes: tuple[Shape, ...], needs: tuple[bool, ...]) -> None:
        self.shapes = shapes
        self.needs = needs

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [
            w.new(shape, gradient.dtype, "bilinear_backward", gradient.storage.device) if needed else None
            for shape, needed in zip(self.shapes, self.needs, strict=True)
        ]


@operator("torch.nn.functional.bilinear", "torch.bilinear")
def bilinear(w: World, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    from .pointwise import add

    w.matrix_workspace(input1.storage.device)
    result = w.new((*input1.shape[:-1], weight.shape[0]), input1.dtype, "bilinear", input1.storage.device)
    parts = (input1, input2, weight)
    back = _BilinearBack(tuple(t.shape for t in parts), tuple(t.requires_grad for t in parts))
    record(w, "bilinear", parts, parts, back, result)
    return result if bias is None else add(w, result, bias)


@operator("torch.linalg.vecdot")
def vecdot(w: World, x: Tensor, y: Tensor, *, dim: int = -1, out: None = None) -> Tensor:
    from .pointwise import mul
    from .reductions import total

    return total(w, mul(w, low(w, x), low(w, y)), dim)


@operator("torch.cross", "torch.linalg.cross", method="cross")
def cross(w: World, input: Tensor, other: Tensor, dim: int | None = None, *, out: None = None) -> Tensor:
    from .pointwise import MulBack
    from .support import elementwise, result_type, widest

    input, other = widest(w, input, other)
    result = elementwise(w, "cross", result_type(w, input, other), input, other)
    back = MulBack(input.requires_grad, other.requires_grad)
    record(w, "cross", (input, other), (other, input), back, result)
    return result


@operator("torch.kron", method="kron")
def kron(w: World, input: Tensor, other: Tensor, *, out: None = None) -> Tensor:
    shape = tuple(a * b for a, b in zip(input.shape, other.shape, strict=True))
    result = w.new(shape, input.dtype, "kron", input.storage.device)
    back = _BilinearBack((input.shape, other.shape), (input.requires_grad, other.requires_grad))
    record(w, "kron", (input, other), (input, other), back, result)
    return result
