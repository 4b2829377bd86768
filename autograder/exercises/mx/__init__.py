"""Unit 07: MXINT8."""

from autograder.exercises.mx.dequantize import DEQUANTIZE
from autograder.exercises.mx.gemv import GEMV
from autograder.exercises.mx.linear import LINEAR
from autograder.exercises.mx.quantize import QUANTIZE

EXERCISES = (QUANTIZE, DEQUANTIZE, GEMV, LINEAR)
