"""One episode: generate, parse, act, observe, until the policy answers or a limit is met.

The environment speaks messages and the generator token ids; the renderer stands between them.  Sampled ids
are appended and never made from text a second time.  What the session holds is given back however the episode
ends.  A failing tool is an observation, or is repaired where the request says so (purification.py); a lost sandbox is
``SandboxLost`` and no trajectory.  Before the policy speaks, an expert's turns may be replayed
(reexecution.py).
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from engine.environments.contract import Environment, Observation, Rewards, Sandboxes
from engine.rollout.checked_session import CheckedSession
from engine.rollout.faults import EnvironmentFailed, named_as_environment_fault
from engine.rollout.policy_session import PolicySession
from engine.rollout.purification import Purifier
from engine.rollout.reexecution import ReplayDiverged, check_is_call, compare
from engine.rollout.renderers.contract import Renderer
from engine.rollout.requests import EpisodeRequest
from engine.rollout.sandbox_monitor import EpisodeMonitor, SandboxMonitor
from engine.rollout.scoring import rewards_of
from engine.spec.exploration import Purification
from engine.spec.generation import Generated, TextGenerator
from engine.spec.message import AssistantMessage, ToolSchema
from engine.spec.recipe import Reward
from engine.spec.security import QUARANTINED
from engine.spec.trajectory import Change, Start, StopReason, Task, ToolCall, Trajectory, Turn
from sandboxes.interface import SandboxFrozen

__all__ = ["Arena", "EnvironmentFailed", "ReplayDiverged", "run_episode"]


@dataclass(frozen=True, slots=True)
class Arena:
    """What the episodes of a worker share."""

    environment: Environment
    renderer: Renderer
    generator: TextGenerator
    sandboxes: Sandboxes
    reward: Reward
    max_turns: int
    max_turn_tokens: int
    context_tokens: int
    purification: Purification | None = None
    """How the episodes that ask for it are purified."""
    monitor: SandboxMonitor | None = None
    """Who watches the sandboxes.  None: nobody."""


@dataclass(slots=True)
class _Ending:
    turns: list[Turn] = field(default_factory=list)
    stop_reason: StopReason = "turn-limit"
    answer: str | None = None
    changes: list[Change] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)


async def run_episode(request: EpisodeRequest, arena: Arena) -> Trajectory:
    """Raises SandboxLost, EnvironmentFailed, ReplayDiverged, and whatever the generator raises."""
    with named_as_environment_fault():
        task = arena.environment.tasks(request.split)[request.task]
        tools = arena.environment.tools(task)
    policy_session = PolicySession(
        arena.generator,
        request.id,
        stop_ids=arena.renderer.stop_ids,
        max_turn_tokens=arena.max_turn_tokens,
        context_tokens=arena.context_tokens,
        temperature=request.temperature,
        logprob_temperature=request.logprob_temperature,
    )
    watch = None if arena.monitor is None else arena.monitor.episode(arena.sandboxes, request.id)
    try:
        async with AsyncExitStack() as held:
            with named_as_environment_fault():
                session = await held.enter_async_context(arena.environment.session(task, watch or arena.sandboxes))
            checked = CheckedSession(session, tools)
            ending = await _Episode(request, arena, tools, checked, policy_session, watch).play()
            return _trajectory(request, arena, task, ending, await _rewards(checked, ending))
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
    ) -> None:
        self._request, self._arena, self._renderer = request, arena, arena.renderer
        self._tools, self._session, self._policy_session, self._watch = tools, session, policy_session, watch
        self._purifier = self._opened_purifier() if request.purify else None
        self._expert = request.prefill.turns if request.prefill is not None else ()
        self._ending = _Ending()

    async def play(self) -> _Ending:
        ending, history = self._ending, list[int]()
        context = self._renderer.prompt(await self._session.reset(), self._tools, self._request.experience)
        for number in range(self._arena.max_turns):
            if self._watch is not None:
                self._watch.turn = number
            history += context
            expert = self._expert[number] if number < len(self._expert) else None
            if not self._policy_session.has_room(history, expert.token_ids if expert is not None else ()):
                ending.stop_reason = "truncated"
                break
            if expert is not None:
                turn, observation = await self._replayed(number, history, expert, context)
            else:
                turn, observation = await self._played(number, history, context)
            ending.turns.append(turn)
            if turn.tool_call is None:
                break
            if self._watch is not None:
                self._watch.ended("".join(turn.pieces), turn.tool_call)
            if turn.tool_call.error_class == "frozen":
                ending.stop_reason = "frozen"
                break
            if observation.done:
                ending.stop_reason = "done"
                break
            history += turn.token_ids
            context = self._renderer.bridge(observation.messages)
        if self._purifier is not None:
            ending.changes += self._purifier.changes
        if self._watch is not None:
            await self._watch.settled()
            ending.alerts = self._watch.alerts
        return ending

    async def _played(self, number: int, history: Sequence[int], context: list[int]) -> tuple[Turn, Observation]:
        """A turn of the policy's.  One without a call is the last, and sets the ending."""
        generated = await self._policy_session.sample(history, seed=self._request.turn_seed(number))
        parsed = self._renderer.parse(generated.token_ids, self._tools) if generated.stopped_by == "stop" else None
        if parsed is None or not parsed.message.calls_tool:
            observation = await self._ended(None if parsed is None else parsed.message, generated)
            return self._turn(number, context, generated, None), observation
        self._begins(generated, parsed.message)
        try:
            if self._purifier is None:
                return self._acted(number, context, generated, await self._session.act(parsed.message))
            acted = await self._purifier.act(number, history, generated, parsed)
        except SandboxFrozen as frozen:
            return self._acted(number, context, generated, _stopped(parsed.message, frozen))
        return self._acted(number, context, acted.generated, acted.observation)

    async def _ended(self, message: AssistantMessage | None, generated: Generated) -> Observation:
        """The session is given an answer, and nothing that is none."""
        if message is None or not message.answers:
            self._ending.stop_reason = "truncated" if generated.stopped_by == "context" else "no-tool-call"
            return Observation(done=True)
        self._ending.answer, self._ending.stop_reason = message.content, "answered"
        try:
            return await self._session.act(message)
        except SandboxFrozen:
            self._ending.stop_reason = "frozen"
            return Observation(done=True)

    def _begins(self, generated: Generated, message: AssistantMessage) -> None:
        if self._watch is not None:
            self._watch.begins("".join(self._renderer.pieces(generated.token_ids)), message.call_text)

    async def _replayed(
        self, number: int, history: Sequence[int], expert: Turn, context: list[int]
    ) -> tuple[Turn, Observation]:
        prefill = self._request.prefill
        assert prefill is not None
        generated = await self._policy_session.force(history, expert.token_ids)
        message = self._renderer.parse(expert.token_ids, self._tools).message
        check_is_call(number, message)
        self._begins(generated, message)
        try:
            observation = await self._session.act(message)
            compare(number, expert, observation.calls[0])
        except SandboxFrozen as frozen:
            observation = _stopped(message, frozen)
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
        turn, _ = self._acted(number, context, generated, observation)
        return turn.model_copy(update={"prefilled": True, "imitated": imitated}), observation

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

    def _acted(
        self, number: int, context: list[int], generated: Generated, observation: Observation
    ) -> tuple[Turn, Observation]:
        return self._turn(number, context, generated, observation.calls[0]), observation

    def _turn(self, number: int, context: list[int], generated: Generated, tool_call: ToolCall | None) -> Turn:
        experience = self._request.experience
        return Turn(
            context_ids=context,
            context_text=self._renderer.text(context),
            token_ids=list(generated.token_ids),
            pieces=self._renderer.pieces(generated.token_ids),
            logprobs=list(generated.logprobs),
            policy_versions=list(generated.policy_versions),
            tool_call=tool_call,
            experience_span=self._renderer.experience_span(experience) if experience and number == 0 else None,
        )


