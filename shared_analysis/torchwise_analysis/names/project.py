"""The files of one project and of the libraries it uses, found by name and lowered when asked for.

An import is resolved the way CPython's path finder would, over folders that are only ever listed and
read: the importing file's own package, the project's roots (the folder of the script, the project
folder, its `src`), library folders, then folders that the importing file puts on `sys.path` itself.
Nothing is put on our own path, no interpreter is started, `.pth` files and import hooks are not followed.
Compiled modules and namespace packages without source have nothing to read and stay unresolved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise_analysis.files import MAX_SOURCE_BYTES, read_regular
from torchwise_analysis.names.edited_path import added_folders, edits_path
from torchwise_analysis.names.releases import Releases, Version, release_run, releases
from torchwise_analysis.source.decode import decode
from torchwise_analysis.source.lower_text import Parsed, lower_text
from torchwise_analysis.source.nodes import Module

if TYPE_CHECKING:
    from torchwise_analysis.names.launches import Launches

_PROJECT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
# What a project's folder holds that was downloaded without its history; asked where no mark is found.
_WEAKER_MARKS = ("LICENSE", "LICENSE.md", "LICENSE.txt", "requirements.txt")


@dataclass(frozen=True, slots=True)
class SourceModule:
    """A module whose source text can be read.

    `name` is dotted and absolute as seen from the root it was found in. `is_library` marks what was
    found below a library folder: the rules driver never descends into it.
    """

    name: str
    path: str
    is_package: bool
    is_library: bool


_INSTALLED = ("site-packages", "dist-packages")
# Libraries that files beside a script are often called like.
_NEVER_BESIDE = frozenset(
    ["datasets", "evaluate", "transformers", "tokenizers", "torch", "torchvision", "timm"]
)


class Project:
    """Finds and lowers modules lazily; one instance serves many analyses of one project.

    `overlay` gives the lowered module of an open document, so that unsaved text wins over the disk.
    """

    def __init__(
        self,
        roots: Sequence[str],
        libraries: Sequence[str] = (),
        overlay: Callable[[str], Module | None] = lambda path: None,
    ) -> None:
        self.roots = tuple(roots)
        self.libraries = tuple(libraries)
        self._overlay = overlay
        self._found: dict[tuple[str, str], SourceModule | None] = {}
        self._texts: dict[str, str | None] = {}
        self._modules: dict[str, Module | None] = {}
        self.derived: dict[object, object] = {}  # what others made of modules; goes with them
        self._releases: dict[str, Releases | None] = {}
        self._runs: dict[str, tuple[Version | None, str]] = {}
        self._launches: dict[str, Launches] = {}
        self._added: dict[str, tuple[str, ...]] = {}  # by file: what it puts on the path
        self.asked: set[str] = set()  # files whose module was asked for; whoever wants to know clears it
        self.asked_texts: set[str] = set()  # files of which a text was looked through; likewise
        self.version = 0  # another one whenever something that was found may not hold any more
        self._latest = 0
        self.forgotten: dict[str, int] = {}  # files that appeared or changed, with the version since when
        self._looked: dict[str, set[str]] | None = None

    def watch_folders(self) -> None:
        """Note from now on whose listings decide what an import finds: see `folders_behind`."""
        if self._looked is None:
            self._looked = {}
            self._found.clear()

    def folders_behind(self, paths: Iterable[str]) -> frozenset[str]:
        """The folders whose entries (packages and modules) decided what imports of these files found."""
        looked = self._looked or {}
        return frozenset(
            folder for near in {os.path.dirname(path) for path in paths} for folder in looked.get(near, ())
        )

    def find(self, name: str, importer: str | None = None) -> SourceModule | None:
        """The module called `name` (absolute, dotted) as imported from the file `importer`."""
        near = os.path.dirname(importer) if importer else ""
        key = (name, near)
        if key not in self._found:
            self._found[key] = self._search(name, near)
        found = self._found[key]
        if found is None and importer:
            found = self._on_edited_path(name, importer)
        is_itself = found is not None and found.path == importer and module_name(found.path) != name
        return None if is_itself else found

    def find_relative(self, module: str, level: int, importer: str) -> SourceModule | None:
        """The module that `from <level dots><module> import ...` means in the file `importer`.

        Resolved by folders, so that packages without `__init__.py` work too.
        """
        folder = os.path.dirname(importer)
        near = folder
        for _ in range(level - 1):
            folder = os.path.dirname(folder)
        parts = module.split(".") if module else []
        self._note(near, folder, parts)
        found = _in_folder(folder, parts) if parts else _package_file(folder)
        return self.describe(found[0]) if found else None

    def is_open(self, path: str) -> bool:
        """Whether another text than the disk's wins for the file."""
        return self._overlay(path) is not None

    def with_modules(self, modules: Mapping[str, Module]) -> Project:
        """The same project with other texts of some files."""
        other = Project(self.roots, self.libraries, lambda path: modules.get(path) or self._overlay(path))
        other.derived = self.derived
        return other

    def describe(self, path: str) -> SourceModule:
        """The module that the file `path` is: its dotted name follows from its packages."""
        is_package = os.path.basename(path) == "__init__.py"
        return SourceModule(module_name(path), path, is_package, self.is_library(path))

    def text(self, path: str) -> str | None:
        """The text of a file; None if it cannot be read or is too large."""
        self.asked_texts.add(path)
        return self._text_of(path)

    def source(self, path: str) -> str | None:
        """The text of a file whose words stand for its module; None if it cannot be read."""
        self.asked.add(path)
        return self._text_of(path)

    def _text_of(self, path: str) -> str | None:
        if path not in self._texts:
            self._texts[path] = _read(path)
        return self._texts[path]

    def load(self, path: str) -> Module | None:
        """The lowered module of a file; None if it cannot be read."""
        self.asked.add(path)
        open_module = self._overlay(path)
        if open_module is not None:
            return open_module
        if path not in self._modules:
            if self.is_library(path):
                self._modules[path] = _library_module(path, _stamp(path))
            else:
                text = self._text_of(path)
                self._modules[path] = None if text is None else lower_text(path, text)
        return self._modules[path]

    def substitute(self, path: str, text: str) -> None:
        """What the file `path` is taken to hold from now on, until it is forgotten."""
        self._texts[path] = text
        self._modules[path] = lower_text(path, text)
        self._renew()

    @contextmanager
    def holding(self, path: str, text: str) -> Generator[None, None, None]:
        """What the file `path` is taken to hold for a while."""
        had_text, had_module = path in self._texts, path in self._modules
        before_text, before_module = self._texts.get(path), self._modules.get(path)
        version = self.version
        self.substitute(path, text)
        try:
            yield
        finally:
            self._texts.pop(path)
            self._modules.pop(path)
            if had_text:
                self._texts[path] = before_text
            if had_module:
                self._modules[path] = before_module
            self.version = version  # what was found before holds again

    def _renew(self) -> None:
        self._latest += 1
        self.version = self._latest

    def lowered(self, path: str, text: str, parsed: Parsed | None = None) -> Module:
        """The module of a text that is checked as the file `path`: one object with what its importers get.
        `parsed`: of the text, as for `lower_text`."""
        known = self._modules.get(path)
        if known is not None and self._texts.get(path) == text:
            return known
        module = lower_text(path, text, parsed)
        if path.endswith(".py") and self._overlay(path) is None and not self.is_library(path):
            self._texts[path], self._modules[path] = text, module
        return module

    def forget(self, path: str) -> None:
        """Drop what is known of `path` and of every unresolved name: a file appeared or changed."""
        self._texts.pop(path, None)
        self._modules.pop(path, None)
        self._found.clear()
        self._added.clear()
        self._launches.clear()
        self._renew()
        self.forgotten[path] = self.version

    @property
    def words_of_names(self) -> frozenset[str]:
        """Parts of all names of modules that were looked for: a file of another name changes no import."""
        return frozenset(part for name, _ in self._found for part in name.split("."))

    @property
    def loaded_lines(self) -> int:
        """Lines of the lowered modules that are kept."""
        return sum(module.line_count for module in self._modules.values() if module is not None)

    def bound(self, lines: int) -> None:
        """Drop all lowered modules once they are of more lines; to be called between two analyses."""
        if self.loaded_lines > lines:
            self._modules.clear()
            self._texts.clear()
            self.derived.clear()

    def asked_releases(self) -> Iterable[tuple[str, Releases | None]]:
        """The libraries whose releases were asked for, with the answers."""
        return self._releases.items()

    def releases(self, library: str) -> Releases | None:
        """Which releases of a library the project runs with, as far as it says."""
        if library not in self._releases:
            self._releases[library] = releases(library, self.roots, self.libraries)
        return self._releases[library]

    def release_run(self, library: str) -> tuple[Version | None, str]:
        """The release that a run most likely has, and who says so; None where nothing does."""
        if library not in self._runs:
            self._runs[library] = release_run(library, self.roots, self.libraries)
        return self._runs[library]

    def asked_launches(self) -> Iterable[tuple[str, Launches]]:
        """The scripts whose launch lines were asked for, with the answers."""
        return self._launches.items()

    def launches(self, path: str) -> Launches:
        """What the project's own launch lines say of how many processes the script `path` runs as."""
        if path not in self._launches:
            from torchwise_analysis.names.launches import launches_of  # few scripts need it

            self._launches[path] = launches_of(path, self.roots)
        return self._launches[path]

    def _search(self, name: str, near: str) -> SourceModule | None:
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return None
        for folder in self._search_folders(near, parts[0]):
            self._note(near, folder, parts)
            found = _in_folder(folder, parts)
            if found is not None:
                path, is_package = found
                return SourceModule(name, path, is_package, self.is_library(path))
        return None

    def _on_edited_path(self, name: str, importer: str) -> SourceModule | None:
        """What lies in a folder that the importing file puts on the path."""
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts) or parts[0] in sys.stdlib_module_names:
            return None
        if importer not in self._added:
            text = self._text_of(importer) or ""
            self._added[importer] = added_folders(importer, text, self.roots) if edits_path(text) else ()
        if self._added[importer]:
            self.asked_texts.add(importer)
        for folder in self._added[importer]:
            self._note(os.path.dirname(importer), folder, parts)
            found = _in_folder(folder, parts)
            if found is not None:
                return SourceModule(name, *found, is_library=self.is_library(found[0]))
        return None

    def _note(self, near: str, folder: str, parts: Sequence[str]) -> None:
        if self._looked is None:
            return
        looked = self._looked.get(near)
        if looked is None:
            looked = self._looked[near] = set(_packages_around(near))
        looked.add(folder)
        for part in parts:
            folder = os.path.join(folder, part)
            if folder not in looked:
                if not os.path.isdir(folder):
                    break  # that it is not there says the listing of the folder above
                looked.add(folder)

    def is_library(self, path: str) -> bool:
        """Whether a file lies below a library folder, or where packages are installed."""
        return _is_installed(path) or any(_is_below(path, folder) for folder in self.libraries)

    def _search_folders(self, near: str, package: str) -> Iterable[str]:
        """Where a module may lie. A file of a package may be run as a script, too: then its own folder
        counts, for what is nowhere else."""
        is_script = near and package not in sys.stdlib_module_names and package not in _NEVER_BESIDE
        last = [near] if is_script else []
        seen: set[str] = set()
        for folder in (*([package_root(near)] if near else []), *self.roots, *self.libraries, *last):
            if folder not in seen:
                seen.add(folder)
                yield folder


