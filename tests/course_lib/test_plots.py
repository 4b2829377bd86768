import base64
import io
from itertools import pairwise
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from course_lib import plots
from course_lib.plots import house
from course_lib.plots.errormap import _pooled, _rectangles
from course_lib.profiling.families import Family
from course_lib.roofline import Roof, Work, floor_s

H200 = Roof("bf16", 680e12, 4.22e12, 7e-6)
FP32 = Roof("fp32", 51e12, 4.22e12, 7e-6)
SIZES = [2**k for k in range(10, 28, 2)]


def add(n):
    return Work(n, 12 * n)


def timed(median):
    return SimpleNamespace(
        median_s=median, low_s=0.99 * median, high_s=1.01 * median, p10_s=0.95 * median, p90_s=1.2 * median
    )


def words(ax) -> str:
    """All text of a figure, in one string."""
    return "\n".join(t.get_text() for t in ax.figure.findobj(Text))


BY_FAMILY = [
    Family(phase, family, 3, 10**9, seconds, floor)
    for phase in ("forward", "backward")
    for family, seconds, floor in (("attention", 3e-3, 1e-3), ("norms", 1e-3, 2e-3), ("own operators", 2e-3, None))
]
FASTER = [(name, {"forward": s, "backward": 2 * s}) for name, s in (("naive", 4e-3), ("worse", 5e-3), ("ours", 1e-3))]

