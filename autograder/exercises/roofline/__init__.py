"""Unit 01: the roofline and the three regimes."""

from autograder.exercises.roofline.chain import CHAIN
from autograder.exercises.roofline.profile import PROFILE
from autograder.exercises.roofline.work import WORK

EXERCISES = (CHAIN, WORK, PROFILE)
