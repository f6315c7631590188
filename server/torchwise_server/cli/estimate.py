"""`torchwise estimate`: the peak memory of each training loop, against the cards one has in mind."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise_analysis.settings import SettingsFinder
from torchwise_memory.report import Verdict
from torchwise_server.cli import Exit, UsageError, given
from torchwise_server.cli.console import Progress, report_console
from torchwise_server.cli.files import collect
from torchwise_server.cli.options import Parser, add_verbose, require_sound, shown_path
from torchwise_server.cli.output import complain, say

if TYPE_CHECKING:
    from torchwise_analysis.engine import EstimateReport, Problem
    from torchwise_analysis.fixes import SourceFile
    from torchwise_memory.report import Estimate
    from torchwise_server.cli.reading import Reader
    from torchwise_server.reporters.sources import Sources

_DESCRIPTION = """\
Tell the peak VRAM of each training loop by running the script in the head: its own lines, over tensors that
have shapes and sizes but no values. No GPU, no torch, nothing of the script is executed. The answer names
the plan it read (model, batch, precision, optimizer), where it read it, and what is alive at the peak."""

_EPILOG = """\
examples:
  torchwise estimate train.py
  torchwise estimate train.py --gpu rtx-4090 --gpu a100-80gb
  torchwise estimate --gpu g5.xlarge train.py finetune.py --format json
  torchwise estimate train.py --gpu t4 --format html --output-file memory.html
  torchwise estimate train.py --gpu t4 --fail-on probably-oom && sbatch job.sh
  torchwise estimate train.py --gpu p4d.24xlarge --nodes 2 -- --batch-size 8
  torchwise estimate train.py --all-gpus --set batch_size=8
  torchwise estimate --model llama-2-7b --batch-size 4 --seq-len 2048 --lora --gpu a100-40gb
  torchwise estimate --config path/to/config.json --gpu p4d.24xlarge --parallel fsdp

sizes:
  allocated   what torch.cuda.max_memory_allocated() says at the end of a warm step
  reserved    what torch.cuda.max_memory_reserved() says
  device      with the CUDA context and libraries: what nvidia-smi shows, and what must fit
  Each comes with a 90 % interval. What is not known is said to be unknown, never invented.

exit status:
  0  every file was answered
  1  --fail-on was given and a verdict is at least that bad
  2  could not run: bad usage or settings, nothing to read, an internal error
  3  some files got no estimate; the report says what was missing

`torchwise gpus` lists the cards and machines. What depends on the hardware is told
for the first one; a card that runs other kernels is judged by a run with these."""

_BADNESS = (
    Verdict.FITS,
    Verdict.PROBABLY_FITS,
    Verdict.BORDERLINE,
    Verdict.PROBABLY_OOM,
    Verdict.OOM,
)


def run(words: list[str]) -> int:
    """Estimate, report, and return the exit status."""
    options, arguments = _parsed(words)
    if options.workload:
        from torchwise_server.cli import workload

        return workload.answer(options.workload, options.files)
    if options.model is not None or options.config is not None or options.params is not None:
        return _described(options)
    if not options.files:
        raise UsageError(
            "name the files to estimate, for example: torchwise estimate train.py --gpu rtx-4090"
        )
    if "-" in options.files:
        raise UsageError("estimate reads files, not standard input: imports and paths decide what it finds")
    _require_no_description(options)
    options.gpu = list(given.cards_of(options))
    options.set = given.statements_of(options)

    from torchwise_server.cli.reading import Reader

    reader = Reader()
    outcome = _estimate(options, arguments, reader)
    if outcome.read == 0:
        lines = [f"{shown_path(problem.path)}: {problem.message}" for problem in outcome.problems]
        complain("\n  ".join(("nothing was read", *lines)))
        if options.format == "json":
            _report(options, outcome, reader)
        return Exit.FAILED
    _report(options, outcome, reader)
    return _status(options, outcome)


def _parsed(words: list[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The options, and what the script is started with: the words behind `--`, if a file stands before it."""
    if "--" in words:
        at = words.index("--")
        options = parser().parse(words[:at])
        if options.files:
            return options, tuple(words[at + 1 :])
    return parser().parse(words), ()


def _described(options: argparse.Namespace) -> int:
    from torchwise_server.cli import described

    for name in ("launch", "set"):
        if getattr(options, name):
            raise UsageError(f"--{name} is about a script; a described job has options of its own")
    options.model, options.model_config, options.parameters = given.model_of(options)
    options.gpu = list(given.cards_of(options))
    processes = given.processes_of(options)
    if processes is None and options.parallel:
        options.gpus = given.cards_of_first_machine(options) or 1
    else:
        options.gpus = 1 if processes is None else processes[0] * processes[1]
    return described.answer(options)


#: The options that only describe a job, and what says the same of a script.
_OF_DESCRIPTIONS = {
    "batch_size": "--set batch_size=N",
    "seq_len": "--set seq_len=N",
    "image_size": "--set image_size=N",
    "precision": "",
    "optimizer": "",
    "lora": "",
    "lora_targets": "",
    "adapter": "",
    "virtual_tokens": "",
    "quantise": "",
    "checkpointing": "",
    "chunked_loss": "",
    "accumulate": "",
    "parallel": "--gpus N",
    "compile": "",
}


