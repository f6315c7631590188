"""From a call to its meaning: exact entry, then what the package says, then what is safe to assume."""

from __future__ import annotations

import math
from typing import cast

from torchwise_analysis.interp.abstract import calls, expressions, unknowns
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import NOT_RECORDING, Hook, Machine, first_known
from torchwise_analysis.quick import replace
from torchwise_analysis.semantics import (
    builtin,
    by_name,
    configs,
    contexts,
    data,
    distributed,
    engines,
    frameworks,
    gradients,
    losses,
    modules,
    optimizers,
    records,
    samples,
    tables,
    tensors,
)
from torchwise_analysis.semantics.registry import FALLBACKS, FUNCTIONS, METHODS, Call, canonical, truth_of
from torchwise_analysis.source import nodes as nd

REGISTERED = (configs,)  # meanings that nothing here calls by name

# Packages that neither train nor keep what they are given.
_HARMLESS = frozenset(
    [
        "wandb",
        "logging",
        "logger",
        "tqdm",
        "os",
        "json",
        "time",
        "math",
        "random",
        "numpy",
        "sys",
        "pathlib",
        "argparse",
        "matplotlib",
        "tensorboard",
        "mlflow",
        "warnings",
        "collections",
        "dataclasses",
        "typing",
        "shutil",
        "csv",
        "re",
        "datetime",
        "string",
        "glob",
        "pickle",
        "io",
        "itertools",
        "functools",
        "operator",
        "contextlib",
        "pprint",
        "tempfile",
        "threading",
        "socket",
        "hashlib",
        "yaml",
        "omegaconf",
        "hydra",
        "pandas",
        "sklearn",
        "scipy",
        "PIL",
        "cv2",
        "seaborn",
        "loguru",
        "rich",
        "tabulate",
        "psutil",
        "subprocess",
        "uuid",
        "platform",
        "inspect",
        "types",
        "enum",
        "abc",
        "copy",
        "builtins",
        "traceback",
        "signal",
        "statistics",
        "struct",
        "base64",
        "urllib",
        "requests",
        "zipfile",
        "tarfile",
        "gzip",
        "heapq",
        "bisect",
        "queue",
        "multiprocessing",
        "absl",
        "fire",
        "click",
        "typer",
    ]
)
_WHOLE_MODELS = (
    "torchvision.models.",
    "timm.create_model",
    "torch.hub.load",
    "transformers.Auto",
    "segmentation_models_pytorch.",
    "peft.get_peft_model",
    "peft.PeftModel",
    "open_clip.create_model",
    "diffusers.",
    "monai.networks.",
    "torchaudio.models.",
    "efficientnet_pytorch.",
    "sentence_transformers.SentenceTransformer",
)
_DATASETS = (
    "torchvision.datasets.",
    "datasets.load_dataset",
    "datasets.",
    "webdataset.",
    "litdata.",
    "torchaudio.datasets.",
    "torchtext.datasets.",
    "torch_geometric.datasets.",
    "streaming.",
    "datasets.distributed.",
)
_NO_TENSORS = frozenset(
    [
        "synchronize",
        "empty_cache",
        "manual_seed",
        "manual_seed_all",
        "set_float32_matmul_precision",
        "is_available",
        "set_device",
        "set_num_threads",
        "memory_allocated",
        "max_memory_allocated",
        "reset_peak_memory_stats",
        "set_default_dtype",
        "set_default_device",
        "use_deterministic_algorithms",
        "device_count",
        "current_device",
        "get_rng_state",
        "set_rng_state",
        "seed",
        "initial_seed",
        "get_default_dtype",
        "set_default_tensor_type",
        "memory_reserved",
        "max_memory_reserved",
        "get_device_name",
        "get_device_properties",
        "is_bf16_supported",
        "finfo",
        "iinfo",
        "Size",
    ]
)
_DOWNLOADS = frozenset(
    ["hf_hub_download", "urlretrieve", "urlopen", "cached_download", "snapshot_download", "cached_path"]
)
_REPORTS = frozenset(["log", "info", "log_metric", "log_metrics", "write"])
_MEANS = frozenset(["mean", "average", "nanmean", "fmean", "sum"])
_OPTIMIZER_PACKAGES = frozenset(["optim", "optimizers", "torch_optimizer", "pytorch_optimizer"])
_PROGRESS_BARS = frozenset(["tqdm", "tqdm_notebook", "progressbar", "progress_bar"])  # by any library
_FORWARDING = frozenset(["torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"])
_DROPOUT = frozenset(
    ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"]
)
_MODULE_BASES = ("torch.nn.", "lightning.LightningModule", "transformers.")


