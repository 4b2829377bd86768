"""Figures with sliders: a kernel under the roofs, the three limits of its time, attention in tiles, when compiling
pays, the keys of a call, buckets of gradients in a training step, positions and numbers, roundings, memory by policy.

Where nobody can move a slider (a page, an executed notebook) the same object shows a still: one figure with
several positions of the sliders.
"""

from course_lib.widgets.attention_tiles import attention_stepper
from course_lib.widgets.calls import break_even_explorer, key_set_builder
from course_lib.widgets.explorer import Explorer
from course_lib.widgets.memory import memory_explorer
from course_lib.widgets.numbers import mx_bit_editor, rotation_explorer
from course_lib.widgets.roofs import regime_explorer, roofline_explorer
from course_lib.widgets.rounding import format_explorer, rounding_explorer
from course_lib.widgets.training import bucket_explorer

__all__ = [
    "Explorer",
    "attention_stepper",
    "break_even_explorer",
    "bucket_explorer",
    "format_explorer",
    "key_set_builder",
    "memory_explorer",
    "mx_bit_editor",
    "regime_explorer",
    "roofline_explorer",
    "rotation_explorer",
    "rounding_explorer",
]
