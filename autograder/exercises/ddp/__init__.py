"""Unit 08: data parallel training."""

from autograder.exercises.ddp.cost import COST
from autograder.exercises.ddp.ring import RING

EXERCISES = (RING, COST)
