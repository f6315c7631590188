"""The standard library as training scripts use it: pure functions work, the outside world is inert.

A module that is not listed gives unknowns; nothing here reads a file, a clock or the environment.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import ast
import math
import weakref
from collections.abc import Callable, Iterator
from itertools import combinations, permutations, product
from typing import TYPE_CHECKING, TypeAlias, cast

from torchwise_analysis.interp.concrete import classes, operators, text
from torchwise_analysis.interp.concrete.errors import Raised, Stopped
from torchwise_analysis.interp.concrete.library import files
from torchwise_analysis.interp.concrete.library.options import argparse_module
from torchwise_analysis.interp.concrete.library.regular import regular_expressions
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    BoundMethod,
    Builtin,
    Class,
    ClassMethod,
    Drawn,
    Function,
    Instance,
    Iter,
    Keywords,
    Namespace,
    Opaque,
    Partial,
    Property,
    StaticMethod,
    Symbol,
    Unknown,
    Value,
)
from torchwise_memory.allocator import ALLOCATOR_VARIABLES, Allocator, AllocatorSettings
from torchwise_memory.modules.base import Module

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter
    from torchwise_analysis.names.launches import LaunchLine

Call: TypeAlias = "Callable[[Interpreter, list[Value], Keywords], Value]"

# An iterator of the library that never ends is cut off here; no loop of ours asks for more.
_ENDLESS = 1 << 30
_LITERAL_CHARACTERS = 512


def standard_modules(it: Interpreter) -> dict[str, Namespace]:
    """Name spaces by module name."""
    made: dict[str, dict[str, Value]] = {
        "math": _math(),
        "functools": _functools(it),
        "itertools": _itertools(),
        "collections": _collections(it),
        "dataclasses": _dataclasses(it),
        "enum": _enum(it),
        "typing": _typing(it),
        "abc": _abc(it),
        "copy": {"copy": Builtin("copy", _copy), "deepcopy": Builtin("deepcopy", _deepcopy)},
        "operator": _operator(),
        "random": _random(),
        "os": _os(),
        "sys": _sys(it),
        "time": _time(),
        "warnings": {n: Builtin(n, _nothing) for n in ("warn", "filterwarnings", "simplefilter")},
        "contextlib": _contextlib(),
        "argparse": argparse_module(it),
        "pathlib": dict.fromkeys(("Path", "PurePath", "PosixPath"), files.path_class()),
        "types": _types(it),
        "numbers": {
            "Number": it.types.named("Number"),
            "Integral": it.types.named("Integral"),
            "Real": it.types.named("Real"),
        },
        "gc": {n: Builtin(n, _nothing) for n in ("collect", "disable", "enable", "freeze")},
        "__future__": {},
        "glob": files.glob_module(),
        "ast": {"literal_eval": Builtin("ast.literal_eval", _literal)},
        "importlib": {"import_module": Builtin("importlib.import_module", _import_module)},
        "io": {"open": Builtin("open", files.open_file)},
        "codecs": {"open": Builtin("open", files.open_file)},
        "builtins": {},
        "inspect": _inspect(),
        "re": regular_expressions(),
        "string": {
            "ascii_letters": _LETTERS,
            "ascii_lowercase": _LETTERS[:26],
            "digits": "0123456789",
            "punctuation": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
        },
    }
    made["collections.abc"] = _abstract_collections(it)
    made["typing_extensions"] = made["typing"]
    spaces = {name: Namespace(name, dict(members)) for name, members in made.items()}
    spaces["typing"].resolve = spaces["typing_extensions"].resolve = lambda name: _typing_name(it, name)
    spaces["collections"].members["abc"] = spaces["collections.abc"]
    spaces["os.path"] = cast(Namespace, spaces["os"].members["path"])
    spaces["builtins"].resolve = lambda name: it.builtins.get(name, MISSING)
    return spaces


def _literal(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`ast.literal_eval` of a short text."""
    content = args[0]
    if not isinstance(content, str) or len(content) > _LITERAL_CHARACTERS:
        return Unknown("the value of a text", it.origin())
    failed = False
    try:
        return cast(Value, ast.literal_eval(content))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        failed = True
    assert failed
    raise it.error("ValueError", "malformed node or string")


