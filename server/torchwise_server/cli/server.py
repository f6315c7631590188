"""`torchwise server`: the language server on standard input and output."""

from __future__ import annotations


def run(words: list[str]) -> int:
    """Serve until the editor says goodbye."""
    from torchwise_server.lsp.main import main

    return main(words)
