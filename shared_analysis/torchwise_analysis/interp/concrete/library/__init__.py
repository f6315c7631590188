"""What the interpreter knows of libraries, behind one object.

`Library` binds names of libraries to tables of the memory runtime, and carries what program values do to
runtime objects and back. Nothing of a runtime object is reachable except through those tables.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete.costs import OPERATOR_STEPS
from torchwise_analysis.interp.concrete.errors import Stopped
from torchwise_analysis.interp.concrete.library import files, huggingface, timm, training, typed_options
from torchwise_analysis.interp.concrete.library.huggingface import Transformers, helpers
from torchwise_analysis.interp.concrete.library.imports import Imports
from torchwise_analysis.interp.concrete.library.spaces import Spaces
from torchwise_analysis.interp.concrete.recovery import FailedModel
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    BoundMethod,
    Builtin,
    Class,
    Frame,
    Function,
    Instance,
    Int,
    Iter,
    Keywords,
    ModuleValue,
    Namespace,
    Opaque,
    Partial,
    Property,
    Symbol,
    Unknown,
    Value,
)
from torchwise_analysis.source import nodes
from torchwise_memory.classes import CLASSES
from torchwise_memory.families.base import Config, ModelOutput
from torchwise_memory.families.packed import PackedLinear
from torchwise_memory.library import FUNCTIONS, METHODS, TENSOR_ATTRIBUTES
from torchwise_memory.modules import base
from torchwise_memory.modules.base import Module
from torchwise_memory.modules.copying import copy_module, copy_tensor
from torchwise_memory.modules.native import NativeAttribute, NativeClass, native_class
from torchwise_memory.operators.registry import Function as NativeFunction
from torchwise_memory.optimizers.base import Optimizer
from torchwise_memory.optimizers.scaling import GradScaler, Scheduler
from torchwise_memory.policies.fsdp import FullyShardedDataParallel
from torchwise_memory.policies.sharding import whole_numel
from torchwise_memory.report import Origin
from torchwise_memory.runtime.contexts import Autocast
from torchwise_memory.runtime.device import Device, device_of
from torchwise_memory.runtime.dtypes import DTYPES, DType, bfloat16
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.storage import Storage
from torchwise_memory.runtime.tensor import Parameter, Size, Tensor, set_data, values_of
from torchwise_memory.runtime.unknown import UnknownItems, UnknownScalar
from torchwise_memory.runtime.world import World

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

_ITEMS_LIMIT = 4096
# Inputs are made at the top of a script; later tensors say nothing new about its batch.
MADE_LIMIT = 256
LOADER = "torch.utils.data.DataLoader"
# Arguments that change nothing in memory: an unknown there is no loss.
_HARMLESS = frozenset(
    {"generator", "memory_format", "layout", "pin_memory", "out", "non_blocking", "foreach"}
)

# Functions that make tensors of a script's data.
_MAKERS = frozenset(
    {"torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.stack", "torch.cat", "torch.asarray"}
)

# Methods by which a script that has no optimizer changes its weights.
_UPDATES = frozenset(f"torch.Tensor.{name}" for name in ("add_", "sub_", "copy_", "addcdiv_"))

_COMPANIONS = (GradScaler, Scheduler)
_CLASS_OF_HOST = {native.host: name for name, native in CLASSES.items()}


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The first tensor that a model was called with from outside, and whether a graph was recorded."""

    shape: tuple[int, ...]
    is_floating: bool
    extents: tuple[Int, ...]
    origin: Origin | None
    has_graph: bool = True


@dataclass(frozen=True, slots=True)
class LoaderMade:
    """A loader as it was made: its batch size, whether it mixes the samples, and where."""

    batch_size: Value
    shuffles: bool
    origin: Origin | None


@dataclass(frozen=True, slots=True)
class Counted:
    """The models called, at the moment a loop was measured."""

    parameters: int
    trainable: int
    name: str
    origin: Origin | None
    dtype: str


class HostCallable:
    """A function of the program that the runtime may call (a hook, a closure, a checkpointed body)."""

    __slots__ = ("function", "it")

    def __init__(self, it: Interpreter, function: Value) -> None:
        self.it = it
        self.function = function

    def __call__(self, *args: Value, **keywords: Value) -> Value:
        # hooks of tensors are given the world first, which no program sees
        given = [from_runtime(self.it, a) for a in args if not isinstance(a, World)]
        del args
        return to_runtime(self.it, self.it.call(self.function, given, keywords))


