"""Where a project's libraries lie, told from the layout of its environment alone.

No interpreter is started and no `.pth` file is followed: a virtual environment is a folder with a
`pyvenv.cfg`, and its libraries are below `lib/pythonX.Y/site-packages` (POSIX) or `Lib/site-packages`
(Windows). Nothing found here is ever put on `sys.path`; files are read as text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_USUAL_NAMES = (".venv", "venv", "env", ".env")
_LAYOUTS = (
    "lib/python3*/site-packages",
    "lib64/python3*/site-packages",
    "Lib/site-packages",
    "local/lib/python3*/dist-packages",  # Debian's pip
    "lib/python3*/dist-packages",  # Debian's apt
)


def library_folders(start: Path, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The site-packages folders of the environment that the file or folder `start` is used with.

    A virtual environment beside the file or above it comes first, then the active one (VIRTUAL_ENV,
    CONDA_PREFIX of `environment`, by default the process's), then the one that torchwise is installed in.
    """
    variables = os.environ if environment is None else environment
    for prefix in (*_beside(start), *_active(variables), Path(sys.prefix)):
        folders = tuple(_site_packages(prefix))
        if folders:
            return folders
    return ()


def _beside(start: Path) -> Iterator[Path]:
    folder = start.absolute()
    for parent in (folder, *folder.parents):
        for name in _USUAL_NAMES:
            if (parent / name / "pyvenv.cfg").is_file():
                yield parent / name


def _active(variables: Mapping[str, str]) -> Iterator[Path]:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if variables.get(name):
            yield Path(variables[name])


def _site_packages(prefix: Path) -> Iterator[str]:
    seen: set[str] = set()
    for layout in _LAYOUTS:
        for folder in sorted(prefix.glob(layout), reverse=True):  # the newest Python first
            real = os.path.realpath(folder)  # lib64 is often a link to lib
            if folder.is_dir() and real not in seen:
                seen.add(real)
                yield str(folder)
