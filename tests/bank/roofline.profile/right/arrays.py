"""The shortest range around each launch, and running maxima over arrays."""

import numpy as np


def profile(events, gap_us):
    kind = {c: [e for e in events if e["category"] == c] for c in ("range", "launch", "kernel", "sync")}
    column = lambda rows, key: np.array([row[key] for row in rows], dtype=np.float64)
    r0, rt = column(kind["range"], "start_us"), column(kind["range"], "thread")
    r1 = r0 + column(kind["range"], "duration_us")
    names = [r["name"] for r in kind["range"]]
    by_correlation = {e["correlation"]: e for e in kind["launch"]}
    sums, kept = {}, []
    for k in kind["kernel"]:
        launch = by_correlation[k["correlation"]]
        inside = np.flatnonzero((r0 <= launch["start_us"]) & (launch["start_us"] < r1) & (rt == launch["thread"]))
        if any(names[i] == "warmup" for i in inside):
            continue
        owner = names[inside[np.argmin((r1 - r0)[inside])]] if len(inside) else "outside"
        sums[owner] = sums.get(owner, 0.0) + k["duration_us"]
        kept.append(k)
    if not kept:
        return {"ranges": {}, "busy": 0.0, "gaps": [], "bound": "host"}
    start = column(kept, "start_us")
    end = start + column(kept, "duration_us")
    order = np.argsort(start)
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    idle = np.maximum(0.0, start[1:] - reached[:-1])
    busy = float(1 - idle.sum() / (reached[-1] - start[0]))
    gaps = [[float(reached[i]), float(idle[i])] for i in np.flatnonzero(idle > gap_us)]
    took, w0 = end - start, column(kind["sync"], "start_us")[:, None]
    w1 = w0 + column(kind["sync"], "duration_us")[:, None]
    in_a_wait = ((w0 <= reached[:-1]) & (reached[:-1] < w1)).any(axis=0)
    if busy >= 0.9:
        bound = "small kernels" if took[took < 5].sum() > took.sum() / 2 else "device"
    else:
        bound = "waits" if idle[in_a_wait].sum() > idle.sum() / 2 else "host"
    return {"ranges": sums, "busy": busy, "gaps": gaps, "bound": bound}
