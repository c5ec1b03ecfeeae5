import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.rollback import anchor_prefixes, is_crucial, next_prefix


@pytest.mark.parametrize(
    ("prefix", "success_rate", "after"), [(5, 0.6, 4), (5, 0.5, 4), (5, 0.4, 5), (0, 1.0, 0), (0, 0.0, 0)]
)
def test_rollback_moves_towards_the_head_as_the_policy_succeeds(prefix, success_rate, after):
    assert next_prefix(prefix, success_rate=success_rate) == after


def test_a_policy_that_always_succeeds_reaches_a_fresh_start_in_k_minus_1_steps():
    prefix, steps = 7, 0
    while prefix:
        prefix, steps = next_prefix(prefix, success_rate=1.0), steps + 1
    assert steps == 7


@pytest.mark.parametrize(
    ("chunks", "anchors", "prefixes"),
    [(9, 3, [0, 4, 8]), (5, 2, [0, 4]), (5, 1, [2]), (2, 1, [1]), (3, 8, [0, 1, 2]), (0, 3, []), (5, 0, [])],
)
def test_uniform_anchors_by_hand(chunks, anchors, prefixes):
    assert anchor_prefixes(chunks, anchors, seed=0) == prefixes


@given(st.integers(1, 30), st.integers(1, 10), st.sampled_from(["uniform", "random"]), st.integers(0, 99))
def test_anchors_are_different_prefixes_in_rising_order(chunks, anchors, how, seed):
    prefixes = anchor_prefixes(chunks, anchors, how=how, seed=seed)
    assert prefixes == sorted(set(prefixes))
    assert len(prefixes) == min(chunks, anchors)
    assert all(0 <= prefix < chunks for prefix in prefixes)


def test_random_anchors_follow_their_seed():
    draws = [anchor_prefixes(100, 5, how="random", seed=seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    ("successes_with", "successes_without", "crucial"),
    [
        (4, 0, True),  # p = 1 / C(8, 4) = 0.014
        (4, 1, False),  # p = C(4, 1) / C(8, 5) = 0.071
        (0, 4, False),
        (2, 2, False),
        (0, 0, False),
        (4, 4, False),
    ],
)
def test_a_chunk_is_crucial_where_it_makes_success_significantly_likelier(successes_with, successes_without, crucial):
    assert (
        is_crucial(
            successes_with=successes_with, rollouts_with=4, successes_without=successes_without, rollouts_without=4
        )
        == crucial
    )


def test_fishers_test_by_hand():
    """3 of 3 against 0 of 3 has p = 1 / C(6, 3) = 0.05."""
    counts = {"successes_with": 3, "rollouts_with": 3, "successes_without": 0, "rollouts_without": 3}
    assert is_crucial(**counts, level=0.0501)
    assert not is_crucial(**counts, level=0.0499)


def test_without_a_rollout_nothing_is_crucial():
    assert not is_crucial(successes_with=0, rollouts_with=0, successes_without=0, rollouts_without=0)
