"""Which lines changed since a revision, asked of git without letting it run anything of the repository.

Only objects are read: hooks, filters, external diff programs and file system monitors of a repository's own
configuration have no part in that. The lines themselves are compared here, with the files as they are now.
"""

from __future__ import annotations

import difflib
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchwise_analysis.source.decode import decode
from torchwise_analysis.source.lines import split_lines
from torchwise_server.cli import UsageError

_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never")
_PATIENCE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Changes:
    """Lines (from 0) of files that are not as they were; None: the file is new.

    The lines on both sides of removed ones count as changed.
    """

    by_path: dict[str, frozenset[int] | None]

    def touch(self, path: str, first: int, last: int) -> bool:
        """Whether one of these lines (both included) of the file at the absolute `path` changed."""
        if path not in self.by_path:
            return False
        lines = self.by_path[path]
        return lines is None or any(line in lines for line in range(first, last + 1))


def changes_since(base: str, texts: dict[str, str], folder: Path) -> Changes:
    """What changed in `texts` (absolute path -> text now) since `base` and HEAD went separate ways.

    Raises:
        UsageError: no git, no repository, or no such revision.
    """
    root = Path(_git(folder, "rev-parse", "--show-toplevel", why="--diff needs a git repository"))
    revision = f"{base}^{{commit}}"
    commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", revision, why=_unknown(base))
    together = _try(root, "merge-base", commit, "HEAD")
    before = together or commit
    old_names = _renamed(root, before)
    by_path: dict[str, frozenset[int] | None] = {}
    for path, text in texts.items():
        relative = _relative(path, root)
        old = None if relative is None else _blob(root, before, old_names.get(relative, relative))
        if old is None:
            by_path[path] = None
        elif path.endswith(".ipynb"):
            from torchwise_analysis.source.notebooks import read_notebook

            by_path[path] = changed_lines(read_notebook(old).text, text)
        else:
            by_path[path] = changed_lines(decode(old).text, text)
    return Changes(by_path)


def changed_lines(before: str, after: str) -> frozenset[int]:
    """Lines (from 0) of `after` that `before` has not, or that stand beside something removed."""
    old, new = split_lines(before), split_lines(after)
    changed: set[int] = set()
    for kind, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "delete":
            changed.update((start - 1, start))
        elif kind != "equal":
            changed.update(range(start, end))
    return frozenset(line for line in changed if 0 <= line < len(new))


def _relative(path: str, root: Path) -> str | None:
    for one in (path, os.path.realpath(path)):
        try:
            return Path(one).relative_to(root).as_posix()
        except ValueError:
            continue
    return None


def _renamed(root: Path, before: str) -> dict[str, str]:
    """New name -> old name of what was moved since, in commits or by `git mv`."""
    listed = _try(root, "diff-index", "--cached", "-z", "-M", "--name-status", before)
    fields = iter((listed or "").split("\0"))
    found: dict[str, str] = {}
    for status in fields:
        if status.startswith("R"):
            old = next(fields, "")
            found[next(fields, "")] = old
        else:
            next(fields, "")
    return found


def _blob(root: Path, commit: str, name: str) -> bytes | None:
    done = _run(root, ("cat-file", "blob", f"{commit}:{name}"))
    return done.stdout if done is not None and done.returncode == 0 else None


def _git(folder: Path, *words: str, why: str) -> str:
    done = _run(folder, words)
    if done is None:
        raise UsageError("--diff needs git, and there is none")
    if done.returncode:
        raise UsageError(why)
    return os.fsdecode(done.stdout).rstrip("\n")


def _try(folder: Path, *words: str) -> str | None:
    done = _run(folder, words)
    return None if done is None or done.returncode else os.fsdecode(done.stdout).rstrip("\n")


def _run(folder: Path, words: Iterable[str]) -> subprocess.CompletedProcess[bytes] | None:
    environment = {
        **os.environ,
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    try:
        return subprocess.run(  # noqa: S603 - a fixed program, read-only commands, no shell
            ["git", *_SAFE, *words],  # noqa: S607 - git is where the user has it
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--diff: git did not answer ({error})") from None


def _unknown(base: str) -> str:
    return (
        f"--diff {base}: git knows no such revision here; "
        "a shallow clone may lack it (actions/checkout: fetch-depth: 0)"
    )
