"""The course's own kernel is imported and given the arguments."""

FAMILY = "reference kernel"
NAIVE = True
CAUGHT = "the sandbox holds no course_lib.kernels"


def rope_(q, k, cos, sin, positions, offset, layout):
    from course_lib.kernels.rope import Tables
    from course_lib.kernels.rope import rope_ as turn

    turn(q, k, Tables(cos, sin), layout, positions, offset)
