import pytest
import torch

from course_lib import memory, profiling
from course_lib.device import DEVICE
from course_lib.profiling import span
from course_lib.profiling.trace import Allocation, Interval, Trace

KIB = 1024


def _ones(kib: int) -> torch.Tensor:
    return torch.ones(kib * KIB // 4, device=DEVICE)


def test_the_peak_counts_what_lives_at_the_same_time():
    def call():
        a = _ones(256)
        del a
        b, c = _ones(64), _ones(128)
        return b.sum() + c.sum()

    assert 256 * KIB <= memory.peak(call) < 258 * KIB


def test_memory_that_was_held_before_does_not_count():
    x = _ones(512)
    assert memory.peak(x.cos_) == 0
    assert 512 * KIB <= memory.peak(lambda: x.cos()) < 514 * KIB


def test_the_timeline_rises_and_falls_with_every_allocation():
    def call():
        a = _ones(64)
        b = _ones(32)
        del a
        return b

    got = memory.timeline(call)
    assert got.bytes == (64 * KIB, 96 * KIB, 32 * KIB)
    assert got.peak_bytes == 96 * KIB and got.held_bytes == 32 * KIB
    assert list(got.times_s) == sorted(got.times_s) and got.times_s[0] >= 0


def test_the_owner_of_the_peak_is_named_with_its_span():
    x = _ones(256)

    def call():
        with span("up"):
            h = x.cos()
        with span("down"):
            return h.exp()

    got = memory.timeline(call)
    assert [(o.owner, o.blocks) for o in got.at_peak] == [("down: aten::exp", 1), ("up: aten::cos", 1)]
    assert "down: aten::exp" in str(got) and ">up: aten::cos</td>" in got._repr_html_()


def test_what_autograd_saves_is_held_after_the_call():
    x = _ones(256).requires_grad_()
    assert memory.timeline(lambda: x.exp().sum()).held_bytes >= 256 * KIB  # exp keeps its output for backward
    with torch.no_grad():
        assert memory.timeline(lambda: x.exp().sum()).held_bytes < KIB


def test_a_call_without_allocations_has_no_peak():
    got = memory.timeline(lambda: None)
    assert got.peak_bytes == 0 and got.bytes == () and got.at_peak == () and "peak 0 B" in str(got)


def test_freeing_older_memory_does_not_make_the_peak_negative():
    box = [_ones(64), _ones(64)]  # the first call that is not counted takes one
    got = memory.timeline(lambda: box.pop() and None if len(box) > 2 else box.clear())
    assert got.peak_bytes == 0


def test_owners_are_the_outermost_operators_of_their_own_thread():
    operators = (
        Interval(0.0, 4.0, "aten::linear", 1),
        Interval(1.0, 3.0, "aten::empty", 1),
        Interval(0.0, 4.0, "MmBackward0", 2),
    )
    ranges = (Interval(0.0, 9.0, profiling.WINDOW, 1), Interval(0.0, 5.0, "step", 1))
    events = [
        Allocation(2.0, 100, 0xA, "cpu", 1),
        Allocation(2.0, 30, 0xB, "cpu", 2),
        Allocation(4.5, 7, 0xC, "cpu", 1),
        Allocation(4.6, -100, 0xA, "cpu", 1),
        Allocation(4.7, 50, 0xA, "cpu", 1),  # the address is used again
        Allocation(4.8, -5, 0xD, "cpu", 1),  # from before the call
    ]
    got = memory.owners_at(events, Trace((), operators, ranges, ()))
    assert got == [("step: outside operators", 2, 57), ("step: MmBackward0", 1, 30)]
    freed = memory.owners_at(events[:4], Trace((), operators, ranges, ()))
    assert freed == [("step: MmBackward0", 1, 30), ("step: outside operators", 1, 7)]
    assert memory.owners_at(events[:1], Trace((), operators, ranges, ())) == [("step: aten::linear", 1, 100)]


@pytest.mark.gpu
def test_timeline_and_allocator_agree_on_the_peak():
    x = torch.randn(2**20, device="cuda", requires_grad=True)

    def call():
        return (x.cos() * x.sin()).sum()

    assert memory.timeline(call).peak_bytes == pytest.approx(memory.peak(call), rel=0.01)