def _import_module(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """A module by its name; what a package that is there does not have raises as in Python."""
    name = args[0] if args else keywords.get("name")
    package = args[1] if len(args) > 1 else keywords.get("package")
    if not isinstance(name, str):
        return Unknown("a module whose name is not known", it.origin())
    if name.startswith(".") and isinstance(package, str):
        name = package + name if not name.startswith("..") else name
    found = it.library.imports.find(name, it.library.imports.main_path)
    root = name.partition(".")[0]
    if isinstance(found, Unknown) and it.project.find(root, it.library.imports.main_path) is not None:
        raise it.error("ModuleNotFoundError", f"No module named '{name}'")
    return found


def _time() -> dict[str, Value]:
    members: dict[str, Value] = {
        name: Builtin(name, _clock) for name in ("time", "perf_counter", "monotonic", "process_time")
    }
    members["sleep"] = Builtin("sleep", _nothing)
    members["strftime"] = Builtin("strftime", _text_of_world)
    return members


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _nothing(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return None


def _clock(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return Symbol("the time", is_int=False)


def _text_of_world(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return "text"


def _identity(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return args[0]


# --------------------------------------------------------------------------- math, operator, random


def pure(name: str, host: Callable[..., object], is_int: bool = False) -> Builtin:
    """A function of numbers; unknown numbers give an unknown number."""

    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        numbers: list[Value] = []
        for value in args:
            number = value.payload if isinstance(value, Instance) else value
            known = it.library.known_number(number)
            number = number if known is None else known
            if isinstance(number, (Unknown, Symbol)):
                return Symbol(number.why, is_int)
            if it.is_tensor(number):
                return Symbol("the value of a tensor", is_int)
            numbers.append(number)
        if any(isinstance(n, int) and n.bit_length() > 4096 for n in numbers):
            return Symbol("a number out of bounds", is_int)
        return host(*numbers)

    return Builtin(name, call)


def _math() -> dict[str, Value]:
    floats = [
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "copysign",
        "cos",
        "cosh",
        "degrees",
        "dist",
        "erf",
        "erfc",
        "exp",
        "expm1",
        "fabs",
        "fmod",
        "frexp",
        "gamma",
        "hypot",
        "isclose",
        "isfinite",
        "isinf",
        "isnan",
        "ldexp",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "modf",
        "pow",
        "radians",
        "sin",
        "sinh",
        "sqrt",
        "tan",
        "tanh",
    ]
    members: dict[str, Value] = {name: pure(name, getattr(math, name)) for name in floats}
    for name in ("ceil", "floor", "trunc", "gcd", "lcm", "isqrt"):
        members[name] = pure(name, getattr(math, name), is_int=True)
    members["prod"] = Builtin("prod", _prod)
    members["fsum"] = Builtin("fsum", lambda it, a, k: math.fsum(cast("list[float]", list(it.iterate(a[0])))))
    members["comb"] = pure("comb", _bounded_comb, is_int=True)
    members["factorial"] = pure("factorial", _bounded_factorial, is_int=True)
    members |= {name: getattr(math, name) for name in ("pi", "e", "tau", "inf", "nan")}
    return members


def _bounded_factorial(n: int) -> int:
    if n > 500:
        raise OverflowError("factorial out of bounds")
    return math.factorial(n)


def _bounded_comb(n: int, k: int) -> int:
    if n > 10_000:
        raise OverflowError("comb out of bounds")
    return math.comb(n, k)


def _prod(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    result = keywords.get("start", 1)
    for item in it.iterate(args[0]):
        result = operators.binary(it, "*", result, item)
    return result


def _operator() -> dict[str, Value]:
    def binary(op: str) -> Call:
        return lambda it, a, k: operators.binary(it, op, a[0], a[1])

    def compare(op: str) -> Call:
        return lambda it, a, k: operators.compare(it, op, a[0], a[1])

    names = {
        "add": "+",
        "sub": "-",
        "mul": "*",
        "truediv": "/",
        "floordiv": "//",
        "mod": "%",
        "pow": "**",
        "matmul": "@",
        "and_": "&",
        "or_": "|",
        "xor": "^",
    }
    members: dict[str, Value] = {name: Builtin(name, binary(op)) for name, op in names.items()}
    for name, op in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
        members[name] = Builtin(name, compare(op))
    members["neg"] = Builtin("neg", lambda it, a, k: operators.unary(it, "-", a[0]))
    members["not_"] = Builtin("not_", lambda it, a, k: not it.truth(a[0]))
    members["getitem"] = Builtin("getitem", lambda it, a, k: it.get_item(a[0], a[1]))
    members["itemgetter"] = Builtin("itemgetter", _itemgetter)
    members["attrgetter"] = Builtin("attrgetter", _attrgetter)
    return members


def _itemgetter(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    keys = list(args)

    def get(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        found = [it.get_item(given[0], key) for key in keys]
        return found[0] if len(found) == 1 else tuple(found)

    return Builtin("itemgetter", get)


def _attrgetter(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    path = text.text_of(it, args[0]).split(".")

    def get(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        value = given[0]
        for name in path:
            value = it.get_attribute(value, name)
        return value

    return Builtin("attrgetter", get)


def _random() -> dict[str, Value]:
    def integer(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        last = args[-1] if args else None
        return Drawn(int(last)) if isinstance(last, int) and len(args) > 1 else Symbol("a random number")

    def real(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        return Symbol("a random number", is_int=False)

    members: dict[str, Value] = {n: Builtin(n, integer) for n in ("randint", "randrange", "getrandbits")}
    members |= {n: Builtin(n, real) for n in ("random", "uniform", "gauss", "normalvariate", "betavariate")}
    members |= {n: Builtin(n, _nothing) for n in ("seed", "shuffle", "setstate")}
    members["choice"] = Builtin("choice", _choice)
    members["choices"] = Builtin("choices", _choices)
    members["sample"] = Builtin("sample", _sample)
    members["getstate"] = Builtin("getstate", _nothing)
    members["Random"] = Builtin("Random", lambda it, a, k: Namespace("random.Random", dict(members)))
    return members


def _choice(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Of numbers the largest, which a peak sees in the end; else the first."""
    if isinstance(args[0], (Unknown, Symbol)):
        return Unknown(f"a random element of {args[0].why}", it.origin())
    items = operators.bounded_list(it, it.iterate(args[0]))
    if not items:
        raise it.error("IndexError", "Cannot choose from an empty sequence")
    numbers = [item for item in items if isinstance(item, int) and not isinstance(item, bool)]
    if len(numbers) == len(items):
        it.assume(f"of random numbers the largest is drawn: {max(numbers)}")
        return max(numbers)
    it.assume("a random choice is the first of its elements")
    return items[0]


def _choices(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    count = operators.index_of(it, keywords.get("k", 1))
    items = list(it.iterate(args[0]))
    return [items[i % len(items)] for i in range(count)]


def _sample(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    count = keywords.get("k", args[1] if len(args) > 1 else 1)
    if isinstance(count, (Unknown, Symbol)) or isinstance(args[0], (Unknown, Symbol)):
        return Unknown("a random sample", it.origin())
    out: list[Value] = []
    for item in it.iterate(args[0]):
        if len(out) >= operators.index_of(it, count):
            break
        out.append(item)
    return out


# --------------------------------------------------------------------------- functools, itertools


def _functools(it: Interpreter) -> dict[str, Value]:
    partial = it.types.named("partial")
    partial.construct = lambda it, cls, a, k: _partial(it, a, k)
    return {
        "partial": partial,
        "partialmethod": Builtin("partialmethod", _partial),
        "wraps": Builtin("wraps", _wraps),
        "update_wrapper": Builtin("update_wrapper", _identity),
        "lru_cache": Builtin("lru_cache", _cache),
        "cache": Builtin("cache", _identity),
        "cached_property": Builtin("cached_property", lambda it, a, k: Property(a[0], cached=True)),
        "reduce": Builtin("reduce", _reduce),
        "total_ordering": Builtin("total_ordering", _total_ordering),
        "singledispatch": Builtin("singledispatch", _identity),
        "cmp_to_key": Builtin("cmp_to_key", lambda it, a, k: Unknown("cmp_to_key", it.origin())),
    }


def _partial(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    function = args.pop(0)
    if isinstance(function, Partial):
        return Partial(function.function, [*function.args, *args], {**function.keywords, **keywords})
    return Partial(function, list(args), dict(keywords))


def _wraps(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    wrapped = args[0]

    def decorate(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        function = given[0]
        if isinstance(function, Function):
            function.attributes["__wrapped__"] = wrapped
            if isinstance(wrapped, Function):
                function.name = wrapped.name
        return function

    return Builtin("wraps", decorate)


def _cache(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if args and isinstance(args[0], (Function, BoundMethod)):
        return args[0]
    return Builtin("lru_cache", _identity)


def _reduce(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    function = args[0]
    source = it.iterate(args[1])
    if len(args) > 2:
        result = args[2]
    else:
        result = it.next_of(Iter(source))
    for item in source:
        result = it.call(function, [result, item], {})
    return result


def _total_ordering(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    cls = args[0]
    if not isinstance(cls, Class):
        return cls

    def derived(formula: Callable[[Interpreter, Value, Value], bool]) -> Builtin:
        return Builtin("ordering", lambda it, a, k: formula(it, a[0], a[1]))

    def less(it: Interpreter, a: Value, b: Value) -> bool:
        return it.truth(operators.compare(it, "<", a, b))

    def same(it: Interpreter, a: Value, b: Value) -> bool:
        return it.truth(operators.compare(it, "==", a, b))

    if cls.find("__lt__") is not MISSING:
        cls.members.setdefault("__gt__", derived(lambda it, a, b: not less(it, a, b) and not same(it, a, b)))
        cls.members.setdefault("__le__", derived(lambda it, a, b: less(it, a, b) or same(it, a, b)))
        cls.members.setdefault("__ge__", derived(lambda it, a, b: not less(it, a, b)))
    return cls


def _itertools() -> dict[str, Value]:
    return {
        "count": Builtin("count", _count),
        "cycle": Builtin("cycle", lambda it, a, k: Iter(_cycle(it, a.pop()))),
        "repeat": Builtin("repeat", _repeat),
        "chain": Opaque(
            "itertools.chain",
            {"from_iterable": Builtin("from_iterable", lambda it, a, k: _chained(it, it.iterate(a[0])))},
            call=lambda it, a, k: _chained(it, iter(a)),
        ),
        "islice": Builtin("islice", _islice),
        "product": Builtin("product", _product),
        "permutations": Builtin("permutations", _bounded(permutations)),
        "combinations": Builtin("combinations", _bounded(combinations)),
        "accumulate": Builtin("accumulate", _accumulate),
        "zip_longest": Builtin("zip_longest", _zip_longest),
        "starmap": Builtin("starmap", lambda it, a, k: Iter(_starmap(it, a[0], it.iterate(a[1])))),
        "takewhile": Builtin("takewhile", lambda it, a, k: Iter(_takewhile(it, a[0], it.iterate(a[1])))),
        "dropwhile": Builtin("dropwhile", lambda it, a, k: Iter(_dropwhile(it, a[0], it.iterate(a[1])))),
        "groupby": Builtin("groupby", _groupby),
        "pairwise": Builtin("pairwise", lambda it, a, k: Iter(_pairwise(it.iterate(a[0])))),
        "tee": Builtin("tee", _tee),
    }


def _count(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    start = args[0] if args else keywords.get("start", 0)
    step = args[1] if len(args) > 1 else keywords.get("step", 1)
    return Iter(_counting(it, start, step))


def _counting(it: Interpreter, value: Value, step: Value) -> Iterator[Value]:
    for _ in range(_ENDLESS):
        it.burn()
        yield value
        value = operators.binary(it, "+", value, step)


def _cycle(it: Interpreter, source: Value) -> Iterator[Value]:
    seen: list[Value] = []
    for item in it.iterate(source):
        seen.append(item)
        yield item
    while seen:
        it.burn()
        yield from seen


def _repeat(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    times = args[1] if len(args) > 1 else keywords.get("times", _ENDLESS)
    return Iter(_repeating(it, args[0], operators.index_of(it, times)))


def _repeating(it: Interpreter, value: Value, times: int) -> Iterator[Value]:
    for _ in range(times):
        it.burn()
        yield value


def _chained(it: Interpreter, sources: Iterator[Value]) -> Iter:
    """`itertools.chain`; it is in doubt once one of its parts is of unknown length."""
    made = Iter(iter(()), "chain")
    made.source = _chain(it, sources, weakref.ref(made))
    return made


def _chain(it: Interpreter, sources: Iterator[Value], whole: weakref.ref[Iter]) -> Iterator[Value]:
    for source in sources:
        doubts = it.doubts
        items = it.iterate(source)
        chain = whole()
        if it.doubts > doubts and chain is not None:
            chain.doubt = it.uncertain_why
        yield from items


def _islice(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    bounds = [None if a is None else operators.index_of(it, a) for a in args[1:]]
    whole = slice(*bounds)
    return Iter(_sliced(it.iterate(args[0]), whole.start or 0, whole.stop, whole.step or 1))


def _sliced(source: Iterator[Value], start: int, stop: int | None, step: int) -> Iterator[Value]:
    if stop == 0:
        return
    for position, item in enumerate(source):
        if position >= start and (position - start) % step == 0:
            yield item
        if stop is not None and position + 1 >= stop:
            return


def _product(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    repeat = operators.index_of(it, keywords.get("repeat", 1))
    pools = [operators.bounded_list(it, it.iterate(a)) for a in args]
    if repeat * len(pools) > 64:
        raise Stopped("a product out of bounds", it.origin())
    return Iter(iter(cast("Iterator[Value]", product(*pools, repeat=repeat))))


def _bounded(host: Callable[..., Iterator[tuple[Value, ...]]]) -> Call:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        items = operators.bounded_list(it, it.iterate(args[0]))
        return Iter(iter(host(items, *[operators.index_of(it, a) for a in args[1:]])))

    return call


def _accumulate(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    function = args[1] if len(args) > 1 else keywords.get("func")
    out: list[Value] = []
    if "initial" in keywords:
        out.append(keywords["initial"])
    for item in it.iterate(args[0]):
        if not out:
            out.append(item)
        elif function is None:
            out.append(operators.binary(it, "+", out[-1], item))
        else:
            out.append(it.call(function, [out[-1], item], {}))
    return Iter(iter(out))


def _zip_longest(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    pools = [operators.bounded_list(it, it.iterate(a)) for a in args]
    fill = keywords.get("fillvalue")
    length = max((len(p) for p in pools), default=0)
    rows = [tuple(p[i] if i < len(p) else fill for p in pools) for i in range(length)]
    return Iter(iter(cast("list[Value]", rows)))


def _starmap(it: Interpreter, function: Value, source: Iterator[Value]) -> Iterator[Value]:
    for item in source:
        yield it.call(function, list(it.iterate(item)), {})


def _takewhile(it: Interpreter, test: Value, source: Iterator[Value]) -> Iterator[Value]:
    for item in source:
        if not it.truth(it.call(test, [item], {})):
            return
        yield item


def _dropwhile(it: Interpreter, test: Value, source: Iterator[Value]) -> Iterator[Value]:
    dropping = True
    for item in source:
        dropping = dropping and it.truth(it.call(test, [item], {}))
        if not dropping:
            yield item


def _groupby(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    key = args[1] if len(args) > 1 else keywords.get("key")
    groups: list[Value] = []
    last: list[Value] = []
    for item in it.iterate(args[0]):
        value = item if key is None else it.call(key, [item], {})
        if groups and operators.equal(it, cast("tuple[Value, Value]", groups[-1])[0], value):
            last.append(item)
        else:
            last = [item]
            groups.append((value, last))
    return Iter(iter(groups))


def _pairwise(source: Iterator[Value]) -> Iterator[Value]:
    before: Value = MISSING
    for item in source:
        if before is not MISSING:
            yield (before, item)
        before = item


def _tee(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    items = operators.bounded_list(it, it.iterate(args[0]))
    count = operators.index_of(it, args[1]) if len(args) > 1 else 2
    return tuple(Iter(iter(list(items))) for _ in range(count))


# --------------------------------------------------------------------------- collections


def _collections(it: Interpreter) -> dict[str, Value]:
    dict_type = it.types.by_name["dict"]

    def subclass(name: str) -> Class:
        return classes.new_class(it, name, [dict_type], {}, "collections")

    user = subclass("UserDict")
    user.members["__init__"] = Builtin("__init__", _user_init)
    user.members["data"] = Property(Builtin("data", lambda it, a, k: cast(Instance, a[0]).payload))
    ordered = subclass("OrderedDict")
    default = subclass("defaultdict")
    default.members["__init__"] = Builtin("__init__", _default_init)
    default.members["__missing__"] = Builtin("__missing__", _default_missing)
    counter = subclass("Counter")
    counter.members["__init__"] = Builtin("__init__", _counter_update)
    counter.members["update"] = Builtin("update", _counter_update)
    counter.members["__missing__"] = Builtin("__missing__", lambda it, a, k: 0)
    counter.members["most_common"] = Builtin("most_common", _most_common)
    counter.members["elements"] = Builtin("elements", _elements)
    deque = classes.new_class(it, "deque", [it.types.by_name["list"]], {}, "collections")
    deque.members["__init__"] = Builtin("__init__", _deque_init)
    deque.members["append"] = Builtin("append", _deque_append)
    deque.members["appendleft"] = Builtin("appendleft", _deque_appendleft)
    deque.members["popleft"] = Builtin("popleft", _deque_popleft)
    deque.members["extend"] = Builtin("extend", _deque_extend)
    deque.members["rotate"] = Builtin("rotate", _deque_rotate)
    return {
        "OrderedDict": ordered,
        "defaultdict": default,
        "Counter": counter,
        "deque": deque,
        "namedtuple": Builtin("namedtuple", _namedtuple),
        "ChainMap": Builtin("ChainMap", _chain_map),
        "UserDict": user,
    }


def _payload(it: Interpreter, receiver: Value) -> dict[Value, Value]:
    return cast("dict[Value, Value]", cast(Instance, receiver).payload)


def _user_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    for source in args[1:]:
        if source is not None:
            _payload(it, args[0]).update(it.as_mapping(source))
    _payload(it, args[0]).update(keywords)
    return None


def _default_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = cast(Instance, args[0])
    receiver.attributes["default_factory"] = args[1] if len(args) > 1 else None
    for source in args[2:]:
        _payload(it, receiver).update(it.as_mapping(source))
    _payload(it, receiver).update(keywords)
    return None


def _default_missing(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver, key = cast(Instance, args[0]), args[1]
    factory = receiver.attributes.get("default_factory")
    if factory is None:
        raise it.error("KeyError", key)
    made = it.call(factory, [], {})
    operators.store(it, _payload(it, receiver), key, made)
    return made


def _counter_update(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    counts = _payload(it, args[0])
    for source in args[1:]:
        bare = source.payload if isinstance(source, Instance) else source
        if isinstance(bare, dict):
            pairs = list(cast("dict[Value, Value]", bare).items())
        else:
            pairs = [(item, 1) for item in it.iterate(source)]
        for key, count in pairs:
            old = counts.get(operators.key_of(it, key), 0)
            operators.store(it, counts, key, operators.binary(it, "+", old, count))
    for name, count in keywords.items():
        counts[name] = operators.binary(it, "+", counts.get(name, 0), count)
    return None


def _most_common(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    pairs = sorted(_payload(it, args[0]).items(), key=lambda pair: -cast(int, pair[1]))
    limit = operators.index_of(it, args[1]) if len(args) > 1 and args[1] is not None else None
    return [tuple(pair) for pair in pairs[:limit]]


def _elements(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    out = [key for key, count in _payload(it, args[0]).items() for _ in range(cast(int, count))]
    return Iter(iter(out))


def _items_of(receiver: Value) -> list[Value]:
    return cast("list[Value]", cast(Instance, receiver).payload)


def _trim(receiver: Value, from_left: bool) -> None:
    limit = cast(Instance, receiver).attributes.get("maxlen")
    items = _items_of(receiver)
    if isinstance(limit, int) and len(items) > limit:
        if from_left:
            del items[: len(items) - limit]
        else:
            del items[limit:]


def _deque_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = cast(Instance, args[0])
    limit = keywords.get("maxlen", args[2] if len(args) > 2 else None)
    receiver.attributes["maxlen"] = limit
    source = args[1] if len(args) > 1 else keywords.get("iterable")
    if source is not None:
        _items_of(receiver).extend(operators.bounded_list(it, it.iterate(source)))
        _trim(receiver, from_left=True)
    return None


def _deque_append(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    _items_of(args[0]).append(args.pop())
    _trim(args[0], from_left=True)
    return None


def _deque_appendleft(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    _items_of(args[0]).insert(0, args.pop())
    _trim(args[0], from_left=False)
    return None


def _deque_popleft(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    items = _items_of(args[0])
    if not items:
        raise it.error("IndexError", "pop from an empty deque")
    return items.pop(0)


def _deque_extend(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    _items_of(args[0]).extend(operators.bounded_list(it, it.iterate(args[1])))
    _trim(args[0], from_left=True)
    return None


def _deque_rotate(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    items = _items_of(args[0])
    if items:
        shift = (operators.index_of(it, args[1]) if len(args) > 1 else 1) % len(items)
        items[:] = items[-shift:] + items[:-shift]
    return None


def _namedtuple(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    name, fields = args[0], args[1] if len(args) > 1 else keywords.get("field_names")
    if isinstance(fields, str):
        names = fields.replace(",", " ").split()
    else:
        names = [text.text_of(it, f) for f in it.iterate(fields)]
    defaults = list(it.iterate(keywords["defaults"])) if keywords.get("defaults") is not None else []
    given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=False))
    return classes.make_namedtuple(it, text.text_of(it, name), names, given, "__main__")


def _chain_map(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    merged: dict[Value, Value] = {}
    for source in reversed(args):
        merged.update(it.as_mapping(source))
    return merged


# --------------------------------------------------------------------------- dataclasses, enum, typing, abc


def _dataclasses(it: Interpreter) -> dict[str, Value]:
    return {
        "dataclass": Builtin("dataclass", _dataclass),
        "field": Builtin("field", _field),
        "fields": Builtin("fields", _fields),
        "asdict": Builtin("asdict", _asdict),
        "astuple": Builtin("astuple", lambda it, a, k: classes.values_of(cast(Instance, a[0]))),
        "replace": Builtin("replace", _replace),
        "is_dataclass": Builtin("is_dataclass", lambda it, a, k: bool(_fields_of(it, a[0]))),
        "MISSING": Opaque("dataclasses.MISSING"),
        "KW_ONLY": Opaque("dataclasses.KW_ONLY"),
        "InitVar": it.types.named("InitVar"),
        "FrozenInstanceError": it.types.by_name["AttributeError"],
    }


def _dataclass(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if args and isinstance(args[0], Class):
        return classes.make_dataclass(it, args[0], keywords)
    options = dict(keywords)

    def decorate(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        return classes.make_dataclass(it, given[0], options) if isinstance(given[0], Class) else given[0]

    return Builtin("dataclass", decorate)


def _field(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return Opaque("dataclasses.Field", dict(keywords))


def _fields_of(it: Interpreter, value: Value) -> dict[str, classes.Field]:
    cls = value if isinstance(value, Class) else it.class_of(value)
    return classes.fields_of(cls)


def _fields(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return tuple(
        Opaque(
            "dataclasses.Field",
            {"name": f.name, "default": f.default, "metadata": f.metadata or {}, "init": f.in_init},
        )
        for f in _fields_of(it, args[0]).values()
        if not f.init_only
    )


def _asdict(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return _plain(it, args[0])


def _plain(it: Interpreter, value: Value) -> Value:
    if isinstance(value, Instance) and _fields_of(it, value):
        return {f: _plain(it, value.attributes.get(f)) for f in _fields_of(it, value)}
    if isinstance(value, list):
        return [_plain(it, v) for v in cast("list[Value]", value)]
    if isinstance(value, dict):
        return {k: _plain(it, v) for k, v in cast("dict[Value, Value]", value).items()}
    return value


def _replace(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    instance = cast(Instance, args[0])
    given = {
        f.name: instance.attributes.get(f.name) for f in classes.fields_of(instance.cls).values() if f.in_init
    }
    return it.instantiate(instance.cls, [], {**given, **keywords})


def _enum(it: Interpreter) -> dict[str, Value]:
    base = classes.new_class(it, "Enum", [], {}, "enum")
    base.traits["enum"] = True
    integer = classes.new_class(it, "IntEnum", [it.types.by_name["int"], base], {}, "enum")
    string = classes.new_class(it, "StrEnum", [it.types.by_name["str"], base], {}, "enum")
    return {
        "Enum": base,
        "IntEnum": integer,
        "StrEnum": string,
        "Flag": base,
        "IntFlag": integer,
        "EnumMeta": it.types.by_name["type"],
        "auto": Builtin("auto", lambda it, a, k: Opaque("enum.auto")),
        "unique": Builtin("unique", _identity),
    }


def _typing(it: Interpreter) -> dict[str, Value]:
    named = classes.new_class(it, "NamedTuple", [], {}, "typing")
    named.traits["typing.NamedTuple"] = True
    members: dict[str, Value] = {
        "NamedTuple": named,
        "TypedDict": classes.new_class(it, "TypedDict", [it.types.by_name["dict"]], {}, "typing"),
        "TYPE_CHECKING": False,
        "cast": Builtin("cast", lambda it, a, k: a[1]),
        "TypeVar": Builtin("TypeVar", lambda it, a, k: it.types.named("TypeVar")),
        "ParamSpec": Builtin("ParamSpec", lambda it, a, k: it.types.named("ParamSpec")),
        "NewType": Builtin("NewType", lambda it, a, k: a[1]),
        "overload": Builtin("overload", _identity),
        "final": Builtin("final", _identity),
        "override": Builtin("override", _identity),
        "runtime_checkable": Builtin("runtime_checkable", _identity),
        "no_type_check": Builtin("no_type_check", _identity),
        "get_type_hints": Builtin("get_type_hints", lambda it, a, k: {}),
        "get_args": Builtin("get_args", lambda it, a, k: ()),
        "get_origin": Builtin("get_origin", _nothing),
        "List": it.types.by_name["list"],
        "Dict": it.types.by_name["dict"],
        "Tuple": it.types.by_name["tuple"],
        "Set": it.types.by_name["set"],
    }
    for name in ("Generic", "Protocol"):
        members[name] = classes.new_class(it, name, [], {}, "typing")
    return members


def _typing_name(it: Interpreter, name: str) -> Value:
    return it.types.named(name) if name[:1].isupper() else MISSING


def _abc(it: Interpreter) -> dict[str, Value]:
    return {
        "ABC": classes.new_class(it, "ABC", [], {}, "abc"),
        "ABCMeta": it.types.by_name["type"],
        "abstractmethod": Builtin("abstractmethod", _identity),
        "abstractproperty": Builtin("abstractproperty", lambda it, a, k: Property(a[0])),
        "abstractclassmethod": Builtin("abstractclassmethod", lambda it, a, k: ClassMethod(a[0])),
        "abstractstaticmethod": Builtin("abstractstaticmethod", lambda it, a, k: StaticMethod(a[0])),
    }


def _abstract_collections(it: Interpreter) -> dict[str, Value]:
    names = (
        "Callable Collection Container Hashable Iterable Iterator Generator Mapping MutableMapping "
        "MutableSequence Sequence Set Sized"
    )
    made: dict[str, Value] = {name: it.types.named(name) for name in names.split()}
    for name in ("Mapping", "MutableMapping"):
        cls = it.types.named(name)
        for member, call in _MAPPING.items():
            cls.members[member] = Builtin(member, call)
    return made


def _mapping_get(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    default = args[2] if len(args) > 2 else keywords.get("default")
    try:
        return it.get_item(args[0], args[1])
    except Raised as raised:
        if not raised.value.cls.is_subclass(it.types.by_name["KeyError"]):
            raise
    return default


def _mapping_contains(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return any(operators.equal(it, key, args[1]) is True for key in it.iterate(args[0]))


def _mapping_keys(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return list(it.iterate(args[0]))


def _mapping_values(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return [it.get_item(args[0], key) for key in it.iterate(args[0])]


def _mapping_items(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return [(key, it.get_item(args[0], key)) for key in it.iterate(args[0])]


def _mapping_pop(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if not _mapping_contains(it, args[:2], {}) and len(args) > 2:
        return args[2]
    value = it.get_item(args[0], args[1])
    it.delete_item(args[0], args[1])
    return value


def _mapping_update(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    for source in [*args[1:], dict(keywords)]:
        for key, value in it.as_mapping(source).items():
            it.set_item(args[0], key, value)
    return None


def _mapping_setdefault(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if not _mapping_contains(it, args[:2], {}):
        it.set_item(args[0], args[1], args[2] if len(args) > 2 else None)
    return it.get_item(args[0], args[1])


# What the abstract base classes of mappings give to a class that has the item methods.
_MAPPING: dict[str, Call] = {
    "get": _mapping_get,
    "__contains__": _mapping_contains,
    "keys": _mapping_keys,
    "values": _mapping_values,
    "items": _mapping_items,
    "pop": _mapping_pop,
    "update": _mapping_update,
    "setdefault": _mapping_setdefault,
}


def _types(it: Interpreter) -> dict[str, Value]:
    simple = classes.new_class(it, "SimpleNamespace", [], {}, "types")
    simple.members["__init__"] = Builtin("__init__", _namespace_init)
    return {
        "SimpleNamespace": simple,
        "MethodType": Builtin("MethodType", lambda it, a, k: BoundMethod(a[0], a[1])),
        "FunctionType": it.types.by_name["function"],
        "ModuleType": it.types.by_name["module"],
        "GeneratorType": it.types.by_name["generator"],
        "NoneType": it.types.by_name["NoneType"],
        "MappingProxyType": Builtin("MappingProxyType", _identity),
        "UnionType": it.types.named("UnionType"),
    }


def _namespace_init(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    receiver = cast(Instance, args[0])
    for source in args[1:]:
        receiver.attributes.update(it.as_keywords(source))
    receiver.attributes.update(keywords)
    return None


# --------------------------------------------------------------------------- copy


def _copy(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[0]
    if isinstance(value, (list, dict, set)):
        return cast("list[Value]", value).copy()
    if isinstance(value, Instance):
        made = Instance(value.cls, _copy(it, [value.payload], {}))
        made.attributes.update(value.attributes)
        return made
    return it.library.copied(value, deep=False, memo={})


def _deepcopy(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return deep_copy(it, args[0], {})


def deep_copy(it: Interpreter, value: Value, memo: dict[int, Value]) -> Value:
    """A copy that shares nothing that can change; classes, functions and modules are shared."""
    if id(value) in memo:
        return memo[id(value)]
    it.burn_for(value)
    if isinstance(value, list):
        out: list[Value] = []
        memo[id(value)] = out
        out.extend(deep_copy(it, v, memo) for v in cast("list[Value]", value))
        return out
    if isinstance(value, dict):
        made: dict[Value, Value] = {}
        memo[id(value)] = made
        for key, inner in cast("dict[Value, Value]", value).items():
            made[key] = deep_copy(it, inner, memo)
        return made
    if isinstance(value, tuple):
        copied = tuple(deep_copy(it, v, memo) for v in cast("tuple[Value, ...]", value))
        memo[id(value)] = copied
        return copied
    if isinstance(value, set):
        return set(cast("set[Value]", value))
    if isinstance(value, Instance):
        if value.cls.trait("enum"):
            return value
        hook = value.cls.find("__deepcopy__")
        if hook is not MISSING:
            return it.call(hook, [value, {}], {})
        twin = Instance(value.cls)
        memo[id(value)] = twin
        twin.payload = deep_copy(it, value.payload, memo)
        for name, inner in value.attributes.items():
            twin.attributes[name] = deep_copy(it, inner, memo)
        return twin
    return it.library.copied(value, deep=True, memo=memo)


# --------------------------------------------------------------------------- contextlib


def _contextlib() -> dict[str, Value]:
    return {
        "contextmanager": Builtin("contextmanager", _contextmanager),
        "asynccontextmanager": Builtin("asynccontextmanager", _contextmanager),
        "nullcontext": Builtin("nullcontext", _nullcontext),
        "suppress": Builtin(
            "suppress",
            lambda it, a, k: Opaque("contextlib.suppress", payload=tuple(a), enter=lambda it: None),
        ),
        "redirect_stdout": Builtin("redirect_stdout", _nullcontext),
        "closing": Builtin("closing", _nullcontext),
        "ExitStack": Builtin("ExitStack", _exit_stack),
        "AbstractContextManager": Opaque("AbstractContextManager"),
        "ContextDecorator": Opaque("ContextDecorator"),
    }


def _nullcontext(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    value = args[0] if args else keywords.get("enter_result")
    return Opaque("nullcontext", enter=lambda it: value)


def _contextmanager(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    function = args[0]

    def make(it: Interpreter, given: list[Value], named: Keywords) -> Value:
        return generator_context(it, it.call(function, given, named))

    # found on a class, it is a method like the function it stands for
    return Builtin("contextmanager", make)


def generator_context(it: Interpreter, generator: Value) -> Opaque:
    """The context manager that runs a generator to its only `yield` and then to its end."""
    if not isinstance(generator, Iter):
        raise it.error("TypeError", "contextmanager() needs a generator function")
    steps = generator.source

    def enter(it: Interpreter) -> Value:
        return it.next_of(Iter(steps))

    def leave(it: Interpreter) -> None:
        for _ in steps:
            raise it.error("RuntimeError", "generator didn't stop")

    return Opaque("contextmanager", enter=enter, leave=leave, call=_context_as_decorator(enter, leave))


def _context_as_decorator(
    enter: Callable[[Interpreter], Value], leave: Callable[[Interpreter], None]
) -> Call:
    def decorate(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        function = given[0]

        def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            enter(it)
            try:
                return it.call(function, args, keywords)
            finally:
                leave(it)

        return Builtin("decorated", call)

    return decorate


def _exit_stack(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    entered: list[Value] = []

    def enter_context(it: Interpreter, given: list[Value], _: Keywords) -> Value:
        value = it.enter(given[0])
        entered.append(given[0])
        return value

    def leave(it: Interpreter) -> None:
        while entered:
            it.leave(entered.pop(), None)

    stack = Opaque("ExitStack", leave=leave)
    stack.attributes["enter_context"] = Builtin("enter_context", enter_context)
    stack.attributes["callback"] = Builtin("callback", _nothing)
    stack.attributes["close"] = Builtin("close", lambda it, a, k: leave(it))
    stack.enter = lambda it: stack
    return stack


# --------------------------------------------------------------------------- the outside world


_ENVIRONMENT = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "CUDA_VISIBLE_DEVICES": "0",
}
_DISTRIBUTED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def _environment(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    name = args[0]
    default = args[1] if len(args) > 1 else keywords.get("default")
    if isinstance(name, str) and name in _DISTRIBUTED:
        if it.launch is not None and it.launch.is_distributed:
            return _world_size(it.launch, name) if "WORLD_SIZE" in name else "0"
        it.assume("one process, not started by a launcher")
        return default
    if default is not None:
        it.assume(f"the environment variable {text.text_of(it, name)} is not set")
    return default


def _world_size(launch: LaunchLine, name: str) -> str:
    return str(launch.processes_of_node if "LOCAL" in name else launch.processes)


def _environ_contains(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return it.launch is not None and it.launch.is_distributed and args[0] in _DISTRIBUTED


def _environ_item(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    name = args[0]
    if isinstance(name, str) and "WORLD_SIZE" in name and it.launch is not None:
        return _world_size(it.launch, name)
    if name in _DISTRIBUTED and it.launch is not None and it.launch.is_distributed:
        return "0"  # the process that is estimated is the first one
    if isinstance(name, str) and name in _ENVIRONMENT:
        it.assume(f"{name} is {_ENVIRONMENT[name]}: one process")
        return _ENVIRONMENT[name]
    return Unknown(f"the environment variable {text.text_of(it, name)}", it.origin())


def _set_environment(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        set_variable(it, args[0], args[1])
    return args[1] if len(args) > 1 else None


def _default_environment(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    _set_environment(it, args, keywords)
    return _environment(it, args, keywords)


def _update_environment(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    given = cast("dict[Value, Value]", args[0]) if args and isinstance(args[0], dict) else {}
    for name, value in (*given.items(), *keywords.items()):
        _set_environment(it, [name, value], {})
    return None


def set_variable(it: Interpreter, name: str, value: str) -> None:
    """What the allocator takes from a variable while nothing lies on the card; others change no size."""
    allocator = it.world.ledger.allocator
    if name not in ALLOCATOR_VARIABLES or not isinstance(allocator, Allocator) or allocator.reserved:
        return
    allocator.settings = AllocatorSettings.parse(value)
    if allocator.settings.unknown:
        it.assume(f"options of the allocator that are not followed: {', '.join(allocator.settings.unknown)}")


def _os() -> dict[str, Value]:
    environ = Opaque("os.environ")
    environ.attributes |= {
        "get": Builtin("get", _environment),
        "__getitem__": Builtin("__getitem__", _environ_item),
        "__contains__": Builtin("__contains__", _environ_contains),
        "__setitem__": Builtin("__setitem__", _set_environment),
        "setdefault": Builtin("setdefault", _default_environment),
        "update": Builtin("update", _update_environment),
        "pop": Builtin("pop", _environment),
        "copy": Builtin("copy", lambda it, a, k: {}),
        "items": Builtin("items", lambda it, a, k: []),
    }
    path = Namespace("os.path", files.os_path())
    members: dict[str, Value] = {
        "environ": environ,
        "path": path,
        "getenv": Builtin("getenv", _environment),
        "putenv": Builtin("putenv", _set_environment),
        "makedirs": Builtin("makedirs", _nothing),
        "mkdir": Builtin("mkdir", _nothing),
        "remove": Builtin("remove", _nothing),
        "system": Builtin("system", lambda it, a, k: 0),
        "listdir": Builtin("listdir", files.listing),
        "scandir": Builtin("scandir", lambda it, a, k: Unknown("the files of a folder", it.origin())),
        "walk": Builtin("walk", lambda it, a, k: Unknown("the files below a folder", it.origin())),
        "fspath": Builtin("fspath", _identity),
        "getcwd": Builtin("getcwd", lambda it, a, k: "."),
        "cpu_count": Builtin("cpu_count", lambda it, a, k: 8),
        "getpid": Builtin("getpid", lambda it, a, k: 1),
        "sep": "/",
        "name": "posix",
        "devnull": "/dev/null",
        "PathLike": Opaque("os.PathLike"),
    }
    return members


def _sys(it: Interpreter) -> dict[str, Value]:
    return {
        "argv": [it.library.imports.main_path or "script.py", *it.argv],
        "path": [],
        "modules": {},
        "version": "3.11",
        "version_info": (3, 11, 0, "final", 0),
        "platform": "linux",
        "maxsize": 2**63 - 1,
        "executable": "python",
        **{name: _stream(name) for name in ("stdout", "stderr", "stdin")},
        "exit": Builtin("exit", _exit),
        "getsizeof": Builtin("getsizeof", lambda it, a, k: Symbol("a size")),
        "setrecursionlimit": Builtin("setrecursionlimit", _nothing),
        "float_info": Opaque(
            "sys.float_info", {"max": 1.7976931348623157e308, "epsilon": 2.220446049250313e-16}
        ),
    }


def _stream(name: str) -> Opaque:
    inert = ("write", "flush", "read", "readline", "close")
    return Opaque(f"sys.{name}", {method: Builtin(method, _nothing) for method in inert})


def _exit(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    raise it.error("SystemExit", args[0] if args else "")


def _inspect() -> dict[str, Value]:
    return {
        "signature": Builtin("signature", _signature),
        "isfunction": Builtin("isfunction", lambda it, a, k: isinstance(a[0], Function)),
        "isclass": Builtin("isclass", lambda it, a, k: isinstance(a[0], Class)),
        "ismethod": Builtin("ismethod", lambda it, a, k: isinstance(a[0], BoundMethod)),
        "getmembers": Builtin("getmembers", lambda it, a, k: []),
    }


def _signature(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Names of parameters only: enough for `"fused" in inspect.signature(AdamW).parameters`."""
    value = args[0]
    skip = 0
    if isinstance(value, BoundMethod):
        value, skip = value.function, 1
    if isinstance(value, Class):
        names = it.library.parameter_names(value)
        initialize = value.find("__init__")
        if names is None and isinstance(initialize, Function):
            value, skip = initialize, 1
        elif names is not None:
            return Opaque(
                "inspect.Signature",
                {"parameters": {n: Opaque("inspect.Parameter", {"name": n}) for n in names}},
            )
    while isinstance(value, Function) and isinstance(value.attributes.get("__wrapped__"), Function):
        value = cast(Function, value.attributes["__wrapped__"])
    if not isinstance(value, Function):
        return Unknown("a signature", it.origin())
    shown = {p.name: Opaque("inspect.Parameter", {"name": p.name}) for p in value.node.params[skip:]}
    return Opaque("inspect.Signature", {"parameters": shown})


__all__ = ["Module", "Raised", "deep_copy", "generator_context", "pure", "standard_modules"]
