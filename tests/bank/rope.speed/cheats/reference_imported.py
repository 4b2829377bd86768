"""The course's own kernel is imported and given the arguments."""

FAMILY = "reference kernel"
NAIVE = True
CAUGHT = "the sandbox holds no course_lib.kernels"


def rope_into(q, k, cos, sin, layout, q_out, k_out):
    from course_lib.kernels.timed import rope_into as write

    write(q, k, cos, sin, layout, q_out, k_out)
