"""Whoever asks a served model: keys, what each may have, and what each has had.

    request ──► ServedDoor: whose key ──► Caller: limits ──► Shelf: the model ──► turns ──► answer, usage

Nothing that is answered here is captured: no trajectory, no sample, no token id outlives its call.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import ceil

from engine.failures import AttemptFailed
from engine.inference.sglang.client import ServerRefused
from engine.inference.torch.generator import NonFiniteLogits
from engine.rollout.agents.asked import Asked, RequestRefused
from engine.rollout.agents.capture import Call
from engine.rollout.agents.contexts import Context, Contexts
from engine.rollout.agents.door import Answerer, Completed
from engine.rollout.agents.live import Live, LiveTurn
from engine.rollout.agents.proxy import answered, refuse_far_too_long, room_behind
from engine.rollout.agents.waiting import all_of
from engine.rollout.policy_session import PolicySession
from engine.seeds import derived_seed
from engine.serving.models.shelf import WAIT_S, LoadedModel, Shelf
from engine.serving.models.usage_log import UsageLog
from engine.spec.generation import NO_TRUNCATION, Truncation
from engine.spec.serving import ServedFile, ServedKey, ServedModel, UsageLine

MINUTE_S, DAY_S = 60.0, 86400.0
ANY_MODEL = "policy"
"""What a request that names no model asks for: the one of its key."""
OF_ONE_CALL = (NonFiniteLogits, ServerRefused)
"""They end a call and leave the generator as it was.  GenerationAborted does not: nobody ends the sessions of a model
that is in use but a generator that has failed."""
log = logging.getLogger(__name__)


def digest_of(key: bytes) -> str:
    """What stands in files and rows for a key, which is as long as its digest and random."""
    return hashlib.sha256(key).hexdigest()


class Limits:
    """What one key has under way, and what it had a short time ago."""

    def __init__(self) -> None:
        self._begun: deque[float] = deque()
        self._under_way = 0
        self._reserved_tokens = 0

    @contextmanager
    def held(self, key: ServedKey, choices: int, used_today: int, now: float) -> Iterator[None]:
        """For one request.  Raises RequestRefused where a limit is met."""
        while self._begun and now - self._begun[0] >= MINUTE_S:
            self._begun.popleft()
        if len(self._begun) >= key.requests_per_minute:
            wait = max(1, ceil(MINUTE_S - (now - self._begun[0])))
            raise RequestRefused("rate", f"{key.requests_per_minute} requests a minute at most", retry_s=wait)
        if self._under_way + choices > key.parallel:
            raise RequestRefused("rate", f"{key.parallel} answers at once at most: try again when one is over")
        if key.tokens_per_day is not None and used_today >= key.tokens_per_day:
            raise RequestRefused(
                "rate", f"the {key.tokens_per_day} tokens of this day (UTC) are used up", retry_s=_to_midnight()
            )
        self._begun.append(now)
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


class Caller:
    """One key and its model.  An ``Answerer``."""

    def __init__(self, key: ServedKey, model: ServedModel, limits: Limits, shelf: Shelf, usage: UsageLog) -> None:
        self._key, self._model, self._limits, self._shelf, self._usage = key, model, limits, shelf, usage
        self.models: Sequence[str] = (model.name,)

    def new_id(self) -> str:
        return secrets.token_hex(12)

    async def complete(self, asked: Asked, live: Live | None) -> Completed:
        if asked.model not in (ANY_MODEL, self._model.name):
            raise RequestRefused("model", f"the key opens {self._model.name!r} alone: ask for it", field="model")
        began, meter = time.monotonic(), _Meter()
        with self._limits.held(self._key, asked.choices, self._used_today(), began):
            try:
                async with self._shelf.using(self._model) as loaded:
                    calls = await self._answered(asked, loaded, meter, live)
            except asyncio.CancelledError:
                with suppress(RequestRefused):  # nobody waits for an answer, and the log has it
                    self._record("hung-up", began, meter.prompt_tokens, meter.tokens)
                raise
            sampled = sum(len(call.generated.token_ids) + call.dropped_tokens for call in calls)
            self._record("answered", began, meter.prompt_tokens, sampled)
            return Completed(calls, loaded.renderer)

    def refuse(self, kind: str) -> None:
        with suppress(RequestRefused):  # it has used nothing, and the log has it
            self._record(kind, time.monotonic())

    async def _answered(self, asked: Asked, loaded: LoadedModel, meter: _Meter, live: Live | None) -> list[Call]:
        refuse_far_too_long(asked, loaded.context_tokens)
        context = (await Contexts(loaded.renderer).find(asked, loaded.context_tokens)).context
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
    ) -> list[Call]:
        seed = secrets.randbits(62) if asked.seed is None else asked.seed
        shown = [None if live is None else live.turn(choice, loaded.renderer) for choice in range(asked.choices)]
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
) -> Call:
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
    shown = "" if live is None else live.shown.content
    call, _ = answered(asked, context, generated, loaded.renderer, secrets.token_hex(6), shown)
    return call


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
        self._limits = {key.id: self._limits.get(key.id) or Limits() for key in file.keys}

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
