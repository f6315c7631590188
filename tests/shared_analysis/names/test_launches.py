"""How many processes a project's launch lines start."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.names.launches import Launches, LaunchLine, launches_of, lines_for
from torchwise_analysis.names.project import Project


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("deepspeed --num_gpus 1 train.py --epochs 3", True),
        ("deepspeed --num_gpus=1 --num_nodes 1 train.py", True),
        ("deepspeed --num_gpus 1 --num_nodes 2 train.py", False),
        ("deepspeed --include localhost:0 train.py", True),
        ("deepspeed --include localhost:0,1 train.py", False),
        ("deepspeed --include 'worker-0:0@worker-1:0' train.py", False),
        ("deepspeed --include localhost train.py", False),
        ("deepspeed train.py", False),
        ("python -m torch.distributed.launch --nproc_per_node=1 train.py", True),
        ("python -m torch.distributed.launch --nproc_per_node=$GPUS train.py", False),
        ("torchrun --nproc-per-node 1 --nnodes 4 train.py", False),
        ("torchrun --nproc_per_node 1 train.py", True),
        ("torchrun train.py", False),
        ("accelerate launch --num_processes 1 train.py", True),
        ("accelerate launch train.py", False),
        ("CUDA_VISIBLE_DEVICES=0 deepspeed train.py", True),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed train.py", False),
        ("mpirun -np 4 python train.py", False),
        ("python train.py", None),
        ("CUDA_VISIBLE_DEVICES=3 python train.py", True),
    ],
)
def test_a_line_starts_one_process(line: str, is_one: bool | None, tmp_path: Path) -> None:
    (found,) = _lines(tmp_path, line)
    assert found.starts_one_process is is_one


def test_cards_that_the_text_exports(tmp_path: Path) -> None:
    first, second = _lines(
        tmp_path,
        "export CUDA_VISIBLE_DEVICES=0\ndeepspeed train.py\n"
        "export CUDA_VISIBLE_DEVICES=0,1\ndeepspeed train.py",
    )
    assert (first.starts_one_process, second.starts_one_process) == (True, False)


def test_all_lines_have_to_agree(tmp_path: Path) -> None:
    project = _project(tmp_path, "deepspeed --num_gpus 1 train.py")
    assert launches_of(str(tmp_path / "train.py"), project.roots) == Launches(True, "run.sh:1")
    (tmp_path / "README.md").write_text("    torchrun --nproc_per_node 8 train.py\n")
    assert not launches_of(str(tmp_path / "train.py"), project.roots).is_one


def test_lines_without_a_launcher_say_nothing(tmp_path: Path) -> None:
    project = _project(tmp_path, "python train.py")
    assert not project.launches(str(tmp_path / "train.py")).is_one
    project = _project(tmp_path, "python train.py --debug\ndeepspeed --num_gpus 1 train.py")
    assert project.launches(str(tmp_path / "train.py")).is_one


def test_a_folder_of_scripts_is_told_by_its_name(tmp_path: Path) -> None:
    _project(tmp_path, "")
    (tmp_path / "bash_script").mkdir()
    (tmp_path / "bash_script" / "start.sh").write_text("deepspeed --num_gpus 1 train.py\n")
    (found,) = lines_for(str(tmp_path / "train.py"), (str(tmp_path),))
    assert found.where == "bash_script/start.sh:1"


def test_a_changed_file_drops_what_was_read(tmp_path: Path) -> None:
    script = str(tmp_path / "train.py")
    project = _project(tmp_path, "")
    assert not project.launches(script).is_one
    (tmp_path / "more.sh").write_text("deepspeed --num_gpus 1 train.py\n")
    project.forget(str(tmp_path / "more.sh"))
    assert project.launches(script).is_one


def _project(folder: Path, text: str) -> Project:
    (folder / "train.py").write_text("")
    (folder / "run.sh").write_text(text + "\n")
    return Project([str(folder)])


def _lines(folder: Path, text: str) -> tuple[LaunchLine, ...]:
    return lines_for(str(folder / "train.py"), _project(folder, text).roots)
