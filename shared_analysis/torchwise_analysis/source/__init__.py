"""Source text to the small Python of `nodes`."""

from __future__ import annotations

from torchwise_analysis.source.document import Document
from torchwise_analysis.source.lower_text import lower_text

__all__ = ["Document", "lower_text"]
