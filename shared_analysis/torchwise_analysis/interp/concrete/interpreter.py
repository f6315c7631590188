"""The evaluator's state and what every part of it asks for: calls, attributes, items, iteration, truth.

Lifetimes follow CPython: arguments are moved into the frame of a plain function and dropped there when
their names are re-bound; a frame's names go when the call returns, except those an inner function kept
alive uses; nothing here stores a value of the program longer than CPython would.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import cast

from torchwise_analysis.interp.concrete import classes, methods, operators, recovery, statements, text
from torchwise_analysis.interp.concrete.builtins import builtin_names
from torchwise_analysis.interp.concrete.calls import bind_arguments
from torchwise_analysis.interp.concrete.costs import (
    CALL_STEPS,
    CHARACTERS_A_STEP,
    ITEMS_A_STEP,
    RAISE_STEPS,
    STATEMENT_FUEL,
)
from torchwise_analysis.interp.concrete.errors import Cancelled, OutOfFuel, Raised, Stopped
from torchwise_analysis.interp.concrete.expressions import EXPRESSIONS
from torchwise_analysis.interp.concrete.library import Library
from torchwise_analysis.interp.concrete.library.training import bound_arguments
from torchwise_analysis.interp.concrete.loops import Loops
from torchwise_analysis.interp.concrete.recovery import FailedModel, Unread
from torchwise_analysis.interp.concrete.types import Types
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    BoundMethod,
    Builtin,
    Class,
    ClassMethod,
    Frame,
    Function,
    Instance,
    Iter,
    ModuleValue,
    Namespace,
    Opaque,
    Partial,
    Property,
    StaticMethod,
    Super,
    Symbol,
    Unknown,
    Value,
)
from torchwise_analysis.interp.core.constants import MAX_ITEMS, TooLarge
from torchwise_analysis.names.launches import LaunchLine, stated_by
from torchwise_analysis.names.project import Project
from torchwise_analysis.source import nodes
from torchwise_memory.modules.base import Module
from torchwise_memory.report import Origin
from torchwise_memory.runtime import errors as runtime_errors
from torchwise_memory.runtime.tensor import Size, Tensor
from torchwise_memory.runtime.world import World

MAX_DEPTH = 120
# An iterable of unknown length gives this many items to a loop that is not the step loop.
UNKNOWN_ITEMS = 3
# Longer ranges cost fuel number by number, whoever walks them.
MANY_NUMBERS = 1 << 16
# Rounds that a loop goes on because nobody knows whether its way out is open.
MAX_WAITS = 64
_STOP_EVERY = 512

_HOST_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    UnicodeError,
    ValueError,
)
# Whose attributes are those of the type they carry.
_CARRIERS = frozenset({list, tuple, dict, str, set, int, float, bool})
_ERROR_NAMES = frozenset(
    {
        "AttributeError",
        "IndexError",
        "KeyError",
        "OverflowError",
        "TypeError",
        "ValueError",
        "ZeroDivisionError",
    }
)


class Interpreter:
    """One run of one script on one simulated card."""

    def __init__(
        self,
        project: Project,
        world: World,
        choices: dict[str, object] | None = None,
        stop: Callable[[], bool] = lambda: False,
        fuel: int = STATEMENT_FUEL,
    ) -> None:
        self.project = project
        self.world = world
        self.ledger = world.ledger
        # the program's line that runs, or that asked for what a library's text does
        self.own_place: Origin | None = None
        self.stop = stop
        self.fuel = fuel
        # at this much fuel the run asks whether to go on
        self.pause = max(0, fuel - _STOP_EVERY)
        self.depth = 0
        self.types = Types()
        self.not_implemented = Opaque("NotImplementedType")
        self.handled: list[Instance] = []
        self.send_value: Value = None
        # how many enclosing `try` statements are ready for a missing package
        self.import_guards = 0
        # the enclosing `try` statements, each with its frame
        self.tries: list[tuple[nodes.Try, Frame]] = []
        # how many modules are being made
        self.making = 0
        # whether statements that cannot be followed are passed over, and how many were
        self.recovers = False
        self.passed_over = 0
        self.unread = Unread()
        # the project's functions that were called: paths, with the lines from 1 of their definitions
        self.entered: set[tuple[str, int]] = set()
        # the line of the project that starts the script in this run, None without arguments
        self.launch: LaunchLine | None = None
        # the file that the question is about, where another one starts the program
        self.wanted_path = ""
        self.yields_cache: dict[int, tuple[nodes.Stmt, tuple[nodes.Expr, ...] | None]] = {}
        self.assumptions: dict[str, Origin | None] = {}
        self.notes: list[str] = []
        # what alternatives of unread facts are taken in this run, and which were met
        self.choices: dict[str, object] = {} if choices is None else choices
        # what a run tries instead: other whole numbers in the script's text, and named changes
        self.literals: dict[tuple[Origin, tuple[int, int]], int] = {}
        self.changes: frozenset[str] = frozenset()
        # what a person stated in comments: by name, and by place for the assignment there
        self.stated: dict[str, tuple[object, Origin]] = {}
        self.stated_lines: dict[tuple[str, int], dict[str, object]] = {}
        self.read_statements: Callable[[str], None] = lambda path: None
        self.raised_at: weakref.WeakKeyDictionary[Instance, Origin] = weakref.WeakKeyDictionary()
        # what the loops run over that are under way and whose number of rounds is not known
        self.uncertain: list[str] = []
        # how many iterators of that kind were made, and what the last one runs over
        self.doubts = 0
        self.uncertain_why = ""
        # containers that such loops filled, whose length is not known: by identity, held, with the reason
        self.open_containers: dict[int, tuple[Value, str]] = {}
        # how often a condition that is not known has kept a loop going
        self.waits: dict[int, int] = {}
        # where lengths were asked for that are not known, by what they are the length of
        self.lengths: dict[str, Origin | None] = {}
        self.chosen: dict[str, tuple[object, tuple[object, ...], Origin | None]] = {}
        self.loops = Loops()
        self.builtins: dict[str, Value] = {**self.types.by_name, **builtin_names(self)}
        self.library = Library(self)
        self._node: nodes.Node | None = None
        self._frame_path = ""
        self._frame_base = 0

    @property
    def argv(self) -> tuple[str, ...]:
        """The words that the script is started with."""
        return () if self.launch is None else self.launch.words

    # -- places

    def place(self, node: nodes.Node, frame: Frame) -> None:
        """What follows is asked for by `node`; what a framework's text does, by the program's line before."""
        module = frame.module
        if not module.is_text:
            line = frame.base + node.span.line + 1
            self.ledger.origin = found = module.places.get(line) or module.place(line)
            if not module.is_library:
                self.own_place = found

    def origin(self) -> Origin | None:
        return self.ledger.origin

    def origin_of(self, node: nodes.Node, frame: Frame) -> Origin:
        return frame.module.place(frame.base + node.span.line + 1)

    @property
    def module_depth(self) -> int:
        return self.world.module_depth

    @property
    def expects_import_errors(self) -> bool:
        return self.import_guards > 0

    # -- bookkeeping

    def burn(self, amount: int = 1) -> None:
        """Fuel for what costs as much as `amount` statements or rounds."""
        self.fuel -= amount
        if self.fuel < self.pause:
            self.rest()

    def rest(self) -> None:
        """At every so many steps: whether to go on at all."""
        if self.fuel < 0:
            raise OutOfFuel("the script takes more steps than are followed", self.origin())
        if self.stop():
            raise Cancelled
        self.pause = max(0, self.fuel - _STOP_EVERY)

    def burn_for(self, made: Value) -> None:
        """Fuel for a value that was copied or made whole."""
        if isinstance(made, (str, bytes)):
            if len(made) > CHARACTERS_A_STEP:
                self.burn(len(made) // CHARACTERS_A_STEP)
        elif isinstance(made, (list, tuple, dict, set, frozenset)):
            items = cast("Collection[Value]", made)
            if len(items) > ITEMS_A_STEP:
                self.burn(len(items) // ITEMS_A_STEP)

    def assume(self, sentence: str) -> None:
        self.assumptions.setdefault(sentence, self.origin())

    def choose(self, name: str, options: tuple[object, ...], sentence: str) -> object:
        """A fact that the script does not settle: the first option, or the one this run is to try."""
        if name in self.stated:
            value, where = self.stated[name]
            self.assume(f"{name} is {value}, {stated_by(where)}")
            return value
        value = self.choices.get(name, options[0])
        self.chosen.setdefault(name, (value, options, self.origin()))
        self.assume(sentence.format(value))
        return value

    def waited_long(self, node: nodes.If) -> bool:
        """Whether a condition that nobody knows has kept a loop going for long."""
        self.waits[id(node)] = self.waits.get(id(node), 0) + 1
        return self.waits[id(node)] > MAX_WAITS

    def error(self, name: str, message: Value = "") -> Raised:
        """An exception of a built-in class, ready to be raised."""
        cls = self.types.by_name.get(name) or self.types.by_name["RuntimeError"]
        made = Instance(cls)
        made.attributes["args"] = (message,) if message != "" else ()
        return self.raised(made)

    def raised(self, value: Instance) -> Raised:
        """An exception on its way; raised again, it keeps the place where it came up first."""
        self.fuel -= RAISE_STEPS
        origin = self.origin()
        return Raised(value, self.raised_at.setdefault(value, origin) if origin is not None else None)

    def is_tensor(self, value: Value) -> bool:
        return isinstance(value, Tensor)

    def derived(self, value: Unknown) -> Unknown:
        return value

    def taken_sent(self) -> Value:
        value, self.send_value = self.send_value, None
        return value

    # -- evaluation

    def evaluate(self, node: nodes.Expr, frame: Frame) -> Value:
        return EXPRESSIONS[node.__class__](self, node, frame)

    def inner_frame(self, frame: Frame) -> Frame:
        """A scope of its own inside `frame`: a class body or a comprehension."""
        return Frame(frame.module, frame, frame.base)

    def global_name(self, name: str, frame: Frame, node: nodes.Node) -> Value:
        module = frame.module
        if name in module.names:
            return module.names[name]
        if module.lazy is not None:
            value = module.lazy(name)
            if value is not MISSING:
                return value
        if name in self.builtins:
            return self.builtins[name]
        if name in ("__file__", "__path__"):
            return str(Path(module.path).absolute())
        if name in ("__doc__", "__spec__", "__package__"):
            return None
        self.place(node, frame)
        if self.library.star_unknown(module):
            return Unknown(f"the name {name}", self.origin())
        raise self.error("NameError", f"name '{name}' is not defined")

    def undecided(self, value: Value) -> str:
        """What a condition hangs on if it can be neither true nor false here; empty if it is decided."""
        if isinstance(value, Symbol):
            return "" if value.is_int and not value.terms else value.why
        if isinstance(value, Unknown):
            return value.why
        if isinstance(value, Tensor) and self.library.known_number(value) is None:
            return "the value of a tensor"
        return ""

    def truth(self, value: Value, node: nodes.Expr | None = None, frame: Frame | None = None) -> bool:
        """`bool(value)`; a condition that is not known counts as false, and the answer says so."""
        if value is True or value is False:
            return bool(value)
        if value is None:
            return False
        if isinstance(value, (Unknown, Symbol)):
            if isinstance(value, Symbol) and value.is_int and not value.terms:
                return bool(value.constant)
            if node is not None and frame is not None:
                self.place(node, frame)
            self.assume(f"the condition on {value.why} is taken to be false")
            return False
        if isinstance(value, Tensor):
            known = self.library.known_number(value)
            if known is None:
                self.assume("a condition on the value of a tensor is taken to be false")
                return False
            return bool(known)
        if isinstance(value, Instance):
            return self._truth_of_instance(value)
        if isinstance(value, Module):
            native = self.library.truth_of_module(value)
            return True if native is None else native
        if isinstance(value, Opaque):
            return value.kind != "NullBool"
        if isinstance(value, (int, float, str, bytes, tuple, list, dict, set, frozenset, range, complex)):
            return bool(value)
        return True

    def _truth_of_instance(self, value: Instance) -> bool:
        for name in ("__bool__", "__len__"):
            method = value.cls.find(name)
            if method is not MISSING:
                answer = self.call(method, [value], {})
                # what has a length that is not known (data, say) is not empty
                return True if name == "__len__" and isinstance(answer, Symbol) else self.truth(answer)
        return True if value.payload is None else self.truth(value.payload)

    # -- binding of names

    def bind(self, name: str, value: Value, frame: Frame) -> None:
        if name in frame.globals_:
            frame.module.names[name] = value
        elif name in frame.outward:
            scope = frame.outer
            while scope is not None:
                if name in scope.names and not scope.is_class:
                    scope.names[name] = value
                    return
                scope = scope.outer
            frame.names[name] = value
        else:
            frame.names[name] = value

    def unbind(self, name: str, frame: Frame) -> None:
        names = frame.module.names if name in frame.globals_ else frame.names
        names.pop(name, None)

    def assign(self, target: nodes.Expr, value: Value, frame: Frame) -> None:
        if isinstance(target, nodes.Name):
            name = target.id
            if frame.globals_ or frame.outward:
                self.bind(name, value, frame)
            else:
                frame.names[name] = value
        elif isinstance(target, nodes.Attribute):
            owner = self.evaluate(target.value, frame)
            self.place(target, frame)
            self.set_attribute(owner, target.attr, value)
        elif isinstance(target, nodes.Subscript):
            owner = self.evaluate(target.value, frame)
            index = self.evaluate(target.index, frame)
            self.place(target, frame)
            self.set_item(owner, index, value)
        elif isinstance(target, (nodes.TupleExpr, nodes.ListExpr)):
            self._unpack(target.elements, value, frame)
        elif isinstance(target, nodes.Starred):
            self.assign(target.value, list(self.iterate(value)), frame)

    def _unpack(self, targets: tuple[nodes.Expr, ...], value: Value, frame: Frame) -> None:
        if isinstance(value, (Unknown, Symbol)):
            for target in targets:
                inner = target.value if isinstance(target, nodes.Starred) else target
                why = value.why if value.why.startswith("a part of ") else f"a part of {value.why}"
                self.assign(
                    inner, Unknown(why, value.origin if isinstance(value, Unknown) else self.origin()), frame
                )
            return
        items = list(self.iterate(value))
        del value
        star = next((i for i, t in enumerate(targets) if isinstance(t, nodes.Starred)), None)
        if star is None:
            if len(items) != len(targets):
                word = "too many" if len(items) > len(targets) else "not enough"
                raise self.error("ValueError", f"{word} values to unpack (expected {len(targets)})")
            for target in targets:
                self.assign(target, items.pop(0), frame)
            return
        after = len(targets) - star - 1
        if len(items) < star + after:
            raise self.error("ValueError", "not enough values to unpack")
        end = len(items) - after
        for target, item in zip(targets, [*items[:star], items[star:end], *items[end:]], strict=True):
            self.assign(target.value if isinstance(target, nodes.Starred) else target, item, frame)

    def delete(self, target: nodes.Expr, frame: Frame) -> None:
        if isinstance(target, nodes.Name):
            names = frame.module.names if target.id in frame.globals_ else frame.names
            if target.id not in names:
                raise self.error("NameError", f"name '{target.id}' is not defined")
            del names[target.id]
        elif isinstance(target, nodes.Attribute):
            self.delete_attribute(self.evaluate(target.value, frame), target.attr)
        elif isinstance(target, nodes.Subscript):
            self.delete_item(self.evaluate(target.value, frame), self.evaluate(target.index, frame))
        elif isinstance(target, (nodes.TupleExpr, nodes.ListExpr)):
            for element in target.elements:
                self.delete(element, frame)

    # -- calls

    def call(self, callee: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
        """`callee(*args, **keywords)`; the lists are the callee's to empty."""
        if isinstance(callee, BoundMethod):
            if self._is_forward(callee):
                return self.library.call_module(cast(Module, callee.receiver), args, keywords)
            args.insert(0, callee.receiver)
            callee = callee.function
        if isinstance(callee, Function):
            return self.call_function(callee, args, keywords)
        if isinstance(callee, Builtin):
            return self.call_builtin(callee, args, keywords)
        if isinstance(callee, Class):
            return self.instantiate(callee, args, keywords)
        if isinstance(callee, Module):
            return self.library.call_module(callee, args, keywords)
        if isinstance(callee, Partial):
            return self.call(callee.function, [*callee.args, *args], {**callee.keywords, **keywords})
        if isinstance(callee, Instance):
            method = callee.cls.find("__call__")
            if method is not MISSING:
                return self.call(self.bind_member(method, callee, callee.cls), args, keywords)
        if isinstance(callee, (StaticMethod, ClassMethod)):
            return self.call(callee.function, args, keywords)
        if isinstance(callee, Opaque) and callee.call is not None:
            return callee.call(self, args, keywords)
        if isinstance(callee, (Unknown, Symbol)):
            return self.call_unknown(callee, args, keywords)
        native = self.library.call_object(callee, args, keywords)
        if native is not MISSING:
            return native
        raise self.error("TypeError", f"'{self.class_of(callee).name}' object is not callable")

    def _is_forward(self, method: BoundMethod) -> bool:
        """Whether `model.forward(...)` is called from outside of any model, as if it were `model(...)`."""
        receiver, function = method.receiver, method.function
        return (
            isinstance(function, Function)
            and function.name == "forward"
            and isinstance(receiver, Module)
            and not self.world.module_depth
            and self.class_of(receiver).find("forward") is function
        )

    def call_function(self, function: Function, args: list[Value], keywords: dict[str, Value]) -> Value:
        self.fuel -= CALL_STEPS
        if self.fuel < self.pause:
            self.rest()
        node = function.node
        module = function.module
        if not module.is_library:
            self.entered.add((module.path, function.base + node.span.line + 1))
        frame = Frame(module, function.closure, function.base)
        frame.function = function
        frame.cell = function.cell
        bind_arguments(self, function, frame, args, keywords)
        scope = node.scope
        if scope.is_generator:
            assert isinstance(node, nodes.FunctionDef)
            return Iter(_values(statements.generate(self, node.body, frame)), "generator")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.depth -= 1
            raise self.error("RecursionError", "maximum recursion depth exceeded")
        try:
            if isinstance(node, nodes.Lambda):
                return self.evaluate(node.body, frame)
            outcome = statements.run_block(self, node.body, frame)
            return outcome.value if isinstance(outcome, statements.Returned) else None
        finally:
            self.depth -= 1
            captured = scope.captured
            if captured:
                for name in [n for n in frame.names if n not in captured]:
                    del frame.names[name]
            else:
                frame.names.clear()

    def call_builtin(self, builtin: Builtin, args: list[Value], keywords: dict[str, Value]) -> Value:
        """Host exceptions of a built-in are exceptions of the program; the runtime's stop the trace."""
        failure: tuple[str, Value] | None = None
        stopped: tuple[str, Origin | None] | None = None
        try:
            return builtin.call(self, args, keywords)
        except TooLarge:
            return Unknown(f"the result of {builtin.name} is out of bounds", self.origin())
        except runtime_errors.RuntimeStop as error:
            stopped = self._refusal(str(error), [*args, *keywords.values()])
        except _HOST_ERRORS as error:
            failure = describe(error)
        if stopped is not None:
            raise Stopped(*stopped)
        assert failure is not None
        raise self.error(*failure)

    def _refusal(self, message: str, given: list[Value]) -> tuple[str, Origin | None]:
        """What the runtime refused; where an argument is not known, that one and its place."""
        unknown = _first_unknown(given)
        here = self.origin()
        if unknown is None:
            return message, here
        born = unknown.origin if isinstance(unknown, Unknown) else self.lengths.get(unknown.why)
        if born is None or here is None or born == here:
            return f"{message}: {unknown.why} is not known", here
        needed = f"needed at {here.path}:{here.line}"
        message = message.partition(" (Unknown)")[0]
        return f"{unknown.why} is not known ({needed}: {message})", born

    def call_unknown(self, callee: Unknown | Symbol, args: list[Value], keywords: dict[str, Value]) -> Value:
        """Scripts may call what is not known (logging); inside a model it would falsify the graph."""
        if self.module_depth and any(_holds_tensor(v) for v in (*args, *keywords.values())):
            origin = callee.origin if isinstance(callee, Unknown) else None
            raise Stopped(f"{callee.why} is not known and is called inside a model", self.origin() or origin)
        if " " in callee.why and not callee.why.startswith("module "):
            return Unknown(callee.why, callee.origin if isinstance(callee, Unknown) else self.origin())
        return Unknown(f"what {callee.why.removeprefix('module ')} gives", self.origin())

    def decorate(self, decorator: Value, value: Value) -> Value:
        """Apply a decorator; one that is not known is taken to change nothing."""
        if isinstance(decorator, (Unknown, Symbol)):
            self.assume(f"the decorator {decorator.why} changes nothing")
            return value
        result = self.call(decorator, [value], {})
        if isinstance(result, Unknown):
            self.assume(f"a decorator ({result.why}) changes nothing")
            return value
        return result

    def instantiate(self, cls: Class, args: list[Value], keywords: dict[str, Value]) -> Value:
        """`cls(*args, **keywords)`."""
        if cls.trait("enum") and "enum_members" in cls.traits:
            return classes.enum_by_value(self, cls, args[0])
        maker = cls.find("__new__")
        if isinstance(maker, StaticMethod):
            maker = maker.function
        if isinstance(maker, Function):
            made = self.call(maker, [cls, *args], dict(keywords))
            if not self.class_of(made).is_subclass(cls):
                return made
        else:
            made = self.allocate(cls, args, keywords)
            if made is MISSING:
                return self._construct_carrier(cls, args, keywords)
        initialize = cls.find("__init__")
        if self.recovers and isinstance(made, Module):
            self._initialize_noting(made, cls, initialize, args, keywords)
        elif isinstance(initialize, Function) and cls.find("__keeps_arguments__") is True:
            self._initialize_keeping(made, initialize, args, keywords)
        elif initialize is not MISSING:
            args.insert(0, made)
            self.call(initialize, args, keywords)
        elif (
            (args or keywords)
            and isinstance(made, Instance)
            and made.payload is None
            and not cls.trait("exception")
        ):
            raise self.error("TypeError", f"{cls.name}() takes no arguments")
        return made

    def _initialize_noting(
        self, made: Value, cls: Class, initialize: Value, args: list[Value], keywords: dict[str, Value]
    ) -> None:
        """`__init__` of a module; one that cannot be followed leaves its class's name for the plan."""
        origin = self.origin()
        done = False
        self.making += 1
        try:
            if isinstance(initialize, Function) and cls.find("__keeps_arguments__") is True:
                self._initialize_keeping(made, initialize, args, keywords)
            elif initialize is not MISSING:
                self.call(initialize, [made, *args], keywords)
            done = True
        finally:
            self.making -= 1
            # the outermost module that fails is noted last
            if not done and not cls.tag:
                self.library.failed_model = FailedModel(cls.name, cls.module, origin)

    def _initialize_keeping(
        self, made: Value, initialize: Function, args: list[Value], keywords: dict[str, Value]
    ) -> None:
        """`__init__` of a class whose instances may ask for their arguments while it runs."""
        self.library.arguments[id(made)] = bound_arguments(initialize, args, keywords)
        try:
            self.call_function(initialize, [made, *args], keywords)
        finally:
            del self.library.arguments[id(made)]

    def allocate(self, cls: Class, args: list[Value], keywords: dict[str, Value]) -> Value:
        """The bare object of a class, before `__init__`; MISSING if the class itself makes carriers."""
        if cls.trait("exception"):
            made = Instance(cls)
            made.attributes["args"] = tuple(args)
            return made
        if cls.trait("namedtuple"):
            return classes.construct_namedtuple(self, cls, args, keywords)
        if cls.trait("native"):
            return self.library.allocate(cls)
        if "unknown_base" in cls.traits or cls.trait("unknown_base"):
            self.assume(f"the base class {cls.trait('unknown_base')} of {cls.name} adds nothing")
        for base in cls.mro:
            if base.construct is not None:
                if base is cls:
                    return MISSING
                return Instance(cls, self._payload(cls, base, args, keywords))
        return Instance(cls)

    def _payload(self, cls: Class, base: Class, args: list[Value], keywords: dict[str, Value]) -> Value:
        assert base.construct is not None
        if base.name in ("dict", "list", "set") and cls.find("__init__") is not MISSING:
            return base.construct(self, base, [], {})
        payload = base.construct(self, base, list(args), dict(keywords))
        return payload.payload if isinstance(payload, Instance) else payload

    def _construct_carrier(self, cls: Class, args: list[Value], keywords: dict[str, Value]) -> Value:
        assert cls.construct is not None
        construct = cls.construct
        return self.call_builtin(Builtin(cls.name, lambda it, a, k: construct(it, cls, a, k)), args, keywords)

    # -- attributes

    def class_of(self, value: Value) -> Class:
        found = self.types.class_of(value)
        return self.library.class_of(value) if found is None else found

    def get_attribute(self, owner: Value, name: str) -> Value:
        value = self.find_attribute(owner, name)
        return self.missing_attribute(owner, name) if value is MISSING else value

    def missing_attribute(self, owner: Value, name: str) -> Value:
        """What an attribute that is not there gives: an unknown of a library, an error of the program."""
        if isinstance(owner, Namespace):
            return Unknown(f"{owner.name}.{name}", self.origin())
        if isinstance(owner, Class) and owner.tag:
            return Unknown(f"{owner.tag}.{name}", self.origin())
        if isinstance(owner, Unknown) and " " in owner.why and not owner.why.startswith("module "):
            # what comes of something that is not known is named after it
            return owner
        if isinstance(owner, (Unknown, Symbol)):
            return Unknown(f"{owner.why.removeprefix('module ')}.{name}", self.origin())
        if isinstance(owner, Opaque) and name not in ("__len__", "__iter__"):
            return Unknown(f"{owner.kind}.{name}", self.origin())
        if isinstance(owner, (Instance, Class)):
            cls = owner if isinstance(owner, Class) else owner.cls
            if cls.trait("unknown_base"):
                return Unknown(f"{cls.trait('unknown_base')}.{name}", self.origin())
        if isinstance(owner, Tensor):
            return Unknown(f"Tensor.{name}", self.origin())
        if isinstance(owner, ModuleValue):
            raise self.error("AttributeError", f"module '{owner.name}' has no attribute '{name}'")
        if isinstance(owner, Class):
            raise self.error("AttributeError", f"type object '{owner.name}' has no attribute '{name}'")
        raise self.error("AttributeError", f"'{self.class_of(owner).name}' object has no attribute '{name}'")

    def find_attribute(self, owner: Value, name: str) -> Value:
        """`owner.name`, or MISSING. The only way a program reaches into anything."""
        if isinstance(owner, Instance):
            return self._instance_attribute(owner, name)
        if isinstance(owner, Tensor):
            return self.library.tensor_attribute(owner, name)
        if isinstance(owner, Module):
            return self.library.module_attribute(owner, name)
        if owner.__class__ in _CARRIERS:
            return self._carrier_attribute(owner, name)
        if isinstance(owner, ModuleValue):
            return self._module_attribute(owner, name)
        if isinstance(owner, Namespace):
            return self.library.member(owner, name)
        if isinstance(owner, Class):
            return self._class_attribute(owner, name)
        if isinstance(owner, Super):
            return self._super_attribute(owner, name)
        if isinstance(owner, Opaque):
            value = owner.attributes.get(name, MISSING)
            return (
                BoundMethod(value, owner)
                if isinstance(value, Builtin) and "method" in value.traits
                else value
            )
        if isinstance(owner, Function):
            return self._function_attribute(owner, name)
        if isinstance(owner, (BoundMethod, Partial)):
            return self._bound_attribute(owner, name)
        if isinstance(owner, Builtin):
            return owner.name if name in ("__name__", "__qualname__") else MISSING
        if isinstance(owner, Property):
            return Builtin(f"property.{name}", lambda it, a, k: _changed(owner, name, a[0]))
        if isinstance(owner, Size):
            return self.library.size_attribute(owner, name)
        return self._carrier_attribute(owner, name)

    def _carrier_attribute(self, owner: Value, name: str) -> Value:
        if name == "__class__":
            return self.class_of(owner)
        value = methods.attribute_of(owner, name)
        if value is not MISSING:
            return value
        method = methods.method_of(owner, name)
        if method is not None:
            return BoundMethod(method, owner)
        return self.library.object_attribute(owner, name)

    def _instance_attribute(self, owner: Instance, name: str) -> Value:
        member = owner.cls.find(name)
        if isinstance(member, Property):
            if member.cached and name in owner.attributes:
                return owner.attributes[name]
            value = self.call(member.getter, [owner], {})
            if member.cached:
                owner.attributes[name] = value
            return value
        if name in owner.attributes:
            return owner.attributes[name]
        if member is not MISSING:
            return self.bind_member(member, owner, owner.cls)
        if name == "__class__":
            return owner.cls
        if name == "__dict__":
            return owner.attributes
        names = owner.cls.trait("namedtuple")
        if isinstance(names, tuple) and name in names:
            return cast("tuple[Value, ...]", owner.payload)[names.index(name)]
        if isinstance(names, tuple) and name in ("_asdict", "_replace"):
            return classes.namedtuple_method(owner, name)
        if owner.payload is not None:
            method = methods.method_of(owner.payload, name)
            if method is not None:
                return BoundMethod(method, owner)
        general = self.library.general_method(owner, name)
        if general is not MISSING:
            return general
        fallback = owner.cls.find("__getattr__")
        if fallback is not MISSING:
            return self.ask_getattr(fallback, owner, name)
        return MISSING

    def ask_getattr(self, fallback: Value, owner: Value, name: str) -> Value:
        missing = False
        try:
            return self.call(fallback, [owner, name], {})
        except Raised as raised:
            if not raised.value.cls.is_subclass(self.types.by_name["AttributeError"]):
                raise
            missing = True
        assert missing
        return MISSING

    def bind_member(self, member: Value, receiver: Value, cls: Class) -> Value:
        """A class member seen through an object."""
        if isinstance(member, Function):
            return BoundMethod(member, receiver)
        if isinstance(member, Builtin):
            return member if "static" in member.traits else BoundMethod(member, receiver)
        if isinstance(member, StaticMethod):
            return member.function
        if isinstance(member, ClassMethod):
            return BoundMethod(member.function, cls)
        if isinstance(member, Property):
            return self.call(member.getter, [receiver], {})
        if isinstance(member, Instance):
            getter = member.cls.find("__get__")
            if getter is not MISSING:
                return self.call(getter, [member, receiver, cls], {})
        if isinstance(member, Opaque) and "bind" in member.attributes:
            return BoundMethod(member, receiver)
        return member

    def _class_attribute(self, owner: Class, name: str) -> Value:
        member = owner.find(name)
        if isinstance(member, ClassMethod):
            return BoundMethod(member.function, owner)
        if isinstance(member, StaticMethod):
            return member.function
        if member is not MISSING:
            return member
        if name in ("__name__", "__qualname__"):
            return owner.name
        if name == "__module__":
            return owner.module
        if name == "__mro__":
            return owner.mro
        if name == "__bases__":
            return owner.bases
        if name == "__dict__":
            return dict(owner.members)
        if name == "__doc__":
            return None
        if name == "__class__":
            return self.types.by_name["type"]
        if name == "__members__" and owner.trait("enum"):
            return dict(classes.enum_members(owner))
        if name == "__subclasses__":
            return Builtin(name, lambda it, a, k: [])
        for base in owner.mro:
            method = methods.method_of_type(base.name, name)
            if method is not None:
                return method
        return self.library.class_member(owner, name)

    def _super_attribute(self, owner: Super, name: str) -> Value:
        receiver = owner.receiver
        cls = receiver if isinstance(receiver, Class) else self.class_of(receiver)
        mro = cls.mro
        start = mro.index(owner.after) + 1 if owner.after in mro else len(mro)
        for base in mro[start:]:
            member = base.members.get(name, MISSING)
            if member is MISSING and base.resolve is not None:
                found = base.resolve(name)
                member = MISSING if found is None else found
            if member is MISSING:
                continue
            if isinstance(member, ClassMethod):
                return BoundMethod(member.function, cls)
            if isinstance(receiver, Class):
                return member.function if isinstance(member, StaticMethod) else member
            return self.bind_member(member, receiver, cls)
        return self.library.super_default(receiver, cls, name)

    def _module_attribute(self, owner: ModuleValue, name: str) -> Value:
        if name in owner.names:
            return owner.names[name]
        if owner.lazy is not None:
            value = owner.lazy(name)
            if value is not MISSING:
                return value
        if name == "__name__":
            return owner.name
        if name == "__file__":
            return str(Path(owner.path).absolute())
        if name == "__dict__":
            return self.library.module_dictionary(owner)
        return self.library.submodule(owner, name)

    def _function_attribute(self, owner: Function, name: str) -> Value:
        if name in owner.attributes:
            return owner.attributes[name]
        if name in ("__name__", "__qualname__"):
            return owner.name
        if name == "__module__":
            return owner.module.name
        if name in ("__doc__", "__annotations__"):
            return None if name == "__doc__" else {}
        if name == "__get__":
            return Builtin(name, lambda it, a, k: BoundMethod(owner, a[0]) if a[0] is not None else owner)
        if name == "__call__":
            return owner
        return MISSING

    def _bound_attribute(self, owner: BoundMethod | Partial, name: str) -> Value:
        if name == "__func__" and isinstance(owner, BoundMethod):
            return owner.function
        if name == "__self__" and isinstance(owner, BoundMethod):
            return owner.receiver
        if name in ("func", "args", "keywords") and isinstance(owner, Partial):
            return {"func": owner.function, "args": tuple(owner.args), "keywords": dict(owner.keywords)}[name]
        return self.find_attribute(owner.function, name) if name.startswith("__") else MISSING

    def set_attribute(self, owner: Value, name: str, value: Value) -> None:
        """`owner.name = value`."""
        if isinstance(owner, Module):
            self.library.set_module_attribute(owner, name, value)
        elif isinstance(owner, Instance):
            self._set_instance_attribute(owner, name, value)
        elif isinstance(owner, Class):
            if name in ("__mro__", "__bases__", "__class__"):
                raise self.error("AttributeError", "readonly attribute")
            owner.members[name] = value
        elif isinstance(owner, Function):
            owner.attributes[name] = value
        elif isinstance(owner, ModuleValue):
            owner.names[name] = value
        elif isinstance(owner, (Namespace, Opaque)):
            members = owner.members if isinstance(owner, Namespace) else owner.attributes
            members[name] = value
        elif isinstance(owner, Tensor):
            self.library.set_tensor_attribute(owner, name, value)
        elif isinstance(owner, BoundMethod):
            self.set_attribute(owner.function, name, value)
        elif isinstance(owner, (Unknown, Symbol, Builtin, Partial)):
            return
        elif not self.library.set_object_attribute(owner, name, value):
            raise self.error(
                "AttributeError", f"'{self.class_of(owner).name}' object has no attribute '{name}'"
            )

    def _set_instance_attribute(self, owner: Instance, name: str, value: Value) -> None:
        hook = owner.cls.find("__setattr__")
        if isinstance(hook, (Function, Builtin)):
            self.call(hook, [owner, name, value], {})
            return
        member = owner.cls.find(name)
        if isinstance(member, Property) and not member.cached:
            if member.setter is None:
                raise self.error(
                    "AttributeError", f"property '{name}' of '{owner.cls.name}' object has no setter"
                )
            self.call(member.setter, [owner, value], {})
            return
        if owner.cls.trait("frozen"):
            raise self.error("AttributeError", f"cannot assign to field '{name}'")
        owner.attributes[name] = value

    def delete_attribute(self, owner: Value, name: str) -> None:
        gone = False
        if isinstance(owner, Module):
            gone = owner.remove(name)
        elif isinstance(owner, (Instance, Function)):
            gone = owner.attributes.pop(name, MISSING) is not MISSING
        elif isinstance(owner, Class):
            gone = owner.members.pop(name, MISSING) is not MISSING
        elif isinstance(owner, (Namespace, ModuleValue, Opaque, Unknown)):
            gone = True
        if not gone:
            raise self.error("AttributeError", name)

    # -- items

    def get_item(self, owner: Value, index: Value) -> Value:
        if isinstance(owner, Unknown):
            return owner
        if isinstance(owner, (list, tuple, str, bytes, range)):
            return self._sequence_item(owner, index)
        if isinstance(owner, dict):
            return self._dict_item(cast("dict[Value, Value]", owner), index)
        if isinstance(owner, Instance):
            method = owner.cls.find("__getitem__")
            if method is not MISSING:
                return self.call(self.bind_member(method, owner, owner.cls), [index], {})
            if owner.payload is not None:
                return self._payload_item(owner, index)
        if isinstance(owner, Class):
            return self._class_item(owner, index)
        if isinstance(owner, (Builtin, Namespace, Opaque)) and not isinstance(owner, Opaque):
            return owner
        found = self.library.get_item(owner, index)
        if found is MISSING:
            raise self.error("TypeError", f"'{self.class_of(owner).name}' object is not subscriptable")
        return found

    def _payload_item(self, owner: Instance, index: Value) -> Value:
        if isinstance(owner.payload, dict):
            key = operators.key_of(self, index)
            if key not in owner.payload:
                hook = owner.cls.find("__missing__")
                if hook is not MISSING:
                    return self.call(hook, [owner, index], {})
        return self.get_item(owner.payload, index)

    def _sequence_item(
        self, owner: list[Value] | tuple[Value, ...] | str | bytes | range, index: Value
    ) -> Value:
        if isinstance(index, slice):
            parts: tuple[Value, ...] = (index.start, index.stop, index.step)
            if owner and isinstance(owner, list) and self.open_reason(owner):
                return self._slice_of_open(owner, index)
            if any(isinstance(v, (Unknown, Symbol)) for v in parts):
                return Unknown("a slice with bounds that are not known", self.origin())
            bounds = [None if v is None else operators.index_of(self, v) for v in parts]
            part = owner[slice(*bounds)]
            self.burn_for(part)
            return part
        if isinstance(index, (Unknown, Symbol)):
            if isinstance(owner, (list, tuple)) and owner:
                self.assume(f"the element at {index.why} is like the first one")
                return owner[0]
            return Unknown(f"an element at {index.why}", self.origin())
        position = operators.index_of(self, index)
        if not -len(owner) <= position < len(owner):
            if owner and self.open_reason(owner):
                return owner[0]
            raise self.error("IndexError", f"{self.class_of(owner).name} index out of range")
        return owner[position]

    def _slice_of_open(self, owner: list[Value], index: slice) -> Value:
        """A slice of a list whose length is not known: as long as its bounds are apart."""
        length = operators.slice_length(index)
        if length is None or length > MAX_ITEMS:
            part: list[Value] = list(owner)
            self.mark_open(part, self.open_reason(owner))
            return part
        made = [owner[0]] * length
        self.burn_for(made)
        return made

    def _dict_item(self, owner: dict[Value, Value], index: Value) -> Value:
        if isinstance(index, Symbol) and owner:
            self.assume(f"the entry for {index.why} is like the first one")
            return next(iter(owner.values()))
        if isinstance(index, (Unknown, Symbol)):
            return Unknown(f"the entry for {index.why}", self.origin())
        key = operators.key_of(self, index)
        if key not in owner:
            raise self.error("KeyError", index)
        return owner[key]

    def _class_item(self, owner: Class, index: Value) -> Value:
        members = classes.enum_members(owner)
        if members:
            if isinstance(index, str) and index in members:
                return members[index]
            raise self.error("KeyError", index)
        method = owner.find("__class_getitem__")
        if isinstance(method, ClassMethod):
            return self.call(method.function, [owner, index], {})
        return owner

    def set_item(self, owner: Value, index: Value, value: Value) -> None:
        if isinstance(owner, dict):
            self.note_growth(cast("dict[Value, Value]", owner))
            if not isinstance(index, (Unknown, Symbol)):
                operators.store(self, cast("dict[Value, Value]", owner), index, value)
        elif isinstance(owner, list):
            self._set_list_item(cast("list[Value]", owner), index, value)
        elif isinstance(owner, Instance):
            method = owner.cls.find("__setitem__")
            if method is not MISSING:
                self.call(self.bind_member(method, owner, owner.cls), [index, value], {})
            elif owner.payload is not None:
                self.set_item(owner.payload, index, value)
            else:
                raise self.error("TypeError", f"'{owner.cls.name}' object does not support item assignment")
        elif isinstance(owner, (Unknown, Symbol)):
            return
        elif not self.library.set_item(owner, index, value):
            raise self.error(
                "TypeError", f"'{self.class_of(owner).name}' object does not support item assignment"
            )

    def _set_list_item(self, owner: list[Value], index: Value, value: Value) -> None:
        if isinstance(index, (Unknown, Symbol)):
            return
        if isinstance(index, slice):
            bounds = [
                None if v is None else operators.index_of(self, v)
                for v in (index.start, index.stop, index.step)
            ]
            added = operators.bounded_list(self, self.iterate(value))
            if len(owner) + len(added) > MAX_ITEMS:
                raise Stopped("a list grows without bound", self.origin())
            owner[slice(*bounds)] = added
            return
        position = operators.index_of(self, index)
        if not -len(owner) <= position < len(owner):
            raise self.error("IndexError", "list assignment index out of range")
        owner[position] = value

    def delete_item(self, owner: Value, index: Value) -> None:
        if isinstance(owner, Instance):
            method = owner.cls.find("__delitem__")
            if method is not MISSING:
                self.call(self.bind_member(method, owner, owner.cls), [index], {})
                return
            owner = owner.payload
        if isinstance(owner, dict):
            key = operators.key_of(self, index)
            if key not in owner:
                raise self.error("KeyError", index)
            del owner[key]
        elif isinstance(owner, list):
            if isinstance(index, slice):
                bounds = [
                    None if v is None else operators.index_of(self, v)
                    for v in (index.start, index.stop, index.step)
                ]
                del owner[slice(*bounds)]
            else:
                position = operators.index_of(self, index)
                if not -len(owner) <= position < len(owner):
                    raise self.error("IndexError", "list assignment index out of range")
                del owner[position]
        elif isinstance(owner, Module):
            self.library.delete_module_item(owner, index)

    # -- iteration

    def iterate(self, value: Value) -> Iterator[Value]:
        """`iter(value)`."""
        if isinstance(value, range) and value.stop - value.start > MANY_NUMBERS:
            return self._burning(iter(value))
        if self.open_containers and self.open_reason(value) and not isinstance(value, Instance):
            carrier = cast("list[Value]", value)
            return self.in_doubt([operators.shown_key(v) for v in carrier], self.open_reason(value))
        if isinstance(value, (list, tuple, str, range, bytes)):
            self.burn_for(value)
            return iter(cast("list[Value]", value))
        if isinstance(value, (dict, set, frozenset)):
            self.burn_for(value)
            return map(operators.shown_key, iter(cast("dict[Value, Value]", value)))
        if isinstance(value, Iter):
            return value.source
        if isinstance(value, (Unknown, Symbol)):
            return self.unknown_items(value)
        if isinstance(value, Instance):
            return self._iterate_instance(value)
        if isinstance(value, Class) and value.trait("enum"):
            return iter(list(dict.fromkeys(classes.enum_members(value).values())))
        found = self.library.iterate(value)
        if found is None:
            raise self.error("TypeError", f"'{self.class_of(value).name}' object is not iterable")
        return found

    def _burning(self, source: Iterator[Value]) -> Iterator[Value]:
        for item in source:
            self.burn()
            yield item

    def unknown_items(self, value: Unknown | Symbol) -> Iterator[Value]:
        """Some items of an iterable of which nothing is known."""
        why = value.why if value.why.startswith("an element of ") else f"an element of {value.why}"
        origin = value.origin if isinstance(value, Unknown) else self.origin()
        items: list[Value] = [Unknown(why, origin) for _ in range(UNKNOWN_ITEMS)]
        return self.in_doubt(items, value.why)

    def in_doubt(self, items: list[Value], why: str) -> Iterator[Value]:
        """Some of the rounds of a loop of which it is not known how many there are."""
        self.doubts += 1
        self.uncertain_why = why
        return self._rounds_in_doubt(items, why)

    def _rounds_in_doubt(self, items: list[Value], why: str) -> Iterator[Value]:
        self.uncertain.append(why)
        try:
            yield from items
        finally:
            self.uncertain.remove(why)

    def note_growth(self, container: Value) -> None:
        """Something was put into a container; after an uncertain loop its length is not known."""
        if not self.uncertain or self.module_depth or id(container) in self.open_containers:
            return
        if not _holds_tensor(container):
            self.mark_open(container, self.uncertain[-1])

    def mark_open(self, container: Value, why: str) -> None:
        """The length of a list, set or dictionary is not known."""
        self.open_containers.setdefault(id(container), (container, why))

    def open_reason(self, value: Value) -> str:
        """Why the length of a container is not known; empty if it is known."""
        if not self.open_containers:
            return ""
        if isinstance(value, Instance) and value.payload is not None:
            value = value.payload
        found = self.open_containers.get(id(value))
        return "" if found is None else found[1]

    def _iterate_instance(self, value: Instance) -> Iterator[Value]:
        method = value.cls.find("__iter__")
        if method is not MISSING:
            result = self.call(self.bind_member(method, value, value.cls), [], {})
            if result is not value:
                return self.iterate(result)
        stepper = value.cls.find("__next__")
        if stepper is not MISSING:
            return self._steps(stepper, value)
        if value.payload is not None:
            return self.iterate(value.payload)
        getter = value.cls.find("__getitem__")
        if getter is not MISSING:
            return self._by_index(getter, value)
        raise self.error("TypeError", f"'{value.cls.name}' object is not iterable")

    def _steps(self, stepper: Value, value: Instance) -> Iterator[Value]:
        while True:
            ended = False
            item: Value = None
            try:
                item = self.call(stepper, [value], {})
            except Raised as raised:
                if not raised.value.cls.is_subclass(self.types.by_name["StopIteration"]):
                    raise
                ended = True
            if ended:
                return
            yield item
            item = None

    def _by_index(self, getter: Value, value: Instance) -> Iterator[Value]:
        position = 0
        while True:
            ended = False
            item: Value = None
            try:
                item = self.call(getter, [value, position], {})
            except Raised as raised:
                if not raised.value.cls.is_subclass(self.types.by_name["IndexError"]):
                    raise
                ended = True
            if ended:
                return
            yield item
            item = None
            position += 1

    def next_of(self, value: Value) -> Value:
        """`next(value)`, raising the program's StopIteration."""
        if isinstance(value, Iter):
            for item in value.source:
                return item
            raise self.error("StopIteration")
        if isinstance(value, Instance):
            stepper = value.cls.find("__next__")
            if stepper is not MISSING:
                return self.call(stepper, [value], {})
        if isinstance(value, Unknown):
            return Unknown(f"the next of {value.why}", self.origin())
        raise self.error("TypeError", f"'{self.class_of(value).name}' object is not an iterator")

    def length(self, value: Value) -> Value:
        """`len(value)`."""
        reason = value.why if isinstance(value, (Unknown, Symbol)) else self.open_reason(value)
        if reason:
            why = f"the length of {reason}"
            self.lengths.setdefault(why, self.origin())
            return Symbol(why)
        if isinstance(value, range):
            reach = max(abs(value.start), abs(value.stop))
            return len(value) if reach < 2**61 else Symbol("the length of a range")
        if isinstance(value, (list, tuple, str, bytes, dict, set, frozenset)):
            return len(cast("list[Value]", value))
        if isinstance(value, Instance):
            method = value.cls.find("__len__")
            if method is not MISSING:
                return self.call(self.bind_member(method, value, value.cls), [], {})
            if value.payload is not None:
                return self.length(value.payload)
        if isinstance(value, Class) and value.trait("enum"):
            return len(classes.enum_members(value))
        found = self.library.length(value)
        if found is None:
            raise self.error("TypeError", f"object of type '{self.class_of(value).name}' has no len()")
        return found

    def as_mapping(self, value: Value) -> dict[Value, Value]:
        """A mapping or pairs as a dictionary of ours; what is not known gives nothing."""
        if isinstance(value, dict):
            return cast("dict[Value, Value]", value)
        if isinstance(value, (Unknown, Symbol)):
            return {}
        if isinstance(value, Instance):
            if isinstance(value.payload, dict):
                return cast("dict[Value, Value]", value.payload)
            keys = value.cls.find("keys")
            if keys is not MISSING:
                names = list(self.iterate(self.call(self.bind_member(keys, value, value.cls), [], {})))
                return {name: self.get_item(value, name) for name in names}
        out: dict[Value, Value] = {}
        native = self.library.as_mapping(value)
        if native is not None:
            return native
        for pair in self.iterate(value):
            both = operators.bounded_list(self, self.iterate(pair))
            if len(both) != 2:
                raise self.error("ValueError", "dictionary update sequence element: 2 values are required")
            operators.store(self, out, both[0], both[1])
        return out

    def as_keywords(self, value: Value) -> dict[str, Value]:
        """`**value`."""
        out: dict[str, Value] = {}
        for key, item in self.as_mapping(value).items():
            name = key.payload if isinstance(key, Instance) else key
            if not isinstance(name, str):
                raise self.error("TypeError", "keywords must be strings")
            out[name] = item
        return out

    # -- context managers

    def enter(self, manager: Value) -> Value:
        """`manager.__enter__()`."""
        if isinstance(manager, (Unknown, Symbol)):
            recovery.note_context(self, manager.why)
            return manager
        if isinstance(manager, Opaque) and manager.enter is not None:
            return manager.enter(self)
        if isinstance(manager, Instance):
            return self.call(self.get_attribute(manager, "__enter__"), [], {})
        return self.library.enter(manager)

    def leave(self, manager: Value, failure: Instance | None) -> bool:
        """`manager.__exit__(...)`; whether it swallows the exception."""
        if isinstance(manager, Opaque):
            if manager.leave is not None:
                manager.leave(self)
            swallowed = manager.payload if manager.kind == "contextlib.suppress" else None
            return (
                failure is not None
                and isinstance(swallowed, tuple)
                and any(isinstance(c, Class) and failure.cls.is_subclass(c) for c in swallowed)
            )
        if isinstance(manager, Instance):
            given: list[Value] = [None, None, None] if failure is None else [failure.cls, failure, None]
            return self.truth(self.call(self.get_attribute(manager, "__exit__"), given, {}))
        if not isinstance(manager, (Unknown, Symbol)):
            self.library.leave(manager)
        return False

    def close(self) -> None:
        """Let go of the program: cycles between globals and functions end here."""
        self.handled.clear()
        self.open_containers.clear()
        self.library.close()


