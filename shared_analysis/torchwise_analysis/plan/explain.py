"""Why there is no estimate, and what a person can do about it: one sentence for a place."""

from __future__ import annotations

import os
import re
from pathlib import Path

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import entries
from torchwise_analysis.source.nodes import Module
from torchwise_memory.report import Origin, Unanswered

_LIGHTNING = "training_step"
# torch is modelled, never read
_LIBRARY_CALL = re.compile(r"what (?!torch\.)(?P<package>[a-z]\w*)(?:\.\w+)+ gives is not known")


def explained(message: str, origin: Origin | None, module: Module, project: Project) -> Unanswered:
    """A trace that stopped: its message with paths made relative and a line that would answer it."""
    place = origin or Origin(module.path, 1)
    message = shortened(message, project)
    if "is not known" in message and "torchwise:" not in message:
        message += _statable(message, place, module, project)
    return Unanswered(place, message)


def not_reached(module: Module, ended: Origin | None) -> Unanswered:
    """No loop that trains was reached: which function would train, and that nobody calls it."""
    found = entries.trainers(module)
    if ended is not None:
        return Unanswered(ended, "the script ends here before any loop trains or runs a model")
    if not found and module.problems:
        said = "nothing in what could be parsed of this file trains or runs a model"
        return Unanswered(Origin(module.path, 1), said)
    if not found:
        return Unanswered(
            Origin(module.path, 1), "nothing in this file trains or runs a model; open the script that does"
        )
    first = found[0]
    place = Origin(module.path, first.line)
    if first.name.endswith(_LIGHTNING):
        said = f"{first.name}() is run by a trainer, and no trainer's fit() is called in this file"
        return Unanswered(place, f"{said}; open the script that calls it")
    lacking = ""
    if first.open_parameters:
        verb = "is" if len(first.open_parameters) == 1 else "are"
        lacking = f" and its {_listed(first.open_parameters)} {verb} not known"
    said = f"{first.name}() holds the training loop, but nothing in this file calls it{lacking}"
    return Unanswered(place, f"{said}; open the script that does")


def shortened(message: str, project: Project) -> str:
    """A message without the absolute paths of this machine."""
    for root in sorted({*project.roots, *project.libraries}, key=len, reverse=True):
        for spelled in (str(Path(root).absolute()), root.rstrip(os.sep)):
            message = message.replace(spelled + os.sep, "")
    return message


def _listed(names: tuple[str, ...]) -> str:
    if len(names) > 3:
        return f"{', '.join(names[:2])} and {len(names) - 2} other parameters"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _statable(message: str, place: Origin, module: Module, project: Project) -> str:
    library = _LIBRARY_CALL.match(message)
    if library is not None and project.find(library["package"], module.path) is None:
        package = library["package"]
        return (
            f"; the source of {package} was not found: install it in the project's environment, or name the "
            "folder that holds it with --site-packages"
        )
    own = module if place.path == module.path else project.load(place.path)
    names = entries.assigned_names(own, place.line) if own is not None else ()
    if not names or any(place.path.startswith(folder) for folder in project.libraries):
        return ""
    stated = " ".join(f"{name}=..." for name in names)
    how = f"`# torchwise: {stated}` (numbers, or a tensor as float32[64,128])"
    return f"; state it above line {place.line}: {how}"
