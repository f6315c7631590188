"""Fixes on every example of every rule: the result parses, is none the worse, and nothing is left."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from torchwise_analysis.engine import Engine
from torchwise_analysis.findings import Finding, Fix, Safety
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.names.project import Project
from torchwise_analysis.repairs import Job, Outcome, repair_together
from torchwise_analysis.rules import built_in_rules
from torchwise_analysis.rules._framework import Example
from torchwise_analysis.rules._snippets import parse
from torchwise_analysis.settings import Settings

EXAMPLES = [
    pytest.param(example, id=f"{entry.rule.name}: {example.title}")
    for entry in built_in_rules()
    for example in entry.rule.all_examples
    if parse(example.code).expected
]


def anything(_: Finding, __: Fix) -> bool:
    return True


def safe(_: Finding, fix: Fix) -> bool:
    return fix.safety is Safety.SAFE


def repaired(folder: Path, files: dict[str, str], wanted: object = anything) -> dict[str, Outcome]:
    """Repair the Python files together, as `torchwise fix` does."""
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    files = {name: text for name, text in files.items() if name.endswith(".py")}
    engine = Engine(Settings(), folder, Project([str(folder)]))
    jobs = [Job(engine, SourceFile(str(folder / name), text), wanted) for name, text in files.items()]  # type: ignore[arg-type]
    return dict(zip(files, repair_together(jobs), strict=True))


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_repaired_to_a_fixed_point(example: Example, tmp_path: Path) -> None:
    files = {"example.py": parse(example.code).text, **example.files}
    outcomes = repaired(tmp_path, files)
    texts = {name: outcome.repair.file.text for name, outcome in outcomes.items()}
    for name, text in texts.items():
        ast.parse(text, name)
    again = repaired(tmp_path, texts)
    assert {name: outcome.repair.file.text for name, outcome in again.items()} == texts
    before = Engine(Settings(), tmp_path, Project([str(tmp_path)]))
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode())
    rules = [
        f.rule for f in before.check(SourceFile(str(tmp_path / "example.py"), files["example.py"])).findings
    ]
    left = [f.rule for outcome in outcomes.values() for f in outcome.repair.left]
    assert len(left) <= len(rules)
    assert set(left) <= set(rules)


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_safe_repair_applies_nothing_else(example: Example, tmp_path: Path) -> None:
    outcomes = repaired(tmp_path, {"example.py": parse(example.code).text, **example.files}, safe)
    applied = [one for outcome in outcomes.values() for one in outcome.repair.applied]
    assert all(one.fix.safety is Safety.SAFE for one in applied)


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_line_endings_of_a_repaired_example_are_those_it_had(newline: str, tmp_path: Path) -> None:
    for number, entry in enumerate(built_in_rules()):
        text = parse(entry.rule.wrong.code).text.replace("\n", newline)
        folder = tmp_path / str(number)
        folder.mkdir()
        fixed = repaired(folder, {"example.py": text})["example.py"].repair.file.text
        assert "\n" not in fixed.replace(newline, ""), entry.rule.name


def test_order_does_not_matter(tmp_path: Path) -> None:
    helper = "def keep(history, loss):\n    history.append(loss)\n"
    main = (
        "import torch\nfrom helper import keep\n\nmodel = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nhistory = []\n"
        "for x, y in torch.utils.data.DataLoader(torch.zeros(4, 2)):\n"
        "    loss = torch.nn.functional.cross_entropy(model(x), y)\n"
        "    loss.backward()\n    optimizer.step()\n"
        "    keep(history, loss)\n"
    )
    results = []
    for number, names in enumerate((("helper.py", "main.py"), ("main.py", "helper.py"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        texts = {"helper.py": helper, "main.py": main}
        outcomes = repaired(folder, {name: texts[name] for name in names})
        results.append({name: outcomes[name].repair.file.text for name in texts})
    assert results[0] == results[1]
    assert "detach" in results[0]["helper.py"]
    assert "zero_grad" in results[0]["main.py"]
