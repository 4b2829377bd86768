"""numpy's fp16 and fp32, and bf16 from the bits of fp32."""

import math

import numpy as np


def to_bf16(x):
    """fp32 whose last 16 bits are rounded away."""
    bits = np.float32(x).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return np.uint32(bits & 0xFFFFFFFF).view(np.float32)


ROUND = {"fp16": np.float16, "fp32": np.float32, "bf16": to_bf16}


def accumulate(terms, of_terms, of_sum, order):
    with np.errstate(over="ignore"):
        near = ROUND[of_sum]
        data = [float(ROUND[of_terms](t)) for t in terms]
        stuck = None
        if order == "in pairs":
            row = data
            while len(row) > 1:
                waits = row[len(row) // 2 * 2 :]
                row = [float(near(a + b)) for a, b in zip(row[::2], row[1::2], strict=False)] + waits
            total = sum(row)
        elif order == "compensated":
            total = lost = 0.0
            for t in data:
                wanted = float(near(t - lost))
                following = float(near(total + wanted))
                lost = float(near(float(near(following - total)) - wanted))
                total = following
        else:
            sums = [0.0]
            for t in data:
                sums.append(float(near(sums[-1] + t)))
            total, last = sums[-1], len(data)
            while last and sums[last - 1] == total:
                last -= 1
            stuck = last if any(data[last:]) else None
    return total, total - math.fsum(terms), stuck