FIGURES = {
    "roofline": lambda **k: plots.roofline([H200, FP32], [("add", Work(1e9, 12e9), 3e-3, "fp32")], **k),
    "regimes": lambda **k: plots.regimes(SIZES, [floor_s(add(n), FP32) for n in SIZES], FP32, add, **k),
    "regimes without a roof": lambda **k: plots.regimes(SIZES, {"a": SIZES, "b": SIZES}, **k),
    "sweep": lambda **k: plots.sweep(SIZES, {"a": SIZES, "b": SIZES}, unit="B/s", ceiling=("copy", 4e12), **k),
    "repeat_curve": lambda **k: plots.repeat_curve([1, 2, 3], [1, 1, 1.5], memory_s=1, one_s=0.5, **k),
    "timing": lambda **k: plots.timing({"ours": timed(7e-5), "eager": timed(2e-4)}, 6e-5, **k),
    "against_floor": lambda **k: plots.against_floor([("n = 3", 2e-5, 1e-5, 1.5e-5), ("n", 1, 1, None)], **k),
    "histogram": lambda **k: plots.histogram({"a": [1, 2, 3], "b": [2, 2]}, xlabel="ulp", **k),
    "timeline": lambda **k: plots.timeline({"host": [(0, 1, "launch")], "GPU": [(0.5, 2, "matmul")]}, **k),
    "families": lambda **k: plots.families(BY_FAMILY, **k),
    "waterfall": lambda **k: plots.waterfall(FASTER, 2e-3, **k),
    "waterfall without a floor": lambda **k: plots.waterfall(FASTER, **k),
    "error_map": lambda **k: plots.error_map(torch.ones(3, 4), torch.zeros(3, 4), 0.5, **k),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_message_named_axes_and_the_device(name):
    ax = FIGURES[name](title="The message", device="NVIDIA H200")
    assert ax.get_title(loc="left") == "The message"
    assert ax.get_xlabel() and (ax.get_ylabel() or ax.get_yticklabels())
    assert "NVIDIA H200" in words(ax)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_drawn_on_axes_that_are_given(name):
    with plots.style():
        _, (left, right) = plots.figure(12, 4, columns=2)
    assert FIGURES[name](ax=right, title="here") is right
    assert not left.get_title(loc="left")


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_drawn_outside_the_picture(name):
    ax = FIGURES[name](title="A message that is long enough to need a second line " * 2, device="NVIDIA H200")
    with plots.style():
        ax.figure.savefig(drawing := io.BytesIO(), dpi=60)
    with Image.open(drawing) as picture:
        pixels = np.asarray(picture.convert("L"))
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert edge.min() == 255


def test_the_house_style_stays_inside_its_context():
    before = dict(matplotlib.rcParams)
    for draw in FIGURES.values():
        draw(title="t")
    assert dict(matplotlib.rcParams) == before


def test_the_same_data_gives_the_same_picture():
    first, second = (plots.png(FIGURES["timing"]()) for _ in range(2))
    assert first == second


def test_the_smaller_palette_keeps_every_colour():
    points = [(f"point {i}", Work(10.0**i, 1), 10.0**i / 1e12) for i in range(5)]
    figure = plots.roofline([H200, FP32], points).figure
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # so that drawing twice gives the same picture
    with plots.style():
        figure.savefig(full := io.BytesIO(), dpi=144)
    with Image.open(full) as wanted, Image.open(io.BytesIO(plots.png(figure))) as got:
        far = np.asarray(wanted.convert("RGB")).astype(int) - np.asarray(got.convert("RGB"))
    assert np.abs(far).max() <= 3


def test_series_differ_by_marker_and_line_and_not_only_by_colour():
    for options in (plots.MARKERS, plots.LINES, plots.HATCHES, plots.PALETTE):
        assert len(set(options)) == 8


def test_quantities_have_three_digits_and_a_prefix():
    assert plots.quantity(7.123e-5, "s") == "71.2 µs"
    assert plots.quantity(6.8e14, "FLOP/s") == "680 TFLOP/s"
    assert plots.quantity(999.9e-6, "s") == "1 ms"
    assert plots.quantity(0, "s") == "0 s"
    assert plots.quantity(1e-15, "s") == "0.001 ps"
    assert plots.quantity(-2000) == "-2 k"


def test_roofline_writes_the_share_of_the_roof_that_a_point_is_measured_against():
    work = Work(flops=1e12, bytes=1e9)
    ax = plots.roofline([H200, FP32], [("fast", work, 2e12 / 680e12 / 2), ("slow", work, 2 * 1e12 / 51e12, "fp32")])
    assert "fast, 100 %" in words(ax)
    assert "slow, 50 %" in words(ax)
    assert ax.get_title(loc="left") == "From 50 % of the roof (slow) to 100 % (fast)"


def test_roofline_puts_points_where_their_work_and_time_say():
    ax = plots.roofline(H200, [("p", Work(2e12, 1e10), 1e-2)])
    assert [200.0, 2e14] in [line.get_xydata()[0].tolist() for line in ax.lines if len(line.get_xdata()) == 1]


def test_a_point_without_a_time_is_hollow_on_the_roof_and_claims_no_share():
    ax = plots.roofline(H200, [("guess", Work(10, 1))])
    (point,) = [line for line in ax.lines if len(line.get_xdata()) == 1]
    assert point.get_xydata().tolist() == [[10, 42.2e12]]
    assert point.get_markerfacecolor() == "white"
    assert "guess" in words(ax) and "guess," not in words(ax)


def test_a_point_without_arithmetic_is_refused_because_the_axis_is_logarithmic():
    with pytest.raises(ValueError, match="'copy' has no place on a log axis"):
        plots.roofline(H200, [("copy", Work(0, 8), 1e-3)])


def test_a_point_whose_time_is_a_difference_below_zero_is_refused():
    with pytest.raises(ValueError, match=r"'backward' took -0\.001 s"):
        plots.roofline(H200, [("backward", Work(8, 8), -1e-3)])


def test_a_label_beside_the_right_edge_stands_nearest_to_its_own_marker():
    matmul, attention = Work(2 * 8192**3, 6 * 8192**2), Work(72 * 2**30, 72 * 2**23)
    points = [("copy", add(2**27), 380e-6), ("matmul 8192 x 8192", matmul, 1554e-6), ("attention", attention, 250e-6)]
    ax = plots.roofline([H200, FP32], points, title="The message")
    ax.figure.draw_without_rendering()
    markers = ax.transData.transform([(p[1].intensity, p[1].flops / p[2]) for p in points])
    for i, (label, *_) in enumerate(points):
        text = next(text for text in ax.texts if text.get_text().startswith(label))
        box = Text.get_window_extent(text)
        assert box.x1 <= ax.bbox.x1
        assert np.hypot(*(markers - (box.p0 + box.p1) / 2).T).argmin() == i


def test_labels_of_roofline_points_do_not_cover_one_another():
    near = [(f"kernel number {i}", Work(1e9 * (1 + 0.15 * i), 1e9), 3e-4) for i in range(4)]
    ax = plots.roofline([H200, FP32], near)
    ax.figure.draw_without_rendering()
    boxes = [Text.get_window_extent(t) for t in ax.texts if t.get_text().startswith("kernel")]
    boxes.append(ax.get_legend().get_window_extent())
    assert len(boxes) == 5
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_regimes_names_the_stretches_and_where_they_change():
    ax = plots.regimes(SIZES, [floor_s(add(n), FP32) for n in SIZES], FP32, add)
    assert ax.get_title(loc="left").replace("\n", " ").startswith("Overhead sets the time up to 2.4")
    assert {"overhead", "bandwidth"} <= set(words(ax).split("\n"))


def test_regimes_names_no_limit_that_lies_below_the_axes():
    ax = plots.regimes(SIZES, [floor_s(add(n), FP32) for n in SIZES], FP32, add)
    assert [line.get_label() for line in ax.lines[1:]] == ["overhead limit", "bandwidth limit"]


def test_a_log_axis_names_its_ticks_in_one_way():
    ax = plots.sweep([1, 2, 4], [2e-4, 1e-3, 5e-3], yscale="log")
    ax.figure.draw_without_rendering()
    assert {tick.get_text() for tick in ax.get_yticklabels(minor=True)} <= {""}
    assert "500 µs" in [tick.get_text() for tick in ax.get_yticklabels()]


def test_a_share_that_would_round_to_nothing_keeps_a_digit():
    ax = plots.roofline(H200, [("tiny", Work(2e12, 1e10), 2)])
    assert "tiny, 0.1 %" in words(ax)


def test_regimes_without_a_roof_gives_no_answer_away():
    ax = FIGURES["regimes without a roof"]()
    assert not {"overhead", "bandwidth", "compute"} & set(words(ax).split("\n"))


def test_sweep_over_many_runs_has_a_linear_axis_and_few_markers():
    ax = plots.sweep(range(1, 501), [2.0] * 500, xlabel="run", xscale="linear")
    assert ax.get_xscale() == "linear"
    assert ax.lines[0].get_markevery() == 25
    assert ax.get_xticks()[1] - ax.get_xticks()[0] > 10


def test_repeat_curve_marks_the_corner_of_memory_and_arithmetic():
    ax = plots.repeat_curve([1, 2, 4, 8], [1, 1, 2, 4], memory_s=1, one_s=0.4)
    assert "corner at 2.5" in words(ax)
    floor = next(line for line in ax.lines if line.get_label().startswith("floor"))
    assert floor.get_xydata() == pytest.approx(np.array([[1, 1], [2.5, 1], [8, 3.2]]))


def test_timeline_counts_overlapping_spans_once():
    ax = plots.timeline({"GPU": [(0, 2, "a"), (1, 3, "b"), (5, 10, "a"), (6, 7, "c")]})
    assert "GPU\n80 % busy" in words(ax)


def test_timeline_draws_kernels_without_a_visible_gap_as_one_span_and_leaves_the_others_apart():
    ax = plots.timeline({"GPU": [(0, 1, "a"), (1.0001, 2, "a"), (2.5, 3, "a"), (3, 4, "b")]})
    assert [(bar.get_x(), bar.get_width()) for bar in ax.patches] == [(0, 2), (2.5, 0.5), (3, 1)]
    assert all(bar.get_linewidth() == 0 for bar in ax.patches)


def test_histogram_shows_shares_that_add_up_to_one():
    ax = plots.histogram({"a": [1, 2, 3, 4], "b": [2] * 100}, xlabel="error", bins=10)
    assert [sum(patch.get_data().values) for patch in ax.patches] == pytest.approx([1, 1])


def test_histogram_takes_one_repeated_value():
    plots.histogram({"a": [3, 3]}, xlabel="error", log=True)


def test_against_floor_compares_time_with_floor_and_reference():
    ax = FIGURES["against_floor"]()
    assert "20 µs, 50 % of the floor's speed" in words(ax)
    assert ax.get_title(loc="left") == "At most 2 times the floor"


def test_against_floor_covers_its_words_with_nothing():
    ax = plots.against_floor([("n", 0.9e-5, 1e-5, 0.8e-5), ("m", 1e-5, 1e-5, 1.2e-5)])
    ax.figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in ax.texts]
    right_of = ax.transData.transform((1.2, 0))[0], ax.transData.transform((1.0, 0))[0]
    assert boxes[1].x0 > right_of[0] and boxes[0].x0 > right_of[1]
    assert not any(box.overlaps(ax.get_legend().get_window_extent()) for box in boxes)


