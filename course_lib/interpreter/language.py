"""Patches of Triton's language around its operations: scalars, truth of blocks, reductions, scans, autotuning."""

import ast
import functools
import inspect
import sys

import numpy as np
import triton
import triton.language as tl
from triton.language.extra import cuda, libdevice
from triton.runtime import autotuner
from triton.runtime import interpreter as triton_interpreter

from course_lib.interpreter import arithmetic as gpu
from course_lib.interpreter.operations import refuse_storage_only
from course_lib.interpreter.patching import part, replace

__all__ = ["install"]


def install() -> None:
    _patch_arguments()
    _patch_constants()
    _patch_libdevice()
    _patch_truth()
    _patch_methods()
    _patch_loops()
    _patch_reductions(part(triton_interpreter, "ReduceOps"))
    _patch_axes(part(triton_interpreter, "ReduceOps"))  # installed later, so it runs before the patch above
    _patch_axes(part(triton_interpreter, "ScanOps"))
    _patch_autotune(part(autotuner, "Autotuner"))


def _patch_arguments() -> None:
    """A float argument stayed a Python number, so fp16 * a was fp16 where a GPU computes in fp32;
    integers between 2^31 and 2^32 were held as uint32 and wrapped; bool arguments failed."""
    type_of = part(triton.runtime.jit, "mangle_type")

    def implicit(original):
        def convert(arg):
            if isinstance(arg, (bool, int, float)):
                dtype = tl.str_to_ty(type_of(arg), None)
                data = np.array([arg], dtype=triton_interpreter._get_np_dtype(dtype))
                return tl.tensor(triton_interpreter.TensorHandle(data, dtype), dtype)
            return original(arg)

        return convert

    replace(triton_interpreter, "_implicit_cvt", implicit)


def _patch_constants() -> None:
    """A constant to the left of a block, `LOG2_E * s`, was a constant that held a block, and no function took it."""

    def by_the_block(original):
        def operate(self, other):
            return NotImplemented if isinstance(other, tl.tensor) else original(self, other)

        return operate

    for name in "add sub mul truediv floordiv mod and or xor lshift rshift gt ge lt le eq ne".split():
        replace(tl.constexpr, f"__{name}__", by_the_block)


def _patch_libdevice() -> None:
    """Its functions returned None, or asked for an argument that nobody gives."""

    def refused(original):
        @functools.wraps(original)
        def call(*args, **options):
            raise TypeError(
                f"libdevice.{original.__name__} does not run in Triton's interpreter, and without a GPU kernels run "
                "there: write it with what tl has, such as tl.exp, tl.log and tl.floor"
            )

        return call

    for module in (libdevice, cuda.libdevice):
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                replace(module, name, refused)


def _patch_truth() -> None:
    """Every block was true, so `if block:` and `a and b` were silently wrong. A run-time `range` bound
    could not become an index in triton 3.6 with numpy 2.4, which refuses int() of a one-element array."""

    def truth(self):
        # Triton's own `other.handle if other else None` asks whether there is an `other`, not what it holds.
        if sys._getframe(1).f_globals.get("__name__") == "triton.language.semantic":
            return True
        if self.handle.data.size > 1:
            raise TypeError(
                "a block has no single truth value: use & | ~ between masks, tl.where to choose by element, "
                "or tl.max / tl.min to make one number of it before `if` and `while`"
            )
        return bool(self.handle.data.reshape(-1)[0])

    def with_truth(original):
        def patch_tensor(tensor, scope):
            original(tensor, scope)
            scope.set_attr(tensor, "__bool__", truth)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))

        return patch_tensor

    part(triton_interpreter, "_LangPatchScope")
    replace(triton_interpreter, "_patch_lang_tensor", with_truth)


def _patch_methods() -> None:
    """`x.exp()` raised, where `tl.exp(x)` did not."""
    names = [name for name, value in vars(tl.math).items() if tl.core.is_builtin(value) and hasattr(tl.tensor, name)]

    def with_methods(original):
        def patch_tensor(tensor, scope):
            original(tensor, scope)
            for name in names:  # a function of tl.math is looked up late: a launch replaces it
                scope.set_attr(tensor, name, lambda self, name=name: getattr(tl.math, name)(self))

        return patch_tensor

    replace(triton_interpreter, "_patch_lang_tensor", with_methods)


class LoopNumber(int):
    """The number of a loop: for Triton a scalar with a type, for Python an int."""

    def to(self, dtype, **_):
        return tl.full((), int(self), dtype)


