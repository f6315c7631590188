"""Modules and classes that a text chooses: `getattr(torch.optim, name)`, `import_module("torch.optim")`."""

from __future__ import annotations

from torchwise_analysis.interp.abstract import calls
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.semantics.registry import Call, function, text_of
from torchwise_analysis.source import nodes as nd

#: A class of `torch.optim`, whichever: all have the methods of their base.
SOME_OPTIMIZER = "torch.optim.Optimizer"


def some_member(value: va.Value) -> va.Library | None:
    """A member of a module whose name is not known; None where that tells nothing."""
    is_known = isinstance(value, va.Library) and value.path in ("torch.optim", "torch.optim.__dict__")
    return va.Library(None, SOME_OPTIMIZER) if is_known else None


@function("builtins.__import__", "importlib.import_module")
def import_by_name(m: Machine, call: Call) -> va.Value:
    """Modules of torch; one of the project may be anything."""
    name = text_of(call.get("name", 0))
    if name is None or name.partition(".")[0] != "torch":
        return va.UNKNOWN
    is_whole = call.last == "import_module" or call.get("fromlist", 3) is not None
    return va.Library(None, name if is_whole else "torch")


@function("builtins.vars")
def names_of(m: Machine, call: Call) -> va.Value:
    """Members can be looked up in it."""
    value = first_known(call.first() or va.UNKNOWN)
    if isinstance(value, va.Library):
        return va.Library(None, f"{value.path}.__dict__")
    return va.unknown(None, taint=m.taint(*call.arguments))


@function("builtins.eval")
def evaluated(m: Machine, call: Call) -> va.Value:
    """`eval("torch.optim." + name)`: the text begins with the module that it looks into."""
    begin = _beginning(call.node.args[0]) if isinstance(call.node, nd.Call) and call.node.args else ""
    first, *middle = begin.split(".")[:-1] or [""]
    value = m.lookup(first)
    for name in middle:
        value = calls.get_attribute(m, value, name, call.node) if value is not None else None
    found = some_member(first_known(value)) if value is not None else None
    return found or va.unknown(None, taint=m.taint(*call.arguments))


def _beginning(text: nd.Expr) -> str:
    """The constant beginning of a text that is put together."""
    while isinstance(text, nd.Binary) and text.op == "+":
        text = text.left
    if isinstance(text, nd.FormattedString):
        return text.parts[0] if text.parts and isinstance(text.parts[0], str) else ""
    return text.value if isinstance(text, nd.Constant) and isinstance(text.value, str) else ""
