"""Every ordinary module of torch.nn runs forward and backward and gives the shape that PyTorch documents."""

from __future__ import annotations

from typing import Any

import pytest

from torchwise_memory.classes import CLASSES
from torchwise_memory.library import METHODS
from torchwise_memory.modules.base import call
from torchwise_memory.runtime.device import CUDA
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.ledger import SummingAllocator
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

Shape = tuple[int, ...]

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], Shape, Shape]] = [
    ("Identity", (), {}, (2, 3), (2, 3)),
    ("Linear", (8, 4), {}, (2, 5, 8), (2, 5, 4)),
    ("LazyLinear", (4,), {}, (2, 8), (2, 4)),
    ("Flatten", (), {}, (2, 3, 4), (2, 12)),
    ("Unflatten", (1, (2, 3)), {}, (4, 6), (4, 2, 3)),
    ("Conv1d", (4, 8, 3), {"padding": 1}, (2, 4, 16), (2, 8, 16)),
    ("Conv1d", (4, 8, 3), {"padding": "same", "dilation": 2}, (2, 4, 16), (2, 8, 16)),
    ("Conv2d", (4, 8, 3), {"stride": 2, "padding": 1}, (2, 4, 16, 16), (2, 8, 8, 8)),
    ("Conv2d", (4, 8, 3), {"padding": 1, "padding_mode": "reflect"}, (2, 4, 16, 16), (2, 8, 16, 16)),
    ("Conv2d", (4, 8, (3, 5)), {"groups": 4, "padding": (1, 2)}, (2, 4, 16, 16), (2, 8, 16, 16)),
    ("Conv3d", (2, 4, 3), {}, (1, 2, 8, 8, 8), (1, 4, 6, 6, 6)),
    ("ConvTranspose1d", (4, 8, 4), {"stride": 2, "padding": 1}, (2, 4, 16), (2, 8, 32)),
    ("ConvTranspose2d", (4, 8, 2), {"stride": 2}, (2, 4, 8, 8), (2, 8, 16, 16)),
    ("ConvTranspose3d", (2, 4, 3), {}, (1, 2, 4, 4, 4), (1, 4, 6, 6, 6)),
    ("BatchNorm1d", (8,), {}, (4, 8), (4, 8)),
    ("BatchNorm2d", (8,), {}, (4, 8, 5, 5), (4, 8, 5, 5)),
    ("BatchNorm2d", (8,), {"affine": False, "track_running_stats": False}, (4, 8, 5, 5), (4, 8, 5, 5)),
    ("BatchNorm3d", (8,), {}, (4, 8, 5, 5, 5), (4, 8, 5, 5, 5)),
    ("SyncBatchNorm", (8,), {}, (4, 8, 5, 5), (4, 8, 5, 5)),
    ("InstanceNorm2d", (8,), {"affine": True}, (4, 8, 5, 5), (4, 8, 5, 5)),
    ("LayerNorm", (8,), {}, (2, 3, 8), (2, 3, 8)),
    ("LayerNorm", ((3, 8),), {"elementwise_affine": False}, (2, 3, 8), (2, 3, 8)),
    ("RMSNorm", (8,), {}, (2, 3, 8), (2, 3, 8)),
    ("GroupNorm", (2, 8), {}, (2, 8, 4, 4), (2, 8, 4, 4)),
    ("LocalResponseNorm", (2,), {}, (2, 8, 4, 4), (2, 8, 4, 4)),
    *((name, (), {}, (2, 6), (2, 6)) for name in (
        "ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Hardswish",
        "Hardsigmoid", "Hardtanh", "Hardshrink", "Softshrink", "Tanhshrink", "Sigmoid", "Tanh", "LogSigmoid",
        "Softplus", "Softsign", "PReLU", "Dropout", "AlphaDropout",
    )),
    ("ReLU", (True,), {}, (2, 6), (2, 6)),
    ("GELU", (), {"approximate": "tanh"}, (2, 6), (2, 6)),
    ("Threshold", (0.1, 20.0), {}, (2, 6), (2, 6)),
    ("GLU", (), {}, (2, 6), (2, 3)),
    ("Softmax", (-1,), {}, (2, 6), (2, 6)),
    ("LogSoftmax", (), {"dim": 1}, (2, 6), (2, 6)),
    ("Softmin", (1,), {}, (2, 6), (2, 6)),
    ("Softmax2d", (), {}, (2, 3, 4, 4), (2, 3, 4, 4)),
    ("Dropout1d", (), {}, (2, 3, 4), (2, 3, 4)),
    ("Dropout2d", (0.2,), {}, (2, 3, 4, 4), (2, 3, 4, 4)),
    ("Dropout3d", (0.2,), {}, (2, 3, 4, 4, 4), (2, 3, 4, 4, 4)),
    ("MaxPool1d", (2,), {}, (2, 3, 8), (2, 3, 4)),
    ("MaxPool2d", (3,), {"stride": 2, "padding": 1}, (2, 3, 8, 8), (2, 3, 4, 4)),
    ("MaxPool3d", (2,), {}, (2, 3, 8, 8, 8), (2, 3, 4, 4, 4)),
    ("AvgPool1d", (2,), {}, (2, 3, 8), (2, 3, 4)),
    ("AvgPool2d", (2,), {}, (2, 3, 8, 8), (2, 3, 4, 4)),
    ("AvgPool3d", (2,), {}, (2, 3, 8, 8, 8), (2, 3, 4, 4, 4)),
    ("AdaptiveAvgPool1d", (1,), {}, (2, 3, 8), (2, 3, 1)),
    ("AdaptiveAvgPool2d", ((1, 1),), {}, (2, 3, 8, 8), (2, 3, 1, 1)),
    ("AdaptiveMaxPool2d", (2,), {}, (2, 3, 8, 8), (2, 3, 2, 2)),
    ("LPPool2d", (2, 2), {}, (2, 3, 8, 8), (2, 3, 4, 4)),
    ("ZeroPad2d", (1,), {}, (2, 3, 8, 8), (2, 3, 10, 10)),
    ("ConstantPad1d", (2, 1.5), {}, (2, 3, 8), (2, 3, 12)),
    ("ReflectionPad2d", ((1, 2, 3, 0),), {}, (2, 3, 8, 8), (2, 3, 11, 11)),
    ("ReplicationPad2d", (1,), {}, (2, 3, 8, 8), (2, 3, 10, 10)),
    ("CircularPad2d", (1,), {}, (2, 3, 8, 8), (2, 3, 10, 10)),
    ("Upsample", (), {"scale_factor": 2, "mode": "bilinear"}, (2, 3, 8, 8), (2, 3, 16, 16)),
    ("Upsample", ((5, 7),), {}, (2, 3, 8, 8), (2, 3, 5, 7)),
    ("UpsamplingBilinear2d", (), {"scale_factor": 2}, (2, 3, 8, 8), (2, 3, 16, 16)),
    ("PixelShuffle", (2,), {}, (2, 8, 4, 4), (2, 2, 8, 8)),
    ("PixelUnshuffle", (2,), {}, (2, 2, 8, 8), (2, 8, 4, 4)),
    ("ChannelShuffle", (2,), {}, (2, 8, 4, 4), (2, 8, 4, 4)),
    ("Unfold", (3,), {"padding": 1}, (2, 3, 8, 8), (2, 27, 64)),
    ("Fold", ((8, 8), 3), {"padding": 1}, (2, 27, 64), (2, 3, 8, 8)),
    ("TransformerEncoderLayer", (16, 2), {"batch_first": True}, (2, 5, 16), (2, 5, 16)),
    ("RNN", (8, 16), {}, (5, 2, 8), (5, 2, 16)),
    ("LSTM", (8, 16), {"num_layers": 2, "bidirectional": True, "batch_first": True}, (2, 5, 8), (2, 5, 32)),
    ("GRU", (8, 16), {"batch_first": True}, (5, 8), (5, 16)),
    ("LSTMCell", (8, 16), {}, (2, 8), (2, 16)),
    ("GRUCell", (8, 16), {}, (2, 8), (2, 16)),
    ("RNNCell", (8, 16), {}, (2, 8), (2, 16)),
]  # fmt: skip


