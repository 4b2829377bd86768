"""The course's own kernels are imported and given the arguments."""

FAMILY = "reference kernel"
NAIVE = True
CAUGHT = "the sandbox holds no course_lib.kernels"


def gemv(x, mantissas, exponents, group, out):
    from course_lib.kernels.timed import gemv_into

    gemv_into(x, mantissas, exponents, group, out)
