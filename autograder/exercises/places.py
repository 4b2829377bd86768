"""Where something is wrong, in words: what the reports of several units share."""

import torch

MANY = 5  # numbers or runs that are still listed


def only_in(bad: torch.Tensor, one: str, several: str) -> str:
    """`only in head 2`: which of several are bad; nothing if all of them are."""
    if bool(bad.all()):
        return ""
    found = bad.nonzero().flatten().tolist()
    return f"only in {several if len(found) > 1 else one} {listed(found)}"


def counted(number: int, what: str, several: str = "") -> str:
    """`1 call`, `3 calls`."""
    return f"{number} {what if number == 1 else several or what + 's'}"


def listed(items: list) -> str:
    return ", ".join(map(str, items[:MANY])) + (" and others" if len(items) > MANY else "")


def runs(bad: torch.Tensor) -> list[tuple[int, int]]:
    """First and last of each run of bad neighbours."""
    found: list[tuple[int, int]] = []
    for n in bad.nonzero().flatten().tolist():
        if found and found[-1][1] == n - 1:
            found[-1] = (found[-1][0], n)
        else:
            found.append((n, n))
    return found
