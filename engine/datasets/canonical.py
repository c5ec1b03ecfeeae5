"""From a row of a source to the canonical row: the mapping applied, and every fault of the row by its column."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.datasets.json_lines import parsed
from engine.datasets.sources import SourceRow, fault
from engine.spec.dataset_preparation import ColumnMapping
from engine.spec.dataset_report import RowFault
from engine.spec.dataset_row import DatasetRow
from engine.spec.problems import problems_in

_TEXTS = ("id", "prompt", "answer", "tests", "image", "group")
_WITH_NUMBERS = ("id", "answer", "group")
"""Parts for which a number of the source is taken as its text."""
_UNNAMED = "0" * 32
"""The id of a row until it is named by its content."""


def canonical(file: Path, row: SourceRow, mapping: ColumnMapping) -> DatasetRow | list[RowFault]:
    """The row, or everything that is wrong with it.  Without a mapped id it is named by its content."""
    faults: list[RowFault] = []
    parts: dict[str, Any] = {}
    for part, column in mapping.parts.items():
        try:
            value = _part(part, row.values.get(column))
        except ValueError as error:
            remedy = f"write it as a {'JSON object' if part == 'metadata' else 'text'}, or map another column to {part}"
            if part == "messages":
                remedy = 'write it as a list: [{"role": "user", "content": ...}]'
            faults.append(fault(file, row.line, column, row.values[column], str(error), remedy))
            continue
        if value is not None:
            parts[part] = value
    if mapping.metadata_keys:
        kept = {key: row.values[key] for key in mapping.metadata_keys if row.values.get(key) is not None}
        parts["metadata"] = {**parts.get("metadata", {}), **kept} or None
    if faults:
        return faults
    return _validated(file, row, parts, mapping)


def _part(part: str, value: Any) -> Any:
    """Raises ValueError for a value that the part cannot have."""
    if value is None or (value == "" and part != "answer"):
        return None
    if part in _TEXTS:
        return _text(part, value)
    structured = parsed_text(value) if isinstance(value, str) else value
    wanted, name = (dict, "JSON object") if part == "metadata" else (list, "list of messages")
    if not isinstance(structured, wanted):
        raise ValueError(f"it is no {name} but a {_kind(structured)}")
    return structured


def _text(part: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if part in _WITH_NUMBERS and isinstance(value, bool | int | float):
        return json.dumps(value)
    raise ValueError(f"it is no text but a {_kind(value)}")


def parsed_text(text: str) -> Any:
    """Raises ValueError also for text that is nested too deeply."""
    try:
        return parsed(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)


def _validated(
    file: Path, row: SourceRow, parts: dict[str, Any], mapping: ColumnMapping
) -> DatasetRow | list[RowFault]:
    named = parts if "id" in parts or mapping.id else {**parts, "id": _UNNAMED}
    try:
        found = DatasetRow.model_validate(named)
    except ValidationError as error:
        problems = problems_in(error, DatasetRow)
        return [
            fault(file, row.line, _column(problem.field, mapping), problem.value, problem.message, problem.remedy)
            for problem in problems
        ]
    if found.id != _UNNAMED:
        return found
    return found.model_copy(update={"id": hashlib.sha256(found.line()).hexdigest()[:32]})


def _column(field: str, mapping: ColumnMapping) -> str:
    """``messages.2.role`` by the name of the source's column."""
    part, _, inner = field.partition(".")
    column = mapping.parts.get(part, "" if part != "prompt" else mapping.messages or "")
    return f"{column}.{inner}" if inner and column else column
