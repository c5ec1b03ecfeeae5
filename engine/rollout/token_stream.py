"""A turn's tokens on their way to a person, while it is being sampled."""

import asyncio
from collections.abc import Callable

from engine.models.pretrained_tokenizer import REPLACEMENT
from engine.rollout.renderers.contract import Renderer
from engine.spec.chat import ShownToken, storable_text

FLUSH_S = 0.1
"""Tokens are told in groups, so often at most."""


class TokenStream:
    """The tokens of one turn: kept, and told in groups with the text of each."""

    def __init__(self, renderer: Renderer, tell: Callable[[list[ShownToken]], None]) -> None:
        self._renderer, self._tell = renderer, tell
        self._logprobs: list[float] = []
        self._reported = 0
        self.token_ids: list[int] = []

    def sampled(self, token: int, logprob: float) -> None:
        self.token_ids.append(token)
        self._logprobs.append(logprob)

    async def tell_regularly(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self.tell()

    def tell(self, *, is_over: bool = False) -> None:
        """What has not been told yet, but for a last token whose text the next one may complete.

        So the text of a token does not hang on when it is told.  ``is_over``: there is no next one.
        """
        if self._reported == len(self.token_ids):
            return
        pieces = self._renderer.pieces(self.token_ids)
        held_back = not is_over and pieces[-1].endswith(REPLACEMENT)
        new = range(self._reported, len(self.token_ids) - held_back)
        if not new:
            return
        self._reported = new.stop
        self._tell(
            [ShownToken(token=self.token_ids[i], text=storable_text(pieces[i]), logprob=self._logprobs[i]) for i in new]
        )
