"""`python -m torchwise_server` is `torchwise`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # -m puts the current folder first on the path, where a workspace could shadow any module
    is_safe = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if not is_safe:
        del sys.path[0]
    from torchwise_server.cli import main

    sys.exit(main())
