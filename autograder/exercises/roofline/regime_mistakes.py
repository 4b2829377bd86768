"""How people misjudge a regime: the known wrong answers to roofline.regime."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, median

from autograder.exercise import Mistake
from autograder.exercises.roofline.growth import answer, ends_of, side_of_the_ridge, true_regimes


def _times(v) -> list[float]:
    return [median(row["seconds"]) for row in v["rows"]]


def _floors(v) -> list[float]:
    """Seconds that the roof allows at best."""
    roof = v["roof"]
    return [max(r["bytes"] / roof["bytes_per_s"], r["flops"] / roof["flops_per_s"]) for r in v["rows"]]


def _from(v, is_overhead: list[bool]) -> dict:
    """The answer when these rows are taken for overhead: overhead ends at the first other row."""
    rows, roof = v["rows"], v["roof"]
    labels = ["overhead" if o else side_of_the_ridge(r, roof) for o, r in zip(is_overhead, rows, strict=True)]
    first = next((r["size"] for o, r in zip(is_overhead, rows, strict=True) if not o), None)
    return {"labels": labels, "overhead_ends": 0 if not is_overhead[0] else first}


def _until(v, stop: int | None) -> dict:
    """Overhead up to, not including, row `stop`."""
    return _from(v, [stop is None or i < stop for i in range(len(v["rows"]))])


def _first(flags) -> int | None:
    return next((i for i, flag in enumerate(flags) if flag), None)


def _achieved_share(v, least: float):
    return _from(v, [floor / t < least for floor, t in zip(_floors(v), _times(v), strict=True)])


def _first_rise(v, rise: float, over: str):
    times = _times(v)
    before = times if over == "the row before" else [times[0]] * len(times)
    stop = _first(t > rise * b for t, b in zip(times[1:], before, strict=False))
    return _until(v, None if stop is None else stop + 1)


def _step_test(v, factor: float):
    times = _times(v)
    stop = _first(b / a >= factor for a, b in pairwise(times))
    return _until(v, None if stop is None else stop + 1)


def _first_size_is_overhead(v, factor: float):
    times = _times(v)
    return _until(v, _first(t > factor * times[0] for t in times))


def _quoted_launch_cost(v, launch_s: float):
    return _from(v, [t < launch_s for t in _times(v)])


def _at_the_roof(v):
    """The share of the roof is taken to be 1: overhead as long as the roof alone would be faster than the flat time."""
    flat = min(_times(v))
    return _from(v, [floor < flat for floor in _floors(v)])


def _relabelled(v, side) -> dict:
    """Right about overhead; `side(row, roof)` decides the rest."""
    rows = v["rows"]
    right = true_regimes(rows, v["roof"], v["crossing"])
    return answer(v, ["overhead" if x == "overhead" else side(r, v["roof"]) for x, r in zip(right, rows, strict=True)])


def _inverted(row, roof) -> str:
    return "bandwidth" if row["bytes"] / row["flops"] < roof["flops_per_s"] / roof["bytes_per_s"] else "compute"


def _swapped(row, roof) -> str:
    return {"bandwidth": "compute", "compute": "bandwidth"}[side_of_the_ridge(row, roof)]


def _row_index(v):
    end = ends_of(v["rows"], v["crossing"])
    return answer(v, ends=_first(r["size"] >= end for r in v["rows"]) if end else end)


def _other_quantity(v, name: str):
    end = ends_of(v["rows"], v["crossing"])
    if not end:
        return answer(v)
    row = next(r for r in v["rows"] if r["size"] >= end)
    return answer(v, ends=median(row["seconds"]) if name == "seconds" else row[name])


def _start_of_compute(v):
    labels = true_regimes(v["rows"], v["roof"], v["crossing"])
    return answer(v, ends=next((r["size"] for r, x in zip(v["rows"], labels, strict=True) if x == "compute"), None))


def _edges(v, below, above):
    """Something else where overhead ends outside the table."""
    end = ends_of(v["rows"], v["crossing"])
    return answer(v, ends=above if end is None else below if end == 0 else end)


# ------------------------------------------------------------------- what a draw shows or not, as these answers show it


def _from_ratios(v, one_of) -> dict:
    """A right answer from one number a row: overhead where a row is much slower than the roof, against the last."""
    times, floors = [one_of(row["seconds"]) for row in v["rows"]], _floors(v)
    if times[-1] < 1.3 * times[0] and floors[-1] > 2 * floors[0]:
        return _until(v, None)
    slower = [time / floor for time, floor in zip(times, floors, strict=True)]
    return _from(v, [ratio > 1.3 * median(slower[-3:]) for ratio in slower])


def _ridge_a_thousandth(row, roof) -> str:
    return side_of_the_ridge({**row, "flops": 1e3 * row["flops"]}, roof)


SHOWN = (
    lambda v: _from_ratios(v, mean),
    lambda v: _from_ratios(v, lambda seconds: seconds[0]),
    lambda v: _from_ratios(v, max),
    lambda v: _until(v, _first(floor / t >= 0.8 for floor, t in zip(_floors(v), _times(v), strict=True))),
    lambda v: _until(v, _first(t >= 5e-6 for t in _times(v))),
    lambda v: _until(v, sum(t < 1e-5 for t in _times(v))),
    lambda v: _until(v, sum(floor < min(_times(v)) for floor in _floors(v))),
    lambda v: _relabelled(v, _ridge_a_thousandth),
)


MISTAKES = (
    Mistake(
        "disturbed_samples_believed",
        "Only the table with disturbed timings is wrong. One sample, their mean or their sum follows a disturbance: "
        "take the median of the seven.",
        sign=lambda e: e.failed_only("disturbed timings"),
    ),
    Mistake(
        "always_none_outside",
        "None was returned for a table without any overhead: there it is 0.",
        answer=lambda v: _edges(v, None, None),
    ),
    Mistake(
        "zero_and_none_swapped",
        "0 and None are the wrong way round: 0 says that no row is overhead, None that every row is.",
        answer=lambda v: _edges(v, None, 0),
    ),
    Mistake(
        "first_or_last_size_returned",
        "Where overhead does not end inside the table, no measured size is the answer: return 0 when no row is "
        "overhead and None when every row is.",
        answer=lambda v: _edges(v, v["rows"][0]["size"], v["rows"][-1]["size"]),
    ),
    Mistake("row_index_returned", "overhead_ends is a size, not the number of a row.", answer=_row_index),
    Mistake(
        "other_quantity_returned",
        "overhead_ends is a size: here the bytes, the FLOPs or the seconds of that row came.",
        answer=_other_quantity,
        variants=("bytes", "flops", "seconds"),
    ),
    Mistake(
        "start_of_compute_returned",
        "This is where compute begins: asked for is where overhead ends.",
        answer=_start_of_compute,
    ),
    Mistake(
        "sides_swapped",
        "bandwidth and compute are swapped: below the ridge the bytes are the limit.",
        answer=lambda v: _relabelled(v, _swapped),
    ),
    Mistake(
        "ridge_in_other_units",
        "No size came out as compute: the ridge is too large. Divide flops_per_s by bytes_per_s, both in plain units.",
        answer=lambda v: _relabelled(v, lambda row, roof: "bandwidth"),
    ),
    Mistake(
        "intensity_inverted",
        "The ridge was compared with bytes a FLOP: intensity is FLOPs a byte.",
        answer=lambda v: _relabelled(v, _inverted),
    ),
    Mistake(
        "flops_against_ridge",
        "Every size with work came out as compute: was the ridge, FLOPs a byte, compared with FLOPs, or does it lack "
        "a unit prefix? Divide FLOPs by bytes and use plain units for both ceilings.",
        answer=lambda v: _relabelled(v, lambda row, roof: "compute"),
    ),
    Mistake(
        "quoted_launch_cost",
        "Overhead was decided by a launch cost that you brought along. On every device it is another: read it from the "
        "small sizes.",
        answer=_quoted_launch_cost,
        variants=(5e-6, 7e-6, 8e-6, 1e-5, 1.5e-5, 2e-5, 3e-5, 5e-5),
    ),
    Mistake(
        "overhead_never_seen",
        "The labels follow from counts and ceilings alone. Whether overhead sets the time only the timings can tell.",
        answer=lambda v: _until(v, 0),
    ),
    Mistake(
        "achieved_share",
        "A low share of the roof was taken for overhead. A kernel may be far from the roof at every size: overhead is "
        "time that does not grow with the work.",
        answer=_achieved_share,
        variants=(0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9),
    ),
    Mistake(
        "first_size_is_overhead",
        "The smallest size was taken to be overhead in any case. It is only if its time stays flat while the work "
        "grows: some tables begin past the overhead, and in some the bytes hardly grow at first.",
        answer=_first_size_is_overhead,
        variants=(1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 2.0),
    ),
    Mistake(
        "kernel_at_the_roof",
        "The flat time was compared with the roof itself. The kernel reaches only a share of it: take that share from "
        "the largest sizes.",
        answer=_at_the_roof,
    ),
    Mistake(
        "step_test",
        "The time was expected to double from row to row. Sizes here grow by 15 to 35 %: compare with how much the "
        "work has grown.",
        answer=_step_test,
        variants=(1.5, 1.6, 1.7, 1.75, 1.8, 1.9, 2.0),
    ),
    Mistake(
        "first_rise_is_the_end",
        "Overhead was ended by the first small rise, which is noise. Ask for a rise well beyond the spread of the "
        "samples.",
        answer=lambda v, variant: _first_rise(v, *variant),
        variants=tuple((r, o) for o in ("the row before", "the first row") for r in (1.0, 1.01, 1.02, 1.03, 1.05)),
    ),
    Mistake(
        "end_seen_too_late",
        "Overhead ends where the work begins to set the time, not where the time is many times the flat one.",
        answer=_first_size_is_overhead,
        variants=(3.0, 4.0, 5.0, 10.0),
    ),
)
