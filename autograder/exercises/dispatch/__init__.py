"""Unit 03: the dispatcher."""

from autograder.exercises.dispatch.custom import CUSTOM
from autograder.exercises.dispatch.keys import KEYS
from autograder.exercises.dispatch.meter import METER
from autograder.exercises.dispatch.subclass import SUBCLASS
from autograder.exercises.dispatch.table import TABLE

EXERCISES = (TABLE, KEYS, METER, CUSTOM, SUBCLASS)
