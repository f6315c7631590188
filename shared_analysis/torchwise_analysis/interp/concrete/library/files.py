"""The file system as a script sees it.

Files of the analysed project are read as text, within its folders and a size limit; what is not there is
not known: whether it exists, what a folder holds, what a file says. Nothing is ever written.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import glob
import os
import posixpath
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.values import (
    Builtin,
    Instance,
    Iter,
    Keywords,
    Namespace,
    Opaque,
    Symbol,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

Call: TypeAlias = "Callable[[Interpreter, list[Value], Keywords], Value]"

# Listings of folders are cut off here; a data set's folder only has to show that it holds something.
_MAX_NAMES = 4096
_MAX_PARENTS = 32
# Settings are smaller; going through a corpus word by word would take longer than it can tell.
_MAX_BYTES = 256 << 10


# What matches no file of a folder that is there is not there, unless it is data that comes later.
_SETTINGS = (".yaml", ".yml", ".json", ".py", ".toml", ".cfg", ".ini")


def path_text(it: Interpreter, value: Value) -> str | None:
    """A path as the script wrote it; None if it is not known."""
    if isinstance(value, Instance) and isinstance(value.payload, str):
        return value.payload
    if isinstance(value, Opaque) and isinstance(value.payload, str):
        return value.payload
    return value if isinstance(value, str) else None


def relative(it: Interpreter, shown: str) -> str:
    """A path for a message: relative to the project if it lies inside."""
    for root in it.project.roots:
        if shown.startswith(root.rstrip("/") + "/"):
            return shown[len(root.rstrip("/")) + 1 :]
    return shown


def locate(it: Interpreter, shown: str) -> str | None:
    """The file or folder of the project that a script's path names, seen from its folder or a root."""
    main = it.library.imports.main_path
    folders = [os.path.dirname(os.path.abspath(main))] if main else []
    roots = [os.path.realpath(root) for root in it.project.roots]
    for folder in [*folders, *it.project.roots]:
        found = os.path.realpath(os.path.join(folder, shown))
        inside = any(found == root or found.startswith(root + os.sep) for root in roots)
        if inside and os.path.exists(found):
            return found
    return None


def read_text(it: Interpreter, shown: str) -> str | None:
    """The text of a project's file; None if it is not there, too large or no text."""
    found = locate(it, shown)
    if found is None or not os.path.isfile(found) or os.path.getsize(found) > _MAX_BYTES:
        return None
    content = it.project.text(found)
    if content is not None and found not in it.library.imports.read:
        it.library.imports.read.append(found)
    return content


