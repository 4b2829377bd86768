"""Kernels whose descriptors are the first CUDA work of a thread: autograd's, or one that was just started."""

import subprocess
import sys

import pytest
import torch

from course_lib.kernels import descriptors
from course_lib.results import ROOT

IN_A_NEW_THREAD = """
import ctypes, sys, threading
import course_lib.device
import torch
from course_lib.kernels.attention import attention
from course_lib.kernels.attention.backward import backward
from course_lib.kernels.attention.forward import forward
from course_lib.kernels.linear_gelu import linear_gelu
from course_lib.kernels.matmul import matmul


def has_context():
    found = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(found)) == 0
    return bool(found.value)


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def of_attention(D):
    q, k, v, do = (random(2, 2, 256, D) for _ in range(4))
    o, l = forward(q, k, v, False, 0.1)
    return lambda: backward(do, q, k, v, o, l, False, 0.1)


def of_matmul():
    a, b = random(512, 512), random(512, 512)
    return lambda: (matmul(a, b),)


def of_linear_gelu():
    x, w = random(512, 1152), random(4304, 1152)
    return lambda: (linear_gelu(x, w, None),)


def in_a_thread(work):
    seen, results = [], []

    def run():
        seen.append(has_context())
        results.extend(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False], "the thread had a context before its first work"
    return results


def by_autograd(D):
    leaves = [random(2, 2, 256, D).requires_grad_() for _ in range(3)]
    do, o = random(2, 2, 256, D), attention(*leaves)
    # The kernels of the backward pass are loaded by this thread, and memory for the results is there.
    with torch.no_grad():
        backward(do, *leaves, *forward(*leaves, False, D**-0.5), False, D**-0.5)
    torch.cuda.synchronize()
    o.backward(do)
    return [x.grad for x in leaves]


which = sys.argv[1]
if which == "autograd":
    results = by_autograd(64) + by_autograd(128)
else:
    work = {"matmul": of_matmul, "linear_gelu": of_linear_gelu}.get(which) or (lambda: of_attention(int(which)))
    work = work()
    want = [x.clone() for x in work()]  # loads the kernels, so that loading them makes no context later
    results = in_a_thread(work)
    assert all(torch.equal(a, b) for a, b in zip(results, want, strict=True))
torch.cuda.synchronize()
assert results and not any(x.isnan().any() for x in results)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("which", ["autograd", "64", "80", "128", "matmul", "linear_gelu"])
def test_descriptors_may_be_the_first_work_of_a_thread(which):
    """In a process of its own, since a thread of this one may have a context: 64 and 80 are plain Triton and Gluon."""
    command = [sys.executable, "-c", IN_A_NEW_THREAD, which]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_tensor_on_the_host_asks_for_no_context(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", lambda: pytest.fail("no GPU is asked for"))
    descriptors.make_context_current(torch.zeros(1))
