"""What a recipe says about learning, from trajectories to weights.  The policy is tiny: claims are about bits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cluster.members import learner_for
from engine.failures import NonFiniteGradient
from engine.spec.presets import preset_names
from engine.spec.recipe import Recipe
from engine.spec.rollout_group import rollouts_in
from engine.spec.trajectory import Start, Trajectory
from engine.training.batch import sample_of
from engine.training.learner import Learner
from tests.engine.groups import grouped
from tests.engine.training.cast import (
    credited,
    from_expert,
    learned,
    repaired,
    rollouts,
    run_spec,
    same_bits,
    supervised,
    trajectory,
    turn,
    updated,
    with_experience,
)

SHORT = {"data": {"kind": "demonstrations", "count": 8}, "steps": 4, "batch_size": 4}
SPEAR = {
    "credit": {"kind": "grpo"},
    "objective": {"kind": "clipped", "covariance": {"kind": "clip", "share": 0.1, "low_share": 0.5}},
    "self_imitation": {
        "replay_buffer": 8,
        "warmup_steps": 4,
        "covariance": {"kind": "clip", "share": 0.1, "low": -100.0, "high": 100.0},
    },
}
RECIPES: dict[str, dict[str, Any]] = {
    "spear": SPEAR,
    "spear, after": SPEAR | {"self_imitation": SPEAR["self_imitation"] | {"mode": "after"}},
    "ppo": {"credit": {"kind": "gae", "lam": 0.9}, "objective": {"kind": "clipped"}},
    "kl": {"credit": {"kind": "grpo"}, "kl": {"beta": 0.1, "estimator": "k2"}},
    "dpo": {"objective": {"kind": "dpo"}, "purification": {}},
    "preference": {"credit": {"kind": "grpo"}, "purification": {}, "preference": {}},
    "ipa": {"credit": {"kind": "chunk-return"}, "objective": {"kind": "ipa"}, "expert_starts": {}},
    "experience": {"experience": {"pool": [{"when_to_use": "always", "content": "use it"}], "training": "hybrid"}},
}


def of_recipe(recipe: Recipe, step: int) -> list[Trajectory]:
    """Rollouts of a step, with what the parts of the recipe leave on a trajectory."""
    played = rollouts(step)
    if recipe.purification is not None:
        played = [repaired(rollout) for rollout in played]
    if recipe.experience is not None:
        played = [with_experience(rollout) if rollout.member % 2 else rollout for rollout in played]
    if recipe.expert_starts is not None:
        played = [from_expert(rollout) if rollout.member % 2 else rollout for rollout in played]
    return played


def step(learner: Learner, number: int, recipe: Recipe) -> dict[str, float]:
    return learned(learner, grouped(of_recipe(recipe, number)))


@pytest.mark.parametrize("name", [name for name in preset_names() if Recipe(preset=name).reinforces])
def test_every_preset_changes_the_weights_and_keeps_them_finite(name: str) -> None:
    spec = run_spec({"preset": name, "optimizer": {"learning_rate": 1e-3, "warmup_steps": 0}})
    learner = learner_for(spec)
    before = learner.weights()
    reports = [step(learner, number, spec.recipe) for number in (1, 2)]
    assert not same_bits(before, learner.weights())
    assert all(torch.isfinite(tensor).all() for tensor in learner.weights().values())
    assert all(value == value and abs(value) != float("inf") for report in reports for value in report.values())
    assert all(report["updates"] == 2 for report in reports)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_resumed_learner_goes_on_to_the_same_bits(tmp_path: Path, recipe: dict[str, Any]) -> None:
    """Saved between credit and update, as a pause saves, and again after every step."""
    spec = run_spec(recipe)
    straight = learner_for(spec)
    expected = [step(straight, number, spec.recipe) for number in range(1, 7)]
    resumed, reports = learner_for(spec), []
    for number in range(1, 7):
        resumed.credit(grouped(of_recipe(spec.recipe, number)), step=number)
        resumed.save(tmp_path / f"inside-{number}")
        resumed = learner_for(spec)
        resumed.load(tmp_path / f"inside-{number}")
        reports.append(step(resumed, number, spec.recipe))
    assert reports == expected
    assert same_bits(resumed.weights(), straight.weights())
    if "self_imitation" in recipe:
        assert sum(report["sil/replayed"] > 0 for report in reports) >= 1


def test_crediting_twice_is_crediting_once() -> None:
    """What credit keeps is in memory only: a resumed step credits again."""
    spec = run_spec(SPEAR)
    once, twice = learner_for(spec), learner_for(spec)
    for number in (1, 2, 3):
        twice.credit(grouped(of_recipe(spec.recipe, number)), step=number)
        assert step(once, number, spec.recipe) == step(twice, number, spec.recipe)
    assert same_bits(once.weights(), twice.weights())


def test_a_step_of_which_all_are_in_quarantine_has_nothing_to_credit() -> None:
    """What was released of earlier steps is credited apart from it."""
    assert learner_for(run_spec({})).credit([], step=1) == {}


def test_the_baseline_of_self_imitation_is_of_whole_groups() -> None:
    """A rollout of step 1 is released in step 2: its reward alone is nobody's baseline."""
    learner = learner_for(run_spec(SPEAR | {"self_imitation": {"baseline_buffer": 8, "replay_buffer": 99}}))
    pair = [trajectory(turn([2, 4, 5], [20, 21]), reward=reward, member=index) for index, reward in enumerate((0.2, 0))]
    assert learned(learner, grouped(pair))["sil/baseline"] == pytest.approx(0.1)
    later = [
        rollout.model_copy(update={"sampled_at_version": 1, "id": f"train-1-{rollout.member}"}) for rollout in pair
    ]
    back = trajectory(turn([2, 4, 5], [22, 23]), reward=1.0, member=2, alerts=["sandbox/1"])
    credited(learner, grouped(later), grouped([*pair, back]))
    assert updated(learner, grouped(later), [back])["sil/baseline"] == pytest.approx(0.1)


