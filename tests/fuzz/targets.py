"""What is fuzzed: functions from bytes to nothing that raise only where torchwise is at fault.

`fuzz.py` feeds them under coverage guidance; `test_corpus.py` replays what that found worth keeping.
"""

from __future__ import annotations

import ast
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzz.expect import expect
from tests.fuzz.readers import READERS

from torchwise_analysis.engine import CheckReport, Engine, EstimateReport, ProblemKind
from torchwise_analysis.findings import Finding, Fix, Safety
from torchwise_analysis.fixes import SourceFile, apply_edits
from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest
from torchwise_analysis.repairs import Job, repair_together
from torchwise_analysis.settings import Settings, load_settings
from torchwise_analysis.source import Document
from torchwise_analysis.source.notebooks import read_notebook

PATH = "fuzzed.py"

_HEAD = """\
import torch, copy
from torch import nn, optim
import torch.nn.functional as F
import torch.distributed as dist
from torch.utils.data import DataLoader
"""
#: Lines that a program is made of. A colon at the end opens a block.
_LINES = (
    "class Net(nn.Module):",
    "def __init__(self, n=4, *args, **kwargs):",
    "super().__init__()",
    "self.layers = [nn.Linear(8, 8) for _ in range(n)]",
    "self.a, self.b = nn.Linear(8, 8), nn.Dropout(0.1)",
    "def forward(self, x):",
    "return self.a(x)",
    "x = F.relu(self.a(x)) + x",
    "return F.softmax(x, dim=-1)",
    "model = Net()",
    "model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8))",
    "model = nn.parallel.DistributedDataParallel(model)",
    "optimizer = optim.SGD(model.parameters(), lr=0.1)",
    "optimizer = optim.AdamW([{'params': model.parameters()}])",
    "scheduler = optim.lr_scheduler.StepLR(optimizer, 1)",
    "scaler = torch.amp.GradScaler('cuda')",
    "loader = DataLoader(data, batch_size=4, shuffle=True)",
    "data = [(torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64))] * 3",
    "for epoch in range(3):",
    "for i, (x, y) in enumerate(loader):",
    "for x, y in loader:",
    "while step < 10:",
    "while True:",
    "step = 0",
    "step += 1",
    "x, y = data[0]",
    "x = torch.randn(4, 8, device='cuda')",
    "y = torch.zeros(4, dtype=torch.int64).cuda()",
    "optimizer.zero_grad()",
    "out = model(x)",
    "out = model.forward(x)",
    "loss = F.cross_entropy(out, y)",
    "loss = nn.CrossEntropyLoss()(F.softmax(out, dim=1), y)",
    "loss = loss / 4",
    "loss.backward()",
    "loss.backward(retain_graph=True)",
    "scaler.scale(loss).backward()",
    "scaler.step(optimizer)",
    "scaler.unscale_(optimizer)",
    "scaler.update()",
    "optimizer.step()",
    "scheduler.step()",
    "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "if (i + 1) % 4 == 0:",
    "if i % 2:",
    "if step > 5:",
    "else:",
    "continue",
    "break",
    "return",
    "history.append(loss)",
    "history = []",
    "total += loss",
    "total = 0",
    "total += loss.item()",
    "best = model.state_dict()",
    "best = copy.deepcopy(model.state_dict())",
    "model.load_state_dict(best)",
    "torch.save({'model': model.state_dict(), 'epoch': epoch}, 'x.pt')",
    "model.train()",
    "model.eval()",
    "model.cuda()",
    "with torch.no_grad():",
    "with torch.autocast('cuda', dtype=torch.bfloat16):",
    "with model.no_sync():",
    "@torch.no_grad()",
    "def evaluate(model, loader):",
    "def train(model, optimizer, loader, epoch=0):",
    "evaluate(model, loader)",
    "train(model, optimizer, loader)",
    "train(*[model, optimizer], **{'loader': loader})",
    "try:",
    "except Exception as error:",
    "finally:",
    "yield loss",
    "async def step_of(x):",
    "await step_of(x)",
    "lambda: model(x)",
    "f = lambda *a, **k: (a, k)",
    "model = f(model)[0][0]",
    "loss = sum(model(z).mean() for z, _ in data)",
    "losses = {k: v for k, v in zip('ab', (loss, loss))}",
    "loss = losses['a'] if step else losses['b']",
    "match step:",
    "case 0 | 1:",
    "case [a, *rest]:",
    "case _:",
    "del loss, out",
    "global total",
    "nonlocal step",
    "model.a.weight = model.b",
    "model.a = model",
    "setattr(model, 'a', nn.Linear(8, 8))",
    "for p in model.parameters(): p.grad = None",
    "x = x.view(-1, 8)[::2, None].transpose(0, -1)",
    "x[0, ..., :2] = 0",
    "x = x @ x.T if x.dim() == 2 else x.permute(1, 0)",
    "n = 10 ** 6 % 7 << 2",
    "n: int = len('abc' * 3)",
    "print(f'{loss:.2f} {n!r:>{step}}')",
    "assert isinstance(model, Net), type(model)",
    "train = train",
    "evaluate = model",
    "class Net(Net):",
    "class Net(Net, metaclass=type):",
    "Net.forward = lambda self, x: self(x)",
    "self = self.a = self.forward(self)",
    "x = y = model(model(x)) = y",
)
_DEDENT, _BLANK = 250, 255


