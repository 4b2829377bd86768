"""What in a text of PTX (`tl.inline_asm_elementwise`) adds to memory. Readers of texts need no torch for it."""

import re

CALLED = "inline_asm_elementwise"
ADDING = re.compile(r"\b(?:atom|red|multimem|cp\.reduce)\.")


def adds(text: object) -> bool:
    return isinstance(text, str) and bool(ADDING.search(text))
