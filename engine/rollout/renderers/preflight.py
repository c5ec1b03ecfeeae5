"""Whether a model folder can be talked to, found out by a process that may die of it.

A tokenizer file and a chat template come from strangers.  The sandbox of the template counts what it can; a filter
that works for hours on one value, or asks for all memory, it cannot stop.  So before a run starts, the folder is
opened and its template asked for a few conversations in a process of its own, with little memory and time, and what
it says of the folder is a problem with field, value and remedy.  Nothing else is decided here.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any

from engine.models.refusal import FIELD, ModelFolderRefused, refused
from engine.spec.message import AssistantMessage, Message, ToolSchema
from engine.spec.model import Reasoning, ToolCallFormat
from engine.spec.problems import Problem

if TYPE_CHECKING:
    from engine.rollout.renderers.chat import ChatRenderer

MOST_SECONDS = 30
"""The limit of processor time, and twice that by the clock."""
MOST_BYTES = 4 * 2**30
_TOOLS = (ToolSchema.of_text("python", "code", "Runs a program."),)
_TAKE_ANOTHER = "take the tokenizer and the template that the model came with"


def chat_problem(
    folder: Path, *, tool_calls: ToolCallFormat = "auto", reasoning: Reasoning = "auto", tools: bool = False
) -> Problem | None:
    """Return what keeps the folder from being talked to; None where nothing does.  ``tools``: there will be some."""
    choices = [str(folder), tool_calls, reasoning, str(tools)]
    command = [sys.executable, "-m", "engine.rollout.renderers.preflight", *choices]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=2 * MOST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        message = f"the chat template was not done after {2 * MOST_SECONDS} s"
        return Problem(FIELD, str(folder), message, _TAKE_ANOTHER)
    if answer.returncode == 0:
        found: Any = json.loads(answer.stdout)
        return Problem(**found) if found is not None else None
    last_line = answer.stderr.strip().splitlines()[-1:] or [f"the process ended with {answer.returncode}"]
    message = (
        f"the tokenizer or the chat template breaks, or needs more than {MOST_SECONDS} s or {MOST_BYTES} bytes: "
        f"{last_line[0]}"
    )
    return Problem(FIELD, str(folder), message, _TAKE_ANOTHER)


def problem_here(folder: Path, tool_calls: ToolCallFormat, reasoning: Reasoning, *, tools: bool) -> Problem | None:
    """The same in this process, without limits."""
    from engine.rollout.renderers.chat import chat_renderer
    from engine.rollout.renderers.template import TemplateRefused

    try:
        renderer = chat_renderer(folder, tool_calls=tool_calls, reasoning=reasoning)
        _check_letters(renderer)
        _talk(renderer, _TOOLS if tools else ())
    except ModelFolderRefused as error:
        return error.problem
    except TemplateRefused as error:
        return Problem(FIELD, str(folder), str(error), _TAKE_ANOTHER)
    return None


def _check_letters(renderer: "ChatRenderer") -> None:
    if lost := renderer.tokenizer.lost_in(ascii_letters + digits):
        message = (
            f"its tokenizer cannot hold the characters {' '.join(lost)}: no text would be read or learned as it is"
        )
        raise refused(FIELD, str(renderer.tokenizer.folder), message, _TAKE_ANOTHER)


def _talk(renderer: "ChatRenderer", tools: tuple[ToolSchema, ...]) -> None:
    opening, answer, again = [Message("user", "What is 3 + 4?")], AssistantMessage("7"), [Message("user", "And 4 + 3?")]
    renderer.prompt(opening, tools, ["Add."])
    renderer.experience_span(opening, tools, ["Add."])
    renderer.check_cuts(opening, answer, again)
    if tools:
        thought = "Sum." if renderer.may_think else ""
        call = AssistantMessage.calling("python", {"code": "print(3 + 4)"}, reasoning=thought)
        renderer.check_cuts(opening, call, [Message("tool", "7", "python")], tools)


def _limit_this_process() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(folder: str, tool_calls: ToolCallFormat, reasoning: Reasoning, tools: str) -> None:
    _limit_this_process()
    problem = problem_here(Path(folder), tool_calls, reasoning, tools=tools == "True")
    print(json.dumps(problem.as_dict() if problem is not None else None))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]  # chat_problem gives them