def _first_unknown(given: list[Value], depth: int = 0) -> Unknown | Symbol | None:
    for value in given:
        if isinstance(value, (Unknown, Symbol)):
            return value
        if isinstance(value, (list, tuple)) and depth < 3:
            found = _first_unknown(cast("list[Value]", value)[:64], depth + 1)
            if found is not None:
                return found
    return None


def describe(error: Exception) -> tuple[str, Value]:
    name = type(error).__name__
    return (name if name in _ERROR_NAMES else "ValueError"), str(error)


def _values(source: Iterator[Value]) -> Iterator[Value]:
    """A generator's items without its outcome."""
    yield from source


def _holds_tensor(value: Value) -> bool:
    if isinstance(value, Tensor):
        return True
    if isinstance(value, dict):
        return any(isinstance(v, (Tensor, Module)) for v in cast("dict[Value, Value]", value).values())
    return isinstance(value, (list, tuple)) and any(
        isinstance(v, (Tensor, Module)) for v in cast("list[Value]", value)
    )


def _changed(owner: Property, name: str, function: Value) -> Property:
    """`prop.setter(f)`, `prop.getter(f)`: a new property."""
    if name == "setter":
        return Property(owner.getter, function, owner.cached, owner.name)
    return Property(function if name == "getter" else owner.getter, owner.setter, owner.cached, owner.name)


__all__ = ["Interpreter", "describe", "text"]
