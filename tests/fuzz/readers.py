"""Targets that read what a workspace or a client wrote: cheap, for they run a hundred thousand times."""

from __future__ import annotations

import io
import json
import re
import tempfile
import tokenize
from collections.abc import Callable
from pathlib import Path

import cattrs
from tests.fuzz.expect import expect

from torchwise_analysis.engine import Engine
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.concrete.library import yaml_text
from torchwise_analysis.names.project import Project
from torchwise_analysis.names.releases import releases
from torchwise_analysis.settings import Settings
from torchwise_analysis.source import Document
from torchwise_analysis.source.decode import decode
from torchwise_analysis.source.lines import line_starts
from torchwise_analysis.source.scanner import LineTable
from torchwise_analysis.suppressions import comments, named_in_comments
from torchwise_memory.workload import WorkloadError, run
from torchwise_memory.workload import read as read_workload
from torchwise_server.lsp.framing import Frames
from torchwise_server.lsp.options import read_options
from torchwise_server.lsp.project_file import spot_at
from torchwise_server.lsp.server import TorchwiseServer
from torchwise_server.lsp.text import Change, Position, Text, difference
from torchwise_server.reporters.markdown_text import escaped
from torchwise_server.reporters.words import one_line

PATH = "fuzzed.py"


def lines(data: bytes) -> None:
    """After edits the table of logical lines is that of the text, and so are the lines of an editor."""
    text = data[:60].decode("utf-8", "replace")
    table, shown, document = LineTable.of(text), Text(text), Document(PATH, text)
    rest = data[60:].decode("utf-8", "replace")
    for at in range(0, len(rest) - 3, 4):
        start = ord(rest[at]) % (len(text) + 1)
        end = min(len(text), start + ord(rest[at + 1]) % 8)
        if text[max(0, start - 1) : start + 1] == "\r\n" or text[max(0, end - 1) : end + 1] == "\r\n":
            continue  # no position of a client lies inside a line ending
        new = rest[at + 2 : at + 2 + ord(rest[at + 3]) % 3]
        first, last = _position(text, start), _position(text, end)
        changed = text[:start] + new + text[end:]
        table.edit(changed, start, end, start + len(new))
        shown.apply(Change(first, last, new))
        document.edit(*first, *last, new)
        text = changed
    expect(table == LineTable.of(text), text, "lines of an edited text")
    expect(str(shown) == text and shown.lines == Text(text).lines, text, "an editor's lines")
    expect(document.text == text, text, "a document's text")
    other = Text(rest)
    change = difference(shown, other)
    if change is not None:
        shown.apply(change)
    expect(str(shown) == rest, rest, "the difference of two texts")


def _position(text: str, offset: int) -> Position:
    starts = [start for start in line_starts(text) if start <= offset]
    return Position(len(starts) - 1, offset - starts[-1])


_SPOKEN = (
    "# torchwise: ignore[retained-graph]", "# torchwise: ignore",
    "# torchwise: ignore-file[TW101, unguarded-eval]",
    "# noqa", "# noqa: TW101", "# noqa: TW101, E501", " -- because", "[", "]", ",", "#", "\n", "'",
    '"', '"""',
    "\\", "x = 1", "    ", "\r", "\t", "torchwise:", "ignore", "nonsense", "TW999", "𝄞", "\f",
    "import torch\n",
)  # fmt: skip


def suppressions(data: bytes) -> None:
    """Comments are those of Python's tokenizer, and a check with any of them fails nowhere."""
    text = "".join(_SPOKEN[byte % len(_SPOKEN)] for byte in data)
    found = [(one.line, one.column, one.text) for one in comments(text)]
    for _, span in named_in_comments(text):
        expect(span.line == span.end_line and span.column < span.end_column, text, span)
    by_python = _comments_of_python(text)
    if by_python is not None:
        expect(found == by_python, text, (found, by_python))
    report = Engine(Settings(), Path(), Project([], [])).check(SourceFile(PATH, text))
    expect(not any("failed" in problem.message for problem in report.problems), text, report.problems)


def _comments_of_python(text: str) -> list[tuple[int, int, str]] | None:
    """None where the text is no Python, or holds what the tokenizer takes for a line and Python does not."""
    if re.search(r"[\r\f\\]", text):
        return None
    try:
        compile(text, PATH, "exec", dont_inherit=True)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return None
    return [
        (token.start[0] - 1, token.start[1], token.string)
        for token in tokens
        if token.type == tokenize.COMMENT
    ]


def encodings(data: bytes) -> None:
    """Any bytes are a text; where Python reads them, it is the same text."""
    for content in (data, b"# coding: " + data, b"#!x\n# -*- coding: " + data):
        decoded = decode(content)
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            plain = content.decode("utf-8" if encoding == "utf-8-sig" else encoding)
        except (SyntaxError, UnicodeError, LookupError, AssertionError):
            continue
        if decoded.problem is None:
            expect(decoded.text == plain, repr(content), decoded)


def yaml(data: bytes) -> None:
    """Any text is settings or is refused in words."""
    text = data.decode("utf-8", "replace")
    for floats in (False, True):
        try:
            yaml_text.load(text, "c.yaml", floats)
        except (ValueError, RecursionError) as error:
            expect(bool(str(error)), text, "no words")


