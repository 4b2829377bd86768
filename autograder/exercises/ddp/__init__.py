"""Unit 08: data parallel training."""

from autograder.exercises.ddp.buckets import BUCKETS
from autograder.exercises.ddp.cost import COST
from autograder.exercises.ddp.flat import FLAT
from autograder.exercises.ddp.naive import NAIVE
from autograder.exercises.ddp.overlap import OVERLAP
from autograder.exercises.ddp.ring import RING
from autograder.exercises.ddp.sharded import SHARDED

EXERCISES = (RING, COST, NAIVE, FLAT, OVERLAP, BUCKETS, SHARDED)
