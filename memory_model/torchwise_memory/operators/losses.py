"""Losses, composed as torch composes them."""

from __future__ import annotations

from .pointwise import (
    UNARY,
    add,
    apply_unary,
    apply_unary_,
    clamp,
    clamp_,
    clone,
    div,
    mul,
    power,
    sub,
    where,
)
from .reductions import log_softmax_as_is, mean, total, vector_norm
from .registry import operator
from .support import (
    Gradients,
    Saved,
    Shape,
    Tensor,
    Unsupported,
    World,
    dtypes,
    elementwise,
    high,
    record,
    result_type,
)
from .views import reshape_to


def _reduction(name: str, reduction: object, size_average: object = None, reduce: object = None) -> str:
    """ "mean", "sum" or "none", also from the two flags of old."""
    if size_average is not None or reduce is not None:
        if reduce is False:
            return "none"
        return "sum" if size_average is False else "mean"
    if reduction in ("mean", "sum", "none", "batchmean"):
        return str(reduction)
    raise Unsupported(name, f"reduction {reduction!r} is not known")


def _reduced(w: World, loss: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    return total(w, loss) if reduction == "sum" else mean(w, loss)


class _LossBack:
    """One gradient of the input's size, for each operand that needs one."""

    __slots__ = ("name", "needs", "temporaries")

    def __init__(self, name: str, needs: tuple[bool, ...], temporaries: int = 0) -> None:
        self.name = name
        self.needs = needs
        self.temporaries = temporaries

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        x = saved[0]
        assert x is not None
        results: Gradients = []
        for needed in self.needs:
            if not needed:
                results.append(None)
                continue
            held = [w.like(x, self.name) for _ in range(self.temporaries)]
            results.append(w.like(x, self.name))
            held.clear()
        return results


# --- classification


@operator("torch.nn.functional.cross_entropy")
def cross_entropy(
    w: World,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """log_softmax in the input's own type, then nll_loss, which autocast runs in fp32 on a copy."""
    name = "torch.nn.functional.cross_entropy"
    kind = _reduction(name, reduction, size_average, reduce)
    if not input.shape:
        raise Unsupported(name, "a zero-dimensional input; torch raises here")
    if target.shape == input.shape and target.dtype.is_floating_point:
        return _soft_cross_entropy(w, input, target, weight, kind)
    log_probabilities = log_softmax_as_is(w, input, 1 if input.ndim > 1 else 0)
    if not label_smoothing:
        return _nll(w, name, log_probabilities, target, weight, kind)
    return _smoothed(w, name, log_probabilities, target, weight, kind, label_smoothing)


def _smoothed(
    w: World,
    name: str,
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    kind: str,
    smoothing: float,
) -> Tensor:
    from .pointwise import masked_fill_

    classes = 1 if log_probabilities.ndim > 1 else 0
    nll = _nll(w, name, log_probabilities, target, weight, kind)
    smooth = apply_unary(w, UNARY["neg"], total(w, log_probabilities, classes))
    ignored = w.new(target.shape, dtypes.boolean, "eq", target.storage.device)
    smooth = masked_fill_(w, smooth, ignored, 0.0)
    if kind == "mean":
        valid = w.new((), dtypes.int64, "sum", target.storage.device)
        smooth = div(w, total(w, smooth), valid)
    elif kind == "sum":
        smooth = total(w, smooth)
    count = log_probabilities.shape[classes]
    return add(w, mul(w, nll, 1 - smoothing), mul(w, smooth, smoothing / count))


def _soft_cross_entropy(w: World, input: Tensor, target: Tensor, weight: Tensor | None, kind: str) -> Tensor:
    """Targets as probabilities: -(log_softmax * target).sum()."""
    classes = 1 if input.ndim > 1 else 0
    log_probabilities = log_softmax_as_is(w, input, classes)
    product = mul(w, log_probabilities, target)
    del log_probabilities
    if weight is not None:
        product = mul(w, product, reshape_to(w, weight, (weight.shape[0], *(1 for _ in input.shape[2:]))))
    if kind == "none":
        return apply_unary(w, UNARY["neg"], total(w, product, classes))
    loss = apply_unary(w, UNARY["neg"], total(w, product))
    return loss if kind == "sum" else div(w, loss, max(input.numel // input.shape[classes], 1))


@operator("torch.nn.functional.nll_loss")
def nll_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    name = "torch.nn.functional.nll_loss"
    return _nll(w, name, input, target, weight, _reduction(name, reduction, size_average, reduce))


def _nll(w: World, name: str, input: Tensor, target: Tensor, weight: Tensor | None, kind: str) -> Tensor:
    """Of the autocast class "fp32". Keeps input and target."""
    expected = input.shape[:1] + input.shape[2:] if input.ndim > 1 else ()
    if target.shape != expected:
        raise Unsupported(
            name, f"input {tuple(input.shape)} with target {tuple(target.shape)}; torch raises here"
        )
    if target.storage.device != input.storage.device:
        raise Unsupported(
            name, f"input on {input.storage.device}, target on {target.storage.device}; torch raises here"
        )
    x = high(w, input)
    shape: Shape = () if kind in ("mean", "sum") else target.shape
    result = w.new(shape, x.dtype, "nll_loss", x.storage.device)
    total = w.new((), x.dtype, "nll_loss total_weight", x.storage.device)
    record(w, "nll_loss", (x,), (x, target, total, weight), _LossBack("nll_loss_backward", (True,)), result)
    return result


@operator("torch.nn.functional.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    w: World,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Of the autocast class "fp32". Keeps input and target; two full-size temporaries each way."""
    name = "torch.nn.functional.binary_cross_entropy_with_logits"
    kind = _reduction(name, reduction, size_average, reduce)
    if target.shape != input.shape:
        raise Unsupported(
            name, f"input {tuple(input.shape)} with target {tuple(target.shape)}; torch raises here"
        )
    x, y = high(w, input), high(w, target)
    log_sigmoid = w.like(x, "log_sigmoid")
    loss = w.new(x.shape, result_type(w, x, y), "binary_cross_entropy_with_logits", x.storage.device)
    del log_sigmoid
    result = w.new((), loss.dtype, kind, x.storage.device) if kind != "none" else loss
    del loss
    back = _LossBack(name, (x.requires_grad, y.requires_grad), 1)
    record(w, "bce_with_logits", (x, y), (x, y, weight, pos_weight), back, result)
    return result


@operator("torch.nn.functional.binary_cross_entropy")
def binary_cross_entropy(
    w: World,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Refused by CUDA autocast. Keeps input and target."""
    name = "torch.nn.functional.binary_cross_entropy"
    kind = _reduction(name, reduction, size_average, reduce)
    if w.autocast_dtype is not None and input.device.on_card:
        raise Unsupported(
            name, "unsafe under autocast; torch raises here (use binary_cross_entropy_with_logits)"
        )
    return _pairwise(w, "binary_cross_entropy", input, target, kind, (weight,))


# --- regression


def _pairwise(
    w: World, name: str, input: Tensor, target: Tensor, kind: str, extra: tuple[Tensor | None, ...] = ()
) -> Tensor:
    """One kernel over two tensors that keeps both and reduces inside (a full-size loss on the way)."""
    loss = elementwise(w, name, result_type(w, input, target), input, target)
    result = loss if kind == "none" else w.new((), loss.dtype, name, loss.storage.device)
    shape = loss.shape
    del loss
    needs = (input.requires_grad, target.requires_grad)
    record(w, name, (input, target), (input, target, *extra), _PairBack(name, needs, shape), result)
    return result


class _PairBack:
    def __init__(self, name: str, needs: tuple[bool, bool], shape: Shape) -> None:
        self.name = name
        self.needs = needs
        self.shape = shape

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [
            w.new(self.shape, gradient.dtype, self.name + "_backward", gradient.storage.device)
            if needed
            else None
            for needed in self.needs
        ]


@operator("torch.nn.functional.mse_loss")
def mse_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    kind = _reduction("torch.nn.functional.mse_loss", reduction, size_average, reduce)
    return _pairwise(w, "mse_loss", high(w, input), high(w, target), kind)


@operator("torch.nn.functional.smooth_l1_loss")
def smooth_l1_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    kind = _reduction("torch.nn.functional.smooth_l1_loss", reduction, size_average, reduce)
    return _pairwise(w, "smooth_l1_loss", high(w, input), high(w, target), kind)


@operator("torch.nn.functional.huber_loss")
def huber_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    kind = _reduction("torch.nn.functional.huber_loss", reduction)
    return _pairwise(w, "huber_loss", high(w, input), high(w, target), kind)


@operator("torch.nn.functional.l1_loss")
def l1_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(input - target).abs(), which keeps the difference."""
    kind = _reduction("torch.nn.functional.l1_loss", reduction, size_average, reduce)
    return _reduced(w, apply_unary(w, UNARY["abs"], sub(w, high(w, input), high(w, target))), kind)


@operator("torch.nn.functional.kl_div", "torch.kl_div")
def kl_div(
    w: World,
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    from .pointwise import xlogy

    kind = _reduction("torch.nn.functional.kl_div", reduction, size_average, reduce)
    x, y = high(w, input), high(w, target)
    if log_target:
        loss = mul(w, apply_unary(w, UNARY["exp"], y), sub(w, y, x))
    else:
        loss = sub(w, xlogy(w, y, y), mul(w, y, x))
    if kind == "batchmean":
        return div(w, total(w, loss), max(input.shape[0], 1))
    return _reduced(w, loss, kind)


@operator("torch.nn.functional.poisson_nll_loss")
def poisson_nll_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-08,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    kind = _reduction("torch.nn.functional.poisson_nll_loss", reduction, size_average, reduce)
    x, y = high(w, input), high(w, target)
    if log_input:
        loss = sub(w, apply_unary(w, UNARY["exp"], x), mul(w, y, x))
    else:
        loss = sub(w, x, mul(w, y, apply_unary(w, UNARY["log"], add(w, x, eps))))
    return _reduced(w, loss, kind)


@operator("torch.nn.functional.gaussian_nll_loss")
def gaussian_nll_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    var: Tensor,
    full: bool = False,
    eps: float = 1e-06,
    reduction: str = "mean",
) -> Tensor:
    kind = _reduction("torch.nn.functional.gaussian_nll_loss", reduction)
    var = clone(w, var)
    squared = div(w, power(w, sub(w, input, target), 2), var)
    return _reduced(w, mul(w, add(w, apply_unary(w, UNARY["log"], var), squared), 0.5), kind)


# --- distances and margins


@operator("torch.nn.functional.cosine_similarity", "torch.cosine_similarity")
def cosine_similarity(w: World, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08) -> Tensor:
    """Both operands divided by their norms, multiplied and summed."""
    a, b = high(w, x1), high(w, x2)
    first = div(w, a, clamp(w, vector_norm(w, a, 2, dim, True), eps))
    second = div(w, b, clamp(w, vector_norm(w, b, 2, dim, True), eps))
    return total(w, mul(w, first, second), dim)


@operator("torch.nn.functional.pairwise_distance", "torch.pairwise_distance")
def pairwise_distance(
    w: World, x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False
) -> Tensor:
    return vector_norm(w, add(w, sub(w, x1, x2), eps), p, -1, keepdim)


@operator("torch.cdist")
def cdist(
    w: World,
    x1: Tensor,
    x2: Tensor,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """Keeps both operands and the distances."""
    from torchwise_memory.runtime.layout import broadcast

    a, b = high(w, x1), high(w, x2)
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    if batch is None:
        raise Unsupported("torch.cdist", f"{tuple(a.shape)} by {tuple(b.shape)}; torch raises here")
    result = w.new((*batch, a.shape[-2], b.shape[-2]), a.dtype, "cdist", a.storage.device)
    record(w, "cdist", (a, b), (a, b, result), _CdistBack(a, b), result)
    return result


class _CdistBack:
    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.shapes = (a.shape, b.shape)
        self.needs = (a.requires_grad, b.requires_grad)

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> Gradients:
        gradient = gradients[0]
        assert gradient is not None
        return [
            w.new(shape, gradient.dtype, "cdist_backward", gradient.storage.device) if needed else None
            for shape, needed in zip(self.shapes, self.needs, strict=True)
        ]


@operator("torch.nn.functional.cosine_embedding_loss")
def cosine_embedding_loss(
    w: World,
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    kind = _reduction("torch.nn.functional.cosine_embedding_loss", reduction, size_average, reduce)
    a, b = high(w, input1), high(w, input2)
    products = total(w, mul(w, a, b), -1)
    squares = mul(w, add(w, total(w, mul(w, a, a), -1), 1e-12), add(w, total(w, mul(w, b, b), -1), 1e-12))
    cosine = div(w, products, apply_unary_(w, UNARY["sqrt"], squares))
    zeros = w.like(cosine, "zeros")
    together = where(w, w.like(target, "eq", dtypes.boolean), sub(w, 1, cosine), zeros)
    apart = clamp_(w, sub(w, cosine, margin), 0)
    apart = where(w, w.like(target, "eq", dtypes.boolean), apart, zeros)
    return _reduced(w, add(w, together, apart), kind)


@operator("torch.nn.functional.margin_ranking_loss")
def margin_ranking_loss(
    w: World,
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    kind = _reduction("torch.nn.functional.margin_ranking_loss", reduction, size_average, reduce)
    ranked = mul(w, apply_unary(w, UNARY["neg"], target), sub(w, input1, input2))
    return _reduced(w, clamp(w, add(w, ranked, margin), 0), kind)


@operator("torch.nn.functional.triplet_margin_loss")
def triplet_margin_loss(
    w: World,
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-06,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    kind = _reduction("torch.nn.functional.triplet_margin_loss", reduction, size_average, reduce)
    near = pairwise_distance(w, anchor, positive, p, eps)
    far = pairwise_distance(w, anchor, negative, p, eps)
    return _reduced(w, clamp(w, add(w, sub(w, near, far), margin), 0), kind)


@operator("torch.nn.functional.hinge_embedding_loss")
def hinge_embedding_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    kind = _reduction("torch.nn.functional.hinge_embedding_loss", reduction, size_average, reduce)
    apart = clamp(w, sub(w, margin, input), 0)
    return _reduced(w, where(w, w.like(target, "eq", dtypes.boolean), apart, input), kind)


@operator("torch.nn.functional.soft_margin_loss")
def soft_margin_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    kind = _reduction("torch.nn.functional.soft_margin_loss", reduction, size_average, reduce)
    return _pairwise(w, "soft_margin_loss", high(w, input), high(w, target), kind)


@operator("torch.nn.functional.multilabel_soft_margin_loss")
def multilabel_soft_margin_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    from .pointwise import logsigmoid

    kind = _reduction("torch.nn.functional.multilabel_soft_margin_loss", reduction, size_average, reduce)
    negated = apply_unary(w, UNARY["neg"], input)
    loss = add(w, mul(w, target, logsigmoid(w, input)), mul(w, sub(w, 1, target), logsigmoid(w, negated)))
    return _reduced(w, mean(w, apply_unary(w, UNARY["neg"], loss), -1), kind)


@operator("torch.nn.functional.multi_margin_loss")
def multi_margin_loss(
    w: World,
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    kind = _reduction("torch.nn.functional.multi_margin_loss", reduction, size_average, reduce)
    x = high(w, input)
    result = w.new((x.shape[0],) if kind == "none" else (), x.dtype, "multi_margin_loss", x.storage.device)
    record(
        w, "multi_margin_loss", (x,), (x, target), _LossBack("multi_margin_loss_backward", (True,)), result
    )
    return result


@operator("torch.nn.functional.ctc_loss")
def ctc_loss(
    w: World,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: object,
    target_lengths: object,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Keeps the log-probabilities and a table of (batch, time, 2 * target + 1)."""
    x = log_probs
    steps, batch = x.shape[0], (x.shape[1] if x.ndim == 3 else 1)
    longest = targets.shape[-1] if targets.ndim == 2 else -(-targets.shape[0] // max(batch, 1))
    losses = w.new((batch,), x.dtype, "ctc_loss", x.storage.device)
    alpha = w.new((batch, steps, 2 * longest + 1), x.dtype, "ctc_loss alpha", x.storage.device)
    back = _LossBack("ctc_loss_backward", (True,))
    record(w, "ctc_loss", (x,), (x, targets, losses, alpha), back, losses)
    return _reduced(w, losses, _reduction("torch.nn.functional.ctc_loss", reduction))
