import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.saar import SampledTurn, purified_turn, purifies, repair_for, similarity

FAILED = SampledTurn([1, 2, 3, 10, 11], [-0.1, -0.2, -0.3, -0.4, -0.5], call_at=3)
CORRECTION = SampledTurn([7, 8, 20, 21, 22], [-1.1, -1.2, -1.3, -1.4, -1.5], call_at=2)


def test_similarity_by_hand():
    """ "abcd" and "bcde" share "bcd": 2 * 3 / 8."""
    assert similarity("abcd", "bcde") == 0.75
    assert similarity("print(x", "print(x)") > 0.9
    assert similarity("abc", "xyz") == 0.0


@given(st.text(max_size=40))
def test_the_same_code_has_similarity_1(code):
    assert similarity(code, code) == 1.0


@pytest.mark.parametrize(("value", "repair"), [(0.0, "deep"), (0.49, "deep"), (0.5, "shallow"), (1.0, "shallow")])
def test_the_threshold_itself_is_shallow(value, repair):
    assert repair_for(value) == repair


def test_a_shallow_repair_keeps_the_reasoning_and_grafts_the_call():
    turn = purified_turn(FAILED, CORRECTION, similarity=0.9)
    assert turn.token_ids == [1, 2, 3, 20, 21, 22]
    assert turn.logprobs == [-0.1, -0.2, -0.3, None, None, None]
    assert turn.removed_ids == [10, 11]
    assert turn.repair == "shallow"


def test_a_deep_repair_replaces_the_whole_turn():
    turn = purified_turn(FAILED, CORRECTION, similarity=0.1)
    assert turn.token_ids == [7, 8, 20, 21, 22]
    assert turn.logprobs == [None] * 5
    assert turn.removed_ids == [1, 2, 3, 10, 11]
    assert turn.repair == "deep"


turns = st.integers(1, 12).flatmap(
    lambda n: st.builds(
        SampledTurn,
        st.lists(st.integers(0, 99), min_size=n, max_size=n),
        st.lists(st.floats(-9, 0), min_size=n, max_size=n),
        st.integers(0, n - 1),
    )
)


@given(turns, turns, st.floats(0, 1), st.floats(0, 1))
def test_every_token_is_one_that_was_sampled_and_no_lookahead_logprob_survives(failed, correction, value, threshold):
    turn = purified_turn(failed, correction, similarity=value, threshold=threshold)
    kept = sum(logprob is not None for logprob in turn.logprobs)
    assert len(turn.logprobs) == len(turn.token_ids)
    assert turn.token_ids[:kept] == list(failed.token_ids[:kept])
    assert turn.logprobs[:kept] == list(failed.logprobs[:kept])
    assert turn.token_ids[kept:] == list(correction.token_ids[len(correction.token_ids) - len(turn.token_ids) + kept :])
    assert [*failed.token_ids[:kept], *turn.removed_ids] == list(failed.token_ids)
    assert turn.token_ids[-len(correction.token_ids) + correction.call_at :] == list(
        correction.token_ids[correction.call_at :]
    )


def test_a_threshold_above_1_always_takes_the_correction_whole():
    assert purified_turn(FAILED, CORRECTION, similarity=1.0, threshold=1.1).repair == "deep"


@pytest.mark.parametrize(("logprobs", "call_at"), [([-1.0], 0), ([-1.0, -1.0], 2), ([-1.0, -1.0], -1)])
def test_a_turn_has_a_logprob_per_token_and_a_call(logprobs, call_at):
    with pytest.raises(ValueError, match="call"):
        SampledTurn([1, 2], logprobs, call_at)


@given(st.integers(0, 2**63))
def test_rho_1_is_always_and_rho_0_never(seed):
    assert purifies(seed, rho=1.0)
    assert not purifies(seed, rho=0.0)


@given(st.integers(0, 2**63), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_rho_purifies_whatever_a_smaller_one_does(seed, a, b):
    assert purifies(seed, rho=max(a, b)) or not purifies(seed, rho=min(a, b))


def test_the_share_of_purified_trajectories_is_rho():
    """With 4000 draws and rho 0.7 the standard deviation of the share is 0.0072; four of them."""
    share = sum(purifies(seed, rho=0.7) for seed in range(4000)) / 4000
    assert abs(share - 0.7) < 0.029


def test_the_draw_is_the_same_in_every_process():
    code = "from engine.algorithms.saar import purifies; print([purifies(seed, rho=0.5) for seed in range(6)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([purifies(seed, rho=0.5) for seed in range(6)])


def test_what_rollout_workers_need_comes_without_torch():
    modules = ("curriculum", "replay", "rollback", "saar", "sample_masks", "turn_masks")
    code = (
        ";".join(f"import engine.algorithms.{name}" for name in modules) + ";import sys;print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
