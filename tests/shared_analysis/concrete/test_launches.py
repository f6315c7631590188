"""How scripts are started: typed command lines, launch lines, and files that others start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shared_analysis.concrete.test_scripts import LOOP, MODEL, estimate, message, report

from torchwise_analysis.names.launches import lines_for
from torchwise_memory.report import Source

ARGPARSE = (
    """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
args = parser.parse_args()
width, batch = args.width, args.batch_size
"""
    + MODEL
    + LOOP
)


def lines(folder: Path, text: str, name: str = "run.sh") -> list[tuple[str, ...]]:
    (folder / "main.py").write_text("")
    (folder / name).write_text(text)
    return [line.words for line in lines_for(str(folder / "main.py"), (str(folder),))]


# --------------------------------------------------------------------------- launch lines


def test_each_launch_line_is_an_estimate_of_its_own(tmp_path: Path) -> None:
    text = "python main.py --width 40\npython main.py --width 60 --batch-size=16\n"
    plain, first, second = report(tmp_path, ARGPARSE, run_dot_sh=text).estimates
    assert plain.launch is None and plain.parameters == 210
    assert first.launch is not None and first.launch.words == "--width 40" and first.parameters == 410
    assert second.launch is not None and second.launch.origin.line == 2
    field = second.plan["micro_batch"]
    assert (second.parameters, field.value, field.source) == (610, 16, Source.CONFIGURED)
    assert field.origin is not None and field.origin.path.endswith("run.sh")


def test_launch_lines_that_change_no_size_are_one_answer(tmp_path: Path) -> None:
    text = "python main.py --output-dir a\npython main.py --log_dir b\n"
    assert len(report(tmp_path, ARGPARSE, run_dot_sh=text).estimates) == 1


def test_a_script_that_needs_its_launch_line_is_answered_by_it(tmp_path: Path) -> None:
    script = ARGPARSE.replace("args = parser.parse_args()", "args = parser.parse_args()\nassert args.amp")
    (only,) = report(tmp_path, script, run_dot_sh="python main.py --amp\n").estimates
    assert only.launch is not None and only.launch.words == "--amp"


def test_a_line_that_only_names_places_may_be_what_a_script_needs(tmp_path: Path) -> None:
    script = (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--checkpoint-dir', default=None)\nargs = parser.parse_args()\n"
        "if args.checkpoint_dir is None:\n    raise SystemExit('a folder is needed')\nwidth, batch = 20, 8\n"
    )
    script += MODEL + LOOP
    assert "ends here" in message(tmp_path, script)
    (only,) = report(tmp_path, script, run_dot_sh="python main.py --checkpoint-dir out\n").estimates
    assert only.launch is not None and only.parameters == 210


def test_variables_of_a_shell_script_are_put_in(tmp_path: Path) -> None:
    text = 'WIDTH=48\nexport ARGS="--batch-size 4 --amp"\npython main.py --width $WIDTH ${ARGS} $@\n'
    assert lines(tmp_path, text) == [("--width", "48", "--batch-size", "4", "--amp")]


def test_what_only_a_shell_knows_is_not_known(tmp_path: Path) -> None:
    script = ARGPARSE
    answer = report(tmp_path, script, run_dot_sh="python main.py --width $(nproc)\n")
    assert [estimate.launch for estimate in answer.estimates] == [None]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torchrun --nproc_per_node=4 main.py --width 3", "run.slurm"),
        ("train:\n\tpython main.py --width 3", "Makefile"),
        ("Run\n\n```bash\n$ accelerate launch \\\n   main.py --width 3\n```\n", "README.md"),
        ("CUDA_VISIBLE_DEVICES=0 python -m main --width 3 > log.txt", "run.sh"),
        ("python main.py --width 3 && echo done", "start.bash"),
    ],
)
def test_lines_of_all_kinds_of_texts_are_read(tmp_path: Path, text: str, name: str) -> None:
    assert lines(tmp_path, text, name) == [("--width", "3")]


@pytest.mark.parametrize(
    "text", ["see main.py --width 3", "python other_main.py --width 3", "cp main.py --width 3", "# main.py"]
)
def test_other_texts_start_nothing(tmp_path: Path, text: str) -> None:
    assert lines(tmp_path, text) == []


def test_a_scripts_own_docstring_says_how_it_is_started(tmp_path: Path) -> None:
    script = '"""Train.\n\n    python main.py \\\n        --width 30\n"""\n' + ARGPARSE
    plain, launched = report(tmp_path, script).estimates
    assert (plain.parameters, launched.parameters) == (210, 310)


def test_processes_of_a_launcher_reach_the_environment(tmp_path: Path) -> None:
    script = (
        """
