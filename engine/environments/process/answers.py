"""What an environment process may answer: every field with its type and its bound, and nothing else.

The process is not trusted.  An answer that does not fit is the environment's fault and costs one episode; nothing of it
is used.
"""

from typing import Annotated, Any, TypeVar

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from engine.environments.schema_bounds import LARGEST_SCHEMA, UNBOUNDED_KEYWORDS, keys_in, parts_in
from engine.spec.message import Message, Role, ToolSchema, unstorable
from engine.spec.strict import LARGEST_NUMBER, MOST_TASKS
from engine.spec.trajectory import ErrorClass, Split, Task

LONGEST_TEXT = 2**20
"""Characters of one text."""
MOST_TOOLS = 128
MOST_MESSAGES = 1024
MOST_COMPONENTS = 64
TASKS_PER_ANSWER = 64
REFUSED_KEYWORDS = UNBOUNDED_KEYWORDS | {"$id"}
"""What the JSON schema of a tool may not use: arguments are checked in the engine."""
AnswerT = TypeVar("AnswerT", bound="ProcessAnswer")


class MisfitAnswer(Exception):
    """The process answered something that the contract does not know; the message names field and value."""


def _storable(value: Any) -> Any:
    if problem := unstorable(value):
        raise ValueError(problem)
    return value


def _schema(parameters: dict[str, Any]) -> dict[str, Any]:
    if (parts := parts_in(_storable(parameters))) > LARGEST_SCHEMA:
        raise ValueError(f"the schema has {parts} parts; give the tool a simpler one, of at most {LARGEST_SCHEMA}")
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        raise ValueError(f"no JSON schema: {error.message[:200]}") from error
    if used := sorted(REFUSED_KEYWORDS & keys_in(parameters)):
        raise ValueError(f"the schema uses {', '.join(used)}, which is not taken from an environment process")
    return parameters


Text = Annotated[str, Field(max_length=LONGEST_TEXT), AfterValidator(_storable)]
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^\S+$"), AfterValidator(_storable)]


class ProcessAnswer(BaseModel):
    """Types are not converted: a number is no text, and 1 is not true."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Started(ProcessAnswer):
    type: str = Field(max_length=256)
    restorable: bool


class Count(ProcessAnswer):
    count: int = Field(ge=0, le=MOST_TASKS)


class AnsweredTask(ProcessAnswer):
    id: Name
    split: Split
    level: int = Field(ge=0, le=2**31)
    question: Text
    answer: Text

    def task(self) -> Task:
        return Task.model_validate(self.model_dump())


class Tasks(ProcessAnswer):
    tasks: list[AnsweredTask] = Field(max_length=TASKS_PER_ANSWER)


class Tool(ProcessAnswer):
    name: Name
    description: Text = ""
    parameters: Annotated[dict[str, Any], AfterValidator(_schema)]

    def schema_(self) -> ToolSchema:
        return ToolSchema(self.name, self.description, self.parameters)


class Tools(ProcessAnswer):
    tools: list[Tool] = Field(max_length=MOST_TOOLS)


class AnsweredMessage(ProcessAnswer):
    role: Role
    content: Text
    tool: Name | None = None
    call: Name | None = None

    def message(self) -> Message:
        return Message(self.role, self.content, self.tool, self.call)


class Opening(ProcessAnswer):
    messages: list[AnsweredMessage] = Field(max_length=MOST_MESSAGES)


class AnsweredCall(ProcessAnswer):
    id: Name
    name: Name
    output: Text
    error_class: ErrorClass | None = None
    seconds: float = Field(ge=0, le=LARGEST_NUMBER)


class Acted(ProcessAnswer):
    calls: list[AnsweredCall] = Field(max_length=MOST_MESSAGES)
    messages: list[AnsweredMessage] = Field(max_length=MOST_MESSAGES)
    done: bool


class Score(ProcessAnswer):
    success: bool
    components: dict[Name, Annotated[float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]] = Field(
        max_length=MOST_COMPONENTS
    )


class Snapshot(ProcessAnswer):
    snapshot: int


class Nothing(ProcessAnswer):
    """What comes of a verb that gives nothing."""


def read_as(kind: type[AnswerT], verb: str, fields: Any) -> AnswerT:
    """Raises MisfitAnswer."""
    try:
        return kind.model_validate(fields)
    except (ValidationError, RecursionError) as error:
        raise MisfitAnswer(f"what {verb} gave does not fit the contract: {_in_words(error)}") from None


def _in_words(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    faults = error.errors(include_url=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, fault['loc']))} = {fault['input']!r:.80}: {fault['msg']}" for fault in faults[:3]
    )
