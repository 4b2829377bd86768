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

# 8 fp32 elements a thread. axpy of 2^27 elements: 370 us (4.36 TB/s), blocks of 512 to 4096 within 1 %; at a length
# that is no multiple of 4, 379 us, and 400 with 2048. Chains of cosines: 505 us for four, 536 with blocks of 512.
_BLOCK = 1024
_WARPS = 4


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
    if n:
        _axpy_kernel[(triton.cdiv(n, _BLOCK),)](
            out, x, y,
            n,
            float(a),
            BLOCK=_BLOCK, num_warps=_WARPS,
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
    if n:
        _cos_chain_kernel[(triton.cdiv(n, _BLOCK),)](
            out, x,
            n,
            REPEAT=repeat, BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return out
