"""Decompositions, solvers and Fourier transforms, as far as training scripts use them."""

from __future__ import annotations

from typing import NamedTuple

from torchwise_memory.runtime.layout import strides_in_order

from .registry import operator
from .support import (
    DType,
    Gradients,
    Saved,
    Shape,
    Tensor,
    Unsupported,
    World,
    dim_of,
    dtypes,
    extent,
    integers,
    record,
)
from .views import make_view, transpose


class _ShapedBack:
    """`temporaries` tensors of the input's size in a row, then the gradients."""

    __slots__ = ("dtype", "name", "shapes", "temporaries")

    def __init__(
        self, name: str, shapes: tuple[Shape | None, ...], dtype: DType, temporaries: int = 1
    ) -> None:
        self.name = name
        self.shapes = shapes
        self.dtype = dtype
        self.temporaries = temporaries

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = next(g for g in gradients if g is not None)
        device = gradient.storage.device
        first = next(shape for shape in self.shapes if shape is not None)
        held = [w.new(first, self.dtype, self.name, device) for _ in range(self.temporaries)]
        results: Gradients = [
            None if shape is None else w.new(shape, self.dtype, self.name, device) for shape in self.shapes
        ]
        held.clear()
        return results


def _square(name: str, tensor: Tensor) -> Shape:
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2]:
        raise Unsupported(name, f"{tuple(tensor.shape)} is not square; torch raises here")
    return tensor.shape


def _column_major(shape: Shape) -> Shape:
    """Strides of LAPACK's layout: the rows of each matrix lie next to each other."""
    order = (len(shape) - 2, len(shape) - 1, *range(len(shape) - 3, -1, -1))
    return strides_in_order(shape, order)


def _from_square(w: World, name: str, input: Tensor) -> Tensor:
    shape = _square(f"torch.linalg.{name}", input)
    result = w.new(shape, input.dtype, name, input.storage.device, _column_major(shape))
    record(w, name, (input,), (result,), _ShapedBack(name + "_backward", (shape,), input.dtype, 2), result)
    return result


@operator("torch.linalg.inv", "torch.inverse", method="inverse")
def inv(w: World, input: Tensor, *, out: None = None) -> Tensor:
    return _from_square(w, "inv", input)


@operator("torch.linalg.cholesky")
def cholesky(w: World, input: Tensor, *, upper: bool = False, out: None = None) -> Tensor:
    return _from_square(w, "cholesky", input)


@operator("torch.cholesky", method="cholesky")
def torch_cholesky(w: World, input: Tensor, upper: bool = False, *, out: None = None) -> Tensor:
    return _from_square(w, "cholesky", input)


@operator("torch.linalg.matrix_exp", "torch.matrix_exp", method="matrix_exp")
def matrix_exp(w: World, input: Tensor) -> Tensor:
    return _from_square(w, "matrix_exp", input)


@operator("torch.linalg.pinv")
def pinv(
    w: World,
    input: Tensor,
    *,
    atol: object = None,
    rtol: object = None,
    hermitian: bool = False,
    out: None = None,
) -> Tensor:
    shape = (*input.shape[:-2], input.shape[-1], input.shape[-2])
    result = w.new(shape, input.dtype, "pinv", input.storage.device)
    record(
        w,
        "pinv",
        (input,),
        (input, result),
        _ShapedBack("pinv_backward", (input.shape,), input.dtype, 2),
        result,
    )
    return result


@operator("torch.pinverse", method="pinverse")
def pinverse(w: World, input: Tensor, rcond: float = 1e-15) -> Tensor:
    return pinv(w, input)


@operator("torch.linalg.det", "torch.det", "torch.logdet", method=("det", "logdet"))
def det(w: World, input: Tensor, *, out: None = None) -> Tensor:
    """Keeps the matrix and its LU factors."""
    shape = _square("torch.linalg.det", input)
    result = w.new(shape[:-2], input.dtype, "det", input.storage.device)
    factors = w.new(shape, input.dtype, "lu", input.storage.device)
    record(
        w,
        "det",
        (input,),
        (input, result, factors),
        _ShapedBack("det_backward", (shape,), input.dtype, 1),
        result,
    )
    return result


