"""Configuration files as programs read them: YAML and JSON of the project, OmegaConf, yacs, EasyDict, Hydra.

Files are data, found inside the project and never executed. What a file leaves open (`???`, an environment
variable, a resolver) is not known.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import classes, operators, text
from torchwise_analysis.interp.concrete.errors import Stopped
from torchwise_analysis.interp.concrete.library import files, yaml_text
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    Instance,
    Int,
    Keywords,
    Namespace,
    NativeCall,
    Opaque,
    Partial,
    Unknown,
    Value,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter
    from torchwise_memory.report import Origin

_MAX_RESOLVED = 1 << 16

_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_MAX_ROUNDS = 8


# --------------------------------------------------------------------------- yaml, json


def yaml_module(it: Interpreter) -> Namespace:
    """`yaml`."""
    members: dict[str, Value] = {
        name: Builtin(f"yaml.{name}", _yaml_load)
        for name in ("safe_load", "load", "full_load", "unsafe_load")
    }
    members["dump"] = members["safe_dump"] = Builtin(
        "yaml.dump", lambda it, a, k: Unknown("a YAML text", it.origin())
    )
    for name in ("SafeLoader", "FullLoader", "Loader", "CLoader", "CSafeLoader", "Dumper"):
        members[name] = Opaque(f"yaml.{name}")
    return Namespace("yaml", members)


def _yaml_load(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    source = args[0] if args else keywords.get("stream")
    content = _content(it, source)
    if isinstance(content, Unknown):
        raise Stopped(f"the settings are not known: {_name(source)} is not in the project", it.origin())
    return parsed_yaml(it, cast(str, content), _name(source))


def parsed_yaml(it: Interpreter, content: str, path: str, floats_without_dot: bool = False) -> Value:
    """The value of a YAML text; not known where it is no YAML that is read here."""
    try:
        return yaml_text.load(content, path, floats_without_dot)
    except (ValueError, RecursionError) as error:
        return Unknown(f"the settings of {path} ({error})", it.origin())


def toml_module(it: Interpreter) -> Namespace:
    """`toml`, `tomllib`, `tomli`."""

    def load(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        content = _content(it, args[0])
        if isinstance(content, str) and content.endswith(".toml") and "\n" not in content:
            content = files.read_text(it, content)  # `toml.load` takes a path too
        if not isinstance(content, str):
            return Unknown(f"the settings of {_name(args[0])}", it.origin())
        try:
            return cast(Value, tomllib.loads(content))
        except (tomllib.TOMLDecodeError, RecursionError):
            return Unknown(f"the settings of {_name(args[0])}", it.origin())

    return Namespace("toml", {name: Builtin(f"toml.{name}", load) for name in ("load", "loads")})


def json_module(it: Interpreter) -> Namespace:
    """`json`."""
    return Namespace(
        "json",
        {
            "load": Builtin("json.load", _json_load),
            "loads": Builtin("json.loads", _json_load),
            "dump": Builtin("json.dump", lambda it, a, k: None),
            "dumps": Builtin("json.dumps", lambda it, a, k: Unknown("a JSON text", it.origin())),
            "JSONDecodeError": it.types.by_name["ValueError"],
            "JSONEncoder": it.types.named("JSONEncoder"),
        },
    )


def _json_load(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    content = _content(it, args[0])
    if not isinstance(content, str):
        return Unknown(f"the settings of {_name(args[0])}", it.origin())
    try:
        return cast(Value, json.loads(content))
    except (ValueError, RecursionError):
        return Unknown(f"the settings of {_name(args[0])}", it.origin())


def _content(it: Interpreter, source: Value) -> Value:
    """The text of a stream or the text itself."""
    if isinstance(source, bytes):
        return source.decode("utf-8", "replace")
    if isinstance(source, Opaque) and "read" in source.attributes:
        return _content(it, it.call(source.attributes["read"], [], {}))
    if isinstance(source, (str, Unknown)):
        return source
    return Unknown("a text", it.origin())


def _name(source: Value) -> str:
    if isinstance(source, Opaque):
        return str(source.attributes.get("name", source.kind))
    return source.why if isinstance(source, Unknown) else "a text"


# --------------------------------------------------------------------------- dictionaries with attributes


def attribute_dictionary(it: Interpreter, name: str, module: str) -> Class:
    """A dictionary whose entries are attributes too: `DictConfig`, `CfgNode`, `EasyDict`."""
    cls = classes.new_class(it, name, [it.types.by_name["dict"]], {}, module)

    def get(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        entries = cast("dict[Value, Value]", cast(Instance, args[0]).payload)
        if args[1] in entries:
            return entries[args[1]]
        raise it.error("AttributeError", args[1])

    def put(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        operators.store(it, cast("dict[Value, Value]", cast(Instance, args[0]).payload), args[1], args[2])
        return None

    def fill(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        receiver = cast(Instance, args.pop(0))
        entries = cast("dict[Value, Value]", receiver.payload)
        for source in args[:1]:
            for key, value in it.as_mapping(source).items() if source is not None else ():
                entries[key] = wrapped(cls, value)
        if not keywords.pop("new_allowed", None):
            entries.update({key: wrapped(cls, value) for key, value in keywords.items()})
        return None

    cls.members |= {
        "__getattr__": Builtin("__getattr__", get),
        "__setattr__": Builtin("__setattr__", put),
        "__init__": Builtin("__init__", fill),
    }
    return cls


def wrapped(cls: Class, value: Value) -> Value:
    """`value` with its dictionaries made instances of `cls`."""
    if isinstance(value, dict):
        return Instance(
            cls, {key: wrapped(cls, inner) for key, inner in cast("dict[Value, Value]", value).items()}
        )
    if isinstance(value, list):
        return [wrapped(cls, inner) for inner in cast("list[Value]", value)]
    return value


def plain(value: Value) -> Value:
    """`value` with its dictionaries unwrapped."""
    if isinstance(value, Instance) and value.payload is not None:
        return plain(value.payload)
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in cast("dict[Value, Value]", value).items()}
    if isinstance(value, list):
        return [plain(inner) for inner in cast("list[Value]", value)]
    return value


def merged(base: Value, over: Value) -> Value:
    """`over` laid over `base`: dictionaries key by key, anything else replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    out = dict(cast("dict[Value, Value]", base))
    for key, value in cast("dict[Value, Value]", over).items():
        out[key] = merged(out[key], value) if key in out else value
    return out


