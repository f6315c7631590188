"""Runs the command line in a process whose every step an audit hook sees; prints what it must not do.

`python -I watched.py REPORT WORD...` writes one line to REPORT for each process started, socket opened, file
opened for writing, and module executed from below the current folder.
"""

import os
import sys

REPORT = os.path.abspath(sys.argv[1])
FOLDER = os.path.realpath(os.getcwd()) + os.sep
STARTS = (
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "subprocess.Popen",
    "pty.spawn",
)
CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.truncate",
    "shutil.",
)
seen: list[str] = []


def hook(event, arguments):
    if event.startswith((*STARTS, *CHANGES, "socket.", "ctypes.", "pickle.")):
        seen.append(f"{event} {arguments!r}")
    elif event == "open" and isinstance(arguments[0], (str, bytes)):
        flags = arguments[2] or 0
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) and arguments[0] != os.devnull:
            seen.append(f"writes {arguments[0]!r}")
    elif event == "exec":
        name = getattr(arguments[0], "co_filename", "")
        if not name.startswith("<") and os.path.realpath(name).startswith(FOLDER):
            seen.append(f"executes {name}")


sys.dont_write_bytecode = True
from torchwise_server.cli import main  # noqa: E402

sys.addaudithook(hook)
status = main(sys.argv[2:])
found = "\n".join(seen)  # before the report itself is opened for writing
with open(REPORT, "w", encoding="utf-8") as report:
    report.write(found)
sys.exit(status)
