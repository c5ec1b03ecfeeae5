"""All boxes of the service: made, found, left alone for too long, closed, forgotten."""

import asyncio
import hashlib
import logging
from collections import Counter

from sandboxes.backends.remote.wire import LIVING, BoxView, CreateBox, State
from sandboxes.interface import Sandbox, SandboxLost, SandboxUnavailable
from sandboxes.opened import open_box
from sandboxes.service.capacity import Gate, Ticket
from sandboxes.service.hosted import HostedBox
from sandboxes.service.neighbours import refuse_neighbours
from sandboxes.service.quotas import Usage
from sandboxes.service.refusals import Busy, NotThere, Unusable
from sandboxes.service.settings import Settings
from sandboxes.service.tokens import Token
from sandboxes.teardown import completed

log = logging.getLogger(__name__)
LOOK_S = 0.25
"""How often boxes are looked at: left alone, lost, to be forgotten."""
STARTS_AT_ONCE = 8
MOST_REMEMBERED = 10_000


class Boxes:
    """Belongs to one event loop.  ``close`` ends every box."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.gate = Gate(settings.capacity, settings.most_waiting)
        self.usage = Usage()
        self.ended: Counter[State] = Counter()
        """How many boxes have come to which end, ever."""
        self.execs = self.denied = self.froze = 0
        """Of the boxes that were forgotten since; ``froze`` of all."""
        self.draining = False
        self._boxes: dict[str, HostedBox] = {}
        self._tickets: dict[HostedBox, Ticket] = {}
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}
        """Idempotency keys: (token, key) to (fingerprint of the body, box)."""
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._tasks: dict[HostedBox, asyncio.Task[None]] = {}
        self._closing: dict[HostedBox, asyncio.Task[None]] = {}
        self._looking = asyncio.ensure_future(self._look())

    # -- one box -----------------------------------------------------------------------------------

    async def create(self, token: Token, wanted: CreateBox, key: str | None) -> HostedBox:
        """A box that is queued at least; the same one again for the same key.

        Raises ``TooMuch``, ``Unusable``, ``Busy``; and what kept the box from opening, if that is known in time.
        """
        fingerprint = hashlib.sha256(wanted.model_dump_json(exclude={"wait_s"}).encode()).hexdigest()
        hosted = self._of_key(token, key, fingerprint) if key else None
        if hosted is None:
            if self.draining:
                raise Busy("the service is being stopped: try another one, or later")
            if not self.settings.special_egress:
                refuse_neighbours(wanted.spec)
            self.usage.check_boxes(token, sum(box.token.id == token.id for box in self.living()))
            hosted = HostedBox(token, wanted)
            self._tickets[hosted] = self.gate.enter(hosted.owner, hosted.user, hosted.spec)
            self._boxes[hosted.id] = hosted
            self._tasks[hosted] = asyncio.ensure_future(self._bring_up(hosted))
            if key:
                self._keys[token.id, key] = (fingerprint, hosted.id)
        await hosted.settled(wanted.wait_s)
        if hosted.refused is not None:
            raise hosted.refused
        return hosted

    def find(self, id_: str, token: Token) -> HostedBox:
        """Raises ``NotThere`` for what is not there, or somebody else's."""
        hosted = self._boxes.get(id_)
        if hosted is None or hosted.owner != token.owner:
            raise NotThere(f"box '{id_}': there is no such box, or it ended long ago")
        hosted.touch()
        return hosted

    def of(self, owner: str) -> list[HostedBox]:
        return [box for box in self._boxes.values() if box.owner == owner]

    def living(self) -> list[HostedBox]:
        return [box for box in self._boxes.values() if box.state in LIVING]

    def all(self) -> list[HostedBox]:
        return list(self._boxes.values())

    def view(self, hosted: HostedBox) -> BoxView:
        ticket = self._tickets.get(hosted)
        return hosted.view(None if ticket is None else self.gate.position(ticket))

    async def freeze(self, hosted: HostedBox, reason: str) -> None:
        await hosted.busy(hosted.sandbox.freeze(reason))
        if hosted.state == "open":
            self.froze += 1
            hosted.move("frozen", reason)
            log.warning("box frozen", extra={"box": hosted.id, "owner": hosted.owner, "reason": reason})

    async def begin_episode(self, hosted: HostedBox) -> None:
        """Nothing of the episode before is left: in a sandbox of its own, or after a reset where the spec says so.

        For the moment of the change it has two sandboxes.  Raises ``SandboxUnavailable``, and what ``reset`` raises.
        """
        if hosted.spec.reuse == "reset":
            await hosted.busy(hosted.sandbox.reset())
        else:
            await hosted.busy(completed(self._replace(hosted)))

    async def _replace(self, hosted: HostedBox) -> None:
        async with self._starting:
            opened = await self._open(hosted)
        await hosted.replace(opened)

    async def _open(self, hosted: HostedBox) -> Sandbox:
        on_record = hosted.on_record if hosted.relay is not None else None
        return await open_box(hosted.spec, on_record, self.settings.upstream)

    async def end(self, hosted: HostedBox, reason: str) -> None:
        """Close it, or take it out of the queue; return when nothing of it is left.  Twice is fine."""
        hosted.move("closed", reason)
        task = self._closing.get(hosted)
        if task is None and hosted in self._tickets:
            task = self._closing[hosted] = asyncio.ensure_future(self._end(hosted))
        if task is not None:
            await asyncio.shield(task)

    # -- how boxes begin and end -------------------------------------------------------------------

    async def _bring_up(self, hosted: HostedBox) -> None:
        try:
            async with asyncio.timeout(hosted.wanted.queue_s):
                await self._tickets[hosted].admitted
        except TimeoutError:
            reason = f"there was no room on this host within queue_s = {hosted.wanted.queue_s:g}"
            hosted.refused = Busy(f"{reason}: try later, or ask for less memory", retry_after_s=5.0)
            await self.end(hosted, reason)
            return
        hosted.move("starting")
        try:
            async with self._starting:
                hosted.opened(await self._open(hosted))
        except Exception as error:
            # Whatever it is, somebody waits for this box and must be told.
            known = isinstance(error, SandboxUnavailable | OSError)
            reason = str(error) if known else "a fault of the service, which its log tells"
            hosted.refused = SandboxUnavailable(reason)
            log.error("box not made", exc_info=None if known else error, extra={"box": hosted.id, "reason": reason})
            await self.end(hosted, reason)
            return
        log.info("box open", extra={"box": hosted.id, "owner": hosted.owner, "user": hosted.user})

    async def _end(self, hosted: HostedBox) -> None:
        bringing_up = self._tasks.pop(hosted)
        if not bringing_up.done() and hosted.refused is None:  # with ``refused`` it is what waits for us
            bringing_up.cancel()  # an opening that is cancelled leaves nothing behind
            await asyncio.wait([bringing_up])
        try:
            await hosted.close()
        finally:
            self.gate.leave(self._tickets.pop(hosted))
            self.ended[hosted.state] += 1
            self._closing.pop(hosted, None)
            log.info("box ended", extra={"box": hosted.id, "state": hosted.state, "reason": hosted.reason})

    def _of_key(self, token: Token, key: str, fingerprint: str) -> HostedBox | None:
        known = self._keys.get((token.id, key))
        if known is None:
            return None
        if known[0] != fingerprint:
            raise Unusable("this Idempotency-Key was used for another request: choose a new one for each box")
        return self._boxes.get(known[1])

    # -- all boxes ---------------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._look_once()
            except Exception:
                log.exception("the boxes could not be looked at, and will be again")

    def _look_once(self) -> None:
        for hosted in self.living():
            if not hosted.looks_alive:
                hosted.move("lost", "its box died")
            elif hosted.state in ("open", "frozen") and hosted.unused_s > self._patience_s(hosted):
                hosted.move("closed", f"nobody asked anything of it for {self._patience_s(hosted):g} s")
        for hosted in self.all():
            if hosted.state not in LIVING and hosted in self._tickets and hosted not in self._closing:
                self._closing[hosted] = asyncio.ensure_future(self._end(hosted))
        self._forget()

    def _patience_s(self, hosted: HostedBox) -> float:
        idle_s = hosted.wanted.idle_s
        return max(idle_s, self.settings.frozen_s) if hosted.state == "frozen" else idle_s

    def _forget(self) -> None:
        ended = [box for box in self._boxes.values() if box.state not in LIVING and box not in self._tickets]
        for place, hosted in enumerate(ended):
            too_many = len(ended) - place > MOST_REMEMBERED
            if too_many or hosted.ended_s > self.settings.remembered_s:
                del self._boxes[hosted.id]
                self.execs += hosted.execs
                self.denied += hosted.attempts_denied
        self._keys = {key: known for key, known in self._keys.items() if known[1] in self._boxes}

    def drain(self) -> None:
        """No new boxes; who waits for records or room gets an answer at once."""
        self.draining = True
        for hosted in self.living():
            if hosted.relay is not None:
                hosted.relay.end()
            if hosted.state in ("queued", "starting"):
                hosted.move("closed", "the service was stopped")  # ``_look`` ends it

    async def close(self) -> None:
        self.draining = True
        self._looking.cancel()
        await completed(self._close())

    async def _close(self) -> None:
        ends = [self.end(hosted, "the service was stopped") for hosted in self.all()]
        results = await asyncio.gather(*ends, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception) and not isinstance(error, SandboxLost):
                raise error
