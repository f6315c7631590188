"""The engine's backend: what a keystroke may leave undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.engine import Engine, EstimateReport
from torchwise_analysis.source import Document
from torchwise_server.lsp.backend import EngineBackend
from torchwise_server.lsp.documents import Update
from torchwise_server.lsp.options import EditorOptions
from torchwise_server.lsp.text import Change, Position

TEXT = """import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader([]):
    model(x).sum().backward()
    optimizer.step()
"""


def never() -> bool:
    return False


@pytest.fixture
def estimates(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that an estimate was made of."""
    made: list[str] = []

    def estimate(self: Engine, document: Document, *_: object) -> EstimateReport:
        made.append(document.text)
        self.project.load(str(Path(document.path).with_name("model.py")))
        return EstimateReport()

    monkeypatch.setattr(Engine, "estimate", estimate)
    return made


def typed(line: int, column: int, text: str) -> Update:
    at = Position(line, column)
    return Update(2, (Change(at, at, text),))


def test_an_estimate_is_kept_until_the_code_changes(tmp_path: Path, estimates: list[str]) -> None:
    backend, options, path = EngineBackend(), EditorOptions(), str(tmp_path / "train.py")
    backend.update("uri", path, Update(1, (TEXT,)))
    first = backend.estimate("uri", options, never)
    backend.update("uri", path, typed(6, len("    optimizer.step()"), "  # once a batch"))
    assert backend.estimate("uri", options, never) is first
    assert len(estimates) == 1
    backend.update("uri", path, typed(3, 0, "\n"))
    assert backend.estimate("uri", options, never) is not first, "its lines have moved"
    backend.update("uri", path, typed(2, len("model = torch.nn.Linear("), "6"))
    backend.estimate("uri", options, never)
    assert len(estimates) == 3


def test_an_estimate_is_made_again_after_a_reload_or_an_edit_elsewhere(
    tmp_path: Path, estimates: list[str]
) -> None:
    backend, options, path = EngineBackend(), EditorOptions(), str(tmp_path / "train.py")
    backend.update("uri", path, Update(1, (TEXT,)))
    backend.update("other", str(tmp_path / "model.py"), Update(1, ("width = 4\n",)))
    backend.update("third", str(tmp_path / "third.py"), Update(1, ("depth = 4\n",)))
    backend.estimate("uri", options, never)
    backend.update("third", str(tmp_path / "third.py"), typed(0, len("depth = "), "6"))
    backend.estimate("uri", options, never)
    assert len(estimates) == 1, "it does not read the third"
    backend.update("other", str(tmp_path / "model.py"), typed(0, len("width = "), "6"))
    backend.estimate("uri", options, never)
    assert len(estimates) == 2
    backend.saved(str(tmp_path / "model.py"))
    backend.estimate("uri", options, never)
    assert len(estimates) == 2, "the open text counts, not the saved one"
    backend.forget("other")
    backend.estimate("uri", options, never)
    assert len(estimates) == 3, "now the saved one does"
    backend.saved(str(tmp_path / "model.py"))
    backend.estimate("uri", options, never)
    assert len(estimates) == 4
    backend.reload()
    backend.estimate("uri", options, never)
    assert len(estimates) == 5


@pytest.mark.parametrize(
    ("saved", "is_kept"),
    [
        ("third.py", True),
        ("third/__init__.py", True),
        ("config.yaml", False),
        ("missing.py", False),
        ("missing/__init__.py", False),
    ],
)
def test_an_estimate_outlives_what_was_saved_elsewhere(
    tmp_path: Path, estimates: list[str], saved: str, is_kept: bool
) -> None:
    """A file that appears may be what an import meant; others change nothing unless they were read."""
    backend, options, path = EngineBackend(), EditorOptions(), str(tmp_path / "train.py")
    backend.update("uri", path, Update(1, (TEXT,)))
    backend._engine(path, options).project.find("missing.parts", path)
    backend.estimate("uri", options, never)
    backend.saved(str(tmp_path / saved))
    backend.estimate("uri", options, never)
    assert (len(estimates) == 1) is is_kept


UNUSED = "def shown(model):\n    print(model)\n\n\n"


