"""Whoever asks a served model: keys, what each may have, and what each has had.

    request ──► ServedDoor: whose key ──► Caller: limits ──► Shelf: the model ──► turns ──► answer, usage

Nothing that is answered here is captured: no trajectory, no sample, no token id outlives its call.
"""

import asyncio
import hashlib
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import ceil

from engine.failures import AttemptFailed
from engine.inference.interface import NonFiniteLogits
from engine.inference.sglang.client import ServerRefused
from engine.rollout.agents.asked import Asked, RequestRefused
from engine.rollout.agents.bodies import Bodies
from engine.rollout.agents.capture import Call
from engine.rollout.agents.contexts import Context
from engine.rollout.agents.door import Answerer, Completed
from engine.rollout.agents.live import Live, LiveTurn
from engine.rollout.agents.proxy import refuse_far_too_long, room_behind
from engine.rollout.agents.waiting import all_of
from engine.rollout.policy_session import PolicySession
from engine.seeds import derived_seed
from engine.serving.models.shelf import WAIT_S, LoadedModel, Shelf
from engine.serving.models.usage_log import UsageLog
from engine.spec.generation import NO_TRUNCATION, Truncation
from engine.spec.serving import ServedFile, ServedKey, ServedModel, UsageLine

MINUTE_S, DAY_S = 60.0, 86400.0
MOST_LINES = 10
"""Lines of usage in a second, for what is refused to one key for one reason."""
MOST_KEY_BYTES, MOST_BYTES = 64 * 2**20, 2**30
"""The bytes of the bodies of one key's requests, and of all."""
ANY_MODEL = "policy"
"""What a request that names no model asks for: the one of its key."""
OF_ONE_CALL = (NonFiniteLogits, ServerRefused)
"""They end a call and leave the generator as it was.  GenerationAborted does not: nobody ends the sessions of a model
that is in use but a generator that has failed."""
_Answer = tuple[Call, list[str]]
"""A call, and the text of each token where its log-prob is shown."""
log = logging.getLogger(__name__)


def digest_of(key: bytes) -> str:
    """What stands in files and rows for a key, which is as long as its digest and random."""
    return hashlib.sha256(key).hexdigest()


