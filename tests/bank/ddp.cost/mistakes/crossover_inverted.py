"""beta / alpha."""

from statistics import median

KILLED_BY = "added"


def line(times):
    # least squares of (alpha + n * beta) / t - 1
    rows = [(1 / t, n / t) for n, t in times.items()]
    aa, ab, bb = sum(a * a for a, _ in rows), sum(a * b for a, b in rows), sum(b * b for _, b in rows)
    a, b = sum(a for a, _ in rows), sum(b for _, b in rows)
    det = aa * bb - ab * ab
    return (a * bb - b * ab) / det, (b * aa - a * ab) / det


def what_it_costs(one, in_a_row, ranks):
    single = {n: median(times) for n, times in one.items()}
    device = {n: median(times) for n, times in in_a_row.items()}
    alpha, beta = line(device)
    small, large = min(device), max(device)
    flat, extra = single[small], single[small] - device[small]
    seconds = {"added": extra, "hidden": flat, "not waited for": flat}
    off = {"added": 0.0, "hidden": 0.0, "not waited for": 0.0}
    for n, taken in single.items():
        guesses = {"added": extra + device[n], "hidden": max(flat, device[n]), "not waited for": flat}
        for kind, guess in guesses.items():
            off[kind] = max(off[kind], abs(taken / guess - 1))
    host = min(off, key=off.get)
    host_s = seconds[host]
    bus = 2 * (ranks - 1) / ranks / beta
    return {
        "alpha_s": alpha,
        "bus_bytes_per_s": bus,
        "crossover_bytes": beta / alpha,
        "host": host,
        "host_s": host_s,
    }