class Slogdet(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


@operator("torch.linalg.slogdet", "torch.slogdet", method="slogdet")
def slogdet(w: World, input: Tensor, *, out: None = None) -> Slogdet:
    shape = _square("torch.linalg.slogdet", input)
    sign = w.new(shape[:-2], input.dtype, "slogdet", input.storage.device)
    value = w.new(shape[:-2], dtypes.real_of(input.dtype), "slogdet", input.storage.device)
    factors = w.new(shape, input.dtype, "lu", input.storage.device)
    record(
        w,
        "slogdet",
        (input,),
        (input, sign, factors),
        _ShapedBack("slogdet_backward", (shape,), input.dtype, 1),
        value,
    )
    return Slogdet(sign, value)


@operator("torch.linalg.solve")
def solve(
    w: World,
    input: Tensor,
    B: Tensor,  # noqa: N803 - torch's own name
    *,
    left: bool = True,
    out: None = None,
) -> Tensor:
    _square("torch.linalg.solve", input)
    result = w.new(
        B.shape, B.dtype, "solve", B.storage.device, _column_major(B.shape) if B.ndim > 1 else None
    )
    factors = w.new(input.shape, input.dtype, "lu", input.storage.device)
    pivots = w.new(input.shape[:-1], dtypes.int32, "lu pivots", input.storage.device)
    back = _ShapedBack("solve_backward", (input.shape, B.shape), input.dtype, 0)
    record(w, "solve", (input, B), (input, factors, pivots, result), back, result)
    return result


@operator("torch.linalg.solve_triangular")
def solve_triangular(
    w: World,
    input: Tensor,
    B: Tensor,  # noqa: N803 - torch's own name
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
    out: None = None,
) -> Tensor:
    """Keeps the matrix and the result."""
    result = w.new(B.shape, B.dtype, "solve_triangular", B.storage.device)
    back = _ShapedBack("solve_triangular_backward", (input.shape, B.shape), input.dtype, 0)
    record(w, "solve_triangular", (input, B), (input, result), back, result)
    return result


class SVD(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


@operator("torch.linalg.svd")
def svd(
    w: World, input: Tensor, full_matrices: bool = True, *, driver: str | None = None, out: None = None
) -> SVD:
    rows, columns = input.shape[-2:]
    rank = min(rows, columns)
    lead, device = input.shape[:-2], input.storage.device
    u = w.new((*lead, rows, rows if full_matrices else rank), input.dtype, "svd", device)
    s = w.new((*lead, rank), dtypes.real_of(input.dtype), "svd", device)
    vh = w.new((*lead, columns if full_matrices else rank, columns), input.dtype, "svd", device)
    record(
        w, "svd", (input,), (u, s, vh), _ShapedBack("svd_backward", (input.shape,), input.dtype, 2), u, s, vh
    )
    return SVD(u, s, vh)


@operator("torch.svd", method="svd")
def torch_svd(
    w: World, input: Tensor, some: bool = True, compute_uv: bool = True, *, out: None = None
) -> SVD:
    u, s, vh = svd(w, input, not some)
    return SVD(u, s, transpose(w, vh, -2, -1))


@operator("torch.linalg.svdvals")
def svdvals(w: World, input: Tensor, *, driver: str | None = None, out: None = None) -> Tensor:
    return svd(w, input, False).S


class QR(NamedTuple):
    Q: Tensor
    R: Tensor


@operator("torch.linalg.qr")
def qr(w: World, input: Tensor, mode: str = "reduced", *, out: None = None) -> QR:
    rows, columns = input.shape[-2:]
    inner = rows if mode == "complete" else min(rows, columns)
    q_shape = (*input.shape[:-2], rows, inner)
    q = w.new(q_shape, input.dtype, "qr", input.storage.device, _column_major(q_shape))
    r_shape = (*input.shape[:-2], inner, columns)
    r = w.new(r_shape, input.dtype, "qr", input.storage.device, _column_major(r_shape))
    record(w, "qr", (input,), (q, r), _ShapedBack("qr_backward", (input.shape,), input.dtype, 2), q, r)
    return QR(q, r)


@operator("torch.qr", method="qr")
def torch_qr(w: World, input: Tensor, some: bool = True, *, out: None = None) -> QR:
    return qr(w, input, "reduced" if some else "complete")


class Eigh(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


@operator("torch.linalg.eigh")
def eigh(w: World, input: Tensor, UPLO: str = "L", *, out: None = None) -> Eigh:  # noqa: N803 - torch's own name
    shape = _square("torch.linalg.eigh", input)
    values = w.new(shape[:-1], dtypes.real_of(input.dtype), "eigh", input.storage.device)
    vectors = w.new(shape, input.dtype, "eigh", input.storage.device)
    record(
        w,
        "eigh",
        (input,),
        (values, vectors),
        _ShapedBack("eigh_backward", (shape,), input.dtype, 2),
        values,
        vectors,
    )
    return Eigh(values, vectors)


@operator("torch.linalg.eigvalsh")
def eigvalsh(w: World, input: Tensor, UPLO: str = "L", *, out: None = None) -> Tensor:  # noqa: N803 - torch's own name
    return eigh(w, input, UPLO).eigenvalues


@operator("torch.trace", method="trace")
def trace(w: World, input: Tensor) -> Tensor:
    result = w.new((), input.dtype, "trace", input.storage.device)
    record(w, "trace", (input,), (), _ShapedBack("trace_backward", (input.shape,), input.dtype, 0), result)
    return result


# --- Fourier transforms


def _transform(
    w: World, name: str, input: Tensor, dims: Shape, sizes: Shape, dtype: DType, keeps: bool = False
) -> Tensor:
    shape = list(input.shape)
    for dim, size in zip(dims, sizes, strict=True):
        shape[dim] = size
    result = w.new(shape, dtype, name, input.storage.device)
    # from real to complex torch keeps the input, for its size; of several dimensions none
    saved = (input,) if name == "rfft" or keeps else ()
    record(w, name, (input,), saved, _ShapedBack(name + "_backward", (input.shape,), input.dtype, 1), result)
    return result


def _axes(input: Tensor, s: object, dim: object, default: tuple[int, ...] | None) -> tuple[Shape, Shape]:
    if dim is not None:
        dims = tuple(dim_of(d, input.ndim) for d in integers(dim))
    elif s is not None:
        dims = tuple(range(input.ndim - len(integers(s)), input.ndim))
    else:
        dims = tuple(range(input.ndim)) if default is None else tuple(dim_of(d, input.ndim) for d in default)
    sizes = integers(s) if s is not None else tuple(input.shape[d] for d in dims)
    return dims, sizes


@operator("torch.fft.fft", "torch.fft.ifft")
def fft(
    w: World, input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: None = None
) -> Tensor:
    at = dim_of(dim, input.ndim)
    keeps = not input.dtype.is_complex
    return _transform(w, "fft", input, (at,), (n or input.shape[at],), _complex(input), keeps)


@operator("torch.fft.fft2", "torch.fft.ifft2")
def fft2(
    w: World,
    input: Tensor,
    s: object = None,
    dim: object = (-2, -1),
    norm: str | None = None,
    *,
    out: None = None,
) -> Tensor:
    dims, sizes = _axes(input, s, dim, (-2, -1))
    return _transform(w, "fft", input, dims, sizes, _complex(input))


@operator("torch.fft.fftn", "torch.fft.ifftn")
def fftn(
    w: World,
    input: Tensor,
    s: object = None,
    dim: object = None,
    norm: str | None = None,
    *,
    out: None = None,
) -> Tensor:
    dims, sizes = _axes(input, s, dim, None)
    return _transform(w, "fft", input, dims, sizes, _complex(input))


@operator("torch.fft.rfft")
def rfft(
    w: World, input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: None = None
) -> Tensor:
    at = dim_of(dim, input.ndim)
    return _transform(w, "rfft", input, (at,), ((n or input.shape[at]) // 2 + 1,), _complex(input))


@operator("torch.fft.irfft")
def irfft(
    w: World, input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: None = None
) -> Tensor:
    at = dim_of(dim, input.ndim)
    return _transform(
        w, "irfft", input, (at,), (n or 2 * (input.shape[at] - 1),), dtypes.real_of(input.dtype)
    )


@operator("torch.fft.rfft2")
def rfft2(
    w: World,
    input: Tensor,
    s: object = None,
    dim: object = (-2, -1),
    norm: str | None = None,
    *,
    out: None = None,
) -> Tensor:
    dims, sizes = _axes(input, s, dim, (-2, -1))
    return _transform(w, "rfft", input, dims, (*sizes[:-1], sizes[-1] // 2 + 1), _complex(input))


@operator("torch.fft.irfft2")
def irfft2(
    w: World,
    input: Tensor,
    s: object = None,
    dim: object = (-2, -1),
    norm: str | None = None,
    *,
    out: None = None,
) -> Tensor:
    dims, sizes = _axes(input, s, dim, (-2, -1))
    last = sizes[-1] if s is not None else 2 * (sizes[-1] - 1)
    return _transform(w, "irfft", input, dims, (*sizes[:-1], last), dtypes.real_of(input.dtype))


@operator("torch.fft.rfftn")
def rfftn(
    w: World,
    input: Tensor,
    s: object = None,
    dim: object = None,
    norm: str | None = None,
    *,
    out: None = None,
) -> Tensor:
    dims, sizes = _axes(input, s, dim, None)
    return _transform(w, "rfft", input, dims, (*sizes[:-1], sizes[-1] // 2 + 1), _complex(input))


@operator("torch.fft.irfftn")
def irfftn(
    w: World,
    input: Tensor,
    s: object = None,
    dim: object = None,
    norm: str | None = None,
    *,
    out: None = None,
) -> Tensor:
    dims, sizes = _axes(input, s, dim, None)
    last = sizes[-1] if s is not None else 2 * (sizes[-1] - 1)
    return _transform(w, "irfft", input, dims, (*sizes[:-1], last), dtypes.real_of(input.dtype))


@operator("torch.fft.fftshift", "torch.fft.ifftshift")
def fftshift(w: World, input: Tensor, dim: object = None) -> Tensor:
    from .views import roll

    return roll(w, input, 0)


@operator("torch.fft.fftfreq")
def fftfreq(
    w: World,
    n: int,
    d: float = 1.0,
    *,
    out: None = None,
    dtype: DType | None = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    from .factories import make
    from .support import device_from

    return make(w, "fftfreq", (extent(n),), dtype or w.default_dtype, device_from(w, device), requires_grad)


@operator("torch.fft.rfftfreq")
def rfftfreq(
    w: World,
    n: int,
    d: float = 1.0,
    *,
    out: None = None,
    dtype: DType | None = None,
    layout: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Tensor:
    return fftfreq(w, extent(n) // 2 + 1, d, dtype=dtype, device=device, requires_grad=requires_grad)


def _complex(input: Tensor) -> DType:
    return input.dtype if input.dtype.is_complex else dtypes.complex_of(input.dtype)


@operator("torch.stft", method="stft")
def stft(
    w: World,
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """Padded, cut into overlapping frames, windowed, transformed; the padded signal and the frames are
    copies.
    """
    from .pointwise import mul
    from .views import pad

    hop = hop_length or n_fft // 4
    x = pad(w, input, (n_fft // 2, n_fft // 2), pad_mode) if center else input
    frames = 1 + (x.shape[-1] - n_fft) // hop
    shape = (*x.shape[:-1], frames, n_fft)
    strides = (*x.strides[:-1], hop * x.strides[-1], x.strides[-1])
    view = make_view(x, shape, strides, x.offset)
    record(w, "as_strided", (x,), (), _ShapedBack("as_strided_backward", (x.shape,), x.dtype, 0), view)
    if window is not None:
        view = mul(w, view, window) if window.shape[-1] == n_fft else w.like(view, "mul")
    one_sided = onesided if onesided is not None else not input.dtype.is_complex
    spectrum = rfft(w, view) if one_sided else fft(w, view)
    return transpose(w, spectrum, -2, -1)
