"""The picture of groups that share a scale: which boxes are past the end, and which scales a tile needs."""

from matplotlib.patches import Rectangle

from course_lib import plots
from course_lib.plots.house import PALETTE


def boxes(axes, keep):
    return [p for p in axes.patches if isinstance(p, Rectangle) and keep(p)]


def hatched(patch) -> bool:
    return patch.get_hatch() is not None


def scales(patch) -> bool:
    red, green, blue = (int(PALETTE[1][i : i + 2], 16) / 255 for i in (1, 3, 5))
    return patch.get_edgecolor()[:3] == (red, green, blue)


def test_a_tile_has_a_scale_for_each_of_its_groups_and_none_past_the_end():
    table, block = plots.group_tiles(476, 32, 16, 4, 8).axes
    assert len(boxes(table, scales)) == 4
    assert len(boxes(block, scales)) == 3, "groups 12 to 14; there is no group 15"


def test_what_lies_past_the_end_is_hatched():
    table, block = plots.group_tiles(476, 32, 16, 4, 8).axes
    # of the table: 4 places of group 14, all of group 15, and the scale that is none
    assert sorted(p.get_height() for p in boxes(table, hatched)) == [2, 4, 32]
    # of the block: 4 elements of one thread, 8 of each of four, and the scale
    assert sorted(p.get_width() for p in boxes(block, hatched)) == [3, 4, 8, 8, 8, 8]


def test_every_thread_is_named_with_the_coordinates_of_its_first_element():
    block = plots.group_tiles(512, 32, 32, 4, 8).axes[1]
    said = [text.get_text() for text in block.texts]
    assert said[:2] == ["thread 0", "(12, 0)"] and said[-2:] == ["thread 15", "(15, 24)"]
