"""What one optimiser update is made of, for every objective: gradients to 1e-6, on ragged batches."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.cluster.members import learner_for, trainer_for
from engine.failures import NonFiniteGradient
from engine.spec.rollout_group import rollouts_in
from engine.spec.run import RunSpec
from engine.training import microbatch
from engine.training.adamw import AdamW
from engine.training.batch import Sample
from engine.training.critic import Critic, critic_for, explained_variance, with_targets
from engine.training.preferences import pairs_of
from engine.training.self_imitation import Replay
from engine.training.trainer import Trainer
from tests.engine.groups import grouped
from tests.engine.training.cast import (
    credited,
    from_expert,
    only_sample,
    repaired,
    rollouts,
    run_spec,
    same_bits,
    with_experience,
)

CHUNKS = {"credit": {"kind": "chunk-return"}}
EXPERIENCE = {"pool": [{"when_to_use": "always", "content": "use it"}]}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "clipped": {},
    "dual clip": {"objective": {"kind": "clipped", "dual_clip": 1.01}},
    "clip-cov": {"objective": {"kind": "clipped", "covariance": {"kind": "clip", "share": 0.2, "low": 0, "high": 9}}},
    "kl-cov": {"objective": {"kind": "clipped", "covariance": {"kind": "kl", "share": 0.2}}},
    "gspo": {"objective": {"kind": "gspo"}},
    "cispo": {"objective": {"kind": "cispo"}},
    "tis of turns": {"objective": {"kind": "tis", "ratio": "chunk"}},
    "topr of sequences": {"objective": {"kind": "topr"}},
    "ipa with experts": CHUNKS | {"objective": {"kind": "ipa", "mismatch_bound": 2.0}, "expert_starts": {}},
    "boosted": {"experience": EXPERIENCE},
    "k3": {"kl": {"beta": 0.5}},
    "mismatch": {"mismatch": {"mask": "chunk", "mask_bound": 1.5, "weight": "token"}},
}


def critic_of(spec: RunSpec, trainer: Trainer) -> Critic | None:
    minibatch = spec.schedule.minibatch_trajectories
    return critic_for(spec.recipe, trainer.backend.value_network, minibatch=minibatch)


def whole(recipe: dict[str, Any]) -> RunSpec:
    """All trajectories in one update, whose gradient is not clipped."""
    recipe = recipe | {"optimizer": {"learning_rate": 1e-2, "grad_clip": 1e9}}
    return run_spec(recipe, schedule={"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16})


def samples_for(spec: RunSpec) -> list[Sample]:
    """Credited by a policy that is not the trainer's, so that ratios are not 1."""
    played = [
        with_experience(trajectory) if trajectory.member % 2 and spec.recipe.experience else trajectory
        for trajectory in rollouts()
    ]
    played = [
        from_expert(trajectory) if trajectory.member % 2 and spec.recipe.expert_starts else trajectory
        for trajectory in played
    ]
    groups = credited(learner_for(spec.model_copy(update={"seed": 7})), grouped(played))
    imitation = spec.recipe.expert_starts is not None
    return [only_sample(rollout, imitation=imitation) for rollout in rollouts_in(groups)]


def gradient(monkeypatch: pytest.MonkeyPatch, trainer: Trainer, update: Any) -> list[torch.Tensor]:
    """What reaches the optimiser."""
    caught: list[torch.Tensor] = []

    def catch(optimizer: AdamW) -> None:
        caught.extend(parameter.grad.clone() for group in optimizer.param_groups for parameter in group["params"])

    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "step", catch)
        update()
    return caught