class Library:
    """The meanings of all known libraries; stateless."""

    # ------------------------------------------------------------------ names and attributes

    def builtin(self, m: Machine, name: str, node: nd.Node) -> va.Value:
        if name == "__name__":
            return va.Const(None, "__main__" if m.file == m.path else "module")
        if name in builtin.NAMES:
            return va.Library(None, f"builtins.{name}")
        if name == "__file__":
            return va.Const(None, m.file)
        return unknowns.believed_name(m, name, node)

    def attribute(self, m: Machine, receiver: va.Value, name: str, node: nd.Node) -> va.Value | None:
        if isinstance(receiver, va.Tensor):
            return tensors.attribute(m, receiver, name, node)
        if isinstance(receiver, va.Parameters):
            return _parameters_attribute(receiver, name)
        if isinstance(receiver, va.StateDict):
            return receiver if name == "data" else va.Method(None, receiver, name)
        if not isinstance(receiver, va.Obj):
            return None
        if name == "training" and receiver.kind in (va.Kind.MODULE, va.Kind.ENGINE):
            return va.ModeValue(receiver.evidence, receiver, m.mode(receiver))
        if receiver.kind is va.Kind.PARAMETER:
            return _parameters_attribute(va.Parameters(None, frozenset([receiver.id]), single=True), name)
        if receiver.kind is va.Kind.OPAQUE and name == "shape" and m.is_data(receiver.id):
            taint = frozenset([name, va.OF_BATCH])
            symbol = f"{receiver.symbol}.shape" if receiver.symbol else None
            return va.unknown(symbol, taint=taint, varies=True)
        if receiver.kind is va.Kind.OPAQUE and name == "grad":
            return va.Parameters(None, frozenset([receiver.id]), single=True, gradients=True)
        if "options" in receiver.traits:
            return None  # `args.eval` is a setting, whatever other objects call so
        if (receiver.kind, name) in METHODS or receiver.kind in FALLBACKS:
            if (
                receiver.kind in (va.Kind.ACCELERATOR, va.Kind.FABRIC)
                and (receiver.kind, name) not in METHODS
            ):
                return frameworks.owner_attribute(m, receiver, name)
            if receiver.kind is va.Kind.OPTIMIZER and name == "param_groups":
                return _param_groups(m, receiver)
            return va.Method(receiver.evidence, receiver, name)
        known = _layer_attribute(m, receiver, name) if receiver.kind is va.Kind.MODULE else None
        known = known or frameworks.lightning_attribute(m, receiver, name)
        if known is not None:
            return known
        if receiver.kind is va.Kind.LOADER:
            return data.loader_attribute(m, receiver, name)
        if receiver.kind is va.Kind.SAMPLER and receiver.cls is None and name == "sampler":
            return receiver.arguments.get("sampler", 0)
        if "options" in receiver.traits and name in unknowns.RANKS:
            return unknowns.rank(f"{receiver.symbol}.{name}", name)
        if "wrapper" in receiver.traits and receiver.over and "compile" in receiver.traits:
            return calls.get_attribute(m, receiver.over[0], name, node)
        return None

    def set_attribute(
        self, m: Machine, receiver: va.Value, name: str, value: va.Value, node: nd.Node
    ) -> bool:
        if isinstance(receiver, va.Parameters):
            _set_parameter_attribute(m, receiver.roots, receiver.filtered, name, value, node)
            return True
        if isinstance(receiver, va.Tensor):
            if name == "requires_grad":
                tensors.required(m, receiver, va.Arguments((value,)), node)
            elif name == "grad":
                m.emit(ev.GradientsReset, node, roots=frozenset[int]())
            return True
        if isinstance(receiver, va.Obj):
            if receiver.kind is va.Kind.PARAMETER or (receiver.kind is va.Kind.OPAQUE and name == "grad"):
                _set_parameter_attribute(m, frozenset([receiver.id]), False, name, value, node)
                return True
            if receiver.kind is va.Kind.MODULE:
                modules.set_part(m, receiver, name, value, node, "attribute")
                if name == "require_backward_grad_sync":
                    m.emit(ev.ApiCall, node, name=name, arguments=va.Arguments((value,)), receiver=receiver)
        if isinstance(receiver, va.Library):
            m.emit(ev.ApiCall, node, name=f"{receiver.path}.{name}=", arguments=va.Arguments((value,)))
            return True
        if isinstance(receiver, va.Unknown) and name == "grad":
            m.forget_gradients()
        return False

    def kept_attribute(self, m: Machine, receiver: va.Obj, name: str, value: va.Value, node: nd.Node) -> None:
        return

    def set_item(
        self, m: Machine, receiver: va.Value, index: va.Value, value: va.Value, node: nd.Node
    ) -> bool:
        if isinstance(receiver, va.Library):
            key = index.value if isinstance(index, va.Const) else "?"
            m.emit(ev.ApiCall, node, name=f"{receiver.path}[{key}]=", arguments=va.Arguments((value,)))
            return True
        if isinstance(receiver, va.Obj) and receiver.kind is va.Kind.MODULE:
            modules.set_part(m, receiver, "[]", value, node, "item")
        m.touch(receiver, node)
        if isinstance(receiver, va.Tensor):
            tensors.write(m, node, receiver, value)
        return isinstance(receiver, (va.Tensor, va.Parameters))

    def sliced(self, m: Machine, receiver: va.Obj, node: nd.Node) -> va.Obj | None:
        return data.sliced(m, receiver, node)

    def returned(self, m: Machine, receiver: va.Obj, name: str, value: va.Value, node: nd.Node) -> va.Value:
        return data.returned(m, receiver, name, value, node)

    def some_member(self, library: va.Library) -> va.Value:
        return by_name.some_member(library) or va.unknown(f"{library.path}[None]")

    # ------------------------------------------------------------------ tensors

    def tested(self, m: Machine, value: va.Value, node: nd.Node) -> None:
        tensors.report(m, (value,), node, "if")

    def host_sync(self, m: Machine, value: va.Tensor, node: nd.Node, how: str) -> None:
        tensors.host_read(m, value, node, how, cut=False)

    def weighed(self, m: Machine, values: tuple[va.Value, ...], node: nd.Node) -> None:
        gradients.used(m, values, node, "if")

    def measured(self, m: Machine, value: va.Parameters, node: nd.Node, op: str) -> va.Tensor:
        return gradients.measured(m, [value], node, op)

    def compared(self, m: Machine, value: va.Tensor, node: nd.Node) -> va.Value:
        return tensors.compared(m, value, node)

    # ------------------------------------------------------------------ functions

    def call(self, m: Machine, name: str, arguments: va.Arguments, node: nd.Node) -> va.Value:
        if name.startswith("functorch."):
            m.emit(ev.ApiCall, node, name=name, arguments=arguments)
        name = canonical(name)
        call = Call(name, arguments, node)
        meaning = FUNCTIONS.get(name)
        if meaning is not None:
            return meaning(m, call)
        root, last = name.partition(".")[0], call.last
        if root == "torch":
            return _torch(m, call)
        if root == "builtins":
            return _builtin(m, call)
        if last.endswith("DataLoader") and ".distributed." not in name:  # such a one shards by itself
            return data.loader(m, call)
        if name.startswith("torch_geometric.loader.") and last.endswith("Loader"):
            return m.make(
                va.Kind.LOADER, node, name, arguments=arguments
            )  # of nodes, by arguments of its own
        if last in optimizers.KNOWN_OPTIMIZERS:
            return optimizers.build(m, call)
        if last.lower() in _PROGRESS_BARS:
            return builtin.progress(m, call)
        if last == "from_pretrained" or name.startswith(_WHOLE_MODELS):
            m.emit(ev.ApiCall, node, name=name, arguments=arguments)
            if any(
                w in name
                for w in ("Tokenizer", "Processor", "FeatureExtractor", "Config", "Scheduler", "transforms")
            ):
                return va.unknown(None)
            return modules.pretrained(m, call)
        if (last.startswith("get_") and "schedule" in last) or last.endswith("LRScheduler"):
            return optimizers.build_scheduler(m, call)
        if name.startswith(_DATASETS):
            return data.library_dataset(m, call)
        return _third_party(m, call, root)

    # ------------------------------------------------------------------ methods

    def method(
        self, m: Machine, receiver: va.Value, name: str, arguments: va.Arguments, node: nd.Node
    ) -> va.Value:
        call = Call(name, arguments, node)
        if isinstance(receiver, va.Tensor):
            return tensors.call_method(m, receiver, call)
        if isinstance(receiver, va.Obj):
            return _object_method(m, receiver, call)
        if isinstance(receiver, va.Parameters):
            return _parameters_method(m, receiver, call)
        if isinstance(receiver, va.StateDict):
            return _state_method(m, receiver, call)
        if isinstance(receiver, va.Const):
            return _constant_method(m, receiver, call)
        if isinstance(receiver, va.Method):
            return self.method(m, receiver.receiver, name, arguments, node)
        if isinstance(receiver, va.Context):
            contexts.by_hand(m, receiver, name)
            return self.enter(m, receiver, node) or va.UNKNOWN
        if name == "backward":
            return _unknown_backward(m, receiver, call)
        table = tables.after(receiver, call) if isinstance(receiver, va.Unknown) else None
        if table is not None:
            return table
        if name == "zero_" and "grad" in _attributes_below(node):
            m.forget_gradients()
        if name == "zero_grad":  # of one of many models: whose gradients are gone is not known
            m.forget_gradients()
        if name == "get" and isinstance(receiver, va.Unknown):
            entry = _looked_up(m, receiver, call)
            if entry is not None:
                return entry
        found = [t for t in m.all_tensors(arguments) if t.passes]
        if found and m.forward is not None:
            return m.attach(None, arguments, node)
        m.count("unknown_calls")
        for value in arguments:
            m.escape(value, node, name)
        return va.unknown(None, taint=m.taint(receiver, *arguments))

    # ------------------------------------------------------------------ calling objects

    def call_object(self, m: Machine, obj: va.Obj, arguments: va.Arguments, node: nd.Node) -> va.Value:
        call = Call(obj.name or obj.type_name, arguments, node)
        if obj.kind in (va.Kind.MODULE, va.Kind.ENGINE):
            return modules.forward(m, obj, call)
        if engines.HANDLER in obj.traits:
            return engines.attached(m, obj, arguments, node)
        if obj.kind is va.Kind.CRITERION:
            return losses.call_criterion(m, obj, call)
        if records.FACTORY in obj.traits:
            return records.filled(m, obj, arguments, node)
        if obj.kind is va.Kind.OPAQUE and obj.over and not obj.traits & {"functional"}:
            rest = va.Arguments(
                (*obj.arguments.positional, *arguments.positional),
                (*obj.arguments.keywords, *arguments.keywords),
            )
            return calls.call_value(m, obj.over[0], rest, node)
        if obj.kind is va.Kind.SCALER:
            return _native_scaler(m, obj, call)
        if obj.kind is va.Kind.OPAQUE:
            return _unknown_call(m, obj, call)
        for value in arguments:
            m.escape(value, node, obj.name)
        return va.unknown(None, taint=m.taint(*arguments))

    # ------------------------------------------------------------------ classes, decorators, contexts

    def instance(self, m: Machine, cls: va.Class, node: nd.Node | None) -> va.Obj:
        """An instance of a project class, before its __init__."""
        bases = cls.library_bases
        kind = va.Kind.INSTANCE
        if any(_is_module_base(b) for b in bases):
            kind = va.Kind.MODULE
        elif cls.derives("Optimizer") or any(
            b.startswith("torch.optim.") and b.rpartition(".")[2] in optimizers.KNOWN_OPTIMIZERS
            for b in bases
        ):
            kind = va.Kind.OPTIMIZER
        elif any(b.endswith("Sampler") for b in bases):
            kind = va.Kind.SAMPLER
        elif cls.derives("DataLoader"):
            kind = va.Kind.LOADER
        traits = {"iterable"} if cls.derives("IterableDataset") else set[str]()
        if cls.derives("DistributedSampler"):
            traits.add("sharding")
        obj = m.make(kind, node, "", cls=cls, name="", traits=frozenset(traits))
        if kind is va.Kind.MODULE:
            m.put_mode(obj.id, frozenset([va.Mode("new" if node is not None else "unknown")]))
            if node is not None:
                m.emit(ev.ModuleBuilt, node, module=obj, cached=any(g.kind == "none" for g in m.guards))
        elif kind is va.Kind.OPTIMIZER:
            m.owns[obj.id] = None
        return obj

    def decorate(self, m: Machine, path: str, function: va.Function) -> va.Function:
        last = path.rpartition(".")[2]
        if last in contexts.MARKS:
            return replace(function, marks=function.marks | {contexts.MARKS[last]})
        if last in contexts.GRAD_DECORATORS and path.startswith("torch"):
            context = va.Context(None, "grad", contexts.GRAD_DECORATORS[last], name=last)
            return replace(function, wraps=(*function.wraps, context))
        if path in ("torch.compiler.disable", "torch._dynamo.disable"):
            return replace(function, wraps=(*function.wraps, va.Context(None, "compiled")))
        if path in ("torch.compile", distributed.COMPILER):
            return distributed.compiled(m, function, function.node)
        if path in ("torch.jit.script", "torch.jit.ignore"):
            return replace(function, marks=function.marks | {"compiled"})
        return function

    def enter(self, m: Machine, context: va.Value, node: nd.Node) -> va.Value | None:
        if isinstance(context, va.Context):
            return va.UNKNOWN
        if isinstance(context, va.Obj) and context.kind is va.Kind.OPAQUE:
            return context
        return None

    def hook(self, m: Machine, obj: va.Obj, name: str) -> Hook | None:
        return frameworks.hook(m, obj, name)

    def hook_returned(
        self, m: Machine, hook: Hook, obj: va.Obj, function: va.Function, value: va.Value
    ) -> None:
        frameworks.hook_returned(m, hook, obj, function, value)


