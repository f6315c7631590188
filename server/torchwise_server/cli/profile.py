"""`torchwise profile module:factory`: the peak of a real model's step, run on fake tensors.

The only command that imports and runs the user's code, because that is what it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchwise_server.cli import Exit, UsageError
from torchwise_server.cli.given import require_known_gpus
from torchwise_server.cli.options import Parser
from torchwise_server.cli.output import say

if TYPE_CHECKING:
    from torchwise_memory.live import LiveReport, VRAMGuard

_DESCRIPTION = """\
Run one training step of real objects on fake tensors and tell its peak memory.

Unlike every other command this imports and runs your code, in this environment, which needs PyTorch:
pip install 'torchwise[live]'. Nothing is allocated and no kernel starts.
"""
_EPILOG = """\
FACTORY is called without arguments and returns (model, optimizer, batch), with None for no optimizer; or a
torchwise_memory.live.VRAMGuard where more has to be said (the loss, autocast, accumulation).

examples:
  torchwise profile train:make --gpu a100-80gb
  torchwise profile experiments.gpt:guard --format json

exit status: 0 the run fits or may fit; 1 it cannot fit (with --strict: probably cannot); 2 could not run;
3 the step could not be run on fake tensors, so that its peak is unknown
"""


def run(words: list[str]) -> int:
    """Profile one factory; returns the exit status."""
    options = parser().parse(words)
    guard = _guard(options)
    report = guard.check()
    say(json.dumps(_as_json(report), indent=1) if options.format == "json" else report.text())
    return _status(report, options.strict)


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("profile", _DESCRIPTION, _EPILOG)
    parser.add_argument("factory", metavar="MODULE:FACTORY", help="a function of an importable module")
    parser.add_argument(
        "--gpu", metavar="NAME", help="the card to judge by (default: the CUDA device of this machine)"
    )
    parser.add_argument("--strict", action="store_true", help="fail also where it probably does not fit")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    return parser


def _guard(options: argparse.Namespace) -> VRAMGuard:
    try:
        from torchwise_memory.live import VRAMGuard
    except ImportError as error:
        raise UsageError(f"profile needs PyTorch: pip install 'torchwise[live]' ({error})") from error
    from torchwise_memory.hardware import UnknownGpuError, find

    require_known_gpus([options.gpu] if options.gpu else [])
    made = _made(options.factory)
    try:
        if isinstance(made, VRAMGuard):
            if options.gpu:
                made.card = find(options.gpu)
            return made
        model, optimizer, batch = made
        return VRAMGuard(model, optimizer, batch=batch, gpu=options.gpu)
    except UnknownGpuError as error:
        raise UsageError(str(error)) from error
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{options.factory} must return (model, optimizer, batch) or a VRAMGuard: {error}"
        ) from error


def _made(name: str) -> Any:
    """What the factory returns. Whatever the user's code raises is told in one line."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise UsageError(f"{name!r} is not MODULE:FACTORY, for example train:make")
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
        return factory()
    except Exception as error:
        raise UsageError(f"{name} failed: {type(error).__name__}: {error}") from error


def _status(report: LiveReport, strict: bool) -> int:
    if report.peak is None:
        return Exit.UNREAD
    failing = {"oom", "probably-oom"} if strict else {"oom"}
    return Exit.FINDINGS if report.card and report.card.verdict.value in failing else Exit.OK


def _as_json(report: LiveReport) -> dict[str, Any]:
    peak = report.peak
    intervals = (
        {} if peak is None else {name: getattr(peak, name) for name in ("allocated", "reserved", "device")}
    )
    return {
        "version": 1,
        "peak": {
            name: each and {"low": each.low, "point": each.point, "high": each.high}
            for name, each in intervals.items()
        }
        or None,
        "phase": report.phase.value if report.phase else None,
        "breakdown": report.by_purpose,
        "exact": {
            name: getattr(report.exact, name) for name in ("parameters", "buffers", "gradients", "optimizer")
        },
        "gpu": {"name": report.card.name, "verdict": report.card.verdict.value} if report.card else None,
        "assumptions": list(report.assumptions),
        "why": report.why,
    }
