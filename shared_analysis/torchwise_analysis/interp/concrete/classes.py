"""Class statements, and what `dataclass`, `Enum` and `NamedTuple` make of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import operators
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    ClassMethod,
    Frame,
    Function,
    Instance,
    Keywords,
    Opaque,
    Property,
    StaticMethod,
    Unknown,
    Value,
)
from torchwise_analysis.interp.core.mro import InconsistentMro, linearize
from torchwise_analysis.source import nodes

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter


def make_class(
    it: Interpreter, name: str, bases: list[Value], keywords: dict[str, Value], inner: Frame
) -> Value:
    """The class object of a finished class body; `inner` is the body's frame."""
    members = inner.names
    known = [base for base in bases if isinstance(base, Class)]
    lost = [base for base in bases if isinstance(base, Unknown)]
    cls = new_class(it, name, known, members, inner.module.name)
    if lost:
        cls.traits["unknown_base"] = lost[0].why
    if inner.cell is not None:
        inner.cell.cls = cls
    for member, value in members.items():
        if isinstance(value, Property) and not value.name:
            value.name = member
    if cls.trait("enum"):
        _make_members(it, cls)
    elif cls.trait("typing.NamedTuple") and "typing.NamedTuple" not in cls.traits:
        _from_annotations(it, cls)
    hook = _super_hook(cls)
    if hook is not MISSING:
        keywords.pop("metaclass", None)
        it.call(hook.function if isinstance(hook, ClassMethod) else hook, [cls], keywords)
    return cls


def new_class(
    it: Interpreter, name: str, bases: list[Class], members: dict[str, Value], module: str
) -> Class:
    """A class with its MRO; `members` becomes its dictionary."""
    if not bases:
        bases = [it.types.object]
    elif it.types.object in bases and len(bases) > 1:
        bases = [base for base in bases if base is not it.types.object]
    cls = Class(name, tuple(bases), members, module)
    failed = False
    try:
        cls.mro = linearize(cls, bases, lambda base: base.mro)
    except InconsistentMro:
        failed = True
    if failed:
        raise it.error("TypeError", f"Cannot create a consistent method resolution order for {name}")
    return cls


def _super_hook(cls: Class) -> Value:
    for base in cls.mro[1:]:
        if "__init_subclass__" in base.members:
            return base.members["__init_subclass__"]
    return MISSING


def annotation_of(it: Interpreter, node: nodes.Expr, frame: Frame) -> Value:
    """What dataclasses need of an annotation: its outermost name."""
    while isinstance(node, nodes.Subscript):
        node = node.value
    if isinstance(node, nodes.Attribute):
        return node.attr
    if isinstance(node, nodes.Name):
        return node.id
    if isinstance(node, nodes.Constant) and isinstance(node.value, str):
        return node.value.partition("[")[0].rpartition(".")[2]
    return "object"