LIBRARY = Library()


# --------------------------------------------------------------------------- torch


def _torch(m: Machine, call: Call) -> va.Value:
    name, last = call.name, call.last
    if name.startswith("torch.nn.functional."):
        return _functional(m, call)
    if (
        name.startswith("torch.nn.")
        and last[:1].isupper()
        and not name.startswith(("torch.nn.utils.", "torch.nn.init."))
    ):
        return losses.criterion(m, call) if losses.is_loss_class(name) else modules.layer(m, call)
    if "lr_scheduler" in name or (name.startswith("torch.optim.") and last in ("SWALR",)):
        return optimizers.build_scheduler(m, call)
    if name.startswith(("torch.optim.", "torch.distributed.optim.")) and last[:1].isupper():
        if last in ("AveragedModel",):
            return modules.averaged(m, call)
        return optimizers.build(m, call)
    if name.startswith("torch.utils.data."):
        if "Sampler" in last:
            return data.sampler(m, call)
        return data.dataset(m, call)
    if name in _FORWARDING:
        return _checkpoint(m, call)
    if name.startswith("torch.distributions."):
        return _distribution(m, call)
    if last == "functional_call" and call.arguments.positional:
        target = first_known(call.arguments.positional[0])
        given = va.Arguments(call.arguments.positional[1:] or (va.UNKNOWN,))
        if isinstance(target, va.Obj):
            return modules.forward(m, target, Call(last, given, call.node), "functional")
    if last in _NO_TENSORS or name.startswith(
        (
            "torch.backends.",
            "torch.cuda.",
            "torch.random.",
            "torch.profiler.",
            "torch.multiprocessing.",
            "torch.mps.",
            "torch.utils.tensorboard",
            "torch.distributed.",
            "torch._dynamo.",
            "torch.serialization.",
            "torch.onnx.",
            "torch.nn.init.",
            "torch.set_",
        )
    ):
        m.emit(ev.ApiCall, call.node, name=name, arguments=call.arguments)
        taint = frozenset(["rank"]) if "rank" in last else frozenset[str]()
        if last[:1].isupper() and "tensorboard" in name:
            return m.make(va.Kind.OPAQUE, call.node, name, traits=frozenset(["logger"]))
        return va.unknown(None, taint=taint)
    if name.startswith("torch.hub."):
        m.emit(ev.ApiCall, call.node, name=name, arguments=call.arguments)
        return modules.pretrained(m, call)
    if last == "Generator":
        return va.unknown(None)
    if last.endswith("GradScaler"):  # that of a backend that is a package of its own: torch.npu, torch.xpu
        return optimizers.scaler(m, call)
    if last in ("Variable",):
        m.emit(ev.ApiCall, call.node, name=name, arguments=call.arguments)
        return call.first() or va.UNKNOWN
    return tensors.torch_function(m, call)


