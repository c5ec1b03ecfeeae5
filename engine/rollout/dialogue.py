"""A conversation of a person with a policy: sampled, parsed and answered by tools exactly as an episode is.

    messages ──► Transcript ──► PolicySession ──► generator, token by token
        ▲            ▲ parsed turn      │
        person       └── tools of an environment, where one is chosen

Sampled ids stay as they are; a turn that was cut short is ended with the renderer's mark, so that others may follow.
Nothing here is scored, stored or trained on.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.rollout.chat_tools import ChatTools
from engine.rollout.policy_session import PolicySession
from engine.rollout.renderers.contract import Parsed, Renderer
from engine.rollout.token_stream import TokenStream
from engine.rollout.transcript import Transcript
from engine.seeds import derived_seed
from engine.spec.chat import (
    LONGEST_SHOWN,
    ChatCall,
    ChatMessage,
    Finished,
    FinishedTurn,
    FinishReason,
    Reading,
    Result,
    Sampling,
    Send,
    ShownToken,
    Tokens,
    Usage,
    storable_text,
)
from engine.spec.generation import TextGenerator, Truncation
from engine.spec.message import AssistantMessage, Message, ToolRequest
from engine.spec.problems import Problem
from engine.spec.trajectory import ToolCall

Emit = Callable[[Reading | Tokens | FinishedTurn | Result | Finished], None]


class DialogueRefused(ValueError):
    """Messages that this conversation cannot take; it is as before them."""

    def __init__(self, field: str, value: object, message: str, remedy: str) -> None:
        self.problem = Problem(field, str(value), message, remedy)
        super().__init__(str(self.problem))


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of the policy, with its end."""

    token_ids: tuple[int, ...]
    parsed: Parsed


@dataclass(slots=True)
class _Answer:
    """What came of a send so far."""

    id: str
    sampling: Sampling
    renderer: Renderer
    began: float = field(default_factory=time.monotonic)
    turns: int = 0
    read_tokens: int = 0
    sampled_tokens: int = 0
    stream: TokenStream | None = None
    """The tokens of the turn under way."""

    def usage(self) -> Usage:
        return Usage(
            turns=self.turns,
            read_tokens=self.read_tokens,
            sampled_tokens=self.sampled_tokens,
            seconds=round(time.monotonic() - self.began, 3),
        )


