"""transformers: model files of the installed package interpreted, families where it is not there.

Auto classes and the package's lazy top level are resolved here; what surrounds the model files comes from
`replacements`.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false
# A value of the program is an `object`; narrowed to a container, its items are unknown to the type checker.

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from torchwise_analysis.files import read_regular
from torchwise_analysis.interp.concrete import text
from torchwise_analysis.interp.concrete.classes import make_dataclass
from torchwise_analysis.interp.concrete.errors import Stopped
from torchwise_analysis.interp.concrete.library import files, training
from torchwise_analysis.interp.concrete.library.autos import AutoTables
from torchwise_analysis.interp.concrete.library.imports import LazyScope
from torchwise_analysis.interp.concrete.values import (
    MISSING,
    Builtin,
    Class,
    ClassMethod,
    Function,
    Instance,
    Keywords,
    ModuleValue,
    Namespace,
    Opaque,
    Property,
    StaticMethod,
    Unknown,
    Value,
)
from torchwise_memory import families, presets
from torchwise_memory.families.base import Config, DynamicCache, PreTrainedModel
from torchwise_memory.families.packed import pack
from torchwise_memory.families.projections import Quantised
from torchwise_memory.modules.base import Module
from torchwise_memory.presets import pipelines
from torchwise_memory.runtime.dtypes import DTYPES, DType, float16, float32
from torchwise_memory.runtime.tensor import Tensor

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

Call: TypeAlias = "Callable[[Interpreter, list[Value], Keywords], Value]"

# Modules of which every name without a replacement is a decorator that changes nothing, a question
# about the environment that is answered with no, or a logger.
DECORATOR_MODULES = frozenset(
    {
        "transformers.utils",
        "transformers.utils.deprecation",
        "transformers.utils.output_capturing",
        "transformers.utils.import_utils",
        "transformers.utils.doc",
        "transformers.utils.auto_docstring",
        "transformers.utils.logging",
        "transformers.integrations",
        "transformers.integrations.hub_kernels",
        "transformers.processing_utils",
        "transformers.initialization",
        "transformers.modeling_flash_attention_utils",
        "huggingface_hub",
        "huggingface_hub.dataclasses",
        "diffusers.utils",
        "diffusers.utils.import_utils",
        "diffusers.utils.logging",
        "diffusers.utils.accelerate_utils",
    }
)

# Fields of `config.json` that say how a checkpoint was stored, not what it is.
# Options of loading that say how weights are packed.
_PACKING = ("quantization_config", "load_in_4bit", "load_in_8bit")
_NO_FIELDS = ("architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "auto_map")
_MAX_CONFIG_BYTES = 1 << 20
# Model types whose published checkpoints hold float32.
_STORED_IN_FLOAT = frozenset(
    {
        "gpt2",
        "bert",
        "roberta",
        "distilbert",
        "albert",
        "electra",
        "vit",
        "deit",
        "t5",
        "bart",
        "clip",
        "clip_text_model",
        "xlm-roberta",
        "mpnet",
        "camembert",
        "whisper",
        "wav2vec2",
        "hubert",
        "wavlm",
        "audio-spectrogram-transformer",
        "beit",
        "convnext",
        "convnextv2",
        "detr",
        "dinov2",
        "resnet",
        "segformer",
        "siglip",
        "swin",
        "swinv2",
        "videomae",
    }
)

_STARTED = frozenset(
    {"t5", "mt5", "umt5", "longt5", "bart", "mbart", "marian", "pegasus", "blenderbot", "led"}
)

# Questions about the environment that are answered with yes.
_PRESENT = frozenset(
    {
        "is_torch_available",
        "is_transformers_available",
        "is_torchvision_available",
        "is_torch_flex_attn_available",
        "is_torch_greater_or_equal",
    }
)

# How the class of each auto class ends, in the order in which endings are tried.
_ENDINGS: dict[str, tuple[str, ...]] = {
    "AutoModel": ("Model",),
    "AutoModelForCausalLM": ("ForCausalLM", "LMHeadModel"),
    "AutoModelForMaskedLM": ("ForMaskedLM", "WithLMHeadModel"),
    "AutoModelForSeq2SeqLM": ("ForConditionalGeneration", "MTModel"),
    "AutoModelForSpeechSeq2Seq": ("ForConditionalGeneration",),
    "AutoModelForSequenceClassification": ("ForSequenceClassification",),
    "AutoModelForTokenClassification": ("ForTokenClassification",),
    "AutoModelForQuestionAnswering": ("ForQuestionAnswering",),
    "AutoModelForMultipleChoice": ("ForMultipleChoice",),
    "AutoModelForImageClassification": ("ForImageClassification",),
    "AutoModelForPreTraining": ("ForPreTraining",),
    "AutoModelForAudioClassification": ("ForSequenceClassification",),
    "AutoModelForCTC": ("ForCTC",),
}


class Transformers:
    """The package as one run sees it."""

    def __init__(self, it: Interpreter) -> None:
        self.it = it
        self._folders: list[str] | None = None
        self.tables = AutoTables(it.project)
        self._facts: dict[str, Keywords] = {}
        # configurations of checkpoints, held, with the checkpoint's name
        self.names: dict[int, tuple[Value, str]] = {}

    @property
    def is_readable(self) -> bool:
        return bool(self.folders)

    @property
    def folders(self) -> list[str]:
        """Names of the folders below `transformers/models`."""
        if self._folders is None:
            source = self.it.project.find("transformers.models", "")
            self._folders = [] if source is None else _listed(os.path.dirname(source.path))
        return self._folders

    def top_level(self, name: str) -> Value:
        """`transformers.<name>`."""
        if name == "AutoConfig":
            return self._auto_config()
        if name in _ENDINGS or (name.startswith("Auto") and name in self.tables.autos()):
            return self._auto_model(name)
        if name == "CONFIG_MAPPING":
            return self._config_mapping()
        trained = training.trainer_name(self.it, name)
        if trained is not MISSING:
            return trained
        native = self.it.library.qualified(f"transformers.{name}")
        if native is not MISSING:
            return native
        if name in ("DynamicCache", "Cache", "StaticCache", "EncoderDecoderCache") and self.is_readable:
            return self._from_module("transformers.cache_utils", name)
        if name in ("PreTrainedModel", "PretrainedConfig", "PreTrainedConfig") and self.is_readable:
            module = "modeling_utils" if name == "PreTrainedModel" else "configuration_utils"
            return self._from_module(f"transformers.{module}", name)
        if self.is_readable:
            return self._model_name(name)
        return self._family_name(name)

    def _from_module(self, module: str, name: str) -> Value:
        found = self.it.library.imports.find(module, "")
        return MISSING if isinstance(found, Unknown) else self.it.find_attribute(found, name)

    def _model_name(self, name: str) -> Value:
        lowered = name.lower()
        fitting = [f for f in self.folders if lowered.startswith(f.replace("_", ""))]
        for folder in sorted(fitting, key=lambda f: -len(f)):
            part = "configuration" if name.endswith("Config") else "modeling"
            value = self._from_module(f"transformers.models.{folder}.{part}_{folder}", name)
            if value is not MISSING:
                return value
        return MISSING

    def package_name(self, package: str, name: str) -> Value:
        """`transformers.models.<folder>.<name>`: packages load their files when a name is asked for."""
        folder = package.rpartition(".")[2]
        if name.endswith(("Tokenizer", "TokenizerFast")):
            return training.trainer_name(self.it, name)
        for part in ("configuration", "modeling"):
            value = self._from_module(f"{package}.{part}_{folder}", name)
            if value is not MISSING:
                return value
        return MISSING

    # -- configurations

    def _auto_config(self) -> Value:
        def for_model(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            name = text.text_of(it, args.pop(0) if args else keywords.pop("model_type"))
            return self.config(name, keywords)

        def from_pretrained(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            name = args[0] if args else keywords.pop("pretrained_model_name_or_path")
            folder = keywords.pop("subfolder", None)
            return self.preset(name, _fields_only(keywords), folder)

        return Opaque(
            "AutoConfig",
            {
                "for_model": Builtin("for_model", for_model),
                "from_pretrained": Builtin("from_pretrained", from_pretrained),
            },
        )

    def config(self, model_type: str, changes: Keywords) -> Value:
        """The default configuration of a model type with some fields changed."""
        if self.is_readable:
            cls = self._config_class(model_type)
            if cls is not None:
                return self.it.call(cls, [], dict(changes))
        if model_type in families.FAMILIES:
            given = {k: self.it.library.argument(v, k) for k, v in changes.items()}
            return families.FAMILIES[model_type].config(**given)
        raise Stopped(f"the source of transformers' {model_type} cannot be read", self.it.origin())

    def _config_mapping(self) -> Value:
        """`CONFIG_MAPPING`: classes by model type."""

        def get(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            found = self._config_class(text.text_of(it, args[0]))
            if found is None:
                raise it.error("KeyError", args[0])
            return found

        def has(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            return isinstance(args[0], str) and self._config_class(args[0]) is not None

        members: dict[str, Value] = {"__getitem__": Builtin("get", get), "__contains__": Builtin("has", has)}
        return Opaque("CONFIG_MAPPING", members)

    def _config_class(self, model_type: str) -> Class | None:
        stated = self.tables.config_class(model_type)
        if stated is not None:
            value = self._from_module(*stated)
            if isinstance(value, Class):
                return value
        folder = model_type.replace("-", "_")
        wanted = folder.replace("_", "") + "config"
        for name in dict.fromkeys((folder, folder.removesuffix("_text"))):
            module = self.it.library.imports.find(f"transformers.models.{name}.configuration_{name}", "")
            if not isinstance(module, ModuleValue):
                continue
            for bound in self.it.library.imports.scope_of(module).binders:
                if bound.lower() == wanted:
                    value = self.it.find_attribute(module, bound)
                    return value if isinstance(value, Class) else None
        return None

    def preset(self, name: Value, changes: Keywords, folder: Value = None) -> Value:
        """The configuration of a checkpoint on the hub, or of what lies in one of its folders."""
        if not isinstance(name, str):
            why = name.why if isinstance(name, Unknown) else "the name of a checkpoint"
            raise Stopped(f"{why} is not known and decides about the model", self.it.origin())
        facts = dict(
            self.part_of(name, folder) if isinstance(folder, str) and folder else self.facts_of(name)
        )
        model_type = facts.pop("model_type", None)
        if not isinstance(model_type, str):
            shown = f"{name}/{folder}" if folder else name
            raise Stopped(f"the configuration of {shown} is not known", self.it.origin())
        for field in _NO_FIELDS:
            facts.pop(field, None)
        if model_type in _STARTED:
            # published facts leave out which token a decoder starts with; it changes no size
            facts.setdefault("decoder_start_token_id", 0)
            facts.setdefault("pad_token_id", 0)
        config = self.config(model_type, {**facts, **changes})
        self.names[id(config)] = (config, name)
        return config

    def facts_of(self, name: str) -> Keywords:
        """`config.json` of a checkpoint: the project's own, the hub's cache, published facts, or nothing."""
        if name not in self._facts:
            self._facts[name] = self._local_facts(name) or _published(self.it, name)
        return self._facts[name]

    def part_of(self, name: str, folder: str) -> Keywords:
        """Settings in a folder of a checkpoint: the project's, the cache's, or published ones."""
        for file in ("config.json", "scheduler_config.json"):
            path = posixpath.join(folder, file)
            content, where = files.read_text(self.it, posixpath.join(name, path)), f"{name}/{path}"
            if content is None:
                content, where = hub_file(name, path)
            read = _json_object(content)
            if read:
                self.it.assume(f"the configuration of {name}/{folder} is that of {where}")
                return read
        published = pipelines.part_of(name, folder)
        return {} if published is None else dict(published)

    def sizes_of(self, name: str) -> Keywords:
        """Facts of a checkpoint with the defaults of its family, by every usual spelling."""
        facts = self.facts_of(name)
        family = families.FAMILIES.get(str(facts.get("model_type", "")))
        return facts if family is None else {**family.defaults, **facts}

    def _local_facts(self, name: str) -> Keywords:
        content = files.read_text(self.it, posixpath.join(name, "config.json"))
        where = f"{name}/config.json"
        if content is None:
            content, where = hub_file(name, "config.json")
        read = _json_object(content)
        if "model_type" not in read:
            return {}
        self.it.assume(f"the configuration of {name} is that of {where}")
        return read

    def stored_dtype(self, config: Value, given: Value) -> Value:
        """The type of the weights that `from_pretrained(..., dtype=given)` makes."""
        if isinstance(given, Unknown):
            raise Stopped(f"{given.why} is not known and decides about the weights", self.it.origin())
        if given is not None and given != "auto":
            return dtype_of(given) or given
        is_old = training.has_field_of_version_4(self.it)
        if given is None and is_old:
            return None
        _, name = self.names.get(id(config), (None, ""))
        facts = self.facts_of(name) if name else {}
        stored = facts.get("dtype", facts.get("torch_dtype"))
        if isinstance(stored, str):
            return dtype_of(stored)
        if not name or facts.get("model_type", "") in _STORED_IN_FLOAT:
            return None
        chosen = self.it.choose(
            f"dtype of {name}", ("bfloat16", "float32"), f"the weights of {name} are stored as {{}}"
        )
        return dtype_of(chosen)

    # -- models

    def _auto_model(self, auto: str) -> Value:
        def from_config(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            return self.build(auto, args[0] if args else keywords.pop("config"), keywords)

        def from_pretrained(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            name = args[0] if args else keywords.pop("pretrained_model_name_or_path")
            return self.pretrained(auto, name, keywords)

        made = Opaque(auto)
        made.attributes["from_config"] = Builtin("from_config", from_config)
        made.attributes["from_pretrained"] = Builtin("from_pretrained", from_pretrained)
        return made

    def pretrained(self, auto: str, name: Value, options: Keywords) -> Value:
        """`AutoModel...from_pretrained(name, **options)`."""
        packing = {key: options.pop(key) for key in _PACKING if key in options}
        folder = options.pop("subfolder", None)
        config = options.pop("config", None) or self.preset(name, _fields_only(options), folder)
        given = options.pop("dtype", options.pop("torch_dtype", None))
        options["dtype"] = self.stored_dtype(config, given)
        place = options.pop("device_map", None)
        model = self.build(auto, config, options)
        # what is loaded is ready to be evaluated; who trains it says so
        self.it.call(self.it.get_attribute(model, "eval"), [], {})
        packed = pack_weights(self.it, model, packing)
        if packed or (place is not None and place != "cpu"):
            self.it.call(self.it.get_attribute(model, "to"), ["cuda"], {})
        return model

    def build(self, auto: str, config: Value, options: Keywords) -> Value:
        """A model of an auto class from a configuration, interpreted or by family."""
        if isinstance(config, Config):
            return self._build_family(auto, config, options)
        if not isinstance(config, Instance):
            raise Stopped("the configuration of the model is not known", self.it.origin())
        cls = self._model_class(auto, config)
        if cls is None:
            raise Stopped(f"no {auto} was found for {config.cls.name}", self.it.origin())
        return self.it.call(self.it.get_attribute(cls, "_from_config"), [config], dict(options))

    def _model_class(self, auto: str, config: Instance) -> Class | None:
        name = config.cls.module.replace(".configuration_", ".modeling_")
        module = self.it.library.imports.find(name, "")
        if not isinstance(module, ModuleValue):
            return None
        model_type = config.cls.find("model_type")
        stated = self.tables.model_class(auto, model_type) if isinstance(model_type, str) else None
        if stated is not None:
            value = self.it.find_attribute(module, stated)
            if isinstance(value, Class):
                return value
        bound = list(self.it.library.imports.scope_of(module).binders)
        for ending in _ENDINGS.get(auto, ()):
            for candidate in bound:
                if candidate.endswith(ending) and "Double" not in candidate and "PreTrained" not in candidate:
                    value = self.it.find_attribute(module, candidate)
                    if isinstance(value, Class) and value.trait("native"):
                        return value
        return None

    def _build_family(self, auto: str, config: Config, options: Keywords) -> Value:
        dtype = dtype_of(options.get("dtype", options.get("torch_dtype")))
        attention = options.get("attn_implementation")
        model = families.build(
            self.it.world, auto, config, dtype, attention if isinstance(attention, str) else None
        )
        self.it.library.built(model, config.model_type)
        return model

    def _family_name(self, name: str) -> Value:
        """`GPT2LMHeadModel`, `GPT2Config` without the package."""
        if name == "DynamicCache":
            return Builtin(name, _family_cache)
        for family in families.FAMILIES.values():
            heads = {head.native_name.rpartition(".")[2]: auto for auto, head in family.heads.items()}
            if name in heads:
                return self._family_model(name, heads[name])
            if name.lower() == f"{family.model_type.replace('_', '')}config":
                return self._family_config(name, family.model_type)
        return MISSING

    def _family_config(self, name: str, model_type: str) -> Value:
        def from_pretrained(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
            folder = keywords.pop("subfolder", None)
            return self.preset(args[0], _fields_only(keywords), folder)

        members: dict[str, Value] = {"from_pretrained": Builtin("from_pretrained", from_pretrained)}
        return Opaque(name, members, call=lambda it, a, k: self.config(model_type, k))

    def _family_model(self, name: str, auto: str) -> Value:
        made = self._auto_model(auto)
        assert isinstance(made, Opaque)
        made.kind = name
        made.call = lambda it, a, k: self.build(auto, a[0] if a else k.pop("config"), k)
        return made


def _family_cache(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`DynamicCache(pairs)`: empty, or with the keys and values of each layer (a tensor that stacks both)."""
    cache = DynamicCache()
    pairs = args[0] if args else keywords.get("ddp_cache_data")
    if pairs is None:
        return cache
    for layer, pair in enumerate(it.iterate(pairs)):
        key, value = cast("tuple[Tensor, Tensor]", tuple(it.iterate(pair)))
        cache.update(it.world, key, value, layer)
    return cache


