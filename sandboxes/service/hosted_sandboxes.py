"""All sandboxes of the service: made, found, left alone for too long, closed, forgotten."""

import asyncio
import hashlib
import logging
import secrets
from collections import Counter

from sandboxes.backends.remote.faults import Fault
from sandboxes.backends.remote.wire import LIVING, CreateSandbox, SandboxState, SandboxView
from sandboxes.interface import Sandbox, SandboxLost, SandboxUnavailable
from sandboxes.opened import open_sandbox
from sandboxes.service.capacity import Gate, Ticket
from sandboxes.service.hosted import HostedSandbox
from sandboxes.service.neighbours import refuse_neighbours
from sandboxes.service.quotas import Usage
from sandboxes.service.refusals import Busy, NotThere, Unusable
from sandboxes.service.settings import Settings
from sandboxes.service.tokens import Token
from sandboxes.teardown import completed

log = logging.getLogger(__name__)
LOOK_S = 0.25
"""How often sandboxes are looked at: left alone, lost, to be forgotten."""
STARTS_AT_ONCE = 8
MOST_REMEMBERED = 10_000


def fingerprint_of(wanted: CreateSandbox) -> str:
    """Return what tells requests apart that were sent with one idempotency key."""
    return hashlib.sha256(wanted.model_dump_json(exclude={"wait_s"}).encode()).hexdigest()


def refuse_behalf(token: Token, wanted: CreateSandbox) -> None:
    """Raises ``Unusable`` for a sandbox on behalf of another, of whoever is no admin."""
    if wanted.on_behalf is None or token.role == "admin":
        return
    message = "only an admin asks on behalf of others"
    fault = Fault(field="on_behalf", value=wanted.on_behalf.owner, message=message, remedy="leave it out")
    raise Unusable("The sandbox would be somebody else's", fault)


