"""The start of `torchwise` and of `python -m torchwise_server`; imports nothing before the path is clean."""

import os
import sys

from torchwise_server.isolation import isolate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_INTERRUPTED = 130  # cli.Exit, which may not be there yet


def main() -> int:
    """Run the command line with the workspace off the module path."""
    try:
        isolate()
        sys.unraisablehook = _unraisable
        from torchwise_server.cli import main as run

        status = run()
        _ignore_interruptions()
    except KeyboardInterrupt:
        # before the command line could take it
        os.write(2, b"torchwise: interrupted\n")
        status = _INTERRUPTED
    if status == _INTERRUPTED:
        # at once: what still works in other threads is for nobody, and nothing of it may be written
        _end_children()
        os._exit(_INTERRUPTED)
    return status


def _ignore_interruptions() -> None:
    """All is done: while the interpreter ends, Ctrl-C would only make it print where it was."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _unraisable(said: "UnraisableHookArgs") -> None:
    """Python drops a Ctrl-C that it hears in a finalizer: hear it once more outside of it."""
    if not isinstance(said.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(said)
        return
    import _thread

    _thread.start_new_thread(_interrupt_soon, (_thread.get_ident(),))


def _interrupt_soon(thread: int) -> None:
    import signal
    import time

    time.sleep(0.005)  # the finalizer's frame, and the hook's, are gone then
    if os.name == "nt":
        signal.raise_signal(signal.SIGINT)
    else:
        signal.pthread_kill(thread, signal.SIGINT)  # wakes it, too, where it waits


def _end_children() -> None:
    """Processes that were being started when the interruption came."""
    if "multiprocessing" in sys.modules:
        from multiprocessing import active_children

        for child in active_children():
            child.kill()
            child.join()


if __name__ == "__main__":
    sys.exit(main())