def assert_equal(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    assert any(part.any() for part in theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("recipe", OBJECTIVES.values(), ids=OBJECTIVES)
def test_cutting_into_microbatches_changes_no_gradient(monkeypatch: pytest.MonkeyPatch, recipe: dict[str, Any]) -> None:
    spec, gradients, reports = whole(recipe), [], []
    samples = samples_for(spec)
    for max_tokens in (1, 60, 10**6):
        monkeypatch.setattr(microbatch, "MICROBATCH_TOKENS", max_tokens)
        trainer = trainer_for(spec)
        gradients.append(gradient(monkeypatch, trainer, lambda t=trainer: reports.append(t.update(samples))))
    assert_equal(gradients[0], gradients[2])
    assert_equal(gradients[1], gradients[2])
    assert reports[0] == pytest.approx(reports[2], rel=1e-4, abs=1e-5)


def test_cutting_changes_no_gradient_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, gradients = whole({"objective": {"kind": "dpo"}, "purification": {}}), []
    pairs = pairs_of([repaired(rollout) for rollout in rollouts()], "characters")
    for max_tokens in (1, 100, 10**6):
        monkeypatch.setattr(microbatch, "MICROBATCH_TOKENS", max_tokens)
        trainer = trainer_for(spec)
        gradients.append(gradient(monkeypatch, trainer, lambda t=trainer: t.update([], pairs=pairs)))
    assert_equal(gradients[0], gradients[2])
    assert_equal(gradients[1], gradients[2])


def test_cutting_changes_no_gradient_of_the_critic(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, gradients = whole({"credit": {"kind": "gae"}}), []
    dice = np.random.default_rng(0)
    samples = [
        with_targets(rollout, dice.normal(size=len(rollout)), dice.normal(size=len(rollout)))
        for rollout in map(only_sample, rollouts())
    ]
    for max_tokens in (1, 60, 10**6):
        monkeypatch.setattr(microbatch, "MICROBATCH_TOKENS", max_tokens)
        critic = critic_of(spec, trainer_for(spec))
        gradients.append(gradient(monkeypatch, None, lambda c=critic: c.update(samples)))
    assert_equal(gradients[0], gradients[2])
    assert_equal(gradients[1], gradients[2])


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum-norm"])
def test_the_sum_is_the_on_policy_mean_plus_strength_times_the_replayed_mean(
    monkeypatch: pytest.MonkeyPatch, aggregation: str
) -> None:
    """SPEAR, eq. 5.  Each term is divided by its own weight, so that neither depends on the size of the other."""
    spec = whole({"objective": {"kind": "clipped", "aggregation": aggregation}, "self_imitation": {"covariance": None}})
    samples = samples_for(spec)
    good = [replace(sample, advantages=np.abs(sample.advantages) + 1) for sample in samples[:5]]
    updates = {
        "both": lambda trainer: trainer.update(samples, Replay(good, 0.3)),
        "on-policy": lambda trainer: trainer.update(samples),
        "replayed": lambda trainer: trainer.update([], Replay(good, 1.0, "after")),
    }
    parts = {}
    for name, update in updates.items():
        trainer = trainer_for(spec)
        parts[name] = gradient(monkeypatch, trainer, lambda t=trainer, u=update: u(t))
    expected = [a + 0.3 * b for a, b in zip(parts["on-policy"], parts["replayed"], strict=True)]
    assert_equal(parts["both"], expected)


def test_preference_adds_its_gradient_to_the_objectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLEANER, appendix C: one update descends on the objective and, ``weight`` times, on the loss of the pairs."""
    repairs = {"purification": {}}
    both = whole(repairs | {"preference": {"beta": 0.2, "weight": 0.7}})
    specs = {
        "both": both,
        "objective": whole(repairs),
        "pairs": whole(repairs | {"objective": {"kind": "dpo", "beta": 0.2}}),
    }
    samples, pairs = samples_for(both), pairs_of([repaired(rollout) for rollout in rollouts()], "characters")
    parts = {}
    for name, spec in specs.items():
        trainer = trainer_for(spec)
        update = {"samples": [] if name == "pairs" else samples, "pairs": [] if name == "objective" else pairs}
        parts[name] = gradient(
            monkeypatch, trainer, lambda t=trainer, u=update: t.update(u["samples"], pairs=u["pairs"])
        )
    assert_equal(parts["both"], [a + 0.7 * b for a, b in zip(parts["objective"], parts["pairs"], strict=True)])


@pytest.mark.parametrize("pairs", [0, 1, 3, 4, 7, 16])
def test_the_pairs_of_a_step_are_split_over_its_updates_and_each_is_learned_once(pairs: int) -> None:
    recipe = {"purification": {}, "preference": {}}
    spec = run_spec(recipe, schedule={"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 4})
    repairs = pairs_of([repaired(rollout) for rollout in rollouts()], "characters")[:pairs]
    report = trainer_for(spec).update(samples_for(spec), pairs=repairs)
    assert report["updates"] == 4
    assert report["dpo/pairs"] == pairs


def test_pairs_are_learned_beside_what_is_replayed() -> None:
    recipe = {"purification": {}, "preference": {}, "self_imitation": {"covariance": None}}
    spec = run_spec(recipe, schedule={"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 4})
    repairs, samples = pairs_of([repaired(rollout) for rollout in rollouts()], "characters"), samples_for(spec)
    for mode, updates in (("sum", 4), ("after", 6)):
        report = trainer_for(spec).update(samples, Replay(samples[:6], 1.0, mode), pairs=repairs)
        assert report["updates"] == updates
        assert report["dpo/pairs"] == 16


def test_pairs_are_learned_in_updates_of_their_own_where_every_sample_is_masked() -> None:
    spec = whole({"purification": {}, "preference": {}})
    repairs = pairs_of([repaired(rollout) for rollout in rollouts()], "characters")
    masked = [sample.masked("overlong") for sample in samples_for(spec)]
    report = trainer_for(spec).update(masked, pairs=repairs)
    assert report["updates"] == 1
    assert report["dpo/pairs"] == 16


def test_what_is_replayed_is_split_over_the_updates_or_follows_in_its_own() -> None:
    recipe = {"self_imitation": {"covariance": None}}
    samples = samples_for(whole(recipe))
    spec = run_spec(recipe, schedule={"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 4})
    beside, after = trainer_for(spec), trainer_for(spec)
    assert beside.update(samples, Replay(samples[:6], 1.0, "sum"))["updates"] == 4
    assert after.update(samples, Replay(samples[:6], 1.0, "after"))["updates"] == 4 + 2
    assert beside.updates == 4
    assert after.updates == 6


def test_replaying_makes_what_was_good_likelier() -> None:
    spec = whole({"self_imitation": {}})
    trainer, samples = trainer_for(spec), samples_for(spec)[:6]
    good = [replace(sample, advantages=np.ones_like(sample.advantages)) for sample in samples]

    def likelihood() -> float:
        rows = trainer.old_logprobs(good)
        return sum(np.array(row)[one.loss_mask].sum() for row, one in zip(rows, good, strict=True))

    before = likelihood()
    trainer.update([], Replay(good, 1.0, "after"))
    assert likelihood() > before


def test_a_minibatch_that_the_mismatch_mask_cuts_whole_makes_no_update() -> None:
    spec = run_spec({"mismatch": {"mask": "token", "mask_bound": 1.5}})
    samples = samples_for(spec)
    cut = [replace(sample, rollout_logprobs=sample.old_logprobs - 2) for sample in samples[:8]]
    trainer = trainer_for(spec)
    report = trainer.update([*cut, *samples[8:]])
    assert (report["updates"], trainer.updates) == (1, 1)
    assert report["mismatch_masked"] >= 0.4
    assert trainer_for(spec).update(cut)["updates"] == 0


def test_experts_without_a_sampled_token_are_imitated_all_the_same() -> None:
    spec = whole(OBJECTIVES["ipa with experts"])
    only_experts = [
        replace(sample, expert=sample.loss_mask, loss_mask=np.zeros_like(sample.loss_mask))
        for sample in samples_for(spec)
    ]
    trainer = trainer_for(spec)
    before = trainer.backend.weights()
    report = trainer.update(only_experts)
    assert (report["updates"], report["tokens"]) == (1, 0)
    assert not same_bits(before, trainer.backend.weights())


def test_a_critic_whose_gradient_is_not_finite_says_whose_it_is() -> None:
    spec = whole({"credit": {"kind": "gae"}})
    critic = critic_of(spec, trainer_for(spec))
    [sample] = [only_sample(rollout) for rollout in rollouts()[:1]]
    nothing = np.zeros(len(sample))
    with pytest.raises(NonFiniteGradient, match="critic"):
        critic.update([with_targets(sample, nothing, nothing + float("inf"))])


def test_the_critic_begins_with_values_of_0_and_a_network_of_its_own() -> None:
    spec = whole({"credit": {"kind": "gae"}})
    trainer = trainer_for(spec)
    critic = critic_of(spec, trainer)
    samples = [only_sample(rollout) for rollout in rollouts()]
    assert not any(values.any() for values in critic.values(samples))
    before = trainer.backend.weights()
    targets = [with_targets(sample, np.zeros(len(sample)), np.ones(len(sample))) for sample in samples]
    for _ in range(3):
        critic.update(targets)
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.backend.weights().items())
    assert (
        np.mean([values[one.loss_mask].mean() for values, one in zip(critic.values(samples), samples, strict=True)]) > 0
    )
    assert all(not values[~one.loss_mask].any() for values, one in zip(critic.values(samples), samples, strict=True))


def test_explained_variance_by_hand_and_where_there_is_nothing_to_explain() -> None:
    [sample] = [only_sample(rollout) for rollout in rollouts()[:1]]
    places = np.flatnonzero(sample.loss_mask)
    returns, values = np.zeros(len(sample)), np.zeros(len(sample))
    returns[places[0]], values[places[0]] = 1.0, 1.0
    assert explained_variance([with_targets(sample, values, returns)]) == 1
    assert explained_variance([with_targets(sample, 0 * values, returns)]) == 0
    rounded = np.full(len(sample), 0.7) + np.linspace(0, 1e-7, len(sample))
    assert explained_variance([with_targets(sample, values, rounded)]) == 0


def test_a_value_sees_what_stands_before_its_token_and_nothing_else() -> None:
    spec = whole({"credit": {"kind": "gae"}})
    critic = critic_of(spec, trainer_for(spec))
    samples = [only_sample(rollout) for rollout in rollouts()]
    critic.update([with_targets(sample, np.zeros(len(sample)), np.ones(len(sample))) for sample in samples])
    critic.update([with_targets(sample, np.zeros(len(sample)), np.ones(len(sample))) for sample in samples])
    sample = max(samples, key=len)
    last = sample.learned_length - 1
    other_end = sample.token_ids.copy()
    other_end[last] += 1 if other_end[last] < 50 else -1
    ours, theirs = critic.values([sample])[0], critic.values([replace(sample, token_ids=other_end)])[0]
    assert np.array_equal(ours[: last + 1], theirs[: last + 1])
    assert ours[last] != 0