import os
world = int(os.environ.get("WORLD_SIZE", 1))
width, batch = 20, 64 // world
"""
        + MODEL
        + LOOP
    )
    alone, launched = report(tmp_path, script, run_dot_sh="torchrun --nproc_per_node 4 main.py\n").estimates
    assert (alone.plan["micro_batch"].value, launched.plan["micro_batch"].value) == (64, 16)
    assert launched.gpus_used == 4


# --------------------------------------------------------------------------- argparse


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ("--width 3", 3),
        ("--width=3", 3),
        ("--wid 3", 3),
        ("--sizes 4 5 --amp --width 6", 6),
        ("--batch-size 2 -- --width", 20),
    ],
)
def test_words_are_parsed_as_argparse_does(tmp_path: Path, words: str, result: int) -> None:
    script = ARGPARSE.replace(
        "width, batch =", "batch = 8 + (args.batch_size == 8) * len(args.sizes)\nwidth, _ ="
    )
    answer = report(tmp_path, script, run_dot_sh=f"python main.py {words}\n")
    assert answer.estimates[-1].parameters == result * 10 + 10


def test_a_list_that_the_script_gives_is_parsed(tmp_path: Path) -> None:
    script = ARGPARSE.replace("parse_args()", "parse_args(['--width', '7'])")
    assert estimate(tmp_path, script).parameters == 80


def test_of_several_commands_the_one_that_trains_is_meant(tmp_path: Path) -> None:
    script = (
        """
import argparse
parser = argparse.ArgumentParser()
commands = parser.add_subparsers(dest="command")
commands.add_parser("eval").add_argument("--width", type=int, default=1)
commands.add_parser("train").add_argument("--width", type=int, default=33)
args = parser.parse_args()
assert args.command == "train"
width, batch = args.width, 8
"""
        + MODEL
        + LOOP
    )
    assert estimate(tmp_path, script).parameters == 340


def test_a_parser_of_the_programs_own_class(tmp_path: Path) -> None:
    script = (
        """
import argparse
class Parser(argparse.ArgumentParser):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        super().add_argument("--width", type=int, default=20)
    def parse_known_args(self, *args, **kwargs):
        space, rest = super().parse_known_args(*args, **kwargs)
        space.width += 2
        return space, rest
width, batch = Parser().parse_args().width, 8
"""
        + MODEL
        + LOOP
    )
    assert estimate(tmp_path, script).parameters == 230


# --------------------------------------------------------------------------- typed command lines

DATACLASS = """
from dataclasses import dataclass, field

@dataclass
class Inner:
    width: int = 20

@dataclass
class Options:
    batch: int = field(default=8, metadata={"help": "samples"})
    use_bias: bool = True
    name: str = "a"
    inner: Inner = field(default_factory=Inner)
    width: int = 20
