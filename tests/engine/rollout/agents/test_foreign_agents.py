"""Agents that were not written for this, unchanged, in sandboxes: clients from their packages."""

import pytest

from engine.rollout.episode import run_episode
from engine.spec.agent import AgentFile, AgentFolder, AgentProgram, AgentVariable
from engine.spec.message import AssistantMessage, ToolRequest
from engine.training.batch import samples_from_trajectory
from tests.engine.rollout.agents.endpoints import scripted
from tests.engine.rollout.agents.foreign import packages
from tests.engine.rollout.agents.players import arena, described, request
from tests.engine.rollout.agents.test_capture import qwen3

pytestmark = pytest.mark.protocols

OPENAI_LOOP = """
import json, os, subprocess
from openai import OpenAI

client = OpenAI()
tool = {"type": "function", "function": {"name": "shell", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}
messages = [{"role": "system", "content": "You use a shell."}, {"role": "user", "content": os.environ["PALESTRA_TASK"]}]
while True:
    message = client.chat.completions.create(model="gpt-x", messages=messages, tools=[tool]).choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        command = json.loads(call.function.arguments)["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": done.stdout + done.stderr})
with client.chat.completions.create(model="gpt-x", messages=messages[:2], stream=True) as stream:
    print("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
print(client.responses.create(model="gpt-x", input="Say it again.").output_text)
open("/work/answer.txt", "w").write(message.content)
"""

ANTHROPIC_SUMMARISER = """
import os
from anthropic import Anthropic

client = Anthropic()
tool = {"name": "sub_agent", "input_schema": {"type": "object", "properties": {"question": {"type": "string"}}}}

def ask(messages, **options):
    return client.messages.create(model="claude-x", max_tokens=200, messages=messages, **options)

def text(message):
    return "".join(block.text for block in message.content if block.type == "text")

messages = [{"role": "user", "content": os.environ["PALESTRA_TASK"]}]
while True:
    message = ask(messages, system="Ask the sub-agent.", tools=[tool])
    messages.append({"role": "assistant", "content": message.content})
    calls = [block for block in message.content if block.type == "tool_use"]
    if not calls:
        break
    results = [{"type": "tool_result", "tool_use_id": call.id,
                "content": text(ask([{"role": "user", "content": call.input["question"]}]))} for call in calls]
    messages.append({"role": "user", "content": results})
    if len(messages) > 4:
        written = "\\n".join(str(entry["content"]) for entry in messages)
        summary = text(ask([{"role": "user", "content": "Summarise: " + written[:200]}]))
        messages = [{"role": "user", "content": "So far: " + summary}]
with client.messages.stream(model="claude-x", max_tokens=200, messages=[{"role": "user", "content": "Bye."}]) as stream:
    print("".join(stream.text_stream))
open("/work/answer.txt", "w").write(text(message))
"""
STOPPING = """
from anthropic import Anthropic
from openai import OpenAI

stop, asked = ["\\nObservation:"], [{"role": "user", "content": "Look."}]
choice = OpenAI().chat.completions.create(model="gpt-x", messages=asked, stop=stop).choices[0]
print(choice.message.content, choice.finish_reason)
asked += [choice.message, {"role": "user", "content": "Observation: a door"}]
print(OpenAI().chat.completions.create(model="gpt-x", messages=asked, stop=stop[0]).choices[0].message.content)
messages = Anthropic().messages
answer = messages.create(model="claude-x", max_tokens=99, messages=asked[:1], stop_sequences=stop)
print(answer.content[0].text, answer.stop_reason, repr(answer.stop_sequence))
with messages.stream(model="claude-x", max_tokens=99, messages=asked[:1], stop_sequences=stop) as stream:
    print("".join(stream.text_stream), stream.get_final_message().stop_reason)
"""
SPEC_MIB = {"memory_mib": 4096, "disk_mib": 700, "processes": 64}


def agent_with(folder, code):
    return AgentProgram(
        command=["python3", "/tmp/agent/agent.py"],
        files=[AgentFile(path="agent.py", content=code)],
        folder=AgentFolder(path=str(folder)),
        variables=[AgentVariable(name="PYTHONPATH", value="/tmp/agent")],
        timeout_s=120.0,
        log_bytes=2**15,
    )


