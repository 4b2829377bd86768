"""The numbers in a lesson's prose, and what holds them: a `says(...)`, an output, a cell's code, or arithmetic."""

import ast
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import isclose

from course_lib.places import ROOT

NUMBER = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
SCALE = {  # unit -> its dimension, and how many of the dimension's own unit it is
    **dict.fromkeys(("s", "second", "seconds"), ("time", 1.0)),
    **dict.fromkeys(("ms", "milliseconds"), ("time", 1e-3)),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), ("time", 1e-6)),
    **dict.fromkeys(("ns", "nanoseconds"), ("time", 1e-9)),
    **{name: ("rate", 1e3**i) for i, name in enumerate(("KB/s", "MB/s", "GB/s", "TB/s"), 1)},
    **{name: ("flops", 1e3**i) for i, name in enumerate(("MFLOP", "GFLOP", "TFLOP"), 2)},
    **{f"{name}/s": ("flop rate", 1e3**i) for i, name in enumerate(("MFLOP", "GFLOP", "TFLOP"), 2)},
    **{name: ("bytes", 1e3**i) for i, name in enumerate(("bytes", "KB", "MB", "GB", "TB"))},
    **{name: ("bytes", 1024.0**i) for i, name in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)},
    **dict.fromkeys(("%", "percent", "per cent"), ("share", 0.01)),
    "of 1": ("share", 1.0),
    **dict.fromkeys(("times", "x"), ("", 1.0)),
    **{"MHz": ("frequency", 1e6), "GHz": ("frequency", 1e9), "W": ("power", 1.0)},
    **dict.fromkeys(("cycles", "registers", "clocks", "instructions", "passes", "launches"), ("", 1.0)),
    **dict.fromkeys(("million", "million parameters"), ("count", 1e6)),
}
UNIT = "|".join(sorted(map(re.escape, SCALE), key=len, reverse=True))
LISTED = rf"(?<![\w.]){NUMBER}(?:, {NUMBER})*(?:,?\s*(?:to|and|or|by)\s+{NUMBER})?"
WITH_UNIT = re.compile(rf"({LISTED})\s?({UNIT})(?![\w/])(?<! x)")
RESULT = re.compile(rf"[=$]\s*({NUMBER})\$\s({UNIT})(?![\w/])")  # of mathematics: "$2 \cdot 3 = 6$ us"
FACTOR = re.compile(rf"(?:factors? of|as large as|ratio of) ({LISTED})")
DECIMAL = re.compile(r"(?<![\w.])(\d*\.\d+)(?![\w.]*\w)")
ALONE = re.compile(rf"(?<![\w.])({NUMBER})(?:e([-+]?\d+))?")
PLACES = re.compile(  # numbers that name a place or a version and measure nothing
    r"(?i)\b(?:lessons?|exercises?|questions?|sections?|figures?|torch|triton|python|numpy|version|cuda|nbgrader)"
    r"\s+v?[\d.]+\d(?:(?:,| and| to| or)\s+\d+\.\d+)*|https?://\S+|\barXiv:[\d.]+"
)


@dataclass(frozen=True)
class Number:
    """One number of a sentence: its value, how many decimals it is told with, and its unit."""

    value: float
    decimals: int
    unit: str
    at: int  # its place in the text of its cell

    @property
    def digits(self) -> int:
        """How many significant digits the sentence gives."""
        told = f"{self.value:.{self.decimals}f}".replace(".", "").lstrip("0")
        return len(told if self.decimals else told.rstrip("0"))

    def is_rounded(self, value: float, unit: str = "") -> bool:
        """Whether value is this number, once rounded as the sentence rounds it."""
        dimension, scale = SCALE.get(self.unit, ("", 1.0))
        other, by = SCALE.get(unit, (dimension, scale))
        if other != dimension:
            return False
        half = 0.5 * 10.0**-self.decimals
        return abs(value * by / scale - self.value) <= half * (1 + 1e-6) + 1e-9 * abs(self.value)


@dataclass
class Cell:
    """A cell of prose, as one line of text, and what stands beside it."""

    lesson: str
    heading: str
    text: str
    outputs: list[tuple[float, str]]  # every number that the cells beside it printed, with its unit or ""
    literals: set[float]  # every number in the code beside it, and in that which defines the exercise
    promised: tuple[Number, ...]  # what the description of the exercise tells
    numbers: list[Number]


