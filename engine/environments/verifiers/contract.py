"""What a verifier owes to an environment: whether an answer is right, decided in bounded time.

An answer is hostile input.  What is too long, too deep or no number is wrong.  ``VerifierFailed`` is for the faults of
a row or of the verifier itself, and takes the episode out of training, so that it teaches nothing.
"""

from dataclasses import dataclass
from typing import Protocol

from engine.spec.dataset_row import DatasetRow
from sandboxes.spec import SandboxSpec


class UnusableVerifier(Exception):
    """The settings of a verifier cannot be used here."""

    def __init__(self, field: str, value: str, problem: str, remedy: str) -> None:
        """``field`` is the path from the verifier."""
        super().__init__(problem)
        self.field, self.value, self.problem, self.remedy = field, value, problem, remedy


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verifier found."""

    success: bool
    share: float | None = None
    """The part of the tests that passed, or the score that was given, in [0, 1]; None where there are no parts."""


def fresh_sandbox(sandbox: SandboxSpec, *, timeout_s: float) -> SandboxSpec:
    """The spec of a sandbox in which a verifier runs code: limits as the environment's, and no way to any network."""
    return sandbox.model_copy(update={"network": "none", "egress": None, "snapshots": False, "timeout_s": timeout_s})


WRONG = Verification(success=False)


class Verifier(Protocol):
    def lacking(self, row: DatasetRow) -> str | None:
        """Why no answer to this row can be checked; None where it can."""
        ...

    async def verified(self, result: str, row: DatasetRow) -> Verification:
        """Check what the answer gives as its result.  Raises ``VerifierFailed``, and what sandboxes raise.

        Whatever else it raises is a fault of the verifier, and counts as ``VerifierFailed``.
        """
        ...