class HostedSandboxes:
    """Belongs to one event loop.  ``close`` ends every sandbox."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.gate = Gate(settings.capacity, settings.most_waiting)
        self.usage = Usage()
        self.ended: Counter[SandboxState] = Counter()
        """How many sandboxes have come to which end, ever."""
        self.execs = self.denied = self.froze = 0
        """The calls of the sandboxes that were forgotten since; ``froze`` of all."""
        self.draining = False
        self.instance = secrets.token_hex(8)
        """Another one after each start: the sandboxes of the one before are gone."""
        self._sandboxes: dict[str, HostedSandbox] = {}
        self._tickets: dict[HostedSandbox, Ticket] = {}
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}
        """Idempotency keys: (token, key) to (fingerprint of the body, sandbox)."""
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._tasks: dict[HostedSandbox, asyncio.Task[None]] = {}
        self._closing: dict[HostedSandbox, asyncio.Task[None]] = {}
        self._looking = asyncio.ensure_future(self._look())

    # -- one sandbox -----------------------------------------------------------------------------------

    async def create(self, token: Token, wanted: CreateSandbox, key: str | None) -> HostedSandbox:
        """A sandbox that is queued at least; the same one again for the same key, unless it is made anew
        (``HostedSandbox.is_made_anew``).

        Raises ``TooMuch``, ``Unusable``, ``Busy``; and what kept the sandbox from opening, if that is known in time.
        """
        fingerprint = fingerprint_of(wanted)
        hosted = await self._of_key(token, key, fingerprint) if key else None
        if hosted is None:
            if self.draining:
                raise Busy("the service is being stopped: try another one, or later")
            refuse_behalf(token, wanted)
            if not self.settings.special_egress:
                refuse_neighbours(wanted.spec)
            self.usage.check_sandboxes(token, sum(sandbox.token.id == token.id for sandbox in self.living()))
            hosted = HostedSandbox(token, wanted)
            self._tickets[hosted] = self.gate.enter(hosted.owner, hosted.user, hosted.spec)
            self._sandboxes[hosted.id] = hosted
            self._tasks[hosted] = asyncio.ensure_future(self._bring_up(hosted))
            if key:
                self._keys[token.id, key] = (fingerprint, hosted.id)
        await hosted.settled(wanted.wait_s)
        if hosted.refused is not None:
            raise hosted.refused
        return hosted

    def find(self, id_: str, token: Token) -> HostedSandbox:
        """Raises ``NotThere`` for what is not there, or somebody else's."""
        hosted = self._sandboxes.get(id_)
        if hosted is None or hosted.owner != token.owner:
            raise NotThere(f"sandbox '{id_}': there is no such sandbox, or it ended long ago")
        hosted.touch()
        return hosted

    def of(self, owner: str) -> list[HostedSandbox]:
        return [sandbox for sandbox in self._sandboxes.values() if sandbox.owner == owner]

    def living(self) -> list[HostedSandbox]:
        return [sandbox for sandbox in self._sandboxes.values() if sandbox.state in LIVING]

    def all(self) -> list[HostedSandbox]:
        return list(self._sandboxes.values())

    def memory_mib_of(self, hosted: HostedSandbox) -> int:
        """Return what it was let in with; 0 for what waits or has left."""
        ticket = self._tickets.get(hosted)
        return 0 if ticket is None or ticket.room is None else ticket.memory_mib

    def view(self, hosted: HostedSandbox) -> SandboxView:
        ticket = self._tickets.get(hosted)
        return hosted.view(None if ticket is None else self.gate.position(ticket))

    async def freeze(self, hosted: HostedSandbox, reason: str) -> None:
        await hosted.busy(hosted.sandbox.freeze(reason))
        if hosted.state == "open":
            self.froze += 1
            hosted.move("frozen", reason)
            log.warning("sandbox frozen", extra={"sandbox": hosted.id, "owner": hosted.owner, "reason": reason})

    async def begin_episode(self, hosted: HostedSandbox) -> None:
        """Nothing of the episode before is left: in a sandbox of its own, or after a reset where the spec says so.

        For the moment of the change it has two sandboxes.  Raises ``SandboxUnavailable``, and what ``reset`` raises.
        """
        if hosted.spec.reuse == "reset":
            await hosted.busy(hosted.sandbox.reset())
        else:
            await hosted.busy(completed(self._replace(hosted)))

    async def _replace(self, hosted: HostedSandbox) -> None:
        async with self._starting:
            opened = await self._open(hosted)
        await hosted.replace(opened)

    async def _open(self, hosted: HostedSandbox) -> Sandbox:
        on_record = hosted.on_record if hosted.relay is not None else None
        return await open_sandbox(hosted.spec, on_record, self.settings.upstream)

    async def end(self, hosted: HostedSandbox, reason: str) -> None:
        """Close it, or take it out of the queue; return when nothing of it is left.  Twice is fine."""
        hosted.move("closed", reason)
        task = self._closing.get(hosted)
        if task is None and hosted in self._tickets:
            task = self._closing[hosted] = asyncio.ensure_future(self._end(hosted))
        if task is not None:
            await asyncio.shield(task)

    # -- how sandboxes begin and end -------------------------------------------------------------------

    async def _bring_up(self, hosted: HostedSandbox) -> None:
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
            # Whatever it is, somebody waits for this sandbox and must be notified.
            known = isinstance(error, SandboxUnavailable | OSError)
            reason = str(error) if known else "a fault of the service, which its log tells"
            hosted.refused = SandboxUnavailable(reason)
            log.error(
                "sandbox not made", exc_info=None if known else error, extra={"sandbox": hosted.id, "reason": reason}
            )
            await self.end(hosted, reason)
            return
        log.info("sandbox open", extra={"sandbox": hosted.id, "owner": hosted.owner, "user": hosted.user})

    async def _end(self, hosted: HostedSandbox) -> None:
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
            log.info("sandbox ended", extra={"sandbox": hosted.id, "state": hosted.state, "reason": hosted.reason})

    async def _of_key(self, token: Token, key: str, fingerprint: str) -> HostedSandbox | None:
        """Return the sandbox of the request that came before; None if it is made anew, once nothing of it is left."""
        while (known := self._keys.get((token.id, key))) is not None:
            if known[0] != fingerprint:
                raise Unusable("this Idempotency-Key was used for another request: choose a new one for each sandbox")
            hosted = self._sandboxes.get(known[1])
            if hosted is None or not hosted.is_made_anew:
                return hosted
            await self.end(hosted, "it is made anew")
            if self._sandboxes.get(hosted.id) is hosted:  # the same request, sent twice, has not made it meanwhile
                self._remove(hosted)
        return None

    # -- all sandboxes ---------------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._look_once()
            except Exception:
                log.exception("the sandboxes could not be looked at, and will be again")

    def _look_once(self) -> None:
        for hosted in self.living():
            if not hosted.looks_alive:
                hosted.move("lost", "its sandbox died")
            elif hosted.state in ("open", "frozen") and hosted.unused_s > self._patience_s(hosted):
                hosted.move("closed", f"nobody asked anything of it for {self._patience_s(hosted):g} s")
        for hosted in self.all():
            if hosted.state not in LIVING and hosted in self._tickets and hosted not in self._closing:
                self._closing[hosted] = asyncio.ensure_future(self._end(hosted))
        self._forget()

    def _patience_s(self, hosted: HostedSandbox) -> float:
        idle_s = hosted.wanted.idle_s
        return max(idle_s, self.settings.frozen_s) if hosted.state == "frozen" else idle_s

    def _forget(self) -> None:
        ended = [
            sandbox
            for sandbox in self._sandboxes.values()
            if sandbox.state not in LIVING and sandbox not in self._tickets
        ]
        for place, hosted in enumerate(ended):
            too_many = len(ended) - place > MOST_REMEMBERED
            if too_many or hosted.ended_s > self.settings.remembered_s:
                self._remove(hosted)
        self._keys = {key: known for key, known in self._keys.items() if known[1] in self._sandboxes}

    def _remove(self, hosted: HostedSandbox) -> None:
        del self._sandboxes[hosted.id]
        self.execs += hosted.execs
        self.denied += hosted.attempts_denied

    def drain(self) -> None:
        """No new sandboxes; who waits for records or room gets an answer at once."""
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
