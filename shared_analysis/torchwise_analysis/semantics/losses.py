"""Loss functions: what they expect, and what they do to graph, reduction and scale."""

from __future__ import annotations

from typing import cast

from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.semantics import samples, tensors
from torchwise_analysis.semantics.registry import FUNCTIONS, Call, method, text_of

# Class name -> functional name. [torch.nn: each class calls the functional of that name.]
CLASSES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "KLDivLoss": "kl_div",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "CosineEmbeddingLoss": "cosine_embedding_loss",
    "TripletMarginLoss": "triplet_margin_loss",
    "MarginRankingLoss": "margin_ranking_loss",
    "HingeEmbeddingLoss": "hinge_embedding_loss",
    "PoissonNLLLoss": "poisson_nll_loss",
    "GaussianNLLLoss": "gaussian_nll_loss",
    "CTCLoss": "ctc_loss",
    "SoftMarginLoss": "soft_margin_loss",
    "MultiMarginLoss": "multi_margin_loss",
    "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
    "MultiLabelMarginLoss": "multilabel_margin_loss",
    "NLLLoss2d": "nll_loss",
}


def is_loss_class(name: str) -> bool:
    return name.startswith("torch.nn.") and name.rpartition(".")[2] in CLASSES


def criterion(m: Machine, call: Call) -> va.Value:
    """`nn.CrossEntropyLoss(...)`."""
    return m.make(va.Kind.CRITERION, call.node, call.name, arguments=call.arguments)


def functional(m: Machine, call: Call) -> va.Value:
    """`F.cross_entropy(input, target, ...)`."""
    return apply(m, call.last, call.arguments, call.arguments, call, None)


for _name in set(CLASSES.values()):
    FUNCTIONS[f"torch.nn.functional.{_name}"] = functional


def call_criterion(m: Machine, obj: va.Obj, call: Call) -> va.Value:
    """A loss object called on data."""
    name = CLASSES.get(obj.type_name.rpartition(".")[2], "unknown")
    return apply(m, name, call.arguments, obj.arguments, call, obj)


@method(
    va.Kind.CRITERION,
    "to",
    "cuda",
    "cpu",
    "half",
    "float",
    "bfloat16",
    "double",
    "type",
    "train",
    "eval",
    "requires_grad_",
    "xpu",
    "npu",
    "to_empty",
    "share_memory",
    "compile",
)
def itself(m: Machine, obj: va.Obj, call: Call) -> va.Value:
    """Moved, switched or compiled, it is the same loss."""
    return obj


@method(va.Kind.CRITERION, "forward")
def forward(m: Machine, obj: va.Obj, call: Call) -> va.Value:
    return call_criterion(m, obj, call)


def apply(
    m: Machine, name: str, arguments: va.Arguments, options: va.Arguments, call: Call, obj: va.Obj | None
) -> va.Tensor:
    given, target = arguments.get("input", 0), arguments.get("target", 1)
    inputs = tuple(m.tensors(given))
    targets = m.tensors(target) or _rows(m, target)
    reduction = _reduction(options)
    m.emit(
        ev.LossCall,
        call.node,
        name=name,
        input=inputs[0] if inputs else None,
        target=targets[0] if targets else None,
        inputs=inputs,
        reduction=reduction,
        arguments=arguments,
        options=options,
        grad=m.recording(),
        loss=obj,
    )
    found = m.all_tensors(arguments)
    passes = frozenset(p for t in found for p in t.passes)
    recording = True in m.recording()
    if not passes and recording and not any(isinstance(first_known(a), va.Tensor) for a in arguments):
        return _of_unknown(m, arguments, call, reduction, obj)
    one = tensors.combine(m, found, call.node)
    return va.Tensor(
        m.link(call.node, f"{name} computed here", one.evidence),
        passes if recording else frozenset(),
        one.tokens,
        reduction=reduction,
        cut=None if passes else one.cut,
        sources=one.sources | m.sources_of(arguments),
        shape=() if reduction in ("mean", "sum") else None,
        device=one.device,
        taint=frozenset(["loss"]) | _of_all_ranks(arguments, found),
    )


def _of_all_ranks(arguments: va.Arguments, found: list[va.Tensor]) -> frozenset[str]:
    """What is computed from gathered values alone is that of all ranks."""
    is_raw = any(isinstance(first_known(value), va.Obj) for value in arguments)
    is_whole = bool(found) and not is_raw and all(tensors.REDUCED in one.taint for one in found)
    return frozenset([tensors.REDUCED]) if is_whole else frozenset()


def _rows(m: Machine, target: va.Value | None) -> list[va.Tensor]:
    """A part of a batch as a tensor, where its shape is known."""
    known = first_known(target)
    shape = samples.of_batch(m, known) if isinstance(known, va.Obj) and known.kind is va.Kind.OPAQUE else None
    if shape is None:
        return []
    return [va.Tensor(known.evidence, sources=m.sources_of((known,)), shape=shape)]


def _of_unknown(
    m: Machine, arguments: va.Arguments, call: Call, reduction: str | None, obj: va.Obj | None
) -> va.Tensor:
    """A loss on values that nobody made in view: by convention they come from a model."""
    if obj is None:
        obj = va.Obj(None, m.fresh_id(), va.Kind.CRITERION, f"torch.nn.functional.{call.last}")
        m.objects[obj.id] = obj
    pass_ = m.start_pass(obj, call.node, arguments, "loss", belief=True)
    out = m.attach(pass_, arguments, call.node)
    return va.Tensor(
        out.evidence,
        out.passes,
        out.tokens,
        reduction=reduction,
        sources=out.sources,
        shape=(),
        taint=frozenset(["loss"]),
    )


def _reduction(options: va.Arguments) -> str | None:
    given = options.get("reduction")
    if given is None:
        average = options.get("size_average")
        if average is not None:
            return (
                {True: "mean", False: "sum"}.get(cast("bool", average.value))
                if isinstance(average, va.Const)
                else None
            )
        return "mean"
    text = text_of(first_known(given))
    return {"batchmean": "mean", "elementwise_mean": "mean"}.get(text, text) if text else None
