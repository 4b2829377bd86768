"""Every number in a lesson's prose is held: change one, or what a cell prints, and a test fails.

Looked at are numbers with a unit, percentages, ratios and decimals. A number is held when a cell beside it printed it,
when the code beside it or the exercise's description has it, when its own sentence reckons it, or when its sentence
stands in a `says(...)` of these tests, which compares it with a record or a count. What is left has a source or a
reason below.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import isclose
from pathlib import Path

import pytest

from course_lib.places import ROOT
from tests.house.told_numbers import (
    SCALE,
    Cell,
    Number,
    flat,
    is_literal,
    is_printed,
    is_promised,
    is_reckoned,
    literals_of,
    numbers_in,
    prose,
)

LESSONS = sorted((ROOT / "solutions").glob("*/*.ipynb"))

SIGLIP = "2100 ms, 2900 ms, 1274 ms, 2971 ms, 19288 MiB, 12137 MiB, 1000 MiB"
ROPE = "8 times, 6 times, 62 us, 11 us, 2 us, 1 us, 2.34 ms, 1.97 ms, 1.97"
BUCKETS = "1.04605 s, 1.05300 s, 1.0315 s, 0.00218 s, 0.04185 s, 0.011 s, 0.052 s"

SOURCES = (  # lessons, the numbers that they quote, and whose numbers they are
    ("00", "4.8 TB/s", "the data sheet of an H200"),
    ("02", "2.86 seconds, 1.90 seconds, 0.171, 0.133", "the report of a lab on torch.compile"),
    ("02 03 05 09", SIGLIP, "the report on a vision tower"),
    ("09", "2099.66 ms, 2899.58 ms, 1273.94 ms, 2971.07 ms, 19288.3 MiB, 12136.7 MiB", "the same, in full"),
    ("04", "100 passes, 17.9 s, 7.3 s, 12.3 s, 70 GB", "the report on plain attention"),
    ("04", "2.384 s, 70.7 ms", "the report on scaled_dot_product_attention"),
    ("04", "638 TFLOP/s", "the paper of FlashAttention-3"),
    ("05", "24.0 GB, 19.3, 28.3, 26.0, 39.6, 42.8", "the report on mixed precision"),
    ("06", ROPE, "the report on a RoPE kernel"),
    ("08", BUCKETS, "the report on data parallel training"),
    ("08", "450 GB/s", "the data sheet of an H100 and an H200"),
)
REASONS = (  # lesson, the words around the number, and why no test can know it better
    (
        "00",
        "(The memory of most laptops, and of one server core, moves between 10 and 100 GB/s.)",
        "the reader's own is measured",
    ),
    ("01", "elementwise multiplications take about 10 % of the time", "the report's"),
    ("01", "products dominate, elementwise about 10 %", "the report's"),
    ("01", "If the corner is elsewhere by more than 20 per cent", "the lesson's own threshold"),
    ("01", "A colleague reports that a new kernel is 40 times faster", "question 1.9 supposes it"),
    ("01", "on the same 1 MiB input", "question 1.9 supposes it"),
    ("01", "1 MiB stays in the L2 cache", "question 1.9 supposes it"),
    ("01", "Memory hands out **sectors** of 32 bytes", "NVIDIA's guide; no counter is read here"),
    ("02", "If they take 5 % of the time, expect a gain of that order", "an example"),
    ("03", "the usual 1.5-billion-parameter model", "the model is called so; its sizes are in the cell"),
    ("04", "the largest owner of memory, 8 GB at that length", "the report's"),
    ("04", "close to the end of an 80 GB card", "GPUs are sold with so much"),
    ("04", "on an H100 with 80 GB", "the paper's GPU"),
    ("04", "**shared memory**: 228 KiB", "NVIDIA's table of compute capability 9.0"),
    ("05", "0.5 for each of two cures with its price", "points of a marking guide"),
    ("06", '"our fused RoPE is 14 times faster than PyTorch"', "question 6.6 supposes it"),
    ("08", "for 1 MiB and 1 GiB on 8 GPUs, finds 25 us for both", "question 8.8 supposes it"),
    ("09", "With our new kernels the tower is 1.9 times faster", "question 9.7 supposes it"),
)


@dataclass(frozen=True)
class Said:
    """A `says(lesson, *sentences)` and the numbers in the code of its test, that of `says` left out."""

    test: str
    lesson: str
    sentences: tuple[str, ...]
    tried: frozenset[float]


def said() -> Iterator[Said]:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in Path(__file__).parent.glob("test_*.py")]
    assigned = [node for tree in trees for node in tree.body if isinstance(node, ast.Assign)]
    names = {target: value for node in assigned for target, value in named(node.targets[0], node.value)}
    for test in (node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)):
        calls = [node for node in ast.walk(test) if isinstance(node, ast.Call) and ast.unparse(node.func) == "says"]
        told = {id(node) for call in calls for node in ast.walk(call)}
        known = [node.value for node in ast.walk(test) if isinstance(node, ast.Constant) and id(node) not in told]
        tried = frozenset().union(*(literals_of(repr(value)) for value in known))
        for lesson, *rest in (call.args for call in calls):
            lesson = lesson.value if isinstance(lesson, ast.Constant) else names.get(ast.unparse(lesson), "")
            yield Said(
                test.name, lesson, tuple(flat(one.value) for one in rest if isinstance(one, ast.Constant)), tried
            )


def named(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    """Names of strings: of `A = "x"` and `A, B = "x", "y"`."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=True):
            yield from named(one, its)
    elif isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield target.id, value.value


