"""From paths to documents, and from documents back to what reports show."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from torchwise_analysis.engine import Engine, Problem, ProblemKind
from torchwise_analysis.files import MAX_NOTEBOOK_BYTES, MAX_SOURCE_BYTES, read_regular
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.names.environment import library_folders
from torchwise_analysis.names.project import Project, project_roots, shared_roots
from torchwise_analysis.settings import Settings
from torchwise_analysis.source.decode import decode
from torchwise_analysis.source.lines import split_lines
from torchwise_analysis.source.notebooks import Notebook, read_notebook
from torchwise_server.cli.options import shown_path
from torchwise_server.reporters.sources import Sources


@dataclass(frozen=True, slots=True)
class Reading:
    """One file as read; `document` is None where there is no text, and `problems` say why.

    `is_foreign`: a sound file that is not Python; no problem unless it was named.
    """

    document: SourceFile | None
    problems: tuple[Problem, ...] = ()
    is_foreign: bool = False


class Reader:
    """Reads files once, and remembers what reports need of them."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._notebooks: dict[str, Notebook] = {}
        self._names: dict[str, str] = {}
        self._lines: dict[str, tuple[str, ...]] = {}
        self._file_lines: dict[str, dict[int, tuple[int, ...]]] = {}
        self._roots: dict[str, tuple[str, ...]] = {}
        self._projects: dict[tuple[tuple[str, ...], tuple[str, ...]], Project] = {}
        self._engines: dict[tuple[Settings, Path, int], Engine] = {}

    def read(self, path: Path) -> Reading:
        """The document of a file. Never raises for what a file can be."""
        return self.read_bytes(_absolute(path))[1]

    def read_bytes(self, path: str) -> tuple[bytes | None, Reading]:
        """The bytes of a file at an absolute path, None where it cannot be read, and the document of it."""
        try:
            data = read_regular(path, _limit(path) + 1)
        except (OSError, ValueError) as error:
            return None, _unreadable(path, getattr(error, "strerror", None) or str(error))
        return data, self._document(path, data)

    def read_stdin(self, filename: str | None) -> Reading:
        """The document on standard input, as if it lay at `filename`."""
        path = _absolute(Path(filename or "<stdin>"))
        self._names[path] = filename or "<stdin>"
        return self._document(path, sys.stdin.buffer.read(_limit(path) + 1))

    def take(self, path: str, data: bytes, name: str | None = None) -> Reading:
        """The document of bytes that were read before; `path` is absolute, `name` is how reports call it."""
        if name is not None:
            self._names[path] = name
        return self._document(path, data)

    def engine(self, settings: Settings, root: Path, path: str) -> Engine:
        """The engine for a file: files of one project share what was read of its modules."""
        project = self.project(settings, path)
        engine_key = (settings, root, id(project))
        if engine_key not in self._engines:
            self._engines[engine_key] = Engine(settings, root, project)
        return self._engines[engine_key]

    def project(self, settings: Settings, path: str) -> Project:
        """The project of a file. It does not depend on which of its files was met first."""
        folder = os.path.dirname(path)  # noqa: PTH120
        roots = self._roots.get(folder)
        if roots is None:
            # what the file's own package adds, it finds itself
            roots = self._roots[folder] = shared_roots(path) or project_roots(path)
        key = (roots, settings.site_packages)
        if key not in self._projects:
            libraries = settings.site_packages or library_folders(Path(roots[0]))
            self._projects[key] = Project(roots, libraries)
        return self._projects[key]

    @property
    def sources(self) -> Sources:
        """How reports speak of what was read."""
        return Sources(self.name, self.short, self.lines, self.cell, self.file_line)

    def name(self, path: str) -> str:
        return self._names.get(path) or shown_path(path)

    def short(self, path: str) -> str:
        for project in self._projects.values():
            for folder in project.libraries:
                if path.startswith(folder.rstrip(os.sep) + os.sep):
                    return path[len(folder.rstrip(os.sep)) + 1 :]
        return self.name(path)

    def lines(self, path: str) -> tuple[str, ...]:
        """Lines without their endings; none where the file cannot be read."""
        if path not in self._lines:
            self._meet(path)
            text = self._texts.get(path)
            if text is None:
                try:
                    text = decode(read_regular(path, MAX_SOURCE_BYTES)).text
                except OSError:
                    text = ""
            self._lines[path] = tuple(split_lines(text))
        return self._lines[path]

    def cell(self, path: str, line: int) -> tuple[int, int] | None:
        """Cell and line in it, both from 1, of a notebook's line."""
        self._meet(path)
        notebook = self._notebooks.get(path)
        return None if notebook is None else notebook.cell_of(line)

    def file_line(self, path: str, line: int) -> int | None:
        """The line (from 0) of the `.ipynb` file that holds a line of a notebook's code."""
        cell = self.cell(path, line)
        if cell is None:
            return None
        if path not in self._file_lines:
            from torchwise_analysis.notebook_fixes import lines_in_file

            self._file_lines[path] = lines_in_file(self._data(path))
        rows = self._file_lines[path].get(cell[0], ())
        return rows[cell[1] - 1] if cell[1] <= len(rows) else None

    def _data(self, path: str) -> str:
        """The text of a notebook's file; empty for one that lies nowhere."""
        try:
            return read_regular(path, _limit(path)).decode("utf-8", "replace")
        except (OSError, ValueError):
            return ""

    def _meet(self, path: str) -> None:
        """A notebook that somebody else checked must be read here to tell its cells."""
        if path.endswith(".ipynb") and path not in self._texts:
            self.read_bytes(path)

    def _document(self, path: str, data: bytes) -> Reading:
        if len(data) > _limit(path):
            return _unreadable(path, f"larger than {_limit(path) >> 20} MiB")
        if path.endswith(".ipynb"):
            return self._notebook(path, data)
        decoded = decode(data)
        self._texts[path] = decoded.text
        if "\0" in decoded.text:
            return _unreadable(path, "not Python source: it holds null bytes")
        problems: tuple[Problem, ...] = ()
        if decoded.problem is not None:
            problems = (Problem(path, None, decoded.problem, ProblemKind.SYNTAX),)
        return Reading(SourceFile(path, decoded.text), problems)

    def _notebook(self, path: str, data: bytes) -> Reading:
        notebook = read_notebook(data)
        if notebook.problem is not None:
            return replace(_unreadable(path, notebook.problem), is_foreign=notebook.is_foreign)
        if len(notebook.text) > MAX_SOURCE_BYTES:
            return _unreadable(path, f"its code is larger than {MAX_SOURCE_BYTES >> 20} MiB")
        self._texts[path] = notebook.text
        self._notebooks[path] = notebook
        return Reading(SourceFile(path, notebook.text))


def _absolute(path: Path) -> str:
    # as Project names files: dots resolved, links kept
    return os.path.abspath(path)  # noqa: PTH100


def _limit(path: str) -> int:
    return MAX_NOTEBOOK_BYTES if path.endswith(".ipynb") else MAX_SOURCE_BYTES


def _unreadable(path: str, why: str) -> Reading:
    return Reading(None, (Problem(path, None, why, ProblemKind.UNREADABLE),))
