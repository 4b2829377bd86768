import base64

import pytest

# A machine that only measures kernels may come without the notebook half of the dependencies.
ipywidgets = pytest.importorskip("ipywidgets", reason="needs ipywidgets, and this machine has none")
nbformat = pytest.importorskip("nbformat", reason="needs nbformat, and this machine has none")

from nbclient import NotebookClient  # noqa: E402
from nbconvert import HTMLExporter  # noqa: E402

from course_lib import widgets  # noqa: E402
from course_lib.roofline import Roof  # noqa: E402
from course_lib.widgets import attention_stepper, regime_explorer, roofline_explorer  # noqa: E402

BF16 = Roof("bf16", 680e12, 4.22e12, 7e-6)
FP32 = Roof("fp32", 51e12, 4.22e12, 7e-6)
VIEW = "application/vnd.jupyter.widget-view+json"


def point(explorer):
    (marker,) = [line for line in explorer.axes.lines if line.get_gid() == "point"]
    return tuple(marker.get_xydata()[0])


def term(explorer, name):
    (line,) = [line for line in explorer.axes.lines if line.get_gid() == name]
    return line


@pytest.fixture
def roofs():
    return roofline_explorer([BF16, FP32], device="NVIDIA H200")


@pytest.fixture
def regimes():
    return regime_explorer(FP32, device="NVIDIA H200")


def test_fusing_moves_the_point_right_and_up(roofs):
    x, y = point(roofs)
    roofs.controls["fused"].value = True
    assert point(roofs) == pytest.approx((16 * x, 16 * y))


def test_bf16_storage_doubles_the_intensity(roofs):
    x, y = point(roofs)
    roofs.controls["dtype"].value = "bf16"
    assert point(roofs) == pytest.approx((2 * x, 2 * y))


def test_more_multiply_adds_help_only_when_fused(roofs):
    before = point(roofs)
    roofs.controls["ops"].value = 64
    assert point(roofs) == pytest.approx(before)
    roofs.controls["fused"].value = True
    assert point(roofs)[0] == pytest.approx(64 * before[0])


def test_a_small_size_falls_below_the_roof_because_of_the_launch(roofs):
    x, y = point(roofs)
    roofs.controls["size"].value = 10
    assert point(roofs)[0] == x
    assert point(roofs)[1] < y / 100
    assert roofs.words.value.endswith("overhead is the limit.")


def test_arithmetic_stops_at_the_fp32_roof(roofs):
    roofs.controls["fused"].value = True
    roofs.controls["ops"].value = 1024
    assert point(roofs)[1] == pytest.approx(51e12)
    assert roofs.words.value == "256 FLOP/byte, 1 kernel, floor 674 µs: compute is the limit."


def test_every_position_of_the_sliders_stays_inside_the_picture(roofs):
    for name, values in {"size": (10, 30), "ops": (1, 1024)}.items():
        for value in values:
            for fused in (True, False):
                roofs.controls["fused"].value = fused
                roofs.controls[name].value = value
                x, y = point(roofs)
                (left, right), (low, high) = roofs.axes.get_xlim(), roofs.axes.get_ylim()
                assert left < x < right and low < y < high, (name, value, fused)


def test_moving_a_slider_draws_the_picture_again():
    explorer = regime_explorer(FP32)
    before = bytes(explorer.picture.value)
    explorer.controls["size"].value += 1
    after = bytes(explorer.picture.value)
    assert after.startswith(b"\x89PNG")
    assert after != before


def test_the_regime_explorer_names_the_largest_of_three_terms(regimes):
    assert regimes.words.value == "overhead 7 µs, bandwidth 124 ns, compute 2.57 ns: overhead is the limit."
    regimes.controls["size"].value = 28
    assert regimes.words.value.endswith("bandwidth is the limit.")
    regimes.controls["flops"].value = 4096
    assert regimes.words.value.endswith("compute is the limit.")
    assert term(regimes, "compute").get_linewidth() > term(regimes, "bandwidth").get_linewidth()


def test_the_launch_slider_lifts_the_plateau(regimes):
    assert set(term(regimes, "overhead").get_ydata()) == {7e-6}
    regimes.controls["launch_us"].value = 20
    assert set(term(regimes, "overhead").get_ydata()) == {point(regimes)[1]}
    assert point(regimes) == pytest.approx((2**16, 20e-6))


def test_stills_show_several_positions_at_once(roofs, regimes):
    still = roofs.still()
    assert len([line for line in still.lines if len(line.get_xdata()) == 1]) == 5
    assert len(regimes.still().get_legend().get_texts()) == 4
    assert still.figure is not roofs.axes.figure


@pytest.fixture
def stepper():
    return attention_stepper()


def words_at(stepper, **sliders):
    for name, value in sliders.items():
        stepper.controls[name].value = value
    return stepper.words.value


def test_the_stepper_ends_at_the_output_and_stays_there(stepper):
    done = words_at(stepper, query=9, done=4)
    assert done.startswith("Tile 4 of 4: ") and "Done: o = (" in done
    assert "Done" not in words_at(stepper, done=3)
    assert words_at(stepper, query=0, done=4).startswith("Tile 2 of 2: ")  # causal: the other tiles are skipped


