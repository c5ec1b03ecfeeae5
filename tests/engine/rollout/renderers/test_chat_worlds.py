"""The worlds with several tools, in the words of a pretrained model's chat template."""

from pathlib import Path

import pytest

from engine.rollout.demonstrations import DemonstrationWriter
from engine.rollout.renderers.chat import chat_renderer
from engine.spec.message import AssistantMessage
from engine.spec.recipe import Reward
from engine.spec.supervised import Demonstrations
from tests.engine.environments.worlds import WORLDS, play, world
from tests.engine.rollout.renderers.model_folders import write_folder


@pytest.mark.parametrize("name", WORLDS)
async def test_a_demonstration_is_written_read_again_and_played_with_the_same_end(name: str, tmp_path: Path) -> None:
    environment = world(name, 1, 2, 3)
    renderer = chat_renderer(write_folder(tmp_path, "qwen3"), tool_calls="auto", reasoning="auto")
    wanted = Demonstrations(count=12, wrong_fraction=0.2, tool_error_fraction=0.5)
    for trajectory in DemonstrationWriter(environment, renderer, Reward(), seed=0).demonstrations(wanted):
        tools = environment.tools(trajectory.task)
        read = [renderer.parse(turn.token_ids, tools).message for turn in trajectory.turns]
        assert all(message.malformed is None for message in read)
        assert (await play(environment, trajectory.task, read)).rewards.success == trajectory.success


async def test_several_calls_of_one_turn_are_written_and_made_in_their_order(tmp_path: Path) -> None:
    environment = world("apps", 2)
    task = environment.tasks("train")[0]
    renderer = chat_renderer(write_folder(tmp_path, "qwen3"), tool_calls="auto", reasoning="auto")
    simulation = environment.simulation("train", 0, 2)
    requests = tuple(simulation.problem.run().requests)  # type: ignore[attr-defined]
    ids = renderer.write(AssistantMessage(requests=requests), environment.tools(task))
    message = renderer.parse(ids, environment.tools(task)).message
    assert [request.arguments for request in message.requests] == [request.arguments for request in requests]
    played = await play(environment, task, [message, AssistantMessage("done")])
    assert played.errors == [None] * len(requests)
    assert played.rewards.success
