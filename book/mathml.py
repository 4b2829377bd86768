"""TeX of the lessons as MathML, which browsers show without a script, a font or a network."""

import re

from docutils.utils.math.latex2mathml import tex2mathml

# What docutils does not know, in words that it knows.
SAME = {r"\\dots\b": r"\\ldots", r"\\Big(?=\()": r"\\Bigl", r"\\Big(?=\))": r"\\Bigr"}


def mathml(tex: str, block: bool = False) -> str:
    """Raises docutils.utils.math.MathError, with the command that is not known, where the TeX cannot be shown."""
    for theirs, ours in SAME.items():
        tex = re.sub(theirs, ours, tex)
    made = tex2mathml(tex, as_block=block)
    # What a brace under a term is called stands under the brace.
    return re.sub(r"<msub>(\s*<munder>.*?⏟</mo>\s*</munder>.*?)</msub>", r"<munder>\1</munder>", made, flags=re.DOTALL)
