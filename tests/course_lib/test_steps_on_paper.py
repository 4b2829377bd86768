"""A training step on paper, who holds what in a collective, and their pictures."""

import itertools

import pytest

from course_lib import widgets
from course_lib.distributed import Line, exposed_s
from course_lib.distributed.steps import MIB, step_on_paper
from course_lib.plots import holdings

LINE = Line(0.001, 1e-9)  # 1 ms and 1 GB/s


def test_without_overlap_everything_that_travels_is_exposed():
    step = step_on_paper([10**6] * 8, 2 * 10**6, LINE, 0.01, 0.02, overlap=False)
    assert step.buckets == (2 * 10**6,) * 4
    assert step.exposed_s == pytest.approx(4 * 0.001 + 8e6 * 1e-9)


def test_with_enough_time_only_the_last_bucket_is_exposed():
    step = step_on_paper([10**6] * 8, 2 * 10**6, LINE, 0.01, 1.0)
    assert step.exposed_s == pytest.approx(LINE.seconds(2 * 10**6))
    assert exposed_s(step.spans, 0) == pytest.approx(step.exposed_s)


def test_where_the_network_is_too_slow_it_sets_the_time_from_the_first_bucket_on():
    step = step_on_paper([10**6] * 8, 10**6, Line(0.0, 1e-6), 0.5, 0.8)
    assert step.seconds == pytest.approx(0.5 + 0.1 + 8.0)  # forward, the first gradient, eight seconds of sending


def test_what_travels_slows_computing_by_the_share_that_is_said():
    """One bucket travels for 0.1 s, in which the other half of the backward pass goes on at half its speed."""
    step = step_on_paper([10**8, 10**8], 10**8, Line(0.0, 1e-9), 0.0, 1.0, slowed=0.5)
    assert step.seconds == pytest.approx(1.0 + 0.05 + 0.1)
    quick = step_on_paper([10**8, 10**8], 10**8, Line(0.0, 1e-9), 0.0, 0.1, slowed=0.5)
    assert quick.seconds == pytest.approx(0.05 + 0.1 + 0.1)


def test_a_gradient_larger_than_a_bucket_travels_alone_and_nothing_is_lost():
    step = step_on_paper([5, 5, 30, 5], 10, LINE, 0.1, 0.1)
    assert step.buckets == (10, 30, 5)


def test_smaller_and_larger_buckets_than_the_best_cost_more():
    gradients = [MIB] * 256
    at = {
        mib: step_on_paper(gradients, mib * MIB, Line(2e-5, 1 / 3e11), 0.005, 0.003).exposed_s for mib in (1, 16, 256)
    }
    assert at[16] < at[1] and at[16] < at[256]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_ring_ends_with_everything_everywhere_and_has_one_owner_a_part_halfway(ranks):
    steps = holdings.ring_steps(ranks)
    everything = frozenset(range(ranks))
    assert len(steps) == 2 * (ranks - 1) + 1
    assert all(part == everything for row in steps[-1] for part in row)
    halfway = steps[ranks - 1]
    assert [sum(row[part] == everything for row in halfway) for part in range(ranks)] == [1] * ranks
    for before, after in itertools.pairwise(steps):
        changed = [sum(a != b for a, b in zip(*rows)) for rows in zip(before, after)]
        assert changed == [1] * ranks


def test_a_reduce_scatter_and_an_all_gather_are_an_all_reduce():
    assert holdings.AFTER["reduce-scatter"](3)[1] == holdings.own_part(3, frozenset(range(3)))
    assert holdings.AFTER["all-reduce"](3)[1] == holdings.ring_steps(3)[-1]
    assert all(
        holdings.AFTER[name](3)[0] == holdings.whole(3) for name in ("broadcast", "reduce-scatter", "all-reduce")
    )


def test_pictures_name_what_they_show_and_mark_what_came():
    words = [text.get_text() for ax in holdings.collectives(3).axes for text in ax.texts]
    words += [ax.get_title(loc="left") for ax in holdings.collectives(3).axes]
    assert {"broadcast", "all-gather", "reduce-scatter", "all-reduce", "all", "before", "after"} <= set(words)
    drawn = holdings.ring(3)
    assert [ax.get_title(loc="left") for ax in drawn.axes] == ["before", "step 1", "step 2", "step 3", "step 4"]
    assert [sum(patch.get_linewidth() == 2 for patch in ax.patches) for ax in drawn.axes] == [0, 3, 3, 3, 3]


def test_the_bucket_explorer_says_how_many_buckets_there_are_and_what_is_not_hidden():
    explorer = widgets.bucket_explorer(layers=4)
    explorer.controls["bucket_mib"].value = 1024
    assert "1 buckets" in explorer.words.value and "100% of that" in explorer.words.value
    explorer.controls["bucket_mib"].value = 64
    assert "1 buckets" not in explorer.words.value
    few = explorer.words.value
    explorer.controls["bandwidth"].value = 20
    assert explorer.words.value != few
    lines = explorer.still().get_lines()
    assert len(lines) == 4 and all(min(line.get_ydata()) > 0 for line in lines)
