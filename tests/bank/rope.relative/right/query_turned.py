"""Any positions with that distance will do: the query at the distance, the key at 0."""

import math


def relative_score(q, k, distance, base, layout):
    size, half = len(q), len(q) // 2
    total = 0.0
    for j in range(half):
        a, b = (j, j + half) if layout == "halves" else (2 * j, 2 * j + 1)
        angle = distance * base ** (-2 * j / size)
        turned = complex(q[a], q[b]) * complex(math.cos(angle), math.sin(angle))
        total += (turned * complex(k[a], k[b]).conjugate()).real
    return total