"""
STARTS = {
    "transformers": "from transformers import HfArgumentParser\n"
    "(o,) = HfArgumentParser(Options).parse_args_into_dataclasses()\n",
    "trl": "from trl import TrlParser\n(o,) = TrlParser((Options,)).parse_args_and_config()\n",
    "tyro": "import tyro\no = tyro.cli(Options)\n",
    "simple": "import simple_parsing\no = simple_parsing.parse(Options)\n",
    "simple dest": "from simple_parsing import ArgumentParser\np = ArgumentParser()\n"
    'p.add_arguments(Options, dest="options")\no = p.parse_args().options\n',
    "jsonargparse": "from jsonargparse import CLI\no = CLI(Options)\n",
}


@pytest.mark.parametrize("kind", STARTS)
def test_dataclasses_are_filled_from_a_launch_line(tmp_path: Path, kind: str) -> None:
    script = DATACLASS + STARTS[kind] + "width, batch = o.width, o.batch\n" + MODEL + LOOP
    plain, launched = report(tmp_path, script, run_dot_sh="python main.py --width 40 --batch 16\n").estimates
    assert (plain.parameters, launched.parameters) == (210, 410)
    assert launched.plan["micro_batch"].value == 16


def test_inner_fields_are_given_by_dotted_names(tmp_path: Path) -> None:
    script = DATACLASS + STARTS["tyro"] + "width, batch = o.inner.width, o.batch\n" + MODEL + LOOP
    _, launched = report(tmp_path, script, run_dot_sh="python main.py --inner.width 50\n").estimates
    assert launched.parameters == 510


def test_trls_parser_reads_a_settings_file(tmp_path: Path) -> None:
    script = DATACLASS + STARTS["trl"] + "width, batch = o.width, o.batch\n" + MODEL + LOOP
    files = {"c_dot_yaml": "width: 70\n", "run_dot_sh": "python main.py --config c.yaml\n"}
    assert report(tmp_path, script, **files).estimates[-1].parameters == 710


def test_a_field_without_default_is_asked_for(tmp_path: Path) -> None:
    script = DATACLASS.replace("class Options:", "class Options:\n    size: int") + STARTS["tyro"]
    script += "width, batch = o.size, o.batch\n" + MODEL + LOOP
    assert "--size, which has no default" in message(tmp_path, script)
    assert estimate(tmp_path, "# torchwise: size=12\n" + script).parameters == 130


FUNCTIONS = {
    "fire": "import fire\nfire.Fire(main)\n",
    "typer": "import typer\ntyper.run(main)\n",
    "typer app": "import typer\napp = typer.Typer()\napp.command()(main)\napp()\n",
    "click": "import click\nmain = click.command()(click.option('--width', default=20)"
    "(click.option('--batch', default=8, type=int)(main)))\nmain()\n",
    "tyro": "import tyro\ntyro.cli(main)\n",
    "absl": "from absl import app, flags\nF = flags.FLAGS\nflags.DEFINE_integer('width', 20, '')\n"
    "flags.DEFINE_integer('batch', 8, '')\napp.run(lambda argv: main(F.width, F.batch))\n",
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_are_called_with_the_words_of_a_launch_line(tmp_path: Path, kind: str) -> None:
    body = "".join(f"    {line}\n" for line in (MODEL + LOOP).strip().split("\n"))
    script = f"def main(width: int = 20, batch: int = 8):\n{body}\n" + FUNCTIONS[kind]
    plain, launched = report(tmp_path, script, run_dot_sh="python main.py --width 40 --batch 16\n").estimates
    assert (plain.parameters, launched.parameters) == (210, 410)


# --------------------------------------------------------------------------- started from elsewhere

TRAINER = """
import torch
from torch import nn

class Trainer:
    def __init__(self, model, batch=4):
        self.model = model.cuda()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.batch = batch

    def train(self):
        for _ in range(3):
            x = torch.randn(self.batch, 20, device="cuda")
            self.model(x).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
