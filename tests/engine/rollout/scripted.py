"""Stands in for the policy: plays given texts, turn by turn, and remembers what it was shown."""

import asyncio
from collections import defaultdict

from engine.models.tokenizer import default_tokenizer
from engine.rollout import chat
from engine.spec.generation import Generated, GenerateRequest

TOKENIZER = default_tokenizer()


def call(code: str) -> list[int]:
    return chat.turn_ids(TOKENIZER, chat.Call(code))


def answer(text: str) -> list[int]:
    return chat.turn_ids(TOKENIZER, chat.Answer(text))


class ScriptedPolicy:
    """Plays ``turns`` in order in every session.  Ends of turns are told as a generator would tell them."""

    def __init__(self, *turns: list[int], context_tokens: int = 160) -> None:
        self._turns, self._context_tokens = turns, context_tokens
        self._played: dict[str, int] = defaultdict(int)
        self.seen: dict[str, list[int]] = defaultdict(list)
        """Every token of a session, in the order in which a cache would hold them."""
        self.requests: list[GenerateRequest] = []
        self.released: list[str] = []

    async def generate(self, request: GenerateRequest) -> Generated:
        await asyncio.sleep(0)
        self.requests.append(request)
        tokens = list(self._turns[self._played[request.session]])
        self._played[request.session] += 1
        seen = self.seen[request.session]
        seen.extend(request.new_ids)
        room = self._context_tokens - len(seen)
        tokens, stopped_by = _cut(tokens, request, room)
        seen.extend(tokens)
        return Generated(
            token_ids=tuple(tokens),
            logprobs=tuple(-0.5 - 0.001 * i for i in range(len(tokens))),
            policy_versions=(7,) * len(tokens),
            stopped_by=stopped_by,
        )

    async def release(self, session: str) -> None:
        self.released.append(session)


def _cut(tokens, request, room):
    limit = min(request.max_new_tokens, room)
    for position, token in enumerate(tokens[:limit]):
        if token in request.stop_ids:
            return tokens[: position + 1], "stop"
    assert len(tokens) >= limit, "a script that ends without a stop token must be long enough to meet a limit"
    return tokens[:limit], "length" if request.max_new_tokens <= room else "context"
