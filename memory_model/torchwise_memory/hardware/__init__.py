"""Cards by every usual spelling of their name, cloud instances, and what a CUDA context takes.

The facts and their sources are in `gpus.json`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
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
    name without a memory size means the smallest usual version: "A100" is the 40 GB one.
    """
    table = _by_alias()
    for key in _keys(name):
        if key in table:
            return table[key]
    found = instance(name)
    if found is not None:
        return found.gpu
    raise UnknownGpuError(name, _suggestions(name))


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


class _InstanceFacts(TypedDict):
    provider: str
    name: str
    gpu: str
    count: float | None


class _InstanceRow(_InstanceFacts, total=False):
    not_read: list[str]


class _Document(TypedDict):
    gpus: list[_GpuRow]
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
_COUNT_BEFORE = re.compile(r"^\s*\d+\s*[x×*]\s*", re.IGNORECASE)
_COUNT_AFTER = re.compile(r"\s*[x×*:]\s*\d+\s*$", re.IGNORECASE)


def _keys(name: str) -> list[str]:
    """Spellings to look up, the most literal first."""
    plain = _COUNT_AFTER.sub("", _COUNT_BEFORE.sub("", name))
    keys: list[str] = []
    for text in (name, plain, re.sub(r"\([^)]*\)", "", plain)):
        squashed = _squash(text)
        short = squashed
        for word in _VENDOR_WORDS:
            short = short.replace(word, "")
        for key in (squashed, short):
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
