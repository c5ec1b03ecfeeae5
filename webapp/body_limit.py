"""The longest body that a request may have, held before anything keeps it.

Django stores a request's whole body in a temporary file before a view runs; without a bound, anybody who can reach the
port could fill the disk.  Which endpoint takes how much of it is the endpoint's business.
"""

import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Coroutine[Any, Any, None]]


class BodyLimit:
    """Answers 413 where the length is announced, and hangs up where it turns out."""

    def __init__(self, app: App, most_bytes: int) -> None:
        self._app, self._most = app, most_bytes

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > self._most:
            await self._refuse(send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            return message if seen <= self._most else {"type": "http.disconnect"}

        await self._app(scope, counted, send)

    async def _refuse(self, send: Send) -> None:
        detail = f"a request's body has at most {self._most} bytes; send less, or send it in parts"
        body = {"type": "about:blank", "title": "Content Too Large", "status": 413, "detail": detail}
        headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})
