"""Reads the fields of a request, each of which may be anything: what is wrong is named, and refused."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from engine.rollout.agents.asked import RequestRefused
from engine.spec.message import Malformed, ToolRequest, ToolSchema, arguments_in, unstorable

MOST_MESSAGES = 4096
MOST_TOOLS = 128
MOST_CHOICES = 16
MOST_STOPS = 16
LONGEST_STOP = 256
SHOWN_CHARACTERS = 100
SIGNS, MOST_SIGNS = (b",", b"[", b"{"), 2**18
"""In a whole body, its texts included, which may be JSON again: behind each of them a value may begin."""
LONGEST_NAME = 128

Document = Mapping[str, Any]


def document_in(body: bytes) -> dict[str, Any]:
    """The object that a body is.  Raises RequestRefused."""
    if (signs := sum(map(body.count, SIGNS))) > MOST_SIGNS:
        raise RequestRefused(
            "size", f"the body has {signs} commas, braces and brackets: use at most {MOST_SIGNS}, for it takes too long"
        )
    try:
        document = json.loads(body.decode("utf-8"), parse_constant=_refused_constant)
    except (ValueError, RecursionError) as error:
        raise RequestRefused("malformed", f"the body is no JSON: {str(error)[:SHOWN_CHARACTERS]}") from error
    if not isinstance(document, dict):
        raise RequestRefused("malformed", "the body is no JSON object")
    if (problem := unstorable(document)) is not None:
        raise RequestRefused("malformed", f"the body cannot be kept: {problem}")
    return document


def wrong(field: str, value: object, expected: str) -> NoReturn:
    shown = json.dumps(value, default=str)[:SHOWN_CHARACTERS]
    raise RequestRefused("malformed", f"{field} = {shown}: use {expected}", field=field)


def lacking(field: str, value: object, reason: str) -> NoReturn:
    """The generator does not have this."""
    shown = json.dumps(value, default=str)[:SHOWN_CHARACTERS]
    raise RequestRefused("unsupported", f"{field} = {shown}: {reason}; leave it out", field=field)


def check_options(
    document: Document, known: Collection[str], neutral: Mapping[str, Sequence[object]], no_matter: Collection[str]
) -> None:
    """``neutral``: options that the generator lacks, by the values that ask for nothing.  All faults are named at
    once."""
    faults = [
        name
        for name, value in document.items()
        if not _asks_nothing(value)
        and name not in known
        and name not in no_matter
        and not any(value == choice and isinstance(value, type(choice)) for choice in neutral.get(name, ()))
    ]
    if faults:
        listed = ", ".join(f"{name} = {json.dumps(document[name])[:SHOWN_CHARACTERS]}" for name in faults)
        raise RequestRefused(
            "unsupported", f"the policy has no such options: {listed}; leave them out", field=faults[0]
        )


def _asks_nothing(value: object) -> bool:
    """Nothing, a list of nothing, or an object without a value in it."""
    if isinstance(value, dict):
        return all(map(_asks_nothing, value.values()))
    return value is None or value == []


def forbids_calls(document: Document) -> bool:
    """Whether ``tool_choice``, as OpenAI has it, is "none"; the policy cannot be made to call."""
    choice = document.get("tool_choice")
    if isinstance(choice, dict) or choice in ("required", "any"):
        lacking("tool_choice", choice, "the policy cannot be made to call a tool")
    if choice not in (None, "auto", "none"):
        wrong("tool_choice", choice, 'one of null, "auto", "none"')
    return choice == "none"


def switches(document: Document, name: str) -> Mapping[str, bool]:
    """An object of fields that are true or false; empty where there is none."""
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(switch, bool | None) for switch in value.values()):
        wrong(name, value, "an object whose fields are true or false")
    return {key: switch for key, switch in value.items() if switch is not None}


def no_role(role: object, field: str, known: str) -> NoReturn:
    problem = "is missing" if role is None else f"= {str(role)[:40]!r}"
    raise RequestRefused("conversation", f"{field}.role {problem}: use {known}", field=field)


def text(document: Document, name: str, default: str = "") -> str:
    value = document.get(name)
    if value is None:
        return default
    return value if isinstance(value, str) else wrong(name, value, "a text")


def flag(document: Document, name: str) -> bool:
    value = document.get(name)
    if value is None:
        return False
    return value if isinstance(value, bool) else wrong(name, value, "true or false")


def number(document: Document, name: str, least: int, most: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        wrong(name, value, f"a whole number from {least} to {most}")
    return int(value)


def share(document: Document, name: str, most: float) -> float | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        wrong(name, value, f"a number from 0 to {most:g}")
    return float(value)


def stops(document: Document, name: str) -> tuple[str, ...]:
    """A text or several, at which a turn ends."""
    value = document.get(name)
    if value is None:
        return ()
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or len(listed) > MOST_STOPS or not all(map(_is_stop, listed)):
        wrong(name, value, f"at most {MOST_STOPS} texts of 1 to {LONGEST_STOP} characters")
    return tuple(listed)


def _is_stop(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_STOP


def objects(value: object, name: str, most: int) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        wrong(name, value, "a list of objects")
    if len(value) > most:
        wrong(name, f"{len(value)} entries", f"at most {most}")
    return value


def plain_text(content: object, name: str, kinds: Collection[str]) -> str:
    """A text, or parts of text of one of these ``kinds``, which are one behind the other."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = objects(content, name, MOST_MESSAGES)
    for place, part in enumerate(parts):
        if part.get("type") not in kinds:
            raise RequestRefused(
                "conversation",
                f"{name}.{place}.type = {json.dumps(part.get('type'))[:SHOWN_CHARACTERS]}: the model reads text alone",
                field=name,
            )
        if not isinstance(part.get("text"), str):
            wrong(f"{name}.{place}.text", part.get("text"), "a text")
    return "".join(part["text"] for part in parts)


