"""The observer: one process beside a worker, which answers what the kernel asks about the worker's sandboxes.

    guest ── call ──► kernel: waits ──► listener ──► read ──► answered
                                                      └─► summed ──► reports ──► worker
    worker ── control: listener, reports ──► a sandbox more
           ── reports: "drain n" ──► all that was asked by now is read and reported, then "drained n"

It ends with its worker.  When it ends, however that happens, the kernel fails every call that is asked about
(ENOSYS): a dead observer lets nothing through, and its sandboxes are lost.
"""

import errno
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count

from sandboxes.observation import kernel
from sandboxes.observation.guests import Guest, Running, inside
from sandboxes.observation.reading import ORDINARY, Reader, Reply, Started, corrected, differs
from sandboxes.observation.sums import Sums

REPORT_S = 0.004
"""How long an action waits for others before it is reported."""
LOOK_AGAIN_S, LOOKED_FOR_S = 0.003, 1.0
"""When a program is looked at after it was asked for, and for how long one is looked for that has not begun."""
HELD_BYTES = 2**20
"""Reports that the worker has not taken yet; beyond this they are summed up."""
LENGTH = struct.Struct("!I")
ORDER = struct.Struct("!I")
ATTACHED_BYTES = 4096
SANDBOX_DESCRIPTORS = 2
READABLE, WRITABLE, GONE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR


class Awaited:
    """A program that was asked for and has not been seen to run.  Each look waits twice as long as the one before."""

    def __init__(self, started: Started) -> None:
        self.started = started
        self._wait_s, self._left_s = LOOK_AGAIN_S, LOOKED_FOR_S
        self.due_s = started.at + LOOK_AGAIN_S

    def looked(self, now: float) -> bool:
        """Return whether it is to be looked for again; ``now`` by the monotonic clock, before ``due_s`` costs no look.

        What counts is how long was waited: an observer that stood still has not looked meanwhile.
        """
        if now < self.due_s:
            return True
        self._left_s -= self._wait_s
        self._wait_s = min(2 * self._wait_s, self._left_s)
        self.due_s = now + self._wait_s
        return self._left_s > 0