async def play(agent, turns, folder, **changes):
    phrase = scripted(qwen3(), *turns)
    environment = described(agent, SPEC_MIB)
    async with arena(phrase, agent, folder, environment=environment, renderer=qwen3(), size=1,
                     max_turn_tokens=400, context_tokens=20_000, **changes) as played_in:  # fmt: skip
        played = await run_episode(request(), played_in)
    samples = samples_from_trajectory(played)
    trained = sum(int(sample.loss_mask.sum()) for sample in samples)
    assert trained + played.agent.dropped_tokens == sum(len(ids) for _, ids in phrase.returned)
    return played


def calling(tool, **arguments):
    return AssistantMessage("", (ToolRequest(tool, arguments),))


async def test_a_plain_loop_over_the_client_of_openai(tmp_path):
    folder = packages(tmp_path / "packages", "openai")
    turns = (
        calling("shell", command="echo $((6 * 7))"),
        AssistantMessage("It is 42."),
        AssistantMessage("Streamed."),
        AssistantMessage("Again."),
    )
    played = await play(agent_with(folder, OPENAI_LOOP), turns, tmp_path / "log")
    assert (played.agent.exit, played.agent.log) == ("done", "Streamed.\nAgain.\n"), played.agent.log
    assert played.answer == "It is 42."
    assert [segment.numbers for segment in played.segments] == [[0, 1], [2], [3]]
    assert played.turns[0].tool_calls[0].output == "42\n"
    assert played.agent.refused == []


async def test_an_agent_on_the_client_of_anthropic_that_summarises_and_asks_a_sub_agent(tmp_path):
    folder = packages(tmp_path / "packages", "anthropic")
    turns = (
        calling("sub_agent", question="How many?"),
        AssistantMessage("Six."),
        calling("sub_agent", question="How often?"),
        AssistantMessage("Seven times."),
        AssistantMessage("Six, seven times."),
        AssistantMessage("42"),
        AssistantMessage("Bye."),
    )
    played = await play(agent_with(folder, ANTHROPIC_SUMMARISER), turns, tmp_path / "log")
    assert (played.agent.exit, played.agent.log) == ("done", "Bye.\n"), played.agent.log
    assert played.answer == "42"
    assert [segment.numbers for segment in played.segments] == [[0, 2], [1], [3], [4], [5], [6]]
    # The second result went into the summary, and was never read as a result.
    assert [call.output for turn in played.turns for call in turn.tool_calls] == ["Six.", ""]
    assert played.agent.refused == []


MINI = (
    "--model", "openai/policy", "--task", "{task}", "--yolo", "--exit-immediately", "--output",
    "/tmp/agent-home/mini.json",
)  # fmt: skip
UNUSED_BY_MINI = frozenset(
    ("datasets", "pandas", "pyarrow", "numpy", "boto3", "botocore", "s3transfer", "hf-xet", "multiprocess", "dill")
)


async def test_mini_swe_agent_from_its_package(tmp_path):
    folder = packages(tmp_path / "packages", "mini-swe-agent", "mcp", without=UNUSED_BY_MINI)
    variables = {
        "PYTHONPATH": "/tmp/agent",
        "HOME": "/tmp/agent-home",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    agent = AgentProgram(
        command=["python3", "-m", "minisweagent.run.mini", *MINI],
        folder=AgentFolder(path=str(folder)),
        variables=[AgentVariable(name=name, value=value) for name, value in variables.items()],
        timeout_s=240.0,
        log_bytes=2**15,
    )
    turns = (
        calling("bash", command="echo 42 > answer.txt"),
        AssistantMessage("I forgot to call."),
        calling("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    )
    played = await play(agent, turns, tmp_path / "log")
    assert (played.agent.exit, played.answer) == ("done", "42\n"), played.agent.log
    assert len(played.turns) == 3
    assert played.agent.refused == []


async def test_stop_strings_of_the_clients_of_openai_and_anthropic(tmp_path):
    folder = packages(tmp_path / "packages", "openai", "anthropic")
    made_up = AssistantMessage("Action: look\nObservation: a cat")
    turns = (made_up, AssistantMessage("Action: leave"), made_up, made_up)
    played = await play(agent_with(folder, STOPPING), turns, tmp_path / "log")
    assert played.agent.log.splitlines() == [
        "Action: look stop", "Action: leave", "Action: look stop_sequence '\\nObservation:'",
        "Action: look stop_sequence",
    ], played.agent.log  # fmt: skip
    assert [segment.numbers for segment in played.segments] == [[0], [1], [2], [3]]
    assert played.agent.dropped_tokens > 0
