"""The language server.

`convert` is the border to the protocol; `documents` and `session` hold what is known; `analysis` asks the
engine on a thread of its own; `handlers` answer messages; `markdown` is what people read.
"""