"""


def test_a_loop_that_another_file_starts_is_answered_by_it(tmp_path: Path) -> None:
    start = "from torch import nn\nfrom main import Trainer\nif __name__ == '__main__':\n"
    start += "    Trainer(nn.Linear(20, 10), batch=16).train()\n"
    found = estimate(tmp_path, TRAINER, train_dot_py=start)
    assert (found.parameters, found.plan["micro_batch"].value) == (210, 16)
    assert found.origin.path.endswith("main.py")
    assert "the file is used as train.py uses it" in found.assumptions


def test_an_example_of_the_readme_starts_a_loop(tmp_path: Path) -> None:
    readme = "# Use\n\n```python\nfrom torch import nn\nfrom main import Trainer\n"
    readme += "Trainer(nn.Linear(20, 10), batch=32).train()\n```\n"
    found = estimate(tmp_path, TRAINER, README_dot_md=readme)
    assert found.plan["micro_batch"].value == 32
    place = found.plan["micro_batch"].origin
    assert place is not None and place.path.endswith("README.md") and place.line == 6


def test_without_any_start_it_says_that_nobody_calls_it(tmp_path: Path) -> None:
    assert "nothing in this file calls it" in message(tmp_path, TRAINER, other_dot_py="x = 1\n")


# --------------------------------------------------------------------------- a trace that stops


def test_a_trace_that_stops_keeps_what_it_knows(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
import mystery
data = mystery.load()
loader = torch.utils.data.DataLoader(mystery.Data(data), batch_size=24, shuffle=True)
model = nn.Linear(int(torch.zeros(data.width).shape[0]), 10)
other = nn.Linear(20, 10).cuda()
optimizer = torch.optim.AdamW(other.parameters(), amsgrad=True)
for x in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = other(x).sum()
    loss.backward()
    optimizer.step()
"""
    answer = report(tmp_path, script)
    assert not answer.estimates
    (unanswered,) = answer.unanswered
    assert unanswered.origin.line == 5
    plan = {name: field.value for name, field in unanswered.plan.items()}
    assert (plan["micro_batch"], plan["optimizer"]) == (24, "AdamW (amsgrad)")
    assert (plan["precision"], plan["model"]) == ("bfloat16 autocast", "Linear")


def test_what_is_not_known_of_a_plan_has_its_reason(tmp_path: Path) -> None:
    script = """
import torch
import mystery
model = mystery.build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(mystery.data(), batch_size=mystery.size())
for x in loader:
    model(torch.zeros(x.width)).sum().backward()
    optimizer.step()
"""
    (unanswered,) = report(tmp_path, script).unanswered
    assert unanswered.plan["model"].source is Source.UNKNOWN
    assert "mystery.build" in unanswered.plan["model"].why
    assert unanswered.plan["optimizer"].value == "SGD"


# --------------------------------------------------------------------------- settings

HYDRA = """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    import torch
    from torch import nn
    model = nn.Linear(cfg.model.width, 10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(cfg.batch, cfg.model.width, device="cuda")
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

main()
"""
HYDRA_FILES = {
    "conf__config_dot_yaml": "defaults:\n  - model: small\n  - _self_\nbatch: 8\n",
    "conf__model__small_dot_yaml": "width: 20\n",
    "conf__model__large_dot_yaml": "width: 200\n",
    "conf__experiment__big_dot_yaml": "# @package _global_\n"
    "defaults:\n  - override /model: large\nbatch: 64\n",
}


@pytest.mark.parametrize(
    ("words", "parameters", "batch"),
    [
        ("model=large", 2010, 8),
        ("batch=32", 210, 32),
        ("model.width=30 batch=2", 310, 2),
        ("+experiment=big", 2010, 64),
        ("+experiment=big batch=4", 2010, 4),
    ],
)
def test_hydra_takes_overrides_from_a_launch_line(
    tmp_path: Path, words: str, parameters: int, batch: int
) -> None:
    answer = report(tmp_path, HYDRA, run_dot_sh=f"python main.py {words}\n", **HYDRA_FILES)
    found = answer.estimates[-1]
    assert (found.parameters, found.plan["micro_batch"].value) == (parameters, batch)


