"""`python -m torchwise_server` is `torchwise`."""

from __future__ import annotations

import sys

from torchwise_server.lsp.isolation import isolate

if __name__ == "__main__":
    isolate()  # -m puts the current folder on the path, where a workspace could shadow any module
    from torchwise_server.cli import main

    sys.exit(main())
