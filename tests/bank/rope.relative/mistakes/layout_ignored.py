"""Always halves."""

import math

KILLED_BY = "interleaved"


def relative_score(q, k, distance, base, layout):
    size, half, total = len(q), len(q) // 2, 0.0
    for j in range(half):
        a, b = j, j + half
        angle = distance * base ** (-2 * j / size)
        total += (q[a] * k[a] + q[b] * k[b]) * math.cos(angle)
        total += (q[a] * k[b] - q[b] * k[a]) * math.sin(angle)
    return total
