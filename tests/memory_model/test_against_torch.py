"""Shape, type, layout, what is saved and which gradients appear: expression by expression against a real
PyTorch.

Runs on the CPU there, so operators whose CPU kernels keep something else than the CUDA kernels are left to
`test_saved_bytes.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.memory_model.torch_like import Like, Namespace, unwrap

from torchwise_memory.library import FUNCTIONS
from torchwise_memory.runtime.device import CPU
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.tape import Accumulator, Packed
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed in this environment (see `make test-torch`)"
)
pytestmark = pytest.mark.torch

#: Leaves an expression may use: name -> (shape, type, largest integer).
LEAVES: dict[str, tuple[tuple[int, ...], str, int]] = {
    "x": ((8, 16, 32), "float32", 0),
    "y": ((8, 16, 32), "float32", 0),
    "z": ((16, 1), "float32", 0),
    "v": ((32,), "float32", 0),
    "m": ((32, 64), "float32", 0),
    "n": ((24, 32), "float32", 0),
    "b": ((8, 32, 24), "float32", 0),
    "q": ((2, 4, 16, 8), "float32", 0),
    "im": ((2, 8, 12, 12), "float32", 0),
    "w2": ((16, 8, 3, 3), "float32", 0),
    "wt": ((8, 4, 3, 3), "float32", 0),
    "wg": ((8, 1, 3, 3), "float32", 0),
    "au": ((2, 8, 40), "float32", 0),
    "w1": ((16, 8, 3), "float32", 0),
    "vol": ((2, 8, 6, 6, 6), "float32", 0),
    "w3": ((4, 8, 3, 3, 3), "float32", 0),
    "c8": ((8,), "float32", 0),
    "c16": ((16,), "float32", 0),
    "sq": ((4, 6, 6), "float32", 0),
    "lg": ((20, 50), "float32", 0),
    "seg": ((2, 5, 6, 6), "float32", 0),
    "tab": ((100, 16), "float32", 0),
    "h": ((8, 16, 32), "bfloat16", 0),
    "i": ((20,), "int64", 50),
    "i2": ((8, 16), "int64", 15),
    "i3": ((8, 16, 32), "int64", 7),
    "sl": ((2, 6, 6), "int64", 5),
    "k": ((8, 16, 32), "bool", 0),
    "k1": ((16, 32), "bool", 0),
}

UNARY = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "deg2rad",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "rad2deg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "abs",
    "square",
    "relu",
]
ACTIVATIONS = [
    "relu",
    "relu6",
    "hardtanh",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "gelu",
    "silu",
    "mish",
    "hardswish",
    "hardsigmoid",
    "softplus",
    "softsign",
    "tanhshrink",
    "hardshrink",
    "softshrink",
    "logsigmoid",
]
INPLACE_ACTIVATIONS = [
    "relu",
    "relu6",
    "hardtanh",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "silu",
    "mish",
    "hardswish",
    "hardsigmoid",
]

EXPRESSIONS = [
    *(f"torch.{name}(x)" for name in UNARY),
    *(f"F.{name}(x)" for name in ACTIVATIONS),
    *(f"F.{name}(x * 2, inplace=True)" for name in INPLACE_ACTIVATIONS),
    "F.glu(x, -1)",
    "F.prelu(x, c16)",
    "F.threshold(x, 0.1, 0.0)",
    "torch.logit(x, 1e-3)",
    # two operands
    "x + y",
    "x + v",
    "x + z",
    "x - y",
    "1 - x",
    "x * y",
    "x * v",
    "x * z",
    "x * 2",
    "x / y",
    "x / z",
    "x / 2",
    "2 / x",
    "x ** 2",
    "x ** 3.0",
    "2 ** x",
    "x ** y",
    "x.detach() // 2",
    "x % 2",
    "-x",
    "x.add(y, alpha=2)",
    "x.sub(y, alpha=2)",
    "torch.maximum(x, y)",
    "torch.minimum(x, v)",
    "torch.where(k, x, y)",
    "torch.where(k1, x, 0.0)",
    "x.masked_fill(k, 0.0)",
    "torch.clamp(x, min=0.0)",
    "x.clamp(0, 1)",
    "torch.atan2(x, y)",
    "torch.lerp(x, y, 0.3)",
    "torch.addcmul(x, y, v)",
    "torch.addcdiv(x, y, v)",
    "torch.hypot(x, y)",
    "torch.logaddexp(x, y)",
    "x.float() * h",
    "h * v",
    "h + 1.5",
    "h / 3",
    "torch.polar(x, y)",
    "torch.complex(x, y)",
    "torch.nan_to_num(x)",
    "i3 + 1.5",
    "i3 / 2",
    "i3 // 2",
    "i3 * h",
    "k + 1",
    "k * x",
    "i2 == 3",
    "x > y",
    "~k",
    "k & k",
    "i3 & 1",
    # in place
    "(x * 1).add_(y)",
    "(x * 1).mul_(y)",
    "(x * 1).mul_(2)",
    "(x * 1).div_(y)",
    "(x * 1).sub_(y)",
    "(x * 1).masked_fill_(k, 0.0)",
    "(x * 1).clamp_(0, 1)",
    "(x * 1).exp_()",
    "(x * 1).sigmoid_()",
    "(x * 1).tanh_()",
    "(x * 1).copy_(y)",
    "(x * 1).fill_(0)",
    "(x * 1).zero_()",
    "(x * 1).sqrt_()",
    "(x * 1).pow_(2)",
    "(x * 1).addcmul_(y, v)",
    # reductions
    *(
        f"x.{name}()"
        for name in (
            "sum",
            "mean",
            "prod",
            "var",
            "std",
            "max",
            "min",
            "amax",
            "norm",
            "argmax",
            "any",
            "all",
        )
    ),
    *(
        f"x.{name}(-1)"
        for name in (
            "sum",
            "mean",
            "prod",
            "var",
            "std",
            "max",
            "min",
            "amax",
            "argmax",
            "any",
            "cumsum",
            "cumprod",
            "logsumexp",
            "softmax",
            "log_softmax",
            "median",
        )
    ),
    "x.sum((0, 2), keepdim=True)",
    "x.mean(dim=(1, 2))",
    "x.mean(1, keepdim=True)",
    "x.norm(dim=-1)",
    "x.norm(2, -1, True)",
    "torch.linalg.vector_norm(x, dim=-1)",
    "torch.var_mean(x, -1)",
    "x.topk(4)",
    "x.sort()",
    "x.argsort()",
    "x.kthvalue(3)",
    "h.sum()",
    "h.float().mean()",
    "i3.sum()",
    "k.sum()",
    "x.sum(dtype=torch.float64)",
    "F.softmax(h, -1, dtype=torch.float32)",
    "x.cummax(1)",
    "x.diff()",
    "x.quantile(0.5, dim=-1)",
    "x.std(-1, keepdim=True)",
    "x.var(dim=1, unbiased=False)",
    # views
    "x.view(8, -1)",
    "x.view(128, 32)",
    "x.reshape(-1)",
    "x.transpose(1, 2)",
    "x.transpose(1, 2).reshape(8, -1)",
    "x.transpose(0, 1).contiguous()",
    "x.permute(2, 0, 1)",
    "x.flatten(1)",
    "x.unsqueeze(1)",
    "x[:, None]",
    "x[0]",
    "x[:, 1:5]",
    "x[..., ::2]",
    "x[:, -1]",
    "x[None, :, 3, ...]",
    "x.split(5, 1)",
    "x.split([4, 12], 1)",
    "x.chunk(4, -1)",
    "x.unbind(1)",
    "x.narrow(1, 2, 3)",
    "x.select(0, 1)",
    "x.expand(3, 8, 16, 32)",
    "v.expand(4, 32)",
    "x.expand(8, -1, 32)",
    "x.T",
    "x.mT",
    "x.movedim(0, -1)",
    "x.unflatten(2, (4, 8))",
    "x.squeeze()",
    "z.squeeze(-1)",
    "x.diagonal(0, 0, 1)",
    "x.unfold(2, 4, 2)",
    "x.repeat(2, 1, 1)",
    "v.repeat(3, 2)",
    "x.repeat_interleave(2, 1)",
    "x.tile(2, 2)",
    "x.flip(1)",
    "x.roll(1, 0)",
    "x.tril()",
    "torch.triu(x, 1)",
    "torch.cat([x, y], 1)",
    "torch.cat([x, h], 1)",
    "torch.stack([x, y])",
    "torch.hstack([x, y])",
    "torch.vstack([x, y])",
    "F.pad(x, (1, 2))",
    "F.pad(im, (1, 1, 1, 1), mode='reflect')",
    "x.clone()",
    "x.detach()",
    "x.to(torch.bfloat16)",
    "x.bfloat16().float()",
    "h.type_as(x)",
    "x.view_as(y)",
    "x.expand_as(y)",
    "im.to(memory_format=torch.channels_last)",
    "im.contiguous(memory_format=torch.channels_last) * 2",
    "torch.diag(v)",
    "torch.meshgrid(v, c8, indexing='ij')",
    "F.pixel_shuffle(im, 2)",
    "F.pixel_unshuffle(im, 2)",
    "x.transpose(1, 2) * 2",
    "x.transpose(1, 2) + y.transpose(1, 2)",
    "x.transpose(0, 2) + 1",
    "torch.relu(x.permute(2, 1, 0))",
    "x[:, ::2].exp()",
    "x.t() if x.dim() == 2 else x.adjoint()",
    "torch.view_as_complex(x.view(8, 16, 16, 2))",
    "torch.view_as_real(torch.complex(x, y))",
    # products
    "x @ m",
    "n @ x.transpose(1, 2)",
    "x @ b",
    "x.transpose(1, 2) @ y",
    "torch.bmm(x, b)",
    "q @ q.transpose(-2, -1)",
    "x @ v",
    "v @ m",
    "n @ m",
    "torch.mm(n, m)",
    "F.linear(x, n)",
    "F.linear(x, n, torch.ones(24))",
    "F.linear(x.transpose(0, 1), n)",
    "torch.addmm(torch.ones(64), n, m)",
    "torch.baddbmm(torch.ones(8, 16, 24), x, b)",
    "torch.outer(v, c8)",
    "torch.dot(v, v)",
    "torch.einsum('bsd,de->bse', x, m)",
    "torch.einsum('bsd,bde->bse', x, b)",
    "torch.einsum('bhqd,bhkd->bhqk', q, q)",
    "torch.tensordot(x, m, 1)",
    "torch.matmul(x[:, :1], b)",
    # convolution and pooling
    "F.conv2d(im, w2)",
    "F.conv2d(im, w2, c16, 2, 1)",
    "F.conv2d(im, w2, padding='same')",
    "F.conv2d(im, w2, stride=(2, 1), dilation=2)",
    "F.conv2d(im, wg, groups=8, padding=1)",
    "F.conv1d(au, w1, c16, padding=1)",
    "F.conv3d(vol, w3, padding=1)",
    "F.conv_transpose2d(im, wt, stride=2, padding=1, output_padding=1)",
    "F.avg_pool2d(im, 3, 2, 1)",
    "F.avg_pool2d(im, 2, ceil_mode=True)",
    "F.max_pool2d(im, 3, 2, 1)",
    "F.max_pool2d(im, 5, 2, ceil_mode=True)",
    "F.adaptive_avg_pool2d(im, 1)",
    "F.adaptive_avg_pool2d(im, (3, 4))",
    "F.adaptive_max_pool2d(im, 2)",
    "F.interpolate(im, scale_factor=2)",
    "F.interpolate(im, size=(5, 7), mode='bilinear')",
    "F.interpolate(au, scale_factor=2, mode='linear')",
    "F.unfold(im, 3, padding=1)",
    "F.grid_sample(im, torch.ones(2, 5, 5, 2), align_corners=False)",
    # normalization
    "F.layer_norm(x, (32,))",
    "F.layer_norm(x, (32,), v, v)",
    "F.layer_norm(x, (16, 32))",
    "F.group_norm(im, 4, c8, c8)",
    "F.batch_norm(im, torch.zeros(8), torch.ones(8), c8, c8, True)",
    "F.batch_norm(im, torch.zeros(8), torch.ones(8), c8, c8, False)",
    "F.normalize(x, dim=-1)",
    # embedding, indexing
    "F.embedding(i, tab)",
    "F.one_hot(i, 50)",
    "tab[i]",
    "x[i2[:, 0] % 8]",
    "x.gather(1, i3)",
    "tab.index_select(0, i)",
    "x.scatter(1, i3, y)",
    "x.scatter_add(1, i3, y)",
    "torch.zeros(8, 16, 32).scatter_(1, i3, 1.0)",
    "torch.zeros(100, 16).index_add(0, i, tab[:20])",
    "x.masked_scatter(k, y)",
    "x.index_fill(0, i2[0] % 8, 0.0)",
    "torch.take_along_dim(x, i3, 1)",
    # losses
    "F.cross_entropy(lg, i)",
    "F.cross_entropy(lg, i, reduction='none')",
    "F.cross_entropy(seg, sl)",
    "F.cross_entropy(lg, i, label_smoothing=0.1)",
    "F.cross_entropy(lg, lg.detach().softmax(-1))",
    "F.nll_loss(lg.log_softmax(-1), i)",
    "F.mse_loss(x, y)",
    "F.mse_loss(x, y.detach())",
    "F.l1_loss(x, y.detach())",
    "F.smooth_l1_loss(x, y)",
    "F.huber_loss(x, y)",
    "F.binary_cross_entropy_with_logits(x, y.detach())",
    "F.binary_cross_entropy(x.sigmoid(), y.detach().sigmoid())",
    "F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction='batchmean')",
    "F.cosine_similarity(x, y, dim=-1)",
    "F.pairwise_distance(lg, lg.detach())",
    "torch.cdist(x, y)",
    "F.cosine_embedding_loss(lg, lg.detach(), torch.ones(20))",
    "F.margin_ranking_loss(v, v.detach(), torch.ones(32))",
    "F.triplet_margin_loss(lg, lg * 2, lg * 3)",
    "F.poisson_nll_loss(x, y.detach())",
    "F.gaussian_nll_loss(lg, lg.detach(), lg.exp())",
    "F.soft_margin_loss(lg, lg.detach().sign())",
    "F.multi_margin_loss(lg, i)",
    # factories
    "torch.arange(10)",
    "torch.arange(1, 2, 0.25)",
    "torch.linspace(0, 1, 5)",
    "torch.zeros(3, 4)",
    "torch.full((2, 3), 1.5)",
    "torch.full((2, 3), 7)",
    "torch.eye(4)",
    "torch.tensor([[1, 2], [3, 4]])",
    "torch.tensor([1.5, 2])",
    "torch.tensor(3)",
    "torch.ones_like(x)",
    "torch.zeros_like(im.permute(0, 2, 3, 1))",
    "x.new_zeros(2, 3)",
    "torch.randint(0, 10, (3, 4))",
    "torch.tril(torch.ones(4, 4))",
    "torch.empty(3, dtype=torch.float16)",
    # linear algebra, Fourier
    "torch.linalg.inv(sq)",
    "torch.linalg.qr(sq)",
    "torch.linalg.solve(sq, sq)",
    "torch.fft.rfft(x)",
    "torch.fft.fft2(im)",
    "torch.fft.irfft(torch.fft.rfft(x))",
    "torch.linalg.matrix_norm(sq)",
    "torch.trace(sq[0])",
    # overloads, numbers for tensors, transforms
    "torch.tensor_split(x, indices=(4, 9), dim=1)",
    "torch.tensor_split(x, sections=4, dim=1)",
    "x[:1].broadcast_to(8, 16, 32)",
    "torch.div(7, 2)",
    "torch.mul(2, 3)",
    "torch.fft.fft(x)",
    "torch.fft.fft(torch.fft.fft(x)).real",
    "torch.fft.rfft2(x)",
    "torch.fft.irfft(torch.fft.rfft(x))",
    "F.one_hot(i, 60)",
]

# What a CPU kernel or a newer formula keeps besides, or less, than the CUDA path that is modelled.
SAVED_DIFFERS: dict[str, str] = {
    "F.logsigmoid(x)": "the CPU kernel keeps a buffer",
    "x.argsort()": "what the sort inside saves is dropped with its values at once",
    "F.batch_norm(im, torch.zeros(8), torch.ones(8), c8, c8, True)": "keeps running statistics",
}


class Ours:
    def __init__(self) -> None:
        self.w = World()
        self.names: dict[str, Any] = {
            "torch": Namespace(self.w, "torch"),
            "F": Namespace(self.w, "torch.nn.functional"),
        }
        for name, (shape, dtype, _) in LEAVES.items():
            leaf = self.w.new(shape, DTYPES[dtype], "leaf", CPU)
            leaf.requires_grad = DTYPES[dtype].is_differentiable
            self.names[name] = Like(self.w, leaf)


def _theirs() -> dict[str, Any]:
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    for name, (shape, dtype, largest) in LEAVES.items():
        if dtype == "bool":
            leaf = torch.rand(shape) > 0.5
        elif largest:
            leaf = torch.randint(0, largest, shape)
        else:
            leaf = (torch.rand(shape) * 0.8 + 0.1).to(getattr(torch, dtype)).requires_grad_()
        names[name] = leaf
    return names


def _flat(value: Any, kind: type) -> list[Any]:
    if isinstance(value, kind):
        return [value]
    if isinstance(value, list | tuple):
        return [item for element in value for item in _flat(element, kind)]
    return []


def _layout(shape: Any, strides: Any) -> list[int | None]:
    return [stride if extent > 1 else None for extent, stride in zip(shape, strides, strict=True)]


def _saved_bytes(roots: list[Tensor]) -> int:
    kept: dict[int, int] = {}
    seen: set[int] = set()
    stack: list[Any] = [root.node for root in roots if root.node is not None]
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, Accumulator):
            continue
        seen.add(id(node))
        for slot in node.saved or ():
            assert not isinstance(slot, Packed)
            if slot is not None and slot.storage.bytes > 8:
                kept[id(slot.storage)] = slot.storage.bytes
        stack.extend(edge[0] for edge in node.edges if edge is not None)
    return sum(kept.values())


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression(expression: str) -> None:
    torch.manual_seed(0)
    theirs, saved = _theirs(), {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.nbytes() > 8:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        real = _flat(eval(expression, theirs), torch.Tensor)
    ours = Ours()
    mine = [unwrap(item) for item in _flat(eval(expression, ours.names), Like)]
    assert len(mine) == len(real)
    for a, r in zip(mine, real, strict=True):
        assert tuple(a.shape) == tuple(r.shape)
        assert repr(a.dtype) == str(r.dtype)
        assert _layout(a.shape, a.strides) == _layout(r.shape, r.stride())
        assert a.requires_grad == r.requires_grad
        assert a.is_leaf == r.is_leaf
    if expression not in SAVED_DIFFERS:
        assert _saved_bytes(mine) == sum(size for size, _ in saved.values())
    roots = [(a, r) for a, r in zip(mine, real, strict=True) if r.requires_grad]
    if not roots:
        return
    FUNCTIONS["torch.autograd.backward"].invoke(
        ours.w, ([a for a, _ in roots], [ours.w.like(a, "gradient") for a, _ in roots]), {}
    )
    torch.autograd.backward([r for _, r in roots], [torch.ones_like(r) for _, r in roots])
    for name, (_, dtype, _) in LEAVES.items():
        if DTYPES[dtype].is_differentiable:
            mine_grad, real_grad = ours.names[name].tensor.grad, theirs[name].grad
            assert (mine_grad is None) == (real_grad is None), name
            if mine_grad is not None:
                assert tuple(mine_grad.shape) == tuple(real_grad.shape)
                assert repr(mine_grad.dtype) == str(real_grad.dtype)
                assert _layout(mine_grad.shape, mine_grad.strides) == _layout(
                    real_grad.shape, real_grad.stride()
                )
