"""Mathematics: an answer is right that is equal to the row's, as the library math-verify finds.

The library reads hostile text with sympy, whose time and memory nothing bounds from inside.  So it runs in processes of
their own (``math_check.py``), which serve one check after the other, and of which each check is ended by itself.
"""

import asyncio
import json
import select
import subprocess
import sys
import weakref
from queue import Empty, SimpleQueue

from engine.environments.contract import VerifierFailed
from engine.environments.verifiers import math_check
from engine.environments.verifiers.contract import WRONG, Verification
from engine.spec.dataset_row import DatasetRow
from engine.spec.verifier import MathVerify

AT_ONCE = 2
"""Processes of checks."""
LONGEST_RESULT = 2000
"""In characters.  What is longer is wrong."""
ANSWER_S = math_check.CHECK_S + 30.0
"""For a check, and before the first one the library's loading."""


class MathVerifier:
    def __init__(self, settings: MathVerify) -> None:
        self._settings = settings
        self._room = asyncio.Semaphore(AT_ONCE)
        self._idle = SimpleQueue[subprocess.Popen[bytes]]()

    def lacking(self, row: DatasetRow) -> str | None:
        if row.answer is None or not row.answer.strip():
            return "it has no answer to compare with"
        return f"its answer has more than {LONGEST_RESULT} characters" if len(row.answer) > LONGEST_RESULT else None

    async def verified(self, result: str, row: DatasetRow) -> Verification:
        if not result.strip() or len(result) > LONGEST_RESULT:
            return WRONG
        document = {"expected": row.answer, "result": result, "digits": self._settings.digits}
        async with self._room:
            found = await asyncio.to_thread(self._checked, json.dumps(document).encode() + b"\n")
        if found not in ("equal", "differs"):
            raise VerifierFailed(f"verifier math-verify: {found.removeprefix('fault ') or 'the process has ended'}")
        return Verification(found == "equal")

    def _checked(self, line: bytes) -> str:
        """The line that answers; empty where there is none.  A process that does not answer is ended."""
        try:
            process = self._idle.get_nowait()
        except Empty:
            process = self._started()
        found = ""
        try:
            found = _answer(process, line)
        finally:
            if found:
                self._idle.put(process)
            else:
                _ended(process)
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", math_check.__file__]
        process = subprocess.Popen(
            command, env={}, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        weakref.finalize(self, _ended, process)
        return process


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _answer(process: subprocess.Popen[bytes], line: bytes) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except OSError:
        return ""
    answered = select.poll()  # select.select knows no descriptor above 1023
    answered.register(process.stdout, select.POLLIN)
    ready = answered.poll(ANSWER_S * 1000)
    return process.stdout.readline().decode("utf-8", "replace").strip() if ready else ""
