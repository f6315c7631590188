"""`torchwise merge`: one report from the shards of a check."""

from __future__ import annotations

from pathlib import Path

from torchwise_analysis.settings import SettingsFinder
from torchwise_server.cli import UsageError, batching, check
from torchwise_server.cli.files import Input, Inputs
from torchwise_server.cli.options import Parser, add_verbose
from torchwise_server.cli.selecting import require_known_selection

_DESCRIPTION = """\
Put the results of `torchwise check --shard 1/n` ... `--shard n/n` together to the report of one run over all
files. The same files must lie here as did there: those whose functions are called from files of another shard
are looked at again, with these calls known. Give the options that the shards were made with."""

_EPILOG = """\
examples:
  torchwise check src --shard 1/4 --output-file shard-1.json        in each job of a matrix
  torchwise merge shard-*.json --format sarif --output-file torchwise.sarif

exit status: that of `torchwise check`"""


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("merge", _DESCRIPTION, _EPILOG)
    parser.add_argument("shards", nargs="+", metavar="FILE", help="what the shards wrote")
    check.add_report_options(parser)
    batching.add_batching(parser, shard=False)
    add_verbose(parser)
    return parser


def run(words: list[str]) -> int:
    """Merge, report, and return the exit status of the whole check."""
    options = parser().parse(words)
    require_known_selection(options)
    from torchwise_server.batch import shards
    from torchwise_server.batch.work import content_of
    from torchwise_server.cli.reading import Reader

    try:
        found = shards.read([Path(name) for name in options.shards])
    except shards.ShardError as error:
        raise UsageError(str(error)) from None
    files = [file for shard in found for file in shard.files]
    inputs = Inputs(tuple(Input(Path(file.path), file.explicit) for file in files), (), (), ())
    asked = batching.planned(inputs, options, SettingsFinder())
    if not shards.fits(found[0], asked.plan):
        raise UsageError("the shards were made with other settings or by another version of torchwise")
    changed = [file.path for file in files if file.content != content_of(file.path)]
    if changed:
        raise UsageError(f"{changed[0]} is not as the shard saw it ({len(changed)} files differ)")
    return check.finish(asked, options, inputs, Reader(), known=files)