class Observed:
    """One sandbox."""

    def __init__(self, listener: int, reports: socket.socket, agent: int, tasks: int) -> None:
        """``agent``: its process 1; ``tasks``: how many of its threads may ask at once.  Raises ``OSError``."""
        self.listener, self.reports, self.tasks = listener, reports, tasks
        self.root = os.open(f"/proc/{agent}/root", os.O_PATH | os.O_CLOEXEC)
        self._reader = Reader(self.root, agent)
        self._sums = Sums()
        self._kept: list[tuple[Reply, int, float]] = []
        """What was read, of which thread and when, and is in no sum yet."""
        self._awaited: dict[int, Awaited] = {}
        """By process, which runs one program at a time."""
        self._outgoing = bytearray()
        self._ready = select.poll()
        self._ready.register(listener, select.POLLIN)
        self.due_s: float | None = None
        """When a report is to be sent or a program looked for, by the monotonic clock."""
        self.queued_s: float | None = None
        self.room_watched = False
        self.open = True
        reports.setblocking(False)

    @property
    def blocked(self) -> bool:
        """Return whether the worker is behind."""
        return bool(self._outgoing)

    def answer(self) -> None:
        """One question: others shall have their turn.  The kernel has just said that there is one; else this waits."""
        question = kernel.received(self.listener)
        if question is not None:
            self._answer(question)

    def answer_all(self) -> None:
        """Whoever asks by now; and, of a flood, not for ever."""
        for _ in range(self.tasks):
            events = self._ready.poll(0)
            if not events or not events[0][1] & select.POLLIN:
                return
            self.answer()

    def _answer(self, question: kernel.Question) -> None:
        try:
            reply = self._reader.read(question)
        except Exception as failure:  # whatever a guest has written must not end the observer of all others
            if kernel.still_asks(self.listener, question):
                self._fail(question, failure)
            return  # else it was killed meanwhile, and its number may be another's
        if reply is ORDINARY:
            kernel.answer(self.listener, question)
            return
        if not kernel.still_asks(self.listener, question):
            return
        kernel.answer(self.listener, question, reply.error)
        self._keep(reply, question.thread)

    def _fail(self, question: kernel.Question, failure: Exception) -> None:
        """What cannot be read does not happen: a pointer to nothing fails in the kernel alike."""
        if not isinstance(failure, OSError):
            sys.stderr.write(f"observer: {type(failure).__name__} at call {question.call}: {failure}\n")
        kernel.answer(self.listener, question, self._reader.refusal(question.call) or errno.EFAULT)
        self._keep(Reply(action=self._reader.unread(question)), question.thread)

    def _keep(self, reply: Reply, thread: int) -> None:
        """Keep what was read until there is time: whoever asked may run on this processor only when we sleep."""
        now = time.monotonic()
        self._kept.append((reply, thread, now))
        self._expect_report(now + REPORT_S)

    def _sum_up(self) -> None:
        for reply, thread, at in self._kept:
            if reply.socket is not None:
                self._sums.add_socket(reply.socket)
            try:
                action = reply.action() if reply.action is not None else None
            except (
                Exception
            ) as failure:  # as in ``_answer``; but it has happened, and cannot be told: the sandbox is lost
                sys.stderr.write(f"observer: {type(failure).__name__} in what was read of thread {thread}: {failure}\n")
                self.reports.shutdown(socket.SHUT_RDWR)
                break
            if reply.starts is not None:
                starter, replaced = reply.starts
                self._look_before(starter.pid, replaced)
                self._awaited[starter.pid] = Awaited(Started(starter, replaced, action, at))
            if action is not None:
                self._sums.add(action)
        self._kept.clear()

    def _expect_report(self, at_s: float) -> None:
        if self.due_s is None or at_s < self.due_s:
            self.due_s = at_s

    def report(self) -> None:
        """Send what there is, unless the worker is far behind."""
        self.due_s = self.queued_s = None
        self._sum_up()
        self._look_again()
        if self._sums and len(self._outgoing) < HELD_BYTES:
            actions, sockets = self._sums.taken()
            self._send({"actions": actions, "sockets": sockets})
        if self._sums:
            self._expect_report(time.monotonic() + REPORT_S)
        for awaited in self._awaited.values():
            self._expect_report(awaited.due_s)

    def drain(self, number: int) -> None:
        """Answer everybody who asks by now, report it, and say so."""
        self.answer_all()
        self._sum_up()
        self._look_again(early=True)
        actions, sockets = self._sums.taken()
        self._send({"actions": actions, "sockets": sockets, "drained": number})

    def push(self) -> None:
        """Raises ``OSError`` when the worker has hung up."""
        while self._outgoing:
            try:
                sent = self.reports.send(memoryview(self._outgoing)[:HELD_BYTES])
            except BlockingIOError:
                return
            del self._outgoing[:sent]

    def close(self) -> None:
        self.open = False
        for fd in (self.listener, self.root):
            os.close(fd)
        self.reports.close()

    def _look_before(self, process: int, replaced: Running) -> None:
        """What a process ran until it started the next program, however short that was."""
        awaited = self._awaited.pop(process, None)
        if awaited is not None and differs(awaited.started, replaced):
            self._sums.add(corrected(awaited.started, replaced))

    def _look_again(self, *, early: bool = False) -> None:
        """What runs of all that was started and is due, or not yet due.  What has not begun is looked for again."""
        now = time.monotonic()
        for process, awaited in list(self._awaited.items()):
            if awaited.due_s > now and not early:
                continue
            last, instead = self._reader.look(awaited.started)
            if instead is not None:
                self._sums.add(instead)
            if last or not awaited.looked(now):
                del self._awaited[process]

    def _send(self, report: dict[str, object]) -> None:
        body = json.dumps(report).encode()
        self._outgoing += LENGTH.pack(len(body)) + body
        with suppress(OSError):  # whoever hung up is seen by the poll
            self.push()


