"""Numbers of a step: those of a part of the recipe only where it is on."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from engine.cluster.workers import Replacements
from engine.loop.metrics import StepFacts, learner_metrics, step_metrics
from engine.loop.planner import Played
from engine.loop.state import RunState
from engine.loop.summary import summary_of
from engine.rollout.worker import ENVIRONMENT_ATTEMPTS
from engine.spec.rollout_group import GroupPlan, Prefill, RolloutGroup
from engine.spec.run import RunSpec
from engine.spec.trajectory import Change, Trajectory
from tests.engine.groups import grouped, selected_by

Rollout = Callable[..., Trajectory]


def metrics(played: list[Trajectory], recipe: dict[str, Any], **more: Any) -> dict[str, float]:
    return metrics_of(grouped(played), recipe, **more)


def metrics_of(
    groups: list[RolloutGroup], recipe: dict[str, Any], *, updated: bool = False, **more: Any
) -> dict[str, float]:
    spec = RunSpec.model_validate(
        {
            "name": "x",
            "recipe": recipe,
            "environment": {"sandbox": {"snapshots": True}},
            "schedule": {"prompts_per_step": 2, "group_size": 2, "minibatch_trajectories": 2},
        }
    )
    played = Played(tasks_taken=0, prompts=0, groups=groups, **more)
    return step_metrics(StepFacts(spec.recipe, played, selected_by(spec, groups), policy_version=0, updated=updated))


def test_a_part_that_is_off_has_no_numbers(rollout: Rollout) -> None:
    values = metrics([rollout(member=index) for index in range(2)], {})
    assert not [key for key in values if "/masked" in key or "repairs" in key or "prefilled" in key or "rounds" in key]


def test_repairs_do_not_hide_first_attempts(rollout: Rollout) -> None:
    repaired = [
        Change(kind="purified", turn=0, start=0, stop=1, reason=reason) for reason in ("shallow", "deep", "deep")
    ]
    failed = Change(kind="purification-failed", turn=1, start=0, stop=1, reason="attempts")
    played = [
        rollout(member=0, turns=4, changes=repaired, first_attempt_errors=3),
        rollout(member=1, turns=2, changes=[failed]),
    ]
    values = metrics(played, {"purification": {}})
    assert values["train/first_attempt_error_rate"] == 3 / 4
    assert values["train/tool_error_rate"] == 0
    assert [values[f"train/repairs_{kind}"] for kind in ("shallow", "deep", "failed")] == [1, 2, 1]


def test_masks_and_drops_are_counted_by_reason(rollout: Rollout) -> None:
    played = [
        rollout(prompt=0, member=0), rollout(prompt=0, member=1, success=False, turns=1),
        rollout(prompt=1, member=0), rollout(prompt=1, member=1),
    ]  # fmt: skip
    values = metrics(played, {"selection": {"masks": ["void-turn"], "dynamic_sampling": {}}}, rounds=4)
    assert values["train/masked/void-turn"] == 1
    assert values["train/masked/dynamic-sampling"] == 2
    assert (values["train/groups_dropped"], values["train/sampling_rounds"]) == (1, 4)
    assert values["train/updates_left_out"] == 0
    assert values["train/success"] == 3 / 4  # of everyone, dropped ones too


def test_an_update_from_what_was_replayed_or_released_is_not_left_out(rollout: Rollout) -> None:
    masked = [rollout(member=index, turns=1) for index in range(2)]
    recipe = {"selection": {"masks": ["void-turn"]}}
    left_out = [metrics(masked, recipe, updated=updated)["train/updates_left_out"] for updated in (False, True)]
    assert left_out == [1, 0]


def test_replaced_rollouts_are_counted(rollout: Rollout) -> None:
    change = Change(kind="resampled", turn=0, start=0, stop=0, reason="lost", details={"tries": 2})
    values = metrics([rollout(changes=[change]), rollout(member=1)], {"selection": {"resampling": {}}})
    assert values["train/resampled"] == 2


def test_every_loss_of_an_environment_is_counted_also_of_those_that_were_played_again(rollout: Rollout) -> None:
    details = {"tries": 2, "environment-lost": 2}
    change = Change(kind="resampled", turn=0, start=0, stop=0, reason="environment-lost", details=details)
    group = [rollout(changes=[change]), rollout(member=1)]
    assert metrics(group, {})["train/environment_lost"] == 2
    assert "train/environment_lost" not in metrics([rollout(), rollout(member=1)], {})
    plan = GroupPlan(0, 0, 0, 0, 0)
    discarded = Counter({"environment-lost": 1, "sandbox-lost": 5})
    values = metrics_of([RolloutGroup(plan, tuple(group))], {}, discarded=discarded)
    assert values["train/environment_lost"] == 2 + ENVIRONMENT_ATTEMPTS


def test_starts_tell_how_much_was_given_and_how_good_the_policy_is_without(rollout: Rollout) -> None:
    expert = rollout(turns=4)
    plans = [
        GroupPlan(0, 0, 0, 0, 0),
        GroupPlan(1, 0, 1, 1, 1, Prefill("e", tuple(expert.turns[:3]), 4, 1), True, crucial=True),
        GroupPlan(2, 0, 2, 1, 1, Prefill("e", tuple(expert.turns[:1]), 4, 1), True, crucial=True),
    ]
    groups = [
        RolloutGroup(plan, tuple(rollout(prompt=plan.number, member=index, success=signs[index]) for index in range(2)))
        for plan, signs in zip(plans, ((False, True), (True, True), (True, True)), strict=True)
    ]
    values = metrics_of(groups, {"expert_starts": {}}, discarded=Counter({"replay-diverged": 3}))
    assert (values["train/prefilled_groups"], values["train/prefix_share"]) == (2, 0.5)
    assert (values["train/crucial_found"], values["train/replay_diverged"]) == (2, 3)
    assert (values["train/success_fresh"], values["train/success"]) == (0.5, 5 / 6)


def test_an_experts_calls_are_not_in_the_policys_error_rates(rollout: Rollout) -> None:
    """Else a recipe whose rollouts begin far inside an expert's trajectory looks as if its policy erred less."""
    played = [rollout(member=index, turns=5, prefilled=3, first_attempt_errors=1) for index in range(2)]
    for rollout in played:
        [call] = rollout.turns[3].tool_calls
        failed = rollout.turns[3].model_copy(update={"tool_calls": [call.model_copy(update={"status": "error"})]})
        rollout.segments[0].turns[3] = failed
    values = metrics(played, {"expert_starts": {}, "purification": {}})
    names = ("tool_calls", "tool_error_rate", "first_attempt_error_rate")
    assert [values[f"train/{name}"] for name in names] == [1, 1, 1]