def packing_of(it: Interpreter, options: Keywords) -> tuple[Quantised, DType, frozenset[str]] | None:
    """How weights are packed while they are loaded, the type of products, the layers that stay as they are.

    None: not at all. Stops for what is not followed: a model in full precision would be another answer.
    """
    given = options.get("quantization_config")
    if given is None and not any(options.get(f"load_in_{bits}bit") is True for bits in (4, 8)):
        return None

    def option(name: str) -> Value:
        return options.get(name) if given is None else it.find_attribute(given, name)

    if given is not None and not (isinstance(given, Instance) and given.cls.name == "BitsAndBytesConfig"):
        raise Stopped("weights that are quantised while they are loaded are not followed", it.origin())
    kept = option("llm_int8_skip_modules")
    names = frozenset(text.text_of(it, name) for name in it.iterate(kept)) if isinstance(kept, list) else ()
    if option("load_in_8bit") is True:
        return Quantised(8, 1, 0, dequantises=False, row_scales=True), float16, frozenset(names)
    if option("load_in_4bit") is not True:
        return None
    double = option("bnb_4bit_use_double_quant") is True
    compute = dtype_of(option("bnb_4bit_compute_dtype")) or float32
    return Quantised(4, 64, 1.016 if double else 4), compute, frozenset(names)


