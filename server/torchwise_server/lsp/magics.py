"""IPython magics and shell lines in notebook cells: blanked, never deleted, so that positions stay."""

from __future__ import annotations

import re

from torchwise_server.lsp.text import Text

_LINE_MAGIC = re.compile(r"^\s*(?:[%!?]|[\w.]+\?{1,2}\s*$)")
_ASSIGNED_MAGIC = re.compile(r"^(?P<target>\s*[\w.,\s()\[\]]+=\s*)(?P<magic>[%!].*)$")
# cell magics whose body is still Python that runs in the notebook's namespace
_PYTHON_CELL_MAGICS = frozenset({"%%time", "%%timeit", "%%capture", "%%prun"})


def without_magics(cell: Text) -> str:
    """The cell as Python of the same lines."""
    first = next((line.strip() for line in cell.lines if line.strip()), "")
    if first.startswith("%%") and first.split()[0] not in _PYTHON_CELL_MAGICS:
        return "".join(_ending(line) for line in cell.lines)
    return "".join(_masked(line) for line in cell.lines)


def _masked(line: str) -> str:
    if _LINE_MAGIC.match(line):
        # an indented magic may be the only statement of its block
        indent = line[: len(line) - len(line.lstrip())].rstrip("\r\n")
        return (indent + "pass" if indent else "") + _ending(line)
    assigned = _ASSIGNED_MAGIC.match(line.rstrip("\r\n"))
    if assigned:
        return assigned["target"] + "None" + _ending(line)
    return line


def _ending(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]