def test_a_keystroke_outside_model_and_loop_repeats_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the engine itself: an edit in a function that nobody calls keeps the answer, its lines moved."""
    made: list[str] = []
    original = Engine.estimate

    def estimate(self: Engine, document: object, *rest: object) -> EstimateReport:
        made.append(document.text)  # type: ignore[attr-defined]
        return original(self, document, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "estimate", estimate)
    loop = TEXT.replace("torch.utils.data.DataLoader([])", "[torch.zeros(2, 4)] * 3")
    loop = loop.replace("Linear(4, 4)", "Linear(4, 4).cuda()").replace("model(x)", "model(x.cuda())")
    text = loop.replace("import torch\n", "import torch\n\n" + UNUSED)
    backend, options, path = EngineBackend(), EditorOptions(), str(tmp_path / "train.py")
    backend.update("uri", path, Update(1, (text,)))
    first = backend.estimate("uri", options, never)
    assert first is not None and [e.origin.line for e in first.estimates] == [10]
    backend.update("uri", path, typed(3, len("    print(model)"), "\n    print(1)"))
    kept = backend.estimate("uri", options, never)
    assert kept is not None and [e.origin.line for e in kept.estimates] == [11]
    assert len(made) == 1
    backend.update("uri", path, typed(8, len("model = torch.nn.Linear("), "1"))
    backend.estimate("uri", options, never)
    assert len(made) == 2
    backend.update("uri", path, typed(10, 0, "# torchwise: batch_size=2\n"))
    backend.estimate("uri", options, never)
    assert len(made) == 3, "a comment may state something"


def test_a_keystroke_in_another_file_repeats_no_trace_that_never_went_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    original = Engine.estimate

    def estimate(self: Engine, document: object, *rest: object) -> EstimateReport:
        made.append(document.text)  # type: ignore[attr-defined]
        return original(self, document, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "estimate", estimate)
    layers = "import torch\n\n\n" + UNUSED + "def made():\n    return torch.nn.Linear(4, 4).cuda()\n"
    loop = TEXT.replace("torch.utils.data.DataLoader([])", "[torch.zeros(2, 4)] * 3")
    loop = loop.replace("torch.nn.Linear(4, 4)", "layers.made()").replace("model(x)", "model(x.cuda())")
    backend, options = EngineBackend(), EditorOptions()
    backend.update(
        "uri", str(tmp_path / "train.py"), Update(1, (loop.replace("torch\n", "torch, layers\n", 1),))
    )
    (tmp_path / "layers.py").write_text(layers, "utf-8")
    backend.update("layers", str(tmp_path / "layers.py"), Update(1, (layers,)))
    first = backend.estimate("uri", options, never)
    assert first is not None and first.estimates
    assert [one.origin.line for one in first.estimates[0].modules] == [9]
    backend.update("layers", str(tmp_path / "layers.py"), typed(4, len("    print(model)"), "\n    print(1)"))
    kept = backend.estimate("uri", options, never)
    assert len(made) == 1 and kept is not None
    assert [one.origin.line for one in kept.estimates[0].modules] == [10], "what stands below has moved"
    backend.update("layers", str(tmp_path / "layers.py"), typed(9, len("    return torch.nn.Linear("), "1"))
    backend.estimate("uri", options, never)
    assert len(made) == 2


def test_runs_are_remembered_for_the_documents_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchwise_server.lsp.backend._REMEMBERED_LINES", 2 * TEXT.count("\n") + 4)
    backend, options = EngineBackend(), EditorOptions()
    found = {}
    for name in "abc":
        backend.update(name, str(tmp_path / f"{name}.py"), Update(1, (TEXT,)))
        found[name] = backend.check(name, options, never)
    assert [name for name, one in backend._subjects.items() if one.memory is not None] == ["b", "c"]
    again = backend.check("a", options, never)
    assert again is not None and found["a"] is not None
    assert again.findings == found["a"].findings
    assert [name for name, one in backend._subjects.items() if one.memory is not None] == ["a", "c"]
    backend.forget("c")
    assert backend.check("b", options, never) == found["b"]


def test_imports_of_projects_used_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchwise_server.lsp.backend._IMPORTED_LINES", 3)
    backend, options = EngineBackend(), EditorOptions()
    found = {}
    for name in "abc":
        folder = tmp_path / name
        folder.mkdir()
        (folder / "steps.py").write_text("def step(loss):\n    loss.backward()\n", "utf-8")
        backend.update(
            name, str(folder / "train.py"), Update(1, (f"from steps import step\n{TEXT}step(model)\n",))
        )
        found[name] = backend.check(name, options, never)
    assert len(backend._engines) == 2, "room for three lines when another document is turned to"
    assert [name for name, one in backend._subjects.items() if one.memory is not None] == ["b", "c"]
    assert backend.check("a", options, never) == found["a"]
