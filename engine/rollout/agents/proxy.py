"""The policy as one agent sees it: calls in, turns out, and everything that was sampled kept as it was sampled.

    request ──► context (ids) ──► generator ──► Call ──► reply
                   ▲ earlier calls                └────► segments of the trajectory

It knows no dialect and no socket (``dialects/``, ``server.py``), and belongs to one rollout, which bounds it.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import groupby

from engine.rollout.agents.asked import Asked, Entry, RequestRefused
from engine.rollout.agents.call_sessions import CallSessions
from engine.rollout.agents.capture import Call, segments_of
from engine.rollout.agents.contexts import Context, Contexts, Found, Spoken
from engine.rollout.agents.live import Live, LiveTurn, read_at_once
from engine.rollout.agents.stops import ended, stopped, stopped_text
from engine.rollout.agents.waiting import all_of, interruptible
from engine.rollout.renderers.contract import Renderer
from engine.seeds import derived_seed
from engine.spec.generation import Generated
from engine.spec.message import AssistantMessage, Message, ToolSchema
from engine.spec.trajectory import Segment

MOST_BEYOND_BUDGET = 16
"""Requests that are refused for want of a budget, before the agent is ended: it may clear up after the first."""
LONGEST_TOKEN = 64
"""Characters: text of more than so many for each token of the context is not even looked at."""
MOST_LEFT_OUT = 2**20
"""Characters of the tools, and of one thought, that are looked at whatever the context: a template may write neither,
and the time that so many take is seconds."""
MOST_REFUSED = 1000
"""Requests that are refused for whatever reason, before it is ended."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How far one agent may go."""

    calls: int
    sampled_tokens: int
    turn_tokens: int
    parallel: int
    context_tokens: int


@dataclass(slots=True, eq=False)
class _Lent:
    """What a request under way has of the budget: so many turns that are not sampled yet, of so many tokens each."""

    turns: int
    turn_tokens: int

    @property
    def tokens(self) -> int:
        return self.turns * self.turn_tokens


