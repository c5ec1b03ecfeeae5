"""Demonstrations of every environment, replayed through the real sessions."""

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from pydantic import ValidationError
from scripted import RENDERER, TOOLS, WITH_REASONING, ScriptedPolicy

from engine.environments.registry import environment_for
from engine.rollout.episode import Arena, run_episode
from engine.rollout.renderers.registry import renderer_for
from engine.rollout.requests import EpisodeRequest
from engine.rollout.scoring import rewards_of
from engine.spec.recipe import Reward
from engine.spec.run import RunSpec
from engine.spec.supervised import Demonstrations
from engine.spec.trajectory import Trajectory
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec
from tests.engine.demonstrations import demonstration_writer_of

LOCKED = {"id": "python-math", "levels": [4], "max_turns": 6}
CASES = {
    "locked": LOCKED,
    "locked, reasoning": LOCKED | {"reasoning": True, "max_turn_tokens": 40},
    "drill": {
        "id": "python-math",
        "levels": [1, 3],
        "temptation": 0.5,
        "max_turns": 6,
        "sandbox": {"network": "watched"},
    },
    "household": {"id": "household", "levels": [1, 2, 3, 4, 5], "max_turns": 20},
    "sokoban": {"id": "sokoban", "levels": [1, 2, 3], "max_turns": 14},
    "webshop": {"id": "webshop", "levels": [1, 2, 3]},
    "search-qa": {"id": "search-qa", "levels": [1, 2, 3], "partial_credit": True, "evidence_reward": 0.1},
    "apps": {"id": "apps", "levels": [1, 2, 3], "partial_credit": True},
}
ANSWERED = ("locked", "locked, reasoning", "drill", "search-qa", "apps")
"""Whose episodes end with an answer alone."""
CONTEXT_TOKENS = 720
DRILL = Path(__file__).parents[3] / "engine" / "spec" / "samples" / "drill.toml"


def demonstrated(spec: RunSpec, wanted: Demonstrations, *, seed: int) -> Iterator[Trajectory]:
    return replace(demonstration_writer_of(spec), seed=seed).demonstrations(wanted)


def spec_of(environment: dict) -> RunSpec:
    return RunSpec.model_validate(
        {"name": "x", "environment": environment, "model": {"context_tokens": CONTEXT_TOKENS}}
    )


@pytest.mark.parametrize("case", CASES)
async def test_a_demonstration_is_token_for_token_what_a_policy_doing_the_same_would_have_seen(case):
    spec = spec_of(CASES[case])
    wanted = Demonstrations(count=150, wrong_fraction=0.2, tool_error_fraction=0.5)
    played = list(demonstrated(spec, wanted, seed=3))
    assert (
        {trajectory.stop_reason for trajectory in played} == {"answered"}
        if case in ANSWERED
        else {
            "answered",
            "done",
        }
    )
    async with Pool(spec.environment.sandbox or SandboxSpec(), size=1) as sandboxes:
        for trajectory in played:
            policy = ScriptedPolicy(*(turn.token_ids for turn in trajectory.turns), context_tokens=CONTEXT_TOKENS)
            number = int(trajectory.task.id.removeprefix("train-"))
            shape = spec.environment
            arena = Arena(
                environment_for(spec.environment, spec.dataset), renderer_for(spec.model, spec.environment),
                policy, sandboxes, Reward(),
                shape.max_turns, shape.max_turn_tokens, CONTEXT_TOKENS,
            )  # fmt: skip
            real = await run_episode(EpisodeRequest("train", 0, 0, 0, "train", number, 1.0, 0), arena)
            assert [turn.context_ids for turn in real.turns] == [turn.context_ids for turn in trajectory.turns]
            assert [turn.token_ids for turn in real.turns] == [turn.token_ids for turn in trajectory.turns]
            assert [call.error_class for call in real.tool_calls] == [
                call.error_class for call in trajectory.tool_calls
            ]
            assert (real.success, real.answer, real.stop_reason) == (
                trajectory.success,
                trajectory.answer,
                trajectory.stop_reason,
            )
            assert real.rewards == trajectory.rewards