class Limits:
    """What one key has under way, and what it had a short time ago."""

    def __init__(self, of_all: Bodies | None = None) -> None:
        self.bodies = Bodies(MOST_KEY_BYTES, among=of_all)
        self.refused: dict[str, Refusals] = {}
        """By the kind of their refusal, since the last line of each."""
        self._begun: deque[float] = deque()
        self._under_way = 0
        self._reserved_tokens = 0

    def begin(self, key: ServedKey, now: float) -> None:
        """One request more, whatever becomes of it.  Raises RequestRefused where there are too many."""
        while self._begun and now - self._begun[0] >= MINUTE_S:
            self._begun.popleft()
        if len(self._begun) >= key.requests_per_minute:
            wait = max(1, ceil(MINUTE_S - (now - self._begun[0])))
            raise RequestRefused("rate", f"{key.requests_per_minute} requests a minute at most", retry_s=wait)
        self._begun.append(now)

    @contextmanager
    def held(self, key: ServedKey, choices: int, used_today: int) -> Iterator[None]:
        """For one request.  Raises RequestRefused where a limit is met."""
        if self._under_way + choices > key.parallel:
            raise RequestRefused("rate", f"{key.parallel} answers at once at most: try again when one is over")
        if key.tokens_per_day is not None and used_today >= key.tokens_per_day:
            raise RequestRefused(
                "rate", f"the {key.tokens_per_day} tokens of this day (UTC) are used up", retry_s=_to_midnight()
            )
        self._under_way += choices
        try:
            yield
        finally:
            self._under_way -= choices

    @contextmanager
    def lent(self, key: ServedKey, used_today: int, read: int, most_tokens: int, choices: int) -> Iterator[int]:
        """The tokens that each choice may have, which nobody else of this key has until the call is over.

        Raises RequestRefused where the day's tokens leave none.
        """
        if key.tokens_per_day is not None:
            left = key.tokens_per_day - used_today - read
            if left < choices:
                raise RequestRefused(
                    "rate", f"what is left of the {key.tokens_per_day} tokens of this day (UTC) is too little",
                    retry_s=_to_midnight(),
                )  # fmt: skip
            left -= self._reserved_tokens
            if left < choices:
                raise RequestRefused(
                    "rate", "the tokens of this day (UTC) that are left are lent to calls under way: try again after"
                )
            most_tokens = min(most_tokens, left // choices)
        reserved = read + most_tokens * choices
        self._reserved_tokens += reserved
        try:
            yield most_tokens
        finally:
            self._reserved_tokens -= reserved


class _Meter:
    """Counts what a request has had so far, for a caller that hangs up."""

    def __init__(self) -> None:
        self.prompt_tokens = self.tokens = 0

    def sampled(self, token: int, logprob: float) -> None:
        self.tokens += 1


@dataclass(slots=True)
class Refusals:
    """Requests of one key that are refused for one reason: of a flood, several share a line."""

    key: str
    model: str
    kind: str
    waiting: int = 0
    """Those that stand in no line yet."""
    second: float = -math.inf
    lines: int = 0
    """How many lines there were in this second."""

    def one_more(self, usage: UsageLog, now: float) -> None:
        self.waiting += 1
        if now - self.second >= 1:
            self.second, self.lines = now, 0
        if self.lines < MOST_LINES:
            self.write(usage)

    def write(self, usage: UsageLog) -> None:
        """Write what waits.  They have used nothing; where no line can be written, they wait on, and the log has it."""
        if not self.waiting:
            return
        line = UsageLine(at=time.time(), key=self.key, model=self.model, outcome=self.kind, calls=self.waiting)
        self.lines += 1
        with suppress(RequestRefused), _recording():
            usage.write(line)
            self.waiting = 0


class Caller:
    """One key and its model.  An ``Answerer``."""

    def __init__(self, key: ServedKey, model: ServedModel, limits: Limits, shelf: Shelf, usage: UsageLog) -> None:
        self._key, self._model, self._limits, self._shelf, self._usage = key, model, limits, shelf, usage
        self.bodies = limits.bodies

    def begin(self) -> None:
        self._limits.begin(self._key, time.monotonic())

    def models(self) -> Sequence[str]:
        self._record("listed", time.monotonic())
        return (self._model.name,)

    def new_id(self) -> str:
        return secrets.token_hex(12)

    async def complete(self, asked: Asked, live: Live | None) -> Completed:
        if asked.model not in (ANY_MODEL, self._model.name):
            raise RequestRefused("model", f"the key opens {self._model.name!r} alone: ask for it", field="model")
        began, meter = time.monotonic(), _Meter()
        with self._limits.held(self._key, asked.choices, self._used_today()):
            try:
                async with self._shelf.using(self._model) as loaded:
                    calls = await self._answered(asked, loaded, meter, live)
            except asyncio.CancelledError:
                with suppress(RequestRefused):  # nobody waits for an answer, and the log has it
                    self._record("hung-up", began, meter.prompt_tokens, meter.tokens)
                raise
            sampled = sum(len(call.generated.token_ids) + call.dropped_tokens for call, _ in calls)
            self._record("answered", began, meter.prompt_tokens, sampled)
            return Completed([call for call, _ in calls], [pieces for _, pieces in calls])

    def refuse(self, kind: str) -> None:
        refusals = self._limits.refused.setdefault(kind, Refusals(self._key.id, self._model.name, kind))
        refusals.one_more(self._usage, time.monotonic())

    async def _answered(self, asked: Asked, loaded: LoadedModel, meter: _Meter, live: Live | None) -> list[_Answer]:
        refuse_far_too_long(asked, loaded.context_tokens)
        if asked.tools and not loaded.renderer.calls_tools:
            raise RequestRefused(
                "unsupported",
                f"the chat template of {self._model.name!r} writes no tool calls that could be read: leave tools out",
                field="tools",
            )
        context = await loaded.renderer.context(asked, loaded.context_tokens)
        read, room = len(context.token_ids), room_behind(context, loaded.context_tokens)
        wanted = min(room, asked.most_tokens or room)
        if live is not None:
            live.begin(read)
        with self._limits.lent(self._key, self._used_today(), read, wanted, asked.choices) as most_tokens:
            meter.prompt_tokens = read
            return await self._sampled(asked, context, loaded, most_tokens, meter, live)

    async def _sampled(
        self,
        asked: Asked,
        context: Context,
        loaded: LoadedModel,
        most_tokens: int,
        meter: _Meter,
        live: Live | None,
    ) -> list[_Answer]:
        seed = secrets.randbits(62) if asked.seed is None else asked.seed
        reading = loaded.renderer.reading(asked.tools)
        shown = [None if live is None else live.turn(choice, reading) for choice in range(asked.choices)]
        turns = [
            _turn(asked, context, loaded, most_tokens, derived_seed(0, "served", seed, choice), meter, turn)
            for choice, turn in enumerate(shown)
        ]
        try:
            return await all_of(turns)
        except (RuntimeError, AttemptFailed) as error:  # of the generator
            log.warning("a call to model %s failed", self._model.name, exc_info=error)
            raise RequestRefused("unavailable", f"the model could not answer: {type(error).__name__}") from error

    def _used_today(self) -> int:
        """Raises RequestRefused where that cannot be read."""
        with _recording():
            return self._usage.tokens_today(self._key.id, time.time())

    def _record(self, outcome: str, began: float, prompt_tokens: int = 0, sampled_tokens: int = 0) -> None:
        """Raises RequestRefused where it cannot be written."""
        line = UsageLine(
            at=time.time(), key=self._key.id, model=self._model.name, outcome=outcome,
            prompt_tokens=prompt_tokens, sampled_tokens=sampled_tokens, seconds=round(time.monotonic() - began, 3),
        )  # fmt: skip
        with _recording():
            self._usage.write(line)


@contextmanager
def _recording() -> Iterator[None]:
    """What cannot be recorded is not served: an OSError becomes RequestRefused, and stands in the log."""
    try:
        yield
    except OSError as error:
        log.exception("usage cannot be recorded")
        raise RequestRefused(
            "unavailable", "the server cannot record what is used: its log says why", retry_s=WAIT_S
        ) from error


async def _turn(
    asked: Asked,
    context: Context,
    loaded: LoadedModel,
    most_tokens: int,
    seed: int,
    meter: _Meter,
    live: LiveTurn | None,
) -> _Answer:
    def on_token(token: int, logprob: float) -> None:
        meter.sampled(token, logprob)
        if live is not None:
            live.sampled(token, logprob)

    session = _session(asked, loaded)
    try:
        generated = await session.sample(context.token_ids, seed=seed, most_tokens=most_tokens, on_token=on_token)
    except (RuntimeError, AttemptFailed) as error:
        loaded.is_broken = loaded.is_broken or not isinstance(error, OF_ONE_CALL)
        raise
    finally:
        await session.release()
    shown = "" if live is None else live.over()
    return await loaded.renderer.answered(asked, context, generated, secrets.token_hex(6), shown)


def _session(asked: Asked, loaded: LoadedModel) -> PolicySession:
    temperature = 1.0 if asked.temperature is None else asked.temperature
    top_k = asked.top_k or 0
    top_p = 1.0 if not asked.top_p else asked.top_p  # 0 would keep nothing: clients mean the likeliest
    if asked.top_p == 0:
        top_k = 1
    truncation = Truncation(top_k=top_k, top_p=top_p) if top_k or top_p < 1 else NO_TRUNCATION
    return PolicySession(
        loaded.generator, "served", stop_ids=loaded.renderer.stop_ids, max_turn_tokens=loaded.context_tokens,
        context_tokens=loaded.context_tokens, temperature=temperature, truncation=truncation,
    )  # fmt: skip


class ServedDoor:
    """All keys.  A ``Door``; ``serve`` gives it another file's keys and models at any time."""

    def __init__(self, file: ServedFile, shelf: Shelf, usage: UsageLog) -> None:
        self._shelf, self._usage = shelf, usage
        self._bodies = Bodies(MOST_BYTES)
        self._limits: dict[str, Limits] = {}
        self._by_digest: dict[str, tuple[ServedKey, ServedModel]] = {}
        self.unknown = 0
        """Requests whose key is not known."""
        self.closing = False
        self.serve(file)

    def serve(self, file: ServedFile) -> None:
        """From now on these keys open these models, and no others."""
        models = {model.name: model for model in file.models}
        self._by_digest = {key.sha256: (key, models[key.model]) for key in file.keys}
        self.write_refusals()
        self._limits = {key.id: self._limits.get(key.id) or Limits(self._bodies) for key in file.keys}

    def write_refusals(self) -> None:
        """Those that wait for a line get one."""
        for limits in self._limits.values():
            for refusals in limits.refused.values():
                refusals.write(self._usage)

    def answerer(self, keys: Sequence[bytes]) -> Answerer | None:
        """All keys that are given must be the same one, and one must be given."""
        if self.closing:
            raise RequestRefused("unavailable", "the server is being stopped", retry_s=30)
        found = self._by_digest.get(digest_of(keys[0])) if len(set(keys)) == 1 else None
        if found is None:
            return None
        key, model = found
        if key.expires_at is not None and time.time() >= key.expires_at:
            return None
        return Caller(key, model, self._limits[key.id], self._shelf, self._usage)

    def refuse(self, kind: str) -> None:
        self.unknown += 1

    def failed(self) -> None:
        log.exception("a call failed")


def _to_midnight() -> int:
    """Seconds to the end of the day, UTC."""
    now = time.time()
    return max(1, ceil(DAY_S - now % DAY_S))
