"""Settings that are Python files or name what is to be made: torchtune recipes, MMEngine, ml_collections.

A settings file in Python is followed like any other file of the project, never executed. What it builds of
libraries that cannot be read is not known.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.errors import Stopped
from torchwise_analysis.interp.concrete.library import configs, files
from torchwise_analysis.interp.concrete.library.options import launch_lines
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    Instance,
    Keywords,
    ModuleValue,
    Namespace,
    Opaque,
    Unknown,
    Value,
)
from torchwise_analysis.names.launches import option_value

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# Files that `_base_` may bring in, one inside the other.
_MAX_DEPTH = 8
_COMPONENT = "_component_"


# --------------------------------------------------------------------------- torchtune


def torchtune_config(it: Interpreter) -> Namespace:
    """`torchtune.config`: a recipe's settings, and components made of what they name."""
    members: dict[str, Value] = {
        "parse": Builtin("torchtune.config.parse", _recipe),
        "instantiate": Builtin("torchtune.config.instantiate", _instantiate),
        "log_config": Builtin("log_config", lambda it, a, k: None),
        "validate": Builtin("validate", lambda it, a, k: None),
    }
    return Namespace("torchtune.config", members)


def _recipe(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`@config.parse`: called without arguments, the function gets what `--config` and words after it say."""
    function = args[0]

    def start(it: Interpreter, given: list[Value], named: Keywords) -> Value:
        if given or named:
            return it.call(function, given, named)
        return it.call(function, [configs.wrapped(configs.dict_config(it), _settings(it))], {})

    return Builtin("torchtune.config.parse", start)


def _settings(it: Interpreter) -> Value:
    lines = (it.launch,) if it.launch is not None else launch_lines(it)
    for line in lines:
        path = option_value(line, ["--config", "-c"])
        content = None if path is None else files.read_text(it, path)
        if path is None or content is None:
            continue
        if it.launch is None:
            it.assume(f"--config is {files.relative(it, path)}, as {line.where} starts the recipe")
        read = configs.parsed_yaml(it, content, files.locate(it, path) or path, floats_without_dot=True)
        for word in line.words:
            name, equals, value = word.partition("=")
            if equals and not name.startswith("-"):
                read = configs.merged(read, configs.set_by_words(it, name, value, line.origin))
        return configs.resolved(it, read)
    raise Stopped(
        "the settings of the recipe are not known: no launch line names a --config file", it.origin()
    )


def _instantiate(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`config.instantiate(settings, *args, **more)`: the component that the settings name."""
    settings = configs.plain_top(args[0] if args else None)
    if settings is None:
        return None
    if not isinstance(settings, dict) or _COMPONENT not in settings:
        raise Stopped("a component of the recipe is not known", it.origin())
    options = dict(cast("dict[Value, Value]", settings))
    options.update(keywords)
    return _made(it, options, args[1:], 0)


def _made(it: Interpreter, settings: dict[Value, Value], given: list[Value], depth: int) -> Value:
    if depth > _MAX_DEPTH:
        raise Stopped("components of the recipe are nested too deeply", it.origin())
    options = dict(settings)
    name = text.text_of(it, options.pop(_COMPONENT))
    named = {key: _inner(it, value, depth + 1) for key, value in options.items()}
    return it.call(_component(it, name), list(given), it.as_keywords(named))


def _inner(it: Interpreter, value: Value, depth: int) -> Value:
    bare = configs.plain_top(value)
    if isinstance(bare, dict) and _COMPONENT in bare:
        return _made(it, cast("dict[Value, Value]", bare), [], depth)
    return value


def _component(it: Interpreter, name: str) -> Value:
    if "." in name:
        return configs.target(it, name)
    # a name of the recipe itself
    names = it.library.main_names()
    found = names.get(name, MISSING) if isinstance(names, dict) else MISSING
    return Unknown(name, it.origin()) if found is MISSING else found


# --------------------------------------------------------------------------- settings in Python


def mmengine_config(it: Interpreter) -> Namespace:
    """`mmengine.config` and `mmcv`: `Config.fromfile` over Python, YAML and JSON files with `_base_`."""
    cls = configs.attribute_dictionary(it, "ConfigDict", "mmengine.config")

    def from_file(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        name = args[-1] if args else keywords.get("filename")
        shown = files.path_text(it, name)
        if shown is None:
            return Unknown("the settings of a file", it.origin())
        read = _python_settings(it, shown, 0)
        return read if isinstance(read, Unknown) else configs.wrapped(cls, read)

    def merge(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        receiver, options = cast(Instance, args[0]), args[1] if len(args) > 1 else keywords.get("options")
        result = configs.plain(receiver)
        for key, value in it.as_mapping(options).items() if options is not None else ():
            nested: Value = configs.plain(value)
            for part in reversed(text.text_of(it, key).split(".")):
                nested = {part: nested}
            result = configs.merged(result, nested)
        receiver.payload = cast(Instance, configs.wrapped(cls, result)).payload
        return None

    cls.members |= {
        "fromfile": Builtin("fromfile", from_file, static=True),
        "merge_from_dict": Builtin("merge_from_dict", merge),
        "dump": Builtin("dump", lambda it, a, k: Unknown("the settings as a text", it.origin())),
        "pretty_text": "",
        "to_dict": Builtin("to_dict", lambda it, a, k: configs.plain(a[0])),
    }
    action = Builtin("DictAction", lambda it, a, k: Unknown("an option's dictionary", it.origin()))
    return Namespace("mmengine.config", {"Config": cls, "ConfigDict": cls, "DictAction": action})


def _python_settings(it: Interpreter, shown: str, depth: int) -> Value:
    """What a settings file assigns, laid over what its `_base_` files assign."""
    path = files.locate(it, shown)
    if path is None or depth > _MAX_DEPTH:
        return Unknown(f"the settings of {files.relative(it, shown)}", it.origin())
    content = files.read_text(it, path) or ""
    if path.endswith((".yaml", ".yml", ".json")):
        own: Value = configs.parsed_yaml(it, content, path, floats_without_dot=True)
    else:
        own = _assigned(it, path)
    if not isinstance(own, dict):
        return own
    settings = dict(cast("dict[Value, Value]", own))
    bases = settings.pop("_base_", None)
    result: Value = {}
    for base in [bases] if isinstance(bases, str) else list(it.iterate(bases)) if bases is not None else []:
        inner = _python_settings(it, posixpath.join(os.path.dirname(path), text.text_of(it, base)), depth + 1)
        if isinstance(inner, Unknown):
            return inner
        result = configs.merged(result, inner)
    return _laid(result, settings)


def _laid(base: Value, over: Value) -> Value:
    """As `merged`, where `_delete_=True` drops what the base says of a section."""
    if not isinstance(over, dict):
        return over
    given = dict(cast("dict[Value, Value]", over))
    replaces = given.pop("_delete_", False)
    known = cast("dict[Value, Value]", base) if isinstance(base, dict) and replaces is not True else {}
    out = dict(known)
    for key, value in given.items():
        out[key] = _laid(known.get(key), value)
    return out


def _assigned(it: Interpreter, path: str) -> Value:
    """The public names of a settings file, but for modules and functions."""
    module = it.library.imports.open(it.project.describe(path))
    if not isinstance(module, ModuleValue):
        return Unknown(f"the settings of {files.relative(it, path)}", it.origin())
    found: dict[Value, Value] = {}
    for name in it.library.names_of_module(module):
        value = it.get_attribute(module, name) if name == "_base_" or not name.startswith("_") else MISSING
        if (
            value is MISSING
            or isinstance(value, (ModuleValue, Namespace, Builtin))
            or callable_of_file(value)
        ):
            continue
        found[name] = value
    if it.library.star_unknown(module):
        return Unknown(f"the settings that {files.relative(it, path)} imports", it.origin())
    return found


def callable_of_file(value: Value) -> bool:
    """Whether a name of a settings file is a function or class, which is no setting."""
    return isinstance(value, Class) or type(value).__name__ == "Function"


def ml_collections_module(it: Interpreter) -> Namespace:
    """`ml_collections` and its `config_dict`."""
    cls = configs.attribute_dictionary(it, "ConfigDict", "ml_collections")
    same = Builtin("same", lambda it, a, k: a[0])
    cls.members |= {
        "lock": same,
        "unlock": same,
        "to_dict": Builtin("to_dict", lambda it, a, k: configs.plain(a[0])),
    }
    members: dict[str, Value] = {
        "ConfigDict": cls,
        "FrozenConfigDict": cls,
        "placeholder": Builtin("placeholder", lambda it, a, k: None),
    }
    members["config_dict"] = Namespace("ml_collections.config_dict", dict(members))
    members["config_flags"] = config_flags_module(it)
    return Namespace("ml_collections", members)


def config_flags_module(it: Interpreter) -> Namespace:
    """`ml_collections.config_flags`: what `get_config()` of a settings file gives, as a flag."""

    def define(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        name = text.text_of(it, args[0])
        shown: Value = args[1] if len(args) > 1 else keywords.get("default")
        for line in (it.launch,) if it.launch is not None else launch_lines(it):
            said = option_value(line, [f"--{name}"])
            if said is not None:
                shown = said
                break
        value = _from_get_config(it, shown)
        flags = it.library.known_module("absl.flags")
        holder = it.find_attribute(flags, "FLAGS")
        if isinstance(holder, Opaque):
            holder.attributes[name] = value
        return Opaque("absl.flags.FlagHolder", {"value": value, "name": name})

    return Namespace(
        "ml_collections.config_flags", {"DEFINE_config_file": Builtin("DEFINE_config_file", define)}
    )


def _from_get_config(it: Interpreter, shown: Value) -> Value:
    written = files.path_text(it, shown)
    name, _, argument = written.partition(":") if written is not None else ("", "", "")
    path = files.locate(it, name) if name else None
    module = it.library.imports.open(it.project.describe(path)) if path is not None else None
    if not isinstance(module, ModuleValue):
        return Unknown(f"the settings of {name or 'a file'}", it.origin())
    return it.call(it.get_attribute(module, "get_config"), [argument] if argument else [], {})
