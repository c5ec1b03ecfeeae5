"""The environment's side of the protocol: one process, which plays many sessions at once.

    engine ── {"id", "verb", ...} lines ──► serving ── one task per session ──► the package's own code
           ◄── {"id", "ok"} or {"id", "error"} ──

The first line of the engine says what to load (``start``).  Whatever the package prints goes to the log, and never into
the protocol.  Nothing here defends against the package: that is the business of the walls around the process and of the
engine, which trusts no line.
"""

import asyncio
import importlib
import json
import os
import resource
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

from palestra_env import AssistantMessage, Task, ToolRequest, VerifierFailed

LINE_BYTES = 4 * 2**20
"""No line of either side is longer."""
TASKS_BYTES = LINE_BYTES - 2**10
"""So much of a line may tasks take."""
TRACE_CHARACTERS = 2000
Request = Mapping[str, Any]
Fields = dict[str, Any]
Answer = Callable[[Fields], None]
"""Says what came of a request."""


class NoSandboxes:
    """What a session gets in place of sandboxes."""

    def acquire(self) -> NoReturn:
        raise RuntimeError("an environment package has no sandboxes: do the work in its own process")


class OpenSession:
    """One episode: its verbs are done one after the other, in one asyncio task from its opening to its end."""

    def __init__(self, environment: Any, task: Task) -> None:
        self._verbs: asyncio.Queue[tuple[Request, Answer, asyncio.Future[None]] | None] = asyncio.Queue()
        self._snapshots: dict[int, Any] = {}
        self._taken = 0
        self._under_way = True
        """Whether the package is at work: it opens the episode, or does a verb."""
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(environment, task))
        self._life.add_done_callback(lambda _: self._opened.cancel())

    async def opened(self) -> None:
        """Wait until it is.  Raises what the package raises, and RuntimeError where it is closed before."""
        try:
            await self._opened
        except asyncio.CancelledError:
            raise RuntimeError("the session is over") from None

    async def do(self, request: Request, answer: Answer) -> None:
        """It is answered before any other verb goes on, which might end the process and all that was not yet said."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._verbs.put_nowait((request, answer, done))
        self._life.add_done_callback(lambda _: done.cancel())
        try:
            await done
        except asyncio.CancelledError:
            raise RuntimeError("the session is over") from None

    async def close(self) -> None:
        """End what is under way, the opening or a verb.  Raises what the package raises at the end of its block."""
        if self._under_way:
            self._life.cancel()
        self._verbs.put_nowait(None)
        with suppress(asyncio.CancelledError):
            await self._life

    async def _live(self, environment: Any, task: Task) -> None:
        try:
            async with environment.session(task, NoSandboxes()) as session:
                self._under_way = False
                self._opened.set_result(None)
                while (wanted := await self._verbs.get()) is not None:
                    self._under_way = True
                    await self._settled(session, *wanted)
                    self._under_way = False
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def _settled(self, session: Any, request: Request, answer: Answer, done: "asyncio.Future[None]") -> None:
        try:
            answer(await self._done(session, request))
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    async def _done(self, session: Any, request: Request) -> Fields:
        match request["verb"]:
            case "reset":
                return {"messages": [asdict(message) for message in await session.reset()]}
            case "act":
                return asdict(await session.act(_message(request["message"])))
            case "score":
                rewards = await session.score()
                return {"success": rewards.success, "components": dict(rewards.components)}
            case "snapshot":
                self._taken += 1
                self._snapshots[self._taken] = await session.snapshot()
                return {"snapshot": self._taken}
            case "restore":
                await session.restore(self._snapshots[request["snapshot"]])
                return {}
            case "drop":
                await session.drop(self._snapshots.pop(request["snapshot"]))
                return {}
            case verb:
                raise ValueError(f"unknown verb {verb!r}")


class Serving:
    """All sessions of one environment."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._sessions: dict[int, OpenSession] = {}

    async def do(self, request: Request, answer: Answer) -> None:
        match request["verb"]:
            case "count":
                answer({"count": len(self._environment.tasks(request["split"]))})
            case "tasks":
                tasks = self._environment.tasks(request["split"])
                answer({"tasks": _in_one_line(tasks[number] for number in range(request["start"], request["stop"]))})
            case "tools":
                answer({"tools": [asdict(tool) for tool in self._environment.tools(Task(**request["task"]))]})
            case "open":
                session = OpenSession(self._environment, Task(**request["task"]))
                self._sessions[request["session"]] = session  # from now on: it may be closed while it opens
                await session.opened()
                answer({})
            case "close":
                if (closing := self._sessions.pop(request["session"], None)) is not None:
                    await closing.close()
                answer({})
            case _:
                await self._sessions[request["session"]].do(request, answer)