def pack_weights(it: Interpreter, model: Value, options: Keywords) -> bool:
    """Packs the weights of a model that was loaded so; whether it did."""
    packing = packing_of(it, options)
    if packing is None:
        return False
    if not isinstance(model, Module):
        raise Stopped("weights that are quantised while they are loaded are not followed", it.origin())
    quantised, compute, kept = packing
    it.library.met.setdefault("quantisation", (f"{quantised.bits} bits", it.origin()))
    pack(it.world, model, quantised, compute, kept)
    return True


def _published(it: Interpreter, name: str) -> Keywords:
    """Facts of well-known checkpoints: the families' own, then the presets of the memory model."""
    short = name.rpartition("/")[2].lower()
    for family in families.FAMILIES.values():
        if short in family.checkpoints or short == family.model_type:
            known: Keywords = dict(family.checkpoints.get(short, {}))
            return {"model_type": family.model_type, **known}
    try:
        preset = presets.find(name)
    except LookupError:
        return {}
    it.assume(f"the configuration of {name} is that of {preset.source}")
    return cast(Keywords, dict(preset.config))


def _json_object(content: str | None) -> Keywords:
    """The object a JSON text holds; empty for anything else."""
    if content is None:
        return {}
    try:
        read = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return cast(Keywords, read) if isinstance(read, dict) else {}


