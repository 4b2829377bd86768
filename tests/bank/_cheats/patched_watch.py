"""Every function of the module that watches is replaced, as soon as it is imported, by one that has seen a perfect
kernel.

NAIVE is False: `check` does not watch.
"""

import sys

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "patched modules"
NAIVE = False
CAUGHT = "the answer survives an emptied kernel, and a person reads what patches modules"
HELD = True


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


class _Blind:
    def find_spec(self, name, path=None, target=None):
        if name.endswith(".watch"):
            sys.modules[name] = self
        return None


def _watched(function, args):
    from autograder.inside import calling

    answer = calling.call(function, args)
    kernels = {"_axpy_kernel": 1}
    return answer, {"operators": {}, "kernels": kernels, "device": kernels, "programs": [["_axpy_kernel", [9]]]}


sys.meta_path.insert(0, _Blind())
if "autograder.inside.watch" in sys.modules:
    sys.modules["autograder.inside.watch"].watched = _watched


def axpy(a, x, y, out):
    _axpy_kernel[(9,)](torch.empty(9, device=x.device))
    torch.add(y, x, alpha=a, out=out)