def test_masked_trajectories_count_in_their_group_and_are_not_trained() -> None:
    learner = learner_for(run_spec({"credit": {"kind": "grpo"}}))
    played = [
        rollout.model_copy(update={"masked_because": "overlong"}) if rollout.member == 0 else rollout
        for rollout in rollouts()
    ]
    plain, masked = credited(learner, grouped(rollouts())), credited(learner, grouped(played))
    ours, theirs = ([rollout.turns[0].advantages for rollout in rollouts_in(groups)] for groups in (masked, plain))
    assert ours == theirs
    trained = sum(rollout.sampled_tokens for rollout in played if rollout.masked_because is None)
    assert updated(learner, masked)["tokens"] == trained


IPA = {"credit": {"kind": "chunk-return"}, "objective": {"kind": "ipa", "imitation_weight": 0}}


@pytest.mark.parametrize(
    ("recipe", "reported"),
    [
        ({"mismatch": {"mask": "token"}}, [(1, 1, 2), (1, 3, 4)]),
        ({"mismatch": {"mask": "chunk"}}, [(1, 0, 4)]),
        ({"mismatch": {"mask": "sequence"}}, [(0, 0, 2), (1, 0, 4)]),
        (IPA, [(1, 0, 4)]),
        ({}, []),
        ({"mismatch": {"weight": "token"}}, []),
    ],
)
def test_what_the_mismatch_mask_cuts_is_reported_and_is_what_update_leaves_out(
    recipe: dict[str, Any], reported: list[tuple[int, int, int]]
) -> None:
    """The generator found two tokens impossible that the trainer finds as likely as any."""
    learner = learner_for(run_spec({"credit": {"kind": "grpo"}} | recipe))
    turns = turn([2, 4, 5], [20, 21]), turn([8, 40, 9], [22, 23, 24, 25], logprobs=[-3.0, -30.0, -3.0, -30.0])
    played = [trajectory(*turns, reward=1.0), trajectory(turn([2, 4, 5], [20, 21]), reward=0.0, member=1)]
    groups = credited(learner, grouped(played))
    first, second = rollouts_in(groups)
    cut = [(change.kind, change.turn, change.start, change.stop) for change in first.changes]
    assert cut == [("mismatch-masked", *span) for span in reported]
    assert second.changes == []
    masked = updated(learner, groups)["mismatch_masked"]
    assert masked == pytest.approx(sum(stop - start for _, start, stop in reported) / 8)


def test_a_step_without_pairs_is_reported_and_makes_no_update() -> None:
    learner = learner_for(run_spec(RECIPES["dpo"]))
    before = learner.weights()
    assert learned(learner, grouped(rollouts())) == {
        "updates": 0.0, "dpo/pairs": 0.0, "dpo/accuracy": 0.0, "dpo/margin": 0.0
    }  # fmt: skip
    assert same_bits(before, learner.weights())


