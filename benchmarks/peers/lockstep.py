"""Palestra's ``TextGenerator`` over a Hugging Face model's ``generate``, for rollouts inside TRL.

``generate`` takes a whole batch and returns when its last row is done, and it keeps no cache from
one call to the next.  So all open episodes move in lockstep, turn by turn, and each turn reads its
whole context again: that is how TRL's own tool loop works as well.
"""

import asyncio
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from engine.spec.generation import Generated, GenerateRequest


@dataclass
class LockstepGenerator:
    """``episodes`` is the number of sessions that will be opened; a batch is sampled when every unreleased one waits.

    Log-probs are reported as 0: TRL does not use them when it samples with the model that it trains.
    """

    model: PreTrainedModel
    pad: int
    context_tokens: int
    episodes: int
    _contexts: dict[str, list[int]] = field(default_factory=dict)
    _waiting: list[tuple[GenerateRequest, asyncio.Future[Generated]]] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> Generated:
        self._contexts.setdefault(request.session, []).extend(request.new_ids)
        answer: asyncio.Future[Generated] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        self._sample_if_all_wait()
        return await answer

    async def rewind(self, session: str, tokens: int) -> None:
        """Every turn reads its whole context, so forgetting is cutting."""
        if not 0 <= tokens <= len(self._contexts.get(session, ())):
            raise ValueError(f"session {session!r} has no {tokens} tokens")
        del self._contexts[session][tokens:]

    async def release(self, session: str) -> None:
        self._contexts.pop(session, None)
        self.episodes -= 1
        self._sample_if_all_wait()

    def _sample_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self.episodes:
            return
        batch, self._waiting = self._waiting, []
        rows = self._sampled([request for request, _ in batch])
        for (request, answer), row in zip(batch, rows, strict=True):
            answer.set_result(self._generated(request, row))

    def _sampled(self, requests: list[GenerateRequest]) -> list[list[int]]:
        contexts = [self._contexts[request.session] for request in requests]
        longest = max(map(len, contexts))
        token_ids = torch.tensor([[self.pad] * (longest - len(context)) + context for context in contexts])
        attention_mask = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
        with torch.no_grad():
            output: Tensor = self.model.generate(  # type: ignore[operator]
                input_ids=token_ids, attention_mask=attention_mask, generation_config=self._config(requests[0])
            )
        return output[:, longest:].tolist()

    def _config(self, request: GenerateRequest) -> GenerationConfig:
        """The settings of the first request; all episodes of a training step sample alike."""
        drawn = {"do_sample": True, "temperature": request.temperature, "top_k": 0, "top_p": 1.0}
        return GenerationConfig(
            **(drawn if request.temperature else {"do_sample": False}),
            max_new_tokens=request.max_new_tokens,
            eos_token_id=sorted(request.stop_ids),
            pad_token_id=self.pad,
            disable_compile=True,
        )

    def _generated(self, request: GenerateRequest, row: list[int]) -> Generated:
        context = self._contexts[request.session]
        stop = next((i for i, token in enumerate(row) if token in request.stop_ids), None)
        kept = row if stop is None else row[: stop + 1]
        room = self.context_tokens - len(context)
        full = len(kept) > room
        kept = kept[:room]
        context.extend(kept)
        return Generated(
            token_ids=tuple(kept),
            logprobs=(0.0,) * len(kept),
            policy_versions=(0,) * len(kept),
            stopped_by="context" if full else "length" if stop is None else "stop",
        )
