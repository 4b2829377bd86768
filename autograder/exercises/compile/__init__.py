"""Unit 02: torch.compile from the inside."""

from autograder.exercises.compile.backend import BACKEND
from autograder.exercises.compile.break_even import BREAK_EVEN
from autograder.exercises.compile.breaks import BREAKS
from autograder.exercises.compile.fuse import FUSE
from autograder.exercises.compile.guards import GUARDS
from autograder.exercises.compile.operator import OPERATOR

EXERCISES = (BREAK_EVEN, BACKEND, BREAKS, GUARDS, FUSE, OPERATOR)
