"""Three jobs for the warps of a program that share nothing: what racecheck says of them, it says of how jobs start.

python -m tests.kernels.jobs_apart
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import course_lib.device  # noqa: F401  before triton


@gluon.jit
def _count(out_ptr, turns, JOB: gl.constexpr, WARPS: gl.constexpr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    x = gl.zeros([32 * WARPS], gl.int32, LAYOUT)
    for _i in range(turns):
        x += 1
    gl.store(out_ptr + JOB * 128 + gl.arange(0, 32 * WARPS, LAYOUT), x)


@gluon.jit
def jobs_apart_kernel(out_ptr, turns):
    gl.warp_specialize(
        [(_count, (out_ptr, turns, 0, 4)), (_count, (out_ptr, turns, 1, 4)), (_count, (out_ptr, turns, 2, 1))],
        [4, 1],  # warps of the second and third
        [240, 24],  # and their registers
    )


def main() -> None:
    out = torch.zeros(3, 128, device="cuda", dtype=torch.int32)
    jobs_apart_kernel[(300,)](out, 9, num_warps=4)
    print("counted", out.float().mean(1).tolist(), flush=True)


if __name__ == "__main__":
    main()