def picture(ax):
    return ax.images[0].get_array()


def test_error_map_shows_errors_in_limits():
    want = torch.zeros(2, 3, dtype=torch.float64)
    got = want.clone().half()
    got[1, 2] = 0.5
    ax = plots.error_map(got, want, 0.25)
    assert picture(ax).tolist() == [[0, 0, 0], [0, 0, 2]]
    assert ax.get_title(loc="left").replace("\n", " ") == "1 of 6 elements wrong; the worst at 2 times the limit"


def test_error_map_takes_a_limit_for_each_element():
    want = torch.zeros(2, 2)
    assert picture(plots.error_map(want + 1, want, torch.tensor([[1.0, 2], [4, 8]]))).tolist() == [
        [1, 0.5],
        [0.25, 0.125],
    ]


def test_error_map_hatches_what_is_nan():
    want = torch.zeros(4, 5)
    got = want.clone()
    got[2:, 1:] = torch.nan
    ax = plots.error_map(got, want, 1e-3)
    (hatched,) = ax.patches
    assert (hatched.get_x(), hatched.get_y(), hatched.get_width(), hatched.get_height()) == (0.5, 1.5, 4, 2)
    assert "hatched: NaN" in words(ax)


def test_error_map_treats_equal_infinities_and_wanted_nans_as_right():
    want = torch.tensor([[torch.inf, torch.nan, 1.0]])
    ax = plots.error_map(want.clone(), want, 0.0)
    assert picture(ax).tolist() == [[0, 0, 0]]
    assert not ax.patches


