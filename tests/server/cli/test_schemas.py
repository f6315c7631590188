"""What the small commands say in JSON has the shape that is shipped for it, and nothing else has."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from tests.server.cli.conftest import Cli

Validate = Callable[[str, object], None]

DOCUMENTS: dict[str, tuple[str, ...]] = {
    "rules": ("rules", "--format", "json"),
    "gpus": ("gpus", "--format", "json"),
    "gpus instances": ("gpus", "--instances", "--format", "json"),
    "gpus smallest": ("gpus", "--for", "gpt2", "t4", "h100", "--format", "json"),
    "gpus none": ("gpus", "--for", "llama-3-70b", "k80", "--format", "json"),
    "models": ("estimate", "--model", "list", "--format", "json"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_has_the_shape_of_its_schema(cli: Cli, validate: Validate, name: str) -> None:
    document: dict[str, Any] = cli(*DOCUMENTS[name]).json()
    schema = name.split()[0]
    validate(schema, document)
    for wrong in ({**document, "version": 2}, {**document, "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            validate(schema, wrong)
    for key in set(document) - {"version"}:
        with pytest.raises(jsonschema.ValidationError):
            validate(schema, {each: value for each, value in document.items() if each != key})


def test_every_schema_says_what_it_is_of() -> None:
    shipped = [each for each in files("torchwise_server").joinpath("schemas").iterdir() if each.is_file()]
    assert len(shipped) >= 7
    for each in shipped:
        schema = json.loads(each.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["title"].startswith("torchwise "), each.name
        assert schema["description"]
