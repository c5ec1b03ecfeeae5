"""What a server says of its tools, read as hostile: bounded, in a form that is cheap to check, and under its own name.

A schema is kept without the keywords whose check can take more time than a value is long (patterns, unique items); the
server looks at those itself.  References are put in their places, so that none leads round or elsewhere.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from engine.environments.schema_bounds import LARGEST_SCHEMA, NAMES_TO_SCHEMAS, UNBOUNDED_KEYWORDS
from engine.spec.message import ToolSchema, unstorable

LONGEST_DESCRIPTION = 2000
DEEPEST_SCHEMA = 16
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_LEFT_OUT = UNBOUNDED_KEYWORDS | {
    "$schema", "$id", "$defs", "definitions", "$anchor", "$dynamicAnchor", "$comment", "format", "propertyNames",
    "examples",
}  # fmt: skip
_VALUES = frozenset({"enum", "const", "default", "required", "title", "description", "type"})


class ListingRefused(Exception):
    """The message says which tool, and what is wrong with it."""


def tools_in(listed: object, server: str) -> tuple[ToolSchema, ...]:
    """Raises ``ListingRefused``."""
    if not isinstance(listed, list) or not listed:
        raise ListingRefused("it lists no tools")
    tools = tuple(_tool(tool, server) for tool in listed)
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ListingRefused(f"it lists {twice[0]} twice")
    return tools


def _tool(listed: object, server: str) -> ToolSchema:
    name = listed.get("name") if isinstance(listed, Mapping) else None
    if not isinstance(listed, Mapping) or not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ListingRefused(f"the name {str(name)[:60]!r} of a tool is none of letters, digits, _ and -, 40 at most")
    description = listed.get("description") or ""
    if not isinstance(description, str) or len(description) > LONGEST_DESCRIPTION:
        raise ListingRefused(f"{name}: its description is no text of at most {LONGEST_DESCRIPTION} characters")
    schema = _schema(name, listed.get("inputSchema"))
    if (problem := unstorable([description, schema])) is not None:
        raise ListingRefused(f"{name}: {problem}")
    return ToolSchema(f"{server}_{name}", description, schema)


def _schema(name: str, listed: object) -> dict[str, Any]:
    if not isinstance(listed, dict) or listed.get("type") != "object":
        raise ListingRefused(f"{name}: its inputSchema is not one of an object")
    try:
        schema = _Plain(listed).schema()
        Draft202012Validator.check_schema(schema)
    except (ValueError, SchemaError) as error:
        reason = error.message if isinstance(error, SchemaError) else str(error)
        raise ListingRefused(f"{name}: its inputSchema cannot be used: {reason[:200]}") from error
    return schema


class _Plain:
    """One schema on its way to the plain form."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema, self._left = schema, LARGEST_SCHEMA

    def schema(self) -> dict[str, Any]:
        """References are in their places before its parts are counted.  Raises ValueError."""
        return self._table(self._schema, 0)

    def _table(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        self._count(depth)
        if "$ref" in schema or "$dynamicRef" in schema:
            return self._table(self._referred(schema), depth + 1)
        plain = dict[str, Any]()
        for key, value in schema.items():
            if key in _LEFT_OUT:
                continue
            if key in NAMES_TO_SCHEMAS and isinstance(value, dict):
                plain[key] = {name: self._value(inner, depth + 1) for name, inner in value.items()}
            else:
                plain[key] = self._kept(value) if key in _VALUES else self._value(value, depth + 1)
        return plain

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            return self._table(value, depth)
        self._count(depth)
        return [self._value(inner, depth + 1) for inner in value] if isinstance(value, list) else value

    def _kept(self, value: Any) -> Any:
        self._left -= len(json.dumps(value)) // 20
        return value

    def _referred(self, schema: dict[str, Any]) -> dict[str, Any]:
        place, _, name = str(schema.get("$ref", "")).rpartition("/")
        found = {"#/$defs": "$defs", "#/definitions": "definitions"}.get(place)
        definitions = self._schema.get(found) if found else None
        target = definitions.get(name) if isinstance(definitions, dict) else None
        if not isinstance(target, dict):
            raise ValueError("a reference does not lead into its own $defs")
        return target

    def _count(self, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > DEEPEST_SCHEMA:
            raise ValueError(f"it has more than {LARGEST_SCHEMA} parts, or lies more than {DEEPEST_SCHEMA} deep")
