"""python -m benchmarks.add_norm_sweep [--seconds 200] [--kinds forward backward sums dropout]: try rows and warps.

Every line: kind, width, blocks, us a call, time over that of the table's (turn by turn), over a copy of the same bytes;
or what went wrong. "sums" is the second step of dw and db alone, for several numbers of programs.
"""

from functools import lru_cache, partial
from itertools import zip_longest

import torch
import triton

from benchmarks.add_norm import ROWS, Given, normal
from benchmarks.rope import scale
from benchmarks.sweeping import main
from course_lib.kernels import dropout
from course_lib.kernels.add_norm.backward import SUM_BLOCKS, sum_parts_kernel, write_backward
from course_lib.kernels.add_norm.forward import write_forward
from course_lib.kernels.add_norm.tuning import Backward, Forward, backward_rows, forward_rows
from course_lib.timing import compare

CANDIDATES = {
    "forward": {  # rows, warps
        1152: [(1, 2), (1, 1), (1, 4), (2, 4), (2, 8), (2, 2), (4, 8), (4, 4)],
        4096: [(1, 8), (1, 4), (1, 16), (2, 8), (2, 16), (1, 2)],
        12288: [(1, 8), (1, 16), (1, 32)],
        16384: [(1, 32), (1, 16), (1, 8)],
    },
    # Rows, warps, programs a multiprocessor, the next rows in registers, turns in shared memory, fp32 made twice, rows
    # shared by two programs.
    "backward": {
        1152: [
            (1, 2, 8, False, 3), (1, 4, 5, True, 1), (1, 2, 8, False, 4), (1, 2, 8, False, 2), (1, 4, 6, False, 3),
            (1, 1, 8, False, 3), (1, 1, 16, False, 3), (1, 2, 10, False, 3), (1, 2, 6, True, 1), (1, 4, 7, False, 4),
            (1, 2, 7, False, 4), (1, 4, 5, False, 4), (2, 4, 3, False, 3), (1, 1, 12, False, 4),
        ],
        4096: [
            (1, 16, 1, False, 4), (1, 16, 1, False, 6), (1, 16, 1, False, 5), (1, 16, 1, False, 3), (1, 8, 2, False, 4),
            (1, 32, 1, False, 4), (2, 16, 1, False, 3), (2, 32, 1, False, 3), (1, 8, 3, False, 3), (1, 8, 2, False, 3),
            (1, 4, 2, False, 4), (1, 32, 1, False, 6), (2, 16, 1, False, 4), (1, 16, 2, False, 3),
        ],
        12288: [
            (1, 16, 1, False, 2, True), (1, 32, 1, False, 2, True), (1, 16, 1, False, 2), (1, 16, 1, False, 3),
            (1, 32, 1, False, 2), (1, 32, 1), (1, 16, 1, False, 1, True), (1, 32, 1, False, 1, True), (1, 16, 1),
            (1, 16, 1, False, 2, True, True), (1, 16, 1, False, 3, False, True),
        ],
        16384: [
            (1, 16, 1, False, 2, True, True), (1, 16, 1, False, 3, False, True), (1, 16, 1, False, 2, False, True),
            (1, 16, 1, False, 2, True), (1, 8, 1, False, 2, True, True), (1, 8, 1, False, 3, False, True),
            (1, 16, 1, False, 1, True, True), (1, 16, 1, False, 1, False, True), (1, 8, 1, False, 2, False, True),
            (1, 8, 1, False, 1, True, True), (1, 8, 2, False, 2, False, True), (1, 8, 2, False, 1, True, True),
            (1, 32, 1, False, 2, True, True), (1, 32, 1, False, 2, True), (1, 16, 1, False, 2), (1, 32, 1, False, 2),
            (1, 32, 1),
        ],
    },
    "sums": {width: [(256, 32), (512, 16), (128, 64), (256, 16), (1024, 8), (128, 32), (512, 32), (64, 64)]
             for width in (1152, 4096)},  # programs, columns
    "dropout": {width: [(4096, 4), (2048, 4), (8192, 8), (1024, 4), (4096, 8), (2048, 2), (1024, 1), (8192, 4)]
                for width in (1152, 4096)},  # elements, warps
}  # fmt: skip
PROGRAMS = {1152: 660, 4096: 264}


