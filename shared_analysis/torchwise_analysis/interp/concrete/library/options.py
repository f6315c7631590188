"""`argparse`: what a parser's options are when the script is started.

Without arguments every option takes its default, because nobody calls the script; options that must be given
are then taken from a line of the project that starts the script, where there is one, else they are not known.
For one launch line the words of that line are parsed as `argparse` would. The answer says which.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.errors import Raised
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
from torchwise_analysis.names.launches import LaunchLine, lines_for, option_value, plain_word, stated_by
from torchwise_memory.report import Origin

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# Switches without which a script would stay on the CPU.
_CARD_SWITCHES = frozenset({"cuda", "use_cuda", "gpu", "use_gpu", "accel", "use_accel"})
# Of several commands of a script the one that trains is meant.
_TRAINING_COMMANDS = ("train", "fit", "run", "pretrain", "finetune")
_NUMBER = re.compile(r"-\d+(\.\d*)?(e[+-]?\d+)?$|-\.\d+$", re.IGNORECASE)
_STATE = "__parser__"


@dataclass(slots=True)
class _Option:
    """One `add_argument`: flags are empty for a positional one."""

    flags: tuple[str, ...]
    dest: str
    given: Keywords


@dataclass(slots=True)
class _State:
    """What a parser knows: options, the values they have without arguments, and commands."""

    options: list[_Option] = field(default_factory=list[_Option])
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    commands: dict[str, Instance] = field(default_factory=dict[str, Instance])
    command_dest: str = ""


Method: TypeAlias = "Callable[[Interpreter, Instance, list[Value], Keywords], Value]"


def argparse_module(it: Interpreter) -> dict[str, Value]:
    space = Class("Namespace", (it.types.object,), module="argparse")
    space.mro = (space, it.types.object)
    space.members["__init__"] = Builtin("__init__", _fill)
    space.members["__contains__"] = Builtin(
        "__contains__", lambda it, a, k: a[1] in cast(Instance, a[0]).attributes
    )
    it.types.by_name["argparse.Namespace"] = space
    action = Class("Action", (it.types.object,), module="argparse")
    action.mro = (action, it.types.object)
    formats = (
        "HelpFormatter",
        "ArgumentDefaultsHelpFormatter",
        "RawTextHelpFormatter",
        "RawDescriptionHelpFormatter",
        "MetavarTypeHelpFormatter",
    )
    return {
        "ArgumentParser": parser_class(it),
        "Namespace": space,
        "Action": action,
        "SUPPRESS": "==SUPPRESS==",
        "REMAINDER": "...",
        "OPTIONAL": "?",
        "ZERO_OR_MORE": "*",
        "ONE_OR_MORE": "+",
        "BooleanOptionalAction": Opaque("argparse.BooleanOptionalAction"),
        "ArgumentTypeError": it.types.by_name["ValueError"],
        "ArgumentError": it.types.by_name["ValueError"],
        "FileType": Builtin("FileType", lambda it, a, k: Unknown("a file", it.origin())),
        **{name: Opaque(name) for name in formats},
    }


def parser_class(it: Interpreter) -> Class:
    """`argparse.ArgumentParser`, one class a run, so that a program may derive from it."""
    known = it.types.by_name.get("argparse.ArgumentParser")
    if known is not None:
        return known
    cls = Class("ArgumentParser", (it.types.object,), module="argparse", tag="argparse.ArgumentParser")
    cls.mro = (cls, it.types.object)
    table: dict[str, Method] = {
        "__init__": _initialize,
        "add_argument": _add_argument,
        "set_defaults": _set_defaults,
        "add_argument_group": _same_options,
        "add_mutually_exclusive_group": _same_options,
        "add_subparsers": _add_subparsers,
        "parse_args": _parse_args,
        "parse_known_args": _parse_known_args,
        "parse_intermixed_args": _parse_args,
        "get_default": lambda it, parser, a, k: state_of(parser).values.get(text.text_of(it, a[0])),
    }
    for name in ("print_help", "error", "register", "print_usage", "exit"):
        table[name] = _nothing
    cls.members.update({name: _method(name, call) for name, call in table.items()})
    it.types.by_name["argparse.ArgumentParser"] = cls
    return cls


def _method(name: str, call: Method) -> Builtin:
    return Builtin(name, lambda it, a, k: call(it, cast(Instance, a[0]), a[1:], k))


def state_of(parser: Instance) -> _State:
    """The options of a parser or of one of its groups."""
    holder = parser.attributes.get(_STATE)
    if not isinstance(holder, Opaque) or not isinstance(holder.payload, _State):
        # a subclass that does not call the base's `__init__`
        holder = parser.attributes[_STATE] = Opaque("argparse options", payload=_State())
    return cast(_State, holder.payload)


def _nothing(it: Interpreter, parser: Instance, args: list[Value], keywords: Keywords) -> Value:
    return None


def _fill(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    cast(Instance, args[0]).attributes.update(keywords)
    return None


def _initialize(it: Interpreter, parser: Instance, args: list[Value], keywords: Keywords) -> Value:
    state = _State()
    parser.attributes[_STATE] = Opaque("argparse options", payload=state)
    parents = keywords.get("parents")
    for parent in it.iterate(parents) if isinstance(parents, (list, tuple)) else ():
        if isinstance(parent, Instance):
            inherited = state_of(parent)
            state.options += inherited.options
            state.values.update(inherited.values)
    for name in ("description", "usage", "prog"):
        parser.attributes[name] = keywords.get(name)
    return None


def _add_argument(it: Interpreter, parser: Instance, args: list[Value], keywords: Keywords) -> Value:
    state = state_of(parser)
    name, value = _option(it, args, keywords)
    if name:
        flags = tuple(text.text_of(it, a) for a in args if isinstance(a, str) and a.startswith("-"))
        state.options.append(_Option(flags, name, dict(keywords)))
        state.values.setdefault(name, value)
    return Opaque("argparse.Action", {"dest": name})


def _set_defaults(it: Interpreter, parser: Instance, args: list[Value], keywords: Keywords) -> Value:
    state_of(parser).values.update({name: as_default(value) for name, value in keywords.items()})
    return None


def _same_options(it: Interpreter, parser: Instance, args: list[Value], keywords: Keywords) -> Value:
    state_of(parser)
    group = Instance(parser_class(it))
    group.attributes[_STATE] = parser.attributes[_STATE]
    return group


# --------------------------------------------------------------------------- commands


def _add_subparsers(it: Interpreter, parser: Instance, args: list[Value], keywords: Keywords) -> Value:
    state = state_of(parser)
    dest = keywords.get("dest")
    state.command_dest = dest if isinstance(dest, str) else ""
    made = keywords.get("parser_class")
    cls = made if isinstance(made, Class) else parser_class(it)

    def add_parser(it: Interpreter, given: list[Value], named: Keywords) -> Value:
        name = text.text_of(it, given[0] if given else named.get("name"))
        inner = Instance(cls)
        _initialize(it, inner, [], {k: v for k, v in named.items() if k == "parents"})
        state.commands[name] = inner
        return inner

    return Opaque("argparse.SubParsers", {"add_parser": Builtin("add_parser", add_parser)})


def _chosen_command(it: Interpreter, state: _State, words: list[str]) -> str:
    """The command that the words name, else the one that trains, else the first."""
    named = next((word for word in words if word in state.commands), "")
    if named:
        words.remove(named)
        return named
    fitting = [name for name in state.commands if name.lower().startswith(_TRAINING_COMMANDS)]
    name = next(iter([*fitting, *state.commands]))
    it.assume(f"of the commands of the script {name} is meant")
    return name


# --------------------------------------------------------------------------- parsing


def _parse_args(it: Interpreter, parser: Instance, args: list[Value], keywords: Keywords) -> Value:
    own = it.get_attribute(parser, "parse_known_args")
    result = it.call(own, args, keywords)
    if not isinstance(result, tuple) or len(cast("tuple[Value, ...]", result)) != 2:
        return result
    values, rest = cast("tuple[Value, Value]", result)
    for word in cast("list[Value]", rest) if isinstance(rest, list) else ():
        if isinstance(word, str) and _is_flag(word):
            it.assume(f"no option {word.partition('=')[0]} was found in the script: it changes nothing")
    return values


def _parse_known_args(it: Interpreter, parser: Instance, args: list[Value], keywords: Keywords) -> Value:
    given = keywords.get("namespace", args[1] if len(args) > 1 else None)
    made = given if isinstance(given, Instance) else Instance(it.types.by_name["argparse.Namespace"])
    words = _given_words(it, keywords.get("args", args[0] if args else None))
    rest: list[str] = []
    values = _values_of(it, state_of(parser), words, rest)
    for name, value in values.items():
        made.attributes.setdefault(name, value)
    return (made, list[Value](rest))


def _given_words(it: Interpreter, explicit: Value) -> list[str]:
    """The words that are parsed: those of the call, else those that the script is started with."""
    if isinstance(explicit, (list, tuple)):
        words = [word for word in cast("list[Value]", explicit) if isinstance(word, str)]
        if words:
            return words
    if not it.argv:
        it.assume("command-line options have their default values")
    return list(it.argv)


def _values_of(it: Interpreter, state: _State, words: list[str], rest: list[str]) -> dict[str, Value]:
    """The value of every option; `rest` takes the words that no option takes."""
    values = dict(state.values)
    if state.commands:
        command = _chosen_command(it, state, words)
        if state.command_dest:
            values[state.command_dest] = command
        inner = state_of(state.commands[command])
        values.update(inner.values)
        state = _State([*state.options, *inner.options], values, dict(inner.commands), inner.command_dest)
        if state.commands:
            return _values_of(it, state, words, rest)
    positional = [option for option in state.options if not option.flags]
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if word == "--":
            continue
        if _is_flag(word):
            option = _by_flag(state, flag)
            if option is None:
                rest.append(word)
                continue
            if equals:
                words.insert(0, value)
            _set(it, values, option, flag, words, bool(equals))
        elif positional:
            words.insert(0, word)
            _set(it, values, positional.pop(0), "", words, False)
        else:
            rest.append(word)
    return values


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and _NUMBER.match(word) is None


def _by_flag(state: _State, flag: str) -> _Option | None:
    for option in state.options:
        if flag in option.flags or _negated(option, flag):
            return option
    if not flag.startswith("--"):
        return None
    fitting = [option for option in state.options if any(f.startswith(flag) for f in option.flags)]
    return fitting[0] if len(fitting) == 1 else None


def _negated(option: _Option, flag: str) -> bool:
    action = option.given.get("action")
    is_boolean = isinstance(action, Opaque) and action.kind == "argparse.BooleanOptionalAction"
    return is_boolean and flag.startswith("--no-") and "--" + flag[5:] in option.flags


def _set(
    it: Interpreter, values: dict[str, Value], option: _Option, flag: str, words: list[str], has_value: bool
) -> None:
    action, nargs = option.given.get("action"), option.given.get("nargs")
    dest = option.dest
    if dest in it.stated:
        _taken(words, nargs, has_value) if action not in _SWITCHES else None
        return
    if isinstance(action, Opaque) and action.kind == "argparse.BooleanOptionalAction":
        values[dest] = not flag.startswith("--no-") or flag in option.flags
    elif action in ("store_true", "store_false"):
        values[dest] = action == "store_true"
    elif action == "store_const":
        values[dest] = option.given.get("const")
    elif action == "count":
        before = values.get(dest)
        values[dest] = (before if isinstance(before, int) else 0) + 1
    elif action == "append":
        before = values.get(dest)
        added = [_converted(it, option, word) for word in _taken(words, None, has_value)]
        values[dest] = [*(cast("list[Value]", before) if isinstance(before, list) else ()), *added]
    elif action not in ("help", "version"):
        taken = [_converted(it, option, word) for word in _taken(words, nargs, has_value)]
        if nargs in (None, "?"):
            values[dest] = taken[0] if taken else option.given.get("const")
        else:
            values[dest] = taken


_SWITCHES = ("store_true", "store_false", "store_const", "count", "help", "version")


def _taken(words: list[str], nargs: Value, has_value: bool) -> list[str]:
    """The words that belong to an option, taken off the list."""
    if nargs is None or (nargs == "?" and has_value):
        most = 1
    elif isinstance(nargs, int):
        most = nargs
    else:
        most = 1 if nargs == "?" else len(words)
    taken: list[str] = []
    while (
        words
        and len(taken) < most
        and (nargs == "..." or not _is_flag(words[0]) or (has_value and not taken))
    ):
        taken.append(words.pop(0))
    return taken


def _converted(it: Interpreter, option: _Option, word: str) -> Value:
    if plain_word(word) is None and word:
        return Unknown(f"the value {word} of {option.flags[0] if option.flags else option.dest}", it.origin())
    value: Value = word
    if "type" in option.given:
        failed = False
        try:
            value = it.call(option.given["type"], [word], {})
        except Raised:
            failed = True
        if failed:
            return Unknown(f"the value {word} of {option.dest}", it.origin())
    return of_launch(it, value)


def of_launch(it: Interpreter, value: Value) -> Value:
    """A number of a launch line, with the line's place."""
    if it.launch is not None and isinstance(value, int) and value.__class__ is int:
        return Int(value, Origin(it.launch.path, it.launch.line))
    return value


