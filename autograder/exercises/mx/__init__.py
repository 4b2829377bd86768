"""Unit 07: MXINT8."""

from autograder.exercises.mx.dequantize import DEQUANTIZE
from autograder.exercises.mx.quantize import QUANTIZE

EXERCISES = (QUANTIZE, DEQUANTIZE)
