import math

import pytest

from engine.rollout.scoring import rewards_of
from engine.spec.recipe import Reward
from engine.spec.trajectory import ToolCall, Turn

SPEAR = Reward(correct=1.0, wrong=-1.0, tool_calls=1.0, tool_calls_decay_steps=200, well_formed=0.1)


def turn(status=None, *, answered=False, prefilled=False):
    calls = [] if status is None else [ToolCall(name="t", output="", status=status, seconds=0.0)]
    return Turn(
        context_ids=[1], context_text="", token_ids=[2], pieces=[""], logprobs=[0.0], policy_versions=[0],
        tool_calls=calls, answered=answered, prefilled=prefilled,
    )  # fmt: skip


def rewards(reward, *turns, success=True, step=0):
    return rewards_of(reward, success=success, turns=turns, step=step)


ANSWER = turn(answered=True)


def test_spears_reward_by_hand():
    """Three calls that worked and one that did not, at half of T_decay: 0.5 * min(1, 0.3)."""
    turns = [turn("ok"), turn("error"), turn("ok"), turn("ok"), ANSWER]
    assert rewards(SPEAR, *turns, step=100) == pytest.approx(
        {"outcome": 1.0, "tool_errors": 0.0, "tool_calls": 0.15, "well_formed": 0.1}
    )


@pytest.mark.parametrize(("step", "weight"), [(0, 1.0), (50, (math.cos(math.pi / 4) + 1) / 2), (200, 0.0), (900, 0.0)])
def test_the_weight_of_tool_calls_falls_on_half_a_cosine(step, weight):
    assert rewards(SPEAR, turn("ok"), turn(), step=step)["tool_calls"] == pytest.approx(0.1 * weight)


def test_without_decay_the_weight_of_tool_calls_is_constant():
    assert rewards(Reward(tool_calls=0.4), turn("ok"), turn(), step=9999)["tool_calls"] == pytest.approx(0.04)


def test_more_than_ten_tool_calls_are_not_paid():
    assert rewards(SPEAR, *[turn("ok")] * 25, turn())["tool_calls"] == rewards(SPEAR, *[turn("ok")] * 10)["tool_calls"]


@pytest.mark.parametrize(
    ("turns", "well_formed"),
    [
        ([turn("ok"), ANSWER], 0.1),
        ([ANSWER, turn("ok"), ANSWER], 0.1),  # a dialogue, which an answer does not end
        ([turn("error"), turn("ok")], 0.1),  # the turn limit: all were calls
        ([turn("ok"), turn()], 0.0),  # neither call nor answer, or cut by the context
        ([], 0.0),
    ],
)
def test_one_malformed_turn_costs_the_format_reward(turns, well_formed):
    assert rewards(SPEAR, *turns)["well_formed"] == well_formed


def test_what_an_expert_did_is_neither_paid_nor_charged():
    reward = SPEAR.model_copy(update={"tool_error": -0.5})
    expert = [turn("ok", prefilled=True), turn("error", prefilled=True)]
    assert rewards(reward, *expert, turn("ok"), turn()) == rewards(reward, turn("ok"), turn())


def test_a_recipe_without_the_curriculum_has_the_components_it_always_had():
    assert rewards(Reward(tool_error=-0.1), turn("error"), turn("ok"), turn(), step=7) == {
        "outcome": 1.0,
        "tool_errors": -0.1,
    }


def test_components_of_the_environment_stand_beside_the_recipes():
    paid = rewards_of(Reward(), success=True, turns=[], step=1, components={"style": 0.25})
    assert paid == {"outcome": 1.0, "tool_errors": 0.0, "style": 0.25}


@pytest.mark.parametrize(("step", "paid"), [(0, 0.5), (10, 0.5), (15, 0.25), (18, 0.1), (20, 0.0), (99, 0.0)])
def test_a_component_of_the_environment_follows_its_schedule(step, paid):
    reward = Reward(schedules=[{"component": "format", "first_step": 10, "last_step": 20}])
    paid_components = {"format": 0.5, "length": -0.1}
    found = rewards_of(reward, success=True, turns=[ANSWER], step=step, components=paid_components)
    assert found == pytest.approx({"outcome": 1.0, "tool_errors": 0.0, "format": paid, "length": -0.1})


def test_a_schedule_whose_steps_are_one_is_a_jump():
    reward = Reward(
        schedules=[{"component": "c", "first_weight": 1, "last_weight": -3, "first_step": 5, "last_step": 5}]
    )
    weights = [rewards_of(reward, success=True, turns=[], step=step, components={"c": 1.0})["c"] for step in (4, 5, 6)]
    assert weights == [1.0, -3.0, -3.0]


@pytest.mark.parametrize(
    "schedules",
    [
        [{"component": "a", "first_step": 5, "last_step": 4}],
        [{"component": "a", "last_step": 4}, {"component": "a", "last_step": 5}],
    ],
)
def test_a_schedule_that_runs_backwards_or_twice_is_refused(schedules):
    with pytest.raises(ValueError, match="before first_step|has a schedule already"):
        Reward(schedules=schedules)
