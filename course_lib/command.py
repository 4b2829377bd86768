"""speed-of-light VERB: the lessons on this machine, wherever the course is installed."""

import argparse
import importlib
import os
import sys
from collections.abc import Mapping

__all__ = ["VERBS", "main"]

# Each module has `add_arguments(parser)` and `main(args) -> exit status`; only the chosen one is imported.
VERBS = {
    "lab": ("autograder.classroom.lab", "copy missing lessons into work/ and open JupyterLab there"),
    "try": ("autograder.classroom.trying", "judge your own notebook as grading would"),
    "carry": ("autograder.classroom.carrying", "bring your answers into a lesson that has a new version"),
    "check-install": ("course_lib.check_install", "say what works on this machine, and what to install"),
}


def main(
    argv: list[str] | None = None,
    program: str = "speed-of-light",
    says: str | None = __doc__,
    verbs: Mapping[str, tuple[str, str]] = VERBS,
) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog=program, description=says)
    chosen = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, (module, words) in verbs.items():
        subparser = chosen.add_parser(verb, help=words, description=words)
        if argv[:1] == [verb]:
            importlib.import_module(module).add_arguments(subparser)
    args = parser.parse_args(argv)
    try:
        status = importlib.import_module(verbs[args.verb][0]).main(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not nobody_reads():
            raise
        return 141  # as a shell tells of SIGPIPE


def nobody_reads() -> bool:
    """Whether standard output has lost its reader, as before `| head`; the interpreter then says nothing of it."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