def easydict_module(it: Interpreter) -> Namespace:
    """`easydict`, `addict`, `box`, `munch`: the same idea by several names."""
    cls = attribute_dictionary(it, "EasyDict", "easydict")
    return Namespace("easydict", dict.fromkeys(("EasyDict", "Dict", "Box", "Munch"), cls))


def yacs_module(it: Interpreter) -> Namespace:
    """`yacs.config`."""
    cls = attribute_dictionary(it, "CfgNode", "yacs.config")

    def from_file(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        read = _settings_file(it, args[1])
        if isinstance(read, Unknown):
            raise Stopped(f"{read.why} decide about the run and are not known", it.origin())
        return _lay_over(cast(Instance, args[0]), read)

    def from_list(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        items = list(it.iterate(args[1]))
        for name, value in zip(items[::2], items[1::2], strict=False):
            *path, last = text.text_of(it, name).split(".")
            owner: Value = args[0]
            for part in path:
                owner = it.get_item(owner, part)
            it.set_item(owner, last, value)
        return None

    def _lay_over(receiver: Instance, read: Value) -> Value:
        result = merged(plain(receiver), read)
        receiver.payload = cast(Instance, wrapped(cls, result)).payload
        return None

    def clone(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return wrapped(cls, plain(args[0]))

    def nothing(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return None

    cls.members |= {
        "merge_from_file": Builtin("merge_from_file", from_file),
        "merge_from_list": Builtin("merge_from_list", from_list),
        "merge_from_other_cfg": Builtin(
            "merge_from_other_cfg", lambda it, a, k: _lay_over(cast(Instance, a[0]), plain(a[1]))
        ),
        "clone": Builtin("clone", clone),
        "dump": Builtin("dump", lambda it, a, k: Unknown("a YAML text", it.origin())),
        "load_cfg": Builtin(
            "load_cfg", lambda it, a, k: wrapped(cls, _yaml_load(it, a[-1:], {})), static=True
        ),
        **{name: Builtin(name, nothing) for name in ("defrost", "freeze", "set_new_allowed")},
    }
    return Namespace("yacs.config", {"CfgNode": cls})


def _settings_file(it: Interpreter, path: Value) -> Value:
    shown = files.path_text(it, path)
    content = None if shown is None else files.read_text(it, shown)
    if shown is None or content is None:
        name = "a file" if shown is None else files.relative(it, shown)
        return Unknown(f"the settings of {name}", it.origin())
    return parsed_yaml(it, content, shown, floats_without_dot=True)


# --------------------------------------------------------------------------- OmegaConf


def omegaconf_module(it: Interpreter) -> Namespace:
    """`omegaconf`."""
    cls = dict_config(it)

    def create(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        source: Value = args[0] if args else dict[Value, Value]()
        if isinstance(source, str):
            source = parsed_yaml(it, source, "a text", floats_without_dot=True)
        return wrapped(cls, resolved(it, plain(_fields(it, source))))

    def load(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        read = _settings_file(it, args[0])
        return read if isinstance(read, Unknown) else wrapped(cls, resolved(it, read))

    def merge(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        result: Value = {}
        for source in args:
            if isinstance(source, Unknown):
                return source
            result = merged(result, unresolved(plain(_fields(it, source))))
        return wrapped(cls, resolved(it, result))

    def first(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return args[0]

    def nothing(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return None

    table: dict[str, NativeCall] = {
        "create": create,
        "structured": create,
        "load": load,
        "merge": merge,
        "unsafe_merge": merge,
        "to_container": lambda it, a, k: plain(a[0]),
        "to_object": lambda it, a, k: plain(a[0]),
        "from_cli": lambda it, a, k: wrapped(cls, resolved(it, _from_words(it, a[0] if a else None))),
        "from_dotlist": lambda it, a, k: wrapped(cls, resolved(it, _from_words(it, a[0]))),
        "to_yaml": lambda it, a, k: Unknown("a YAML text", it.origin()),
        "masked_copy": first,
        "is_config": lambda it, a, k: isinstance(a[0], Instance) and a[0].cls is cls,
        "is_dict": lambda it, a, k: isinstance(a[0], Instance) and a[0].cls is cls,
        "is_list": lambda it, a, k: isinstance(a[0], list),
        "is_missing": lambda it, a, k: False,
        "select": _select,
        "update": lambda it, a, k: _update(it, cls, a),
        **dict.fromkeys(("set_struct", "resolve", "set_readonly", "save", "register_new_resolver"), nothing),
        "register_resolver": nothing,
    }
    space = Namespace("omegaconf.OmegaConf", {name: Builtin(name, call) for name, call in table.items()})
    quiet = Builtin("open_dict", lambda it, a, k: Opaque("context", enter=lambda it: a[0] if a else None))
    return Namespace(
        "omegaconf",
        {
            "OmegaConf": space,
            "DictConfig": cls,
            "ListConfig": it.types.by_name["list"],
            "MISSING": "???",
            "II": Builtin("II", lambda it, a, k: "${" + text.text_of(it, a[0]) + "}"),
            "open_dict": quiet,
            "read_write": quiet,
            "flag_override": quiet,
        },
    )


def dict_config(it: Interpreter) -> Class:
    """`omegaconf.DictConfig`, one class a run."""
    known = it.types.by_name.get("omegaconf.DictConfig")
    if known is None:
        known = it.types.by_name["omegaconf.DictConfig"] = attribute_dictionary(it, "DictConfig", "omegaconf")
        plain_get = known.members["__getattr__"]

        def get(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            entries = cast("dict[Value, Value]", cast(Instance, args[0]).payload)
            # a field that no configuration sets reads as None
            return (
                it.call(plain_get, args, {}) if args[1] in entries or str(args[1]).startswith("_") else None
            )

        known.members["__getattr__"] = Builtin("__getattr__", get)
    return known


def _fields(it: Interpreter, source: Value) -> Value:
    """A dataclass or its instance as a dictionary of its fields."""
    cls = source if isinstance(source, Class) else source.cls if isinstance(source, Instance) else None
    if cls is None or not classes.fields_of(cls):
        return source
    made = it.instantiate(cls, [], {}) if isinstance(source, Class) else source
    fields = classes.fields_of(cls)
    return {name: _fields(it, cast(Instance, made).attributes.get(name)) for name in fields}


def _from_words(it: Interpreter, words: Value) -> Value:
    """`a.b=1 c=2` as nested settings: the words given, else those of the launch line."""
    given = cast("list[Value]", words) if isinstance(words, (list, tuple)) else list[Value](it.argv)
    result: Value = {}
    for word in given:
        name, equals, value = word.partition("=") if isinstance(word, str) else ("", "", "")
        if equals and not name.startswith("--"):
            result = merged(result, set_by_words(it, name, value))
    return result


def _select(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    found = _lookup(plain(args[0]), text.text_of(it, args[1]))
    return keywords.get("default") if found is MISSING else found


def _update(it: Interpreter, cls: Class, args: list[Value]) -> Value:
    nested: Value = args[2]
    for part in reversed(text.text_of(it, args[1]).split(".")):
        nested = {part: nested}
    receiver = cast(Instance, args[0])
    receiver.payload = cast(Instance, wrapped(cls, merged(plain(receiver), plain(nested)))).payload
    return None


def _lookup(root: Value, path: str) -> Value:
    for part in re.split(r"[.\[\]]+", path.strip("[]")):
        if isinstance(root, dict) and part in root:
            root = cast("dict[Value, Value]", root)[part]
        elif isinstance(root, list) and part.isdigit() and int(part) < len(cast("list[Value]", root)):
            root = cast("list[Value]", root)[int(part)]
        else:
            return MISSING
    return root


def resolved(it: Interpreter, root: Value) -> Value:
    """`root` with its `${references}` replaced; what cannot be found is not known."""
    for _ in range(_MAX_ROUNDS):
        changed = [False]
        root = _resolve(it, root, root, "", changed)
        if not changed[0]:
            break
    return root


def _resolve(it: Interpreter, node: Value, root: Value, path: str, changed: list[bool]) -> Value:
    it.burn()
    if isinstance(node, dict):
        entries = cast("dict[Value, Value]", node)
        return {k: _resolve(it, v, root, f"{path}.{k}".strip("."), changed) for k, v in entries.items()}
    if isinstance(node, list):
        return [
            _resolve(it, v, root, f"{path}.{i}".strip("."), changed)
            for i, v in enumerate(cast("list[Value]", node))
        ]
    if node == "???":
        return Unknown(f"the setting {path}, which has no value", it.origin())
    if not isinstance(node, str) or "${" not in node:
        return node
    whole = _REFERENCE.fullmatch(node)
    if whole is not None:
        changed[0] = True
        return _or_unresolved(_referred(it, whole.group(1), root, path), node)
    parts: list[str] = []
    last = 0
    for match in _REFERENCE.finditer(node):
        value = _referred(it, match.group(1), root, path)
        if isinstance(value, Unknown):
            changed[0] = True
            return _or_unresolved(value, node)
        parts += [node[last : match.start()], text.text_of(it, value)]
        last = match.end()
    if not parts:
        return Unknown(f"the setting {path}", it.origin())
    changed[0] = True
    made = "".join(parts) + node[last:]
    # a text of texts that refer to texts triples with every line
    it.burn_for(made)
    return made if len(made) <= _MAX_RESOLVED else Unknown(f"the setting {path}, a long text", it.origin())


class Unresolved(Unknown):
    """A setting whose references lead out of its file; what the file is merged with may have them."""

    __slots__ = ("text",)

    def __init__(self, why: str, origin: Origin | None, text: str) -> None:
        super().__init__(why, origin)
        self.text = text


def _or_unresolved(value: Value, node: str) -> Value:
    if type(value) is Unknown:
        return Unresolved(value.why, value.origin, node)
    return value


def unresolved(value: Value) -> Value:
    """`value` with its references as they were written, for another try."""
    if isinstance(value, Unresolved):
        return value.text
    if isinstance(value, dict):
        return {key: unresolved(inner) for key, inner in cast("dict[Value, Value]", value).items()}
    if isinstance(value, list):
        return [unresolved(inner) for inner in cast("list[Value]", value)]
    return value


def _referred(it: Interpreter, name: str, root: Value, path: str) -> Value:
    name = name.strip()
    resolver, colon, argument = name.partition(":")
    if colon:
        if resolver in ("oc.env", "env"):
            variable, comma, default = argument.partition(",")
            return default.strip() if comma else Unknown(f"the environment variable {variable}", it.origin())
        return Unknown(f"the setting {path} ({name})", it.origin())
    if name.startswith("."):
        parents = path.split(".")
        dots = len(name) - len(name.lstrip("."))
        name = ".".join([*parents[: len(parents) - dots], name.lstrip(".")])
    found = _lookup(root, name)
    return Unknown(f"the setting {name}", it.origin()) if found is MISSING else found


# --------------------------------------------------------------------------- Hydra


def hydra_module(it: Interpreter) -> Namespace:
    """`hydra`."""
    utilities: dict[str, Value] = {
        "instantiate": Builtin("hydra.utils.instantiate", _instantiate),
        "call": Builtin("hydra.utils.call", _instantiate),
        "get_class": Builtin("get_class", lambda it, a, k: target(it, text.text_of(it, a[0]))),
        "get_method": Builtin("get_method", lambda it, a, k: target(it, text.text_of(it, a[0]))),
        "get_object": Builtin("get_object", lambda it, a, k: target(it, text.text_of(it, a[0]))),
        "get_original_cwd": Builtin("get_original_cwd", lambda it, a, k: "."),
        "to_absolute_path": Builtin("to_absolute_path", lambda it, a, k: a[0]),
    }
    return Namespace(
        "hydra",
        {
            "main": Builtin("hydra.main", _hydra_main),
            "utils": Namespace("hydra.utils", utilities),
            "initialize": Builtin("initialize", lambda it, a, k: Opaque("context", enter=lambda it: None)),
        },
    )


def _hydra_main(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    names = ("config_path", "config_name", "version_base")
    given = {**dict(zip(names, args, strict=False)), **keywords}
    folder, name = given.get("config_path"), given.get("config_name")
    origin = it.origin()

    def decorate(it: Interpreter, functions: list[Value], _: Keywords) -> Value:
        function = functions[0]

        def start(it: Interpreter, inner: list[Value], named: Keywords) -> Value:
            if inner or named:
                return it.call(function, inner, named)
            config: Value = {}
            if isinstance(name, str):
                config = compose(it, folder if isinstance(folder, str) else ".", name)
                if isinstance(config, Unknown):
                    raise Stopped(f"{config.why} are not in the project", origin)
            return it.call(function, [wrapped(dict_config(it), config)], {})

        return Builtin("hydra.main", start)

    return Builtin("hydra.main", decorate)


def compose(it: Interpreter, folder: str, name: str) -> Value:
    """The configuration `name` of `folder` with its defaults list, references resolved."""
    if not it.argv:
        it.assume("command-line options have their default values")
    groups, values = _overrides(it, folder)
    it.library.config_groups = groups
    composed = _composed(it, folder, "", name.removesuffix(".yaml"), "", 0)
    if isinstance(composed, dict):
        composed = {k: v for k, v in cast("dict[Value, Value]", composed).items() if k != "hydra"}
        for layer in values:
            composed = merged(composed, layer)
        return resolved(it, composed)
    return composed


def _overrides(it: Interpreter, folder: str) -> tuple[dict[str, str], list[Value]]:
    """What a launch line's words choose of groups and what they set: `model=large`, `optim.lr=1`, `+a=b`."""
    groups: dict[str, str] = {}
    values: list[Value] = []
    for word in it.argv:
        name, equals, value = word.partition("=")
        plain = name.lstrip("+")
        if not equals or plain.startswith(("-", "hydra")):
            continue
        where = plain.partition("@")[0]
        shown = posixpath.join(folder, where, f"{value}.yaml")
        if "." not in where and files.locate(it, shown) is not None:
            groups[where] = value
        else:
            values.append(set_by_words(it, plain, value))
    for where, value in list(groups.items()):
        for inner, option in _overridden_by(it, posixpath.join(folder, where, f"{value}.yaml")):
            groups.setdefault(inner, option)
    return groups, values


def _overridden_by(it: Interpreter, shown: str) -> list[tuple[str, str]]:
    """What a group's file overrides of other groups (`- override /model: large`)."""
    content = files.read_text(it, shown)
    read = None if content is None else parsed_yaml(it, content, shown)
    defaults = cast("dict[Value, Value]", read).get("defaults") if isinstance(read, dict) else None
    entries = [_entry(one) for one in cast("list[Value]", defaults)] if isinstance(defaults, list) else []
    return [(where, text.text_of(it, option)) for where, option, word in entries if word == "override"]


def set_by_words(it: Interpreter, name: str, value: str, place: Origin | None = None) -> Value:
    """`a.b=1` as nested settings; numbers have the place, or that of the line that starts this run."""
    shaped: Value = parsed_yaml(it, value, "a launch line", floats_without_dot=True)
    if any(letter in value for letter in "$<>"):
        shaped = Unknown(f"the value {value} of {name}", it.origin())
    elif isinstance(shaped, int) and not isinstance(shaped, bool):
        place = place or (None if it.launch is None else it.launch.origin)
        shaped = int(shaped) if place is None else Int(int(shaped), place)
    for part in reversed(name.split(".")):
        shaped = {part: shaped}
    return shaped


def _composed(it: Interpreter, folder: str, group: str, name: str, package: str, depth: int) -> Value:
    """One file of a group, laid into its package, with what its defaults list brings."""
    shown = posixpath.join(folder, group, name + ("" if name.endswith((".yaml", ".yml")) else ".yaml"))
    content = files.read_text(it, shown)
    if content is None or depth > 16:
        return Unknown(f"the settings of {posixpath.normpath(shown)}", it.origin())
    header = re.match(r"(?:\s*#[^\n]*\n)*?\s*#\s*@package\s+(\S+)", content)
    if header is not None:
        package = (
            ""
            if header.group(1) == "_global_"
            else header.group(1).replace("_group_", group.replace("/", "."))
        )
    own = parsed_yaml(it, content, files.locate(it, shown) or shown, floats_without_dot=True)
    if not isinstance(own, dict):
        own = dict[Value, Value]() if own is None else own
    if isinstance(own, Unknown):
        return own
    settings = dict(cast("dict[Value, Value]", own))
    defaults = settings.pop("defaults", None)
    layers = _layers(
        it,
        folder,
        group,
        package,
        cast("list[Value]", defaults) if isinstance(defaults, list) else [],
        _nested(package, settings),
        depth,
    )
    result: Value = {}
    for layer in layers:
        if isinstance(layer, Unknown):
            return layer
        result = merged(result, layer)
    return result


def _layers(
    it: Interpreter, folder: str, group: str, package: str, defaults: list[Value], own: Value, depth: int
) -> list[Value]:
    entries = [_entry(one) for one in defaults]
    if not group and depth == 0:
        known = {where.partition("@")[0] for where, _, _ in entries}
        entries += [
            (where, option, "") for where, option in it.library.config_groups.items() if where not in known
        ]
    overrides: dict[str, Value] = {where: option for where, option, word in entries if word == "override"}
    overrides.update(it.library.config_groups)
    layers: list[Value] = []
    placed = False
    for where, option, word in entries:
        if where == "_self_":
            layers.append(own)
            placed = True
            continue
        where, _, target = where.partition("@")
        option = overrides.get(where, option)
        if word == "override" or option is None or where.startswith("hydra") or option == "???":
            continue
        inner = (
            where.lstrip("/")
            if where.startswith("/") or not group
            else posixpath.join(group, where).rstrip("/")
        )
        into = target or inner.replace("/", ".")
        if not where:
            inner, into = group, package
        for one in cast("list[Value]", option) if isinstance(option, list) else [option]:
            layer = _composed(
                it, folder, inner, text.text_of(it, one), "" if into == "_global_" else into, depth + 1
            )
            if isinstance(layer, Unknown) and word == "optional":
                continue
            layers.append(layer)
    return layers if placed else [*layers, own]


def _entry(value: Value) -> tuple[str, Value, str]:
    """A line of a defaults list: group, option, and the word before the group."""
    if isinstance(value, str):
        folder, _, name = value.rpartition("/")
        return ("_self_", None, "") if value == "_self_" else (folder, name, "")
    if isinstance(value, dict) and value:
        key, option = next(iter(cast("dict[Value, Value]", value).items()))
        word, _, where = str(key).rpartition(" ")
        return where.lstrip("/") if word == "override" else where, option, word
    return "_self_", None, ""


def _nested(package: str, settings: Value) -> Value:
    for part in reversed(package.split(".")) if package else ():
        settings = {part: settings}
    return settings


def _instantiate(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    config = plain_top(args[0] if args else keywords.pop("config", None))
    if not isinstance(config, dict):
        return config if config is None else Unknown("an object of a configuration", it.origin())
    options: dict[Value, Value] = dict(cast("dict[Value, Value]", config))
    options.update(keywords)
    return _made(it, options, list(args[1:]))


def plain_top(value: Value) -> Value:
    """The dictionary of a configuration node; its inner nodes stay what they are."""
    payload = value.payload if isinstance(value, Instance) else None
    return cast(Value, payload) if isinstance(payload, dict) else value


def _made(it: Interpreter, config: dict[Value, Value], extra: list[Value]) -> Value:
    here = it.ledger.origin, it.own_place
    options = dict(config)
    name = options.pop("_target_", None)
    partial = options.pop("_partial_", False)
    recursive = options.pop("_recursive_", True)
    options.pop("_convert_", None)
    given = [*extra, *it.iterate(options.pop("_args_", []))]
    if recursive is not False:
        options = {key: _inner(it, value) for key, value in options.items()}
    if name is None:
        return wrapped(dict_config(it), options)
    callee = target(it, text.text_of(it, name))
    named = it.as_keywords(options)
    # what its parts were made for is made where the program asked for the whole
    it.ledger.origin, it.own_place = here
    return Partial(callee, given, named) if it.truth(partial) else it.call(callee, given, named)


def _inner(it: Interpreter, value: Value) -> Value:
    bare = plain_top(value)
    entries = cast("dict[Value, Value]", bare) if isinstance(bare, dict) else {}
    if any(isinstance(k, str) for k in entries):
        if "_target_" in entries:
            return _made(it, entries, [])
        return wrapped(dict_config(it), {k: _inner(it, v) for k, v in entries.items()})
    if isinstance(value, list):
        return [_inner(it, one) for one in cast("list[Value]", value)]
    return value


def target(it: Interpreter, dotted: str) -> Value:
    """What a dotted name stands for: a module's member."""
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        found = it.library.imports.find(".".join(parts[:length]), it.library.imports.main_path)
        if isinstance(found, Unknown):
            continue
        value: Value = found
        for part in parts[length:]:
            value = it.get_attribute(value, part)
        return value
    return Unknown(dotted, it.origin())


__all__ = [
    "compose",
    "easydict_module",
    "hydra_module",
    "json_module",
    "omegaconf_module",
    "yacs_module",
    "yaml_module",
]
