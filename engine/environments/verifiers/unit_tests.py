"""Unit tests: an answer is right whose code passes the row's tests.

    sandbox of the tests ── calls that are open ──► worker ──► sandbox of the code
             ▲                                        │               │
             └────────────── what they returned ◄─────┴───────────────┘

Both sandboxes are fresh, and neither reaches the other.  The code never shares a process, a file or a network with what
decides, so that it cannot write its own result: all that it can do is return values.  Rounds go on until no call is
open.  Before any value of the code has reached the tests, what goes wrong in their sandbox is a fault of the row
(``VerifierFailed``); afterwards it is a failed test, because a value may have caused it.  A test that makes more calls
one after the other than there are rounds fails for every answer, right ones too, and so is a fault of the row as well.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.environments.contract import VerifierFailed
from engine.environments.verifiers import inside
from engine.environments.verifiers.contract import WRONG, Verification, fresh_sandbox
from engine.spec.dataset_row import DatasetRow
from engine.spec.verifier import UnitTests
from sandboxes.interface import ExecResult, Sandbox
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec

SCORING_AT_ONCE = 8
"""Answers that are tested at once, with two sandboxes each."""
MOST_ROUNDS = 64
MOST_BYTES = 2**20
NO_RESPONSE = json.dumps({"raised": "TimeoutError", "message": "the code returned nothing"})
_PROGRAM = Path(inside.__file__).read_text()


class _Report(BaseModel):
    """What the tests' sandbox wrote."""

    model_config = ConfigDict(extra="forbid")

    open: list[tuple[str, str]]
    """Key and JSON text of each call that the code has not been asked for yet."""
    passed: int
    failed: int
    fault: str | None


class UnitTestVerifier:
    def __init__(self, settings: UnitTests, sandbox: SandboxSpec) -> None:
        self._settings = settings
        self._sandbox = fresh_sandbox(sandbox, timeout_s=settings.timeout_s)
        self._scoring = asyncio.Semaphore(SCORING_AT_ONCE)

    def lacking(self, row: DatasetRow) -> str | None:
        return None if row.tests and row.tests.strip() else "it has no tests"

    async def verified(self, result: str, row: DatasetRow) -> Verification:
        async with self._scoring, AsyncExitStack() as sandboxes:
            tests, code = [await sandboxes.enter_async_context(opened(self._sandbox)) for _ in range(2)]
            return await _Rounds(row, result, tests, code).verification()


@dataclass
class _Rounds:
    row: DatasetRow
    code: str
    of_tests: Sandbox
    of_code: Sandbox

    async def verification(self) -> Verification:
        responses: dict[str, tuple[str, str]] = {}
        for _ in range(MOST_ROUNDS):
            report = await self._report(responses)
            if report is None:
                return Verification(success=False, share=0.0)
            if report.fault is not None:
                raise VerifierFailed(f"row {self.row.id}: {report.fault}")
            if not report.open:
                return _verification(report)
            returned = await self._returned([call for _, call in report.open])
            responses |= {key: (call, text) for (key, call), text in zip(report.open, returned, strict=True)}
        reason = f"a test makes more than {MOST_ROUNDS} calls one after the other; divide it into several"
        raise VerifierFailed(f"row {self.row.id}: {reason}")

    async def _report(self, responses: dict[str, tuple[str, str]]) -> _Report | None:
        """What the tests come to with what is known; None where a value of the code ended them."""
        result = await _run(self.of_tests, "tests", {"tests": self.row.tests, "responses": responses})
        try:
            return _Report.model_validate_json(await self.of_tests.read_file(inside.REPORT, limit_bytes=MOST_BYTES))
        except (OSError, ValidationError) as error:
            if responses:
                return None
            reason = f"its tests ended with {result.outcome}: {result.stderr.strip()[-300:]}"
            raise VerifierFailed(f"row {self.row.id}: {reason}") from error

    async def _returned(self, calls: Sequence[str]) -> list[str]:
        """One JSON text a call, as the code's sandbox wrote it: nothing here reads it."""
        await _run(self.of_code, "code", {"code": self.code, "calls": [json.loads(call) for call in calls]})
        try:
            content = await self.of_code.read_file(inside.RESPONSES, limit_bytes=MOST_BYTES)
        except OSError:  # the code removed it, or wrote too much: it returned nothing
            content = b""
        lines = content.decode("utf-8", "replace").split("\n")[:-1][: len(calls)]
        return lines + [NO_RESPONSE] * (len(calls) - len(lines))


async def _run(sandbox: Sandbox, role: str, given: dict[str, Any]) -> ExecResult:
    """In a process that finds none of an earlier round."""
    argv = ["python3", "-I", "-c", _PROGRAM, role]
    await sandbox.exec(["rm", "-rf", inside.REPORT, inside.RESPONSES], alone=True)
    return await sandbox.exec(argv, stdin=json.dumps(given).encode(), alone=True)


def _verification(report: _Report) -> Verification:
    tests = report.passed + report.failed
    if not tests:
        return WRONG
    return Verification(success=report.failed == 0, share=report.passed / tests)
