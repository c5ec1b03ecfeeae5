"""What of a streamed answer can be shown while it is being sampled.

A turn says what it says only when it is over: its text may turn into a call, and a stop string may end it.  So what is
shown is what the renderer calls settled, up to where a stop string may begin.  An unreadable turn may still end
otherwise than it began; what was shown then stays its beginning (``proxy.answered``).
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from engine.rollout.agents.asked import Asked
from engine.rollout.renderers.contract import Renderer, Settled
from engine.spec.message import ToolSchema

SHOWN_EVERY_S = 0.05
"""No turn is read more often, while it is under way."""
GROWTH = 16
"""Nor before it has grown by this part of it: reading all of it again costs the more, the longer it is."""


Reading = Callable[[Sequence[int], Callable[[Settled], None]], None]
"""Finds out what the tokens of a turn under way say already, and calls back with it: at once, later, or never."""


def read_at_once(renderer: Renderer, tools: Sequence[ToolSchema]) -> Reading:
    return lambda token_ids, settled: settled(renderer.settled(token_ids, tools))


class LiveTurn:
    """One choice of an answer.  It takes tokens as they are sampled; what it has shown, it never takes back."""

    def __init__(self, asked: Asked, reading: Reading, show: Callable[[Settled], None]) -> None:
        self._asked, self._reading, self._show = asked, reading, show
        self._token_ids: list[int] = []
        self._next_tokens, self._next_s = 1, 0.0
        self._is_read = self._is_over = False
        """Whether its tokens are being read, and whether nothing of it is shown any more."""
        self.shown = Settled()

    def over(self) -> str:
        """Its text that has been shown; from now on nothing more is."""
        self._is_over = True
        return self.shown.content

    def sampled(self, token: int, logprob: float) -> None:
        """An ``OnToken``."""
        self._token_ids.append(token)
        now = time.monotonic()
        if len(self._token_ids) >= self._next_tokens and now >= self._next_s and not self._is_read:
            self._next_tokens = len(self._token_ids) * (GROWTH + 1) // GROWTH + 1
            self._next_s = now + SHOWN_EVERY_S
            self._is_read = True
            self._reading(self._token_ids, self._settled)

    def _settled(self, settled: Settled) -> None:
        self._is_read = False
        if self._is_over:
            return
        content = before_stops(settled.content, self._asked.stops)
        before = self.shown
        if content.startswith(before.content) and settled.reasoning.startswith(before.reasoning):
            self.shown = Settled(settled.reasoning, content)
        self._show(Settled(self.shown.reasoning[len(before.reasoning) :], self.shown.content[len(before.content) :]))


class Live:
    """An answer under way, between who samples it and who writes it to a connection.  Belongs to one event loop."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._news: list[tuple[int, Settled]] = []
        self._attempt, self._held = 0, False
        self.something = asyncio.Event()
        """Set while there are news."""
        self.prompt_tokens = 0

    def begin(self, prompt_tokens: int, *, held: bool = False) -> None:
        """The request is taken, and so many tokens are read for it.  ``held``: the turns that begin now may be given
        up, by another ``begin``; nothing of them is shown before ``show_held``."""
        self.prompt_tokens, self._held, self._attempt = prompt_tokens, held, self._attempt + 1
        self.news()

    def show_held(self) -> None:
        self._held = False
        if self._news:
            self.something.set()

    def turn(self, choice: int, reading: Reading) -> LiveTurn:
        attempt = self._attempt

        def show(more: Settled) -> None:
            if attempt != self._attempt:
                return
            self._news.append((choice, more))
            if not self._held:
                self.something.set()

        return LiveTurn(self._asked, reading, show)

    def news(self) -> list[tuple[int, Settled]]:
        """What has come since the last call, of each choice in order.  There may be nothing in it but that a choice has
        begun."""
        news, self._news = self._news, []
        self.something.clear()
        return news


def before_stops(text: str, stops: Sequence[str]) -> str:
    """The text up to the first place where one of ``stops`` begins, or may begin once more has come."""
    begun = [text.find(stop) for stop in stops]
    heads = (stop[:length] for stop in stops for length in range(1, len(stop)))
    may_begin = [len(text) - len(head) for head in heads if text.endswith(head)]
    return text[: min((place for place in (*begun, *may_begin) if place >= 0), default=len(text))]
