"""Edits of right solutions: what they expand to, and what is said where one does not fit."""

import ast
import re

import pytest

from autograder import bank
from autograder.bank import command
from autograder.bank.edits import BadEdit, expand, read

SOLUTION = '''"""A mean, and how far from it all are."""

import math


def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def spread(values):
    middle = mean(values)

    total = 0.0
    for value in values:
        total += (value - middle) ** 2
    return math.sqrt(total / len(values))
'''
HEAD = '# of plain\n## wrong, caught by "three values": Not what it should be.\n'


@pytest.fixture
def expanded(tmp_path):
    """What an edit of SOLUTION comes to, without blank lines."""

    def told(text, name="wrong"):
        folder = tmp_path / "unit.exercise"
        (folder / "right").mkdir(parents=True, exist_ok=True)
        (folder / "right" / "plain.py").write_text(SOLUTION)
        (folder / "mistakes.diff").write_text(text)
        read.cache_clear()
        return expand(read(folder / "mistakes.diff")[name])

    return told


def lines_of(source):
    return [line.strip() for line in source.splitlines() if line.strip()]


def test_lines_are_replaced_and_the_rest_of_the_solution_stays(expanded):
    source = expanded(HEAD + "-    return total / len(values)\n+    return total\n")
    assert source == SOLUTION.replace("return total / len(values)", "return total").replace(
        "A mean, and how far from it all are.", "Not what it should be."
    ).replace("mean(values)\n\n", "mean(values)\n")


def test_a_minus_behind_a_plus_begins_the_next_change(expanded):
    got = lines_of(expanded(HEAD + "-import math\n+import cmath\n-    return total / len(values)\n+    return total\n"))
    assert "import cmath" in got and "return total" in got and "import math" not in got


def test_a_function_can_be_named_where_its_lines_stand_twice(expanded):
    changed = "-    total = 0.0\n+    total = 1.0\n"
    with pytest.raises(BadEdit, match=r"'total = 0.0' stand 2 times in plain. Add the line above .* `@@ function`"):
        expanded(HEAD + changed)
    got = lines_of(expanded(HEAD + "@@ spread\n" + changed))
    assert got.index("total = 1.0") > got.index("def spread(values):") > got.index("total = 0.0")
    assert lines_of(expanded(HEAD + "     middle = mean(values)\n" + changed)) == got


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ("@@ mean\n-...\n+mean = max\n", "mean = max"),
        ("@@ mean\n-    total = 0.0\n-...\n+    return 0\n", "def mean(values):\nreturn 0"),
        ("@@ mean\n-    total = 0.0\n-...\n-        total += value\n+    total = 1\n", "def mean(values):\ntotal = 1"),
        (" import math\n+import sys\n", "import math\nimport sys"),
        ("+import sys\n import math\n", "import sys\nimport math"),
        ("-import math\n", "def mean"),
    ],
)
def test_lines_can_be_left_out_added_and_taken_away(expanded, changed, left):
    assert "\n".join(lines_of(expanded(HEAD + changed))[1:]).find(left) in (0, len("import math\n"))


def test_an_edit_of_an_edit_makes_both_changes(expanded):
    text = HEAD + "-import math\n+import cmath\n\n# of wrong\n## wrong__more: And this.\n"
    got = lines_of(expanded(text + "-import cmath\n+import sys\n", "wrong__more"))
    assert got[:2] == ['"""And this."""', "import sys"]


def test_what_an_edit_says_about_itself_is_data_and_part_of_the_submission(expanded, tmp_path):
    source = expanded(HEAD + 'TIERS = ("gpu",)\n-import math\n+import cmath\n')
    assert ast.literal_eval(re.search(r"^TIERS = (.*)$", source, re.MULTILINE)[1]) == ("gpu",)
    edit = read(tmp_path / "unit.exercise" / "mistakes.diff")["wrong"]
    assert (edit.caught_by, edit.says) == ("three values", {"TIERS": ("gpu",)})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            HEAD + "-    return totl\n+    return 0\n",
            "'return totl' do not stand in plain. Copy them",
        ),
        (HEAD + "+    return 0\n", "where do its lines go"),
        (HEAD + "@@ median\n-import math\n", "plain has 0 functions or classes `median`"),
        (HEAD + "-import math\n+import\n", "what comes of it is no Python, at 'import'"),
        (HEAD + "-import math\n+x = 1\n-import math\n+y = 1\n", "two of its changes are about the same line"),
        (HEAD + "import math\n", "'import math' begins with none of"),
        (HEAD + "TIERS = gpu\n-import math\n", "'gpu' is no value"),
        (HEAD + "@@ mean\n-...\n+...\n", "only lines that go can be left out"),
        (HEAD.replace("plain", "fast") + "-import math\n", "neither right/fast.py nor an edit fast"),
        (HEAD.replace("# of plain\n", "") + "-import math\n", "expected `# of SOLUTION`"),
        (HEAD.replace(": Not", " Not") + "-import math\n", "expected `# of SOLUTION`"),
        ("-import math\n" + HEAD, "belongs to no edit"),
        (HEAD + "-import math\n" + HEAD + "-import math\n", "an edit of this name stands at line 2 already"),
    ],
)
def test_what_is_wrong_with_an_edit_is_said_with_its_place(expanded, text, said):
    with pytest.raises(BadEdit, match=r"unit.exercise/mistakes.diff:\d+") as error:
        expanded(text)
    assert said in str(error.value)


@pytest.mark.parametrize("kind", ["mistakes", "slow", "cheats"])
def test_every_edit_of_the_bank_fits_its_solution(kind):
    edits = [entry.where for entry in bank.entries(kinds=[kind])]
    assert edits
    for edit in edits:
        assert len(expand(edit)) > 20
        assert edit.reason.endswith((".", "?")), edit
        assert edit.caught_by or kind == "slow", edit


def test_show_prints_a_submission_as_a_file_of_its_own(capsys):
    assert command.show("start.axpy", "no_mask") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# start.axpy/mistakes/no_mask\n") and "def axpy(" in printed
    ast.parse(printed)
    assert command.show("start.axpy", "no_such") == 2
    assert "it has: " in capsys.readouterr().err