def package_root(folder: str) -> str:
    """The folder that would be on `sys.path`: the first one upwards that is not a package."""
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    return folder


def _packages_around(folder: str) -> Iterator[str]:
    """The folder and those above it, up to the first that is no package."""
    root = package_root(folder)
    while True:
        yield folder
        if folder == root:
            return
        folder = os.path.dirname(folder)


def module_name(path: str) -> str:
    """The dotted name of a file, from the packages around it."""
    folder, base = os.path.split(path)
    stem = base.removesuffix(".py")
    parts = [] if stem == "__init__" else [stem]
    root = package_root(folder)
    relative = os.path.relpath(folder, root)
    if relative != ".":
        parts = [*relative.split(os.sep), *parts]
    return ".".join(parts)


def project_roots(path: str) -> tuple[str, ...]:
    """Folders from which imports of the file `path` resolve: package root, project folder, its `src`."""
    folder = os.path.dirname(os.path.abspath(path))
    return tuple(dict.fromkeys((package_root(folder), *shared_roots(path))))


def shared_roots(path: str) -> tuple[str, ...]:
    """Of these, the ones that do not hang on the packages the file lies in."""
    folder = os.path.dirname(os.path.abspath(path))
    roots: list[str] = []
    parents = (folder, *(str(p) for p in Path(folder).parents))
    for marks in (_PROJECT_MARKS, _WEAKER_MARKS):
        marked = (p for p in parents if any(os.path.exists(os.path.join(p, mark)) for mark in marks))
        parent = next(marked, None)
        if parent is not None:
            roots.append(parent)
            source = os.path.join(parent, "src")
            if os.path.isdir(source):
                roots.append(source)
    return tuple(dict.fromkeys(roots))


