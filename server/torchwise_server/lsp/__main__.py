"""`python -I -m torchwise_server.lsp` starts the language server isolated from the workspace."""

from __future__ import annotations

import sys

from torchwise_server.lsp.isolation import isolate

if __name__ == "__main__":
    isolate()
    from torchwise_server.lsp.main import main

    sys.exit(main())
