"""One episode that an agent plays: a task's sandbox, the agent in it, the policy behind its proxy, and the score.

    session ── prepared sandbox ── agent's files ── agent runs ──► ends, or is ended ──► answer ──► score
                                                      │  ▲
                                     listener in its network ──► ProxyServer ──► ModelProxy ──► generator

The sandbox is taken before the first call, and a session with the generator lives for its calls alone, so that nobody
waits for a sandbox while holding a KV slot.  What the agent does is seen as what the policy's own calls do, and belongs
to the latest call that it was answered.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from engine.environments.contract import AgentSession, Rewards, Session
from engine.rollout.agents.call_sessions import CallSessions
from engine.rollout.agents.capture import Call
from engine.rollout.agents.program import PORT, Ended, exit_class, placed, ran
from engine.rollout.agents.proxy import Budget, ModelProxy
from engine.rollout.agents.server import ProxyServer, RolloutDoor
from engine.rollout.arena import Arena
from engine.rollout.checked_session import CheckedSession
from engine.rollout.faults import EnvironmentFailed, named_as_environment_fault
from engine.rollout.requests import EpisodeRequest
from engine.rollout.sandbox_monitor import EpisodeMonitor
from engine.rollout.scoring import rewards_of
from engine.rollout.security_log import label_of
from engine.spec.agent import AgentProgram, AgentRecord, ExitClass, RefusedCalls
from engine.spec.message import AssistantMessage
from engine.spec.security import QUARANTINED
from engine.spec.trajectory import Segment, StopReason, Task, Trajectory, Turn
from sandboxes.interface import Sandbox, SandboxFrozen

LONGEST_ANSWER = 2**16
STOPS: dict[ExitClass, StopReason] = {
    "done": "done",
    "crashed": "crashed",
    "silent": "silent",
    "over-budget": "turn-limit",
    "killed": "killed",
    "frozen": "frozen",
}


async def run_agent_episode(request: EpisodeRequest, arena: Arena, agent: AgentProgram) -> Trajectory:
    """Raises SandboxLost, EnvironmentFailed, and whatever the generator raises."""
    with named_as_environment_fault():
        task = arena.environment.tasks(request.split)[request.task]
        tools = arena.environment.tools(task)
    watch = None if arena.monitor is None else arena.monitor.episode(arena.sandboxes, request.id)
    episode = _Episode(request, arena, agent, watch)
    try:
        async with AsyncExitStack() as held:
            with named_as_environment_fault():
                session = await held.enter_async_context(arena.environment.session(task, watch or arena.sandboxes))
            played = await episode.play(session, CheckedSession(session, tools), task)
            return _trajectory(request, arena, task, played, [] if watch is None else watch.alerts)
    finally:
        await episode.close()
        if watch is not None:
            watch.over()


@dataclass(frozen=True, slots=True)
class _Played:
    segments: list[Segment]
    record: AgentRecord
    answer: str | None
    earned: Rewards


class _Episode:
    def __init__(
        self, request: EpisodeRequest, arena: Arena, agent: AgentProgram, watch: EpisodeMonitor | None
    ) -> None:
        self._request, self._arena, self._agent, self._watch = request, arena, agent, watch
        self._key = secrets.token_hex(32)  # no dash at its beginning: agents may pass it on a command line
        self._sandbox: Sandbox | None = None
        self._proxy = ModelProxy(
            arena.renderer,
            CallSessions(lambda: arena.policy_session(request)),
            Budget(
                calls=arena.max_turns,
                sampled_tokens=agent.sampled_tokens,
                turn_tokens=arena.max_turn_tokens,
                parallel=agent.parallel_calls,
                context_tokens=arena.context_tokens,
            ),
            seed=request.seed,
            experience=request.experience,
            on_call=self._called,
            on_show=self._shown,
        )

    async def play(self, session: Session, checked: CheckedSession, task: Task) -> _Played:
        """Raises what sandbox, environment and generator raise."""
        await checked.reset()
        ended = await self._ended(session, task)
        await self.close()
        exit = exit_class(
            ended, calls=len(self._proxy.calls), over_budget=self._proxy.over_budget or self._proxy.exhausted.is_set()
        )
        answer = None if ended is None else await self._answer(checked)
        earned = Rewards(success=False) if ended is None else await _score(checked)
        if self._watch is not None:
            await self._watch.settled()
        return _Played(self._proxy.segments(), self._record(exit, ended), answer, earned)

    async def close(self) -> None:
        """Give back what the calls hold; twice is fine."""
        await self._proxy.close()

    async def _ended(self, session: Session, task: Task) -> Ended | None:
        """None where the sandbox was frozen."""
        if not isinstance(session, AgentSession):
            raise EnvironmentFailed(f"a {type(session).__name__} has no sandbox that an agent could work in")
        try:
            with named_as_environment_fault():
                self._sandbox = sandbox = await session.prepared()
                await placed(self._agent, sandbox)
            server = ProxyServer(RolloutDoor(self._proxy, self._key))
            async with server.serving(await sandbox.listen(PORT)):
                return await self._unless_stopped(ran(self._agent, sandbox, task.question, self._key))
        except SandboxFrozen:
            return None

    async def _unless_stopped(self, running: Coroutine[Any, Any, Ended]) -> Ended:
        """The agent to its end, which comes early where nothing more will be answered.

        Raises what the generator raised, and what the sandbox raises.
        """
        program = asyncio.ensure_future(running)
        stops = [asyncio.ensure_future(event.wait()) for event in (self._proxy.failed, self._proxy.exhausted)]
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await asyncio.wait((program, *stops), return_when=asyncio.FIRST_COMPLETED)
            if self._proxy.failure is not None:
                raise self._proxy.failure
            if program.done():
                return program.result()
            return Ended("timeout", None, loop.time() - began, "ended: too many of its requests were refused")
        finally:
            for task in (program, *stops):
                task.cancel()
            await asyncio.gather(program, *stops, return_exceptions=True)

    async def _called(self, number: int, call: Call) -> None:
        """What the agent does from now on, it does because of this call."""
        if self._watch is None or self._sandbox is None:
            return
        self._watch.turn = number
        wrote = "".join(self._arena.renderer.pieces(call.generated.token_ids))
        self._watch.begins(wrote, call.reply.call_text)
        await self._labelled()

    async def _shown(self, number: int, wrote: str | None) -> None:
        """The same from when the agent reads the first of it, as it is sampled."""
        if self._watch is None or self._sandbox is None:
            return
        self._watch.turn = number
        if wrote is not None:
            self._watch.begins(wrote, "")
        await self._labelled()

    async def _labelled(self) -> None:
        assert self._watch is not None
        assert self._sandbox is not None
        try:
            self._sandbox.label(label_of(self._watch.origin))
            await self._sandbox.settled()
        except SandboxFrozen:
            return  # the agent will not read the answer, and its end says why

    async def _answer(self, checked: CheckedSession) -> str | None:
        """What stands in the answer's file is given to the session; None where there is none."""
        assert self._sandbox is not None
        try:
            written = await self._sandbox.read_file(self._agent.answer_file, limit_bytes=LONGEST_ANSWER)
        except (OSError, ValueError):
            return None
        except SandboxFrozen:
            return None
        answer = written.decode("utf-8", "replace").replace("\0", "")
        await checked.act(AssistantMessage(answer))
        return answer

    def _record(self, exit: ExitClass, ended: Ended | None) -> AgentRecord:
        refused = [RefusedCalls(kind=kind, number=number) for kind, number in sorted(self._proxy.refused.items())]
        return AgentRecord(
            exit=exit,
            exit_code=None if ended is None else ended.exit_code,
            seconds=0.0 if ended is None else ended.seconds,
            log="" if ended is None else ended.output,
            refused=refused,
            unfinished=self._proxy.unfinished,
            dropped_tokens=self._proxy.dropped_tokens,
        )


