"""One episode: generate, parse, act, observe, until the environment says that it is over or a limit is met.

The environment speaks messages and the generator token ids; the renderer stands between them.  Sampled ids
are appended and never made from text a second time; where the renderer writes the context again, another segment
begins (transcript.py).  What the session holds is given back however the episode
ends.  A failing tool is an observation, or is repaired where the request says so (purification.py); a lost sandbox is
``SandboxLost`` and no trajectory.  Before the policy speaks, an expert's turns may be replayed
(reexecution.py).
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from engine.environments.contract import Observation, Rewards
from engine.rollout.agents.episode import run_agent_episode
from engine.rollout.arena import Arena
from engine.rollout.checked_session import CheckedSession
from engine.rollout.context import Habits, instructed
from engine.rollout.context_tools import ManagedSession, context_tools, managed_session
from engine.rollout.faults import EnvironmentFailed, named_as_environment_fault
from engine.rollout.players import ENDLESS, PlayedTurns, turns_of
from engine.rollout.policy_session import PolicySession
from engine.rollout.purification import Purifier
from engine.rollout.reexecution import ReplayDiverged, check_is_call, compare
from engine.rollout.renderers.contract import Parsed
from engine.rollout.requests import EpisodeRequest
from engine.rollout.sandbox_monitor import EpisodeMonitor
from engine.rollout.scoring import rewards_of
from engine.rollout.transcript import Transcript
from engine.spec.context import ContextRecord
from engine.spec.generation import Generated
from engine.spec.message import AssistantMessage, ToolSchema
from engine.spec.security import QUARANTINED
from engine.spec.trajectory import Change, Segment, Start, StopReason, Task, ToolCall, Trajectory, Turn
from sandboxes.interface import SandboxFrozen

__all__ = ["Arena", "EnvironmentFailed", "ReplayDiverged", "run_episode"]


@dataclass(slots=True)
class _Ending:
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    stop_reason: StopReason = "turn-limit"
    answer: str | None = None
    changes: list[Change] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)
    context: ContextRecord | None = None


async def run_episode(request: EpisodeRequest, arena: Arena) -> Trajectory:
    """Raises SandboxLost, EnvironmentFailed, ReplayDiverged, and whatever the generator raises."""
    with named_as_environment_fault():
        task = arena.environment.tasks(request.split)[request.task]
    arena = arena.of_task(task)
    if arena.agent is not None:
        return await run_agent_episode(request, arena, arena.agent)
    with named_as_environment_fault():
        tools = [*arena.environment.tools(task), *context_tools(arena.context)]
        player = _player(request, arena, task, tools)
    if player is not None:
        arena = replace(arena, generator=player, context_tokens=ENDLESS)
    policy_session = arena.policy_session(request)
    watch = None if arena.monitor is None else arena.monitor.episode(arena.sandboxes, request.id)
    try:
        async with AsyncExitStack() as held:
            with named_as_environment_fault():
                session = await held.enter_async_context(arena.environment.session(task, watch or arena.sandboxes))
            managed = managed_session(session, arena.context)
            checked = CheckedSession(managed or session, tools)
            episode = _Episode(request, arena, tools, checked, policy_session, watch, player, managed)
            ending = await episode.play()
            earned = await _rewards(checked, ending)
            if watch is not None and watch.alarmed:
                await watch.settled()
            return _trajectory(request, arena, task, ending, earned)
    finally:
        if watch is not None:
            watch.over()
        await policy_session.release()


class _Episode:
    """The course of one episode, turn by turn."""

    def __init__(
        self,
        request: EpisodeRequest,
        arena: Arena,
        tools: Sequence[ToolSchema],
        session: CheckedSession,
        policy_session: PolicySession,
        watch: EpisodeMonitor | None,
        player: PlayedTurns | None,
        managed: ManagedSession | None,
    ) -> None:
        self._request, self._arena, self._renderer = request, arena, arena.renderer
        self._tools, self._session, self._policy_session, self._watch = tools, session, policy_session, watch
        self._purifier = self._opened_purifier() if request.purify else None
        self._expert = request.prefill.turns if request.prefill is not None else ()
        self._player, self._managed = player, managed
        self._habits = Habits(arena.context)
        self._ending = _Ending()

    async def play(self) -> _Ending:
        ending = self._ending
        opening = instructed(self._arena.context, await self._session.reset())
        transcript = Transcript(self._renderer, opening, self._tools, self._request.experience, self._arena.context)
        for number in range(self._arena.max_turns):
            if self._watch is not None:
                self._watch.turn = number
            if self._managed is not None:
                self._managed.turn = number + 1
            history = transcript.history
            expert = self._expert[number] if number < len(self._expert) else None
            if not self._policy_session.has_room(history, expert.token_ids if expert is not None else ()):
                ending.stop_reason = "truncated"
                break
            if expert is not None:
                played = await self._replayed(number, history, expert)
            else:
                played = await self._played(number, history)
            generated, observation = played.generated, played.observation
            turn = transcript.turn(
                generated.token_ids, logprobs=generated.logprobs, policy_versions=generated.policy_versions
            ).model_copy(update={"tool_calls": list(observation.calls), **played.marks})
            transcript.wrote(turn)
            if self._watch is not None and turn.tool_calls:
                self._watch.ended("".join(turn.pieces), turn.tool_calls)
            if played.ends_because is not None:
                ending.stop_reason = played.ends_because
                break
            assert played.parsed is not None, "a turn that says nothing ends the episode"
            tokens = len(history) + len(generated.token_ids)
            read = self._habits.read(number, played.parsed.message, observation.messages, tokens=tokens)
            transcript.observed(played.parsed, read)
        ending.segments, ending.turns = transcript.segments, transcript.turns
        ending.context = self._habits.record(self._managed)
        if self._purifier is not None:
            ending.changes += self._purifier.changes
        if self._watch is not None:
            await self._watch.settled()
            ending.alerts = self._watch.alerts
        return ending

    async def _played(self, number: int, history: Sequence[int]) -> "_Played":
        """A turn of the policy's."""
        generated = await self._policy_session.sample(history, seed=self._request.turn_seed(number))
        parsed = self._parsed(generated)
        if parsed is None or parsed.message.malformed is not None:
            void: StopReason = "truncated" if generated.stopped_by == "context" else "no-tool-call"
            return _Played(generated, parsed, Observation(done=True), void)
        if parsed.message.answers:
            return await self._answered(generated, parsed)
        self._begins(generated, parsed.message)
        try:
            if self._purifier is None:
                observation = await self._session.act(parsed.message)
            else:
                acted = await self._purifier.act(number, history, generated, parsed)
                generated, parsed, observation = acted.generated, acted.parsed, acted.observation
        except SandboxFrozen as frozen:
            return _Played(generated, parsed, _stopped(parsed.message, frozen), "frozen")
        return _Played(generated, parsed, observation, "done" if observation.done else None)

    def _parsed(self, generated: Generated) -> Parsed | None:
        """What a turn says; None where it did not come to an end of its own."""
        if self._player is not None:
            return self._player.last
        return self._renderer.parse(generated.token_ids, self._tools) if generated.stopped_by == "stop" else None

    async def _answered(self, generated: Generated, parsed: Parsed) -> "_Played":
        """The environment says whether the episode is over."""
        try:
            observation = await self._session.act(parsed.message)
        except SandboxFrozen:
            self._ending.answer = parsed.message.content
            return _Played(generated, parsed, Observation(done=True), "frozen")
        if observation.done:
            self._ending.answer = parsed.message.content
        return _Played(
            generated, parsed, observation, "answered" if observation.done else None, marks={"answered": True}
        )

    def _begins(self, generated: Generated, message: AssistantMessage) -> None:
        if self._watch is not None:
            self._watch.begins("".join(self._renderer.pieces(generated.token_ids)), message.call_text)

    async def _replayed(self, number: int, history: Sequence[int], expert: Turn) -> "_Played":
        prefill = self._request.prefill
        assert prefill is not None
        generated = await self._policy_session.force(history, expert.token_ids)
        parsed = self._renderer.parse(expert.token_ids, self._tools)
        check_is_call(number, parsed.message)
        self._begins(generated, parsed.message)
        ends: StopReason | None = None
        try:
            observation = await self._session.act(parsed.message)
            compare(number, expert, observation.calls)
            ends = "done" if observation.done else None
        except SandboxFrozen as frozen:
            observation, ends = _stopped(parsed.message, frozen), "frozen"
        imitated = number < prefill.imitated
        self._ending.changes.append(
            Change(
                kind="prefilled",
                turn=number,
                start=0,
                stop=len(expert.token_ids),
                reason="imitated" if imitated else "replayed",
                details={"expert": prefill.expert},
            )
        )
        return _Played(generated, parsed, observation, ends, marks={"prefilled": True, "imitated": imitated})

    def _opened_purifier(self) -> Purifier:
        if self._arena.purification is None:
            raise ValueError(f"{self._request.id} is to be purified, and the recipe does not say how")
        return Purifier(
            self._arena.purification,
            self._request,
            self._renderer,
            self._tools,
            self._policy_session,
            self._session,
            max_turn_tokens=self._arena.max_turn_tokens,
        )