def _stopped(message: AssistantMessage, frozen: SandboxFrozen) -> Observation:
    """The observation of a call in which, or after which, the sandbox was frozen."""
    call = ToolCall(
        name=message.requests[0].name,
        arguments=message.call_text,
        output=str(frozen),
        status="error",
        error_class="frozen",
        seconds=0.0,
    )
    return Observation.of([call])


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
        answered=ending.stop_reason == "answered",
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
        turns=ending.turns,
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
    )


def _first_version(turns: Sequence[Turn], planned: int) -> int:
    """Of the first token that the policy sampled; the version ``planned`` where it sampled none."""
    versions = (version for turn in turns if not turn.prefilled for version in turn.policy_versions)
    return next(versions, planned)


def _start(request: EpisodeRequest) -> Start | None:
    prefill = request.prefill
    if prefill is None:
        return None
    return Start(expert=prefill.expert, prefix=len(prefill.turns), turns=prefill.of_turns, reward=prefill.reward)


def _first_attempt_errors(ending: _Ending) -> int:
    """A failed call is still there, or a change tells of its repair."""
    own = [turn.tool_call for turn in ending.turns if turn.tool_call is not None and not turn.prefilled]
    failed = sum(call.status == "error" for call in own)
    return failed + sum(change.kind == "purified" for change in ending.changes)
