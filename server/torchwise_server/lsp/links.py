"""Places as Markdown links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchwise_analysis.findings import Place
from torchwise_analysis.source.nodes import Span
from torchwise_memory.report import Origin
from torchwise_server.lsp.documents import OpenDocument
from torchwise_server.lsp.markdown import prose
from torchwise_server.lsp.session import Session


def link_from(
    session: Session, document: OpenDocument, *, with_links: bool = True
) -> Callable[[Origin], str]:
    """Links for texts about `document`: its own places are named by line alone.

    Not `with_links`: only the names, for texts that leave this machine.
    """

    def link(origin: Origin) -> str:
        line = max(origin.line - 1, 0)
        located = session.locate(Place(origin.path, Span(line, 0, line, 0)))
        own = origin.path == document.path
        if located is None:
            return f"line {origin.line}" if own else prose(f"{Path(origin.path).name}:{origin.line}")
        shown = located.span.line + 1
        name = f"line {shown}" if own else prose(f"{Path(origin.path).name}:{shown}")
        if located.uri in document.uris and len(document.uris) > 1:
            name = f"cell {document.uris.index(located.uri) + 1}, line {shown}"
        return f"[{name}]({located.uri}#L{shown})" if with_links else name

    return link
