"""The bytes between the host and the agent of a sandbox; both sides import this module.

A frame is a length (``!I``) and that many bytes.  Requests come from the host, which the agent
trusts: a marshalled ``(id, verb, arguments)``.  Replies come from the sandbox, which the host does *not*
trust: a fixed head and a payload of plain fields, every length of which ``unpack_result`` checks.
"""

import marshal
import struct

HELLO, RESULT, DATA, FAILED, REFUSED = range(5)
"""Kinds of reply: the agent is up; a program or cell ended; bytes or nothing, as asked; an ``errno``; a path that
cannot be copied, and why."""

OUTCOMES = ("ok", "error", "timeout", "memory", "output", "killed")
MARSHAL_VERSION = 2
"""Understood by every Python 3: the host's and the sandbox's may differ."""

LENGTH = struct.Struct("!I")
REPLY_HEAD = struct.Struct("!IB")
RESULT_HEAD = struct.Struct("!B?i?dHII")
ERRNO = struct.Struct("!i")
OVERHEAD_BYTES = 4096
"""More than any reply needs beside the output or content that it carries."""
EXCEPTION_BYTES = 200
FOLDER, FILE, PROGRAM = range(3)
"""Kinds of entry: a program is a file that may be executed."""
ENTRY_HEAD = struct.Struct("!BHI")
REASONS = ("missing", "link", "other", "closed", "too deep", "unreadable name", "too many", "too large")
"""Why a path is not copied (``selection.py``)."""


class MalformedFrame(Exception):
    """The other side did not keep to this protocol."""


def block(content: object) -> bytes:
    """Marshalled content with its length before it."""
    body = marshal.dumps(content, MARSHAL_VERSION)  # type: ignore[arg-type]
    return LENGTH.pack(len(body)) + body


def request(number: int, verb: str, arguments: tuple[object, ...]) -> bytes:
    return block((number, verb, arguments))


def reply(number: int, kind: int, payload: bytes = b"") -> bytes:
    return LENGTH.pack(REPLY_HEAD.size + len(payload)) + REPLY_HEAD.pack(number, kind) + payload


def pack_result(
    outcome: str,
    exit_code: int | None,
    seconds: float,
    stdout: bytes,
    stderr: bytes,
    truncated: bool,
    exception: bytes = b"",
) -> bytes:
    head = RESULT_HEAD.pack(
        OUTCOMES.index(outcome),
        exit_code is not None,
        exit_code or 0,
        truncated,
        seconds,
        len(exception),
        len(stdout),
        len(stderr),
    )
    return b"".join((head, exception, stdout, stderr))


def pack_entry(path: str, kind: int, content: bytes) -> bytes:
    name = path.encode()
    return b"".join((ENTRY_HEAD.pack(kind, len(name), len(content)), name, content))


def unpack_entries(payload: bytes) -> list[tuple[str, int, bytes]]:
    """Paths, kinds and contents as they were packed, or ``MalformedFrame``."""
    entries, at = [], 0
    while at < len(payload):
        if len(payload) - at < ENTRY_HEAD.size:
            raise MalformedFrame("an entry shorter than its head")
        kind, n_name, n_content = ENTRY_HEAD.unpack_from(payload, at)
        name_at = at + ENTRY_HEAD.size
        content_at, at = name_at + n_name, name_at + n_name + n_content
        if at > len(payload) or kind > PROGRAM:
            raise MalformedFrame("an entry with an impossible field")
        entries.append((payload[name_at:content_at].decode("utf-8", "surrogateescape"), kind, payload[content_at:at]))
    return entries


def unpack_result(payload: bytes) -> tuple[str, int | None, float, bytes, bytes, bool, bytes]:
    """The arguments that ``pack_result`` was given, or ``MalformedFrame``."""
    if len(payload) < RESULT_HEAD.size:
        raise MalformedFrame("a result shorter than its head")
    outcome, exited, code, truncated, seconds, n_exception, n_stdout, n_stderr = RESULT_HEAD.unpack_from(payload)
    if outcome >= len(OUTCOMES):
        raise MalformedFrame(f"outcome {outcome}")
    if len(payload) != RESULT_HEAD.size + n_exception + n_stdout + n_stderr:
        raise MalformedFrame("a result whose lengths do not add up")
    if n_exception > EXCEPTION_BYTES or not 0 <= seconds < float("inf"):
        raise MalformedFrame("a result with an impossible field")
    first = RESULT_HEAD.size
    stdout_at, stderr_at = first + n_exception, first + n_exception + n_stdout
    return (
        OUTCOMES[outcome],
        code if exited else None,
        seconds,
        payload[stdout_at:stderr_at],
        payload[stderr_at:],
        truncated,
        payload[first:stdout_at],
    )