def test_the_summary_tells_purified_success_only_of_runs_that_evaluate_with_it() -> None:
    sandbox = {"environment": {"sandbox": {"snapshots": True}}}
    measured = {0: {"eval/success_purified": 0.25}, 40: {"eval/success_purified": 0.5}}
    for in_evaluation in (True, False):
        recipe = {"purification": {"in_evaluation": in_evaluation}}
        spec = RunSpec.model_validate({"name": "x", "recipe": recipe, **sandbox})
        summary = summary_of(RunState(spec=spec, evaluations=measured), spec.recipe, rl_steps=spec.rl_steps)
        assert summary.get("success_purified") == ({"before_rl": 0.25, "after": 0.5} if in_evaluation else None)


def test_what_the_learner_counts_under_a_prefix_of_its_own_keeps_it() -> None:
    reported = learner_metrics({"learning_rate": 0.1, "loss": 1.0, "critic/loss": 2.0, "sil/replayed": 3.0})
    assert reported == {"train/lr": 0.1, "train/loss": 1.0, "critic/loss": 2.0, "sil/replayed": 3.0}


def test_the_summary_names_members_that_were_made_anew_and_who_moved_and_nobody_where_nobody_died() -> None:
    spec = RunSpec.model_validate({"name": "x"})
    died = Replacements(Counter({"rollout-0": 2, "generator": 1}), Counter({"generator": 1}))
    summary = summary_of(RunState(spec=spec), spec.recipe, rl_steps=spec.rl_steps, replacements=died)
    assert (summary["replaced"], summary["moved"]) == ({"rollout-0": 2, "generator": 1}, {"generator": 1})
    assert not {"replaced", "moved"} & summary_of(RunState(spec=spec), spec.recipe, rl_steps=spec.rl_steps).keys()
