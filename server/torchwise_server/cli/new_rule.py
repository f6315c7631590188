"""`torchwise new-rule NAME`: a package with one rule that works, to be changed into the wanted one."""

from __future__ import annotations

import re
from pathlib import Path

from torchwise_server import __version__
from torchwise_server.cli import Exit, UsageError
from torchwise_server.cli.options import Parser
from torchwise_server.cli.output import say

_DESCRIPTION = """\
Write a package with a rule of your own: one module with its page, examples, meaning of library calls,
detector and fix, a test that runs the examples, and the entry point by which torchwise finds it. It works as
written; change it piece by piece. Nothing is overwritten."""

_EPILOG = """\
examples:
  torchwise new-rule tracked-with-graph
  torchwise new-rule tracked-with-graph --code ACME001 --folder rules/

then:
  pip install --editable torchwise-tracked-with-graph pytest    in the environment of torchwise
  pytest torchwise-tracked-with-graph
  torchwise rules

Rules are loaded from the environment that torchwise is installed in, never from the code that is checked."""


def run(words: list[str]) -> int:
    """Write the package."""
    options = parser().parse(words)
    name, code = _name(options.name), _code(options.code)
    module = name.replace("-", "_")

    from torchwise_server.cli import scaffold

    folder = Path(options.folder) / f"torchwise-{name}"
    files = {
        "pyproject.toml": scaffold.PROJECT,
        f"{module}.py": scaffold.RULE,
        f"test_{module}.py": scaffold.TEST,
    }
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None
    for file, template in files.items():
        text = template.replace("{name}", name).replace("{module}", module)
        text = text.replace("{code}", code).replace("{version}", __version__)
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
        say(f"wrote {folder / file}")
    say(f"\npip install --editable {folder} pytest && pytest {folder} && torchwise rules")
    return Exit.OK


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("new-rule", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "name", metavar="NAME", help="words joined by hyphens; say the fault: loss-logged-raw"
    )
    parser.add_argument(
        "--code", default="MY001", metavar="CODE", help="capitals and digits, not TW (default: MY001)"
    )
    parser.add_argument("--folder", default=".", metavar="DIR", help="where the package goes (default: .)")
    return parser


def _name(word: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", word) or len(word) > 60:
        raise UsageError(
            f"{word[:60]!r}: a rule's name is lower-case words joined by hyphens: loss-logged-raw"
        )
    return word


def _code(word: str) -> str:
    if not re.fullmatch(r"(?!TW)[A-Z]{2,8}[0-9]{3,4}", word):
        raise UsageError(
            f"--code {word[:20]!r}: two to eight capitals, not TW, then three or four digits: ACME001"
        )
    return word
