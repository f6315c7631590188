"""What a workspace calls things is text for the reader, never Markdown that acts."""

from __future__ import annotations

import pytest

from torchwise_server.lsp.markdown import prose


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("`losses[0]` keeps the graph", "`losses[0]` keeps the graph"),
        ("[x](command:evil)", r"\[x\](command:evil)"),
        ("![x](http://evil/x.png)", r"!\[x\](http://evil/x.png)"),
        ("<img src=x>", r"\<img src=x\>"),
        ("a\n# b\x1b[2J", r"a # b\\x1b\[2J"),
        ("`a` [b] ``c`[d]`` [e", r"`a` \[b\] ``c`[d]`` \[e"),
        ("a ` [b](c) `` d", r"a ` \[b\](c) `` d"),
        ("zero_grad of 3 * x", r"zero_grad of 3 \* x"),
    ],
)
def test_only_code_spans_stay(text: str, shown: str) -> None:
    assert prose(text) == shown
