"""How `check` goes through many files: with what it remembers, on how many processes, on whose machines."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise_analysis.settings import Settings, SettingsFinder
from torchwise_server.batch.processes import WorkersDieError, default_jobs
from torchwise_server.batch.shards import File, Share
from torchwise_server.batch.work import Answer, Job, Plan
from torchwise_server.cli import Exit, UsageError, reporting
from torchwise_server.cli.console import Progress
from torchwise_server.cli.files import Inputs
from torchwise_server.cli.options import shown_path
from torchwise_server.cli.output import complain, say
from torchwise_server.cli.selecting import settings_for

if TYPE_CHECKING:
    from concurrent.futures import Executor


def add_batching(parser: argparse.ArgumentParser, shard: bool = True) -> None:
    """`--jobs`, `--no-cache`, `--cache-dir`, `--scheduler`, `--full` and, if wanted, `--shard`."""
    group = parser.add_argument_group("many files")
    group.add_argument(
        "-j", "--jobs", type=_count, metavar="N", help="processes to use at most (default: one per processor)"
    )
    group.add_argument("--no-cache", action="store_true", help="neither use nor keep results of earlier runs")
    add_cache_folder(group.add_argument)
    group.add_argument(
        "--scheduler", metavar="ADDRESS", help="let the workers of this Dask scheduler check the files"
    )
    if shard:
        group.add_argument(
            "--shard",
            type=_share,
            metavar="I/N",
            help="check the I-th of N parts of the files and write what `torchwise merge` needs",
        )
    group.add_argument(
        "--full", action="store_true", help="analyse files too that by their text can hold nothing"
    )


def add_cache_folder(add: Callable[..., object]) -> None:
    """`--cache-dir`, by the `add_argument` of a parser or of a group."""
    add(
        "--cache-dir",
        metavar="FOLDER",
        help="where results are kept (default: TORCHWISE_CACHE_DIR, else the user's cache folder)",
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks to be checked."""

    jobs: tuple[Job, ...]
    plan: Plan

    def settings_of(self, job: Job) -> Settings:
        return self.plan.settings[job.settings][0]


def planned(inputs: Inputs, options: argparse.Namespace, finder: SettingsFinder) -> Asked:
    """The jobs for some files.

    Raises:
        UsageError: the settings of one of them have mistakes.
    """
    from torchwise_server.batch.run import tool_identity

    settings: dict[tuple[Settings, str], int] = {}
    by_folder: dict[str, int] = {}
    jobs: list[Job] = []
    for file in inputs.files:
        path = os.path.abspath(file.path)  # noqa: PTH100 - as Project names files: links kept
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in by_folder:
            loaded = settings_for(path, options, finder)
            by_folder[folder] = settings.setdefault((loaded.settings, str(loaded.root)), len(settings))
        jobs.append(Job(path, file.explicit, by_folder[folder]))
    cache = None if options.no_cache else str(cache_folder(options))
    tool = tool_identity() if cache else ""
    return Asked(tuple(jobs), Plan(tuple(settings), cache, tool, options.full))


def cache_folder(options: argparse.Namespace) -> Path:
    """Where results are kept."""
    from torchwise_analysis.cache_folder import default_folder

    return Path(options.cache_dir).absolute() if options.cache_dir else default_folder()


def hand_on(asked: Asked, options: argparse.Namespace) -> int:
    """Check one shard and write what `merge` needs; the exit status says only whether that was possible."""
    from torchwise_server.batch import shards

    share: Share = options.shard
    mine = Asked(share.stretch(asked.jobs), asked.plan)
    text = shards.written(share, asked.plan, mine.jobs, check(mine, options, is_shard=True))
    if options.output_file is None:
        say(text)
    else:
        reporting.write_text(Path(options.output_file), f"{text}\n", "--output-file")
        complain(f"shard {share.number} of {share.of}: {len(mine.jobs)} files, in {options.output_file}")
    return Exit.OK


def check(
    asked: Asked, options: argparse.Namespace, known: Sequence[File] = (), *, is_shard: bool = False
) -> list[Answer]:
    """The answers for the jobs; `known`: those that shards have for them, in the same order. is_shard: they
    are to be handed on.

    Raises:
        UsageError: the cluster cannot be reached, or processes keep dying.
    """
    from torchwise_server.batch.run import check_files

    jobs = asked.jobs
    processes = default_jobs() if options.jobs is None else options.jobs
    try:
        with Progress(len(jobs)) as progress:
            return check_files(
                jobs,
                asked.plan,
                processes,
                _executor(options),
                lambda done: progress.advance(done, shown_path(jobs[done].path)),
                known,
                is_shard=is_shard,
            )
    except WorkersDieError as error:
        raise UsageError(str(error)) from None


def _executor(options: argparse.Namespace) -> Executor | None:
    if options.scheduler is None:
        return None
    from torchwise_server.batch.executors import NoSchedulerError, dask_executor

    try:
        return dask_executor(options.scheduler)
    except NoSchedulerError as error:
        raise UsageError(str(error)) from None


def _share(word: str) -> Share:
    try:
        return Share.parsed(word)
    except ValueError:
        why = f"{word!r} is no part; of four, they are 1/4, 2/4, 3/4 and 4/4"
        raise argparse.ArgumentTypeError(why) from None


def _count(word: str) -> int:
    number = int(word)
    if number < 1:
        raise ValueError
    return number
