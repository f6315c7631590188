"""Launch lines: how a project's own texts start a script, and what they give its options.

Shell scripts, Makefiles, batch jobs and README code are read as text and never run. Only lines that name the
script's file or module say something; variables that the same text assigns before are put in, anything else
that a shell would have to work out stays as it is written and counts as not known.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from torchwise_analysis.files import read_regular
from torchwise_analysis.names.project import module_name
from torchwise_memory.report import Origin

_MAX_BYTES = 256 << 10
_MAX_FILES = 96
_MAX_LINES = 64
_MAX_SETTINGS = 256
_ENDINGS = (".sh", ".slurm", ".sbatch", ".bash", ".cmd")
_NAMES = ("Makefile", "makefile", "justfile")
_FOLDERS = ("scripts", "script", "bash", "shell", "slurm", "launch", "jobs", "docs", "examples")
_IN_FOLDER_NAMES = ("script", "bash", "shell", "slurm", "launch")  # of folders beside a script
_COMMENTED = re.compile(r"^[ \t]*#[ \t]*", re.MULTILINE)
_CONTINUED = re.compile(r"\\\s*\n\s*")
_ASSIGNED = re.compile(
    r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*[:?]?=\s*(\"[^\"]*\"|'[^']*'|[^\s;#&|]*)\s*(?:[;#].*)?$"
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|\((\w+)\)|(\w+))")
_STARTERS = (
    "python", "torchrun", "srun", "accelerate", "deepspeed", "mpiexec", "mpirun", "horovodrun", "tune", "trl",
    "uv", "fabric", "lightning", "colossalai",
)  # fmt: skip
#: The path of what whoever asks says himself, in place of a text of the project.
GIVEN = "<command line>"
# How launchers say over how many machines they start a script, and over how many cards of each. What
# `accelerate` calls processes are those of all machines together.
_NODES = ("nnodes", "num_nodes", "num-nodes")
_OF_ALL_NODES = "num_processes"
_PROCESSES = ("nproc_per_node", "nproc-per-node", "num_processes", "num_gpus", "num-gpus", "devices")
_MANY = ("mpirun", "mpiexec", "srun", "horovodrun")
_ALL_ARGUMENTS = ("$@", "$*", "${@}", "...")
_NOT_PLAIN = "$<>{}[]|`"


def may_start(name: str) -> bool:
    """Whether a file of this name is read for lines that start scripts."""
    return name.endswith((*_ENDINGS, ".md")) or name in _NAMES or name.lower().startswith("readme")


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """The words after the script's name on one line of a project's text, and those before it."""

    words: tuple[str, ...]
    before: tuple[str, ...]
    path: str
    shown: str
    line: int
    cards: str = ""  # CUDA_VISIBLE_DEVICES, as the same text sets it before

    @property
    def where(self) -> str:
        """`file:line`, as seen from the project."""
        return self.shown if self.path == GIVEN else f"{self.shown}:{self.line}"

    @property
    def origin(self) -> Origin:
        return Origin(self.path, self.line)

    @property
    def processes(self) -> int:
        """How many processes the launcher starts on all machines; 1 where it does not say a number."""
        name, count = self._number(_PROCESSES)
        return count if name == _OF_ALL_NODES else count * self._number(_NODES)[1]

    @property
    def processes_of_node(self) -> int:
        """How many of them are on this machine."""
        return max(1, self.processes // self._number(_NODES)[1])

    def _number(self, names: tuple[str, ...]) -> tuple[str, int]:
        """The first of the launcher's options that is called so, and its number: 1 where it says none."""
        for position, word in enumerate(self.before):
            _, equals, value = word.partition("=")
            name = _option_name(word)
            if name in names:
                following = self.before[position + 1] if position + 1 < len(self.before) else ""
                number = value if equals else following
                return name, int(number) if number.isdecimal() and 0 < int(number) <= 1 << 16 else 1
        return "", 1

    @property
    def starts_one_process(self) -> bool | None:
        """Whether no more than one process can come of this line; None where no launcher stands on it, so
        that the script itself decides."""
        nodes = self.launcher_option("--nnodes", "--num_nodes", "--num_machines")
        number = next((word for word in self.before if _option_name(word) in _PROCESSES), None)
        included = self.launcher_option("--include", "-i")
        if nodes not in (None, "1"):
            return False
        if included is not None:  # deepspeed: the cards of each host
            return "@" not in included and included.rpartition(":")[2].isdecimal() and ":" in included
        if number is not None:
            return self.launcher_option(number.partition("=")[0]) == "1"
        if any(os.path.basename(word) in _MANY for word in self.before):
            return False
        if self.cards.isdecimal():
            return True
        return False if self.is_distributed else None

    @property
    def is_distributed(self) -> bool:
        """Whether the launcher sets the variables of `torch.distributed`."""
        launchers = ("torchrun", "deepspeed", "accelerate")
        return any(
            os.path.basename(word) in launchers or word.startswith("torch.distributed.")
            for word in self.before
        )

    def launcher_option(self, *names: str) -> str | None:
        """The value of an option of the launcher itself; None if it is not given."""
        return option_value(LaunchLine(self.before, (), self.path, self.shown, self.line), list(names))


