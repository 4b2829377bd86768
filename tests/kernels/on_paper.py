"""python -m tests.kernels.on_paper FOLDER: the bytes that the driver is given, through Triton and the short way.

FOLDER has a libcuda.so.1 made of paper_driver.c and is in LD_LIBRARY_PATH. Kernels are compiled for an H200, and all of
Triton is real. Prints one line of JSON: how many launches were compared, and which differ.
"""

import contextlib
import ctypes
import gc
import json
import os
import re
import sys

import torch
import triton

from tests.kernels import other_cards

MOST = 1 << 20


class _Tensor(other_cards.OnGpu):
    """In the host's memory."""


def with_a_paper_driver(folder: str) -> ctypes.CDLL:
    os.environ["TRITON_LIBCUDA_PATH"] = folder
    library = ctypes.CDLL("libcuda.so.1")
    library.paper_take.restype = ctypes.c_long
    library.paper_sizes.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver

    class Driver(CudaDriver):
        def __init__(self):
            super().__init__()
            self.get_current_device, self.get_current_stream = lambda: 0, lambda device=None: 7

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def is_active(self=None):
            return True

    other_cards._Tensor = _Tensor
    other_cards.pretend(90)
    torch._C._cuda_getCurrentRawStream = lambda device: 7
    triton.runtime.driver.set_active(Driver())
    return library


