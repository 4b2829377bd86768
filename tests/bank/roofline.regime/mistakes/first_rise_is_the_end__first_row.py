"""A rise by more than 2 % over the smallest size."""

from statistics import median

KILLED_BY = "only bandwidth"


def regimes(rows, roof):
    times = [median(row["seconds"]) for row in rows]
    floors = [max(r["bytes"] / roof["bytes_per_s"], r["flops"] / roof["flops_per_s"]) for r in rows]
    begins = next((i for i, time in enumerate(times) if time > 1.02 * times[0]), len(rows))
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
