"""From the facts of a workload to a job: what the named library does where nothing is stated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torchwise_memory import presets
from torchwise_memory.adapting import adapter_of, method_of, part_of, prompt_of, saved_modules
from torchwise_memory.allocator import AllocatorSettings
from torchwise_memory.families.configs import decoder_shape, is_decoder
from torchwise_memory.families.decoder import DecoderShape, Style
from torchwise_memory.families.detection import Detector, detector
from torchwise_memory.families.projections import Projections, Quantised
from torchwise_memory.families.segmentation import Segmenter, segmenter
from torchwise_memory.hardware import Gpu
from torchwise_memory.policies.sharding import Sharding
from torchwise_memory.policies.zero import bucket_of_transformers
from torchwise_memory.runtime.dtypes import DType, bfloat16, float32
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.world import LATEST_TORCH
from torchwise_memory.simulation import Job, Update
from torchwise_memory.subjects import (
    Beside,
    DecoderSubject,
    EncoderDecoder,
    ImageClassifier,
    Scenes,
    TokenClassifier,
)
from torchwise_memory.updating import update_of
from torchwise_memory.versions import LATEST, Installed, newest
from torchwise_memory.wording import (
    Division,
    autocast_of,
    division_of,
    dtype_of,
    offloaded_of,
    packs_with_bitsandbytes,
    quantised_of,
    says_nothing,
    writes_attention_out,
)

if TYPE_CHECKING:
    from torchwise_memory.workload import Workload

DEFAULT_SM = 80
#: Model types besides decoders that a description may name.
ENCODERS = frozenset(
    {"bert", "roberta", "distilbert", "xlm-roberta", "camembert", "electra", "albert", "deberta-v2", "mpnet"}
)
#: And encoder-decoders.
SEQ2SEQ = frozenset({"t5", "mt5", "bart", "mbart", "pegasus", "marian", "whisper", "blenderbot", "m2m_100"})
#: Length of a batch where the description leaves it out and says that real samples were used unpacked.
SHORT_SAMPLE = 512

#: Fields of a `config.json` that are numbers of something.
_SIZE = re.compile(r"(?:^n_|^d_|^num_|_(?:size|dim|heads|layers|experts|positions))(?!.*(?:act|type|norm))")
_LARGEST_SIZE = 10**9


@dataclass(frozen=True, slots=True)
class Choice:
    """A fact that was not stated: what was taken, and what else it might be."""

    name: str
    value: object
    others: tuple[object, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Options:
    """Alternatives in place of what is assumed, by the name of the choice."""

    values: Mapping[str, object] = field(default_factory=dict[str, object])


class _Choices:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.made: list[Choice] = []

    def pick(self, name: str, value: Any, others: tuple[Any, ...], sentence: str) -> Any:
        self.made.append(Choice(name, value, others, sentence))
        return self.options.values.get(name, value)


def job_of(workload: Workload, options: Options, card: Gpu | None) -> tuple[Job, tuple[Choice, ...]]:
    """Raises Unsupported or LookupError for what is not known."""
    choices = _Choices(options)
    sm = (card.sm if card is not None else None) or DEFAULT_SM
    facts = _Facts.of(workload, sm)
    scenes = None if workload.config else _scenes(workload, facts)
    if scenes is not None:
        job = _scene_job(workload, facts, scenes, choices)
    elif facts.is_image:
        job = _image_job(workload, facts, choices)
    else:
        if workload.config:
            _require_sizes(workload.config)
        config = workload.config or _config_of_model(workload, choices)
        if is_decoder(config):
            job = _decoder_job(workload, facts, decoder_shape(config), choices)
        elif config.get("model_type") in SEQ2SEQ:
            job = _seq2seq_job(workload, facts, config, choices)
        else:
            job = _encoder_job(workload, facts, config, choices)
    if workload.allocator:
        job = replace(job, allocator=AllocatorSettings.parse(workload.allocator))
    _note_assumed_releases(facts, choices)
    return job, tuple(choices.made)


def _require_sizes(config: Mapping[str, Any]) -> None:
    """A file may hold anything. Raises Unsupported for a size that is none."""
    for name, value in config.items():
        if value is None or isinstance(value, list) or not _SIZE.search(name):
            continue
        is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        if not is_whole or not 0 <= value <= _LARGEST_SIZE:
            said = f"expected a whole number from 0 to {_LARGEST_SIZE:,}, found {str(value)[:40]!r}"
            raise Unsupported(f"config, {name}", said)


def _note_assumed_releases(facts: _Facts, choices: _Choices) -> None:
    asked = dict.fromkeys(name for name in ("transformers", "torch") if not facts.installed.knows(name))
    if asked and facts.library == "transformers":
        names = " and ".join(f"{name} {newest(name)}" for name in asked)
        choices.pick("releases", None, (), f"nothing says which releases run: {names} assumed")


def _config_of_model(workload: Workload, choices: _Choices) -> Mapping[str, Any]:
    from torchwise_memory.presets.sized import FORMS, size_said

    if workload.model is None:
        sentence = "only the number of parameters is given: a decoder in the shape of Llama 2 assumed"
        return _sized(_required(workload.parameters, "model"), FORMS, sentence, choices)
    try:
        return _cut(workload.model)
    except presets.UnknownModelError:
        said = size_said(workload.model)
        if said is None:
            raise
        form, parameters = said
        sentence = f"no published model is called {workload.model!r}: one of this size in the shape of {form}"
        forms = (form, *(each for each in FORMS if each != form))
        return _sized(parameters, forms, sentence, choices)


def _sized(parameters: int, forms: tuple[str, ...], sentence: str, choices: _Choices) -> Mapping[str, Any]:
    """A decoder of which only the size is known, in the first of the shapes; the others are alternatives."""
    from torchwise_memory.presets.sized import config_of_size

    form = choices.pick("form", forms[0], forms[1:], sentence)
    try:
        return config_of_size(parameters, str(form))
    except ValueError as error:
        raise Unsupported("a decoder of this size", str(error)) from None


def _cut(name: str) -> Mapping[str, Any]:
    """Of a model by name, with fewer layers where it says so: "Llama 4 17B-16E cut to 2 layers"."""
    said = re.search(r"[,(]?\s*\b(?:cut to|first|with|only)\s+(\d+)\s+layers?\)?", name)
    if said is None:
        return _config_of(name)
    config = dict(_config_of((name[: said.start()] + name[said.end() :]).strip()))
    for field_name in ("num_hidden_layers", "n_layer", "n_layers"):
        if field_name in config:
            config[field_name] = int(said[1])
    return config


def _config_of(name: str) -> Mapping[str, Any]:
    """Of a preset, else of a checkpoint that a family knows. Raises LookupError."""
    from torchwise_memory.families import FAMILIES

    try:
        return presets.find(name).config
    except LookupError:
        short = name.strip().rpartition("/")[2].lower()
        for family in FAMILIES.values():
            if short in family.checkpoints:
                fields = {**family.defaults, **family.checkpoints[short]}
                return {"model_type": family.model_type, **fields}
        raise


def has_family(config: Mapping[str, Any]) -> bool:
    """Whether a job of a model with this `config.json` can be answered."""
    return is_decoder(config) or config.get("model_type") in ENCODERS | SEQ2SEQ


def _required(value: Any, name: str) -> Any:
    if value is None:
        raise Unsupported(name, "not stated, and nothing can be said without it")
    return value


@dataclass(frozen=True, slots=True)
class _Facts:
    """The description in the words of the runtime."""

    sm: int
    weights: DType
    autocast: DType | None
    installed: Installed
    library: str
    is_image: bool

    @staticmethod
    def of(workload: Workload, sm: int) -> _Facts:
        mixed = re.match(r"\s*(mixed|amp)", workload.weights or "", re.IGNORECASE) is not None
        stated = None if _names_packing(workload.weights) else dtype_of(workload.weights)
        weights = stated or (float32 if workload.task == "train" and stated is None else bfloat16)
        autocast = autocast_of(workload.autocast or (workload.weights if mixed else None), weights, sm)
        from torchwise_memory.families import vision

        name = workload.model or ""
        is_image = workload.config is None and vision.knows(name)
        installed = Installed(workload.releases, workload.year)
        # Unsloth's kernels lie in the models of transformers
        library = "transformers" if workload.framework in ("", "unsloth", "liger") else workload.framework
        return _Facts(sm, weights, autocast, installed, library, is_image)

    @property
    def torch_version(self) -> tuple[int, int]:
        """Of the operators."""
        version = self.installed.version("torch")
        return LATEST_TORCH if version == LATEST else (version[0], version[1] if len(version) > 1 else 0)

    def does(self, behaviour: str) -> str:
        """What the library that is installed does."""
        return self.installed.value(behaviour)


# --------------------------------------------------------------------------- decoders


def _decoder_job(workload: Workload, facts: _Facts, shape: DecoderShape, choices: _Choices) -> Job:
    library = facts.library
    if library == "litgpt":
        # LitGPT keeps a head of its own and one fused projection
        shape = replace(
            shape,
            tied=False,
            fused_qkv=True,
            act="gelu" if shape.act == "gelu_new" else shape.act,
            embed_dropout=0,
            dropout=0,
            attention_dropout=0,
        )
    training = workload.task == "train"
    division = _division(workload)
    tensor, pipeline, context = division.tensor, division.pipeline, division.context
    sequence = 1
    if division.kind == "FSDP" and tensor > 1:
        # with sequence parallelism everything between and inside products is divided
        tensor, sequence = 1, tensor
    shape = _divided(shape, tensor)
    if pipeline > 1:
        shape = replace(shape, layers=-(-shape.layers // pipeline))
    if shape.experts:
        # each process keeps its experts; as many tokens come from the others as go to them
        shape = replace(shape, experts=-(-shape.experts // division.experts))
    style = _style(workload, facts, choices, training)
    prompt = prompt_of(workload)
    peft = None
    part = part_of(workload.peft)
    if prompt is None and part is None and method_of(workload.peft):
        peft = adapter_of(workload.peft or {}, library, facts.installed, choices)
    frozen = peft is not None or prompt is not None or part is not None
    quantised = _quantised(workload)
    compute = facts.weights
    weights = facts.weights
    # PEFT's `prepare_model_for_kbit_training` casts what is not packed to fp32, and the residual stream with
    # it; Lightning's precision plugin leaves embeddings and norms in fp32, for inference too
    widens = (training and frozen) or library == "litgpt"
    if quantised is not None and widens and packs_with_bitsandbytes(workload.quantisation, library):
        weights = float32
    kept = {"router", "shared_gate"}
    if library != "litgpt":
        kept.add("lm_head")
    packs_experts, experts_packed = quantised is not None and _packs_experts(workload, facts), None
    if shape.sinks and re.search(r"mxfp4", (workload.quantisation or "").lower()):
        # gpt-oss packs its experts alone
        quantised, experts_packed = None, quantised
    make = Projections(
        quantised,
        peft,
        compute=compute,
        kept_plain=frozenset(kept),
        packs_experts=packs_experts,
        experts_packed=experts_packed,
    )
    batch = workload.micro_batch or 1
    tokens = -(-_tokens(workload, choices, library) // (context * sequence))
    subject = DecoderSubject(shape, style, make, batch, tokens, prompt=prompt)
    job = Job(
        subject,
        weights,
        training=training,
        autocast=facts.autocast if not _is_sharded_mixed(workload) else None,
        sm=facts.sm,
        torch_version=facts.torch_version,
        frozen=frozen,
        loading=workload.task == "load",
        processes=workload.gpus,
    )
    if not training:
        return _inference_job(workload, facts, job, subject, choices)
    saves = saved_modules(workload.peft, peft)
    if saves:
        # PEFT trains a copy and keeps the module it was made of
        parts = {
            "embed": shape.vocab * (shape.embed_size or shape.hidden),
            "head": shape.vocab * shape.hidden,
            "norm": 0,
        }
        job = replace(job, static_bytes=sum(parts[name] for name in set(saves)) * facts.weights.itemsize)

        def is_saved(name: str) -> bool:
            return name.startswith(saves) or ("norm" in saves and "norm" in name)

        job = replace(job, trainable=is_saved)
    if part is not None:
        job = replace(job, trainable=part)
    if frozen and style.checkpointing != "none":
        job = replace(job, input_gradients=True)
    job = replace(job, update=_update(workload, facts, choices, shape.hidden))
    keeps = (workload.accumulation or 1) > 1 or facts.does("zero_grad") == "zeros"
    if keeps and not job.update.in_backward:
        job = replace(job, accumulates=True)
    return _parallel_job(workload, facts, job, choices)


def _packs_experts(workload: Workload, facts: _Facts) -> bool:
    """bitsandbytes packs linear layers, which experts were before transformers 5 put them into one tensor."""
    if facts.library != "transformers" or not packs_with_bitsandbytes(workload.quantisation, facts.library):
        return True
    if re.search(r"mxfp4|nvfp4|fp-?8|float-?8", (workload.quantisation or "").lower()):
        return True
    return facts.does("mixture_experts") == "layers"


def _divided(shape: DecoderShape, by: int) -> DecoderShape:
    if by == 1:
        return shape
    return replace(
        shape,
        heads=-(-shape.heads // by),
        kv_heads=max(1, shape.kv_heads // by),
        inner=-(-shape.inner // by),
        vocab=-(-shape.vocab // by),
    )


def _tokens(workload: Workload, choices: _Choices, library: str) -> int:
    if workload.task != "train":
        return workload.seq_len or 256
    if workload.seq_len is not None and "unpacked" not in workload.assumption:
        return workload.seq_len
    return int(
        choices.pick("seq_len", SHORT_SAMPLE, (256, 1024), "the length is not stated: 512 tokens assumed")
    )


def _style(workload: Workload, facts: _Facts, choices: _Choices, training: bool) -> Style:
    library, text = facts.library, (workload.attention or "").lower()
    attention = "sdpa"
    if writes_attention_out(text):
        attention = "eager"
    elif not text and library == "transformers":
        usual = facts.installed.behaviour("decoder_attention")
        attention = usual.value
        if usual.others:
            sentence = f"the attention implementation is not stated: {usual.value} assumed"
            attention = str(choices.pick("attention", usual.value, usual.others, sentence))
    checkpointing = _checkpointing(workload, choices) if training else "none"
    if workload.compiled:
        sentence = "torch.compile is taken to fuse what is elementwise and to keep what products need"
        choices.pick("compiled", True, (), sentence)
    copies = library == "transformers" and facts.does("grouped_keys") == "copied"
    expand = library in ("litgpt", "torchtune", "torchtitan") or ("flash" not in text and copies)
    if library == "litgpt":
        loss = "chunked" if workload.loss_chunk else "split"
    elif workload.chunked:
        loss = "chunked"
    elif not workload.framework:
        sentence = "the library is not stated: a loss in the type of the logits assumed"
        loss = str(choices.pick("loss", "plain", ("float",), sentence))
    elif library == "transformers":
        loss = facts.does("causal_loss")
    else:
        loss = "float"
    kernels = _kernels(workload)
    if kernels == "liger":
        loss = "chunked"
    fuses_loss = workload.compiled or bool(kernels)
    if workload.compiled and library == "torchtitan":
        fuses_loss = facts.does("compiled_loss") == "yes"
        # mixtures have training code of their own beside it
        if not facts.installed.knows(library) or "EP" in workload.parallelism:
            sentence = "the loss is compiled with the model"
            fuses_loss = bool(choices.pick("fuses_loss", True, (False,), sentence))
    return Style(
        fused=workload.compiled or bool(kernels),
        fused_loss=fuses_loss,
        attention=attention,
        expand_kv=expand and "flash-attention" not in text,
        logits_fp32=library == "litgpt" or (library == "transformers" and facts.autocast is not None),
        loss=loss,
        loss_chunk=workload.loss_chunk or 0,
        checkpointing=checkpointing,
        norm_wide=library == "litgpt" and facts.does("litgpt_norm") == "wide",
        by_transformers=library == "transformers" and "flash" not in text,
        offload="activations" in _offloaded(workload) or _offloads(workload.checkpointing),
        training=training,
    )


def _kernels(workload: Workload) -> str:
    """Norms, rotation, gates and the loss by hand-written kernels: "unsloth", "liger" or neither."""
    said = f"{workload.framework} {workload.attention} {workload.optimizer} {workload.assumption}".lower()
    return next((name for name in ("unsloth", "liger") if name in said), "")


def _offloads(checkpointing: str | None) -> bool:
    """Unsloth's own checkpointing moves what it keeps to the host."""
    return re.search(r"offload|unsloth", checkpointing or "") is not None


