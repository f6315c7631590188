"""Estimates as Markdown and as a page of their own."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jsonschema  # type: ignore[import-untyped]
import pytest
from scripts.step_picture import PICTURE, picture
from tests.server.cli.conftest import Cli, _estimate
from tests.server.cli.test_check import write

from torchwise_server.cli import main

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
SCHEMA = ROOT / "server/torchwise_server/schemas/estimate.schema.json"
HOSTILE = "<script>alert(1)</script>\"'&`|@team.py".replace("/", "∕")
VOID = {"meta", "link", "br", "img", "hr", "input"}
PASSIVE = {
    "html", "head", "meta", "title", "style", "body", "main", "section", "h1", "h2", "h3", "p", "figure",
    "figcaption", "table", "tr", "th", "td", "ul", "li", "footer", "svg", "rect", "line", "text", "polygon",
    "polyline", "circle",
}  # fmt: skip


class Page(HTMLParser):
    """Reads a page and holds it to what it may consist of."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.policy = ""
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        self.tags.append(tag)
        assert tag in PASSIVE, tag
        assert not names & {"style", "href", "src", "srcset", "action", "xlink:href"}, attrs
        assert not any(name.startswith("on") for name in names), attrs
        values = dict(attrs)
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(EXAMPLES)
    assert main(["estimate", "train_gpt.py", "--gpu", "rtx-4090", "--gpu", "t4", "--format", "html"]) == 0
    return capsys.readouterr().out


def test_the_page_is_passive_and_whole(page: str) -> None:
    read = Page(page)
    assert page.startswith("<!DOCTYPE html>\n")
    (style,) = read.text["style"]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert read.policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert "://" not in page


def test_the_page_says_what_the_report_says(page: str) -> None:
    read = Page(page)
    assert read.text["h2"] == ["train_gpt.py:146, training loop"]
    assert any("on the card at the peak, in the backward pass" in text for text in read.text["p"])
    assert {"On the card", "The peak", "Alive at the peak", "Read from the source", "Assumed"} <= set(
        read.text["h3"]
    )
    cells = read.text["td"]
    assert "probably out of memory" in cells
    assert "torch.cuda.max_memory_allocated()" in cells


def test_the_step_can_stand_alone_as_a_picture(page: str) -> None:
    for text in (picture(page), PICTURE.read_text("utf-8")):
        drawn = ElementTree.fromstring(text)
        assert drawn.tag.endswith("}svg")
        assert "var(" not in text and "url(" not in text
        words = {each.text for each in drawn.iter() if each.tag.endswith("}text")}
        assert {"forward", "backward", "between", "optimizer"} <= words


def test_a_card_with_kernels_of_its_own_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLES)
    schema = json.loads(SCHEMA.read_text("utf-8"))
    for form, said in {
        "json": '"peak"',
        "text": "fits: 25.6 GiB with its own",
        "markdown": "fits: 25.6 GiB with its own kernels",
        "html": "fits: 25.6 GiB with its own kernels",
    }.items():
        assert main(["estimate", "train_gpt.py", "--gpu", "t4", "--gpu", "a100-80gb", "--format", form]) == 0
        printed = capsys.readouterr().out
        assert said in printed
        if form == "json":
            jsonschema.validate(json.loads(printed), schema)
            t4, a100 = json.loads(printed)["estimates"][0]["gpus"]
            assert "peak" not in t4 and a100["peak"]["device"]["point"] < a100["total_bytes"]


def test_the_step_is_drawn(page: str) -> None:
    read = Page(page)
    assert read.tags.count("polygon") >= 5
    assert {"forward", "backward", "optimizer"} <= set(read.text["text"])
    numbers = [float(n) for points in re.findall(r'points="([^"]+)"', page) for n in re.split("[ ,]", points)]
    assert all(0 <= number <= 880 for number in numbers)
    for words in re.findall(r'aria-label="(memory over one step[^"]*)"', page):
        assert re.fullmatch(r"memory over one step: from .+ up to .+ in the backward pass, then .+", words)


def test_every_class_of_the_page_has_a_style(page: str) -> None:
    (style,) = Page(page).text["style"]
    for name in set(re.findall(r'class="([^"]+)"', page)):
        assert re.search(rf"\.{name}\b", style), name


def test_hostile_names_are_text(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, HOSTILE, "import torch\nfor x in y: pass\n")
    result = cli("estimate", "--format", "html", ".", "--gpu", "t4")
    assert result.status == 0, result.err
    read = Page(result.out)
    assert read.text["h2"] == [f"{HOSTILE}:2, training loop"]
    assert HOSTILE in read.text["title"][0]


def test_what_got_no_estimate_is_on_the_page(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\n\n# unanswered\n")
    result = cli("estimate", "--format", "html", "a.py")
    assert result.status == 3
    read = Page(result.out)
    assert "No estimate" in read.text["h2"]
    assert "`n` is not known" in read.text["td"]


def test_markdown(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "import torch\nfor x in y: pass\n")
    write(tmp_path, "b.py", "import torch\n\n# unanswered\n")
    result = cli("estimate", "--format", "markdown", "a.py", "b.py", "--gpu", "t4")
    assert result.status == 3
    assert "#### a.py:2, training loop" in result.out
    assert "**10.0 GiB reserved at the peak, in the backward pass**" in result.out
    assert "| Tesla T4 | 15.0 GiB | 67% | 🔴 probably out of memory |" in result.out
    assert "| allocated | 10.0 GiB | 9.00 GiB – 11.0 GiB | torch.cuda.max_memory_allocated() |" in result.out
    assert "- `b.py:2` `n` is not known" in result.out
    assert "- −5.00 GiB to 5.00 GiB: checkpoint (line 1); time" in result.out


def test_markdown_tables_keep_their_shape(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, HOSTILE, "import torch\nfor x in y: pass\n")
    text = cli("estimate", "--format", "markdown", ".", "--gpu", "t4").out
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table
    assert "<script" not in re.sub(r"\\<", "", text)


@pytest.mark.parametrize("form", ["text", "json", "jsonl", "markdown", "html"])
def test_a_report_in_a_file_is_the_one_on_standard_output(cli: Cli, tmp_path: Path, form: str) -> None:
    write(tmp_path, "a.py", "import torch\nfor x in y: pass\n")
    shown = cli("estimate", "a.py", "--format", form)
    result = cli("estimate", "a.py", "--format", form, "--output-file", "report")
    assert (result.status, result.out, result.err) == (0, "", "torchwise: report in report\n")
    assert (tmp_path / "report").read_text(encoding="utf-8").rstrip() == shown.out.rstrip()


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_a_described_job_speaks_of_no_source(cli: Cli, form: str) -> None:
    result = cli("estimate", "--model", "gpt2", "--gpu", "t4", "--format", form)
    assert result.status == 0
    assert "gpt2, training" in result.out
    assert "line 1" not in result.out


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_the_launch_line_is_named(form: str, tmp_path: Path) -> None:
    from torchwise_memory.report import Launch, Origin
    from torchwise_server.reporters import estimate_html, estimate_markdown
    from torchwise_server.reporters.sources import Sources

    sources = Sources(str, str, lambda _: (), lambda _, __: None)
    estimate = replace(_estimate("a.py"), launch=Launch("--size <b>large", Origin("run.sh", 3)))
    render = estimate_markdown.render if form == "markdown" else estimate_html.render
    text = render((estimate,), (), sources)
    assert "tarted with --size" in text
    assert "run.sh:3" in text
    assert "<b>large" not in text.replace("\\<", "")
