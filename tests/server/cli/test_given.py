"""`torchwise estimate`: the cards, the start and the model that options give. The real engine answers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.server.cli.conftest import Cli

from torchwise_memory.hardware import gpus
from torchwise_memory.presets import find
from torchwise_server.cli import UsageError, main
from torchwise_server.cli.given import amount_of

Validate = Callable[[str, object], None]
SCRIPT = """\
import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--hidden", type=int, default=512)
args = parser.parse_args()
width = 256
rows = args.batch_size // int(os.environ.get("WORLD_SIZE", 1))
if "LOCAL_RANK" in os.environ:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(nn.Linear(width, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    x = torch.randn(rows, width).cuda()
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def estimate(capsys: pytest.CaptureFixture[str], validate: Validate) -> Callable[..., dict[str, Any]]:
    """The first estimate of a command line, which has to be of the shape that is documented."""

    def run(*words: str) -> dict[str, Any]:
        at = words.index("--") if "--" in words else len(words)
        assert main(["estimate", *words[:at], "--format", "json", *words[at:]]) == 0
        document = json.loads(capsys.readouterr().out)
        validate("estimate", document)
        (answer,) = document["estimates"]
        return dict(answer)

    return run


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*words: str) -> str:
        assert main(["estimate", *words]) == 2
        return capsys.readouterr().err

    return run


# --------------------------------------------------------------------------- cards


def test_all_gpus_are_all_that_are_known_by_their_memory(estimate: Callable[..., dict[str, Any]]) -> None:
    cards = estimate("train.py", "--all-gpus")["gpus"]
    assert {card["name"] for card in cards} == {gpu.name for gpu in gpus()}
    totals = [card["total_bytes"] for card in cards]
    assert totals == sorted(totals)


def test_the_first_card_still_decides_what_hangs_on_the_hardware(
    estimate: Callable[..., dict[str, Any]],
) -> None:
    old, new = estimate("train.py", "--gpu", "t4"), estimate("train.py", "--gpu", "h100-80gb")
    assert old["peak"] != new["peak"]  # the workspace of products is larger on the newer one
    assert estimate("train.py", "--gpu", "t4", "--all-gpus")["peak"] == old["peak"]
    assert estimate("train.py", "--gpu", "h100-80gb", "--all-gpus")["peak"] == new["peak"]


def test_a_cloud_machine_is_named_with_its_cards(
    estimate: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    (card,) = estimate("train.py", "--gpu", "p4d.24xlarge")["gpus"]
    assert (card["machine"], card["cards"], card["name"]) == ("p4d.24xlarge", 8, "a100-40gb")
    for form in ("text", "markdown", "html"):
        main(["estimate", "train.py", "--gpu", "p4d.24xlarge", "--gpu", "t4", "--format", form])
        said = capsys.readouterr().out
        assert re.search(r"p4d\.24xlarge \(8 × (a100-40gb|A100 SXM4 40GB)\)", said), form
        assert "t4" in said.lower()


def test_the_picture_names_no_two_cards_in_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    Path("big.py").write_text(SCRIPT.replace("width = 256", "width = 60000").replace("512", "60000"))
    assert main(["estimate", "big.py", "--all-gpus", "--format", "html"]) == 0
    heights = [
        float(y) for y in re.findall(r'<line class="limit"[^>]* y1="([\d.]+)"', capsys.readouterr().out)
    ]
    assert heights
    assert all(abs(a - b) >= 12 for a, b in itertools.pairwise(heights))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpu", "a100-80"), "did you mean a100-80gb"),
        (("--gpu", "p4d.25xlarge"), "did you mean"),
        (("--all-gpus", "--fail-on", "oom"), "always"),
    ],
)
def test_cards_that_cannot_be_meant(refusal: Callable[..., str], words: tuple[str, ...], said: str) -> None:
    assert said in refusal("train.py", *words)
    assert said in refusal("--model", "gpt2", *words)


# --------------------------------------------------------------------------- the start of a script


