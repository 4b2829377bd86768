"""python -m autograder VERB: everything that is done to lessons and exercises from a command line."""

import sys

from course_lib import command

VERBS = command.VERBS | {
    "notebooks": ("autograder.classroom.notebooks", "rebuild paired and released notebooks from solutions/*/*.py"),
    "execute": ("autograder.classroom.execute", "run lessons on this machine and keep their outputs"),
    "lessons": ("autograder.classroom.lesson_points", "full points for every solution, none for every release"),
    "bank": ("autograder.bank.command", "judge every right, wrong and slow submission of the bank"),
}

if __name__ == "__main__":
    sys.exit(command.main(program="python -m autograder", says=__doc__, verbs=VERBS))