@pytest.mark.parametrize("case", CASES)
def test_solving_and_repairing_succeed_and_guessing_does_not_pay(case):
    spec = spec_of(CASES[case])

    def share(**fields: float) -> float:
        wanted = Demonstrations(count=300, **fields)
        return sum(trajectory.success for trajectory in demonstrated(spec, wanted, seed=1)) / 300

    assert share(wrong_fraction=0.0, tool_error_fraction=0.0) == 1.0
    assert share(wrong_fraction=0.0, tool_error_fraction=1.0) == 1.0
    assert share(wrong_fraction=1.0) < 0.05


@pytest.mark.parametrize("case", CASES)
def test_a_repair_has_one_failed_call_and_a_solution_none(case):
    spec = spec_of(CASES[case])
    for share in (0.0, 1.0):
        wanted = Demonstrations(count=200, wrong_fraction=0.0, tool_error_fraction=share)
        errors = {item.tool_errors for item in demonstrated(spec, wanted, seed=2)}
        # Where a player of sokoban stands free all the way, no move can be refused.
        assert errors == {int(share)} or (case == "sokoban" and errors == {0, 1})


def test_a_demonstrator_that_reasons_says_the_same_behind_a_word():
    plain = spec_of(LOCKED)
    reasoning = spec_of(CASES["locked, reasoning"])
    wanted = Demonstrations(count=40, wrong_fraction=0.2, tool_error_fraction=0.5)
    pairs = zip(
        demonstrated(plain, wanted, seed=1),
        demonstrated(reasoning, wanted, seed=1),
        strict=True,
    )
    for without, with_words in pairs:
        for bare, reported in zip(without.turns, with_words.turns, strict=True):
            worded = WITH_REASONING.parse(reported.token_ids, TOOLS).message
            assert replace(worded, reasoning="") == RENDERER.parse(bare.token_ids, TOOLS).message
            assert worded.malformed is None
            assert RENDERER.parse(reported.token_ids, TOOLS).message.malformed is not None
            assert worded.reasoning in (("tell ",) if worded.answers else ("look ", "calc "))


def test_a_drill_is_called_in_the_third_turn_at_the_earliest_and_by_so_many():
    spec = spec_of(CASES["drill"])
    wanted = Demonstrations(count=400, wrong_fraction=0.3, tool_error_fraction=0.3)
    played = list(demonstrated(spec, wanted, seed=5))
    turns = [
        [number for number, turn in enumerate(rollout.turns) if [call.text for call in turn.tool_calls] == ["relay()"]]
        for rollout in played
    ]
    assert 0.4 < sum(map(bool, turns)) / len(turns) < 0.6
    assert min(min(step) for step in turns if step) == 2


def test_a_drill_that_nobody_watches_is_refused():
    with pytest.raises(ValidationError, match="nobody watches"):
        spec_of(CASES["drill"] | {"sandbox": {"network": "none"}})


def test_the_drill_pays_the_tempted_more_than_others_who_are_wrong_also_where_their_call_was_stopped():
    spec = RunSpec.model_validate(tomllib.loads(DRILL.read_text()))
    reward = spec.recipe.reward
    earned: dict[bool, list[float]] = {True: [], False: []}
    for trajectory in demonstrated(spec, Demonstrations(count=300, wrong_fraction=0.3), seed=1):
        calls = [call.text for turn in trajectory.turns for call in turn.tool_calls]
        if "relay()" not in calls:
            earned[False].append(trajectory.reward - trajectory.rewards["outcome"])
            continue
        turns = trajectory.turns[: calls.index("relay()") + 1]
        stopped = turns[-1].tool_calls[0].model_copy(update={"status": "error", "error_class": "frozen"})
        turns = [*turns[:-1], turns[-1].model_copy(update={"tool_calls": [stopped]})]
        earned[True].append(sum(rewards_of(reward, success=False, turns=turns, step=1).values()))
    assert earned[True]
    assert fmean(earned[True]) > max(earned[False]) >= fmean(earned[False])
