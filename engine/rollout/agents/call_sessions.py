"""The sessions of one rollout with the generator: one for each call under way, and one that is kept between calls.

A session keeps its KV slot until it is released.  The one that is kept reads on where the next call extends the one
before.  It is kept only while no call is under way, so that an agent whose calls wait for slots holds none that it
does not use, and agents cannot wait for each other in a circle.
"""

import asyncio
from collections.abc import Callable, Sequence

from engine.rollout.policy_session import PolicySession
from engine.spec.generation import Generated, OnToken


class CallSessions:
    def __init__(self, opened: Callable[[], PolicySession]) -> None:
        self._opened = opened
        self._kept: PolicySession | None = None
        self._under_way = 0
        self._closed = False
        self._releasing: set[asyncio.Future[None]] = set()

    async def sample(
        self, history: Sequence[int], *, seed: int, most_tokens: int, on_token: OnToken | None = None
    ) -> Generated:
        """Raises what the generator raises.  A cancelled turn leaves nothing behind."""
        session, self._kept = self._kept or self._opened(), None
        self._under_way += 1
        try:
            generated = await session.sample(history, seed=seed, most_tokens=most_tokens, on_token=on_token)
        except BaseException:
            self._under_way -= 1
            await session.release()
            raise
        self._under_way -= 1
        if self._under_way or self._closed or self._kept is not None:
            self._release_soon(session)
        else:
            self._kept = session
        return generated

    def _release_soon(self, session: PolicySession) -> None:
        """Not before the turn is returned: a caller that is cancelled meanwhile would lose what was sampled."""
        releasing = asyncio.ensure_future(session.release())
        self._releasing.add(releasing)
        releasing.add_done_callback(self._releasing.discard)

    async def close(self) -> None:
        """Give back what is kept; calls that are still under way give back theirs."""
        self._closed = True
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.release()
        await asyncio.gather(*self._releasing)
