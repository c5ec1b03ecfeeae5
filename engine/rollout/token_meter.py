"""How much an episode has sampled, also where it is ended before it has a trajectory."""

from dataclasses import dataclass

from engine.spec.generation import Generated, GenerateRequest, TextGenerator


@dataclass(slots=True)
class TokenMeter:
    """A ``TextGenerator`` for one episode.  A turn counts once it has ended; forced tokens are not sampled."""

    generator: TextGenerator
    tokens: int = 0

    async def generate(self, request: GenerateRequest) -> Generated:
        generated = await self.generator.generate(request)
        if not request.forced_ids:
            self.tokens += len(generated.token_ids)
        return generated

    async def rewind(self, session: str, tokens: int) -> None:
        await self.generator.rewind(session, tokens)

    async def release(self, session: str) -> None:
        await self.generator.release(session)
