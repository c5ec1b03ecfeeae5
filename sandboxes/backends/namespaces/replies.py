"""What the host makes of an agent's replies."""

import errno
import os
from typing import cast

from sandboxes.backends.namespaces.inside import frames
from sandboxes.backends.namespaces.link import Reply
from sandboxes.interface import ExecResult, Outcome
from sandboxes.spec import SandboxSpec
from sandboxes.tree import LONGEST_PATH_BYTES, Tree, TreeEntry, TreeLimits, TreeRefused

HINTS = {
    "missing": "it is not there",
    "link": "it is a symbolic link, which is not followed: copy what it names",
    "other": "it is neither a file nor a folder",
    "closed": "its permissions do not let its owner read it",
    "too deep": "it lies too deep: at most 64 folders and a path of 1024 bytes are copied",
    "unreadable name": "its name is no UTF-8",
    "too many": "there are more files and folders than limits.entries",
    "too large": "there are more bytes than limits.size_bytes",
}


def executed(reply: Reply) -> ExecResult:
    """Raises ``MalformedFrame``."""
    outcome, exit_code, spent_s, stdout, stderr, truncated, exception = frames.unpack_result(reply.payload)
    return ExecResult(
        cast(Outcome, outcome),
        _text(stdout),
        _text(stderr),
        exit_code,
        spent_s,
        truncated,
        _text(exception) if exception else None,
    )


def largest_tree_bytes(limits: TreeLimits) -> int:
    return limits.size_bytes + limits.entries * (frames.ENTRY_HEAD.size + LONGEST_PATH_BYTES)


def tree(reply: Reply, limits: TreeLimits) -> Tree:
    """Raises ``TreeRefused``, and ``MalformedFrame`` for more than was asked for or a path that leads elsewhere."""
    refuse(reply)
    entries = frames.unpack_entries(reply.payload)
    size_bytes = sum(len(content) for _, _, content in entries)
    if len(entries) > limits.entries or size_bytes > limits.size_bytes:
        raise frames.MalformedFrame("more files than were asked for")
    try:
        return Tree(tuple(_entry(*entry) for entry in entries))
    except ValueError as error:
        raise frames.MalformedFrame(str(error)) from None


def _entry(path: str, kind: int, content: bytes) -> TreeEntry:
    return TreeEntry(path, None if kind == frames.FOLDER else content, kind == frames.PROGRAM)


def refuse(reply: Reply) -> None:
    """Raises ``TreeRefused`` if this is a refusal to copy a path."""
    if reply.kind == frames.REFUSED and reply.payload and reply.payload[0] < len(frames.REASONS):
        path = ascii(_text(reply.payload[1 : 1 + LONGEST_PATH_BYTES]))
        raise TreeRefused(f"path = {path}: {HINTS[frames.REASONS[reply.payload[0]]]}")


def error_number(reply: Reply) -> int | None:
    """The ``errno`` of a refusal; None if the reply is none."""
    if reply.kind != frames.FAILED or len(reply.payload) != frames.ERRNO.size:
        return None
    return int(frames.ERRNO.unpack(reply.payload)[0])


def message(reply: Reply) -> str:
    code = error_number(reply)
    return "a reply that makes no sense" if code is None else os.strerror(code)


def why_not_kept(reply: Reply, spec: SandboxSpec) -> str:
    """Return why there is no snapshot, and what to do about it."""
    reasons = {
        errno.EFBIG: f"a sandbox's snapshots may hold {2 * spec.disk_mib} MiB of files: drop one, or raise disk_mib",
        errno.EMFILE: "it has too many files",
        errno.ENAMETOOLONG: "its folders are too deep",
        errno.EAGAIN: f"its {spec.processes} processes are all in use: a snapshot needs two more for a moment",
        errno.ETIMEDOUT: "its interpreter does not answer",
    }
    return f"the sandbox could not be kept: {reasons.get(error_number(reply) or 0, message(reply))}"


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
