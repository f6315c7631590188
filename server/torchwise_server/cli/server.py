"""`torchwise server`: the language server on standard input and output."""

from __future__ import annotations

from torchwise_server.cli.options import Parser

_DESCRIPTION = """\
Start the language server on standard input and output. Editors run this; there is nothing to type here.
`torchwise server --help` lists what can be set."""


def run(words: list[str]) -> int:
    """Serve until the editor says goodbye."""
    from torchwise_server.lsp import main

    return main(words)
