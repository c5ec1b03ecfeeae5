"""What the tests of episodes play in: python-math with reasoning, and room for it."""

from contextlib import asynccontextmanager
from dataclasses import replace

from scripted import TOKENIZER, TOOLS, WITH_REASONING

from engine.environments.python_math import PythonMathEnvironment
from engine.rollout.episode import Arena
from engine.rollout.requests import EpisodeRequest
from engine.spec.environment import PythonMath
from engine.spec.exploration import Purification
from engine.spec.message import Message
from engine.spec.recipe import Reward
from engine.spec.run import Dataset
from sandboxes.interface import SandboxLost

ENVIRONMENT = PythonMathEnvironment(PythonMath(reasoning=True), Dataset())
CONTEXT_TOKENS = 400


def arena(policy, sandboxes, **changes):
    usual = Arena(
        ENVIRONMENT, WITH_REASONING, policy, sandboxes, Reward(tool_error=-0.1), 5, 64, CONTEXT_TOKENS, Purification()
    )
    return replace(usual, **changes)


def request(task=0, **changes):
    return replace(EpisodeRequest("train", 0, 0, 0, "train", task, 1.0, 11), **changes)


def prompt(task=0):
    return WITH_REASONING.prompt([Message("user", ENVIRONMENT.tasks("train")[task].question)], TOOLS)


def output(text):
    return [TOKENIZER.output_open, *TOKENIZER.encode(text), TOKENIZER.output_close, TOKENIZER.assistant]


def all_ids(trajectory):
    return [token for turn in trajectory.turns for token in (*turn.context_ids, *turn.token_ids)]


def timeless(trajectory):
    return trajectory.with_turns([turn.untimed for turn in trajectory.turns]).model_dump()


class SandboxBehind:
    """A real sandbox; a subclass says what is done before, after or instead of its verbs."""

    def __init__(self, sandbox):
        self._sandbox = sandbox

    def __getattr__(self, name):
        return getattr(self._sandbox, name)


class SandboxesBehind:
    """Real sandboxes, each handed out as what ``made`` makes of it."""

    def __init__(self, pool, made):
        self._pool, self._made = pool, made

    @asynccontextmanager
    async def acquire(self):
        async with self._pool.acquire() as sandbox:
            yield self._made(sandbox)


class Watched(SandboxBehind):
    """A sandbox that counts its calls and snapshots."""

    def __init__(self, sandbox, watch):
        super().__init__(sandbox)
        self._watch = watch

    async def run_python(self, code, *, timeout_s=None):
        self._watch.ran.append(code)
        return await self._sandbox.run_python(code, timeout_s=timeout_s)

    async def snapshot(self):
        snapshot = await self._sandbox.snapshot()
        self._watch.kept.add(snapshot.id)
        self._watch.most = max(self._watch.most, len(self._watch.kept))
        return snapshot

    async def drop(self, snapshot):
        self._watch.kept.discard(snapshot.id)
        await self._sandbox.drop(snapshot)


class MonitoredPool(SandboxesBehind):
    """Real sandboxes, with an eye on what is asked of them."""

    def __init__(self, pool):
        super().__init__(pool, lambda sandbox: Watched(sandbox, self))
        self.ran: list[str] = []
        self.kept: set[str] = set()
        self.most = 0


class MortalSandbox(SandboxBehind):
    def __init__(self, sandbox, deaths):
        super().__init__(sandbox)
        self._deaths = deaths

    async def run_python(self, code, *, timeout_s=None):
        if self._deaths:
            raise SandboxLost(self._deaths.pop())
        return await self._sandbox.run_python(code, timeout_s=timeout_s)


def mortal(pool, *, deaths):
    """Real sandboxes of which the first ``deaths`` calls find one lost."""
    left = ["killed from outside"] * deaths
    return SandboxesBehind(pool, lambda sandbox: MortalSandbox(sandbox, left))
