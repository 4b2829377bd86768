"""The kernel of the course itself is called; whoever finds it has the answer."""

FAMILY = "reference kernel"
NAIVE = True
CAUGHT = "the sandbox holds no course_lib.kernels"


def linear_gelu(x, w, bias, out):
    from course_lib.kernels.linear_gelu import linear_gelu as ours

    out.copy_(ours(x.contiguous(), w.contiguous(), bias))
