"""Element types. Each exists once and is compared by identity."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type.

    itemsize: bytes an element takes. category: 0 bool, 1 integer, 2 floating, 3 complex; promotion between
    categories goes up, inside one it follows `rank`. largest/smallest bound `torch.finfo`/`torch.iinfo`.
    """

    name: str
    itemsize: int
    category: int
    rank: int
    largest: float = 0.0
    smallest: float = 0.0
    epsilon: float = 0.0
    tiny: float = 0.0

    @property
    def is_floating_point(self) -> bool:
        return self.category == FLOATING

    @property
    def is_complex(self) -> bool:
        return self.category == COMPLEX

    @property
    def is_signed(self) -> bool:
        return self.category >= FLOATING or self.smallest < 0

    @property
    def is_differentiable(self) -> bool:
        return self.category >= FLOATING

    def __repr__(self) -> str:
        return f"torch.{self.name}"


BOOL, INTEGER, FLOATING, COMPLEX = 0, 1, 2, 3


def _integer(name: str, itemsize: int, rank: int, *, signed: bool) -> DType:
    bits = 8 * itemsize
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return DType(name, itemsize, INTEGER, rank, high, low)


def _floating(name: str, itemsize: int, rank: int, largest: float, epsilon: float, tiny: float) -> DType:
    return DType(name, itemsize, FLOATING, rank, largest, -largest, epsilon, tiny)


float64 = _floating("float64", 8, 9, 1.7976931348623157e308, 2.220446049250313e-16, 2.2250738585072014e-308)
float32 = _floating("float32", 4, 8, 3.4028234663852886e38, 1.1920928955078125e-07, 1.1754943508222875e-38)
float16 = _floating("float16", 2, 7, 65504.0, 0.0009765625, 6.103515625e-05)
bfloat16 = _floating("bfloat16", 2, 7, 3.3895313892515355e38, 0.0078125, 1.1754943508222875e-38)
float8_e4m3fn = _floating("float8_e4m3fn", 1, 5, 448.0, 0.125, 0.015625)
float8_e5m2 = _floating("float8_e5m2", 1, 5, 57344.0, 0.25, 6.103515625e-05)
float8_e4m3fnuz = _floating("float8_e4m3fnuz", 1, 5, 240.0, 0.125, 0.0078125)
float8_e5m2fnuz = _floating("float8_e5m2fnuz", 1, 5, 57344.0, 0.125, 3.0517578125e-05)
complex32 = DType("complex32", 4, COMPLEX, 7)
complex64 = DType("complex64", 8, COMPLEX, 8)
complex128 = DType("complex128", 16, COMPLEX, 9)
int64 = _integer("int64", 8, 5, signed=True)
int32 = _integer("int32", 4, 4, signed=True)
int16 = _integer("int16", 2, 3, signed=True)
int8 = _integer("int8", 1, 1, signed=True)
uint8 = _integer("uint8", 1, 1, signed=False)
uint16 = _integer("uint16", 2, 2, signed=False)
uint32 = _integer("uint32", 4, 3, signed=False)
uint64 = _integer("uint64", 8, 4, signed=False)
boolean = DType("bool", 1, BOOL, 0, 1, 0)

_ALL = (
    float64,
    float32,
    float16,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float8_e4m3fnuz,
    float8_e5m2fnuz,
    complex32,
    complex64,
    complex128,
    int64,
    int32,
    int16,
    int8,
    uint8,
    uint16,
    uint32,
    uint64,
    boolean,
)

#: Every spelling under `torch.`, aliases included.
DTYPES: dict[str, DType] = {
    **{dtype.name: dtype for dtype in _ALL},
    "double": float64,
    "float": float32,
    "half": float16,
    "long": int64,
    "int": int32,
    "short": int16,
    "chalf": complex32,
    "cfloat": complex64,
    "cdouble": complex128,
}

HALF_TYPES = (float16, bfloat16)


def promote(a: DType, b: DType) -> DType:
    """`torch.promote_types`."""
    if a is b:
        return a
    if a.category == COMPLEX or b.category == COMPLEX:
        return _promote_complex(a, b)
    if a.category != b.category:
        return a if a.category > b.category else b
    if a.category == INTEGER and a.is_signed != b.is_signed:
        return _promote_signedness(a, b)
    if a.rank == b.rank:
        return float32 if a.category == FLOATING else a
    return a if a.rank > b.rank else b


def real_of(dtype: DType) -> DType:
    """The type of the real part of a complex type; other types are their own."""
    return {complex32: float16, complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """The complex type whose parts are `dtype`."""
    return {float16: complex32, float64: complex128}.get(dtype, complex64)


def _promote_complex(a: DType, b: DType) -> DType:
    ranks = max(dtype.rank for dtype in (a, b) if dtype.category >= FLOATING)
    return complex128 if ranks == 9 else complex64 if ranks == 8 else complex32


def _promote_signedness(a: DType, b: DType) -> DType:
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    return {1: int16, 2: int32, 4: int64}.get(unsigned.itemsize, int64)
