"""One episode's session with the generator, spoken of in whole histories.

The caller says what should stand before the next turn; this class knows what already stands in the
generator's cache, forgets what does not belong there, and sends the rest.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

from engine.spec.generation import (
    NO_TRUNCATION,
    Generated,
    GenerateRequest,
    OnToken,
    StreamingGenerator,
    TextGenerator,
    Truncation,
)


class PolicySession:
    """The session goes back to ends of turns only, so that it then reads on exactly as one that never went further.

    Everything raised here comes from the generator.
    """

    def __init__(
        self,
        generator: TextGenerator,
        name: str,
        *,
        stop_ids: frozenset[int],
        max_turn_tokens: int,
        context_tokens: int,
        temperature: float,
        logprob_temperature: float = 1.0,
        truncation: Truncation = NO_TRUNCATION,
        logprobs_truncated: bool = False,
    ) -> None:
        self._generator = generator
        # Unique, not derived: a worker that was restarted must not continue its predecessor's sessions.
        self._session = f"{name}-{uuid.uuid4().hex}"
        self._stop_ids, self._temperature, self._logprob_temperature = stop_ids, temperature, logprob_temperature
        self._truncation, self._logprobs_truncated = truncation, logprobs_truncated
        self._max_turn_tokens, self._context_tokens = max_turn_tokens, context_tokens
        self._ids: tuple[int, ...] = ()
        self._turn_ends = [0]

    def has_room(self, history: Sequence[int], turn: Sequence[int] = ()) -> bool:
        """Return whether ``turn``, or a sampled one of at least one token, fits in the context after ``history``."""
        return len(history) + max(1, len(turn)) <= self._context_tokens

    async def sample(
        self,
        history: Sequence[int],
        *,
        seed: int,
        most_tokens: int | None = None,
        on_token: OnToken | None = None,
    ) -> Generated:
        """Return what the policy says after ``history``, which leaves room for it.  ``most_tokens``: None is as many as
        a turn may have.  ``on_token`` is given each token, all at the end where the generator does not stream."""
        most_tokens = self._max_turn_tokens if most_tokens is None else most_tokens
        return await self._next(history, (), seed, most_tokens, on_token)

    async def force(self, history: Sequence[int], turn: Sequence[int]) -> Generated:
        """``turn`` as if the policy had said it after ``history``, with the log-probs that it has there."""
        return await self._next(history, tuple(turn), 0, self._max_turn_tokens)

    async def release(self) -> None:
        # Shielded: a second cancellation must not leave the session's KV slot taken.
        await asyncio.shield(self._generator.release(self._session))

    async def _next(
        self,
        history: Sequence[int],
        forced: tuple[int, ...],
        seed: int,
        most_tokens: int,
        on_token: OnToken | None = None,
    ) -> Generated:
        unread = await self._back_to(history)
        request = GenerateRequest(
            session=self._session,
            new_ids=unread,
            max_new_tokens=most_tokens,
            stop_ids=self._stop_ids,
            temperature=self._temperature,
            seed=seed,
            forced_ids=forced,
            logprob_temperature=self._logprob_temperature,
            truncation=self._truncation,
            logprobs_truncated=self._logprobs_truncated,
        )
        began_at, began = time.time(), time.monotonic()
        generated = await generated_for(self._generator, request, on_token)
        generated = replace(generated, began_at=began_at, seconds=time.monotonic() - began)
        self._ids += (*unread, *generated.token_ids)
        self._turn_ends.append(len(self._ids))
        return generated

    async def _back_to(self, history: Sequence[int]) -> tuple[int, ...]:
        """Rewind to the last end of a turn before which the session holds the head of ``history``; its tail."""
        kept = next(
            end for end in reversed(self._turn_ends) if end < len(history) and self._ids[:end] == tuple(history[:end])
        )
        if kept < len(self._ids):
            await self._generator.rewind(self._session, kept)
            self._ids = self._ids[:kept]
            self._turn_ends = [end for end in self._turn_ends if end <= kept]
        return tuple(history[kept:])


async def generated_for(
    generator: TextGenerator, request: GenerateRequest, on_token: OnToken | None = None
) -> Generated:
    """One turn.  ``on_token`` is given each token: as it is sampled, or all at the end by who does not stream."""
    if on_token is None:
        return await generator.generate(request)
    if isinstance(generator, StreamingGenerator):
        return await generator.stream(request, on_token)
    generated = await generator.generate(request)
    for token, logprob in zip(generated.token_ids, generated.logprobs, strict=True):
        on_token(token, logprob)
    return generated
