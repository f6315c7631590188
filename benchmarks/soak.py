"""Hours of editing replayed fast against the language server: does it crash, lie or grow?

    python benchmarks/soak.py [--hours 2] [--seed 0] [--json FILE] [FILE ...]

Twenty files are open in one server (the given ones, else files made of the examples of all rules). A seeded
editor types statements letter by letter, deletes, pastes from other files, undoes, renames names everywhere,
saves, closes and opens, switches branches (many files change on disk and in the editor at once), and asks for
hovers, actions and lenses without waiting. Hours are those a person would need: a letter takes 0.2 s.

At each rest (a person reads for a few seconds) the diagnostics of the file are compared with those of a fresh
analysis in this process. The exit status is 1 if one differs, an answer is an error, or the server dies.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.robustness.wire import Message, Wire  # noqa: E402 - needs the path above

from torchwise_analysis.engine import Engine, could_matter, open_project  # noqa: E402
from torchwise_analysis.policy import Surface, display  # noqa: E402
from torchwise_analysis.rules import all_rules  # noqa: E402
from torchwise_analysis.settings import Settings  # noqa: E402
from torchwise_analysis.source import Document, lower_text  # noqa: E402

FILES = 20
LETTER_S = 0.2
THOUGHT_S = 8.0
PAUSE_S = 2.5  # real ones, before memory is measured: a person's would come after each action
STATEMENTS = (
    "history.append(loss)",
    "loss = loss_fn(model(x), y)",
    "optimizer.zero_grad()",
    "total += loss.item()",
    "with torch.no_grad():\n    model(x)",
    "model.eval()",
    "model.train()",
    "scheduler.step()",
    "# 😋 not code",
    "for batch in loader:\n    model(batch).sum().backward()",
    "torch.save(model.state_dict(), 'last.pt')",
    "x = x.to(device)",
)

Mark = tuple[str, int, int, int, int]
"""Rule and range of a diagnostic."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Replay hours of editing against the language server.")
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        texts = [path.read_text("utf-8") for path in options.files] or list(composed(options.seed))
        soak = Soak(Path(made), (texts * FILES)[:FILES], options.seed)
        report = soak.run(options.hours * 3600)
    print(json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    return 1 if report["stale"] or report["errors"] or not report["ended_well"] else 0


def composed(seed: int) -> Iterator[str]:
    """Files of the examples in the rules, a dozen in each."""
    chance = random.Random(seed)
    examples = [example.code for entry in all_rules() for example in entry.rule.examples]
    examples = [re.sub(r"^[ \t]*#[^\n]*\^[^\n]*\n", "", code, flags=re.MULTILINE) for code in examples]
    examples = [code for code in examples if parses(code)]
    for _ in range(FILES):
        chosen = [code for code in chance.sample(examples, 14) if "__future__" not in code]
        yield "\n\n".join(_apart(code, number) for number, code in enumerate(chosen))


def _apart(code: str, number: int) -> str:
    """The code with names of its own for what it defines."""
    for name in set(re.findall(r"^(?:async )?(?:def|class) (\w+)", code, flags=re.MULTILINE)):
        code = re.sub(rf"\b{name}\b", f"{name}_{number}", code)
    return code.rstrip() + "\n"


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


@dataclass(slots=True)
class Open:
    """A document as the editor has it, with what undoes the last changes."""

    path: Path
    text: str
    version: int = 1
    past: list[str] = field(default_factory=list[str])
    good: str = ""  # the last text that was Python

    @property
    def uri(self) -> str:
        return self.path.as_uri()


class Soak:
    """One session."""

    def __init__(self, folder: Path, texts: Sequence[str], seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        (folder / "pyproject.toml").write_text("[tool.torchwise]\n", "utf-8")
        self.documents = [Open(folder / f"file_{number:02}.py", text) for number, text in enumerate(texts)]
        for document in self.documents:
            document.path.write_text(document.text, "utf-8")
        self.wire = Wire(folder, ("utf-32",))
        self.seconds = 0.0
        self.letters = self.rests = self.skipped = self.findings = 0
        self.did: dict[str, int] = {}
        self.stale: list[dict[str, object]] = []
        self.errors: list[str] = []
        self.waiting: list[int] = []
        self.memory: list[tuple[float, float]] = []

    def run(self, seconds: float) -> dict[str, object]:
        began = time.perf_counter()
        for document in self.documents:
            self._open(document)
        for document in self.documents:
            self._rest(document)
        actions: list[tuple[int, Callable[[Open], None]]] = [
            (50, self._type), (8, self._delete), (8, self._paste), (12, self._undo), (5, self._rename),
            (4, self._save), (3, self._reopen), (1, self._switch), (9, self._ask),
        ]  # fmt: skip
        weights = [weight for weight, _ in actions]
        next_report = 0.0
        while self.seconds < seconds and self.wire.is_alive:
            document = self.chance.choice(
                self.documents[:4] if self.chance.random() < 0.7 else self.documents
            )
            act = self.chance.choices([act for _, act in actions], weights)[0]
            name = act.__name__.strip("_")
            self.did[name] = self.did.get(name, 0) + 1
            act(document)
            self.seconds += THOUGHT_S
            self._mend(document)
            if self.chance.random() < 0.4:
                self._rest(document)
            if self.seconds >= next_report:
                time.sleep(PAUSE_S)
                self.memory.append((round(self.seconds / 3600, 2), self._resident_mib()))
                next_report += seconds / 20
                print(f"{self.memory[-1]}  {self.rests} rests, {len(self.stale)} stale", file=sys.stderr)
        for document in self.documents:
            self._rest(document)
        self._settle()
        cpu_s = self._cpu_s()
        return {
            "hours": round(self.seconds / 3600, 2),
            "letters": self.letters,
            "actions": self.did,
            "rests_compared": self.rests,
            "rests_on_broken_text": self.skipped,
            "findings_compared": self.findings,
            "stale": self.stale,
            "errors": self.errors,
            "resident_mib_by_hour": self.memory,
            "server_cpu_s": round(cpu_s, 1),
            "took_s": round(time.perf_counter() - began, 1),
            "ended_well": self.wire.is_alive and self.wire.close() == 0,
        }

    # ----------------------------------------------------------------------- what a person does

    def _type(self, document: Open) -> None:
        """A statement below a line, at its indentation; now and then only half of it, for a while."""
        row, indent = self._somewhere(document)
        statement = self.chance.choice(STATEMENTS).replace("\n", "\n" + indent)
        before = document.text
        self._replace(document, (row, 0), (row, 0), "\n")
        column = 0
        for letter in indent + statement:
            self._replace(document, (row, column), (row, column), letter)
            column = 0 if letter == "\n" else column + 1
            row += letter == "\n"
            self.letters += 1
            self.seconds += LETTER_S
            if self.chance.random() < 0.3:
                self._pull(document)
        document.past.append(before)

    def _delete(self, document: Open) -> None:
        lines = document.text.split("\n")
        first = self.chance.randrange(len(lines))
        last = min(len(lines) - 1, first + self.chance.choice((1, 1, 1, 2, 8)))
        self._edit(document, (first, 0), (last, 0), "")

    def _paste(self, document: Open) -> None:
        """A few lines of another file, at the top level or where they stood."""
        lines = self.chance.choice(self.documents).text.split("\n")
        first = self.chance.randrange(len(lines))
        row, _ = self._somewhere(document)
        self._edit(document, (row, 0), (row, 0), "\n".join(lines[first : first + 12]) + "\n")

    def _undo(self, document: Open) -> None:
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            if document.past:
                self._whole(document, document.past.pop())

    def _rename(self, document: Open) -> None:
        """One name everywhere, as one change with many edits."""
        names = sorted(set(re.findall(r"\b[a-z_]{4,}\b", document.text)))
        if not names:
            return
        old = self.chance.choice(names)
        document.past.append(document.text)
        events: list[object] = []
        lines = document.text.split("\n")
        for row in reversed(range(len(lines))):
            for match in reversed(list(re.finditer(rf"\b{old}\b", lines[row]))):
                events.append(_event((row, match.start()), (row, match.end()), f"{old}_x"))
                lines[row] = f"{lines[row][: match.start()]}{old}_x{lines[row][match.end() :]}"
        document.text = "\n".join(lines)
        self._tell(document, events)

    def _save(self, document: Open) -> None:
        if len(document.text) > 30_000:
            return
        document.path.write_text(document.text, "utf-8")
        self.wire.tell("textDocument/didSave", {"textDocument": {"uri": document.uri}})

    def _reopen(self, document: Open) -> None:
        self._save(document)
        self.wire.tell("textDocument/didClose", {"textDocument": {"uri": document.uri}})
        document.version = 1
        self._open(document)

    def _switch(self, _: Open) -> None:
        """Another branch: some files are others', some of the open ones are loaded again."""
        changes: list[object] = []
        for document in self.chance.sample(self.documents, 8):
            other = self.chance.choice(self.documents)
            document.past.append(document.text)
            self._whole(document, other.text)
            document.path.write_text(document.text, "utf-8")
            changes.append({"uri": document.uri, "type": 2})
        self.wire.tell("workspace/didChangeWatchedFiles", {"changes": changes})

    def _ask(self, document: Open) -> None:
        """What an editor asks in passing; nobody waits."""
        where = {"textDocument": {"uri": document.uri}}
        row, _ = self._somewhere(document)
        position = {"line": row, "character": 4}
        spot = {"start": position, "end": position}
        for method, params in (
            ("textDocument/hover", {**where, "position": position}),
            ("textDocument/codeAction", {**where, "range": spot, "context": {"diagnostics": []}}),
            ("textDocument/codeLens", where),
        ):
            self.waiting.append(self.wire.request(method, params))
        if self.chance.random() < 0.3:
            self.wire.tell("$/cancelRequest", {"id": self.waiting[-2]})
        self._settle()

    def _mend(self, document: Open) -> None:
        """Nobody leaves code broken for long, or lets a file grow without end."""
        if len(document.text) > 2 * len(document.path.read_text("utf-8")) + 2_000:
            self._whole(document, document.path.read_text("utf-8"))
        elif parses(document.text):
            document.good = document.text
        elif document.good and self.chance.random() < 0.8:
            self._whole(document, document.good)

    # ----------------------------------------------------------------------- the document

    def _somewhere(self, document: Open) -> tuple[int, str]:
        """A line and the indentation of code there."""
        lines = document.text.split("\n")
        row = self.chance.randrange(len(lines))
        indent = re.match(r"[ ]*", lines[row])
        return row, indent[0] if indent else ""

    def _open(self, document: Open) -> None:
        item = {"uri": document.uri, "languageId": "python", "version": 1, "text": document.text}
        self.wire.tell("textDocument/didOpen", {"textDocument": item})

    def _edit(self, document: Open, start: tuple[int, int], end: tuple[int, int], text: str) -> None:
        document.past.append(document.text)
        self._replace(document, start, end, text)

    def _replace(self, document: Open, start: tuple[int, int], end: tuple[int, int], text: str) -> None:
        lines = document.text.split("\n")
        before = "\n".join([*lines[: start[0]], lines[start[0]][: start[1]]])
        after = "\n".join([lines[end[0]][end[1] :], *lines[end[0] + 1 :]])
        document.text = before + text + after
        self._tell(document, [_event(start, end, text)])

    def _whole(self, document: Open, text: str) -> None:
        document.text = text
        self._tell(document, [{"text": text}])

    def _tell(self, document: Open, events: Sequence[object]) -> None:
        document.version += 1
        del document.past[:-50]
        identity = {"uri": document.uri, "version": document.version}
        self.wire.tell("textDocument/didChange", {"textDocument": identity, "contentChanges": list(events)})

    # ----------------------------------------------------------------------- what comes back

    def _pull(self, document: Open) -> list[Mark]:
        answer = self.wire.ask("textDocument/diagnostic", {"textDocument": {"uri": document.uri}})
        self._note(answer)
        result = cast("dict[str, list[Message]]", answer.get("result") or {"items": []})
        return sorted(_mark(item) for item in result["items"])

    def _rest(self, document: Open) -> None:
        """Nobody types: what is shown is what a fresh analysis finds."""
        shown = self._pull(document)
        if not parses(document.text):
            self.skipped += 1  # what stands there is kept for a while on purpose
            return
        self.rests += 1
        self.findings += len(shown)
        fresh = self._fresh(document)
        if shown != fresh:
            where = {"file": document.path.name, "second": round(self.seconds)}
            missing = [mark for mark in fresh if mark not in shown]
            extra = [mark for mark in shown if mark not in fresh]
            self.stale.append({**where, "missing": missing, "extra": extra, "text": document.text})

    def _fresh(self, document: Open) -> list[Mark]:
        if not could_matter(document.text):
            return []
        path, settings = str(document.path), Settings()
        texts = {str(other.path): other.text for other in self.documents if other is not document}
        project = open_project(
            path, settings, lambda name: lower_text(name, texts[name]) if name in texts else None
        )
        report = Engine(settings, self.folder, project).check_quickly(Document(path, document.text))
        return sorted(
            (finding.rule, span.line, span.column, span.end_line, span.end_column)
            for finding in report.findings
            for span in (finding.place.span,)
            if finding.place.path == path and display(finding, Surface.EDITOR).is_listed
        )

    def _settle(self) -> None:
        for number in self.waiting:
            self._note(self.wire.answer(number))
        self.waiting.clear()

    def _note(self, answer: Message) -> None:
        error = cast("dict[str, object] | None", answer.get("error"))
        if error is not None and error.get("code") not in (-32800, -32801, -32802):
            self.errors.append(str(error))

    def _resident_mib(self) -> float:
        status = Path(f"/proc/{self.wire.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return round(int(found[1]) / 1024, 1) if found else 0.0

    def _cpu_s(self) -> float:
        words = Path(f"/proc/{self.wire.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / 100


def _event(start: tuple[int, int], end: tuple[int, int], text: str) -> object:
    span = {
        name: {"line": row, "character": column} for name, (row, column) in (("start", start), ("end", end))
    }
    return {"range": span, "text": text}


def _mark(item: Message) -> Mark:
    where = cast("dict[str, dict[str, int]]", item["range"])
    start, end = where["start"], where["end"]
    return (str(item["code"]), start["line"], start["character"], end["line"], end["character"])


if __name__ == "__main__":
    sys.exit(main())
