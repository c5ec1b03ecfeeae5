"""JSON answers: an answer is right that is JSON, fits the schema and, where that is asked, is the row's value.

What can take long (``schema_bounds``) is checked in a process of its own, which is ended after ``CHECK_S``.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from engine.environments.contract import VerifierFailed
from engine.environments.schema_bounds import LARGEST_CHECK, UNBOUNDED_KEYWORDS, keys_in, parts_in
from engine.environments.verifiers import schema_check
from engine.environments.verifiers.contract import WRONG, UnusableVerifier, Verification
from engine.environments.verifiers.extraction import fenced_blocks
from engine.environments.verifiers.json_answer import Unreadable, canonical, read
from engine.spec.dataset_row import DatasetRow
from engine.spec.verifier import JsonSchema

CHECK_S = 5.0
AT_ONCE = 4
"""Processes of checks."""


class SchemaVerifier:
    def __init__(self, settings: JsonSchema) -> None:
        """Raises ``UnusableVerifier`` for what is no schema."""
        self._settings, self._schema = settings, settings.schema_document()
        try:
            Draft202012Validator.check_schema(self._schema)
        except SchemaError as error:
            problem = f"it is no JSON schema: {error.message[:200]}"
            remedy = "write a schema of draft 2020-12"
            raise UnusableVerifier("json_schema", settings.json_schema[:80], problem, remedy) from error
        self._is_unbounded = not UNBOUNDED_KEYWORDS.isdisjoint(keys_in(self._schema))
        self._processes = asyncio.Semaphore(AT_ONCE)

    def lacking(self, row: DatasetRow) -> str | None:
        if not self._settings.equals_answer:
            return None
        try:
            read(row.answer or "")
        except Unreadable as fault:
            return f"its answer cannot be compared with: it is no JSON ({fault})"
        return None

    async def verified(self, result: str, row: DatasetRow) -> Verification:
        try:
            value = read(self._document_in(result))
        except Unreadable:
            return WRONG
        if self._settings.equals_answer and canonical(value) != canonical(read(row.answer or "")):
            return WRONG
        if not self._takes_long(value):
            return Verification(schema_check.fits(self._schema, value))
        async with self._processes:
            return Verification(await _fits_in_process(self._schema, value))

    def _takes_long(self, value: Any) -> bool:
        return self._is_unbounded or parts_in(self._schema) * parts_in(value) > LARGEST_CHECK

    def _document_in(self, result: str) -> str:
        """A whole answer may hold its JSON in a fenced block."""
        blocks = fenced_blocks(result) if self._settings.place == "whole" else []
        return blocks[0] if blocks else result


async def _fits_in_process(schema: dict[str, Any], value: Any) -> bool:
    """Raises ``VerifierFailed`` where the check does not end, or ends without an answer."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(Path(schema_check.__file__)), env={},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        given = json.dumps({"schema": schema, "value": value}).encode()
        printed, errors = await asyncio.wait_for(process.communicate(given), CHECK_S)
    except TimeoutError as error:
        raise VerifierFailed(f"verifier json-schema: the schema was not checked within {CHECK_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if printed.strip() not in (b"fits", b"differs"):
        reason = errors.decode("utf-8", "replace").strip()[-300:]
        raise VerifierFailed(f"verifier json-schema: the check ended with {process.returncode}: {reason}")
    return printed.strip() == b"fits"
