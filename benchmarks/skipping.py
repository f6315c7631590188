"""Is anything lost by passing over files? Runs those that a check of folders passes over for their words.

    python benchmarks/skipping.py FOLDER...

For each folder: how many of its files could matter by their text, how many of these are silent by their
words, and with which share of the lines. Whatever is found in a silent file is printed, of any grade, and
fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from torchwise_analysis.engine import could_matter
from torchwise_analysis.findings import Confidence, Finding
from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.settings import Settings
from torchwise_server.cli.reading import Reader

_KEPT_LINES = 400_000


def lost_in(folder: Path, settings: Settings) -> Iterator[Finding]:
    """What is found in files of the folder that are told to be silent; prints a line about all of them."""
    reader = Reader()
    asked = silent = lines = silent_lines = 0
    for path in sorted(folder.rglob("*.py")):
        if not path.is_file():
            continue
        _, reading = reader.read_bytes(str(path))
        document = reading.document
        if document is None or not could_matter(document.text):
            continue
        engine = reader.engine(settings, folder, str(path))
        engine.project.bound(_KEPT_LINES)
        file = SourceFile(document.path, document.text, lower=engine.project.lowered)
        asked, lines = asked + 1, lines + file.module.line_count
        if engine.is_silent(file):
            silent, silent_lines = silent + 1, silent_lines + file.module.line_count
            yield from engine.check_quickly(file).findings
    share = silent_lines / lines if lines else 0.0
    print(f"{folder}: {asked:,} files, {silent:,} silent with {share:.0%} of the lines", flush=True)


def main() -> None:
    """Audit the folders of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--possible", action="store_true", help="as if possible findings were shown")
    options = parser.parse_args()
    settings = Settings(min_confidence=Confidence.POSSIBLE) if options.possible else Settings()
    lost = [one for folder in options.folders for one in lost_in(folder.absolute(), settings)]
    for one in lost:
        print(f"lost: {one.place.path}:{one.place.span.line + 1} {one.rule} ({one.confidence.value})")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
