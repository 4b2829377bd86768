import math

import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch, Rectangle, Wedge

from course_lib import plots
from course_lib.plots.rotation import frequencies, places, score


def kinds(ax, kind):
    return [patch for patch in ax.patches if isinstance(patch, kind)]


def numbers(ax):
    """What stands in the cells of the two rows, from the left."""
    cells = sorted((t.get_position()[1], t.get_position()[0], t.get_text()) for t in ax.texts if t.get_text().isdigit())
    half = len(cells) // 2
    return [int(text) for _, _, text in cells[:half]], [int(text) for _, _, text in cells[half:]]


def test_pairs_lie_half_a_row_apart_or_side_by_side():
    assert places(6, "halves") == [(0, 3), (1, 4), (2, 5)]
    assert places(6, "interleaved") == [(0, 1), (2, 3), (4, 5)]


def test_the_map_numbers_the_elements_by_their_pair_and_hatches_the_rest():
    ax = plots.pair_map(10, 6)
    assert numbers(ax) == ([0, 1, 2, 0, 1, 2], [0, 0, 1, 1, 2, 2])
    assert sum(bool(cell.get_hatch()) for cell in kinds(ax, Rectangle)) == 2 * 4
    assert len(kinds(ax, FancyArrowPatch)) == 6
    assert "the first 6 of 10" in " ".join(ax.get_title(loc="left").split())


def test_the_first_pair_turns_by_one_radian_and_the_others_ever_more_slowly():
    turns = frequencies(8, 100.0)
    assert turns[0] == 1.0 and turns == pytest.approx([1.0, 100**-0.25, 0.1, 100**-0.75])


def test_wedges_are_as_wide_as_the_distance_and_do_not_move_with_both_positions():
    turns = np.array([0.5, 0.1])

    def widths(m, n):
        return [patch.theta2 - patch.theta1 for patch in kinds(plots.dials([(m, n)], turns), Wedge)]

    assert widths(5, 3) == pytest.approx(np.degrees([1.0, 0.2]))
    assert widths(105, 103) == pytest.approx(widths(5, 3))
    assert widths(3, 5) == pytest.approx(widths(5, 3))
    assert widths(9, 1) == pytest.approx(np.degrees([4.0, 0.8]) * [-1, 1] + [360, 0])  # the short way round


def test_the_score_is_a_sum_of_cosines():
    assert score(0, frequencies(8)) == 4.0
    assert score(3, np.array([1.0, 0.5])) == pytest.approx(math.cos(3) + math.cos(1.5))


def test_the_figure_says_the_distance_and_the_score():
    words = [text.get_text() for text in plots.dials([(7, 2)], frequencies(4)).texts]
    assert "query at 7\nkey at 2" in words
    assert f"distance 5\nscore {score(5, frequencies(4)):.2f} of 2" in words


def test_the_explorer_says_what_its_sliders_show(monkeypatch):
    widgets = pytest.importorskip("course_lib.widgets", reason="needs ipywidgets, and this machine has none")
    monkeypatch.setattr(widgets.explorer, "png", lambda axes: b"")
    explorer = widgets.rotation_explorer()
    explorer.controls["query"].value = explorer.controls["key"].value
    assert explorer.words.value == (
        "Distance 0: two equal vectors score 8.00 of 8. More than a quarter turn apart: 0 of 8 pairs."
    )
    explorer.controls["base"].value = 10
    explorer.controls["query"].value += 2
    assert "Distance 2: " in explorer.words.value and explorer.words.value.endswith("apart: 1 of 8 pairs.")
    assert len([text for text in explorer.still().texts if text.get_text().startswith("distance 3\n")]) == 3
