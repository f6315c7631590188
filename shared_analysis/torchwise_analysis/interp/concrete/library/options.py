"""`argparse`: every option takes its default, because nobody calls the script.

What a script gets from `parse_args()` is what it would get without arguments. Options that must be given are
taken from a line of the project that starts the script, where there is one, else they are unknown. The
answer says which.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.errors import Raised
from torchwise_analysis.interp.concrete.library.launch import launch_lines, option_value
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    Instance,
    Int,
    Keywords,
    Opaque,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter


# Switches without which a script would stay on the CPU.
_CARD_SWITCHES = frozenset({"cuda", "use_cuda", "gpu", "use_gpu", "accel", "use_accel"})


def argparse_module(it: Interpreter) -> dict[str, Value]:
    space = Class("Namespace", (it.types.object,), module="argparse")
    space.mro = (space, it.types.object)
    space.members["__init__"] = Builtin("__init__", _fill)
    space.members["__contains__"] = Builtin(
        "__contains__", lambda it, a, k: a[1] in cast(Instance, a[0]).attributes
    )
    it.types.by_name["argparse.Namespace"] = space
    parser = Builtin("ArgumentParser", _parser)
    formats = (
        "HelpFormatter",
        "ArgumentDefaultsHelpFormatter",
        "RawTextHelpFormatter",
        "RawDescriptionHelpFormatter",
    )
    return {
        "ArgumentParser": parser,
        "Namespace": space,
        "SUPPRESS": "==SUPPRESS==",
        "REMAINDER": "...",
        "BooleanOptionalAction": Opaque("argparse.BooleanOptionalAction"),
        "FileType": Builtin("FileType", lambda it, a, k: Unknown("a file", it.origin())),
        **{name: Opaque(name) for name in formats},
    }


def _fill(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    cast(Instance, args[0]).attributes.update(keywords)
    return None


def _parser(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    options: dict[str, Value] = {}
    parents = keywords.get("parents")
    for parent in it.iterate(parents) if isinstance(parents, (list, tuple)) else ():
        if isinstance(parent, Opaque) and isinstance(parent.payload, dict):
            options.update(cast("dict[str, Value]", parent.payload))
    return make_parser(it, options)


def make_parser(it: Interpreter, values: dict[str, Value] | None = None) -> Opaque:
    """An `ArgumentParser`; groups and sub-parsers share their parser's options."""
    options: dict[str, Value] = {} if values is None else values
    parser = Opaque("argparse.ArgumentParser", payload=options)

    def add_argument(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        name, value = _option(it, args, keywords)
        if name:
            options.setdefault(name, value)
        return Opaque("argparse.Action", {"dest": name})

    def set_defaults(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        options.update({name: _as_default(value) for name, value in keywords.items()})
        return None

    def same(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return make_parser(it, options)

    def parse(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        it.assume("command-line options have their default values")
        space = it.types.by_name["argparse.Namespace"]
        given = keywords.get("namespace", args[1] if len(args) > 1 else None)
        made = given if isinstance(given, Instance) else Instance(space)
        for name, value in options.items():
            made.attributes.setdefault(name, value)
        return made

    def parse_known(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return (parse(it, args, keywords), [])

    table = {
        "add_argument": add_argument,
        "set_defaults": set_defaults,
        "add_argument_group": same,
        "add_mutually_exclusive_group": same,
        "add_subparsers": same,
        "add_parser": same,
        "parse_args": parse,
        "parse_known_args": parse_known,
        "print_help": lambda it, a, k: None,
        "get_default": lambda it, a, k: options.get(text.text_of(it, a[0])),
        "error": lambda it, a, k: None,
    }
    parser.attributes.update({name: Builtin(name, call) for name, call in table.items()})
    return parser


def _option(it: Interpreter, args: list[Value], keywords: Keywords) -> tuple[str, Value]:
    names = [text.text_of(it, a) for a in args if isinstance(a, str)]
    if not names and "dest" not in keywords:
        return "", None
    long = next((n for n in names if n.startswith("--")), names[0] if names else "")
    name = text.text_of(it, keywords.get("dest", long.lstrip("-").replace("-", "_")))
    shown = long or name
    if name in it.stated:
        value, where = it.stated[name]
        it.assume(f"{shown} is {value}, as line {where.line} states")
        return name, it.library.stated_value(value)
    action = keywords.get("action")
    if action == "store_true":
        if name in _CARD_SWITCHES:
            it.assume(f"{shown} is given: the question is about a card")
            return name, True
        return name, keywords.get("default", False)
    if action == "store_false":
        return name, keywords.get("default", True)
    if "default" in keywords:
        place = (
            _from_launch_line(it, names, shown, keywords)
            if _names_data(name, keywords["default"])
            else MISSING
        )
        return name, _typed_default(it, keywords) if place is MISSING else place
    if action in ("version", "help"):
        return "", None
    if action == "count" or (shown.startswith("-") and keywords.get("required") is not True):
        return name, None
    given = _from_launch_line(it, names, shown, keywords)
    if given is not MISSING:
        return name, given
    choices = keywords.get("choices")
    if isinstance(choices, (list, tuple)) and choices:
        it.assume(f"{shown} is {text.text_of(it, choices[0])}, the first of its choices")
        return name, choices[0]
    if keywords.get("nargs") in ("?", "*", "..."):
        return name, None if keywords.get("nargs") == "?" else []
    return name, Unknown(f"the option {shown}, which has no default", it.origin())


def _names_data(name: str, default: Value) -> bool:
    """Whether an option says where the data is and is left empty: which folder it is changes nothing else."""
    return default == "" and "data" in name


def _from_launch_line(it: Interpreter, names: list[str], shown: str, keywords: Keywords) -> Value:
    """The value that the project's own launch line gives an option that must be given."""
    if not shown.startswith("-"):
        return MISSING
    for line in launch_lines(it):
        value = option_value(line, names)
        if value is None:
            continue
        converted: Value = value
        if "type" in keywords:
            try:
                converted = it.call(keywords["type"], [value], {})
            except Raised:
                continue
        it.assume(f"{shown} is {value}, as {line.where} starts the script")
        return converted
    return MISSING


def _typed_default(it: Interpreter, keywords: Keywords) -> Value:
    value = keywords["default"]
    if isinstance(value, str) and "type" in keywords:
        value = it.call(keywords["type"], [value], {})
    return _as_default(value)


def _as_default(value: Value) -> Value:
    return Int(int(value), value.origin, value.columns, "default") if isinstance(value, Int) else value