# --------------------------------------------------------------------------- dataclasses


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a dataclass; `default` and `factory` are MISSING where there is none."""

    name: str
    default: Value
    factory: Value
    in_init: bool
    keyword_only: bool
    init_only: bool
    compared: bool
    metadata: Value


def fields_of(cls: Class) -> dict[str, Field]:
    found = cls.trait("dataclass")
    return cast("dict[str, Field]", found) if isinstance(found, dict) else {}


def make_dataclass(it: Interpreter, cls: Class, options: Keywords) -> Class:
    """`@dataclass(**options)`."""
    fields: dict[str, Field] = {}
    for base in reversed(cls.mro[1:]):
        inherited = base.traits.get("dataclass")
        if isinstance(inherited, dict):
            fields.update(cast("dict[str, Field]", inherited))
    keyword_only = bool(options.get("kw_only", False))
    annotations = cls.members.get("__annotations__", {})
    for name, annotation in cast("dict[str, str]", annotations).items():
        if annotation == "ClassVar":
            continue
        if annotation == "KW_ONLY":
            keyword_only = True
            continue
        fields[name] = _field(cls, name, annotation, keyword_only)
    cls.traits["dataclass"] = fields
    if options.get("init", True) and "__init__" not in cls.members:
        cls.members["__init__"] = Builtin("__init__", _initialize)
    if options.get("eq", True) and "__eq__" not in cls.members:
        cls.members["__eq__"] = Builtin("__eq__", _equal)
    if options.get("order", False):
        for op in ("lt", "le", "gt", "ge"):
            cls.members[f"__{op}__"] = _ordering({"lt": "<", "le": "<=", "gt": ">", "ge": ">="}[op])
    if options.get("frozen", False):
        cls.traits["frozen"] = True
    if (options.get("frozen", False) or options.get("unsafe_hash", False)) and "__hash__" not in cls.members:
        cls.traits["hash_by_value"] = True
    cls.members.setdefault(
        "__match_args__", tuple(n for n, f in fields.items() if f.in_init and not f.keyword_only)
    )
    return cls


def _field(cls: Class, name: str, annotation: str, keyword_only: bool) -> Field:
    default = cls.members.get(name, MISSING)
    init_only = annotation == "InitVar"
    if isinstance(default, Opaque) and default.kind == "dataclasses.Field":
        given = default.attributes
        value = given.get("default", MISSING)
        if value is MISSING:
            cls.members.pop(name, None)
        else:
            cls.members[name] = value
        return Field(
            name,
            value,
            given.get("default_factory", MISSING),
            bool(given.get("init", True)),
            bool(given.get("kw_only", keyword_only)),
            init_only,
            bool(given.get("compare", True)),
            given.get("metadata"),
        )
    return Field(name, default, MISSING, True, keyword_only, init_only, True, None)


def _initialize(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    instance = args.pop(0)
    assert isinstance(instance, Instance)
    fields = fields_of(instance.cls)
    positional = [f for f in fields.values() if f.in_init and not f.keyword_only]
    if len(args) > len(positional):
        raise it.error("TypeError", f"{instance.cls.name}() takes {len(positional)} positional arguments")
    given = {f.name: value for f, value in zip(positional, args, strict=False)}
    for name, value in keywords.items():
        if name not in fields or not fields[name].in_init or name in given:
            raise it.error("TypeError", f"{instance.cls.name}() got an unexpected keyword argument '{name}'")
        given[name] = value
    extra: list[Value] = []
    for field in fields.values():
        if field.name in given:
            value = given[field.name]
        elif field.factory is not MISSING:
            value = it.call(field.factory, [], {})
        elif field.default is not MISSING:
            value = field.default
        elif not field.in_init:
            continue
        else:
            raise it.error("TypeError", f"{instance.cls.name}() missing a required argument: '{field.name}'")
        if field.init_only:
            extra.append(value)
        else:
            instance.attributes[field.name] = value
    after = instance.cls.find("__post_init__")
    if after is not MISSING:
        it.call(after, [instance, *extra], {})
    if instance.cls.find("__tells_defaults__") is True:
        it.library.defaults[instance] = {
            name: instance.attributes.get(name) for name in fields if name not in given
        }
    return None


def values_of(instance: Instance, compared_only: bool = False) -> tuple[Value, ...]:
    return tuple(
        instance.attributes.get(f.name)
        for f in fields_of(instance.cls).values()
        if not f.init_only and (f.compared or not compared_only)
    )


def _equal(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    left, right = args
    if not isinstance(left, Instance) or not isinstance(right, Instance) or left.cls is not right.cls:
        return it.not_implemented
    return operators.equal(it, values_of(left, True), values_of(right, True))


def _ordering(op: str) -> Builtin:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        left, right = args
        if not isinstance(left, Instance) or not isinstance(right, Instance) or left.cls is not right.cls:
            return it.not_implemented
        return operators.compare(it, op, values_of(left, True), values_of(right, True))

    return Builtin(op, call)


# --------------------------------------------------------------------------- enums


def _make_members(it: Interpreter, cls: Class) -> None:
    """Turn the plain members of an enum's body into its constants."""
    mixed = any(base.name in ("int", "str", "float") for base in cls.mro)
    if mixed:
        cls.traits["enum_mixed"] = True
    ordered: dict[str, Instance] = {}
    by_value: list[Instance] = []
    last = 0
    for name, value in list(cls.members.items()):
        if name.startswith("_") or isinstance(
            value, (Function, Property, StaticMethod, ClassMethod, Builtin)
        ):
            continue
        if isinstance(value, Opaque) and value.kind == "enum.auto":
            value = name.lower() if any(b.name == "StrEnum" for b in cls.mro) else last + 1
        if isinstance(value, int):
            last = value
        same = next((m for m in by_value if operators.equal(it, m.attributes["_value_"], value)), None)
        if same is not None:
            ordered[name] = same
            cls.members[name] = same
            continue
        member = Instance(cls, value if mixed else None)
        member.attributes.update(_name_=name, _value_=value, name=name, value=value)
        ordered[name] = member
        by_value.append(member)
        cls.members[name] = member
    cls.traits["enum_members"] = ordered
    initialize = cls.members.get("__init__")
    if isinstance(initialize, Function):
        for member in by_value:
            value = member.attributes["_value_"]
            it.call(initialize, [member, *(value if isinstance(value, tuple) else (value,))], {})


