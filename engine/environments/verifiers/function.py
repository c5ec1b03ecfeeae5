"""A function of the team's own: an answer is right for which it returns True, or a score that is high enough.

It runs in a fresh sandbox, into which the result and the row go as data.  Nothing of the policy runs there, unless the
function itself runs it.  Whatever it does but return a score is ``VerifierFailed``.
"""

import asyncio
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.environments.contract import VerifierFailed
from engine.environments.verifiers import function_program
from engine.environments.verifiers.contract import Verification, fresh_sandbox
from engine.spec.dataset_row import DatasetRow
from engine.spec.verifier import PythonFunction
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec

SCORING_AT_ONCE = 8
MOST_BYTES = 2**12
_PROGRAM = Path(function_program.__file__).read_text()


class _Report(BaseModel):
    """What the sandbox wrote."""

    model_config = ConfigDict(extra="forbid", strict=True)

    score: bool | float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    fault: str | None = None


class FunctionVerifier:
    def __init__(self, settings: PythonFunction, sandbox: SandboxSpec) -> None:
        self._settings = settings
        self._sandbox = fresh_sandbox(sandbox, timeout_s=settings.timeout_s)
        self._scoring = asyncio.Semaphore(SCORING_AT_ONCE)

    def lacking(self, row: DatasetRow) -> str | None:
        """The function alone knows what it needs of a row."""
        return None

    async def verified(self, result: str, row: DatasetRow) -> Verification:
        score = await self._score(result, row)
        if isinstance(score, bool):
            return Verification(score)
        return Verification(score >= self._settings.pass_score, share=score)

    async def _score(self, result: str, row: DatasetRow) -> bool | float:
        parts = row.model_dump(mode="json", exclude_none=True)
        document = {"source": self._settings.source, "result": result, "row": parts}
        async with self._scoring, opened(self._sandbox) as sandbox:
            ran = await sandbox.exec(["python3", "-I", "-c", _PROGRAM], stdin=json.dumps(document).encode(), alone=True)
            try:
                report = _Report.model_validate_json(
                    await sandbox.read_file(function_program.SCORE, limit_bytes=MOST_BYTES)
                )
            except (OSError, ValidationError) as error:
                fault = "returned no score from 0 to 1" if ran.outcome == "ok" else f"ended with {ran.outcome}"
                raise VerifierFailed(f"row {row.id}: verifier python-function: {fault}") from error
        if report.score is None or report.fault is not None:
            raise VerifierFailed(f"row {row.id}: verifier python-function: {report.fault}")
        return report.score
