"""Verdicts reach the turns; a judge that fails leaves its group to the outcome, and says so."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from engine.environments.contract import Demonstrator, JudgeVerdict, Oracle
from engine.environments.registry import environment_for
from engine.judge_endpoint import JudgeCounts, JudgeTimeout, JudgeUnavailable
from engine.loop.judge_phase import Judging, judging_for
from engine.rollout.context_tools import context_tools
from engine.rollout.judge_llm import LanguageModelJudge
from engine.spec.credit import Attribution
from engine.spec.rollout_group import rollouts_in
from engine.spec.run import RunSpec
from engine.spec.trajectory import ToolCall, Trajectory
from tests.engine.groups import grouped

Rollout = Callable[..., Trajectory]


class ByName:
    """Fails for the trajectories that ``failing`` names; all else is good."""

    def __init__(self, failing: dict[str, Exception]) -> None:
        self.failing, self.asked = failing, list[str]()
        self.counts = JudgeCounts()

    async def verdicts(self, trajectory: Trajectory) -> Sequence[JudgeVerdict]:
        self.asked.append(trajectory.id)
        await asyncio.sleep(0)
        if trajectory.id in self.failing:
            raise self.failing[trajectory.id]
        return ["good"] * len(trajectory.turns)

    async def close(self) -> None:
        pass


def nobody() -> None:
    pass


def verdicts_of(one: Trajectory) -> list[str | None]:
    return [turn.verdict for turn in one.turns]


async def test_one_failure_leaves_its_whole_group_without_verdicts_and_no_other(rollout: Rollout) -> None:
    played = [rollout(prompt=group, member=index) for group in range(2) for index in range(2)]
    judge = ByName({"train-0-1": JudgeTimeout("no answer within 1 s")})
    judged = await Judging(Attribution(), judge).judge(grouped(played), alive=nobody)
    rollouts = rollouts_in(judged.groups)
    assert [verdicts_of(trajectory) for trajectory in rollouts] == [[None, None]] * 2 + [["good", "good"]] * 2
    assert rollouts[:2] == played[:2]
    assert judged.metrics["judge/failed"] == 1
    assert judged.warnings == [
        "JudgeTimeout of 1 trajectories, e.g. train-0-1: no answer within 1 s; 1 groups are judged by outcome alone"
    ]


async def test_what_the_judge_says_of_an_experts_turns_is_not_in_the_policys_share_of_good_ones(
    rollout: Rollout,
) -> None:
    class OfExperts(ByName):
        async def verdicts(self, trajectory: Trajectory) -> Sequence[JudgeVerdict]:
            return ["good" if turn.prefilled else "bad" for turn in trajectory.turns]

    judged = await Judging(Attribution(), OfExperts({})).judge(grouped([rollout(turns=4, prefilled=2)]), alive=nobody)
    assert verdicts_of(judged.groups[0].rollouts[0]) == ["good", "good", "bad", "bad"]
    assert judged.metrics["judge/good"] == 0


async def test_each_kind_of_failure_is_reported_once(rollout: Rollout) -> None:
    played = [rollout(member=index) for index in range(4)]
    failing: dict[str, Exception] = {trajectory.id: JudgeTimeout("late") for trajectory in played[:3]}
    judge = ByName({**failing, played[3].id: JudgeUnavailable("gone")})
    judged = await Judging(Attribution(), judge).judge(grouped(played), alive=nobody)
    assert [warning.split(",")[0] for warning in judged.warnings] == [
        "JudgeTimeout of 3 trajectories",
        "JudgeUnavailable of 1 trajectories",
    ]
    assert "judge/good" not in judged.metrics


async def test_groups_of_which_nothing_is_trained_on_are_not_judged(rollout: Rollout) -> None:
    played = [
        rollout(prompt=0, member=0, masked_because="void-turn"), rollout(prompt=0, member=1),
        rollout(prompt=1, member=0, masked_because="low-variance-group"),
    ]  # fmt: skip
    judge = ByName({})
    await Judging(Attribution(), judge).judge(grouped(played), alive=nobody)
    assert judge.asked == ["train-0-0", "train-0-1"]


async def test_an_agent_that_never_asked_the_policy_is_not_judged_and_costs_its_group_no_verdict(
    rollout: Rollout,
) -> None:
    acting, silent = rollout(prompt=0, member=0), rollout(prompt=0, member=1).model_copy(update={"segments": []})
    judge = ByName({"train-0-1": JudgeUnavailable("nothing to judge")})
    judged = await Judging(Attribution(), judge).judge(grouped([acting, silent]), alive=nobody)
    assert judge.asked == ["train-0-0"]
    assert [verdicts_of(trajectory) for trajectory in rollouts_in(judged.groups)] == [["good", "good"], []]
    assert judged.metrics["judge/failed"] == 0


async def test_it_shows_that_it_is_alive_as_long_as_it_lasts(rollout: Rollout) -> None:
    beats = list[None]()

    class Slow(ByName):
        async def verdicts(self, trajectory: Trajectory) -> Sequence[JudgeVerdict]:
            while len(beats) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return await super().verdicts(trajectory)

    async with asyncio.timeout(60):
        await Judging(Attribution(), Slow({})).judge(grouped([rollout()]), alive=lambda: beats.append(None))
    count = len(beats)
    await asyncio.sleep(0.6)
    assert len(beats) == count


async def test_what_is_no_failure_of_the_judge_is_raised_as_it_is(rollout: Rollout) -> None:
    judging = Judging(Attribution(), ByName({"train-0-0": ZeroDivisionError()}))
    with pytest.raises(ZeroDivisionError):
        await judging.judge(grouped([rollout()]), alive=nobody)


def test_verdicts_without_weight_are_not_asked_for() -> None:
    assert not Judging(Attribution(alpha=0.0), ByName({})).has_weight(1)
    decaying = Judging(Attribution(decay_steps=10), ByName({}))
    assert [decaying.has_weight(step) for step in (1, 9, 10, 12)] == [True, True, False, False]
    assert Judging(Attribution(), ByName({})).has_weight(10**6)


def spec_with(judge: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate({"name": "x", "recipe": {"credit": {"kind": "attribution", "judge": judge}}})


def judging_in(spec: RunSpec, environ: Mapping[str, str] = os.environ) -> Judging | None:
    return judging_for(spec.recipe, spec.environment, spec.dataset, environ)


async def test_the_rule_judge_is_the_environment_itself(rollout: Rollout) -> None:
    spec = spec_with({"kind": "rules"})
    judging = judging_in(spec)
    assert judging is not None
    environment = environment_for(spec.environment, spec.dataset)
    one = rollout().model_copy(update={"task": environment.tasks("train")[0]})
    judged = await judging.judge(grouped([one]), alive=nobody)
    assert isinstance(environment, Oracle)
    calls = [turn.tool_calls for turn in one.turns]
    assert verdicts_of(judged.groups[0].rollouts[0]) == environment.verdicts(one.task, calls, one.answer)


@pytest.mark.parametrize("name", ["python-math", "household", "sokoban", "webshop", "search-qa", "apps"])
@pytest.mark.parametrize("context", [{"template": "self-managing"}, {"subagent_turns": 4}])
async def test_the_rules_see_nothing_of_the_tools_that_the_context_adds(
    rollout: Rollout, name: str, context: dict[str, Any]
) -> None:
    spec = RunSpec.model_validate(
        {
            "name": "x",
            "environment": {"id": name},
            "recipe": {"preset": "agentevolver-attributing", "context": context},
        }
    )
    judging, environment = judging_in(spec), environment_for(spec.environment, spec.dataset)
    assert judging is not None
    assert isinstance(environment, Demonstrator)
    task = environment.tasks("train")[0]
    script = environment.script(task, "solve", Random(0))
    own = [list(turn.observation.calls) for turn in script.turns]
    text = own[0][0].text
    added = [
        ToolCall(name=tool.name, arguments={"text": text}, output=own[0][0].output, status="ok", seconds=0.0)
        for tool in context_tools(spec.recipe.context)
    ]
    calls = [[call] for call in added] + [[*added, *of_turn] if of_turn else [] for of_turn in own]
    turns = [
        turn.model_copy(update={"tool_calls": of_turn})
        for turn, of_turn in zip(rollout(turns=len(calls)).turns, calls, strict=True)
    ]
    answer = script.turns[-1].message.content if script.turns[-1].message.answers else None
    one = rollout(turns=len(calls)).with_turns(turns).model_copy(update={"task": task, "answer": answer})
    judged = await judging.judge(grouped([one]), alive=nobody)
    assert verdicts_of(judged.groups[0].rollouts[0]) == ["bad"] * len(added) + ["good"] * len(own)


def test_other_credit_has_no_judge_and_a_model_needs_its_key() -> None:
    assert judging_in(RunSpec(name="x")) is None
    llm = {"kind": "llm", "endpoint": "http://127.0.0.1:1/v1", "model": "m", "api_key_variable": "PALESTRA_JUDGE_KEY"}
    judging = judging_in(spec_with(llm), {"PALESTRA_JUDGE_KEY": "abc\n"})
    assert judging is not None
    assert isinstance(judging._judge, LanguageModelJudge)
    assert judging._judge._headers["Authorization"] == "Bearer abc"
