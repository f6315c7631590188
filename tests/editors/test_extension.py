"""Parts of the VS Code extension that need no VS Code, run by Node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NODE = shutil.which("node")


@pytest.mark.skipif(
    NODE is None or not (HERE.parents[1] / "node_modules/esbuild").is_dir(),
    reason="needs node_modules: npm ci",
)
def test_a_server_that_dies_is_started_again_later_each_time() -> None:
    done = subprocess.run([str(NODE), str(HERE / "backoff.mjs")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "backoff: ok\n"), done.stderr
