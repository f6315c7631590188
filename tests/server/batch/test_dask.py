"""`check --scheduler` as a person uses it: a cluster of processes of its own, the command in another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.test_action import FAULTY

distributed = pytest.importorskip("distributed")

HELPER = """\
def clear(optimizer):
    optimizer.step()
"""
CALLER = FAULTY.replace("from torch import nn", "from torch import nn\nfrom helper import clear").replace(
    "optimizer.step()", "clear(optimizer)"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, each a process that has nothing of this one."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for number in range(12):
        (tmp_path / f"train_{number}.py").write_text(FAULTY if number % 3 else CALLER)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "broken.py").write_text("import torch\nmodel = torch.nn.Linear(2, 2\n")
    return tmp_path


def check(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchwise_server", "check", ".", "--no-cache", "--format", "json"]
    return subprocess.run([*command, *options], cwd=project, capture_output=True, text=True, timeout=120)


def test_a_cluster_says_what_one_process_says(project: Path, cluster: Any) -> None:
    alone = check(project, "--jobs", "1")
    spread = check(project, "--scheduler", cluster.scheduler_address)
    assert json.loads(alone.stdout)["findings"]
    assert spread.stdout == alone.stdout
    assert spread.returncode == alone.returncode == 1
    assert spread.stderr == alone.stderr == ""


def test_the_cluster_is_left_as_it_was(project: Path, cluster: Any) -> None:
    check(project, "--scheduler", cluster.scheduler_address)
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        assert not any(client.processing().values())
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2


def test_a_worker_that_dies_costs_no_answer(project: Path, cluster: Any) -> None:
    expected = json.loads(check(project, "--jobs", "1").stdout)["findings"]
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        (victim, *_) = client.scheduler_info(n_workers=-1)["workers"]
        client.submit(os._exit, 1, workers=[victim], retries=0, pure=False)  # its nanny starts another one
        assert (
            json.loads(check(project, "--scheduler", cluster.scheduler_address).stdout)["findings"]
            == expected
        )


def test_nobody_at_the_address_is_one_line(project: Path) -> None:
    done = check(project, "--scheduler", "tcp://127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr.startswith("torchwise: no Dask scheduler at tcp://127.0.0.1:1: ")
    assert "Traceback" not in done.stderr
