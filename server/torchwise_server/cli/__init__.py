"""The command line. Each command lives in its own module, imported only when it is called.

An argument parser of its own for each command, rather than sub-parsers, because options may stand before
or after files (`parse_intermixed_args` does not work with sub-parsers), and because `torchwise --version`
should not pay for any of them.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import cast

from torchwise_server import __version__
from torchwise_server.cli.output import complain, say

COMMANDS = {
    "check": "find training bugs that never crash",
    "fix": "apply the fixes of what check finds; safe ones unless told otherwise",
    "merge": "put the shards of a check together to one report",
    "clean": "remove the remembered results of earlier checks",
    "estimate": "tell the peak VRAM of each training loop",
    "explain": "say what a rule looks for, and why",
    "rules": "list all rules",
    "new-rule": "write a package with a rule of your own",
    "gpus": "list the GPUs that estimates know",
    "profile": "tell the peak VRAM of a real model's step, run on fake tensors (needs PyTorch)",
    "init": "write the configuration and CI files of a project, after showing them",
    "completion": "print a completion script for bash, zsh or fish",
    "server": "start the language server (editors do this)",
}


_DISK_TROUBLE = (errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC))


class Exit(IntEnum):
    """Exit status of every command."""

    OK = 0
    FINDINGS = 1
    FAILED = 2  # bad usage, nothing to read, an internal error that ended the run
    UNREAD = 3  # nothing failing, but some files could not be read, parsed, fully analysed or answered
    INTERRUPTED = 130  # what a shell expects after Ctrl-C
    PIPE = 141  # the reader of our output went away


class UsageError(Exception):
    """The command line asks for something impossible; the message says what would be possible."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Never raises for what a user can cause."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_what_is_closed()
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except UsageError as error:
        complain(str(error))
        return Exit.FAILED
    except KeyboardInterrupt:
        complain("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _give_up_output()
        return Exit.PIPE
    except SystemExit as exit_:  # argparse: 0 after --help, 2 after bad usage
        return int(exit_.code) if isinstance(exit_.code, int) else Exit.FAILED
    except Exception as error:  # the outermost border: a clear message instead of a traceback
        if _hides_an_interruption(error):
            complain("interrupted")
            return Exit.INTERRUPTED
        if isinstance(error, OSError) and error.errno in _DISK_TROUBLE:
            _give_up_output()
            complain(f"not everything could be written: {error.strerror}")
            return Exit.FAILED
        return _internal_error(error)


def _dispatch(words: list[str]) -> int:
    if len(words) == 2 and words[0] == "help" and words[1] in COMMANDS:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        say(_help())
        return Exit.OK if words else Exit.FAILED
    if words[0] in ("-V", "--version"):
        say(f"torchwise {__version__}")
        return Exit.OK
    if words[0] not in COMMANDS:
        raise UsageError(_unknown_command(words[0]))
    module = importlib.import_module(f"torchwise_server.cli.{words[0].replace('-', '_')}")
    run = cast("Callable[[list[str]], int]", module.run)
    return run(words[1:])


def _help() -> str:
    commands = "\n".join(f"  {name:<11} {what}" for name, what in COMMANDS.items())
    return f"""usage: torchwise COMMAND [options] ...

Reads PyTorch training code from source alone: nothing is imported or run, no GPU and no torch needed.

commands:
{commands}

examples:
  torchwise check                        every Python file and notebook below this folder
  torchwise fix --diff                   what safe fixes would change
  torchwise estimate train.py --gpu rtx-4090 --gpu a100-80gb
  torchwise explain retained-graph

exit status:
  0 nothing that fails · 1 findings that fail · 2 could not run · 3 some files not read or not answered

`torchwise help COMMAND` tells more. --version prints the version ({__version__})."""


def _unknown_command(word: str) -> str:
    if os.path.exists(word):  # noqa: PTH110 - pathlib would double the start-up time
        return f"{word!r} is not a command; to check it: torchwise check {word}"
    import difflib

    close = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"commands are {', '.join(COMMANDS)}"
    return f"unknown command {word!r}; {hint}"


def _hides_an_interruption(error: BaseException) -> bool:
    """Whether Ctrl-C came first and a clean-up failed then: argparse's undoes what it has not yet done."""
    before: BaseException | None = error
    while before is not None:
        if isinstance(before, KeyboardInterrupt):
            return True
        before = before.__context__
    return False


def _open_what_is_closed() -> None:
    """A shell's `>&-` leaves no stream at all: what goes there is for nobody, what comes is empty."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - as above; for good


def _give_up_output() -> None:
    """The interpreter flushes stdout once more at its end: give it somewhere to flush to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _internal_error(error: Exception) -> int:
    complain(
        f"internal error: {type(error).__name__}: {error}\n"
        "This is a fault of torchwise, not of your code. TORCHWISE_TRACEBACK=1 shows where it happened."
    )
    if os.environ.get("TORCHWISE_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    return Exit.FAILED
