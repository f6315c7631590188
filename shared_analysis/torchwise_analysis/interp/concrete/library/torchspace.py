"""Names below `torch` that are no operators or modules: devices, types, contexts, the card, inert helpers."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from torchwise_analysis.interp.concrete import operators
from torchwise_analysis.interp.concrete.errors import Stopped
from torchwise_analysis.interp.concrete.library.launchers import multiprocessing_members
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    ClassMethod,
    Function,
    Instance,
    Keywords,
    Namespace,
    Opaque,
    StaticMethod,
    Symbol,
    Unknown,
    Value,
)
from torchwise_memory.library import FUNCTIONS, METHODS, TENSOR_ATTRIBUTES
from torchwise_memory.modules.base import Buffer, Module
from torchwise_memory.runtime.checkpoint import checkpoint
from torchwise_memory.runtime.contexts import Autocast, Context, GradMode
from torchwise_memory.runtime.custom import FunctionContext, apply_function
from torchwise_memory.runtime.device import Device, device_of
from torchwise_memory.runtime.dtypes import DTYPES, DType, bfloat16, float16
from torchwise_memory.runtime.tensor import Parameter, Size, Tensor

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

Call: TypeAlias = "Callable[[Interpreter, list[Value], Keywords], Value]"

_CARD_NAMES = {75: "Tesla T4", 80: "NVIDIA A100-SXM4-80GB", 90: "NVIDIA H100 80GB HBM3"}


def torch_members(it: Interpreter) -> dict[str, Value]:
    """Qualified name -> value, for everything that is neither in FUNCTIONS nor in CLASSES."""
    members: dict[str, Value] = {f"torch.{name}": dtype for name, dtype in DTYPES.items()}
    members.update(_types(it))
    members.update(_contexts())
    members.update(_cuda())
    members.update(_inert())
    members.update(_constants())
    members.update(_questions())
    members.update(_checkpoint(it))
    members.update(_distributed())
    members.update(multiprocessing_members("torch.multiprocessing."))
    return members


# --------------------------------------------------------------------------- types


def _types(it: Interpreter) -> dict[str, Value]:
    made: dict[str, Value] = {}

    def add(
        name: str,
        construct: Callable[[Interpreter, Class, list[Value], Keywords], Value] | None,
        *bases: Class,
    ) -> Class:
        module, _, short = name.rpartition(".")
        parents = bases or (it.types.object,)
        cls = Class(short, parents, module=module, construct=construct, tag=name)
        cls.mro = (cls, *parents[0].mro)
        made[name] = cls
        return cls

    tensor = add("torch.Tensor", _tensor)
    tensor.resolve = tensor_method
    add("torch.nn.parameter.Parameter", _parameter, tensor)
    made["torch.nn.Parameter"] = made["torch.nn.parameter.Parameter"]
    add("torch.nn.Buffer", _buffer, tensor)
    made["torch.nn.parameter.Buffer"] = made["torch.nn.Buffer"]
    add("torch.device", _device)
    add("torch.dtype", None)
    add("torch.Size", _size, it.types.by_name["tuple"])
    for name, dtype in (
        ("FloatTensor", "float32"),
        ("LongTensor", "int64"),
        ("HalfTensor", "float16"),
        ("BoolTensor", "bool"),
        ("IntTensor", "int32"),
    ):
        made[f"torch.{name}"] = Builtin(f"torch.{name}", _typed_tensor(DTYPES[dtype]))
        made[f"torch.cuda.{name}"] = made[f"torch.{name}"]
    made["torch.fx.Proxy"] = it.types.named("Proxy")
    made["torch.nn.attention.flex_attention.BlockMask"] = it.types.named("BlockMask")
    made["torch.Generator"] = Builtin("torch.Generator", lambda it, a, k: _generator())
    made["torch.finfo"] = Builtin("torch.finfo", _limits)
    made["torch.iinfo"] = Builtin("torch.iinfo", _limits)
    function = add("torch.autograd.Function", None)
    function.members["apply"] = ClassMethod(Builtin("apply", apply_custom))
    return made


def tensor_method(name: str) -> Value | None:
    """`torch.Tensor.view` taken from the class."""
    if name not in METHODS and name not in TENSOR_ATTRIBUTES:
        return None
    return Builtin(f"torch.Tensor.{name}", lambda it, a, k: it.call(it.get_attribute(a[0], name), a[1:], k))


class CustomFunction:
    """One `apply` of a `torch.autograd.Function` of the program: its node calls `backward` later."""

    __slots__ = ("args", "cls", "ctx", "it")

    def __init__(self, it: Interpreter, cls: Class, args: list[Value]) -> None:
        self.it = it
        self.cls = cls
        self.args = args
        self.ctx = Opaque("FunctionCtx")

    def forward(self, context: FunctionContext) -> object:
        it, ctx, args = self.it, self.ctx, self.args
        self.args = []

        def save(it: Interpreter, given: list[Value], keywords: Keywords) -> Value:
            context.to_save = tuple(t if isinstance(t, Tensor) else None for t in given)
            return None

        def exclude(it: Interpreter, given: list[Value], keywords: Keywords) -> Value:
            context.non_differentiable = tuple(t for t in given if isinstance(t, Tensor))
            return None

        ctx.attributes["needs_input_grad"] = context.needs_input_grad
        ctx.attributes["save_for_backward"] = Builtin("save_for_backward", save)
        ctx.attributes["mark_non_differentiable"] = Builtin("mark_non_differentiable", exclude)
        for name in ("set_materialize_grads", "mark_dirty"):
            ctx.attributes[name] = Builtin(name, nothing)
        setup = self.cls.find("setup_context")
        if setup is MISSING:
            result = it.call(self._static("forward"), [ctx, *args], {})
        else:
            result = it.call(self._static("forward"), list(args), {})
            it.call(self._static("setup_context"), [ctx, tuple(args), result], {})
        del ctx.attributes["save_for_backward"], ctx.attributes["mark_non_differentiable"]
        return result

    def backward(self, context: FunctionContext, gradients: tuple[Tensor | None, ...]) -> object:
        self.ctx.attributes["saved_tensors"] = context.saved_tensors
        try:
            return self.it.call(self._static("backward"), [self.ctx, *gradients], {})
        finally:
            del self.ctx.attributes["saved_tensors"]

    def _static(self, name: str) -> Value:
        member = self.cls.find(name)
        return member.function if isinstance(member, StaticMethod) else member


def apply_custom(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`MyFunction.apply(*args)`."""
    cls = args.pop(0)
    assert isinstance(cls, Class)
    for value in args:
        if isinstance(value, Unknown):
            raise Stopped(
                f"{value.why} is not known and reaches {cls.name}.apply", value.origin or it.origin()
            )
    call = CustomFunction(it, cls, list(args))
    return apply_function(it.world, cls.name, args, call.forward, call.backward)


