"""What described jobs train or run, as the simulation wants it."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from torchwise_memory.adapting import places_called
from torchwise_memory.families.adapted import adapt
from torchwise_memory.families.base import Config
from torchwise_memory.families.decoder import Decoder, DecoderShape, Style
from torchwise_memory.families.detection import Detector
from torchwise_memory.families.projections import Adapter, Projections, PromptShape, Quantised
from torchwise_memory.families.segmentation import Segmenter
from torchwise_memory.modules.base import Module, call
from torchwise_memory.modules.ops import method
from torchwise_memory.runtime.dtypes import DType, float32, int64, uint8
from torchwise_memory.runtime.ledger import StorageKind
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World


@dataclass(frozen=True, slots=True)
class DecoderSubject:
    """A language model over (batch, tokens).

    cached: positions of keys and values kept a layer. prompt: what is learned before the text.
    """

    shape: DecoderShape
    style: Style
    make: Projections
    batch: int
    tokens: int
    cached: int = 0
    cache_bytes: float = 2.0
    loss: bool = True
    last_only: bool = True
    prompt: PromptShape | None = None

    @property
    def layers(self) -> int:
        return self.shape.layers

    @property
    def period(self) -> int:
        """Layers after which their kinds repeat; a style that checkpoints every second layer counts too."""
        return lcm(self.shape.period, 2 if self.style.checkpointing == "half" else 1)

    @property
    def leading(self) -> int:
        """Layers at the start that are of another kind."""
        return self.shape.dense_layers

    def build(self, w: World, layers: int) -> Module:
        model = Decoder()
        model.build(w, self.shape, self.style, self.make, layers, self.prompt)
        if self.cached:
            size = int(self._cached_values(layers) * self.cache_bytes)
            model.fields["cache"] = w.new((size,), uint8, "key/value cache", kind=StorageKind.BUFFERS)
        return model.to(w, "cuda")

    def _cached_values(self, layers: int) -> int:
        """Elements of keys and values; layers with a window keep no more than it, latents are kept narrow."""
        shape = self.shape
        each = 2 * shape.kv_heads * shape.head_dim
        if shape.latent is not None:
            each = shape.latent.rank + shape.latent.turning
        seen = 0
        for index in range(layers):
            within = shape.window if shape.is_windowed(index) and shape.window else self.cached
            seen += min(self.cached, within)
        return self.batch * each * seen

    def blocks(self, model: Module) -> list[Module]:
        assert isinstance(model, Decoder)
        return model.blocks

    def run(self, w: World, model: Module) -> Tensor:
        tokens = w.new((self.batch, self.tokens), int64, "tokens", kind=StorageKind.INPUT)
        labels = tokens if self.loss else None
        result = call(w, model, (tokens, labels, not self.loss and self.last_only), {})
        assert isinstance(result, Tensor)
        return result


@dataclass(frozen=True, slots=True)
class Beside:
    """What is put into a library model: adapters, packed weights, or neither."""

    adapter: Adapter | None = None
    quantised: Quantised | None = None

    def put(self, w: World, model: Module, compute: DType) -> None:
        if self.adapter is not None or self.quantised is not None:
            adapt(w, model, self.adapter, self.quantised, compute, places_called)


PLAIN = Beside()


@dataclass(frozen=True, slots=True)
class TokenClassifier:
    """An encoder of transformers with a classification head."""

    kind: str
    config: dict[str, object]
    attention: str
    batch: int
    tokens: int
    checkpointing: bool = False
    depth_field: str = "num_hidden_layers"
    head: str = "AutoModelForSequenceClassification"
    beside: Beside = PLAIN
    compute: DType = float32

    @property
    def layers(self) -> int:
        depth = self.config[self.depth_field]
        assert isinstance(depth, int)
        return depth

    def build(self, w: World, layers: int) -> Module:
        from torchwise_memory import families

        config = families.config_of(self.kind, **{**self.config, self.depth_field: layers})
        model = families.build(w, self.head, config, w.default_dtype, self.attention)
        self.beside.put(w, model, self.compute)
        if self.checkpointing:
            model.gradient_checkpointing_enable(w, {"use_reentrant": False})
            if self.beside.adapter is not None:
                model.enable_input_require_grads(w)
        return model.to(w, "cuda")

    def blocks(self, model: Module) -> list[Module]:
        names = ("BertLayer", "DistilBertBlock", "MPNetLayer")
        return [module for _, module in model.walk() if type(module).__name__ in names]

    def run(self, w: World, model: Module) -> Tensor:
        tokens = w.new((self.batch, self.tokens), int64, "tokens", kind=StorageKind.INPUT)
        labels = w.new((self.batch,), int64, "labels", kind=StorageKind.INPUT)
        outputs = call(w, model, (), {"input_ids": tokens, "labels": labels})
        loss = outputs.lookup("loss")  # type: ignore[attr-defined]
        assert isinstance(loss, Tensor)
        return loss


@dataclass(frozen=True, slots=True)
class EncoderDecoder:
    """An encoder-decoder of transformers; every layer is run.

    generated: 0 under the loss of `target` labels; else the token that is the last of so many is computed,
    with keys and values of all of them and of the source at hand.
    """

    kind: str
    config: dict[str, object]
    attention: str
    batch: int
    source: int
    target: int
    checkpointing: bool = False
    beside: Beside = PLAIN
    compute: DType = float32
    generated: int = 0

    @property
    def layers(self) -> int:
        return 1

    def build(self, w: World, layers: int) -> Module:
        from torchwise_memory import families

        config = families.config_of(self.kind, **self.config)
        head = "AutoModelForSpeechSeq2Seq" if self.kind == "whisper" else "AutoModelForSeq2SeqLM"
        model = families.build(w, head, config, w.default_dtype, self.attention)
        self.beside.put(w, model, self.compute)
        if self.checkpointing:
            model.gradient_checkpointing_enable(w, {"use_reentrant": False})
            if self.beside.adapter is not None:
                model.enable_input_require_grads(w)
        if self.generated:
            size = self._cached_values(config) * self.compute.itemsize
            model.fields["cache"] = w.new((size,), uint8, "key/value cache", kind=StorageKind.BUFFERS)
        return model.to(w, "cuda")

    def _cached_values(self, config: Config) -> int:
        """Elements of the keys and values of the text so far and of the source, in every decoder layer."""
        if self.kind in ("t5", "mt5"):
            layers = config.lookup("num_decoder_layers") or config.integer("num_layers")
            width = config.integer("num_heads") * config.integer("d_kv")
        else:
            layers, width = config.integer("decoder_layers"), config.integer("d_model")
        assert isinstance(layers, int)
        source = self.source // 2 if self.kind == "whisper" else self.source
        return 2 * layers * width * self.batch * (self.generated + source)

    def blocks(self, model: Module) -> list[Module]:
        from torchwise_memory.families.base import Block

        return [module for _, module in model.walk() if isinstance(module, Block)]

    def run(self, w: World, model: Module) -> Tensor:
        given: dict[str, object] = {}
        if self.generated:
            given["decoder_input_ids"] = w.new((self.batch, 1), int64, "token", kind=StorageKind.INPUT)
            given["use_cache"] = False
        else:
            shape: tuple[int, ...] = (self.batch, self.target)
            given["labels"] = w.new(shape, int64, "labels", kind=StorageKind.INPUT)
        if self.kind == "whisper":
            mels = self.config.get("num_mel_bins", 80)
            assert isinstance(mels, int)
            shape = (self.batch, mels, self.source)
            given["input_features"] = w.new(shape, w.default_dtype, "features", kind=StorageKind.INPUT)
        else:
            given["input_ids"] = w.new((self.batch, self.source), int64, "tokens", kind=StorageKind.INPUT)
        outputs = call(w, model, (), given)
        result = outputs.lookup("logits" if self.generated else "loss")  # type: ignore[attr-defined]
        assert isinstance(result, Tensor)
        return result


@dataclass(frozen=True, slots=True)
class ImageClassifier:
    """A classifier over pixels; `make` builds the model with so many of its alike layers."""

    name: str
    batch: int
    image: tuple[int, int]
    classes: int
    dtype: DType
    channels_last: bool = False
    checkpointing: bool = False
    fused: bool = False
    attention: str = "sdpa"

    @property
    def layers(self) -> int:
        from torchwise_memory.families import vision

        return vision.depth(self.name)

    def build(self, w: World, layers: int) -> Module:
        from torchwise_memory.families import vision

        options = vision.Options(checkpointing=self.checkpointing, fused=self.fused, attention=self.attention)
        model = vision.build(w, self.name, self.classes, self.image, options, layers)
        return model.to(w, "cuda")

    def blocks(self, model: Module) -> list[Module]:
        from torchwise_memory.families import vision

        return vision.blocks(self.name, model)

    def run(self, w: World, model: Module) -> Tensor:
        from torchwise_memory.modules.ops import functional

        pixels = w.new((self.batch, 3, *self.image), self.dtype, "pixels", kind=StorageKind.INPUT)
        labels = w.new((self.batch,), int64, "labels", kind=StorageKind.INPUT)
        logits = call(w, model, (pixels,), {})
        assert isinstance(logits, Tensor)
        if w.autocast_dtype is None and logits.dtype.itemsize == 2:
            logits = method(w, "float", logits)
        loss = functional(w, "cross_entropy", logits, labels)
        assert isinstance(loss, Tensor)
        return loss


@dataclass(frozen=True, slots=True)
class Scenes:
    """A detector or a segmenter over a batch of images, all of its losses added up."""

    plan: Detector | Segmenter
    batch: int
    image: tuple[int, int]
    classes: int
    dtype: DType

    @property
    def layers(self) -> int:
        return 1

    def build(self, w: World, layers: int) -> Module:
        from torchwise_memory.families.detection import DetectionModel
        from torchwise_memory.families.segmentation import SegmentationModel

        if isinstance(self.plan, Segmenter):
            return SegmentationModel().build(w, self.plan, self.classes).to(w, "cuda")
        return DetectionModel().build(w, self.plan, self.classes).to(w, "cuda")

    def blocks(self, model: Module) -> list[Module]:
        return []

    def run(self, w: World, model: Module) -> Tensor:
        # images arrive as they are and are put together, normalised
        sizes = (self.batch, 3, *self.image)
        arrived = w.new(sizes, uint8, "images", kind=StorageKind.INPUT)
        pixels = w.new(sizes, self.dtype, "pixels", kind=StorageKind.INPUT)
        loss = call(w, model, (pixels,), {})
        del arrived
        assert isinstance(loss, Tensor)
        return loss
