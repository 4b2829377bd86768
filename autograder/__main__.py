"""python -m autograder VERB: everything that is done to lessons and exercises from a command line."""

import argparse
import importlib
import sys

# Each module has `add_arguments(parser)` and `main(args) -> exit status`; only the chosen one is imported.
VERBS = {
    "lab": ("autograder.classroom.lab", "copy missing lessons into work/ and open JupyterLab there"),
    "notebooks": ("autograder.classroom.notebooks", "rebuild paired and released notebooks from solutions/*/*.py"),
    "execute": ("autograder.classroom.execute", "run lessons on this machine and keep their outputs"),
    "lessons": ("autograder.classroom.lesson_points", "full points for every solution, none for every release"),
    "try": ("autograder.classroom.trying", "judge your own notebook as grading would"),
    "bank": ("autograder.bank.command", "judge every right, wrong and slow submission of the bank"),
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m autograder", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, (module, says) in VERBS.items():
        subparser = verbs.add_parser(verb, help=says, description=says)
        if argv[:1] == [verb]:
            importlib.import_module(module).add_arguments(subparser)
    args = parser.parse_args(argv)
    return importlib.import_module(VERBS[args.verb][0]).main(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
