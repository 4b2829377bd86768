"""Kernels in Gluon, carried out by the host: what is right comes out right in every draw, what is not in some."""

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from course_lib.interpreter.jobs import carry_out
from course_lib.interpreter.tiles import Barrier, Int, up

N = gl.constexpr(16)


@gluon.jit
def _fetch(x, tiles, full, empty, count):
    for i in range(gl.program_id(0), count, gl.num_programs(0)):
        turn = i // gl.num_programs(0)
        mbarrier.wait(empty.index(turn % 2), ((turn // 2) & 1) ^ 1)
        mbarrier.expect(full.index(turn % 2), 4 * N * N)
        tma.async_copy_global_to_shared(x, [i * N, 0], full.index(turn % 2), tiles.index(turn % 2))


@gluon.jit
def _send_square(out, i, tile):
    square = warpgroup_mma(tile, tile.permute([1, 0]), gl.zeros([N, N], gl.float32), use_acc=False, is_async=True)
    square = warpgroup_mma_wait(0, deps=[square])
    tile.store(square)
    tma.async_copy_shared_to_global(out, [i * N, 0], tile)


@gluon.jit
def _square(out, tiles, full, empty, count):
    for i in range(gl.program_id(0), count, gl.num_programs(0)):
        turn = i // gl.num_programs(0)
        mbarrier.wait(full.index(turn % 2), (turn // 2) & 1)
        _send_square(out, i, tiles.index(turn % 2))
        tma.store_wait(0)
        mbarrier.arrive(empty.index(turn % 2), count=1)


@gluon.jit
def squares_kernel(out, x, count):
    """Of `count` blocks of N rows each its product with its own transpose."""
    tiles = gl.allocate_shared_memory(gl.float32, [2, N, N], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize(
        [(_square, (out, tiles, full, empty, count)), (_fetch, (x, tiles, full, empty, count))], [1], [24]
    )


def squares(seed, programs=2, rows=100, **how):
    x = torch.randn(rows, 16, generator=torch.Generator().manual_seed(1))
    out = torch.full((rows, 16), float("nan"))
    layout = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=32, rank=2)
    described = [TensorDescriptor(t, list(t.shape), list(t.stride()), [16, 16], layout) for t in (out, x)]
    carry_out(squares_kernel, (programs,), *described, up(rows, 16), seed=seed, **how)
    whole = torch.cat([x, torch.zeros(-rows % 16, 16)]).unflatten(0, (-1, 16))
    return out, (whole @ whole.mT).flatten(0, 1)[:rows]


@pytest.mark.parametrize("programs", [1, 2, 3, 9])
def test_what_is_right_is_right_in_every_draw(programs):
    for seed in range(10):
        torch.testing.assert_close(*squares(seed, programs))
        torch.testing.assert_close(*squares(seed, programs, at_once=1))


def test_the_same_draw_gives_the_same():
    def hurried(seed):
        return squares(seed, instead={"_square": _without_store_wait})[0]

    assert all(torch.equal(hurried(seed), hurried(seed)) for seed in range(5))
    assert len({tuple(hurried(seed).flatten().tolist()) for seed in range(8)}) > 1


@gluon.jit
def _without_store_wait(out, tiles, full, empty, count):
    for i in range(gl.program_id(0), count, gl.num_programs(0)):
        turn = i // gl.num_programs(0)
        mbarrier.wait(full.index(turn % 2), (turn // 2) & 1)
        _send_square(out, i, tiles.index(turn % 2))
        mbarrier.arrive(empty.index(turn % 2), count=1)


@gluon.jit
def _without_arrival(out, tiles, full, empty, count):
    for i in range(gl.program_id(0), count, gl.num_programs(0)):
        turn = i // gl.num_programs(0)
        _send_square(out, i, tiles.index(turn % 2))
        tma.store_wait(0)
        mbarrier.arrive(empty.index(turn % 2), count=1)


@gluon.jit
def _without_a_wait_for_the_product(out, tiles, full, empty, count):
    mbarrier.wait(full.index(0), 0)
    tile = tiles.index(0)
    square = warpgroup_mma(tile, tile.permute([1, 0]), gl.zeros([N, N], gl.float32), use_acc=False, is_async=True)
    tile.store(square)


@gluon.jit
def _keeps_its_place(out, tiles, full, empty, count):
    for turn in range(count):
        mbarrier.wait(full.index(turn % 2), (turn // 2) & 1)


@gluon.jit
def _arrives_twice(out, tiles, full, empty, count):
    mbarrier.wait(full.index(0), 0)
    mbarrier.arrive(empty.index(0), count=1)
    mbarrier.arrive(empty.index(0), count=2)


@pytest.mark.parametrize(("job", "rows"), [(_without_store_wait, 100), (_without_arrival, 16)], ids=["store", "fetch"])
def test_who_does_not_wait_gets_a_wrong_result_in_some_draw(job, rows):
    wrong = 0
    for seed in range(20):
        try:
            got, want = squares(seed, programs=1, rows=rows, instead={"_square": job})
        except AssertionError:  # it came to `empty` first, and now both wait
            continue
        wrong += not torch.allclose(got, want, atol=1e-4)
    assert wrong


def test_a_product_has_no_value_before_it_is_waited_for():
    with pytest.raises(AttributeError, match="'InFlight' object has no attribute 'dtype'"):
        squares(0, instead={"_square": _without_a_wait_for_the_product})


def test_where_all_wait_for_ever_it_is_said_who():
    with pytest.raises(AssertionError, match="these wait for ever: job 0 of program 0, job 1 of program 0"):
        squares(0, programs=1, instead={"_square": _keeps_its_place})


def test_what_is_wrong_while_a_job_waits_ends_the_run():
    def wait(run, out, tiles, full, empty, count):
        run.until(lambda: full.index(2) is None)

    with pytest.raises(IndexError):
        squares(0, instead={"_square": wait})


def test_an_error_says_which_job_made_it():
    with pytest.raises(AssertionError, match="more arrive at a barrier than it counts") as error:
        squares(3, programs=1, instead={"_square": _arrives_twice})
    assert error.value.__notes__ == ["in job 0 of program 0"]


def test_numbers_are_those_of_a_gpu():
    assert (Int(7) // 2, Int(7) % 4, -Int(7) + 3, 5 - Int(7), Int(7) >> 1) == (3, 3, -4, -2, 3)
    assert (up(7, 4), up(-7, 4), up(-3, 4), up(0, 4)) == (2, -1, 0, 0)
    with pytest.raises(AssertionError, match="-4 // 3"):
        Int(-4) // 3
    with pytest.raises(AssertionError, match="-4 % 3"):
        (Int(0) - 4) % 3


def test_a_barrier_counts_arrivals_and_bytes():
    barrier = Barrier()
    barrier.init(2)
    assert barrier.is_passed(1) and not barrier.is_passed(0)
    barrier.hears(1, 0)
    barrier.hears(1, 64)
    assert not barrier.is_passed(0), "bytes are missing"
    barrier.hears(0, -64)
    assert barrier.is_passed(0) and not barrier.is_passed(1)
