"""Overhead while the time grows by less than 1.8 from row to row."""

from statistics import median

KILLED_BY = "overhead, then bandwidth"


def regimes(rows, roof):
    times = [median(row["seconds"]) for row in rows]
    floors = [max(r["bytes"] / roof["bytes_per_s"], r["flops"] / roof["flops_per_s"]) for r in rows]
    begins = len(rows)
    for i in range(1, len(rows)):
        if times[i] / times[i - 1] >= 1.8:
            begins = i
            break
    flat = [i < begins for i in range(len(rows))]
    labels = []
    for i, row in enumerate(rows):
        ridge = roof["flops_per_s"] / roof["bytes_per_s"]
        if flat[i]:
            labels.append("overhead")
        elif row["flops"] / row["bytes"] < ridge:
            labels.append("bandwidth")
        else:
            labels.append("compute")
    if begins == 0:
        return labels, 0
    if begins == len(rows):
        return labels, None
    return labels, rows[begins]["size"]
