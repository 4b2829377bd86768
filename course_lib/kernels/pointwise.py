"""One load, some arithmetic, one store: the two ends of the roofline.

    axpy       out = a x + y                     2 FLOP an element, 3 passes of bytes: bandwidth sets the time
    cos_chain  out = cos(cos(... cos(x)))        `repeat` cosines, 2 passes of bytes: bandwidth sets the time
                                                 for small `repeat`, the arithmetic units for large

Both compute in fp32, whatever the tensors hold, and round once, at the store.
"""

import torch
import triton
import triton.language as tl

__all__ = ["axpy", "axpy_reference", "cos_chain", "cos_chain_reference"]

# (elements a program, warps), tried on an H200 over 2^27 fp32 elements.
# axpy: 370 us, 4.36 TB/s; blocks of 512 to 4096 are within 1 %. At a length that is no multiple of 4 every access is
# 4 bytes wide: 379 us, and 400 with blocks of 2048.
_AXPY = (1024, 4)
# Two cosines: 263 us; blocks of 1024 290, of 512 323: 16 independent cosines a thread hide each other's latency.
# From four on blocks of 1024 and more are within 1 % (500 us for four). Unrolling the chain over `repeat` loses up to
# 30 %: eight unrolled cosines of a block are 330 KB of code.
_COS = (2048, 4)


def axpy_reference(a: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (a * x.float() + y.float()).to(x.dtype)


def cos_chain_reference(x: torch.Tensor, repeat: int) -> torch.Tensor:
    value = x.float()
    for _ in range(repeat):
        value = torch.cos(value)
    return value.to(x.dtype)


@triton.jit
def _axpy_kernel(
    out_ptr, x_ptr, y_ptr,
    n,
    a,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # Widened before the multiplication: beyond 2^31 elements a 32-bit offset wraps round to a wrong address.
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, (a * x + y).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _cos_chain_kernel(
    out_ptr, x_ptr,
    n,
    REPEAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    value = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    for _ in range(REPEAT):
        value = tl.cos(value)
    tl.store(out_ptr + offs, value.to(out_ptr.dtype.element_ty), mask=mask)


def axpy(a: float, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """out = a x + y, elementwise, into `out`, which may be `x` or `y`.

    x, y, out: the same shape, contiguous, any floating dtype. Bytes: read x and y, write out.
    """
    assert x.shape == y.shape == out.shape, f"one shape expected, got {x.shape}, {y.shape}, {out.shape}"
    assert x.is_contiguous() and y.is_contiguous() and out.is_contiguous(), "contiguous tensors expected"
    n = x.numel()
    block, num_warps = _AXPY
    if n:
        _axpy_kernel[(triton.cdiv(n, block),)](
            out, x, y,
            n,
            float(a),
            BLOCK=block, num_warps=num_warps,
        )  # fmt: skip
    return out


def cos_chain(x: torch.Tensor, repeat: int, out: torch.Tensor) -> torch.Tensor:
    """out = cos applied `repeat` times (1 to 64) to x, in one kernel, into `out`, which may be `x`.

    x, out: the same shape, contiguous, any floating dtype. Bytes: read x, write out, for any `repeat`.
    """
    assert 1 <= repeat <= 64, f"repeat is 1 to 64, got {repeat}"
    assert x.shape == out.shape, f"one shape expected, got {x.shape}, {out.shape}"
    assert x.is_contiguous() and out.is_contiguous(), "contiguous tensors expected"
    n = x.numel()
    block, num_warps = _COS
    if n:
        _cos_chain_kernel[(triton.cdiv(n, block),)](
            out, x,
            n,
            REPEAT=repeat, BLOCK=block, num_warps=num_warps,
        )  # fmt: skip
    return out
