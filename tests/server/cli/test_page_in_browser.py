"""The memory page in a real browser: its policy lets it look as it should, and asks nobody for anything."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from torchwise_server.cli import main

EXAMPLES = Path(__file__).parents[3] / "examples"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "memory.html"
    words = ["estimate", str(EXAMPLES / "train_gpt.py"), "--gpu", "t4", "--format", "html"]
    assert main([*words, "--output-file", str(file)]) == 0
    return file


def shown(page: Path, width: int) -> tuple[bytes, str]:
    """The picture of a page, and what the browser logs while it is made."""
    assert BROWSER is not None
    picture = page.with_suffix(f".{width}.png")
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--enable-logging=stderr", f"--user-data-dir={page.parent}/profile",
            f"--window-size={width},900", f"--screenshot={picture}", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    said = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return picture.read_bytes(), said


def colours(png: bytes) -> set[bytes]:
    """The colours of a picture that Chromium made: 8 bits, RGB or RGBA, no interlace."""
    width, _, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert (depth, kind in (2, 6)) == (8, True)
    size = 3 if kind == 2 else 4
    data, at = b"", 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        data += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += length + 12
    raw, found = zlib.decompress(data), set[bytes]()
    before = bytearray(width * size)
    for start in range(0, len(raw), width * size + 1):
        row = bytearray(raw[start + 1 : start + 1 + width * size])
        _unfilter(raw[start], row, before, size)
        found |= {bytes(row[x : x + 3]) for x in range(0, len(row), size)}
        before = row
    return found


def _unfilter(how: int, row: bytearray, above: bytearray, size: int) -> None:
    for x in range(len(row)):
        left, up = row[x - size] if x >= size else 0, above[x]
        corner = above[x - size] if x >= size else 0
        if how == 4:
            guess = left + up - corner
            near = min(
                (abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner)
            )
            row[x] = (row[x] + near[2]) & 255
        else:
            row[x] = (row[x] + (0, left, up, (left + up) // 2)[how]) & 255


def test_the_policy_lets_the_page_look_as_it_should(page: Path) -> None:
    picture, said = shown(page, 900)
    assert said == ""
    # the activations' area and the bar of a card that is too small, in the colours of the style
    assert {bytes.fromhex("e0a030"), bytes.fromhex("c0362c")} <= colours(picture)


def test_anything_that_is_not_the_page_s_is_refused(page: Path, tmp_path: Path) -> None:
    """So that a silent browser means something: a changed style, a script and a picture from elsewhere."""
    changed = tmp_path / "changed.html"
    text = page.read_text(encoding="utf-8").replace("--paper", "--papier", 1)
    text += "<script>document.title = 'ran'</script><img src='https://example.org/x.png'>"
    changed.write_text(text, encoding="utf-8")
    _, said = shown(changed, 900)
    assert said.count("violates the following Content Security Policy") >= 3 or said.count("Refused") >= 3
