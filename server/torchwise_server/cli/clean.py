"""`torchwise clean`: remove the remembered results of earlier runs."""

from __future__ import annotations

from torchwise_server.batch.store import Store
from torchwise_server.cli import Exit
from torchwise_server.cli.batching import add_cache_folder, cache_folder
from torchwise_server.cli.options import Parser
from torchwise_server.cli.output import say

_DESCRIPTION = """\
Remove the results that `torchwise check` keeps of earlier runs. They are used only where nothing that they
follow from has changed, and the oldest go by themselves; this is for those who want the space back."""

_EPILOG = """\
examples:
  torchwise clean
  torchwise clean --cache-dir .ci-cache"""


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("clean", _DESCRIPTION, _EPILOG)
    add_cache_folder(parser.add_argument)
    return parser


def run(words: list[str]) -> int:
    """Empty the cache and say what was in it."""
    folder = cache_folder(parser().parse(words))
    cleaned = Store(folder).clean()
    if cleaned.entries == 0:
        say(f"no results in {folder}")
    else:
        say(f"removed {cleaned.entries} results ({cleaned.bytes / (1 << 20):.1f} MiB) from {folder}")
    return Exit.OK