def exists(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`os.path.exists`: true for a project's own files, else not known."""
    shown = path_text(it, args[0] if args else None)
    if shown is None:
        return Unknown("whether a file is there", it.origin())
    if locate(it, shown) is not None:
        return True
    return Unknown(f"whether {relative(it, shown)} is there", it.origin())


def is_file(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`os.path.isfile`."""
    found = exists(it, args, keywords)
    located = locate(it, path_text(it, args[0]) or "") if found is True else None
    return found if located is None else os.path.isfile(located)


def is_folder(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`os.path.isdir`."""
    found = exists(it, args, keywords)
    located = locate(it, path_text(it, args[0]) or "") if found is True else None
    return found if located is None else os.path.isdir(located)


def globbed(it: Interpreter, pattern: str, recursive: bool) -> Value:
    """Files of the project that match; where there are none, data may have to come first: not known."""
    fixed = pattern.partition("*")[0].partition("?")[0].partition("[")[0]
    folder = locate(it, posixpath.dirname(fixed) or ".")
    unknown = Unknown(f"the files of {relative(it, posixpath.dirname(fixed) or '.')}", it.origin())
    if folder is None or not os.path.isdir(folder):
        return unknown
    inner = pattern[len(posixpath.dirname(fixed)) :].lstrip("/")
    found = sorted(
        islice(glob.iglob(os.path.join(glob.escape(folder), inner), recursive=recursive), _MAX_NAMES)
    )
    shown = posixpath.dirname(fixed)
    if not found and pattern.endswith(_SETTINGS):
        return []
    return [posixpath.join(shown, os.path.relpath(one, folder)) for one in found] or unknown


def _paths_of(found: Value) -> Value:
    return [path_object(str(one)) for one in found] if isinstance(found, list) else found


def glob_module() -> dict[str, Value]:
    """`glob`."""

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        pattern = path_text(it, args[0] if args else keywords.get("pathname"))
        if pattern is None:
            return Unknown("the files that match a pattern", it.origin())
        return globbed(it, pattern, it.truth(keywords.get("recursive", False)))

    return {"glob": Builtin("glob.glob", call), "iglob": Builtin("glob.iglob", call)}


def listing(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`os.listdir`."""
    shown = path_text(it, args[0] if args else ".")
    if shown is None:
        return Unknown("the files of a folder", it.origin())
    found = locate(it, shown)
    if found is None or not os.path.isdir(found):
        return Unknown(f"the files of {relative(it, shown)}", it.origin())
    return sorted(os.listdir(found))[:_MAX_NAMES]


def open_file(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`open`: a project's text file is read, any other file's content is not known."""
    mode = keywords.get("mode", args[1] if len(args) > 1 else "r")
    shown = path_text(it, args[0] if args else keywords.get("file"))
    writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
    if writes:
        return file_object(None, "an output file", binary=False)
    content = None if shown is None else read_text(it, shown)
    name = _unread_name(args[0] if args else None) if shown is None else relative(it, shown)
    return file_object(content, name, binary=isinstance(mode, str) and "b" in mode)


def _unread_name(value: Value) -> str:
    return f"the file that {value.why} names" if isinstance(value, (Unknown, Symbol)) else "a file"


def file_object(content: str | None, name: str, binary: bool) -> Opaque:
    """An open file whose text is `content`, not known if None."""
    made = Opaque(f"the file {name}")
    left = [content]

    def unknown(it: Interpreter) -> Value:
        return Unknown(f"the content of {name}", it.origin())

    def shaped(part: str) -> Value:
        return part.encode() if binary else part

    def read(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        if left[0] is None:
            return unknown(it)
        part, left[0] = left[0], ""
        return shaped(part)

    def line(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        if left[0] is None:
            return unknown(it)
        first, end, rest = left[0].partition("\n")
        left[0] = rest
        return shaped(first + end)

    def lines(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        if left[0] is None:
            return Unknown(f"the lines of {name}", it.origin())
        part, left[0] = left[0], ""
        return [shaped(one) for one in part.splitlines(keepends=True)]

    def each(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        found = lines(it, args, keywords)
        return found if isinstance(found, Unknown) else Iter(_one_by_one(it, found))

    def same(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return made

    table: dict[str, Call] = {
        "read": read,
        "readline": line,
        "readlines": lines,
        "__iter__": each,
        "open": same,
    }
    for inert in ("write", "writelines", "flush", "close", "seek"):
        table[inert] = _nothing
    made.attributes |= {key: Builtin(key, call) for key, call in table.items()}
    made.attributes["name"] = name
    made.enter = lambda it: made
    return made


def _one_by_one(it: Interpreter, lines: Value) -> Iterator[Value]:
    yield from it.iterate(lines)


def _nothing(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return None


def fsspec_module(it: Interpreter) -> Namespace:
    """`fsspec`: its `open` gives a file that is opened once more."""
    return Namespace("fsspec", {"open": Builtin("fsspec.open", _open_anywhere)})


def _open_anywhere(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if len(args) < 2 and "mode" not in keywords:
        keywords["mode"] = "rb"
    if "path" in keywords or "urlpath" in keywords:
        args.insert(0, keywords.pop("urlpath", keywords.pop("path", None)))
    return open_file(it, args, keywords)


# --------------------------------------------------------------------------- os.path and pathlib


def of_text(name: str, change: Callable[[str], Value]) -> Builtin:
    """A function of one path's text."""

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        shown = path_text(it, args[0])
        return Unknown(f"{name} of a path", it.origin()) if shown is None else change(shown)

    return Builtin(name, call)


def join(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`os.path.join`; a part that is not known makes the whole unknown."""
    parts: list[str] = []
    for value in args:
        shown = path_text(it, value)
        if shown is None:
            why = value.why if isinstance(value, (Unknown, Symbol)) else "a path"
            return Unknown(f"a path made of {why}", it.origin())
        parts.append(shown)
    return text.bounded(posixpath.join(*parts)) if parts else ""


def path(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`pathlib.Path(...)`."""
    joined = join(it, args, keywords) if args else "."
    return path_object(posixpath.normpath(joined)) if isinstance(joined, str) else joined


class _Members(dict[str, Value]):
    """What a path has; the folders above it are made when they are asked for."""

    def __init__(self, shown: str) -> None:
        super().__init__()
        self.shown = shown

    def get(self, key: str, default: Value = None) -> Value:
        if key not in self and key in ("parent", "parents"):
            above = _above(self.shown)
            if key == "parent":
                self[key] = path_object(above[0] if above else self.shown)
            else:
                self[key] = [path_object(one) for one in above]
        return super().get(key, default)


def _above(shown: str) -> list[str]:
    """The folders above a path, nearest first."""
    found: list[str] = []
    while len(found) < _MAX_PARENTS:
        parent = posixpath.dirname(shown)
        if not parent or parent == shown:
            break
        found.append(parent)
        shown = parent
    if not found and shown not in (".", "/"):
        return ["."]
    return found


def path_object(shown: str) -> Opaque:
    """A `pathlib.Path`."""
    made = Opaque("pathlib.Path", _Members(shown), payload=shown)
    name = posixpath.basename(shown)
    stem, suffix = posixpath.splitext(name)

    def below(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return path(it, [shown, *args], {})

    def itself(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return made

    def entries(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        found = listing(it, [shown], {})
        if isinstance(found, list):
            return [path_object(posixpath.join(shown, str(entry))) for entry in found]
        return found

    def matching(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return _paths_of(globbed(it, posixpath.join(shown, path_text(it, args[0]) or "*"), False))

    def matching_below(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return _paths_of(globbed(it, posixpath.join(shown, "**", path_text(it, args[0]) or "*"), True))

    def content(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        found = read_text(it, shown)
        return Unknown(f"the content of {relative(it, shown)}", it.origin()) if found is None else found

    def opened(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return open_file(it, [shown, *args], keywords)

    def changed(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        ending = path_text(it, args[0]) or ""
        return path_object(shown[: len(shown) - len(suffix)] + ending)

    def renamed(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return path_object(posixpath.join(posixpath.dirname(shown), path_text(it, args[0]) or name))

    table: dict[str, Call] = {
        "exists": lambda it, a, k: exists(it, [shown], {}),
        "is_file": lambda it, a, k: is_file(it, [shown], {}),
        "is_dir": lambda it, a, k: is_folder(it, [shown], {}),
        "joinpath": below,
        "__truediv__": below,
        "as_posix": lambda it, a, k: shown,
        "__str__": lambda it, a, k: shown,
        "__fspath__": lambda it, a, k: shown,
        "iterdir": entries,
        "glob": matching,
        "rglob": matching_below,
        "read_text": content,
        "open": opened,
        "with_suffix": changed,
        "with_name": renamed,
        "relative_to": itself,
        "stat": lambda it, a, k: Unknown("the state of a file", it.origin()),
        **dict.fromkeys(("expanduser", "resolve", "absolute"), itself),
        **dict.fromkeys(("mkdir", "unlink", "touch", "rename", "write_text", "chmod", "rmdir"), _nothing),
    }
    made.attributes |= {key: Builtin(key, call) for key, call in table.items()}
    made.attributes |= {"name": name, "stem": stem, "suffix": suffix}
    made.attributes["parts"] = tuple(part for part in shown.split("/") if part)
    return made


def path_class() -> Opaque:
    """`pathlib.Path` itself."""
    return Opaque(
        "pathlib.Path",
        {
            "cwd": Builtin("cwd", lambda it, a, k: path_object(".")),
            "home": Builtin("home", lambda it, a, k: path_object("~")),
        },
        call=path,
    )


def os_path() -> dict[str, Value]:
    """Members of `os.path` that look at files or take paths apart."""
    return {
        "join": Builtin("join", join),
        "exists": Builtin("exists", exists),
        "lexists": Builtin("lexists", exists),
        "isfile": Builtin("isfile", is_file),
        "isdir": Builtin("isdir", is_folder),
        "basename": of_text("basename", posixpath.basename),
        "dirname": of_text("dirname", posixpath.dirname),
        "splitext": of_text("splitext", posixpath.splitext),
        "split": of_text("split", posixpath.split),
        "normpath": of_text("normpath", posixpath.normpath),
        "isabs": of_text("isabs", posixpath.isabs),
        "expanduser": of_text("expanduser", lambda shown: shown),
        "expandvars": of_text("expandvars", lambda shown: shown),
        "abspath": of_text("abspath", posixpath.normpath),
        "realpath": of_text("realpath", posixpath.normpath),
        "relpath": of_text("relpath", lambda shown: shown),
        "getsize": Builtin("getsize", lambda it, a, k: Symbol("the size of a file")),
        "getmtime": Builtin("getmtime", lambda it, a, k: Symbol("the time of a file", is_int=False)),
        "sep": "/",
    }