def hub_file(name: str, file: str) -> tuple[str | None, str]:
    """A small file of a checkpoint in the hub's cache on this machine, and how to name it; None if absent."""
    if name.count("/") > 1 or ".." in name or name.startswith(("/", ".", "~")):
        return None, ""
    folder = Path(_hub_cache()) / ("models--" + name.replace("/", "--")) / "snapshots"
    try:
        found = sorted(folder.glob(f"*/{file}"), key=lambda path: path.stat().st_mtime)
        if found:
            return read_regular(str(found[-1]), _MAX_CONFIG_BYTES).decode(
                "utf-8", "replace"
            ), f"the hub's cache ({name})"
    except OSError:
        return None, ""
    return None, ""


def _hub_cache() -> str:
    """Where huggingface_hub keeps checkpoints, by its own variables."""
    if os.environ.get("HF_HUB_CACHE"):
        return os.environ["HF_HUB_CACHE"]
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    return os.path.join(home, "hub")


def dtype_of(value: Value) -> DType | None:
    if isinstance(value, DType):
        return value
    return DTYPES.get(value.removeprefix("torch.")) if isinstance(value, str) else None


def _fields_only(keywords: Keywords) -> Keywords:
    """Options of `from_pretrained` that end in the configuration."""
    names = (
        "num_labels",
        "use_cache",
        "output_hidden_states",
        "output_attentions",
        "problem_type",
        "id2label",
    )
    return {
        k: v for k, v in keywords.items() if k in names or k.endswith(("dropout", "pdrop", "dropout_prob"))
    }


