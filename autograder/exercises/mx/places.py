"""Where a conversion or a product is wrong, in words: which rows, groups, mantissas and exponents."""

import torch

from autograder.exercises.places import MANY, listed


def wrong_groups(output: str, wrong: torch.Tensor, args) -> str:
    """One sentence. wrong: (rows, columns) or (rows, groups), which elements are over their limit."""
    if wrong.dim() != 2 or not wrong.any():
        return ""
    said = [_rows(wrong), _columns(output, wrong, args)]
    if output == "out" and wrong.shape == args["mantissas"].shape:
        said.append(_values(wrong, args))
    places = ", ".join(filter(None, said))
    return f"wrong in {int(wrong.sum())} of {wrong.numel()} elements" + (f": {places}" if places else "")


def _rows(wrong: torch.Tensor) -> str:
    bad = wrong.any(dim=1)
    found = bad.nonzero().flatten().tolist()
    if len(found) == len(bad):
        return ""
    if len(found) <= MANY:
        return f"only in row{'s' * (len(found) > 1)} {listed(found)}"
    if found == [*range(found[0], len(bad))]:
        return f"from row {found[0]} on"
    return f"in {len(found)} of {len(bad)} rows"


def _columns(output: str, wrong: torch.Tensor, args) -> str:
    """Groups of the columns, where that says something."""
    group, columns = args["group"], wrong.shape[1]
    if output == "exponents":
        group, what = 1, "group"
    elif wrong.shape == args["mantissas"].shape:
        what = "group"
    else:
        return ""
    lacking = -columns % group
    bad = torch.nn.functional.pad(wrong, (0, lacking)).unflatten(1, (-1, group)).any(2).any(0)
    found = bad.nonzero().flatten().tolist()
    if len(found) == len(bad):
        return ""
    short = ", which is short," if lacking and found == [len(bad) - 1] else ""
    if found == [len(bad) - 1]:
        return f"only in the last {what}{short} of a row"
    if found == [*range(1, len(bad))]:
        return f"right in the first {what} of a row"
    return f"in {len(found)} of {len(bad)} {what}s of a row"


def _values(wrong: torch.Tensor, args) -> str:
    """Of dequantised elements: which mantissas and exponents were read there."""
    m = args["mantissas"].long()
    e = args["exponents"].long().repeat_interleave(args["group"], 1)[:, : m.shape[1]]
    said = [_numbers("m", m[wrong], m), _numbers("e", e[wrong], e)]
    return " and ".join(filter(None, said))


def _numbers(name: str, bad: torch.Tensor, all_of_them: torch.Tensor) -> str:
    found, there = bad.unique().tolist(), all_of_them.unique().tolist()
    if found == there:
        return ""
    if len(found) <= 2:
        return f"only where {name} is {' or '.join(map(str, found))}"
    if found == [n for n in there if n < 0]:
        return f"only where {name} is negative"
    narrow = found[-1] - found[0] < len(there) // 2 or found[-1] <= 6
    return f"only where {name} is {found[0]} to {found[-1]}" if narrow else ""
