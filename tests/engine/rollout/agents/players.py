"""Agents for these tests: programs that know a wire format and nothing of Palestra, and where they play."""

from contextlib import asynccontextmanager

from scripted import WITH_REASONING, ScriptedPolicy

from engine.cluster.sandboxes import opened_sandboxes
from engine.environments.registry import environment_for
from engine.rollout.arena import Arena
from engine.rollout.requests import EpisodeRequest
from engine.spec.agent import AgentFile, AgentProgram
from engine.spec.environment import Agent, PythonMath
from engine.spec.recipe import Reward
from engine.spec.run import Dataset
from sandboxes.spec import SandboxSpec

LOOP = """
import json, os, urllib.request

def ask(messages, **options):
    body = json.dumps({"model": "any", "messages": messages, **options}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]

"""
ONE_QUESTION = LOOP + (
    'answer = ask([{"role": "user", "content": os.environ["PALESTRA_TASK"]}])["content"]\n'
    'open("/work/answer.txt", "w").write(answer)\n'
)
SPEC = SandboxSpec(network="watched", snapshots=False, memory_mib=512, processes=32, disk_mib=64)
DATASET = Dataset()


def program(code: str = ONE_QUESTION, **changes) -> AgentProgram:
    usual = {"timeout_s": 60.0, "files": [AgentFile(path="agent.py", content=code)]}
    return AgentProgram(command=["python3", "/tmp/agent/agent.py"], **{**usual, **changes})


def described(agent: AgentProgram, of_sandbox=None) -> Agent:
    sandbox = SPEC.model_copy(update=of_sandbox or {})
    return Agent(tasks=PythonMath(levels=[1], sandbox=sandbox), agent=agent)


def request(**changes) -> EpisodeRequest:
    return EpisodeRequest(**{'purpose': "train", 'prompt': 0, 'member': 0, 'version': 0, 'split': "train", 'task': 0,
                                    'temperature': 1.0, 'seed': 11, **changes})  # fmt: skip


def policy(*turns, context_tokens=1000):
    return ScriptedPolicy(*turns, context_tokens=context_tokens)


@asynccontextmanager
async def arena(generator, agent: AgentProgram, folder, *, environment: Agent | None = None, size=2, **changes):
    """With real sandboxes, watched by a real monitor."""
    environment = environment or described(agent)
    async with opened_sandboxes(environment, folder, size=size) as sandboxes:
        usual = {
            "environment": environment_for(environment, DATASET),
            "renderer": WITH_REASONING,
            "generator": generator,
            "sandboxes": sandboxes.pool,
            "reward": Reward(),
            "max_turns": environment.max_turns,
            "max_turn_tokens": 64,
            "context_tokens": 1000,
            "monitor": sandboxes.monitor,
            "agent": environment.agent,
        }
        yield Arena(**{**usual, **changes})