def _checkpointing(workload: Workload, choices: _Choices) -> str:
    text = workload.checkpointing
    if text is None:
        if workload.framework == "torchtitan":
            sentence = "checkpointing is not stated: torchtitan's default, selective, assumed"
            return str(choices.pick("checkpointing", "selective", ("none", "full"), sentence))
        sentence = "checkpointing is not stated: none assumed"
        return str(choices.pick("checkpointing", "none", ("full",), sentence))
    if text in ("false", "none", "no"):
        return "none"
    if "selective" in text:
        return "half" if "2nd" in text or "second" in text else "selective"
    return "full"


def _names_packing(text: str | None) -> bool:
    """Whether the type of the weights is one that weights are packed in, which is said elsewhere too."""
    return re.search(r"int[48]|[48]-?bit|fp-?[48]|nf4|float-?8|gptq|awq", (text or "").lower()) is not None


def _quantised(workload: Workload) -> Quantised | None:
    text = workload.quantisation
    if says_nothing(text) and _names_packing(workload.weights):
        text = workload.weights
    return quantised_of(text, training=workload.task == "train")


def _update(workload: Workload, facts: _Facts, choices: _Choices, hidden: int = 0) -> Update:
    text = (workload.optimizer or "").strip()
    if not text or re.match(r"not stated|unknown|default", text.lower()):
        text = "AdamW"
        choices.pick("optimizer", text, (), "the optimizer is not stated: AdamW assumed")
    if "master" in (workload.weights or "") and "master" not in text:
        text += ", fp32 master weights"
    return update_of(
        text,
        library=facts.library,
        weights=facts.weights,
        hidden=hidden,
        single_loop=facts.does("adam_loop") == "single",
        offloaded=_offloaded(workload),
    )


