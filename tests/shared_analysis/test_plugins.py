"""Rules from outside: one file is enough, a faulty one harms nobody, and a workspace cannot bring one."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from torchwise_analysis import plugins
from torchwise_analysis.engine import Engine, could_matter
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import relevance
from torchwise_analysis.names.project import Project
from torchwise_analysis.plugins import Plugins, load
from torchwise_analysis.rule_testing import faults
from torchwise_analysis.rules import all_rules, built_in_rules
from torchwise_analysis.rules._snippets import parse
from torchwise_analysis.semantics import registry
from torchwise_analysis.settings import Settings
from torchwise_server.cli import scaffold

RULES = Path(__file__).parents[1] / "data/plugin_rules"
TEMPLATE = scaffold.RULE.replace("{name}", "loss-tracked-raw").replace("{code}", "ACME001")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules can be imported from; afterwards everything is as before."""
    before = [dict(registry.FUNCTIONS), dict(registry.METHODS), dict(registry.FALLBACKS)]
    words, modules = set(relevance._TAUGHT), set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for table, old in zip((registry.FUNCTIONS, registry.METHODS, registry.FALLBACKS), before, strict=True):
        table.clear()  # type: ignore[attr-defined]
        table.update(old)  # type: ignore[attr-defined]
    relevance._TAUGHT.clear()
    relevance._TAUGHT.update(words)
    for name in set(sys.modules) - modules:
        if (
            getattr(sys.modules[name], "__file__", None)
            and Path(str(sys.modules[name].__file__)).parent == tmp_path
        ):
            del sys.modules[name]


def module(folder: Path, name: str, text: str) -> ModuleType:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    return importlib.import_module(name)


def entry(name: str) -> tuple[EntryPoint, str]:
    return EntryPoint(name, name, plugins.GROUP), "a-package"


@pytest.fixture
def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """Both rules, loaded as if they were installed."""
    (folder / "acme_rule.py").write_text(TEMPLATE, encoding="utf-8")
    text = (RULES / "average_before_step.py").read_text(encoding="utf-8")
    (folder / "average_before_step.py").write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    found = load([entry("acme_rule"), entry("average_before_step")])
    monkeypatch.setattr(plugins, "plugins", lambda: found)
    monkeypatch.setattr("torchwise_analysis.engine.plugins", lambda: found)
    return found


# ---------------------------------------------------------------------------- one file is enough


def test_the_rule_that_is_scaffolded_holds(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert faults(module(folder, "acme_rule", TEMPLATE), tmp_path_factory.mktemp("examples")) == []


def test_a_rule_with_semantics_of_its_own_is_one_file(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = (RULES / "average_before_step.py").read_text(encoding="utf-8")
    rule = module(folder, "average_before_step", text)
    assert faults(rule, tmp_path_factory.mktemp("examples")) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("^^^^ loss-tracked-raw warning certain", "", "loss-tracked-raw is found in line 13"),
        ("warning certain", "error certain", "loss-tracked-raw is warning, not error"),
        ("loss.detach())'", "loss.item())'", "the first fix gives another text than `fixed`"),
        (".detach()`\", Safety.SAFE", ".detach()`\", Safety.ADVICE", "advice has no edits"),
        ('append_to(hit.place, ".detach()")', 'append_to(hit.place, ".view(-1)")', "leaves the finding"),
        ('append_to(hit.place, ".detach()")', 'append_to(hit.place, ".(")', "does not parse"),
        ("if loop is None:\n            continue", "raise KeyError(3)", "KeyError: 3"),
        ("    optimizer.step()\n%s", "    optimizer.step(\n%s", "it does not parse"),
    ],
)  # fmt: skip
def test_examples_that_do_not_hold_are_named(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, old: str, new: str, fault: str
) -> None:
    assert old in TEMPLATE
    rule = module(folder, "acme_rule", TEMPLATE.replace(old, new))
    found = faults(rule, tmp_path_factory.mktemp("examples"))
    assert any(fault in one for one in found), found


def test_a_loaded_rule_is_a_rule_like_any_other(loaded: Plugins, folder: Path) -> None:
    assert [each.rule.code for each in loaded.rules] == ["ACME001", "EMA001"]
    assert loaded.failures == ()
    assert all_rules() == (*built_in_rules(), *loaded.rules)
    example = parse(loaded.rules[0].rule.wrong.code)
    for settings, number in (
        (Settings(), 1),
        (Settings(select=("ACME",)), 1),
        (Settings(select=("loss-tracked-raw",)), 1),
        (Settings(ignore=("ACME001",)), 0),
        (Settings(per_file_ignores=(("*.py", ("ACME",)),)), 0),
    ):
        engine = Engine(settings, folder, Project([str(folder)]))
        report = engine.check(SourceFile(str(folder / "train.py"), example.text))
        assert len(report.findings) == number, settings
    silenced = example.text.replace("loss)\n", "loss)  # noqa: ACME001\n")
    engine = Engine(Settings(), folder, Project([str(folder)]))
    assert engine.check(SourceFile(str(folder / "train.py"), silenced)).findings == ()


