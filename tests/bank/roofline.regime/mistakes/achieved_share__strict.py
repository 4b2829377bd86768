"""Below 80 % of the roof is overhead."""

from statistics import median

KILLED_BY = "far below the roof"


def regimes(rows, roof):
    times = [median(row["seconds"]) for row in rows]
    floors = [max(r["bytes"] / roof["bytes_per_s"], r["flops"] / roof["flops_per_s"]) for r in rows]
    shares = [floor / time for time, floor in zip(times, floors)]
    begins = next((i for i, share in enumerate(shares) if share >= 0.8), len(rows))
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
