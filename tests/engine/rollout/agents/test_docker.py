"""Agents in containers: the endpoint listens in the container's own network, and everything else is watched."""

import pytest
from scripted import answer

from engine.environments.registry import environment_for
from engine.environments.terminal.own.making import write_tasks
from engine.rollout.episode import run_episode
from engine.spec.environment import Agent, PythonMath, Terminal
from engine.training.batch import samples_from_trajectory
from sandboxes.spec import SandboxSpec
from tests.engine.rollout.agents.players import DATASET, LOOP, arena, described, policy, program, request
from tests.engine.rollout.agents.test_episode import logged
from tests.engine.rollout.agents.test_terminal import MEND, NAME, SHELL_AGENT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def in_container(image: str, **changes: object) -> SandboxSpec:
    usual = {"backend": "docker", "image": image, "network": "watched", "snapshots": False, "memory_mib": 512}
    return SandboxSpec.model_validate({**usual, **changes})


async def test_an_agent_in_an_image_reaches_the_policy_with_its_key_and_is_trained_on(docker_image, tmp_path):
    twice = LOOP + (
        'messages = [{"role": "user", "content": os.environ["PALESTRA_TASK"]}]\n'
        "first = ask(messages)\n"
        'last = ask([*messages, first, {"role": "user", "content": "sure?"}])["content"]\n'
        'open("/work/answer.txt", "w").write(last)\n'
        "print(os.environ['OPENAI_API_KEY'])\n"
    )
    agent = program(twice)
    environment = Agent(tasks=PythonMath(levels=[1], sandbox=in_container(docker_image)), agent=agent)
    turns = policy(answer("41"), answer("42"))
    async with arena(turns, agent, tmp_path, environment=environment) as place:
        played = await run_episode(request(), place)
    assert (played.agent.exit, played.answer) == ("done", "42"), played.agent.log
    assert played.agent.log.strip() == "[key]"
    [segment] = played.segments
    assert [turn.token_ids for turn in segment.turns] == [answer("41"), answer("42")]
    assert sum(int(sample.loss_mask.sum()) for sample in samples_from_trajectory(played)) == played.sampled_tokens


async def test_an_agent_in_an_image_solves_a_terminal_task_which_hidden_tests_pay(docker_image, tmp_path):
    write_tasks(tmp_path / "tasks", seed=0)
    agent = program(SHELL_AGENT)
    sandbox = Terminal(tasks=".").sandbox.model_copy(update={"backend": "docker", "image": docker_image})
    tasks = Terminal(tasks=str(tmp_path / "tasks"), heldout_share=0, sandbox=sandbox)
    environment = Agent(tasks=tasks, agent=agent)
    known = environment_for(environment, DATASET).tasks("train")
    [number] = [number for number, task in enumerate(known) if f"/work/{NAME}" in task.question]
    turns = policy(answer(MEND), answer("done"), context_tokens=4000)
    async with arena(
        turns, agent, tmp_path, environment=environment, max_turn_tokens=200, context_tokens=4000
    ) as place:
        played = await run_episode(request(task=number), place)
    assert (played.agent.exit, played.success, played.alerts) == ("done", True, []), played.agent.log


async def test_what_an_agent_in_an_image_connects_to_stands_on_the_call_before_it(docker_image, tmp_path):
    reaching = LOOP + (
        "import socket\n"
        'ask([{"role": "user", "content": "one"}])\n'
        'ask([{"role": "user", "content": "two"}])\n'
        "try:\n"
        '    socket.create_connection(("203.0.113.7", 4444), 2)\n'
        "except OSError as error:\n"
        "    print(type(error).__name__)\n"
        'ask([{"role": "user", "content": "three"}])\n'
    )
    agent = program(reaching)
    environment = described(agent).model_copy(
        update={"tasks": PythonMath(levels=[1], sandbox=in_container(docker_image))}
    )
    async with arena(policy(*map(answer, "abc")), agent, tmp_path, environment=environment) as place:
        played = await run_episode(request(), place)
    assert played.agent.exit == "done", played.agent.log
    records = [entry for entry in logged(tmp_path) if entry["kind"] == "record"]
    assert [
        (entry["record"]["attempt"]["port"], entry["record"]["ended"], entry["origin"]["turn"]) for entry in records
    ] == [(4444, "denied", 1)]
