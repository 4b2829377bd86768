"""Always neighbours."""

import cmath

KILLED_BY = "halves"


def relative_score(q, k, distance, base, layout):
    size, half = len(q), len(q) // 2
    total = 0.0
    for j in range(half):
        a, b = 2 * j, 2 * j + 1
        turned = complex(q[a], q[b]) * cmath.exp(1j * distance * base ** (-2 * j / size))
        total += (turned * complex(k[a], k[b]).conjugate()).real
    return total
