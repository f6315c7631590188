"""The packaged extension, unzipped: its server starts with a bare Python, from nothing but the package."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from tests.packages.test_pythons import VERSIONS, interpreter
from tests.server.lsp.editor import launched

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VSIX = Path(os.environ.get("VSIX") or ROOT / "vscode-extension" / "torchwise.vsix")
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
    """Installations without torchwise: the one below this environment, and of other versions where found."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    names = [str(Path(sys.base_prefix) / "bin" / "python3")]
    names += [found for version in VERSIONS if version != own and (found := interpreter(version))]
    for name in names:
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


def test_only_what_the_server_reads_is_in_the_package(extension: Path) -> None:
    libs = extension / "bundled" / "libs"
    names = [path.relative_to(libs).as_posix() for path in libs.rglob("*") if path.is_file()]
    assert [
        name for name in names if re.search(r"/tests?/|_cache/|\.pyc$|/RECORD$|direct_url|/live/", name)
    ] == []
    for version in VERSIONS:
        built = [name for name in names if f"native.cpython-{version.replace('.', '')}-" in name]
        assert len(built) == 1 or sys.platform == "win32", version
    licences = {name.partition("/")[0] for name in names if re.search(r"(?i)licen[cs]e", name)}
    assert {path.name for path in libs.glob("*.dist-info")} <= licences


@pytest.mark.skipif(not (ROOT / "node_modules/.bin/vsce").exists(), reason="needs node_modules: npm ci")
def test_a_package_made_elsewhere_and_later_is_the_same(tmp_path: Path) -> None:
    if any(path.stat().st_mtime > VSIX.stat().st_mtime for path in package_sources()):
        pytest.skip("the package is older than what it is made from: make vsix")
    # below the repository, where Node finds its modules
    copy = ROOT / "build" / "package-again"
    shutil.rmtree(copy, ignore_errors=True)
    ignored = shutil.ignore_patterns("node_modules", "dist", "*.vsix", "__pycache__")
    shutil.copytree(ROOT / "vscode-extension", copy, ignore=ignored, copy_function=shutil.copy)
    with zipfile.ZipFile(VSIX) as package:
        manifest = package.read("extension.vsixmanifest").decode()
        moments = {entry.date_time for entry in package.infolist()}
    assert len(moments) == 1
    (target,) = re.findall(r'TargetPlatform="([\w-]+)"', manifest)
    again = tmp_path / "again.vsix"
    seconds = (datetime(*moments.pop(), tzinfo=timezone.utc)).timestamp()
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C", "SOURCE_DATE_EPOCH": str(int(seconds))}
    words = ["npm", "run", "--silent", "package", "--", "--target", target, "--out", str(again)]
    done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    shutil.rmtree(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"(?i)warn", done.stdout + done.stderr), done.stdout
    assert again.read_bytes() == VSIX.read_bytes()


def package_sources() -> Iterator[Path]:
    extension = ROOT / "vscode-extension"
    yield from (path for path in extension.glob("*.*") if path.suffix != ".vsix")
    for name in ("src", "media", "l10n", "launcher", "bundled"):
        yield from (path for path in (extension / name).rglob("*") if path.is_file())