def enum_members(cls: Class) -> dict[str, Instance]:
    found = cls.traits.get("enum_members")
    return cast("dict[str, Instance]", found) if isinstance(found, dict) else {}


def enum_by_value(it: Interpreter, cls: Class, value: Value) -> Value:
    """`Color(2)`."""
    for member in enum_members(cls).values():
        if member is value or operators.equal(it, member.attributes["_value_"], value):
            return member
    hook = cls.find("_missing_")
    if hook is not MISSING:
        return it.call(hook.function if isinstance(hook, ClassMethod) else hook, [cls, value], {})
    if isinstance(value, Unknown):
        return value
    raise it.error(
        "ValueError", f"{value!r} is not a valid {cls.name}" if isinstance(value, (int, str)) else cls.name
    )


# --------------------------------------------------------------------------- named tuples


def make_namedtuple(
    it: Interpreter, name: str, fields: list[str], defaults: dict[str, Value], module: str
) -> Class:
    """`namedtuple(name, fields)`."""
    cls = new_class(it, name, [it.types.by_name["tuple"]], {}, module)
    cls.traits["namedtuple"] = tuple(fields)
    cls.traits["namedtuple_defaults"] = defaults
    cls.members["_fields"] = tuple(fields)
    return cls


def _from_annotations(it: Interpreter, cls: Class) -> None:
    annotations = cast("dict[str, Value]", cls.members.get("__annotations__", {}))
    fields = list(annotations)
    cls.traits["namedtuple"] = tuple(fields)
    cls.traits["namedtuple_defaults"] = {n: cls.members.pop(n) for n in fields if n in cls.members}
    cls.members["_fields"] = tuple(fields)
    tuple_type = it.types.by_name["tuple"]
    if tuple_type not in cls.mro:
        cls.mro = (*cls.mro[:-1], tuple_type, cls.mro[-1])


def construct_namedtuple(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Instance:
    names = cast("tuple[str, ...]", cls.trait("namedtuple"))
    defaults = cast("dict[str, Value]", cls.trait("namedtuple_defaults") or {})
    if len(args) > len(names):
        raise it.error("TypeError", f"{cls.name}() takes {len(names)} positional arguments")
    given = {**defaults, **dict(zip(names, args, strict=False)), **keywords}
    lacking = [n for n in names if n not in given]
    surplus = [n for n in given if n not in names]
    if lacking or surplus:
        raise it.error(
            "TypeError", f"{cls.name}() does not take these arguments: {', '.join(lacking or surplus)}"
        )
    return Instance(cls, tuple(given[n] for n in names))


def namedtuple_method(instance: Instance, name: str) -> Builtin:
    """`_asdict` and `_replace` of a named tuple."""
    names = cast("tuple[str, ...]", instance.cls.trait("namedtuple"))
    values = cast("tuple[Value, ...]", instance.payload)

    def as_dictionary(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return dict(zip(names, values, strict=True))

    def replaced(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return Instance(instance.cls, tuple(keywords.get(n, v) for n, v in zip(names, values, strict=True)))

    return Builtin(name, as_dictionary if name == "_asdict" else replaced)
