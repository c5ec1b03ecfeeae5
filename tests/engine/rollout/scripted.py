"""Stands in for the policy: plays given texts, turn by turn, and remembers what it was shown."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from zlib import crc32

from engine.models.tokenizer import tokenizer_for
from engine.rollout.renderers.characters import CharacterRenderer
from engine.spec.generation import Generated, GenerateRequest
from engine.spec.message import AssistantMessage, ToolSchema

TOKENIZER = tokenizer_for("characters")
RENDERER, WITH_REASONING = (CharacterRenderer(TOKENIZER, reasoning=reasoning) for reasoning in (False, True))
TOOLS = [ToolSchema.of_text("python", "code")]


def call(code: str, thought: str = "") -> list[int]:
    return RENDERER.write(AssistantMessage.calling("python", {"code": code}, reasoning=thought), TOOLS)


def answer(text: str) -> list[int]:
    return RENDERER.write(AssistantMessage(text), TOOLS)


def logprobs_of(history: list[int], turn: list[int]) -> list[float]:
    """A number for each token that everything before it decides, as in a policy."""
    seen = [*history, *turn]
    return [-0.01 - crc32(repr(seen[: len(history) + i + 1]).encode()) / 2**32 for i in range(len(turn))]


class ScriptedPolicy:
    """Plays ``turns`` in order in every session, whatever it is rewound to.  Ends of turns are told as a generator's.

    Forced turns take none of them.
    """

    def __init__(self, *turns: list[int], context_tokens: int = 160, version: int = 7) -> None:
        self._turns, self._context_tokens, self._version = turns, context_tokens, version
        self._played: dict[str, int] = defaultdict(int)
        self.seen: dict[str, list[int]] = defaultdict(list)
        """Every token of a session, in the order in which a cache would hold them."""
        self.shown: list[list[int]] = []
        """What stood in the session before each turn."""
        self.requests: list[GenerateRequest] = []
        self.rewound: list[int] = []
        self.released: list[str] = []

    async def generate(self, request: GenerateRequest) -> Generated:
        await asyncio.sleep(0)
        self.requests.append(request)
        tokens = list(request.forced_ids or self.script(request)[self._played[request.session]])
        self._played[request.session] += not request.forced_ids
        seen = self.seen[request.session]
        seen.extend(request.new_ids)
        self.shown.append(list(seen))
        room = self._context_tokens - len(seen)
        tokens, stopped_by = (tokens, "stop") if request.forced_ids else _cut(tokens, request, room)
        logprobs = logprobs_of(seen, tokens)
        seen.extend(tokens)
        assert len(seen) <= self._context_tokens
        return Generated(tuple(tokens), tuple(logprobs), (self._version,) * len(tokens), stopped_by)

    def script(self, request: GenerateRequest) -> Sequence[list[int]]:
        return self._turns

    async def rewind(self, session: str, tokens: int) -> None:
        if not 0 <= tokens <= len(self.seen[session]):
            raise ValueError(f"{session} has {len(self.seen[session])} tokens, not {tokens}")
        self.rewound.append(tokens)
        del self.seen[session][tokens:]

    async def release(self, session: str) -> None:
        self.released.append(session)


def _cut(tokens, request, room):
    limit = min(request.max_new_tokens, room)
    for position, token in enumerate(tokens[:limit]):
        if token in request.stop_ids:
            return tokens[: position + 1], "stop"
    assert len(tokens) >= limit, "a script that ends without a stop token must be long enough to meet a limit"
    return tokens[:limit], "length" if request.max_new_tokens <= room else "context"