SAID: dict[str, list[str]] = {}
for one in said():
    SAID.setdefault(one.lesson, []).extend(one.sentences)


def is_said(told: Number, cell: Cell, sentences: list[str]) -> bool:
    places = ((at, at + len(one)) for one in sentences if (at := cell.text.find(one)) >= 0)
    return any(begin <= told.at < end for begin, end in places)


def sources(lesson: str) -> list[Number]:
    return [n for lessons, numbers, _ in SOURCES if lesson[:2] in lessons.split() for n in numbers_in(numbers)]


def is_quoted(told: Number, lesson: str) -> bool:
    return any((one.value, one.unit) == (told.value, told.unit) for one in sources(lesson))


def holders(told: Number, cell: Cell, sentences: list[str]) -> list[str]:
    """By what a number is held; empty for one that nobody would miss."""
    reasons = [words for lesson, words, _ in REASONS if cell.lesson.startswith(lesson)]
    rules = {
        "printed": is_printed(told, cell),
        "in code": is_literal(told, cell),
        "promised": is_promised(told, cell),
        "reckoned": is_reckoned(told, cell),
        "said": is_said(told, cell, sentences),
        "quoted": is_quoted(told, cell.lesson),
        "reason": is_said(told, cell, reasons),
    }
    return [rule for rule, holds in rules.items() if holds]


def unheld(cells: Iterable[Cell], sentences: list[str]) -> list[tuple[str, str]]:
    """The numbers that nothing holds, with the words around each."""
    return [
        (f"{told.value:g} {told.unit}".strip(), cell.text[max(0, told.at - 60) : told.at + 40])
        for cell in cells
        for told in cell.numbers
        if not holders(told, cell, sentences)
    ]


def lesson_of(notebook: Path) -> str:
    return str(notebook.relative_to(ROOT / "solutions").with_suffix(".py"))


