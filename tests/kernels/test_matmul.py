import pytest
import torch

from course_lib.device import DEVICE
from course_lib.kernels import matmul as module
from course_lib.kernels import product_tiles
from course_lib.kernels.matmul import (
    matmul,
    matmul_grouped,
    matmul_naive,
    matmul_persistent,
    matmul_reference,
    matmul_tiled,
)

POINTER_RUNGS = [matmul_naive, matmul_tiled, matmul_grouped]
SHAPES = [(1, 1, 1), (3, 5, 7), (17, 300, 33), (65, 64, 96), (5, 7, 0), (33, 130, 200)]


def bound(a, b):
    """Summing K products in fp32 in any order, each step cut instead of rounded as tensor cores do."""
    return 2 * (a.shape[1] + 2) * 2.0**-24 * (a.double().abs() @ b.double().abs())


@pytest.fixture
def check(fenced, assert_within):
    """check(rung, a, b): into a fenced output full of NaN, against float64."""

    def run(rung, a, b, **options):
        out = fenced(a.shape[0], b.shape[1], dtype=a.dtype)
        assert rung(a, b, out, **options) is out
        assert_within(out, a.double() @ b.double(), bound(a, b))

    return run


@pytest.fixture
def matrix(random):
    """matrix(rows, columns, dtype, by_column): aligned, stored by rows or by columns."""
    return lambda m, n, dtype, by_column: random(n, m, dtype=dtype).T if by_column else random(m, n, dtype=dtype)


