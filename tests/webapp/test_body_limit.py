"""No request fills the disk with its body."""

import asyncio
from typing import Any

from webapp.asgi import MOST_BODY_BYTES, application
from webapp.body_limit import BodyLimit
from webapp.catalog.uploads import PART_BYTES


def asked(most: int, chunks: list[bytes], **headers: str) -> tuple[int | None, list[Any]]:
    """The status that was answered, and what the application was handed."""
    handed: list[Any] = []
    sent: list[Any] = []

    async def view(scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            handed.append(message)
            if message["type"] == "http.disconnect" or not message["more_body"]:
                return

    async def receive() -> Any:
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    asyncio.run(BodyLimit(view, most)(scope, receive, send))
    return sent[0]["status"] if sent else None, handed


def test_a_body_that_announces_too_much_is_not_read() -> None:
    assert asked(10, [b"x"], **{"content-length": "11"}) == (413, [])
    assert asked(10, [b"x"], **{"content-length": "9" * 400}) == (413, [])


def test_a_body_that_turns_out_too_long_is_hung_up_on() -> None:
    status, handed = asked(10, [b"123456", b"78901", b"more"])
    assert status is None
    assert [message["type"] for message in handed] == ["http.request", "http.disconnect"]


def test_a_body_of_the_most_bytes_is_handed_on() -> None:
    _, handed = asked(10, [b"12345", b"67890"], **{"content-length": "10"})
    assert b"".join(message["body"] for message in handed) == b"1234567890"


def test_the_web_process_holds_it_and_a_part_fits() -> None:
    assert isinstance(application.application_mapping["http"], BodyLimit)
    assert PART_BYTES < MOST_BODY_BYTES < 2 * PART_BYTES
