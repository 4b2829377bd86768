"""A plus in the term with the sine."""

import math

KILLED_BY = "halves"


def relative_score(q, k, distance, base, layout):
    size, half, total = len(q), len(q) // 2, 0.0
    for j in range(half):
        a, b = (j, j + half) if layout == "halves" else (2 * j, 2 * j + 1)
        angle = distance * base ** (-2 * j / size)
        total += (q[a] * k[a] + q[b] * k[b]) * math.cos(angle)
        total += (q[a] * k[b] + q[b] * k[a]) * math.sin(angle)
    return total
