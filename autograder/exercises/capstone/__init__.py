"""Unit 09: the capstone, a vision tower."""

from autograder.exercises.capstone.qkv import QKV

EXERCISES = (QKV,)
