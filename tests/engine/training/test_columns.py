"""What crosses between the loop and the learner: columns one way, decisions the other."""

import pickle
from typing import Any

import numpy as np
import pytest

from engine.cluster.members import learner_for
from engine.models.tokenizer import tokenizer_for
from engine.spec.rollout_group import rollouts_in
from engine.spec.trajectory import Trajectory
from engine.training.batch import Sample, unmasked_samples
from engine.training.columns import CreditColumns, RolloutDecision, UpdateRequest, turns_of, with_columns
from tests.engine.contexts import ids_of_segment
from tests.engine.groups import grouped
from tests.engine.training.cast import (
    credited,
    from_expert,
    learned,
    only_sample,
    rollouts,
    run_spec,
    same_bits,
    trajectory,
    turn,
    updated,
    with_experience,
)

TWO_TURNS = trajectory(turn([1, 2], [20, 21]), turn([8, 9], [22]))
COLUMNS = CreditColumns(
    advantages=np.array([0.1, 0.2, 0.3]), old_logprobs=np.array([-1.5, -2.5, -3.5], dtype=np.float32)
)


def joined(rollout: Trajectory, **columns: object) -> Trajectory:
    values = {name: getattr(COLUMNS, name) for name in ("advantages", "old_logprobs")}
    return with_columns(rollout, CreditColumns(**(values | columns)), text_of=tokenizer_for("characters").decode)


def equal(ours: Sample, theirs: Sample) -> bool:
    """Every column of both, to the bit."""
    columns = Sample.__dataclass_fields__
    assert all(
        getattr(ours, name) is getattr(theirs, name) is None
        or (isinstance(getattr(ours, name), bool) and getattr(ours, name) is getattr(theirs, name))
        or (
            getattr(ours, name).dtype == getattr(theirs, name).dtype
            and np.array_equal(getattr(ours, name), getattr(theirs, name))
        )
        for name in columns
    )
    return True


def test_columns_become_the_values_of_the_turns_as_python_numbers() -> None:
    first, second = joined(TWO_TURNS).turns
    assert (first.advantages, second.advantages) == ([0.1, 0.2], [0.3])
    assert (first.old_logprobs, second.old_logprobs) == ([-1.5, -2.5], [-3.5])
    assert joined(TWO_TURNS).changes == []
    assert TWO_TURNS.turns[0].advantages is None, "the trajectory that the loop holds is another one"


def test_what_the_mismatch_mask_cuts_is_one_change_for_each_run_of_tokens() -> None:
    cut = joined(TWO_TURNS, mismatch_masked=np.array([False, True, True]), mismatch_bound=2.0).changes
    assert [(change.turn, change.start, change.stop, change.details) for change in cut] == [
        (0, 1, 2, {"bound": 2.0}),
        (1, 0, 1, {"bound": 2.0}),
    ]


def test_imitation_of_all_that_was_replayed_and_stripped_experience_stand_on_the_trajectory() -> None:
    behind = from_expert(TWO_TURNS, imitated=0)
    assert [each.imitated for each in joined(behind).turns] == [False, False]
    assert [each.imitated for each in joined(behind, imitates_all=True).turns] == [True, False]
    [change] = joined(with_experience(TWO_TURNS), stripped_because="hybrid").changes
    assert (change.kind, change.reason, change.removed_ids) == ("stripped", "hybrid", [50, 51, 52])


def test_a_column_of_another_rollout_is_refused() -> None:
    with pytest.raises(ValueError, match="a column of 2 entries for the 3 tokens of train-0-0"):
        turns_of(np.zeros(2), TWO_TURNS)
    assert turns_of(np.zeros(0), trajectory()) == []


@pytest.mark.parametrize("because", [None, "overlong", "quarantined"])
def test_a_mask_that_is_decided_later_makes_the_sample_that_it_would_have_made_before(because: str | None) -> None:
    """The policy's tokens, an expert's that are imitated, and what is boosted where experience was stripped."""
    rollout = joined(with_experience(from_expert(TWO_TURNS)), stripped_because="strip")
    [later] = [sample.masked(because) for sample in unmasked_samples(rollout, imitation=True)]
    before = only_sample(rollout.model_copy(update={"masked_because": because}), imitation=True)
    assert equal(later, before)
    assert (later.expert is None) is (because == "quarantined")
    assert bool(later.loss_mask.any()) is (because is None)


def test_an_update_is_told_ids_and_decisions_and_no_token() -> None:
    rollout = trajectory(turn([1], list(range(20, 90)) * 50))
    masked = trajectory(turn([1], [20]), member=1, reward=0.5, masked_because="overlong")
    back = trajectory(turn([1], [20]), member=7)
    request = UpdateRequest.of(3, grouped([rollout, masked]), [back], credited=True)
    assert request.rollouts == (
        RolloutDecision("train-0-0", None),
        RolloutDecision("train-0-1", "overlong"),
        RolloutDecision("train-0-7", None),
    )
    assert request.group_means == (0.75,)
    assert len(pickle.dumps(request)) < 500
    assert len(pickle.dumps(rollout)) > 10_000


def test_a_step_that_was_not_credited_still_says_what_its_groups_earned() -> None:
    """Those in which everybody raised an alert stand for nothing."""
    alarmed = trajectory(turn([1], [20]), prompt=1, alerts=["sandbox/1"])
    plain = trajectory(turn([1], [20]), reward=0.5)
    assert UpdateRequest.of(1, grouped([plain, alarmed]), [], credited=False) == UpdateRequest(1, (), (0.5,))


