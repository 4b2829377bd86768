"""A row of any width without much padding: a power of two of columns, and the rest beside it.

Triton's blocks are powers of two, and a product of tensor cores sums at least 16 columns. A head size of 72 in one
block would be 128 columns, 56 of them zeros that are multiplied all the same. In two blocks it is 64 + 16: 80 columns
of arithmetic, and 72 in memory, because the last 8 are masked.

The kernels call the two blocks MAIN and REST. Where REST = 0 nobody reads the second block; it is the first again,
since a Triton tuple holds no None, and costs nothing.
"""

import triton

__all__ = ["split"]


def split(width: int) -> tuple[int, int]:
    """Columns of the two blocks: 64 -> (64, 0), 72 -> (64, 16), 96 -> (64, 32), 112 -> (128, 0)."""
    main = max(16, 1 << (width.bit_length() - 1))
    if width <= main:
        return main, 0
    rest = max(16, triton.next_power_of_2(width - main))
    return (2 * main, 0) if rest == main else (main, rest)
