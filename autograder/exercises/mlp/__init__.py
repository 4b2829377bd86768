"""Unit 05: fused MLP, numerics and memory."""

from autograder.exercises.mlp.accumulate import ACCUMULATE

EXERCISES = (ACCUMULATE,)