def cells_of(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("notebook", LESSONS, ids=lambda notebook: notebook.stem)
def test_every_number_in_prose_is_held(notebook):
    lesson = lesson_of(notebook)
    assert unheld(prose(lesson, cells_of(notebook)), SAID.get(lesson, [])) == []


def test_what_says_holds_is_tried_in_the_same_test():
    """Each number of its sentences stands in the test's code too, in some unit, or has a source."""
    untried = []
    for one in said():
        for told in (number for sentence in one.sentences for number in numbers_in(sentence)):
            _, scale = SCALE.get(told.unit, ("", 1.0))
            forms = [told.value * by for by in (1, scale, 1e3, 1e6, 1e9, 1e12, 1e-2, 1e-3)]
            forms += [1 - told.value / 100, 1 + told.value / 100]
            tried = any(isclose(form, value, rel_tol=1e-9) for form in forms for value in one.tried)
            if not tried and not any(number.value == told.value for number in sources(one.lesson)):
                untried.append((one.test, f"{told.value:g} {told.unit}"))
    assert untried == []


def test_every_source_and_reason_is_needed():
    """A source's numbers are all told, and a reason has a number that no rule and no `says(...)` holds."""
    cells = [cell for notebook in LESSONS for cell in prose(lesson_of(notebook), cells_of(notebook))]
    for lessons, numbers, source in SOURCES:
        told = {(n.value, n.unit) for cell in cells if cell.lesson[:2] in lessons for n in cell.numbers}
        assert [n for n in numbers_in(numbers) if (n.value, n.unit) not in told] == [], source
    for lesson, words, reason in REASONS:
        at = [
            (cell, n) for cell in cells if cell.lesson[:2] == lesson for n in cell.numbers if is_said(n, cell, [words])
        ]
        held_by = [holders(n, cell, SAID.get(cell.lesson, [])) for cell, n in at]
        assert any(rules == ["reason"] for rules in held_by), f"{words}: {reason}"


def markdown(*lines: str) -> dict:
    return {"cell_type": "markdown", "source": "\n".join(lines)}


def code(source: str, prints: str) -> dict:
    return {"cell_type": "code", "source": source, "outputs": [{"output_type": "stream", "text": prints}]}


MADE_UP = (
    markdown("## 1. A copy", "A copy of 64 MiB is timed, and the clock is right to 5 %."),
    code("n, right = 2**26, 0.05", "copy 31.4 us, 4.27 TB/s; busy 0.857"),
    markdown("It takes 31 us, so 4.3 TB/s, and the device is busy for 86 % of the time. Two of them take $2 \\cdot 32"
             " = 64.0$ us. The report says 47 ms. See exercise 1.3, section 2.4 and Triton 3.6."),
    markdown("## 2. Elsewhere", "Ours is 1.7 times as fast."),
)  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [("64 MiB", "65 MiB"), ("5 %", "6 %"), ("31 us", "32 us"), ("4.3 TB/s", "4.4 TB/s"), ("86 %", "84 %"),
     ("64.0", "64.1"), ("31 us", "31 ms"), ("1.7 times", "1.8 times"), ("47 ms", "48 ms")],
)  # fmt: skip
def test_a_changed_number_is_held_no_more(old, new):
    said = ["The report says 47 ms.", "Ours is 1.7 times as fast."]
    assert unheld(prose("99_made_up", list(MADE_UP)), said) == []
    changed = [cell | {"source": cell["source"].replace(old, new)} for cell in MADE_UP]
    ((told, words),) = unheld(prose("99_made_up", changed), said)
    assert told.split()[0] == new.split()[0] and new in words


@pytest.mark.parametrize(("old", "new"), [("31.4 us", "32.4 us"), ("4.27", "4.17"), ("0.857", "0.797")])
def test_another_output_holds_the_number_no_more(old, new):
    said = ["The report says 47 ms.", "Ours is 1.7 times as fast."]
    other = [
        *MADE_UP[:1],
        code("n, right = 2**26, 0.05", MADE_UP[1]["outputs"][0]["text"].replace(old, new)),
        *MADE_UP[2:],
    ]
    assert len(unheld(prose("99_made_up", other), said)) == 1


def test_what_a_cell_of_another_section_printed_holds_nothing():
    apart = [*MADE_UP[:2], markdown("## 2. Elsewhere", "It takes 31 us.")]
    assert [told for told, _ in unheld(prose("99_made_up", apart), [])] == ["31 us"]


def test_of_numbers_that_no_sentence_holds_nine_changes_in_ten_are_missed():
    """The rules are no sieve: the last digit of each number is changed, by up to 3, in the lessons as they are."""
    changed = [
        (replace(told, value=told.value + step * 10.0**-told.decimals), cell)
        for notebook in LESSONS
        for cell in prose(lesson_of(notebook), cells_of(notebook))
        for told in cell.numbers
        if not {"said", "reason"} & set(holders(told, cell, SAID.get(cell.lesson, [])))
        for step in (-3, -2, -1, 1, 2, 3)
        if told.value + step * 10.0**-told.decimals > 0
    ]
    still_held = [told for told, cell in changed if holders(told, cell, [])]
    assert len(changed) > 500 and len(still_held) < 0.1 * len(changed)


COUNTED = "**The prediction, counted.**"


@pytest.mark.parametrize("notebook", LESSONS, ids=lambda notebook: notebook.stem)
def test_every_prediction_is_closed_by_its_number_and_its_parts(notebook):
    """Before the next one is asked for. The numbers of these lines are held as all numbers in prose are."""
    lesson, open_one = notebook.stem, None
    for cell in cells_of(notebook):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            open_one = None if COUNTED in source else open_one
        elif asked := re.search(r"^predicted\w*(?= = .*\bNone\b| = dict\.fromkeys)", source, re.MULTILINE):
            assert open_one is None, f"{lesson}: no line says what came of {open_one!r}"
            open_one = source[asked.start() :].partition("\n")[0]
    assert open_one is None, f"{lesson}: no line says what came of {open_one!r}"
