"""Who may import whom among the kernels: a ground floor, operations that know nothing of each other, compositions."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import course_lib.kernels
from course_lib.device import TIER  # noqa: F401  before triton

FOLDER = Path(course_lib.kernels.__file__).parent
PREFIX = "course_lib.kernels."
GROUND = {
    "angles",
    "columns",
    "descriptors",
    "fitting",
    "hardware",
    "launching",
    "philox",
    "rings",
    "strides",
}
GROUND |= {"product_copies", "product_parts", "product_routes", "product_tiles", "product_wide"}
COMPOSED = "mlp"  # of public functions of other operations
TIMED = "timed"  # of launchers, in the shape in which an exercise asks for them; nothing else imports it
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py") if path.parent != FOLDER)
FILES += sorted(path.name for path in FOLDER.glob("*.py") if path.stem != "__init__")


def room(module: str) -> str:
    """course_lib.kernels.mx.tuning -> mx"""
    return module.removeprefix(PREFIX).partition(".")[0]


def imports(file: str) -> set[tuple[str, str]]:
    """(module, name) of all that a file takes from the course, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / file).read_text())):
        if isinstance(node, ast.Import):
            found |= {(one.name, "") for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            below = f"{node.module}." if node.module == "course_lib.kernels" else ""
            found |= {(below + one.name if below else node.module, "" if below else one.name) for one in node.names}
    return {
        (module, name) for module, name in found if module.split(".")[0] in ("course_lib", "autograder", "benchmarks")
    }


@pytest.mark.parametrize("file", FILES)
def test_a_kernel_needs_nothing_of_the_course_but_kernels(file):
    assert all(module.startswith(PREFIX) for module, _ in imports(file)), imports(file)


@pytest.mark.parametrize("file", FILES)
def test_an_operation_imports_from_the_ground_floor_and_itself_alone(file):
    own = room(file.removesuffix(".py").replace("/", "."))
    if own == TIMED:
        return
    for module, name in imports(file):
        other = room(module)
        if own == COMPOSED and other not in GROUND:
            assert module == PREFIX + other, f"{module} is a part of {other}"
            assert name in import_module(module).__all__, f"{module} does not offer {name}"
        else:
            assert other in GROUND | (set() if own in GROUND else {own}), f"{file} imports {module}"


def test_the_ground_floor_is_what_several_rooms_use_and_is_told_in_one_place():
    assert all((FOLDER / f"{name}.py").is_file() for name in GROUND)
    told = {line.split()[0] for line in course_lib.kernels.__doc__.splitlines() if line.startswith("    ")}
    assert told == GROUND


def test_an_import_that_crosses_is_seen(tmp_path, monkeypatch):
    (tmp_path / "rope.py").write_text("def f():\n    from course_lib.kernels.attention.rows import split\n")
    (tmp_path / "mlp.py").write_text("from course_lib.kernels.linear_gelu import tuning\n")
    (tmp_path / "mx.py").write_text("from course_lib import timing\n")
    monkeypatch.setattr("tests.kernels.test_floors.FOLDER", tmp_path)
    for file in ("rope.py", "mlp.py"):
        with pytest.raises(AssertionError):
            test_an_operation_imports_from_the_ground_floor_and_itself_alone(file)
    with pytest.raises(AssertionError):
        test_a_kernel_needs_nothing_of_the_course_but_kernels("mx.py")


def parameters(kernel: ast.FunctionDef) -> int:
    """How many arguments a launch of this kernel gives at run time: all but constants."""
    return sum("constexpr" not in ast.dump(one.annotation) if one.annotation else 1 for one in kernel.args.args)


def kernels(file: str) -> list[ast.FunctionDef]:
    found = [node for node in ast.parse((FOLDER / file).read_text()).body if isinstance(node, ast.FunctionDef)]
    return [node for node in found if node.name.endswith("_kernel")]


def test_no_launch_takes_more_than_25_arguments_at_run_time():
    """Each costs the host a quarter of a microsecond, and a reader more: strides go as a tuple."""
    counts = {f"{file}:{one.name}": parameters(one) for file in FILES for one in kernels(file)}
    assert len(counts) > 20 and {name: count for name, count in counts.items() if count > 25} == {}
