"""The objects of an interpreted program.

Host numbers, strings, tuples, lists, dictionaries and sets serve as carriers of the program's own;
everything else that a program can hold is one of the classes below, a value of the memory runtime
(`Tensor`, `DType`, `Device`, modules, optimizers) or `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from torchwise_analysis.source.nodes import FunctionDef, Lambda
from torchwise_memory.report import Origin

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

Value: TypeAlias = object
Arguments: TypeAlias = "list[Value]"
Keywords: TypeAlias = "dict[str, Value]"
NativeCall: TypeAlias = "Callable[[Interpreter, Arguments, Keywords], Value]"


class Int(int):
    """An integer that remembers where the script wrote it; arithmetic gives plain integers again."""

    # "default" for a command-line option that nobody set, "read" for what the script says itself
    source: str
    origin: Origin
    # where the literal stands on its line
    columns: tuple[int, int]

    def __new__(
        cls, value: int, origin: Origin, columns: tuple[int, int] = (0, 0), source: str = "read"
    ) -> Int:
        made = super().__new__(cls, value)
        made.origin = origin
        made.columns = columns
        made.source = source
        return made

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class Unknown:
    """A value nothing is known of. It absorbs what scripts do to it; models refuse it loudly."""

    __slots__ = ("origin", "why")

    def __init__(self, why: str, origin: Origin | None = None) -> None:
        self.why = why
        self.origin = origin


class Symbol:
    """A number whose value is not known: a linear form over unnamed unknowns.

    Only what lengths need is kept: sums, differences and integer multiples; any other operation
    gives a fresh symbol. Two symbols with equal terms differ by a known number.
    """

    __slots__ = ("constant", "is_int", "terms", "why")

    def __init__(
        self,
        why: str,
        is_int: bool = True,
        terms: tuple[tuple[object, int], ...] | None = None,
        constant: int = 0,
    ) -> None:
        self.why = why
        self.is_int = is_int
        self.terms = ((object(), 1),) if terms is None else terms
        self.constant = constant


class Drawn(Symbol):
    """A random whole number; where it decides about a size, the largest is what a peak sees."""

    __slots__ = ("largest",)

    def __init__(self, largest: int) -> None:
        super().__init__("a random number")
        self.largest = largest


class Class:
    """A class of the program, or a built-in or library type made visible to it.

    `construct` (inherited along the MRO) makes the bare object of a built-in or library type from
    the arguments; `members` of such types are closed tables. `tag` names the library type.
    """

    __slots__ = (
        "__weakref__",
        "bases",
        "construct",
        "members",
        "module",
        "mro",
        "name",
        "resolve",
        "tag",
        "traits",
    )

    def __init__(
        self,
        name: str,
        bases: tuple[Class, ...],
        members: dict[str, Value] | None = None,
        module: str = "builtins",
        construct: Callable[[Interpreter, Class, Arguments, Keywords], Value] | None = None,
        tag: str = "",
    ) -> None:
        self.name = name
        self.bases = bases
        self.members = {} if members is None else members
        self.module = module
        self.construct = construct
        self.tag = tag
        self.mro: tuple[Class, ...] = (self,)
        # facts that decorators and bases leave on a class: "dataclass", "enum", "namedtuple", ...
        self.traits: dict[str, object] = {}
        # how a library type gives members that are not in `members` (bound by the caller)
        self.resolve: Callable[[str], Value | None] | None = None

    def __repr__(self) -> str:
        return f"<class {self.name}>"

    def find(self, name: str) -> Value:
        """The member `name` along the MRO, or MISSING."""
        for cls in self.mro:
            if name in cls.members:
                return cls.members[name]
            if cls.resolve is not None:
                got = cls.resolve(name)
                if got is not None:
                    return got
        return MISSING

    def is_subclass(self, other: Class) -> bool:
        return other in self.mro

    def trait(self, name: str) -> object:
        """The nearest value of a trait along the MRO, or None."""
        for cls in self.mro:
            if name in cls.traits:
                return cls.traits[name]
        return None


class Missing:
    """The type of MISSING: told apart from a program's None."""

    __slots__ = ()


MISSING = Missing()


class Instance:
    """An object of a program's class.

    `payload` is the carrier of an instance of a subclass of `dict`, `list`, `str`, `int`, ...
    """

    __slots__ = ("__weakref__", "attributes", "cls", "payload")

    def __init__(self, cls: Class, payload: Value = None) -> None:
        self.cls = cls
        self.attributes: dict[str, Value] = {}
        self.payload = payload

    def __repr__(self) -> str:
        return f"<{self.cls.name} object>"


class ClassCell:
    """What `super()` without arguments refers to; filled when the class statement ends."""

    __slots__ = ("cls",)

    def __init__(self) -> None:
        self.cls: Class | None = None


