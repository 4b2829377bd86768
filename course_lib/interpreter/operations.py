"""What one operation does: patches of the builder that Triton's interpreter computes with."""

import dataclasses
from functools import wraps

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from course_lib.interpreter import arithmetic as gpu
from course_lib.interpreter import bounds
from course_lib.interpreter.patching import part, replace

__all__ = ["install", "refuse_storage_only"]

# Types that the interpreter holds as integers: numpy arithmetic on them is arithmetic on bit patterns.
FLOAT8 = (tl.float8e5, tl.float8e5b16, tl.float8e4nv, tl.float8e4b8, tl.float8e4b15)
FLOAT8_NAMES = {dtype.name for dtype in FLOAT8}

# Operations that only move such values. Every other create_* refuses them.
MOVES = set(
    """load store masked_load masked_store bitcast select splat unsplat broadcast expand_dims reshape trans cat
    join split gather addptr tensor_pointer_load tensor_pointer_store make_tensor_descriptor descriptor_load
    descriptor_store descriptor_gather descriptor_scatter fp_to_fp fp_trunc fp_ext fp_to_si fp_to_ui si_to_fp
    ui_to_fp int_cast int_to_ptr ptr_to_int print make_block_ptr advance""".split()
)


def install() -> None:
    builder = part(triton_interpreter, "InterpreterBuilder")
    part(triton_interpreter, "_get_np_dtype")
    _patch_casts(builder)
    _patch_arithmetic(builder)
    _patch_dot(builder)
    _patch_memory(builder)
    _guard_storage_only(builder)  # last, so that it stands before everything patched above


def _handle(data, dtype):
    return triton_interpreter.TensorHandle(data, dtype)


def _as_handle(mask):
    # Triton's block pointers and descriptors pass their masks as plain arrays.
    return _handle(mask, tl.int1) if isinstance(mask, np.ndarray) else mask


def refuse_storage_only(dtype) -> None:
    name = getattr(dtype, "name", "")  # types compare slowly, and this is asked for every operand
    if name == "bf16":
        raise TypeError(
            "bf16 arithmetic is not exact in the interpreter: load bf16, convert with .to(tl.float32), "
            "compute, convert back on store"
        )
    if name in FLOAT8_NAMES:
        raise TypeError(f"{dtype} is only loaded and stored in the interpreter: run this kernel on a GPU")


def _guard_storage_only(builder) -> None:
    """numpy would add the bit patterns of bf16 and fp8 numbers."""

    def guard(original):
        @wraps(original)
        def guarded(self, *args, **kwargs):
            for arg in (*args, *kwargs.values()):
                if isinstance(arg, triton_interpreter.TensorHandle):
                    refuse_storage_only(arg.dtype.scalar)
            return original(self, *args, **kwargs)

        return guarded

    for name in dir(builder):
        if name.startswith("create_") and name.removeprefix("create_") not in MOVES:
            replace(builder, name, guard)


def _patch_casts(builder) -> None:
    """fp32 -> bf16 truncated, NaN could become infinity, integers became bf16 bit patterns."""

    def convert(source, target_type, toward_zero=False):
        source_type, target = source.dtype.scalar, target_type.scalar
        if source_type in FLOAT8 or target in FLOAT8:
            raise TypeError("float8 conversions are not exact in the interpreter: run this kernel on a GPU")
        data = gpu.fp32_from_bf16(source.data) if source_type == tl.bfloat16 else source.data
        dtype = np.dtype(np.float32) if target == tl.bfloat16 else triton_interpreter._get_np_dtype(target)
        if data.dtype.kind == "f" and dtype.kind in "iu":
            return _handle(gpu.integer_from_float(data, dtype), target)
        if toward_zero and target == tl.float16:
            return _handle(gpu.fp16_from_fp32_toward_zero(data), target)
        data = data.astype(dtype)
        return _handle(gpu.bf16_from_fp32(data, toward_zero) if target == tl.bfloat16 else data, target)

    def fp_to_fp(self, source, target_type, rounding_mode):
        toward_zero = rounding_mode == triton_interpreter._ir.ROUNDING_MODE.RTZ
        if toward_zero and source.dtype.scalar == tl.float64:
            raise TypeError("fp64 rounded toward zero is not exact in the interpreter: convert to fp32 first")
        return convert(source, target_type, toward_zero)

    replace(builder, "cast_impl", lambda _: lambda self, source, target_type: convert(source, target_type))
    replace(builder, "create_fp_to_fp", lambda _: fp_to_fp)
    # tl.full(..., tl.bfloat16) asks for this one; Triton's interpreter has none.
    builder.get_bf16 = lambda self, value: _handle(gpu.bf16_from_fp32(np.array([value], np.float32)), tl.bfloat16)
    # -1 fits no unsigned numpy type, so ~x failed there.
    original = part(builder, "get_all_ones_value")

    def all_ones(self, dtype):
        np_dtype = triton_interpreter._get_np_dtype(dtype)
        if np_dtype.kind != "u":
            return original(self, dtype)
        return _handle(np.full(1, np.iinfo(np_dtype).max, dtype=np_dtype), dtype.scalar)

    builder.get_all_ones_value = all_ones


