"""Fill vscode-extension/bundled/libs with the server and the libraries it needs, for one platform.

    python scripts/bundle_server.py [--target darwin-arm64] [--python 3.12 ...] [--into FOLDER]

The extension then starts with any Python 3.10 or newer, offline, and never touches an environment of the
user. Libraries are those of vscode-extension/libraries.txt, by version and digest, so that two builds are
the same. LibCST is the only one with native code: its extension modules of all named Python versions lie
side by side in one tree, each Python takes its own. They are fetched as they were built, nothing is
compiled, so any machine can fill the folder for any platform.
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

# VS Code's name of a platform -> tags of the wheels that run there, best first. VS Code itself needs
# glibc 2.28, macOS 11 or Windows 10.
PLATFORMS = {
    "linux-x64": ("manylinux_2_28_x86_64", "manylinux2014_x86_64"),
    "linux-arm64": ("manylinux_2_28_aarch64", "manylinux2014_aarch64"),
    "alpine-x64": ("musllinux_1_2_x86_64",),
    "alpine-arm64": ("musllinux_1_2_aarch64",),
    "darwin-x64": ("macosx_11_0_x86_64", "macosx_10_15_x86_64"),
    "darwin-arm64": ("macosx_11_0_arm64",),
    "win32-x64": ("win_amd64",),
    "win32-arm64": ("win_arm64",),
}
_PROCESSORS = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the folder, or print names of platforms for `vsce package --target`."""
    parser = argparse.ArgumentParser(description="Bundle the server into the VS Code extension.")
    parser.add_argument("--target", choices=PLATFORMS, default=this_platform(), help="default: this platform")
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="X.Y", help="versions to serve")
    parser.add_argument("--into", type=Path, default=LIBS, metavar="FOLDER", help="default: the extension's")
    parser.add_argument("--this-platform", action="store_true", help="print VS Code's name of it instead")
    parser.add_argument("--platforms", action="store_true", help="print all names, this platform's last")
    options = parser.parse_args(arguments)
    if options.this_platform:
        print(this_platform())
        return 0
    if options.platforms:
        print(*sorted(PLATFORMS, key=lambda name: name == this_platform()))
        return 0
    with tempfile.TemporaryDirectory() as made:
        fill(Path(made) / "libs", options.target, tuple(options.python))
        shutil.rmtree(options.into, ignore_errors=True)
        options.into.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(made) / "libs", options.into)
    size = _size_mib(options.into)
    print(f"{options.into}: {size:.1f} MiB, {options.target}, Python {', '.join(options.python)}")
    return 0


def this_platform() -> str:
    """VS Code's name of the platform that this runs on."""
    musl = sys.platform == "linux" and platform.libc_ver()[0] != "glibc"
    return f"{'alpine' if musl else sys.platform}-{_PROCESSORS[platform.machine().lower()]}"


def locked(target: str) -> dict[str, str]:
    """Name of each library -> its requirement with digests, for whatever Python: markers are left out."""
    own = LIBRARIES.with_name(f"libraries-{target}.txt")
    listed = _requirements(LIBRARIES)
    return {**listed, **_requirements(own)} if own.is_file() else listed


def _requirements(path: Path) -> dict[str, str]:
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    entries = re.split(r"\n(?=\w)", text.strip().replace("\\\n", " "))
    return {re.split("==", each)[0]: re.sub(r"\s*;[^-]*(?=--hash)", " ", each) for each in entries}


def fill(libs: Path, target: str, pythons: Sequence[str]) -> None:
    """Install everything into `libs`."""
    libraries = locked(target)
    native = libraries.pop(_NATIVE)
    any_python = ("--implementation", "py", "--abi", "none", "--platform", "any", "--only-binary=:all:")
    _install(libs, any_python, libraries.values())
    _run("install", *_INTO, str(libs), *any_python, str(_wheel(libs.parent)))
    platforms = [word for tag in PLATFORMS[target] for word in ("--platform", tag)]
    for number, python in enumerate(pythons):
        part = libs.parent / python
        _install(part, (*platforms, "--python-version", python, "--only-binary=:all:"), (native,))
        if number == 0:
            shutil.copytree(part, libs, dirs_exist_ok=True)
        # with the C libraries that a wheel brings beside its modules
        for module in (*part.glob(f"{_NATIVE}/native.*"), *part.glob(f"{_NATIVE}.libs/*")):
            shutil.copy2(module, libs / module.relative_to(part))
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
