"""The line goes through the single calls, and the host's cost is what is above it."""

import statistics

from course_lib.distributed import fit, sent_share

KILLED_BY = "added"


def what_it_costs(one, in_a_row, ranks):
    single = {n: statistics.median(times) for n, times in one.items()}
    device = {n: statistics.median(times) for n, times in in_a_row.items()}
    fitted = fit(single)
    added = statistics.median(single[n] - fitted.seconds(n) for n in single)
    flat = single[min(single)]
    kinds = {
        "added": (added, {n: added + fitted.seconds(n) for n in device}),
        "hidden": (flat, {n: max(flat, fitted.seconds(n)) for n in device}),
        "not waited for": (flat, {n: flat for n in device}),
    }
    off = {kind: max(abs(single[n] / guess[n] - 1) for n in device) for kind, (_, guess) in kinds.items()}
    host = min(off, key=off.get)
    return {
        "alpha_s": fitted.alpha_s,
        "bus_bytes_per_s": sent_share("all_reduce", ranks) * fitted.bytes_per_s,
        "crossover_bytes": fitted.crossover_bytes,
        "host": host,
        "host_s": kinds[host][0],
    }