class _InMemory(other_cards._OnTheCard):
    """Tensors are made in the host's memory."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = None
        return super().__torch_function__(function, types, args, kwargs)


def _told(library, known: set) -> None:
    """The driver is told the parameters of every kernel that was loaded; the text of the kernel has them."""
    from triton.runtime.jit import JITFunction

    for kernel in [one for one in gc.get_objects() if type(one).__mro__.count(JITFunction)]:
        for cache in kernel.device_caches.values():
            for one in cache[0].values():
                if one.function in known or not one.function:
                    continue
                known.add(one.function)
                head = re.search(r"\.entry[^{]*?\((.*?)\)", one.asm["ptx"], re.DOTALL)[1]
                found = re.findall(r"\.param.*?\.[busf](\d+)\b[^,\n\[]*(?:\[(\d+)\])?", head)
                sizes = [int(count or 0) or int(bits) // 8 for bits, count in found]
                library.paper_sizes(one.function, len(sizes), (ctypes.c_int * len(sizes))(*sizes))


def _taken(library) -> bytes:
    text = ctypes.create_string_buffer(MOST)
    length = library.paper_take(text)
    return text.raw[:length]


def _tensor(*shape: int, dtype=torch.bfloat16, start: int = 0) -> torch.Tensor:
    """`start`: elements behind a multiple of 128 bytes."""
    size = torch.Size(shape).numel()
    whole = torch.empty(size + start + 128, dtype=dtype)
    first = -whole.data_ptr() % 128 // whole.element_size() + start
    return whole[first : first + size].view(shape)


def _attention(B, H, H_kv, n_q, n_k, D, causal=False, padded=False, start=0):
    from course_lib.kernels.attention.backward import row_terms, write_gradients
    from course_lib.kernels.attention.forward import write_forward

    q, o, do, dq = (_tensor(B, H, n_q, D, start=start) for _ in range(4))
    k, v, dk, dv = (_tensor(B, H_kv, n_k, D) for _ in range(4))
    l, lengths = _tensor(B, H, n_q, dtype=torch.float32), _tensor(B, dtype=torch.int32) if padded else None
    yield write_forward, (o, l, q, k, v, causal, 0.125, lengths)
    yield write_gradients, (dq, dk, dv, row_terms(l), do, q, k, v, o, l, causal, 0.125, lengths)


def _in_one_pass(B, H, H_kv, n_q, n_k, D, causal, in_order, parts=1, padded=False):
    from dataclasses import replace

    from course_lib.kernels.attention.backward import row_terms, write_gradients
    from course_lib.kernels.attention.sums import room
    from course_lib.kernels.attention.tuning import IN_ORDER, ONE_PASS
    from course_lib.kernels.columns import split

    q, o, do, dq = (_tensor(B, H, n_q, D) for _ in range(4))
    k, v, dk, dv = (_tensor(B, H_kv, n_k, D) for _ in range(4))
    l, blocks = _tensor(B, H, n_q, dtype=torch.float32), (IN_ORDER if in_order else ONE_PASS)[sum(split(D)), causal]
    blocks = replace(blocks, parts=parts, dealt=blocks.dealt and not padded)
    sizes = causal, 0.125, _tensor(B, dtype=torch.int32) if padded else None, None, blocks, False
    yield write_gradients, (dq, dk, dv, row_terms(l), do, q, k, v, o, l, *sizes, room(q, k, blocks))


def _side_by_side(B, H, n, D):
    from course_lib.kernels.attention.backward import row_terms, write_gradients
    from course_lib.kernels.attention.tuning import SideBySide

    q, k, v, o, do, dq, dk, dv = (_tensor(B, H, n, D) for _ in range(8))
    l = _tensor(B, H, n, dtype=torch.float32)
    blocks = SideBySide(64, 64, 4, 2)
    yield write_gradients, (dq, dk, dv, row_terms(l), do, q, k, v, o, l, True, 0.125, None, None, blocks)


def _views(B, N, H, D):
    """q, k and v of one projection, as three tensors."""
    from course_lib.kernels.attention.backward import row_terms, write_gradients
    from course_lib.kernels.attention.forward import write_forward

    q, k, v = (x.transpose(1, 2) for x in _tensor(B, N, 3, H, D).unbind(2))
    dq, dk, dv = (x.transpose(1, 2) for x in _tensor(B, N, 3, H, D).unbind(2))
    o, do, l = _tensor(B, H, N, D), _tensor(B, H, N, D), _tensor(B, H, N, dtype=torch.float32)
    yield write_forward, (o, l, q, k, v, False, 0.125, None)
    yield write_gradients, (dq, dk, dv, row_terms(l), do, q, k, v, o, l, False, 0.125, None)


def _packed(B, N, H, D):
    from course_lib.kernels.attention import packed
    from course_lib.kernels.attention.backward import row_terms

    qkv, dqkv, o, do = (_tensor(B, N, *rest, H, D) for rest in ((3,), (3,), (), ()))
    l, lengths = _tensor(B, H, N, dtype=torch.float32), _tensor(B, dtype=torch.int32)
    yield packed._write_forward, (o, l, qkv, lengths)
    yield packed._write_backward, (dqkv, row_terms(l), do, qkv, o, l, lengths)


def _norm(rows, width, in_place=False, start=0):
    from course_lib.kernels.add_norm.backward import _write_backward
    from course_lib.kernels.add_norm.forward import write_forward
    from course_lib.kernels.add_norm.tuning import backward_rows

    y, s, x, residual, d, dy, ds = (_tensor(rows, width, start=start) for _ in range(7))
    mean, rstd = (_tensor(rows, dtype=torch.float32) for _ in range(2))
    weight, bias, dw, db = (_tensor(width) for _ in range(4))
    yield write_forward, (x if in_place else y, s, mean, rstd, x, residual, weight, bias, 1e-5)
    how, parts, sum_x = backward_rows(width, rows, x.device), _tensor(3, 33, width, dtype=torch.float32), _tensor(width)
    for more, room in ((None, parts[:2]), (sum_x, parts)):
        yield _write_backward, (d, None, dw, db, more, room, dy, ds, s, weight, mean, rstd, 0.0, None, 0, how)


def _linear(M, K, N, dtype=torch.bfloat16, start=0):
    from course_lib.kernels.linear_gelu.elementwise import _write_slope
    from course_lib.kernels.linear_gelu.public import _write

    x, w, bias = _tensor(M, K, dtype=dtype, start=start), _tensor(N, K, dtype=dtype), _tensor(N, dtype=dtype)
    out, h, da = (_tensor(M, N, dtype=dtype) for _ in range(3))
    sums = _tensor(-(-M // 128), N, dtype=torch.float32)
    yield _write, (out, h, x, w, bias, "ieee")
    yield _write_slope, (h, out, sums, da, h)
    yield _write_slope, (da, None, sums, da, h)


def _rope(S, D, R, start=0):
    from course_lib.kernels.rope import write_rope

    q, k, q_out, k_out = (_tensor(2, heads, S, D, start=start) for heads in (4, 2, 4, 2))
    tables = [_tensor(40, R // 2, dtype=torch.float32) for _ in range(2)]
    positions = _tensor(2, S, dtype=torch.int64)
    yield write_rope, (q_out, k_out, q, k, *tables, None, 0, False, False, False)
    yield write_rope, (q, k, q, k, *tables, positions, 5, False, True, True)


def _dropout(n, start=0):
    from course_lib.kernels.dropout import _write

    out, x, seed = _tensor(n), _tensor(n, start=start), _tensor(1, dtype=torch.int64)
    for per_counter in (1, 4):
        yield _write, (out, x, seed, 0.25, 8, per_counter)


def calls():
    """(planned function, arguments)"""
    yield from _attention(2, 4, 2, 65, 63, 72, causal=True, padded=True)
    for n in (64, 130):  # one block, two passes
        yield from _attention(2, 4, 4, n, n, 64)
        yield from _attention(2, 4, 4, n, n, 64, start=3)
    yield from _in_one_pass(2, 4, 2, 64, 200, 128, False, False)
    yield from _in_one_pass(2, 4, 2, 64, 200, 128, True, True)
    yield from _in_one_pass(2, 4, 2, 64, 200, 72, False, True)
    yield from _in_one_pass(2, 4, 2, 64, 200, 128, True, True, parts=2)
    yield from _in_one_pass(2, 4, 2, 64, 200, 128, False, True, padded=True)
    yield from _side_by_side(2, 4, 130, 64)
    for n in (64, 130):
        yield from _packed(2, n, 2, 72)
        yield from _views(2, n, 2, 64)
    yield from _norm(64, 1152)
    yield from _norm(64, 1152, in_place=True)
    yield from _norm(3, 100, start=1)
    yield from _linear(512, 1152, 4304)
    yield from _linear(2048, 1152, 4304)
    yield from _linear(33, 20, 30, start=1)
    yield from _rope(33, 64, 64)
    yield from _rope(33, 72, 48, start=1)
    yield from _dropout(4096)
    yield from _dropout(1003, start=1)


def main() -> None:
    library, known = with_a_paper_driver(sys.argv[1]), set()
    from benchmarks.launch_costs import as_written
    from course_lib.kernels import launching

    with _InMemory():
        for function, given in calls():
            function(*given)
        _told(library, known)
        _taken(library)
        count, differ = 0, []
        for _ in range(2):
            for function, given in calls():  # in other memory than before
                texts = []
                for around in (as_written, *(contextlib.nullcontext,) * 2):
                    with around():
                        function(*given)
                    texts.append(_taken(library))
                count += 1
                if not texts[0] or set(texts) != {texts[0]}:
                    differ.append(f"{function.__module__}.{function.__name__} {list(map(len, texts))}")
    only_triton = [key[0][0].__name__ for key, plan in launching._plans.items() if plan is None]
    print(json.dumps({"triton": triton.__version__, "compared": count, "differ": differ, "only Triton": only_triton}))


if __name__ == "__main__":
    main()
