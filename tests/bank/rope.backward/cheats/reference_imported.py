"""The course's own kernel and its Function."""

FAMILY = "reference kernel"
NAIVE = True
CAUGHT = "the sandbox holds no course_lib.kernels"


def rope(q, k, cos, sin, positions, offset, layout):
    from course_lib.kernels.rope import Tables
    from course_lib.kernels.rope import rope as turned

    return turned(q, k, Tables(cos, sin), layout, positions, offset)
