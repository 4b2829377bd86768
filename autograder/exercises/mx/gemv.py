"""mx.gemv: a product with weights as they are held, for few rows.

    gemv(x, mantissas, exponents, group, out)

x is (M, K) and out (M, N), both fp32, or both bf16 on a GPU, M from 1 to 16. The weights are N rows of K in the format:
mantissas (N, K) in int8, exponents (N, ceil(K / group)) in uint8, contiguous; group is a power of two from 16 to 256,
and the last group of a row may be short. Rows of x, mantissas and out may lie apart, their columns are adjacent.

    out[r, n] = sum over k of x[r, k] * m[n, k] * 2^(e[n, k // group] - 133)

summed in fp32, rounded once; NaN in column n of out where a group of row n has the exponent 255. out holds NaN before
the call. All arithmetic is in kernels, and no memory is made that the weights would fill at two bytes a number. The
floor counts one read of the weights, at the rate of this device's copy.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision, Speed
from autograder.exercises.dtypes import BF16, DTYPE_NAMES, FP32, NEXT_DOWN_IS, next_format_down
from autograder.exercises.mx.gemv_mistakes import MISTAKES
from autograder.exercises.mx.inputs import exponents, mantissas
from autograder.exercises.mx.mxint8 import decode
from autograder.exercises.mx.places import wrong_groups
from autograder.exercises.strides import far_apart


def _call(
    d: Draw, m_rows: int, n: int, k: int, group: int, dtype=FP32, gap=0, m_gap=0, out_gap=0, low=118, high=128, size=1.0
):
    x = d.normal(m_rows, k, dtype=dtype, std=size, strides=(k + gap, 1))
    m, e = mantissas(d, n, k, m_gap), exponents(d, n, k, group, low, high)
    out = d.empty(m_rows, n, dtype=dtype, strides=(n + out_gap, 1))
    sizes = f"M = {m_rows}, N = {n}, K = {k}, {DTYPE_NAMES[x.dtype]}, groups of {group}"
    if gap or m_gap or out_gap:
        sizes += f", row strides {k + gap}, {k + m_gap} and {n + out_gap}"
    return Call({"x": x, "mantissas": m, "exponents": e, "group": group, "out": out}, sizes)


def _k(d: Draw, groups: int, group: int) -> int:
    """So many whole groups, and a short one."""
    return group * groups + d.odd(3, group - 3)


def _with_nan(d: Draw) -> Call:
    """Three groups of NaN. Mantissas are small there, or 0: taken for numbers, they would make finite sums."""
    made = _call(d, d.integer(2, 4), d.odd(17, 25), 16 * 5, 16, size=0.5)
    e, m = made.args["exponents"], made.args["mantissas"]
    for row, group, divisor in ((d.integer(1, 5), d.integer(0, 4), 128), (7, 2, 64), (-1, 4, 64)):
        e[row, group] = 255
        m[row, 16 * group : 16 * group + 16] //= divisor
    m[7, 32:48] = 0
    return made


def _often_minus_128(d: Draw) -> Call:
    made = _call(d, 2, d.odd(17, 25), 96, 32)
    made.args["mantissas"][:, ::3] = -128
    return made


def _far_apart(d: Draw) -> Call:
    """Exponents. In the first row of weights the last group is the largest: who leaves it out shows it."""
    made = _call(d, 2, d.odd(17, 25), 160, 32, low=60, high=190)
    made.args["exponents"][0] = torch.tensor([60, 90, 120, 150, 190], dtype=torch.uint8)
    return made


def _past_int32(d: Draw) -> Call:
    """The third row of the weights begins past 2^31 elements. 2.1 GB, nearly all of it gap."""
    args = _call(d, 2, 3, d.odd(200, 300), 32).args
    m = args["mantissas"] = far_apart(args["mantissas"])
    return Call(args, f"M = 2, N = 3, K = {m.shape[1]}, groups of 32, row stride of the mantissas {m.stride(0)}")


CASES = (
    Case("one row", lambda d: _call(d, 1, d.odd(34, 50), 128, 32)),
    Case("whole blocks", lambda d: _call(d, 4, 64, 256, 32)),
    Case("some rows", lambda d: _call(d, d.odd(3, 7), d.odd(34, 50), 128, 32)),
    Case("sixteen rows", lambda d: _call(d, 16, d.odd(17, 25), 96, 32)),
    Case("one output", lambda d: _call(d, 3, 1, 64, 16)),
    Case("a short last group", lambda d: _call(d, 2, d.odd(34, 50), _k(d, 3, 32), 32)),
    Case("one short group", lambda d: _call(d, 2, d.odd(17, 25), d.odd(17, 31), 64)),
    Case("groups of 16", lambda d: _call(d, 2, d.odd(17, 25), _k(d, 4, 16), 16)),
    Case("large groups", lambda d: _call(d, 2, d.odd(17, 25), _k(d, 2, 128), d.choice([64, 128]))),
    Case("a group of 256", lambda d: _call(d, 1, d.odd(9, 15), _k(d, 2, 256), 256)),
    Case("a long K", lambda d: _call(d, 1, d.odd(65, 79), 32 * d.integer(36, 40), 32)),
    Case("many outputs", lambda d: _call(d, 1, d.odd(262, 310), 64, 32)),
    Case("strided x", lambda d: _call(d, 3, d.odd(17, 25), _k(d, 2, 32), 32, gap=d.integer(3, 30))),
    Case("strided mantissas", lambda d: _call(d, 3, d.odd(17, 25), _k(d, 2, 32), 32, m_gap=d.integer(3, 30))),
    Case("strided output", lambda d: _call(d, 3, d.odd(17, 25), 96, 32, out_gap=d.integer(3, 30))),
    Case("exponents far apart", _far_apart),
    Case("mantissas of -128", _often_minus_128),
    Case("a group of NaN", _with_nan),
    Case("values past 65504", lambda d: _call(d, 2, d.odd(17, 25), 128, 32, size=1e6)),
    Case("bf16", lambda d: _call(d, d.integer(2, 7), d.odd(500, 600), _k(d, 40, 32), 32, BF16), tiers=ON_GPU),
    Case("bf16, sixteen rows", lambda d: _call(d, 16, d.odd(500, 600), 4096, 32, BF16), tiers=ON_GPU),
    Case("large", lambda d: _call(d, 1, 8193, 4096, 32, BF16), tiers=ON_GPU),
    Case("offsets past 2^31", _past_int32, tiers=ON_GPU, live=False, share=0.5),
)

TIMED = (
    Case("one row", lambda d: _call(d, 1, d.sized(28672), 8192, 32, BF16)),
    Case("sixteen rows", lambda d: _call(d, 16, d.sized(28672), 8192, 32, BF16)),
)


def _floor_s(v, ceilings) -> float:
    """One read of the weights; x and out are small beside them."""
    tensors = ("x", "mantissas", "exponents", "out")
    return sum(v[name].nbytes for name in tensors) / ceilings.bytes_per_s


def _in_fp32(v, x) -> dict[str, torch.Tensor]:
    return {"out": (x.float() @ decode(v).float().T).to(x.dtype)}


GEMV = Exercise(
    name="mx.gemv",
    entry="gemv",
    points=8,
    about="a product with weights as they are held, scaled group by group",
    point=("one row", "a short last group", "a long K"),
    kind="kernel",
    cases=CASES,
    writes=("out",),
    oracle=lambda v: {"out": v["x"].double() @ decode(v).T},
    precision=Precision(
        good=lambda v: _in_fp32(v, v["x"]),
        good_is="fp32 throughout",
        lower=lambda v: _in_fp32(v, next_format_down(v["x"])),
        lower_is=f"x {NEXT_DOWN_IS}",
    ),
    mistakes=MISTAKES,
    probe="autograder.inside.probes.multiplying:as_held",
    where=wrong_groups,
    speed=Speed(
        points=4,
        cases=TIMED,
        floor_s=_floor_s,
        full=0.85,
        none=0.2,
        reference="course_lib.kernels.timed:gemv_into",
    ),
    shows_not="speed, bf16, the rounding inside tensor cores, races between programs, and offsets past 2^31",
)
