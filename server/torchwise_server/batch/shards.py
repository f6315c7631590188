"""One check divided over several jobs of a CI, and put together again.

A shard answers for a stretch of the files, with those calls between files known that it saw itself. Whoever
merges the shards has all answers, sees which calls crossed them, and asks again for the files where this
matters: the result is that of one run over everything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchwise_server.batch import codec
from torchwise_server.batch.run import callers_among
from torchwise_server.batch.work import Answer, Job, Key, Plan, content_of

FORMAT = "torchwise shard 2"
_HERE = "\x01"  # stands for the folder of the run, which may be another one where shards are merged
_LARGEST_BYTES = 1 << 30


class ShardError(Exception):
    """Shards that cannot be merged; the message says why."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which of how many shards; from 1."""

    number: int
    of: int

    @staticmethod
    def parsed(word: str) -> Share:
        """`2/8`. Raises ValueError for anything else."""
        number, of = (int(part) for part in word.split("/"))
        if not 1 <= number <= of:
            raise ValueError
        return Share(number, of)

    def stretch(self, jobs: Sequence[Job]) -> tuple[Job, ...]:
        """The files of this shard: neighbours, of about the same length together as those of any other."""
        sizes = [_size(job.path) for job in jobs]
        whole, before = sum(sizes) or 1, 0
        mine: list[Job] = []
        for job, size in zip(jobs, sizes, strict=True):
            if min(before * self.of // whole, self.of - 1) == self.number - 1:
                mine.append(job)
            before += size
        return tuple(mine)


@dataclass(frozen=True, slots=True)
class File:
    """An answer of a shard: for which text, and which calls from other files it takes into account."""

    path: str
    explicit: bool
    content: str
    called: tuple[Key, ...]
    answer: Answer


@dataclass(frozen=True, slots=True)
class Shard:
    """What one job of a CI hands on. settings: digest of the plan's settings and of the tool."""

    format: str
    share: tuple[int, int]
    settings: str
    files: tuple[File, ...]


def written(share: Share, plan: Plan, jobs: Sequence[Job], answers: Sequence[Answer]) -> str:
    """The text that a shard hands on."""
    callers = callers_among(jobs, answers)
    files = tuple(
        File(job.path, job.explicit, content_of(job.path), tuple(sorted(callers.into(job.path))), answer)
        for job, answer in zip(jobs, answers, strict=True)
    )
    shard = Shard(FORMAT, (share.number, share.of), _settings(plan), files)
    text = json.dumps(codec.encoded(shard), separators=(",", ":"))
    return text.replace(json.dumps(_folder())[:-1], json.dumps(_HERE)[:-1])


def read(paths: Sequence[Path]) -> list[Shard]:
    """The shards of these files, in their order.

    Raises:
        ShardError: one is no shard, or they are not all shards of one run.
    """
    shards = [_read(path) for path in paths]
    shares = sorted(shard.share for shard in shards)
    if len({shard.settings for shard in shards}) > 1:
        raise ShardError("the shards were made with different settings or different versions of torchwise")
    if shares != [(number + 1, shares[0][1]) for number in range(shares[0][1])]:
        raise ShardError(f"the shards are not those of one run: {_odd(shares)}")
    return sorted(shards, key=lambda shard: shard.share)


def _odd(shares: list[tuple[int, int]]) -> str:
    count = shares[0][1]
    missing = sorted({(number + 1, count) for number in range(count)} - set(shares))
    if missing and all(of == count for _, of in shares):
        return f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    return _listed(shares)


def _listed(shares: list[tuple[int, int]]) -> str:
    return ", ".join(f"{number}/{of}" for number, of in shares)


def fits(shard: Shard, plan: Plan) -> bool:
    """Was it made with this plan's settings by this torchwise?"""
    return shard.settings == _settings(plan)


def _read(path: Path) -> Shard:
    from torchwise_analysis.files import read_regular

    try:
        text = read_regular(path, _LARGEST_BYTES).decode("ascii")
        data: object = json.loads(text.replace(json.dumps(_HERE)[:-1], json.dumps(_folder())[:-1]))
        shard = codec.decoded(Shard, data)
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError, codec.NotOfThisKindError):
        raise ShardError(f"{path} is not the result of `torchwise check --shard`") from None
    if shard.format != FORMAT:
        raise ShardError(f"{path} was written by another version of torchwise")
    return shard


def _folder() -> str:
    return os.getcwd() + os.sep  # noqa: PTH109


def _settings(plan: Plan) -> str:
    from torchwise_server import __version__
    from torchwise_server.batch.store import digest

    settings = [repr(settings) for settings, _ in plan.settings]
    return digest(__version__, str(plan.is_complete), *sorted(settings))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0
