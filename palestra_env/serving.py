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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

from palestra_env import AssistantMessage, Task, ToolRequest, VerifierFailed

LINE_BYTES = 4 * 2**20
"""No line of either side is longer."""
TRACE_CHARACTERS = 2000
Request = Mapping[str, Any]
Fields = dict[str, Any]


class NoSandboxes:
    """What a session gets in place of sandboxes."""

    def acquire(self) -> NoReturn:
        raise RuntimeError("an environment package has no sandboxes: do the work in its own process")


class OpenSession:
    """One episode: its verbs are done one after the other, in one asyncio task from its opening to its end."""

    def __init__(self, environment: Any, task: Task) -> None:
        self._verbs: asyncio.Queue[tuple[Request, asyncio.Future[Fields]] | None] = asyncio.Queue()
        self._snapshots: dict[int, Any] = {}
        self._taken = 0
        self._under_way = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(environment, task))

    async def do(self, request: Request) -> Fields:
        done: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        self._verbs.put_nowait((request, done))
        self._life.add_done_callback(lambda _: done.cancel())
        try:
            return await done
        except asyncio.CancelledError:
            raise RuntimeError("the session is over") from None

    async def close(self) -> None:
        """End the verb that is under way, if one is.  Raises what the package raises at the end of its block."""
        if self._under_way:
            self._life.cancel()
        self._verbs.put_nowait(None)
        with suppress(asyncio.CancelledError):
            await self._life

    async def _live(self, environment: Any, task: Task) -> None:
        try:
            async with environment.session(task, NoSandboxes()) as session:
                self.opened.set_result(None)
                while (wanted := await self._verbs.get()) is not None:
                    self._under_way = True
                    await self._settled(session, *wanted)
                    self._under_way = False
        except BaseException as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)

    async def _settled(self, session: Any, request: Request, done: "asyncio.Future[Fields]") -> None:
        try:
            done.set_result(await self._done(session, request))
        except Exception as error:
            done.set_exception(error)

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

    async def done(self, request: Request) -> Fields:
        match request["verb"]:
            case "count":
                return {"count": len(self._environment.tasks(request["split"]))}
            case "tasks":
                tasks = self._environment.tasks(request["split"])
                return {"tasks": [asdict(tasks[number]) for number in range(request["start"], request["stop"])]}
            case "tools":
                return {"tools": [asdict(tool) for tool in self._environment.tools(Task(**request["task"]))]}
            case "open":
                session = OpenSession(self._environment, Task(**request["task"]))
                await session.opened
                self._sessions[request["session"]] = session
                return {}
            case "close":
                if (closing := self._sessions.pop(request["session"], None)) is not None:
                    await closing.close()
                return {}
            case _:
                return await self._sessions[request["session"]].do(request)


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

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, asyncio.Lock()
        self._kept: asyncio.StreamWriter | None = None  # a stream whose writer is forgotten is closed
        connection.setblocking(False)

    async def send(self, fields: Fields) -> None:
        line = json.dumps(fields).encode() + b"\n"
        if len(line) > LINE_BYTES:
            reason = f"an answer of {len(line)} bytes; at most {LINE_BYTES} pass"
            line = json.dumps({"id": fields["id"], "error": {"type": "ValueError", "message": reason}}).encode() + b"\n"
        async with self._lock:
            await asyncio.get_running_loop().sock_sendall(self._connection, line)

    async def reader(self) -> asyncio.StreamReader:
        reader, self._kept = await asyncio.open_connection(sock=self._connection.dup(), limit=LINE_BYTES)
        return reader


def _error(error: BaseException) -> Fields:
    trace = "".join(traceback.format_exception(error))[-TRACE_CHARACTERS:]
    print(trace, file=sys.stderr, flush=True)
    kind = "VerifierFailed" if isinstance(error, VerifierFailed) else type(error).__name__
    return {"type": kind, "message": str(error)[:TRACE_CHARACTERS]}


async def _answered(line: Line, number: int, work: Callable[[], Any]) -> bool:
    """Send what comes of the work; return whether that was no error."""
    try:
        answer: Fields = {"id": number, "ok": await work()}
        json.dumps(answer)
    except Exception as error:
        await line.send({"id": number, "error": _error(error)})
        return False
    await line.send(answer)
    return True


async def serve(connection: socket.socket) -> None:
    """Load what the first line names, and do what the others ask for until the engine hangs up."""
    line = Line(connection)
    reader = await line.reader()
    start = json.loads(await reader.readline())
    bound_itself(start["rlimits"])
    sys.path[:0] = start["path"]
    serving: list[Serving] = []

    async def begun() -> Fields:
        environment = loaded(start["entry"], start["options"])
        serving.append(Serving(environment))
        return {"type": type(environment).__name__, "restorable": bool(getattr(environment, "restorable", False))}

    if not await _answered(line, start["id"], begun):
        return
    under_way: set[asyncio.Task[bool]] = set()
    while asked := await reader.readline():
        request = json.loads(asked)
        work = asyncio.create_task(_answered(line, request["id"], partial(serving[0].done, request)))
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