async def _score(checked: CheckedSession) -> Rewards:
    try:
        return await checked.score()
    except SandboxFrozen:
        return Rewards(success=False)


def _trajectory(request: EpisodeRequest, arena: Arena, task: Task, played: _Played, alerts: list[str]) -> Trajectory:
    turns = _in_order(played.segments)
    rewards = rewards_of(
        arena.reward,
        success=played.earned.success,
        turns=turns,
        step=request.step,
        components=played.earned.components,
    )
    return Trajectory(
        id=request.id,
        purpose=request.purpose,
        prompt=request.prompt,
        member=request.member,
        sampled_at_version=_oldest_version(turns, request.version),
        task=task,
        segments=played.segments,
        stop_reason=STOPS[played.record.exit],
        answer=played.answer,
        success=played.earned.success,
        reward=sum(rewards.values()),
        rewards=rewards,
        alerts=alerts,
        masked_because=QUARANTINED if alerts else None,
        agent=played.record,
    )


def _oldest_version(turns: Sequence[Turn], planned: int) -> int:
    """The oldest version of all tokens: of calls side by side the one that began first may be over last.  ``planned``
    where there are none."""
    return min((version for turn in turns for version in turn.policy_versions), default=planned)


def _in_order(segments: list[Segment]) -> list[Turn]:
    placed = {
        number: turn for segment in segments for number, turn in zip(segment.numbers or (), segment.turns, strict=True)
    }
    return [placed[number] for number in range(len(placed))]