def _checkpoint(m: Machine, call: Call) -> va.Value:
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    rest = tuple(
        v
        for k, v in call.arguments.keywords
        if k not in ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug")
    )
    skip = 1 if call.last == "checkpoint" else 2
    target = call.first() or va.UNKNOWN
    given = va.Arguments((*call.arguments.positional[skip:], *rest))
    flag = call.get("use_reentrant")
    grad = m.recording()
    result = calls.call_value(m, target, given, call.node)
    if not call.arguments.open:
        m.emit(
            ev.Checkpointed,
            call.node,
            function=target,
            inputs=tuple(given),
            reentrant=truth_of(flag, True) if flag is not None else None,
            given=flag is not None,
            grad=grad,
            learns=any(t.passes for t in m.tensors(result)) and not _learns_nothing(m, target),
            names=tuple(m.given[id(value)][1] for value in given if id(value) in m.given),
        )
    return result


def _learns_nothing(m: Machine, target: va.Value) -> bool:
    known = first_known(target)
    if not isinstance(known, va.Obj) or known.kind is not va.Kind.MODULE:
        return False
    return m.is_frozen(known) or modules.parameter_free(m, known)


def _is_left_to_others(m: Machine, rate: va.Value | None, node: nd.Node) -> bool:
    """Does whoever calls this forward choose the rate, or the function itself, which may have made it 0?"""
    if rate is None:
        return False
    of_forward = (frame.function for frame in m.frames if frame.function is not None)
    running = {function.key for function in of_forward if _is_of_running(m, function)}
    if any(value is rate and key[0] in running for key, value in m.arguments.items()):
        return True
    is_zero = any(isinstance(v, va.Const) and v.value == 0 for v in va.alternatives(rate))
    written = (*node.args, *(one.value for one in node.keywords)) if isinstance(node, nd.Call) else ()
    return is_zero and any(isinstance(one, nd.Name) and m.lookup(one.id) is rate for one in written)


def _is_of_running(m: Machine, function: va.Function) -> bool:
    """Is it a method of the module whose forward runs?"""
    whole = m.forward[0].id if m.forward is not None else None
    return isinstance(function.self, va.Obj) and function.self.id == whole


