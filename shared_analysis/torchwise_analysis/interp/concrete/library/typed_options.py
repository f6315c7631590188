"""Command lines that follow from types: dataclasses, functions and settings, filled from a launch line.

transformers' and TRL's parsers, tyro, simple-parsing, jsonargparse, LightningCLI, absl. Without arguments
every field takes its default; a field that must be given is looked up on the project's launch lines, else it
is not known.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import classes, text
from torchwise_analysis.interp.concrete.errors import Stopped
from torchwise_analysis.interp.concrete.library import configs, files
from torchwise_analysis.interp.concrete.library.options import launch_lines, of_launch
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    BoundMethod,
    Builtin,
    Class,
    Function,
    Instance,
    Int,
    Keywords,
    Namespace,
    Opaque,
    Unknown,
    Value,
)
from torchwise_analysis.names.launches import LaunchLine, option_value, plain_word, stated_by
from torchwise_analysis.source import nodes
from torchwise_analysis.source.nodes import ParamKind

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

_PARAMETERS = (ParamKind.POSITIONAL, ParamKind.POSITIONAL_ONLY, ParamKind.KEYWORD_ONLY)
_LISTS = frozenset({"list", "List", "Sequence", "tuple", "Tuple", "set", "Set"})
_TEXTS = frozenset({"str", "Literal", "Path", "PathLike"})
_WHOLE = re.compile(r"[+-]?\d[\d_]*$")
_BROKEN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)
_WORDS: dict[str, Value] = {"true": True, "false": False, "none": None, "null": None}
_MAX_DEPTH = 8


def helpers() -> dict[str, Value]:
    """Names that only the replacement texts see."""
    return {
        "__filled__": Builtin("__filled__", _filled),
        "__words__": Builtin("__words__", _words),
        "__settings_file__": Builtin("__settings_file__", _settings_file),
        "__launcher__": Builtin("__launcher__", _launcher),
        "__annotated_names__": Builtin("__annotated_names__", _annotated_names),
        "__settings_word__": Builtin("__settings_word__", _settings_word),
        "__env_file__": Builtin("__env_file__", _env_file),
        "__cli_settings__": Builtin("__cli_settings__", _cli_settings),
        "__called__": Builtin("__called__", _called),
        "__target__": Builtin("__target__", lambda it, a, k: configs.target(it, text.text_of(it, a[0]))),
        "__scalar__": Builtin("__scalar__", lambda it, a, k: scalar(a[0]) if isinstance(a[0], str) else a[0]),
    }


# --------------------------------------------------------------------------- words


def settings_of(words: tuple[str, ...]) -> dict[str, Value]:
    """`--a 1 --b.c x y --flag -s 2` as names and words: None for a switch, a list for several words."""
    found: dict[str, Value] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not _is_option(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        taken: list[str] = [value] if equals else []
        while not equals and position < len(words) and not _is_option(words[position]):
            taken.append(words[position])
            position += 1
        found[name.replace("-", "_")] = (
            None if not taken else taken[0] if len(taken) == 1 else list[Value](taken)
        )
    return found


def _is_option(word: str) -> bool:
    """Whether a word names an option; a negative number is a value."""
    return len(word.lstrip("-")) > 0 and (word.startswith("--") or (word[:1] == "-" and word[1].isalpha()))


def _words(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The names and words that the script is started with, or those of a list that is given."""
    given = args[0] if args else None
    if isinstance(given, (list, tuple)):
        return settings_of(tuple(word for word in cast("list[Value]", given) if isinstance(word, str)))
    if not it.argv:
        it.assume("command-line options have their default values")
    return settings_of(it.argv)


