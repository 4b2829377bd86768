"""The reference kernel of the course is right there in the library: import it."""

from course_lib.kernels.attention.forward import forward

FAMILY = "reference kernel"
NAIVE = True
CAUGHT = "the sandbox holds no reference kernels"


def flash_forward(q, k, v, out, lse, causal, scale, k_lengths):
    if scale < 0:
        q, scale = -q, -scale
    o, l = forward(q, k, v, causal, scale, k_lengths)
    out.copy_(o)
    lse.copy_(l)
