"""Explorers without a kernel: their JavaScript, run by Node, says of every state what Python says."""

import itertools
import json
import random
import re
import shutil
import subprocess

import pytest

pytest.importorskip("ipywidgets", reason="needs ipywidgets, and this machine has none")

from course_lib import widgets
from course_lib.roofline import Roof
from course_lib.widgets import live

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs Node, which runs JavaScript without a browser")
ROOFS = [
    Roof("bf16", 680e12, 4.22e12, 7e-6),
    Roof("tf32", 340e12, 4.22e12, 7e-6),
    Roof("fp32", 51e12, 4.22e12, 7e-6),
]
MAKE = {
    "roofline": lambda: widgets.roofline_explorer(ROOFS),
    "regime": lambda: widgets.regime_explorer(ROOFS[-1]),
    "break_even": widgets.break_even_explorer,
    "buckets": widgets.bucket_explorer,
    "rotation": widgets.rotation_explorer,
    "formats": widgets.format_explorer,
    "mx_bits": widgets.mx_bit_editor,
    "memory": widgets.memory_explorer,
}
NUMBERS = [0.0, -0.0, 0.01, 1.0, -1.0, 1.5, 3.0, 240.0, 448.0, 464.0, 465.0, 1 / 3, 65504.0, 65519.9, 65520.0]
NUMBERS += [-1e30, 3.4e38, 3.5e38, 5e-324, 1.0625, 1.1875, 7e-10]
# More states than this are drawn at random; `make test ALL=1` takes them all where they can be counted (a step of
# training has 318 million).
FEW = 1000
RUN = """
const { numbers } = await import(process.argv[1]);
let given = "";
for await (const part of process.stdin) given += part;
const { data, states } = JSON.parse(given);
process.stdout.write(JSON.stringify(states.map((state) => numbers(state, data))));
"""


@pytest.fixture(scope="module")
def explorers():
    return {name: make() for name, make in MAKE.items()}


def in_node(module: str, data: dict, states: list[dict]) -> list[dict]:
    path = (live.MODULES / f"{module}.mjs").as_uri()
    said = subprocess.run(
        [NODE, "--input-type=module", "--eval", RUN, path],
        input=json.dumps({"data": data, "states": states}), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def values(control: dict) -> list:
    if control["kind"] == "range":
        return list(range(control["low"], control["high"] + 1))
    return {"tick": [False, True], "number": NUMBERS}.get(control["kind"]) or control["options"]


def states_of(explorer, most: int) -> list[dict]:
    """All of them, or so many at random, the ends of every control among them."""
    controls = {given["name"]: values(given) for given in explorer.spec()["controls"]}
    count = 1
    for each in controls.values():
        count *= len(each)
    if count <= most:
        return [dict(zip(controls, state)) for state in itertools.product(*controls.values())]
    drawn = random.Random(7)
    ends = itertools.product(*((each[0], each[-1]) for each in controls.values()))
    found = [dict(zip(controls, state)) for state in ends]
    return found + [{name: drawn.choice(each) for name, each in controls.items()} for _ in range(most)]


def apart(python, browser) -> float:
    """How far two answers are from each other: infinity where they differ in kind or in words."""
    if isinstance(python, dict):
        same = isinstance(browser, dict) and python.keys() == browser.keys()
        return max((apart(python[key], browser[key]) for key in python), default=0.0) if same else float("inf")
    if isinstance(python, list | tuple):
        same = isinstance(browser, list) and len(python) == len(browser)
        return max(map(apart, python, browser), default=0.0) if same else float("inf")
    if isinstance(python, bool | str | None) or isinstance(browser, bool | str | None):
        return 0.0 if python == browser and type(python) is type(browser) else float("inf")
    return abs(python - browser) / max(abs(python), abs(browser), 1.0) if python != browser else 0.0


def compare(explorer, states: list[dict]) -> tuple[float, int]:
    """(the largest distance, how many states are equal to the last bit). Words must be the same."""
    farthest = equal = 0
    for start in range(0, len(states), 20_000):
        some = states[start : start + 20_000]
        for state, said in zip(some, in_node(explorer.alone.module, explorer.alone.data(), some), strict=True):
            expected = explorer.alone.numbers(**state)
            off = apart(expected, said)
            assert off < 1e-12, (state, expected, said)
            farthest, equal = max(farthest, off), equal + (off == 0)
    return farthest, equal


SLOWLY = pytest.param("memory", marks=pytest.mark.slow)  # 36 accounts of 50 to 150 operators


@needs_node
@pytest.mark.parametrize("name", [SLOWLY if name == "memory" else name for name in MAKE])
def test_the_browser_says_of_every_state_what_python_says(explorers, name):
    states = states_of(explorers[name], FEW)
    farthest, equal = compare(explorers[name], states)
    # Cosines of two libraries may differ in their last bit; everything else is the same arithmetic.
    assert name == "rotation" or equal == len(states), farthest


@needs_node
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"), [("regime", 15_249), ("rotation", 202_005), ("mx_bits", 65_536), ("break_even", 933_120)]
)
def test_the_browser_says_the_same_of_all_states_that_can_be_counted(explorers, name, count):
    states = states_of(explorers[name], count)
    assert len(states) == count
    compare(explorers[name], states)