def _tensor(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    if args and all(isinstance(a, int) for a in args):
        return it.library.call_function(it, "torch.empty", args, {})
    return it.library.call_function(it, "torch.tensor", args or [[]], keywords)


def _typed_tensor(dtype: DType) -> Call:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        if args and all(isinstance(a, int) for a in args):
            return it.library.call_function(it, "torch.empty", args, {"dtype": dtype})
        return it.library.call_function(it, "torch.tensor", args or [[]], {"dtype": dtype})

    return call


def _parameter(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    data = args[0] if args else keywords.get("data")
    trainable = args[1] if len(args) > 1 else keywords.get("requires_grad", True)
    if isinstance(data, Unknown):
        raise Stopped(f"{data.why} becomes a parameter", data.origin or it.origin())
    if not isinstance(data, Tensor):
        raise it.error("TypeError", "Parameter() needs a tensor")
    return Parameter(data, it.truth(trainable))


def _buffer(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    data = args[0] if args else keywords.get("data")
    if not isinstance(data, Tensor):
        raise it.error("TypeError", "Buffer() needs a tensor")
    return Buffer(data, it.truth(keywords.get("persistent", True)))


def _device(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    spec = args[0] if args else keywords.get("type", keywords.get("device"))
    if isinstance(spec, (Unknown, Symbol)):
        it.assume(f"the device {spec.why} is the card")
        spec = "cuda"
    if isinstance(spec, str) and spec.partition(":")[0] in ("mps", "xpu", "npu", "hpu", "tpu"):
        it.assume("the card is a CUDA card")
        spec = "cuda"
    if isinstance(spec, Instance):
        spec = spec.payload
    return device_of(spec)


def _size(it: Interpreter, cls: Class, args: list[Value], keywords: Keywords) -> Value:
    return Size(operators.index_of(it, v) for v in it.iterate(args[0])) if args else Size(())


def _generator() -> Opaque:
    made = Opaque("torch.Generator")
    same = Builtin("manual_seed", lambda it, a, k: made)
    made.attributes |= {"manual_seed": same, "seed": Builtin("seed", lambda it, a, k: 0), "device": "cpu"}
    return made


def _limits(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    dtype = args[0] if args else keywords.get("dtype", it.world.default_dtype)
    if not isinstance(dtype, DType):
        return Unknown("the limits of a type", it.origin())
    return Opaque(
        "torch.finfo",
        {
            "min": dtype.smallest if dtype.is_floating_point else int(dtype.smallest),
            "max": dtype.largest if dtype.is_floating_point else int(dtype.largest),
            "eps": dtype.epsilon,
            "tiny": dtype.tiny,
            "smallest_normal": dtype.tiny,
            "bits": dtype.itemsize * 8,
            "dtype": dtype.name,
        },
    )


# --------------------------------------------------------------------------- contexts


def context(
    kind: str, make: Callable[[], Context], entered: Callable[[Interpreter], None] | None = None
) -> Opaque:
    """A context of the runtime as the program uses it: in `with`, or as a decorator."""
    active: list[Context] = []

    def enter(it: Interpreter) -> Value:
        inner = make()
        inner.enter(it.world)
        active.append(inner)
        if entered is not None:
            entered(it)
        return opaque

    def leave(it: Interpreter) -> None:
        if active:
            active.pop().leave(it.world)

    opaque = Opaque(kind, enter=enter, leave=leave, call=wrapped_call(enter, leave))
    opaque.attributes["__enter__"] = Builtin("__enter__", lambda it, a, k: enter(it))
    opaque.attributes["__exit__"] = Builtin("__exit__", lambda it, a, k: leave(it))
    return opaque


def wrapped_call(enter: Callable[[Interpreter], Value], leave: Callable[[Interpreter], None]) -> Call:
    """A context used as a decorator: entered and left around each call."""

    def decorate(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        function = args[0]
        if isinstance(function, Class):
            return function

        def call(it: Interpreter, given: list[Value], named: Keywords) -> Value:
            enter(it)
            try:
                return it.call(function, given, named)
            finally:
                leave(it)

        return Builtin(function.name if isinstance(function, Function) else "decorated", call)

    return decorate


def _grad_mode(kind: str, enabled: bool, inference: bool | None = None) -> Builtin:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        made = context(kind, lambda: GradMode(enabled, inference))
        if args and not isinstance(args[0], (bool, int)):
            # `@torch.no_grad` without parentheses
            assert made.call is not None
            return made.call(it, args, keywords)
        if kind == "torch.inference_mode" and (args or keywords):
            on = it.truth(args[0] if args else keywords.get("mode", True))
            return context(kind, lambda: GradMode(not on and it.world.grad_enabled, on))
        return made

    return Builtin(kind, call)


def _set_grad_enabled(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """A statement and a context: it takes effect at once and is undone when a `with` ends."""
    enabled = it.truth(args[0] if args else keywords.get("mode", True))
    before = it.world.grad_enabled
    it.world.grad_enabled = enabled

    def leave(it: Interpreter) -> None:
        it.world.grad_enabled = before

    return Opaque("torch.set_grad_enabled", enter=lambda it: None, leave=leave)


def _autocast(fixed_device: str | None, fixed_dtype: DType | None) -> Call:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        names = ["device_type", "dtype", "enabled", "cache_enabled"]
        if fixed_device is not None:
            names = ["enabled", "dtype", "cache_enabled"]
        given = {**dict(zip(names, args, strict=False)), **keywords}
        device = fixed_device or given.get("device_type", "cuda")
        device = device.type if isinstance(device, Device) else device
        if isinstance(device, (Unknown, Symbol)):
            it.assume(f"autocast on {device.why} is on the card")
            device = "cuda"
        enabled = given.get("enabled", True)
        dtype = given.get("dtype") or fixed_dtype or (bfloat16 if device == "cpu" else float16)
        if isinstance(dtype, Unknown):
            raise Stopped(f"{dtype.why} decides the precision of autocast", dtype.origin or it.origin())
        on = it.truth(enabled)
        origin = it.origin()

        def entered(it: Interpreter) -> None:
            if on and device == "cuda" and isinstance(dtype, DType):
                said = f"{dtype.name} autocast"
                if it.library.met.get("precision", ("",))[0] != said:
                    it.library.met["precision"] = (said, it.library.own(origin))
                    it.library.by_default.discard("precision")

        made = dtype if on and isinstance(dtype, DType) and dtype.name != "float32" else None
        cache = it.truth(given.get("cache_enabled", True))
        return context(
            "torch.autocast", lambda: Autocast(str(device).partition(":")[0], made, cache), entered
        )

    return call


def _contexts() -> dict[str, Value]:
    quiet = Builtin("context", lambda it, a, k: Opaque("context", enter=lambda it: None))
    members: dict[str, Value] = {
        "torch.no_grad": _grad_mode("torch.no_grad", enabled=False),
        "torch.enable_grad": _grad_mode("torch.enable_grad", enabled=True),
        "torch.inference_mode": _grad_mode("torch.inference_mode", enabled=False, inference=True),
        "torch.set_grad_enabled": Builtin("torch.set_grad_enabled", _set_grad_enabled),
        "torch.autocast": Builtin("torch.autocast", _autocast(None, None)),
        "torch.cuda.amp.autocast": Builtin("torch.cuda.amp.autocast", _autocast("cuda", float16)),
        "torch.cpu.amp.autocast": Builtin("torch.cpu.amp.autocast", _autocast("cpu", bfloat16)),
    }
    for name in ("torch.amp.autocast", "torch.amp.autocast_mode.autocast"):
        members[name] = members["torch.autocast"]
    for name in ("no_grad", "enable_grad", "inference_mode", "set_grad_enabled"):
        members[f"torch.autograd.{name}"] = members[f"torch.{name}"]
        members[f"torch.autograd.grad_mode.{name}"] = members[f"torch.{name}"]
    for name in (
        "torch.autograd.detect_anomaly",
        "torch.autograd.set_detect_anomaly",
        "torch.autograd.profiler.record_function",
        "torch.profiler.record_function",
        "torch.cuda.device",
        "torch.cuda.stream",
        "torch.random.fork_rng",
        "torch.backends.cuda.sdp_kernel",
        "torch.cuda.nvtx.range",
    ):
        members[name] = quiet
    members["torch.nn.attention.sdpa_kernel"] = Builtin("sdpa_kernel", _sdpa_kernel)
    members["torch.device_context"] = quiet
    for backend in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION"):
        members[f"torch.nn.attention.SDPBackend.{backend}"] = backend
    return members


_BACKENDS = {
    "FLASH_ATTENTION": "flash",
    "EFFICIENT_ATTENTION": "efficient",
    "MATH": "math",
    "CUDNN_ATTENTION": "flash",
}


def _sdpa_kernel(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    given = args[0] if args else keywords.get("backends")
    names = given if isinstance(given, (list, tuple)) else [given]
    chosen = frozenset(
        _BACKENDS[n] for n in cast("list[Value]", names) if isinstance(n, str) and n in _BACKENDS
    )
    before: list[frozenset[str]] = []

    def enter(it: Interpreter) -> Value:
        before.append(it.world.sdpa_backends)
        it.world.sdpa_backends = chosen or it.world.sdpa_backends
        return None

    def leave(it: Interpreter) -> None:
        it.world.sdpa_backends = before.pop()

    return Opaque("sdpa_kernel", enter=enter, leave=leave)


# --------------------------------------------------------------------------- the card


def _cuda() -> dict[str, Value]:
    def fixed(name: str, value: Value, sentence: str = "") -> Builtin:
        def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            if sentence:
                it.assume(sentence)
            return value

        return Builtin(name, call)

    members: dict[str, Value] = {
        "torch.cuda.is_available": fixed("is_available", True, "a CUDA card is available"),
        "torch.cuda.is_bf16_supported": fixed("is_bf16_supported", True),
        "torch.cuda.nccl.version": fixed("version", (2, 27, 5)),
        "torch.cuda.device_count": fixed("device_count", 1, "one card is visible"),
        "torch.cuda.current_device": fixed("current_device", 0),
        "torch.cuda.is_initialized": fixed("is_initialized", True),
        "torch.backends.mps.is_available": fixed("is_available", False),
        "torch.backends.mps.is_built": fixed("is_built", False),
        "torch.mps.is_available": fixed("is_available", False),
        "torch.xpu.is_available": fixed("is_available", False),
        "torch.npu.is_available": fixed("is_available", False),
        "torch.backends.cudnn.is_available": fixed("is_available", True),
        "torch.backends.cudnn.version": fixed("version", 90100),
        "torch.cuda.get_device_capability": Builtin(
            "get_device_capability", lambda it, a, k: (it.world.sm // 10, it.world.sm % 10)
        ),
        "torch.cuda.get_device_name": Builtin(
            "get_device_name", lambda it, a, k: _CARD_NAMES.get(it.world.sm, "NVIDIA GPU")
        ),
        "torch.cuda.get_device_properties": Builtin("get_device_properties", _properties),
        "torch.accelerator.is_available": fixed("is_available", True),
        "torch.accelerator.current_accelerator": fixed("current_accelerator", device_of("cuda")),
    }
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "mem_get_info",
        "utilization",
    ):
        members[f"torch.cuda.{name}"] = Builtin(name, lambda it, a, k: Symbol("memory in use"))
    for name in ("memory_summary", "memory_stats"):
        members[f"torch.cuda.{name}"] = Builtin(name, lambda it, a, k: Unknown("memory in use", it.origin()))
    return members


def _properties(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return Opaque(
        "torch.cuda.DeviceProperties",
        {
            "total_memory": Symbol("the memory of the card"),
            "major": it.world.sm // 10,
            "minor": it.world.sm % 10,
            "name": _CARD_NAMES.get(it.world.sm, "NVIDIA GPU"),
            "multi_processor_count": 108,
        },
    )


# --------------------------------------------------------------------------- what changes nothing


def nothing(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return None


def _first(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return args[0] if args else next(iter(keywords.values()), None)


def _identity_decorator(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`@d` and `@d(...)` alike: the function as it is."""
    if args and (isinstance(args[0], (Function, Class, Builtin, Module))) and len(args) == 1 and not keywords:
        return args[0]
    return Builtin("decorator", _first)


def _compile(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    it.assume("torch.compile keeps what eager code keeps; the interval reaches down to what fusing may save")
    it.library.met.setdefault("compiled", (True, it.origin()))
    if args and not isinstance(args[0], (str, bool)):
        return args[0]
    return Builtin("compile", _first)


def _inert() -> dict[str, Value]:
    members: dict[str, Value] = {}
    for name in [
        "manual_seed",
        "seed",
        "set_float32_matmul_precision",
        "set_num_threads",
        "set_num_interop_threads",
        "set_printoptions",
        "save",
        "use_deterministic_algorithms",
        "set_rng_state",
        "_assert",
        "set_flush_denormal",
        "cuda.manual_seed",
        "cuda.manual_seed_all",
        "cuda.empty_cache",
        "cuda.synchronize",
        "cuda.set_device",
        "cuda.reset_peak_memory_stats",
        "cuda.reset_max_memory_allocated",
        "cuda.ipc_collect",
        "cuda.set_per_process_memory_fraction",
        "cuda.memory._record_memory_history",
        "cuda.set_rng_state",
        "cuda.memory._dump_snapshot",
        "backends.cuda.enable_flash_sdp",
        "backends.cuda.enable_mem_efficient_sdp",
        "backends.cuda.enable_math_sdp",
        "multiprocessing.set_start_method",
        "multiprocessing.set_sharing_strategy",
        "_dynamo.reset",
        "_dynamo.mark_static_address",
        "_dynamo.mark_static",
        "_dynamo.mark_dynamic",
        "_dynamo.graph_break",
        "_C._log_api_usage_once",
    ]:
        members[f"torch.{name}"] = Builtin(f"torch.{name}", nothing)
    for name in [
        "jit.script",
        "jit.trace",
        "jit.script_if_tracing",
        "compiler.disable",
        "_dynamo.disable",
        "jit.export",
        "jit.script_method",
        "cuda.amp.custom_fwd",
        "cuda.amp.custom_bwd",
        "amp.custom_fwd",
        "amp.custom_bwd",
        "jit.ignore",
        "jit.unused",
        "_dynamo.dont_skip_tracing",
        "compiler.set_stance",
        "_dynamo.allow_in_graph",
        "compiler.allow_in_graph",
        "autograd.function.once_differentiable",
        "jit._overload_method",
        "fx.wrap",
    ]:
        members[f"torch.{name}"] = Builtin(f"torch.{name}", _identity_decorator)
    members["torch.compile"] = Builtin("torch.compile", _compile)
    members["torch.jit.annotate"] = Builtin("torch.jit.annotate", lambda it, a, k: a[1])
    members["torch.load"] = Builtin(
        "torch.load", lambda it, a, k: Unknown("what torch.load reads", it.origin())
    )
    return members


def _constants() -> dict[str, Value]:
    return {
        "torch.channels_last": "torch.channels_last",
        "torch.channels_last_3d": "torch.channels_last_3d",
        "torch.contiguous_format": "torch.contiguous_format",
        "torch.preserve_format": "torch.preserve_format",
        "torch.strided": "torch.strided",
        "torch.inf": float("inf"),
        "torch.nan": float("nan"),
        "torch.pi": 3.141592653589793,
        "torch.e": 2.718281828459045,
        "torch.newaxis": None,
        "torch.__version__": "2.9.0",
        "torch.version.cuda": "12.8",
        "torch.version.hip": None,
        "torch.version.__version__": "2.9.0",
        "torch.backends.cudnn.benchmark": False,
        "torch.jit.Final": Opaque("torch.jit.Final"),
    }


def _questions() -> dict[str, Value]:
    def of_tensor(question: Callable[[Tensor], Value]) -> Call:
        return lambda it, a, k: question(a[0]) if isinstance(a[0], Tensor) else False

    answers: dict[str, Call] = {
        "is_tensor": lambda it, a, k: isinstance(a[0], Tensor),
        "is_grad_enabled": lambda it, a, k: it.world.grad_enabled,
        "is_inference_mode_enabled": lambda it, a, k: it.world.inference_mode,
        "is_autocast_enabled": lambda it, a, k: it.world.autocast_dtype is not None,
        "get_autocast_gpu_dtype": lambda it, a, k: it.world.autocast_dtype or float16,
        "get_autocast_dtype": lambda it, a, k: it.world.autocast_dtype or float16,
        "is_floating_point": of_tensor(lambda t: t.dtype.is_floating_point),
        "is_complex": of_tensor(lambda t: t.dtype.is_complex),
        "numel": of_tensor(lambda t: t.numel),
        "get_default_dtype": lambda it, a, k: it.world.default_dtype,
        "get_rng_state": lambda it, a, k: Unknown("the random state", it.origin()),
        "initial_seed": lambda it, a, k: 0,
        "jit.is_scripting": lambda it, a, k: False,
        "_C._get_tracing_state": lambda it, a, k: None,
        "jit.is_tracing": lambda it, a, k: False,
        "compiler.is_compiling": lambda it, a, k: False,
        "_dynamo.is_compiling": lambda it, a, k: False,
        "are_deterministic_algorithms_enabled": lambda it, a, k: False,
        "cuda.is_current_stream_capturing": lambda it, a, k: False,
        "onnx.is_in_onnx_export": lambda it, a, k: False,
        "overrides.has_torch_function": lambda it, a, k: False,
        "overrides.has_torch_function_unary": lambda it, a, k: False,
    }
    members: dict[str, Value] = {f"torch.{name}": Builtin(name, call) for name, call in answers.items()}
    members["torch.set_default_dtype"] = Builtin("set_default_dtype", _set_default_dtype)
    members["torch.set_default_tensor_type"] = Builtin("set_default_tensor_type", nothing)
    members["torch.set_default_device"] = Builtin("set_default_device", _set_default_device)
    members["torch.autograd.Variable"] = Builtin("torch.autograd.Variable", _variable)
    members["torch.autograd.backward"] = Builtin("torch.autograd.backward", _backward)
    return members


def _backward(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    given = args[0] if args else keywords["tensors"]
    for tensor in it.iterate(given) if isinstance(given, (list, tuple)) else [given]:
        it.call(it.get_attribute(tensor, "backward"), [], {})
    return None


def _variable(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The old name of a tensor: `Variable(x)` is `x`."""
    tensor = args[0] if args else keywords["data"]
    if isinstance(tensor, Tensor) and it.truth(keywords.get("requires_grad", False)):
        tensor.requires_grad = True
    return tensor


def _set_default_dtype(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    if isinstance(args[0], DType):
        it.world.default_dtype = args[0]
    return None


def _set_default_device(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    it.world.default_device = None if args[0] is None else device_of(args[0])
    return None


def _checkpoint(it: Interpreter) -> dict[str, Value]:
    one = Builtin("torch.utils.checkpoint.checkpoint", _run_checkpoint)
    many = Builtin("torch.utils.checkpoint.checkpoint_sequential", _checkpoint_sequential)
    flex = "torch.nn.attention.flex_attention"
    return {
        "torch.utils.checkpoint.checkpoint": one,
        "torch.utils.checkpoint.checkpoint_sequential": many,
        "torch.utils.checkpoint.create_selective_checkpoint_contexts": Builtin(
            "create_selective_checkpoint_contexts", _selective_contexts
        ),
        "torch.utils.checkpoint.CheckpointPolicy": Namespace(
            "CheckpointPolicy",
            {name: name for name in ("MUST_SAVE", "PREFER_SAVE", "MUST_RECOMPUTE", "PREFER_RECOMPUTE")},
        ),
        "torch.ops": operators_space(it, "torch.ops"),
        f"{flex}.flex_attention": Builtin("flex_attention", _flex_attention),
        f"{flex}.create_block_mask": Builtin("create_block_mask", lambda it, a, k: Opaque("BlockMask")),
    }


def _run_checkpoint(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    function = args.pop(0)
    reentrant = keywords.pop("use_reentrant", True)
    keeps = _kept_results(it, keywords.pop("context_fn", None))
    for name in ("preserve_rng_state", "determinism_check", "debug", "early_stop"):
        keywords.pop(name, None)
    it.library.met.setdefault("checkpointing", (True, it.origin()))
    body = Recomputed(it, function)
    return checkpoint(it.world, body, args, keywords, reentrant=it.truth(reentrant), keeps=keeps)


# Operators by the name of what they make: the name in ATen that a policy is asked about.
_ATEN = {
    "linear": "mm",
    "linear with bias": "addmm",
    "mm": "mm",
    "matmul": "mm",
    "addmm": "addmm",
    "bmm": "bmm",
    "baddbmm": "baddbmm",
    "convolution": "convolution",
    "grouped_mm": "_grouped_mm",
    "flash_attention": "_scaled_dot_product_flash_attention",
    "efficient_attention": "_scaled_dot_product_efficient_attention",
}
# Made along with a result that is kept, under no name of their own.
_ALONG = frozenset({"logsumexp", "rng_state", "unused", "philox_seed", "philox_offset"})


def _kept_results(it: Interpreter, context_fn: Value) -> Callable[[str], bool] | None:
    """Which results selective checkpointing keeps; None where it is not asked for."""
    if context_fn is None:
        return None
    made = it.call(context_fn, [], {})
    if not isinstance(made, Opaque) or made.kind != _SELECTIVE:
        if isinstance(made, tuple):
            return None  # contexts that forward and recomputation run under, which keep nothing
        raise Stopped("what this checkpoint keeps is not known", it.origin())
    policy = made.payload
    kept = {"last": False}

    def keeps(operator: str) -> bool:
        if operator in _ALONG:
            return kept["last"]
        name = _ATEN.get(operator)
        kept["last"] = name is not None and _is_kept(it, policy, f"torch.ops.aten.{name}.default")
        return kept["last"]

    return keeps


_SELECTIVE = "contexts of selective checkpointing"


def _selective_contexts(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    given = args[0] if args else keywords.get("policy_fn_or_list")
    return Opaque(_SELECTIVE, payload=given)


def _is_kept(it: Interpreter, policy: Value, operator: str) -> bool:
    """What a list or a function says of an operator, asked as often as it runs."""
    asked = aten_operator(it, operator)
    if isinstance(policy, (list, tuple, set)):
        return any(each is asked for each in cast("list[Value]", list(policy)))
    origin = it.world.origin
    answer = it.call(policy, [Opaque("context", {"is_recompute": False}), asked], {})
    it.world.origin = origin
    return answer is True or answer in ("MUST_SAVE", "PREFER_SAVE")


def aten_operator(it: Interpreter, name: str) -> Value:
    """`torch.ops.aten.mm.default`: one object for each name, so that programs may compare them."""
    known = it.library.aten_operators
    if name not in known:
        known[name] = Opaque(name)
    return known[name]


def operators_space(it: Interpreter, name: str) -> Namespace:
    """`torch.ops` and below: overloads are objects, everything above them a name space."""

    def resolve(member: str) -> Value:
        full = f"{name}.{member}"
        return aten_operator(it, full) if name.count(".") >= 3 else operators_space(it, full)

    return Namespace(name, resolve=resolve)


def _flex_attention(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Compiled, as its documentation asks for: it keeps what a fused kernel keeps."""
    it.assume("flex_attention is compiled: it keeps no scores")
    given = dict(zip(("query", "key", "value"), args, strict=False)) | keywords
    tensors = [given.get(name) for name in ("query", "key", "value")]
    function = FUNCTIONS["torch.nn.functional.scaled_dot_product_attention"]
    shares = keywords.get("enable_gqa", False)
    return it.library.invoke(function, tensors, {"is_causal": True, "enable_gqa": shares})


class Recomputed:
    """The body of a checkpoint: called again in the backward, with the program's own values."""

    __slots__ = ("function", "it")

    def __init__(self, it: Interpreter, function: Value) -> None:
        self.it = it
        self.function = function

    def __call__(self, *args: Value, **keywords: Value) -> Value:
        given = list(args)
        del args
        return self.it.call(self.function, given, keywords)


def _checkpoint_sequential(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    functions, segments, value = args[:3]
    layers = list(it.iterate(functions))
    count = operators.index_of(it, segments)
    size = len(layers) // count
    for index in range(count - 1):
        part = layers[index * size : (index + 1) * size]
        value = _run_checkpoint(it, [_chain(part), value], dict(keywords))
    return it.call(_chain(layers[(count - 1) * size :]), [value], {})


def _chain(layers: list[Value]) -> Builtin:
    def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
        value = args.pop()
        for layer in layers:
            value = it.call(layer, [value], {})
        return value

    return Builtin("chain", call)


def _distributed() -> dict[str, Value]:
    answers: dict[str, Value] = {
        "is_available": False,
        "is_initialized": False,
        "get_rank": 0,
        "get_world_size": 1,
        "is_nccl_available": True,
    }
    members: dict[str, Value] = {
        f"torch.distributed.{name}": Builtin(name, _constant(value)) for name, value in answers.items()
    }
    for name in (
        "init_process_group",
        "destroy_process_group",
        "barrier",
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "broadcast_object_list",
        "all_gather_object",
    ):
        members[f"torch.distributed.{name}"] = Builtin(name, nothing)
    members["torch.distributed.ReduceOp"] = Namespace(
        "torch.distributed.ReduceOp", {"SUM": "SUM", "AVG": "AVG", "MAX": "MAX"}
    )
    return members


def _constant(value: Value) -> Call:
    return lambda it, a, k: value


__all__ = ["context", "nothing", "torch_members", "wrapped_call"]
