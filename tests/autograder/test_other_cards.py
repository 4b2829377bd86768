"""Exercises on cards that are not here: fp16 where there is no bf16, smaller sizes where there is little memory."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autograder.exercise import Case, Draw, Exercise, get, registry
from autograder.inside.calling import quiet
from autograder.judging import tolerance
from benchmarks.speed_sizes import CHECKING, SIMULATED, ceilings_of, memory_of, timings
from course_lib import device
from course_lib.cards import CARDS
from course_lib.device import share_for

EVERY = (*SIMULATED, "RTX 3060", "RTX 5060", "RTX 5090", "H200")
STORED = {("mx.dequantize", "out")}  # bf16 is the format that is asked for; nothing computes in it


def on_a_gpu(exercise: Exercise) -> list[Case]:
    return [case for case in exercise.cases if "gpu" in case.tiers and case.share == 0]


@pytest.mark.parametrize("name", [name for name, one in registry().items() if one.kind == "kernel"])
def test_on_a_card_without_bf16_every_case_is_drawn_in_fp16(name):
    replaced = 0
    for case in on_a_gpu(get(name)):
        draw = Draw(3, "cpu", "gpu", bf16=False)
        call = case.draw(draw)
        kinds = {key for key, v in call.args.items() if isinstance(v, torch.Tensor) and v.dtype == torch.bfloat16}
        assert {(name, key) for key in kinds} <= STORED, (case.name, kinds)
        assert "bf16" not in call.sizes, (case.name, call.sizes)
        replaced += draw.replaced
    asks = any("bf16" in case.name for case in on_a_gpu(get(name)))
    assert replaced or not asks


def test_a_report_says_that_fp16_took_the_place_of_bf16(monkeypatch):
    softmax = get("roofline.softmax")
    case = next(one for one in softmax.cases if one.name == "bf16")
    monkeypatch.setattr(device, "has_bf16", lambda: False)
    monkeypatch.setattr("autograder.exercise.Draw.lay_out", lambda self, x, strides=None: x)
    call = softmax.draw(case, 1, "cpu", "gpu")
    assert call.args["x"].dtype == torch.bfloat16, "only a GPU lacks it"
    monkeypatch.setattr("autograder.exercise.Draw.empty", lambda self, *shape, dtype, strides=None: torch.empty(shape))
    call = softmax.draw(case, 1, "cuda", "gpu")
    assert call.args["x"].dtype == torch.float16 and call.sizes.endswith("since this card has no bf16")
    assert softmax.timed_sizes(call) == call.sizes
    assert "no tensor cores" in get("roofline.matmul").timed_sizes(call)


def test_a_floor_of_products_is_that_of_plain_arithmetic_where_triton_has_no_tensor_cores():
    t4, l4 = ceilings_of(CARDS["T4"]), ceilings_of(CARDS["L4"])
    assert t4.products_per_s("fp16") == t4.flops_per_s["fp32"] < t4.flops_per_s["fp16"]
    assert l4.products_per_s("bf16") == l4.flops_per_s["bf16"]


def test_cases_without_room_are_left_out_and_named(monkeypatch):
    softmax = get("roofline.softmax")
    huge = next(one for one in softmax.cases if one.name == "offsets past 2^31")
    monkeypatch.setattr(device, "TIER", "gpu")
    for memory, runs in ((8, False), (16, False), (23.5, True), (80, True)):
        monkeypatch.setattr(device, "share_of_sizes", lambda memory=memory: share_for(int(memory * 2**30)))
        assert huge.runs_here == runs and ("offsets past 2^31" in softmax.without_room) == (not runs)
        assert ("2^31" in get("start.axpy").without_room) == (memory < 36)


def test_sizes_are_halved_as_memory_is():
    shares = {name: share_for(memory_of(CARDS[name])) for name in EVERY}
    assert shares["T4"] == shares["RTX 3060"] == 1 / 4 and shares["RTX 4060"] == shares["RTX 5060"] == 1 / 8
    assert shares["RTX 4090"] == shares["RTX 5090"] == 1 / 2 and shares["A100"] == shares["H100"] == 1
    assert share_for(7 << 30) == 1 / 8 and share_for(140 << 30) == 1
    assert Draw(1, "cpu", "gpu").sized(2**27) == 2**27 and Draw(1, "cpu", "gpu", share=1 / 8).sized(4) == 1


def test_what_is_timed_takes_long_enough_for_the_clock_and_fits_the_card():
    found = timings(EVERY)
    assert len(found) == len(EVERY) * sum(len(one.speed.cases) for one in registry().values() if one.speed)
    for one in found:
        assert one.floor_s >= 50e-6, one
        assert one.calls * one.floor_s >= 3e-3, f"a round is 20 times the clock's jitter of 0.15 ms: {one}"
        assert 0.05 < one.at_least_s < 10, one
        assert one.peak_bytes < 0.87 * memory_of(CARDS[one.card]), one
        if CARDS[one.card].memory_gb <= 8:
            assert one.peak_bytes < 7 << 30, one


class Held(TorchDispatchMode):
    """Bytes of all tensors that are alive, made while this is on, and the most there were."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and (key := tensor.untyped_storage()._cdata) not in self.known:
                size = tensor.untyped_storage().nbytes()
                self.known.add(key)
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(tensor.untyped_storage(), self._gone, key, size)
        return result

    def _gone(self, key, size):
        self.now -= size
        self.known.discard(key)


SMALL = {"roofline.chain": 2**-10, "roofline.softmax": 2**-8, "rope.speed": 2**-7, "mx.gemv": 2**-8}
ALL_OF_IT = {"roofline.matmul": 2**-7, "flash.speed": 1 / 4, "capstone.speed": 1 / 64}


@pytest.mark.parametrize(
    ("name", "share"),
    [*SMALL.items(), *(pytest.param(*one, marks=pytest.mark.slow) for one in ALL_OF_IT.items())],
)
def test_what_is_held_while_a_call_is_checked_was_counted(name, share):
    exercise = get(name)
    case = max(exercise.speed.cases, key=lambda one: one.name)
    call = case.draw(Draw(1, "cpu", "interpreter", values=5, share=share))
    own = sum(v.nbytes for v in call.args.values() if isinstance(v, torch.Tensor))
    with Held() as held, quiet():
        tolerance.derive(exercise, [(call.args, exercise.oracle(call.args))])
    assert held.peak / own <= CHECKING[name] * 1.02, held.peak / own
    assert held.peak / own >= CHECKING[name] / 3, f"{held.peak / own}: counted anew, it is less"