# --------------------------------------------------------------------------- without arguments


def _option(it: Interpreter, args: list[Value], keywords: Keywords) -> tuple[str, Value]:
    names = [text.text_of(it, a) for a in args if isinstance(a, str)]
    if not names and "dest" not in keywords:
        return "", None
    long = next((n for n in names if n.startswith("--")), names[0] if names else "")
    name = text.text_of(it, keywords.get("dest", long.lstrip("-").replace("-", "_")))
    shown = long or name
    if name in it.stated:
        value, where = it.stated[name]
        it.assume(f"{shown} is {value}, {stated_by(where)}")
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
        if place is MISSING and _is_open_place(name, keywords["default"]):
            return name, Unknown(f"the folder that {shown} names", it.origin())
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


def _is_open_place(name: str, default: Value) -> bool:
    """Whether an option is a data folder that nobody names: scripts refuse to start without it."""
    return default == "" and "data" in name and name.endswith(("dir", "path", "root", "folder", "file"))


def launch_lines(it: Interpreter) -> tuple[LaunchLine, ...]:
    """Lines of the project that start the script under analysis, nearest folder first."""
    return lines_for(it.library.imports.main_path, it.project.roots)


def _from_launch_line(it: Interpreter, names: list[str], shown: str, keywords: Keywords) -> Value:
    """The value that the project's own launch line gives an option that must be given."""
    if not shown.startswith("-"):
        return _first_positional(it, keywords)
    for line in (it.launch,) if it.launch is not None else launch_lines(it):
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


def _first_positional(it: Interpreter, keywords: Keywords) -> Value:
    """The first word behind the script's name, where launch lines put something there that is no option."""
    if it.launch is not None or "type" in keywords or "nargs" in keywords:
        return MISSING
    for line in launch_lines(it):
        first = line.words[0] if line.words else ""
        if first and not first.startswith("-") and "=" not in first and plain_word(first) is not None:
            it.assume(f"the first argument is {first}, as {line.where} starts the script")
            return first
    return MISSING


def _typed_default(it: Interpreter, keywords: Keywords) -> Value:
    value = keywords["default"]
    if isinstance(value, str) and "type" in keywords:
        value = it.call(keywords["type"], [value], {})
    return as_default(value)


def as_default(value: Value) -> Value:
    """A number that is an option's default, marked as such for the plan."""
    return Int(int(value), value.origin, value.columns, "default") if isinstance(value, Int) else value
