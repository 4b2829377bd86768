import io

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from course_lib import plots
from course_lib.attention_tiles import online


def numbers(ax) -> dict[tuple[float, float], str]:
    """Where on the map the turns are written."""
    return {text.get_position(): text.get_text() for text in ax.texts if text.get_text().isdigit()}


def words(ax) -> str:
    return "\n".join(text.get_text() for text in ax.figure.findobj(Text))


def test_a_program_that_owns_queries_visits_its_row_from_the_left():
    ax = plots.block_map(8, 8, 4, 4, causal=True, walk="rows")
    assert numbers(ax) == {(2, 2): "1", (2, 6): "1", (6, 6): "2"}
    assert ax.get_title(loc="left").split() == "Of 4 tiles 2 need the mask and 1 is skipped".split()


def test_a_program_that_owns_keys_visits_its_column_from_the_diagonal_down():
    assert numbers(plots.block_map(8, 8, 4, 4, causal=True, walk="columns")) == {
        (2, 2): "1",
        (2, 6): "2",
        (6, 6): "1",
    }


def test_only_kinds_that_are_there_are_explained():
    assert "skipped" not in words(plots.block_map(8, 8, 4, 4))
    assert "none needs a mask" in " ".join(words(plots.block_map(8, 8, 4, 4)).split())
    assert "skipped: never loaded" in words(plots.block_map(8, 8, 4, 4, keys=4))
    assert "never loaded" not in words(plots.block_map(8, 8, 4, 4, keys=4, legend=False, title="map"))


def test_a_walk_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="rows"):
        plots.block_map(8, 8, 4, 4, walk="diagonal")


def test_a_large_map_draws_no_single_pairs():
    assert len(plots.block_map(8, 8, 4, 4).lines) == 1
    assert len(plots.block_map(64, 64, 16, 16).lines) == 0


def test_the_steps_of_a_row_say_its_maximum_its_factor_and_its_sum():
    scores = np.array([0.0, 1.0, 3.0, -np.inf])
    ax = plots.online_steps(scores, online(scores, np.ones((4, 1)), 2), 2)
    assert "max 1.00, factor 0.00" in words(ax) and "max 3.00, factor 0.14" in words(ax) and "sum 1.19" in words(ax)
    assert "The maximum rises once" in words(ax)


def test_a_row_without_any_key_can_be_drawn():
    scores = np.full(4, -np.inf)
    assert "sum 0.00" in words(plots.online_steps(scores, online(scores, np.ones((4, 1)), 2), 2))


@pytest.mark.parametrize(
    "ax", [plots.block_map(10, 14, 4, 4, causal=True), plots.block_map(5, 30, 4, 4, title="x " * 60)]
)
def test_nothing_is_drawn_outside_the_picture(ax):
    with plots.style():
        ax.figure.savefig(drawing := io.BytesIO(), dpi=60)
    with Image.open(drawing) as picture:
        pixels = np.asarray(picture.convert("L"))
    assert min(pixels[0].min(), pixels[-1].min(), pixels[:, 0].min(), pixels[:, -1].min()) == 255