def test_an_alert_between_credit_and_update_takes_a_rollout_out_as_if_it_had_been_masked_before() -> None:
    """Masked before or after, the comparison within its group is the same one."""
    recipe = {"credit": {"kind": "grpo"}}
    before, after = learner_for(run_spec(recipe)), learner_for(run_spec(recipe))
    masked = [
        rollout.model_copy(update={"masked_because": "quarantined"}) if rollout.member == 1 else rollout
        for rollout in rollouts()
    ]
    first = learned(before, grouped(masked))
    after.credit(grouped(rollouts()), step=1)
    assert updated(after, grouped(masked))["tokens"] == first["tokens"]
    # The first old log-probs were taken beside other rows: equal to rounding, as the weights then are.
    ours, theirs = before.weights(), after.weights()
    assert all(ours[name].sub(theirs[name]).abs().max() < 1e-5 for name in ours)


def test_samples_are_kept_for_one_update_and_forgotten_by_the_next_credit() -> None:
    learner = learner_for(run_spec({}))
    first, second = grouped(rollouts(groups=8)[:16]), grouped(rollouts(groups=8)[16:])
    learner.credit(first, step=1)
    learner.credit(second, step=2)
    with pytest.raises(KeyError, match="train-0-0"):
        updated(learner, first)
    updated(learner, second)
    with pytest.raises(KeyError, match="train-4-0"):
        updated(learner, second)


def test_what_was_released_is_compared_with_its_own_group_and_keeps_the_log_probs_of_its_own_policy() -> None:
    learner = learner_for(run_spec({"credit": {"kind": "dr-grpo"}}))
    earlier = grouped(
        [trajectory(turn([2, 4, 5], [20, 21]), reward=reward, prompt=9, member=i) for i, reward in enumerate((1, 0))]
    )
    *_, group = credited(learner, grouped(rollouts(2)), earlier)
    assert [rollout.turns[0].advantages for rollout in group.rollouts] == [[0.5, 0.5], [-0.5, -0.5]]
    assert [rollout.turns[0].old_logprobs for rollout in group.rollouts] == [[-1.0, -1.0]] * 2
    report = updated(learner, grouped(rollouts(2)), [group.rollouts[0]])
    assert report["tokens"] == sum(rollout.sampled_tokens for rollout in rollouts(2)) + 2


def test_a_step_beside_which_a_released_group_is_credited_is_credited_as_if_alone() -> None:
    """reinforce-pp whitens over a step: the released rollout is measured by the step and does not measure it."""
    alone, beside = (learner_for(run_spec({"credit": {"kind": "reinforce-pp"}})) for _ in range(2))
    earlier = grouped([trajectory(turn([2, 4, 5], [20, 21]), reward=0.0, prompt=9)])
    step = grouped(rollouts(2))
    plain = credited(alone, step)
    *same, released = credited(beside, step, earlier)
    assert rollouts_in(same) == rollouts_in(plain)
    assert all(value < 0 for value in released.rollouts[0].turns[0].advantages or [])
    assert updated(alone, step) == updated(beside, step)
    assert same_bits(alone.weights(), beside.weights())


@pytest.mark.parametrize("recipe", [{"mismatch": {"mask": "token"}}, {"objective": {"kind": "ipa"}}])
def test_what_was_released_says_of_no_token_that_the_mismatch_mask_cut_it(recipe: dict[str, Any]) -> None:
    """Its old log-probs are those of its sampling: no ratio is above 1, and every token of it is trained on.

    Reported as -9 nats, its tokens would be cut if they were compared with the present policy, or had been before.
    """
    learner = learner_for(run_spec(recipe | {"credit": {"kind": "chunk-return"}}))
    unlikely = [turn([2, 4, 5], [20, 21], logprobs=[-9.0, -9.0])]
    earlier = grouped([trajectory(*unlikely, reward=reward, prompt=9, member=i) for i, reward in enumerate((1, -1))])
    [alone] = credited(learner, earlier)
    assert {change.kind for rollout in alone.rollouts for change in rollout.changes} == {"mismatch-masked"}
    for again in (earlier[0], alone):
        step = grouped(rollouts(2))
        *_, group = credited(learner, step, [again])
        assert [rollout.changes for rollout in group.rollouts] == [[], []]
        masked = [rollout.model_copy(update={"masked_because": "x"}) for rollout in rollouts(2)]
        report = updated(learner, grouped(masked), group.rollouts)
        assert (report["tokens"], report["mismatch_masked"]) == (4, 0)


def test_credited_again_a_hybrid_rollout_whose_advantage_fell_shows_training_what_it_read() -> None:
    """Credit had stripped it; an alert came before the update; among others it is now below the mean."""
    shown = with_experience(TWO_TURNS)
    stripped = joined(shown, stripped_because="hybrid")
    assert [change.kind for change in stripped.changes] == ["stripped"]
    again = joined(stripped, stripped_because=None)
    assert again.changes == []
    [sample] = unmasked_samples(again)
    assert sample.token_ids.tolist() == ids_of_segment(shown, 0)
    assert joined(stripped, stripped_because="hybrid").changes == stripped.changes
