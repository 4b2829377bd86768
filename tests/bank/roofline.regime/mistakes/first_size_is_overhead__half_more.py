"""Flat until 1.5 times the time of the first size."""

from statistics import median

KILLED_BY = "bandwidth, then compute"


def regimes(rows, roof):
    times = [median(row["seconds"]) for row in rows]
    floors = [max(r["bytes"] / roof["bytes_per_s"], r["flops"] / roof["flops_per_s"]) for r in rows]
    begins = 0
    while begins < len(rows) and times[begins] <= 1.5 * times[0]:
        begins += 1
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
