"""What the options of `estimate` say of the cards, of a script's start, and of a model without a name."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from torchwise_analysis.settings import suggestion
from torchwise_server.cli import UsageError
from torchwise_server.cli.options import shown_path

if TYPE_CHECKING:
    from torchwise_analysis.names.launches import LaunchLine
    from torchwise_memory.hardware import Instance
    from torchwise_memory.report import Estimate, GpuVerdict

#: Decides what depends on the hardware where all cards are asked for and none is named.
USUAL_CARD = "a100-80gb"

#: The words for ways of storing frozen weights or the cache, and what the model of memory calls them.
QUANTISED = {"nf4": "bnb nf4", "int8": "bnb int8", "gptq-int4": "GPTQ int4", "int8-kv": "int8 KV cache"}

#: The words for what is trained beside a frozen model, and what peft calls it.
ADAPTERS = {
    "lora": "LoRA",
    "dora": "DoRA",
    "ia3": "IA3",
    "prompt": "prompt tuning",
    "prefix": "prefix tuning",
    "p-tuning": "p-tuning",
}

_MOST_BYTES = 1 << 20
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_AMOUNT = re.compile(r"(\d+(?:[._]\d+)*)\s*([kmbt]?)", re.IGNORECASE)


# --------------------------------------------------------------------------- cards


def cards_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The names of the cards to compare with; the first decides what depends on the hardware.

    Raises:
        UsageError: a name is not known.
    """
    require_known_gpus(options.gpu)
    if not options.all_gpus:
        return tuple(options.gpu)
    if options.fail_on:
        raise UsageError("--fail-on with --all-gpus would always fail: some card is always too small")
    from torchwise_memory.hardware import gpus

    first = options.gpu or [USUAL_CARD]
    return tuple(dict.fromkeys((*first, *(gpu.name for gpu in gpus()))))


def require_known_gpus(names: Sequence[str]) -> None:
    """Raises UsageError with what would be known for the first name that is not."""
    from torchwise_memory.hardware import UnknownGpuError, find

    for name in names:
        try:
            find(name)
        except UnknownGpuError as error:
            raise UsageError(f"{error}; `torchwise gpus` lists them") from None


def with_machines(estimate: Estimate, names: Sequence[str], sort: bool) -> Estimate:
    """The verdicts under the names that were asked for: machines say so, all cards go by their memory."""
    if len(estimate.gpus) != len(names):
        return estimate
    verdicts = [_named(each, name) for each, name in zip(estimate.gpus, names, strict=True)]
    if sort:
        verdicts.sort(key=lambda each: (each.total_bytes, each.name))
    return replace(estimate, gpus=tuple(verdicts))


def _named(verdict: GpuVerdict, name: str) -> GpuVerdict:
    machine = _machine(name)
    return verdict if machine is None else replace(verdict, machine=machine.name, cards=machine.count)


def _machine(name: str) -> Instance | None:
    from torchwise_memory.hardware import instance

    return instance(name)


# --------------------------------------------------------------------------- processes


