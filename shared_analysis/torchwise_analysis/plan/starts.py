"""Where a program begins: the file itself, a launch line of the project, or another file that calls it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from torchwise_analysis.files import read_regular
from torchwise_analysis.names.launches import LaunchLine, lines_for
from torchwise_analysis.names.project import Project, module_name
from torchwise_analysis.plan.entries import trainers
from torchwise_analysis.source import lower_text, nodes
from torchwise_analysis.source.nodes import Module
from torchwise_memory.report import Launch

# So many launch configurations are told apart; a project may list dozens.
MAX_LAUNCHES = 3
MAX_ELSEWHERE = 4
_MAX_FILES = 600
_MAX_BYTES = 256 << 10
_SKIPPED = frozenset(
    {"tests", "test", "docs", "build", "dist", "node_modules", "__pycache__", "venv", "env", "site-packages"}
)
# Where outputs and data go changes no size.
_PLACES = re.compile(
    r"--?\w*(dir|path|root|name|output|out|log|save|dist[-_]url|seed|port|host|workers|tag|project)\b"
)
_FENCE = re.compile(r"^(```|~~~)\s*(python|py)\s*$\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Start:
    """What is run to answer for a file: `module` as `__main__`, started by a launch line or plainly.

    wanted_path: the file that the question is about where `module` is another one, else empty.
    """

    module: Module
    launch: LaunchLine | None = None
    wanted_path: str = ""

    @property
    def processes(self) -> int:
        return 1 if self.launch is None else self.launch.processes


def launched(start: Start, project: Project, is_answered: bool) -> Iterator[Start]:
    """The start by each of the project's launch lines that say something of sizes, one for each saying.

    Where the script has no answer as it stands, a line that only names places may be what it needs.
    """
    seen: set[tuple[str, ...]] = {()} if is_answered else set()
    for line in lines_for(start.module.path, project.roots):
        launcher = [
            word for word in line.before if word.startswith("--mixed") or word.endswith((".yaml", ".yml"))
        ]
        precision = line.launcher_option("--mixed_precision", "--mixed-precision") or ""
        processes = str(line.processes) if line.processes > 1 else ""
        said = (*_sizes(line.words), *launcher, precision, processes)
        said = tuple(word for word in said if word)
        if said in seen:
            continue
        seen.add(said)
        yield Start(start.module, line, start.wanted_path)


def shown(line: LaunchLine) -> Launch:
    """A launch line as an answer names it."""
    return Launch(" ".join(line.words), line.origin)


def _sizes(words: tuple[str, ...]) -> list[str]:
    """The words without options that only say where something is or is called."""
    kept: list[str] = []
    skipping = False
    for word in words:
        if word.startswith("-"):
            skipping = _PLACES.match(word) is not None
        if not skipping:
            kept.append(word)
    return sorted(kept)


# --------------------------------------------------------------------------- started from elsewhere


def elsewhere(module: Module, project: Project) -> Iterator[Start]:
    """Files and README examples of the project that start what a file only defines, the likeliest first."""
    found = trainers(module)
    if not found:
        return
    names = tuple(dict.fromkeys(trainer.name.partition(".")[0] for trainer in found))
    yield from islice(chain(_files(module, names, project), _examples(module, names, project)), MAX_ELSEWHERE)


def _files(module: Module, names: tuple[str, ...], project: Project) -> Iterator[Start]:
    """Python files that import the module, or name it in settings they read, and have a `__main__` part."""
    dotted = module_name(module.path)
    stem = dotted.rpartition(".")[2]
    if not stem or not project.roots:
        return
    ranked: list[tuple[int, str]] = []
    for path in _python_files(project):
        if os.path.abspath(path) == os.path.abspath(module.path):
            continue
        text = project.text(path) or ""
        by_settings = "hydra" in text and _is_started(path, text) and _in_settings(project, stem)
        if by_settings or (stem in text and _is_started(path, text)):
            score = sum(name in text for name in names) + 2 * (dotted in text)
            # the nearer file, and one that is called for training
            score += by_settings
            score += "train" in os.path.basename(path) or os.path.basename(path) == "__main__.py"
            if score:
                ranked.append((-score, path))
    for _, path in sorted(ranked):
        lowered = project.load(path)
        if lowered is not None:
            yield Start(lowered, wanted_path=module.path)


def _in_settings(project: Project, stem: str) -> bool:
    """Whether a YAML file of the project names something of a module, as Hydra's `_target_` does."""
    count = 0
    for root in project.roots:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("."))
            for name in sorted(names):
                if name.endswith((".yaml", ".yml")) and count < _MAX_FILES:
                    count += 1
                    if f".{stem}." in (project.text(os.path.join(folder, name)) or ""):
                        return True
    return False


def _is_started(path: str, text: str) -> bool:
    return "__main__" in text or os.path.basename(path) == "__main__.py" or "hydra.main" in text


def _python_files(project: Project) -> Iterator[str]:
    count = 0
    for root in reversed(project.roots):
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("."))
            for name in sorted(names):
                if name.endswith(".py"):
                    yield os.path.join(folder, name)
                    count += 1
                    if count >= _MAX_FILES:
                        return


def _examples(module: Module, names: tuple[str, ...], project: Project) -> Iterator[Start]:
    """Python blocks of READMEs that call what the file defines; their lines are those of the README."""
    for root in project.roots:
        try:
            found = sorted(name for name in os.listdir(root) if name.lower().startswith("readme"))
        except OSError:
            continue
        for name in found:
            path = os.path.join(root, name)
            try:
                text = read_regular(path, _MAX_BYTES).decode("utf-8", "replace")
            except OSError:
                continue
            for block in _FENCE.finditer(text):
                if any(re.search(rf"\b{re.escape(one)}\(", block[3]) for one in names):
                    padded = "\n" * text.count("\n", 0, block.start(3)) + block[3]
                    lowered = lower_text(path, padded)
                    if not lowered.problems and _imports(lowered):
                        yield Start(lowered, wanted_path=module.path)


def _imports(module: Module) -> bool:
    return any(isinstance(s, (nodes.Import, nodes.ImportFrom)) for s in _statements(module.body))


def _statements(block: nodes.Block) -> Iterator[nodes.Stmt]:
    for statement in block:
        if isinstance(statement, nodes.Placed):
            yield from _statements(statement.body)
        else:
            yield statement
