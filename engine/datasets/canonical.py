"""From a row of a source to the canonical row: the mapping applied, and every fault of the row by its column."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.datasets.json_lines import parsed
from engine.datasets.sources import SourceRow, fault, value_at
from engine.spec.dataset_preparation import ColumnMapping
from engine.spec.dataset_report import RowFault
from engine.spec.dataset_row import DatasetRow
from engine.spec.json_faults import json_fault
from engine.spec.problems import problems_in

_TEXTS = ("id", "prompt", "answer", "tests", "image", "group")
_WITH_NUMBERS = ("id", "answer", "group")
"""Parts for which a number of the source is taken as its text."""
_UNNAMED = "0" * 32
"""The id of a row until it is named by its content."""


def canonical(file: Path, row: SourceRow, mapping: ColumnMapping) -> DatasetRow | list[RowFault]:
    """The row, or everything that is wrong with it.  Without a mapped id it is named by its content."""
    faults = list(_of_another_form(file, row, mapping))
    parts: dict[str, Any] = {}
    for part, column in mapping.parts.items():
        given = value_at(row.values, column)
        try:
            value = _part(part, given)
        except ValueError as error:
            remedy = _AS_OPENAI if str(error) == _SHAREGPT else _remedy(part, column, given)
            faults.append(fault(file, row.line, column, given, str(error), remedy))
            continue
        if value is not None:
            parts[part] = value
    if mapping.metadata_keys:
        known = {key: value_at(row.values, key) for key in mapping.metadata_keys}
        kept = {key: value for key, value in known.items() if value is not None}
        parts["metadata"] = {**parts.get("metadata", {}), **kept} or None
    if faults:
        return faults
    return _validated(file, row, parts, mapping)


def _of_another_form(file: Path, row: SourceRow, mapping: ColumnMapping) -> Iterator[RowFault]:
    """Rows of forms that are known and not taken, each named in one fault."""
    if mapping.prompt == "instruction" and "output" in row.values and "input" not in mapping.columns:
        # What Alpaca asks stands in two columns: without the second one half the questions would be lost.
        if (given := row.values.get("input")) not in (None, ""):
            message = "this is the form of Alpaca, whose question goes on in input, and a prompt is one column"
            remedy = "write both into one column (instruction, an empty line, input), or keep input by metadata_keys"
            yield fault(file, row.line, "input", given, message, remedy)


def _remedy(part: str, column: str, given: Any) -> str:
    if part == "messages":
        return 'write it as a list: [{"role": "user", "content": ...}]'
    if part == "prompt" and isinstance(given, list):
        return "map it to messages in place of prompt, or map a column of texts"
    if part != "metadata" and isinstance(given, dict) and given:
        return f"map a field of it to {part}: {', '.join(f'{column}.{name}' for name in list(given)[:10])}"
    return f"write it as a {'JSON object' if part == 'metadata' else 'text'}, or map another column to {part}"


_SHAREGPT = "this is the form of ShareGPT"
_AS_OPENAI = (
    'write it as [{"role": "user", "content": ...}]: from -> role (human -> user, gpt -> assistant), value -> content'
)


def _is_sharegpt(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and isinstance(given[0], dict) and "from" in given[0]


def _part(part: str, value: Any) -> Any:
    """Raises ValueError for a value that the part cannot have."""
    if value is None or (value == "" and part != "answer"):
        return None
    if part in _TEXTS:
        return _text(part, value)
    structured = parsed_text(value) if isinstance(value, str) else value
    wanted, name = (dict, "JSON object") if part == "metadata" else (list, "list of messages")
    if not isinstance(structured, wanted):
        raise ValueError(f"it is no {name} but {_kind(structured)}")
    if part == "messages" and _is_sharegpt(structured):
        raise ValueError(_SHAREGPT)
    return structured


def _text(part: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if part in _WITH_NUMBERS and isinstance(value, bool | int | float):
        return json.dumps(value)
    raise ValueError(f"it is no text but {_kind(value)}")


def parsed_text(text: str) -> Any:
    """Raises ValueError also for text that is nested too deeply."""
    try:
        return parsed(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {json_fault(error)}") from None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", int: "a number"}
    return names.get(type(value), "a number" if isinstance(value, float) else "nothing")


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
