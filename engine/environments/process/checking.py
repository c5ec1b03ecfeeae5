"""An environment package played from beginning to end, to find what a run would trip over."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import psutil
from jsonschema import Draft202012Validator

from engine.environments.contract import EnvironmentProcessLost, Observation, Restorable, VerifierFailed
from engine.environments.process.answers import MisfitAnswer, Tasks
from engine.environments.process.connection import EnvironmentProcess, EnvironmentProgram, RaisedInProcess
from engine.environments.process.environment import ProcessEnvironment
from engine.environments.process.kept import kept_process
from engine.environments.process.thread import awaited, waited
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema
from engine.spec.trajectory import Split, Task

SPLITS: tuple[Split, ...] = get_args(Split)
CHECKED_TASKS = 4
"""The tasks that are checked of each split."""
FAULTS = (EnvironmentProcessLost, RaisedInProcess, MisfitAnswer, VerifierFailed)


class NoSandboxes:
    def acquire(self) -> Any:
        raise RuntimeError("a package takes no sandbox")


@dataclass(slots=True)
class CheckReport:
    """What was found.  Without ``faults`` a run can use it."""

    tasks: dict[str, int] = field(default_factory=dict)
    tools: list[str] = field(default_factory=list)
    episodes: int = 0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    start_s: float = 0.0
    call_s: float = 0.0
    """The mean time of a call."""
    memory_bytes: int = 0
    """Resident, of all of its processes, after the episodes; 0 where there is no cgroup to count them."""


async def checked(program: EnvironmentProgram) -> CheckReport:
    """Raises what starting the process raises; what it does wrong afterwards is in the report."""
    report, began = CheckReport(), time.monotonic()
    environment = ProcessEnvironment(program)
    report.start_s = time.monotonic() - began
    calls = [0, 0.0]
    for split in SPLITS:
        try:
            await _check_split(environment, split, report, calls)
        except FAULTS as fault:
            report.faults.append(f"{split}: {fault}")
    report.call_s = calls[1] / calls[0] if calls[0] else 0.0
    report.memory_bytes = memory_of(program)
    if not report.faults:
        report.faults += await _differences(environment, program)
    return report


async def _check_split(environment: ProcessEnvironment, split: Split, report: CheckReport, calls: list[float]) -> None:
    tasks = environment.tasks(split)
    report.tasks[split] = len(tasks)
    if not tasks:
        report.faults.append(f"{split}: there is no task; give at least one")
    ids = [task.id for task in tasks[:64]]
    if len(set(ids)) < len(ids):
        report.faults.append(f"{split}: two tasks have the same id")
    for task in tasks[:CHECKED_TASKS]:
        tools = environment.tools(task)
        report.tools = sorted({*report.tools, *(tool.name for tool in tools)})
        await _play(environment, task, [AssistantMessage("0")], report, calls)
        await _play(environment, task, [message for tool in tools if (message := _call(tool, report))], report, calls)


async def _play(
    environment: ProcessEnvironment,
    task: Task,
    messages: Sequence[AssistantMessage],
    report: CheckReport,
    calls: list[float],
) -> None:
    """One episode of these messages; whatever goes wrong in it is a fault with the task's id."""
    report.episodes += 1
    try:
        async with environment.session(task, NoSandboxes()) as session:
            if fault := _unreadable(await session.reset()):
                report.faults.append(f"{task.id}: reset gave {fault}")
            if isinstance(session, Restorable):
                await session.restore(await session.snapshot())
            for message in messages:
                began = time.monotonic()
                observation = await session.act(message)
                calls[0], calls[1] = calls[0] + 1, calls[1] + time.monotonic() - began
                if fault := _unfinished(observation):
                    report.faults.append(f"{task.id}: act gave {fault}")
                if observation.done:
                    break
            await session.score()
    except FAULTS as failure:
        report.faults.append(f"{task.id}: {failure}")


def _unreadable(messages: Sequence[Message]) -> str | None:
    return None if any(message.content for message in messages) else "nothing for the policy to read"


def _unfinished(observation: Observation) -> str | None:
    if observation.done or observation.messages:
        return None
    return "nothing for the policy to read, and done=False: the episode would never end"


def _call(tool: ToolSchema, report: CheckReport) -> AssistantMessage | None:
    """A call with the plainest arguments that fit; None where none are found."""
    arguments = _plainest(tool.parameters)
    if not isinstance(arguments, dict) or not Draft202012Validator(dict(tool.parameters)).is_valid(arguments):
        report.notes.append(f"the tool {tool.name} was not called: no arguments were found for its schema")
        return None
    return AssistantMessage(requests=(ToolRequest(tool.name, arguments),))


def _plainest(schema: Mapping[str, Any]) -> Any:
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    if schema.get("enum"):
        return schema["enum"][0]
    match schema.get("type"):
        case "object" | None:
            properties = schema.get("properties", {})
            return {name: _plainest(properties.get(name, {})) for name in schema.get("required", [])}
        case "string":
            return "a" * max(1, schema.get("minLength", 1))
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "array":
            return [_plainest(schema.get("items", {}))] * schema.get("minItems", 0)
        case _:
            return None


async def _differences(environment: ProcessEnvironment, program: EnvironmentProgram) -> list[str]:
    """Where a second process has other tasks: equal numbers must be equal tasks in every process of a run."""

    async def second(split: Split, stop: int) -> list[Task]:
        process, _ = await EnvironmentProcess.start(program)
        try:
            answers = [
                await process.ask(Tasks, "tasks", split=split, start=number, stop=number + 1) for number in range(stop)
            ]
            return [task.task() for answer in answers for task in answer.tasks]
        finally:
            await process.end("it was a comparison")

    faults = []
    for split in SPLITS:
        first = environment.tasks(split)[:CHECKED_TASKS]
        if await awaited(second(split, len(first))) != first:
            faults.append(f"{split}: a second process has other tasks; draw them from a seed of your own")
    return faults


def memory_of(program: EnvironmentProgram) -> int:
    """Resident bytes of a program's running process with all that it started; 0 where no cgroup counts them."""

    async def members() -> set[int]:
        return (await kept_process(program).process()).members()

    total = 0
    for pid in waited(members()):
        try:
            total += psutil.Process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            continue  # it has ended meanwhile
    return total
