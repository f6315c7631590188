"""Folders that a script puts on `sys.path` itself (`sys.path.insert(0, os.path.join(here, "..", "src"))`).

The one question about an import that listing folders cannot answer, so it is put to jedi, which evaluates
such edits statically. jedi is asked with the settings that were found to start no process and to import
nothing of a hostile workspace: an environment that is our own interpreter, an explicit path, no extension
modules, no automatic imports (docs/security.md). What it parses on the way it keeps in our cache folder. It
is imported only for a file that edits the path and imports something that lies nowhere else. A cold question
takes tenths of a second, so the usual spellings are evaluated here, to what jedi gives for them. So are
helpers that put on the path what they are given (`add_path("../lib")`): looking for the callers of a
function, jedi takes seconds for a file that imports much.
"""

# jedi has no stubs
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

from torchwise_analysis.cache_folder import default_folder
from torchwise_analysis.source.collector import collector_paused

_EDITS = re.compile(r"sys\s*\.\s*path\b")  # begins with a text, which is looked for quickly
#: jedi evaluates the whole file; a longer one is left alone.
MAX_CHARACTERS = 100_000


def edits_path(text: str) -> bool:
    """Whether it is worth asking."""
    return len(text) <= MAX_CHARACTERS and _EDITS.search(text) is not None


def added_folders(path: str, text: str, roots: Sequence[str]) -> tuple[str, ...]:
    """The folders that the file `path` puts on the path, in its order; those that depend on what only a run
    knows are left out."""
    try:
        return _distinct(_PlainEdits(path, text).folders())
    except (_UnusualError, SyntaxError, ValueError, RecursionError):
        return folders_by_jedi(path, text, roots)


def folders_by_jedi(path: str, text: str, roots: Sequence[str]) -> tuple[str, ...]:
    """The same, for any spelling."""
    import jedi
    from jedi.api.environment import InterpreterEnvironment
    from jedi.inference.sys_path import check_sys_path_modifications

    jedi.settings.auto_import_modules = []
    jedi.settings.dynamic_params = False
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
        with collector_paused():
            script = jedi.Script(text, path=path, project=project, environment=InterpreterEnvironment())
            found = check_sys_path_modifications(script._get_module_context())
    except Exception:  # a fault of jedi on odd code means no more than that nothing was found
        return ()
    return _distinct(str(folder) for folder in found)


def _distinct(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.normpath(folder) for folder in folders))


# --------------------------------------------------------------------------- usual spellings


class _UnusualError(Exception):
    """An edit that is not of the usual spellings."""


_EVALUATED: dict[str, Callable[[list[str]], str]] = {
    "os.path.join": lambda texts: os.path.join(*texts),
    "os.path.dirname": lambda texts: os.path.dirname(texts[0]),
    "os.path.abspath": lambda texts: os.path.abspath(texts[0]),
}
# What these give only a run knows.
_UNKNOWN = frozenset(["os.getcwd", "str"])
_PLACES = {"append": 0, "insert": 1}  # of the folder among the arguments
_MOST_STEPS = 20