def test_omegaconf_takes_a_launch_lines_words(tmp_path: Path) -> None:
    script = "from omegaconf import OmegaConf\n"
    script += "c = OmegaConf.merge(OmegaConf.create({'a': {'width': 20}}), OmegaConf.from_cli())\n"
    script += "width, batch = c.a.width, 8\n" + MODEL + LOOP
    _, launched = report(tmp_path, script, run_dot_sh="python main.py a.width=90\n").estimates
    assert launched.parameters == 910


@pytest.mark.parametrize(
    "reading",
    [
        "import tomllib\nc = tomllib.load(open('c.toml', 'rb'))\n",
        "import toml\nc = toml.load('c.toml')\n",
        "import tomli\nc = tomli.loads(open('c.toml').read())\n",
    ],
)
def test_toml_is_read(tmp_path: Path, reading: str) -> None:
    script = reading + "width, batch = c['model']['width'], 8\n" + MODEL + LOOP
    assert estimate(tmp_path, script, c_dot_toml="[model]\nwidth = 20\n").parameters == 210


CONFIGURATOR = """
import sys
from ast import literal_eval
for word in sys.argv[1:]:
    if "=" not in word:
        exec(open(word).read())
    else:
        name, value = word[2:].split("=")
        globals()[name] = literal_eval(value)
"""


def test_settings_that_are_a_program_are_interpreted(tmp_path: Path) -> None:
    script = "width, batch = 20, 8\nexec(open('configurator.py').read())\n" + MODEL + LOOP
    text = "python main.py config/big.py\npython main.py --width=40\n"
    files = {"configurator_dot_py": CONFIGURATOR, "config__big_dot_py": "width = 300\nbatch = 16\n"}
    plain, big, wide = report(tmp_path, script, run_dot_sh=text, **files).estimates
    assert (plain.parameters, big.parameters, wide.parameters) == (210, 3010, 410)
    place = big.plan["micro_batch"].origin
    assert place is not None and place.path.endswith("big.py")


