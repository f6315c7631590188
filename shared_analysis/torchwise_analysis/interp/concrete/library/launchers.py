"""What starts a program's `main`: process launchers and command-line libraries. One process is followed.

Options of click, fire and typer take their defaults or a launch line's words, as argparse's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.library import options, typed_options
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    Keywords,
    Namespace,
    NativeCall,
    Opaque,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter


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


# --------------------------------------------------------------------------- fire, typer


def fire_module(it: Interpreter) -> Namespace:
    """`fire`."""
    return Namespace("fire", {"Fire": Builtin("fire.Fire", typed_options.started)})


def typer_module(it: Interpreter) -> Namespace:
    """`typer`: `run` and an app with its commands."""

    def default(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        value = args[0] if args else keywords.get("default", ...)
        return Unknown("an argument that must be given", it.origin()) if value is ... else value

    return Namespace(
        "typer",
        {
            "run": Builtin("typer.run", typed_options.started),
            "Option": Builtin("typer.Option", default),
            "Argument": Builtin("typer.Argument", default),
            "Typer": Builtin("typer.Typer", _typer_app),
            "echo": Builtin("typer.echo", _nothing),
        },
    )


def _typer_app(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    commands: dict[Value, Value] = {}

    def command(it: Interpreter, given: list[Value], named: Keywords) -> Value:
        shown = given[0] if given and isinstance(given[0], str) else named.get("name")

        def keep(it: Interpreter, functions: list[Value], _: Keywords) -> Value:
            own = getattr(functions[0], "name", "")
            commands[shown if isinstance(shown, str) else str(own).replace("_", "-")] = functions[0]
            return functions[0]

        return keep(it, given, {}) if given and not isinstance(given[0], str) else Builtin("command", keep)

    def start(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        return typed_options.started(it, [commands], {}) if commands else None

    same = Builtin("callback", lambda it, a, k: Builtin("callback", lambda it, a, k: a[0]))
    table: dict[str, Value] = {"command": Builtin("command", command), "callback": same}
    table["add_typer"] = Builtin("add_typer", _nothing)
    return Opaque("typer.Typer", table, call=start)


# --------------------------------------------------------------------------- click


def click_module(it: Interpreter) -> Namespace:
    """`click`: a command called without arguments gets its options' defaults, or a launch line's words."""

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
        "group": Builtin("click.group", _group),
        "option": Builtin("click.option", option),
        "argument": Builtin("click.argument", option),
        "pass_context": Builtin("click.pass_context", _pass_context),
        "echo": Builtin("click.echo", _nothing),
        "Context": Opaque("click.Context"),
    }
    for name in ("Choice", "Path", "IntRange", "FloatRange", "File", "Tuple"):
        members[name] = Builtin(name, _parameter_type(name))
    for name in ("ClickException", "UsageError", "BadParameter"):
        members[name] = it.types.by_name["ValueError"]
    members["ParamType"] = it.types.named("ParamType")
    members["STRING"] = it.types.by_name["str"]
    members["INT"] = it.types.by_name["int"]
    return Namespace("click", members)


def _parameter_type(name: str) -> NativeCall:
    return lambda it, a, k: Opaque(f"click.{name}")


def _group(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Several commands: the one that the launch line names, else the one that trains."""
    commands: dict[Value, Value] = {}

    def command(it: Interpreter, given: list[Value], named: Keywords) -> Value:
        shown = given[0] if given and isinstance(given[0], str) else named.get("name")

        def keep(it: Interpreter, functions: list[Value], _: Keywords) -> Value:
            commands[shown if isinstance(shown, str) else _name_of(functions[0])] = functions[0]
            return functions[0]

        return keep(it, given, {}) if given and not isinstance(given[0], str) else Builtin("command", keep)

    def start(it: Interpreter, given: list[Value], named: Keywords) -> Value:
        chosen = typed_options.first_command(it, commands)
        return None if chosen is None else it.call(chosen, [], {})

    def make(it: Interpreter, functions: list[Value], _: Keywords) -> Value:
        table: dict[str, Value] = {
            "command": Builtin("command", command),
            "add_command": Builtin("add", command),
        }
        return Opaque("click.Group", table, call=start)

    return make(it, args, {}) if args and not isinstance(args[0], str) else Builtin("click.group", make)


def _name_of(function: Value) -> str:
    return str(getattr(function, "name", "")).replace("_", "-")


def _pass_context(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The function gets a context first, which nobody asks for much."""
    function = args[0]

    def fail(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        raise it.error("ValueError", given[0] if given else "the command fails")

    def call(it: Interpreter, given: list[Value], named: Keywords) -> Value:
        context = Opaque("click.Context", {"obj": dict[Value, Value](), "fail": Builtin("fail", fail)})
        context.attributes["params"] = dict(named)
        return it.call(function, [context, *given], named)

    return Builtin(_name_of(function) or "click.command", call)


def _click_option(it: Interpreter, names: list[str], keywords: Keywords) -> tuple[str, Value]:
    plain = [n for n in names if not n.startswith("-")]
    long = next((n for n in names if n.startswith("--")), names[0] if names else "")
    positive, slash, negative = long.partition("/")
    name = plain[0] if plain else positive.lstrip("-").replace("-", "_")
    if name in it.stated:
        return name, it.library.stated_value(it.stated[name][0])
    words = typed_options.settings_of(it.argv)
    keys = [n.partition("/")[0].lstrip("-").replace("-", "_") for n in names if n.startswith("-")]
    given = next((key for key in keys if key in words), None)
    is_text = isinstance(keywords.get("type"), Class) and cast(Class, keywords["type"]).name == "str"
    if given is not None:
        return name, typed_options.converted(it, words[given], "str" if is_text else "", MISSING, name)
    if slash and negative.strip().lstrip("-").replace("-", "_") in words:
        return name, False
    if "default" in keywords:
        return name, options.as_default(keywords["default"])
    if keywords.get("is_flag") is True:
        return name, False
    if keywords.get("required") is True or (plain and not long.startswith("-")):
        return name, typed_options.required(it, name, "str" if is_text else "")
    return name, () if keywords.get("multiple") is True else None


def _with_option(function: Value, name: str, value: Value) -> Builtin:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        keywords.setdefault(name, value)
        if not it.argv:
            it.assume("command-line options have their default values")
        return it.call(function, args, keywords)

    return Builtin(_name_of(function) or "click.command", call)
