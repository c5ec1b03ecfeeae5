"""One environment process and the line to it.

    ask ── {"id", "verb", ...} ──►  the process, behind the walls of a sandbox (sandboxes/confined.py)
        ◄── {"id", "ok"|"error"} ── of which no line, no text and no number is trusted
                log ──────────────► its last lines, for whoever has to mend it

A process that ends, does not answer in time, or writes what is no answer is lost: it is ended, and everything that was
asked of it raises EnvironmentProcessLost.  An error in its code is an answer and costs nobody else anything.
All of this runs in the loop of ``thread.py``.
"""

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.environments.contract import EnvironmentProcessLost, VerifierFailed
from engine.environments.process.answers import AnswerT, Started, read_as
from sandboxes.confined import Confined, Program, process_limits
from sandboxes.spec import SandboxSpec

LINE_BYTES = 4 * 2**20
LOG_BYTES = 4096
"""The length of what the process printed last, kept for messages."""
LOG_CHUNK_BYTES, LOG_PAUSE_S = 2**16, 0.01
"""A process that prints without end costs its own time, not the engine's."""
MOST_REASON = 2000
BOOT = """\
import sys
sys.path[:] = [path for path in sys.path if path]
sys.path.insert(0, sys.argv[3])
from palestra_env.serving import main
main(int(sys.argv[1]), int(sys.argv[2]))
"""


class RaisedInProcess(Exception):
    """The environment's own code raised; the message names the exception."""


@dataclass(frozen=True)
class EnvironmentProgram:
    """What is run, and how much it may take."""

    name: str
    """For messages: the package's name and version."""
    python: str
    """The interpreter, by its path inside."""
    folders: tuple[tuple[str, str], ...]
    """(here, inside): what it may read, beside the system's own folders."""
    facade: str
    """The folder inside that holds ``palestra_env``."""
    path: tuple[str, ...]
    """Folders inside from which the environment's modules are imported."""
    entry: str
    options: str
    """A JSON object: what the entry is called with."""
    spec: SandboxSpec
    start_timeout_s: float
    call_timeout_s: float


