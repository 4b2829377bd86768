"""Unit 05: fused MLP, numerics and memory."""

from autograder.exercises.mlp.accumulate import ACCUMULATE
from autograder.exercises.mlp.add_norm import ADD_NORM
from autograder.exercises.mlp.autocast import AUTOCAST
from autograder.exercises.mlp.dropout import DROPOUT
from autograder.exercises.mlp.linear_gelu import LINEAR_GELU
from autograder.exercises.mlp.recompute import RECOMPUTE
from autograder.exercises.mlp.saved import SAVED

EXERCISES = (ACCUMULATE, AUTOCAST, LINEAR_GELU, SAVED, RECOMPUTE, ADD_NORM, DROPOUT)