class _Otherwise(Exception):
    """A context is another one than was expected."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self.found = found


class _Once:
    """Runs ``what`` once, and raises whenever it is asked what that raised."""

    def __init__(self, what: Callable[[], None]) -> None:
        self._what: Callable[[], None] | None = what
        self.error: Exception | None = None

    def run(self) -> None:
        what, self._what = self._what, None
        if what is not None:
            try:
                what()
            except Exception as error:
                self.error = error
        if self.error is not None:
            raise self.error


OnCall = Callable[[int, Call], Awaitable[None]]
"""Is given each turn with its number, before the agent has it."""
OnShow = Callable[[int, str | None], Awaitable[None]]
"""Is given the number that a turn will have, before the agent has anything of it; of turns under way side by side, that
of the one that is over first.  Where the turn is never over, again, with what the agent had of it, and then the number
of the last one that was, with None."""


async def nobody(number: int, wrote: str | None) -> None:
    """An ``OnShow`` where nothing follows from what an agent reads."""


class ModelProxy:
    """Belongs to one event loop.  Closed, it answers nothing any more."""

    def __init__(
        self,
        renderer: Renderer,
        sessions: CallSessions,
        budget: Budget,
        *,
        seed: int,
        experience: tuple[str, ...] = (),
        on_call: OnCall,
        on_show: OnShow = nobody,
    ) -> None:
        self.renderer, self._sessions, self._budget, self._seed = renderer, sessions, budget, seed
        self._contexts, self._on_call, self._on_show = Contexts(renderer, experience), on_call, on_show
        self._under_way = self._begun = 0
        self._lent = set[_Lent]()
        self._in_turn = asyncio.Lock()
        self.calls: list[Call] = []
        """In order of time: a call stands here as soon as it is sampled."""
        self.refused: Counter[str] = Counter()
        """Requests that were answered with an error, by kind."""
        self.sampled_tokens = 0
        """All that the policy was made to sample, also what nobody reads."""
        self.unfinished = 0
        self.failure: Exception | None = None
        """What the generator raised, which is the worker's to see."""
        self.failed = asyncio.Event()
        self.exhausted = asyncio.Event()
        """So many requests were refused that the agent will not come to anything."""

    @property
    def over_budget(self) -> bool:
        return self.refused["budget"] > 0

    @property
    def dropped_tokens(self) -> int:
        return sum(call.dropped_tokens for call in self.calls)

    def refuse(self, kind: str) -> None:
        """Count a request that is answered with an error."""
        self.refused[kind] += 1
        if self.refused["budget"] > MOST_BEYOND_BUDGET or self.refused.total() > MOST_REFUSED:
            self.exhausted.set()

    def segments(self) -> list[Segment]:
        return segments_of(self.calls, self.renderer)

    async def complete(self, asked: Asked, live: Live | None = None) -> list[Call]:
        """Sample one turn for each choice, which ``live`` shows meanwhile.

        Raises RequestRefused; whoever answers with it calls ``refuse``.
        """
        refuse_far_too_long(asked, self._budget.context_tokens)
        lent = self._reserved(asked)
        try:
            found = await self._contexts.find(asked, self._budget.context_tokens)
            if found.expected and len(found.context.token_ids) >= self._budget.context_tokens:
                found = self._contexts.confirmed(found)
            begun, self._begun = self._begun, self._begun + asked.choices
            try:
                try:
                    return await self._sampled(asked, found, lent, begun, live)
                except _Otherwise as otherwise:
                    return await self._sampled(asked, otherwise.found, lent, begun, live)
            except RequestRefused:
                if self._begun == begun + asked.choices:  # the draws of what is refused are the next one's
                    self._begun = begun
                raise
        finally:
            self._under_way -= asked.choices
            self._lent.remove(lent)

    def _reserved(self, asked: Asked) -> _Lent:
        """What nobody else has until it is sampled, or the request is over."""
        budget = self._budget
        if self._under_way + asked.choices > budget.parallel:
            raise RequestRefused("rate", f"{budget.parallel} calls at once at most: try again when one is over")
        if len(self.calls) + sum(lent.turns for lent in self._lent) + asked.choices > budget.calls:
            raise RequestRefused("budget", f"the episode's {budget.calls} calls are used up")
        lent_tokens = sum(lent.tokens for lent in self._lent)
        left = (budget.sampled_tokens - self.sampled_tokens - lent_tokens) // asked.choices
        if left < 1 and lent_tokens:
            raise RequestRefused("rate", "the tokens that are left are all lent to calls under way: try again after")
        if left < 1:
            raise RequestRefused("budget", f"the episode's {budget.sampled_tokens} sampled tokens are used up")
        lent = _Lent(asked.choices, min(budget.turn_tokens, left, asked.most_tokens or left))
        self._under_way += asked.choices
        self._lent.add(lent)
        return lent

    def _seeds(self, asked: Asked, begun: int) -> list[int]:
        """One for each choice.  An agent's seed decides the draws together with the rollout's own."""
        if asked.seed is None:
            return [derived_seed(self._seed, begun + choice) for choice in range(asked.choices)]
        return [derived_seed(self._seed, "agent", asked.seed, choice) for choice in range(asked.choices)]

    async def _sampled(self, asked: Asked, found: Found, lent: _Lent, begun: int, live: Live | None) -> list[Call]:
        """Sampling begins before it is certain that the context is the one that was expected; nothing is kept, shown
        or given back of the budget before.  Raises _Otherwise where it is another one."""
        most_tokens = min(room_behind(found.context, self._budget.context_tokens), lent.turn_tokens)
        showing = list[asyncio.Task[None]]()
        if live is not None:
            live.begin(len(found.context.token_ids), held=True)

        def confirm() -> None:
            self._confirm(found)
            lent.turn_tokens = most_tokens
            if live is not None:
                showing.append(asyncio.ensure_future(self._show(live, shown[0])))

        confirming, reading = _Once(confirm), read_at_once(self.renderer, asked.tools)
        shown = [None if live is None else live.turn(choice, reading) for choice in range(asked.choices)]
        turns = [
            self._turn(asked, found, lent, seed, most_tokens, confirming, turn)
            for seed, turn in zip(self._seeds(asked, begun), shown, strict=True)
        ]
        try:
            async with _unless_it_raises(confirming):
                return await all_of(turns)
        finally:
            for task in showing:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _show(self, live: Live, turn: LiveTurn | None) -> None:
        """Until it is cancelled.  What it raises ends the call where its turn is over: ``on_call`` meets it too."""
        number = len(self.calls)
        async with self._in_turn:
            await self._on_show(number, "")
        live.show_held()
        try:
            await asyncio.Future[None]()
        finally:
            if len(self.calls) == number:
                await self._on_show(number, "" if turn is None else turn.shown.content)
                if number:
                    await self._on_show(number - 1, None)

    def _confirm(self, found: Found) -> None:
        """Raises _Otherwise, and RequestRefused."""
        confirmed = self._contexts.confirmed(found)
        if confirmed.context is not found.context:
            raise _Otherwise(confirmed)
        if found.number is not None:
            self.calls[found.number].results.update(found.results)

    async def _turn(
        self,
        asked: Asked,
        found: Found,
        lent: _Lent,
        seed: int,
        most_tokens: int,
        confirming: _Once,
        live: LiveTurn | None,
    ) -> Call:
        on_token = None if live is None else live.sampled
        try:
            generated = await self._sessions.sample(
                found.context.token_ids, seed=seed, most_tokens=most_tokens, on_token=on_token
            )
        except asyncio.CancelledError:
            self.unfinished += confirming.error is None
            raise
        except Exception as error:
            self.failure = self.failure or error
            self.failed.set()
            raise
        confirming.run()
        return await self._captured(asked, found, generated, lent, "" if live is None else live.shown.content)

    async def _captured(self, asked: Asked, found: Found, generated: Generated, lent: _Lent, shown: str) -> Call:
        """Kept from now on, whoever is still there to read it."""
        number = len(self.calls)
        call, spoken = answered(asked, found.context, generated, self.renderer, str(number), shown)
        if spoken is not None:
            self._contexts.spoke(number, found.digest, call.reply, spoken)
        self.calls.append(call)
        self.sampled_tokens += len(call.generated.token_ids) + call.dropped_tokens
        lent.turns -= 1
        async with self._in_turn:
            await self._on_call(number, call)
        return call

    async def close(self) -> None:
        await self._sessions.close()


