"""Libraries that fill a class of the project from the command line or from a file."""

from __future__ import annotations

from torchwise_analysis.interp.abstract import calls
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.semantics.registry import Call, function, method

_NAMES = ("config_class", "data_class", "dataclass_types", "f", "obj")


@function(
    "tyro.cli",
    "simple_parsing.parse",
    "simple_parsing.parsing.parse",
    "pyrallis.parse",
    "draccus.parse",
    "datargs.parse",
    "dacite.from_dict",
    "chz.entrypoint",
    "omegaconf.OmegaConf.structured",
)
def filled(m: Machine, call: Call) -> va.Value:
    """One object, its fields not known."""
    given = next((v for name in _NAMES if (v := call.get(name)) is not None), call.first())
    return _some(m, call, given) if given is not None else va.UNKNOWN


@function("transformers.HfArgumentParser", "trl.TrlParser")
def parser(m: Machine, call: Call) -> va.Value:
    given = call.get("dataclass_types", 0)
    return m.make(va.Kind.OPAQUE, call.node, call.name, over=(given,) if given is not None else ())


@method(
    va.Kind.OPAQUE,
    "parse_args_into_dataclasses",
    "parse_args_and_config",
    "parse_json_file",
    "parse_yaml_file",
    "parse_dict",
)
def parsed(m: Machine, parser_: va.Obj, call: Call) -> va.Value | None:
    """A tuple, one of each class that the parser was made with."""
    if parser_.type_name not in ("transformers.HfArgumentParser", "trl.TrlParser") or not parser_.over:
        return None
    given = first_known(parser_.over[0])
    classes = m.items(given) if isinstance(given, va.Obj) else (given,)
    return m.sequence([_some(m, call, one) for one in classes], call.node, va.Kind.TUPLE)


def _some(m: Machine, call: Call, value: va.Value) -> va.Value:
    """An instance with fields of which nothing is known; a given object keeps being one."""
    known = first_known(value)
    if isinstance(known, va.Class):
        return calls.instantiate(m, known, va.Arguments(open=True), call.node)
    if isinstance(known, va.Obj) and known.cls is not None:
        return calls.instantiate(m, known.cls, va.Arguments(open=True), call.node)
    return va.UNKNOWN
