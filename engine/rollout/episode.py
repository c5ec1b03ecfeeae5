"""One episode: generate, parse, act, observe, until the environment says that it is over or a limit is met.

The environment speaks messages and the generator token ids; the renderer stands between them.  Sampled ids
are appended and never made from text a second time; where the renderer writes the context again, another segment
begins (transcript.py).  What the session holds is given back however the episode
ends.  A failing tool is an observation, or is repaired where the request says so (purification.py); a lost sandbox is
``SandboxLost`` and no trajectory.  Before the policy speaks, an expert's turns may be replayed
(reexecution.py).
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from engine.environments.contract import Observation, Rewards, TaskFetcher
from engine.rollout.arena import Arena
from engine.rollout.checked_session import CheckedSession
from engine.rollout.context import Habits, instructed
from engine.rollout.context_tools import DELEGATE, ManagedSession, context_tools, managed_session, task_of
from engine.rollout.faults import EnvironmentFailed, named_as_environment_fault
from engine.rollout.players import ENDLESS, PlayedTurns, turns_of
from engine.rollout.policy_session import PolicySession
from engine.rollout.purification import Purifier
from engine.rollout.reexecution import ReplayDiverged, check_is_call, compare
from engine.rollout.renderers.contract import Parsed
from engine.rollout.requests import EpisodeRequest
from engine.rollout.sandbox_monitor import EpisodeMonitor
from engine.rollout.scoring import rewards_of
from engine.rollout.transcript import Transcript, TurnPlace
from engine.spec.context import ContextRecord
from engine.spec.generation import Generated
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema
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
        if isinstance(arena.environment, TaskFetcher):
            await arena.environment.fetch(request.split, request.task)
        task = arena.environment.tasks(request.split)[request.task]
    arena = arena.of_task(task)
    if arena.agent is not None:
        from engine.rollout.agents.episode import run_agent_episode

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
        self._delegates = arena.context is not None and arena.context.subagent_turns > 0
        extra = {tool.name for tool in context_tools(arena.context)}
        self._own_tools = [tool for tool in tools if tool.name not in extra]
        """Those of the environment, which a sub-agent has too."""
        self._aside = self._main_turns = 0
        """Turns of sub-agents, and of the policy itself."""
        self._is_over = False
        """Whether a sub-agent reached the episode's end."""
        self._habits = Habits(arena.context)
        self._ending = _Ending()

    async def play(self) -> _Ending:
        ending = self._ending
        opening = instructed(self._arena.context, await self._session.reset())
        transcript = self._transcript = Transcript(
            self._renderer, opening, self._tools, self._request.experience, self._arena.context
        )
        for main in range(self._arena.max_turns):
            number = main + self._aside
            if number >= self._arena.max_turns:
                break
            if self._watch is not None:
                self._watch.turn = number
            if self._managed is not None:
                self._managed.turn = main + 1
            self._main_turns = main + 1
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
            marks = {"tool_calls": list(observation.calls), **played.marks}
            if played.place is None:
                turn = self._turn_of(generated).model_copy(update=marks)
                transcript.wrote(turn)
            else:
                turn = transcript.mark(played.place, marks)
            if self._watch is not None and turn.tool_calls:
                self._watch.ended("".join(turn.pieces), turn.tool_calls)
            if played.ends_because is not None:
                ending.stop_reason = played.ends_because
                break
            assert played.parsed is not None, "a turn that says nothing ends the episode"
            tokens = len(history) + len(generated.token_ids)
            read = self._habits.read(main, played.parsed.message, observation.messages, tokens=tokens)
            if transcript.is_aside:
                transcript.comes_back(played.parsed, read)
            else:
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
        if self._delegates and any(request.name == DELEGATE for request in parsed.message.requests):
            return await self._delegated(number, generated, parsed)
        try:
            if self._purifier is None:
                observation = await self._session.act(parsed.message)
            else:
                acted = await self._purifier.act(number, history, generated, parsed)
                generated, parsed, observation = acted.generated, acted.parsed, acted.observation
        except SandboxFrozen as frozen:
            return _Played(generated, parsed, _stopped(parsed.message, frozen), "frozen")
        return _Played(generated, parsed, observation, "done" if observation.done else None)

    def _parsed(self, generated: Generated, tools: Sequence[ToolSchema] | None = None) -> Parsed | None:
        """What a turn says; None where it did not come to an end of its own."""
        if self._player is not None:
            return self._player.last
        if generated.stopped_by != "stop":
            return None
        return self._renderer.parse(generated.token_ids, self._tools if tools is None else tools)

    def _turn_of(self, generated: Generated) -> Turn:
        return self._transcript.turn(
            generated.token_ids,
            logprobs=generated.logprobs,
            policy_versions=generated.policy_versions,
            began_at=generated.began_at,
            seconds=generated.seconds,
        )

    # ---- sub-agents ----

    async def _delegated(self, number: int, generated: Generated, parsed: Parsed) -> "_Played":
        """A turn with calls of sub-agents, which begin when its other calls are over, one after the other."""
        message, place = parsed.message, self._transcript.wrote(self._turn_of(generated))
        others = tuple(request for request in message.requests if request.name != DELEGATE)
        try:
            observed = await self._session.act(replace(message, requests=others)) if others else Observation()
            made = {call.id: call for call in observed.calls}
            for request in message.requests:
                if request.name == DELEGATE:
                    made[request.id] = await self._done_aside(request, is_over=observed.done or self._is_over)
        except SandboxFrozen as frozen:
            return _Played(generated, parsed, _stopped(message, frozen), "frozen", place=place)
        finally:
            if self._watch is not None:
                self._watch.turn = number
        calls = tuple(made[request.id] for request in message.requests)
        own = Observation.of(call for call in calls if call.name == DELEGATE)
        done = observed.done or self._is_over
        observation = Observation(calls, (*observed.messages, *own.messages), done)
        return _Played(generated, parsed, observation, "done" if done else None, place=place)

    async def _done_aside(self, request: ToolRequest, *, is_over: bool) -> ToolCall:
        """The record of a call that begins a sub-agent, with its answer."""
        task, began = task_of(request), time.monotonic()
        if task is None:
            problem = 'Error: give the argument "task" alone, as a text'
            return ToolCall.of(request, problem, error_class="arguments", seconds=0.0)
        if is_over:
            return ToolCall.of(request, "", seconds=0.0)
        self._habits.goes_aside()
        assert self._arena.context is not None
        prompt = self._arena.context.subagent_prompt
        opening = [*([Message("system", prompt)] if prompt else ()), Message("user", task)]
        self._transcript.goes_aside(opening, self._own_tools)
        answer = await self._subagent(self._arena.context.subagent_turns)
        self._habits.goes_on()
        return ToolCall.of(request, answer, seconds=time.monotonic() - began)

    async def _subagent(self, most_turns: int) -> str:
        """Let it take its turns; what it answers, or why it does not."""
        for taken in range(most_turns):
            number = self._main_turns + self._aside
            history = self._transcript.history
            if number >= self._arena.max_turns:
                return "(It was stopped: the episode has no turns left.)"
            if not self._policy_session.has_room(history):
                return "(It was stopped: its context is full.)"
            generated = await self._policy_session.sample(history, seed=self._request.turn_seed(number))
            self._aside += 1
            parsed = self._parsed(generated, self._own_tools)
            place = self._transcript.wrote(self._turn_of(generated))
            if parsed is None or parsed.message.malformed is not None:
                return "(It said nothing that could be read.)"
            if parsed.message.answers:
                self._transcript.mark(place, {"answered": True})
                return parsed.message.content
            observation = await self._acted_aside(number, generated, parsed.message, place)
            if observation.done:
                self._is_over = True
                return ""
            tokens = len(history) + len(generated.token_ids)
            read = self._habits.read(taken, parsed.message, observation.messages, tokens=tokens, aside=True)
            self._transcript.observed(parsed, read)
        return f"(It was stopped after {most_turns} turns.)"

    async def _acted_aside(
        self, number: int, generated: Generated, message: AssistantMessage, place: TurnPlace
    ) -> Observation:
        """Do a sub-agent's calls; it has no tools of the context, and no agents below it."""
        if self._watch is not None:
            self._watch.turn = number
        self._begins(generated, message)
        own = {tool.name for tool in self._own_tools}
        taken = {tool.name for tool in self._tools} - own
        refused = {
            request.id: ToolCall.of(
                request, f"Error: a sub-agent has no tool {request.name!r}", error_class="unknown-tool", seconds=0.0
            )
            for request in message.requests
            if request.name in taken
        }
        others = tuple(request for request in message.requests if request.id not in refused)
        try:
            observed = await self._session.act(replace(message, requests=others)) if others else Observation()
        except SandboxFrozen as frozen:
            self._transcript.mark(place, {"tool_calls": list(_stopped(message, frozen).calls)})
            raise
        made = refused | {call.id: call for call in observed.calls}
        calls = [made[request.id] for request in message.requests]
        self._transcript.mark(place, {"tool_calls": calls})
        if self._watch is not None:
            self._watch.ended("".join(self._renderer.pieces(generated.token_ids)), calls)
        messages = (*observed.messages, *Observation.of(refused.values()).messages)
        return Observation(tuple(calls), messages, observed.done)

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
    place: TurnPlace | None = None
    """Where the turn is written; None: it is not yet."""


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
