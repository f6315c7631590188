"""`python -I -m torchwise_server.lsp` starts the language server isolated from the workspace."""

import sys

from torchwise_server.isolation import isolate

if __name__ == "__main__":
    isolate()
    from torchwise_server.lsp.main import main

    sys.exit(main())
