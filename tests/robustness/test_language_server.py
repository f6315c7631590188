"""Whatever a client sends, the server stays, answers, and says in the end what a fresh check says."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.robustness.wire import Message, Wire

from torchwise_analysis.engine import Engine, open_project
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.policy import Display, Surface, display
from torchwise_analysis.settings import Settings

STEPS = 20_000 if os.environ.get("TORCHWISE_LONG_TESTS") else 300

GOOD = """\
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(10):  # 𝄞
    "𝄞é"; loss = model(torch.randn(4, 2)).sum()
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""
PIECES = (
    "\n",
    " ",
    "𝄞",
    "é",
    "(",
    ")",
    '"""',
    "    ",
    "\t",
    "loss.backward()\n",
    "#",
    "\\",
    "\r",
    "\0",
    "\ud800",
    ":",
    "",
)
ENCODINGS = (("utf-16",), ("utf-8",), ("utf-32", "utf-8"), ("nonsense",))


@pytest.fixture(params=ENCODINGS, ids="+".join)
def wire(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(tmp_path, request.param)
    yield wire
    wire.kill()


def test_any_traffic_is_survived(wire: Wire, tmp_path: Path) -> None:
    chance = random.Random(1)
    uris = [(tmp_path / f"{name}.py").as_uri() for name in ("a", "b")] + [
        "untitled:1",
        "",
        "file:///",
        "\0",
        "http://x",
    ]
    for _ in range(STEPS):
        chance.choice(ACTS)(wire, chance, chance.choice(uris))
    assert wire.is_alive
    expect_the_findings_of_a_fresh_check(wire, tmp_path)
    assert wire.close() == 0


def test_edits_beyond_the_text_count_to_its_end(wire: Wire, tmp_path: Path) -> None:
    uri = (tmp_path / "train.py").as_uri()
    opened(wire, uri, GOOD)
    for version, (line, character) in enumerate([(10**9, 10**9), (0, 10**9), (2**31 - 1, 0), (8, 10**6)], 2):
        place = {"line": line, "character": character}
        changed(wire, uri, version, {"range": {"start": place, "end": place}, "text": "x"})
    assert "result" in pulled(wire, uri)
    expect_the_findings_of_a_fresh_check(wire, tmp_path)


def test_a_storm_of_cancellations(wire: Wire, tmp_path: Path) -> None:
    uri = (tmp_path / "train.py").as_uri()
    opened(wire, uri, GOOD)
    numbers: list[int] = []
    for version in range(2, 102):
        changed(wire, uri, version, {"text": GOOD + f"# {version}\n"})
        numbers.append(wire.request("textDocument/diagnostic", {"textDocument": {"uri": uri}}))
        wire.tell("$/cancelRequest", {"id": numbers[-1]})
        wire.tell("$/cancelRequest", {"id": chance_id(version)})
    wire.answer(numbers[-1])
    expect_the_findings_of_a_fresh_check(wire, tmp_path)


def test_a_notebook_that_is_torn_apart(wire: Wire, tmp_path: Path) -> None:
    chance = random.Random(2)
    book = (tmp_path / "book.ipynb").as_uri()
    cells = [{"kind": 2, "document": f"cell:{number}"} for number in range(4)]
    texts = [
        {"uri": f"cell:{number}", "languageId": "python", "version": 1, "text": GOOD} for number in range(4)
    ]
    wire.tell(
        "notebookDocument/didOpen",
        {
            "notebookDocument": {
                "uri": book,
                "notebookType": "jupyter-notebook",
                "version": 1,
                "cells": cells,
            },
            "cellTextDocuments": texts,
        },
    )
    for version in range(2, 60):
        array = {
            "start": chance.randrange(9),
            "deleteCount": chance.randrange(9),
            "cells": chance.sample(cells, 2),
        }
        structure = {"array": array, "didOpen": chance.choice([texts[:1], [], None]), "didClose": None}
        content = [
            {
                "document": {"uri": f"cell:{chance.randrange(6)}", "version": version},
                "changes": [{"text": "x"}],
            }
        ]
        change = chance.choice([{"structure": structure}, {"textContent": content}, {}, {"data": cells[:1]}])
        wire.tell(
            "notebookDocument/didChange",
            {"notebookDocument": {"uri": book, "version": version}, "change": {"cells": change}},
        )
        wire.request("textDocument/diagnostic", {"textDocument": {"uri": f"cell:{chance.randrange(6)}"}})
    wire.tell("notebookDocument/didClose", {"notebookDocument": {"uri": book}, "cellTextDocuments": []})
    expect_the_findings_of_a_fresh_check(wire, tmp_path)


# --------------------------------------------------------------------------- acts


def opened(wire: Wire, uri: str, text: str) -> None:
    item = {"uri": uri, "languageId": "python", "version": 1, "text": text}
    wire.tell("textDocument/didOpen", {"textDocument": item})


def changed(wire: Wire, uri: str, version: int, *events: object) -> None:
    document = {"uri": uri, "version": version}
    wire.tell("textDocument/didChange", {"textDocument": document, "contentChanges": list(events)})


def closed(wire: Wire, uri: str) -> None:
    wire.tell("textDocument/didClose", {"textDocument": {"uri": uri}})


def pulled(wire: Wire, uri: str) -> Message:
    return wire.ask("textDocument/diagnostic", {"textDocument": {"uri": uri}})


def chance_id(number: int) -> object:
    return (number * 7, "x", None, -1)[number % 4]


def open_something(wire: Wire, chance: random.Random, uri: str) -> None:
    opened(wire, uri, GOOD if chance.random() < 0.7 else "".join(chance.choices(PIECES, k=50)))


def edit(wire: Wire, chance: random.Random, uri: str) -> None:
    def place() -> dict[str, int]:
        return {"line": chance.choice((0, 5, 8, 9, 99)), "character": chance.choice((0, 4, 5, 6, 9, 99))}

    event = {"range": {"start": place(), "end": place()}, "text": "".join(chance.choices(PIECES, k=2))}
    version = chance.choice((1, 2, chance.randrange(1000), -5))
    changed(wire, uri, version, *[event] * chance.choice((1, 1, 3, 0)))


def replace(wire: Wire, chance: random.Random, uri: str) -> None:
    changed(wire, uri, chance.randrange(1000), {"text": GOOD})


def close(wire: Wire, chance: random.Random, uri: str) -> None:
    closed(wire, uri)


REQUESTS = (
    "textDocument/diagnostic", "textDocument/hover", "textDocument/codeAction", "textDocument/codeLens",
    "textDocument/inlayHint", "textDocument/completion", "workspace/diagnostic", "workspace/executeCommand",
    "codeLens/resolve", "codeAction/resolve", "textDocument/definition", "nonsense",
)  # fmt: skip


def ask(wire: Wire, chance: random.Random, uri: str) -> None:
    place = {"line": chance.choice((0, 6, 10**6)), "character": chance.choice((0, 7, 10**6))}
    params = {
        "textDocument": {"uri": uri},
        "position": place,
        "range": {"start": place, "end": place},
        "context": {"diagnostics": []},
        "command": "torchwise.nonsense",
    }
    number = wire.request(chance.choice(REQUESTS), params)
    if chance.random() < 0.3:
        wire.tell("$/cancelRequest", {"id": number})


WRONG: tuple[object, ...] = (None, 5, "x", [], {}, {"textDocument": 5}, {"textDocument": {"uri": 5}}, [[[]]])


def ask_wrongly(wire: Wire, chance: random.Random, uri: str) -> None:
    notes = (
        "textDocument/didOpen",
        "textDocument/didChange",
        "textDocument/didClose",
        "workspace/didChangeConfiguration",
    )
    if chance.random() < 0.5:
        wire.request(chance.choice(REQUESTS), chance.choice(WRONG))
    else:
        wire.tell(chance.choice(notes), chance.choice(WRONG))


def send_no_message(wire: Wire, chance: random.Random, uri: str) -> None:
    wire.send_bytes(
        chance.choice(
            (b"", b"{", b"[]", b"5", b"null", b'{"jsonrpc":"2.0"}', b"\xff\xfe", b"[" * 5000, b'{"id":{}}')
        )
    )


ACTS: tuple[Callable[[Wire, random.Random, str], None], ...] = (
    open_something, edit, edit, edit, replace, close, ask, ask, ask_wrongly, send_no_message,
)  # fmt: skip


# --------------------------------------------------------------------------- in the end


def expect_the_findings_of_a_fresh_check(wire: Wire, folder: Path) -> None:
    path = folder / "last.py"
    uri = path.as_uri()
    opened(wire, uri, "")
    changed(wire, uri, 2, {"text": GOOD})
    result = cast("dict[str, object]", pulled(wire, uri)["result"])
    items = cast("list[dict[str, object]]", result["items"])
    said = sorted((str(item["code"]), line_of(item)) for item in items)
    engine = Engine(Settings(), folder, open_project(str(path), Settings()))
    report = engine.check(SourceFile(str(path), GOOD))
    shown = [one for one in report.findings if display(one, Surface.EDITOR) is not Display.HIDDEN]
    assert said
    assert said == sorted((finding.rule, finding.place.span.line) for finding in shown)


def line_of(item: dict[str, object]) -> int:
    place = cast("dict[str, dict[str, int]]", item["range"])
    return place["start"]["line"]