def _option_name(word: str) -> str:
    """What an option of a launcher is called; empty for other words."""
    return word.lstrip("-").partition("=")[0] if word.startswith("-") else ""


@dataclass(frozen=True, slots=True)
class Launches:
    """How many processes the launch lines of a script start, as far as a project's texts say.

    is_one: there are some that say so, and all of them start a single process. where: one of these.
    """

    is_one: bool
    where: str = ""


def launches_of(main: str, roots: tuple[str, ...]) -> Launches:
    """What all launch lines of the file `main` agree on."""
    lines = _read_lines(os.path.abspath(main), tuple(os.path.abspath(root) for root in roots))
    said = [(line, line.starts_one_process) for line in lines]
    ones = [line.where for line, is_one in said if is_one]
    if not ones or any(is_one is False for _, is_one in said):
        return Launches(is_one=False)
    return Launches(True, ones[0])


def given_line(words: tuple[str, ...], before: tuple[str, ...] = ("python",)) -> LaunchLine:
    """The start that whoever asks describes: what stands behind the script's name, and what before it."""
    return LaunchLine(words, before, GIVEN, "the command line", 1)


def typed_line(command: str, main: str) -> LaunchLine | None:
    """A start as one types it in a shell; None where it does not start the script `main`."""
    words = _words(command)
    position = _Names(os.path.basename(main), module_name(main)).position(words)
    if position is None or not _is_command(words[:position]):
        return None
    return given_line(tuple(_first_command(words[position + 1 :])), tuple(words[:position]))


def stated_by(where: Origin) -> str:
    """How an assumption names the place of a statement."""
    return "as --set says" if where.path == GIVEN else f"as line {where.line} states"


def lines_for(main: str, roots: tuple[str, ...]) -> tuple[LaunchLine, ...]:
    """Lines of a project's texts that start the file `main`."""
    if not main:
        return ()
    main, roots = os.path.abspath(main), tuple(os.path.abspath(root) for root in roots)
    return _lines_for(main, roots, _stamp(main, roots))


def _stamp(main: str, roots: tuple[str, ...]) -> tuple[int, ...]:
    """Changes when a text that may hold launch lines is edited, added or taken away."""
    found: list[int] = []
    for path in (main, *(path for path, _ in _texts(main, roots))):
        try:
            about = os.stat(path)
        except OSError:
            continue
        found += (about.st_mtime_ns, about.st_size)
    return tuple(found)


@lru_cache(maxsize=64)
def _lines_for(main: str, roots: tuple[str, ...], stamp: tuple[int, ...]) -> tuple[LaunchLine, ...]:
    return _read_lines(main, roots)