def _require_no_description(options: argparse.Namespace) -> None:
    """An option that is passed over would give an answer to another question."""
    for name, instead in _OF_DESCRIPTIONS.items():
        if getattr(options, name) not in (None, False):
            hint = f"{instead}, or " if instead else ""
            raise UsageError(
                f"--{name.replace('_', '-')} describes a job without a script; "
                f"for a script: {hint}its own options behind --"
            )


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("estimate", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="training script or notebook; patterns and folders too"
    )
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="NAME",
        help="card or cloud machine to compare with; repeat it",
    )
    parser.add_argument("--all-gpus", action="store_true", help="compare with every card known")
    parser.add_argument(
        "--site-packages",
        action="append",
        default=[],
        metavar="DIR",
        help="folder whose library files may be read as text (default: the project's environment); repeat it",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "jsonl", "markdown", "html"),
        default="text",
        help="html: one page with the step as a picture, needs nothing else (default: text)",
    )
    parser.add_argument("--output-file", metavar="FILE", help="write the report there, whole or not at all")
    parser.add_argument(
        "--fail-on",
        choices=[verdict.value for verdict in _BADNESS[2:]],
        help="status 1 when a verdict is this or worse",
    )
    parser.add_argument(
        "--workload",
        metavar="FILE.jsonl",
        help="answer described workloads, one JSON object a line, no script",
    )
    _add_start(parser)
    _add_description(parser)
    add_verbose(parser)
    return parser


def _add_start(parser: Parser) -> None:
    """How a script is started, in place of how its project's texts start it."""
    group = parser.add_argument_group(
        "the start",
        "What stands behind `--` is given to the script: `torchwise estimate train.py -- --batch-size 8`",
    )
    group.add_argument(
        "--launch",
        metavar="LINE",
        help="the line that starts it, for example `torchrun --nproc-per-node 8 train.py`",
    )
    group.add_argument("--gpus", type=int, metavar="N", help="how many cards, one process each (default: 1)")
    group.add_argument("--nodes", type=int, metavar="N", help="how many machines")
    group.add_argument(
        "--gpus-per-node",
        "--nproc-per-node",
        type=int,
        metavar="N",
        help="cards of each (default: those of the cloud machine that --gpu names)",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable, an option or a size of the script, as a comment `# torchwise: NAME=VALUE` says it; "
        "repeat it",
    )


def _add_description(parser: Parser) -> None:
    """A job by its facts, without a script."""
    group = parser.add_argument_group("without a script")
    group.add_argument(
        "--model", metavar="NAME", help="published model, for example llama-2-7b; `list` shows them"
    )
    group.add_argument(
        "--config", metavar="FILE", help="config.json of a model of transformers, or the folder that holds it"
    )
    group.add_argument(
        "--params",
        metavar="N",
        help="only the size of a decoder, for example 7b: the interval spans its shapes",
    )
    group.add_argument(
        "--task", choices=("train", "generate", "load"), default="train", help="(default: train)"
    )
    group.add_argument("--batch-size", type=int, metavar="N", help="micro-batch of one GPU (default: 1)")
    group.add_argument("--seq-len", type=int, metavar="N", help="tokens of a sequence")
    group.add_argument("--image-size", type=int, metavar="N", help="pixels of a side")
    group.add_argument(
        "--precision",
        choices=("bf16", "fp16", "fp32", "amp-bf16", "amp-fp16"),
        help="types of weights, amp: fp32 weights under autocast (default: bf16)",
    )
    group.add_argument(
        "--optimizer", metavar="NAME", help="adamw (default), adamw-8bit, sgd, adafactor, lion ..."
    )
    group.add_argument(
        "--lora", type=int, nargs="?", const=8, metavar="RANK", help="train adapters (default rank: 8)"
    )
    group.add_argument(
        "--lora-targets", metavar="NAMES", help="by commas, or all-linear (default: q_proj,v_proj)"
    )
    group.add_argument(
        "--adapter",
        choices=tuple(given.ADAPTERS),
        help="what a frozen model is trained by (default: lora)",
    )
    group.add_argument(
        "--virtual-tokens", type=int, metavar="N", help="learned tokens of prompt, prefix and p-tuning"
    )
    group.add_argument(
        "--quantise",
        choices=tuple(given.QUANTISED),
        help="how frozen weights, or keys and values, are stored",
    )
    group.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    group.add_argument(
        "--chunked-loss", action="store_true", help="head and loss over a part of the tokens at a time"
    )
    group.add_argument("--accumulate", type=int, metavar="N", help="micro-batches a step")
    group.add_argument(
        "--parallel", choices=("ddp", "fsdp", "zero-2", "zero-3", "tp"), help="over --gpus cards"
    )
    group.add_argument("--compile", action="store_true", help="torch.compile")


# --------------------------------------------------------------------------- estimating


