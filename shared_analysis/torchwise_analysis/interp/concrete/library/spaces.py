"""Which name space stands for which library module, and the classes of what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torchwise_analysis.interp.concrete.library import (
    configs,
    data,
    diffusers_models,
    files,
    gymnasium,
    huggingface,
    images,
    launchers,
    numbers,
    recipes,
    timm_models,
    torchspace,
    training,
    typed_options,
    vision,
    vision_models,
)
from torchwise_analysis.interp.concrete.library.stdlib import standard_modules
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    Keywords,
    Namespace,
    Opaque,
    Unknown,
    Value,
)
from torchwise_memory.classes import CLASS_FUNCTIONS, CLASSES
from torchwise_memory.library import FUNCTIONS
from torchwise_memory.operators.registry import Function as NativeFunction
from torchwise_memory.runtime.device import Device
from torchwise_memory.runtime.dtypes import DType
from torchwise_memory.runtime.tensor import Parameter, Size, Tensor

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# Roots of which every name below is resolved by the tables of the runtime.
_TABLE_ROOTS = ("torch", "bitsandbytes", "apex", "lion_pytorch")
# Packages of which only optimizers are known; their other names are unknown and not missing.
_OPTIMIZER_ROOTS = (
    "torchao",
    "galore_torch",
    "schedulefree",
    "prodigyopt",
    "dadaptation",
    "adan_pytorch",
    "madgrad",
    "torch_optimizer",
)
# Modules that a replacement text stands for as a whole.
_REPLACED = frozenset(
    {
        "einops",
        "einops.layers.torch",
        "flash_attn",
        "flash_attn.flash_attn_interface",
        "flash_attn.losses.cross_entropy",
        "xformers.ops",
        "xformers.ops.fmha.attn_bias",
        "liger_kernel.transformers",
        "liger_kernel.ops.cross_entropy",
        "apex.normalization",
        "torch_ema",
        "ema_pytorch",
        "torchao.float8",
    }
)
_PREFIXES = frozenset(
    prefix
    for name in (*FUNCTIONS, *CLASSES, *CLASS_FUNCTIONS)
    for prefix in (name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1))
)


class Spaces:
    """The name spaces of one run, made when first asked for."""

    def __init__(self, it: Interpreter) -> None:
        self.it = it
        self.made: dict[str, Value] = {}
        self._standard: dict[str, Namespace] | None = None
        self._torch: dict[str, Value] | None = None
        self._results: dict[tuple[str, ...], Class] = {}
        # further libraries put themselves here: module name -> maker
        self.makers: dict[str, Callable[[Interpreter], Value]] = {
            "torch.utils.data": data.data_module,
            "numpy": numbers.numpy_module,
            "tqdm": data.tqdm_module,
            "tqdm.auto": data.tqdm_module,
            "transformers": lambda it: Namespace("transformers", resolve=it.library.transformers.top_level),
            "transformers.modeling_outputs": huggingface.outputs_space,
            **dict.fromkeys(
                (
                    "transformers.models.auto",
                    *(f"transformers.models.auto.{part}_auto" for part in ("modeling", "configuration")),
                ),
                lambda it: Namespace("transformers.models.auto", resolve=it.library.transformers.top_level),
            ),
            "diffusers": diffusers_models.package,
            "timm": timm_models.package,
            "timm.models": timm_models.package,
            "torchvision": vision_models.package,
            "torchvision.models": vision_models.models_module,
            **{f"torchvision.models.{file}": vision_models.models_module for file in vision_models.FILES},
            "torchvision.transforms": vision.transforms_module,
            "torchvision.transforms.v2": vision.transforms_module,
            "torchvision.transforms.functional": vision.functional_module,
            "torchvision.transforms.v2.functional": vision.functional_module,
            "torchvision.datasets": vision.datasets_module,
            "torchvision.datasets.folder": vision.datasets_module,
            "yaml": configs.yaml_module,
            "json": configs.json_module,
            **dict.fromkeys(("toml", "tomllib", "tomli"), configs.toml_module),
            "omegaconf": configs.omegaconf_module,
            "hydra": configs.hydra_module,
            "hydra.utils": lambda it: configs.hydra_module(it).members["utils"],
            "yacs.config": configs.yacs_module,
            **dict.fromkeys(
                ("torchdata.stateful_dataloader", "torchdata.stateful_dataloader.stateful_dataloader"),
                lambda it: Namespace(
                    "torchdata", {"StatefulDataLoader": configs.target(it, "torch.utils.data.DataLoader")}
                ),
            ),
            "torchtune.config": recipes.torchtune_config,
            **dict.fromkeys(("mmengine.config", "mmcv", "mmcv.utils"), recipes.mmengine_config),
            "mmengine": recipes.mmengine_config,
            "ml_collections": recipes.ml_collections_module,
            "ml_collections.config_flags": recipes.config_flags_module,
            "ml_collections.config_dict": recipes.ml_collections_module,
            "fsspec": files.fsspec_module,
            **dict.fromkeys(("easydict", "addict", "box", "munch"), configs.easydict_module),
            **dict.fromkeys(("gymnasium", "gym"), gymnasium.gymnasium_module),
            "tyro": typed_options.tyro_module,
            "jsonargparse": typed_options.jsonargparse_module,
            "simple_parsing": typed_options.simple_parsing_module,
            "absl.flags": typed_options.absl_flags_module,
            "absl.app": typed_options.absl_app_module,
            "absl": typed_options.absl_module,
            "fire": launchers.fire_module,
            "typer": launchers.typer_module,
            "click": launchers.click_module,
            "multiprocessing": lambda it: Namespace("multiprocessing", launchers.multiprocessing_members("")),
            "scipy.optimize": numbers.scipy_optimize,
            "cv2": images.opencv_module,
            "PIL": images.pillow,
            "PIL.Image": images.image_module,
        }

    def module(self, name: str) -> Value:
        """The name space for the module `name`; None if no table stands for it."""
        if name in self.made:
            return self.made[name]
        made = self._make(name)
        if made is not None:
            self.made[name] = made
        return made

    def _make(self, name: str) -> Value:
        if name in self.makers:
            return self.makers[name](self.it)
        if name == "peft":
            # its adapters are modelled, whether or not the package can be read
            scope = self.it.library.imports.replacement(name)
            return None if scope is None else scope.module
        if name.partition(".")[0] in training.ROOTS:
            return training.training_space(self.it, name)
        if name in _REPLACED:
            scope = self.it.library.imports.replacement(name)
            return None if scope is None else scope.module
        if name == "timm.utils" and self.it.project.find(name, "") is None:
            return Namespace(name, resolve=self._timm_utility)
        if name.startswith(training.DISTRIBUTIONS) and name.count(".") < 3:
            return training.distributions_space(self.it, name)
        if name in training.TRAINER_MODULES:
            return training.trainer_space(self.it, name)
        if name in huggingface.DECORATOR_MODULES:
            return huggingface.decorator_space(self.it, name, self.it.library.imports.replacement(name))
        root = name.partition(".")[0]
        if root in _TABLE_ROOTS:
            if name != root and name not in _PREFIXES and not self._has_own(name):
                return None
            return Namespace(name, resolve=lambda member: self._torch_member(name, member))
        if root in _OPTIMIZER_ROOTS and (name == root or name in _PREFIXES):
            return Namespace(name, resolve=lambda member: self._optimizer(name, member))
        return self.standard.get(name)

    def _optimizer(self, owner: str, name: str) -> Value:
        found = self._torch_member(owner, name)
        return Unknown(f"{owner}.{name}", self.it.origin()) if found is MISSING else found

    def _timm_utility(self, name: str) -> Value:
        """Averages of weights hold memory; other helpers are not known without the library's text."""
        scope = self.it.library.imports.replacement("timm.utils")
        found = MISSING if scope is None else scope.lookup(name)
        return Unknown(f"timm.utils.{name}", self.it.origin()) if found is MISSING else found

    @property
    def standard(self) -> dict[str, Namespace]:
        if self._standard is None:
            self._standard = standard_modules(self.it)
        return self._standard

    @property
    def torch(self) -> dict[str, Value]:
        if self._torch is None:
            self._torch = torchspace.torch_members(self.it)
        return self._torch

    def _has_own(self, name: str) -> bool:
        return any(key.startswith(name + ".") for key in self.torch) or name in self.makers

    def _torch_member(self, owner: str, name: str) -> Value:
        qualified = f"{owner}.{name}"
        if qualified in self.torch:
            return self.torch[qualified]
        value = self.it.library.qualified(qualified)
        if value is not MISSING:
            return value
        if qualified in CLASS_FUNCTIONS:
            return self._class_function(CLASS_FUNCTIONS[qualified])
        space = self.module(qualified)
        return MISSING if space is None else space

    def _class_function(self, function: NativeFunction) -> Builtin:
        shards = function.name.endswith(".fully_shard")

        def call(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            if shards:
                training.processes(it, None, "FSDP shards")
            return it.library.invoke(function, args, keywords)

        return Builtin(function.name, call)

    # -- classes of runtime values

    def class_of(self, value: Value) -> Class:
        name = ""
        if isinstance(value, Parameter):
            name = "torch.nn.parameter.Parameter"
        elif isinstance(value, Tensor):
            name = "torch.Tensor"
        elif isinstance(value, DType):
            name = "torch.dtype"
        elif isinstance(value, Device):
            name = "torch.device"
        elif isinstance(value, Size):
            name = "torch.Size"
        found = self.torch.get(name)
        return found if isinstance(found, Class) else self.it.types.named(type(value).__name__)

    def result_class(self, names: tuple[str, ...]) -> Class:
        """The class of a named tuple of the library, such as what `torch.max` returns."""
        if names not in self._results:
            tuple_type = self.it.types.by_name["tuple"]
            cls = Class("return_type", (tuple_type,), module="torch")
            cls.mro = (cls, *tuple_type.mro)
            cls.traits["namedtuple"] = names
            self._results[names] = cls
        return self._results[names]

    def tensor_extra(self, tensor: Tensor, name: str) -> Value:
        if name == "register_hook":
            return Builtin(
                name, lambda it, a, k: Opaque("handle", {"remove": Builtin("remove", torchspace.nothing)})
            )
        if name in ("names", "layout", "is_sparse", "is_quantized"):
            return {"names": None, "layout": "torch.strided"}.get(name, False)
        if name == "astype":
            return numbers.astype(tensor)
        return MISSING

    def object_attribute(self, owner: Value, name: str) -> Value:
        """Attributes of devices and types."""
        if isinstance(owner, Device) and name in ("type", "index"):
            return owner.type if name == "type" else owner.index
        if isinstance(owner, DType) and name in ("is_floating_point", "is_complex", "is_signed", "itemsize"):
            return getattr(owner, name)
        return MISSING

    def class_member(self, owner: Class, name: str) -> Value:
        return MISSING

    def close(self) -> None:
        self.made.clear()
        self._standard = None
        self._torch = None
