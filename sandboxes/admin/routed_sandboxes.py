"""All sandboxes of an admin: queued here, made at a host, found again there, lost with it.

The hosts are the truth about what there is.  The admin keeps nothing on disk but their addresses: when it starts, it
asks every host what it has.
"""

import asyncio
import logging
from collections import Counter

import httpx
from pydantic import TypeAdapter, ValidationError

from sandboxes.admin.fleet import Fleet
from sandboxes.admin.host import Host, HostUnreachable
from sandboxes.admin.hosts_file import HostsFile
from sandboxes.admin.routed import PassedOn, RoutedSandbox
from sandboxes.admin.settings import AdminSettings
from sandboxes.backends.remote.faults import PREFIX, Problem
from sandboxes.backends.remote.wire import LIVING, MOST_WAIT_S, CreateSandbox, OnBehalf, SandboxState, SandboxView
from sandboxes.interface import SandboxUnavailable
from sandboxes.service.capacity import Gate, Room
from sandboxes.service.gem import Make
from sandboxes.service.host_routes import HostedForAdmin, HostView
from sandboxes.service.hosted import new_id
from sandboxes.service.hosted_sandboxes import MOST_REMEMBERED, fingerprint_of
from sandboxes.service.quotas import Usage
from sandboxes.service.refusals import Busy, NotThere, Unusable
from sandboxes.service.tokens import Token
from sandboxes.teardown import completed

log = logging.getLogger(__name__)
FOUND = TypeAdapter(list[HostedForAdmin])
HOST_QUEUE_S = 5.0
"""A host is asked for what it has room for; so long it may take to end what has just left."""


