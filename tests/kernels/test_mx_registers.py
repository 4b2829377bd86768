"""The tuned products with weights in the format: where they run, what the compiler makes of them, what they give."""

import re

import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE
from course_lib.kernels.hardware import gluon_is_known, on_hopper
from course_lib.kernels.mx import Quantized, dequantize_reference, quantize
from course_lib.kernels.mx import product as mx_product
from course_lib.kernels.mx.product import product, taught_matrix, taught_vector
from course_lib.kernels.mx.rungs import direct_for, fetched_for, walk_for
from course_lib.kernels.mx.tuning import DIRECT, FETCHED, WALK, Routes, direct_blocks, walk_blocks
from course_lib.kernels.timed import gemv_into
from tests.kernels.test_mx_products import product_bound

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

DIRECT_BLOCKS = [blocks for pair in DIRECT.values() for blocks in pair]
FETCHED_BLOCKS = list(dict.fromkeys(blocks for *pair, _ in FETCHED.values() for blocks in pair))
BRAIN = torch.bfloat16


# Which rung.


def zeros(rows=1, N=64, K=1024, dtype=BRAIN, group=32):
    """x and w, whose values do not matter."""
    m, e = torch.zeros(N, K, dtype=torch.int8), torch.zeros(N, -(-K // group), dtype=torch.uint8)
    return torch.zeros(rows, K, dtype=dtype), Quantized(m, e, group)


def chosen(x, w, hopper=True):
    return walk_for(x, w, hopper), direct_for(x, w, hopper)


@pytest.fixture
def known(monkeypatch):
    """Tables are read as if this Triton's Gluon had been tried."""
    monkeypatch.setattr("course_lib.kernels.mx.rungs.gluon_is_known", lambda: True)


@pytest.mark.usefixtures("known")
def test_the_tables_decide():
    assert chosen(*zeros(1)) == (WALK["few"], DIRECT[8][1])
    for rows, most in ((2, 8), (8, 8), (9, 16), (16, 16), (17, 32), (33, 64), (64, 64)):
        assert chosen(*zeros(rows)) == (None, DIRECT[most][1])
        assert chosen(*zeros(rows, N=8192, K=128)) == (None, DIRECT[most][0])
    assert chosen(*zeros(65)) == (None, None), "not measured"


@pytest.mark.usefixtures("known")
def test_a_table_decides_where_one_warp_fetches():
    for rows, most in ((17, 32), (33, 64), (64, 64), (65, 128), (256, 256)):
        assert fetched_for(*zeros(rows, K=8192), True) == FETCHED[most][1]
        assert fetched_for(*zeros(rows, N=8192, K=128), True) == FETCHED[most][0]
    for rows in (1, 16, 257):
        assert fetched_for(*zeros(rows, K=8192), True) is fetched_for(*zeros(rows, N=8192, K=128), True) is None
    x, w = zeros(100)
    assert fetched_for(x, w, False) is None, "another GPU"
    assert fetched_for(x[:1].expand(100, -1), w, True) is None, "the copy engine wants rows apart"
    assert fetched_for(x.float(), w, True) is fetched_for(*zeros(100, K=1056), True) is None


SWEPT = {
    (14336, 4096): (32, 64, 128, 192, 256),
    (4096, 4096): (64, 128, 192, 256),
    (4096, 14336): (32, 64, 128, 192, 256),
}


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(("N", "K"), SWEPT)
def test_one_warp_fetches_where_the_sweep_found_that_faster(N, K):
    fetched = {rows for rows in (16, 32, 64, 128, 192, 256, 257) if fetched_for(*zeros(rows, N, K), True)}
    assert fetched == set(SWEPT[N, K])


@pytest.mark.usefixtures("known")
def test_few_rows_of_weights_are_fetched_from_so_many_columns_on_and_go_to_registers_below():
    for rows, columns in ((17, 5120), (32, 5120), (33, 4096), (64, 4096)):
        assert fetched_for(*zeros(rows, K=columns), True)
        assert fetched_for(*zeros(rows, K=columns - 128), True) is None
        assert direct_for(*zeros(rows, K=columns - 128), True)
    assert fetched_for(*zeros(65, K=128), True), "there the taught product would be next"


@pytest.mark.parametrize(("rows", "named"), [(64, "matrix"), (100, "matrix"), (300, "dequantize")])
def test_weights_are_not_made_whole_where_a_warp_fetches_them(rows, named, monkeypatch):
    taken = {name: lambda *_, name=name: seen.append(name) for name in mx_product.ROUTES}
    seen = []
    monkeypatch.setattr(mx_product, "ROUTES", taken)
    monkeypatch.setattr(mx_product, "routes_for", lambda *_: Routes(2, 96))
    monkeypatch.setattr(mx_product, "fetched_for", lambda x, *_: x.shape[0] <= 256)
    x, w = zeros(rows)
    product(x, w)
    product(x, w, None, "dequantize")
    assert seen == [named, "dequantize"]


def test_long_rows_are_not_unrolled_and_columns_that_are_no_whole_steps_have_no_walk():
    many, few = WALK["many"], WALK["few"]
    assert [walk_blocks(14336, K) for K in (2048, 4096, 6144, 8192, 28672)] == [many, many, few, few, few]
    assert [walk_blocks(14336, K) for K in (1024, 5120, 11008, 128, 0)] == [few, few, None, None, None]
    assert walk_blocks(4096, 4096) is few


@pytest.mark.usefixtures("known")
def test_what_the_tuned_rungs_cannot_read_goes_the_old_way():
    x, w = zeros()
    m, e = w.mantissas, w.exponents
    apart = torch.zeros(64, 1040, dtype=torch.int8)
    assert all(chosen(x, Quantized(apart[:, :1024], e, 32))), "rows may lie apart, at multiples of 16 bytes"
    assert all(chosen(torch.zeros(1, 1027, dtype=BRAIN)[:, :1024], w)), "one row has no stride"
    odd = torch.zeros(64 * 1024 + 8, dtype=torch.int8)
    cases = {
        "another GPU": (x, w, False),
        "fp32": (x.float(), w),
        "fp16": (x.half(), w),
        "groups of 16": zeros(group=16),
        "groups of 64": zeros(group=64),
        "K no multiple of 128": zeros(K=1056),
        "no columns": zeros(K=0),
        "many rows and many columns": zeros(2, N=16, K=2**15 + 128),
        "few rows of weights": (zeros()[0].expand(2, -1), Quantized(m[:7], e[:7], 32)),
        "x off 16 bytes": (torch.zeros(1032, dtype=BRAIN)[4:-4].view(1, -1), w),
        "weights off 16 bytes": (x, Quantized(odd[8:].view(64, 1024), e, 32)),
        "rows of weights off 16 bytes": (x, Quantized(torch.zeros(64, 1032, dtype=torch.int8)[:, :1024], e, 32)),
        "rows of x off 16 bytes": (torch.zeros(3, 1028, dtype=BRAIN)[:, :1024], w),
    }
    for name, given in cases.items():
        assert chosen(*given) == (None, None), name


def test_without_gluon_the_taught_rungs_run(monkeypatch):
    monkeypatch.setattr("course_lib.kernels.mx.rungs.gluon_is_known", lambda: False)
    assert chosen(*zeros()) == (None, None)
    assert not on_hopper(torch.device("cpu"))


def test_a_speed_is_judged_by_the_taught_rungs(monkeypatch):
    def tuned(*_):
        raise AssertionError("a tuned rung was asked for")

    for name in ("walk_for", "direct_for"):
        monkeypatch.setattr(mx_product, name, tuned)
    for rows in (1, 3):
        x, w = torch.ones(rows, 64, device=DEVICE), quantize(torch.ones(9, 64, device=DEVICE))
        out = torch.full((rows, 9), float("nan"), device=DEVICE)
        gemv_into(x, w.mantissas, w.exponents, 32, out)
        assert (out == 64).all()


# What the assembler's text in the kernels does, followed one instruction at a time on words of 32 bits.


def _halves(word):
    return [((word >> shift & 0xFFFF) << 16).to(torch.int32).view(torch.float32).double() for shift in (0, 16)]


def _bf16x2(function, *words):
    low, high = (function(*parts).to(BRAIN).view(torch.int16).long() & 0xFFFF for parts in zip(*map(_halves, words)))
    return high << 16 | low


def _prmt(a, b, selector):
    both = a | b << 32
    return sum((both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))


OPERATIONS = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "xor.b32": lambda a, b: a ^ b,
    "shr.u32": lambda a, n: a >> n,
    "prmt.b32": _prmt,
    "lop3.b32": lambda a, b, c, table: {0xEA: (a & b) | c}[int(table)],
    "max.bf16x2": lambda a, b: _bf16x2(torch.maximum, a, b),
    "sub.rn.bf16x2": lambda a, b: _bf16x2(torch.sub, a, b),
    "mul.rn.bf16x2": lambda a, b: _bf16x2(torch.mul, a, b),
    "fma.rn.bf16x2": lambda a, b, c: _bf16x2(lambda p, q, r: p * q + r, a, b, c),
}


def follow(text, outputs, *inputs):
    held = {f"${outputs + i}": word for i, word in enumerate(inputs)}
    for line in re.findall(r"^\s*([a-z]\S+ .*);", text, re.MULTILINE):
        operation, out, *given = re.split(r",?\s+", line)
        words = [held[x] if x in held else torch.tensor(int(x, 0)) for x in given]
        held[out] = OPERATIONS[operation](*words)
    return [held[f"${i}"] for i in range(outputs)]


@pytest.fixture
def every_pair():
    """Words of four weights, (256, 256): of every value in every place, with every exponent."""
    m, e = torch.arange(-128, 128), torch.arange(256)
    places = [torch.roll(m, 64 * i) for i in range(4)]
    word = sum((m & 0xFF) << 8 * i for i, m in enumerate(places))
    return places, word[:, None].expand(256, 256), e[None, :].expand(256, 256)


def test_weights_become_bf16_exactly_nine_instructions_for_four(every_pair):
    gemm_registers = pytest.importorskip("course_lib.kernels.mx.gemm_registers")
    places, word, e = every_pair
    (scale,) = follow(gemm_registers.SCALES.value, 1, e << 7 | e.flip(1) << 23)
    low, high = _prmt(scale, 0, 0x1010), _prmt(scale, 0, 0x3232)
    got = follow(gemm_registers.WEIGHTS.value, 4, word, word.flip(0), low, high)
    for i, first in ((0, 0), (1, 1), (2, 0), (3, 1)):
        for byte, value in zip((first, first + 2), _halves(got[i])):
            m, exponents = (places[byte], e) if i < 2 else (places[byte].flip(0), e.flip(1))
            pairs = Quantized(m[:, None].expand(256, 256).to(torch.int8), exponents.to(torch.uint8), 1)
            want = dequantize_reference(pairs).double()
            assert torch.equal(value.nan_to_num(7.0, 8.0, 9.0), want.nan_to_num(7.0, 8.0, 9.0))
    lines = re.findall(r"^\s*(?:lop3|sub|mul|shr)\S* ", gemm_registers.WEIGHTS.value, re.MULTILINE)
    assert len(lines) == 2 * 9


def test_pairs_become_bf16_exactly_five_instructions_for_two(every_pair):
    gemm_fetched = pytest.importorskip("course_lib.kernels.mx.gemm_fetched")
    places, word, e = every_pair
    (scale,) = follow(gemm_fetched.SCALES.value, 1, e * 0x00800080)
    high = torch.tensor(gemm_fetched.HIGH.value)
    # The second pair is bytes 2 and 3, under bits that do not count.
    got = follow(gemm_fetched.PAIRS.value, 2, word, word >> 16 | 0xABCD0000, scale, scale, high)
    for i, pair in enumerate(got):
        for byte, value in zip((2 * i, 2 * i + 1), _halves(pair)):
            m = places[byte][:, None].expand(256, 256).to(torch.int8)
            want = dequantize_reference(Quantized(m, e.to(torch.uint8), 1)).double()
            assert torch.equal(value.nan_to_num(7.0, 8.0, 9.0), want.nan_to_num(7.0, 8.0, 9.0))
    lines = re.findall(r"^\s*(?:prmt|and|sub|mul)\S* ", gemm_fetched.PAIRS.value, re.MULTILINE)
    assert len(lines) == 2 * 5


def test_weights_become_fp32_exactly_by_choosing_bytes(every_pair):
    gemv_warps = pytest.importorskip("course_lib.kernels.mx.gemv_warps")
    places, word, _ = every_pair
    for m, got in zip(places, follow(gemv_warps.UNPACK.value, 4, word[:, 0])):
        assert torch.equal(got.to(torch.int32).view(torch.float32) - 514.0, m / 64)


# What the compiler makes of them.


def compiled(kernel, fixed, warps, biased):
    types = {"m_ptr": "*i8", "e_ptr": "*u8"} | dict.fromkeys(("out_ptr", "x_ptr", "bias_ptr"), "*bf16")
    fixed = fixed | ({} if biased else {"bias_ptr": None})
    signature = {name: types.get(name, "i32") for name in kernel.arg_names if name not in fixed}
    return compile_kernel(kernel, signature, fixed, num_warps=warps)


def needs_gluon():
    if not gluon_is_known():
        pytest.skip("a Triton whose Gluon was not tried")


@pytest.mark.parametrize("biased", [False, pytest.param(True, marks=pytest.mark.slow)])
# Of 128 columns in turns of 8 warps 4096 make an even number; 4224 leave some warps without; 28672 are many turns.
@pytest.mark.parametrize("K", [4224, *(pytest.param(K, marks=pytest.mark.slow) for K in (4096, 28672))])
@pytest.mark.parametrize("blocks", DIRECT_BLOCKS, ids=str)
def test_the_direct_kernel_compiles_to_tensor_cores_without_spills(blocks, K, biased, access_widths):
    needs_gluon()
    from course_lib.kernels.mx.gemm_registers import direct_kernel

    fixed = {"K": K, "STRIDE_M": K, "STRIDE_X": K, "BLOCK_M": blocks.m, "BLOCK_N": blocks.n}
    fixed |= {"WARPS": blocks.warps, "BESIDE": blocks.beside}
    made = compiled(direct_kernel, fixed, blocks.warps * blocks.beside, biased)
    assert made.fits and made.spills_bytes == 0, str(made)
    products = 128 // 16 * (blocks.n // 16 // blocks.beside) * (blocks.m // 8)
    assert made.instructions["mma"] == products and 16 in access_widths(made)["ld"], str(made)
    assert not any(made.instructions[name] for name in ("wgmma", "atomic", "cp.async", "ldmatrix")), str(made)
    assert made.sass is None or "I2F" not in made.sass, "no weight is converted by the slow instruction"


def compiled_fetched(blocks, biased):
    from course_lib.kernels.mx.gemm_fetched import fetched_kernel, swizzled
    from course_lib.kernels.rings import LAUNCH

    def described(kind, rows, columns):
        return f"tensordesc<{kind}[{rows}, {columns}],{swizzled(columns)!r}>"

    types = {"w_desc": described("i16", blocks.n // 2, blocks.k // 2), "x_desc": described("bf16", blocks.m, blocks.k)}
    types |= {"out_ptr": "*bf16" if blocks.split == 1 else "*fp32", "e_ptr": "*u8", "bias_ptr": "*bf16"}
    fixed = {"STAGES": blocks.stages} | ({} if biased else {"bias_ptr": None})
    signature = {name: types.get(name, "i32") for name in fetched_kernel.arg_names if name not in fixed}
    options = {"num_warps": LAUNCH["num_warps"], "max_registers": LAUNCH["maxnreg"]}
    return compile_kernel(fetched_kernel, signature, fixed, **options)


@pytest.mark.parametrize("biased", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("blocks", FETCHED_BLOCKS, ids=str)
def test_the_fetched_kernel_compiles_to_the_products_of_warp_groups_without_spills(blocks, biased):
    needs_gluon()
    made = compiled_fetched(blocks, biased)
    assert made.fits and made.spills_bytes == 0 and made.registers == 168, str(made)
    # Two groups, each with a product in the loop and one behind it; a wgmma has 64 rows of weights and 16 columns.
    assert made.instructions["wgmma"] == 2 * 2 * (blocks.n // 128) * (blocks.k // 16), str(made)
    assert made.instructions["tma"] and not any(made.instructions[name] for name in ("atomic", "cp.async")), str(made)
    assert made.sass is None or "I2F" not in made.sass, "no weight is converted by the slow instruction"


OTHERS = (("many", 2048), ("few", 4096), ("few", 14336))


@pytest.mark.parametrize("biased", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "K"),
    [("many", 4096), ("few", 1024), *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)],
    ids=str,
)
def test_the_walk_of_a_warp_compiles_without_spills_barriers_and_shared_memory(name, K, biased, access_widths):
    needs_gluon()
    from course_lib.kernels.mx.gemv_warps import by_warp_kernel

    blocks = WALK[name]
    fixed = {"K": K, "STRIDE_M": K, "BLOCK_N": blocks.n, "PIECES": blocks.pieces, "UNROLLED": blocks.unrolled}
    made = compiled(by_warp_kernel, fixed, 1, biased)
    assert made.spills_bytes == made.shared_bytes == 0 and made.registers <= 128, "16 programs side by side"
    assert 16 in access_widths(made)["ld"], str(made)
    assert not any(made.instructions[name] for name in ("mma", "wgmma", "atomic", "barrier")), str(made)
    assert made.sass is None or "I2F" not in made.sass, "no weight is converted by the slow instruction"


# What only a GPU can show.


@pytest.fixture
def here():
    if not on_hopper(torch.device(DEVICE)) or not gluon_is_known():
        pytest.skip("not an H100 or H200, or a Triton whose Gluon was not tried")


@pytest.fixture
def apart(random):
    """Weights, rows of x and the bias; rows of both matrices lie apart in memory."""

    def make(rows, N, K):
        w = quantize(random(N, K, dtype=torch.float32) * random(N, 1, dtype=torch.float32).exp())
        m = torch.nn.functional.pad(w.mantissas, (0, 16), value=55)[:, :K]
        return random(rows, K + 8, dtype=BRAIN)[:, :K], Quantized(m, w.exponents, 32), random(N, dtype=BRAIN)

    return make


@pytest.fixture
def written(fenced, assert_within):
    """written(write, x, w, bias, blocks): right in every element of a part of a matrix, and nothing beside it."""

    def check(write, x, w, bias, blocks):
        rows, N = x.shape[0], w.mantissas.shape[0]
        buffer = fenced(rows, N + 5, dtype=BRAIN)
        out = buffer[:, 2 : N + 2]
        write(out, x, w, bias, blocks)
        assert_within(out, *product_bound(x, w, bias))
        assert buffer[:, :2].isnan().all() and buffer[:, N + 2 :].isnan().all()

    return check


@pytest.mark.gpu
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("blocks", DIRECT_BLOCKS, ids=str)
def test_the_direct_kernel_is_right_with_every_entry_of_its_table(blocks, apart, written):
    from course_lib.kernels.mx.gemm_registers import write_direct

    even, odd = (2 * blocks.n + 7, 2 * blocks.warps), (3 * blocks.n + 1, 3 * blocks.warps + 1)
    # One turn, for one warp alone, and N as small as it may be; turns that come out even; a last one for one warp.
    for rows, (N, columns) in ((1, (blocks.n, 1)), (blocks.m, even), (blocks.m // 2 + 1, odd), (blocks.m + 3, odd)):
        x, w, bias = apart(rows, N, 128 * columns)
        written(write_direct, x, w, None if rows == blocks.m else bias, blocks)


@pytest.mark.gpu
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("blocks", FETCHED_BLOCKS, ids=str)
def test_the_fetched_kernel_is_right_with_every_entry_of_its_table(blocks, apart, written):
    from course_lib.kernels.mx.gemm_fetched import write_fetched

    # One step; fewer and more steps than places, an odd number of them; rows and weights that fill no tile.
    cases = ((1, blocks.m, blocks.n), (blocks.stages - 1, blocks.m - 3, 77), (2 * blocks.stages + 1, blocks.m + 5, 333))
    for steps, rows, N in cases:
        x, w, bias = apart(rows, N, 128 * steps)
        written(write_fetched, x, w, None if steps == 1 else bias, blocks)


@pytest.mark.gpu
@pytest.mark.usefixtures("here")
def test_the_fetched_kernel_gives_the_same_bits_on_every_run(apart):
    from course_lib.kernels.mx.gemm_fetched import write_fetched

    x, w, bias = apart(128, 4096, 4096)
    outs = [torch.full((128, 4096), float("nan"), device=DEVICE, dtype=BRAIN) for _ in range(5)]
    for out in outs:
        write_fetched(out, x, w, bias, FETCHED[128][1])
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.gpu
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", WALK)
def test_the_walk_of_a_warp_is_right_with_every_entry_of_its_table(name, apart, written):
    from course_lib.kernels.mx.gemv_warps import write_by_warp

    for N in (1, 2, 77, 1025):
        for steps in (1, 2, 5):
            x, w, bias = apart(1, N, 512 * WALK[name].pieces * steps)
            written(write_by_warp, x, w, None if steps == 2 else bias, WALK[name])


@pytest.mark.gpu
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("N", "K"), [(77, 1024), (4096, 4096), (8193, 2048), (1000, 14336), (8192, 10240)])
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 16, 17, 33, 64, 65, 200, 256])
def test_products_take_the_tuned_rungs_and_are_right(rows, N, K, apart, assert_within, monkeypatch):
    x, w, bias = apart(rows, N, K)
    want = product_bound(x, w, bias)
    assert_within(product(x, w, bias, "matrix"), *want)
    if rows == 1:
        assert_within(product(x, w, bias, "vector"), *want)
    for name in ("taught_matrix", "taught_vector"):
        monkeypatch.delattr(mx_product, name)
    for route in ("matrix", "vector")[: 2 if rows == 1 else 1]:
        first = product(x, w, bias, route)
        assert all(torch.equal(product(x, w, bias, route), first) for _ in range(4)), "the same bits on every run"


@pytest.mark.gpu
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("rows", [1, 2, 9, 17, 64])
@pytest.mark.parametrize("N", [64, 8192])
def test_special_exponents_are_right(rows, N, random, assert_within):
    w = quantize(random(N, 2048, dtype=torch.float32))
    w.exponents[:8] = torch.arange(8, device=DEVICE, dtype=torch.uint8)[:, None]  # subnormal numbers
    w.exponents[8], w.exponents[9, 5], w.mantissas[10] = 254, 255, -128
    for route in ("vector", "matrix")[rows > 1 :]:
        for size, columns in ((2.0**40, [*range(8), *range(10, N)]), (2.0**-30, range(8, N))):
            x = random(rows, 2048, dtype=BRAIN) * size
            got, (want, bound) = product(x, w, None, route), product_bound(x, w, None)
            used = [n for n in columns if n != 9]
            assert_within(got[:, used], want[:, used], bound[:, used])
            assert got[:, 9].isnan().all()


@pytest.mark.gpu
@pytest.mark.usefixtures("here")
def test_what_the_tuned_rungs_cannot_read_is_right_all_the_same(random, assert_within):
    for rows in (1, 16):
        for K, group, dtype in ((1000, 32, BRAIN), (1024, 16, BRAIN), (1024, 32, torch.float32), (1056, 32, BRAIN)):
            x, w = random(rows, K, dtype=dtype), quantize(random(77, K, dtype=torch.float32), group)
            assert chosen(x, w) == (None, None)
            assert_within(product(x, w, None, "vector" if rows == 1 else "matrix"), *product_bound(x, w, None))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 16, 64])
@pytest.mark.parametrize("N", [4096, 8193])
def test_the_taught_rungs_are_right_where_the_tuned_ones_run(rows, N, apart, fenced, assert_within):
    x, w, bias = apart(rows, N, 4096)
    for write in (taught_vector, taught_matrix)[rows > 8 :]:
        out = fenced(rows, N, dtype=BRAIN)
        write(out, x, w, bias)
        assert_within(out, *product_bound(x, w, bias))


@pytest.mark.gpu
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("rows", [1, 16])
def test_weights_past_two_billion_bytes_are_right(rows, random, assert_within):
    if torch.cuda.mem_get_info()[0] < 12e9:
        pytest.skip("needs 12 GB")
    N, K = 70001, 32768
    m = torch.randint(-127, 128, (N, K), device=DEVICE, dtype=torch.int8)
    w = Quantized(m, torch.randint(110, 120, (N, K // 32), device=DEVICE).to(torch.uint8), 32)
    x, last = random(rows, K, dtype=BRAIN), Quantized(m[-9:], w.exponents[-9:], 32)
    got = product(x, w, None, "vector" if rows == 1 else "matrix")
    assert_within(got[:, -9:], *product_bound(x, last, None))
    assert got.isfinite().all() and direct_blocks(rows, N, K)
