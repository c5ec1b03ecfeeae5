"""The token with which one attempt of one run may send its batches, and nothing else.

It is signed, not stored: a token of an older attempt can still be told from a forged one, which is
the difference between 410 and 401.
"""

from uuid import UUID

from django.core.signing import BadSignature, Signer

_SIGNER = Signer(salt="palestra.runs.attempt")


def attempt_token(run_id: UUID, attempt: int) -> str:
    return _SIGNER.sign(f"{run_id}:{attempt}")


def attempt_in(token: str, run_id: UUID) -> int | None:
    """The attempt that ``token`` was made for, or None if it is no token of this run.  Compares in constant time."""
    try:
        signed_run, attempt = _SIGNER.unsign(token).split(":")
    except (BadSignature, ValueError):
        return None
    return int(attempt) if signed_run == str(run_id) else None