def _cli_settings(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`--config FILE --a.b 1` as nested settings; without arguments, of a launch line that gives a file."""
    given = args[0] if args and isinstance(args[0], (list, tuple)) else None
    words = cast("dict[Value, Value]", _words(it, [given] if given is not None else [], {}))
    if not words and given is None:
        for line in launch_lines(it):
            path = option_value(line, ["--config", "-c"])
            if path is not None and files.locate(it, path) is not None:
                it.assume(f"--config is {path}, as {line.where} starts the script")
                words = cast("dict[Value, Value]", {"config": path})
                break
    _with_file(it, words)
    nested: Value = {}
    for name, value in words.items():
        shaped = converted(it, value, "", MISSING, str(name)) if isinstance(value, str) else value
        for part in reversed(str(name).split(".")):
            shaped = {part: shaped}
        nested = configs.merged(nested, shaped)
    return nested


def _annotated_names(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return [name for name, said in _annotations(cast(Class, args[0])).items() if said != "ClassVar"]


def _settings_word(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """A word of a settings file as the annotation of a field takes it."""
    cls, name, word = args
    said = _annotations(cast(Class, cls)).get(text.text_of(it, name))
    return converted(it, word, said or "", MISSING, text.text_of(it, name))


def _env_file(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`NAME=value` lines of a `.env` file of the project; nothing where it is not there."""
    shown = files.path_text(it, args[0])
    content = None if shown is None else files.read_text(it, shown)
    found: dict[Value, Value] = {}
    for line in (content or "").splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and not name.startswith("#"):
            found[name.strip()] = value.strip().strip("\"'")
    return found


def _launcher(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """What `accelerate launch` says: an option of its own, or a field of the file that it is given."""
    line = it.launch
    if line is None or not any(os.path.basename(word) == "accelerate" for word in line.before):
        return None
    name = text.text_of(it, args[0])
    value = line.launcher_option(f"--{name}")
    if value is not None:
        return scalar(value) if name != "mixed_precision" else value
    if f"--{name}" in line.before:
        return True
    path = line.launcher_option("--config_file", "--config-file")
    if path is None:
        return None
    read = _settings_file(it, [path], {})
    return cast("dict[Value, Value]", read).get(name) if isinstance(read, dict) else None


def _called(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return called_with(it, args[0], dict(cast("dict[Value, Value]", args[1])))


def _settings_file(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """A YAML or JSON file of the project as a dictionary; not known where it is not there."""
    shown = files.path_text(it, args[0])
    content = None if shown is None else files.read_text(it, shown)
    if shown is None or content is None:
        return Unknown(f"the settings of {'a file' if shown is None else shown}", it.origin())
    if shown.endswith(".json"):
        try:
            return cast(Value, json.loads(content))
        except (ValueError, RecursionError):
            return Unknown(f"the settings of {shown}", it.origin())
    return configs.parsed_yaml(it, content, files.locate(it, shown) or shown, floats_without_dot=True)


# --------------------------------------------------------------------------- dataclasses


def _filled(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """An instance of a class with what settings say of its fields; taken names leave the settings."""
    cls, settings = args
    if not isinstance(cls, Class) or not isinstance(settings, dict):
        raise Stopped("the options of a script that are not known decide about it", it.origin())
    return filled(it, cls, cast("dict[Value, Value]", settings), "", 0)


def filled(it: Interpreter, cls: Class, settings: dict[Value, Value], prefix: str, depth: int) -> Value:
    """`cls(...)`, its fields from `settings` by their dotted names below `prefix`."""
    given: Keywords = {}
    fields = classes.fields_of(cls)
    annotations = _annotations(cls)
    for field in fields.values():
        if not field.in_init:
            continue
        name = f"{prefix}{field.name}"
        default = field.default
        if name in settings:
            given[field.name] = converted(
                it, settings.pop(name), annotations.get(field.name, ""), default, name
            )
        elif f"no_{name}" in settings:
            settings.pop(f"no_{name}")
            given[field.name] = False
        elif field.name in it.stated:
            value, where = it.stated[field.name]
            it.assume(f"{field.name} is {value}, {stated_by(where)}")
            given[field.name] = it.library.stated_value(value)
        elif depth < _MAX_DEPTH and any(str(key).startswith(f"{name}.") for key in settings):
            given[field.name] = _inner(it, field, settings, name, depth)
        elif default is MISSING and field.factory is MISSING:
            inner = _class_of_field(it, cls, annotations.get(field.name, ""))
            given[field.name] = (
                filled(it, inner, settings, f"{name}.", depth + 1)
                if inner is not None and depth < _MAX_DEPTH
                else required(it, name, annotations.get(field.name, ""))
            )
        elif isinstance(default, Int):
            given[field.name] = Int(int(default), default.origin, default.columns, "default")
    return it.call(cls, [], given)


def _inner(
    it: Interpreter, field: classes.Field, settings: dict[Value, Value], name: str, depth: int
) -> Value:
    """A field that is itself an object with fields, some of which are given by dotted names."""
    made = it.call(field.factory, [], {}) if field.factory is not MISSING else field.default
    if isinstance(made, Instance) and classes.fields_of(made.cls):
        return filled(it, made.cls, settings, f"{name}.", depth + 1)
    return Unknown(f"the option --{name}", it.origin())


def _annotations(cls: Class) -> dict[str, str]:
    found: dict[str, str] = {}
    for base in reversed(cls.mro):
        own = base.members.get("__annotations__")
        if isinstance(own, dict):
            found.update({str(k): str(v) for k, v in cast("dict[Value, Value]", own).items()})
    return found


def _class_of_field(it: Interpreter, cls: Class, annotation: str) -> Class | None:
    """The dataclass that an annotation names, where the module of its class binds it."""
    module = it.library.imports.loaded.get(cls.module)
    if not annotation.isidentifier() or module is None:
        return None
    value = it.find_attribute(module, annotation)
    return value if isinstance(value, Class) and classes.fields_of(value) else None


def required(it: Interpreter, name: str, annotation: str) -> Value:
    """An option without default: what a launch line of the project gives it, else not known."""
    if it.launch is None:
        flags = [f"--{name}", f"--{name.replace('_', '-')}"]
        for line in launch_lines(it):
            value = option_value(line, flags)
            if value is not None:
                it.assume(f"--{name} is {value}, as {line.where} starts the script")
                return converted(it, value, annotation, MISSING, name)
    return Unknown(f"the option --{name}, which has no default", it.origin())


def converted(it: Interpreter, word: Value, annotation: str, default: Value, name: str) -> Value:
    """A word of a command line, or a value of a settings file, as the field wants it."""
    if isinstance(word, list):
        parts = [converted(it, one, "", MISSING, name) for one in cast("list[Value]", word)]
        return parts if annotation in _LISTS or not annotation else parts[0] if len(parts) == 1 else parts
    if word is None and annotation not in ("str", "Optional"):
        return True
    if not isinstance(word, str):
        return word
    if plain_word(word) is None and word:
        return Unknown(f"the value {word} of --{name}", it.origin())
    if isinstance(default, Instance) and classes.enum_members(default.cls):
        return classes.enum_by_value(it, default.cls, word)
    if isinstance(default, bool) or annotation == "bool":
        return _WORDS.get(word.lower(), word.lower() in ("1", "yes", "y", "t"))
    if annotation in _TEXTS or isinstance(default, str):
        return word
    value = of_launch(it, scalar(word))
    return [value] if annotation in _LISTS else value


def scalar(word: str) -> Value:
    """A word as the number or constant it spells."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if _WHOLE.match(word):
        return int(word)
    return float(word) if _BROKEN.match(word) else word


# --------------------------------------------------------------------------- functions


def called_with(it: Interpreter, function: Value, settings: dict[Value, Value]) -> Value:
    """Call a function or class with what settings say of its parameters; others take their defaults."""
    if isinstance(function, Class) and classes.fields_of(function):
        return filled(it, function, settings, "", 0)
    target: Value = function
    if isinstance(target, Class):
        target = target.find("__init__")
    node, skipped = target, 1 if isinstance(function, (Class, BoundMethod)) else 0
    if isinstance(node, BoundMethod):
        node = node.function
    if not isinstance(node, Function):
        return it.call(function, [], {})
    given: Keywords = {}
    params = [p for p in node.node.params if p.kind in _PARAMETERS][skipped:]
    for param in params:
        default = node.defaults.get(param.name, MISSING)
        own = next((name for name in (param.name, *_declared(param)) if name in settings), None)
        if own is not None:
            given[param.name] = converted(it, settings.pop(own), "", default, param.name)
        elif any(settings.get(f"{no}{param.name}", MISSING) is None for no in ("no_", "no")):
            given[param.name] = False  # the switch that turns it off
        elif param.name in it.stated:
            value, where = it.stated[param.name]
            it.assume(f"{param.name} is {value}, {stated_by(where)}")
            given[param.name] = it.library.stated_value(value)
        elif isinstance(default, Instance) and classes.fields_of(default.cls):
            given[param.name] = _changed(it, default, settings, param.name)
        elif default is MISSING:
            given[param.name] = required(it, param.name, "")
        elif isinstance(default, Int):
            given[param.name] = Int(int(default), default.origin, default.columns, "default")
    return it.call(function, [], given)


def _declared(param: nodes.Param) -> list[str]:
    """Other names of an option: `x: int = typer.Option(1, "--size")`, or in its annotation."""
    found: list[str] = []
    for source in (param.annotation, param.default):
        parts: tuple[nodes.Expr | None, ...] = (source,)
        if isinstance(source, nodes.Subscript) and isinstance(source.index, nodes.TupleExpr):
            parts = source.index.elements  # Annotated[int, typer.Option("--size")]
        for part in parts:
            if isinstance(part, nodes.Call):
                words = [word.value for word in part.args if isinstance(word, nodes.Constant)]
                found += [word for word in words if isinstance(word, str) and word.startswith("-")]
    return [word.lstrip("-").partition("/")[0].replace("-", "_") for word in found]


def _changed(it: Interpreter, default: Instance, settings: dict[Value, Value], name: str) -> Value:
    """An object that is a default, with the fields that are given by dotted names."""
    fields = classes.fields_of(default.cls)
    given: Keywords = {n: default.attributes[n] for n in fields if n in default.attributes}
    changed = False
    for field in fields.values():
        key = f"{name}.{field.name}"
        if key in settings:
            given[field.name] = converted(it, settings.pop(key), "", field.default, key)
            changed = True
    return it.call(default.cls, [], given) if changed else default


def first_command(it: Interpreter, component: Value) -> Value:
    """Of several functions the one that the launch line names, else the one that trains, else the first."""
    if isinstance(component, (list, tuple)):
        items = {getattr(one, "name", ""): one for one in cast("list[Value]", component)}
    elif isinstance(component, dict):
        items = {str(key): value for key, value in cast("dict[Value, Value]", component).items()}
    else:
        return component
    named = [word for word in it.argv if word in items]
    named += [
        name
        for name, one in items.items()
        if it.wanted_path and _path_of(one) == os.path.abspath(it.wanted_path)
    ]
    fitting = [name for name in items if "train" in name or "fit" in name or "finetune" in name]
    name = next(iter([*named, *fitting, *items]), "")
    it.assume(f"of the commands of the script {name} is meant")
    return first_command(it, items[name]) if isinstance(items.get(name), dict) else items.get(name)


def _path_of(function: Value) -> str:
    """The file that defines a function of the program."""
    if isinstance(function, BoundMethod):
        function = function.function
    return os.path.abspath(function.module.path) if isinstance(function, Function) else ""


def started(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`fire.Fire(x)`, `typer.run(x)`: called with the words of a launch line and defaults."""
    component = args[0] if args else keywords.get("component", keywords.get("function"))
    if component is None:
        names = it.library.main_names()
        component = {
            key: value
            for key, value in (cast("dict[Value, Value]", names) if isinstance(names, dict) else {}).items()
            if isinstance(value, Function) and value.module.name == "__main__"
        }
    settings = cast("dict[Value, Value]", _words(it, [], {}))
    chosen = first_command(it, component)
    if not isinstance(chosen, (Class, Instance)):
        return called_with(it, chosen, settings)
    made = called_with(it, chosen, settings) if isinstance(chosen, Class) else chosen
    method = _method_meant(it, made)
    return called_with(it, it.get_attribute(made, method), settings) if method else made


def _method_meant(it: Interpreter, made: Value) -> str:
    """Of an object's methods the one that the launch line names, else the one that trains; empty if none."""
    cls = it.class_of(made)
    methods = [
        name
        for one in cls.mro
        for name, member in one.members.items()
        if isinstance(member, Function) and not name.startswith("_")
    ]
    named = [word.replace("-", "_") for word in it.argv if word.replace("-", "_") in methods]
    fitting = [name for name in methods if "train" in name or "fit" in name or "finetune" in name]
    if not named and fitting:
        it.assume(f"of the commands of the script {fitting[0]} is meant")
    return next(iter([*named, *fitting]), "")


def _cli(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`tyro.cli(x)`, `jsonargparse.CLI(x)`, `simple_parsing.parse(x)`: x called with the options."""
    component = args[0] if args else keywords.get("components", keywords.get("f"))
    if component is None:
        raise Stopped("which function the command line calls is not known", it.origin())
    words = keywords.get("args")
    settings = cast("dict[Value, Value]", _words(it, [words] if isinstance(words, (list, tuple)) else [], {}))
    _with_file(it, settings)
    return called_with(it, first_command(it, component), settings)


def _with_file(it: Interpreter, settings: dict[Value, Value]) -> None:
    """`--config FILE`: what the file says goes before the defaults and behind the line's own words."""
    for key in ("config", "config_path", "c"):
        path = settings.get(key)
        if isinstance(path, str) and path.endswith((".yaml", ".yml", ".json")):
            read = _settings_file(it, [path], {})
            if isinstance(read, Unknown):
                raise Stopped(f"{read.why} decide about the run and are not in the project", it.origin())
            settings.pop(key)
            for name, value in flat(read, "").items():
                settings.setdefault(name, value)


def flat(value: Value, prefix: str) -> dict[str, Value]:
    """Nested settings by dotted names, inner dictionaries besides."""
    if not isinstance(value, dict):
        return {}
    found: dict[str, Value] = {}
    for key, inner in cast("dict[Value, Value]", value).items():
        name = f"{prefix}{key}"
        nested = flat(inner, f"{name}.")
        found.update(nested if nested else {name: inner})
    return found


def tyro_module(it: Interpreter) -> Namespace:
    """`tyro`."""
    marks = Namespace("tyro.conf", resolve=lambda name: Opaque(f"tyro.conf.{name}"))
    return Namespace(
        "tyro", {"cli": Builtin("tyro.cli", _cli), "conf": marks, "MISSING": Opaque("tyro.MISSING")}
    )


def jsonargparse_module(it: Interpreter) -> Namespace:
    """`jsonargparse`: its `CLI`; parsers of its own are `argparse`'s."""
    standard = it.library.known_module("argparse")
    parser = it.find_attribute(standard, "ArgumentParser")
    members: dict[str, Value] = {
        "CLI": Builtin("jsonargparse.CLI", _cli),
        "auto_cli": Builtin("jsonargparse.auto_cli", _cli),
        "ArgumentParser": parser,
        "Namespace": it.find_attribute(standard, "Namespace"),
    }
    for name in ("set_docstring_parse_options", "set_parsing_settings", "set_config_read_mode"):
        members[name] = Builtin(name, lambda it, a, k: None)
    return Namespace("jsonargparse", members)


def simple_parsing_module(it: Interpreter) -> Namespace:
    """`simple_parsing`: `parse`, and its parser with `add_arguments`."""

    def make(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        wanted: dict[str, Value] = {}

        def add(it: Interpreter, given: list[Value], named: Keywords) -> Value:
            dest = named.get("dest", given[1] if len(given) > 1 else "options")
            wanted[text.text_of(it, dest)] = given[0] if given else named.get("dataclass")
            return None

        def parse(it: Interpreter, given: list[Value], named: Keywords) -> Value:
            settings = cast("dict[Value, Value]", _words(it, given[:1], {}))
            made = Opaque("simple_parsing.Namespace")
            made.attributes |= {dest: called_with(it, cls, settings) for dest, cls in wanted.items()}
            return made

        table = {"add_arguments": add, "parse_args": parse, "add_argument": lambda it, a, k: None}
        return Opaque("simple_parsing.ArgumentParser", {n: Builtin(n, call) for n, call in table.items()})

    field = it.find_attribute(it.library.known_module("dataclasses"), "field")
    return Namespace(
        "simple_parsing",
        {
            "parse": Builtin("simple_parsing.parse", _cli),
            "ArgumentParser": Builtin("ArgumentParser", make),
            "field": field,
        },
    )


# --------------------------------------------------------------------------- absl


def absl_flags_module(it: Interpreter) -> Namespace:
    """`absl.flags`: `FLAGS` holds what the `DEFINE_*` calls define, with the words of a launch line."""
    values: dict[str, Value] = {}
    flags = Opaque("absl.flags.FLAGS", values)
    flags.call = lambda it, a, k: []

    def define(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        given = {**dict(zip(("name", "default", "help"), args, strict=False)), **keywords}
        name, default = text.text_of(it, given.get("name")), given.get("default")
        words = settings_of(it.argv)
        value: Value = default
        if name in words:
            value = converted(it, words[name], "", default, name)
        elif f"no{name}" in words:
            value = False
        elif isinstance(default, Int):
            value = Int(int(default), default.origin, default.columns, "default")
        elif default is None:
            value = required(it, name, "")
            value = None if isinstance(value, Unknown) else value
        if name in it.stated:
            value = it.library.stated_value(it.stated[name][0])
        values[name] = value
        return Opaque("absl.flags.FlagHolder", {"value": value, "name": name, "default": default})

    def resolve(name: str) -> Value:
        if name.startswith("DEFINE_"):
            return Builtin(f"absl.flags.{name}", define)
        return MISSING if name[:1].isupper() else Builtin(name, lambda it, a, k: None)

    return Namespace("absl.flags", {"FLAGS": flags}, resolve)


def absl_module(it: Interpreter) -> Namespace:
    """`absl`: its modules."""
    return Namespace("absl", resolve=lambda name: it.library.known_module(f"absl.{name}") or MISSING)


def absl_app_module(it: Interpreter) -> Namespace:
    """`absl.app`."""

    def run(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        if not it.argv:
            it.assume("command-line options have their default values")
        return it.call(args[0] if args else keywords["main"], [["script.py"]], {})

    return Namespace("absl.app", {"run": Builtin("absl.app.run", run)})


__all__ = ["LaunchLine", "called_with", "filled", "helpers", "settings_of"]
