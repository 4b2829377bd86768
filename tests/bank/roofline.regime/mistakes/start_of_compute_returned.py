"""The first compute-bound size."""

from statistics import median

KILLED_BY = "overhead, bandwidth, compute"


def regimes(rows, roof):
    times = [median(row["seconds"]) for row in rows]
    floors = [max(r["bytes"] / roof["bytes_per_s"], r["flops"] / roof["flops_per_s"]) for r in rows]
    # how many times slower than the roof; constant where the work sets the time, larger where it does not
    slower = [time / floor for time, floor in zip(times, floors)]
    settled = median(slower[-3:])
    if times[-1] < 1.3 * times[0] and floors[-1] > 2 * floors[0]:
        flat = [True] * len(rows)
    else:
        flat = [ratio > 1.3 * settled for ratio in slower]
    begins = flat.index(False) if False in flat else len(rows)
    labels = []
    for i, row in enumerate(rows):
        ridge = roof["flops_per_s"] / roof["bytes_per_s"]
        if flat[i]:
            labels.append("overhead")
        elif row["flops"] / row["bytes"] < ridge:
            labels.append("bandwidth")
        else:
            labels.append("compute")
    if "compute" not in labels:
        return labels, None
    return labels, rows[labels.index("compute")]["size"]