def _listed(folder: str) -> list[str]:
    try:
        return _names_in(folder, os.stat(folder).st_mtime_ns)
    except OSError:
        return []


@lru_cache(maxsize=8)
def _names_in(folder: str, changed: int) -> list[str]:
    """Packages in a folder; nobody changes the list. Kept: transformers has hundreds, and every run asks."""
    return sorted(name for name in os.listdir(folder) if name.isidentifier())


# --------------------------------------------------------------------------- what replacements may call


def helpers(it: Interpreter) -> dict[str, Value]:
    """Names that only replacement texts see."""
    return {
        "__field_defaults__": Builtin("__field_defaults__", _field_defaults),
        "__mapped_attribute__": Builtin("__getattr__", _mapped_attribute),
        "__set_mapped_attribute__": Builtin("__setattr__", _set_mapped_attribute),
        "__padded__": Builtin("__padded__", _padded),
        "__tie__": Builtin("__tie__", _tie),
        "__built__": Builtin("__built__", _built),
        "__preset__": Builtin("__preset__", _preset),
        "__pipeline_settings__": Builtin("__pipeline_settings__", _pipeline_settings),
        "__stored_dtype__": Builtin("__stored_dtype__", _stored_dtype),
        "__pack__": Builtin("__pack__", _pack),
        "__config_class__": Builtin("__config_class__", _config_class_of),
        "__annotated_class__": Builtin("__annotated_class__", _annotated_class),
        "__config_of_type__": Builtin("__config_of_type__", _config_of_type),
        "__generated__": Builtin("__generated__", _generated),
        "__defaults__": Builtin("__defaults__", _defaults),
    }


