"""Unit 02: torch.compile from the inside."""

from autograder.exercises.compile.backend import BACKEND
from autograder.exercises.compile.break_even import BREAK_EVEN
from autograder.exercises.compile.fuse import FUSE
from autograder.exercises.compile.guards import GUARDS

EXERCISES = (GUARDS, BACKEND, FUSE, BREAK_EVEN)
