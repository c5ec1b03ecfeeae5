"""An agent: a program that owns its context, works in a task's sandbox, and asks the policy as it would a service."""

from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints

from engine.spec.strict import Strict

ExitClass = Literal["done", "crashed", "silent", "over-budget", "killed", "frozen"]
"""How an agent ended: by itself, with exit code 0; with another one; without ever having asked the policy; by a limit
on time, calls or tokens; by the sandbox, for memory or a flood of output; by an alert."""

RESERVED_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "PALESTRA_TASK")
"""They are set for the agent, and not by the spec."""
MOST_FILES = 64
LONGEST_FILE = 2**18


def _inside(path: str) -> str:
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError("use a relative path below the agent's folder, without '.' and '..'")
    return str(PurePosixPath(path))


def _unreserved(name: str) -> str:
    if name in RESERVED_VARIABLES:
        raise ValueError("this variable says where the model is, and is set for the agent; use another name")
    return name


def _text_of_arguments(argument: str) -> str:
    if "\0" in argument:
        raise ValueError("no argument of a program holds the character U+0000")
    return argument


Argument = Annotated[str, StringConstraints(max_length=LONGEST_FILE), AfterValidator(_text_of_arguments)]


class AgentFile(Strict):
    """A file of the agent's own."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_inside)]
    """Below /tmp/agent."""
    content: str = Field(max_length=LONGEST_FILE)
    """What stands in it, as UTF-8."""


class AgentVariable(Strict):
    """A variable of the agent's environment."""

    name: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100), AfterValidator(_unreserved)
    ]
    value: Argument


class AgentFolder(Strict):
    """A folder of the machine that the engine runs on: the agent's packages, say."""

    command_line_only: ClassVar[bool] = True
    """The service has no folder of its users."""

    path: str = Field(min_length=1, max_length=4096)
    """Copied to /tmp/agent before the agent starts; links in it are refused."""


class AgentProgram(Strict):
    """What is started, once per episode, and how far it may go."""

    command: list[Argument] = Field(min_length=1, max_length=64)
    """The program and its arguments; ``{task}`` in them is the text of the task."""
    working_folder: Literal["/work", "/tmp/agent"] = "/work"
    """Where it starts: among the task's files, or among its own."""
    files: list[AgentFile] = Field(default=[], max_length=MOST_FILES)
    """Files below /tmp/agent that it comes with; what its image holds need not be here."""
    folder: AgentFolder | None = None
    """A folder whose files it comes with as well."""
    variables: list[AgentVariable] = Field(default=[], max_length=MOST_FILES)
    """The variables of its environment, beside those that tell it where the model is."""
    answer_file: str = Field(default="answer.txt", min_length=1, max_length=200)
    """Below /work: what stands in it at the end is the answer, where the task asks for one."""
    timeout_s: float = Field(default=300.0, gt=0, le=3600)
    """Wall-clock limit of the whole episode, in seconds; then the agent is ended."""
    parallel_calls: int = Field(default=4, ge=1, le=32)
    """Calls of the policy that may be under way at once; one more is answered 429."""
    sampled_tokens: int = Field(default=2**20, ge=1, le=2**31 - 1)
    """Tokens that the policy may sample for one episode, over all calls."""
    log_bytes: int = Field(default=8192, ge=0, le=2**16)
    """How much of its output, from the end, is kept beside its calls."""


class RefusedCalls(Strict):
    """Requests of one kind that were refused."""

    kind: str = Field(max_length=40)
    number: int = Field(ge=1)


class AgentRecord(Strict):
    """What is known of an agent's episode beside its calls."""

    exit: ExitClass
    exit_code: int | None = None
    """None where it did not come to an end of its own."""
    seconds: float
    log: str = ""
    """The end of what it wrote to its output, its key blacked out."""
    refused: list[RefusedCalls] = []
    """Requests that were answered with an error, by kind."""
    unfinished: int = Field(default=0, ge=0)
    """Calls that were given up before their turn was sampled: the agent hung up, or had ended.  Nothing of them is
    kept."""
    dropped_tokens: int = Field(default=0, ge=0)
    """Tokens that were sampled behind a stop string, which nobody reads and nothing learns."""
