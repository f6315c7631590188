"""Folders that a script puts on `sys.path` itself (`sys.path.insert(0, os.path.join(here, "..", "src"))`).

The one question about an import that listing folders cannot answer, so it is put to jedi, which evaluates
such edits statically. jedi is asked with the settings that were found to start no process and to import
nothing of a hostile workspace: an environment that is our own interpreter, an explicit path, no extension
modules, no automatic imports (docs/security.md). What it parses on the way it keeps in our cache folder. It
is imported only for a file that edits the path and imports something that lies nowhere else; a cold question
takes tenths of a second.
"""

# jedi has no stubs
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from torchwise_analysis.cache_folder import default_folder

_EDITS = re.compile(r"\bsys\s*\.\s*path\b")
#: jedi evaluates the whole file; a longer one is left alone.
MAX_CHARACTERS = 100_000


def edits_path(text: str) -> bool:
    """Whether it is worth asking."""
    return len(text) <= MAX_CHARACTERS and _EDITS.search(text) is not None


def added_folders(path: str, text: str, roots: Sequence[str]) -> tuple[str, ...]:
    """The folders that the file `path` puts on the path, in its order; those that depend on what only a run
    knows are left out."""
    import jedi
    from jedi.api.environment import InterpreterEnvironment
    from jedi.inference.sys_path import check_sys_path_modifications

    jedi.settings.auto_import_modules = []
    jedi.settings.cache_directory = str(default_folder() / "jedi")
    folders = list(dict.fromkeys([os.path.dirname(path), *roots]))
    project = jedi.Project(
        folders[-1],
        sys_path=folders,
        smart_sys_path=False,
        load_unsafe_extensions=False,
        environment_path=None,
    )
    try:
        script = jedi.Script(text, path=path, project=project, environment=InterpreterEnvironment())
        found = check_sys_path_modifications(script._get_module_context())
    except Exception:  # a fault of jedi on odd code means no more than that nothing was found
        return ()
    return tuple(dict.fromkeys(os.path.normpath(str(folder)) for folder in found))
