"""roofline.regime: from timings at growing sizes say what limits an operator, and where overhead ends.

    regimes(rows, roof) -> (labels, overhead_ends)

`rows`: one dict a size, in order of size, with `size`, `flops`, `bytes` and `seconds`, a list of seven timings of that
size. `roof`: the measured ceilings of the device, `flops_per_s` and `bytes_per_s`. What a launch costs is not given.

`labels`: one of "overhead", "bandwidth", "compute" for every row.
- "overhead": the time is a constant that does not grow with the work.
- otherwise "bandwidth" where bytes / bytes_per_s is larger than flops / flops_per_s (the intensity flops / bytes is
  below the ridge flops_per_s / bytes_per_s), else "compute".

`overhead_ends`: the size at which the time that the work needs overtakes the constant. 0 when it lies below the first
size, so that no row is overhead; None when it lies above the last, so that every row is.

Promised: the operator reaches a fixed share of the roof, anywhere from 20 % to 95 %; sizes grow by 15 to 35 % from row
to row; timings vary by a few per cent, and at most two of the seven were disturbed and are far too long. Overhead ends
at least a factor of 2.5 in size away from the first and the last row, inside the table or outside.

Right means: `overhead_ends` within a factor of 2, and every label but those of sizes within a factor of 2 of the end of
overhead, which timings cannot tell apart.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from autograder.exercise import Case, Exercise, Mistake
from autograder.exercises.roofline.growth import Situation, near, side_of_the_ridge, table, true_regimes

LABELS = ("overhead", "bandwidth", "compute")

# ------------------------------------------------------------------------------------------------- the truth


def _ends(rows, crossing: float) -> float | None:
    if crossing < rows[0]["size"]:
        return 0
    return None if crossing > rows[-1]["size"] else crossing


def _answer(v, labels=None, **ends) -> dict:
    """The right answer, but for what is given."""
    labels = true_regimes(v["rows"], v["roof"], v["crossing"]) if labels is None else labels
    return {"labels": labels, "overhead_ends": ends.get("ends", _ends(v["rows"], v["crossing"]))}


# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    return _labels_wrong(got, want, args) if isinstance(want, list) else _end_wrong(got, want)


def _labels_wrong(got, want, args) -> str | None:
    rows = args["rows"]
    if not isinstance(got, (list, tuple)) or len(got) != len(rows):
        return f"the labels should be a list with one entry a row, {len(rows)} in all"
    for label, true, row in zip(got, want, rows, strict=True):
        if label not in LABELS:
            return f"size {row['size']}: {label!r:.40} is none of {', '.join(LABELS)}"
        if label != true and not near(row["size"], args["crossing"]):
            return f"size {row['size']} is not bound by {label}. {_advice(label, true)}"
    return None


def _advice(label: str, true: str) -> str:
    if label == "overhead":
        return "Would less work have taken less time?"
    if true == "overhead":
        return "Compare its time with that of smaller sizes: was the additional work free?"
    return "Compare its intensity, FLOPs a byte, with the ridge of the roof."


def _end_wrong(got, want) -> str | None:
    if isinstance(got, bool) or not (got is None or isinstance(got, (int, float))):
        return f"overhead_ends should be a size, 0 or None; got {got!r:.40}"
    if want is None or got is None:
        return (
            None if got is want else f"overhead_ends is {got!r:.20}: None is for tables in which every row is overhead"
        )
    if want == 0 or got == 0:
        return None if got == want else f"overhead_ends is {got:.6g}: 0 is for tables with overhead in no row"
    if want / 2 <= got <= 2 * want:
        return None
    return f"overhead_ends is {got:.6g}, too {'small' if got < want else 'large'} by more than a factor of 2"


# ------------------------------------------------------------------------------------------------- the cases

CUBE = {"operator": "square", "below": (3, 5), "above": (4, 6)}
ONE = ("overhead", "bandwidth")

SITUATIONS = {
    "overhead, then bandwidth": Situation("pointwise", ONE),
    "overhead, then compute": Situation(**CUBE, shows=("overhead", "compute"), ridge=(5, 40)),
    "overhead, bandwidth, compute": Situation(
        "square", ("overhead", "bandwidth", "compute"), below=(3, 5), above=(8, 30), ridge=(150, 500)
    ),
    "only overhead": Situation("pointwise", ("overhead",), below=(3, 6), above=(3, 6)),
    # a ridge below 1 / intensity, so that bytes / flops lies above it
    "only bandwidth": Situation("pointwise", ("bandwidth",), ridge=(1.5, 1.9), below=(3, 6), above=(3, 6)),
    "only compute": Situation(**CUBE, shows=("compute",), ridge=(5, 40)),
    "bandwidth, then compute": Situation(
        "growing k", ("bandwidth", "compute"), overhead_s=(1e-7, 1e-6), below=(8, 20), above=(8, 20)
    ),
    "noisy timings": Situation("pointwise", ONE, noise=0.05, below=(40, 80)),
    "disturbed timings": Situation("pointwise", ONE, disturbed=True, noise=0.02),
    "far below the roof": Situation("pointwise", ONE, share=(0.2, 0.35), above=(20, 40)),
    "a slow host": Situation("pointwise", ONE, overhead_s=(60e-6, 200e-6)),
    "a graph replay": Situation("pointwise", ONE, overhead_s=(0.7e-6, 1.5e-6)),
}
CASES = tuple(Case(name, lambda d, s=s: table(d, s)) for name, s in SITUATIONS.items())

# ---------------------------------------------------------------------------------------------- the mistakes


def _times(v) -> list[float]:
    return [median(row["seconds"]) for row in v["rows"]]


def _floors(v) -> list[float]:
    """Seconds that the roof allows at best."""
    roof = v["roof"]
    return [max(r["bytes"] / roof["bytes_per_s"], r["flops"] / roof["flops_per_s"]) for r in v["rows"]]


def _from(v, is_overhead: list[bool]) -> dict:
    """Labels and end when these rows are taken for overhead: it ends at the first row that is not."""
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
    return _answer(v, ["overhead" if x == "overhead" else side(r, v["roof"]) for x, r in zip(right, rows, strict=True)])


def _inverted(row, roof) -> str:
    return "bandwidth" if row["bytes"] / row["flops"] < roof["flops_per_s"] / roof["bytes_per_s"] else "compute"


def _swapped(row, roof) -> str:
    return {"bandwidth": "compute", "compute": "bandwidth"}[side_of_the_ridge(row, roof)]


def _row_index(v):
    end = _ends(v["rows"], v["crossing"])
    return _answer(v, ends=_first(r["size"] >= end for r in v["rows"]) if end else end)


def _other_quantity(v, name: str):
    end = _ends(v["rows"], v["crossing"])
    if not end:
        return _answer(v)
    row = next(r for r in v["rows"] if r["size"] >= end)
    return _answer(v, ends=median(row["seconds"]) if name == "seconds" else row[name])


def _start_of_compute(v):
    labels = true_regimes(v["rows"], v["roof"], v["crossing"])
    return _answer(v, ends=next((r["size"] for r, x in zip(v["rows"], labels, strict=True) if x == "compute"), None))


def _edges(v, below, above):
    """Something else where overhead ends outside the table."""
    end = _ends(v["rows"], v["crossing"])
    return _answer(v, ends=above if end is None else below if end == 0 else end)


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

REGIME = Exercise(
    name="roofline.regime",
    entry="regimes",
    points=6,
    kind="scenario",
    cases=CASES,
    oracle=_answer,
    mistakes=MISTAKES,
    returns=("labels", "overhead_ends"),
    accept=accept,
    launches=False,
)