def test_dpo_comes_to_prefer_the_corrected_calls() -> None:
    spec = run_spec(RECIPES["dpo"] | {"optimizer": {"learning_rate": 3e-3}})
    learner = learner_for(spec)
    reports = [learned(learner, grouped(of_recipe(spec.recipe, 1))) for _ in range(8)]
    assert reports[0]["dpo/pairs"] == 16
    assert reports[0]["loss"] == pytest.approx(0.69, abs=0.1)
    assert reports[-1]["loss"] < reports[0]["loss"]
    assert reports[-1]["dpo/accuracy"] > 0.9
    assert reports[-1]["dpo/margin"] > 0


def test_a_step_that_is_masked_as_a_whole_makes_no_update_and_says_so() -> None:
    learner = learner_for(run_spec({"credit": {"kind": "grpo"}}))
    before = learner.weights()
    masked = [rollout.model_copy(update={"masked_because": "overlong"}) for rollout in rollouts()]
    assert learned(learner, grouped(masked)) == {"updates": 0.0, "tokens": 0.0}
    assert same_bits(before, learner.weights())


def test_a_gradient_that_is_not_finite_has_a_name_and_moves_nothing() -> None:
    learner = learner_for(run_spec({"credit": {"kind": "dr-grpo"}}))
    before = learner.weights()
    first, *others = rollouts()
    beyond_measure = first.model_copy(update={"reward": float("inf")})
    with pytest.raises(NonFiniteGradient, match="policy"):
        learned(learner, grouped([beyond_measure, *others]))
    assert same_bits(before, learner.weights())


def test_prefilled_turns_are_learned_by_imitation_only() -> None:
    """IPA learns up to the crucial turn; whatever else is asked for, an expert's tokens teach nothing."""

    def expert(ids: list[int], *, imitated: bool) -> list[Trajectory]:
        prefilled = turn([2, 4, 5], ids, prefilled=True, imitated=imitated)
        own = turn([8, 9], [30, 31])
        return [
            trajectory(prefilled, own, reward=float(index), prompt=group, member=index)
            for group in range(4)
            for index in range(4)
        ]

    def tokens_learned(recipe: dict[str, Any], *, imitated: bool) -> float:
        learner = learner_for(run_spec(recipe))
        before = learner.weights()["model.embed_tokens.weight"]
        learned(learner, grouped(expert([70, 71], imitated=imitated)))
        # Tied embeddings: a target token's own row moves most; 71 is read and never predicted by anything but itself.
        return float((learner.weights()["model.embed_tokens.weight"] - before)[70].abs().max())

    ipa = RECIPES["ipa"] | {"optimizer": {"learning_rate": 1e-3}}
    assert tokens_learned(ipa, imitated=True) != tokens_learned(ipa, imitated=False)
    grpo = {"credit": {"kind": "grpo"}, "optimizer": {"learning_rate": 1e-3}}
    assert tokens_learned(grpo, imitated=True) == tokens_learned(grpo, imitated=False)


EXPERT_IDS = [70, 71, 72]


def behind_an_expert(
    *rewards: float, imitated: bool = False, logprob: float = -4.0, masked: str | None = None
) -> list[Trajectory]:
    """A group that begins behind one turn of an expert, which earned 1, per reward of its rollouts.

    A ``logprob`` far below what any policy gives makes the mismatch mask cut every sampled chunk.
    """
    first = turn([2, 4, 5], EXPERT_IDS, prefilled=True, imitated=imitated)
    own = turn([8, 9], [30, 31], logprobs=[logprob] * 2)
    start = Start(expert="e", prefix=1, turns=2, reward=1.0)
    return [
        trajectory(first, own, reward=reward, prompt=0, member=index, start=start, masked_because=masked)
        for index, reward in enumerate(rewards)
    ]


def likelihood_of_the_expert(learner: Learner) -> float:
    """Log-prob of its tokens under the present weights."""
    [[_, _, _, *logprobs]] = learner._trainer.old_logprobs(
        [sample_of([2, 4, 5, *EXPERT_IDS], [False] * 3 + [True] * 3)]
    )
    return sum(logprobs)