def _in_folder(folder: str, parts: Sequence[str]) -> tuple[str, bool] | None:
    base = os.path.join(folder, *parts)
    package = os.path.join(base, "__init__.py")
    if os.path.isfile(package):
        return package, True
    if os.path.isfile(base + ".py"):
        return base + ".py", False
    return None


def _package_file(folder: str) -> tuple[str, bool] | None:
    package = os.path.join(folder, "__init__.py")
    return (package, True) if os.path.isfile(package) else None


@lru_cache(maxsize=256)
def _library_module(path: str, stamp: tuple[int, int, int]) -> Module | None:
    """Libraries do not change between two analyses; `stamp` notices when one does."""
    text = _read(path)
    return None if text is None else lower_text(path, text)


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    # packages are unpacked with the times they were built with: the other one is the system's own
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _is_installed(path: str) -> bool:
    """Is it a file of an installed package? Whoever checks one sees each of its files by itself: to them,
    too, what the package gives is what its documentation says and not what its source would come to."""
    return any(f"{os.sep}{name}{os.sep}" in path for name in _INSTALLED)


def _is_below(path: str, folder: str) -> bool:
    return os.path.abspath(path).startswith(os.path.abspath(folder) + os.sep)


def _read(path: str) -> str | None:
    try:
        data = read_regular(path, MAX_SOURCE_BYTES + 1)
    except (OSError, ValueError):
        return None
    return None if len(data) > MAX_SOURCE_BYTES else decode(data).text