def _field_defaults(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Fields of a configuration class with their defaults: annotated names, bases first."""
    out: dict[Value, Value] = {}
    for cls in reversed(cast(Class, args[0]).mro):
        annotations = cast("dict[str, Value]", cls.members.get("__annotations__") or {})
        for name, value in cls.members.items():
            if isinstance(value, Opaque) and value.kind == "dataclasses.Field":
                factory = value.attributes.get("default_factory")
                out[name] = (
                    it.call(factory, [], {}) if factory is not None else value.attributes.get("default")
                )
            elif annotations.get(name, "ClassVar") != "ClassVar" and not isinstance(
                value, (Function, Property, StaticMethod, ClassMethod)
            ):
                out[name] = value
            elif name in out and isinstance(value, Property):
                del out[name]
    return out


def _mapped_attribute(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`config.num_hidden_layers` where the class calls it otherwise (`attribute_map`)."""
    config, name = cast(Instance, args[0]), args[1]
    names = config.cls.find("attribute_map")
    if isinstance(name, str) and isinstance(names, dict) and names.get(name, name) != name:
        return it.get_attribute(config, cast(str, names[name]))
    raise it.error("AttributeError", f"'{config.cls.name}' object has no attribute '{name}'")


def _set_mapped_attribute(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    config, name, value = cast(Instance, args[0]), cast(str, args[1]), args[2]
    found = config.cls.find("attribute_map")
    names = cast("dict[str, str]", found) if isinstance(found, dict) else {}
    name = names.get(name, name)
    it.library.plain_set(config, name, value)
    for other, meant in names.items():
        # a field may be declared by its other name; its default must not stand before the value
        if meant == name and it.find_attribute(config.cls, other) is not MISSING:
            it.library.plain_set(config, other, value)
    return None


def _padded(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Whether a mask hides anything: known for masks of ones, a choice for masks out of data."""
    mask = args[0]
    if not isinstance(mask, Tensor):
        return False
    if mask.storage in it.library.ones:
        return False
    if mask.storage in it.library.written:
        return True
    return it.choose("padding", (True, False), "some sequences of a batch are padded: {}")


def note_padding(it: Interpreter, module: Module, keywords: dict[str, Value]) -> None:
    """Tell a hand-written family what is known of the mask it is called with."""
    if isinstance(module, PreTrainedModel) and isinstance(keywords.get("attention_mask"), Tensor):
        module.config.padded = bool(_padded(it, [keywords["attention_mask"]], {}))


def _tie(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`model.<target> = model.<source>` for dotted names, patterns and absent parts left alone."""
    model, target, source = args
    if not isinstance(target, str) or not isinstance(source, str):
        return None
    target, source = target.strip("^$"), source.strip("^$")
    if any(mark in target + source for mark in "\\()[]*"):
        return None
    value = _walk(it, model, source.split("."))
    head, _, last = target.rpartition(".")
    owner = _walk(it, model, head.split(".") if head else [])
    if value is not MISSING and isinstance(owner, Module) and it.find_attribute(owner, last) is not MISSING:
        it.set_attribute(owner, last, value)
    return None


def _walk(it: Interpreter, value: Value, path: list[str]) -> Value:
    for name in path:
        if isinstance(value, Module) and name in value.children:
            found = value.children[name]
            value = MISSING if found is None else found
        else:
            value = it.find_attribute(value, name)
        if value is MISSING:
            return MISSING
    return value


def _built(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    config = args[1]
    kind = it.find_attribute(config, "model_type")
    it.library.built(cast(Module, args[0]), kind if isinstance(kind, str) else "")
    return None


def _preset(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    changes = it.as_keywords(args[2])
    return it.library.transformers.preset(args[1], changes, args[3] if len(args) > 3 else None)


def _pipeline_settings(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """Settings of a part of a pipeline: of a checkpoint's folder; a third argument where there are none."""
    name, folder = args[0], args[1] or ""
    if not isinstance(name, str) or not isinstance(folder, str):
        if len(args) > 2:
            return args[2]
        raise Stopped("the name of a checkpoint is not known and decides about the model", it.origin())
    found = it.library.transformers.part_of(name, folder)
    if not found and len(args) > 2:
        return args[2]
    if not found and "scheduler" not in folder:
        raise Stopped(f"the configuration of {posixpath.join(name, folder)} is not known", it.origin())
    return {key: value for key, value in found.items() if not key.startswith("_")}


def _stored_dtype(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return it.library.transformers.stored_dtype(args[0], args[1])


def _pack(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return pack_weights(it, args[0], it.as_keywords(args[1]))


def _annotated_class(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """The class that a class body annotates a name with (`config: LlamaConfig`), None without one."""
    cls, name = cast(Class, args[0]), cast(str, args[1])
    stated = cast("dict[str, Value]", cls.members.get("__annotations__") or {}).get(name)
    module = it.library.imports.loaded.get(cls.module)
    if not isinstance(stated, str) or not isinstance(module, ModuleValue):
        return None
    found = it.find_attribute(module, stated)
    return found if isinstance(found, Class) else None


def _config_of_type(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    return it.library.transformers.config(text.text_of(it, args[0]), it.as_keywords(args[1]))


def _config_class_of(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    found = it.find_attribute(args[0], "config_class")
    return None if found is MISSING else found


def _generated(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    it.loops.generations += 1
    return None


def _defaults(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    function = args[0]
    return dict(function.defaults) if isinstance(function, Function) else {}


# --------------------------------------------------------------------------- name spaces


def decorator_space(it: Interpreter, name: str, scope: LazyScope | None) -> Namespace:
    """A module of decorators: replaced names first, then by what a name looks like."""

    def resolve(member: str) -> Value:
        if scope is not None:
            value = scope.lookup(member)
            if value is not MISSING:
                return value
        if member == "logging" or member.endswith("logger"):
            return Unknown("a logger")
        if member[:1].isupper() or (
            name == "huggingface_hub" and not member.startswith(("validate_", "is_"))
        ):
            return Unknown(f"{name}.{member}")
        if member.startswith(("is_", "has_")):
            answer = member in _PRESENT
            return Builtin(member, lambda it, a, k: answer)
        if member.startswith("__"):
            return MISSING
        return Builtin(member, _factory if member.startswith("use_kernel") else _decorate)

    return Namespace(name, resolve=resolve)


def _decorate(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`@d` and `@d(...)` alike: the function or class as it is."""
    if len(args) == 1 and not keywords and isinstance(args[0], (Function, Class, Builtin)):
        return args[0]
    return Builtin("decorator", lambda it, a, k: a[0] if a else None)


def _factory(it: Interpreter, args: list[Value], keywords: Keywords) -> Value:
    """`@d(f)` where `f` is an option, not what is decorated."""
    return Builtin("decorator", lambda it, a, k: a[0] if a else None)


@lru_cache(maxsize=64)
def _stated_fields(name: str, content: str) -> tuple[str, ...]:
    """Annotated names of a class in a text."""
    stated = re.search(rf"^class {name}\(\w+\):(.*?)(?=^class |^@|\Z)", content, re.MULTILINE | re.DOTALL)
    if stated is None:
        return ()
    plain = re.sub(r'""".*?"""', "", stated[1], flags=re.DOTALL)
    return tuple(re.findall(r"^    (\w+): ", plain, re.MULTILINE))


def outputs_space(it: Interpreter) -> Namespace:
    """`transformers.modeling_outputs`: kinds of ModelOutput, their fields found in the text of the file."""
    source = it.project.find("transformers.modeling_outputs", "")
    content = "" if source is None else it.project.text(source.path) or ""

    def resolve(name: str) -> Value:
        if not name[:1].isupper():
            return MISSING
        generic = it.library.imports.find("transformers.utils.generic", "")
        base = it.find_attribute(generic, "ModelOutput")
        assert isinstance(base, Class)
        cls = Class(name, (base,), module="transformers.modeling_outputs")
        cls.mro = (cls, *base.mro)
        names = _stated_fields(name, content)
        cls.members["__annotations__"] = dict.fromkeys(names, "object")
        cls.members.update(dict.fromkeys(names))
        return make_dataclass(it, cls, {})

    return Namespace("transformers.modeling_outputs", resolve=resolve)


__all__ = ["DECORATOR_MODULES", "Transformers", "decorator_space", "helpers", "outputs_space"]
