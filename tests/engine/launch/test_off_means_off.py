"""A switch at its neutral value is bit for bit the recipe without it: weights, optimiser and all, after two steps.

The steps are ragged: turns, lengths and group rewards differ, and each step makes two updates.
"""

from typing import Any

import pytest
import torch

from engine.cluster.members import learner_for
from engine.spec.rollout_group import rollouts_in
from engine.spec.trajectory import Segment, Trajectory
from engine.training.learner import Learner
from tests.engine.groups import grouped
from tests.engine.training.cast import credited, from_expert, learned, repaired, rollouts, run_spec, same_bits, updated

GRPO: dict[str, Any] = {"credit": {"kind": "grpo"}, "objective": {"kind": "clipped"}}
EXPERIENCE = {"pool": [{"when_to_use": "always", "content": "use the tool"}]}

CLIP_COV = {"kind": "clip", "share": 0.2, "low": 0.0, "high": 1e9}


def after_two_steps(recipe: dict[str, Any], *, rollouts_agree: bool = False) -> tuple[Learner, list[dict[str, float]]]:
    """``rollouts_agree``: the generator's log-probs are the trainer's."""
    learner, reports = learner_for(run_spec(recipe)), []
    for step in (1, 2):
        groups = grouped(rollouts(step))
        if rollouts_agree:
            groups = [
                group.with_rollouts(map(_as_the_trainer_says, group.rollouts)) for group in credited(learner, groups)
            ]
        reports.append(learned(learner, groups))
    return learner, reports


def _as_the_trainer_says(one: Trajectory) -> Trajectory:
    turns = [turn.model_copy(update={"logprobs": turn.old_logprobs}) for turn in one.turns]
    return one.with_turns(turns)


def assert_equal(neutral: dict[str, Any], absent: dict[str, Any], **how: Any) -> None:
    (a, a_reports), (b, b_reports) = after_two_steps(neutral, **how), after_two_steps(absent, **how)
    assert same_bits(a.weights(), b.weights())
    for mine, theirs in zip(a_reports, b_reports, strict=True):
        assert {name: mine[name] for name in theirs} == theirs
    untouched = learner_for(run_spec(absent))
    assert not same_bits(b.weights(), untouched.weights()), "the base recipe must learn something"


NEUTRAL = {
    "self-imitation with a buffer that is not full": {"self_imitation": {"replay_buffer": 2048, "warmup_steps": 0}},
    "self-imitation of size 0": {"self_imitation": {"replay_buffer": 0, "warmup_steps": 0}},
    "a kl of weight 0": {"kl": {"beta": 0.0}},
    "a mismatch mask out of reach": {"mismatch": {"mask": "token", "mask_bound": 1e30}},
    "a mismatch mask of turns out of reach": {"mismatch": {"mask": "chunk", "mask_bound": 1e30}},
    "a mismatch mask of sequences out of reach": {"mismatch": {"mask": "sequence", "mask_bound": 1e30}},
    "covariance clipping of no token": {"objective": {"kind": "clipped", "covariance": {"kind": "clip", "share": 0.0}}},
    "a covariance penalty for no token": {"objective": {"kind": "clipped", "covariance": {"kind": "kl", "share": 0.0}}},
    "a dual clip out of reach": {"objective": {"kind": "clipped", "dual_clip": 1e9}},
    "experience that nobody was shown": {"experience": EXPERIENCE | {"share": 0.0}},
    "experience that is kept and that nobody was shown": {
        "experience": EXPERIENCE | {"share": 0.0, "training": "keep"}
    },
    "gigpo without its steps": {"credit": {"kind": "gigpo", "step_weight": 0.0}},
}


@pytest.mark.parametrize("neutral", NEUTRAL.values(), ids=NEUTRAL)
def test_a_switch_at_its_neutral_value_changes_no_bit(neutral: dict[str, Any]) -> None:
    assert_equal(GRPO | neutral, GRPO)


ON = {
    "self-imitation": {"self_imitation": {"replay_buffer": 1, "warmup_steps": 0}},
    "self-imitation in updates of its own": {
        "self_imitation": {"replay_buffer": 1, "warmup_steps": 0, "mode": "after"}
    },
    "kl": {"kl": {"beta": 0.1}},
    "a mismatch mask": {"mismatch": {"mask": "token", "mask_bound": 1.5}},
    "mismatch weights": {"mismatch": {"weight": "chunk"}},
    "covariance clipping": {
        "objective": {"kind": "clipped", "covariance": {"kind": "clip", "share": 0.2, "low": 0.0, "high": 1e9}}
    },
    "a covariance penalty": {"objective": {"kind": "clipped", "covariance": {"kind": "kl", "share": 0.2}}},
    "gigpo": {"credit": {"kind": "gigpo"}},
    "attribution": {"credit": {"kind": "attribution"}},
}


