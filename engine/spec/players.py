"""Who plays held-out tasks beside the model, to try an environment before anything is trained in it."""

from typing import Any, Literal

from pydantic import Field, ValidationError

from engine.spec.message import AssistantMessage, ToolRequest, unstorable
from engine.spec.strict import Strict

Player = Literal["model", "oracle", "nop", "script"]
"""``oracle``: the environment's own solution; ``nop``: an empty answer at once; ``script``: turns that the spec has."""
MOST_SCRIPTED = 100
LONGEST_SCRIPT = 2**17


class ScriptedTurn(Strict):
    """A line of a script: ``{"call": "python", "arguments": {"code": "print(1)"}}``, or ``{"answer": "1"}``."""

    call: str = Field(default="", max_length=200)
    """The name of the tool that is called."""
    arguments: dict[str, Any] = {}
    """The arguments of the call, by name."""
    answer: str | None = None
    """The text of the answer, where no tool is called."""

    def message(self) -> AssistantMessage:
        if self.call:
            return AssistantMessage(requests=(ToolRequest(self.call, self.arguments),))
        return AssistantMessage(self.answer or "")


def turns_of_script(script: str) -> list[AssistantMessage]:
    """The turns of a script of JSON lines.  Raises ValueError, which names the line at fault."""
    lines = [(number, line) for number, line in enumerate(script.splitlines(), start=1) if line.strip()]
    if len(lines) > MOST_SCRIPTED:
        raise ValueError(f"it has {len(lines)} turns, more than {MOST_SCRIPTED}")
    return [_turn(number, line).message() for number, line in lines]


def _turn(number: int, line: str) -> ScriptedTurn:
    try:
        turn = ScriptedTurn.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"line {number}: {f'{where}: ' if where else ''}{first['msg']}") from error
    if bool(turn.call) == (turn.answer is not None):
        raise ValueError(f"line {number}: a turn either calls a tool or answers")
    if turn.arguments and not turn.call:
        raise ValueError(f"line {number}: arguments without a call")
    if problem := unstorable([turn.arguments, turn.answer, turn.call]):
        raise ValueError(f"line {number}: {problem}")
    return turn
