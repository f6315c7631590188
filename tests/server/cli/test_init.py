"""`torchwise init`: everything is shown first, nothing that exists is lost, and what is written works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from tests.server.cli.conftest import Cli

from torchwise_analysis.settings import load_settings
from torchwise_server import __version__


def test_the_files_are_shown_and_then_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".github").mkdir()
    result = cli("init", "--gpu", "t4")
    assert result.status == 1
    assert "write pyproject.toml" in result.out
    assert 'gpus = ["t4"]' in result.out
    assert "write .github/workflows/torchwise.yml" in result.out
    assert "nothing was written" in result.err
    assert not (tmp_path / "pyproject.toml").exists()
    result = cli("init", "--gpu", "t4", "--yes")
    assert result.status == 0
    assert result.out.endswith("wrote pyproject.toml\nwrote .github/workflows/torchwise.yml\n")
    loaded = load_settings(tmp_path / "pyproject.toml")
    assert loaded is not None
    assert (loaded.settings.gpus, loaded.problems) == (("t4",), ())
    assert cli("init").out == "nothing to write: the configuration and the CI files are there\n"


@pytest.mark.parametrize(
    "before",
    [
        b"[project]\nname = 'x'\n",
        b"[project]\nname = 'x'",
        b"[project]\r\nname = 'x'\r\n",
        b"",
        b"# gr\xfc\xdfe\n",
    ],
)
def test_a_configuration_that_exists_gets_a_table_at_its_end(cli: Cli, tmp_path: Path, before: bytes) -> None:
    (tmp_path / "pyproject.toml").write_bytes(before)
    assert cli("init", "--yes").status == 0
    after = (tmp_path / "pyproject.toml").read_bytes()
    assert after.startswith(before)
    assert after.count(b"[tool.torchwise]") == 1
    assert after.count(b"\r\n") in (0, after.count(b"\n"))


def test_a_ci_file_that_exists_is_not_changed(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".pre-commit-config.yaml").write_text("repos: []\n")
    (tmp_path / "pyproject.toml").write_text("[tool.torchwise]\n")
    result = cli("init", "--yes")
    assert result.status == 0
    assert "add by hand to .pre-commit-config.yaml" in result.out
    assert "entry: torchwise check" in result.out
    assert (tmp_path / ".pre-commit-config.yaml").read_text() == "repos: []\n"


@pytest.mark.parametrize("name", ["github", "gitlab", "pre-commit"])
def test_what_is_written_is_yaml_that_pins_a_version(cli: Cli, tmp_path: Path, name: str) -> None:
    assert cli("init", "--ci", name, "--yes").status == 0
    (file,) = (path for path in tmp_path.rglob("*") if path.suffix in (".yml", ".yaml"))
    assert yaml.safe_load(file.read_text())
    assert f"torchwise=={__version__}" in file.read_text()


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("yes\n", 0), ("\n", 1), ("no\n", 1)])
def test_a_terminal_is_asked(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    result = cli("init")
    assert result.status == status
    assert "Write this file? [y/N]" in result.out
    assert (tmp_path / "pyproject.toml").exists() == (status == 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["nowhere"], "no such folder"), (["--gpu", "gtx-9"], "gtx-9"), (["--ci", "jenkins"], "invalid choice")],
)
def test_mistakes_are_named(cli: Cli, arguments: list[str], words: str) -> None:
    result = cli("init", *arguments)
    assert result.status == 2
    assert words in result.err


def test_a_broken_configuration_is_not_touched(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.torchwise]\nselct = []\n")
    result = cli("init", "--yes")
    assert result.status == 2
    assert "selct" in result.err