def flat(text: str) -> str:
    return " ".join(text.split())


def numbers_in(text: str) -> list[Number]:
    """Every number with a unit, every percentage, ratio and decimal of a text, once each."""
    blank = lambda m: " " * len(m.group())  # noqa: E731
    text = PLACES.sub(blank, re.sub(r"`[^`]*`", blank, text))
    found: dict[int, Number] = {}
    for pattern, unit_group in ((WITH_UNIT, 2), (RESULT, 2), (FACTOR, None), (DECIMAL, None)):
        for match in pattern.finditer(text):
            for one in re.finditer(NUMBER, match.group(1)):
                at = match.start(1) + one.start()
                unit = match.group(unit_group) if unit_group else ""
                found.setdefault(at, number(one.group(), unit, at))
    return [found[at] for at in sorted(found)]


def number(told: str, unit: str = "", at: int = 0) -> Number:
    plain = told.replace(",", "")
    return Number(float(plain), len(plain.partition(".")[2]), unit, at)


# ---- what a cell printed -------------------------------------------------------------------------------------------


def printed(cell: dict) -> Iterator[tuple[float, str]]:
    """The numbers in a cell's outputs, with their units: of the text, and of a table its columns' and rows' units."""
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if output["output_type"] == "stream":
            yield from in_text("".join(output["text"]))
        elif "text/html" in data:
            yield from in_tables("".join(data["text/html"]))
        elif "text/plain" in data and "image/png" not in data:
            yield from in_text("".join(data["text/plain"]))


def in_text(text: str, unit: str = "") -> Iterator[tuple[float, str]]:
    for match in ALONE.finditer(text):
        value = float(match.group(1).replace(",", "")) * 10.0 ** int(match.group(2) or 0)
        after = re.match(rf"\s*({UNIT})(?![\w/])", text[match.end() :])
        yield value, after.group(1) if after else unit


def in_tables(text: str) -> Iterator[tuple[float, str]]:
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        units: list[str] = []
        for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL):
            cells = re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)
            cells = [html.unescape(re.sub(r"<[^>]+>", " ", cell)) for cell in cells]
            if "<td" not in row:
                units = [unit_named(cell) for cell in cells]
                continue
            of_row = unit_named(cells[0]) if cells else ""
            for i, cell in enumerate(cells):
                yield from in_text(cell, units[i] if i < len(units) and units[i] else of_row)
    yield from in_text(html.unescape(re.sub(r"<table.*?</table>|<[^>]+>", " ", text, flags=re.DOTALL)))


def unit_named(name: str) -> str:
    """The unit in a name: "here [us]", "copy, TB/s"."""
    match = re.search(rf"(?:\[|, |\()({UNIT})(?:\]|\)|$)", name.strip())
    return match.group(1) if match else ""


# ---- what code holds -----------------------------------------------------------------------------------------------


