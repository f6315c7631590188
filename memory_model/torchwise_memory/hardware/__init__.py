"""Cards by every usual spelling of their name, cloud instances, and what a CUDA context takes.

The facts and their sources are in `gpus.json`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import TypedDict

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as PyTorch sees it.

    name: our spelling ("a100-80gb"). total_bytes: `get_device_properties().total_memory` on Linux, the
    smallest reading known; `total_seen` is False where it was inferred (`why` says how). total_bytes_windows:
    under WDDM. sm: compute capability times ten (80 for an A100), None for other vendors. context_bytes: what
    a process with cuBLAS and cuDNN loaded takes beside PyTorch's own memory, (low, point, high).
    """

    name: str
    title: str
    vendor: str
    total_bytes: int
    total_seen: bool
    why: str
    total_bytes_windows: int | None
    nominal_gb: float | None
    sm: int | None
    context_bytes: tuple[int, int, int]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """A cloud machine.

    count: of its cards; below 1 a slice of one, None not known. Not `certain`: guessed from its name.
    """

    provider: str
    name: str
    gpu: Gpu
    count: float | None
    certain: bool


class UnknownGpuError(LookupError):
    """No card has this name; `suggestions` are close spellings, best first."""

    def __init__(self, name: str, suggestions: tuple[str, ...]) -> None:
        hint = f"; did you mean {', '.join(suggestions)}?" if suggestions else ""
        super().__init__(f"unknown GPU {name!r}{hint}")
        self.name = name
        self.suggestions = suggestions


def find(name: str) -> Gpu:
    """The card of that name or of that cloud instance. Raises UnknownGpuError with suggestions.

    Case and separators do not matter; vendor words, a count ("8xA100", "A100:8") and "GPU" are dropped. A
    name without a memory size means the smallest usual version: "A100" is the 40 GB one. A MIG slice is found
    by its profile ("A100 3g.20gb"), a card of which only the size is said ("24GB GPU") by that. Of several
    cards ("RTX 3090 or 4090") the smallest is meant.
    """
    table = _by_alias()
    known = table.get(_squash(name)) or _slice(name)
    if known is not None:
        return known
    for key in _keys(name):
        if key in table:
            return table[key]
    found = instance(name)
    if found is not None:
        return found.gpu
    either = _either(name) or _of_size(name)
    if either is not None:
        return either
    raise UnknownGpuError(name, _suggestions(name))


def largest_meant(name: str) -> Gpu | None:
    """The largest card that the words may mean where they say that the size is open, or name several."""
    if re.search(r"(size|memory) (is )?(not stated|unknown)|unknown size", name.lower()):
        least = find(name)
        alike = [gpu for gpu in gpus() if _is_alike(gpu, least) and "-mig-" not in gpu.name]
        return max(alike, key=lambda gpu: gpu.total_bytes)
    parts = _parts(name)
    if len(parts) < 2:
        return None
    try:
        return max((find(part) for part in parts), key=lambda gpu: gpu.total_bytes)
    except UnknownGpuError:
        return None


def _parts(name: str) -> list[str]:
    """ "RTX 3090 or 4090" -> both."""
    return [part.strip() for part in re.split(r"\s+or\s+|/|,|\s+and\s+", name.lower()) if part.strip()]


def _slice(name: str) -> Gpu | None:
    """A part of a card, by the name of its MIG profile and, where it is said, that of the card."""
    profile = re.search(r"\b([1-7])g[ ._]?(\d+)\s?gb\b", name.lower())
    if profile is None:
        return None
    wanted, rest = f"{profile[1]}g.{profile[2]}gb", name.lower().replace(profile[0], " ")
    rest = re.sub(r"\bmig\b|slice|[-(),]+\s*$", " ", rest).strip(" -_(),:")
    whole = None
    if rest:
        try:
            whole = find(rest)
        except UnknownGpuError:
            return None
    by_name = {gpu.name: gpu for gpu in gpus()}
    chips = {of: [row for row in _document()["slices"] if row["of"] == of] for of in by_name}
    same = [of for of in chips if chips[of] and (whole is None or _is_alike(by_name[of], whole))]
    same.sort(key=lambda of: whole is not None and of != whole.name)
    for of in same:
        for row in chips[of]:
            if row["profile"] == wanted:
                return _sliced(by_name[of], row)
    return None


