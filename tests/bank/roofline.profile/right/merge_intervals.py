"""Sorted intervals, and the latest end seen so far."""


def verdict(busy, spans, idle, events):
    """What bounds the program; `idle` holds (start, length) of every stretch without a kernel."""
    if busy >= 0.9:
        lengths = [end - start for start, end in spans]
        return "small kernels" if sum(us for us in lengths if us < 5) > sum(lengths) / 2 else "device"
    waits = [(e["start_us"], e["start_us"] + e["duration_us"]) for e in events if e["category"] == "sync"]
    waited = sum(us for at, us in idle if any(a <= at < b for a, b in waits))
    return "waits" if waited > sum(us for _, us in idle) / 2 else "host"


def profile(events, gap_us):
    ranges = [e for e in events if e["category"] == "range"]
    launches = {e["correlation"]: e for e in events if e["category"] == "launch"}

    def around(launch):
        """Names of the ranges around a launch, the innermost last."""
        at = launch["start_us"]
        open_then = [
            r
            for r in ranges
            if r["thread"] == launch["thread"] and r["start_us"] <= at < r["start_us"] + r["duration_us"]
        ]
        return [r["name"] for r in sorted(open_then, key=lambda r: r["start_us"])]

    times, spans = {}, []
    for kernel in events:
        if kernel["category"] != "kernel":
            continue
        names = around(launches[kernel["correlation"]])
        if "warmup" in names:
            continue
        name = names[-1] if names else "outside"
        times[name] = times.get(name, 0.0) + kernel["duration_us"]
        spans.append((kernel["start_us"], kernel["start_us"] + kernel["duration_us"]))

    if not spans:
        return {"ranges": {}, "busy": 0.0, "gaps": [], "bound": "host"}
    spans.sort()
    first = reached = spans[0][0]
    busy_us, gaps, idle = 0.0, [], []
    for start, end in spans:
        if start > reached:
            idle.append((reached, start - reached))
        if start - reached > gap_us:
            gaps.append([reached, start - reached])
        busy_us += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    busy = busy_us / (reached - first)
    bound = verdict(busy, spans, idle, events)
    return {"ranges": times, "busy": busy, "gaps": gaps, "bound": bound}