def _in_one_line(tasks: Iterable[Task]) -> list[Fields]:
    """As many as a line takes, and never less than one."""
    taken, room = list[Fields](), TASKS_BYTES
    for task in tasks:
        fields = asdict(task)
        room -= len(json.dumps(fields)) + len(", ")
        if room < 0 and taken:
            break
        taken.append(fields)
    return taken


def _message(fields: Fields) -> AssistantMessage:
    requests = tuple(ToolRequest(**request) for request in fields["requests"])
    return AssistantMessage(fields["content"], requests, fields["reasoning"])


def loaded(entry: str, options: Mapping[str, Any]) -> Any:
    """What ``module:Name`` gives when it is called with the options."""
    module, _, name = entry.partition(":")
    factory: Any = importlib.import_module(module)
    for part in name.split("."):
        factory = getattr(factory, part)
    environment = factory(**options)
    missing = [verb for verb in ("tasks", "tools", "session") if not callable(getattr(environment, verb, None))]
    if missing:
        raise TypeError(f"a {type(environment).__name__} is no environment: it has no method {', '.join(missing)}")
    return environment


class Line:
    """The line to the engine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer

    @classmethod
    async def opened(cls, connection: socket.socket) -> "Line":
        return cls(*await asyncio.open_connection(sock=connection, limit=LINE_BYTES))

    def write(self, fields: Fields) -> None:
        """It is on its way when this returns, as far as the socket has room."""
        line = json.dumps(fields).encode() + b"\n"
        if len(line) > LINE_BYTES:
            reason = f"an answer of {len(line)} bytes; at most {LINE_BYTES} pass"
            line = json.dumps({"id": fields["id"], "error": {"type": "ValueError", "message": reason}}).encode() + b"\n"
        self._writer.write(line)

    async def drained(self) -> None:
        """Wait while the engine has much to read."""
        await self._writer.drain()


def _error(error: BaseException) -> Fields:
    trace = "".join(traceback.format_exception(error))[-TRACE_CHARACTERS:]
    print(trace, file=sys.stderr, flush=True)
    kind = "VerifierFailed" if isinstance(error, VerifierFailed) else type(error).__name__
    return {"type": kind, "message": str(error)[:TRACE_CHARACTERS]}


async def _answered(line: Line, number: int, work: Callable[[Answer], Awaitable[None]]) -> bool:
    """Say what comes of the work; return whether that was no error."""
    try:
        await work(lambda fields: line.write({"id": number, "ok": fields}))
    except Exception as error:
        line.write({"id": number, "error": _error(error)})
        return False
    finally:
        await line.drained()
    return True


async def serve(connection: socket.socket) -> None:
    """Load what the first line names, and do what the others ask for until the engine hangs up."""
    line = await Line.opened(connection)
    start = json.loads(await line.reader.readline())
    bound_itself(start["rlimits"])
    sys.path[:0] = start["path"]
    serving: list[Serving] = []

    async def begin(answer: Answer) -> None:
        environment = loaded(start["entry"], start["options"])
        serving.append(Serving(environment))
        answer({"type": type(environment).__name__, "restorable": bool(getattr(environment, "restorable", False))})

    if not await _answered(line, start["id"], begin):
        return
    under_way: set[asyncio.Task[bool]] = set()
    while asked := await line.reader.readline():
        request = json.loads(asked)
        work = asyncio.create_task(_answered(line, request["id"], partial(serving[0].do, request)))
        under_way.add(work)
        work.add_done_callback(under_way.discard)


def bound_itself(rlimits: Mapping[str, int]) -> None:
    """Take the limits before any code of the package runs; the hard ones too, so that there is no way back."""
    for name, value in rlimits.items():
        resource.setrlimit(getattr(resource, name), (value, value))


def main(connection: int, log: int) -> None:
    """``connection`` and ``log`` are inherited descriptors."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ |= {"HOME": "/work", "TMPDIR": "/tmp", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    asyncio.run(serve(socket.socket(fileno=connection)))
