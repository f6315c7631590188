"""The server inside of the VS Code package, for platforms that are not at hand: the right native modules, for
every Python, and nothing else that differs.

Packages that were built (`make vsix`, `make vsix-all`) are looked into; filling a folder for each platform
needs a package index: `make test-packages`.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.bundle_server import LIBRARIES, PLATFORMS, PYTHONS, fill, locked, main, this_platform
from tests.packages.test_artifacts import ROOT

LIBS = "extension/bundled/libs/"
EXTENSION = ROOT / "vscode-extension"
VSCE = ROOT / "node_modules/@vscode/vsce/out/package.js"
ELF_MACHINES = {0x3E: "x64", 0xB7: "arm64"}
MACH_O_PROCESSORS = {0x01000007: "x64", 0x0100000C: "arm64"}
WINDOWS_MACHINES = {0x8664: "x64", 0xAA64: "arm64"}


def platform_of(module: bytes) -> str:
    """What a native module was built for, by its header, as VS Code names it; Alpine by its C library."""
    if module.startswith(b"\x7fELF"):
        (machine,) = struct.unpack_from("<H", module, 18)
        return f"{'alpine' if b'libc.musl-' in module else 'linux'}-{ELF_MACHINES[machine]}"
    if module.startswith(b"\xcf\xfa\xed\xfe"):
        (processor,) = struct.unpack_from("<I", module, 4)
        return f"darwin-{MACH_O_PROCESSORS[processor]}"
    assert module.startswith(b"MZ")
    (header,) = struct.unpack_from("<I", module, 0x3C)
    assert module[header : header + 4] == b"PE\0\0"
    (machine,) = struct.unpack_from("<H", module, header + 4)
    return f"win32-{WINDOWS_MACHINES[machine]}"


def assert_of_platform(modules: dict[str, bytes], target: str) -> None:
    """`modules`: name -> bytes of what is native in a package: one for each Python, and what these link."""
    own = {name: module for name, module in modules.items() if not name.startswith("libcst.libs/")}
    pythons = [re.match(r"libcst/native\.(?:cpython-|cp)(\d)(\d+)-", name) for name in own]
    assert sorted(f"{found[1]}.{found[2]}" for found in pythons if found) == sorted(PYTHONS)
    assert len(own) == len(PYTHONS)
    assert {platform_of(module) for module in modules.values()} == {target}
    for module in own.values():
        linked = {
            name.decode() for name in re.findall(rb"\0(lib[\w+-]+-[0-9a-f]{8}\.so[.\d]*)(?=\0)", module)
        }
        assert {f"libcst.libs/{name}" for name in linked} <= set(modules)


def is_native(name: str) -> bool:
    return re.search(r"\.(so|pyd|dylib|dll)(\.\d+)*$", name) is not None


def built_packages() -> Iterator[Path]:
    yield from sorted(EXTENSION.glob("torchwise*.vsix"))


@pytest.mark.editor
@pytest.mark.parametrize("package", [pytest.param(path, id=path.stem) for path in built_packages()])
def test_native_modules_are_of_the_platform_that_the_package_names(package: Path) -> None:
    with zipfile.ZipFile(package) as archive:
        (target,) = re.findall(r'TargetPlatform="([\w-]+)"', archive.read("extension.vsixmanifest").decode())
        modules = {
            name.removeprefix(LIBS): archive.read(name) for name in archive.namelist() if is_native(name)
        }
    assert package.stem in {"torchwise", f"torchwise-{target}"}
    assert_of_platform(modules, target)


@pytest.mark.skipif(not VSCE.is_file(), reason="needs node_modules: npm ci")
def test_platforms_have_the_names_that_vs_code_knows() -> None:
    listed = re.search(r"Targets = new Set\(\[(.*?)\]\)", VSCE.read_text(encoding="utf-8"), re.DOTALL)
    assert listed
    known = set(re.findall(r"'([\w-]+)'", listed[1]))
    # a browser runs no server; for 32-bit ARM no LibCST is built
    assert known - set(PLATFORMS) == {"web", "linux-armhf", "win32-ia32"} & known
    assert set(PLATFORMS) <= known


def test_only_one_library_is_another_for_one_platform() -> None:
    common = locked("linux-x64")
    for target in PLATFORMS:
        own = locked(target)
        assert set(own) == set(common)
        assert {name for name in own if own[name] != common[name]} == (
            {"libcst"} if target == "darwin-x64" else set()
        )
    files = {path.name for path in EXTENSION.glob("libraries*.txt")}
    assert files == {LIBRARIES.name, "libraries-darwin-x64.txt"}


def test_the_platform_at_hand_is_named_and_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--this-platform"]) == 0
    assert main(["--platforms"]) == 0
    this, every = capsys.readouterr().out.splitlines()
    assert this == this_platform()
    assert this.startswith((sys.platform, "alpine"))
    assert every.split()[-1] == this
    assert sorted(every.split()) == sorted(PLATFORMS)


@pytest.mark.packages
@pytest.mark.skipif(not os.environ.get("TORCHWISE_TEST_PACKAGES"), reason="needs a package index")
def test_a_server_for_each_platform_differs_in_native_modules_only(tmp_path: Path) -> None:
    others: dict[str, dict[str, str]] = {}
    for target in PLATFORMS:
        libs = tmp_path / target / "libs"
        libs.parent.mkdir()
        fill(libs, target, PYTHONS)
        files = {path.relative_to(libs).as_posix(): path for path in libs.rglob("*") if path.is_file()}
        assert_of_platform(
            {name: path.read_bytes() for name, path in files.items() if is_native(name)}, target
        )
        # our own files are compared elsewhere, from a copy that nobody edits meanwhile; wheels made on
        # Windows have its line endings
        others[target] = {
            name: hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
            for name, path in files.items()
            if not is_native(name) and not re.match(r"torchwise|libcst-[\d.]+dist-info/(WHEEL$|sboms/)", name)
        }
    older = others.pop("darwin-x64")  # with the last LibCST for it
    ours = others["linux-x64"]
    assert all(other == ours for other in others.values())
    assert {name for name in older if not name.startswith("libcst")} == {
        name for name in ours if not name.startswith("libcst")
    }