@pytest.mark.parametrize("rung", [*POINTER_RUNGS, matmul], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
def test_rungs_are_right_for_any_shape(rung, M, N, K, dtype, random, check):
    check(rung, random(M, K, dtype=dtype), random(K, N, dtype=dtype))


@pytest.mark.parametrize("rung", [*POINTER_RUNGS, matmul], ids=lambda f: f.__name__)
def test_strides_may_be_anything(rung, dtype, random, assert_within):
    a = random(2 * 70, 3 * 45, dtype=dtype)[::2, ::3]
    b = random(37, 45 * 2, dtype=dtype)[:, ::2].T
    buffer = torch.full((3 * 70, 2 * 37), float("nan"), device=DEVICE, dtype=dtype)
    out = buffer[::3, ::2]
    rung(a, b, out)
    assert_within(out, a.double() @ b.double(), bound(a, b))
    assert (~buffer.isnan()).sum() == out.numel(), "written between the elements of the output"


@pytest.mark.parametrize("b_by_column", [False, True])
@pytest.mark.parametrize("a_by_column", [False, True])
@pytest.mark.parametrize(("M", "N", "K"), [(8, 8, 8), (200, 312, 136), (72, 520, 24)])
def test_the_persistent_rung_is_right_with_either_storage(M, N, K, a_by_column, b_by_column, dtype, matrix, check):
    check(matmul_persistent, matrix(M, K, dtype, a_by_column), matrix(K, N, dtype, b_by_column))


def test_persistent_programs_walk_over_many_tiles(matrix, check):
    # Nine tiles of 64 x 64 or more programs than tiles, whichever device this is: the last tiles are partial.
    check(matmul_persistent, matrix(136, 40, torch.float32, False), matrix(40, 136, torch.float32, False))


def test_fp32_is_not_rounded_to_tf32_unless_asked(random):
    a, b = random(64, 96, dtype=torch.float32), random(96, 64, dtype=torch.float32)
    want = a.double() @ b.double()
    exact, rounded = ((matmul(a, b, input_precision=p).double() - want).norm() / want.norm() for p in ("ieee", "tf32"))
    assert exact < 1e-6 < 1e-4 < rounded < 1e-3


def test_the_sum_is_kept_in_fp32(random):
    """4096 products of 1/8: a 2-byte sum stops growing long before 512."""
    a = torch.full((16, 4096), 0.125, device=DEVICE, dtype=torch.float16)
    assert (matmul(a, torch.ones_like(a).T) == 512).all()


@pytest.mark.parametrize("name", ["offset", "pitch", "empty", "inner", "overlap", "out"])
def test_what_the_copy_engine_cannot_address_goes_to_the_pointer_rung(name, random, check):
    a, b, out = random(32, 64, dtype=torch.float16), random(64, 32, dtype=torch.float16), None
    if name == "offset":
        a = random(32 * 64 + 1, dtype=torch.float16)[1:].view(32, 64)
    elif name == "pitch":
        a = random(32, 65, dtype=torch.float16)[:, :64]
    elif name == "empty":
        a, b = a[:, :0], b[:0]
    elif name == "overlap":
        a = random(1, 64, dtype=torch.float16).expand(32, 64)
    elif name == "inner":
        a = random(64, 128, dtype=torch.float16)[::2, ::2]
    else:
        out = torch.empty(32, 32, device=DEVICE, dtype=torch.float16).T
    with pytest.raises(AssertionError, match="matmul_grouped"):
        matmul_persistent(a, b, out)
    torch.testing.assert_close(matmul(a, b, out), matmul_reference(a, b), rtol=2e-3, atol=1e-2)


def test_the_fastest_tile_fills_the_device_first_and_is_large_second():
    table = product_tiles.PERSISTENT[2]
    assert product_tiles.fastest(table, 8192, 8192, 132) is table[0]
    assert product_tiles.fastest(table, 512, 512, 132).block_m == 64
    assert product_tiles.fastest(table, 128, 256, 1) is table[0]


@pytest.mark.parametrize("rung", [matmul_tiled, matmul_grouped, matmul_persistent], ids=lambda f: f.__name__)
def test_every_tile_is_computed_where_the_last_group_is_lower(rung, matrix, check):
    # 11 tile rows of 64: a group of 8 and one of 3; 3 tile columns.
    check(rung, matrix(700, 16, torch.float32, False), matrix(16, 132, torch.float32, False))


def test_mismatched_matrices_are_refused(random):
    a = random(4, 6, dtype=torch.float32)
    with pytest.raises(AssertionError, match="inner sizes"):
        matmul(a, a)
    with pytest.raises(AssertionError, match="type"):
        matmul(a, a.T.half())


TABLES = {name: getattr(product_tiles, name) for name in ("PERSISTENT", "POINTER", "UNALIGNED")}
ALL_TILES = [(name, size, tile) for name, sizes in TABLES.items() for size, row in sizes.items() for tile in row]


@pytest.mark.gpu
@pytest.mark.parametrize("b_by_column", [False, True])
@pytest.mark.parametrize("a_by_column", [False, True])
@pytest.mark.parametrize(("name", "size", "tile"), ALL_TILES, ids=str)
def test_every_tile_of_the_tables_is_right(name, size, tile, a_by_column, b_by_column, monkeypatch, matrix, check):
    monkeypatch.setattr(module, name, {size: (tile,)})
    if name != "POINTER":
        monkeypatch.setattr(module, "POINTER", {2: (tile,), 4: (tile,)})  # which types are known
    rung = matmul_persistent if name == "PERSISTENT" else matmul_grouped
    for dtype in (torch.float32,) if size == 4 else (torch.float16, torch.bfloat16):
        for M, N, K in ((1048, 904, 776), (8, 16, 4096)):
            odd = 1 if name == "UNALIGNED" else 0
            a, b = matrix(M - odd, K - odd, dtype, a_by_column), matrix(K - odd, N - odd, dtype, b_by_column)
            check(rung, a, b)
            if size == 4:
                got = rung(a, b, input_precision="tf32").double()
                assert (got - a.double() @ b.double()).norm() < 1e-3 * got.norm()


@pytest.mark.gpu
def test_operands_past_2_to_the_31_elements_are_right_to_the_last_row(assert_within):
    a = torch.randn(2**17 + 8, 16392, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(16392, 64, device=DEVICE, dtype=torch.bfloat16)
    for rung in (matmul_grouped, matmul_persistent):
        out = rung(a, b, torch.full((a.shape[0], 64), float("nan"), device=DEVICE, dtype=torch.bfloat16))
        assert_within(out[-40:], a[-40:].double() @ b.double(), bound(a[-40:], b))
        assert not out.isnan().any()


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    for listed in (module, product_tiles):
        assert all(hasattr(listed, name) for name in listed.__all__)