def declared(data: bytes) -> None:
    """Bounds of a library, from any text in the files that declare it."""
    text = b"torch" + data
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "requirements.txt").write_bytes(text)
        found = releases("torch", [folder], [])
    if found is not None and found.low is not None and found.high is not None:
        expect(len(found.low) <= 5 and len(found.high) <= 5, repr(text), found)


_WORDS = (
    "python", "torchrun", "accelerate launch", "deepspeed", "train.py", "-m train", "--lr", "=",
    "1e-4", "\\\n",
    "\n", "$LR", "${LR:-3}", "LR=4", "export LR=$LR$LR", "&&", "|", "#", "'", '"', "`", "--nproc_per_node=8",
    "--config", "c.yaml", "--batch-size", "64", "[1,2]", "𝄞", "\0", "-", "--", "srun", "$@",
)  # fmt: skip


def launches(data: bytes) -> None:
    """Launch lines of any script that a shell could or could not read."""
    from torchwise_analysis.names.launches import lines_for, option_value

    text = " ".join(_WORDS[byte % len(_WORDS)] for byte in data)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text("x = 1\n")
        (Path(folder) / "run.sh").write_text(text)
        for line in lines_for(str(Path(folder) / "train.py"), (folder,)):
            expect(1 <= line.line <= text.count("\n") + 1, text, line)
            expect(line.processes >= 1, text, line)
            option_value(line, ["--lr", "--batch-size"])


def messages(data: bytes) -> None:
    """Any stream is cut into messages; any message has types or is refused."""
    stream = data if data[:1] != b"\0" else b"Content-Length: %d\r\n\r\n%b" % (len(data) - 1, data[1:])
    frames = Frames(io.BytesIO(stream))
    while header := frames.readline():
        expect(re.fullmatch(rb"Content-Length: \d+\r\n", header) is not None, repr(stream), header)
        expect(frames.readline() == b"\r\n", repr(stream), "no empty line")
        body = frames.read(int(header[16:]))
        try:
            json.loads(body, object_hook=_PROTOCOL.structure_message)
        except (ValueError, RecursionError, cattrs.BaseValidationError, *_REFUSALS):
            continue


def options(data: bytes) -> None:
    """Any value of a client as options: wrong ones are named."""
    try:
        table: object = json.loads(data)
    except (ValueError, RecursionError):
        table = {"select": data.decode("utf-8", "replace"), data.decode("utf-8", "replace"): 1}
    made, problems = read_options(table)
    made.applied_to(Settings())
    expect(all(problems), repr(table), "no words")


def project_file(data: bytes) -> None:
    """What stands at a place of any pyproject.toml."""
    text = Text("[tool.torchwise]\n" + data[2:].decode("utf-8", "replace"))
    spot = spot_at(text, Position(data[0] % 9, data[1]) if len(data) > 1 else Position(0, 0))
    if spot is not None:
        expect(text.line(spot.line)[spot.start : spot.end] == spot.word, str(text), spot)


_HTML = re.compile(r"(?<!\\)[<>]")


def shown(data: bytes) -> None:
    """Text of a workspace in Markdown and on a terminal: no tags outside code, no control characters."""
    text = data.decode("utf-8", "surrogateescape")
    expect(not re.search(r"[\x00-\x1f\x7f-\x9f]", one_line(text)), repr(text), one_line(text))
    if "`" not in text:
        expect(not _HTML.search(escaped(text)), repr(text), escaped(text))


_KEYS = (
    "model", "config", "params_count", "trainable_params", "task", "gpu", "n_gpus", "parallel_class",
    "offload",
    "micro_batch", "grad_accum", "seq_len", "image_size", "num_classes", "weights_dtype", "autocast",
    "quantisation", "optimizer", "peft", "grad_checkpointing", "attention", "compile", "loss_chunk",
    "framework",
    "version", "metric_asked", "new_tokens", "num_beams", "alloc_conf", "source",
)  # fmt: skip
_VALUES: tuple[object, ...] = (
    None, True, 0, 1, -1, 8, 512, 10**30, 1.5, float("nan"), float("inf"), "", "x", "adamw", "bf16", "gpt2",
    [], {}, [1, 2], {"r": 8}, {"hidden_size": 8}, {"model_type": "llama", "hidden_size": 64},
    "a100-80gb", "inference", "zero3", "int4", "torch 2.1", "1" * 5000, "224x224", "resnet18", "ddp",
    {"path": 5},
)  # fmt: skip


def workloads(data: bytes) -> None:
    """Any described job is answered or refused in words."""
    row: dict[str, object] = {"id": "x"}
    for at in range(0, len(data) - 1, 2):
        row[_KEYS[data[at] % len(_KEYS)]] = _VALUES[data[at + 1] % len(_VALUES)]
    try:
        run(read_workload(row))
    except WorkloadError as error:
        expect(bool(str(error)), repr(row), "no words")


class _NoBackend:
    """Messages are only given types here."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


_PROTOCOL = TorchwiseServer(_NoBackend()).protocol  # type: ignore[arg-type]
# what pygls contains at its own border
_REFUSALS = (TypeError, KeyError, AttributeError)

READERS: dict[str, Callable[[bytes], None]] = {
    "lines": lines,
    "suppressions": suppressions,
    "encodings": encodings,
    "yaml": yaml,
    "declared": declared,
    "launches": launches,
    "messages": messages,
    "options": options,
    "project_file": project_file,
    "shown": shown,
    "workloads": workloads,
}