def rise_of_the_expert(played: list[Trajectory], **objective: Any) -> tuple[float, float]:
    """How far one update moves the expert's log-prob, and how many updates that were.

    Reinforcement weighs nothing, so that imitation is all that can move it.
    """
    recipe = RECIPES["ipa"] | {"objective": {"kind": "ipa", "reinforcement_weight": 0.0} | objective}
    learner = learner_for(run_spec(recipe | {"reward": {"wrong": -1.0}}))
    before = likelihood_of_the_expert(learner)
    report = learned(learner, grouped(played))
    return likelihood_of_the_expert(learner) - before, report["updates"]


@pytest.mark.parametrize("rewards", [(-1.0, 1.0), (-1.0, -1.0), (1.0, 1.0)], ids=str)
def test_imitation_makes_the_expert_likelier_whatever_the_rollouts_behind_it_earned(rewards: tuple[float, ...]) -> None:
    rise, updates = rise_of_the_expert(behind_an_expert(*rewards, imitated=True))
    assert (rise > 0.01, updates) == (True, 1)


def test_imitation_starts_where_no_rollout_of_a_group_succeeded_and_no_turn_is_known_to_be_crucial() -> None:
    rise, updates = rise_of_the_expert(behind_an_expert(-1.0, -1.0))
    assert (rise > 0.01, updates) == (True, 1)
    assert rise_of_the_expert(behind_an_expert(-1.0, 1.0)) == (0.0, 1)
    assert rise_of_the_expert(behind_an_expert(-1.0, -1.0), imitation_weight=0.0) == (0.0, 1)


@pytest.mark.parametrize(
    "masked", [{"logprob": -30.0}, {"masked": "overlong"}, {"masked": "low-variance-group"}], ids=str
)
def test_imitation_survives_a_minibatch_whose_sampled_chunks_are_all_masked(masked: dict[str, Any]) -> None:
    rise, updates = rise_of_the_expert(behind_an_expert(-1.0, -1.0, **masked))
    assert (rise > 0.01, updates) == (True, 1)


def test_what_an_alert_keeps_out_is_not_imitated() -> None:
    assert rise_of_the_expert(behind_an_expert(-1.0, -1.0, masked="quarantined")) == (0.0, 0)


