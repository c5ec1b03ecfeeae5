from collections import Counter

import pytest
from scripted import RENDERER, ScriptedPolicy

from engine.environments.household import HouseholdEnvironment
from engine.environments.python_math import PythonMathEnvironment
from engine.environments.python_math_problems import problem
from engine.environments.sokoban import SokobanEnvironment
from engine.models.tokenizer import tokenizer_for
from engine.rollout.demonstrations import DemonstrationWriter
from engine.rollout.episode import Arena, run_episode
from engine.rollout.renderers.characters import CharacterRenderer
from engine.rollout.requests import EpisodeRequest
from engine.spec.environment import Household, PythonMath, Sokoban
from engine.spec.model import BuiltinModel
from engine.spec.recipe import Reward
from engine.spec.run import Dataset
from engine.spec.supervised import Demonstrations
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

ENVIRONMENT = PythonMathEnvironment(PythonMath(), Dataset())


def scripted(count, **fields):
    writer = DemonstrationWriter(ENVIRONMENT, RENDERER, Reward(), seed=3)
    return list(writer.demonstrations(Demonstrations(count=count, **fields)))


async def test_a_demonstration_is_token_for_token_what_a_policy_doing_the_same_would_have_seen():
    """Every kind of slip at every level, replayed in real sandboxes."""
    played = scripted(90, wrong_fraction=0.1, tool_error_fraction=0.8)
    assert {call.error_class for trajectory in played for call in trajectory.tool_calls} == {
        None,
        "syntax",
        "name",
        "type",
    }
    async with Pool(SandboxSpec(), size=1) as sandboxes:
        for trajectory in played:
            policy = ScriptedPolicy(*(turn.token_ids for turn in trajectory.turns))
            number = int(trajectory.task.id.removeprefix("train-"))
            arena = Arena(
                ENVIRONMENT,
                RENDERER,
                policy,
                sandboxes,
                Reward(),
                PythonMath().max_turns,
                PythonMath().max_turn_tokens,
                160,
            )
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


def test_shares_of_guesses_and_of_broken_first_calls_are_those_of_the_spec():
    played = scripted(3000, wrong_fraction=0.6, tool_error_fraction=0.25)
    guesses = [trajectory for trajectory in played if not trajectory.tool_calls]
    repairs = [trajectory for trajectory in played if trajectory.tool_errors]
    assert abs(len(guesses) / 3000 - 0.6) < 0.03
    assert abs(len(repairs) / (3000 - len(guesses)) - 0.25) < 0.04
    assert all(repair.tool_calls[0].status == "error" and repair.tool_errors == 1 for repair in repairs)
    assert all(trajectory.success for trajectory in played if trajectory.tool_calls)


def test_guessing_does_not_pay():
    guesses = scripted(3000, wrong_fraction=1.0)
    assert not any(guess.tool_calls for guess in guesses)
    assert sum(guess.success for guess in guesses) / 3000 < 0.01


def test_demonstrations_use_training_tasks_only():
    heldout = {problem(0, "heldout", number, 1 + number % 3).question for number in range(510)}
    played = scripted(500)
    assert {trajectory.task.split for trajectory in played} == {"train"}
    assert not heldout & {trajectory.task.question for trajectory in played}
    assert min(Counter(trajectory.task.level for trajectory in played).values()) > 100


def test_equal_seeds_are_equal_demonstrations_and_other_seeds_are_not():
    def ids(count, seed):
        recipe = Demonstrations(count=count)
        return [
            [turn.token_ids for turn in demonstration.turns]
            for demonstration in DemonstrationWriter(ENVIRONMENT, RENDERER, Reward(), seed).demonstrations(recipe)
        ]

    assert ids(20, seed=1) == ids(40, seed=1)[:20]
    assert ids(20, seed=1) != ids(20, seed=2)


def test_every_demonstration_fits_into_the_default_limits():
    for trajectory in scripted(3000, wrong_fraction=0.0, tool_error_fraction=0.7):
        tokens = sum(len(turn.context_ids) + len(turn.token_ids) for turn in trajectory.turns)
        assert tokens <= BuiltinModel().context_tokens
        assert all(len(turn.token_ids) <= PythonMath().max_turn_tokens for turn in trajectory.turns)
        assert len(trajectory.turns) <= PythonMath().max_turns


@pytest.mark.parametrize(
    ("environment", "vocabulary"),
    [
        (SokobanEnvironment(Sokoban(), Dataset()), "sokoban"),
        (HouseholdEnvironment(Household(), Dataset()), "household"),
    ],
)
async def test_a_demonstration_without_an_answer_ends_as_a_policy_doing_the_same_would_end(environment, vocabulary):
    renderer = CharacterRenderer(tokenizer_for(vocabulary), reasoning=False)
    wanted = Demonstrations(count=40, wrong_fraction=0.3, tool_error_fraction=0.5)
    played = list(DemonstrationWriter(environment, renderer, Reward(), seed=1).demonstrations(wanted))
    assert {(trajectory.stop_reason, trajectory.success) for trajectory in played} >= {
        ("done", True),
        ("answered", False),
    }
    for trajectory in played:
        policy = ScriptedPolicy(*(turn.token_ids for turn in trajectory.turns), context_tokens=9999)
        number = int(trajectory.task.id.removeprefix("train-"))
        arena = Arena(environment, renderer, policy, None, Reward(), 64, 99, 9999)
        real = await run_episode(EpisodeRequest("train", 0, 0, 0, "train", number, 1.0, 0), arena)
        assert [turn.context_ids for turn in real.turns] == [turn.context_ids for turn in trajectory.turns]
        assert (real.success, real.answer, real.stop_reason) == (
            trajectory.success,
            trajectory.answer,
            trajectory.stop_reason,
        )
        assert (real.reward, real.rewards) == (trajectory.reward, trajectory.rewards)
