"""Keeps the workspace off `sys.path`: a `json.py` or `typing.py` in it must never be imported.

`python -I` does all of this by itself; the functions here are for servers that were started without it.
Imports nothing that a workspace could shadow before the path is clean.
"""

import sys


def isolate() -> None:
    """Remove the current folder, and what `PYTHONPATH` names below it, from the module path."""
    import os

    here = os.path.realpath(os.getcwd())  # noqa: PTH109 - pathlib could be the workspace's
    sys.path[:] = [entry for entry in sys.path if not _is_workspace(os.path.realpath(entry or here), here)]
    # subprocesses would inherit them
    for name in ("PYTHONPATH", "PYTHONSTARTUP"):
        os.environ.pop(name, None)


def _is_workspace(entry: str, here: str) -> bool:
    """The current folder itself, or a folder in it that holds no installed packages."""
    if entry == here:
        return True
    inside = entry.startswith(here.rstrip("/\\") + ("\\" if "\\" in here else "/"))
    return inside and not any(
        part in entry for part in ("site-packages", "dist-packages", "lib/python", ".zip")
    )
