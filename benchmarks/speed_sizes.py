"""python -m benchmarks.speed_sizes: what the referee's clock would time on cards that are not here.

Sizes are drawn as on the card, on tensors without memory. Ceilings are those of the data sheets, so floors are the
shortest that there can be. A launch is taken to cost the host 10 us, and a cosine what it costs an H200, as a share
of its fp32 rate. No time of a kernel is predicted: "at least" is the time of all rounds at the speed of the floor, with
the referee's own rounds between them.
"""

from dataclasses import dataclass, field

import torch

from autograder.exercise import Case, Draw, Exercise, registry
from autograder.referee import clock
from autograder.referee.rounds import bytes_of_a_call
from course_lib.cards import ARCHITECTURES, CARDS, Card
from course_lib.device import Ceilings, share_for

__all__ = ["CHECKING", "SIMULATED", "OnPaper", "Timing", "ceilings_of", "timings"]

SIMULATED = ("T4", "RTX 4060", "RTX 4090", "A100", "H100")
COSINES = 1.086e12 / CARDS["H200"].flops_per_s["fp32"]  # a FLOP of the data sheet: measured on an H200
USABLE = 0.92  # GiB for each GB that a card is sold with: a T4 of 16 GB reports 14.7 GiB, others up to .99
TAKEN = 3 * (450 << 20)  # by three processes that have opened the device: the referee, the submission, our own code
# Bytes that are held at most while the truth is made and limits are derived, over those of the call's tensors: counted
# on a CPU by tests/autograder/test_speed_sizes.py. Attention is judged head by head, a block of the tower some images
# at a time.
CHECKING = {
    "roofline.chain": 13.1,
    "roofline.softmax": 26.6,
    "roofline.graph": 14.0,
    "roofline.matmul": 24.0,
    "rope.speed": 20.6,
    "mx.gemv": 47.5,
    "flash.speed": 16.0,
    "capstone.speed": 14.0,
}


class OnPaper(Draw):
    """Draws shapes, types and strides; the values have no memory."""

    def normal(self, *shape, dtype=torch.float32, mean=0.0, std=1.0, strides=None):
        return self.lay_out(torch.empty(shape, dtype=self.type_of(dtype), device="meta"), strides)

    def uniform(self, *shape, low=0.0, high=1.0, dtype=torch.float32, strides=None):
        return self.normal(*shape, dtype=dtype, strides=strides)

    def integers(self, *shape, low, high, dtype, strides=None):
        return self.lay_out(torch.empty(shape, dtype=dtype, device="meta"), strides)


@dataclass(frozen=True)
class Timing:
    card: str
    exercise: str
    case: str
    sizes: str
    floor_s: float
    calls: int  # in a round
    call_bytes: int
    at_least_s: float = field(default=0.0)  # of the device, for all rounds, the referee's own among them

    @property
    def round_bytes(self) -> int:
        return self.calls * self.call_bytes

    @property
    def peak_bytes(self) -> int:
        """Of the device's memory: slabs, what is held while one call is checked, and three open devices."""
        return TAKEN + self.round_bytes + int(CHECKING[self.exercise] * self.call_bytes)


def memory_of(card: Card) -> int:
    return int(card.memory_gb * USABLE * 2**30)


def ceilings_of(card: Card) -> Ceilings:
    return Ceilings(
        card.name, card.bytes_per_s, card.flops_per_s, 10e-6, card.flops_per_s["fp32"] * COSINES, "data sheet"
    )


def timing(card: Card, exercise: Exercise, case: Case) -> Timing:
    memory = memory_of(card)
    bf16 = ARCHITECTURES[card.arch].bf16
    call = case.draw(OnPaper(1, "meta", "gpu", bf16=bf16, share=share_for(memory)))
    floor_s = exercise.speed.floor_s(call.args, ceilings_of(card))
    size = bytes_of_a_call(exercise, call)
    calls = clock.calls_in_a_round(floor_s, size, memory - TAKEN)
    rounds = max(clock.FEWEST, min(clock.MOST, round(clock.ENOUGH_S / (calls * floor_s))))
    return Timing(
        card.name, exercise.name, case.name, call.sizes, floor_s, calls, size, 2 * (rounds + 2) * calls * floor_s
    )


def timings(names: tuple[str, ...] = SIMULATED) -> list[Timing]:
    timed = [one for one in registry().values() if one.speed]
    return [timing(CARDS[name], one, case) for name in names for one in timed for case in one.speed.cases]


def main() -> None:
    print("| card | exercise | timed | floor, us | calls a round | at least, s | peak, GiB |")
    print("|---|---|---|---|---|---|---|")
    for one in timings():
        what = f"{one.case}: {one.sizes}"
        print(
            f"| {one.card} | {one.exercise} | {what} | {one.floor_s * 1e6:.0f} | {one.calls} | {one.at_least_s:.2f} "
            f"| {one.peak_bytes / 2**30:.1f} |"
        )


if __name__ == "__main__":
    main()