@asynccontextmanager
async def _unless_it_raises(check: _Once) -> AsyncIterator[None]:
    """``check`` is run as soon as what stands inside waits for something; what it raises ends that."""

    def checked() -> None:
        try:
            check.run()
        except Exception as error:
            block.interrupt(error)

    checking = asyncio.get_running_loop().call_soon(checked)
    try:
        async with interruptible() as block:
            yield
    finally:
        checking.cancel()


def answered(
    asked: Asked, context: Context, generated: Generated, renderer: Renderer, id: str, shown: str = ""
) -> tuple[Call, Spoken | None]:
    """The call that a turn makes, with the turn that later calls may go on from: None where a stop string ended it.

    ``id`` makes the ids of its tool calls.  ``shown`` is what has been streamed of its text.
    """
    if asked.stops and (at := stopped(generated, asked.stops, renderer, asked.tools)) is not None:
        reply = replace(_named(at.parsed.message, id), content=at.text)
        return _cut(Call(context, generated, at.parsed.message, _as_shown(reply, shown), stop=at.stop), at.tokens), None
    token_ids = ended(generated, len(generated.token_ids), renderer)
    parsed = renderer.parse(token_ids, asked.tools)
    if _can_be_made(parsed.message, asked):
        reply = _named(parsed.message, id)
        if reply.content != parsed.spoken:
            reply = replace(reply, content=parsed.spoken)
    elif parsed.message.malformed is None and (found := stopped_text(generated, asked.stops, renderer)) is not None:
        tokens, text, stop = found
        reply = _as_shown(AssistantMessage(text), shown)
        return _cut(Call(context, generated, parsed.message, reply, stop=stop), tokens), None
    else:
        reply = AssistantMessage(renderer.text(token_ids[:-1]))
    return Call(context, generated, parsed.message, _as_shown(reply, shown)), Spoken(context, token_ids, parsed)