@needs_node
def test_a_module_that_reckons_otherwise_is_seen(explorers, tmp_path, monkeypatch):
    for path in live.MODULES.glob("*.mjs"):
        shutil.copy(path, tmp_path)
    text = (tmp_path / "roofline.mjs").read_text()
    (tmp_path / "roofline.mjs").write_text(text.replace("bf16: 2", "bf16: 4"))
    monkeypatch.setattr(live, "MODULES", tmp_path)
    with pytest.raises(AssertionError, match="bf16"):
        compare(explorers["roofline"], states_of(explorers["roofline"], FEW))


@needs_node
def test_numbers_are_written_as_python_writes_them():
    drawn = random.Random(3)
    numbers = [drawn.choice((-1, 1)) * drawn.random() * 10.0 ** drawn.randrange(-12, 16) for _ in range(3000)]
    numbers += [n / 2**k for n in range(1, 130) for k in range(12)]  # ties, which Python breaks to even
    numbers += [999.5, 0.9995, 9.995e-5, 1e16, 123456.5]
    forms = "general(state), general(state, 3), general(state, 1), fixed(state, 0), fixed(state, 2)"
    run = RUN.replace("{ numbers }", "{ fixed, general, quantity, short }")
    run = run.replace("numbers(state, data)", f"[{forms}, quantity(state, 's'), short(state)]")
    path = (live.MODULES / "drawing.mjs").as_uri()
    given, command = json.dumps({"data": None, "states": numbers}), [NODE, "--input-type=module", "--eval", run, path]
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    from course_lib.plots.bits import _number
    from course_lib.plots.house import quantity

    expected = [
        [f"{x:g}", f"{x:.3g}", f"{x:.1g}", f"{x:.0f}", f"{x:.2f}", quantity(x, "s"), _number(x)] for x in numbers
    ]
    assert [pair for pair in zip(json.loads(done.stdout), expected) if pair[0] != pair[1]] == []


@pytest.mark.parametrize("name", MAKE)
def test_a_module_is_one_text_that_asks_for_nothing(name):
    text = live.whole(name)
    outside = r"^import\b|\bfrom \"|\bimport\(|https?://(?!www\.w3\.org/2000/svg)|\bfetch\("
    assert not re.search(outside, text, re.MULTILINE)
    assert text.count("export default") == 1


def test_every_explorer_of_the_list_has_a_module_and_the_key_set_builder_stays_a_picture(explorers):
    assert {e.alone.module for e in explorers.values()} | {"drawing"} == {p.stem for p in live.MODULES.iterdir()}
    assert widgets.key_set_builder().alone is None


def test_what_a_page_is_given_ends_no_script(explorers):
    explorer = explorers["roofline"]
    spec = explorer.spec() | {"alt": "</script><b>"}
    assert "</script>" not in live.script("roofline", spec, "here")


# With anywidget, state goes both ways

anywidget_or_skip = pytest.mark.skipif(live._kind("roofline") is None, reason="anywidget is not installed")


@anywidget_or_skip
def test_what_the_browser_moves_python_knows_and_the_other_way_round(monkeypatch):
    drawn = []
    monkeypatch.setattr(widgets.explorer, "png", lambda axes: drawn.append(1) or b"")
    explorer = MAKE["roofline"]()
    shown = explorer.box
    assert shown.get_state()["_esm"] == live.whole("roofline")
    assert shown.state == explorer.state
    shown.set_state({"state": explorer.state | {"size": 11, "fused": True}})  # what a message of the browser does
    assert (explorer.controls["size"].value, explorer.controls["fused"].value) == (11, True)
    assert explorer.words.value.endswith("overhead is the limit.")
    explorer.controls["ops"].value = 64
    assert shown.state == explorer.state and shown.state["ops"] == 64
    assert not drawn, "the browser draws; Python has no picture to make"


@anywidget_or_skip
def test_without_anywidget_the_sliders_of_ipywidgets_move_a_picture(monkeypatch):
    monkeypatch.setattr(live, "_kind", lambda module: None)
    drawn = []
    monkeypatch.setattr(widgets.explorer, "png", lambda axes: drawn.append(1) or b"")
    explorer = MAKE["regime"]()
    explorer.controls["size"].value += 1
    assert not drawn, "nobody sees it yet"
    assert type(explorer.box).__name__ == "VBox"
    explorer.controls["size"].value += 1
    assert len(drawn) == 2
