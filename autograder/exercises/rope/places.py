"""Where a rotation is wrong, in words: which sequences, heads, positions, and which elements of the pairs."""

import torch

from autograder.exercises.places import only_in

BLOCKS = (2, 4, 8, 16, 32, 64, 128)


def wrong_pairs(output: str, wrong: torch.Tensor, args) -> str:
    """One sentence. wrong: (B, H, S, D), which elements are over their limit."""
    if wrong.dim() != 4 or not wrong.any():
        return ""
    heads = wrong.any(dim=3)
    said = [
        only_in(heads.any(dim=2).any(dim=1), "sequence", "sequences"),
        only_in(heads.any(dim=2).any(dim=0), "head", "heads"),
        _positions(heads.any(dim=1).any(dim=0)),
        _elements(wrong.flatten(0, 2).any(dim=0), args),
    ]
    places = ", ".join(filter(None, said))
    return f"wrong in {int(heads.sum())} of {heads.numel()} rows" + (f": {places}" if places else "")


def _positions(bad: torch.Tensor) -> str:
    found = bad.nonzero().flatten().tolist()
    first, last = found[0], found[-1]
    if len(found) == len(bad):
        return ""
    if found == [*range(1, len(bad))]:
        return "in every row but the first"
    if found != [*range(first, last + 1)]:
        return f"in {len(found)} of {len(bad)} rows of a sequence"
    said = f"in rows {first} to {last} of 0 to {len(bad) - 1}"
    if last == len(bad) - 1:
        blocks = [str(block) for block in BLOCKS if first == last // block * block]
        said += f", the last block when it has {' or '.join(blocks)} rows" if blocks else ""
    return said


def _elements(bad: torch.Tensor, args) -> str:
    """First or second elements of the pairs, or those that are not turned."""
    pairs = args["cos"].shape[1]
    kinds = torch.full_like(bad, 2, dtype=torch.long)
    d = torch.arange(2 * pairs, device=bad.device)
    kinds[: 2 * pairs] = d // pairs if args["layout"] == "halves" else d % 2
    names = ("first elements of the pairs", "second elements of the pairs", "elements that are not turned")
    there = [name for kind, name in enumerate(names) if bool(bad[kinds == kind].any())]
    return f"only {there[0]}" if len(there) == 1 else ""
