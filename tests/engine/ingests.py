"""A service to ship to: the protocol of docs/events.md over real HTTP, with a mind to fail."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from engine.reporting.shipper import Ingest
from engine.spec.event import Batch, Desired, Heartbeat
from engine.spec.security import ReviewDecision


class Service:
    """Stores what it is sent as the web does: each number once, in order, or 409.

    ``fault`` is asked per request: "drop-before" and "drop-after" close the connection without an
    answer (before or after storing), a number answers with that status, "garbage" with no JSON.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.heartbeats: list[Heartbeat] = []
        self.batches = 0
        self.attempt = 1
        self.token = "secret"
        self.desired: Desired = "run"
        self.review_decisions: list[ReviewDecision] = []
        self.fault: Callable[[], str | int | None] = lambda: None
        self._mutex = threading.Lock()
        self._port = 0
        self.start()

    def start(self) -> None:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service._handle(self)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/ingest/v1/runs/r1/batches"

    @property
    def ingest(self) -> Ingest:
        return Ingest(self.url, self.token, self.attempt)

    @property
    def numbers(self) -> list[int]:
        return [event["seq"] for event in self.events]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def wait_for(self, condition: Callable[["Service"], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition(self):
            assert time.monotonic() < deadline, "the service waited in vain"
            time.sleep(0.01)

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        fault = self.fault()
        body = request.rfile.read(int(request.headers["Content-Length"]))
        if fault == "drop-before":
            return request.connection.close()
        if isinstance(fault, int):
            return _answer(request, fault, {"detail": "as told"})
        status, answer = self._take(request, body)
        if fault == "drop-after":
            return request.connection.close()
        _answer(request, status, "<html>" if fault == "garbage" else answer)
        return None

    def _take(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, Any]]:
        batch = Batch.model_validate_json(body)
        with self._mutex:
            if request.headers["Authorization"] != f"Bearer {self.token}":
                return 401, {}
            if batch.attempt != self.attempt:
                return 410, {}
            self.batches += 1
            if batch.heartbeat:
                self.heartbeats.append(batch.heartbeat)
            next_seq = len(self.events) + 1
            if batch.first_seq > next_seq:
                return 409, {"next_seq": next_seq}
            self.events += [event.model_dump() for event in batch.events if event.seq >= next_seq]
            known = None if batch.heartbeat is None else batch.heartbeat.decided_through
            fresh = (
                []
                if known is None
                else [
                    review_decision.model_dump()
                    for review_decision in self.review_decisions
                    if review_decision.number > known
                ]
            )
            return 200, {"next_seq": len(self.events) + 1, "desired": self.desired, "review_decisions": fresh}


def _answer(request: BaseHTTPRequestHandler, status: int, answer: object) -> None:
    body = json.dumps(answer).encode()
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