def _functional(m: Machine, call: Call) -> va.Value:
    last = call.last
    if last in _DROPOUT:
        p = call.get("p", 1)
        is_off = isinstance(p, va.Const) and p.value == 0
        is_off = is_off or _is_left_to_others(m, p, call.node)
        if call.get("training", 2) is None and not call.arguments.open and not is_off:
            m.emit(ev.DropoutCall, call.node, how="functional", built=m.place(call.node))
        found = m.tensors(call.first())
        return found[0] if found else m.attach(None, call.arguments, call.node)
    if last == "scaled_dot_product_attention":
        p = call.get("dropout_p", 4)
        is_off = p is None or any(isinstance(v, va.Const) and v.value == 0 for v in va.alternatives(p))
        if not (is_off or _is_left_to_others(m, p, call.node)):
            m.emit(ev.DropoutCall, call.node, how="attention", built=m.place(call.node))
            m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    if last in ("linear", "conv1d", "conv2d", "conv3d", "bilinear"):
        out = m.attach(m.forward[1] if m.forward else None, call.arguments, call.node)
        roots, _ = optimizers.parameter_roots(m, call.get("weight", 1))
        if m.forward is None and roots and True in m.recording():
            owner = m.objects.get(min(roots))
            if owner is not None:
                pass_ = m.start_pass(owner, call.node, call.arguments, "functional")
                m.passes[pass_].modules.update(roots)
                out = m.attach(pass_, call.arguments, call.node)
        return replace(out, activation=va.Activation("linear", m.place(call.node)))
    return tensors.torch_function(m, call)


def _distribution(m: Machine, call: Call) -> va.Value:
    """A distribution over tensors carries their graphs; `log_prob` keeps them, `sample` does not."""
    found = m.all_tensors(call.arguments)
    if found:
        return replace(
            tensors.combine(m, found, call.node), activation=None, taint=frozenset([tensors.DISTRIBUTION])
        )
    return va.Tensor(None)


def _builtin(m: Machine, call: Call) -> va.Value:
    if call.last in ("any", "all", "id", "hash", "open", "vars", "callable", "issubclass", "input", "dir"):
        for tensor in m.all_tensors(call.arguments):
            if call.last in ("any", "all"):
                tensors.host_read(m, tensor, call.node, call.last, cut=False)
        return va.unknown(None, taint=m.taint(*call.arguments))
    if call.last.endswith(("Error", "Exception", "Warning")):
        return va.UNKNOWN
    return va.unknown(None, taint=m.taint(*call.arguments))


# --------------------------------------------------------------------------- third parties


def _third_party(m: Machine, call: Call, root: str) -> va.Value:
    """A function of a library that we do not know: on tensors taken for pure, on objects for anything."""
    values = tuple(call.arguments)
    last = call.last
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    found = m.all_tensors(values)
    if root in _HARMLESS:
        if last in _REPORTS:
            tensors.report(m, values, call.node, "log")
        if root == "math":
            for tensor in found:
                tensors.host_read(m, tensor, call.node, "float()")
            if last in ("ceil", "floor", "trunc"):
                return _whole(m, call)
        if root == "numpy" and found:
            for tensor in found:
                tensors.host_read(m, tensor, call.node, "numpy")
        table = (tables.converted(call) or tables.made(m, call)) if root == "numpy" else None
        if table is not None:
            return table
        if call.name.endswith("parse_args") or last in (
            "ArgumentParser",
            "Namespace",
            "compose",
            "load_config",
        ):
            return m.make(
                va.Kind.OPAQUE, None, call.name, name="args", symbol="args", traits=frozenset(["options"])
            )
        if last in ("SummaryWriter", "Run", "init", "getLogger"):
            return m.make(va.Kind.OPAQUE, call.node, call.name, traits=frozenset(["logger"]))
        if last[:1].isupper():
            traits = m.taint(*values) & frozenset(["rank", "random"])
            if root == "pathlib" and not all(isinstance(value, va.Const) for value in values):
                traits |= {va.UNREAD}
            return m.make(va.Kind.OPAQUE, call.node, call.name, traits=traits)
        parts = [i for v in values if isinstance(v, va.Obj) for i in m.items(v)] if last in _MEANS else []
        made_of = m.taint(*values, *parts) | calls.of_parameters(call.arguments)
        if root == "numpy":
            made_of |= tensors.marks_of(m, found)
        return va.unknown(None, taint=made_of | _library_taint(call.name))
    if root in ("einops",):
        out = tensors.combine(m, found, call.node) if found else va.Tensor(None)
        return replace(out, activation=None if last in ("reduce", "einsum") else out.activation)
    if root in ("torchmetrics", "torcheval", "evaluate"):
        return m.make(va.Kind.OPAQUE, call.node, call.name, traits=frozenset(["metric"]))
    if last.endswith("Loss") and last[:1].isupper():
        return m.make(va.Kind.CRITERION, call.node, call.name, arguments=call.arguments)
    for value in values:
        m.escape(value, call.node, call.name, pure=True)
    if last[:1].isupper():
        return _third_party_object(m, call)
    if found:
        return replace(tensors.combine(m, found, call.node), activation=None)
    made_of = m.taint(*values) | calls.of_parameters(call.arguments)
    return va.unknown(None, taint=made_of | _library_taint(call.name))


def _whole(m: Machine, call: Call) -> va.Value:
    """A number without its fraction: known, or by the name of what it comes from."""
    value = first_known(call.first())
    if isinstance(value, va.Const) and type(value.value) in (int, float):
        try:
            return va.Const(None, getattr(math, call.last)(value.value), value.counter)
        except (OverflowError, ValueError):
            return va.UNKNOWN
    if not isinstance(value, va.Unknown):
        return va.unknown(None, taint=m.taint(value))
    symbol = f"{call.last}({value.symbol})" if value.symbol and not value.offset else None
    return va.unknown(symbol, taint=value.taint, varies=value.varies)


def _third_party_object(m: Machine, call: Call) -> va.Value:
    owned = [r for value in call.arguments for r in [_first_module(m, value)] if r is not None]
    if call.last.endswith(("Sampler",)):
        return data.sampler(m, call)
    if call.last.endswith(
        ("Net", "Model", "Transformer", "UNet", "Conv", "Encoder", "Decoder")
    ) or "nn" in call.name.split("."):
        obj = modules.layer(m, call)
        for part in owned:
            m.adopt(part, obj)
        return obj
    if call.last.endswith("Scaler") and "nn" not in call.name:
        return m.make(va.Kind.SCALER, call.node, call.name, arguments=call.arguments)
    if _OPTIMIZER_PACKAGES.intersection(call.name.split(".")) and calls.of_parameters(call.arguments):
        return optimizers.build(m, call)
    traits = m.taint(*call.arguments) & frozenset(["rank", "random"])
    return m.make(va.Kind.OPAQUE, call.node, call.name, traits=traits, arguments=call.arguments)


