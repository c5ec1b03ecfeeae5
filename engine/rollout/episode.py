"""One episode: generate, parse, run the tool, observe, until the policy answers or a limit is met.

Token ids go to the generator and come back from it; they are appended and never made from text a
second time.  A box is taken when the first tool call comes and given back however the episode
ends.  A failing tool is an observation; a lost box is ``SandboxLost`` and no trajectory.
"""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from engine.rollout.chat import Answer, Call
from engine.rollout.environments.interface import Environment
from engine.rollout.requests import EpisodeRequest
from engine.rollout.scoring import rewards_of
from engine.spec.generation import Generated, GenerateRequest, TextGenerator
from engine.spec.recipe import Reward
from engine.spec.trajectory import StopReason, Task, ToolCall, Trajectory, Turn
from sandboxes.interface import Sandbox, SandboxLost, SandboxUnavailable


class EnvironmentFailed(Exception):
    """The environment's own code raised: the episode is discarded and counted.  The cause is chained."""


class Boxes(Protocol):
    """Where boxes come from; ``sandboxes.pool.Pool`` is one."""

    def acquire(self) -> AbstractAsyncContextManager[Sandbox]:
        """A box as new, given back at the end of the block.  Raises SandboxUnavailable and PoolClosed."""
        ...


@dataclass(frozen=True, slots=True)
class Arena:
    """What the episodes of a worker share."""

    environment: Environment
    generator: TextGenerator
    boxes: Boxes
    reward: Reward
    max_turns: int
    max_turn_tokens: int
    context_tokens: int


@dataclass(slots=True)
class _Ending:
    turns: list[Turn] = field(default_factory=list)
    stop_reason: StopReason = "turn-limit"
    answer: str | None = None


async def run_episode(request: EpisodeRequest, arena: Arena) -> Trajectory:
    """Raises SandboxLost, EnvironmentFailed, and whatever the generator raises."""
    with _named_as_environment_fault():
        task = arena.environment.tasks(request.split)[request.task]
    # Unique, not derived: a worker that was restarted must not continue its predecessor's sessions.
    session = f"{request.id}-{uuid.uuid4().hex}"
    try:
        async with _Tool(arena, task) as tool:
            ending = await _play(request, arena, task, tool, session)
    finally:
        # Shielded: a second cancellation must not leave the session's KV slot taken.
        await asyncio.shield(arena.generator.release(session))
    return _trajectory(request, arena, task, ending)


async def _play(request: EpisodeRequest, arena: Arena, task: Task, tool: "_Tool", session: str) -> _Ending:
    environment, ending = arena.environment, _Ending()
    context, used_tokens = environment.prompt_ids(task), 0
    for number in range(arena.max_turns):
        used_tokens += len(context)
        if used_tokens >= arena.context_tokens:
            ending.stop_reason = "truncated"
            break
        generated = await arena.generator.generate(_generate_request(request, arena, session, context, number))
        used_tokens += len(generated.token_ids)
        said = environment.parse(generated.token_ids) if generated.stopped_by == "stop" else None
        tool_call = await tool.call(said) if isinstance(said, Call) else None
        ending.turns.append(_turn(environment, context, generated, tool_call))
        if tool_call is None:
            ending.answer = said.text if isinstance(said, Answer) else None
            ending.stop_reason = _why_without_call(said, generated)
            break
        context = environment.observation_ids(tool_call)
    return ending


def _generate_request(
    request: EpisodeRequest, arena: Arena, session: str, context: list[int], number: int
) -> GenerateRequest:
    return GenerateRequest(
        session=session,
        new_ids=tuple(context),
        max_new_tokens=arena.max_turn_tokens,
        stop_ids=arena.environment.stop_ids,
        temperature=request.temperature,
        seed=request.turn_seed(number),
    )


def _why_without_call(said: Answer | Call | None, generated: Generated) -> StopReason:
    if isinstance(said, Answer):
        return "answered"
    return "truncated" if generated.stopped_by == "context" else "no-tool-call"


def _turn(environment: Environment, context: list[int], generated: Generated, tool_call: ToolCall | None) -> Turn:
    return Turn(
        context_ids=context,
        context_text=environment.text_of(context),
        token_ids=list(generated.token_ids),
        pieces=environment.pieces_of(generated.token_ids),
        logprobs=list(generated.logprobs),
        policy_versions=list(generated.policy_versions),
        tool_call=tool_call,
    )


def _trajectory(request: EpisodeRequest, arena: Arena, task: Task, ending: _Ending) -> Trajectory:
    with _named_as_environment_fault():
        success = ending.answer is not None and arena.environment.score(task, ending.answer)
    rewards = rewards_of(arena.reward, success=success, turns=ending.turns)
    return Trajectory(
        id=request.id,
        purpose=request.purpose,
        step=request.step,
        group=request.group,
        index=request.index,
        task=task,
        turns=ending.turns,
        stop_reason=ending.stop_reason,
        answer=ending.answer,
        success=success,
        reward=sum(rewards.values()),
        rewards=rewards,
    )


class _Tool:
    """The task's box, taken and prepared at the first call."""

    def __init__(self, arena: Arena, task: Task) -> None:
        self._arena, self._task = arena, task
        self._exits = AsyncExitStack()
        self._box: Sandbox | None = None

    async def __aenter__(self) -> "_Tool":
        return self

    async def __aexit__(self, *exception: object) -> bool | None:
        return await self._exits.__aexit__(*exception)  # type: ignore[arg-type]

    async def call(self, call: Call) -> ToolCall:
        if self._box is None:
            self._box = await self._exits.enter_async_context(self._arena.boxes.acquire())
            with _named_as_environment_fault():
                await self._arena.environment.reset(self._task, self._box)
        with _named_as_environment_fault():
            return await self._arena.environment.call(call, self._box)


@contextmanager
def _named_as_environment_fault() -> Iterator[None]:
    try:
        yield
    except (SandboxLost, SandboxUnavailable):
        raise
    except Exception as error:
        raise EnvironmentFailed(f"{type(error).__name__}: {error}") from error
