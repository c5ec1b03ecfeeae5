"""Which server, or decoder, a session's next turn goes to.

A server has read what it was asked before, and reads only the rest (its radix cache); a decoder keeps the prompts that
it has read.  So a session stays where it is, and a session that begins goes where its prompt has been read, as those of
a group do.  Otherwise, and where that server has ``spread`` more in hand than the least busy one, the least busy one
takes it.  Pure: no request is made here.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

SPREAD = 16
"""A prompt is worth reading again rather than waiting behind so many turns."""

Prompt = tuple[int, ...]


@dataclass
class Router:
    """Remembers, of live sessions alone, where each is and where each prompt was read."""

    spread: int = SPREAD
    _server_of: dict[str, int] = field(default_factory=dict)
    _prompt_of: dict[str, Prompt] = field(default_factory=dict)
    _readers: dict[Prompt, int] = field(default_factory=dict)
    _sessions_of: Counter[Prompt] = field(default_factory=Counter)

    def place(self, session: str, prompt: Prompt, load: Mapping[int, int]) -> int:
        """Return the server for the session's next turn.

        ``load`` holds how much each server that is up has in hand, and is not empty; ``prompt`` is what the session
        began with: the first call says it for all.
        """
        if session not in self._prompt_of:
            self._prompt_of[session] = prompt
            self._sessions_of[prompt] += 1
        begun_with = self._prompt_of[session]
        server = self._server_of.get(session)
        if server is None or server not in load:
            server = self._for_prompt(begun_with, load)
        self._server_of[session] = self._readers[begun_with] = server
        return server

    def forget(self, session: str) -> None:
        """The session is over; a prompt is forgotten with the last session that began with it."""
        self._server_of.pop(session, None)
        prompt = self._prompt_of.pop(session, None)
        if prompt is None:
            return
        self._sessions_of[prompt] -= 1
        if not self._sessions_of[prompt]:
            del self._sessions_of[prompt], self._readers[prompt]

    def _for_prompt(self, prompt: Prompt, load: Mapping[int, int]) -> int:
        least = min(load, key=lambda server: (load[server], server))
        reader = self._readers.get(prompt)
        if reader is None or reader not in load or load[reader] >= load[least] + self.spread:
            return least
        return reader
