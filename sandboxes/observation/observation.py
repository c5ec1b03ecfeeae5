"""One observed sandbox, seen by its worker: actions come in, get the label of the tool call that ran, and go on."""

import asyncio
import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable

from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.interface import SandboxUnavailable
from sandboxes.observation.observer import Observer, observer
from sandboxes.observation.server import LENGTH, ORDER

log = logging.getLogger(__name__)
OnAction = Callable[[ObservedAction], None]
"""Called in the sandbox's event loop; it must not wait."""
OnSocket = Callable[[Ledger, tuple[int, int, int], str | None, int], None]
"""Family, type and protocol of refused sockets, their label and how many there were."""
READ_BYTES = 2**18
READY_S = 30.0
"""The first one starts a Python."""
DRAIN_S = 10.0


class Observation:
    """Made by ``start``.  Belongs to one event loop."""

    def __init__(
        self, ledger: Ledger, on_action: OnAction, on_socket: OnSocket, on_loss: Callable[[str], object]
    ) -> None:
        self.ledger = ledger
        self._on_action, self._on_socket, self._on_loss = on_action, on_socket, on_loss
        self._reports, self._theirs = socket.socketpair()
        self._reports.setblocking(False)
        self._inbox = bytearray()
        self._label: str | None = None
        self._drains: deque[tuple[int, str | None, asyncio.Future[None]]] = deque()
        """Ordered and not done yet: number, the label that holds from then on, who waits."""
        self._number = 0
        self._refused = ""
        self._observer: Observer
        self._open = True
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def start(
        cls,
        listener: int,
        agent: int,
        tasks: int,
        ledger: Ledger,
        on_action: OnAction,
        on_socket: OnSocket,
        on_loss: Callable[[str], object],
    ) -> "Observation":
        """Raises ``SandboxUnavailable`` where the processes of a sandbox cannot be observed."""
        made = cls(ledger, on_action, on_socket, on_loss)
        try:
            await made._attach(listener, agent, tasks)
        except BaseException:
            made._hang_up()
            raise
        finally:
            made._theirs.close()
            os.close(listener)
        return made

    async def _attach(self, listener: int, agent: int, tasks: int) -> None:
        try:
            self._observer = observer()
            try:
                self._observer.attach(listener, self._theirs.fileno(), agent, tasks)
            except ConnectionError:  # it has just ended, and there will be another
                self._observer.close()
                self._observer = observer()
                self._observer.attach(listener, self._theirs.fileno(), agent, tasks)
        except OSError as error:
            raise SandboxUnavailable(f"sandboxes cannot be observed: no observer could be started: {error}") from None
        self._theirs.close()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._drains.append((0, None, ready))
        self._loop.add_reader(self._reports.fileno(), self._read)
        await asyncio.wait([ready], timeout=READY_S)
        if not self._open or not ready.done():
            why = self._refused or "the observer did not answer"
            raise SandboxUnavailable(
                f"what runs in a sandbox cannot be observed: {why}; the memory of one's own processes must be"
                " readable (kernel.yama.ptrace_scope at most 2), and the kernel 5.9 or later"
            )

    def label(self, text: str | None) -> None:
        """Name what runs from now on.  What was asked before belongs to the label before."""
        self._drain(text)

    def counted(self, call: str, count: int) -> None:
        """Deliver refusals about which nobody was asked, as those of the label that holds."""
        if self._open:
            fields = {"kind": "refused", "at": time.time(), "pid": 0, "parent": 0, "program": ""}
            self._deliver(fields | {"call": call, "count": count})

    async def settled(self) -> None:
        """Return when everything that was asked by now has been delivered."""
        if self._open:
            latest = self._drains[-1][1] if self._drains else self._label
            await self._done(self._drain(latest))

    async def labelled(self) -> None:
        """Return when the newest label holds: what is started from then on cannot carry an older one."""
        if self._drains:
            await self._done(self._drains[-1][2])

    async def cut(self) -> None:
        """The sandbox's programs are dead, or stand still."""
        await self.settled()

    async def close(self) -> None:
        """Twice is fine."""
        self._hang_up()

    def _drain(self, label: str | None) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = self._loop.create_future()
        if not self._open:
            done.set_result(None)
            return done
        self._number = self._number % 0xFFFFFFFF + 1
        self._drains.append((self._number, label, done))
        try:
            self._reports.send(ORDER.pack(self._number))
        except OSError as error:
            self._lose(f"its observer takes no orders: {error}")
        return done

    async def _done(self, drained: "asyncio.Future[None]") -> None:
        await asyncio.wait([drained], timeout=DRAIN_S)
        if not drained.done():
            self._lose(f"its observer did not answer within {DRAIN_S:g} s; {self._observer.doing()}")

    # -- reports ----------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            piece = self._reports.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"its observer's socket failed: {error}")
            return
        if not piece:
            self._lose("its observer ended")
            return
        self._inbox += piece
        while len(self._inbox) >= LENGTH.size and self._open:
            end = LENGTH.size + LENGTH.unpack_from(self._inbox)[0]
            if len(self._inbox) < end:
                return
            body = bytes(self._inbox[LENGTH.size : end])
            del self._inbox[:end]
            self._take(json.loads(body))

    def _take(self, report: dict[str, object]) -> None:
        self._refused = str(report.get("refused", ""))
        for fields in report.get("actions", ()):  # type: ignore[attr-defined]
            self._deliver(fields)
        for call, count in report.get("sockets", ()):  # type: ignore[attr-defined]
            family, kind, protocol = call
            self._on_socket(self.ledger, (family, kind, protocol), self._label, count)
        if "drained" in report:
            number, self._label, done = self._drains.popleft()
            if number != report["drained"]:
                self._lose("its observer broke the protocol")
            if not done.done():
                done.set_result(None)

    def _deliver(self, fields: dict[str, object]) -> None:
        try:
            self._on_action(
                ObservedAction.model_validate(fields | {"sandbox": self.ledger.sandbox, "label": self._label})
            )
        except Exception:
            log.exception("an action in sandbox %s could not be delivered", self.ledger.sandbox)

    def _lose(self, reason: str) -> None:
        if self._open:
            self._hang_up()
            self._on_loss(reason)

    def _hang_up(self) -> None:
        """Everybody who waits goes on; the observer forgets the sandbox."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._reports.fileno())
        self._reports.close()
        for _, _, done in self._drains:
            if not done.done():
                done.set_result(None)
        self._drains.clear()