def test_what_stands_behind_two_dashes_is_given_to_the_script(
    estimate: Callable[..., dict[str, Any]],
) -> None:
    answer = estimate("train.py", "--", "--batch-size", "4096")
    assert answer["plan"]["micro_batch"]["value"] == 4096
    assert answer["launch"] == {"words": "--batch-size 4096", "path": "<command line>", "line": 1}
    assert answer["remedies"]  # it is the start that was asked for


def test_options_before_and_after_the_file_and_none_behind(estimate: Callable[..., dict[str, Any]]) -> None:
    assert "launch" not in estimate("--gpu", "t4", "train.py")
    assert estimate("--", "train.py")["plan"]["micro_batch"]["value"] == 64


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        (("--gpus", "4"), 4),
        (("--gpus-per-node", "4"), 4),
        (("--nodes", "2", "--gpus-per-node", "4"), 8),
        (("--nodes", "2", "--nproc-per-node", "4"), 8),
        (("--nodes", "2", "--gpu", "p4d.24xlarge"), 16),
        (("--nodes", "2", "--gpus", "4"), 4),
        (("--launch", "torchrun --nnodes 2 --nproc-per-node=4 train.py"), 8),
        (("--launch", "accelerate launch --num_machines 2 --num_processes 4 train.py"), 4),
        (("--launch", "deepspeed --num_nodes 2 --num_gpus 4 train.py"), 8),
    ],
)
def test_processes_are_counted_over_all_machines(
    estimate: Callable[..., dict[str, Any]], words: tuple[str, ...], processes: int
) -> None:
    answer = estimate("train.py", *words)
    assert answer["gpus_used"] == processes
    assert answer["plan"]["micro_batch"]["value"] == 64 // processes
    assert not any("one process" in each for each in answer["assumptions"])


def test_a_launch_line_gives_options_too(estimate: Callable[..., dict[str, Any]]) -> None:
    line = "CUDA_VISIBLE_DEVICES=0 python -u ./train.py --batch-size 32 --hidden=1024 > log.txt"
    answer = estimate("train.py", "--launch", line)
    assert answer["plan"]["micro_batch"]["value"] == 32
    assert answer["parameters"] == 256 * 1024 + 1024 + 1024 * 10 + 10


def test_the_start_that_is_asked_for_takes_the_place_of_the_project_s(
    estimate: Callable[..., dict[str, Any]],
) -> None:
    Path("run.sh").write_text("python train.py --batch-size 128\n")
    assert estimate("train.py", "--", "--batch-size", "16")["plan"]["micro_batch"]["value"] == 16


def test_reports_say_that_the_command_line_said_it(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "markdown", "html"):
        main(["estimate", "train.py", "--format", form, "--", "--batch-size", "16"])
        said = capsys.readouterr().out
        assert "tarted with" in said
        assert "command line" in said
        assert "command line>:1" not in said
        assert "command line&gt;" not in said


def test_a_variable_an_option_and_a_size_can_be_set(estimate: Callable[..., dict[str, Any]]) -> None:
    answer = estimate("train.py", "--set", "width=1024", "--set", "hidden=2048")
    assert answer["parameters"] == 1024 * 2048 + 2048 + 2048 * 10 + 10
    assert "--hidden is 2048, as --set says" in answer["assumptions"]
    assert "width is what --set says" in answer["assumptions"]


LITERAL = "\n".join(line for line in SCRIPT.splitlines() if "batch" not in line).replace("rows", "64")


def test_a_batch_that_is_written_out_can_be_set(estimate: Callable[..., dict[str, Any]]) -> None:
    """No variable and no option is called so: the number itself is another one."""
    Path("literal.py").write_text(LITERAL)
    before, after = estimate("literal.py"), estimate("literal.py", "--set", "batch_size=4096")
    assert after["plan"]["micro_batch"]["value"] == 4096
    assert after["peak"]["allocated"]["point"] > before["peak"]["allocated"]["point"]
    assert "the micro-batch is 4096, as --set says, and not 64 (literal.py:16)" in after["assumptions"]
    assert not any("changes nothing" in each for each in after["assumptions"])
    assert all(each["peak_bytes"] < after["peak"]["allocated"]["point"] for each in after["remedies"])


