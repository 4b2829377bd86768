"""Unit 09, the capstone: a vision tower, part by part."""

from autograder.exercises.capstone.mask import MASK
from autograder.exercises.capstone.memory import MEMORY
from autograder.exercises.capstone.qkv import QKV
from autograder.exercises.capstone.speed import SPEED
from autograder.exercises.capstone.tower import TOWER

EXERCISES = (MASK, QKV, TOWER, MEMORY, SPEED)