def test_what_a_rule_teaches_matters(loaded: Plugins) -> None:
    assert loaded.words == {"track", "Average", "update"}
    assert could_matter("from runlog import track\n")
    assert not could_matter("import json\n")


def test_the_identity_changes_with_the_file(folder: Path) -> None:
    module(folder, "acme_rule", TEMPLATE)
    first = load([entry("acme_rule")]).identity
    assert first == load([entry("acme_rule")]).identity != ""
    (folder / "acme_rule.py").write_text(TEMPLATE + "\n# changed\n", encoding="utf-8")
    assert load([entry("acme_rule")]).identity != first


# ---------------------------------------------------------------------------- a faulty one harms nobody

FAULTY = {
    "does not import": ("import nothing_of_this_name", "ModuleNotFoundError: No module named"),
    "raises": ("1 / 0", "ZeroDivisionError: division by zero"),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "is no rule": ("x = 1", "faulty defines no RULE"),
    "has no detector": (TEMPLATE.replace("def detect(", "def detects("), "without detect(trace)"),
    "takes our code": (TEMPLATE.replace("ACME001", "TW101"), "must be two to eight capitals, not TW"),
    "has a wrong name": (TEMPLATE.replace("loss-tracked-raw", "Loss Tracked"), "must be lower-case words"),
    "takes our name": (TEMPLATE.replace("loss-tracked-raw", "retained-graph"), "TW101 retained-graph is"),
    "changes torch": (
        TEMPLATE.replace('"runlog.track"', '"torch.utils.data.DataLoader"'),
        "gives torch.utils.data.DataLoader another meaning",
    ),
    "is no Python": ("def", "SyntaxError"),
    "uses what is not there": ("from torchwise_analysis.api import nothing", "ImportError: cannot import"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTY)
def test_a_faulty_rule_is_named_and_leaves_nothing(folder: Path, kind: str) -> None:
    text, message = FAULTY[kind]
    (folder / "faulty.py").write_text(text, encoding="utf-8")
    (folder / "acme_rule.py").write_text(TEMPLATE, encoding="utf-8")
    importlib.invalidate_caches()
    functions, methods = dict(registry.FUNCTIONS), dict(registry.METHODS)
    found = load([entry("faulty")])
    assert found.rules == ()
    (failure,) = found.failures
    assert (failure.name, failure.distribution) == ("faulty", "a-package")
    assert message in failure.message
    assert (functions, methods) == (registry.FUNCTIONS, registry.METHODS)
    found = load([entry("faulty"), entry("acme_rule")])
    assert [each.rule.name for each in found.rules] == ["loss-tracked-raw"]


def test_two_rules_cannot_share_a_code(folder: Path) -> None:
    (folder / "one.py").write_text(TEMPLATE, encoding="utf-8")
    (folder / "two.py").write_text(
        TEMPLATE.replace("loss-tracked-raw", "loss-tracked-twice"), encoding="utf-8"
    )
    importlib.invalidate_caches()
    found = load([entry("one"), entry("two")])
    assert len(found.rules) == 1
    assert "ACME001 loss-tracked-raw is there already" in found.failures[0].message


def test_an_interruption_is_none_of_its_faults(folder: Path) -> None:
    (folder / "faulty.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    importlib.invalidate_caches()
    with pytest.raises(KeyboardInterrupt):
        load([entry("faulty")])


# ---------------------------------------------------------------------------- where they come from


def test_a_workspace_cannot_bring_a_rule(tmp_path: Path) -> None:
    """Neither its folder nor PYTHONPATH nor an environment of its own is asked."""
    for place in (tmp_path, tmp_path / "lib", tmp_path / ".venv/lib/python3.11/site-packages"):
        info = place / "evil-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[torchwise.rules]\nevil = evil\n")
        (place / "evil.py").write_text("open('ran', 'w')\n")
    (tmp_path / "train.py").write_text("import torch\n")
    environment = {
        **os.environ, "PYTHONPATH": str(tmp_path / "lib"), "VIRTUAL_ENV": str(tmp_path / ".venv"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "torchwise_server", "check", ".", "--format", "json"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["problems"] == []
    assert not (tmp_path / "ran").exists()


def test_rules_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHWISE_NO_PLUGINS", "1")
    assert plugins.plugins.__wrapped__() == Plugins()
