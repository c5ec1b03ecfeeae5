"""How much an episode has sampled, and when, also where it is ended before it has a trajectory."""

import time
from dataclasses import dataclass, field

from engine.rollout.policy_session import generated_for
from engine.spec.generation import Generated, GenerateRequest, OnToken, TextGenerator


@dataclass(slots=True)
class TokenMeter:
    """A ``TextGenerator`` for one episode, which streams where that behind it does.

    A turn counts once it has ended; forced tokens are not sampled."""

    generator: TextGenerator
    tokens: int = 0
    asked: list[tuple[float, float]] = field(default_factory=list)
    """When the generator was asked for each turn (Unix seconds), and for how many seconds: until it answered, or the
    episode was ended."""

    async def generate(self, request: GenerateRequest) -> Generated:
        return await self._counted(request, None)

    async def stream(self, request: GenerateRequest, on_token: OnToken) -> Generated:
        return await self._counted(request, on_token)

    async def _counted(self, request: GenerateRequest, on_token: OnToken | None) -> Generated:
        began_at, began = time.time(), time.monotonic()
        try:
            generated = await generated_for(self.generator, request, on_token)
        finally:
            self.asked.append((began_at, time.monotonic() - began))
        if not request.forced_ids:
            self.tokens += len(generated.token_ids)
        return generated

    async def rewind(self, session: str, tokens: int) -> None:
        await self.generator.rewind(session, tokens)

    async def release(self, session: str) -> None:
        await self.generator.release(session)
