"""What work costs in fuel where it is more than one statement: it keeps the time of a step about even."""

from __future__ import annotations

STATEMENT_FUEL = 2_000_000

# Parts of a value that is copied or made whole.
ITEMS_A_STEP = 16
CHARACTERS_A_STEP = 128

CALL_STEPS = 2
NAME_STEPS = 20  # a name that is imported
OPERATOR_STEPS = 10
RAISE_STEPS = 10
DESCRIPTION_STEPS = 100  # the text of a module, a tensor or a container inside another text
