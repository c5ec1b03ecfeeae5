"""What holds in each of webshop, search-qa and apps."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.environments.contract import Demonstrator, Oracle, Restorable
from engine.environments.tool_world import ToolEnvironment
from engine.models.tokenizer import CHARACTERS, MARKS, tokenizer_for
from engine.models.words import WORDS_OF_VOCABULARY
from engine.rollout.demonstrations import DemonstrationWriter
from engine.rollout.renderers.characters import CharacterRenderer
from engine.spec.examples import EXAMPLE_QUESTIONS
from engine.spec.message import AssistantMessage
from engine.spec.recipe import Reward
from engine.spec.run import RunSpec
from engine.spec.supervised import Demonstrations
from engine.spec.trajectory import Task
from tests.engine.environments.worlds import LEVELS, WORLDS, Played, calling, play, world

DIGEST = """
import sys
from random import Random
from tests.engine.environments.test_worlds import digest
print(digest(sys.argv[1]))
"""
LONGEST_OBSERVATION = 700
"""Characters."""


def digest(name: str) -> str:
    """The digest of tasks and what demonstrators see."""
    environment = world(name)
    tasks = [environment.tasks(split)[number] for split in ("train", "heldout") for number in range(6)]
    scripts = [environment.script(task, "repair", Random(7)) for task in tasks]
    return hashlib.sha256(repr((tasks, scripts)).encode()).hexdigest()


@pytest.mark.parametrize("name", WORLDS)
def test_a_task_and_its_world_are_the_same_in_every_process(name):
    root = Path(__file__).parents[3]
    elsewhere = subprocess.run(
        [sys.executable, "-c", DIGEST, name], cwd=root, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": "5", "PYTHONPATH": str(root)},
    ).stdout.strip()  # fmt: skip
    assert elsewhere == digest(name)


@pytest.mark.parametrize("name", WORLDS)
def test_a_task_depends_on_its_number_and_the_dataset_seed_alone(name):
    later = world(name).tasks("train")[9]
    assert later == world(name).tasks("train")[9]
    assert later != world(name, seed=1).tasks("train")[9]
    assert len({task.question for task in world(name).tasks("train")[:60]}) > 50


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("level", LEVELS)
def test_the_documented_examples_are_the_first_training_questions(name, level):
    default = RunSpec.model_validate({"name": "x", "environment": {"id": name}}).environment.levels  # type: ignore[union-attr]
    tasks = world(name, *(default if level in default else [level])).tasks("train")
    asked = [task.question for task in tasks[:9] if task.level == level]
    assert list(EXAMPLE_QUESTIONS[name][level]) == asked[:3]


@pytest.mark.parametrize("name", WORLDS)
def test_it_can_be_restored_played_and_judged(name):
    environment = world(name)
    assert isinstance(environment, Demonstrator)
    assert isinstance(environment, Oracle)
    session = environment.session(environment.tasks("train")[0], sandboxes=None)  # type: ignore[arg-type]
    assert isinstance(session, Restorable)


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("level", LEVELS)
def test_every_task_is_solved_by_its_demonstrator_and_every_step_is_judged_good(name, level):
    environment = world(name, level, partial_credit=True)
    longest = RunSpec.model_validate({"name": "x", "environment": {"id": name}}).environment.max_turns
    for split in ("train", "heldout"):
        for task in environment.tasks(split)[:150]:
            script = environment.script(task, "solve", Random(0))
            assert script.rewards.success
            assert dict(script.rewards.components) == {}
            assert len(script.turns) < longest
            calls = [turn.observation.calls for turn in script.turns]
            assert not any(call.failed for turn in calls for call in turn)
            answer = script.turns[-1].message.content if script.turns[-1].message.answers else None
            judged = environment.verdicts(task, calls, answer)
            assert set(judged) == {"good"}


@pytest.mark.parametrize("name", WORLDS)
def test_a_slip_fails_is_judged_bad_and_keeps_nobody_from_the_goal(name):
    environment = world(name)
    for number, task in enumerate(environment.tasks("train")[:150]):
        script = environment.script(task, "repair", Random(number))
        calls = [turn.observation.calls for turn in script.turns]
        failed = [any(call.failed for call in of_turn) for of_turn in calls]
        assert (script.rewards.success, sum(failed)) == (True, 1)
        answer = script.turns[-1].message.content if script.turns[-1].message.answers else None
        expected = ["bad" if wrong else "good" for wrong in failed]
        assert environment.verdicts(task, calls, answer) == expected


@pytest.mark.parametrize("name", WORLDS)
def test_who_does_a_good_thing_twice_is_judged_good_once(name):
    environment = world(name, 2)
    for task in environment.tasks("train")[:60]:
        script = environment.script(task, "solve", Random(0))
        first = script.turns[0].observation.calls
        assert environment.verdicts(task, [first, first], None) == ["good", "bad"]
        assert environment.verdicts(task, [(), ()], "done") == ["bad", "bad"]


@pytest.mark.parametrize("name", ["sokoban", "household", *WORLDS])
@pytest.mark.parametrize("error_class", ["unknown-tool", "arguments"])
def test_a_call_that_was_refused_is_judged_bad_and_changes_nothing(name, error_class):
    environment = world(name, 2)
    for task in environment.tasks("train")[:20]:
        script = environment.script(task, "solve", Random(0))
        calls = [turn.observation.calls for turn in script.turns]
        answer = script.turns[-1].message.content if script.turns[-1].message.answers else None
        refused = calls[0][0].model_copy(update={"status": "error", "error_class": error_class})
        assert environment.verdicts(task, [(refused,), *calls], answer) == ["bad", *["good"] * len(calls)]
        assert environment.verdicts(task, [(refused, *calls[0]), *calls[1:]], answer) == ["good"] * len(calls)


@pytest.mark.parametrize("name", WORLDS)
def test_a_demonstrator_that_guesses_is_hardly_ever_right_and_hardly_paid(name):
    environment, tasks = world(name, partial_credit=True), world(name).tasks("train")[:300]
    rewards = [environment.script(task, "guess", Random(number)).rewards for number, task in enumerate(tasks)]
    assert sum(reward.success for reward in rewards) <= 3
    assert sum(sum(reward.components.values()) for reward in rewards) / len(rewards) < 0.2


def random_call(environment: ToolEnvironment[Any], task: Task, played: Played, rng: Random) -> AssistantMessage:
    """Some call of some tool with words and numbers that were seen."""
    words = " ".join([task.question, *played.outputs]).replace('"', " ").replace(",", " ").split()
    numbers = [int(word) for word in words if word.isdigit()] or [1]
    schema = rng.choice(list(environment.tools(task)))
    fill: dict[str, Callable[[], Any]] = {
        "integer": lambda: rng.choice(numbers),
        "string": lambda: rng.choice(words),
        "object": lambda: {rng.choice(words): rng.choice(words)},
    }
    required = schema.parameters["required"]
    return calling(schema.name, **{name: fill[schema.parameters["properties"][name]["type"]]() for name in required})


@pytest.mark.parametrize("name", WORLDS)
async def test_a_random_policy_hardly_ever_succeeds(name):
    environment, successes = world(name), 0
    for number, task in enumerate(environment.tasks("train")[:60]):
        rng, messages, played = Random(number), list[AssistantMessage](), Played([], None)  # type: ignore[arg-type]
        for _ in range(8):
            messages.append(random_call(environment, task, played, rng))
            played = await play(environment, task, messages)
        last = AssistantMessage(rng.choice(task.question.split()))
        successes += (await play(environment, task, [*messages, last])).rewards.success
    assert successes <= 1


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("level", LEVELS)
def test_every_text_is_words_digits_and_spaces_and_fits_into_the_default_limits(name, level):
    """Else a small policy would have to spell; and every character is one of the alphabet."""
    tokenizer, environment = tokenizer_for(name), world(name, level)
    renderer = CharacterRenderer(tokenizer, reasoning=False)
    limits = RunSpec.model_validate({"name": "x", "environment": {"id": name}}).environment
    characters = range(len(MARKS), len(MARKS) + len(CHARACTERS))
    wanted = Demonstrations(count=200, wrong_fraction=0.3, tool_error_fraction=0.5)
    for trajectory in DemonstrationWriter(environment, renderer, Reward(), seed=0).demonstrations(wanted):
        assert len(trajectory.turns) <= limits.max_turns
        for turn in trajectory.turns:
            assert len(turn.token_ids) <= limits.max_turn_tokens
            assert tokenizer.unk not in turn.context_ids
            spelled = [token for token in (*turn.context_ids, *turn.token_ids) if token in characters]
            assert set(tokenizer.decode(spelled)) <= set("0123456789 \n.}?@")
            assert all(call.output.isascii() for call in turn.tool_calls)
            assert all(len(call.output) <= LONGEST_OBSERVATION for call in turn.tool_calls)


@pytest.mark.parametrize("name", WORLDS)
def test_no_word_of_a_vocabulary_stands_in_it_twice(name):
    assert len(set(WORDS_OF_VOCABULARY[name])) == len(WORDS_OF_VOCABULARY[name])


@pytest.mark.parametrize("name", WORLDS)
async def test_a_snapshot_brings_the_world_back_as_often_as_one_likes(name):
    environment = world(name, 2)
    task = environment.tasks("train")[1]
    messages = [turn.message for turn in environment.script(task, "solve", Random(0)).turns]
    async with environment.session(task, sandboxes=None) as session:  # type: ignore[arg-type]
        await session.reset()
        await session.act(messages[0])
        kept = await session.snapshot()
        seen = []
        for _ in range(2):
            seen.append([await session.act(message) for message in messages[1:]])
            assert (await session.score()).success
            await session.restore(kept)
            assert not (await session.score()).success
        assert seen[0] == seen[1]
        with pytest.raises(ValueError, match="not a snapshot"):
            await session.restore("something else")


@pytest.mark.parametrize("name", WORLDS)
async def test_nothing_happens_behind_the_end_and_several_calls_of_a_turn_see_each_other(name):
    environment = world(name, 2)
    task = environment.tasks("train")[0]
    script = environment.script(task, "solve", Random(0))
    requests = [replace(request, id="") for turn in script.turns for request in turn.message.requests]
    together = AssistantMessage(requests=tuple(requests))
    last = [turn.message for turn in script.turns if turn.message.answers]
    played = await play(environment, task, [together, *last])
    assert played.rewards.success
    assert played.errors == [None] * len(requests)
    if not last:
        behind = AssistantMessage(requests=(*requests, requests[0]))
        assert (await play(environment, task, [behind])).errors == [*([None] * len(requests)), "illegal"]


@pytest.mark.parametrize("name", ["webshop", "search-qa"])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_held_out_question_is_ever_a_training_question(name, seed):
    environment = world(name, 3, seed=seed)
    questions = [{task.question for task in environment.tasks(split)[:300]} for split in ("train", "heldout")]
    assert not questions[0] & questions[1]