def test_error_map_has_ticks_and_lines_where_a_head_begins():
    for heads, ticks in ((4, [0, 75, 150, 225]), (20, [0, 225, 450, 675, 900, 1125, 1350])):
        want = torch.zeros(heads, 75, 32)
        ax = plots.error_map(want + 1, want, 0.5)
        assert ax.get_yticks().tolist() == ticks
        (lines,) = ax.collections
        assert [segment[0][1] for segment in lines.get_segments()] == [tick - 0.5 for tick in ticks[1:]]
    assert not plots.error_map(torch.ones(75, 32), torch.zeros(75, 32), 0.5).collections, "one matrix has no borders"


def test_error_map_cuts_a_long_vector_into_rows_of_64():
    want = torch.zeros(1031)
    got = want.clone()
    got[-1] = 1
    cells = picture(plots.error_map(got, want, 1e-2))
    assert cells.shape == (17, 64)
    assert cells[16, 6] > 1
    assert cells.mask[16].tolist() == [False] * 7 + [True] * 57


@pytest.mark.parametrize("shape", [(), (1,), (63,), (1, 1), (2, 3, 5), (7, 1)])
def test_error_map_takes_any_shape(shape):
    ax = plots.error_map(torch.zeros(shape), torch.zeros(shape), 1.0)
    assert np.prod(picture(ax).shape) == torch.zeros(shape).numel()


def test_error_map_takes_an_empty_tensor():
    ax = plots.error_map(torch.zeros(0, 4), torch.zeros(0, 4), 1.0)
    assert ax.get_title(loc="left") == "No elements"


