"""`torchwise server`: the language server on standard input and output."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Sequence
from typing import BinaryIO, cast

_LEVELS = ("debug", "info", "warning", "error")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one client until it leaves."""
    parser = argparse.ArgumentParser(prog="torchwise server")
    add_options(parser)
    return serve(parser.parse_args(arguments))


def serve(options: argparse.Namespace) -> int:
    """Serve one client until it leaves, as `add_options` describes."""
    _log_to_stderr(options.log_level)
    gc.disable()  # a tenth of the start would go into looking for garbage; `PauseCollector` does from then on
    from torchwise_server.lsp.backend import EngineBackend
    from torchwise_server.lsp.framing import Frames
    from torchwise_server.lsp.server import create_server

    server = create_server(EngineBackend())
    server.collector.start()
    # the message loop must get the interpreter back soon after the analysis thread took it
    sys.setswitchinterval(0.002)
    if options.tcp is not None:
        server.start_tcp("127.0.0.1", options.tcp)
        return 0
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # a stray print would break the protocol: it goes to the log instead
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # pygls asks its input for nothing but lines and bodies
    server.start_io(cast("BinaryIO", Frames(sys.stdin.buffer)), channel)
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--stdio`, `--tcp`, `--log-level`."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--stdio", action="store_true", help="the default; accepted because many clients add it")
    how.add_argument(
        "--tcp", type=int, metavar="PORT", help="listen on this local port instead, for debugging"
    )
    parser.add_argument("--log-level", choices=_LEVELS, default="warning", help="what goes to standard error")
    # vscode-languageclient adds it; the end of standard input tells us the same
    parser.add_argument("--clientProcessId", help=argparse.SUPPRESS)


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if level != "debug":
        # pygls formats every message it sends at info
        logging.getLogger("pygls").setLevel(logging.ERROR)