def _read_lines(main: str, roots: tuple[str, ...]) -> tuple[LaunchLine, ...]:
    names = _Names(os.path.basename(main), module_name(main))
    found = _in_own_text(main, names)
    for path, shown in _texts(main, roots):
        try:
            text = read_regular(path, _MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        if names.file in text or names.module in text or names.stem in text:
            plain = _COMMENTED.sub("", text) if path.endswith(".yaml") else text
            found += _in_text(plain, names, path, shown)
        if len(found) >= _MAX_LINES:
            break
    return tuple(found[:_MAX_LINES])


def _in_own_text(main: str, names: _Names) -> list[LaunchLine]:
    """Lines of the script's own comments and docstrings."""
    try:
        text = read_regular(main, _MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    if not main.endswith(".py"):
        return []
    return _in_text(_COMMENTED.sub("", text), names, main, names.file)


@dataclass(frozen=True, slots=True)
class _Names:
    """What a script is called where it is started: its file, or its module after `-m`."""

    file: str
    module: str

    @property
    def stem(self) -> str:
        return self.file.removesuffix(".py")

    def position(self, words: list[str]) -> int | None:
        """Which of the words names the script; None if none does."""
        for index, word in enumerate(words):
            if os.path.basename(word) == self.file:
                return index
            if index and words[index - 1] == "-m" and word == self.module:
                return index
            if (
                index
                and words[0] in ("tune", "trl")
                and words[1:index] in ([], ["run"])
                and word == self.stem
            ):
                return index
        return None


def _texts(main: str, roots: tuple[str, ...]) -> list[tuple[str, str]]:
    """Files that may hold launch lines: beside the script, in the roots and in their usual folders."""
    near = os.path.dirname(main) or os.curdir
    above = os.path.dirname(near)
    inner = [os.path.join(folder, name) for folder in (near, *roots) for name in _FOLDERS]
    inner += _folders_of_scripts(near)
    folders = [near, *([above] if any(above.startswith(root) for root in roots) else []), *roots, *inner]
    found: list[tuple[str, str]] = []
    for folder in dict.fromkeys(folders):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            if may_start(name):
                path = os.path.join(folder, name)
                found.append(
                    (path, os.path.relpath(path, near if folder == near or not roots else roots[-1]))
                )
    # settings often say at their top how a script is started with them
    pattern = os.path.join(glob.escape(near), "config*", "**", "*.yaml")
    settings = islice(glob.iglob(pattern, recursive=True), _MAX_SETTINGS)
    found += [(path, os.path.relpath(path, near)) for path in settings]
    return found[: 4 * _MAX_FILES]


def _folders_of_scripts(near: str) -> list[str]:
    """Folders beside a script that are called like one for what starts it: `bash_script`, `run_scripts`."""
    try:
        with os.scandir(near) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return [
        os.path.join(near, name)
        for name in sorted(names)
        if any(part in name.lower() for part in _IN_FOLDER_NAMES)
    ]


def _in_text(text: str, names: _Names, path: str, shown: str) -> list[LaunchLine]:
    found: list[LaunchLine] = []
    variables: dict[str, str] = {}
    plain_text = text.replace("\x00", " ")
    joined = _CONTINUED.sub(lambda match: " " + "\x00" * match.group().count("\n"), plain_text)
    line = 1
    for row in joined.split("\n"):
        plain = row.replace("\x00", " ")
        assigned = _ASSIGNED.match(plain)
        if assigned is not None:
            variables[assigned[1]] = _filled(assigned[2].strip("\"'"), variables)
        elif names.file in plain or names.module in plain or names.stem in plain:
            words = _words(_filled(plain, variables))
            position = names.position(words)
            if position is not None and _is_command(words[:position]):
                after = [word for word in _first_command(words[position + 1 :]) if word not in _ALL_ARGUMENTS]
                if words[0] == "tune":
                    after = _with_files(after, path)
                before = tuple(words[:position])
                found.append(LaunchLine(tuple(after), before, path, shown, line, _cards(before, variables)))
        line += 1 + row.count("\x00")
    return found


def _cards(before: tuple[str, ...], variables: dict[str, str]) -> str:
    """The cards that the processes of a line may use, as the line or the text above it says."""
    given = [word.partition("=")[2] for word in before if word.startswith("CUDA_VISIBLE_DEVICES=")]
    return given[-1] if given else variables.get("CUDA_VISIBLE_DEVICES", "")


def _with_files(words: list[str], path: str) -> list[str]:
    """torchtune's launcher names settings by their place below the recipes' `configs`."""
    made: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        found = word
        if before == "--config" and not word.endswith(".yaml"):
            folder = os.path.dirname(path)
            for _ in range(4):
                for inner in ("configs", "recipes/configs"):
                    candidate = os.path.join(folder, inner, f"{word}.yaml")
                    found = candidate if os.path.isfile(candidate) else found
                folder = os.path.dirname(folder)
        made.append(found)
    return made


def _filled(text: str, variables: dict[str, str]) -> str:
    """`text` with the variables put in that are assigned before it."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3] or match[4] or ""
        return variables.get(name, match[2] if match[2] is not None else match[0])

    return _VARIABLE.sub(value, text) if "$" in text and len(text) < 1 << 14 else text


def _first_command(words: list[str]) -> list[str]:
    """The words up to the end of the command."""
    ends = (i for i, word in enumerate(words) if word in ("&&", "||", "|", ";", "&", ">", ">>", "2>&1", "2>"))
    return words[: next(ends, len(words))]


def _words(row: str) -> list[str]:
    row = row.strip().strip("`").lstrip("$>%! \t")
    try:
        return shlex.split(row, comments=True)
    except ValueError:
        return row.split()


def _is_command(before: list[str]) -> bool:
    """Whether the words before the script start it: an interpreter or a launcher."""
    return any(os.path.basename(word).lower().startswith(_STARTERS) or "PYTHON" in word for word in before)


def option_value(line: LaunchLine, names: list[str]) -> str | None:
    """The value of an option on a launch line; None if it is not given or not a plain word."""
    for position, word in enumerate(line.words):
        name, equals, value = word.partition("=")
        if name not in names:
            continue
        if equals:
            return plain_word(value)
        following = line.words[position + 1] if position + 1 < len(line.words) else ""
        return None if following.startswith("-") else plain_word(following)
    return None


def plain_word(value: str) -> str | None:
    """A word that means itself; None where a shell or a person has to put something in."""
    return None if not value or any(letter in value for letter in _NOT_PLAIN) else value