def test_a_large_error_map_keeps_the_worst_element_of_each_cell():
    want = torch.zeros(700, 1000)
    got = want.clone()
    got[600, 999] = 50.0
    got[1, 1] = torch.nan
    ax = plots.error_map(got, want, 1.0)
    cells = picture(ax)
    assert max(cells.shape) <= 128
    assert cells[600 // 6, 999 // 8] == 50
    assert len(ax.patches) == 1
    assert "each cell is the worst of 6 x 8 elements" in words(ax)


def test_pooling_takes_the_largest_and_never_the_average():
    values = np.random.default_rng(0).random((37, 53))
    pooled = _pooled(values, [4, 5])
    assert pooled.shape == (10, 11)
    for i, j in np.ndindex(*pooled.shape):
        assert pooled[i, j] == values[4 * i : 4 * i + 4, 5 * j : 5 * j + 5].max()


def test_rectangles_cover_a_mask_exactly_once():
    rng = np.random.default_rng(0)
    for density in (0, 0.3, 0.9, 1):
        mask = rng.random((20, 30)) < density
        covered = np.zeros(mask.shape, int)
        for y, x, tall, wide in _rectangles(mask):
            covered[y : y + tall, x : x + wide] += 1
        assert (covered == mask).all()


def test_error_colours_darken_with_the_error_so_that_grey_print_reads():
    from course_lib.plots.errormap import _COLOURS

    lightness = [np.dot(matplotlib.colors.to_rgb(c), (0.2126, 0.7152, 0.0722)) for c in _COLOURS]
    assert all(a - b > 0.06 for a, b in pairwise(lightness))


def lanes(ax):
    return [p for p in ax.patches if not p.get_hatch()], [p for p in ax.patches if p.get_hatch()]


def test_grid_draws_each_element_once_and_hatches_the_masked_lanes():
    kept, masked = lanes(plots.grid(29, 8))
    assert (len(kept), len(masked)) == (29, 3)


def test_grid_without_a_tail_masks_nothing():
    ax = plots.grid(32, 8)
    assert lanes(ax)[1] == []
    assert ax.get_title(loc="left") == "4 programs of 8 lanes cover 32 elements exactly"


def test_grid_of_many_programs_shows_the_first_and_the_last():
    ax = plots.grid(98432, 1024)
    labels = [t.get_text() for t in ax.get_yticklabels()]
    assert labels[0] == "program 0" and labels[-1] == "program 96"
    assert "... 90 more programs ..." in words(ax)
    assert lanes(ax)[1][0].get_width() == 97 * 1024 - 98432


def test_grid_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        plots.grid(0, 8)


def test_show_sends_a_picture_with_alt_text(monkeypatch):
    sent = []
    monkeypatch.setattr("IPython.display.display", lambda *shown: sent.extend(shown))
    plots.show(FIGURES["timing"](), alt="ours < theirs")
    (data, metadata), (spoken, _) = (shown._repr_mimebundle_() for shown in sent)
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == "ours < theirs"
    assert "Figure: ours &lt; theirs</div>" in spoken["text/html"]


def test_show_prints_the_alt_text_where_there_is_no_notebook(capsys):
    plots.show(FIGURES["timing"]().figure, alt="ours is faster")
    assert capsys.readouterr().out.strip() == "ours is faster"


def test_show_insists_on_alt_text():
    with pytest.raises(ValueError, match="alt text"):
        plots.show(FIGURES["timing"](), alt=" ")


def test_figures_are_not_registered_with_pyplot():
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    assert isinstance(FIGURES["sweep"]().figure, Figure)
    assert pyplot.get_fignums() == before


def test_public_names_are_sorted():
    assert plots.__all__ == sorted(plots.__all__)
    assert house.__all__ == sorted(house.__all__)


def test_the_figure_of_speed_leaves_room_for_words_beside_long_sizes():
    sizes = "batch 4, heads 32 and 8, length 3072, head size 128, interleaved, bf16"
    ax = plots.against_floor([(sizes, 1.2e-4, 1e-4, 1.1e-4), ("halves", 1.1e-4, 1e-4, 1.1e-4)], device="NVIDIA H200")
    ax.figure.draw_without_rendering()
    around, words = ax.get_window_extent(), [Text.get_window_extent(text) for text in ax.texts]
    assert all(around.x0 < box.x0 and box.x1 < around.x1 for box in words[:2])  # the third is the device, below
    title = next(text for text in ax.findobj(Text) if text.get_text() == "At most 1.2 times the floor")
    legend = ax.get_legend().get_window_extent()
    assert around.y1 <= legend.y0 and legend.y1 < title.get_window_extent().y0


def test_families_says_which_takes_most_and_what_of_all_is_floor():
    ax = plots.families(BY_FAMILY)
    message = ax.get_title(loc="left").replace("\n", " ")
    assert message == "Attention: 50 % of the time; the floor of all is 50 % of it"
    assert words(ax).count("3 ms") == 2 and "own operators" in words(ax)


def test_waterfall_tells_of_the_fastest_step_also_where_later_ones_cost_time():
    ax = plots.waterfall([*FASTER, ("for memory", {"forward": 2e-3, "backward": 3e-3})], 2e-3)
    assert ax.get_title(loc="left") == "From 12 ms to 3 ms: 1.5 times the floor of the products"


def test_waterfall_says_what_each_step_took_away_or_added():
    ax = plots.waterfall(FASTER, 2e-3)
    assert ax.get_title(loc="left") == "From 12 ms to 3 ms: 1.5 times the floor of the products"
    assert "15 ms\n(+3 ms)" in words(ax) and "3 ms\n(−12 ms)" in words(ax)
    (outline,) = (bar for bar in ax.patches if bar.get_linestyle() == ":")  # what the last step took away
    assert outline.get_y() == pytest.approx(3e-3) and outline.get_height() == pytest.approx(12e-3)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["naive", "worse", "ours", "floor of the\nproducts"]
