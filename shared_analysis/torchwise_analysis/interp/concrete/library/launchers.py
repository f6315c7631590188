"""What starts a program's `main`: process launchers and command-line libraries. One process is followed.

Options of click, fire and typer take their defaults, as argparse's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.values import (
    BoundMethod,
    Builtin,
    Function,
    Keywords,
    Namespace,
    Opaque,
    Unknown,
    Value,
)
from torchwise_analysis.source.nodes import ParamKind

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

_PARAMETERS = (ParamKind.POSITIONAL, ParamKind.POSITIONAL_ONLY, ParamKind.KEYWORD_ONLY)


def multiprocessing_members(prefix: str) -> dict[str, Value]:
    """`spawn` and `Process` of `multiprocessing` and `torch.multiprocessing`."""
    members: dict[str, Value] = {
        f"{prefix}spawn": Builtin("spawn", _spawn),
        f"{prefix}start_processes": Builtin("start_processes", _spawn),
        f"{prefix}Process": Builtin("Process", _process),
    }
    for name in ("set_start_method", "set_sharing_strategy", "freeze_support"):
        members[f"{prefix}{name}"] = Builtin(name, _nothing)
    members[f"{prefix}cpu_count"] = Builtin("cpu_count", lambda it, a, k: 8)
    return members


def _nothing(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return None


def _spawn(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    function = args[0] if args else keywords.get("fn")
    given = args[1] if len(args) > 1 else keywords.get("args", ())
    it.assume("of the processes that are spawned the first one is followed")
    it.call(function, [0, *it.iterate(given)], {})
    return Opaque("multiprocessing.ProcessContext", {"join": Builtin("join", lambda it, a, k: True)})


def _process(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    function, given = keywords.get("target"), keywords.get("args", ())
    named = keywords.get("kwargs", {})

    def start(it: Interpreter, _: list[Value], __: Keywords) -> Value:
        it.assume("a process that is started runs at once, to its end")
        return it.call(function, list(it.iterate(given)), it.as_keywords(named))

    inert = {name: Builtin(name, _nothing) for name in ("join", "terminate", "close", "kill")}
    return Opaque("multiprocessing.Process", {"start": Builtin("start", start), "exitcode": 0, **inert})


# --------------------------------------------------------------------------- fire, typer, absl


def fire_module(it: Interpreter) -> Namespace:
    """`fire`."""
    return Namespace("fire", {"Fire": Builtin("fire.Fire", _started)})


def typer_module(it: Interpreter) -> Namespace:
    """`typer`: `run` and an app with one command."""

    def default(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        value = args[0] if args else keywords.get("default", ...)
        return Unknown("an argument that must be given", it.origin()) if value is ... else value

    return Namespace(
        "typer",
        {
            "run": Builtin("typer.run", _started),
            "Option": Builtin("typer.Option", default),
            "Argument": Builtin("typer.Argument", default),
            "Typer": Builtin("typer.Typer", _typer_app),
            "echo": Builtin("typer.echo", _nothing),
        },
    )


def _typer_app(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    commands: list[Value] = []

    def keep(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        commands.append(given[0])
        return given[0]

    def start(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        return _started(it, [commands[0]], {}) if commands else None

    decorator = Builtin("command", lambda it, a, k: Builtin("command", keep))
    return Opaque("typer.Typer", {"command": decorator, "callback": decorator}, call=start)


def _started(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Call a function with its defaults; parameters without one are not known."""
    function = args[0] if args else keywords.get("component")
    it.assume("command-line options have their default values")
    if isinstance(function, dict):
        function = next(iter(cast("dict[Value, Value]", function).values()), None)
    return it.call(function, [], _open_parameters(it, function))


def _open_parameters(it: Interpreter, function: Value) -> Keywords:
    skipped = 0
    if isinstance(function, BoundMethod):
        function, skipped = function.function, 1
    if not isinstance(function, Function):
        return {}
    params = [p for p in function.node.params if p.kind in _PARAMETERS][skipped:]
    return {
        p.name: Unknown(f"the argument {p.name}, which has no default", it.origin())
        for p in params
        if p.name not in function.defaults
    }


# --------------------------------------------------------------------------- click


def click_module(it: Interpreter) -> Namespace:
    """`click`: a command called without arguments gets the defaults of its options."""

    def option(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        name, value = _click_option(it, [text.text_of(it, a) for a in args if isinstance(a, str)], keywords)

        def decorate(it: Interpreter, given: list[Value], _: Keywords) -> Value:
            return _with_option(given[0], name, value)

        return Builtin("click.option", decorate)

    def command(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        if args and not isinstance(args[0], str):
            return args[0]
        return Builtin("click.command", lambda it, a, k: a[0])

    members: dict[str, Value] = {
        "command": Builtin("click.command", command),
        "group": Builtin("click.group", command),
        "option": Builtin("click.option", option),
        "argument": Builtin("click.argument", option),
        "pass_context": Builtin("click.pass_context", lambda it, a, k: a[0]),
        "echo": Builtin("click.echo", _nothing),
    }
    for name in ("Choice", "Path", "IntRange", "FloatRange", "File"):
        members[name] = Builtin(name, lambda it, a, k: Opaque("click.ParamType"))
    return Namespace("click", members)


def _click_option(it: Interpreter, names: list[str], keywords: Keywords) -> tuple[str, Value]:
    plain = [n for n in names if not n.startswith("-")]
    long = next((n for n in names if n.startswith("--")), names[0] if names else "")
    name = plain[0] if plain else long.lstrip("-").partition("/")[0].replace("-", "_")
    if "default" in keywords:
        return name, keywords["default"]
    if keywords.get("is_flag") is True:
        return name, False
    if keywords.get("required") is True or (plain and not long.startswith("-")):
        return name, Unknown(f"the option {long}, which has no default", it.origin())
    return name, () if keywords.get("multiple") is True else None


def _with_option(function: Value, name: str, value: Value) -> Builtin:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        if not args:
            keywords.setdefault(name, value)
            it.assume("command-line options have their default values")
        return it.call(function, args, keywords)

    return Builtin("click.command", call)
