"""The course's own swap."""

FAMILY = "reference kernel"
NAIVE = False
CAUGHT = "hidden in a notebook, and the sandbox holds no course_lib.kernels"


def swap_linears(model, skip):
    from course_lib.kernels.mx import swap_linears as swap

    return swap(model, (*skip, *(f"{name}.*" for name in skip)))
