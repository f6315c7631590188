"""Fill vscode-extension/bundled/libs with the server and the libraries it needs, for this platform.

    python scripts/bundle_server.py [--python 3.12 ...]

The extension then starts with any Python 3.10 or newer, offline, and never touches an environment of the
user. Versions are those of the environment that runs this script, which is the one that the tests ran in.
LibCST is the only library with native code: its extension modules of all named Python versions lie side by
side in one tree, each Python takes its own.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBS = ROOT / "vscode-extension" / "bundled" / "libs"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

# What the server imports. rich serves the command line; LibCST needs PyYAML for its codemods only.
_PURE = ("pygls", "lsprotocol", "attrs", "cattrs", "typing_extensions", "jedi", "parso")
_BELOW_311 = ("exceptiongroup", "tomli")  # pip reads markers of the running Python, so they are named here
_NATIVE = "libcst"
# The live guard needs PyTorch; jedi is asked about the standard library only.
_NEVER_IMPORTED = (
    *("libcst/tests", "libcst/codemod", "libcst/tool.py", "bin"),
    *("torchwise_memory/live", "jedi/third_party/typeshed/stubs"),
)

_TARGETS = {
    ("linux", "x86_64"): "linux-x64",
    ("linux", "aarch64"): "linux-arm64",
    ("darwin", "x86_64"): "darwin-x64",
    ("darwin", "arm64"): "darwin-arm64",
    ("win32", "amd64"): "win32-x64",
    ("win32", "arm64"): "win32-arm64",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the folder, or print the platform's name for `vsce package --target`."""
    parser = argparse.ArgumentParser(description="Bundle the server into the VS Code extension.")
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="X.Y", help="versions to serve")
    parser.add_argument("--target", action="store_true", help="print VS Code's name of this platform instead")
    options = parser.parse_args(arguments)
    if options.target:
        print(target())
        return 0
    with tempfile.TemporaryDirectory() as made:
        fill(Path(made) / "libs", tuple(options.python))
        shutil.rmtree(LIBS, ignore_errors=True)
        LIBS.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(made) / "libs", LIBS)
    print(
        f"{LIBS.relative_to(ROOT)}: {_size_mib(LIBS):.1f} MiB, {target()}, Python {', '.join(options.python)}"
    )
    return 0


def target() -> str:
    """VS Code's name of this platform."""
    return _TARGETS[sys.platform, platform.machine().lower()]


def fill(libs: Path, pythons: Sequence[str]) -> None:
    """Install everything into `libs`."""
    wheel = _wheel(libs.parent)
    any_python = ("--implementation", "py", "--abi", "none", "--platform", "any", "--only-binary=:all:")
    _install(libs, [*any_python, str(wheel), *map(_pinned, _PURE), *_BELOW_311])
    for number, python in enumerate(pythons):
        part = libs.parent / python
        wanted = ["--python-version", python, "--only-binary=:all:", _pinned(_NATIVE)]
        _install(part, wanted)
        if number == 0:
            shutil.copytree(part, libs, dirs_exist_ok=True)
        for native in (part / _NATIVE).glob("native.*"):
            shutil.copy2(native, libs / _NATIVE)
    for name in _NEVER_IMPORTED:
        unwanted = libs / name
        if unwanted.is_dir():
            shutil.rmtree(unwanted)
        else:
            unwanted.unlink(missing_ok=True)


def _wheel(folder: Path) -> Path:
    _run("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("torchwise-*.whl"))


def _install(folder: Path, wanted: Sequence[str]) -> None:
    _run("install", "--no-deps", "--no-compile", "--target", str(folder), *wanted)


def _run(command: str, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", command, "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True)


def _pinned(name: str) -> str:
    try:
        return f"{name}=={version(name)}"
    except PackageNotFoundError:
        return name


def _size_mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / (1 << 20)


if __name__ == "__main__":
    sys.exit(main())
