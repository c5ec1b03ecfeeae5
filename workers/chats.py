"""``python -m workers.chats [--alive FILE]``: holds a process of ``engine chat`` for each conversation that is used.

    page, REST ── send, stop, new, retry ──► log (rows) ◄── reading, tokens, said ... ── reader thread ◄─┐
                                              │                                                        │
                        every LOOK_EVERY_S ──► ChatHost ── writer thread ──► engine chat ──────────────┘

One host serves all teams (an advisory lock says which); it is supervised, and after a kill begins with the log.  A
process ends when nobody has used it for ``IDLE_S``, and when another conversation needs its place.  One that hangs is
killed: when a line is due and none has come for long, and when it does not stop soon after it was asked to.  The host
waits for no process, and a conversation that it cannot have answered fails alone.  It imports nothing of the engine but
its published language.
"""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
os.environ.setdefault("PALESTRA_DB_POOL", "0")

import django

django.setup()

import argparse  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from pathlib import Path  # noqa: E402
from queue import SimpleQueue  # noqa: E402
from threading import Event, Thread  # noqa: E402
from uuid import UUID  # noqa: E402

import structlog  # noqa: E402
from django.conf import settings  # noqa: E402
from django.db import DatabaseError, connection  # noqa: E402
from django.db.models import F  # noqa: E402
from pydantic import BaseModel, ValidationError  # noqa: E402

from engine.spec.chat import CHAT_OUTPUT, New, Stop  # noqa: E402
from webapp.conversations.log import BY_PEOPLE, append, unanswered  # noqa: E402
from webapp.conversations.models import WITH_PROCESS, Conversation, Entry, State  # noqa: E402
from workers.engine_environment import ENGINE, PLAYERS, passed_on  # noqa: E402

LOOK_EVERY_S = 0.2
IDLE_S = 600.0
SILENT_S, SILENT_WHILE_LOADING_S = 600.0, 1800.0
"""A process from which a line is due hangs when none has come for so long.  An answer takes 300 s at most."""
STOP_S, STOP_WHILE_LOADING_S = 10.0, 60.0
"""What a process may take until it has stopped."""
MOST_PER_TEAM = 2
MOST_PER_PERSON = 2
"""Processes of conversations that one person began, whatever their teams."""
MOST_IN_ALL = 4
LONGEST_LINE = 32 * 2**20
"""Bytes of a line that is read from a process; all that it says is shorter."""
LOCK = 0x70616C63
"""The advisory lock of the host."""
_ENDINGS = ("ready", "finished", "failed")
"""Each process says one of these once it is loaded, and one about each ``new`` and each ``send``."""

log = structlog.get_logger(__name__)


