"""A set of the shapes that were seen."""

KILLED_BY = "one dimension grows"


def compiles(calls, dynamic, marked, limit):
    seen, said = set(), []
    for call in calls:
        key = (*call["shape"], call["dtype"], call["needs_grad"])
        new = key not in seen and len(seen) < limit
        if new:
            seen.add(key)
        said.append(new)
    return said
