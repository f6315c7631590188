"""`python -m torchwise_server` is `torchwise`."""

from __future__ import annotations

import sys

from torchwise_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
