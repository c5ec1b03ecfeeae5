"""``python -m engine chat``: a conversation with a model, as lines on stdin and stdout, in a process of its own.

    stdin ── reader thread ──► lines ──► send | stop | new ──► Dialogue ──► generator, tools in a sandbox
                                                                  │
    stdout ◄───────────────────────── JSON lines ◄────────────────┘

What is in the lines stands in ``engine/spec/chat.py``.  The process ends with its stdin, after the answer under way,
and at once with its parent.  It stores nothing and trains nothing; what its sandboxes do is judged as in a run, and an
alert freezes them.
"""

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

from pydantic import BaseModel, ValidationError

from engine.child_process import end_with_parent
from engine.cluster.generators import generator_for
from engine.cluster.sandboxes import opened_sandboxes
from engine.environments.registry import environment_for
from engine.launch.model_choice import ModelChoice, chosen_model, lacking_for_model, renderers_of, spec_of_model
from engine.launch.pinned_dataset import with_pinned_dataset
from engine.launch.preflight import BadSpec, spec_from_file
from engine.loop.environment_requirements import lacking_in_environment
from engine.models.origin import model_origin
from engine.models.refusal import ModelFolderRefused
from engine.models.vocabulary import tokens_of
from engine.rollout.chat_tools import ChatTools, ChosenTools
from engine.rollout.dialogue import Dialogue, DialogueRefused
from engine.rollout.faults import EnvironmentFailed
from engine.rollout.renderers.preflight import chat_problem
from engine.rollout.renderers.template import TemplateRefused
from engine.rollout.security_log import AlertEntry
from engine.spec.chat import (
    CHAT_INPUT,
    LONGEST_LINE,
    Alert,
    ChatMessage,
    ChatTool,
    Failed,
    Finished,
    New,
    Ready,
    Result,
    Send,
    Stop,
    Tokens,
    Usage,
)
from engine.spec.mixture import Mixture, alone
from engine.spec.model import BuiltinModel
from engine.spec.model_files import CatalogFolder
from engine.spec.problems import Problem, shown_value
from engine.spec.run import RunSpec
from sandboxes.interface import SandboxLost, SandboxUnavailable

log = logging.getLogger("engine.chat")


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """One of ``model`` and ``run`` is set."""

    model: Path | None
    run: str | None
    step: int | None
    environment: str | None
    """The path of a run's TOML file, or ``own``; absent: no tools."""
    task: int = 0
    context_tokens: int | None = None
    threads: int | None = None
    most_seconds: float = 300.0
    catalog: CatalogFolder | None = None
    """The version whose files ``model`` holds; they are compared with its manifest before anything is loaded."""
    as_json: bool = True
    """Absent: each line is a user's message, and what is sampled is printed as text."""


def chat(options: ChatOptions) -> int:
    """The exit code.  Raises BadSpec before anything is loaded."""
    end_with_parent(os.getppid())
    spec = chat_spec(options)
    with_tools = options.environment is not None
    if problems := lacking_for_chat(spec, with_tools=with_tools, task=options.task):
        raise BadSpec([str(problem) for problem in problems])
    out = Out(sys.stdout.buffer) if options.as_json else TextOut(sys.stdout.buffer)
    try:
        asyncio.run(_Chat(options, spec, out).run(sys.stdin.buffer))
    except* BrokenPipeError:
        log.info("nobody reads any more")
    return 0


def chat_spec(options: ChatOptions) -> RunSpec:
    """The run that the chat would be: its model, its environment, one slot.  Raises BadSpec."""
    chosen = chosen_model(
        ModelChoice(options.model, options.run, options.step, options.context_tokens, options.catalog)
    )
    played = _environment_from(options.environment, chosen.before)
    return spec_of_model(chosen, played, name="chat", slots=1, threads=options.threads)


def lacking_for_chat(spec: RunSpec, *, with_tools: bool, task: int = 0) -> list[Problem]:
    """What this machine does not have, or has no room for."""
    if (problems := lacking_for_model(spec, with_tools=with_tools)) or not with_tools:
        return problems
    if isinstance(spec.environment, Mixture):
        message = "a conversation is with one environment, and this one has parts"
        remedy = "give --environment a run's file with one of them, or chat without tools"
        return [Problem("environment.id", spec.environment.id, message, remedy)]
    return lacking_in_environment(spec) or _missing_task(spec, task)


