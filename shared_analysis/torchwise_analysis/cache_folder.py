"""The one folder on disk where torchwise keeps what it could work out again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "TORCHWISE_CACHE_DIR"


def default_folder() -> Path:
    """Where results are kept unless told otherwise: never in a workspace."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base) / "torchwise" / "Cache" if base else Path.home() / "AppData/Local/torchwise/Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/torchwise"
    base = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG rules: a relative path is to be ignored
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "torchwise"