def _patch_arithmetic(builder) -> None:
    """Where numpy and the hardware differ: NaN in minima, fused multiply-add, the high half of a product; and the type
    of a comparison, which was that of what is compared: of one number spread over a block, it was a number again."""

    def unsigned_product(original):
        def umulhi(self, lhs, rhs):
            unsigned = [
                _handle(x.data.view(f"u{x.data.dtype.itemsize}"), x.dtype) for x in (lhs, rhs)
            ]  # a negative int would be widened with its sign
            return _handle(original(self, *unsigned).data.view(lhs.data.dtype), lhs.dtype.scalar)

        return umulhi

    def histogram(self, data, bins, mask):
        values = data.data if mask is None else data.data[mask.data]
        if values.size and not (values.min() >= 0 and values.max() < bins):
            raise ValueError(f"tl.histogram: values reach from {values.min()} to {values.max()}, bins 0..{bins - 1}")
        return _handle(np.bincount(values.reshape(-1), minlength=bins).astype(np.int32), tl.int32)

    def checked_gather(original):
        def gather(self, source, indices, axis):
            size = source.data.shape[axis]
            if indices.data.size and not (indices.data.min() >= 0 and indices.data.max() < size):
                raise IndexError(f"tl.gather: an index lies outside 0..{size - 1}")
            return original(self, source, indices, axis)

        return gather

    def binary(function):
        return lambda _: lambda self, lhs, rhs: self.binary_op(lhs, rhs, function)

    def fma(self, x, y, z):
        return _handle(gpu.fma(x.data, y.data, z.data), z.dtype.scalar)

    def compared(original):
        return lambda self, lhs, rhs: _handle(original(self, lhs, rhs).data, tl.int1)

    for name in dir(builder):
        if name.startswith(("create_icmp", "create_fcmp")):
            replace(builder, name, compared)

    def assembler(self, *args):
        raise NotImplementedError(
            "assembler does not run in Triton's interpreter, and without a GPU kernels run there: write it with what "
            "tl has, or run this kernel on a GPU"
        )

    replace(builder, "create_inline_asm", lambda _: assembler)
    replace(builder, "create_minnumf", binary(np.fmin))
    replace(builder, "create_maxnumf", binary(np.fmax))
    replace(builder, "create_fma", lambda _: fma)
    replace(builder, "create_umulhi", unsigned_product)
    replace(builder, "create_histogram", lambda _: histogram)
    replace(builder, "create_gather", checked_gather)


def _patch_dot(builder) -> None:
    """fp32 products were exact where the GPU's default is TF32; tiny blocks passed that no GPU takes."""
    tf32 = part(triton_interpreter._ir, "INPUT_PRECISION").TF32

    def dot(self, a, b, acc, input_precision, max_num_imprecise_acc):
        rounds = input_precision == tf32 and a.dtype.scalar == tl.float32
        return _handle(gpu.dot(a.data, b.data, acc.data, rounds), acc.dtype.scalar)

    def smallest(lhs_type, rhs_type):
        # M and N are padded by the compiler, K must fill one tensor-core instruction.
        return (1, 1, 32) if lhs_type.scalar.primitive_bitwidth == 8 else (1, 1, 16)

    replace(builder, "create_dot", lambda _: dot)
    _configure(builder, min_dot_size=smallest)


def _configure(builder, **codegen_fns) -> None:
    """Settings of every builder: the one that is there, and those that triton 3.6 makes for descriptors."""

    def settle(one):
        one.codegen_fns.update(codegen_fns)
        # Integer products were computed twice, to assert something that only debug=True looks at.
        one.options = dataclasses.replace(one.options, sanitize_overflow=False)

    def with_settings(original):
        def __init__(self):
            original(self)
            settle(self)

        return __init__

    replace(builder, "__init__", with_settings)
    settle(part(triton_interpreter, "interpreter_builder"))


def _patch_memory(builder) -> None:
    """A masked lane without `other` is undefined on a GPU, and was a convenient 0 here; a stray address
    ended the process."""

    def inside(ptrs, mask, action):
        size = triton_interpreter._get_np_dtype(ptrs.get_element_ty()).itemsize
        bounds.check(ptrs.data, mask.data, size, action)

    def filled(original):
        def masked_load(self, ptrs, mask, other, *rest, **options):
            mask = _as_handle(mask)
            inside(ptrs, mask, "load")
            if other is None and not np.all(mask.data):
                dtype = ptrs.get_element_ty()
                np_dtype = triton_interpreter._get_np_dtype(dtype)
                fill = gpu.undefined_like(ptrs.data.shape, np_dtype)
                if dtype == tl.bfloat16:
                    fill = gpu.bf16_from_fp32(np.full(ptrs.data.shape, np.nan, dtype=np.float32))
                other = _handle(fill, dtype)
            return original(self, ptrs, mask, other, *rest, **options)

        return masked_load

    def sized(original):
        def masked_store(self, ptrs, value, mask, *rest):
            mask = _as_handle(mask)
            inside(ptrs, mask, "store")
            # The store writes as many bytes as numpy's elements have, whatever the pointer says.
            wanted = triton_interpreter._get_np_dtype(ptrs.get_element_ty())
            if value.data.dtype.itemsize != wanted.itemsize:
                value = _handle(value.data.astype(wanted), value.dtype)
            return original(self, ptrs, value, mask, *rest)

        return masked_store

    def checked_rmw(original):
        def atomic_rmw(self, operation, ptrs, value, mask, *rest):
            inside(ptrs, mask, "atomic")
            return original(self, operation, ptrs, value, mask, *rest)

        return atomic_rmw

    def checked_cas(original):
        def atomic_cas(self, ptrs, *rest):
            inside(ptrs, _handle(np.ones_like(ptrs.data, dtype=bool), tl.int1), "atomic")
            return original(self, ptrs, *rest)

        return atomic_cas

    replace(builder, "create_masked_load", filled)
    replace(builder, "create_masked_store", sized)
    replace(builder, "create_atomic_rmw", checked_rmw)
    replace(builder, "create_atomic_cas", checked_cas)