def make(w: World, name: str, *args: Any, **kwargs: Any) -> Any:
    native = CLASSES[f"torch.nn.{name}"]
    made = native.make()
    native.construct(w, made, *args, **kwargs)
    return made.to(w, CUDA)


def tensor(w: World, shape: Shape, dtype: str = "float32", grad: bool = False) -> Tensor:
    made = w.new(shape, DTYPES[dtype], "randn")
    made.requires_grad = grad
    return made


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "given", "expected"),
    CASES,
    ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)],
)
def test_forward_and_backward(name: str, args: Any, kwargs: Any, given: Shape, expected: Shape) -> None:
    w = World(SummingAllocator())
    module = make(w, name, *args, **kwargs)
    x = tensor(w, given, grad=True)
    # in-place modules refuse leaves that require a gradient, in torch too
    output: Any = call(w, module, (METHODS["mul"].call(w, x, 1.0),), {})
    while isinstance(output, tuple):
        output = output[0]
    assert tuple(output.shape) == expected
    METHODS["backward"].call(w, METHODS["sum"].call(w, output))
    assert x.grad is not None
    assert x.grad.shape == x.shape
    for _, parameter in module.walk_parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape


LOSSES: list[tuple[str, dict[str, Any], tuple[tuple[Shape, str], ...]]] = [
    ("CrossEntropyLoss", {"label_smoothing": 0.1}, (((4, 10), "float32"), ((4,), "int64"))),
    ("NLLLoss", {}, (((4, 10), "float32"), ((4,), "int64"))),
    ("MSELoss", {}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("L1Loss", {"reduction": "sum"}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("SmoothL1Loss", {}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("HuberLoss", {}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("BCELoss", {}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("BCEWithLogitsLoss", {}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("KLDivLoss", {"reduction": "batchmean"}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("CosineEmbeddingLoss", {}, (((4, 10), "float32"), ((4, 10), "float32"), ((4,), "float32"))),
    ("MarginRankingLoss", {}, (((4,), "float32"), ((4,), "float32"), ((4,), "float32"))),
    ("TripletMarginLoss", {}, (((4, 10), "float32"),) * 3),
    ("HingeEmbeddingLoss", {}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("SoftMarginLoss", {}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("MultiLabelSoftMarginLoss", {}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("PoissonNLLLoss", {}, (((4, 10), "float32"), ((4, 10), "float32"))),
    ("GaussianNLLLoss", {}, (((4, 10), "float32"), ((4, 10), "float32"), ((4, 10), "float32"))),
]


@pytest.mark.parametrize(("name", "kwargs", "given"), LOSSES, ids=[case[0] for case in LOSSES])
def test_losses_are_scalars_with_a_gradient(name: str, kwargs: Any, given: Any) -> None:
    w = World(SummingAllocator())
    inputs = [tensor(w, shape, dtype, grad=i == 0) for i, (shape, dtype) in enumerate(given)]
    loss: Any = call(w, make(w, name, **kwargs), inputs, {})
    assert loss.shape == ()
    METHODS["backward"].call(w, loss)
    assert inputs[0].grad is not None


def test_embeddings_take_indices() -> None:
    w = World(SummingAllocator())
    indices = tensor(w, (2, 5), "int64")
    embedded: Any = call(w, make(w, "Embedding", 10, 4), (indices,), {})
    assert embedded.shape == (2, 5, 4)
    bagged: Any = call(w, make(w, "EmbeddingBag", 10, 4), (indices,), {})
    assert bagged.shape == (2, 4)


def test_decoder_and_whole_transformer() -> None:
    w = World(SummingAllocator())
    x, memory = tensor(w, (2, 5, 16), grad=True), tensor(w, (2, 7, 16))
    layer = make(w, "TransformerDecoderLayer", 16, 2, batch_first=True)
    decoded: Any = call(w, layer, (x, memory), {})
    assert decoded.shape == (2, 5, 16)
    stack = make(w, "TransformerEncoder", make(w, "TransformerEncoderLayer", 16, 2, batch_first=True), 3)
    mask = (
        CLASSES["torch.nn.Transformer"].statics["generate_square_subsequent_mask"].call(w, 5, device="cuda")
    )
    padding = tensor(w, (2, 5), "bool")
    encoded: Any = call(w, stack, (x,), {"mask": mask, "src_key_padding_mask": padding})
    assert encoded.shape == (2, 5, 16)
    model = make(w, "Transformer", 16, 2, 1, 1, 32, batch_first=True)
    output: Any = call(w, model, (x, memory), {})
    assert output.shape == (2, 7, 16)


def test_batch_norms_are_converted_and_keep_their_parameters() -> None:
    w = World(SummingAllocator())
    model = make(w, "Sequential", make(w, "Conv2d", 3, 4, 3), make(w, "BatchNorm2d", 4))
    weight = model.children["1"].parameters["weight"]
    converted = CLASSES["torch.nn.SyncBatchNorm"].statics["convert_sync_batchnorm"].call(w, model)
    assert converted.children["1"].native_name == "torch.nn.SyncBatchNorm"
    assert converted.children["1"].parameters["weight"] is weight


def test_attention_with_weights_and_other_key_sizes() -> None:
    w = World(SummingAllocator())
    query, key = tensor(w, (2, 5, 16), grad=True), tensor(w, (2, 7, 8))
    attention = make(w, "MultiheadAttention", 16, 4, kdim=8, vdim=8, batch_first=True)
    result: Any = call(w, attention, (query, key, key), {})
    output, weights = result
    assert output.shape == (2, 5, 16)
    assert weights.shape == (2, 5, 7)


def test_packed_sequences_pass_through_a_recurrent_layer() -> None:
    from torchwise_memory.classes import CLASS_FUNCTIONS

    w = World(SummingAllocator())
    pack = CLASS_FUNCTIONS["torch.nn.utils.rnn.pack_padded_sequence"]
    pad = CLASS_FUNCTIONS["torch.nn.utils.rnn.pad_packed_sequence"]
    packed = pack.call(w, tensor(w, (2, 5, 8), grad=True), [5, 3], batch_first=True)
    result: Any = call(w, make(w, "LSTM", 8, 16, batch_first=True), (packed,), {})
    output = result[0]
    padded, lengths = pad.call(w, output, batch_first=True)
    assert padded.shape == (2, 5, 16)
    assert lengths.shape == (2,)