def _player(request: EpisodeRequest, arena: Arena, task: Task, tools: Sequence[ToolSchema]) -> PlayedTurns | None:
    """Who speaks in the model's place; None: the model itself."""
    if request.player == "model":
        return None
    return PlayedTurns(arena.renderer, tools, turns_of(request, arena.environment, task))


@dataclass(frozen=True, slots=True)
class _Played:
    """A turn, what came of it, and whether the episode ends there."""

    generated: Generated
    parsed: Parsed | None
    """None where it did not come to an end of its own."""
    observation: Observation
    ends_because: StopReason | None
    marks: Mapping[str, bool] = field(default_factory=dict)
    """Fields of ``Turn``."""


def _stopped(message: AssistantMessage, frozen: SandboxFrozen) -> Observation:
    """The observation of calls in which, or after which, the sandbox was frozen."""
    return Observation.of(
        ToolCall.of(request, str(frozen), error_class="frozen", seconds=0.0) for request in message.requests
    )


async def _rewards(session: CheckedSession, ending: _Ending) -> Rewards:
    """An episode that was frozen is never a success, nor is one whose sandbox was frozen before it was scored."""
    if ending.stop_reason == "frozen":
        return Rewards(success=False)
    try:
        return await session.score()
    except SandboxFrozen:
        return Rewards(success=False)


