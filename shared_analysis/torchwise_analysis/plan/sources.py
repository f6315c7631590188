"""Which libraries were read as text for an answer, in which release, and which texts of ours stood in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchwise_analysis.interp.concrete.library import replacements
from torchwise_analysis.names.project import Project


def libraries_read(project: Project, paths: Iterable[str], replaced: Iterable[str]) -> Iterator[str]:
    """A sentence for each library that was read, with what stood in for parts of it."""
    counts: Counter[str] = Counter()
    folders: dict[str, Path] = {}
    for path in paths:
        about = project.describe(path)
        root = about.name.partition(".")[0]
        if about.is_library and root:
            counts[root] += 1
            folders.setdefault(root, _above(path, root))
    stood_in: dict[str, list[str]] = {}
    for name in replaced:
        files = stood_in.setdefault(name.partition(".")[0], [])
        home = replacements.home(name)
        if home and home not in files:
            files.append(home)
    for root, count in counts.items():
        yield _told(root, _release(folders[root], root), count, stood_in.get(root, []))


def _told(root: str, release: str, count: int, files: list[str]) -> str:
    said = f"{root} {release}".strip() + f" is followed from its own text ({count} file{'s'[: count > 1]})"
    if not files:
        return said
    outside = [file for file in files if _is_outside(file, root, release)]
    verb = "stand in" if len(files) > 1 else "stands in"
    said += f"; for machinery of its {', '.join(files)} {verb}"
    return said + (f", written for other releases: {_range(outside[0], root)}" if outside else "")


def _above(path: str, root: str) -> Path:
    """The folder that holds the package a file belongs to."""
    above = Path(path).absolute().parents
    return next((folder.parent for folder in above if folder.name == root), above[0])


def _release(folder: Path, root: str) -> str:
    """The release by the name of the package's metadata folder; empty where there is none."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return ""
    for name in names:
        stem, dash, rest = name.partition("-")
        if dash and stem.replace("-", "_").lower() == root.lower() and rest.endswith(".dist-info"):
            return rest.removesuffix(".dist-info")
    return ""


def _is_outside(file: str, root: str, release: str) -> bool:
    tested = replacements.RELEASES.get(file, {}).get(root)
    numbers = [int(part) for part in release.split(".")[:2] if part.isdecimal()]
    if tested is None or len(numbers) < 2:
        return False
    return not tested[0] <= (numbers[0], numbers[1]) <= tested[1]


def _range(file: str, root: str) -> str:
    low, high = replacements.RELEASES[file][root]
    first, last = (".".join(map(str, end)) for end in (low, high))
    return first if first == last else f"{first} to {last}"