def _missing_task(spec: RunSpec, task: int) -> list[Problem]:
    tasks = len(environment_for(spec.environment, spec.dataset).tasks("heldout"))
    return (
        [] if task < tasks else [Problem("task", task, f"there are {tasks} held-out tasks", f"use at most {tasks - 1}")]
    )


def _environment_from(choice: str | None, before: RunSpec | None) -> RunSpec:
    """The spec whose environment and data set are meant.  Raises BadSpec."""
    if choice not in (None, "own"):
        file = Path(choice)
        return with_pinned_dataset(spec_from_file(file), named_in=file, anywhere=True)
    if choice == "own" and before is None:
        raise BadSpec(["--environment own: a folder has no environment of its own; give --run, or a run's TOML file"])
    return before or RunSpec(name="chat")


def alert_line(entry: AlertEntry) -> Alert:
    found = entry.finding
    return Alert(
        rule=found.rule,
        title=found.title,
        severity=found.severity,
        subject=found.subject,
        frozen=entry.quarantined,
    )


class Out:
    """JSON lines; whoever reads them may have gone, which ends the chat."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def __call__(self, line: BaseModel) -> None:
        self._stream.write(line.model_dump_json(exclude_none=True).encode() + b"\n")
        self._stream.flush()

    def failed(self, problem: Problem, *, id: str = "") -> None:
        value = shown_value(problem.value)
        self(Failed(id=id, field=problem.field, value=value, message=problem.message, remedy=problem.remedy))


class TextOut(Out):
    """Writes for a person at a terminal."""

    def __call__(self, line: BaseModel) -> None:
        match line:
            case Tokens(tokens=tokens):
                text = "".join(token.text for token in tokens)
            case Result(tool=tool, output=output):
                text = f"\n[{tool}] {output}\n"
            case Alert(rule=rule, subject=subject, frozen=frozen):
                text = f"\n[alert {rule}: {subject}{'; the sandbox is frozen' if frozen else ''}]\n"
            case Finished(reason=reason):
                text = f"\n({reason})\n"
            case Failed():
                text = f"{Problem(line.field, line.value, line.message, line.remedy)}\n"
            case _:
                return
        self._stream.write(text.encode())
        self._stream.flush()


class _Chat:
    def __init__(self, options: ChatOptions, spec: RunSpec, out: Out) -> None:
        self._options, self._spec, self._out = options, spec, out
        self._answering: asyncio.Task[None] | None = None
        self._preflighted = {"auto"}

    async def run(self, stdin: BinaryIO) -> None:
        async with AsyncExitStack() as held:
            self._tools = ChatTools(await self._chosen_tools(held), name="chat")
            spec = self._spec
            generator = await asyncio.to_thread(lambda: generator_for(spec.model, spec.resources, seed=spec.seed))
            held.callback(generator.close)
            context_tokens = model_origin(self._spec.model).context_tokens
            self._dialogue = Dialogue(
                generator,
                renderers_of(self._spec),
                self._out,
                context_tokens=context_tokens,
                vocabulary=len(tokens_of(self._spec.model)),
                tools=self._tools,
            )
            held.push_async_callback(self._dialogue.close)
            await self._ready()
            # What nobody here can answer for, in an answer, ends the chat.
            async with asyncio.TaskGroup() as self._answers:
                async for line in lines_of(stdin):
                    await self._take(line)

    async def _chosen_tools(self, held: AsyncExitStack) -> ChosenTools | None:
        if self._options.environment is None:
            return None
        """Raises BadSpec where this machine makes no sandboxes."""
        environment = environment_for(self._spec.environment, self._spec.dataset)
        task = environment.tasks("heldout")[self._options.task]
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="palestra-chat-"))
        opening = opened_sandboxes(
            alone(self._spec.environment), Path(folder), size=1, on_alert=lambda entry: self._out(alert_line(entry))
        )
        try:
            sandboxes = await held.enter_async_context(opening)
        except SandboxUnavailable as unavailable:
            raise BadSpec([f"environment.sandbox: {unavailable}; talk without tools"]) from unavailable
        return ChosenTools(environment, task, sandboxes.pool, sandboxes.monitor)

    async def _ready(self) -> None:
        opening = [ChatMessage(role=message.role, content=message.content) for message in await self._tools.opening()]
        tools = [
            ChatTool(name=tool.name, description=tool.description, parameters=dict(tool.parameters))
            for tool in self._tools.schemas
        ]
        origin = model_origin(self._spec.model)
        named = self._options.run or str(self._options.model)
        self._out(Ready(model=named, context_tokens=origin.context_tokens, tools=tools, opening=opening))

    async def _take(self, line: bytes | Problem) -> None:
        match parsed_line(line) if self._options.as_json else spoken(line):
            case Problem() as problem:
                self._out.failed(problem)
            case Send() as send if self._answering is not None and not self._answering.done():
                self._out.failed(
                    Problem("kind", "send", "an answer is under way", "wait for it, or send a stop first"), id=send.id
                )
            case Send() as send:
                self._answering = self._answers.create_task(self._answer(send))
                await asyncio.sleep(0)  # it begins, so that a stop that is already there finds what it ends
            case Stop():
                await self._stop()
            case New(history=history):
                await self._stop()
                await self._reported(self._dialogue.begin(history), id="", then=self._ready)

    async def _answer(self, send: Send) -> None:
        """Its last line is ``Finished`` or ``Failed``, however it ends."""
        try:
            problem = await self._choice_problem(send)
        except asyncio.CancelledError:
            nothing = Usage(turns=0, read_tokens=0, sampled_tokens=0, seconds=0.0)
            self._out(Finished(id=send.id, reason="stopped", usage=nothing))
            raise
        if problem is not None:
            self._out.failed(problem, id=send.id)
            return
        await self._reported(self._dialogue.send(send, most_seconds=self._options.most_seconds), id=send.id)

    async def _reported(self, work: Any, *, id: str, then: Callable[[], Any] | None = None) -> None:
        """Do it, and tell what went wrong.  What is nobody's fault but ours travels up and ends the chat."""
        try:
            await work
            if then is not None:
                await then()
        except (DialogueRefused, ModelFolderRefused) as refusal:
            self._out.failed(refusal.problem, id=id)
        except TemplateRefused as error:
            self._out.failed(Problem("messages", "", str(error), "change the messages, or take another model"), id=id)
        except (SandboxLost, SandboxUnavailable, EnvironmentFailed) as error:
            log.warning("tools failed", exc_info=error)
            kind = type(error).__name__
            self._out.failed(Problem("tools", kind, str(error), "send again: the tools begin anew"), id=id)
        except RuntimeError as error:  # of the generator: NonFiniteLogits, GenerationAborted
            log.warning("sampling failed", exc_info=error)
            self._out.failed(Problem("model", type(error).__name__, str(error), "take another checkpoint"), id=id)

    async def _choice_problem(self, send: Send) -> Problem | None:
        """A stranger's template is asked in a process of its own before it is asked here."""
        reasoning, origin = send.sampling.reasoning, model_origin(self._spec.model)
        if reasoning in self._preflighted or isinstance(origin.model, BuiltinModel):
            return None
        assert origin.weights is not None  # a pretrained model has a folder
        problem = await asyncio.to_thread(
            chat_problem, origin.weights, tool_calls=origin.model.tool_calls, reasoning=reasoning
        )
        if problem is None:
            self._preflighted.add(reasoning)
        return problem

    async def _stop(self) -> None:
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)