def _first_module(m: Machine, value: va.Value) -> va.Obj | None:
    known = first_known(value)
    return known if isinstance(known, va.Obj) and known.kind is va.Kind.MODULE else None


def _library_taint(name: str) -> frozenset[str]:
    if name.startswith(("random.", "numpy.random.")):
        return frozenset(["random"])
    if name.startswith(("time.", "datetime.")):
        return frozenset(["time"])
    return frozenset(["downloaded"]) if name.rpartition(".")[2] in _DOWNLOADS else frozenset()


# --------------------------------------------------------------------------- methods of objects


def _object_method(m: Machine, obj: va.Obj, call: Call) -> va.Value:
    meaning = METHODS.get((obj.kind, call.name))
    if meaning is not None:
        result = meaning(m, obj, call)
        if result is not None:
            return result
    if call.name == "get" and obj.cls is None and obj.kind in (va.Kind.OPAQUE, va.Kind.MODULE):
        entry = _looked_up(m, obj, call)
        if entry is not None:
            return entry
    passes_through = "compile" in obj.traits or obj.kind is va.Kind.ENGINE or call.name == "generate"
    if "wrapper" in obj.traits and obj.over and passes_through and call.name not in ("train", "eval"):
        return calls.call_method(m, obj.over[0], call.name, call.arguments, call.node)
    if obj.kind is va.Kind.MODULE:
        result = modules.other_method(m, obj, call)
        if result is not None:
            return result
    other = FALLBACKS.get(obj.kind)
    if other is not None:
        result = other(m, obj, call)
        if result is not None:
            return result
    return _any_method(m, obj, call)


_DATA_METHODS = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "float",
        "half",
        "long",
        "int",
        "view",
        "reshape",
        "squeeze",
        "unsqueeze",
        "flatten",
        "double",
        "data",
        "pin_memory",
        "type",
        "contiguous",
        "transpose",
        "permute",
        "bool",
        "expand",
        "repeat",
        "T",
        "t",
        "bfloat16",
        "detach",
        "type_as",
        "numpy",
        "byte",
    ]
)
_RESHAPING = frozenset(
    ["view", "reshape", "squeeze", "unsqueeze", "flatten", "transpose", "permute", "expand", "repeat", "t"]
)
_LOGGING = (
    "log",
    "add_",
    "update",
    "append",
    "write",
    "info",
    "debug",
    "record",
    "put",
    "print",
    "set_",
    "warning",
)


def _any_method(m: Machine, obj: va.Obj, call: Call) -> va.Value:
    """A method of a thing that we know nothing about."""
    name, node = call.name, call.node
    if obj.kind is va.Kind.OPAQUE:
        found = _data_method(m, obj, call)
        if found is not None:
            return found
    if name == "backward":
        m.backward(call.first() if call.first() is not None else obj, node)
        if call.first() is not None and obj.kind is va.Kind.OPAQUE and obj.place is not None:
            m.forget_gradients()
        return va.NONE
    if obj.kind is va.Kind.LOADER or obj.kind is va.Kind.DATASET:
        return m.child(obj, f"{name}()")
    tensors_in = [t for t in m.all_tensors(call.arguments) if t.passes]
    if "logger" in obj.traits or "metric" in obj.traits:
        if "metric" not in obj.traits:
            tensors.report(m, call.arguments, node, "log")
        elif obj.type_name.startswith("evaluate."):
            return _evaluate(m, obj, call)
        for tensor in m.all_tensors(call.arguments):
            tensors.host_read(m, tensor, node, f"{name}()", cut=False)
        return va.UNKNOWN
    own_call = name == "set_epoch"
    if not own_call:
        m.count("unknown_calls")
        for value in call.arguments:
            m.escape(value, node, f"{obj.name}.{name}")
    if (
        obj.kind is va.Kind.OPAQUE
        and name in modules.FORWARD_METHODS
        and (tensors_in or not _on_data(m, obj))
    ):
        return _believed_forward(m, obj, call)
    if tensors_in and not name.startswith((*_LOGGING, *modules.UPDATING)):
        return m.attach(m.forward[1] if m.forward else None, call.arguments, node)
    if name.startswith(modules.UPDATING) and obj.kind in (va.Kind.OPAQUE, va.Kind.TRAINER):
        m.raise_version(obj)
    return va.unknown(None, taint=m.taint(obj, *call.arguments))


def _evaluate(m: Machine, obj: va.Obj, call: Call) -> va.Value:
    """A metric of `evaluate`: what it is given in this process alone decides what it computes."""
    found = [t for t in m.all_tensors(call.arguments) if "gathered" not in t.taint]
    shards = frozenset(s for t in found for s in tensors.shards(m, t))
    known = cast("frozenset[str]", m.state.get(("shards", obj.id), frozenset[str]()))
    m.state.set(("shards", obj.id), known | shards)
    for tensor in found:
        tensors.host_read(m, tensor, call.node, f"{call.name}()", cut=False)
    return va.unknown(None, taint=known | shards) if call.name == "compute" else va.UNKNOWN


def _on_data(m: Machine, obj: va.Obj) -> bool:
    return m.is_data(obj.id)


def _believed_forward(m: Machine, obj: va.Obj, call: Call) -> va.Value:
    """By convention a module or a loss."""
    grad = NOT_RECORDING if call.name in modules.GUARDED_METHODS else None
    pass_ = m.start_pass(obj, call.node, call.arguments, "method", belief=True, grad=grad)
    return m.attach(pass_, call.arguments, call.node)


def _device_of(call: Call) -> str | None:
    """Where `to` or `cuda` moves data: "cuda", "cpu" or how an unknown device is written; None for a type."""
    if call.name == "cuda":
        return "cuda"
    target = call.get("device") or call.first()
    if call.name != "to" or target is None:
        return None
    names = [v.value for v in va.alternatives(target) if isinstance(v, va.Const) and isinstance(v.value, str)]
    if names:
        return next((n for n in names if n != "cpu"), "cpu").partition(":")[0]
    known = first_known(target)
    return (known.symbol or "device") if isinstance(known, (va.Unknown, va.Obj)) else None


