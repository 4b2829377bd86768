"""What is true of a frugal tower, and what is wrong with another one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import torch

from autograder.inside.probes import holding
from course_lib.models.siglip import naive, strong

# Of the size of what is compared. The naive tower in fp32 is off by 2e-6 at these sizes; activations that were rounded
# to fp16 on the way, which has 13 bits less, by more than 1e-4.
LIMITS = {"float32": 3e-5, "float64": 1e-10}
# Times the FLOP of the strong tower's products backward. The first product of the MLP again makes it 1.17 where images
# are short; both of its products make it 1.27 or more, and a whole block 1.33.
MORE = 1.2
IN_VAIN = 0.02  # of what is held, that nobody reads; where a plan is asked for, less than a number of each patch
SEEN = 0.9  # of the FLOP of the strong tower's products, either way
# Of the bytes that the strong tower holds, where no more products are made again than may be: right answers of the bank
# hold 0.39 of them and more, one that makes everything again 0.08.
LEAST = 0.25

TOGETHER = ("attention.q.bias", "attention.k.bias", "attention.v.bias")  # the one of k is 0: scores of all keys shift


def truth(v) -> dict:
    case = v["case"]
    results, gradients = _right(json.dumps(case))
    return {"results": results, "gradients": gradients, "memory": _strong(json.dumps(case)) if case["asks"] else {}}


@lru_cache(maxsize=64)
def _right(case: str):
    return holding.computed(naive.Tower, json.loads(case))


@lru_cache(maxsize=64)
def _strong(case: str) -> dict:
    """The strong tower, measured as an answer is."""
    return holding.measured(strong.Tower, {**json.loads(case), "asks": []})[2]


# ---------------------------------------------------------------------------------------------- what is compared


def accept(got, want, args) -> str | None:
    case = args["case"]
    if isinstance(want, list):
        return _results_wrong(got, want, LIMITS[case["dtype"]])
    if not isinstance(got, dict):
        return "the answer is not of the form that was asked for"
    if not want or "held" in want:
        return "; ".join(faults(got, want, case).values()) or None
    return _gradients_wrong(got, want, case)


def _results_wrong(got, want, limit: float) -> str | None:
    if not isinstance(got, list) or len(got) != len(want):
        return "the tower should return one row for each image"
    off = [_off(here, true) for here, true in zip(got, want, strict=True)]
    wrong = [n for n, one in enumerate(off) if not one <= limit]
    if not wrong:
        return None
    how = "NaN" if any(off[n] != off[n] for n in wrong) else f"off by {max(off[n] for n in wrong):.1e}"
    return f"the result of {len(wrong)} of {len(want)} images is {how}; {limit:.0e} of its size is allowed"


def _gradients_wrong(got, want, case) -> str | None:
    wrong = wrong_gradients(got, want, case)
    if not wrong:
        return None
    name, off = max(wrong.items(), key=lambda item: (item[1] != item[1], item[1]))
    how = "NaN" if off != off else f"off by {off:.1e}"
    rest = f", and those of {len(wrong) - 1} other kinds are wrong" if len(wrong) > 1 else ""
    return f"the gradient of {name} is {how}; {LIMITS[case['dtype']]:.0e} of its size is allowed{rest}"


def wrong_gradients(got: Mapping, want: Mapping, case: Mapping) -> dict[str, float]:
    """By how much the gradients are off that are, by kind: "up.bias" of all layers."""
    kinds: dict[str, tuple[list, list]] = {}
    for name, true in want.items():
        kind = name.split(".", 2)[2] if name.startswith("blocks.") else name
        kind = "the biases of q, k and v" if kind in TOGETHER else kind
        here, there = kinds.setdefault(kind, ([], []))
        here += _flat(got.get(name))
        there += _flat(true)
    off = {kind: _off(*both) for kind, both in kinds.items()}
    return {kind: one for kind, one in off.items() if not one <= LIMITS[case["dtype"]]}


def _flat(values) -> list:
    return values if isinstance(values, list) else []


def _off(got, want) -> float:
    """The root mean square of the difference, over that of the truth; infinite for what has another shape."""
    if not isinstance(got, list) or len(got) != len(want):
        return float("inf")
    here, true = (torch.tensor(values, dtype=torch.float64) for values in (got, want))
    return float((here - true).square().mean().sqrt() / true.square().mean().sqrt())


def faults(got: Mapping, want: Mapping, case: Mapping) -> dict[str, str]:
    """What is wrong with the memory, by its kind."""
    if not want:  # of this case only results and gradients are asked for
        return {}
    found, most = {}, case["asks"]["share"]
    planned, held, in_vain, forward, backward = (_number(got[name]) for name in want)
    for way, flop in (("forward", forward), ("backward", backward)):
        if flop < SEEN * want[way]:
            found["unseen"] = f"{way}, products of {flop:,} FLOP were seen, of {want[way]:,} that it takes"
    if held < LEAST * want["held"] and backward <= MORE * want["backward"]:
        found["unseen"] = (
            f"{held:,} bytes were seen to be held, and no backward pass does with so few unless it makes more again"
        )
    if held > most * want["held"]:
        share = held / want["held"]
        found["share"] = (
            f"{held:,} bytes are held between the passes, {share:.3f} of the {want['held']:,} that the strong tower "
            f"holds; at most {most:g} is asked for"
        )
    number = one_a_row(case)
    if in_vain >= (number if case["asks"]["plan"] else max(1, IN_VAIN * held)):
        found["in vain"] = f"{in_vain:,} of {held:,} bytes are held and never read by the backward pass"
    if backward > MORE * want["backward"]:
        times = backward / want["backward"]
        found["products"] = (
            f"the products of the backward pass take {times:.2f} times the FLOP of the strong tower's; at most "
            f"{MORE:g} is asked for"
        )
    if case["asks"]["plan"] and abs(planned - held) >= number:
        much = "more" if planned > held else "less"
        found["plan"] = (
            f"planned() says {planned:,} bytes and {held:,} are held: {abs(planned - held):,} {much} than there are, "
            f"{abs(planned - held) / max(held, 1):.2%} of them; it is to be off by less than one number of each patch, "
            f"{number:,} bytes"
        )
    return found


def one_a_row(case: Mapping) -> int:
    """Bytes of one number of each patch. By less than that a plan may be off, and what nobody reads may be less.

    The least that is worth a line of a plan is as large: a mask in numbers, or the half of what a norm notes. Smaller
    are booleans, a byte of each patch, and how many patches an image has, 8 bytes for 12 patches or more.
    """
    return len(case["lengths"]) * case["sizes"]["patches"] * bytes_of(case)


def bytes_of(case: Mapping) -> int:
    """Of one number."""
    return torch.finfo(getattr(torch, case["dtype"])).bits // 8


def _number(value) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value
