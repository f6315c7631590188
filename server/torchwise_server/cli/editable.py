"""A file that can be given back: its bytes, its text, and the way from a new text to new bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise_analysis.files import MAX_NOTEBOOK_BYTES, MAX_SOURCE_BYTES
from torchwise_analysis.findings import Finding, Fix
from torchwise_analysis.fixes import SourceFile, apply_plainly
from torchwise_analysis.notebook_fixes import NotebookFixer
from torchwise_analysis.source.decode import decode
from torchwise_server.cli.writing import Original

if TYPE_CHECKING:
    from torchwise_server.cli.reading import Reader


class NotEditableError(Exception):
    """The file is not fixed; the message says why. `is_foreign`: it holds no Python."""

    def __init__(self, message: str, *, is_foreign: bool = False) -> None:
        super().__init__(message)
        self.is_foreign = is_foreign


@dataclass(frozen=True, slots=True)
class Editable:
    """One file to fix. `path` is how the analysis names it."""

    path: str
    original: Original
    document: SourceFile
    encoding: str
    notebook: NotebookFixer | None = None

    @classmethod
    def read(cls, path: Path, folders: Sequence[str], reader: Reader) -> Editable:
        """Read a file below one of `folders`, which hold no link.

        Raises:
            NotEditableError: it lies elsewhere, is unreadable, or its text cannot be given back as it was.
        """
        limit = MAX_NOTEBOOK_BYTES if path.suffix == ".ipynb" else MAX_SOURCE_BYTES
        try:
            original = Original.read(path, limit + 1)
        except (OSError, ValueError) as error:
            raise NotEditableError(getattr(error, "strerror", None) or str(error)) from error
        if not any(_is_below(str(original.path), folder) for folder in folders):
            raise NotEditableError(f"a link that leads elsewhere; to fix it, name {original.path}")
        return cls._of(os.path.abspath(path), original, reader)  # noqa: PTH100 - links kept

    @classmethod
    def from_bytes(cls, name: str, data: bytes, reader: Reader) -> Editable:
        """The same for bytes that lie nowhere."""
        path = os.path.abspath(name)  # noqa: PTH100
        return cls._of(path, Original(Path(path), data, 0, 0), reader, name)

    @classmethod
    def _of(cls, path: str, original: Original, reader: Reader, name: str | None = None) -> Editable:
        reading = reader.take(path, original.data, name)
        document = reading.document
        if document is None:
            raise NotEditableError(reading.problems[0].message, is_foreign=reading.is_foreign)
        if path.endswith(".ipynb"):
            return cls._notebook(path, original, document)
        decoded = decode(original.data)
        if decoded.problem is not None:
            raise NotEditableError(decoded.problem)
        if decoded.text.encode(decoded.encoding) != original.data:
            raise NotEditableError(f"its encoding {decoded.encoding} cannot be written back byte by byte")
        return cls(path, original, document, decoded.encoding)

    @classmethod
    def _notebook(cls, path: str, original: Original, document: SourceFile) -> Editable:
        try:
            text = original.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotEditableError(f"not valid utf-8: {error}") from error
        return cls(path, original, document, "utf-8", NotebookFixer(text))

    def apply(self, file: SourceFile, finding: Finding, fix: Fix) -> str | None:
        """The text after a fix; None where it cannot be done, or not be written in the file's encoding."""
        if self.notebook is not None:
            return self.notebook.apply(file, finding, fix)
        text = apply_plainly(file, finding, fix)
        try:
            return text if text is None or decode(text.encode(self.encoding)).text == text else None
        except UnicodeEncodeError:
            return None

    def encoded(self, text: str) -> bytes:
        """The bytes of the file with another text."""
        return (text if self.notebook is None else self.notebook.data(text)).encode(self.encoding)


def allowed_folders(arguments: Sequence[str]) -> tuple[str, ...]:
    """Where files may be written: below what was named (patterns: below the part without a pattern)."""
    folders: list[str] = []
    for argument in arguments:
        path = argument
        while path and not os.path.isdir(path):  # noqa: PTH112 - a name may be too long for pathlib
            path = os.path.dirname(path)  # noqa: PTH120
        folders.append(os.path.realpath(path or "."))
    return tuple(folders)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)