def parsed_line(line: bytes | Problem) -> Send | Stop | New | Problem:
    if isinstance(line, Problem):
        return line
    try:
        return CHAT_INPUT.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "line"
        remedy = first.get("ctx", {}).get("remedy", "see docs/guide/chat.md for what a line may hold")
        return Problem(field, shown_value(first["input"]), first["msg"], remedy)


def spoken(line: bytes | Problem) -> Send | Problem:
    """A line of text as what a user says."""
    if isinstance(line, Problem):
        return line
    try:
        return Send(messages=[ChatMessage(role="user", content=line.decode().rstrip("\n"))])
    except ValueError as error:
        return Problem("line", shown_value(line), str(error), "write text")


async def lines_of(stream: BinaryIO) -> AsyncIterator[bytes | Problem]:
    """Its lines, without those that are blank; a problem in place of one that is too long."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes | Problem | None](maxsize=16)

    def read() -> None:
        for line in read_lines(stream):
            asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
        asyncio.run_coroutine_threadsafe(lines.put(None), loop).result()

    Thread(target=read, name="stdin", daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


def read_lines(stream: BinaryIO) -> Any:
    while line := stream.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            while line and not line.endswith(b"\n"):
                line = stream.readline(LONGEST_LINE)
            yield Problem("line", f"more than {LONGEST_LINE} bytes", "the line is too long", "send less at once")
        elif line.strip():
            yield line