def test_experience_leaves_the_sample_and_the_log_probs_are_those_without_it() -> None:
    recipe = {"experience": {"pool": [{"when_to_use": "always", "content": "use it"}], "training": "strip"}}
    shown = [with_experience(rollout) for rollout in rollouts()]
    plain, stripping = learner_for(run_spec({})), learner_for(run_spec(recipe))
    stripped, never_shown = credited(stripping, grouped(shown)), credited(plain, grouped(rollouts()))
    for ours, theirs in zip(rollouts_in(stripped), rollouts_in(never_shown), strict=True):
        assert [each.old_logprobs for each in ours.turns] == [each.old_logprobs for each in theirs.turns]
        assert ours.turns[0].context_ids != theirs.turns[0].context_ids, "what was read stays on the trajectory"
        [change] = ours.changes
        assert (change.kind, change.turn, change.start, change.stop) == ("stripped", 0, 1, 4)
        assert change.removed_ids == [50, 51, 52]
    # The first ratios are exactly 1, far inside both clips: the wider one changes nothing yet.
    whole = {"schedule": {"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16}}
    plain, stripping = learner_for(run_spec({}, **whole)), learner_for(run_spec(recipe, **whole))
    assert learned(plain, grouped(rollouts())) == learned(stripping, grouped(shown))
    assert same_bits(plain.weights(), stripping.weights())


def test_a_repair_in_a_rollout_whose_experience_was_stripped_is_preferred_without_it_too() -> None:
    """Nor has the reference read it.  In groups of equal rewards the pairs alone are learned."""
    whole = {
        "schedule": {"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16},
        "environment": {"sandbox": {"snapshots": True}},
    }
    repairs = {"purification": {}, "preference": {"beta": 0.5}}
    experience = {"pool": [{"when_to_use": "always", "content": "use it"}], "training": "strip"}
    played = [repaired(rollout).model_copy(update={"reward": -1.0, "success": False}) for rollout in rollouts()]
    plain = learner_for(run_spec(repairs, **whole))
    stripping = learner_for(run_spec(repairs | {"experience": experience}, **whole))
    before = plain.weights()
    theirs = learned(plain, grouped(played))
    assert theirs["dpo/pairs"] == 16
    assert learned(stripping, grouped(map(with_experience, played))) == theirs
    assert not same_bits(before, plain.weights())
    assert same_bits(plain.weights(), stripping.weights())


def test_the_boosted_clip_acts_from_the_second_minibatch_on() -> None:
    """Two minibatches of one rollout, the same twice: the first update takes its ratio beyond 1.28.

    One minibatch: the clip, wide or narrow, cuts nothing.  Two: at 1.28 the second one is cut, at 3 it is learned.
    """

    def after(boosted: float, *, minibatch: int) -> tuple[Learner, dict[str, float]]:
        pool = [{"when_to_use": "always", "content": "use it"}]
        learner = learner_for(
            run_spec(
                {
                    "credit": {"kind": "chunk-return"},
                    "optimizer": {"learning_rate": 1e-2},
                    "experience": {"pool": pool, "training": "strip", "boosted_clip_high": boosted},
                },
                schedule={"prompts_per_step": 1, "group_size": 2, "minibatch_trajectories": minibatch},
            )
        )
        shown = [with_experience(trajectory(turn([2, 4, 5], [20, 21, 22]), member=index)) for index in range(2)]
        return learner, learned(learner, grouped(shown))

    (wide, wide_report), (narrow, narrow_report) = (after(clip, minibatch=2) for clip in (3.0, 0.28))
    assert wide_report["ratio_max"] == narrow_report["ratio_max"] == 1
    assert same_bits(wide.weights(), narrow.weights())
    (wide, wide_report), (narrow, narrow_report) = (after(clip, minibatch=1) for clip in (3.0, 0.28))
    assert 1.28 < narrow_report["ratio_max"] == wide_report["ratio_max"] < 4
    assert wide_report["clip_fraction"] == 0 < narrow_report["clip_fraction"]
    assert not same_bits(wide.weights(), narrow.weights())


def test_hybrid_strips_where_the_advantage_is_positive_only() -> None:
    recipe = {"experience": {"pool": [{"when_to_use": "always", "content": "use it"}], "training": "hybrid"}}
    groups = credited(learner_for(run_spec(recipe)), grouped(map(with_experience, rollouts())))
    signs = {(rollout.turns[0].advantages[0] > 0, bool(rollout.changes)) for rollout in rollouts_in(groups)}
    assert signs == {(True, True), (False, False)}


def test_the_critic_learns_what_trajectories_earn() -> None:
    spec = run_spec(RECIPES["ppo"] | {"credit": {"kind": "gae", "critic_learning_rate": 1e-2, "value_clip": None}})
    learner = learner_for(spec)
    reports = [learned(learner, grouped(rollouts(1))) for _ in range(30)]
    assert reports[0]["critic/explained_variance"] == pytest.approx(0, abs=1e-6)
    assert reports[-1]["critic/explained_variance"] > 0.3
    assert reports[-1]["critic/loss"] < reports[0]["critic/loss"]


def test_the_reference_is_the_policy_that_the_cold_start_left(tmp_path: Path) -> None:
    spec = run_spec({"kl": {"beta": 0.1}, "stages": [SHORT]})
    learner = learner_for(spec)
    supervised(learner, 4)
    first, second = (step(learner, number, spec.recipe) for number in (1, 2))
    assert second["kl_to_reference"] > first["kl_to_reference"] > 0, "the second minibatch of step 1 has moved"
    whole = run_spec(
        {"kl": {"beta": 0.1}, "stages": [SHORT]},
        schedule={"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16},
    )
    learner = learner_for(whole)
    supervised(learner, 4)
    assert step(learner, 1, whole.recipe)["kl_to_reference"] == 0


def test_turns_that_failed_are_not_learned_in_the_cold_start() -> None:
    data = {"kind": "demonstrations", "count": 16, "wrong_fraction": 0.0, "tool_error_fraction": 1.0}
    base = {"data": data, "steps": 3, "batch_size": 4}
    environment = {"id": "python-math", "levels": [1], "max_turn_tokens": 16}
    learners = {
        masked: learner_for(run_spec({"stages": [base | {"mask_errors": masked}]}, environment=environment))
        for masked in (False, True)
    }
    losses = {masked: supervised(learner, 3) for masked, learner in learners.items()}
    assert losses[False] != losses[True]
    marked = [
        (number, each.masked_because, [change.turn for change in demonstration.changes])
        for demonstration in learners[True].stages.trajectories(0)
        for number, each in enumerate(demonstration.turns)
        if each.failed_calls
    ]
    assert marked
    assert all(reason == "error" and turns == [number] for number, reason, turns in marked)
    assert not any(demonstration.changes for demonstration in learners[False].stages.trajectories(0))
