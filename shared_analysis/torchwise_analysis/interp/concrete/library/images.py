"""Pillow as data sets use it: images that know their channels and, as far as anything says it, their size."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import operators
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Keywords,
    Namespace,
    Opaque,
    Unknown,
    Value,
)
from torchwise_analysis.names.launches import stated_by
from torchwise_memory.runtime.dtypes import DTYPES

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

Shape = tuple[int, int, int]

# Channels of Pillow's modes.
_CHANNELS = {
    "1": 1,
    "L": 1,
    "P": 1,
    "I": 1,
    "F": 1,
    "LA": 2,
    "RGB": 3,
    "YCbCr": 3,
    "HSV": 3,
    "LAB": 3,
    "RGBA": 4,
    "CMYK": 4,
}
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# Taken where nothing says how large a photograph is: the size most of ImageNet's files have.
PHOTOGRAPH: Shape = (3, 375, 500)
_KEEP = (
    "copy", "load", "filter", "point", "transpose", "rotate", "getchannel", "quantize", "transform",
    "close", "verify",
)  # fmt: skip


def pillow(it: Interpreter) -> Namespace:
    """`PIL`."""
    members: dict[str, Value] = {"Image": image_module(it), "__version__": "11.0.0"}
    members["ImageOps"] = Namespace("PIL.ImageOps", resolve=_same_size)
    members["ImageEnhance"] = Namespace("PIL.ImageEnhance", resolve=_enhancer)
    members["ImageFile"] = Namespace("PIL.ImageFile", {"LOAD_TRUNCATED_IMAGES": False})
    return Namespace("PIL", members)


# Functions of `PIL.ImageOps` that only change colours or turn an image over.
_COLOUR_CHANGES = (
    "autocontrast",
    "equalize",
    "invert",
    "posterize",
    "solarize",
    "flip",
    "mirror",
    "exif_transpose",
)


def _same_size(name: str) -> Value:
    if name in _COLOUR_CHANGES:
        return Builtin(f"PIL.ImageOps.{name}", lambda it, a, k: a[0])
    if name == "grayscale":
        return Builtin(name, lambda it, a, k: it.call(it.get_attribute(a[0], "convert"), ["L"], {}))
    return MISSING


def _enhancer(name: str) -> Value:
    """`ImageEnhance.Color(image).enhance(factor)`: the image in other colours."""

    def make(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        image = args[0]
        return Opaque(f"PIL.ImageEnhance.{name}", {"enhance": Builtin("enhance", lambda it, a, k: image)})

    return Builtin(f"PIL.ImageEnhance.{name}", make) if name[:1].isupper() else MISSING


def image_module(it: Interpreter) -> Namespace:
    """`PIL.Image`."""
    members: dict[str, Value] = {
        "open": Builtin("PIL.Image.open", _open),
        "new": Builtin("PIL.Image.new", _new),
        "fromarray": Builtin("PIL.Image.fromarray", _from_array),
        "Image": it.types.named("Image"),
    }
    filters = ("NEAREST", "LANCZOS", "BILINEAR", "BICUBIC", "BOX", "HAMMING")
    members |= {name: number for number, name in enumerate(filters)}
    members["ANTIALIAS"] = 1
    members["FLIP_LEFT_RIGHT"] = 0
    members["FLIP_TOP_BOTTOM"] = 1
    members["Resampling"] = Namespace("PIL.Image.Resampling", dict(members))
    return Namespace("PIL.Image", members)


def photograph(it: Interpreter, name: str, usual: Shape = PHOTOGRAPH) -> Opaque:
    """An image of data of which nothing says how large it is: as a comment states, else as usual."""
    if "image_size" in it.stated:
        value, where = it.stated["image_size"]
        if isinstance(value, int) and value > 0:
            it.assume(f"images of {name} are {value} x {value}, {stated_by(where)}")
            return image_of((usual[0], value, value))
    return image_of(usual, name)


def image_of(shape: tuple[int, ...], source: str = "") -> Opaque:
    """An image of (channels, height, width); `source` names the data if the size is only assumed."""
    made = Opaque("image", payload=shape)
    channels, height, width = cast(Shape, shape)

    def size(it: Interpreter) -> None:
        if source:
            it.assume(f"images of {source} are {height} x {width}")

    def converted(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        mode = args[0] if args else keywords.get("mode")
        count = _CHANNELS.get(mode, channels) if isinstance(mode, str) else channels
        return image_of((count, height, width), source)

    def split(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return tuple(image_of((1, height, width), source) for _ in range(channels))

    def resized(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        wanted = _extents(it, args[0] if args else keywords.get("size"))
        if wanted is None:
            return Unknown("an image of a size that is not known", it.origin())
        return image_of((channels, wanted[1], wanted[0]), "")

    def cropped(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        box = _extents(it, args[0] if args else keywords.get("box"))
        if box is None or len(box) != 4:
            return Unknown("a part of an image that is not known", it.origin())
        return image_of((channels, box[3] - box[1], box[2] - box[0]), source)

    def kept(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return image_of((channels, height, width), source)

    table = {
        "convert": converted,
        "split": split,
        "resize": resized,
        "crop": cropped,
        **dict.fromkeys(_KEEP, kept),
    }
    made.attributes |= {name: Builtin(name, call) for name, call in table.items()}
    made.attributes["save"] = Builtin("save", lambda it, a, k: None)
    made.attributes["size"] = (width, height)
    made.attributes |= {
        "width": width,
        "height": height,
        "mode": _MODES.get(channels, "RGB"),
        "format": "JPEG",
    }
    made.attributes["getbands"] = Builtin("getbands", lambda it, a, k: tuple(_MODES.get(channels, "RGB")))
    made.attributes["__settle__"] = Builtin("__settle__", lambda it, a, k: size(it))
    made.attributes["__source__"] = source
    return made


# --------------------------------------------------------------------------- OpenCV


def opencv_module(it: Interpreter) -> Namespace:
    """`cv2`: images are arrays of height, width and channels."""
    members: dict[str, Value] = {
        "imread": Builtin("cv2.imread", _imread),
        "resize": Builtin("cv2.resize", _array_resize),
        "copyMakeBorder": Builtin("cv2.copyMakeBorder", _array_border),
        "cvtColor": Builtin("cv2.cvtColor", _first),
        "setNumThreads": Builtin("cv2.setNumThreads", lambda it, a, k: None),
        "ocl": Namespace("cv2.ocl", {"setUseOpenCL": Builtin("setUseOpenCL", lambda it, a, k: None)}),
        "getRotationMatrix2D": Builtin("cv2.getRotationMatrix2D", lambda it, a, k: Opaque("a rotation")),
        "warpAffine": Builtin("cv2.warpAffine", _array_warp),
    }
    for name in ("flip", "GaussianBlur", "blur", "medianBlur", "LUT"):
        members[name] = Builtin(f"cv2.{name}", _first)
    filters = ("INTER_NEAREST", "INTER_LINEAR", "INTER_CUBIC", "INTER_AREA")
    members |= {name: number for number, name in enumerate(filters)}
    members |= {
        "IMREAD_GRAYSCALE": 0,
        "IMREAD_COLOR": 1,
        "BORDER_CONSTANT": 0,
        "COLOR_BGR2RGB": 4,
        "COLOR_RGB2BGR": 4,
    }
    return Namespace("cv2", members)


def _first(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return args[0]


def _imread(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    flags = args[1] if len(args) > 1 else keywords.get("flags", 1)
    shape = (1, *PHOTOGRAPH[1:]) if flags == 0 else PHOTOGRAPH
    return as_tensor(it, photograph(it, "the data", shape), "uint8", channels_last=True)


def _array_of(it: Interpreter, array: Value, height: Value, width: Value) -> Value:
    """An array like `array` with another height and width."""
    if isinstance(array, Unknown):
        return array
    shape = list(it.iterate(it.get_attribute(array, "shape")))
    extents = (operators.index_of(it, height), operators.index_of(it, width), *shape[2:])
    dtype = it.get_attribute(array, "dtype")
    return it.library.call_function(it, "torch.empty", [extents], {"dtype": dtype})


def _array_resize(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    array = args[0]
    size = args[1] if len(args) > 1 else keywords.get("dsize")
    if size is None and not isinstance(array, Unknown):
        height, width, *_ = it.iterate(it.get_attribute(array, "shape"))
        factors = [keywords.get("fy"), keywords.get("fx")]
        if any(not isinstance(f, (int, float)) for f in factors):
            it.assume("an image that is scaled at random keeps its size")
            return array
        size = (
            int(cast(int, width) * cast(float, factors[1])),
            int(cast(int, height) * cast(float, factors[0])),
        )
    items = list(it.iterate(cast(Value, size))) if isinstance(size, (list, tuple)) else []
    if len(items) != 2:
        return Unknown("an image of a size that is not known", it.origin())
    return _array_of(it, array, items[1], items[0])


def _array_border(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    array, sides = args[0], args[1:5]
    if isinstance(array, Unknown) or len(sides) < 4:
        return Unknown("an image with a border", it.origin())
    height, width, *_ = it.iterate(it.get_attribute(array, "shape"))
    for side in sides[:2]:
        height = operators.binary(it, "+", height, side)
    for side in sides[2:]:
        width = operators.binary(it, "+", width, side)
    return _array_of(it, array, height, width)


def _array_warp(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    size = list(it.iterate(args[2] if len(args) > 2 else keywords["dsize"]))
    return _array_of(it, args[0], size[1], size[0])


def _extents(it: Interpreter, value: Value) -> list[int] | None:
    if not isinstance(value, (list, tuple)):
        return None
    items = cast("list[Value]", value)
    numbers = [int(v) if isinstance(v, float) else v for v in items]
    return [int(v) for v in numbers] if all(isinstance(v, int) for v in numbers) else None  # type: ignore[call-overload]


def source_of(image: Opaque) -> str:
    """Whose size is only assumed; empty if the size is known."""
    return str(image.attributes.get("__source__", ""))


def as_tensor(it: Interpreter, image: Opaque, dtype: str, channels_last: bool = False) -> Value:
    """The pixels of an image; from here on its size counts, so an assumption about it is recorded."""
    channels, height, width = cast(Shape, image.payload)
    if source_of(image):
        it.assume(f"images of {source_of(image)} are {height} x {width}")
    shape: tuple[int, ...] = (channels, height, width)
    if channels_last:
        shape = (height, width) if channels == 1 else (height, width, channels)
    return it.library.call_function(it, "torch.empty", [shape], {"dtype": DTYPES[dtype]})


def _open(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return photograph(it, "the data")


def _new(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    mode = args[0] if args else keywords.get("mode")
    wanted = _extents(it, args[1] if len(args) > 1 else keywords.get("size"))
    if wanted is None or not isinstance(mode, str):
        return Unknown("a new image", it.origin())
    return image_of((_CHANNELS.get(mode, 3), wanted[1], wanted[0]))


def _from_array(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    array = args[0]
    if not it.is_tensor(array):
        return Unknown("an image of an array that is not known", it.origin())
    shape = list(it.iterate(it.get_attribute(array, "shape")))
    if len(shape) == 2:
        return image_of((1, operators.index_of(it, shape[0]), operators.index_of(it, shape[1])))
    extents = [operators.index_of(it, v) for v in shape[-3:]]
    return image_of((extents[2], extents[0], extents[1]))
