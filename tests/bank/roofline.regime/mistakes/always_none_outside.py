"""None whenever the table has no end of overhead."""

import numpy as np

KILLED_BY = "only bandwidth"


def regimes(rows, roof):
    """Fit max(constant, work / share): try every place for the corner and keep the best."""
    seconds = np.log([np.median(row["seconds"]) for row in rows])
    flops_s = np.array([row["flops"] for row in rows]) / roof["flops_per_s"]
    bytes_s = np.array([row["bytes"] for row in rows]) / roof["bytes_per_s"]
    floor = np.log(np.maximum(flops_s, bytes_s))
    misses = []
    places = [0, *range(3, len(rows) - 2), len(rows)]
    for k in places:
        flat, work = seconds[:k], (seconds - floor)[k:]
        miss = sum(np.abs(part - np.median(part)).sum() for part in (flat, work) if len(part))
        misses.append(miss)
    # no corner at all unless one explains the times much better
    k = 0 if misses[0] < 4 * min(misses) else places[int(np.argmin(misses))]
    labels = ["overhead"] * k + ["bandwidth" if b > f else "compute" for b, f in zip(bytes_s[k:], flops_s[k:])]
    if k == 0:
        return labels, None
    if k == len(rows):
        return labels, None
    return labels, (rows[k - 1]["size"] * rows[k]["size"]) ** 0.5
