"""Which types autocast gives, an operator at a time: the answers of mlp.autocast for a machine without a GPU.

No time is measured. Every operator that the exercise may ask for, on every type that can come in, for both low types,
switched off and not.
"""

from autograder.exercises.mlp import autocast_rule
from course_lib.device import DEVICE

MEASURES = ("autograder/exercises/mlp/autocast_rule.py",)


def run() -> list[dict]:
    return list(autocast_rule.table(DEVICE))