def test_accelerates_launch_settings_decide_the_precision(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
from accelerate import Accelerator
accelerator = Accelerator()
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(3):
    accelerator.backward(model(torch.randn(512, 64, device="cuda")).sum())
    optimizer.step()
    optimizer.zero_grad()
"""
    text = (
        "accelerate launch --mixed_precision bf16 main.py\naccelerate launch --config_file a.yaml main.py x\n"
    )
    answer = report(tmp_path, script, run_dot_sh=text, a_dot_yaml="mixed_precision: fp16\n")
    found = [estimate.plan["precision"].value for estimate in answer.estimates]
    assert found == ["float32", "bfloat16 autocast", "float16 autocast"]


# --------------------------------------------------------------------------- sources that differ


def test_what_another_source_says_is_shown(tmp_path: Path) -> None:
    script = """
# torchwise: batch_size=16
import torch
from torch import nn
data = torch.utils.data.TensorDataset(torch.randn(640, 20))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
other = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model = nn.Linear(20, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    model(x.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    field = estimate(tmp_path, script).plan["micro_batch"]
    assert field.value == 8
    assert field.why == "but 16 in line 2 of main.py", "no step takes a batch of the other loader"


def test_a_stated_image_size_answers_for_photographs(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
from torchvision import datasets, transforms
data = datasets.ImageFolder("photos", transforms.ToTensor())
loader = torch.utils.data.DataLoader(data, batch_size=2)
model = nn.Conv2d(3, 4, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, _ in loader:
    model(x.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    found = estimate(tmp_path, "# torchwise: image_size=96\n" + script)
    assert found.plan["image_size"].value == (96, 96)
    assert any("96 x 96, as line 1 states" in one for one in found.assumptions)


@pytest.mark.parametrize(
    ("text", "width"),
    [("20", 20), ("size + 1", 31), ("max([size, inner(4)])", 40), ("nn.Linear(7, 9).in_features", 7)],
)
def test_expressions_out_of_settings_are_interpreted(tmp_path: Path, text: str, width: int) -> None:
    script = "from torch import nn\nsize = 30\n\ndef inner(n):\n    return eval('n * 10')\n\n"
    script += f"width, batch = eval({text!r}), 8\n" + MODEL + LOOP
    found = estimate(tmp_path, script)
    assert found.parameters == width * 10 + 10


def test_what_eval_is_not_given_as_a_text_is_not_followed(tmp_path: Path) -> None:
    script = "import os\nwidth, batch = eval(os.environ['WIDTH']), 8\n" + MODEL + LOOP
    assert "eval()" in message(tmp_path, script)
    script = "width, batch = eval('=' * 20), 8\n" + MODEL + LOOP
    assert "eval()" in message(tmp_path, script)


def test_settings_say_in_their_comments_how_they_are_used(tmp_path: Path) -> None:
    main = tmp_path / "train.py"
    main.write_text("print(1)\n")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small.yaml").write_text(
        "# To start:\n#   tune run train --config configs/small.yaml\nwidth: 8\n"
    )
    (line,) = lines_for(str(main), (str(tmp_path),))
    assert line.words == ("--config", "configs/small.yaml")
    assert line.line == 2


def test_an_edited_text_is_read_again(tmp_path: Path) -> None:
    main, run = tmp_path / "train.py", tmp_path / "run.sh"
    main.write_text("print(1)\n")
    run.write_text("python train.py --width 8\n")
    assert lines_for(str(main), (str(tmp_path),))[0].words == ("--width", "8")
    run.write_text("python train.py --width 128\n")
    assert lines_for(str(main), (str(tmp_path),))[0].words == ("--width", "128")


# --------------------------------------------------------------------------- places and how sure they are


SOURCES = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2))
arguments = TrainingArguments("out", %s)
data = [{"input_ids": torch.arange(64), "labels": torch.arange(64)} for _ in range(64)]
trainer = Trainer(model, arguments, train_dataset=data)
trainer.train()
"""


def test_what_a_trainer_chooses_is_a_default(tmp_path: Path) -> None:
    plan = estimate(tmp_path, SOURCES % "bf16=True").plan
    assert (plan["precision"].source, plan["micro_batch"].source) == (Source.READ, Source.DEFAULT)
    assert plan["optimizer"].source is Source.DEFAULT
    assert plan["micro_batch"].value == 8
    plan = estimate(tmp_path, SOURCES % 'per_device_train_batch_size=4, optim="adafactor"').plan
    assert (plan["optimizer"].source, plan["micro_batch"].source) == (Source.READ, Source.READ)


def test_an_option_set_later_is_no_default(tmp_path: Path) -> None:
    script = (SOURCES % "").replace("data = [", "arguments.bf16 = True\ndata = [")
    assert estimate(tmp_path, script).plan["precision"].source is Source.READ


def test_the_size_of_images_stands_where_training_says_it(tmp_path: Path) -> None:
    script = """
import argparse
import torch
from torchvision import datasets, transforms
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=96)
args = parser.parse_args()
train = transforms.Compose([transforms.RandomResizedCrop(args.size), transforms.ToTensor()])
test = transforms.Compose([transforms.Resize(128), transforms.CenterCrop(args.size), transforms.ToTensor()])
loader = torch.utils.data.DataLoader(datasets.ImageFolder("train", train), batch_size=8, shuffle=True)
held = torch.utils.data.DataLoader(datasets.ImageFolder("val", test), batch_size=100, shuffle=True)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.LazyLinear(10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in loader:
    loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    loss.backward()
    optimizer.step()
"""
    plan = estimate(tmp_path, script.replace("LazyLinear(10)", "Linear(8 * 94 * 94, 10)")).plan
    image, batch = plan["image_size"], plan["micro_batch"]
    assert image.value == (96, 96) and image.source is Source.DEFAULT
    assert image.origin is not None and image.origin.line == 6
    assert batch.value == 8 and not batch.why, "batches of the other loader train nothing"


STARTED = """
def train(batch, width, amp):
    model = nn.Sequential(nn.Linear(20, width), nn.Linear(width, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=amp):
            loss = model(torch.randn(batch, 20, device="cuda")).sum()
        loss.backward()
        optimizer.step()
"""
CLICK = """
import click
import torch
from torch import nn
%s
@click.command()
@click.option("--batch-size", default=8, type=int)
@click.option("--width", "-w", default=64)
@click.option("--amp/--no-amp", default=True)
def main(batch_size, width, amp):
    train(batch_size, width, amp)
main()
"""
TYPER = """
import torch
import typer
from torch import nn
from typing_extensions import Annotated
app = typer.Typer()
%s
@app.command()
def main(
    batch_size: Annotated[int, typer.Option("--bs", "-b")] = 8,
    width: int = typer.Option(64, "-w", help="of the layer"),
    amp: bool = True,
):
    train(batch_size, width, amp)
app()
"""
FIRE = """
import fire
import torch
from torch import nn
%s
class Job:
    def __init__(self, batch_size=8, width=64):
        self.batch_size, self.width = batch_size, width
    def report(self):
        return "nothing"
    def train(self, amp=True):
        train(self.batch_size, self.width, amp)
fire.Fire(Job)
"""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (CLICK, "--batch-size 32 -w 128 --no-amp"),
        (TYPER, "--bs 32 -w 128 --no-amp"),
        (TYPER, "-b 32 -w 128 --no-amp"),
        (FIRE, "train --batch_size 32 --width=128 --noamp"),
        (FIRE, "train --batch_size 32 --width 128 --amp False"),
    ],
)
def test_short_names_switches_and_commands_of_a_launch_line(tmp_path: Path, script: str, words: str) -> None:
    answer = report(tmp_path, script % STARTED, run_dot_sh=f"python main.py {words}\n")
    plain, launched = answer.estimates
    assert plain.plan["micro_batch"].value == 8 and plain.plan["micro_batch"].source is Source.DEFAULT
    assert plain.plan["precision"].value == "bfloat16 autocast"
    batch = launched.plan["micro_batch"]
    assert (batch.value, batch.source) == (32, Source.CONFIGURED)
    assert batch.origin is not None and batch.origin.path.endswith("run.sh")
    assert launched.parameters == 20 * 128 + 128 + 128 * 10 + 10
    assert launched.plan["precision"].value == "float32"


def test_a_number_of_the_batch_is_no_size_of_images(tmp_path: Path) -> None:
    script = """
import torch
BATCH = 32
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 900, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
side = 4 * 8
images = torch.randn(BATCH, 3, side, side, device="cuda")
for _ in range(3):
    model(images).sum().backward()
    optimizer.step()
"""
    plan = estimate(tmp_path, script).plan
    assert plan["image_size"].value == (32, 32)
    assert plan["image_size"].origin is not None and plan["image_size"].origin.line == 9


def test_a_model_made_of_settings_stands_where_it_is_asked_for(tmp_path: Path) -> None:
    script = """
import hydra
import torch
from omegaconf import OmegaConf
from parts import Body, Net
config = OmegaConf.create({"_target_": "parts.Net", "body": {"_target_": "parts.Body", "width": 64}})
model = hydra.utils.instantiate(config).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, 20, device="cuda")).sum().backward()
    optimizer.step()
"""
    parts = """
from torch import nn
class Body(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(20, width)
    def forward(self, x):
        return self.layer(x)
class Net(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
    def forward(self, x):
        return self.body(x)
"""
    model = estimate(tmp_path, script, parts_dot_py=parts).plan["model"]
    assert model.value == "Net"
    assert model.origin is not None and (Path(model.origin.path).name, model.origin.line) == ("main.py", 7)