def test_what_changes_nothing_says_so(estimate: Callable[..., dict[str, Any]]) -> None:
    """A word of the script that is neither a variable that is assigned nor an option."""
    answer = estimate("train.py", "--set", "randn=3")
    assert "--set randn=3 changes nothing: the script takes it nowhere" in answer["assumptions"]
    taken = estimate("train.py", "--set", "hidden=8", "--set", "width=8", "--set", "batch_size=8")
    assert not any("changes nothing" in each for each in taken["assumptions"])


def test_a_statement_wins_over_the_script_s_own(estimate: Callable[..., dict[str, Any]]) -> None:
    Path("train.py").write_text(SCRIPT.replace("width = 256", "width = 256  # torchwise: width=128"))
    assert estimate("train.py")["parameters"] == 128 * 512 + 512 + 5130
    assert estimate("train.py", "--set", "width=64")["parameters"] == 64 * 512 + 512 + 5130


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "widht=8"), "has no 'widht'; did you mean 'width'?"),
        (("--set", "width"), "expected NAME=VALUE"),
        (("--nodes", "0"), "at least 1"),
        (("--nodes", "2"), "--gpus-per-node, or a machine"),
        (("--gpus", "6", "--nodes", "4"), "are not"),
        (("--launch", "torchrun other.py"), "does not start train.py"),
        (("--launch", "cat train.py"), "does not start train.py"),
        (("--launch", "python train.py", "--gpus", "2"), "leave out"),
        (("--batch-size", "8"), "--set batch_size=N"),
        (("--lora",), "behind --"),
        (("--parallel", "fsdp"), "--gpus N"),
    ],
)
def test_a_start_that_cannot_be_meant(refusal: Callable[..., str], words: tuple[str, ...], said: str) -> None:
    assert said in refusal("train.py", *words)


# --------------------------------------------------------------------------- described models


def config_of(name: str, folder: Path, **changes: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**find(name).config, **changes}))
    return file


def test_a_config_is_the_model_that_has_it(estimate: Callable[..., dict[str, Any]], folder: Path) -> None:
    options = ("--seq-len", "512", "--gpu", "t4")
    by_name = estimate("--model", "gpt2", *options)
    file = config_of("gpt2", folder)
    for given in (file, folder):
        by_file = estimate("--config", str(given), *options)
        assert by_file["peak"] == by_name["peak"]
        assert by_file["parameters"] == by_name["parameters"]
    assert by_file["plan"]["model"]["value"] == f"{folder.name} (gpt2)"


def test_a_config_is_read_not_its_name(estimate: Callable[..., dict[str, Any]], folder: Path) -> None:
    options = ("--seq-len", "128")
    file = config_of("gpt2", folder, _name_or_path="gpt2", n_layer=2)
    assert estimate("--config", str(file), *options)["parameters"] < 60e6