class Server:
    def __init__(self, control: socket.socket, worker: int) -> None:
        self._control, self._worker = control, worker
        self._epoll = select.epoll()
        self._epoll.register(control.fileno(), READABLE)
        self._epoll.register(worker, READABLE)
        self._listeners: dict[int, Observed] = {}
        self._reports: dict[int, Observed] = {}
        self._due: list[tuple[float, int, Observed]] = []
        """A heap of those that have something to report: when, and a number by which equal times are in order."""
        self._numbers = count()

    def run(self) -> None:
        """Until the worker ends or hangs up."""
        while True:
            happened = self._epoll.poll(self._patience_s())
            # Guests first: a drain would answer a question of which the epoll has told, and taking it then waits.
            others = [(fd, events) for fd, events in happened if not self._asked(fd, events)]
            for fd, events in others:
                if fd == self._worker or (fd == self._control.fileno() and not self._attach()):
                    return
                self._happened(fd, events)
            self._report()

    def _asked(self, fd: int, events: int) -> bool:
        """Answer if a guest asks; False: it is something else."""
        sandbox = self._listeners.get(fd)
        if sandbox is None or not events & READABLE:
            return False
        sandbox.answer()
        self._watch(sandbox)
        return True

    def _patience_s(self) -> float | None:
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def _report(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            due_s, _, sandbox = heappop(self._due)
            if sandbox.open and sandbox.due_s == due_s:  # else it was due before
                sandbox.report()
                self._watch(sandbox)

    def _watch(self, sandbox: Observed) -> None:
        """Have it report in time, and be woken when a worker that is behind has room again."""
        if sandbox.due_s is not None and sandbox.due_s != sandbox.queued_s:
            sandbox.queued_s = sandbox.due_s
            heappush(self._due, (sandbox.due_s, next(self._numbers), sandbox))
        if sandbox.blocked != sandbox.room_watched:
            sandbox.room_watched = sandbox.blocked
            self._epoll.modify(sandbox.reports.fileno(), READABLE | (WRITABLE if sandbox.blocked else 0))

    def _happened(self, fd: int, events: int) -> None:
        if fd in self._reports:
            sandbox = self._reports[fd]
            if not self._ordered(sandbox, events):
                self._forget(sandbox)
        elif fd in self._listeners:  # nobody is left who could ask
            self._epoll.unregister(self._listeners.pop(fd).listener)

    def _ordered(self, sandbox: Observed, events: int) -> bool:
        """Do what the worker wants of a sandbox; False: it has hung up."""
        try:
            if events & WRITABLE:
                sandbox.push()
            if events & READABLE:
                orders = sandbox.reports.recv(ORDER.size * 1024)
                if not orders:
                    return False
                for (number,) in ORDER.iter_unpack(orders):
                    sandbox.drain(number)
            self._watch(sandbox)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
            return False
        return not events & GONE

    def _attach(self) -> bool:
        """One sandbox more; False: the worker has hung up."""
        message, descriptors, _, _ = socket.recv_fds(self._control, ATTACHED_BYTES, SANDBOX_DESCRIPTORS)
        if not message:
            return False
        if len(descriptors) < SANDBOX_DESCRIPTORS:  # there is no room for them: the worker sees its end hang up
            for fd in descriptors:
                os.close(fd)
            return True
        listener, reports = descriptors[0], socket.socket(fileno=descriptors[1])
        order = json.loads(message)
        try:
            sandbox = Observed(listener, reports, order["agent"], order["tasks"])
        except OSError as error:
            _refuse(listener, reports, f"{error.strerror}: {error.filename}")
            return True
        if why_not := _blind(sandbox, order["agent"]):
            os.close(sandbox.root)
            _refuse(listener, reports, why_not)
            return True
        kernel.set_cheap(listener)
        for fd, group in ((listener, self._listeners), (reports.fileno(), self._reports)):
            group[fd] = sandbox
            self._epoll.register(fd, READABLE)
        sandbox.drain(0)
        return True

    def _forget(self, sandbox: Observed) -> None:
        del self._reports[sandbox.reports.fileno()]
        self._epoll.unregister(sandbox.reports.fileno())
        if self._listeners.pop(sandbox.listener, None) is not None:
            self._epoll.unregister(sandbox.listener)
        sandbox.close()


def _refuse(listener: int, reports: socket.socket, why: str) -> None:
    body = json.dumps({"refused": why}).encode()
    with suppress(OSError):
        reports.sendall(LENGTH.pack(len(body)) + body)
    reports.close()
    os.close(listener)


def _blind(sandbox: Observed, agent: int) -> str:
    """Why the guests of this sandbox cannot be looked at; nothing if they can."""
    try:
        guest = Guest(agent, sandbox.root, 0)
        os.readlink(f"/proc/{agent}/exe")
        kernel.require_memory(agent)
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    if guest.inside != 1 or inside(sandbox.root, "/work", follow=True) != ("/work", True):
        return "its paths cannot be followed (openat2, Linux 5.6 or later)"
    return ""


def main() -> None:
    """Arguments: the control socket's descriptor, and the worker's process id."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker's to decide, whose end is ours
    kernel.come_first()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # three of each sandbox
    control = socket.socket(fileno=int(sys.argv[1]))
    worker = os.pidfd_open(int(sys.argv[2]))
    if os.getppid() != int(sys.argv[2]):
        return
    Server(control, worker).run()
