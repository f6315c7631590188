"""`torchwise server`: the language server on standard input and output."""

from __future__ import annotations

from torchwise_server.cli.options import Parser
from torchwise_server.lsp.main import add_options, serve

_DESCRIPTION = """\
Start the language server; editors do this. It speaks the Language Server Protocol on standard input and
output; what it logs goes to standard error."""

_EPILOG = """\
examples:
  torchwise server                                    what an editor starts
  torchwise server --log-level debug 2> server.log    with everything it does in a file
  torchwise server --tcp 2087                         for a client that connects to a port

Settings for Neovim, Helix, Emacs and VS Code are in docs/editors.md."""


def run(words: list[str]) -> int:
    """Serve until the editor says goodbye."""
    return serve(parser().parse(words))


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("server", _DESCRIPTION, _EPILOG)
    add_options(parser)
    return parser