class ChatProcess:
    """One ``engine chat``, with a thread that writes to it and one that writes what it says into the log."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation_id, self.team_id = conversation.id, conversation.team_id
        self.person_id = conversation.created_by_id
        self.used_at = self._waited_since = time.monotonic()
        self._asked, self._ended = 1, 0
        """Endings that it owes, the one of loading included, and those that it has said; each counted by one thread."""
        self._stop_asked_at, self._stop_s, self._stopped_with = 0.0, 0.0, 0
        """When it was last asked to stop, what it may take, and how many endings it has then said."""
        self._end_is_written = False
        self.ended_because: str | None = None
        """Why the host ends it; None: it is to go on."""
        self._end_is_failure = False
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        """What the process has not been given yet; None is the last."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self.process = subprocess.Popen(
            _command(conversation), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            cwd=settings.ROOT, env=passed_on(PLAYERS if conversation.with_tools else ENGINE),
        )  # fmt: skip
        self._reader = Thread(target=self._read, name=f"chat-{conversation.id}", daemon=True)
        self._reader.start()
        Thread(target=self._pass_on, name=f"chat-{conversation.id}-stdin", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return not self._reader.is_alive()

    @property
    def is_idle(self) -> bool:
        """Whether it could be ended without cutting an answer."""
        return self._ended >= self._asked

    @property
    def _loads(self) -> bool:
        return self._ended == 0

    @property
    def _is_stopping(self) -> bool:
        return self._ended < self._stopped_with

    def end_if_it_hangs(self) -> None:
        now, silent_s = time.monotonic(), SILENT_WHILE_LOADING_S if self._loads else SILENT_S
        if self._is_stopping and now - self._stop_asked_at > self._stop_s:
            self.end(_did_not_stop(self._stop_s), is_failure=True)
        elif not self.is_idle and now - self._waited_since > silent_s:
            self.end(_hangs(silent_s), is_failure=True)

    def write_end(self) -> None:
        """Say in the log how it ended, once."""
        if not self._end_is_written:
            code = self.process.wait()
            with _unless_deleted(self.conversation_id):
                self._write_end(code)
            self._end_is_written = True

    def tell(self, *lines: BaseModel) -> None:
        """Returns at once: a process that loads, or hangs, reads later or never."""
        self.used_at = time.monotonic()
        if self.is_idle:
            self._waited_since = self.used_at
        self._asked += sum(not isinstance(line, Stop) for line in lines)
        for line in lines:
            self._lines.put(line.model_dump_json(exclude_none=True).encode() + b"\n")

    def stop(self, line: Stop | New) -> None:
        """Tell it a line that ends the answer under way, which it has to obey soon."""
        self.tell(line)
        if not self._is_stopping:
            self._stop_asked_at, self._stop_s = time.monotonic(), STOP_WHILE_LOADING_S if self._loads else STOP_S
        self._stopped_with = self._asked

    def end(self, because: str, *, is_failure: bool = False) -> None:
        if self.ended_because is None:
            self.ended_because, self._end_is_failure = because, is_failure
            self.process.kill()

    def _pass_on(self) -> None:
        """Write to the process what it is told; one that has just died is told nothing, and its reader says so in the
        log."""
        assert self.process.stdin is not None
        try:
            with self.process.stdin as stdin:
                while (line := self._lines.get()) is not None:
                    stdin.write(line)
                    stdin.flush()
        except BrokenPipeError:
            log.info("a chat has ended before it could be told", conversation=str(self.conversation_id))

    def _read(self) -> None:
        try:
            with _unless_deleted(self.conversation_id):
                self._write_lines()
        except DatabaseError as error:  # the host says the rest in the log when it can be written again
            log.warning("a chat is ended: the log cannot be written", error=str(error))
        finally:
            self.process.kill()
            self.process.wait()
            self._lines.put(None)
            connection.close()

    def _write_lines(self) -> None:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline(LONGEST_LINE):
            try:
                CHAT_OUTPUT.validate_json(line)
            except ValidationError:
                log.error("a chat says what no chat may say", conversation=str(self.conversation_id))
                self.end("its process said what cannot be read")
                break
            self._write(line)
        self.write_end()

    def _write(self, line: bytes) -> None:
        self._waited_since = time.monotonic()
        output = CHAT_OUTPUT.validate_json(line)
        body = output.model_dump(mode="json", exclude_none=True)
        fields: dict[str, str] = {}
        if output.kind in (*_ENDINGS, "reading"):
            is_last = output.kind in _ENDINGS and self._ended + 1 >= self._asked
            fields = {"state": State.READY if is_last else State.ANSWERING, "reason": ""}
        append(self.conversation_id, [(output.kind, body)], **fields)
        self._ended += output.kind in _ENDINGS

    def _write_end(self, code: int) -> None:
        was_asked = self.ended_because is not None and not self._end_is_failure
        reason = self.ended_because or self._how_it_ended(code)
        state = State.RESTING if was_asked else State.FAILED
        append(self.conversation_id, [("ended", {"reason": reason, "asked": was_asked})], state=state, reason=reason)

    def _how_it_ended(self, code: int) -> str:
        self._errors.seek(0)
        written = self._errors.read()[-4000:].decode("utf-8", "replace").replace("\0", "").strip()
        if code == 2:
            return written or "the checkpoint cannot be talked with"
        if code < 0:
            return f"the process that samples was ended by {signal.Signals(-code).name}"
        log.error("a chat ended", conversation=str(self.conversation_id), code=code, stderr=written)
        return f"the process that samples ended with exit code {code}"


def _command(conversation: Conversation) -> list[str]:
    command = [sys.executable, "-m", "engine", "chat", "--json", "--threads", "1"]
    if (version := conversation.model_version) is not None:
        return [*command, "--model", str(version.folder), "--catalog", version.pinned.model_dump_json()]
    folder = settings.PALESTRA_RUNS / str(conversation.run_id)
    command += ["--run", str(folder), "--step", str(conversation.step)]
    return [*command, "--environment", "own"] if conversation.with_tools else command


def _deleted(conversation: Conversation) -> str:
    return f"{conversation.version_name} was deleted"


@contextmanager
def _unless_deleted(conversation_id: UUID) -> Iterator[None]:
    """Leave off where the conversation is deleted meanwhile: there is no log any more to say anything in."""
    try:
        yield
    except Conversation.DoesNotExist:
        log.info("a conversation was deleted meanwhile", conversation=str(conversation_id))


class ChatHost:
    """``tick`` does what is due; everything that it knows beside its processes stands in the rows."""

    def __init__(self) -> None:
        self.processes: dict[UUID, ChatProcess] = {}

    def begin(self) -> None:
        """Say of conversations whose process went with an earlier host that they have none."""
        reason = "the process that samples has ended with the service"
        orphans = Conversation.objects.filter(state__in=WITH_PROCESS).exclude(id__in=self.processes)
        for conversation_id in orphans.values_list("id", flat=True):
            with _unless_deleted(conversation_id):
                _append_failure(conversation_id, reason)

    def tick(self) -> None:
        for process in [process for process in self.processes.values() if process.is_over]:
            process.write_end()
            del self.processes[process.conversation_id]
        there = Conversation.objects.in_bulk(list(self.processes))
        for process in self.processes.values():
            if process.conversation_id not in there:
                process.end("the conversation was deleted")
            elif there[process.conversation_id].version_is_gone:
                process.end(_deleted(there[process.conversation_id]))
            if process.is_idle and time.monotonic() - process.used_at > IDLE_S:
                process.end(f"nobody has said anything for {IDLE_S / 60:.0f} minutes")
            process.end_if_it_hangs()
        asked = Conversation.objects.filter(handled_seq__lt=F("asked_seq")).order_by("used_at")
        for conversation in asked.select_related("model_version__model"):
            with _unless_deleted(conversation.id):
                self._handle(conversation)

    def close(self) -> None:
        for process in self.processes.values():
            process.end("the service was stopped")
        for process in self.processes.values():
            process.process.wait()

    def _handle(self, conversation: Conversation) -> None:
        """The conversation's next entry, if there is a process for it or need of none."""
        entry = (
            conversation.entries.filter(kind__in=BY_PEOPLE, seq__gt=conversation.handled_seq).order_by("seq").first()
        )
        if entry is None:
            return
        try:
            is_handled = self._carried_out(conversation, entry)
        except (DatabaseError, Conversation.DoesNotExist):
            raise
        except Exception as error:  # the others' processes do not end for it
            log.exception("a conversation cannot be answered", conversation=str(conversation.id))
            self._give_up(conversation, _why_not_answered(error))
            is_handled = True
        if is_handled:
            Conversation.objects.filter(id=conversation.id).update(handled_seq=entry.seq)

    def _carried_out(self, conversation: Conversation, entry: Entry) -> bool:
        """Whether the entry has had its effect; else it is looked at again."""
        process = self.processes.get(conversation.id)
        if process is not None and process.ended_because is not None:
            return False  # its end is not in the log yet
        if entry.kind in ("stop", "new"):
            if process is not None:
                process.stop(Stop() if entry.kind == "stop" else New())
        elif conversation.version_is_gone:
            _append_failure(conversation.id, _deleted(conversation))
        elif process is None and not self._has_place_for(conversation):
            self._let_wait(conversation)
            return False
        else:
            self._ask(process, conversation, entry.seq)
        return True

    def _give_up(self, conversation: Conversation, reason: str) -> None:
        if (process := self.processes.get(conversation.id)) is not None:
            process.end(reason, is_failure=True)
        else:
            _append_failure(conversation.id, reason)

    def _let_wait(self, conversation: Conversation) -> None:
        """Until there is a place, or somebody stops it."""
        stop = conversation.entries.filter(kind="stop", seq__gt=conversation.handled_seq).order_by("seq").first()
        if stop is not None:
            ended = {"reason": "it was stopped before there was a place for it", "asked": True}
            append(conversation.id, [("ended", ended)], state=State.RESTING, reason="", handled_seq=stop.seq)
        elif conversation.state != State.WAITING:
            append(conversation.id, [], state=State.WAITING)

    def _ask(self, process: ChatProcess | None, conversation: Conversation, seq: int) -> None:
        """Ask the conversation's process, or one that begins with what was said.

        Raises OSError where there can be none, and ValidationError where it could not be told so much.
        """
        entries = list(conversation.entries.filter(seq__lte=seq).order_by("seq").values_list("kind", "body"))
        history, asked = unanswered(entries)
        if asked is None:
            return
        begins = [New(history=history)] if process is None or entries[-1][0] == "retry" else []
        append(conversation.id, [], state=State.LOADING if process is None else State.ANSWERING, reason="")
        if process is None:
            process = self.processes[conversation.id] = ChatProcess(conversation)
        process.tell(*begins, asked)

    def _has_place_for(self, conversation: Conversation) -> bool:
        """Whether a place is free; else an idle process may give one up, which is free a little later."""
        everybody, person = list(self.processes.values()), conversation.created_by_id
        of_team = [process for process in everybody if process.team_id == conversation.team_id]
        of_person = [process for process in everybody if person is not None and process.person_id == person]
        for crowd, most in ((of_team, MOST_PER_TEAM), (of_person, MOST_PER_PERSON), (everybody, MOST_IN_ALL)):
            if len(crowd) >= most:
                _end_oldest_idle(crowd)
                return False
        return True


def _append_failure(conversation_id: UUID, reason: str) -> None:
    append(conversation_id, [("ended", {"reason": reason, "asked": False})], state=State.FAILED, reason=reason)


def _hangs(silent_s: float) -> str:
    return (
        f"its process had not said anything for {silent_s / 60:.0f} minutes, as where a chat template or a tokenizer "
        "works for ever, and was ended: try again, or begin a new conversation with other words; if that hangs too, "
        "take another model"
    )


def _did_not_stop(after_s: float) -> str:
    again = "try again, or begin a new conversation where the message was what it could not stop at"
    return f"its process did not stop within {after_s:.0f} seconds and was ended: {again}"


def _why_not_answered(error: Exception) -> str:
    match error:
        case ValidationError():
            return f"no process can be told all that was said ({error.errors()[0]['msg']}): begin a new conversation"
        case OSError():
            return f"the process that samples cannot be started: {error.strerror or error}"
        case _:
            return "the service failed at it, as its log says"


def _end_oldest_idle(crowd: Iterable[ChatProcess]) -> None:
    idle = [process for process in crowd if process.is_idle]
    if idle and not any(process.ended_because for process in crowd):
        min(idle, key=lambda process: process.used_at).end("another conversation needed its place")


def serve(stopping: Event, *, alive: Path | None = None) -> None:
    """Until ``stopping``.  A database that restarts is waited for.

    ``alive`` is touched whenever the host has looked for work, so that its age says whether it still does.
    """
    host, is_host = ChatHost(), False
    try:
        while not stopping.wait(LOOK_EVERY_S):
            try:
                if not is_host and (is_host := _locked()):
                    host.begin()
                if is_host:
                    host.tick()
                if alive is not None:
                    alive.touch()
            except DatabaseError as error:
                log.warning("the database cannot be reached", error=str(error))
                is_host = False
                connection.close()
                stopping.wait(1.0)
    finally:
        host.close()


def _locked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [LOCK])
        return bool(cursor.fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.chats", description="The host of conversations.")
    parser.add_argument("--alive", type=Path, help="a file that is touched while conversations are looked after")
    options = parser.parse_args()
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    log.info("the chat host looks for conversations")
    serve(stopping, alive=options.alive)


if __name__ == "__main__":
    main()
