"""What the host makes of an agent's replies."""

import errno
import os
from typing import cast

from sandboxes.backends.namespaces.inside import frames
from sandboxes.backends.namespaces.link import Reply
from sandboxes.interface import ExecResult, Outcome
from sandboxes.spec import SandboxSpec


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


def error_number(reply: Reply) -> int | None:
    """The ``errno`` of a refusal; None if the reply is none."""
    if reply.kind != frames.FAILED or len(reply.payload) != frames.ERRNO.size:
        return None
    return int(frames.ERRNO.unpack(reply.payload)[0])


def message(reply: Reply) -> str:
    code = error_number(reply)
    return "a reply that makes no sense" if code is None else os.strerror(code)


def why_not_kept(reply: Reply, spec: SandboxSpec) -> str:
    """Why there is no snapshot, and what to do about it."""
    reasons = {
        errno.EFBIG: f"the snapshots of a box may hold {2 * spec.disk_mib} MiB of files: drop one, or raise disk_mib",
        errno.EMFILE: "it has too many files",
        errno.ENAMETOOLONG: "its folders are too deep",
        errno.EAGAIN: f"its {spec.processes} processes are all in use: a snapshot needs two more for a moment",
        errno.ETIMEDOUT: "its interpreter does not answer",
    }
    return f"the box could not be kept: {reasons.get(error_number(reply) or 0, message(reply))}"


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
