"""The environments of GEM's library (``gem-llm``): ``gem.make``, ``reset``, ``step``, text in and text out.

A task is a seed.  The policy's answers are the actions, and the rewards of all steps are summed.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, overload

import gem  # type: ignore[import-not-found]

from palestra_env import AssistantMessage, Message, Observation, Rewards, Session, Split, Task, ToolSchema
from palestra_env.adapters.paying import rewards_of

HELDOUT_FROM = 2**30
"""Held-out seeds begin here, beyond those of any training split."""


class GemEnvironment:
    """``env_id`` as GEM registers it; ``arguments`` are passed to ``gem.make``."""

    def __init__(self, env_id: str, train: int, heldout: int, success_at: float, arguments: dict[str, Any]) -> None:
        self.env_id, self.arguments, self.success_at = env_id, arguments, success_at
        self.sizes: dict[Split, int] = {"train": train, "heldout": heldout}
        gem.make(env_id, **arguments)

    def tasks(self, split: Split) -> Sequence[Task]:
        return Seeds(self.env_id, split, self.sizes[split])

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        return []

    @asynccontextmanager
    async def session(self, task: Task, sandboxes: Any) -> AsyncIterator[Session]:
        env = gem.make(self.env_id, **self.arguments)
        try:
            yield GemSession(env, int(task.answer), self.success_at)
        finally:
            if callable(close := getattr(env, "close", None)):
                close()


class Seeds(Sequence[Task]):
    """Tasks by their seeds; the answer of a task is its seed."""

    def __init__(self, env_id: str, split: Split, size: int) -> None:
        self.env_id, self.split, self.size = env_id, split, size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, number: int) -> Task: ...
    @overload
    def __getitem__(self, number: slice) -> list[Task]: ...
    def __getitem__(self, number: int | slice) -> Task | list[Task]:
        if isinstance(number, slice):
            return [self[position] for position in range(*number.indices(self.size))]
        if not -self.size <= number < self.size:
            raise IndexError(number)
        number %= self.size
        seed = number + (HELDOUT_FROM if self.split == "heldout" else 0)
        return Task(f"{self.split}-{number}", self.split, 1, f"{self.env_id}, seed {seed}", str(seed))


class GemSession:
    def __init__(self, env: Any, seed: int, success_at: float) -> None:
        self.env, self.seed, self.success_at = env, seed, success_at
        self.total = 0.0

    async def reset(self) -> Sequence[Message]:
        observation, info = self.env.reset(seed=self.seed)
        return [Message("user", _shown(observation, info))]

    async def act(self, message: AssistantMessage) -> Observation:
        observation, reward, terminated, truncated, info = self.env.step(message.content)
        self.total += float(reward)
        return Observation(messages=(Message("user", _shown(observation, info)),), done=bool(terminated or truncated))

    async def score(self) -> Rewards:
        return rewards_of(self.total, self.success_at)


def _shown(observation: Any, info: dict[str, Any]) -> str:
    """With the request that GEM's own wrappers put behind an observation."""
    return "\n".join(str(part) for part in (observation, info.get("suffix")) if part)
