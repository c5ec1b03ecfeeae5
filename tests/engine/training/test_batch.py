import numpy as np
import pytest

from engine.spec.trajectory import Change, Segment, Task, Trajectory, Turn
from engine.training.batch import per_turn, sample_of
from tests.engine.training.cast import only_sample


def _turn(context_ids, token_ids, **more) -> Turn:
    return Turn(
        context_ids=context_ids,
        context_text="",
        token_ids=token_ids,
        pieces=[""] * len(token_ids),
        logprobs=[-i / 10 for i in range(1, len(token_ids) + 1)],
        policy_versions=[0] * len(token_ids),
        **more,
    )


def _trajectory(*turns: Turn, **more) -> Trajectory:
    task = Task(id="t", split="train", level=1, question="1 + 1", answer="2")
    return Trajectory(
        id="train-0-0",
        purpose="train",
        prompt=0,
        member=0,
        sampled_at_version=0,
        task=task,
        segments=[Segment(turns=list(turns))] if turns else [],
        stop_reason="answered",
        answer="2",
        success=True,
        reward=1.0,
        rewards={"correct": 1.0},
        **more,
    )


TWO_TURNS = _trajectory(
    _turn([1, 2, 3], [4, 5], advantages=[0.5, 0.5], old_logprobs=[-0.3, -0.4]),
    _turn([6], [7], advantages=[0.25], old_logprobs=[-0.6]),
)


def test_a_sample_is_the_tokens_as_sampled_with_only_the_policys_own_to_learn():
    sample = only_sample(TWO_TURNS)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert sample.loss_mask.tolist() == [False, False, False, True, True, False, True]
    assert sample.advantages.tolist() == [0, 0, 0, 0.5, 0.5, 0, 0.25]
    assert sample.rollout_logprobs.tolist() == pytest.approx([0, 0, 0, -0.1, -0.2, 0, -0.1])
    assert sample.old_logprobs.tolist() == pytest.approx([0, 0, 0, -0.3, -0.4, 0, -0.6])


def test_a_masked_trajectory_keeps_its_tokens_and_trains_on_none():
    sample = only_sample(TWO_TURNS.model_copy(update={"masked_because": "overlong"}))
    assert len(sample) == 7
    assert not sample.loss_mask.any()


def test_a_masked_turn_and_an_experts_turn_are_read_and_not_learned():
    masked = _turn([1], [2, 3], masked_because="error")
    expert = _turn([4], [5], prefilled=True, imitated=True)
    sample = only_sample(_trajectory(masked, expert, _turn([6], [7])))
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert sample.loss_mask.tolist() == [False] * 6 + [True]
    assert sample.expert is None


def test_imitation_marks_the_experts_turns_up_to_the_crucial_one():
    turns = [
        _turn([1], [2, 3], prefilled=True, imitated=True),
        _turn([4], [5], prefilled=True),
        _turn([6], [7], imitated=True, prefilled=True, masked_because="error"),
        _turn([8], [9]),
    ]
    sample = only_sample(_trajectory(*turns), imitation=True)
    assert np.flatnonzero(sample.expert).tolist() == [1, 2]
    assert np.flatnonzero(sample.loss_mask).tolist() == [8]
    assert np.flatnonzero(sample.scored).tolist() == [1, 2, 8]
    only_expert = only_sample(_trajectory(*turns[:2]), imitation=True)
    assert only_expert.learned_length == 3
    masked = _trajectory(*turns).model_copy(update={"masked_because": "overlong"})
    behind_it = only_sample(masked, imitation=True)
    assert not behind_it.loss_mask.any()
    assert behind_it.expert is not None
    assert sample.expert is not None
    assert behind_it.expert.tolist() == sample.expert.tolist()
    alarmed = _trajectory(*turns).model_copy(update={"masked_because": "quarantined"})
    assert only_sample(alarmed, imitation=True).expert is None


def _stripped(turn, start, stop):
    return Change(kind="stripped", turn=turn, start=start, stop=stop, reason="strip")


def test_what_was_stripped_leaves_the_sample_with_its_place_in_every_column():
    one = TWO_TURNS.model_copy(update={"changes": [_stripped(0, 1, 3), _stripped(1, 0, 1)]})
    sample = only_sample(one)
    assert sample.token_ids.tolist() == [1, 4, 5, 7]
    assert sample.loss_mask.tolist() == sample.boosted.tolist() == [False, True, True, True]
    assert sample.advantages.tolist() == [0, 0.5, 0.5, 0.25]
    assert per_turn([[0, 41, 42, 43]], one) == [[41, 42], [43]]
    as_sampled = only_sample(one, as_sampled=True)
    assert as_sampled.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert as_sampled.boosted is None


def test_as_sampled_nothing_is_masked_but_what_an_expert_wrote():
    turns = [_turn([1], [2], prefilled=True), _turn([3], [4], masked_because="error")]
    one = _trajectory(*turns).model_copy(update={"masked_because": "overlong"})
    assert not only_sample(one).loss_mask.any()
    assert only_sample(one, as_sampled=True).loss_mask.tolist() == [False, False, False, True]


def test_before_credit_advantages_are_0():
    assert not only_sample(_trajectory(_turn([1], [2, 3]))).advantages.any()


def test_values_of_a_sample_go_back_to_their_turns():
    assert per_turn([[0, 0, 0, 41, 42, 0, 43]], TWO_TURNS) == [[41, 42], [43]]


def test_values_of_another_trajectory_are_refused():
    with pytest.raises(ValueError, match="6 values for a sample of 7 tokens"):
        per_turn([[0] * 6], TWO_TURNS)


@pytest.mark.parametrize(
    "bad",
    [
        {"token_ids": [], "loss_mask": []},
        {"token_ids": [1, 2], "loss_mask": [True, True]},
        {"token_ids": [1, 2], "loss_mask": [False]},
        {"token_ids": [1, 2], "loss_mask": [False, True], "advantages": [1.0]},
    ],
)
def test_a_sample_that_cannot_be_trained_on_is_refused(bad):
    with pytest.raises(ValueError):
        sample_of(**bad)
