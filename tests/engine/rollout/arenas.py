"""What the tests of episodes play in: python-math with reasoning, and room for it."""

from contextlib import asynccontextmanager
from dataclasses import replace

from scripted import TOKENIZER

from engine.rollout.environments.python_math import PythonMathEnvironment
from engine.rollout.episode import Arena
from engine.rollout.requests import EpisodeRequest
from engine.spec.environment import PythonMath
from engine.spec.exploration import Purification
from engine.spec.recipe import Reward
from engine.spec.run import Dataset

ENVIRONMENT = PythonMathEnvironment(PythonMath(reasoning=True), Dataset())
CONTEXT_TOKENS = 400


def arena(policy, boxes, **changes):
    usual = Arena(ENVIRONMENT, policy, boxes, Reward(tool_error=-0.1), 5, 64, CONTEXT_TOKENS, Purification())
    return replace(usual, **changes)


def request(task=0, **changes):
    return replace(EpisodeRequest("train", 1, 0, 0, "train", task, 1.0, 11), **changes)


def prompt(task=0):
    return ENVIRONMENT.prompt_ids(ENVIRONMENT.tasks("train")[task])


def output(text):
    return [TOKENIZER.output_open, *TOKENIZER.encode(text), TOKENIZER.output_close, TOKENIZER.assistant]


def all_ids(trajectory):
    return [token for turn in trajectory.turns for token in (*turn.context_ids, *turn.token_ids)]


def timeless(trajectory):
    return trajectory.model_dump(exclude={"turns": {"__all__": {"tool_call": {"seconds"}}}})


class Watched:
    """A box whose snapshots are counted, and some of whose calls find it lost."""

    def __init__(self, box, watch):
        self._box, self._watch = box, watch

    def __getattr__(self, name):
        return getattr(self._box, name)

    async def run_python(self, code, *, timeout_s=None):
        self._watch.ran.append(code)
        return await self._box.run_python(code, timeout_s=timeout_s)

    async def snapshot(self):
        snapshot = await self._box.snapshot()
        self._watch.kept.add(snapshot.id)
        self._watch.most = max(self._watch.most, len(self._watch.kept))
        return snapshot

    async def drop(self, snapshot):
        self._watch.kept.discard(snapshot.id)
        await self._box.drop(snapshot)


class WatchedBoxes:
    """Real boxes, with an eye on what is asked of them."""

    def __init__(self, pool):
        self._pool = pool
        self.ran: list[str] = []
        self.kept: set[str] = set()
        self.most = 0

    @asynccontextmanager
    async def acquire(self):
        async with self._pool.acquire() as box:
            yield Watched(box, self)
