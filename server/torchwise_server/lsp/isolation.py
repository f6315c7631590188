"""Keeps the workspace off `sys.path`: a `json.py` or `typing.py` in it must never be imported.

`python -I` does that by itself. This is for servers that were started without it; it imports nothing that
a workspace could shadow before the path is clean.
"""

import sys


def isolate() -> None:
    """Remove the current folder and what `PYTHONPATH` named from the module path."""
    import os

    if sys.flags.isolated:
        return
    here = os.path.realpath(os.getcwd())  # noqa: PTH109 - pathlib could be the workspace's
    unwanted = {
        os.path.realpath(item or here) for item in os.environ.get("PYTHONPATH", here).split(os.pathsep)
    }
    unwanted.add(here)
    sys.path[:] = [item for item in sys.path if os.path.realpath(item or here) not in unwanted]