def test_the_language_model_of_one_that_sees(estimate: Callable[..., dict[str, Any]], folder: Path) -> None:
    inner = dict(find("gpt2").config)
    (folder / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": inner}))
    alone = estimate("--model", "gpt2", "--seq-len", "128")
    assert estimate("--config", ".", "--seq-len", "128")["parameters"] == alone["parameters"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[1]", "expected an object"),
        ('{"n_layer": 2}', "no `model_type`"),
        ("{" + " " * (1 << 20) + "}", "larger than"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_config_that_cannot_be_read(
    refusal: Callable[..., str], folder: Path, text: str | None, said: str
) -> None:
    if text is not None:
        (folder / "config.json").write_text(text)
    assert said in refusal("--config", "config.json")


def test_a_model_type_that_is_not_known_is_no_answer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.json").write_text('{"model_type": "no-such-architecture"}')
    assert main(["estimate", "--config", "config.json"]) == 3
    assert "no-such-architecture" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-2-7b", "llama-3-8b", "pythia-1.4b", "mistral-7b"])
def test_the_interval_of_a_size_holds_the_models_that_have_it(
    estimate: Callable[..., dict[str, Any]], name: str
) -> None:
    options = ("--seq-len", "1024", "--batch-size", "2", "--gpu", "h100-80gb")
    point = estimate("--model", name, *options)["peak"]["allocated"]["point"]
    by_size = estimate("--params", str(find(name).parameters), *options)
    assert by_size["peak"]["allocated"]["low"] <= point <= by_size["peak"]["allocated"]["high"]
    assert abs(by_size["parameters"] / find(name).parameters - 1) < 0.01
    assert any("only the number of parameters" in each for each in by_size["assumptions"])


@pytest.mark.parametrize(
    ("words", "number"),
    [("7b", 7 * 10**9), ("350M", 350 * 10**6), ("1.3B", 13 * 10**8), ("6_738_415_616", None)],
)
def test_numbers_as_people_write_them(words: str, number: int | None) -> None:
    assert amount_of(words) == (number or 6_738_415_616)


@pytest.mark.parametrize("words", ["", "7 billion", "1m", "9t", "nan", "-7b", "1.2.3b", "1e9"])
def test_numbers_that_are_no_sizes(words: str) -> None:
    with pytest.raises(UsageError, match="for example 7b"):
        amount_of(words)


def test_machines_and_nodes_of_a_described_job(estimate: Callable[..., dict[str, Any]]) -> None:
    job = ("--model", "llama-3-8b", "--seq-len", "1024", "--parallel", "fsdp")
    on_one = estimate(*job, "--gpu", "p4d.24xlarge")
    on_two = estimate(*job, "--gpu", "p4d.24xlarge", "--nodes", "2")
    plain = estimate(*job, "--gpu", "p4d.24xlarge", "--gpus", "16")
    assert (on_one["gpus_used"], on_two["gpus_used"]) == (8, 16)
    assert on_two["peak"] == plain["peak"]
    assert on_two["breakdown"]["weights"] < on_one["breakdown"]["weights"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "gpt2", "--params", "7b"), "give one"),
        (("--model", "gpt2", "--set", "a=1"), "about a script"),
        (("--model", "gpt2", "--nodes", "2", "--gpus-per-node", "2"), "--parallel"),
        (("--params", "7b", "train.py"), "leave the files out"),
    ],
)
def test_a_description_that_cannot_be_meant(
    refusal: Callable[..., str], words: tuple[str, ...], said: str
) -> None:
    assert said in refusal(*words)


def test_described_jobs_are_judged_with_the_kernels_of_each_card(
    estimate: Callable[..., dict[str, Any]],
) -> None:
    job = ("--model", "gpt2", "--seq-len", "1024", "--batch-size", "16")
    together = estimate(*job, "--gpu", "t4", "--gpu", "a100-80gb")
    alone = estimate(*job, "--gpu", "a100-80gb")
    t4, a100 = together["gpus"]
    assert "peak" not in t4
    assert a100["peak"] == alone["peak"]
    assert a100["verdict"] == alone["gpus"][0]["verdict"]
    assert together["peak"]["allocated"]["point"] > 1.5 * a100["peak"]["allocated"]["point"]


@pytest.mark.parametrize("value", ["x", {}, -1, 1.5, True, 10**30, float("nan"), float("inf")])
@pytest.mark.parametrize(("kind", "name"), [("llama", "hidden_size"), ("bert", "num_hidden_layers")])
def test_a_size_that_is_none_is_named(cli: Cli, tmp_path: Path, kind: str, name: str, value: object) -> None:
    config = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**config, "model_type": kind, name: value}))
    result = cli("estimate", "--config", str(file), "--batch-size", "1")
    assert result.status in (2, 3)
    assert f"{name}: expected a whole number" in result.out + result.err
    assert "internal error" not in result.err


def test_an_option_that_the_script_lacks_is_said_to_change_nothing(
    estimate: Callable[..., dict[str, Any]],
) -> None:
    said = "no option --batch-sise was found in the script: it changes nothing"
    assert said in estimate("train.py", "--", "--batch-sise=4")["assumptions"]
    assert said in estimate("train.py", "--launch", "python train.py --batch-sise 4")["assumptions"]
    assert said not in estimate("train.py", "--", "--batch-size", "4")["assumptions"]


def test_of_a_broken_file_only_what_was_parsed_is_spoken_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text("import torch\nx = (\n")
    assert main(["estimate", "train.py"]) == 3
    said = capsys.readouterr().out
    assert "was never closed" in said
    assert "nothing in what could be parsed of this file trains" in said
