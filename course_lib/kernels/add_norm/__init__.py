"""Residual add and LayerNorm in one kernel each way, with dropout in front where asked.

    s = dropout(x) + residual        y = (s - mean) rstd weight + bias        rstd = 1 / sqrt(var + eps), over each row

Bytes: forward reads x and the residual and writes s and y, 8 an element in bf16; separate kernels also write and read
dropout's result and read s again. Backward reads dy, ds and s and writes one gradient, which is both the residual's
and, without dropout, x's. About 15 FLOP an element each way, where 8 bytes buy about 60 instructions: bandwidth sets
the time. 16384 rows of 1152: 151 MB, 35.8 us at 4.22 TB/s.

    tuning     rows and warps a program
    rows       a row as two blocks of columns, so that 1152 are not 2048
    forward    the kernel, statistics in fp32, and its launcher
    backward   programs that stay, each with sums for dw and db of its own, the kernel that adds those up, the launcher
    public     plain torch, autograd, operators, `add_norm`

Measured on an H200: benchmarks/notes/add_norm.md.
"""

from course_lib.kernels.add_norm.public import add_norm, add_norm_operator, add_norm_reference

__all__ = ["add_norm", "add_norm_operator", "add_norm_reference"]
