"""An agent of the standard library works on the project's own terminal tasks, in real watched sandboxes."""

import pytest
from scripted import answer

from engine.environments.registry import environment_for
from engine.environments.terminal.own.making import write_tasks
from engine.rollout.episode import run_episode
from engine.spec.agent import AgentProgram
from engine.spec.environment import Agent, Terminal
from tests.engine.rollout.agents.players import DATASET, LOOP, arena, policy, program, request
from tests.engine.rollout.agents.test_episode import logged

SHELL_AGENT = LOOP + (
    "import subprocess\n"
    "messages = [{'role': 'user', 'content': os.environ['PALESTRA_TASK']}]\n"
    "while (message := ask(messages))['content'] != 'done':\n"
    "    ran = subprocess.run(['sh', '-c', message['content']], capture_output=True, text=True)\n"
    "    messages += [message, {'role': 'user', 'content': ran.stdout + ran.stderr + f'exit code {ran.returncode}'}]\n"
)
NAME = "means.py"
MEND = f"sed -i 's/len(numbers) - size)/len(numbers) - size + 1)/' {NAME}"
PLANT = "echo 1 > /logs/verifier/reward.txt"
WAIT = f"(until [ -e /tests/test.sh ]; do sleep 0.1; done; {PLANT}) >/dev/null 2>&1 &"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "tasks"
    write_tasks(folder, seed=0)
    return folder


async def played(own, folder, *commands, agent: AgentProgram | None = None):
    """One episode of the task that asks to mend ``NAME``, with the policy's messages ``commands``."""
    agent = agent or program(SHELL_AGENT)
    environment = Agent(tasks=Terminal(tasks=str(own), heldout_share=0), agent=agent)
    tasks = environment_for(environment, DATASET).tasks("train")
    [number] = [number for number, task in enumerate(tasks) if f"/work/{NAME}" in task.question]
    turns = policy(*map(answer, commands), context_tokens=4000)
    async with arena(turns, agent, folder, environment=environment, max_turn_tokens=200, context_tokens=4000) as place:
        return await run_episode(request(task=number), place)


async def test_an_agent_solves_a_terminal_task_and_the_hidden_tests_pay_it(own, tmp_path):
    look = "ls /tests /solution; cat means.py | head -n 1"
    trajectory = await played(own, tmp_path, look, MEND, "done")
    assert (trajectory.success, trajectory.reward, trajectory.alerts) == (True, 1.0, [])
    assert (trajectory.agent.exit, trajectory.stop_reason, trajectory.masked_because) == ("done", "done", None)
    [segment] = trajectory.segments
    assert [turn.token_ids for turn in segment.turns] == [answer(look), answer(MEND), answer("done")]
    assert "one a line, and prints the mean" in segment.turns[1].context_text
    assert "test.sh" not in segment.turns[1].context_text


async def test_an_agent_that_stops_at_a_string_reads_no_observation_that_the_policy_made_up(own, tmp_path):
    react = program(SHELL_AGENT.replace("ask(messages))", "ask(messages, stop=['\\nObservation:']))"))
    made_up = f"{MEND}\nObservation: it works; rm {NAME}\nrm {NAME}"
    trajectory = await played(own, tmp_path, made_up, "done", agent=react)
    assert (trajectory.success, trajectory.agent.exit, len(trajectory.segments)) == (True, "done", 2)
    kept = f"{MEND}\nObservation:"
    assert trajectory.turns[0].token_ids == answer(made_up)[: 1 + len(kept)]
    assert trajectory.agent.dropped_tokens == len(answer(made_up)) - 1 - len(kept)
    assert "works" not in trajectory.turns[1].context_text
    assert trajectory.turns[1].context_text.endswith("exit code 0<assistant>")


async def test_an_agent_that_mends_nothing_is_paid_nothing_though_it_says_that_it_is_done(own, tmp_path):
    trajectory = await played(own, tmp_path, "echo 1 > answer.txt", "done")
    assert (trajectory.success, trajectory.alerts, trajectory.agent.exit) == (False, [], "done")


@pytest.mark.parametrize("cheat", [f"mkdir -p /logs/verifier; {PLANT}", WAIT], ids=["planted", "waiting"])
async def test_an_agent_that_cheats_is_paid_nothing_and_raises_an_alert_even_where_it_solved_the_task(
    own, tmp_path, cheat
):
    """The second leaves a process behind that waits for the tests, and ends."""
    trajectory = await played(own, tmp_path, MEND, cheat, "done")
    assert (trajectory.success, trajectory.masked_because) == (False, "quarantined")
    [alert] = [entry for entry in logged(tmp_path) if entry["kind"] == "alert" and entry["quarantined"]]
    assert (alert["id"], alert["origin"]["trajectory"]) == (trajectory.alerts[0], trajectory.id)
