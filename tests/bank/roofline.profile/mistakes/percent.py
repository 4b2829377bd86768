"""busy in per cent."""

KILLED_BY = "one stream"


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
    busy_us, gaps = 0.0, []
    for start, end in spans:
        if start - reached > gap_us:
            gaps.append([reached, start - reached])
        busy_us += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    busy = busy_us / (reached - first)
    return {"ranges": times, "busy": 100 * busy, "gaps": gaps, "bound": "device" if busy >= 0.9 else "host"}
