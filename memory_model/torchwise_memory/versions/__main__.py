"""`python -m torchwise_memory.versions PAGE.md`: writes the table of behaviours between its two marks."""

from __future__ import annotations

import sys
from pathlib import Path

from torchwise_memory.versions import in_page


def main() -> int:
    """The exit status."""
    page = Path(sys.argv[1])
    page.write_text(in_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
