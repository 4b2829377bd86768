"""Unit 05: fused MLP, numerics and memory."""

from autograder.exercises.mlp.accumulate import ACCUMULATE
from autograder.exercises.mlp.add_norm import ADD_NORM
from autograder.exercises.mlp.dropout import DROPOUT
from autograder.exercises.mlp.linear_gelu import LINEAR_GELU

EXERCISES = (ACCUMULATE, LINEAR_GELU, ADD_NORM, DROPOUT)
