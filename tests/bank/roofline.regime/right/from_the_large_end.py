"""Down from the largest size, as long as the time follows the work."""



def regimes(rows, roof):
    """From the largest size down, as long as the time follows the work."""
    flops_s = [row["flops"] / roof["flops_per_s"] for row in rows]
    bytes_s = [row["bytes"] / roof["bytes_per_s"] for row in rows]
    excess = []
    for row, f, b in zip(rows, flops_s, bytes_s):
        excess.append(sorted(row["seconds"])[3] / max(f, b))
    usual = sorted(excess[-3:])[1]
    last = len(rows)
    while last > 0 and excess[last - 1] < 1.25 * usual:
        last -= 1
    if last == len(rows) or rows[last]["size"] > rows[-1]["size"] / 2:
        return ["overhead"] * len(rows), None
    end = rows[last]["size"] if last else 0
    labels = ["overhead"] * last
    labels += ["compute" if f >= b else "bandwidth" for f, b in list(zip(flops_s, bytes_s))[last:]]
    return labels, end