def jobs(kinds: list[str]) -> list[dict]:
    columns = [
        [{"kind": kind, "width": width, "blocks": list(blocks)} for blocks in tried]
        for kind in kinds
        for width, tried in CANDIDATES[kind].items()
    ]
    return [job for row in zip_longest(*columns) for job in row if job is not None]


@lru_cache(maxsize=1)
def _ready(kind: str, width: int):
    """(blocks -> a call that returns results, the table's blocks, a copy of the same bytes or None, calls in each)."""
    if kind == "sums":
        return _sums(width)
    given = Given(width)
    outs = [torch.empty(2, ROWS, width, device="cuda", dtype=torch.bfloat16) for _ in given.ring]
    mean, rstd = torch.zeros(ROWS, device="cuda"), torch.ones(ROWS, device="cuda")
    dw, db = torch.empty_like(given.weight), torch.empty_like(given.weight)
    device, seed = torch.device("cuda"), torch.tensor([3], device="cuda")

    def forward(blocks):
        for (x, residual), (y, s) in zip(given.ring, outs):
            how = Forward(*blocks)
            write_forward(y, s, mean, rstd, x, residual, given.weight, given.bias, 1e-5, how=how)
        return outs[0]

    def backward(blocks):
        # ds, dy and s are three tensors: the next of the ring stands in for the third.
        for i, ((dy, ds), (d, _)) in enumerate(zip(given.ring, outs)):
            s = given.ring[i - 1][0]
            write_backward(d, None, dw, db, dy, ds, s, given.weight, mean, rstd, how=Backward(*blocks))
        return torch.cat([outs[0][0].flatten(), dw, db])

    def drop(blocks):
        block, warps = blocks
        for (x, _), (y, _) in zip(given.ring, outs):
            dropout._by_four_kernel[(triton.cdiv(x.numel(), block),)](
                y, x, seed, x.numel(), 0, dropout.smallest_kept(0.1), 1 / 0.9, BLOCK=block, num_warps=warps
            )
        return outs[0][0]

    def copy():
        for x, out in zip(given.ring, outs):
            scale(out, x)

    def copy_half():
        for x, out in zip(given.ring, outs):
            scale(out[0], x[0])

    calls, tables = len(given.ring), {
        "forward": (forward, tuple(vars(forward_rows(width, device)).values()), copy),
        "backward": (backward, tuple(vars(backward_rows(width, ROWS, device)).values()), copy),
        "dropout": (drop, (dropout.BLOCK, dropout.WARPS), copy_half),
    }  # fmt: skip
    return *tables[kind], calls


def _sums(width: int):
    parts = torch.randn(2, PROGRAMS[width], width, device="cuda")
    out = normal(2, width)

    def run(blocks):
        block_p, block_n = blocks
        sum_parts_kernel[(triton.cdiv(width, block_n), 2)](
            out[0], out[1], parts[0], parts[1], PROGRAMS[width], width, BLOCK_P=block_p, BLOCK_N=block_n, num_warps=8
        )
        return out

    return run, SUM_BLOCKS, None, 1


def once(job: dict) -> None:
    run, *_ = _ready(job["kind"], job["width"])
    run(job["blocks"])


def measured(job: dict) -> dict:
    run, table, copy, calls = _ready(job["kind"], job["width"])
    want = run(table).float().clone()
    got = run(job["blocks"]).float()
    error = ((got - want).norm() / want.norm()).item()
    if not error < 3e-3:
        return {"wrong": f"{error:.1e} from the table's result"}
    near = {"method": "graph", "cold": False, "precision": 0.005, "max_seconds": 0.3}
    seen = compare(partial(run, job["blocks"]), partial(run, table), **near)
    line = {"us": round(seen.a.us / calls, 2), "over the table's": round(seen.ratio, 4)}
    if copy is not None:
        line["over a copy"] = round(compare(partial(run, job["blocks"]), copy, **near).ratio, 4)
    return line


if __name__ == "__main__":
    main("benchmarks.add_norm_sweep", list(CANDIDATES), jobs, once, measured)
