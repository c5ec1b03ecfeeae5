"""No request is read beyond a number of bytes, whether it says its length or not."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandboxes.service.refusals import TooLarge


class BodyLimit:
    """ASGI middleware.  Raises ``TooLarge`` where the body is read, which is where exceptions are answered."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self.app = app
        self.most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.most_bytes:
                raise TooLarge(f"the request has more than {self.most_bytes} bytes: send less, or in several files")
            return message

        await self.app(scope, counted if scope["type"] == "http" else receive, send)
