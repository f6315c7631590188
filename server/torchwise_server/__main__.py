"""The start of `torchwise` and of `python -m torchwise_server`; imports nothing before the path is clean."""

import sys

from torchwise_server.isolation import isolate


def main() -> int:
    """Run the command line with the workspace off the module path."""
    isolate()
    from torchwise_server.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
