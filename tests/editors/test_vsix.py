"""The packaged extension, unzipped: its server starts with a bare Python, from nothing but the package."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.lsp.editor import launched

HERE = Path(__file__).parent
VSIX = Path(os.environ.get("VSIX") or HERE.parents[1] / "vscode-extension" / "torchwise.vsix")
LIBS = "extension/bundled/libs/"


def brings_its_server() -> bool:
    if not VSIX.is_file():
        return False
    with zipfile.ZipFile(VSIX) as package:
        return any(name.startswith(LIBS) for name in package.namelist())


pytestmark = [
    pytest.mark.editor,
    pytest.mark.skipif(not brings_its_server(), reason="no self-contained package here: make vsix"),
]


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vsix")
    with zipfile.ZipFile(VSIX) as package:
        package.extractall(folder)
    return folder / "extension"


def bare_pythons() -> Iterator[str]:
    """Installations without torchwise: the one below this environment, and others that are found."""
    names = [str(Path(sys.base_prefix) / "bin" / "python3")]
    names += [found for minor in range(10, 15) if (found := shutil.which(f"python3.{minor}"))]
    for name in dict.fromkeys(names):
        script = "import sys; sys.exit(sys.version_info < (3, 10) or sys.prefix != sys.base_prefix)"
        if subprocess.run([name, "-I", "-c", script], capture_output=True, check=False).returncode == 0:
            yield name


@pytest.mark.parametrize("python", list(bare_pythons()))
async def test_server_starts_with_a_bare_python(
    python: str, extension: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    editor = await launched(
        "visual-studio-code", [python, "-I", "-B", str(extension / "launcher" / "launch.py"), "--stdio"]
    )
    await editor.start({"gpus": ["rtx-4090"]}, tmp_path)
    uri = (tmp_path / "train.py").as_uri()
    editor.open(uri, (HERE / "workspace" / "train.py").read_text("utf-8"))
    assert [item.code for item in await editor.diagnostics(uri)] == ["retained-graph"]
    await editor.command("torchwise.showMemoryReport", uri)
    (lens,) = await editor.lenses(uri)
    assert lens.command and "fits RTX 4090" in lens.command.title
    await editor.stop()


def test_every_import_of_the_server_is_in_the_package(extension: Path) -> None:
    libs = extension / "bundled" / "libs"
    brought = {path.name.removesuffix(".py") for path in libs.iterdir()}
    sources = [
        *(libs / "torchwise_server" / "lsp").rglob("*.py"),
        *(libs / "torchwise_analysis").rglob("*.py"),
        *(libs / "torchwise_memory").rglob("*.py"),
    ]
    assert len(sources) > 50
    for source in sources:
        for name in imported(ast.parse(source.read_text("utf-8"))):
            assert name in brought or name in sys.stdlib_module_names, f"{source} imports {name}"


def imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_without_the_package_the_environment_is_used_or_named(extension: Path, tmp_path: Path) -> None:
    launcher = Path(shutil.copytree(extension / "launcher", tmp_path / "launcher")) / "launch.py"
    here = subprocess.run([sys.executable, "-I", str(launcher), "--help"], capture_output=True, check=False)
    assert here.returncode == 0
    bare = next(bare_pythons())
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [bare, "-I", str(launcher), "--stdio"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.startswith(f"torchwise is not installed for {Path(bare).parent}")
