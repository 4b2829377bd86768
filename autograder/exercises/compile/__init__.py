"""Unit 02: torch.compile from the inside."""

from autograder.exercises.compile.fuse import FUSE
from autograder.exercises.compile.guards import GUARDS

EXERCISES = (GUARDS, FUSE)
