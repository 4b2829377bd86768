"""The reference kernel of the course is right there in the library: import it."""

from course_lib.kernels.attention.backward import backward

FAMILY = "reference kernel"
NAIVE = True
CAUGHT = "the sandbox holds no reference kernels"


def flash_backward(q, k, v, out, lse, dout, dq, dk, dv, causal, scale, k_lengths):
    made = backward(dout, q, k, v, out, lse, causal, scale, k_lengths)
    for mine, theirs in zip((dq, dk, dv), made):
        mine.copy_(theirs)
