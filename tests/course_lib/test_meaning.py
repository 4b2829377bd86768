"""The meaning of code: what makes a recorded measurement old, and what does not."""

import ast
from types import SimpleNamespace

import pytest

from course_lib import meaning as module
from course_lib.meaning import ROOT, meaning, meaning_in_order, reached

CODE = '''"""What it does."""

import math

LIMIT = 3e-3  # measured


def area(radius):
    """Of a circle."""
    if radius < 0:
        raise ValueError("A radius is not negative.")
    return math.pi * radius**2
'''


@pytest.fixture
def means(tmp_path):
    def told(*sources, facts=()):
        paths = [tmp_path / f"{number}.py" for number in range(len(sources))]
        for path, source in zip(paths, sources, strict=True):
            path.write_text(source)
        return meaning(paths, facts=facts)

    return told


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("What it does", "What it is for"),
        ("  # measured", ""),
        ("Of a circle", "The area of a circle"),
        ("A radius is not negative.", "A radius is at least 0."),
        ("import math\n", "import math\nimport sys\n"),
        ("    if radius < 0:\n", "    if (radius\n            < 0):\n"),
    ],
)
def test_words_and_layout_change_no_meaning(means, old, new):
    assert old in CODE and means(CODE.replace(old, new)) == means(CODE)


@pytest.mark.parametrize(
    ("old", "new"), [("3e-3", "2e-3"), ("**2", "**3"), ("radius < 0", "radius <= 0"), ("LIMIT", "MOST")]
)
def test_numbers_operators_and_names_do(means, old, new):
    assert old in CODE and means(CODE.replace(old, new)) != means(CODE)


def test_a_definition_may_move_to_another_file_and_to_another_place(means):
    head, _, body = CODE.partition("def area")
    assert means(head, "import math\n\n\ndef area" + body) == means(CODE)
    assert means(CODE + "\n\nFAST = 1\nSLOW = 2\n") == means("SLOW = 2\nFAST = 1\n" + CODE)
    assert means(CODE, facts=["9 points"]) != means(CODE)


def test_two_blank_lines_inside_a_definition_or_a_string_are_not_its_end(means):
    inside = 'def area(radius):\n    """Of\n\n\na circle."""\n\n\n    return """3\n\n\n4"""\n'
    assert means(inside.replace("a circle", "one circle")) == means(inside)
    assert means(inside.replace("3\n\n\n4", "3\n\n4")) != means(inside)
    assert means(inside) == "bfcb104c9cd9"  # as when files were read whole


def test_the_empty_piece_that_python_3_12_puts_into_a_format_means_nothing(means, monkeypatch):
    """f"{x:.{n}}": recorded on one machine and looked at on another, it made everything that holds one look old."""
    source, parse = 'def told(x, n):\n    return f"{x:.{n}}"\n', ast.parse

    def as_3_12(text):
        tree = parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.FormattedValue) and node.format_spec:
                node.format_spec.values.append(ast.Constant(""))
        return tree

    want = means(source)
    module._in_part.cache_clear()
    monkeypatch.setattr(module, "ast", SimpleNamespace(**vars(ast) | {"parse": as_3_12}))
    assert means(source) == want
    module._in_part.cache_clear()
    assert means(source.replace(":.", ":")) != want


CELLS = ["from course_lib.trace import outermost\n\nx = 2  # measured", 'print("A sentence.", outermost(x))']


@pytest.mark.parametrize(
    ("old", "new"),
    [("course_lib.trace", "course_lib.profiling.trace"), ("measured", "counted"), ("A sentence.", "Another one.")],
)
def test_a_lesson_means_the_same_with_other_words_and_where_a_file_was_moved(old, new):
    assert meaning_in_order([cell.replace(old, new) for cell in CELLS]) == meaning_in_order(CELLS) == "b8906f05aa76"


@pytest.mark.parametrize(
    ("old", "new"),
    [("print(", "id("), ("import outermost", "import inner as outermost"), ("course_lib.trace", "torch"), ("x)", "2)")],
)
def test_a_lesson_means_something_else_where_a_statement_or_an_imported_name_differs(old, new):
    assert meaning_in_order([cell.replace(old, new) for cell in CELLS]) != meaning_in_order(CELLS)
    assert meaning_in_order(reversed(CELLS)) != meaning_in_order(CELLS)


def test_what_a_file_reaches_goes_through_packages_and_imports_inside_functions(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for path, text in {
        "bench.py": "from lib.kernels import norm\nimport lib.device\n",
        "lib/device.py": "",
        "lib/kernels/norm/__init__.py": "def go():\n    from lib.kernels.rings import ring\n",
        "lib/kernels/rings.py": "",
        "lib/kernels/other.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = reached(tmp_path / "bench.py", ["lib/kernels"])
    names = [str(path.relative_to(tmp_path)) for path in found]
    assert names == ["lib/kernels/norm/__init__.py", "lib/kernels/rings.py"]


def test_the_attention_benchmark_depends_on_its_kernels_and_on_no_others():
    found = {str(path.relative_to(ROOT)) for path in reached(ROOT / "benchmarks/attention.py", ["course_lib/kernels"])}
    assert any("attention" in path for path in found)
    assert not any("rope" in path or "mx" in path for path in found)


def test_the_hash_is_the_same_in_every_version_of_python(means):
    """Recorded on a machine with one version, compared on machines with others."""
    assert means(CODE) == "4e242e1b1a69"
