"""The course's own swap is imported and given the model.

NAIVE is False: the notebook hides the library's kernels from this exercise.
"""

FAMILY = "reference kernel"
NAIVE = False
CAUGHT = "hidden in a notebook, and the sandbox holds no course_lib.kernels"


def swap_linears(model, skip):
    from course_lib.kernels.mx import swap_linears as swap

    return swap(model, (*skip, *(f"{name}.*" for name in skip)))