def tool_schema(name: object, description: object, parameters: object, field: str) -> ToolSchema:
    if not isinstance(name, str) or not name or name.split() != [name] or len(name) > LONGEST_NAME:
        wrong(f"{field}.name", name, f"a name of at most {LONGEST_NAME} characters, without white space")
    if not isinstance(description, str | None):
        wrong(f"{field}.description", description, "a text")
    if not isinstance(parameters, dict | None):
        wrong(f"{field}.parameters", parameters, "a JSON schema")
    return ToolSchema(name, description or "", parameters or {"type": "object"})


def check_names(tools: Sequence[ToolSchema]) -> tuple[ToolSchema, ...]:
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        wrong("tools", names, "a name of its own for each tool")
    return tuple(tools)


def tool_request(name: object, written: object, call_id: object, field: str) -> ToolRequest:
    """A call that the agent says the policy made; ``written``: its arguments as JSON text, empty where it has none, or
    as an object."""
    if not isinstance(name, str):
        wrong(f"{field}.name", name, "the name of a tool")
    if not isinstance(call_id, str) or not 0 < len(call_id) <= LONGEST_NAME:
        wrong(f"{field}.id", call_id, f"a text of at most {LONGEST_NAME} characters")
    if isinstance(written, dict):
        return ToolRequest(name, written, call_id)
    if not isinstance(written, str):
        wrong(f"{field}.arguments", written, "a JSON object as text")
    try:
        return ToolRequest(name, arguments_in(written) if written.strip() else {}, call_id)
    except ValueError as problem:
        return ToolRequest(name, {}, call_id, Malformed(written, str(problem)))


def arguments_text(request: ToolRequest) -> str:
    """As the agent is given them; what the policy wrote, where that is no JSON."""
    if request.malformed is not None:
        return request.malformed.text
    return json.dumps(dict(request.arguments), ensure_ascii=False)


def _refused_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
