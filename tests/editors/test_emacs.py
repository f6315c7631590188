"""Emacs with Eglot, in batch mode. `make e2e` installs both on Debian."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BATCH = ["emacs", "--batch", "-f", "package-activate-all"]


def has_eglot() -> bool:
    if shutil.which("emacs") is None:
        return False
    return subprocess.run([*BATCH, "-l", "eglot"], capture_output=True, check=False).returncode == 0


@pytest.mark.editor
@pytest.mark.skipif(not has_eglot(), reason="no Emacs with Eglot here: apt-get install emacs-nox elpa-eglot")
def test_emacs(tmp_path: Path) -> None:
    file = Path(shutil.copy(HERE / "workspace" / "train.py", tmp_path))
    server = [sys.executable, "-I", "-m", "torchwise_server.lsp"]
    done = subprocess.run(
        [*BATCH, "-l", str(HERE / "eglot.el"), str(file), *server],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
