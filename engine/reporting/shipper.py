"""Carries the spool to the service, and the service's wish back (docs/events.md, "A batch").

A thread of its own: training never waits for it and never dies of it.  What the service does not
take stays in the spool and is sent again; only three answers end the engine (410, 401, 422), and
``ended`` then says why.
"""

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pydantic import ValidationError

from engine.reporting.spool import Spool
from engine.spec.event import BatchResponse, Desired, Heartbeat
from engine.spec.security import ReviewDecision

log = logging.getLogger("engine.shipper")

BATCH_EVENTS = 1000
BATCH_BYTES = 4 * 2**20
"""A batch is no longer, with its heartbeat and its frame."""
FRAME_BYTES = 1024
"""What stands around events and heartbeat is shorter."""
HEARTBEAT_S = 2.0
BACKOFF_S = (0.2, 5.0)
REQUEST_TIMEOUT_S = 10.0
REMIND_EVERY_S = 30.0


class ServiceDown(Exception):
    """No usable answer: try again later."""


class ServiceRefuses(Exception):
    """The service will never take this attempt's events; ``status`` is the HTTP status of its answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class DeliveryResponse:
    """The service's response to one batch."""

    next_seq: int
    """The number that it expects next."""
    desired: Desired | None = None
    """It is None where the response only names the number that is expected."""
    review_decisions: list[ReviewDecision] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ingest:
    """Where batches are posted, and as whom."""

    url: str
    token: str
    attempt: int

    def post(self, first_seq: int, lines: list[bytes], heartbeat: Heartbeat | None) -> "DeliveryResponse":
        """Send one batch."""
        sent = heartbeat.model_dump_json() if heartbeat else "null"
        head = f'{{"attempt":{self.attempt},"first_seq":{first_seq},"heartbeat":{sent},"events":['
        status, body = self._exchange(head.encode() + b",".join(lines) + b"]}")
        try:
            if status == 200:
                answer = BatchResponse.model_validate_json(body)
                return DeliveryResponse(answer.next_seq, answer.desired, answer.review_decisions)
            if status == 409:
                return DeliveryResponse(int(json.loads(body)["next_seq"]))
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise ServiceDown(f"{self.url} answered {status} with something unreadable: {body[:200]!r}") from error
        raise _failure(status, body)

    def next_seq(self, heartbeat: Heartbeat | None = None) -> int:
        """Ask which number the service expects, with a batch that holds nothing."""
        return self.post(1, [], heartbeat).next_seq

    def _exchange(self, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=REQUEST_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request("POST", parts.path + (f"?{parts.query}" if parts.query else ""), body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServiceDown(f"{self.url}: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()


def _failure(status: int, body: bytes) -> Exception:
    detail = body[:500].decode(errors="replace")
    match status:
        case 410:
            return ServiceRefuses(status, "this attempt was replaced by another one, or the run has ended")
        case 401:
            return ServiceRefuses(status, "the service does not accept this attempt's token")
        case 422:
            return ServiceRefuses(status, f"the service says that an event is not what the spec says: {detail}")
        case 408 | 429:
            return ServiceDown(f"the service is busy ({status})")
        case _ if 400 <= status < 500:
            return ServiceRefuses(status, f"the service refuses the run's events ({status}): {detail}")
        case _:
            return ServiceDown(f"the service answered {status}")


class Shipper(threading.Thread):
    """Sends what stands in the spool, in order, and a heartbeat when there is nothing to send.

    ``heartbeat`` is called in this thread for every batch.  ``on_change`` is called (in this thread)
    when ``desired`` or ``ended`` changed, ``on_review_decisions`` with those that came, perhaps again.
    """

    def __init__(
        self,
        spool: Spool,
        ingest: Ingest,
        *,
        heartbeat: Callable[[], Heartbeat | None],
        on_change: Callable[[], None] = lambda: None,
        on_review_decisions: Callable[[list[ReviewDecision]], None] = lambda _: None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        super().__init__(name="shipper", daemon=True)
        self._spool = spool
        self._ingest = ingest
        self._heartbeat = heartbeat
        self._on_change = on_change
        self._on_review_decisions = on_review_decisions
        self._heartbeat_s = heartbeat_s
        self._next_seq = max(spool.acked + 1, spool.oldest_seq)
        self._wake = threading.Event()
        self._progress = threading.Condition()
        self._stopping = False
        self._down_since: float | None = None
        self._reminded = 0.0
        self._pause_s = 0.0
        self.desired: Desired = "run"
        self.ended: ServiceRefuses | None = None
        """Why nothing more can be sent, once that is so: the engine has to end."""

    def wake(self) -> None:
        """There is something new in the spool."""
        self._wake.set()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until the service has all that stands in the spool; False if it refuses or time is up."""
        target = self._spool.last_seq
        self.wake()
        with self._progress:
            self._progress.wait_for(lambda: self._next_seq > target or self.ended is not None, timeout_s)
            return self._next_seq > target

    def stop(self) -> None:
        """End the thread after the request it is in.  What was not sent stays in the spool."""
        self._stopping = True
        self._wake.set()
        self.join(timeout=REQUEST_TIMEOUT_S)

    def run(self) -> None:
        while not self._stopping and self.ended is None:
            self._wake.clear()
            try:
                self._send_once()
            except ServiceDown as error:
                self._wait_for_service(error)
            except ServiceRefuses as error:
                self._end(error)
            except Exception as error:  # a bug here must neither lose events nor end the thread unseen
                log.exception("the shipper stumbled")
                self._wait_for_service(error)
            else:
                self._has_answered()
                if self._next_seq > self._spool.last_seq:
                    self._wake.wait(self._heartbeat_s)

    def _send_once(self) -> None:
        heartbeat = self._heartbeat()
        heartbeat_bytes = len(heartbeat.model_dump_json().encode()) if heartbeat else 0
        room = BATCH_BYTES - FRAME_BYTES - heartbeat_bytes
        lines = self._spool.read(self._next_seq, max_events=BATCH_EVENTS, max_bytes=room)
        answer = self._ingest.post(self._next_seq, lines, heartbeat)
        next_seq, desired = answer.next_seq, answer.desired
        if not self._spool.oldest_seq <= next_seq <= self._spool.last_seq + 1:
            raise ServiceRefuses(
                409,
                f"the service goes on with event {next_seq}, but this run's spool holds {self._spool.oldest_seq} to "
                f"{self._spool.last_seq}: one of the two was restored from elsewhere",
            )
        with self._progress:
            self._next_seq = next_seq
            self._progress.notify_all()
        self._remember(next_seq - 1)
        if answer.review_decisions:
            self._on_review_decisions(answer.review_decisions)
        if desired is not None and desired != self.desired:
            self.desired = desired
            self._on_change()

    def _remember(self, seq: int) -> None:
        try:
            self._spool.acknowledge(seq)
        except OSError as error:  # costs a resend after a restart, which the service skips
            log.warning("cannot note that event %d has arrived: %s", seq, error)

    def _wait_for_service(self, error: Exception) -> None:
        now = time.monotonic()
        if self._down_since is None:
            self._down_since = now
        if not self._reminded or now - self._reminded > REMIND_EVERY_S:
            self._reminded = now
            log.warning("events wait in the spool (%d of them): %s", self._spool.last_seq - self._next_seq + 1, error)
        self._pause_s = min(max(self._pause_s * 2, BACKOFF_S[0]), BACKOFF_S[1])
        deadline = now + self._pause_s
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _has_answered(self) -> None:
        if self._down_since is not None:
            log.info("the service answers again after %.1f s", time.monotonic() - self._down_since)
        self._down_since, self._reminded, self._pause_s = None, 0.0, 0.0

    def _end(self, error: ServiceRefuses) -> None:
        log.error("no more events can be sent: %s", error)
        with self._progress:
            self.ended = error
            self._progress.notify_all()
        self._on_change()
