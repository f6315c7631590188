"""Writes the texts of the VS Code extension's code to l10n/bundle.l10n.json, where translations start from.

python scripts/l10n_bundle.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

EXTENSION = Path(__file__).resolve().parents[1] / "vscode-extension"

# `t('...')` and `vscode.l10n.t('...')`; texts are plain literals so that they can be found
_TEXT = re.compile(r"\bt\(\s*'((?:[^'\\]|\\.)*)'")


def texts(folder: Path) -> list[str]:
    """The texts of all sources in `folder`, sorted."""
    found = {
        match[1].replace("\\'", "'")
        for path in folder.rglob("*.ts")
        for match in _TEXT.finditer(path.read_text("utf-8"))
    }
    return sorted(found)


def main() -> int:
    target = EXTENSION / "l10n" / "bundle.l10n.json"
    target.parent.mkdir(exist_ok=True)
    listed = {text: text for text in texts(EXTENSION / "src")}
    target.write_text(json.dumps(listed, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(f"{target.relative_to(EXTENSION.parent)}: {len(listed)} texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