def pieces_shown(asked: Asked, call: Call, renderer: Renderer) -> list[str]:
    """The text of each of its tokens, where the answer shows their log-probs."""
    return renderer.pieces(call.generated.token_ids) if asked.logprobs else []


def _cut(call: Call, tokens: int) -> Call:
    """The call with the beginning of its turn that a stop string left.  No later call goes on from its ids, which hold
    the stop string: the agent's messages do not."""
    sampled = call.generated
    if dropped := len(sampled.token_ids) - tokens:
        call.dropped_tokens, call.generated = dropped, _beginning(sampled, tokens)
    return call


def refuse_far_too_long(asked: Asked, context_tokens: int) -> None:
    """Before anything is made into ids, which takes time.  Raises RequestRefused."""
    longest = context_tokens * LONGEST_TOKEN
    for what, characters, most, field in (
        ("the messages are", sum(map(_characters, asked.messages)), longest, "messages"),
        ("a thought is", _longest_thought(asked.messages), max(longest, MOST_LEFT_OUT), "messages"),
        ("the tools are", sum(map(_described, asked.tools)), max(longest, MOST_LEFT_OUT), "tools"),
    ):
        if characters > most:
            context = f"the model's context has {context_tokens} tokens"
            raise RequestRefused("context", f"{what} {characters} characters, and {context}: send less", field=field)


def room_behind(context: Context, context_tokens: int) -> int:
    """The tokens that a turn may have behind it, at least 1.  Raises RequestRefused."""
    if (room := context_tokens - len(context.token_ids)) < 1:
        raise RequestRefused(
            "context",
            f"the messages are {len(context.token_ids)} tokens, and the model's context has "
            f"{context_tokens}: send less",
            field="messages",
        )
    return room


def _characters(entry: Entry) -> int:
    """Those that every template writes."""
    if isinstance(entry, Message):
        return len(entry.content)
    return len(entry.content) + sum(len(request.text) for request in entry.requests)


def _longest_thought(messages: Sequence[Entry]) -> int:
    """Messages of the assistant that stand next to each other are one turn."""
    if not any(isinstance(entry, AssistantMessage) and entry.reasoning for entry in messages):
        return 0
    turns = (list(run) for _, run in groupby(messages, key=type))
    thoughts = (sum(len(entry.reasoning) for entry in run if isinstance(entry, AssistantMessage)) for run in turns)
    return max(thoughts, default=0)


def _described(tool: ToolSchema) -> int:
    """The characters in which a template describes a tool, about."""
    return len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters))


def _beginning(generated: Generated, tokens: int) -> Generated:
    return replace(
        generated,
        token_ids=generated.token_ids[:tokens],
        logprobs=generated.logprobs[:tokens],
        policy_versions=generated.policy_versions[:tokens],
        stopped_by="length",
    )


def _can_be_made(message: AssistantMessage, asked: Asked) -> bool:
    """Whether a turn is more to its reader than text: it can be read, and its calls, if any, name tools of somebody who
    has given some.  An agent that looks up a tool without a name, or has forbidden calls, would fall over one."""
    if message.malformed is not None:
        return False
    return not message.requests or (bool(asked.tools) and all(request.name for request in message.requests))


def _named(message: AssistantMessage, id: str) -> AssistantMessage:
    """What the agent is answered: tool calls have ids of the proxy's own."""
    if not message.requests:
        return message
    requests = tuple(replace(request, id=f"call_{id}_{place}") for place, request in enumerate(message.requests))
    return replace(message, requests=requests)


def _as_shown(reply: AssistantMessage, shown: str) -> AssistantMessage:
    """The reply, with the text that was streamed before it turned out unreadable as its beginning."""
    if reply.content.startswith(shown):
        return reply
    if reply.requests:  # a call that cannot be read holds all of the turn
        return replace(reply, content=shown)
    # The turn as it stands; before what was shown there is white space, or a thought, which was shown as one.
    place = reply.content.find(shown)
    return replace(reply, content=reply.content[place:] if place >= 0 else shown + reply.content)