def _is_alike(one: Gpu, other: Gpu) -> bool:
    """Of one make, whatever their memory: "A100" stands for all of them."""
    return one.name.partition("-")[0] == other.name.partition("-")[0]


def _sliced(whole: Gpu, row: _SliceRow) -> Gpu:
    profile = row["profile"]
    return replace(
        whole,
        name=f"{whole.name}-mig-{profile}",
        title=f"{whole.title} MIG {profile}",
        total_bytes=row["total_mib"] * MIB,
        total_seen=False,
        why="as the profile is listed",
        total_bytes_windows=None,
        nominal_gb=float(profile.partition(".")[2].removesuffix("gb")),
        sources=tuple(row["sources"]),
    )


def _either(name: str) -> Gpu | None:
    """The smallest of the cards that are named; a word before the first goes for all ("RTX 3090 or 4090")."""
    parts = _parts(name)
    if len(parts) < 2:
        return None
    found: list[Gpu] = []
    for part in parts:
        try:
            found.append(find(part))
        except UnknownGpuError:
            return None
    return min(found, key=lambda gpu: gpu.total_bytes)


def _of_size(name: str) -> Gpu | None:
    """A card of which only the size is said: the smallest reading of the cards that are sold as so large."""
    said = re.fullmatch(
        r"(?:an?|one|single|consumer|unknown|generic|gpu|card|not stated|unstated|with|[\s(])*"
        r"(\d+)\s*gi?b(?:\s|class|gpu|card|vram|memory|[)])*",
        name.strip().lower(),
    )
    if said is None:
        return None
    size = int(said[1])
    alike = [gpu for gpu in gpus() if gpu.nominal_gb == size and gpu.sm is not None]
    if not alike:
        return None
    least = min(alike, key=lambda gpu: gpu.total_bytes)
    low, high = (pick(gpu.context_bytes[end] for gpu in alike) for pick, end in ((min, 0), (max, 2)))
    return replace(
        least,
        name=f"{size}gb",
        title=f"a card of {size} GB",
        total_seen=False,
        why=f"the smallest reading of cards of {size} GB ({least.title})",
        sm=None,
        context_bytes=(low, least.context_bytes[1], high),
    )


def kernels(sm: int | None) -> tuple[bool, bool, bool] | None:
    """What of a compute capability decides which attention runs; None where none is known.

    Cards that agree need the same memory but for some megabytes (operators/attention.py).
    """
    return None if sm is None else (sm >= 50, sm >= 75, sm >= 80)


def instance(name: str) -> Instance | None:
    """The cloud machine of that name, None if there is none."""
    return _instances_by_key().get(_squash(name))


@cache
def gpus() -> tuple[Gpu, ...]:
    """Every card known, by vendor and age."""
    return tuple(_gpu(row) for row in _document()["gpus"])


@cache
def instances() -> tuple[Instance, ...]:
    """Every cloud machine known."""
    by_name = {gpu.name: gpu for gpu in gpus()}
    return tuple(
        Instance(row["provider"], row["name"], by_name[row["gpu"]], row["count"], "not_read" not in row)
        for row in _document()["instances"]
    )


class _GpuFacts(TypedDict):
    name: str
    title: str
    vendor: str
    compute_capability: str | None
    nominal_gb: float | None
    total_mib: int
    total: str
    aliases: list[str]
    sources: list[str]


class _GpuRow(_GpuFacts, total=False):
    inferred: str
    total_mib_windows: int


class _SliceRow(TypedDict):
    of: str
    profile: str
    total_mib: int
    sources: list[str]


class _InstanceFacts(TypedDict):
    provider: str
    name: str
    gpu: str
    count: float | None


class _InstanceRow(_InstanceFacts, total=False):
    not_read: list[str]


class _Document(TypedDict):
    gpus: list[_GpuRow]
    slices: list[_SliceRow]
    instances: list[_InstanceRow]


@cache
def _document() -> _Document:
    text = files("torchwise_memory.hardware").joinpath("gpus.json").read_text(encoding="utf-8")
    document: _Document = json.loads(text)
    return document