def _division(workload: Workload) -> Division:
    return division_of(workload.parallel, workload.parallelism, workload.gpus)


def _offloaded(workload: Workload) -> frozenset[str]:
    division = _division(workload)
    return offloaded_of(workload.offload, workload.parallelism, workload.optimizer or "", division)


def _is_sharded_mixed(workload: Workload) -> bool:
    """FSDP with a mixed-precision policy computes in the gathered type; autocast has nothing to cast."""
    return _division(workload).kind == "FSDP" and "mixed" in (workload.autocast or "")


def _parallel_job(workload: Workload, facts: _Facts, job: Job, choices: _Choices) -> Job:
    division = _division(workload)
    if division.kind == "FSDP":
        mixed = facts.autocast if facts.weights is float32 else None
        classic = facts.library != "torchtitan" and "FSDP2" not in workload.parallelism
        sharding = Sharding(
            division.group,
            mixed if _is_sharded_mixed(workload) else None,
            float32 if mixed and _is_sharded_mixed(workload) else None,
            reshard_after_forward=not division.keeps_whole,
            copies_out=not classic,
            offload="params" in _offloaded(workload),
        )
        return replace(
            job,
            sharding=sharding,
            expert_processes=max(1, division.group // division.experts) if division.experts > 1 else 0,
            separate_ends=not classic,
            processes=division.group,
            loads_whole="checkpoint load before sharding" in workload.assumption,
        )
    if division.kind == "ZeRO":
        return _zero_job(workload, facts, job, division, choices)
    if division.kind == "DDP" and workload.gpus > 1:
        return replace(job, buckets=not _buckets_are_views(workload))
    return job


def _buckets_are_views(workload: Workload) -> bool:
    """Whether gradients live in the buckets of DDP (`gradient_as_bucket_view=True`)."""
    return re.search(r"bucket[\s_]view", workload.parallelism.lower()) is not None


def _zero_job(workload: Workload, facts: _Facts, job: Job, division: Division, choices: _Choices) -> Job:
    half = facts.autocast or (facts.weights if facts.weights is not float32 else None)
    weights = half or float32
    job = _with_buckets(facts, job, choices)
    offloaded = _offloaded(workload)
    on_host = "optimizer" in offloaded
    stage = division.stage
    if not stage and workload.gpus > 1:
        sentence = "the stage of ZeRO is not stated: 2 assumed"
        stage = int(choices.pick("zero_stage", 2, (1, 3), sentence))
    if stage == 3:
        sharding = Sharding(workload.gpus, None, None, copies_out=True, offload="params" in offloaded)
        return replace(
            job,
            weights=weights,
            autocast=None,
            sharding=sharding,
            zero=3,
            zero_on_host=on_host,
            processes=workload.gpus,
        )
    return replace(
        job,
        weights=weights if job.frozen is False else job.weights,
        autocast=None,
        zero=1 if stage == 1 else 2,
        zero_on_host=on_host,
        processes=workload.gpus,
    )


def _with_buckets(facts: _Facts, job: Job, choices: _Choices) -> Job:
    """The buckets of DeepSpeed's settings, which descriptions leave out."""
    hidden = _hidden(job)
    if facts.library != "transformers" or hidden is None:
        choices.pick("zero_bucket", None, (), "DeepSpeed's buckets are not stated: its defaults assumed")
        return job
    sentence = "DeepSpeed's buckets are not stated: \"auto\" of transformers' Trainer assumed"
    choices.pick("zero_bucket", None, (), sentence)
    return replace(job, zero_bucket=bucket_of_transformers(hidden), zero_overlaps=True)


def _hidden(job: Job) -> int | None:
    shape: DecoderShape | None = getattr(job.subject, "shape", None)
    if shape is not None:
        return shape.hidden
    config: Mapping[str, object] = getattr(job.subject, "config", {})
    sizes = [config[name] for name in ("hidden_size", "d_model", "dim") if name in config]
    return next((size for size in sizes if isinstance(size, int)), None)


# --------------------------------------------------------------------------- inference


def _inference_job(
    workload: Workload, facts: _Facts, job: Job, subject: DecoderSubject, choices: _Choices
) -> Job:
    length = workload.seq_len or workload.new_tokens or 0
    if not length and job.loading:
        return job
    if not length:
        length = int(choices.pick("seq_len", 256, (64, 2048), "the length is not stated: 256 tokens assumed"))
    prompt = (
        min(length, 256) if "prompt" not in workload.assumption or "short" in workload.assumption else length
    )
    if workload.attention and ("eager" in workload.attention or "flash" in workload.attention):
        prompt = length if length > 3000 and "generat" not in workload.assumption else prompt
    beams = workload.beams or 1
    cache_bytes = 1.0 if "int8 kv" in (workload.quantisation or "").lower() else float(facts.weights.itemsize)
    return replace(
        job,
        subject=replace(
            subject,
            batch=subject.batch * beams,
            tokens=max(1, prompt),
            cached=length,
            cache_bytes=cache_bytes,
            loss=False,
            last_only=facts.library != "transformers" or facts.does("prompt_logits") == "last",
        ),
    )


# --------------------------------------------------------------------------- encoders and images


def _beside(
    workload: Workload, facts: _Facts, choices: _Choices
) -> tuple[Beside, Callable[[str], bool] | None]:
    """What is put into a library model, and which of its own parameters are trained where not all are."""
    quantised = _quantised(workload)
    part = part_of(workload.peft)
    if part is not None or not method_of(workload.peft):
        return Beside(None, quantised), part
    if prompt_of(workload) is not None:
        raise Unsupported("learned prompts", "they are modelled for decoders only")
    adapter = adapter_of(workload.peft or {}, facts.library, facts.installed, choices)

    def is_head(name: str) -> bool:
        # peft trains the head of a classification task
        return name.startswith(("classifier", "score", "classification_head"))

    return Beside(adapter, quantised), is_head


def _encoder_job(workload: Workload, facts: _Facts, config: Mapping[str, Any], choices: _Choices) -> Job:
    fields = dict(config)
    kind = str(fields.pop("model_type"))
    if kind not in ENCODERS:
        raise Unsupported(f"model_type {kind!r}", "no family for described jobs has this architecture yet")
    beside, trained = _beside(workload, facts, choices)
    attention = "eager" if writes_attention_out(workload.attention) else facts.does("encoder_attention")
    subject = TokenClassifier(
        kind,
        {**fields, "num_labels": workload.classes or 2},
        attention,
        workload.micro_batch or 1,
        workload.seq_len or int(choices.pick("seq_len", 512, (128,), "512 tokens assumed")),
        _checkpointing(workload, choices) == "full" if workload.task == "train" else False,
        "n_layers" if kind == "distilbert" else "num_hidden_layers",
        beside=beside,
        compute=facts.weights,
    )
    job = Job(
        subject,
        facts.weights,
        training=workload.task == "train",
        autocast=facts.autocast,
        sm=facts.sm,
        torch_version=facts.torch_version,
        loading=workload.task == "load",
        processes=workload.gpus,
        frozen=trained is not None,
        trainable=trained,
    )
    if workload.task != "train":
        return job
    job = replace(
        job,
        update=_update(workload, facts, choices),
        accumulates=(workload.accumulation or 1) > 1 or facts.does("zero_grad") == "zeros",
    )
    return _parallel_job(workload, facts, job, choices)


def _seq2seq_job(workload: Workload, facts: _Facts, config: Mapping[str, Any], choices: _Choices) -> Job:
    fields = dict(config)
    kind = str(fields.pop("model_type"))
    beside, trained = _beside(workload, facts, choices)
    length = workload.seq_len or _length_of(workload.assumption)
    if kind == "whisper":
        # the encoder always reads thirty seconds: 3000 frames
        source, target = 3000, length or 448
    else:
        stated = length or int(choices.pick("seq_len", 512, (128,), "512 tokens assumed"))
        if workload.seq_len is None and length is not None:
            # pairs of texts are not packed: the longest of a batch may stay below the limit
            sentence = f"batches are taken to reach the limit of {length} tokens"
            stated = int(choices.pick("seq_len", length, (length // 2,), sentence))
        source = target = stated
    text = workload.attention or ""
    usual = facts.does("t5_attention" if kind in ("t5", "mt5") else "seq2seq_attention")
    eager = writes_attention_out(text) or (usual == "eager" and (not text or kind in ("t5", "mt5")))
    subject = EncoderDecoder(
        kind,
        fields,
        "eager" if eager else "sdpa",
        (workload.micro_batch or 1) * (workload.beams or 1),
        source,
        target,
        _checkpointing(workload, choices) == "full" if workload.task == "train" else False,
        beside=beside,
        compute=facts.weights,
        generated=0 if workload.task in ("train", "load") else (workload.new_tokens or target),
    )
    job = Job(
        subject,
        facts.weights,
        training=workload.task == "train",
        autocast=facts.autocast,
        sm=facts.sm,
        torch_version=facts.torch_version,
        loading=workload.task == "load",
        processes=workload.gpus,
        frozen=trained is not None,
        trainable=trained,
    )
    if workload.task != "train":
        return job
    job = replace(
        job,
        update=_update(workload, facts, choices),
        accumulates=(workload.accumulation or 1) > 1 or facts.does("zero_grad") == "zeros",
    )
    return _parallel_job(workload, facts, job, choices)


def _length_of(text: str) -> int | None:
    """`length 128 each`: a length that was stated in words."""
    found = re.search(r"\blength (\d+)", text)
    return int(found[1]) if found else None


#: What detectors are trained on (the shorter edge, and the longer one at most), and segmenters of streets.
DETECTION_IMAGE, CROP = (800, 1333), (512, 1024)


def _scenes(workload: Workload, facts: _Facts) -> Detector | Segmenter | None:
    name = workload.model or ""
    return detector(name, facts.library) or segmenter(name)


def _scene_job(workload: Workload, facts: _Facts, plan: Detector | Segmenter, choices: _Choices) -> Job:
    if workload.task != "train":
        raise Unsupported(f"task {workload.task!r}", "detectors and segmenters are modelled in training")
    usual, classes, sentence = CROP, 19, "the crop is not stated: 512 by 1024 assumed"
    if isinstance(plan, Detector):
        usual, classes = DETECTION_IMAGE, 80
        sentence = "images are taken to reach both limits, and samplers to find the regions they look for"
    if isinstance(plan, Detector) or workload.image is None:
        choices.pick("scenes", None, (), sentence)
    height, width = (-(-side // 32) * 32 for side in workload.image or usual)
    subject = Scenes(
        plan, workload.micro_batch or 2, (height, width), workload.classes or classes, facts.weights
    )
    job = Job(
        subject,
        facts.weights,
        autocast=facts.autocast,
        sm=facts.sm,
        torch_version=facts.torch_version,
        processes=workload.gpus,
        update=_update(workload, facts, choices),
        convolution_workspaces=_workspaces(facts, choices),
    )
    return _parallel_job(workload, facts, job, choices)


def _workspaces(facts: _Facts, choices: _Choices) -> float:
    """Cards without tensor cores for fp32 run 3 by 3 convolutions by Winograd's method, in a workspace.

    Which kernel cuDNN picks is not known: others need none, or (by Fourier transforms) about twice as much.
    """
    if facts.weights is not float32 or facts.autocast is not None or facts.sm >= 80:
        return 0.0
    sentence = "cuDNN is taken to choose Winograd kernels for 3 by 3 convolutions in fp32, in a workspace"
    return float(choices.pick("convolution_workspaces", 1.0, (0.0, 2.0), sentence))


def _image_job(workload: Workload, facts: _Facts, choices: _Choices) -> Job:
    from torchwise_memory.families import vision

    name = vision.resolve(_required(workload.model, "model"))
    image = workload.image or vision.image_size(name)
    subject = ImageClassifier(
        name,
        int(_required(workload.micro_batch, "micro_batch")),
        image,
        workload.classes or 1000,
        facts.weights,
        checkpointing=workload.task == "train" and _checkpointing(workload, choices) == "full",
        fused=workload.compiled,
        attention="eager" if writes_attention_out(workload.attention) else "sdpa",
    )
    job = Job(
        subject,
        facts.weights,
        training=workload.task == "train",
        autocast=facts.autocast,
        sm=facts.sm,
        torch_version=facts.torch_version,
        processes=workload.gpus,
    )
    if workload.task == "train":
        job = replace(job, update=_update(workload, facts, choices))
        job = _parallel_job(workload, facts, job, choices)
    return job