def processes_of(options: argparse.Namespace) -> tuple[int, int] | None:
    """On how many machines how many processes are started each; None where nothing says it.

    Raises:
        UsageError: the options do not go together.
    """
    for name in ("nodes", "gpus_per_node", "gpus"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected a number of at least 1")
    nodes, each = options.nodes, options.gpus_per_node
    if options.gpus is not None:
        if nodes is None and each is None:
            return 1, options.gpus
        nodes = nodes or max(1, options.gpus // each)
        each = each or max(1, options.gpus // nodes)
        if nodes * each != options.gpus:
            raise UsageError(f"--gpus {options.gpus} are not --nodes {nodes} with {each} cards each")
        return nodes, each
    if nodes is None and each is None:
        return None
    if each is None:
        each = _cards_of_machine(options.gpu)
    if each is None:
        raise UsageError(
            "--nodes needs to know how many cards each has: --gpus-per-node, or a machine as --gpu"
        )
    return nodes or 1, each


def _cards_of_machine(names: Sequence[str]) -> int | None:
    """The number of cards of the first machine among the names."""
    for name in names:
        machine = _machine(name)
        if machine is not None and machine.count is not None:
            return max(1, int(machine.count))
    return None


def cards_of_first_machine(options: argparse.Namespace) -> int | None:
    """What `--parallel` without a number of cards means on a cloud machine."""
    return _cards_of_machine(options.gpu[:1])


# --------------------------------------------------------------------------- the start of a script


def start_of(options: argparse.Namespace, arguments: Sequence[str], path: str) -> LaunchLine | None:
    """How the script `path` is started; None: as it stands, and as its project starts it.

    Raises:
        UsageError: `--launch` starts another script, or contradicts other options.
    """
    from torchwise_analysis.names.launches import given_line, typed_line

    processes = processes_of(options)
    if options.launch is not None:
        if processes is not None or arguments:
            raise UsageError(
                "--launch says how the script is started; leave out --nodes, --gpus and what follows --"
            )
        line = typed_line(options.launch, path)
        if line is None:
            name = Path(path).name
            example = f"--launch 'torchrun --nproc-per-node 8 {name} --batch-size 4'"
            raise UsageError(f"--launch does not start {shown_path(path)}; expected, for example: {example}")
        return line
    if processes is None and not arguments:
        return None
    if processes is None or processes == (1, 1):
        return given_line(tuple(arguments))
    nodes, each = processes
    return given_line(tuple(arguments), ("torchrun", f"--nnodes={nodes}", f"--nproc-per-node={each}"))


def statements_of(options: argparse.Namespace) -> tuple[str, ...]:
    """What `--set` states, as comments of a script would.

    Raises:
        UsageError: an option is not NAME=VALUE.
    """
    from torchwise_analysis.plan.stated import is_statement

    given = tuple(words.strip() for words in options.set)
    for words in given:
        if not is_statement(words):
            raise UsageError(
                f"--set {words}: expected NAME=VALUE, for example batch_size=8 or x=float32[8,3,224,224]"
            )
    return given


def require_spoken_of(given: Sequence[str], text: str, path: str) -> None:
    """Raises UsageError for a statement on a name that the script does not have: it would change nothing."""
    from torchwise_analysis.plan.stated import PLAN_NAMES, is_spoken_of

    for words in given:
        name = words.partition("=")[0].strip()
        if not is_spoken_of(name, text):
            known = [*PLAN_NAMES, *dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text))]
            hint = suggestion(name, known)
            raise UsageError(f"--set {words}: {shown_path(path)} has no {name!r}{hint}")


# --------------------------------------------------------------------------- a described model


def trained_beside(options: argparse.Namespace) -> dict[str, object] | None:
    """What is trained beside a frozen model; None where the model itself is.

    Raises:
        UsageError: the options do not go together.
    """
    kind = options.adapter or ("lora" if options.lora is not None else None)
    if options.virtual_tokens is not None and kind not in ("prompt", "prefix", "p-tuning"):
        raise UsageError("--virtual-tokens needs --adapter prompt, prefix or p-tuning")
    if kind is None:
        return None
    if kind in ("lora", "dora"):
        return {**adapters(options.lora or 8, options.lora_targets), "method": ADAPTERS[kind]}
    if options.lora is not None:
        raise UsageError(f"--lora is a rank, which --adapter {kind} does not have")
    if kind == "ia3":
        targets = (options.lora_targets or "").split(",")
        return {"method": ADAPTERS[kind], "targets": [name for name in targets if name]}
    return {"method": ADAPTERS[kind], "virtual_tokens": options.virtual_tokens}


def adapters(rank: int, targets: str | None) -> dict[str, object]:
    """LoRA of a rank on the modules that are called so; None: as PEFT's examples have it."""
    return {"method": "LoRA", "rank": rank, "targets": (targets or "q_proj,v_proj").split(",")}


def model_of(options: argparse.Namespace) -> tuple[str, Mapping[str, object] | None, int | None]:
    """What to call the described model, its `config.json`, its number of parameters.

    Raises:
        UsageError: more than one model is described, or the file or number cannot be read.
    """
    given = [name for name in ("model", "config", "params") if getattr(options, name) is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in given)} each describe a model; give one")
    if options.config is not None:
        name, config = _read_config(Path(options.config))
        return name, config, None
    if options.params is not None:
        return f"a decoder of {options.params} parameters", None, amount_of(options.params)
    return options.model, None, None


def amount_of(words: str) -> int:
    """The number that "7b", "350M" or "6_738_415_616" mean.

    Raises:
        UsageError: it is no such number, or no decoder has so few or so many parameters.
    """
    from torchwise_memory.presets.sized import LARGEST, SMALLEST

    match = _AMOUNT.fullmatch(words.strip())
    number = 0
    if match is not None:
        try:
            number = round(float(match[1]) * _UNITS[match[2].lower()])
        except ValueError:
            number = 0
    if not SMALLEST <= number <= LARGEST:
        raise UsageError(
            f"--params {words}: expected a number of parameters from 25M to 2T, for example 7b or 350m"
        )
    return number


def _read_config(path: Path) -> tuple[str, Mapping[str, object]]:
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"--config {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(f"--config {path}: larger than {_MOST_BYTES >> 20} MiB")
    try:
        read: object = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError(f"--config {path}: not JSON") from None
    if not isinstance(read, dict):
        raise UsageError(f"--config {path}: expected an object with the fields of a config.json")
    whole = config = cast("dict[str, object]", read)
    inner = config.get("text_config")
    if isinstance(inner, dict) and "model_type" in inner:
        config = cast("dict[str, object]", inner)  # the language model of one that also sees
    if not isinstance(config.get("model_type"), str):
        raise UsageError(f"--config {path}: no `model_type`; it does not describe a model of transformers")
    named = config.get("_name_or_path") or whole.get("_name_or_path")
    name = named if isinstance(named, str) and named else file.absolute().parent.name
    return f"{name} ({config['model_type']})", config
