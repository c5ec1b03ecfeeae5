"""Several generators as one: each session stands in one of them, and goes on in another where it has to.

    episode ──► GeneratorFleet ──► generator     keeps what each session has read and said, as token ids
                     │        ──► generator-1    a session stays where it is, because its cache is there
                     │        ──► ...            a new one goes where the fewest are
                     └── TurnMoved: that one was given to the trainer, or had no slot

A turn that moves goes on after the tokens that it had sampled, with the next of its draws, under the weights of the
generator that takes it; nothing is sampled twice, and each token keeps its version.  What was cached is read again.

Where generators are lent, at least one never is, so that there is always one to go to.  A fleet finds out by itself
that a generator is vacant, from its answer; that it takes turns again, ``welcome`` says.  The fleet stands with the
episodes: in the run's process, or in each rollout worker.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from engine.rollout.policy_session import generated_for
from engine.spec.generation import (
    Generated,
    GenerateRequest,
    OnToken,
    TextGenerator,
    TurnMoved,
    UnknownSession,
)


@dataclass(slots=True, eq=False)
class _Session:
    ids: list[int] = field(default_factory=list)
    """All that it has read and said, the turn that is pending among it as far as others had sampled it."""
    member: TextGenerator | None = None
    """Who has it in its cache."""


@dataclass(slots=True)
class _Sampled:
    """What the generators of one turn have sampled, one after the other."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    policy_versions: tuple[int, ...] = ()

    def add(self, more: TurnMoved | Generated) -> None:
        self.token_ids += more.token_ids
        self.logprobs += more.logprobs
        self.policy_versions += more.policy_versions

    def ended(self, stopped_by: Literal["stop", "length", "context"]) -> Generated:
        return Generated(self.token_ids, self.logprobs, self.policy_versions, stopped_by)


class GeneratorFleet:
    """A ``TextGenerator``.  Its members are ``SharingGenerator``s, or the ways to such; from one event loop."""

    def __init__(self, members: Sequence[TextGenerator] = ()) -> None:
        self._members = list(members)
        self._vacant: set[int] = set()
        self._sessions: dict[str, _Session] = {}

    def replace(self, number: int, member: TextGenerator) -> None:
        """``member`` stands in the place of the one before, whose sessions are read anew, or is added behind them."""
        self._members[number : number + 1] = [member]
        self._vacant.discard(number)

    def welcome(self) -> None:
        """All members take turns."""
        self._vacant.clear()

    async def generate(self, request: GenerateRequest) -> Generated:
        """Raises what the generators raise."""
        return await self._turn(request, None)

    async def stream(self, request: GenerateRequest, on_token: OnToken) -> Generated:
        return await self._turn(request, on_token)

    async def rewind(self, session: str, tokens: int) -> None:
        """Raises UnknownSession, ValueError, and what the generator raises."""
        known = self._sessions.get(session)
        if known is None:
            raise UnknownSession(f"session {session!r} is unknown: it cannot be rewound")
        if not 0 <= tokens <= len(known.ids):
            raise ValueError(f"session {session!r} has {len(known.ids)} tokens: {tokens} of them cannot be kept")
        if known.member is not None and known.member in self._serving:
            try:
                await known.member.rewind(session, tokens)
            except UnknownSession:  # it moved meanwhile: whoever takes the next turn reads what is left
                known.member = None
        del known.ids[tokens:]

    async def release(self, session: str) -> None:
        known = self._sessions.pop(session, None)
        if known is not None and known.member is not None:
            await known.member.release(session)

    @property
    def _serving(self) -> list[TextGenerator]:
        return [member for number, member in enumerate(self._members) if number not in self._vacant]

    async def _turn(self, request: GenerateRequest, on_token: OnToken | None) -> Generated:
        """In as many generators as it takes."""
        session = self._sessions.setdefault(request.session, _Session())
        before, sampled = len(session.ids), _Sampled()
        session.ids += request.new_ids
        while True:
            member, asked = self._placed(request, session, sampled)
            try:
                generated = await generated_for(member, asked, on_token)
            except TurnMoved as moved:
                self._left(member, session, is_vacant=moved.is_vacant)
                sampled.add(moved)
                session.ids += moved.token_ids
            except UnknownSession:
                self._left(member, session, is_vacant=False)
            else:
                break
        sampled.add(generated)
        session.ids += generated.token_ids
        if not sampled.token_ids:  # there was no room: the session is as it was
            del session.ids[before:]
        return sampled.ended(generated.stopped_by)

    def _placed(
        self, request: GenerateRequest, session: _Session, sampled: _Sampled
    ) -> tuple[TextGenerator, GenerateRequest]:
        """Who takes the turn, or the rest of it, and what is asked there: all that has not been read there."""
        if session.member is not None and session.member in self._serving:
            return session.member, replace(request, continues=True)
        member = session.member = self._least_loaded()
        drawn = len(sampled.token_ids)
        rest = replace(
            request,
            new_ids=tuple(session.ids),
            max_new_tokens=request.max_new_tokens - drawn,
            forced_ids=request.forced_ids[drawn:],
            drawn=drawn,
        )
        return member, rest

    def _least_loaded(self) -> TextGenerator:
        load = Counter(session.member for session in self._sessions.values())
        return min(self._serving, key=lambda member: load[member])

    def _left(self, member: TextGenerator, session: _Session, *, is_vacant: bool) -> None:
        session.member = None
        if is_vacant and member in self._members:
            self._vacant.add(self._members.index(member))
