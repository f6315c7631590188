"""torchvision's data sets and transforms, as far as they decide the shape of a sample."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import operators
from torchwise_analysis.interp.concrete.library.images import as_tensor, image_of, photograph, source_of
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    BoundMethod,
    Builtin,
    Class,
    Function,
    Instance,
    Int,
    Keywords,
    Namespace,
    Opaque,
    Partial,
    Symbol,
    Unknown,
    Value,
)
from torchwise_memory.modules.base import Module
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.tensor import Tensor

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# channels, height, width of a sample before any transform; None where images differ
_IMAGES: dict[str, tuple[int, int, int] | None] = {
    "MNIST": (1, 28, 28),
    "FashionMNIST": (1, 28, 28),
    "KMNIST": (1, 28, 28),
    "QMNIST": (1, 28, 28),
    "EMNIST": (1, 28, 28),
    "USPS": (1, 16, 16),
    "CIFAR10": (3, 32, 32),
    "CIFAR100": (3, 32, 32),
    "SVHN": (3, 32, 32),
    "STL10": (3, 96, 96),
    "LSUN": None,
    "SUN397": None,
    "Country211": None,
    "DTD": None,
    "FGVCAircraft": None,
    "PCAM": (3, 96, 96),
    "RenderedSST2": (3, 448, 448),
    "SEMEION": (1, 16, 16),
    "Omniglot": (1, 105, 105),
    "INaturalist": None,
    "Imagenette": None,
    "LFWPeople": (3, 250, 250),
    "ImageFolder": None,
    "ImageNet": None,
    "DatasetFolder": None,
    "CelebA": (3, 218, 178),
    "Flowers102": None,
    "OxfordIIITPet": None,
    "Food101": None,
    "StanfordCars": None,
    "Caltech101": None,
    "EuroSAT": (3, 64, 64),
    "GTSRB": None,
    "Places365": None,
}
# Stands for the number of samples; whatever it is, only batches reach the card.
MANY_SAMPLES = 60_000
_FAKE_SIZE = (3, 224, 224)
# Assumed where images have no common size and no transform gives one.
_ASSUMED_SIZE = (3, 224, 224)

# COCO's images are 640 pixels wide or high, most of them 640 x 480.
_COCO_SIZE = (3, 480, 640)
ASSUMED_OBJECTS = (7, 1, 30)

_SIZED = ("RandomResizedCrop", "CenterCrop", "RandomCrop", "FiveCrop")
_NEUTRAL = (
    "Normalize RandomHorizontalFlip RandomVerticalFlip ColorJitter RandomRotation AutoAugment "
    "RandAugment TrivialAugmentWide AugMix RandomErasing RandomAffine RandomPerspective GaussianBlur "
    "ConvertImageDtype ToDtype "
    "RandomApply RandomChoice RandomOrder RandomInvert RandomAutocontrast RandomAdjustSharpness ToPILImage "
    "RandomEqualize RandomPosterize RandomSolarize RandomGrayscale ElasticTransform LinearTransformation "
    "RandomPhotometricDistort ClampBoundingBoxes SanitizeBoundingBoxes ToPureTensor GaussianNoise JPEG "
    "RandomChannelPermutation"
)


def transforms_module(it: Interpreter) -> Namespace:
    members: dict[str, Value] = {name: Builtin(name, _neutral(name)) for name in _NEUTRAL.split()}
    for name in _SIZED:
        members[name] = Builtin(name, _sized)
    members["Resize"] = Builtin("Resize", _resize)
    members["RandomCrop"] = Opaque(
        "transforms.RandomCrop", {"get_params": Builtin("get_params", _crop_params)}, call=_sized
    )
    for name in ("ToTensor", "PILToTensor", "ToImage"):
        members[name] = Builtin(name, lambda it, a, k: Opaque("transforms.ToTensor", call=_to_tensor))
    members["Compose"] = Builtin("Compose", _compose)
    members["Grayscale"] = Builtin("Grayscale", _grayscale)
    members["Pad"] = Builtin("Pad", _pad)
    members["Lambda"] = Builtin("Lambda", lambda it, a, k: a[0])
    members["InterpolationMode"] = Opaque("InterpolationMode")
    members["AutoAugmentPolicy"] = Opaque("AutoAugmentPolicy")
    members["functional"] = functional_module(it)
    return Namespace("torchvision.transforms", members)


def transform(kind: str, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Opaque:
    """A transform known by what it does to (channels, height, width)."""

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        image = args[0]
        if isinstance(image, Opaque) and image.kind == "image":
            return _changed(image, change)
        if isinstance(image, Tensor) and image.ndim == 3:
            shape = change(tuple(image.shape))
            if shape == tuple(image.shape):
                return image
            return it.library.call_function(it, "torch.empty", [shape], {"dtype": image.dtype})
        if isinstance(image, Tensor):
            return image
        return Unknown(f"a transformed {getattr(image, 'why', 'image')}", it.origin())

    return Opaque(f"transforms.{kind}", payload=change, call=call)


def _changed(image: Opaque, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Opaque:
    """The image after a transform; what gives images of all sizes one size settles it."""
    shape = cast("tuple[int, ...]", image.payload)
    made = change(shape)
    other = change((shape[0], shape[1] + 37, shape[2] + 91))
    return image_of(made, "" if other == made else source_of(image))


def _neutral(name: str) -> Callable[[Interpreter, list[Value], Keywords], Value]:
    return lambda it, a, k: transform(name, lambda shape: shape)


def _pair(it: Interpreter, value: Value) -> tuple[int, int]:
    if isinstance(value, (list, tuple)):
        items = [operators.index_of(it, v) for v in cast("list[Value]", value)]
        return (items[0], items[-1])
    number = operators.index_of(it, value)
    return number, number


def _note(it: Interpreter, value: Value) -> None:
    first = next(iter(cast("list[Value]", value)), None) if isinstance(value, (list, tuple)) else value
    it.library.image_places.setdefault(
        _pair(it, value), first if isinstance(first, Int) else it.library.own(it.origin())
    )


def functional_module(it: Interpreter) -> Namespace:
    """`torchvision.transforms.functional`."""

    def now(make: Callable[[Interpreter, list[Value], Keywords], Value]) -> Builtin:
        def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            image = args.pop(0)
            return it.call(make(it, args, keywords), [image], {})

        return Builtin("functional", call)

    members: dict[str, Value] = {
        "to_tensor": Builtin("to_tensor", _to_tensor),
        "pil_to_tensor": Builtin("pil_to_tensor", _to_tensor),
        "resize": now(_resize),
        "center_crop": now(_sized),
        "resized_crop": now(lambda it, a, k: _sized(it, a[4:], k)),
        "crop": now(lambda it, a, k: _sized(it, [(a[2], a[3])], {})),
        "pad": now(_pad),
    }
    for name in (
        "normalize",
        "hflip",
        "vflip",
        "rotate",
        "adjust_brightness",
        "adjust_contrast",
        "to_pil_image",
    ):
        members[name] = now(_neutral(name))
    return Namespace("torchvision.transforms.functional", members)


def _crop_params(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Where `RandomCrop` would cut: the corner does not matter."""
    size = list(it.iterate(args[1] if len(args) > 1 else keywords["output_size"]))
    return (0, 0, size[0], size[-1])


