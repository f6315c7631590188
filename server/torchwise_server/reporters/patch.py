"""Changes of a file as a patch that `patch -p1` and `git apply` accept, in the bytes of the file."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from torchwise_server.reporters.words import visible

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def lines(name: str, before: bytes, after: bytes) -> list[bytes]:
    """The lines of the patch, with their endings. `name` is relative to where the patch is applied."""
    shown = PurePath(name).as_posix().encode("utf-8", "surrogateescape")
    old, new = _split(before), _split(after)
    found = difflib.diff_bytes(
        difflib.unified_diff, old, new, _name(b"a/", shown), _name(b"b/", shown), b"", b"", 3, b"\n"
    )
    return [part for line in found for part in _whole(line)]


def show(patch: Sequence[bytes], encoding: str, console: Console) -> None:
    """The patch on a terminal: coloured, with nothing in it that acts on the terminal."""
    from rich.text import Text

    for line in patch:
        text = visible(line.decode(encoding, "replace").rstrip("\r\n"))
        is_header = text.startswith(("--- ", "+++ "))
        style = "bold" if is_header else _STYLES.get(text[:1], "")
        console.print(Text(text, style=style), no_wrap=True, overflow="ignore", crop=False)


def _name(side: bytes, name: bytes) -> bytes:
    if name.startswith((b"/", b"<")):
        return name
    # as git and patch have it: a tab ends a name that holds a blank
    return side + name + (b"\t" if b" " in name else b"")


def _split(data: bytes) -> list[bytes]:
    """Lines as patch knows them: ended by a line feed and nothing else."""
    parts = data.split(b"\n")
    found = [part + b"\n" for part in parts[:-1]]
    return [*found, parts[-1]] if parts[-1] else found


def _whole(line: bytes) -> tuple[bytes, ...]:
    return (line,) if line.endswith(b"\n") else (line + b"\n", b"\\ No newline at end of file\n")
