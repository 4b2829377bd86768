"""A stack of ranges for each thread, a sweep over starts and ends of kernels."""

from collections import Counter, defaultdict


def innermost_ranges(events):
    """Replay every thread with a stack: correlation -> names of the open ranges, the outermost first."""
    moments = []
    for e in events:
        if e["category"] == "range":
            moments.append((e["thread"], e["start_us"], 1, e))
            moments.append((e["thread"], e["start_us"] + e["duration_us"], 0, e))
        elif e["category"] == "launch":
            moments.append((e["thread"], e["start_us"], 2, e))
    stacks, found = defaultdict(list), {}
    for thread, _, kind, e in sorted(moments, key=lambda m: m[:3]):
        if kind == 1:
            stacks[thread].append(e["name"])
        elif kind == 0:
            stacks[thread].pop()
        else:
            found[e["correlation"]] = tuple(stacks[thread])
    return found


def verdict(busy, kernels, idle, events):
    """`idle` holds (start, length) of every stretch without a kernel."""
    if busy < 0.9:
        syncs = [e for e in events if e["category"] == "sync"]
        during = lambda t: any(s["start_us"] <= t < s["start_us"] + s["duration_us"] for s in syncs)
        waited = sum(length for start, length in idle if during(start))
        return "waits" if 2 * waited > sum(length for _, length in idle) else "host"
    by_size = Counter()
    for k in kernels:
        by_size["small" if k["duration_us"] < 5 else "large"] += k["duration_us"]
    return "small kernels" if by_size["small"] > by_size["large"] else "device"


def profile(events, gap_us):
    stacks = innermost_ranges(events)
    kernels = [e for e in events if e["category"] == "kernel" and "warmup" not in stacks[e["correlation"]]]
    ranges = Counter({e["name"]: 0.0 for e in events if e["category"] == "range" and e["name"] != "warmup"})
    edges = []
    for k in kernels:
        stack = stacks[k["correlation"]]
        ranges[stack[-1] if stack else "outside"] += k["duration_us"]
        edges += [(k["start_us"], 1), (k["start_us"] + k["duration_us"], -1)]
    # a sweep over starts and ends: the device idles while no kernel is open
    edges.sort(key=lambda edge: (edge[0], -edge[1]))
    running, idle, gaps, empty, since = 0, 0.0, [], [], None
    for time, change in edges:
        if running == 0 and since is not None:
            idle += time - since
            empty.append((since, time - since))
            if time - since > gap_us:
                gaps.append([since, time - since])
        running += change
        since = time
    window = edges[-1][0] - edges[0][0] if edges else 0.0
    busy = 1 - idle / window if window else 0.0
    bound = verdict(busy, kernels, empty, events)
    return {"ranges": dict(ranges), "busy": busy, "gaps": gaps, "bound": bound}