def _data_method(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    name = call.name
    shape = samples.of_batch(m, obj) if name in _RESHAPING else None
    if shape is not None:
        rows = va.Tensor(obj.evidence, sources=m.sources_of((obj,)), shape=shape)
        return tensors.call_method(m, rows, call)
    if name in _DATA_METHODS:
        device = _device_of(call)
        if device is not None:
            m.emit(ev.Transfer, call.node, value=obj, device=device, how=name, made=obj.place)
        return obj
    if name in ("requires_grad_", "clone"):
        taint = frozenset[str]()
        if name == "requires_grad_":
            given, taint = call.arguments, frozenset([va.LEAF])
            m.emit(ev.ApiCall, call.node, name="torch.Tensor.requires_grad=", arguments=given, receiver=obj)
        return va.Tensor(obj.evidence, sources=m.sources_of((obj,)), taint=taint)
    if (
        name in ("chunk", "split", "unbind")
        and "options" not in obj.traits
        and not isinstance(first_known(call.first() or va.NONE), va.Const | type(None))
    ):
        return tensors.split_data(m, obj, call.node)
    if name in ("chunk", "split", "unbind", "tensor_split"):
        return tensors.split_data(m, obj, call.node)
    if name in ("size", "dim", "numel", "item", "tolist", "get_world_size", "nelement"):
        ranked = frozenset(["rank"]) if name == "get_world_size" else frozenset[str]()
        taint = ranked | (tensors.size_taint(call) if "options" not in obj.traits else frozenset[str]())
        return va.unknown(
            f"{obj.symbol}.{name}()" if obj.symbol else None, taint=taint, varies=_on_data(m, obj)
        )
    if name == "items":
        pair = m.sequence((va.unknown(None), m.child(obj, "[]")), None, va.Kind.TUPLE)
        out = m.sequence((pair,), None)
        m.state.set(("open", out.id), True)
        return out
    if name in ("values",):
        out = m.sequence((m.child(obj, "[]"),), None)
        m.state.set(("open", out.id), True)
        return out
    if name in ("get",) and "options" in obj.traits:
        key = first_known(call.first() or va.UNKNOWN)
        return va.unknown(f"{obj.symbol}[{key.value!r}]" if isinstance(key, va.Const) else None)
    if name == "parse_args" or name == "parse_known_args":
        options = m.make(
            va.Kind.OPAQUE,
            None,
            "argparse.Namespace",
            name="args",
            symbol="args",
            traits=frozenset(["options"]),
        )
        return (
            options if name == "parse_args" else m.sequence((options, va.UNKNOWN), call.node, va.Kind.TUPLE)
        )
    if name == "load_state_dict":
        return va.UNKNOWN
    return None


def _looked_up(m: Machine, receiver: va.Value, call: Call) -> va.Value | None:
    """`things.get("name")` is the thing that `things["name"]` is."""
    key, default = first_known(call.first() or va.UNKNOWN), first_known(call.get("default", 1) or va.NONE)
    if not isinstance(key, va.Const) or not isinstance(key.value, str):
        return None
    if not isinstance(default, va.Const) or default.value is not None:
        return None
    return expressions.get_item(m, receiver, key, call.node)


def _unknown_call(m: Machine, obj: va.Obj, call: Call) -> va.Value:
    """An unknown callable: by convention a module or a loss when it gets data."""
    values = tuple(call.arguments)
    if not values:
        return m.child(obj, "()")
    found = m.all_tensors(values)
    holders = [
        v
        for value in values
        for v in va.alternatives(value)
        if isinstance(v, (va.Parameters, va.StateDict))
        or (isinstance(v, va.Obj) and v.kind in (va.Kind.MODULE, va.Kind.OPTIMIZER, va.Kind.SCHEDULER))
    ]
    if holders or not found:
        for value in values:
            m.escape(value, call.node, obj.name or "an unknown callable")
    if holders:
        return va.unknown(None, taint=frozenset(["call"]) | calls.of_parameters(call.arguments))
    if "metric" in obj.traits:
        return va.UNKNOWN
    if found or obj.id not in m.parents or _is_layer_of_callback(m, obj, values):
        return _believed_forward(m, obj, call)
    return va.unknown(None, taint=m.taint(*values))


def _is_layer_of_callback(m: Machine, obj: va.Obj, values: tuple[va.Value, ...]) -> bool:
    """`pl_module.backbone(x)` of data, in a callback of Lightning's"""
    whole = m.objects.get(m.parents.get(obj.id, -1))
    is_given = whole is not None and whole.type_name == unknowns.LIGHTNING_MODULE
    return is_given and bool(m.sources_of(values))


def _unknown_backward(m: Machine, receiver: va.Value, call: Call) -> va.Value:
    target: va.Value = receiver
    first = call.first()
    if first is not None and m.tensors(first):
        target = first
    m.backward(target, call.node, truth_of(call.get("retain_graph"), False) is not False)
    if call.arguments.positional and target is receiver:
        m.forget_gradients()
    return va.NONE


def _attributes_below(node: nd.Node) -> set[str]:
    """The attributes that a method was taken off."""
    found: set[str] = set()
    while isinstance(node, (nd.Call, nd.Attribute)):
        if isinstance(node, nd.Attribute):
            found.add(node.attr)
        node = node.func if isinstance(node, nd.Call) else node.value
    return found


def _native_scaler(m: Machine, obj: va.Obj, call: Call) -> va.Value:
    """timm's and MAE's scaler object: one call does backward, unscaling, clipping, step and update."""
    m.backward(call.first(), call.node, how="scaler", owner=obj)
    optimizer = first_known(call.get("optimizer", 1) or va.UNKNOWN)
    update = truth_of(call.get("update_grad"), True)
    if isinstance(optimizer, va.Obj) and optimizer.kind is va.Kind.OPTIMIZER and update is not False:
        if update is None:
            m.fork([lambda: m.step(optimizer, call.node, "scaler", obj), lambda: None], lambda a, _: a)
        else:
            m.step(optimizer, call.node, "scaler", obj)
    return va.UNKNOWN


# --------------------------------------------------------------------------- parameters, states, constants


# Attributes with which a layer of torch.nn answers what it was made with, and the argument's position.
_MADE_WITH = {"p": 0, "in_features": 0, "out_features": 1, "in_channels": 0, "out_channels": 1}


def _layer_attribute(m: Machine, layer: va.Obj, name: str) -> va.Value | None:
    """An entry of a ModuleDict, or a number that a layer was made with."""
    if name in m.entries(layer):
        return m.entries(layer)[name]
    if name not in _MADE_WITH or layer.cls is not None or not layer.type_name.startswith("torch.nn."):
        return None
    value = layer.arguments.get(name, _MADE_WITH[name])
    return value if isinstance(value, va.Const) else None


def _parameters_attribute(value: va.Parameters, name: str) -> va.Value:
    if name == "grad":
        return replace(value, gradients=True)
    if name == "data":
        return value
    if name in ("requires_grad", "shape", "dtype", "device", "ndim", "is_leaf"):
        return va.unknown(None, taint=frozenset([name]), varies=True)
    return va.Method(value.evidence, value, name)


def _set_parameter_attribute(
    m: Machine, roots: frozenset[int], filtered: bool, name: str, value: va.Value, node: nd.Node
) -> None:
    if name == "grad":
        if isinstance(value, va.Const) and value.value is None:
            m.clear_module(node, roots, "grad = None")
        else:
            _taint_gradients(m, roots)
    elif name == "requires_grad":
        partial = filtered or (
            bool(m.guards) and any(t.iteration >= 0 for t in m.loops[-1:]) and _guarded_in_loop(m)
        )
        modules.set_requires_grad(m, roots, truth_of(first_known(value), True), node, partial)
    elif name == "data":
        for root in sorted(roots):
            known = m.objects.get(root)
            if known is not None:
                m.raise_version(known)


def _guarded_in_loop(m: Machine) -> bool:
    """Does a test inside the innermost loop choose among the parameters?"""
    loop = m.loops[-1].loop.place  # its head
    return any(g.place.path == loop.path and g.place.span.line > loop.span.line for g in m.guards)


def _taint_gradients(m: Machine, roots: frozenset[int]) -> None:
    for optimizer in m.reached_optimizers(roots):
        m.state.set(
            ("grad", optimizer.id),
            frozenset(replace(a, divided=True, replaced=True) for a in m.gradients(optimizer)),
        )


def _parameters_method(m: Machine, value: va.Parameters, call: Call) -> va.Value:
    if value.gradients:
        return gradients.method(m, value, call)
    name = call.name
    if name == "requires_grad_":
        partial = value.filtered or (bool(m.loops) and _guarded_in_loop(m))
        flag = call.get("requires_grad", 0)
        if not modules.is_restored(m, flag):
            modules.set_requires_grad(m, value.roots, truth_of(flag, True), call.node, partial)
        return value
    if name in ("copy_", "add_", "sub_", "mul_", "lerp_", "normal_", "uniform_", "zero_", "fill_", "data"):
        for root in sorted(value.roots):
            known = m.objects.get(root)
            if known is not None:
                m.raise_version(known)
        return value
    if name in ("numel", "size", "dim", "element_size", "nelement", "item"):
        return va.UNKNOWN
    if name in ("detach", "clone", "cpu", "to", "float", "data", "view", "flatten", "cuda"):
        return value if name in ("to", "cuda", "float", "cpu") else va.Tensor(None)
    if name in ("norm", "sum", "pow", "abs", "mean", "square", "exp", "t", "softmax", "sigmoid"):
        return _of_parameters(m, value, call)
    return value


def _of_parameters(m: Machine, value: va.Parameters, call: Call) -> va.Tensor:
    """A penalty computed from weights: its graph reaches them."""
    if True not in m.recording():
        return va.Tensor(None)
    if m.forward is not None:
        return m.attach(m.forward[1], (), call.node)
    owner = m.objects.get(min(value.roots)) if value.roots else None
    if owner is None:
        return va.Tensor(None)
    pass_ = m.start_pass(owner, call.node, va.NO_ARGUMENTS, "functional")
    m.passes[pass_].modules.update(value.roots)
    return m.attach(pass_, (), call.node)


def _state_method(m: Machine, value: va.StateDict, call: Call) -> va.Value:
    if call.name in ("copy", "items", "values", "detach"):
        return value
    if call.name == "keys":
        return va.UNKNOWN
    return va.UNKNOWN


def _constant_method(m: Machine, value: va.Const, call: Call) -> va.Value:
    if isinstance(value.value, str):
        texts = [a.value for a in call.arguments.positional if isinstance(a, va.Const)]
        if call.name in ("startswith", "endswith") and len(texts) == 1 and isinstance(texts[0], str):
            return va.Const(None, getattr(value.value, call.name)(texts[0]))
        if call.name in ("lower", "upper", "strip") and not call.arguments.positional:
            return va.Const(None, getattr(value.value, call.name)())
    return va.unknown(None, taint=m.taint(*call.arguments))


def _param_groups(m: Machine, optimizer: va.Obj) -> va.Value:
    owned = m.owns.get(optimizer.id) or frozenset[int]()
    group = m.mapping(
        {"params": va.Parameters(None, owned or frozenset([optimizer.id]))},
        None,
        traits=frozenset(["unseen"]),
    )
    out = m.sequence((group,), None)
    m.state.set(("open", out.id), True)
    return out


def _is_module_base(name: str) -> bool:
    last = name.rpartition(".")[2]
    if last in ("Module", "LightningModule", "PreTrainedModel", "FlaxModule"):
        return True
    if name.startswith("torch.nn.") and last[:1].isupper():
        return True
    return name.startswith("transformers.") and last.endswith(
        ("Model", "PreTrainedModel", "ForCausalLM", "ForSequenceClassification")
    )