def test_the_stepper_says_what_a_row_without_keys_holds(stepper):
    assert words_at(stepper, keys=0, done=2) == "Every tile is skipped: zeros are stored, and L = -inf."
    assert (
        words_at(attention_stepper(8, 4), query=3, done=1) == "Every tile is skipped: zeros are stored, and L = -inf."
    )
    few = attention_stepper(6, 4)  # the first two of six queries see none of the four keys, the others of their tile do
    assert words_at(few, query=1, done=1).endswith("this row has seen no key yet: max -inf, sum 0, accumulator 0.")


def test_the_frame_stands_on_the_tile_that_was_done_last(stepper):
    words_at(stepper, query=5, done=2)
    (frame,) = [patch for patch in stepper.axes.patches if patch.get_gid() == "here"]
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((4, 4), 4, 4)
    words_at(stepper, done=0)
    assert not [patch for patch in stepper.axes.patches if patch.get_gid() == "here"]


def test_the_stepper_stands_still_as_one_panel_a_tile(stepper):
    titles = [ax.get_title(loc="left") for ax in stepper.still().figure.axes]
    assert [title.split("\n")[0] for title in titles[:4]] == ["tile 1", "tile 2", "tile 3", "tile 4"]


def test_the_display_holds_the_widget_and_a_still_with_alt_text(roofs):
    data, metadata = roofs._repr_mimebundle_()
    assert set(data) == {VIEW, "image/png", "text/plain"}
    assert metadata["image/png"]["alt"] == data["text/plain"] == roofs.alt
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")


CELL = """
from course_lib.roofline import Roof
from course_lib.widgets import regime_explorer
explorer = regime_explorer(Roof("fp32", 51e12, 4.22e12, 7e-6), device="NVIDIA H200")
explorer.controls["size"].value = 20
explorer
"""


@pytest.fixture(scope="module")
def executed(pytestconfig):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return NotebookClient(notebook, timeout=600, resources={"metadata": {"path": pytestconfig.rootpath}}).execute()


def test_with_ipywidgets_7_which_lack_the_method_the_display_is_the_same(roofs, monkeypatch):
    whole = roofs._repr_mimebundle_()
    monkeypatch.delattr(ipywidgets.Widget, "_repr_mimebundle_", raising=False)  # 7 has none
    assert roofs._repr_mimebundle_() == whole
    assert whole[0][VIEW]["model_id"] == roofs.box.model_id


@pytest.mark.xdist_group("executed")
def test_an_executed_notebook_keeps_widget_and_still_and_writes_nothing_to_stderr(executed):
    output, spoken = executed.cells[0].outputs
    assert "Figure: Least time against size" in spoken.data["text/html"]
    assert set(output.data) == {VIEW, "image/png", "text/plain"}
    assert (
        output.data[VIEW]["model_id"] in executed.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    )


@pytest.mark.xdist_group("executed")
def test_a_reader_without_widget_state_sees_the_still_with_its_alt_text(executed):
    plain = nbformat.from_dict(executed)
    del plain.metadata["widgets"]
    html, _ = HTMLExporter(template_name="lab").from_notebook_node(plain)
    assert executed.cells[0].outputs[0].data["image/png"].strip()[:60] in html.replace("\n", "")
    assert "Figure: Least time against size" in html
    assert executed.cells[0].outputs[0].data[VIEW]["model_id"] not in html


def test_public_names_are_sorted():
    assert widgets.__all__ == sorted(widgets.__all__)


def test_a_longer_compilation_moves_break_even_out_and_no_gain_never_pays():
    explorer = widgets.break_even_explorer()
    assert "paid back after" in explorer.words.value
    before = explorer.axes.get_xlim()[1]
    explorer.controls["shapes"].value = 3
    assert explorer.axes.get_xlim()[1] == pytest.approx(3 * before)
    explorer.controls["percent"].value = 0
    assert "never pays" in explorer.words.value


@pytest.fixture
def keys():
    return widgets.key_set_builder()


def test_the_key_set_builder_shows_what_torch_gives_and_a_required_gradient_changes_nothing(keys):
    plain = keys.words.value
    assert "AutogradCPU, ADInplaceOrView, BackendSelect, CPU. Excluded: AutocastCPU." in plain
    keys.controls["requires_grad"].value = True
    keys.controls["no_grad"].value = True
    assert keys.words.value == plain
    keys.controls["inference_mode"].value = True
    assert keys.words.value.endswith("ADInplaceOrView, BackendSelect, CPU. Excluded: AutocastCPU, AutogradCPU.")


def test_every_fact_of_the_key_set_builder_moves_its_picture(keys):
    titles = {keys.axes.get_title(loc="left")}
    for name, value in {"operator": "matmul(x, y)", "kind": "sparse", "dispatch_mode": True, "vmap": True}.items():
        keys.controls[name].value = value
        titles.add(keys.axes.get_title(loc="left"))
    assert len(titles) == 5
    assert keys.axes.get_ylim()[0] == 10.5  # nothing jumps


def test_the_still_of_the_key_set_builder_has_a_column_for_every_fact(keys):
    columns = [label.get_text() for label in keys.still().get_xticklabels()]
    assert {"a gradient is required", "on meta", "vmap", "a fake tensor", "in its handler"} <= set(columns)
    assert len(columns) == 15
