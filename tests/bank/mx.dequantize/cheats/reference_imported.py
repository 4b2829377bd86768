"""The course's own kernel is imported and given the arguments."""

FAMILY = "reference kernel"
NAIVE = True
CAUGHT = "the sandbox holds no course_lib.kernels"


def dequantize(mantissas, exponents, group, out):
    from course_lib.kernels.mx import Quantized
    from course_lib.kernels.mx import dequantize as write

    write(Quantized(mantissas, exponents, group), out=out)
