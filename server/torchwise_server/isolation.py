"""Keeps the workspace off `sys.path`: a `json.py` or `typing.py` in it must never be imported.

`python -I` does that by itself, and more: before any code of ours Python has imported `sitecustomize` from
wherever PYTHONPATH leads. This is for starts without it. It imports nothing that a workspace could shadow
before the path is clean, and has no `from __future__`, which is an import like any other.
"""

import sys

_OURS = ("torchwise_server", "torchwise_analysis", "torchwise_memory")


def isolate() -> None:
    """Remove the current folder, and what `PYTHONPATH` named unless torchwise itself lies there, from the
    module path. What stays of `PYTHONPATH` comes last."""
    import os

    if sys.flags.isolated:
        return
    here = os.path.realpath(os.getcwd())  # noqa: PTH109 - pathlib could be the workspace's
    named = {os.path.realpath(item) for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if item}
    trusted: list[str] = []
    ours: list[str] = []
    for item in sys.path:
        folder = os.path.realpath(item or here)
        if folder != here and folder not in named:
            trusted.append(item)
        elif any(os.path.isdir(os.path.join(folder, name)) for name in _OURS):  # noqa: PTH112, PTH118
            ours.append(item)
    sys.path[:] = [*trusted, *ours]
