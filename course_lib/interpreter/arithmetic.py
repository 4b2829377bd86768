"""Number formats and operations as the GPU does them, in numpy: pure functions on arrays.

Triton's interpreter computes with numpy, which differs from the hardware in a few places that a student
would meet: roundings to bf16, products in TF32, NaN in minima, conversions out of range. bf16 numbers are
held as uint16 bit patterns, as the interpreter holds them.
"""

import numpy as np

__all__ = [
    "bf16_from_fp32",
    "dot",
    "fma",
    "fp16_from_fp32_toward_zero",
    "fp32_from_bf16",
    "integer_from_float",
    "tf32_from_fp32",
    "tree_sum",
    "undefined_like",
]

MMA_K = 16  # products one fp16 tensor-core instruction adds before it rounds to its accumulator


def bf16_from_fp32(x: np.ndarray, toward_zero: bool = False) -> np.ndarray:
    """fp32 -> bf16 bits, to nearest with ties to even, or toward zero. Too large becomes infinity."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    if toward_zero:
        rounded = bits >> 16
    else:
        # Adding just under half of the last kept bit, and one more when that bit is odd, carries correctly.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # A NaN may have all its ones below the cut, where rounding would make it an infinity.
    return np.where(np.isnan(x), 0x7FFF, rounded).astype(np.uint16).reshape(np.shape(x))


def fp32_from_bf16(bits: np.ndarray) -> np.ndarray:
    """bf16 bits -> fp32, exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def fp16_from_fp32_toward_zero(x: np.ndarray) -> np.ndarray:
    """fp32 -> fp16, rounded toward zero: what is too large becomes the largest finite number."""
    nearest = x.astype(np.float16)
    too_far = np.abs(nearest.astype(np.float32)) > np.abs(x)
    return np.where(too_far, np.nextafter(nearest, np.float16(0)), nearest)


def tf32_from_fp32(x: np.ndarray) -> np.ndarray:
    """fp32 with its last 13 of 23 fraction bits cut off.

    A tensor core reads the upper 19 bits of an fp32 operand, and Triton emits no rounding before it, so
    this truncates; libraries such as cuBLAS round first. Measured on an H200.
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).reshape(np.shape(x))


def integer_from_float(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Float -> integer, toward zero; out of range as the cvt.rzi instruction does it, and not as the host.

    16, 32 and 64 bits saturate and NaN gives 0 (int64: the smallest); 8 bits keep the low half of 16.
    """
    dtype = np.dtype(dtype)
    if dtype.itemsize == 1:
        return integer_from_float(x, np.int16 if dtype.kind == "i" else np.uint16).astype(dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    wide = np.trunc(x.astype(np.float64))
    # float(high) of a 64-bit type rounds up to the first value that does not fit, hence >=.
    over, under = wide >= float(high), wide <= float(low)
    inside = np.where(over | under | np.isnan(wide), 0, wide).astype(dtype)
    nan = low if dtype == np.int64 else 0
    return np.select([np.isnan(wide), over, under], [dtype.type(nan), dtype.type(high), dtype.type(low)], inside)


def fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x * y + z with one rounding (fp64 keeps two: nothing wider is at hand)."""
    wide = np.float64 if z.dtype.itemsize <= 4 else z.dtype
    return (x.astype(wide) * y.astype(wide) + z.astype(wide)).astype(z.dtype)


def tree_sum(x: np.ndarray, axis: int | None, keepdims: bool) -> np.ndarray:
    """Sum in x's own type, halves added to halves as a GPU's lanes are. Sizes are powers of two."""
    if axis is None:
        total = tree_sum(x.reshape(-1), 0, False)
        return total.reshape((1,) * x.ndim) if keepdims else total
    x = np.moveaxis(x, axis, 0)
    while len(x) > 1:
        half = len(x) // 2
        x = x[:half] + x[half:]
    return np.expand_dims(x[0], axis) if keepdims else x[0]


def dot(a: np.ndarray, b: np.ndarray, acc: np.ndarray, tf32: bool) -> np.ndarray:
    """a @ b + acc in the accumulator's type: (M, K), (K, N), (M, N), or with a leading batch dimension.

    Products of fp16 are added in fp32. An accumulator in fp16 rounds their sum once an instruction.
    """
    if tf32:
        a, b = tf32_from_fp32(a), tf32_from_fp32(b)
    if acc.dtype != np.float16:
        return np.matmul(a, b, dtype=acc.dtype) + acc
    a, b = a.astype(np.float32), b.astype(np.float32)
    for k in range(0, a.shape[-1], MMA_K):
        piece = np.matmul(a[..., k : k + MMA_K], b[..., k : k + MMA_K, :])
        acc = (piece + acc.astype(np.float32)).astype(np.float16)
    return acc


def undefined_like(shape, dtype: np.dtype) -> np.ndarray:
    """The masked lanes of a load without `other` are undefined on a GPU: here they are NaN.

    Integers get a large odd pattern. Pointers are not data and get 0.
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.full(shape, np.nan, dtype=dtype)
    pattern = 0x5555555555555555 >> (64 - 8 * dtype.itemsize) if dtype.kind in "iu" else 0
    return np.full(shape, pattern, dtype=dtype)