class ForwardOverride:
    """`forward` of a class written in the program, or of one module that was given another one."""

    __slots__ = ("it",)

    def __init__(self, it: Interpreter) -> None:
        self.it = it

    def __call__(
        self, w: object, module: Module, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        it = self.it
        own = module.fields.get("forward", MISSING)
        if own is not MISSING:
            return it.call(own, list(args), dict(kwargs))
        forward = it.class_of(module).find("forward")
        if isinstance(forward, Function):
            return it.call_function(forward, [module, *args], dict(kwargs))
        return it.call(it.bind_member(forward, module, it.class_of(module)), list(args), dict(kwargs))


class _NativeMembers(dict[str, "Value | None"]):
    """Members of a native class; None for what it has not."""

    __slots__ = ("library", "native")

    def __init__(self, library: Library, native: NativeClass) -> None:
        self.library = library
        self.native = native

    def __missing__(self, name: str) -> Value | None:
        member = self[name] = self.library.native_member(self.native, name)
        return member


class Library:
    """The libraries of one run."""

    def __init__(self, it: Interpreter) -> None:
        self.it = it
        self.imports = Imports(it)
        self.classes: dict[str, Class] = {}
        self.program_classes: weakref.WeakKeyDictionary[object, Class] = weakref.WeakKeyDictionary()
        # what a program's subclass of an optimizer's companion (a schedule, a scaler) keeps on itself
        self.program_fields: weakref.WeakKeyDictionary[object, dict[str, Value]] = weakref.WeakKeyDictionary()
        self.methods: dict[str, Builtin] = {}
        # the tables of members of native classes, filled as they are asked for
        self.native_members: list[_NativeMembers] = []
        self.override = ForwardOverride(it)
        self.spaces = Spaces(it)
        self.open_file = files.open_file
        self.functions: dict[str, Builtin] = {}
        # facts of the plan as they are met: name -> (value, place)
        self.aten_operators: dict[str, Value] = {}
        self.met: dict[str, tuple[object, Origin | None]] = {}
        # those of them that a library chose
        self.by_default: set[str] = set()
        # the options of a library's arguments that the program left to it
        self.defaults: weakref.WeakKeyDictionary[Instance, dict[str, Value]] = weakref.WeakKeyDictionary()
        # what says of images how large they become: the program's number, or its line
        self.image_places: dict[tuple[int, int], Int | Origin | None] = {}
        # each with the line that made it, and the program's line behind that
        self.models: list[tuple[weakref.ref[Module], Origin | None, Origin | None]] = []
        # what a library calls the models it made
        self.kinds: weakref.WeakKeyDictionary[Module, str] = weakref.WeakKeyDictionary()
        self.model_inputs: list[ModelInput] = []
        # shapes of the tensors that the script made itself, with the numbers they were made of
        self.made: list[tuple[tuple[int, ...], tuple[Int, ...]]] = []
        # storages of masks that are known to be all ones, and of tensors the script has written into
        self.ones: weakref.WeakSet[Storage] = weakref.WeakSet()
        self.written: weakref.WeakSet[Storage] = weakref.WeakSet()
        self.transformers = Transformers(it)
        self.helpers = {**helpers(it), **training.helpers(), **timm.helpers()}
        self.helpers |= typed_options.helpers()
        # options of configuration groups that the launch line chooses
        self.config_groups: dict[str, str] = {}
        # a checkpoint that a trainer was to make its model of, and where
        self.named_model: tuple[str, Origin | None] | None = None
        # the class of a model that could not be made, and where it is asked for
        self.failed_model: FailedModel | None = None
        # fields that the installed library's text gave a dataclass of the replacement texts
        # the default devices outside of the `with torch.device(...)` that are open
        self.devices: list[Device | None] = []
        self.library_fields: dict[str, frozenset[str]] = {}
        # arguments of objects whose `__init__` runs, for classes that keep them
        self.arguments: dict[int, dict[str, Value]] = {}
        self.counted: Counted | None = None
        # what an optimizer was made for, noted where the trace may never see it called
        self.trained: Counted | None = None
        self.unread_model: Unknown | None = None
        self.loaders: list[LoaderMade] = []
        # what further sources say of a fact of the plan that another one settled
        self.conflicts: list[tuple[str, object, Origin | None]] = []
        self.changed: set[int] = set()
        self.called: dict[int, weakref.ref[Module]] = {}
        # the whole numbers of the script that a tensor's shape was made of
        self.extents: weakref.WeakKeyDictionary[Storage, tuple[Int, ...]] = weakref.WeakKeyDictionary()

    def stated_value(self, value: object) -> Value:
        """A value that a comment states: a number, a text, or a CPU tensor by its type and extents."""
        extents = getattr(value, "extents", None)
        if extents is None:
            return value
        dtype = DTYPES[str(getattr(value, "dtype", "float32"))]
        device = str(getattr(value, "device", "cpu"))
        options: Keywords = {"dtype": dtype, "device": device}
        return self.call_function(self.it, "torch.empty", [tuple(extents)], options)

    # -- modules and names

    def known_module(self, name: str) -> Value:
        """The name space that stands for a library module; None if there is none."""
        return self.spaces.module(name)

    def import_module(self, it: Interpreter, name: str, frame: Frame) -> Value:
        found = self._or_absent(self.imports.find(name, frame.module.path), name)
        if isinstance(found, ModuleValue) and not found.is_library and found.name != "__main__":
            self.imports.scope_of(found).register()
        return found

    def import_from(self, it: Interpreter, node: nodes.ImportFrom, frame: Frame) -> None:
        absolute = self.imports.absolute(node, frame.module)
        if absolute:
            self._or_absent(self.imports.find(absolute, frame.module.path), absolute)
        self.imports.import_from(node, frame)

    def _or_absent(self, found: Value, name: str) -> Value:
        """A package that cannot be read counts as not installed where the script is ready for that."""
        if isinstance(found, Unknown) and self.it.expects_import_errors:
            self.it.assume(f"{name} is not installed")
            raise self.it.error("ModuleNotFoundError", f"No module named '{name}'")
        return found

    def submodule(self, owner: ModuleValue, name: str) -> Value:
        return self.imports.submodule(owner, name)

    def names_of_module(self, owner: ModuleValue | Namespace) -> list[str]:
        """Names that a module binds, whether or not they have been evaluated yet."""
        if isinstance(owner, Namespace):
            return list(owner.members)
        scope = self.imports.scopes.get(id(owner))
        return list(dict.fromkeys([*owner.names, *(scope.bound_names() if scope is not None else ())]))

    def module_dictionary(self, owner: ModuleValue | Namespace) -> Value:
        """`module.__dict__` of a module whose names are evaluated one by one."""
        names = self.names_of_module(owner)

        def get(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            name = args[0]
            if not isinstance(name, str):
                return Unknown(f"a member of {owner.name}", it.origin())
            return it.get_attribute(owner, name)

        return Opaque(
            "module.__dict__",
            {
                "__getitem__": Builtin("__getitem__", get),
                "get": Builtin("get", get),
                "__iter__": Builtin("__iter__", lambda it, a, k: list(names)),
                "__contains__": Builtin("__contains__", lambda it, a, k: a[0] in names),
                "keys": Builtin("keys", lambda it, a, k: list(names)),
            },
        )

    def star_unknown(self, module: ModuleValue) -> bool:
        return self.imports.has_unknown_star(module)

    def main_names(self) -> Value:
        main = self.imports.loaded.get("__main__")
        return main.names if isinstance(main, ModuleValue) else {}

    def member(self, owner: Namespace, name: str) -> Value:
        if name in owner.members:
            return owner.members[name]
        if name == "__name__":
            return owner.name
        if name == "__dict__":
            return self.module_dictionary(owner)
        if owner.resolve is not None:
            value = owner.resolve(name)
            if value is not MISSING:
                owner.members[name] = value
                return value
        return MISSING

    def qualified(self, name: str) -> Value:
        """`torch.nn.functional.linear`: a function, a class or MISSING."""
        if name in self.functions:
            return self.functions[name]
        if name in FUNCTIONS:
            function = FUNCTIONS[name]
            made = Builtin(name, lambda it, a, k: self.invoke(function, a, k))
            self.functions[name] = made
            return made
        if name in CLASSES:
            return self.native_class(name)
        return MISSING

    # -- classes of the runtime

    def native_class(self, name: str) -> Class:
        """The class of the program's view that stands for a native one."""
        if name in self.classes:
            return self.classes[name]
        native = CLASSES[name]
        bases = tuple(self.native_class(b) for b in native.bases if b in CLASSES) or (self.it.types.object,)
        cls = self.classes[name] = self._class_for(native, bases)
        return cls

    def _class_for(self, native: NativeClass, bases: tuple[Class, ...]) -> Class:
        name = native.name
        module, _, short = name.rpartition(".")
        cls = Class(short, bases, module=module, tag=name)
        cls.mro = (cls, *bases[0].mro)
        cls.traits["native"] = native
        cls.members["__init__"] = Builtin(f"{name}.__init__", lambda it, a, k: self._initialize(native, a, k))
        members = _NativeMembers(self, native)
        self.native_members.append(members)
        cls.resolve = members.__getitem__
        return cls

    def native_member(self, native: NativeClass, name: str) -> Value | None:
        """A member of a native class as the program sees it."""
        key = f"{native.name}.{name}"
        if key in self.methods:
            return self.methods[key]
        if name == "convert_sync_batchnorm":
            return Builtin(key, _synchronized, static=True)
        function = native.methods.get(name)
        if function is not None:
            made = Builtin(key, lambda it, a, k: self._method(function, name, a, k))
            self.methods[key] = made
            return made
        attribute = native.attributes.get(name)
        if attribute is not None:
            return _property_of(attribute, name)
        of_class = native.statics.get(name)
        if of_class is None:
            return None
        return Builtin(key, lambda it, a, k: self.invoke(of_class, a, k), static=True)

    def _initialize(self, native: NativeClass, args: list[Value], keywords: Keywords) -> Value:
        receiver = args.pop(0)
        if isinstance(receiver, Optimizer):
            self._note_optimizer(native, args, keywords)
        if isinstance(receiver, FullyShardedDataParallel):
            training.processes(self.it, None, "FSDP shards")
        given = [self.argument(v, native.name) for v in args]
        self._refuse_surplus(native, keywords)
        named = {n: self.argument(v, native.name) for n, v in keywords.items()}
        if "fused" in self.it.changes and any(p.name == "fused" for p in native.params):
            named["fused"] = True
        native.construct(self.it.world, receiver, *given, **named)
        return None

    def _refuse_surplus(self, native: NativeClass, keywords: Keywords) -> None:
        """What a constructor does not take raises as in Python: programs try options that way."""
        kinds = {param.kind for param in native.params}
        taken = {param.name for param in native.params}
        surplus = next((name for name in keywords if name not in taken), None)
        if surplus is not None and taken and not kinds & {"VAR_KEYWORD", "VAR_POSITIONAL"}:
            short = native.name.rpartition(".")[2]
            raise self.it.error(
                "TypeError", f"{short}.__init__() got an unexpected keyword argument '{surplus}'"
            )

    def _method(self, function: NativeFunction, name: str, args: list[Value], keywords: Keywords) -> Value:
        """A method of a native class; steps of optimizers are events."""
        receiver = args[0]
        if isinstance(receiver, Module) and name == "__call__":
            args.pop(0)
            return self._run_module(receiver, args, keywords)
        if name == "load_state_dict" and _is_unread(args, keywords):
            self.it.assume("a state that is loaded from a file fits what it is loaded into")
            return Opaque("IncompatibleKeys", {"missing_keys": [], "unexpected_keys": []})
        given = [receiver, *(self.argument(v, function.name) for v in args[1:])]
        named = {n: self.argument(v, function.name) for n, v in keywords.items()}
        del args
        if name == "zero_grad":
            self._note_zero_grad(given, named)
        self.it.burn(OPERATOR_STEPS)
        result = from_runtime(self.it, function.invoke(self.it.world, given, named))
        if name == "step" and isinstance(receiver, (Optimizer, GradScaler)):
            self.it.loops.steps += 1
        return result

    def _note_zero_grad(self, args: list[Value], keywords: Keywords) -> None:
        if keywords.get("set_to_none", args[1] if len(args) > 1 else True) is False:
            self.met.setdefault("keeps_gradients", (True, self.it.origin()))
            if "set_to_none" in self.it.changes:
                del args[1:]
                keywords.clear()

    def allocate(self, cls: Class) -> Value:
        native = cast(NativeClass, cls.trait("native"))
        made = native.make()
        if isinstance(made, Module):
            made.program_class = cls
            if any("forward" in c.members for c in cls.mro if "native" not in c.traits):
                made.forward_override = self.override
            self.models.append((weakref.ref(made), self.it.origin(), self.it.own_place))
        elif cls.tag != native.name:
            self.program_classes[made] = cls
        return cast(Value, made)

    def _note_optimizer(self, native: NativeClass, args: list[Value], keywords: Keywords) -> None:
        given = {**dict(zip((p.name for p in native.params), args, strict=False)), **keywords}
        options = [n for n in ("fused", "foreach", "momentum", "amsgrad") if _is_given(given.get(n))]
        shown = native.name.rpartition(".")[2] + (f" ({', '.join(options)})" if options else "")
        self.met.setdefault("optimizer", (shown, self.own(self.it.origin())))
        if self.it.recovers and args + list(keywords.values()):
            self._note_trained(next(iter([*args[:1], *keywords.values()])))

    def _note_trained(self, parameters: Value) -> None:
        """The models that the parameters of an optimizer belong to, as far as they are known."""
        unknown = _unknown_in(parameters)
        if unknown is not None:
            self.unread_model = self.unread_model or unknown
        alive = [module for ref, _, _ in self.models if (module := ref()) is not None]
        inner = {id(part) for module in alive for part in module.children.values() if part is not None}
        roots = [module for module in alive if id(module) not in inner and _has_parameters(module)]
        if roots:
            self.note_trained(roots)

    def note_trained(self, models: list[Module]) -> None:
        """Models that are to be trained, whether or not the trace comes to that."""
        if self.trained is None and any(_has_parameters(module) for module in models):
            self.trained = self._count([module for module in models if _has_parameters(module)])

    def own(self, origin: Origin | None, own: Origin | None = None) -> Origin | None:
        """A place of the program: of a library's line the one that asked for it."""
        if origin is None or not self.it.project.is_library(origin.path):
            return origin
        return own or self.it.own_place or origin

    def note(self, name: str, value: object, origin: Origin | None, is_default: bool = False) -> None:
        """A fact of the plan; where another source has said something else before, both are kept.

        is_default: nobody chose it, the library did.
        """
        if is_default and name not in self.met:
            self.by_default.add(name)
        known = self.met.setdefault(name, (value, origin))
        if known[0] != value and len(self.conflicts) < MADE_LIMIT:
            self.conflicts.append((name, value, origin))

    def note_loader(self, batch_size: Value, shuffles: bool) -> None:
        """A loader was made, whether or not its batches will be asked for."""
        if len(self.loaders) < MADE_LIMIT:
            self.loaders.append(LoaderMade(batch_size, shuffles, self.it.origin()))

    def built(self, model: Module, kind: str) -> None:
        """A library's model was made: its kind names it in the plan."""
        self.kinds[model] = kind
        self.met.setdefault("model", (self._shown_name(model) if kind else "", self.own(self.it.origin())))

    def note_models(self) -> None:
        """Count the models called so far, while they are alive."""
        generator = self.it.world.generator
        if generator is not None and (module := generator()) is not None:
            self.called.setdefault(id(module), generator)
        models = [module for ref in self.called.values() if (module := ref()) is not None]
        if not models:
            return
        self.counted = self._count(models)

    def _count(self, models: list[Module]) -> Counted:
        models.sort(key=lambda m: -sum(p.numel for _, p in m.walk_parameters()))
        parameters = {id(p): p for module in models for _, p in module.walk_parameters()}
        trained = _apart([_unwrapped(self, module) for module in models])
        name, origin = self.met.get("model", ("", None))
        if len(trained) > 1 or not name:
            names = Counter(self._shown_name(module) for module in trained)
            name = " + ".join(f"{count} x {one}" if count > 1 else one for one, count in names.items())
            found = next(((made, own) for ref, made, own in self.models if ref() is trained[0]), None)
            origin = origin if found is None else self.own(*found)
        return Counted(
            sum(whole_numel(p) for p in parameters.values()) + _packed_away(models),
            sum(whole_numel(p) for p in parameters.values() if p.requires_grad),
            str(name),
            origin,
            next(iter(parameters.values())).dtype.name,
        )

    def _shown_name(self, module: Module) -> str:
        kind = self.kinds.get(module)
        name = self.class_of(module).name
        return f"{name} ({kind})" if kind else name

    def forward_names(self, module: Module) -> list[str] | None:
        """What the `forward` of a native module takes; None where it takes anything."""
        try:
            params = inspect.signature(type(module).forward).parameters.values()
        except (TypeError, ValueError):
            return None
        names = [p.name for p in params if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        return names[2:] if names[:1] == ["self"] else names[1:]

    def parameter_names(self, cls: Class) -> list[str] | None:
        native = cls.traits.get("native")
        return [p.name for p in native.params] if isinstance(native, NativeClass) else None

    def class_of(self, value: Value) -> Class:
        if isinstance(value, Module):
            cls = value.program_class
            if isinstance(cls, Class):
                return cls
        if value in self.program_classes if _is_weakly_keyed(value) else False:
            return self.program_classes[value]
        name = _CLASS_OF_HOST.get(type(value))
        if name is not None:
            return self.native_class(name)
        if hasattr(type(value), "native_name"):
            return self._host_class(type(value))
        return self.spaces.class_of(value)

    def _host_class(self, host: type) -> Class:
        """The class of a runtime object that no table names, such as a hand-written model family's."""
        name = str(getattr(host, "native_name", host.__name__))
        key = f"{name} ({host.__name__})"
        if key not in self.classes:
            bases = [_CLASS_OF_HOST[b] for b in host.__mro__[1:] if b in _CLASS_OF_HOST][:1]
            parents = tuple(self.native_class(b) for b in bases) or (self.it.types.object,)
            self.classes[key] = self._class_for(native_class(host, name, bases), parents)
        return self.classes[key]

    def is_abstract_kind(self, value: Value, cls: Class, wanted: Class) -> bool:
        """`isinstance(x, collections.abc.Sequence)` and the like."""
        if wanted.name == "ndarray":
            return (
                isinstance(value, Tensor)
                and device_of(value.device).type == "cpu"
                and not value.requires_grad
            )
        kinds = _ABSTRACT.get(wanted.name)
        if kinds is not None and not wanted.tag:
            carrier = value.payload if isinstance(value, Instance) and value.payload is not None else value
            return isinstance(carrier, kinds)
        if wanted.name == "Callable":
            return isinstance(value, (Function, Builtin, BoundMethod, Partial, Class, Module))
        return False

    # -- calls into the runtime

    def argument(self, value: Value, what: str) -> Value:
        """A value on its way into the runtime. Unknowns stop here, loudly."""
        if isinstance(value, Unknown):
            raise Stopped(f"{value.why} is not known and reaches {what}", value.origin or self.it.origin())
        reason = self.it.open_reason(value)
        if reason:
            raise Stopped(f"the length of {reason} is not known and reaches {what}", self.it.origin())
        return to_runtime(self.it, value)

    def invoke(self, function: NativeFunction, args: list[Value], keywords: Keywords) -> Value:
        if function.name in _MAKERS and self.it.world.module_depth == 0:
            unread = self._unread(args)
            if unread is not None:
                return unread
        name, it = function.name, self.it
        given = [v if v.__class__ in _AS_THEY_ARE else self.argument(v, name) for v in args]
        named = {
            n: v if v.__class__ in _AS_THEY_ARE else self.argument(v, name)
            for n, v in keywords.items()
            if not (n in _HARMLESS and isinstance(v, (Unknown, Opaque)))
        }
        it.burn(OPERATOR_STEPS)
        result = function.invoke(it.world, given, named)
        if not isinstance(result, Tensor):
            return from_runtime(it, result)
        if name in _UPDATES:
            self._note_update(result)
        if it.world.module_depth == 0:
            self._note_extents(result, args, keywords)
            if name in ("torch.ones", "torch.ones_like"):
                self.ones.add(result.storage)
        return result

    def _note_update(self, weight: Tensor) -> None:
        """A script without an optimizer steps when it first changes a weight after a backward pass."""
        loops = self.it.loops
        record = weight.storage.record
        if "optimizer" in self.met or loops.backwards == loops.updated or record is None:
            return
        if record.kind is StorageKind.WEIGHTS:
            loops.updated = loops.backwards
            loops.steps += 1
            self.met.setdefault("updates", ("in place, without an optimizer", self.it.origin()))

    def _unread(self, args: list[Value]) -> Unknown | None:
        """A tensor made of data that is not known, outside of a model: nothing is known of it."""
        for value in args[:1]:
            if isinstance(value, Unknown):
                return value
            if isinstance(value, (list, tuple)):
                items = cast("list[Value]", value)
                unknown = next((v for v in items[:64] if isinstance(v, Unknown)), None)
                if unknown is not None:
                    return unknown
                reason = self.it.open_reason(value)
                if reason:
                    return Unknown(f"the length of {reason}", self.it.origin())
        return None

    def _note_extents(self, result: Tensor, args: list[Value], keywords: Keywords) -> None:
        extents = tuple(_whole_numbers([*args, *keywords.values()]))
        source = args[0] if args else None
        if isinstance(source, Tensor):
            if source.storage in self.ones:
                self.ones.add(result.storage)
            if source.storage in self.written:
                self.written.add(result.storage)
            if not extents:
                extents = self.extents.get(source.storage, ())
        if extents:
            self.extents.setdefault(result.storage, extents)
            if result.ndim and len(self.made) < MADE_LIMIT:
                self.made.append((tuple(result.shape), extents))

    def call_function(self, it: Interpreter, name: str, args: list[Value], keywords: Keywords) -> Value:
        function = FUNCTIONS.get(name)
        if function is None:
            raise Stopped(f"{name} is not modelled", it.origin())
        return self.invoke(function, args, keywords)

    def call_method(
        self, it: Interpreter, receiver: Value, name: str, args: list[Value], keywords: Keywords
    ) -> Value:
        function = METHODS.get(name)
        if function is None:
            raise Stopped(f"Tensor.{name} is not modelled", it.origin())
        return self.invoke(function, [receiver, *args], keywords)

    def call_module(self, module: Module, args: list[Value], keywords: Keywords) -> Value:
        """`module(*args, **keywords)`."""
        cls = self.class_of(module)
        hook = cls.find("__call__")
        if isinstance(hook, Function):
            return self.it.call_function(hook, [module, *args], keywords)
        return self._run_module(module, args, keywords)

    def _run_module(self, module: Module, args: list[Value], keywords: Keywords) -> Value:
        it = self.it
        outermost = it.module_depth == 0
        if module.forward_override is None:
            name = module.native_name
            given = tuple(self.argument(v, name) for v in args)
            named = {n: self.argument(v, name) for n, v in keywords.items()}
        else:
            given = tuple(args)
            named = dict(keywords)
        args.clear()
        keywords.clear()
        if outermost:
            self._note_input(module, given, named)
            huggingface.note_padding(it, module, named)
        if outermost and it.changes:
            self._apply_changes(module)
        if outermost and "autocast" in it.changes and it.world.grad_enabled:
            result = self._call_under_autocast(module, given, named)
        else:
            result = base.call(it.world, module, given, named)
        if outermost and _has_parameters(module):
            it.loops.calls += 1
            it.loops.recorded += it.world.grad_enabled
        return from_runtime(it, result)

    def _call_under_autocast(
        self, module: Module, args: tuple[Value, ...], keywords: dict[str, Value]
    ) -> object:
        region = Autocast("cuda", bfloat16)
        region.enter(self.it.world)
        try:
            return base.call(self.it.world, module, args, keywords)
        finally:
            region.leave(self.it.world)

    def _apply_changes(self, module: Module) -> None:
        """What a run tries that is done to the model itself, once."""
        if "checkpointing" in self.it.changes and id(module) not in self.changed:
            self.changed.add(id(module))
            enable = self.it.find_attribute(module, "gradient_checkpointing_enable")
            if enable is not MISSING:
                self.it.call(enable, [], {"gradient_checkpointing_kwargs": {"use_reentrant": False}})

    def _note_input(self, module: Module, args: tuple[Value, ...], keywords: dict[str, Value]) -> None:
        if not _has_parameters(module):
            return
        if id(module) not in self.called:
            self.called[id(module)] = weakref.ref(module)
            if self.it.find_attribute(module, "gradient_checkpointing_enable") is not MISSING:
                self.met.setdefault("checkpointable", (True, self.it.origin()))
        has_graph = self.it.world.grad_enabled
        if sum(given.has_graph is has_graph for given in self.model_inputs) > 16:
            return
        for value in (*args, *keywords.values()):
            if isinstance(value, Tensor) and value.ndim >= 1:
                extents = self.extents.get(value.storage, ())
                given = ModelInput(
                    tuple(value.shape),
                    value.dtype.is_floating_point,
                    extents,
                    self.own(self.it.origin()),
                    has_graph,
                )
                self.model_inputs.append(given)
                return

    def call_object(self, callee: Value, args: list[Value], keywords: Keywords) -> Value:
        """Calling an object of the runtime that is neither module nor function."""
        if isinstance(callee, DType):
            # numpy.float32(x): a conversion
            value = args[0] if args else 0
            return (
                self.call_method(self.it, value, "to", [callee], {}) if isinstance(value, Tensor) else value
            )
        cls = self.class_of(callee)
        method = cls.find("__call__")
        if isinstance(method, Builtin):
            return self.it.call(method, [callee, *args], keywords)
        return MISSING

    # -- attributes of runtime objects

    def tensor_attribute(self, tensor: Tensor, name: str) -> Value:
        attribute = TENSOR_ATTRIBUTES.get(name)
        if attribute is not None:
            return from_runtime(self.it, attribute.get(self.it.world, tensor))
        if name == "backward":
            return BoundMethod(self.backward, tensor)
        if name == "numpy":
            # arrays are CPU tensors, see `numbers`
            return Builtin(name, lambda it, a, k: it.library.call_method(it, tensor, "detach", [], {}))
        function = METHODS.get(name)
        if function is not None:
            made = self.methods.get(name)
            if made is None:
                made = Builtin(f"Tensor.{name}", lambda it, a, k: self.invoke(function, a, k))
                if name == "transpose":
                    made = Builtin(f"Tensor.{name}", self._transposed)
                self.methods[name] = made
            return BoundMethod(made, tensor)
        if name == "__class__":
            return self.class_of(tensor)
        return self.spaces.tensor_extra(tensor, name)

    def _transposed(self, it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        """Two dimensions are a tensor's, all or none of them an array's of NumPy."""
        if len(args) == 3 or keywords:
            return self.invoke(METHODS["transpose"], args, keywords)
        array = cast(Tensor, args[0])
        order = args[1:] or list(range(array.ndim))[::-1]
        return self.invoke(METHODS["permute"], [array, *order], {})

    @property
    def backward(self) -> Builtin:
        made = self.methods.get("backward")
        if made is None:
            made = self.methods["backward"] = Builtin("Tensor.backward", self._backward)
        return made

    def _backward(self, it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        result = self.invoke(METHODS["backward"], args, keywords)
        it.loops.backwards += 1
        return result

    def set_tensor_attribute(self, tensor: Tensor, name: str, value: Value) -> None:
        attribute = TENSOR_ATTRIBUTES.get(name)
        if name == "data" and isinstance(value, Tensor):
            set_data(tensor, value)
        elif name == "grad":
            tensor.grad = value if isinstance(value, Tensor) else None
        elif name == "requires_grad":
            tensor.requires_grad = self.it.truth(value)
        elif attribute is not None and attribute.set is not None:
            attribute.set(self.it.world, tensor, self.argument(value, f"Tensor.{name}"))

    def module_attribute(self, module: Module, name: str) -> Value:
        known = module.program_class
        cls = known if isinstance(known, Class) else self.class_of(module)
        member = cls.find(name)
        if isinstance(member, Property):
            return self.it.bind_member(member, module, cls)
        value = module.lookup(name)
        if value is not base.MISSING:
            return value if isinstance(value, (Tensor, Module)) else from_runtime(self.it, value)
        if member is not MISSING:
            return (
                BoundMethod(member, module)
                if isinstance(member, Function)
                else self.it.bind_member(member, module, cls)
            )
        special = self._special_attribute(module, cls, name)
        if special is not MISSING:
            return special
        fallback = cls.find("__getattr__")
        if fallback is not MISSING:
            return self.it.ask_getattr(fallback, module, name)
        return MISSING

    def _special_attribute(self, module: Module, cls: Class, name: str) -> Value:
        if name == "__class__":
            return cls
        if name == "_modules":
            return module.children
        if name == "_parameters":
            return module.parameters
        if name == "_buffers":
            return module.buffers
        if name == "__dict__":
            return module.fields
        return MISSING

    def set_module_attribute(self, module: Module, name: str, value: Value) -> None:
        cls = self.class_of(module)
        member = cls.find(name)
        if isinstance(member, Property):
            if member.setter is None:
                raise self.it.error("AttributeError", f"can't set attribute '{name}'")
            self.it.call(member.setter, [module, value], {})
            return
        hook = cls.find("__setattr__")
        if isinstance(hook, Function):
            self.it.call(hook, [module, name, value], {})
            return
        self.assign_to_module(module, name, value)

    def assign_to_module(self, module: Module, name: str, value: Value) -> None:
        if name == "forward":
            module.fields["forward"] = value
            module.forward_override = self.override
        else:
            module.assign(name, value)

    def object_attribute(self, owner: Value, name: str) -> Value:
        cls = self.class_of(owner)
        member = cls.find(name)
        if isinstance(member, Property):
            return self.it.bind_member(member, owner, cls)
        fields = getattr(owner, "fields", None)
        if isinstance(owner, Optimizer) and isinstance(fields, dict) and name in fields:
            return cast("dict[str, Value]", fields)[name]
        if isinstance(owner, _COMPANIONS) and name in self.program_fields.get(owner, {}):
            return self.program_fields[owner][name]
        if member is not MISSING:
            return self.it.bind_member(member, owner, cls)
        if isinstance(owner, (Config, ModelOutput)):
            return _family_field(self.it, owner, name)
        return self.spaces.object_attribute(owner, name)

    def set_object_attribute(self, owner: Value, name: str, value: Value) -> bool:
        if isinstance(owner, Optimizer):
            member = self.class_of(owner).find(name)
            if isinstance(member, Property) and member.setter is not None:
                self.it.call(member.setter, [owner, value], {})
            else:
                owner.fields[name] = value
            return True
        if isinstance(owner, _COMPANIONS):
            self.program_fields.setdefault(owner, {})[name] = value
            return True
        if isinstance(owner, Config):
            owner.assign(name, self.argument(value, name))
            return True
        if isinstance(owner, ModelOutput):
            owner.fields[name] = self.argument(value, name)
            return True
        return False

    def size_attribute(self, owner: Size, name: str) -> Value:
        if name == "numel":
            return Builtin("numel", lambda it, a, k: owner.numel())
        if name == "__class__":
            return self.it.types.by_name["tuple"]
        plain = tuple(owner)
        return self.it.find_attribute(plain, name)

    def general_method(self, owner: Instance, name: str) -> Value:
        """What every object has: `object.__setattr__` and friends, through an instance."""
        return self.super_default(owner, owner.cls, name)

    def super_default(self, receiver: Value, cls: Class, name: str) -> Value:
        """Members that `object` (or a carrier's type) gives; MISSING if it has none."""
        it = self.it
        if name == "__setattr__":
            return Builtin(name, lambda it, a, k: self.plain_set(receiver, cast(str, a[0]), a[1]))
        if name == "__getattribute__":
            return Builtin(name, lambda it, a, k: it.get_attribute(receiver, cast(str, a[0])))
        if name == "__getattr__" and isinstance(receiver, Module):
            return Builtin(name, lambda it, a, k: self._plain_get(receiver, cast(str, a[0])))
        if name in ("__init_subclass__", "__post_init__") and isinstance(receiver, Class):
            return Builtin(name, lambda it, a, k: None)
        if name == "__reduce__" or name == "__getstate__":
            return MISSING
        if isinstance(receiver, Instance) and receiver.payload is not None:
            from torchwise_analysis.interp.concrete import methods

            method = methods.method_of(receiver.payload, name)
            if method is not None:
                return BoundMethod(method, receiver.payload)
        if name == "__repr__":
            return Builtin(name, lambda it, a, k: f"<{cls.name} object>")
        if name == "__hash__":
            return Builtin(name, lambda it, a, k: id(receiver))
        if name == "__eq__" and isinstance(receiver, Instance):
            return Builtin(name, lambda it, a, k: a[0] is receiver)
        del it
        return MISSING

    def plain_set(self, receiver: Value, name: str, value: Value) -> None:
        """`object.__setattr__(receiver, name, value)`."""
        member = self.it.class_of(receiver).find(name)
        if isinstance(member, Property) and member.setter is not None and not member.cached:
            self.it.call(member.setter, [receiver, value], {})
        elif isinstance(receiver, Instance):
            receiver.attributes[name] = value
        elif isinstance(receiver, Module):
            self.assign_to_module(receiver, name, value)

    def _plain_get(self, receiver: Module, name: str) -> Value:
        value = receiver.lookup(name)
        if value is base.MISSING:
            raise self.it.error(
                "AttributeError", f"'{self.class_of(receiver).name}' object has no attribute '{name}'"
            )
        return from_runtime(self.it, value)

    def class_member(self, owner: Class, name: str) -> Value:
        if name == "__setattr__":
            return Builtin(name, lambda it, a, k: self.plain_set(a[0], cast(str, a[1]), a[2]))
        if name == "__getattr__" and owner.trait("native"):
            return Builtin(name, lambda it, a, k: self._plain_get(cast(Module, a[0]), cast(str, a[1])))
        if name == "__init__":
            return Builtin(name, lambda it, a, k: None)
        if name == "__annotations__":
            return {}
        return self.spaces.class_member(owner, name)

    # -- items, iteration, length

    def get_item(self, owner: Value, index: Value) -> Value:
        if isinstance(owner, Tensor):
            return self._tensor_item(owner, index)
        if isinstance(owner, Opaque) and "__getitem__" in owner.attributes:
            return self.it.call(owner.attributes["__getitem__"], [index], {})
        if isinstance(owner, Opaque):
            return Unknown(f"an item of {owner.kind}", self.it.origin())
        if isinstance(index, Tensor):
            # a list of modules takes a tensor of one whole number for the number
            known = self.known_number(index)
            index = index if known is None else known
        return self._special_method(owner, "__getitem__", [index])

    def _tensor_item(self, owner: Tensor, index: Value) -> Value:
        known = _resolved_index(self.it, owner, index)
        if isinstance(known, Unknown):
            raise Stopped(f"{known.why} indexes a tensor", known.origin or self.it.origin())
        return self.invoke(METHODS["__getitem__"], [owner, known], {})

    def _special_method(self, owner: Value, name: str, args: list[Value]) -> Value:
        cls = self.class_of(owner)
        method = cls.find(name)
        if method is MISSING:
            return MISSING
        return self.it.call(self.it.bind_member(method, owner, cls), args, {})

    def set_item(self, owner: Value, index: Value, value: Value) -> bool:
        if isinstance(owner, Tensor):
            if isinstance(value, Unknown):
                if value.origin is not None and self.it.module_depth:
                    raise Stopped(f"{value.why} is written into a tensor", value.origin)
                return True
            self.ones.discard(owner.storage)
            self.written.add(owner.storage)
            self.invoke(METHODS["__setitem__"], [owner, _resolved_index(self.it, owner, index), value], {})
            return True
        if isinstance(owner, Opaque):
            setter = owner.attributes.get("__setitem__")
            if isinstance(setter, Builtin):
                self.it.call(setter, [index, value], {})
            return True
        return self._special_method(owner, "__setitem__", [index, value]) is not MISSING

    def delete_module_item(self, owner: Module, index: Value) -> None:
        if self._special_method(owner, "__delitem__", [index]) is MISSING:
            raise self.it.error("TypeError", "object does not support item deletion")

    def is_loader(self, value: Value) -> bool:
        return isinstance(value, Instance) and any(c.tag == LOADER for c in value.cls.mro)

    def iterate(self, value: Value) -> Iterator[Value] | None:
        if isinstance(value, Tensor):
            return self._iterate_tensor(value)
        if isinstance(value, Opaque):
            step = value.attributes.get("__iter__")
            if isinstance(step, Builtin):
                return self.it.iterate(self.it.call(step, [], {}))
            return self.it.unknown_items(Unknown(value.kind, self.it.origin()))
        found = self._special_method(value, "__iter__", [])
        return None if found is MISSING else self.it.iterate(found)

    def _iterate_tensor(self, value: Tensor) -> Iterator[Value]:
        if value.ndim == 0:
            raise self.it.error("TypeError", "iteration over a 0-d tensor")
        if value.ndim == 1 and not value.dtype.is_differentiable and values_of(value) is None:
            # whole numbers out of a tensor end as positions: what matters is their differences
            return iter([Symbol("an element of a tensor") for _ in range(min(value.shape[0], _ITEMS_LIMIT))])
        found = self.invoke(METHODS["unbind"], [value], {})
        return self.it.iterate(found)

    def length(self, value: Value) -> Value | None:
        if isinstance(value, Tensor):
            if value.ndim == 0:
                raise self.it.error("TypeError", "len() of a 0-d tensor")
            return value.shape[0]
        if isinstance(value, Opaque):
            step = value.attributes.get("__len__")
            if isinstance(step, Builtin):
                return self.it.call(step, [], {})
            return Symbol(f"the length of {value.kind}")
        if isinstance(value, Iter):
            return Symbol("the length of an iterator") if value.kind == "range" else None
        found = self._special_method(value, "__len__", [])
        return None if found is MISSING else found

    def as_mapping(self, value: Value) -> dict[Value, Value] | None:
        if isinstance(value, Opaque):
            return {name: member for name, member in value.attributes.items()}  # noqa: C416 - other key type
        if isinstance(value, Module):
            return module_items(value)
        return None

    def truth_of_module(self, value: Module) -> bool | None:
        if self.class_of(value).find("__len__") is MISSING:
            return None
        return bool(self.it.length(value))

    def known_number(self, value: Value) -> int | float | bool | None:
        """The number a tensor with one known element holds."""
        if isinstance(value, Tensor):
            known = values_of(value)
            if known is not None and len(known) == 1:
                number = known[0]
                return number if value.dtype.is_differentiable else int(number)
        return None

    # -- operators

    def native_binary(self, it: Interpreter, op: str, left: Value, right: Value) -> Value:
        name = {"/": "__truediv__", "+": "__add__", "|": "__or__"}.get(op, "")
        if isinstance(left, Opaque) and name in left.attributes:
            return it.call(left.attributes[name], [right], {})
        if isinstance(left, Opaque) or isinstance(right, Opaque):
            return Unknown(f"{op} of {left!r} and {right!r}", it.origin())
        if isinstance(left, Module) and name:
            return self._special_method(left, name, [right])
        if isinstance(left, range) or isinstance(right, range):
            return MISSING
        return MISSING

    def native_in_place(self, it: Interpreter, op: str, left: Value, right: Value) -> Value:
        if op == "+" and isinstance(left, Module):
            return self._special_method(left, "__iadd__", [right])
        return MISSING

    def native_contains(self, it: Interpreter, container: Value, item: Value) -> Value:
        if isinstance(container, Opaque):
            test = container.attributes.get("__contains__")
            if isinstance(test, Builtin):
                return it.call(test, [item], {})
            return Unknown(f"membership in {container.kind}", it.origin())
        if isinstance(container, (Module, Optimizer)):
            return self._special_method(container, "__contains__", [item])
        return MISSING

    def same(self, left: Value, right: Value) -> bool:
        return False

    def devices_equal(self, left: Value, right: Value) -> bool:
        try:
            return device_of(left).type == device_of(right).type
        except Unsupported:
            return False

    # -- context managers

    def enter(self, manager: Value) -> Value:
        enter = getattr(manager, "enter", None)
        if isinstance(manager, Device):
            # `with torch.device(...)`: where tensors are made that do not say it
            self.devices.append(self.it.world.default_device)
            self.it.world.default_device = manager
            return manager
        if enter is None or isinstance(manager, (Module, Tensor)):
            raise self.it.error("TypeError", f"'{self.it.class_of(manager).name}' is no context manager")
        enter(self.it.world)
        return manager

    def leave(self, manager: Value) -> None:
        if isinstance(manager, Device):
            self.it.world.default_device = self.devices.pop()
            return
        leave = getattr(manager, "leave", None)
        if leave is not None:
            leave(self.it.world)

    # -- copies

    def copied(self, value: Value, deep: bool, memo: dict[int, Value]) -> Value:
        if isinstance(value, Module):
            if not deep:
                self.it.assume("a shallow copy of a module is the module")
                return value
            twin = copy_module(self.it.world, value)
            memo[id(value)] = twin
            return twin
        if isinstance(value, Tensor) and deep:
            return copy_tensor(self.it.world, value)
        return value

    def close(self) -> None:
        self.imports.close()
        self.models.clear()
        self.model_inputs.clear()
        self.methods.clear()
        for members in self.native_members:
            members.clear()
        self.functions.clear()
        self.spaces.close()


def _family_field(it: Interpreter, owner: Config | ModelOutput, name: str) -> Value:
    try:
        return from_runtime(it, owner.lookup(name))
    except KeyError:
        return MISSING


def module_items(value: Module) -> dict[Value, Value]:
    return {name: child for name, child in value.children.items()}  # noqa: C416 - other key type


def _whole_numbers(values: Sequence[Value]) -> Iterator[Int]:
    for value in values:
        if isinstance(value, Int):
            yield value
        elif isinstance(value, (list, tuple)) and len(cast("list[Value]", value)) < 8:
            yield from _whole_numbers(cast("list[Value]", value))


_ABSTRACT: dict[str, tuple[type, ...]] = {
    "Sequence": (list, tuple, str, range),
    "MutableSequence": (list,),
    "Iterable": (list, tuple, str, range, dict, set, frozenset, Iter),
    "Iterator": (Iter,),
    "Collection": (list, tuple, str, range, dict, set, frozenset),
    "Container": (list, tuple, str, range, dict, set, frozenset),
    "Sized": (list, tuple, str, range, dict, set, frozenset),
    "Mapping": (dict,),
    "MutableMapping": (dict,),
    "Set": (set, frozenset),
    "Number": (int, float, complex),
    "Real": (int, float),
    "Integral": (int,),
    "Hashable": (int, float, str, tuple),
}


def to_runtime(it: Interpreter, value: Value) -> Value:
    """A value of the program as the runtime takes it."""
    if value is None or value.__class__ in _AS_IS or isinstance(value, (Tensor, Module, DType, Device)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Symbol):
        if value.is_int and not value.terms:
            return value.constant
        return UnknownScalar("int" if value.is_int else "float", value.why)
    if isinstance(value, list):
        return [to_runtime(it, v) for v in cast("list[Value]", value)]
    if isinstance(value, Size):
        return value
    if isinstance(value, tuple):
        return tuple([to_runtime(it, v) for v in cast("tuple[Value, ...]", value)])
    if isinstance(value, dict):
        return {k: to_runtime(it, v) for k, v in cast("dict[Value, Value]", value).items()}
    if isinstance(value, slice):
        return slice(*[to_runtime(it, v) for v in (value.start, value.stop, value.step)])
    if isinstance(value, Iter):
        return [to_runtime(it, v) for v in value.source]
    if isinstance(value, Class) and value.module == "builtins" and value.name in _TYPES_AS_DTYPES:
        return DTYPES[_TYPES_AS_DTYPES[value.name]]
    if isinstance(value, Instance) and value.payload is not None:
        return to_runtime(it, value.payload)
    if isinstance(value, Instance) and value.cls.find("__iter__") is not MISSING:
        return [to_runtime(it, v) for v in it.iterate(value)]
    if isinstance(value, (Function, BoundMethod, Builtin, Partial)):
        return HostCallable(it, value)
    if isinstance(value, Instance) and value.cls.find("__call__") is not MISSING:
        return HostCallable(it, value)
    return value


# `dtype=bool`: types of the language that torch takes for its own.
_TYPES_AS_DTYPES = {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}

_AS_IS = frozenset({float, str, bool, complex, bytes, type(Ellipsis)})
_AS_THEY_ARE = _AS_IS | {Tensor, Parameter, int, type(None), DType, Device}


def from_runtime(it: Interpreter, value: object) -> Value:
    """A result of the runtime as the program sees it."""
    if isinstance(value, Tensor) or value is None or value.__class__ in _AS_IS or value.__class__ is int:
        return value
    if isinstance(value, UnknownScalar):
        return Symbol(value.reason, is_int=value.kind != "float")
    if isinstance(value, UnknownItems):
        return _unknown_rows(value, value.shape)
    if isinstance(value, HostCallable):
        return value.function
    if isinstance(value, Size):
        return value
    if value.__class__ is tuple:
        return tuple([from_runtime(it, v) for v in cast("tuple[object, ...]", value)])
    if value.__class__ is list:
        items = cast("list[object]", value)
        return items if not items or not _needs_care(items[0]) else [from_runtime(it, v) for v in items]
    if isinstance(value, Iterator):
        return Iter(cast("Iterator[Value]", value))
    if isinstance(value, tuple):
        # torch.max(...) and others return named tuples: their names stay readable
        return _named_result(it, cast("tuple[object, ...]", value))
    return value


def _needs_care(value: object) -> bool:
    return isinstance(value, (UnknownScalar, UnknownItems, HostCallable, list, tuple, Iterator))


def _named_result(it: Interpreter, value: tuple[object, ...]) -> Value:
    names = getattr(value, "_fields", None)
    items = tuple([from_runtime(it, v) for v in value])
    if not isinstance(names, tuple):
        return items
    cls = it.library.spaces.result_class(tuple(str(n) for n in names))
    return Instance(cls, items)


def _unknown_rows(value: UnknownItems, shape: tuple[int, ...]) -> Value:
    count = 1
    for extent in shape:
        count *= extent
    if count > _ITEMS_LIMIT:
        return Unknown(value.reason)
    if not shape:
        return Symbol(value.reason, is_int=value.kind != "float")
    return [_unknown_rows(value, shape[1:]) for _ in range(shape[0])]


def _resolved_index(it: Interpreter, owner: Tensor, index: Value) -> Value:
    """An index whose unknown bounds are replaced by ones of the same length."""
    if isinstance(index, Unknown):
        return index
    if isinstance(index, tuple):
        parts = [_resolved_index(it, owner, part) for part in cast("tuple[Value, ...]", index)]
        return next((p for p in parts if isinstance(p, Unknown)), tuple(parts))
    if isinstance(index, slice):
        return _resolved_slice(it, index)
    if isinstance(index, Symbol):
        return 0
    return index


def _resolved_slice(it: Interpreter, index: slice) -> Value:
    if isinstance(index.step, int) and index.step < 0 and index.start is None and index.stop is None:
        # an array turned round is as long as before
        return slice(None, None, -index.step)
    bounds: list[Value] = [index.start, index.stop, index.step]
    for bound in bounds:
        if isinstance(bound, Unknown):
            return bound
    start, stop, step = bounds
    if not isinstance(start, Symbol) and not isinstance(stop, Symbol):
        return index
    from torchwise_analysis.interp.concrete import operators

    length = operators.symbol_binary("-", stop, 0 if start is None else start)
    if isinstance(length, int):
        return slice(0, max(length, 0), step)
    if isinstance(start, Symbol) and stop is None:
        it.assume(f"a slice from {start.why} on is the whole")
        return slice(None, None, step)
    it.assume(f"a slice up to {length.why if isinstance(length, Symbol) else 'an unknown end'} is the whole")
    return slice(None, None, step)


def _property_of(attribute: NativeAttribute, name: str) -> Property:
    getter = Builtin(name, lambda it, a, k: from_runtime(it, attribute.get(it.world, a[0])))
    setter = attribute.set
    if setter is None:
        return Property(getter, None, False, name)
    return Property(
        getter,
        Builtin(name, lambda it, a, k: setter(it.world, a[0], it.library.argument(a[1], name))),
        False,
        name,
    )


def _synchronized(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    it.assume("batch norm that is synchronized between processes takes what batch norm takes")
    return args[0] if args else keywords["module"]


def _is_unread(args: list[Value], keywords: Keywords) -> bool:
    """Whether the state that `load_state_dict` is given, or an entry of it, is not known."""
    state = args[1] if len(args) > 1 else next(iter(keywords.values()), None)
    if isinstance(state, dict):
        return any(isinstance(v, Unknown) for v in cast("dict[Value, Value]", state).values())
    return isinstance(state, Unknown)


def _is_given(value: Value) -> bool:
    return bool(value) if isinstance(value, (bool, int, float)) else False


def _unknown_in(value: Value) -> Unknown | None:
    """What is not known of the parameters that an optimizer is given."""
    if isinstance(value, Unknown):
        return value
    if isinstance(value, dict):
        return _unknown_in(cast("dict[Value, Value]", value).get("params"))
    if isinstance(value, (list, tuple)):
        found = (_unknown_in(item) for item in cast("list[Value]", value)[:64])
        return next((one for one in found if one is not None), None)
    return None


def _has_parameters(module: Module) -> bool:
    return any(True for _ in module.walk_parameters())


def _packed_away(models: list[Module]) -> int:
    """By how many the weights of quantised layers are more than the bytes that hold them."""
    layers = {id(m): m for model in models for _, m in model.walk() if isinstance(m, PackedLinear)}
    return sum(layer.rows * layer.columns - layer.tensor("weight").numel for layer in layers.values())


def _unwrapped(library: Library, module: Module) -> Module:
    """The model inside `DataParallel` and its kin."""
    while library.class_of(module).tag.endswith("DataParallel") and "module" in module.children:
        module = cast(Module, module.children["module"])
    return module


def _apart(models: list[Module]) -> list[Module]:
    """The models that train and are no part of another one; the first where none trains."""
    trained = [m for m in models if any(p.requires_grad for _, p in m.walk_parameters())]
    inner = {id(part) for m in trained for _, part in m.walk() if part is not m}
    unique = {id(m): m for m in trained if id(m) not in inner}
    return list(unique.values()) or models[:1]


def _is_weakly_keyed(value: Value) -> bool:
    return isinstance(value, (Optimizer, *_COMPANIONS))


__all__ = ["ForwardOverride", "HostCallable", "Library", "Parameter", "from_runtime", "to_runtime"]