_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _PlainEdits:
    """`sys.path.append` and `insert` of literals, `__file__`, the functions above, names that the file gives
    such a value and that nothing else in it binds, and parameters of functions that it calls with those."""

    def __init__(self, path: str, text: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the escapes in the file's texts
            tree = ast.parse(text)
        self._path = path
        self._nodes = list(ast.walk(tree))
        self._bound = [name for node in self._nodes for name in _bound_by(node)]
        self._calls = sorted(
            (node for node in self._nodes if isinstance(node, ast.Call)),
            key=lambda node: (node.lineno, node.col_offset),
        )
        self._functions = [node for node in self._nodes if isinstance(node, _Function)]
        self._values = {
            target.id: node.value
            for node in self._nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def folders(self) -> Iterator[str]:
        """The folders in the order of the edits. Raises _UnusualError."""
        if any(_assigns_path(node) for node in self._nodes):
            raise _UnusualError
        for call in self._calls:
            head, _, method = _dotted(call.func).rpartition(".")
            if head != "sys.path" or method not in _PLACES:
                continue
            if len(call.args) != _PLACES[method] + 1 or call.keywords:
                raise _UnusualError
            for folder in self._texts(call.args[-1], call):
                if folder is not None:
                    yield os.path.join(os.path.dirname(self._path), folder)

    def _texts(self, node: ast.expr, place: ast.Call) -> Iterator[str | None]:
        """What an argument of the call `place` is: for a parameter, what each caller in the file gives."""
        function = self._owner(node, place) if isinstance(node, ast.Name) else None
        if function is None:
            yield self._text(node)
            return
        if self._bound.count(function.name) > 1:
            raise _UnusualError
        assert isinstance(node, ast.Name)
        for call in self._calls:
            if isinstance(call.func, ast.Name) and call.func.id == function.name:
                given = _given(call, function, node.id)
                # what a caller was given itself is followed no further
                is_told = given is not None and not self._is_parameter(given, call)
                yield self._text(given) if given is not None and is_told else None

    def _owner(self, name: ast.Name, place: ast.Call) -> _Function | None:
        """The innermost function around the place, if the name is a parameter of it and stays so."""
        around = [one for one in self._functions if any(node is place for node in ast.walk(one))]
        function = around[-1] if around else None  # functions are walked from the outside in
        if function is None or name.id not in _parameters(function):
            return None
        if any(name.id in _bound_by(node) for line in function.body for node in ast.walk(line)):
            raise _UnusualError
        return function

    def _is_parameter(self, node: ast.expr, place: ast.Call) -> bool:
        return isinstance(node, ast.Name) and self._owner(node, place) is not None

    def _text(self, node: ast.expr, steps: int = 0) -> str | None:
        """The text that an expression gives; None for one that only a run knows."""
        if steps > _MOST_STEPS:
            raise _UnusualError
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.Name) and node.id not in self._bound and node.id == "__file__":
            return self._path
        if isinstance(node, ast.Name) and self._bound.count(node.id) == 1 and node.id in self._values:
            return self._text(self._values[node.id], steps + 1)
        if isinstance(node, ast.Subscript) and _dotted(node.value) == "sys.path":
            return None
        if isinstance(node, ast.Call) and not node.keywords:
            return self._of_call(node, steps + 1)
        raise _UnusualError

    def _of_call(self, call: ast.Call, steps: int) -> str | None:
        name = _dotted(call.func)
        if self._bound.count(name.partition(".")[0]) > ("." in name):  # its import, and nothing else
            raise _UnusualError
        if name in _UNKNOWN:
            return None
        function = _EVALUATED.get(name)
        if function is None:
            raise _UnusualError
        texts = [self._text(argument, steps) for argument in call.args]
        if not texts or (len(texts) > 1 and name != "os.path.join"):
            raise _UnusualError
        known = [text for text in texts if text is not None]
        return function(known) if len(known) == len(texts) else None


def _parameters(function: _Function) -> list[str]:
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args)]


def _given(call: ast.Call, function: _Function, name: str) -> ast.expr | None:
    """What a call gives for a parameter; None where that does not stand there."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    place = _parameters(function).index(name)
    is_plain = len(call.args) > place and not any(isinstance(one, ast.Starred) for one in call.args)
    return call.args[place] if is_plain else None


def _assigns_path(node: ast.AST) -> bool:
    """`sys.path = ...`, `sys.path[0] = ...`, `del sys.path[0]`, and the path under another name."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "sys" and any(alias.name in ("path", "*") for alias in node.names)
    if isinstance(node, ast.Import):
        return any(alias.name in ("sys", "os", "os.path") and alias.asname for alias in node.names)
    target = node.value if isinstance(node, ast.Subscript) else node
    is_changed = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
    return is_changed and _dotted(target) == "sys.path"


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name


def _dotted(node: ast.AST) -> str:
    """`a.b.c` of names and attributes alone; empty for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(names))) if isinstance(node, ast.Name) else ""