class EnvironmentProcess:
    """A running one.  ``lost`` says why it no longer is."""

    def __init__(self, program: EnvironmentProgram, confined: Confined, connection: socket.socket, log: socket.socket):
        self.program = program
        self.lost: EnvironmentProcessLost | None = None
        self.finished_episodes = 0
        """Those whose score has come, whether or not anybody has looked at it."""
        self._confined = confined
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._scores: set[int] = set()
        """The numbers of those that end an episode."""
        self._abandoned: set[int] = set()
        self._asked = 0
        self._log = bytearray()
        self._connection, self._log_socket = connection, log
        self._writer: asyncio.StreamWriter | None = None
        self._log_writer: asyncio.StreamWriter | None = None  # a stream whose writer is forgotten is closed
        self._over: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, program: EnvironmentProgram) -> "tuple[EnvironmentProcess, Started]":
        """Raises EnvironmentProcessLost, RaisedInProcess, MisfitAnswer; SandboxUnavailable."""
        ours, theirs = socket.socketpair()
        log, their_log = socket.socketpair()
        argv = (program.python, "-s", "-B", "-c", BOOT, str(theirs.fileno()), str(their_log.fileno()), program.facade)
        try:
            what = Program(argv, program.folders)
            confined = await Confined.start(what, program.spec, theirs, passing=(their_log.fileno(),))
        except BaseException:
            ours.close()
            log.close()
            raise
        finally:
            theirs.close()
            their_log.close()
        process = cls(program, confined, ours, log)
        try:
            return process, await process._begun()
        except BaseException:
            await process.end("it did not start")
            raise

    async def ask(self, kind: type[AnswerT], verb: str, **fields: Any) -> AnswerT:
        """Raises EnvironmentProcessLost, RaisedInProcess, VerifierFailed, MisfitAnswer."""
        return await self._asked_within(self.program.call_timeout_s, kind, verb, fields)

    def members(self) -> set[int]:
        """Process ids on this machine; empty where there is no cgroup to tell them."""
        return self._confined.processes()

    async def end(self, reason: str) -> None:
        """No process of it is left when this returns.  Twice is fine."""
        self._lose(reason)
        assert self._over is not None
        await asyncio.shield(self._over)

    async def _begun(self) -> Started:
        reader, self._writer = await asyncio.open_connection(sock=self._connection, limit=LINE_BYTES)
        log, self._log_writer = await asyncio.open_connection(sock=self._log_socket, limit=LOG_CHUNK_BYTES)
        self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._read_log(log))]
        program = self.program
        fields = {
            "entry": program.entry,
            "options": json.loads(program.options),
            "path": list(program.path),
            "rlimits": process_limits(program.spec),
        }
        return await self._asked_within(program.start_timeout_s, Started, "start", fields)

    async def _asked_within(self, limit_s: float, kind: type[AnswerT], verb: str, fields: Mapping[str, Any]) -> AnswerT:
        if self.lost is not None:
            raise self.lost
        assert self._writer is not None
        self._asked += 1
        number, answer = self._asked, asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        if verb == "score":
            self._scores.add(number)
        self._writer.write(json.dumps({"id": number, "verb": verb, **fields}).encode() + b"\n")
        try:
            async with asyncio.timeout(limit_s):
                return read_as(kind, verb, await answer)
        except TimeoutError:
            raise self._lose(f"no answer to {verb} within {limit_s:g} s") from None
        finally:
            self._scores.discard(number)
            if self._answers.pop(number, None) is not None:
                self._abandoned.add(number)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        reason = "it ended"
        try:
            while line := await reader.readline():
                self._take(line)
        except _Garbage as garbage:
            reason = str(garbage)
        except ValueError:
            reason = f"it wrote a line of more than {LINE_BYTES} bytes"
        except ConnectionError:
            pass  # the same as its end
        await asyncio.sleep(LOG_PAUSE_S)  # what it printed last is on its way
        self._lose(reason)

    def _take(self, line: bytes) -> None:
        """Raises _Garbage for what is no answer to a question."""
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise _Garbage("it wrote what is no line of JSON") from None
        number = fields.get("id") if isinstance(fields, dict) else None
        if type(number) is int and number in self._abandoned:
            self._abandoned.remove(number)
            return
        answer = self._answers.pop(number, None) if type(number) is int else None
        if answer is None or fields.keys() not in ({"id", "ok"}, {"id", "error"}):
            raise _Garbage("it wrote what answers no question")
        if answer.done():
            return
        if "ok" in fields:
            self.finished_episodes += number in self._scores
            answer.set_result(fields["ok"])
        else:
            answer.set_exception(_raised(fields["error"]))

    async def _read_log(self, log: asyncio.StreamReader) -> None:
        while chunk := await log.read(LOG_CHUNK_BYTES):
            self._log += chunk
            del self._log[:-LOG_BYTES]
            await asyncio.sleep(LOG_PAUSE_S)

    def _lose(self, reason: str) -> EnvironmentProcessLost:
        if self.lost is None:
            self.lost = EnvironmentProcessLost(self._in_words(reason), finished_episodes=self.finished_episodes)
            self._over = asyncio.create_task(self._ended())
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(self.lost)
        return self.lost

    def _in_words(self, reason: str) -> str:
        printed = self._log.decode(errors="replace") or self._confined.complaint()
        lines = "".join(character if character.isprintable() else " " for character in printed[-MOST_REASON:]).strip()
        return f"{self.program.name}: {reason}" + (f"; it printed last: {lines}" if lines else "")

    async def _ended(self) -> None:
        await self._confined.end()
        for task in self._tasks:
            task.cancel()
        for writer in (self._writer, self._log_writer):
            if writer is not None:
                writer.close()


class _Garbage(Exception):
    pass


def _raised(error: object) -> Exception:
    """``error`` is what the process says, bounded and printable here."""
    fields = error if isinstance(error, dict) else {}
    kind, message = (str(fields.get(name, ""))[:MOST_REASON] for name in ("type", "message"))
    words = "".join(character if character.isprintable() else " " for character in f"{kind}: {message}")
    return VerifierFailed(words) if kind == "VerifierFailed" else RaisedInProcess(words)
