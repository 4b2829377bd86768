"""python -m autograder VERB: everything that is done to lessons and exercises from a command line."""

import sys

from course_lib import command, places

# These work on solutions/, notebooks/ and tests/bank/, which only the repository has.
OF_THE_REPOSITORY = {
    "notebooks": ("autograder.classroom.notebooks", "rebuild paired and released notebooks from solutions/*/*.py"),
    "part": ("autograder.classroom.parts", "write a part of a lesson as an assignment of its own"),
    "execute": ("autograder.classroom.execute", "run lessons on this machine and keep their outputs"),
    "lessons": ("autograder.classroom.lesson_points", "full points for every solution, none for every release"),
    "bundle": ("autograder.classroom.bundle", "write the file that students get: lessons and checks, no solutions"),
    "release-check": ("autograder.classroom.gate", "say on one page whether lessons are ready to be given out"),
    "roster": ("autograder.classroom.roster", "enter students from a CSV of Canvas, Moodle or Gradescope"),
    "late": ("autograder.classroom.late", "due dates, extensions, and what late days cost"),
    "fleet": ("autograder.classroom.fleet.command", "judge all submissions of a lesson, by Slurm or by workers here"),
    "verdict": ("autograder.classroom.appeals", "what decided a student's marks, and the same judged again"),
    "regrade": ("autograder.classroom.regrade", "what a changed exercise is worth for everybody"),
    "report": ("autograder.classroom.overview.command", "one page and one table about a class that was graded"),
    "seeds": ("autograder.classroom.seeds", "whether the draws of a lesson are told, and to open them"),
    "bank": ("autograder.bank.command", "judge every right, wrong and slow submission of the bank"),
}

HAS_SOURCES = (places.ROOT / "solutions").is_dir() and not places.INSTALLED  # neither a wheel nor a bundle has them
VERBS = command.VERBS | OF_THE_REPOSITORY if HAS_SOURCES else command.VERBS

if __name__ == "__main__":
    sys.exit(command.main(program="python -m autograder", says=__doc__, verbs=VERBS))
