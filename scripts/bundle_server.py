"""Fill vscode-extension/bundled/libs with the server and the libraries it needs, for this platform.

    python scripts/bundle_server.py [--python 3.12 ...] [--into FOLDER]

The extension then starts with any Python 3.10 or newer, offline, and never touches an environment of the
user. Libraries are those of vscode-extension/libraries.txt, by version and digest, so that two builds are
the same. LibCST is the only one with native code: its extension modules of all named Python versions lie
side by side in one tree, each Python takes its own.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBS = ROOT / "vscode-extension" / "bundled" / "libs"
LIBRARIES = ROOT / "vscode-extension" / "libraries.txt"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

_NATIVE = "libcst"
# The live guard needs PyTorch; jedi is asked about the standard library only; what pip notes down of its
# own (places of this machine, digests of files that are left out) means nothing in a package.
_NEVER_READ = (
    *("libcst/codemod", "libcst/tool.py", "libcst/**/tests", "bin"),
    *("torchwise_memory/live", "jedi/third_party/typeshed/stubs", "jedi/third_party/django-stubs"),
    *("*.dist-info/RECORD", "*.dist-info/REQUESTED", "*.dist-info/INSTALLER", "*.dist-info/direct_url.json"),
    *("*.dist-info/entry_points.txt", "**/*_cache"),
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
    parser.add_argument("--into", type=Path, default=LIBS, metavar="FOLDER", help="default: the extension's")
    parser.add_argument("--target", action="store_true", help="print VS Code's name of this platform instead")
    options = parser.parse_args(arguments)
    if options.target:
        print(target())
        return 0
    with tempfile.TemporaryDirectory() as made:
        fill(Path(made) / "libs", tuple(options.python))
        shutil.rmtree(options.into, ignore_errors=True)
        options.into.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(made) / "libs", options.into)
    size = _size_mib(options.into)
    print(f"{options.into}: {size:.1f} MiB, {target()}, Python {', '.join(options.python)}")
    return 0


def target() -> str:
    """VS Code's name of this platform."""
    return _TARGETS[sys.platform, platform.machine().lower()]


def locked() -> dict[str, str]:
    """Name of each library -> its requirement with digests, for whatever Python: markers are left out."""
    text = re.sub(r"^#.*\n", "", LIBRARIES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    entries = re.split(r"\n(?=\w)", text.strip().replace("\\\n", " "))
    return {re.split("==", each)[0]: re.sub(r"\s*;[^-]*(?=--hash)", " ", each) for each in entries}


def fill(libs: Path, pythons: Sequence[str]) -> None:
    """Install everything into `libs`."""
    libraries = locked()
    native = libraries.pop(_NATIVE)
    any_python = ("--implementation", "py", "--abi", "none", "--platform", "any", "--only-binary=:all:")
    _install(libs, any_python, libraries.values())
    _run("install", *_INTO, str(libs), *any_python, str(_wheel(libs.parent)))
    for number, python in enumerate(pythons):
        part = libs.parent / python
        _install(part, ("--python-version", python, "--only-binary=:all:"), (native,))
        if number == 0:
            shutil.copytree(part, libs, dirs_exist_ok=True)
        for module in (part / _NATIVE).glob("native.*"):
            shutil.copy2(module, libs / _NATIVE)
    for pattern in _NEVER_READ:
        for unwanted in list(libs.glob(pattern)):
            if unwanted.is_dir():
                shutil.rmtree(unwanted)
            else:
                unwanted.unlink()
    for path in _all(libs):
        path.chmod(0o755 if path.is_dir() or ".so" in path.suffixes else 0o644)  # whatever the umask is


_INTO = ("--no-deps", "--no-compile", "--target")


def _wheel(folder: Path) -> Path:
    _run("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("torchwise-*.whl"))


def _install(folder: Path, where: Sequence[str], libraries: Iterable[str]) -> None:
    listed = folder.parent / f"{folder.name}.txt"
    listed.write_text("\n".join(libraries) + "\n", encoding="utf-8")
    _run("install", *_INTO, str(folder), *where, "--require-hashes", "--requirement", str(listed))


def _run(command: str, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", command, "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True)


def _all(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if not path.is_symlink())


def _size_mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in _all(folder) if path.is_file()) / (1 << 20)


if __name__ == "__main__":
    sys.exit(main())
