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

from autograder.exercise import Case, Exercise
from autograder.exercises.roofline.growth import FAST, SLOW, Situation, answer, near, table
from autograder.exercises.roofline.regime_mistakes import MISTAKES, SHOWN
from autograder.exercises.telling import telling

LABELS = ("overhead", "bandwidth", "compute")

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
    "overhead, then compute": Situation(**CUBE, shows=("overhead", "compute"), ridge=(5, 40), share=(0.52, 0.58)),
    "overhead, bandwidth, compute": Situation(
        "square", ("overhead", "bandwidth", "compute"), (150, 500), overhead_s=FAST, below=(3, 5), above=(8, 30)
    ),
    "only overhead": Situation("pointwise", ("overhead",), below=(3, 6), above=(3, 6)),
    # a ridge below 1 / intensity, so that bytes / flops lies above it
    "only bandwidth": Situation(
        "pointwise", ("bandwidth",), ridge=(1.5, 1.9), below=(3, 6), above=(3, 6), share=(0.62, 0.68)
    ),
    "only compute": Situation(**CUBE, shows=("compute",), ridge=(5, 40), share=(0.62, 0.68)),
    "bandwidth, then compute": Situation(
        "growing k", ("bandwidth", "compute"), overhead_s=FAST, below=(8, 20), above=(8, 20), least_s=SLOW[0]
    ),
    "noisy timings": Situation("pointwise", ONE, noise=0.05, below=(40, 80), overhead_s=FAST, share=(0.52, 0.57)),
    "disturbed timings": Situation("pointwise", ONE, disturbed=True, noise=0.02, share=(0.42, 0.48)),
    "far below the roof": Situation("pointwise", ONE, share=(0.2, 0.28), above=(20, 40), overhead_s=FAST),
    "a slow host": Situation("pointwise", ONE),
    "a graph replay": Situation("pointwise", ONE, overhead_s=FAST, share=(0.52, 0.58)),
}
CASES = tuple(Case(name, lambda d, s=s: table(d, s)) for name, s in SITUATIONS.items())

REGIME = Exercise(
    name="roofline.regime",
    entry="regimes",
    points=6,
    about="telling launch cost, memory and arithmetic apart",
    point=("overhead, bandwidth, compute", "only bandwidth", "far below the roof"),
    kind="scenario",
    cases=telling(CASES, answer, MISTAKES, accept, also=SHOWN),
    oracle=answer,
    mistakes=MISTAKES,
    returns=("labels", "overhead_ends"),
    accept=accept,
    launches=False,
)
