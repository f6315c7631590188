"""Join of facts: union, with small unions of values."""

from __future__ import annotations

from typing import cast

from torchwise_analysis.interp.abstract import values as va

WIDTH = 6
_WIDTH_OF_OPTIMIZERS = 16  # one for each name that a setting can have
CONTENTS = 12


def join(a: object, b: object) -> object:
    """The join of two facts of one key."""
    if a is b:
        return a
    first = a
    if isinstance(a, va.Value) and isinstance(b, va.Value):
        return join_values(a, b)
    if isinstance(a, frozenset) and isinstance(b, frozenset):
        return cast("frozenset[object]", a) | cast("frozenset[object]", b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        if any(isinstance(x, str) for x in cast("tuple[object, ...]", (*a, *b))):
            return tuple(dict.fromkeys(cast("tuple[str, ...]", (*a, *b))))
        return join_contents(cast("tuple[va.Value, ...]", a), cast("tuple[va.Value, ...]", b))
    if isinstance(a, dict) and isinstance(b, dict):
        return _join_entries(cast("dict[object, va.Value]", a), cast("dict[object, va.Value]", b))
    if isinstance(a, bool) and isinstance(b, bool):
        return a or b
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return first


def join_contents(a: tuple[va.Value, ...], b: tuple[va.Value, ...]) -> tuple[va.Value, ...]:
    """Contents of a container: position by position when equally long, else one after the other."""
    if len(a) == len(b):
        return tuple(join_values(x, y) for x, y in zip(a, b, strict=True))
    longer, shorter = (a, b) if len(a) > len(b) else (b, a)
    if longer[: len(shorter)] == shorter:
        return longer
    out = list(longer)
    out.extend(x for x in shorter if not any(same(x, y) for y in longer))
    return tuple(out[-CONTENTS:])


def _join_entries(a: dict[object, va.Value], b: dict[object, va.Value]) -> dict[object, va.Value]:
    out = dict(a)
    for key, value in b.items():
        out[key] = join_values(out[key], value) if key in out else value
    return out


def join_values(a: va.Value, b: va.Value) -> va.Value:
    """One value that stands for both."""
    if a is b:
        return a
    if isinstance(a, va.Tensor) and isinstance(b, va.Tensor):
        return join_tensors(a, b)
    if same(a, b):
        return a
    if isinstance(a, va.Union) and not isinstance(b, va.Tensor) and any(member is b for member in a.values):
        return a
    members: list[va.Value] = []
    for x in (*va.alternatives(a), *va.alternatives(b)):
        kind = type(x)
        for i, y in enumerate(members):
            if type(y) is not kind:
                continue
            if isinstance(x, va.Tensor) and isinstance(y, va.Tensor):
                members[i] = join_tensors(y, x)
                break
            if same(x, y):
                break
        else:
            members.append(x)
    return union(members, a.evidence)


def union(members: list[va.Value], evidence: va.Link | None) -> va.Value:
    """A union of bounded width; unknowns are given up before objects."""
    if len(members) > WIDTH:
        known = [m for m in members if not isinstance(m, va.Unknown)]
        are_optimizers = all(isinstance(m, va.Obj) and m.kind is va.Kind.OPTIMIZER for m in known)
        if len(known) > (_WIDTH_OF_OPTIMIZERS if are_optimizers else WIDTH) or not known:
            return va.Unknown(evidence, taint=frozenset(["joined"]))
        members = known
    return members[0] if len(members) == 1 else va.Union(evidence, tuple(members))


def join_tensors(a: va.Tensor, b: va.Tensor) -> va.Tensor:
    """Either tensor: may-facts are united, what both agree on is kept."""
    lead = a if a.passes or not b.passes else b
    if (not a.passes and b.passes) or (not b.passes and a.passes):
        factors, reduction = lead.factors, lead.reduction
    else:
        factors = _join_factors(a, b)
        reduction = a.reduction if a.reduction == b.reduction else a.reduction or b.reduction
    return va.Tensor(
        lead.evidence,
        a.passes | b.passes,
        a.tokens | b.tokens,
        a.activation or b.activation,
        reduction,
        factors,
        a.scaled or b.scaled,
        a.cut or b.cut,
        a.sources | b.sources,
        a.shape if a.shape == b.shape else None,
        a.device if a.device == b.device else None,
        a.dtype if a.dtype == b.dtype else None,
        a.taint | b.taint,
        a.dead | b.dead,
    )


def _join_factors(a: va.Tensor, b: va.Tensor) -> frozenset[va.Factor]:
    """What scales either: all of it where one is not scaled, or where each is divided in its own way."""
    if not (a.factors and b.factors):
        return a.factors or b.factors
    common = a.factors & b.factors
    is_lost = a.divided and b.divided and not any(factor.op == "/" for factor in common)
    return a.factors | b.factors if is_lost else common


def same(a: va.Value, b: va.Value) -> bool:
    """Do both mean the same thing?"""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b) or kind is va.Tensor or kind is va.Union:
        return False
    if isinstance(a, va.Obj) and isinstance(b, va.Obj):
        return a.id == b.id
    if isinstance(a, va.Const) and isinstance(b, va.Const):
        return type(a.value) is type(b.value) and (a.value is b.value or a.value == b.value)
    if isinstance(a, va.Unknown) and isinstance(b, va.Unknown):
        return (a.symbol, a.offset, a.negated, a.taint) == (b.symbol, b.offset, b.negated, b.taint)
    if isinstance(a, va.Function) and isinstance(b, va.Function):
        return a.key == b.key and a.self is b.self and a.frames == b.frames and a.wraps == b.wraps
    if isinstance(a, va.Library) and isinstance(b, va.Library):
        return a.path == b.path
    if isinstance(a, va.Class) and isinstance(b, va.Class):
        return a.id == b.id
    if isinstance(a, va.StateDict) and isinstance(b, va.StateDict):
        return (a.owner.id, a.version, a.place, a.copied) == (b.owner.id, b.version, b.place, b.copied)
    if isinstance(a, va.Parameters) and isinstance(b, va.Parameters):
        return (a.roots, a.gradients, a.single) == (b.roots, b.gradients, b.single)
    if isinstance(a, va.Method) and isinstance(b, va.Method):
        return a.name == b.name and same(a.receiver, b.receiver)
    return False
