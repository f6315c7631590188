"""Which models of the installed libraries can be followed from their text: built, forward, backward.

    python benchmarks/coverage.py --site-packages DIR [--only PATTERN] [--write docs/coverage.md]

Writes a small training script for every model found (`library_models.py`), interprets it in a process of its
own under a time limit, and prints a table of what succeeded, with the reasons of what did not. Nothing of the
libraries is imported or run. `--truth FILE` compares with what the libraries themselves gave under PyTorch
(JSON: case -> number of parameters, or the error that the library's own run ends with).
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import multiprocessing
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from library_models import Case, cases  # beside this file

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.errors import Raised, Stopped
from torchwise_analysis.interp.concrete.interpreter import Interpreter
from torchwise_analysis.interp.concrete.values import ModuleValue
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text
from torchwise_memory.allocator import Allocator
from torchwise_memory.report import Origin
from torchwise_memory.runtime.errors import RuntimeStop
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Result:
    """What one script came to. stage: what was reached last; parameters: counted in the built model."""

    group: str
    name: str
    stage: str = "nothing"
    parameters: int | None = None
    stated: int | None = None
    gradients: int | None = None
    reason: str = ""
    place: str = ""
    assumptions: tuple[str, ...] = ()
    seconds: float = 0.0


STAGES = ("nothing", "built", "forward", "backward")


def main() -> None:
    options = _options()
    wanted = [case for case in cases(options.site_packages) if _is_wanted(case, options.only)]
    earlier = _earlier(options.resume)
    fresh = _run_all([case for case in wanted if _key(case) not in earlier], options)
    results = [earlier.get(_key(case)) or next(fresh) for case in wanted]
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1))
    truth = json.loads(options.truth.read_text()) if options.truth.exists() else {}
    page = report(results, truth, _versions(options.site_packages))
    print(page)
    if options.write:
        options.write.write_text(page, encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--site-packages", type=Path, required=True)
    parser.add_argument("--more", type=Path, action="append", default=[], help="further folders to read from")
    parser.add_argument("--only", action="append", default=[], help="glob on `group/name`")
    parser.add_argument("--seconds", type=float, default=30, help="time limit of one model")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--truth", type=Path, default=Path(__file__).parent / "data/library_parameters.json")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument(
        "--resume", type=Path, action="append", default=[], help="take what succeeded from this JSON"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every model")
    return parser.parse_args()


def _key(case: Case | Result) -> str:
    return f"{case.group}/{case.name}"


def _earlier(paths: list[Path]) -> dict[str, Result]:
    """Results of earlier runs that went through, by key."""
    rows = [row for path in paths for row in json.loads(path.read_text())]
    results = [Result(**{**row, "assumptions": tuple(row["assumptions"])}) for row in rows]
    return {_key(result): result for result in results if result.stage == STAGES[-1]}


def _is_wanted(case: Case, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(_key(case), p) for p in patterns)


# --------------------------------------------------------------------------- running


def _run_all(wanted: list[Case], options: argparse.Namespace) -> Iterator[Result]:
    """Results in the order of the cases, `processes` of them under way at a time."""
    folders = [str(options.site_packages), *(str(f) for f in options.more)]
    running: list[tuple[Case, BaseProcess, Connection, float]] = []
    waiting = list(wanted)
    done: dict[int, Result] = {}
    shown = 0
    while waiting or running:
        while waiting and len(running) < options.processes:
            case = waiting.pop(0)
            ours, theirs = _FORK.Pipe(duplex=False)
            started = _FORK.Process(target=_work, args=(case, folders, theirs))
            started.start()
            theirs.close()
            running.append((case, started, ours, time.monotonic()))
        for entry in list(running):
            case, process, ours, start = entry
            result = _received(case, process, ours, start, options.seconds)
            if result is not None:
                running.remove(entry)
                done[id(case)] = result
        while shown < len(wanted) and id(wanted[shown]) in done:
            result = done[id(wanted[shown])]
            if options.verbose:
                print(_line(result), flush=True)
            yield result
            shown += 1


def _received(
    case: Case, process: BaseProcess, ours: Connection, start: float, limit: float
) -> Result | None:
    """The result of a process that has one, ended, or ran too long; None while it works."""
    left = limit - (time.monotonic() - start)
    failed = Result(case.group, case.name, stated=case.stated, seconds=time.monotonic() - start)
    if ours.poll(min(max(left, 0), 0.05)):
        try:
            result: Result = ours.recv()
        except EOFError:
            result = replace(failed, reason="the process ended without a result")
        process.join()
        return result
    if left > 0:
        return None
    process.kill()
    process.join()
    return replace(failed, reason="time limit")


def _work(case: Case, folders: list[str], answer: Connection) -> None:
    gc.disable()
    sys.setrecursionlimit(12_000)
    threading.stack_size(256 << 20)
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(measure(case, folders)))
    thread.start()
    thread.join()
    answer.send(found[0] if found else Result(case.group, case.name, reason="the thread died"))
    answer.close()


def measure(case: Case, folders: list[str]) -> Result:
    """Interpret the script of one case."""
    it = Interpreter(Project([], folders), World(Allocator(), 80))
    start = time.monotonic()
    reason, where = "", None
    try:
        it.library.imports.run_main(lower_text("script.py", case.script))
    except Raised as raised:
        reason = f"{raised.value.cls.name}: {text.text_of(it, raised.value)}"
        where = raised.origin
    except Stopped as stopped:
        reason, where = stopped.message, stopped.origin
    except RuntimeStop as stopped:
        reason, where = str(stopped), it.world.origin
    except Exception as error:  # a fault of the interpreter is a result, too
        reason, where = f"fault: {type(error).__name__}: {error}", it.world.origin
    seconds = time.monotonic() - start
    main = it.library.imports.loaded.get("__main__")
    names = main.names if isinstance(main, ModuleValue) else {}
    parameters, gradients, loss = names.get("parameters"), names.get("gradients"), names.get("loss")
    stage = 0
    if isinstance(parameters, int):
        stage = 1
        if isinstance(loss, Tensor) and loss.requires_grad:
            stage = 2
            if isinstance(gradients, int) and gradients > 0:
                stage = 3
    if stage < 3 and not reason:
        reason = f"not known: {_first_unknown(names)}"
    return Result(
        case.group,
        case.name,
        STAGES[stage],
        parameters if isinstance(parameters, int) else None,
        case.stated,
        gradients if isinstance(gradients, int) else None,
        reason,
        "" if where is None else _place(where, folders),
        tuple(dict.fromkeys([*it.assumptions, *it.world.assumptions])),
        seconds,
    )


def _first_unknown(names: dict[str, object]) -> str:
    for name in ("model", "parameters", "output", "loss", "gradients"):
        why = getattr(names.get(name), "why", None)
        if why:
            return str(why)
    return "the loss"


def _place(where: Origin, folders: list[str]) -> str:
    path = where.path
    for folder in folders:
        path = path.removeprefix(folder).lstrip("/")
    return f"{path}:{where.line}"


# --------------------------------------------------------------------------- the page


def _line(result: Result) -> str:
    said = f"{result.reason} ({result.place})" if result.reason else ""
    number = "-" if result.parameters is None else f"{result.parameters:,}"
    return f"{result.group}/{result.name}: {result.stage}, {number} parameters, {result.seconds:.1f} s {said}"


_NOTES = (
    "*Library itself fails*: with its default configuration and these inputs the library raises, too (a size"
    " that has no default, inputs of another kind, a package that is missing).",
    "*Parameters compared*: with torchvision's own metadata, else with what the library counts itself under"
    " PyTorch (`benchmarks/data/library_parameters.json`).",
)


def report(results: list[Result], truth: dict[str, int | str], versions: dict[str, str]) -> str:
    """The page, in Markdown."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.group].append(result)
    lines = [
        "# Library coverage",
        "",
        "Models followed from the text of their library, nothing imported: each is built from its defaults,"
        " run forward and backward. Made by",
        "`python benchmarks/coverage.py --site-packages DIR --write docs/coverage.md`"
        + (f" with {', '.join(f'{n} {v}' for n, v in versions.items())}." if versions else "."),
        "",
        "| library | models | built | forward | backward | library itself fails | parameters compared |"
        " equal |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for group, members in groups.items():
        reached = [STAGES.index(m.stage) for m in members]
        compared = [(m, t) for m in members if (t := _true(m, truth)) is not None and m.parameters]
        equal = sum(m.parameters == t for m, t in compared)
        refused = sum(_fails_itself(m, truth) for m in members)
        lines.append(
            f"| {group} | {len(members)} | {sum(r > 0 for r in reached)} | {sum(r > 1 for r in reached)} "
            f"| {sum(r > 2 for r in reached)} | {refused or ''} | {len(compared) or ''} "
            f"| {equal if compared else ''} |"
        )
    lines += ["", *_NOTES]
    lines += _differences(results, truth)
    lines += _reasons(groups, truth)
    return "\n".join(lines) + "\n"


def _true(result: Result, truth: dict[str, int | str]) -> int | None:
    known = truth.get(_key(result))
    return known if isinstance(known, int) else result.stated


def _fails_itself(result: Result, truth: dict[str, int | str]) -> bool:
    return result.stage != STAGES[-1] and (
        isinstance(truth.get(_key(result)), str) or _key(result) in _failures()
    )


@cache
def _failures() -> dict[str, str]:
    """What the library raises under PyTorch, by model: forward or backward with these very inputs."""
    found: dict[str, str] = json.loads((Path(__file__).parent / "data/library_failures.json").read_text())
    return found


def _differences(results: list[Result], truth: dict[str, int | str]) -> Iterator[str]:
    wrong = [
        (r, t) for r in results if r.parameters and (t := _true(r, truth)) is not None and r.parameters != t
    ]
    if wrong:
        yield ""
        yield "## Parameter counts that differ"
        yield ""
        for result, true in wrong:
            yield f"- {result.group}, {result.name}: {result.parameters:,}, the library says {true:,}"


def _reasons(groups: dict[str, list[Result]], truth: dict[str, int | str]) -> Iterator[str]:
    failed = {g: [m for m in members if m.stage != "backward"] for g, members in groups.items()}
    if not any(failed.values()):
        return
    yield ""
    yield "## What fails, and why"
    for group, members in failed.items():
        if not members:
            continue
        yield ""
        yield f"### {group}"
        yield ""
        by_reason: dict[str, list[str]] = defaultdict(list)
        for member in members:
            itself = " (the library, too)" if _fails_itself(member, truth) else ""
            by_reason[_kind(member.reason)].append(member.name + itself)
        counts = Counter({reason: len(names) for reason, names in by_reason.items()})
        for reason, count in counts.most_common():
            yield f"- {count} x {reason}: {', '.join(by_reason[reason])}"


def _kind(reason: str) -> str:
    """A reason without what is particular to one model."""
    short = re.sub(r"\s+", " ", reason)[:140]
    return short.replace("|", "/") or "no reason"


def _versions(site_packages: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(site_packages.glob("*.dist-info")):
        name, _, version = path.name.removesuffix(".dist-info").partition("-")
        found[name] = version
    return {n: found[n] for n in _libraries(site_packages) if n in found}


def _libraries(site_packages: Path) -> Iterable[str]:
    from library_models import FINDERS

    return [name for name in FINDERS if (site_packages / name).is_dir()]


if __name__ == "__main__":
    main()
