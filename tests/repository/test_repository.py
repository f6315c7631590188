"""What holds for the repository as a whole: one version, whole documentation, nothing of one machine."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from dataclasses import fields
from pathlib import Path

import pytest

from torchwise_analysis.rules import all_rules
from torchwise_analysis.settings import Settings
from torchwise_server import __version__
from torchwise_server.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "vscode-extension/README.md"],
)
PACKAGES = {"torchwise_analysis", "torchwise_memory", "torchwise_server"}

# Spelled in pieces, so that this file does not hold what it looks for.
MACHINE = re.compile(
    "|".join(
        (
            r"(?<![\w./-])/" + r"(?:work|root|mnt|Users)/\w",
            r"(?<![\w./-])/ho" + r"me/(?!user\b|me\b|someone\b)\w",
            r"files\.pytho" + r"nhosted\.org",
            r"pypi\.or" + r"g/simple",
            r"registry\.npm" + r"js\.org",
            r"artifac" + r"tory",
        )
    )
)


def tracked() -> list[Path]:
    """Every file that git knows, or is about to: what a clone holds."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def code_blocks(path: Path) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


# ---------------------------------------------------------------------------- versions and the wheel


def test_product_extension_and_changelog_have_one_version() -> None:
    manifest = json.loads((ROOT / "vscode-extension/package.json").read_text(encoding="utf-8"))
    assert manifest["version"] == __version__
    for log in ("CHANGELOG.md", "vscode-extension/CHANGELOG.md"):
        newest = re.search(r"^## (\S+)", (ROOT / log).read_text(encoding="utf-8"), re.MULTILINE)
        assert newest is not None
        assert newest[1] == __version__, log


def test_a_wheel_holds_the_three_packages_and_their_data(tmp_path: Path) -> None:
    hatchling = pytest.importorskip("hatchling.builders.wheel")
    (name,) = hatchling.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(name) as wheel:
        names = wheel.namelist()
    assert {top for entry in names if not (top := entry.partition("/")[0]).endswith(".dist-info")} == PACKAGES
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    for source in PACKAGES:
        (folder,) = (each for each in ROOT.glob(f"*/{source}") if "bundled" not in each.parts)
        data = [path for path in folder.rglob("*.json") if path.is_file()]
        assert {f"{source}/{path.relative_to(folder).as_posix()}" for path in data} <= set(names)


# ---------------------------------------------------------------------------- nothing of one machine


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if MACHINE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert found == []


# ---------------------------------------------------------------------------- documentation


def test_every_rule_has_a_page_and_every_page_a_rule() -> None:
    rules = {entry.rule.name: entry.rule.code for entry in all_rules()}
    pages = {path.stem for path in (ROOT / "docs/rules").glob("*.md")} - {"README"}
    assert pages == set(rules)
    index = (ROOT / "docs/rules/README.md").read_text(encoding="utf-8")
    for name, code in rules.items():
        assert f"| {code} | [{name}]({name}.md) |" in index


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name) if name else path
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
            assert anchor in slugs, target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_documents_name_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:tests|docs|benchmarks|examples|scripts|vscode-extension)/[\w./-]+)`", text):
        is_built = name.startswith(("vscode-extension/bundled", "vscode-extension/dist")) or ".vsix" in name
        assert is_built or (ROOT / name).exists(), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_targets_that_documents_name_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"`make ([a-z0-9 -]+)`", text) + re.findall(
        r"^make ([a-z0-9 -]+?)(?:\s+#|$)", text, re.M
    )
    assert {target for words in named for target in words.split()} <= targets


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_documents_name_exist(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = path.read_text(encoding="utf-8")
    spoken = re.findall(r"`torchwise ([a-z][a-z-]*)((?: [^`]*)?)`", text)
    typed = [
        match
        for block in code_blocks(path)
        for match in re.findall(r"^(?:\$ |- run: )?torchwise ([a-z][a-z-]*)(.*)$", block, re.MULTILINE)
    ]
    for command, rest in [*spoken, *typed]:
        assert command in COMMANDS, command
        main([command, "--help"])
        said = capsys.readouterr().out
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest):
            assert option in said, f"{command} {option}"


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE))
    assert documented == {each.name.replace("_", "-") for each in fields(Settings)}


def test_the_readme_shows_what_the_commands_print(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examples are the reports line by line; `...` stands for lines left out."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = [block for block in code_blocks(ROOT / "README.md") if block.startswith("$ torchwise ")]
    assert len(shown) == 2
    for block in shown:
        command, *lines = block.rstrip("\n").split("\n")
        main(command.split()[2:])
        printed = [line.rstrip() for line in capsys.readouterr().out.split("\n")]
        at = 0
        for previous, line in zip([command, *lines], lines, strict=False):
            if line == "...":
                continue
            at = printed.index(line, at) if previous == "..." else at
            assert printed[at] == line
            at += 1
