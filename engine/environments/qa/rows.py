"""A dataset's rows as tasks: what the policy reads first, and whether an answer to a row can be checked."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.environments import dataset_reader
from engine.environments.dataset_reader import DamagedDataset, DatasetReader, NoSuchRow
from engine.environments.imported import UnusableEnvironment
from engine.environments.qa.scoring import Check
from engine.environments.tasks import task_id
from engine.spec.dataset_row import DatasetRow
from engine.spec.message import Message
from engine.spec.problems import Problem
from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task

CHECKED_ROWS = 1000
"""The rows that are checked of each split, when the environment is made; a later row that cannot be checked is found
when it is answered."""
SPLITS: tuple[Split, ...] = ("train", "heldout")


def opened_rows(dataset: Dataset) -> DatasetReader:
    """The version that the run names.  Raises ``UnusableEnvironment``."""
    if dataset.folder is None:
        message, remedy = "no folder of rows is known here", "launch the run in the service, or set dataset.folder"
        raise UnusableEnvironment(Problem("dataset.folder", None, message, remedy))
    try:
        rows = dataset_reader.open(Path(dataset.folder))
        lacking = [split for split in SPLITS if split not in rows.splits or not rows.len(split)]
    except DamagedDataset as damaged:
        raise UnusableEnvironment(Problem("dataset.folder", dataset.folder, str(damaged), damaged.remedy)) from damaged
    if lacking:
        message = f"the version has no rows for {' and '.join(lacking)}; it has {', '.join(rows.splits)}"
        remedy = "make a version with the splits train and heldout"
        raise UnusableEnvironment(Problem("dataset.folder", dataset.folder, message, remedy))
    return rows


def with_rows_counted(dataset: Dataset, rows: DatasetReader) -> Dataset:
    """With no more tasks than there are rows."""
    counts = {f"{split}_tasks": min(getattr(dataset, f"{split}_tasks"), rows.len(split)) for split in SPLITS}
    return dataset.model_copy(update=counts)


def refuse_unusable_rows(rows: DatasetReader, checks: Sequence[Check]) -> None:
    """Raises ``UnusableEnvironment`` with the first rows that cannot be asked or checked."""
    for check in checks:
        _refuse_unusable_rows(rows, check)


def _refuse_unusable_rows(rows: DatasetReader, check: Check) -> None:
    try:
        faults = [fault for split in SPLITS for fault in _faults(rows, split, check)]
    except (DamagedDataset, NoSuchRow) as error:
        problem = Problem("dataset.folder", str(rows.folder), str(error), dataset_reader.REMEDY)
        raise UnusableEnvironment(problem) from error
    if faults:
        more = f"; and {len(faults) - 3} rows more" if len(faults) > 3 else ""
        remedy = "map the column, leave the rows out, or use another verifier"
        raise UnusableEnvironment(
            Problem(f"{check.field}.kind", check.settings.kind, "; ".join(faults[:3]) + more, remedy)
        )


def _faults(rows: DatasetReader, split: str, check: Check) -> Iterator[str]:
    for number in range(min(rows.len(split), CHECKED_ROWS)):
        row = rows.row(split, number)
        fault = _unaskable(row) or check.lacking(row)
        if fault is not None:
            yield f"row {number + 1} of {split} ({row.id}): {fault}"


def _unaskable(row: DatasetRow) -> str | None:
    messages = row.messages or []
    if any(message.tool_calls or message.role == "tool" for message in messages):
        return "its messages hold tool calls, which no episode can begin with"
    if any(message.reasoning_content for message in messages):
        return "its messages hold thoughts (reasoning_content), which no episode can begin with"
    if messages and messages[-1].role != "user":
        return f"its last message is one of the {messages[-1].role}; the question of a user must end it"
    return None


def task_of(row: DatasetRow, split: Split, number: int) -> Task:
    """The number of the row is the number of the task, for good."""
    level = (row.metadata or {}).get("level")
    return Task(
        id=task_id(split, number),
        split=split,
        level=level if type(level) is int and 1 <= level <= 1000 else 1,
        question=row.prompt if row.prompt is not None else (row.messages or [])[-1].content,
        answer=row.answer or "",
    )


def opening_of(row: DatasetRow, system_prompt: str) -> list[Message]:
    """The system prompt, with what the row's own system messages say behind it, and then the row's dialogue."""
    messages = [Message(message.role, message.content) for message in row.messages or []]
    if row.prompt is not None:
        messages = [Message("user", row.prompt)]
    texts = [system_prompt, *(message.content for message in messages if message.role == "system")]
    system = "\n\n".join(text for text in texts if text)
    dialogue = [message for message in messages if message.role != "system"]
    return [Message("system", system), *dialogue] if system else dialogue
