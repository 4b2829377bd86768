import numpy as np
import pytest

from course_lib.attention_tiles import EDGE, SKIPPED, WHOLE, online, tile_kinds, visible


def test_the_last_query_sees_the_last_key_and_the_diagonal_does_not_move_with_the_length():
    seen = visible(3, 5, causal=True)
    assert seen.sum(axis=1).tolist() == [3, 4, 5]
    assert visible(3, 5, causal=True, keys=4).sum(axis=1).tolist() == [3, 4, 4]


def test_with_more_queries_than_keys_the_first_see_none():
    assert visible(5, 3, causal=True).sum(axis=1).tolist() == [0, 0, 1, 2, 3]


def test_without_causal_only_the_length_hides_keys():
    assert visible(2, 5, keys=3).tolist() == [[True, True, True, False, False]] * 2


def test_tiles_below_the_diagonal_are_whole_and_above_it_skipped():
    assert tile_kinds(8, 8, 4, 4, causal=True).tolist() == [[EDGE, SKIPPED], [WHOLE, EDGE]]


def test_a_tile_that_reaches_past_the_last_key_is_an_edge():
    assert tile_kinds(4, 6, 4, 4).tolist() == [[WHOLE, EDGE]]
    assert tile_kinds(4, 8, 4, 4, keys=4).tolist() == [[WHOLE, SKIPPED]]


def test_missing_queries_do_not_make_an_edge():
    assert tile_kinds(5, 8, 4, 4).tolist() == [[WHOLE, WHOLE]] * 2


@pytest.mark.parametrize("block", [1, 3, 4, 16])
def test_the_last_step_is_the_softmax_of_the_whole_row(block):
    rng = np.random.default_rng(0)
    scores, values = rng.normal(size=10) * 3, rng.normal(size=(10, 3))
    weights = np.exp(scores - scores.max())
    last = online(scores, values, block)[-1]
    np.testing.assert_allclose(last.weights, weights, rtol=1e-12)
    np.testing.assert_allclose(last.acc / last.row_sum, weights @ values / weights.sum(), rtol=1e-12)
    assert last.row_max == scores.max()


def test_a_larger_maximum_shrinks_everything_before_it_by_one_factor():
    first, second = online(np.array([0.0, 1.0, 3.0, 2.0]), np.ones((4, 1)), 2)
    assert second.factor == pytest.approx(np.exp(-2.0))
    np.testing.assert_allclose(second.weights[:2], first.weights * second.factor)
    assert online(np.array([3.0, 1.0]), np.ones((2, 1)), 1)[1].factor == 1.0


def test_a_row_with_no_key_stays_at_zero_and_never_becomes_nan():
    steps = online(np.full(6, -np.inf), np.ones((6, 2)), 4)
    assert [s.row_max for s in steps] == [-np.inf, -np.inf]
    assert [s.row_sum for s in steps] == [0.0, 0.0]
    assert not np.isnan(steps[-1].acc).any()
    late = online(np.array([-np.inf, -np.inf, 0.5]), np.ones((3, 1)), 2)[-1]
    assert (late.row_max, late.row_sum) == (0.5, 1.0)