class Dialogue:
    """One conversation.  ``send`` is called once at a time; cancelled, it leaves a conversation that can go on.

    ``renderer_with`` gives the renderer for a choice of ``Sampling.reasoning``, or raises ModelFolderRefused;
    ``vocabulary`` is the number of the model's tokens.
    """

    def __init__(
        self,
        generator: TextGenerator,
        renderer_with: Callable[[str], Renderer],
        emit: Emit,
        *,
        context_tokens: int,
        vocabulary: int,
        tools: ChatTools,
    ) -> None:
        self._generator, self._renderer_with, self._emit = generator, renderer_with, emit
        self._context_tokens, self._vocabulary, self._tools = context_tokens, vocabulary, tools
        self._history: list[Message | _Turn] = []
        self._session: tuple[Sampling, PolicySession] | None = None

    async def begin(self, history: Sequence[ChatMessage]) -> None:
        """Forget everything, and take ``history`` as what was said.  Raises DialogueRefused."""
        kept = self._kept(history, self._renderer_with("auto"), field="history")
        await self.close()
        self._tools.took_new_beginning()
        self._history = kept

    async def send(self, send: Send, *, most_seconds: float) -> None:
        """Answer; the last thing that is emitted is ``Finished``.

        Raises DialogueRefused, and what the generator and the environment raise; what was said until then stays.
        A cancellation, and the end of ``most_seconds``, end the turn under way, and what it sampled stays too.
        """
        renderer = self._renderer_with(send.sampling.reasoning)
        history = [*self._history, *self._kept(send.messages, renderer, field="messages")]
        transcript = self._transcript(history, renderer)
        self._history = history
        answer = _Answer(send.id, send.sampling, renderer)
        try:
            async with asyncio.timeout(most_seconds):
                reason = await self._answered(transcript, answer)
        except TimeoutError:
            await self._cut(answer)
            reason = "time-limit"
        except asyncio.CancelledError:
            await self._cut(answer)
            self._finish(answer, "stopped")
            raise
        except BaseException:
            await self._cut(answer)
            raise
        self._finish(answer, reason)

    async def close(self) -> None:
        self._history = []
        await self._tools.close()
        await self._release()

    # ---- what was said ----

    def _kept(self, messages: Sequence[ChatMessage], renderer: Renderer, *, field: str) -> list[Message | _Turn]:
        return [self._taken(message, renderer, field=f"{field}.{place}") for place, message in enumerate(messages)]

    def _taken(self, message: ChatMessage, renderer: Renderer, *, field: str) -> Message | _Turn:
        if message.role != "assistant":
            return Message(message.role, message.content, message.tool, message.call)
        token_ids = message.token_ids
        if token_ids is None:
            try:
                token_ids = renderer.write(_as_assistant(message), self._tools.schemas)
            except ValueError as error:
                raise DialogueRefused(field, message.content[:100], str(error), "leave the message out") from error
        if (highest := max(token_ids)) >= self._vocabulary:
            problem = f"the model's vocabulary has {self._vocabulary} tokens"
            raise DialogueRefused(f"{field}.token_ids", highest, problem, "give the tokens that this model sampled")
        return self._turn(token_ids, renderer)

    def _turn(self, token_ids: Sequence[int], renderer: Renderer) -> _Turn:
        """With an end, its own or the renderer's."""
        ended = token_ids[-1] in renderer.stop_ids
        whole = (*token_ids,) if ended else (*token_ids, renderer.end_id)
        return _Turn(whole, renderer.parse(whole, self._tools.schemas))

    def _transcript(self, history: Sequence[Message | _Turn], renderer: Renderer) -> Transcript:
        """All of it as the policy reads it, up to where its next turn begins."""
        opening, exchanges = _exchanges(history)
        transcript = Transcript(renderer, opening, self._tools.schemas)
        for turn, read in exchanges:
            unknown = [0.0] * len(turn.token_ids), [0] * len(turn.token_ids)
            transcript.wrote(transcript.turn(turn.token_ids, logprobs=unknown[0], policy_versions=unknown[1]))
            transcript.observed(turn.parsed, read)
        return transcript

    # ---- the answer ----

    async def _answered(self, transcript: Transcript, answer: _Answer) -> FinishReason:
        for _ in range(answer.sampling.most_turns):
            session = await self._session_for(answer)
            if not session.has_room(transcript.history):
                return "context"
            self._read(transcript, answer)
            ended = await self._sampled(session, transcript, answer)
            if isinstance(ended, str):
                return ended
            observation, ends = await self._tools.act(ended.message, wrote="".join(transcript.turns[-1].pieces))
            for call in observation.calls:
                self._emit(_result(answer, call))
            self._history += observation.messages
            if ends is not None:
                return ends
            transcript.observed(ended, observation.messages)
        return "turn-limit"

    def _read(self, transcript: Transcript, answer: _Answer) -> None:
        context = transcript.context
        answer.read_tokens += len(context)
        text = storable_text(answer.renderer.text(context)[:LONGEST_SHOWN])
        self._emit(Reading(id=answer.id, turn=answer.turns, tokens=len(transcript.history), text=text))

    async def _sampled(self, session: PolicySession, transcript: Transcript, answer: _Answer) -> Parsed | FinishReason:
        """The next turn, which stands in the conversation and in the transcript; why the answer ends with it, or its
        calls."""
        answer.stream = stream = TokenStream(answer.renderer, lambda tokens: self._emit_tokens(answer, tokens))
        reporting = asyncio.create_task(stream.tell_regularly())
        try:
            seed = derived_seed(answer.sampling.seed, "chat", len(self._history))
            generated = await session.sample(transcript.history, seed=seed, on_token=stream.sampled)
            stream.tell(is_over=True)
        finally:
            reporting.cancel()
        parsed = self._say(answer)
        if generated.stopped_by != "stop" or parsed is None:
            return "length" if generated.stopped_by == "length" else "context"
        if parsed.message.malformed is not None:
            return "malformed"
        if parsed.message.answers:
            return "answered"
        if not self._tools.answer:
            return "calls"
        transcript.wrote(
            transcript.turn(generated.token_ids, logprobs=generated.logprobs, policy_versions=generated.policy_versions)
        )
        return parsed

    def _say(self, answer: _Answer) -> Parsed | None:
        """What was sampled stands in the conversation from now on, ended if it was cut; None where that is nothing."""
        stream, answer.stream = answer.stream, None
        if stream is None or not stream.token_ids:
            return None
        stream.tell(is_over=True)
        turn = self._turn(stream.token_ids, answer.renderer)
        self._history.append(turn)
        message = turn.parsed.message
        self._emit(
            FinishedTurn(
                id=answer.id,
                turn=answer.turns,
                message=_shown(message, stream.token_ids, answer.renderer),
                problem=None if message.malformed is None else storable_text(message.malformed.reason),
            )
        )
        answer.turns += 1
        answer.sampled_tokens += len(stream.token_ids)
        return turn.parsed

    async def _cut(self, answer: _Answer) -> None:
        """Keep what was sampled of the turn under way.  The generator has dropped its session with it."""
        self._say(answer)
        await self._release()
        await self._tools.end_unfinished()

    def _finish(self, answer: _Answer, reason: FinishReason) -> None:
        anew = self._tools.took_new_beginning()
        self._emit(Finished(id=answer.id, reason=reason, usage=answer.usage(), tools_begin_anew=anew))

    def _emit_tokens(self, answer: _Answer, tokens: list[ShownToken]) -> None:
        self._emit(Tokens(id=answer.id, turn=answer.turns, tokens=tokens))

    # ---- the generator ----

    async def _session_for(self, answer: _Answer) -> PolicySession:
        """The session with what it has read; another one where sampling has changed."""
        if self._session is not None and self._session[0] == answer.sampling:
            return self._session[1]
        await self._release()
        sampling = answer.sampling
        session = PolicySession(
            self._generator,
            "chat",
            stop_ids=answer.renderer.stop_ids,
            max_turn_tokens=sampling.most_tokens,
            context_tokens=self._context_tokens,
            temperature=sampling.temperature,
            truncation=Truncation(top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p),
        )
        self._session = sampling, session
        return session

    async def _release(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session[1].release()


def _exchanges(history: Sequence[Message | _Turn]) -> tuple[list[Message], list[tuple[_Turn, list[Message]]]]:
    """What stands before the first turn, and each turn with what was read behind it.  Raises DialogueRefused."""
    opening, exchanges = list[Message](), list[tuple[_Turn, list[Message]]]()
    for entry in history:
        if isinstance(entry, _Turn):
            exchanges.append((entry, []))
        else:
            (exchanges[-1][1] if exchanges else opening).append(entry)
    if not opening:
        raise DialogueRefused("messages.0.role", "assistant", "nobody has spoken before it", "begin with a user")
    for _, read in exchanges:
        if not read:
            raise DialogueRefused("messages", "assistant", "nothing stands behind its turn", "add a user's message")
    return opening, exchanges


def _as_assistant(message: ChatMessage) -> AssistantMessage:
    requests = tuple(ToolRequest(call.name, call.arguments, call.id) for call in message.calls)
    return AssistantMessage(message.content, requests, reasoning=message.reasoning)


def _shown(message: AssistantMessage, token_ids: Sequence[int], renderer: Renderer) -> ChatMessage:
    """For people and for a later history: what the turn says, and its tokens as sampled."""
    content = storable_text(message.content if message.malformed is None else renderer.text(token_ids))
    calls = [
        ChatCall(
            id=request.id,
            name=storable_text(request.name),
            arguments=dict(request.arguments),
            problem=None if request.malformed is None else storable_text(request.malformed.reason),
            written=None if request.malformed is None else storable_text(request.malformed.text),
        )
        for request in message.requests
    ]
    reasoning = storable_text(message.reasoning)
    return ChatMessage(role="assistant", content=content, reasoning=reasoning, calls=calls, token_ids=list(token_ids))


def _result(answer: _Answer, call: ToolCall) -> Result:
    return Result(
        id=answer.id,
        turn=answer.turns - 1,
        call=call.id,
        tool=storable_text(call.name),
        output=storable_text(call.output[:LONGEST_SHOWN]),
        status=call.status,
        error_class=call.error_class,
        seconds=call.seconds,
    )
