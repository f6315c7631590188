"""Draw the step of the example script, as the HTML report has it: docs/images/step.svg.

python scripts/step_picture.py
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from torchwise_server.cli import main as torchwise

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "step.svg"
EXAMPLE = ROOT / "examples" / "train_gpt.py"

# of the report's light colours: a picture has one look, whatever the page around it
_BACKGROUND = '<rect x="0" y="0" width="100%" height="100%" rx="8" fill="#f6f8fb"/>'


def picture(page: str) -> str:
    """The first picture of a report with what it needs of the report's style."""
    (drawing,) = re.findall(r"<figure>(<svg .*?</svg>)", page, re.DOTALL)[:1]
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)[0]
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", style.partition("@media")[0]))
    rules = re.findall(r"^(?:svg )?([\w. -]+ \{[^}]*\})", style, re.MULTILINE)
    kept = [
        rule for rule in rules if rule.startswith((".", "text")) and re.search(r"(fill|stroke): var", rule)
    ]
    inlined = re.sub(r"var\(--([a-z]+)\)", lambda match: colours[match[1]], "\n".join(kept))
    head, _, rest = drawing.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>\n{inlined}\n</style>{_BACKGROUND}{rest}\n'


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        words = ["--gpu", "rtx-4090", "--format", "html", "--output-file", str(page)]
        status = torchwise(["estimate", str(EXAMPLE), *words])
        PICTURE.write_text(picture(page.read_text("utf-8")), "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