def _trajectory(request: EpisodeRequest, arena: Arena, task: Task, ending: _Ending, earned: Rewards) -> Trajectory:
    rewards = rewards_of(
        arena.reward,
        success=earned.success,
        turns=ending.turns,
        step=request.step,
        components=earned.components,
    )
    return Trajectory(
        id=request.id,
        purpose=request.purpose,
        prompt=request.prompt,
        member=request.member,
        sampled_at_version=_first_version(ending.turns, request.version),
        task=task,
        segments=ending.segments,
        stop_reason=ending.stop_reason,
        answer=ending.answer,
        success=earned.success,
        reward=sum(rewards.values()),
        rewards=rewards,
        changes=ending.changes,
        start=_start(request),
        first_attempt_errors=_first_attempt_errors(ending) if request.purify else None,
        alerts=ending.alerts,
        masked_because=QUARANTINED if ending.alerts else None,
        context=ending.context,
    )


def _first_version(turns: Sequence[Turn], planned: int) -> int:
    """Return the version of the first token that the policy sampled, or the version ``planned`` where it sampled
    none."""
    versions = (version for turn in turns if not turn.prefilled for version in turn.policy_versions)
    return next(versions, planned)


def _start(request: EpisodeRequest) -> Start | None:
    prefill = request.prefill
    if prefill is None:
        return None
    return Start(expert=prefill.expert, prefix=len(prefill.turns), turns=prefill.of_turns, reward=prefill.reward)


def _first_attempt_errors(ending: _Ending) -> int:
    """A failed call is still there, or a change tells of its repair."""
    failed = sum(turn.failed_calls for turn in ending.turns if not turn.prefilled)
    return failed + sum(change.kind == "purified" for change in ending.changes)