@cache
def literals_of(source: str) -> frozenset[float]:
    """The numbers written in code; where constants alone are reckoned with, the result too."""
    lines = [line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))]
    try:
        nodes = list(ast.walk(ast.parse("\n".join(lines))))
    except SyntaxError:
        return frozenset()
    found = {float(n.value) for n in nodes if isinstance(n, ast.Constant) and type(n.value) in (int, float)}
    for node in nodes:
        if isinstance(node, ast.BinOp) and all(
            isinstance(n, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
            or (isinstance(n, ast.Constant) and type(n.value) in (int, float))
            for n in ast.walk(node)
        ):
            found.add(float(eval(compile(ast.Expression(node), "", "eval"))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {float(m.group().replace(",", "")) for m in re.finditer(rf"(?<![\w.]){NUMBER}(?!\w)", node.value)}
    return frozenset(found)


@cache
def contract_of(exercise: str) -> tuple[frozenset[float], tuple["Number", ...]]:
    """The numbers in the code that defines an exercise, and those that its description tells."""
    files = (ROOT / "autograder/exercises" / exercise.partition(".")[0]).glob("*.py")  # compile.pass lies in fuse.py
    (source,) = (text for file in files if f'name="{exercise}"' in (text := file.read_text(encoding="utf-8")))
    return literals_of(source), tuple(numbers_in(flat(ast.get_docstring(ast.parse(source)))))


# ---- a lesson ------------------------------------------------------------------------------------------------------


BESIDE = 3  # cells of code before a text and after it, in its section


def prose(lesson: str, cells: list[dict]) -> Iterator[Cell]:
    """The cells of prose that tell numbers."""
    heading, headings = "", []
    for cell in cells:
        found = re.search(r"^##? (.*)", "".join(cell["source"]), re.MULTILINE)
        if found and cell["cell_type"] == "markdown":
            heading = found.group(1)
        headings.append(heading)
    for i, cell in enumerate(cells):
        text = flat("".join(cell["source"]))
        if cell["cell_type"] != "markdown" or not (told := numbers_in(text)):
            continue
        code = [j for j, one in enumerate(cells) if one["cell_type"] == "code" and headings[j] == headings[i]]
        near = [cells[j] for j in [j for j in code if j < i][-BESIDE:] + [j for j in code if j > i][:BESIDE]]
        promised = ()
        literals = set().union(*(literals_of("".join(one["source"])) for one in near))
        if exercise := re.search(r"Exercise \d\.\d+ `([\w.]+)`", headings[i]):
            of_code, promised = contract_of(exercise.group(1))
            literals |= of_code
        outputs = [one for cell in near for one in printed(cell)]
        yield Cell(lesson, headings[i], text, outputs, literals, promised, told)


# ---- what holds a number -------------------------------------------------------------------------------------------

TEX = [(r"\\[cd]?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))"), (r"\\tfrac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))"),
       (r"\\cdot|\\times|×|·| x (?=[\d(])", "*"), (r"\\approx|≈", "="), (r"\\,|\{|\}|\$|\\", " "), (r"\^", "**"),
       (r"(?<=\d),(?=\d{3}(?!\d))", ""), (rf"(?<=\d)\s*-?(?:{UNIT})(?![\w/])(?!\s*[(\d])", "")]  # fmt: skip
SUM = re.compile(r"((?:[\d.()]|\s|[-+*/])*[-+*/](?:[\d.()]|\s|[-+*/])*\d[\d.)\s]*)=\s*([\d.]*\d)")


def results_in(text: str) -> Iterator[tuple[float, str]]:
    """What a text itself reckons: of "2 x 3 = 6" the 6, if it is right."""
    for pattern, by in TEX:
        text = re.sub(pattern, by, text)
    for match in SUM.finditer(text):
        for start in range(len(match.group(1))):
            try:
                value = eval(match.group(1)[start:].strip(), {"__builtins__": {}})
            except (SyntaxError, TypeError, ZeroDivisionError, OverflowError):
                continue
            yield float(value), match.group(2)
            break


def is_reckoned(told: Number, cell: Cell) -> bool:
    """Whether the number is the result of a sum or product of numbers written before it in its sentence."""
    sentence = cell.text[max(0, told.at - 200) : told.at + 20]
    return any(number(said).value == told.value and number(said).is_rounded(v) for v, said in results_in(sentence))


def is_printed(told: Number, cell: Cell) -> bool:
    """Whether a cell beside it printed the number, in a unit of its kind, rounded as it is told."""
    dimension = SCALE.get(told.unit, ("", 1.0))[0]
    if told.digits < 2:
        return False  # one digit may be any number's
    for value, unit in cell.outputs:
        if dimension == "share" and not unit and 0 < value < 1:
            unit = "of 1"
        if SCALE.get(unit, ("", 1.0))[0] == dimension and told.is_rounded(value, unit or "times"):
            return True
    return False


def is_literal(told: Number, cell: Cell) -> bool:
    """Whether the code beside it has the number: 0.2, 0.8 or 1.2 for 20 %, 200e-6 for 200 us, or as it is told."""
    _, scale = SCALE.get(told.unit, ("", 1.0))
    values = [told.value * scale] if scale != 1 else []
    if told.unit == "%":
        values += [1 - told.value * scale, 1 + told.value * scale]  # within 10 %: 0.9 and 1.1
    if told.digits > 2 or told.decimals > 1 or (told.decimals and told.digits > 1):
        values.append(told.value)  # fewer digits stand in any code
    return any(isclose(value, other, rel_tol=1e-9) for value in values for other in cell.literals)


def is_promised(told: Number, cell: Cell) -> bool:
    """Whether the exercise's own description has the number, in the same unit."""
    alike = [one for one in cell.promised if bool(one.unit) == bool(told.unit)]
    return any(told.is_rounded(one.value, one.unit or "times") for one in alike)