def _patch_loops() -> None:
    """`r.to(tl.int64)` of a loop's number raised, though widening is what a large offset needs."""

    def visit_for(self, node):
        self.generic_visit(node)
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        if getattr(called, "id", getattr(called, "attr", None)) == "range":
            node.iter = ast.Call(ast.Name("_loop_numbers", ast.Load()), [node.iter], [])
        return node

    # a kernel finds the names of this module of Triton among its own
    triton_interpreter._loop_numbers = functools.partial(map, LoopNumber)
    part(triton_interpreter, "ASTTransformer").visit_For = visit_for


def _patch_axes(operation) -> None:
    """The slow path of reduce and scan counted a negative axis from the wrong end; bf16 went through."""

    def checked(original):
        def apply_impl(self, input):
            for arg in input:
                refuse_storage_only(arg.dtype.scalar)
            if self.axis is not None and self.axis < 0:
                self.axis += input[0].handle.data.ndim
            return original(self, input)

        return apply_impl

    replace(operation, "apply_impl", checked)


def _patch_reductions(reduce) -> None:
    """max and min skip NaN as the hardware does, and say nothing about it; fp16 sums round in fp16; integer
    sums wrap, where one number too large for its type was an error."""
    standard = part(tl, "standard")
    extremes = {
        part(standard, "_elementwise_max"): np.fmax.reduce,
        part(standard, "_elementwise_min"): np.fmin.reduce,
    }
    with_index = [part(standard, f"_arg{name}_combine_tie_break_left") for name in ("max", "min")]
    total = part(standard, "_sum_combine")

    def exact(original):
        def apply_impl(self, input):
            data = input[0].handle.data
            if self.combine_fn in with_index and data.dtype.kind == "f" and np.isnan(data).any():
                raise ValueError(
                    "tl.argmax, tl.argmin and return_indices=True give an arbitrary element when there is a "
                    "NaN: replace NaN with tl.where first"
                )
            if self.combine_fn in extremes:
                result = extremes[self.combine_fn](data, axis=self.axis, keepdims=self.keep_dims)
            elif self.combine_fn == total and data.dtype == np.float16:
                result = gpu.tree_sum(data, self.axis, self.keep_dims)
            elif self.combine_fn == total and data.dtype.kind in "iu":
                result = np.add.reduce(data, axis=self.axis, keepdims=self.keep_dims, dtype=data.dtype)
            else:
                return original(self, input)
            return self.to_tensor(result, input[0].dtype)

        return apply_impl

    def in_pairs(original):
        def generic_reduce(self, input):
            try:
                return _reduced_in_pairs(self, input)
            except TypeError:  # an `if` in the function, which takes numbers: one after the other
                return original(self, input)

        return generic_reduce

    replace(reduce, "apply_impl", exact)
    replace(reduce, "generic_reduce", in_pairs)


def _reduced_in_pairs(reduction, input) -> list[tl.tensor]:
    """By a function of the kernel's own: neighbours, then neighbours of these, as near as a GPU comes. One after the
    other rounds as often as there are elements, and a mean by Welford's rule was too far off."""
    axis, dtypes = reduction.axis, [one.dtype for one in input]
    blocks = [one.handle.data for one in input]
    ones = [1] * blocks[0].ndim
    blocks = [data.reshape(-1) if axis is None else np.moveaxis(data, axis, 0) for data in blocks]
    while len(blocks[0]) > 1:
        halves = [data[start::2] for start in (0, 1) for data in blocks]
        made = reduction.combine_fn.fn(*map(reduction.to_tensor, halves, dtypes * 2))
        made = made if isinstance(made, (tuple, tl.tuple)) else (made,)
        arrays = [getattr(getattr(one, "handle", None), "data", one) for one in made]
        blocks = [np.broadcast_to(array, half.shape).astype(half.dtype) for array, half in zip(arrays, halves)]
    results = [data[0] for data in blocks]
    if reduction.keep_dims:
        results = [data.reshape(ones) if axis is None else np.expand_dims(data, axis) for data in results]
    return [reduction.to_tensor(data, dtype) for data, dtype in zip(results, dtypes)]


def _patch_autotune(tuner) -> None:
    """There is no time to measure: every configuration runs once, as on a GPU, and the first one is kept."""
    part(tuner, "do_bench")

    def run_once(kernel_call, quantiles=None):
        kernel_call()
        return [1.0, 1.0, 1.0]

    tuner.do_bench = property(lambda self: run_once)
