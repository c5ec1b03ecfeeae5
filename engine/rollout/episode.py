"""One episode: generate, parse, run the tool, observe, until the policy answers or a limit is met.

Token ids go to the generator and come back from it; they are appended and never made from text a
second time.  What the tool needs is given back however the episode ends.  A failing tool is an
observation, or is repaired where the request says so (purification.py); a lost box is
``SandboxLost`` and no trajectory.  Before the policy speaks, an expert's turns may be replayed
(reexecution.py).
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from engine.environments.contract import Boxes, Environment, ToolSession
from engine.rollout.chat import Answer, Call
from engine.rollout.faults import EnvironmentFailed, FaultNamingSession, named_as_environment_fault
from engine.rollout.policy_session import PolicySession
from engine.rollout.purification import Purifier
from engine.rollout.reexecution import ReplayDiverged, call_of, compare
from engine.rollout.requests import EpisodeRequest
from engine.rollout.sandbox_monitor import EpisodeMonitor, SandboxMonitor
from engine.rollout.scoring import rewards_of
from engine.spec.exploration import Purification
from engine.spec.generation import Generated, TextGenerator
from engine.spec.recipe import Reward
from engine.spec.security import QUARANTINED
from engine.spec.trajectory import Change, Start, StopReason, Task, ToolCall, Trajectory, Turn
from sandboxes.interface import ExecResult, SandboxFrozen

__all__ = ["Arena", "Boxes", "EnvironmentFailed", "ReplayDiverged", "run_episode"]


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
    purification: Purification | None = None
    """How the episodes that ask for it are purified."""
    monitor: SandboxMonitor | None = None
    """Who watches the boxes.  None: nobody."""


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
    policy_session = PolicySession(
        arena.generator,
        request.id,
        stop_ids=arena.environment.stop_ids,
        max_turn_tokens=arena.max_turn_tokens,
        context_tokens=arena.context_tokens,
        temperature=request.temperature,
        logprob_temperature=request.logprob_temperature,
    )
    watch = None if arena.monitor is None else arena.monitor.episode(arena.boxes, request.id)
    try:
        async with AsyncExitStack() as held:
            with named_as_environment_fault():
                session = await held.enter_async_context(arena.environment.session(task, watch or arena.boxes))
            episode = _Episode(request, arena, task, FaultNamingSession(session), policy_session, watch)
            ending = await episode.play()
            return _trajectory(request, arena, task, session, ending)
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
        task: Task,
        tool: ToolSession,
        policy_session: PolicySession,
        watch: EpisodeMonitor | None,
    ) -> None:
        self._request, self._arena, self._environment = request, arena, arena.environment
        self._task, self._tool, self._policy_session, self._watch = task, tool, policy_session, watch
        self._purifier = self._opened_purifier() if request.purify else None
        self._expert = request.prefill.turns if request.prefill is not None else ()
        self._ending = _Ending()

    async def play(self) -> _Ending:
        ending, history = self._ending, list[int]()
        context = self._environment.prompt_ids(self._task, self._request.lessons)
        for number in range(self._arena.max_turns):
            if self._watch is not None:
                self._watch.turn = number
            history += context
            expert = self._expert[number] if number < len(self._expert) else None
            if not self._policy_session.has_room(history, expert.token_ids if expert is not None else ()):
                ending.stop_reason = "truncated"
                break
            if expert is not None:
                turn = await self._replayed(number, history, expert, context)
            else:
                turn = await self._played(number, history, context)
            ending.turns.append(turn)
            if turn.tool_call is None:
                break
            if self._watch is not None:
                self._watch.ended("".join(turn.pieces), turn.tool_call)
            if turn.tool_call.error_class == "frozen":
                ending.stop_reason = "frozen"
                break
            if self._tool.done:
                ending.stop_reason = "done"
                break
            history += turn.token_ids
            context = self._environment.observation_ids(turn.tool_call)
        if self._purifier is not None:
            ending.changes += self._purifier.changes
        if self._watch is not None:
            await self._watch.settled()
            ending.alerts = self._watch.alerts
        return ending

    async def _played(self, number: int, history: Sequence[int], context: list[int]) -> Turn:
        """A turn of the policy's.  One without a call is the last, and sets the ending."""
        generated = await self._policy_session.sample(history, seed=self._request.turn_seed(number))
        said = self._environment.parse(generated.token_ids) if generated.stopped_by == "stop" else None
        if not isinstance(said, Call):
            self._ending.answer = said.text if isinstance(said, Answer) else None
            self._ending.stop_reason = _why_without_call(said, generated)
            return self._turn(number, context, generated, None)
        self._begins(generated, said)
        try:
            if self._purifier is None:
                return self._turn(number, context, generated, await self._tool.call(said))
            acted = await self._purifier.act(number, history, generated, said)
        except SandboxFrozen as frozen:
            return self._turn(number, context, generated, self._stopped(said, frozen))
        return self._turn(number, context, acted.generated, acted.tool_call)

    def _begins(self, generated: Generated, call: Call) -> None:
        if self._watch is not None:
            self._watch.begins("".join(self._environment.pieces_of(generated.token_ids)), call.code)

    def _stopped(self, call: Call, frozen: SandboxFrozen) -> ToolCall:
        """A call in which, or after which, the box was frozen."""
        told = self._environment.tool_call(call, ExecResult("killed", "", str(frozen), None, 0.0))
        return told.model_copy(update={"output": str(frozen), "status": "error", "error_class": "frozen"})

    async def _replayed(self, number: int, history: Sequence[int], expert: Turn, context: list[int]) -> Turn:
        prefill = self._request.prefill
        assert prefill is not None
        generated = await self._policy_session.force(history, expert.token_ids)
        call = call_of(number, self._environment.parse(expert.token_ids))
        self._begins(generated, call)
        try:
            tool_call = await self._tool.call(call)
            compare(number, expert, tool_call)
        except SandboxFrozen as frozen:
            tool_call = self._stopped(call, frozen)
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
        turn = self._turn(number, context, generated, tool_call)
        return turn.model_copy(update={"prefilled": True, "imitated": imitated})

    def _opened_purifier(self) -> Purifier:
        if self._arena.purification is None:
            raise ValueError(f"{self._request.id} is to be purified, and the recipe does not say how")
        return Purifier(
            self._arena.purification,
            self._request,
            self._environment,
            self._policy_session,
            self._tool,
            max_turn_tokens=self._arena.max_turn_tokens,
        )

    def _turn(self, number: int, context: list[int], generated: Generated, tool_call: ToolCall | None) -> Turn:
        lessons = self._request.lessons
        return Turn(
            context_ids=context,
            context_text=self._environment.text_of(context),
            token_ids=list(generated.token_ids),
            pieces=self._environment.pieces_of(generated.token_ids),
            logprobs=list(generated.logprobs),
            policy_versions=list(generated.policy_versions),
            tool_call=tool_call,
            experience_span=self._environment.experience_span(lessons) if lessons and number == 0 else None,
        )


def _why_without_call(said: Answer | Call | None, generated: Generated) -> StopReason:
    if isinstance(said, Answer):
        return "answered"
    return "truncated" if generated.stopped_by == "context" else "no-tool-call"


def _trajectory(request: EpisodeRequest, arena: Arena, task: Task, session: ToolSession, ending: _Ending) -> Trajectory:
    with named_as_environment_fault():
        if ending.stop_reason == "frozen":
            success = False
        elif session.done:
            success = session.success
        else:
            success = ending.answer is not None and arena.environment.score(task, ending.answer)
    answered = ending.stop_reason == "answered"
    rewards = rewards_of(arena.reward, success=success, turns=ending.turns, answered=answered, step=request.step)
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
        success=success,
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
