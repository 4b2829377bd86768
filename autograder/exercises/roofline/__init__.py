"""Unit 01: the roofline and the three regimes."""

from autograder.exercises.roofline.chain import CHAIN
from autograder.exercises.roofline.graph import GRAPH
from autograder.exercises.roofline.matmul import MATMUL
from autograder.exercises.roofline.profile import PROFILE
from autograder.exercises.roofline.regime import REGIME
from autograder.exercises.roofline.softmax import SOFTMAX
from autograder.exercises.roofline.stopwatch import STOPWATCH
from autograder.exercises.roofline.work import WORK

EXERCISES = (WORK, STOPWATCH, REGIME, PROFILE, CHAIN, SOFTMAX, MATMUL, GRAPH)