class Frame:
    """The names of one running scope, as one dictionary.

    `base` is the document line that spans of the statement being executed count from.
    """

    __slots__ = (
        "base",
        "cell",
        "first",
        "function",
        "globals_",
        "is_class",
        "module",
        "names",
        "outer",
        "outward",
        "sent",
    )

    def __init__(self, module: ModuleValue, outer: Frame | None, base: int) -> None:
        self.module = module
        self.names: dict[str, Value] = {}
        self.outer = outer
        self.base = base
        self.is_class = False
        self.cell: ClassCell | None = None
        self.function: Function | None = None
        # the name of the first parameter, for `super()`
        self.first: str = ""
        # names declared `global` or `nonlocal` here
        self.globals_: frozenset[str] = frozenset()
        self.outward: frozenset[str] = frozenset()
        # values of yield expressions of the statement being executed, by node identity
        self.sent: dict[int, Value] | None = None


class Function:
    """A function or lambda of the program."""

    __slots__ = ("__weakref__", "attributes", "base", "cell", "closure", "defaults", "module", "name", "node")

    def __init__(
        self, node: FunctionDef | Lambda, name: str, module: ModuleValue, closure: Frame | None, base: int
    ) -> None:
        self.node = node
        self.name = name
        self.module = module
        self.closure = closure
        self.base = base
        self.defaults: dict[str, Value] = {}
        self.cell: ClassCell | None = None
        self.attributes: dict[str, Value] = {}

    def __repr__(self) -> str:
        return f"<function {self.name}>"


class Builtin:
    """A function of ours that a program may call."""

    __slots__ = ("call", "name", "traits")

    def __init__(self, name: str, call: NativeCall, **traits: object) -> None:
        self.name = name
        self.call = call
        self.traits = traits

    def __repr__(self) -> str:
        return f"<built-in {self.name}>"


class BoundMethod:
    """A function with its first argument."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: Value, receiver: Value) -> None:
        self.function = function
        self.receiver = receiver


class Partial:
    """functools.partial."""

    __slots__ = ("args", "function", "keywords")

    def __init__(self, function: Value, args: Arguments, keywords: Keywords) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords


class Property:
    """A property; `cached` keeps the first result in the instance."""

    __slots__ = ("cached", "getter", "name", "setter")

    def __init__(self, getter: Value, setter: Value = None, cached: bool = False, name: str = "") -> None:
        self.getter = getter
        self.setter = setter
        self.cached = cached
        self.name = name


class StaticMethod:
    __slots__ = ("function",)

    def __init__(self, function: Value) -> None:
        self.function = function


class ClassMethod:
    __slots__ = ("function",)

    def __init__(self, function: Value) -> None:
        self.function = function


class Super:
    """`super()`: members of `receiver` after `after` in its MRO."""

    __slots__ = ("after", "receiver")

    def __init__(self, after: Class, receiver: Value) -> None:
        self.after = after
        self.receiver = receiver


class Iter:
    """An iterator or generator of the program; `source` is a host iterator of ours.

    `doubt` says why it is not known how many items there are, where that is so.
    """

    __slots__ = ("__weakref__", "doubt", "kind", "source")

    def __init__(self, source: Iterator[Value], kind: str = "iterator") -> None:
        self.source = source
        self.kind = kind
        self.doubt = ""


class ModuleValue:
    """A module of the program, of its project or of a library read as text."""

    __slots__ = (
        "__weakref__",
        "is_library",
        "is_package",
        "is_text",
        "lazy",
        "name",
        "names",
        "path",
        "places",
    )

    def __init__(self, name: str, path: str, is_package: bool, is_library: bool) -> None:
        self.name = name
        self.path = path
        self.is_package = is_package
        self.is_library = is_library
        # whether it stands for no file: a replacement text, a text that a program evaluates
        self.is_text = path.startswith("<")
        # the places of its lines that were asked for
        self.places: dict[int, Origin] = {}
        self.names: dict[str, Value] = {}
        # evaluates the statement that binds a name when it is asked for; None: all names are there
        self.lazy: Callable[[str], Value] | None = None

    def place(self, line: int) -> Origin:
        """A line of its text, from 1."""
        found = self.places.get(line)
        if found is None:
            found = self.places[line] = Origin(self.path, line)
        return found

    def __repr__(self) -> str:
        return f"<module {self.name}>"


class Namespace:
    """A library module known to us by a table; `resolve` gives a member by name or MISSING."""

    __slots__ = ("members", "name", "resolve")

    def __init__(
        self,
        name: str,
        members: dict[str, Value] | None = None,
        resolve: Callable[[str], Value] | None = None,
    ) -> None:
        self.name = name
        self.members = {} if members is None else members
        self.resolve = resolve

    def __repr__(self) -> str:
        return f"<module {self.name}>"


class Opaque:
    """An object of ours with a closed table of attributes and methods, such as a context manager.

    `enter` and `leave` make it usable in `with`; `call` makes it callable (a decorator, say).
    """

    __slots__ = ("attributes", "call", "enter", "kind", "leave", "payload")

    def __init__(
        self,
        kind: str,
        attributes: dict[str, Value] | None = None,
        payload: object = None,
        call: NativeCall | None = None,
        enter: Callable[[Interpreter], Value] | None = None,
        leave: Callable[[Interpreter], None] | None = None,
    ) -> None:
        self.kind = kind
        self.attributes = {} if attributes is None else attributes
        self.payload = payload
        self.call = call
        self.enter = enter
        self.leave = leave

    def __repr__(self) -> str:
        return f"<{self.kind}>"
