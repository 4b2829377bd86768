"""What the lessons import: the machine at hand, honest timing, rooflines, numerics, plots.

Every lesson starts with `from course_lib.device import DEVICE`, which decides between the GPU and
Triton's interpreter before Triton is imported. Nothing is imported here, so that this stays true.
"""
