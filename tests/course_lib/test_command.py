"""The command line: a reader that goes away ends a verb without a word."""

import subprocess
import sys
import types

import pytest

from course_lib import command

PRINTS = """
import sys, types
from course_lib import command

def main(args):
    sys.stdin.read()  # until the reader is gone
    print("a line")
    return 0

sys.modules["verb"] = types.SimpleNamespace(add_arguments=lambda parser: None, main=main)
sys.exit(command.main(["verb"], verbs={"verb": ("verb", "")}))
"""


def test_a_reader_that_ends_early_makes_no_traceback():
    line = [sys.executable, "-c", PRINTS]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as verb:
        verb.stdout.close()
        verb.stdin.close()
        assert (verb.stderr.read(), verb.wait(30)) == (b"", 141)


def test_another_pipe_that_breaks_is_a_fault(monkeypatch):
    def main(args):
        raise BrokenPipeError

    verb = types.SimpleNamespace(add_arguments=lambda parser: None, main=main)
    monkeypatch.setitem(sys.modules, "verb", verb)
    with pytest.raises(BrokenPipeError):
        command.main(["verb"], verbs={"verb": ("verb", "")})