@pytest.mark.parametrize("switched_on", ON.values(), ids=ON)
def test_the_same_switch_turned_on_changes_the_weights(switched_on: dict[str, Any]) -> None:
    with_it, reports = after_two_steps(GRPO | switched_on)
    without, _ = after_two_steps(GRPO)
    assert not same_bits(with_it.weights(), without.weights())
    assert all(torch.isfinite(weights).all() for weights in with_it.weights().values())
    assert all(report["updates"] >= 2 for report in reports)


@pytest.mark.parametrize("size", ["token", "chunk", "sequence"])
def test_mismatch_weights_of_engines_that_agree_change_no_bit(size: str) -> None:
    assert_equal(GRPO | {"mismatch": {"weight": size}}, GRPO, rollouts_agree=True)


def test_self_imitation_of_strength_0_changes_no_bit_though_its_buffer_is_full() -> None:
    """Algorithm 1 empties the buffer all the same; T_warmup is so far away that gamma_2 rounds to 0."""
    neutral = {"self_imitation": {"replay_buffer": 1, "baseline_buffer": 0, "warmup_steps": 10**12}}
    _, reports = after_two_steps(GRPO | neutral)
    assert reports[1]["sil/replayed"] > 0
    assert reports[1]["sil/weight"] == 0
    assert_equal(GRPO | neutral, GRPO)


def test_attribution_of_weight_0_is_grpo_up_to_its_floor_of_the_std() -> None:
    """Not to the bit: AgentEvolver adds 1e-8 to the std, GRPO 1e-6."""
    with_judge, _ = after_two_steps(GRPO | {"credit": {"kind": "attribution", "alpha": 0.0}})
    without, _ = after_two_steps(GRPO)
    for name, ours in with_judge.weights().items():
        torch.testing.assert_close(ours, without.weights()[name], rtol=0, atol=2e-5)


def test_ipa_with_one_chunk_and_gamma_1_is_reinforce_to_the_bit() -> None:
    """REINFORCE written as truncated importance sampling with a bound out of reach: at ratio 1, -R log pi."""
    one_turn = [rollout.model_copy(update={"segments": [Segment(turns=rollout.turns[:1])]}) for rollout in rollouts()]
    credit = {"kind": "chunk-return", "gamma": 1.0}
    weights = []
    for objective in ({"kind": "ipa", "mismatch_bound": None}, {"kind": "topr"}):
        learner = learner_for(
            run_spec(
                {"credit": credit, "objective": objective},
                schedule={"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16},
            )
        )
        groups = credited(learner, grouped(one_turn))
        advantages = [rollout.turns[0].advantages[0] for rollout in rollouts_in(groups)]
        assert advantages == [rollout.reward for rollout in one_turn]
        updated(learner, groups)
        weights.append(learner.weights())
    assert same_bits(*weights)


def test_imitation_of_weight_0_changes_no_bit_though_there_are_experts() -> None:
    weights = []
    for imitation_weight, start in ((0.0, from_expert), (0.1, lambda one: from_expert(one, imitated=0))):
        objective = {"kind": "ipa", "imitation_weight": imitation_weight, "mismatch_bound": None}
        learner = learner_for(run_spec({"credit": {"kind": "chunk-return"}, "objective": objective}))
        learned(learner, grouped(map(start, rollouts())))
        weights.append(learner.weights())
    assert same_bits(*weights)


def test_a_mask_that_hits_nobody_is_absence_and_one_that_hits_is_not() -> None:
    learner, masking = learner_for(run_spec(GRPO)), learner_for(run_spec(GRPO))
    groups = credited(learner, grouped(rollouts()))
    updated(learner, groups)
    chosen = next(rollout for rollout in rollouts_in(groups) if rollout.turns[0].advantages[0] != 0)
    masked = chosen.model_copy(update={"masked_because": "overlong"})
    masking.credit(grouped(rollouts()), step=1)
    updated(
        masking,
        [
            group.with_rollouts(masked if rollout is chosen else rollout for rollout in group.rollouts)
            for group in groups
        ],
    )
    assert not same_bits(learner.weights(), masking.weights())


def test_repairs_change_no_bit_of_what_is_not_dpo() -> None:
    plain, reported = learner_for(run_spec(GRPO)), learner_for(run_spec(GRPO))
    learned(plain, grouped(rollouts()))
    learned(reported, grouped(map(repaired, rollouts())))
    assert same_bits(plain.weights(), reported.weights())


@pytest.mark.parametrize(("weight", "is_absent"), [(0.0, True), (1e-3, False)])
def test_a_preference_of_weight_0_is_its_absence_though_there_are_repairs(weight: float, is_absent: bool) -> None:
    plain = learner_for(run_spec(GRPO))
    preferring = learner_for(run_spec(GRPO | {"purification": {}, "preference": {"weight": weight}}))
    for learner in (plain, preferring):
        learned(learner, grouped(map(repaired, rollouts())))
    assert same_bits(plain.weights(), preferring.weights()) == is_absent