class RoutedSandboxes:
    """Belongs to one event loop.  ``start`` finds what there is; ``close`` ends no sandbox."""

    def __init__(self, settings: AdminSettings) -> None:
        self.settings = settings
        self.gate = Gate(None, settings.most_waiting)
        self.usage = Usage()
        self.ended: Counter[SandboxState] = Counter()
        self.draining = False
        self.file = HostsFile(settings.hosts)
        self.fleet = Fleet(self.file, self.gate, self._compare, self._lose_all, settings.look_every_s)
        self._sandboxes: dict[str, RoutedSandbox] = {}
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}
        """Idempotency keys: (token, key) to (fingerprint of the body, sandbox)."""
        self._tasks: dict[RoutedSandbox, asyncio.Task[None]] = {}
        self._closing: dict[tuple[Host, str], asyncio.Task[None]] = {}
        """Strays that are being closed: where, and by which id."""

    async def start(self) -> None:
        await self.fleet.start()

    # -- one sandbox -----------------------------------------------------------------------------------

    async def create(self, token: Token, wanted: CreateSandbox | Make, key: str | None) -> RoutedSandbox:
        """A sandbox that is queued at least; the same one again for the same key, unless there was no room for it.

        Raises ``TooMuch``, ``Unusable``, ``Busy``; and what kept the sandbox from opening, if that is known in time.
        """
        asked = wanted.sandbox() if isinstance(wanted, Make) else wanted
        fingerprint = fingerprint_of(asked)
        routed = self._of_key(token, key, fingerprint) if key else None
        if routed is None:
            if self.draining:
                raise Busy("the admin is being stopped: try again later")
            if wanted.on_behalf is not None:
                raise Unusable("on_behalf is what this admin says to its hosts: leave it out")
            routed = self._enter(token, asked, key, fingerprint)
            self._tasks[routed] = asyncio.ensure_future(self._bring_up(routed, wanted))
        await routed.settled(asked.wait_s)
        if routed.refused is not None:
            raise routed.refused
        return routed

    def _enter(self, token: Token, wanted: CreateSandbox, key: str | None, fingerprint: str) -> RoutedSandbox:
        self.usage.check_sandboxes(token, sum(routed.on_behalf.token == token.id for routed in self.living()))
        wanted = wanted.model_copy(update={"user": wanted.user or token.name})
        on_behalf = OnBehalf(id=new_id(), owner=token.owner, token=token.id, key=key, fingerprint=fingerprint)
        ticket = self.gate.enter(token.owner, wanted.user or token.name, wanted.spec)
        routed = RoutedSandbox(wanted, on_behalf, ticket)
        self._add(routed)
        return routed

    def find(self, id_: str, token: Token) -> RoutedSandbox:
        """Raises ``NotThere`` for what is not there, or somebody else's."""
        routed = self._sandboxes.get(id_)
        if routed is None or routed.owner != token.owner:
            raise NotThere(f"sandbox '{id_}': there is no such sandbox, or it ended long ago")
        return routed

    def living(self) -> list[RoutedSandbox]:
        return [sandbox for sandbox in self._sandboxes.values() if sandbox.state in LIVING]

    def all(self) -> list[RoutedSandbox]:
        return list(self._sandboxes.values())

    def view(self, routed: RoutedSandbox) -> SandboxView:
        return routed.view(None if routed.ticket is None else self.gate.position(routed.ticket))

    async def views_of(self, owner: str) -> list[SandboxView]:
        """Return what the hosts say of their own, and what is known here of the others."""
        own = [sandbox for sandbox in self._sandboxes.values() if sandbox.owner == owner]
        hosts = {sandbox.host for sandbox in own if sandbox.host is not None and sandbox.host.is_up}
        found_by_id = {found.sandbox.id: found.sandbox for host in hosts for found in await self._found_at(host)}
        return [self.view(sandbox) if sandbox.state == "lost" else found_by_id.get(sandbox.id, self.view(sandbox))
                for sandbox in own]  # fmt: skip

    async def give_up(self, routed: RoutedSandbox, reason: str) -> None:
        """End one that no host is known to have yet."""
        routed.move("closed", reason)
        bringing_up = self._tasks.get(routed)
        if bringing_up is not None:
            bringing_up.cancel()
            await asyncio.wait([bringing_up])
        if routed.host is not None:
            await completed(self._close_at(routed.host, routed.id))
        self._leave(routed)

    def at_end(self, routed: RoutedSandbox, view: SandboxView) -> None:
        """Note that its host has closed it."""
        routed.move(view.state, view.reason)
        self._leave(routed)

    # -- how sandboxes begin ---------------------------------------------------------------------------

    async def _bring_up(self, routed: RoutedSandbox, wanted: CreateSandbox | Make) -> None:
        deadline = asyncio.get_running_loop().time() + routed.wanted.queue_s
        try:
            while not await self._tried(routed, wanted, deadline):
                pass
        except Exception as error:
            # Whatever it is, somebody waits for this sandbox and must be notified.
            known = isinstance(error, Busy | PassedOn)
            reason = str(error) if known else "a fault of the admin, which its log tells"
            routed.refused = error if known else SandboxUnavailable(reason)
            log.error(
                "sandbox not made", exc_info=None if known else error, extra={"sandbox": routed.id, "reason": reason}
            )
            routed.move("closed", reason)
            self._leave(routed)
        finally:
            self._tasks.pop(routed, None)

    async def _tried(self, routed: RoutedSandbox, wanted: CreateSandbox | Make, deadline: float) -> bool:
        """Wait for a host with room, and have the sandbox made there; return whether it was."""
        assert routed.ticket is not None
        try:
            async with asyncio.timeout_at(deadline):
                room = await routed.ticket.admitted
        except TimeoutError:
            reason = f"no host had room within queue_s = {routed.wanted.queue_s:g}"
            raise Busy(f"{reason}: try later, or ask for less memory", retry_after_s=5.0) from None
        routed.host = self.fleet.hosts[room.name]
        routed.move("starting")
        try:
            await self._stray_closed(routed.host, routed.id)
            view = await self._made_at(routed.host, routed, wanted)
        except (HostUnreachable, Busy) as error:
            log.warning("no sandbox at this host", extra={"host_name": room.name, "reason": str(error)})
            self._try_elsewhere(routed, room)
            return False
        room.failures = 0
        routed.placed_at = asyncio.get_running_loop().time()
        routed.move(view.state, view.reason)
        log.info("sandbox open", extra={"sandbox": routed.id, "owner": routed.owner, "host_name": room.name})
        return True

    def _try_elsewhere(self, routed: RoutedSandbox, room: Room) -> None:
        """Nobody else is let in there until it has been looked at.  If it has the sandbox all the same, it is closed
        then (``_compare``), before it is asked for it again."""
        assert routed.ticket is not None
        room.is_open = False
        routed.host = None
        routed.move("queued")
        self.gate.wait_again(routed.ticket)

    async def _made_at(self, host: Host, routed: RoutedSandbox, wanted: CreateSandbox | Make) -> SandboxView:
        """Raises ``HostUnreachable``, ``Busy`` for a host without room, and ``PassedOn`` for its refusal."""
        path = "/gem/make" if isinstance(wanted, Make) else "/v1/sandboxes"
        waits = {} if isinstance(wanted, Make) else {"wait_s": MOST_WAIT_S}
        body = wanted.model_copy(
            update={"on_behalf": routed.on_behalf, "user": routed.user, "queue_s": HOST_QUEUE_S, **waits}
        )
        content = body.model_dump_json(exclude_defaults=True).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": routed.id}
        response = await host.ask("POST", path, again=True, content=content, headers=headers)
        while True:
            _refuse(response, host.room)
            here = f"/v1/sandboxes/{routed.id}"
            if not isinstance(wanted, Make) or response.request.method == "GET":
                view = SandboxView.model_validate_json(response.content)
                if view.state not in ("queued", "starting"):
                    return view
            response = await host.ask("GET", here, again=True, params={"wait_s": MOST_WAIT_S})

    # -- what the hosts say ----------------------------------------------------------------------------

    async def _compare(self, host: Host, view: HostView, asked_at: float) -> None:
        """Take over what the host says of its sandboxes.  ``asked_at``: what was placed later may not be in it."""
        news = {id_ for id_, state in view.states.items() if self._is_news(id_, state)}
        for id_, state in view.states.items():
            routed = None if id_ in news else self._sandboxes[id_]
            if routed is not None and (routed.host is not host or routed.state not in LIVING):
                if state in LIVING:
                    self._close_stray(host, id_)
            elif routed is not None and _is_placed(routed, asked_at):
                self._follow(routed, state)
        for routed in self._at(host):
            if routed.id not in view.states and _is_placed(routed, asked_at):
                self._lose(routed, f"host '{host.name}' does not have it any more: it was started anew")
        if news:
            await self._find_again(host)
        self._forget()

    def _is_news(self, id_: str, state: SandboxState) -> bool:
        """Whether nothing is known of it here, or nothing but what is left of it at another host."""
        known = self._sandboxes.get(id_)
        return known is None or known.was_found_ended and state in LIVING

    def _follow(self, routed: RoutedSandbox, state: SandboxState) -> None:
        if state != routed.state and state not in ("queued", "starting"):
            routed.move(state, f"its host says that it is {state}")
        if state not in LIVING:
            self._leave(routed)

    async def _find_again(self, host: Host) -> None:
        """Take over what this admin does not know: it was made before the admin was started."""
        now = asyncio.get_running_loop().time()
        for found in await self._found_at(host):
            if self._is_news(found.sandbox.id, found.sandbox.state):
                living = found.sandbox.state in LIVING
                owner, spec = found.on_behalf.owner, found.sandbox.spec
                ticket = self.gate.occupy(host.room, owner, found.sandbox.user, spec) if living else None
                self._add(RoutedSandbox.found(host, found, ticket, now))
                log.info("sandbox found", extra={"sandbox": found.sandbox.id, "host_name": host.name})

    async def _found_at(self, host: Host) -> list[HostedForAdmin]:
        """Return nothing for a host that does not say; it will be asked again."""
        try:
            response = await host.ask("GET", "/v1/host/sandboxes", again=True)
            return FOUND.validate_json(response.raise_for_status().content)
        except (HostUnreachable, httpx.HTTPStatusError, ValidationError) as error:
            log.warning("a host does not say what it has", extra={"host_name": host.name, "reason": str(error)})
            return []

    def _lose_all(self, host: Host, reason: str) -> None:
        for routed in self._at(host):
            if routed.placed_at is not None:
                self._lose(routed, reason)

    def _lose(self, routed: RoutedSandbox, reason: str) -> None:
        """It is lost for good: should its host be heard of again, it is closed there."""
        log.error("sandbox lost", extra={"sandbox": routed.id, "owner": routed.owner, "reason": reason})
        routed.move("lost", reason)
        self._leave(routed)

    def _close_stray(self, host: Host, id_: str) -> None:
        if (host, id_) in self._closing:
            return
        log.warning(
            "a host has what is another's or over, and closes it", extra={"sandbox": id_, "host_name": host.name}
        )
        closing = self._closing[host, id_] = asyncio.ensure_future(self._close_at(host, id_))
        closing.add_done_callback(lambda _: self._closing.pop((host, id_)))

    async def _stray_closed(self, host: Host, id_: str) -> None:
        """Wait until nothing of a former try is left there: its closing would reach what is asked for now."""
        closing = self._closing.get((host, id_))
        if closing is not None:
            await asyncio.wait([closing])

    async def _close_at(self, host: Host, id_: str) -> None:
        try:
            await host.ask("DELETE", f"/v1/sandboxes/{id_}", again=True)
        except HostUnreachable as error:
            log.warning("a sandbox is not known to be closed; its host does it when idle", extra={"reason": str(error)})

    # -- the books -------------------------------------------------------------------------------------

    def _add(self, routed: RoutedSandbox) -> None:
        self._sandboxes[routed.id] = routed
        if routed.on_behalf.key is not None:
            known = (routed.on_behalf.fingerprint, routed.id)
            self._keys[routed.on_behalf.token, routed.on_behalf.key] = known

    def _at(self, host: Host) -> list[RoutedSandbox]:
        return [routed for routed in self.living() if routed.host is host]

    def _leave(self, routed: RoutedSandbox) -> None:
        if routed.ticket is not None:
            ticket, routed.ticket = routed.ticket, None
            self.gate.leave(ticket)
            self.ended[routed.state] += 1

    def _of_key(self, token: Token, key: str, fingerprint: str) -> RoutedSandbox | None:
        known = self._keys.get((token.id, key))
        if known is None:
            return None
        if known[0] != fingerprint:
            raise Unusable("this Idempotency-Key was used for another request: choose a new one for each sandbox")
        routed = self._sandboxes.get(known[1])
        return None if routed is None or isinstance(routed.refused, Busy) else routed

    def _forget(self) -> None:
        """Those that ended, once their host has forgotten them as well."""
        known = {id_ for host in self.fleet.hosts.values() if host.view is not None for id_ in host.view.states}
        over = [routed for routed in self.all() if routed.state not in LIVING and routed.id not in known]
        for place, routed in enumerate(over):
            if len(over) - place > MOST_REMEMBERED or routed.ended_s > self.settings.remembered_s:
                del self._sandboxes[routed.id]
        self._keys = {key: sandbox for key, sandbox in self._keys.items() if sandbox[1] in self._sandboxes}

    # -- its own end -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """No new sandboxes; who waits for room gets an answer at once.  What the hosts have, they keep."""
        self.draining = True
        for routed in self.living():
            if routed.host is None:
                routed.move("closed", "the admin was stopped")

    async def close(self) -> None:
        self.draining = True
        waiting = list(self._tasks.values())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, *self._closing.values(), return_exceptions=True)
        await self.fleet.close()


def _is_placed(routed: RoutedSandbox, before: float) -> bool:
    return routed.placed_at is not None and routed.placed_at < before


def _refuse(response: httpx.Response, room: Room) -> None:
    """Raises ``Busy`` for a host that has no room or takes nobody, ``PassedOn`` for another refusal."""
    if response.is_success:
        return
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        raise HostUnreachable(f"host '{room.name}' answers {response.status_code} without saying why") from None
    if problem.status == Busy.status and not problem.type.startswith(PREFIX):
        raise Busy(problem.detail)
    if problem.status == Busy.status:
        room.failures += 1
    raise PassedOn(problem)