def _gpu(row: _GpuRow) -> Gpu:
    windows = row.get("total_mib_windows")
    sm = _sm(row["compute_capability"])
    return Gpu(
        name=row["name"],
        title=row["title"],
        vendor=row["vendor"],
        total_bytes=row["total_mib"] * MIB,
        total_seen=row["total"] == "seen",
        why=row.get("inferred", ""),
        total_bytes_windows=None if windows is None else windows * MIB,
        nominal_gb=row["nominal_gb"],
        sm=sm,
        context_bytes=_context_bytes(sm),
        sources=tuple(row["sources"]),
    )


def _sm(compute_capability: str | None) -> int | None:
    """ "8.6" -> 86; AMD's "gfx942" and unknown -> None."""
    if compute_capability is None or not re.fullmatch(r"\d+\.\d", compute_capability):
        return None
    return int(compute_capability.replace(".", ""))


def _context_bytes(sm: int | None) -> tuple[int, int, int]:
    """Low, point and high of the context with lazily loaded kernels, from `contexts` of `gpus.json`.

    A T4 took 135 MiB once cuBLAS and cuDNN were loaded (torch 2.11), an RTX 6000 Ada 426 MiB (torch 2.10),
    others 300 to 400 MiB with one tensor; H100 reads 370 to 400 MiB above an L40S. It grows with the kernels
    used.
    """
    if sm is None:
        low, point, high = 200, 450, 1500
    elif sm < 80:
        low, point, high = 105, 160, 500
    elif sm < 90:
        low, point, high = 300, 450, 1000
    else:
        low, point, high = 400, 600, 1400
    return low * MIB, point * MIB, high * MIB


@cache
def _by_alias() -> dict[str, Gpu]:
    table: dict[str, Gpu] = {}
    for row, gpu in zip(_document()["gpus"], gpus(), strict=True):
        for alias in (_squash(row["name"]), _squash(row["title"]), *row["aliases"]):
            table.setdefault(alias, gpu)
    return table


@cache
def _instances_by_key() -> dict[str, Instance]:
    return {_squash(item.name): item for item in instances()}


_VENDOR_WORDS = ("nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct", "intel", "corporation")
#: Where a card is rented, and another word for one in a notebook computer.
_PLACES = re.compile(
    r"\b(colab|kaggle|google|aws|azure|gcp|lambda|runpod|paperspace|free|single|one)\b", re.IGNORECASE
)
_MOBILE = re.compile(r"\b(mobile|max-q|notebook)\b", re.IGNORECASE)
_COUNT_BEFORE = re.compile(r"^\s*\d+\s*[x×*]\s*", re.IGNORECASE)
_COUNT_AFTER = re.compile(r"(?:\s+[x×*]\s*|(?<=\d)[x×*]|\s*:\s*)\d+\s*$", re.IGNORECASE)


def _keys(name: str) -> list[str]:
    """Spellings to look up, the most literal first."""
    plain = _COUNT_AFTER.sub("", _COUNT_BEFORE.sub("", name))
    keys: list[str] = []
    placed = _MOBILE.sub("laptop", _PLACES.sub("", plain))
    for text in (name, plain, re.sub(r"\([^)]*\)", "", plain), placed):
        squashed = _squash(text)
        short = squashed
        for word in _VENDOR_WORDS:
            short = short.replace(word, "")
        memory = re.sub(r"hbm\d?e?$", "", short)
        # "16GB V100": the size before the name
        turned = re.sub(r"^(\d+)g(?:i?b)?([a-z].*)", r"\2\1gb", short)
        for key in (squashed, short, memory, turned):
            for variant in (
                key,
                key.removesuffix("gpu"),
                _gigabytes(key),
                _gigabytes(key.removesuffix("gpu")),
            ):
                if variant and variant not in keys:
                    keys.append(variant)
    return keys


def _gigabytes(key: str) -> str:
    """ "a10080gib" and "a10080g" -> "a10080gb"."""
    return re.sub(r"(\d)g(ib)?(?=$|sxm|pcie|hbm)", r"\1gb", key)


def _squash(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _suggestions(name: str) -> tuple[str, ...]:
    table = _by_alias()
    close = [key for part in _keys(name)[:2] for key in get_close_matches(part, table, n=6, cutoff=0.6)]
    titles = dict.fromkeys(table[key].name for key in close)
    if not titles:
        machines = _instances_by_key()
        close = get_close_matches(_squash(name), machines, n=3, cutoff=0.7)
        titles = dict.fromkeys(machines[key].name for key in close)
    return tuple(titles)[:3]
