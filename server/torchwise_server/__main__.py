"""The start of `torchwise` and of `python -m torchwise_server`; imports nothing before the path is clean."""

import os
import sys

from torchwise_server.isolation import isolate

_INTERRUPTED = 130  # cli.Exit, which may not be there yet


def main() -> int:
    """Run the command line with the workspace off the module path."""
    try:
        isolate()
        from torchwise_server.cli import main as run

        status = run()
    except KeyboardInterrupt:
        # before the command line could take it
        os.write(2, b"torchwise: interrupted\n")
        status = _INTERRUPTED
    if status == _INTERRUPTED:
        # at once: what still works in other threads is for nobody, and nothing of it may be written
        _end_children()
        os._exit(_INTERRUPTED)
    return status


def _end_children() -> None:
    """Processes that were being started when the interruption came."""
    if "multiprocessing" in sys.modules:
        from multiprocessing import active_children

        for child in active_children():
            child.kill()
            child.join()


if __name__ == "__main__":
    sys.exit(main())