def program_of(data: bytes) -> str:
    """A program of known lines: a byte is a line, or leaves blocks. Some do not parse, as while typing."""
    depth, lines, opened = 0, [], False
    for byte in data[:120]:
        if _DEDENT <= byte < _BLANK and not opened:
            depth = max(0, depth - (byte - _DEDENT + 1))
            continue
        line = _LINES[byte % len(_LINES)]
        closes = line in ("else:", "finally:") or line.startswith(("except", "case"))
        lines.append("    " * max(0, depth - closes * (not opened)) + line)
        opened = line.endswith(":")
        depth += opened and not closes
    return _HEAD + "\n".join(lines) + ("\n" + "    " * depth + "pass\n" if opened else "\n")


def program(data: bytes) -> None:
    """Checking and estimating any program fails nowhere, and its safe fixes leave programs."""
    text = program_of(data)
    engine = Engine(Settings(), Path(), Project([], []))
    file = SourceFile(PATH, text)
    report = engine.check(file)
    expect(not list(_failures(report)), text, list(_failures(report)))
    request = EstimateRequest(("t4",), with_alternatives=False, with_remedies=False)
    estimated = engine.estimate(file, request)
    expect(not list(_failures(estimated)), text, list(_failures(estimated)))
    if not _parses(text):
        return
    for finding in report.findings:
        for fix in finding.fixes:
            if fix.safety is not Safety.ADVICE:
                expect(_parses(apply_edits(file, fix.edits)), text, fix.title)


def edits(data: bytes) -> None:
    """A document after edits is the document of its text: same text, and same module where it parses."""
    text, rest = program_of(data[:40]), data[40:]
    document = Document(PATH, text)
    _ = document.module
    lines = text.splitlines(keepends=True)
    for at in range(0, len(rest) - 4, 4):
        first = rest[at] % (len(lines) + 1)
        last = min(len(lines), first + rest[at + 1] % 3)
        new = [_typed(rest[at + 2], rest[at + 3])] if rest[at + 3] % 5 else []
        document.edit(first, 0, last, 0, "".join(new))
        lines[first:last] = new
        expect(document.text == "".join(lines), "".join(lines), "text")
        module = document.module
        if _parses(document.text):
            fresh = Document(PATH, document.text).module
            expect(repr(module) == repr(fresh), document.text, "module")


def settings(data: bytes) -> None:
    """Any table of settings is read, with a word for everything in it that is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pyproject.toml"
        path.write_bytes(b"[tool.torchwise]\n" + data)
        loaded = load_settings(path)
        expect(loaded is None or all(problem.message for problem in loaded.problems), repr(data), "no words")


def notebook(data: bytes) -> None:
    """Any notebook is read and checked, or refused in words."""
    for content in (data, _notebook_of(data)):
        read = read_notebook(content)
        report = Engine(Settings(), Path(), Project([], [])).check(SourceFile("book.ipynb", read.text))
        expect(not list(_failures(report)), read.text, list(_failures(report)))


def _notebook_of(data: bytes) -> str:
    """Cells cut at zero bytes: their texts as they are, so that magics and broken lines come up."""
    cells = [
        {"cell_type": "code" if len(text) % 7 else "markdown", "source": text.decode("utf-8", "replace")}
        for text in data.split(b"\0")
    ]
    return json.dumps({"cells": cells, "nbformat": 4})


def _typed(kind: int, which: int) -> str:
    """A line of the list, or something half typed."""
    line = _LINES[which % len(_LINES)]
    return "    " * (kind % 4) + (line[: kind % (len(line) + 1)] if kind & 64 else line) + "\n"


def _failures(report: CheckReport | EstimateReport) -> Iterator[str]:
    for problem in getattr(report, "problems", ()):
        if problem.kind is ProblemKind.FAILURE:
            yield problem.message
    for one in getattr(report, "unanswered", ()):
        if "failed (" in one.message:
            yield one.message


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def fixes(data: bytes) -> None:
    """What `fix` leaves parses and has nothing safe left."""
    text = program_of(data)
    if not _parses(text):
        return
    repaired = _repaired(text)
    expect(_parses(repaired), text, repaired)
    expect(_repaired(repaired) == repaired, text, repaired)


def _repaired(text: str) -> str:
    job = Job(Engine(Settings(), Path(), Project([], [])), SourceFile(PATH, text), _is_safe)
    outcome = repair_together([job])[0]
    expect(not outcome.problems, text, outcome.problems)
    return outcome.repair.file.text


def _is_safe(finding: Finding, fix: Fix) -> bool:
    return fix.safety is Safety.SAFE


TARGETS: dict[str, Callable[[bytes], None]] = {
    "program": program,
    "edits": edits,
    "settings": settings,
    "notebook": notebook,
    "fixes": fixes,
    **READERS,
}
