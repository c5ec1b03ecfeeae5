"""Schemas of the tools of worlds, as short as they are alike."""

from collections.abc import Mapping
from typing import Any

from engine.spec.message import ToolSchema

LONGEST_TEXT = 200
"""Characters of a query, an option or a name."""


def tool(
    name: str, description: str, required: Mapping[str, Any] | None = None, optional: Mapping[str, Any] | None = None
) -> ToolSchema:
    """A tool that takes these arguments, by name with their JSON schema, and no others."""
    required, optional = dict(required or {}), dict(optional or {})
    parameters = {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
        "additionalProperties": False,
    }
    return ToolSchema(name, description, parameters)


def short_text() -> dict[str, Any]:
    return {"type": "string", "maxLength": LONGEST_TEXT}