def _sized(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    size = args[0] if args else keywords["size"]
    _note(it, size)
    height, width = _pair(it, size)
    return transform("crop", lambda shape: (shape[0], height, width))


def _resize(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    size = args[0] if args else keywords["size"]
    _note(it, size)
    if isinstance(size, (list, tuple)) and len(cast("list[Value]", size)) == 2:
        height, width = _pair(it, size)
        return transform("Resize", lambda shape: (shape[0], height, width))
    short = _pair(it, size)[0]

    def change(shape: tuple[int, ...]) -> tuple[int, ...]:
        channels, height, width = shape
        if height <= width:
            return (channels, short, round(short * width / height))
        return (channels, round(short * height / width), short)

    return transform("Resize", change)


def _grayscale(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    channels = operators.index_of(it, args[0] if args else keywords.get("num_output_channels", 1))
    return transform("Grayscale", lambda shape: (channels, *shape[1:]))


def _pad(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[0] if args else keywords["padding"]
    if isinstance(value, (list, tuple)):
        sides = [operators.index_of(it, v) for v in cast("list[Value]", value)]
        across, down = (
            (2 * sides[0], 2 * sides[-1]) if len(sides) == 2 else (sides[0] + sides[2], sides[1] + sides[3])
        )
    else:
        across = down = 2 * operators.index_of(it, value)
    return transform("Pad", lambda shape: (shape[0], shape[1] + down, shape[2] + across))


def _to_tensor(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    image = args[0]
    if isinstance(image, Opaque) and image.kind == "image":
        return as_tensor(it, image, "float32")
    if isinstance(image, Tensor) and image.ndim == 3:
        # an array of pixels: the channels come first and become numbers between 0 and 1
        height, width, channels = image.shape
        return it.library.call_function(
            it, "torch.empty", [(channels, height, width)], {"dtype": DTYPES["float32"]}
        )
    return image


def _compose(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    steps = list(it.iterate(args[0] if args else keywords["transforms"]))

    def call(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        image = given[0]
        for step in steps:
            image = it.call(step, [image], {})
        return image

    return Opaque("transforms.Compose", call=call)


def datasets_module(it: Interpreter) -> Namespace:
    """`torchvision.datasets`: classes whose samples are (image, class number)."""
    base = cast(Class, cast(Namespace, it.library.known_module("torch.utils.data")).members["Dataset"])
    vision = _dataset_class("VisionDataset", base, None)
    members: dict[str, Value] = {name: _dataset_class(name, vision, shape) for name, shape in _IMAGES.items()}
    members["VisionDataset"] = vision
    members["FakeData"] = fake = _dataset_class("FakeData", vision, _FAKE_SIZE)
    fake.members["__init__"] = Builtin("__init__", _fake_init)
    coco = members["CocoDetection"] = _dataset_class("CocoDetection", vision, None)
    coco.members["__getitem__"] = Builtin("__getitem__", _detection_sample)
    return Namespace("torchvision.datasets", members)


def _dataset_class(name: str, base: Class, shape: tuple[int, int, int] | None) -> Class:
    cls = Class(name, (base,), module="torchvision.datasets", tag=f"torchvision.datasets.{name}")
    cls.mro = (cls, *base.mro)
    cls.traits["image"] = (name, shape)
    cls.members["__init__"] = Builtin("__init__", _dataset_init)
    cls.members["__getitem__"] = Builtin("__getitem__", _image_sample)
    cls.members["__len__"] = Builtin("__len__", lambda it, a, k: Symbol("the length of the data"))
    return cls


def _dataset_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = cast(Instance, args.pop(0))
    name, shape = _image_facts(receiver)
    callables = [a for a in args[1:] if _is_callable(a)]
    fields = receiver.attributes
    fields["root"] = args[0] if args else keywords.get("root")
    fields["transform"] = keywords.get("transform", callables[0] if callables else None)
    fields["target_transform"] = keywords.get(
        "target_transform", callables[1] if len(callables) > 1 else None
    )
    fields["transforms"] = keywords.get("transforms")
    if shape is not None:
        for field, extents, dtype in (("targets", (), "int64"), ("data", shape[1:], "uint8")):
            fields[field] = it.library.call_function(
                it, "torch.empty", [(MANY_SAMPLES, *extents)], {"dtype": DTYPES[dtype]}
            )
    for field in ("classes", "class_to_idx", "samples", "imgs", "ids", "coco"):
        fields[field] = Unknown(f"{field} of {name}", it.origin())
    return None


def _fake_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = cast(Instance, args[0])
    size = keywords.get("image_size", args[2] if len(args) > 2 else _FAKE_SIZE)
    change = keywords.get("transform", next((a for a in args[1:] if _is_callable(a)), None))
    receiver.attributes["__shape__"] = tuple(operators.index_of(it, v) for v in it.iterate(size))
    receiver.attributes |= {"transform": change, "target_transform": keywords.get("target_transform")}
    return None


def _image_facts(receiver: Instance) -> tuple[str, tuple[int, int, int] | None]:
    name, shape = cast("tuple[str, tuple[int, int, int] | None]", receiver.cls.trait("image"))
    given = receiver.attributes.get("__shape__")
    return name, cast("tuple[int, int, int]", given) if isinstance(given, tuple) else shape


def _is_callable(value: Value) -> bool:
    if isinstance(value, Instance):
        return value.cls.find("__call__") is not MISSING
    return isinstance(value, (Opaque, Builtin, Function, BoundMethod, Partial, Module))


def _image_sample(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = cast(Instance, args[0])
    name, shape = _image_facts(receiver)
    image: Value = photograph(it, name, _ASSUMED_SIZE) if shape is None else image_of(shape)
    label: Value = Symbol("a class number")
    change, relabel = receiver.attributes.get("transform"), receiver.attributes.get("target_transform")
    if change is not None and not isinstance(change, Unknown):
        image = it.call(change, [image], {})
    if relabel is not None and not isinstance(relabel, Unknown):
        label = it.call(relabel, [label], {})
    return (image, label)


def _detection_sample(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """An image with its objects; how many there are is a choice, seven on the average in COCO."""
    receiver = cast(Instance, args[0])
    count = it.choose("objects", ASSUMED_OBJECTS, "{} objects are in an image")
    number = Symbol("a number of an annotation", is_int=False)
    annotations: list[Value] = [
        {
            "bbox": [number, number, number, number],
            "area": number,
            "iscrowd": 0,
            "category_id": Symbol("a category"),
            "image_id": Symbol("the number of an image"),
            "id": Symbol("the number of an annotation"),
            "segmentation": Unknown("the outline of an object", it.origin()),
        }
        for _ in range(cast(int, count))
    ]
    image: Value = image_of(_COCO_SIZE, "COCO")
    both, change = receiver.attributes.get("transforms"), receiver.attributes.get("transform")
    if both is not None:
        return it.call(both, [image, annotations], {})
    return (it.call(change, [image], {}) if change is not None else image, annotations)


__all__ = ["datasets_module", "functional_module", "transforms_module"]
