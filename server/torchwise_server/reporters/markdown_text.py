"""Text from a workspace inside Markdown: it must not become markup, links, mentions or HTML."""

from __future__ import annotations

import re

from torchwise_server.reporters.words import one_line, visible

# an underscore inside a word is none
_MARKUP = re.compile(r"([\\`*\[\]#|~<>@$]|(?<!\w)_|_(?!\w))")
_LIST = re.compile(r"^(\s*)([-+]|\d+[.)])(?=\s|$)")
_FENCE = re.compile(r"`+")


def escaped(text: str) -> str:
    """One line in which nothing is markup but what was spelled as code with backticks."""
    parts = one_line(text).split("`")
    if len(parts) % 2 == 0:  # a backtick without a partner
        return _plain("`".join(parts))
    return "".join(code(part) if index % 2 else _plain(part) for index, part in enumerate(parts))


def code(text: str) -> str:
    """Code within a line; a bar would end the cell of a table."""
    text = one_line(text).replace("|", "\\|")
    ticks = "`" * (1 + max((len(run) for run in _FENCE.findall(text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def block(text: str, language: str = "") -> str:
    """Lines of code with a fence that they do not hold."""
    fence = "`" * max(3, 1 + max((len(run) for run in _FENCE.findall(text)), default=0))
    return f"{fence}{language}\n{visible(text)}\n{fence}"


def _plain(text: str) -> str:
    return _LIST.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", text))
