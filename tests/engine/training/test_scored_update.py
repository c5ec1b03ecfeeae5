"""Old log-probs from the update's own forward pass: to the last bit what a separate pass gives."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.cluster.members import learner_for, trainer_for
from engine.spec.rollout_group import rollouts_in
from engine.spec.run import RunSpec
from engine.training.batch import Sample, samples_from_trajectory
from engine.training.columns import RolloutDecision, UpdateRequest
from engine.training.microbatch import microbatches
from engine.training.packing import row_of
from engine.training.trainer import Trainer
from tests.engine.groups import grouped
from tests.engine.training.cast import rollouts, run_spec

ONE_UPDATE = {"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16}


def spec_with(recipe: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    return run_spec(recipe or {}, **({"schedule": ONE_UPDATE} | changes))


def trained_samples() -> list[Sample]:
    """Some are masked, and advantages differ."""
    samples = [sample for rollout in rollouts() for sample in samples_from_trajectory(rollout)]
    weighed = [
        replace(sample, advantages=np.full(len(sample), number % 5 - 2, dtype=np.float32))
        for number, sample in enumerate(samples)
    ]
    return [weighed[0].masked("overlong"), *weighed[1:]]


def same_weights(one: Trainer, other: Trainer) -> bool:
    ours, theirs = one.backend.weights(), other.backend.weights()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"kl": {"beta": 0.1}},
        {"objective": {"kind": "gspo"}},
        {"objective": {"kind": "cispo"}},
        {"objective": {"kind": "tis"}},
        {"objective": {"kind": "topr", "ratio": "chunk"}},
        {"mismatch": {"weight": "token"}},
    ],
)
def test_one_forward_pass_gives_the_bits_of_two(recipe: dict[str, Any]) -> None:
    apart, together = trainer_for(spec_with(recipe)), trainer_for(spec_with(recipe))
    samples = trained_samples()
    rows = apart.old_logprobs(samples)
    expected = apart.update([sample.with_old_logprobs(row) for sample, row in zip(samples, rows, strict=True)])
    assert together.scores_in_update(samples)
    metrics, scored = together.scored_update(samples)
    assert scored == rows
    assert metrics == expected
    assert (metrics["ratio_mean"], metrics["kl_to_old"]) == (1.0, 0.0)
    assert same_weights(apart, together)


@pytest.mark.parametrize(
    "recipe",
    [
        {"mismatch": {"mask": "token"}},
        {"preset": "ipa"},
        {"objective": {"kind": "clipped", "covariance": {"kind": "clip", "share": 0.1}}},
        {"self_imitation": {"replay_buffer": 4, "baseline_buffer": 0, "warmup_steps": 1, "covariance": None}},
        {"objective": {"kind": "none"}},
    ],
)
def test_a_recipe_that_asks_for_old_logprobs_before_its_update_keeps_the_separate_pass(recipe: dict[str, Any]) -> None:
    assert not trainer_for(spec_with(recipe)).scores_in_update(trained_samples())


def test_a_step_of_two_updates_keeps_the_separate_pass() -> None:
    schedule = ONE_UPDATE | {"minibatch_trajectories": 8}
    assert not trainer_for(spec_with(schedule=schedule)).scores_in_update(trained_samples())


def test_credit_leaves_old_logprobs_open_and_the_update_gives_them() -> None:
    groups = grouped(rollouts())
    apart, together = (
        learner_for(spec_with(schedule=ONE_UPDATE | {"minibatch_trajectories": 8})),
        learner_for(spec_with()),
    )
    known, left_open = (learner.credit(groups, step=1) for learner in (apart, together))
    assert all(columns.old_logprobs is None for columns in left_open.values())
    updated = together.update(UpdateRequest.of(1, groups, [], credited=True))
    assert updated.metrics["ratio_max"] == 1.0
    assert updated.old_logprobs.keys() == known.keys()
    for name, columns in known.items():
        assert columns.old_logprobs is not None
        np.testing.assert_allclose(updated.old_logprobs[name], columns.old_logprobs, atol=1e-5)
        assert updated.old_logprobs[name].any()


def test_a_rollout_that_is_masked_after_its_credit_is_not_scored() -> None:
    groups, learner = grouped(rollouts()), learner_for(spec_with())
    learner.credit(groups, step=1)
    request = UpdateRequest.of(1, groups, [], credited=True)
    late, *others = request.rollouts
    updated = learner.update(replace(request, rollouts=(RolloutDecision(late.trajectory, "quarantined"), *others)))
    assert not updated.old_logprobs[late.trajectory].any()
    assert all(updated.old_logprobs[decision.trajectory].any() for decision in others)


def test_what_comes_out_of_quarantine_is_not_scored_by_an_update_that_it_is_part_of() -> None:
    """Its old log-probs are those of the policy that sampled it, so the step's are computed apart as well."""
    groups = grouped(rollouts())
    held = grouped(
        [rollout.model_copy(update={"prompt": 9, "id": f"train-9-{rollout.member}"}) for rollout in rollouts()[:4]]
    )
    learner = learner_for(spec_with(schedule=ONE_UPDATE | {"prompts_per_step": 8, "minibatch_trajectories": 32}))
    columns = learner.credit(groups, held, step=1)
    assert all(of_rollout.old_logprobs is not None for of_rollout in columns.values())
    updated = learner.update(UpdateRequest.of(1, groups, rollouts_in(held)[:1], credited=True))
    assert updated.old_logprobs == {}


def test_samples_that_are_still_to_be_scored_stand_apart_from_others() -> None:
    one, other, *_ = trained_samples()[1:]
    numbered = replace(one, unscored=0)
    with pytest.raises(ValueError, match="1 of 2 samples know their number among the unscored"):
        microbatches([numbered, other], device=torch.device("cpu"), max_tokens=10**6)
    with pytest.raises(ValueError, match="cannot be packed"):
        row_of([numbered])
