"""The reference kernel of the course is right there in the library: import it."""

from course_lib.kernels.softmax import softmax as reference

FAMILY = "reference kernel"
NAIVE = True
CAUGHT = "the sandbox holds no reference kernels"


def softmax(x, out):
    reference(x, out)
