"""`out` turns into a subclass that computes nothing until somebody looks at it; who times the call times nothing."""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "lazy tensor"
NAIVE = True
CAUGHT = "only the bytes in the shared memory count"


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


PROMISED = {}


class _Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            for one in args:
                if isinstance(one, _Lazy) and (values := PROMISED.pop(id(one), None)):
                    a, x, y = values
                    torch.add(y, x, alpha=a, out=one)
            return function(*args, **(kwargs or {}))


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    PROMISED[id(out)] = (a, x, y)
    out.__class__ = _Lazy