@dataclass(frozen=True, slots=True)
class _Outcome:
    """`read` counts the files that gave a text; `problems` hold what got no estimate, too."""

    estimates: tuple[Estimate, ...]
    problems: tuple[Problem, ...]
    read: int


def _estimate(options: argparse.Namespace, arguments: Sequence[str], reader: Reader) -> _Outcome:
    from torchwise_analysis.engine import Problem, ProblemKind

    finder = SettingsFinder()
    inputs = collect(options.files, finder)
    problems = [
        Problem(item.path, None, item.why, ProblemKind.UNREADABLE)
        for item in (*inputs.missing, *inputs.empty)
    ]
    estimates: list[Estimate] = []
    read = 0
    with Progress(len(inputs.files), "estimating") as progress:
        for done, file in enumerate(inputs.files):
            progress.advance(done, str(file.path))
            reading = reader.read(file.path)
            problems += reading.problems
            if reading.document is None:
                continue
            read += 1
            report = _answer(reading.document, options, arguments, finder, reader)
            estimates += report.estimates
            problems += report.problems
            problems += [
                Problem(
                    each.origin.path,
                    each.origin.line - 1,
                    each.message,
                    ProblemKind.UNANSWERED,
                    tuple(each.plan.items()),
                )
                for each in report.unanswered
            ]
    return _Outcome(tuple(estimates), tuple(dict.fromkeys(problems)), read)


def _answer(
    document: SourceFile,
    options: argparse.Namespace,
    arguments: Sequence[str],
    finder: SettingsFinder,
    reader: Reader,
) -> EstimateReport:
    from torchwise_analysis.plan import EstimateRequest

    loaded = require_sound(finder.find(Path(document.path)))
    settings = loaded.settings
    if options.site_packages:
        settings = replace(settings, site_packages=_folders(options.site_packages))
    gpus = tuple(options.gpu) or settings.gpus
    given.require_known_gpus(gpus)
    given.require_spoken_of(options.set, document.text, document.path)
    if options.fail_on and not gpus:
        raise UsageError("--fail-on compares with a card: name one with --gpu or in the settings")
    engine = reader.engine(settings, loaded.root, document.path)
    launch = given.start_of(options, arguments, document.path)
    report = engine.estimate(document, EstimateRequest(gpus=gpus, launch=launch, given=options.set))
    named = tuple(given.with_machines(each, gpus, options.all_gpus) for each in report.estimates)
    return replace(report, estimates=named)


def _folders(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not Path(name).is_dir():
            raise UsageError(f"--site-packages {name}: no such folder")
    return tuple(str(Path(name).absolute()) for name in names)


# --------------------------------------------------------------------------- reporting


def _report(options: argparse.Namespace, outcome: _Outcome, reader: Reader) -> None:
    report(options, outcome.estimates, outcome.problems, reader.sources)


def report(
    options: argparse.Namespace,
    estimates: Sequence[Estimate],
    problems: Sequence[Problem],
    sources: Sources,
    *,
    described: bool = False,
) -> None:
    """Print the report, or write it to `--output-file`. described: of a job that options give."""
    if options.format == "text" and options.output_file is None:
        from torchwise_server.reporters import estimate_text

        estimate_text.render(estimates, problems, sources, report_console(), described=described)
        return
    text = _rendered(options.format, estimates, problems, sources, described)
    if options.output_file is None:
        say(text)
        return
    from torchwise_server.cli.reporting import write_text

    write_text(Path(options.output_file), text + "\n", "--output-file")
    complain(f"report in {options.output_file}")


def _rendered(
    form: str,
    estimates: Sequence[Estimate],
    problems: Sequence[Problem],
    sources: Sources,
    described: bool,
) -> str:
    if form in ("json", "jsonl"):
        from torchwise_server.reporters import estimate_json

        render = estimate_json.render if form == "json" else estimate_json.render_lines
        return render(estimates, problems, sources)
    if form == "markdown":
        from torchwise_server.reporters import estimate_markdown

        return estimate_markdown.render(estimates, problems, sources, described=described)
    if form == "html":
        from torchwise_server.reporters import estimate_html

        return estimate_html.render(estimates, problems, sources, described=described)
    from torchwise_server.cli.console import plain_console
    from torchwise_server.reporters import estimate_text

    buffer = io.StringIO()
    estimate_text.render(estimates, problems, sources, plain_console(buffer), described=described)
    return buffer.getvalue().rstrip("\n")


def _status(options: argparse.Namespace, outcome: _Outcome) -> int:
    if options.fail_on and _is_failing(outcome, Verdict(options.fail_on)):
        return Exit.FINDINGS
    return Exit.UNREAD if outcome.problems else Exit.OK


def _is_failing(outcome: _Outcome, floor: Verdict) -> bool:
    verdicts = (gpu.verdict for estimate in outcome.estimates for gpu in estimate.gpus)
    return any(
        verdict is not Verdict.UNKNOWN and _BADNESS.index(verdict) >= _BADNESS.index(floor)
        for verdict in verdicts
    )
