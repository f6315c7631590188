"""Neovim's own client, headless. `make e2e` installs Neovim; set NVIM to use another one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NVIM = os.environ.get("NVIM") or shutil.which("nvim")


def has_lsp_config(nvim: str) -> bool:
    shown = subprocess.run([nvim, "--version"], capture_output=True, text=True, check=False).stdout
    version = shown.split()[1].removeprefix("v").split(".") if shown.startswith("NVIM") else ["0", "0"]
    return (int(version[0]), int(version[1])) >= (0, 11)


@pytest.mark.editor
@pytest.mark.skipif(
    NVIM is None or not has_lsp_config(NVIM), reason="no Neovim 0.11 here: tests/editors/install_nvim.sh"
)
def test_neovim(tmp_path: Path) -> None:
    file = Path(shutil.copy(HERE / "workspace" / "train.py", tmp_path))
    server = [sys.executable, "-I", "-m", "torchwise_server.lsp"]
    assert NVIM is not None
    # a home of its own: no user configuration, no log of another run
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [NVIM, "--headless", "--clean", "-l", str(HERE / "neovim.lua"), str(file), *server],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
