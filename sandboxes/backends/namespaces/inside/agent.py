"""The agent: process 1 of a sandbox.  It does what the host asks, one event at a time, and trusts no guest.

As process 1 of its pid namespace it cannot be signalled by guests, adopts and reaps their orphans,
and takes everybody with it when it ends.  Guests share its user id, so it makes itself undumpable
(no /proc/1/mem, no /proc/1/fd), and the seccomp filter keeps them from ptrace, from its limits and
from its priority.  It ends when the host's end of the socket closes.

    host --request--> socket --> requested ----> start a program | feed the interpreter | files
    guest writes ---> pipe ----> listen -------> kept, cut, or stopped
    cell ends ------> pipe ----> reported -----> reply
    guest exits ----> SIGCHLD -> bury ---------> reply, if one is still owed
    clock ----------> poll ----> expire -------> kill, and the reply says "timeout"
"""

import _signal  # type: ignore[import-not-found]  # what ``signal`` wraps in enums, which take 7 ms to make
import _socket
import errno
import gc
import marshal
import os
import time
from _collections_abc import Callable

from sandboxes.backends.namespaces.inside import files, frames, guest, observed, processes, selection, trees
from sandboxes.backends.namespaces.inside.events import WRITABLE, Events
from sandboxes.backends.namespaces.inside.jobs import Capture, Cell, Feed, Interpreter, Job, Program
from sandboxes.backends.namespaces.inside.snapshots import Snapshots

LOSSES = {"timeout": "ran out of time", "output": "wrote far too much", "killed": "was stopped"}
UNASKED = "reported what it was not asked"
CHUNK_BYTES = 2**16
"""So much is read of the host at once: a larger buffer would be mapped and unmapped each time."""
ENDED_FOR_ALONE = "was ended, because something had to be done alone"


class Agent:
    def __init__(
        self, host: int, answers: int, limits: dict[str, int], output_bytes: int, score: processes.OutOfMemoryScore
    ) -> None:
        self.host = host
        self.answers = answers
        self.limits = limits
        self.output_bytes = output_bytes
        self.score = score
        self.inbox = bytearray()
        self.events = Events()
        self.programs: dict[int, Program] = {}
        self.interpreter: Interpreter | None = None
        self.cell: Cell | None = None
        self.snapshots = Snapshots(limits["RLIMIT_FSIZE"])
        self.prelude = b""
        self.loss_note = ""
        """What the next cell's reader must know about the interpreter before this one."""
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.child_ended, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        self.events.on(self.host, self.receive)
        self.events.on(self.child_ended, self.child_signalled)
        self.answer(0, frames.HELLO)  # first: the host has things to do as well
        self.start_interpreter()
        import _ast  # noqa: F401  the first interpreter loads it meanwhile on its own; all later ones are born with it

        while True:
            self.events.wait(self.patience_ms())
            self.expire()

    def jobs(self) -> list[Job]:
        return [*self.programs.values(), *([self.cell] if self.cell else [])]

    def patience_ms(self) -> int | None:
        deadlines = [job.deadline_s for job in self.jobs() if not job.decision]
        return max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1) if deadlines else None

    def expire(self) -> None:
        now = time.monotonic()
        for job in self.jobs():
            if not job.decision and job.deadline_s <= now:
                self.stop(job, "timeout")

    def answer(self, number: int, kind: int, payload: bytes = b"") -> None:
        rest = memoryview(frames.reply(number, kind, payload))
        while rest:
            rest = rest[os.write(self.answers, rest) :]

    def answer_result(
        self, job: Job, outcome: str, exit_code: int | None, exception: bytes = b"", note: str = ""
    ) -> None:
        job.out.drain()
        job.err.drain()
        stderr = (note.encode() + job.err.kept)[: self.output_bytes]
        truncated = job.out.truncated or job.err.truncated
        payload = frames.pack_result(outcome, exit_code, job.seconds, bytes(job.out.kept), stderr, truncated, exception)
        self.answer(job.number, frames.RESULT, payload)

    # -- requests of the host ---------------------------------------------------------------------

    def receive(self) -> None:
        chunk = os.read(self.host, CHUNK_BYTES)
        if not chunk:
            os._exit(0)
        self.inbox += chunk
        while len(self.inbox) >= frames.LENGTH.size:
            end = frames.LENGTH.size + frames.LENGTH.unpack_from(self.inbox)[0]
            if len(self.inbox) < end:
                return
            number, verb, arguments = marshal.loads(memoryview(self.inbox)[frames.LENGTH.size : end].tobytes())
            del self.inbox[:end]
            self.requested(number, verb, arguments)

    def requested(self, number: int, verb: str, arguments: tuple[object, ...]) -> None:
        try:
            getattr(self, "do_" + verb)(number, *arguments)
        except selection.Refused as refusal:
            self.answer(number, frames.REFUSED, refusal.payload)
        except OSError as error:
            self.answer(number, frames.FAILED, frames.ERRNO.pack(error.errno or errno.EIO))
        except RecursionError:  # os.makedirs calls itself for each folder above
            self.answer(number, frames.FAILED, frames.ERRNO.pack(errno.ENAMETOOLONG))
        except ValueError:  # no path at all: a null byte, half a surrogate pair
            self.answer(number, frames.FAILED, frames.ERRNO.pack(errno.EINVAL))

    def do_read(self, number: int, path: str, limit_bytes: int) -> None:
        self.answer(number, frames.DATA, files.read_file(path, limit_bytes))

    def do_write(self, number: int, path: str, content: bytes) -> None:
        files.write_file(path, content)
        self.answer(number, frames.DATA)

    def do_exec(
        self, number: int, argv: list[str], stdin: bytes, environment: dict[str, str], timeout_s: float, alone: bool
    ) -> None:
        """Start a program; ``program_ended`` answers.  ``alone``: everything else is dead before."""
        if alone:
            self.end_everybody(ENDED_FOR_ALONE)
        in_read, in_write = os.pipe2(os.O_CLOEXEC) if stdin else (self.null, -1)
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        program = Program(number, timeout_s, self.capture(out_read), self.capture(err_read))
        given = [in_read, out_write, err_write]
        program.pid = self.fork(given, lambda: processes.run_program(argv, environment))
        for fd in given:
            if fd != self.null:
                os.close(fd)
        if stdin:
            program.feed = feed = Feed(in_write, stdin)
            self.events.on(feed.fd, lambda: self.push(program, feed), WRITABLE)
        self.programs[program.pid] = program
        self.listen_to(program)

    def do_python(self, number: int, code: bytes, timeout_s: float) -> None:
        """Give a cell to the interpreter; ``reported`` or ``interpreter_ended`` answers.

        The host sends one at a time.
        """
        self.bury()  # the interpreter may have died since the last look: do not give the cell to a corpse
        if self.interpreter:
            self.reported(self.interpreter)  # what a former cell left must not be found while this one runs
        interpreter = self.interpreter or self.start_interpreter()
        interpreter.out.clear()  # what a thread or child of an earlier cell wrote is nobody's output any more
        interpreter.err.clear()
        codes = [code] if interpreter.used or not self.prelude else [self.prelude, code]
        interpreter.used = True
        self.cell = Cell(number, timeout_s, interpreter.out, interpreter.err, codes, self.loss_note)
        self.loss_note = ""
        self.listen_to(self.cell)
        self.send_code(interpreter, self.cell)

    def do_prelude(self, number: int, code: bytes, timeout_s: float) -> None:
        """Run a cell now, and first of all in every interpreter that this user will need later."""
        self.do_python(number, code, timeout_s)
        self.prelude = code

    def do_cancel(self, _: int, number: int) -> None:
        for job in self.jobs():
            if job.number == number and not job.decision:
                self.stop(job, "killed")

    def do_snapshot(self, number: int, name: str) -> None:
        """The host sends this between cells."""
        self.bury()
        used = self.interpreter if self.interpreter and self.interpreter.used else None
        self.snapshots.take(name, self.prelude, self.loss_note, used, set(self.programs))
        self.answer(number, frames.DATA)

    def do_restore(self, number: int, name: str) -> None:
        """All processes but frozen ones die, files and interpreter come back.  If that fails, so does the sandbox."""
        snapshot = self.snapshots.kept[name]
        processes.kill_all_but(set(), self.snapshots.frozen())
        self.bury()
        if self.interpreter:
            self.interpreter_ended(self.interpreter, -processes.SIGKILL)
        trees.put_back(snapshot.files)
        self.prelude, self.loss_note = snapshot.prelude, snapshot.loss_note
        if snapshot.control is not None:
            self.start_interpreter(snapshot.thaw).used = True
        self.answer(number, frames.DATA)

    def do_drop(self, number: int, name: str) -> None:
        self.snapshots.drop(name)
        self.answer(number, frames.DATA)

    def do_reset(self, number: int) -> None:
        """Everybody dies, every file goes, a fresh interpreter waits.  If that fails, so does the sandbox."""
        self.end_everybody("was reset")
        self.prelude, self.loss_note = b"", ""
        files.wipe()
        guest.prepare_for_all()  # whoever is reset once is reset often
        self.start_interpreter()
        self.answer(number, frames.DATA)

    def do_take(self, number: int, paths: list[str], limits: tuple[int, int, bool], alone: bool) -> None:
        """Answer with chosen files of /work; ``alone``: everything is dead before they are read."""
        if alone:
            self.end_everybody(ENDED_FOR_ALONE)
        self.answer(number, frames.DATA, selection.taken(paths, *limits))

    def do_put(self, number: int, entries: list[tuple[str, bytes | None, bool]]) -> None:
        selection.put(entries)
        self.answer(number, frames.DATA)

    def end_everybody(self, reason: str) -> None:
        """Nothing but the agent is alive when this returns: no program, interpreter, frozen copy or orphan.

        ``kill(-1)`` cannot be outrun, a fork that is under way fails; and whoever is left without a parent is our
        child, so that nobody is left once we have none.  Raises ``OSError`` for what does not die.
        """
        self.bury()  # who ended before has an exit code of its own
        self.snapshots.drop_all()
        processes.kill(-1)
        processes.reap_everybody(self.child_ended)
        for program in list(self.programs.values()):
            self.program_ended(program, -processes.SIGKILL)
        if self.interpreter:
            self.interpreter_ended(self.interpreter, -processes.SIGKILL, reason)

    # -- guests -----------------------------------------------------------------------------------

    def fork(self, descriptors: list[int], body: Callable[[], None]) -> int:
        pid = self.score.fork()
        if pid:
            return pid
        try:
            self.snapshots.leave_to_agent()
            # Flags and owner of an open file are shared by all who inherit it, those of the next user included.
            own_null = os.open("/dev/null", os.O_RDONLY)
            descriptors = [own_null if fd == self.null else fd for fd in descriptors]
            processes.become_guest(self.limits, descriptors)
            os.chdir(files.HOME)
            body()
        finally:
            os._exit(125)

    def capture(self, fd: int) -> Capture:
        return Capture(fd, self.output_bytes)

    def start_interpreter(self, copied: Callable[[list[int]], int] | None = None) -> Interpreter:
        """A fresh one, or one that ``copied`` makes of a frozen copy, given ``copies.GIVEN``; it may raise."""
        cells, its_cells = _socket.socketpair()
        reports_read, reports_write = os.pipe2(os.O_CLOEXEC)
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        given = [out_write, err_write, its_cells.detach(), reports_write]
        pid = copied(given) if copied else self.fork([self.null, *given], guest.serve)
        for fd in given:
            os.close(fd)
        started = Interpreter(pid, cells, reports_read, self.capture(out_read), self.capture(err_read))
        self.events.on(reports_read, lambda: self.reported(started))
        self.interpreter = started
        return started

    def send_code(self, interpreter: Interpreter, cell: Cell) -> None:
        code = cell.codes.pop(0)
        cell.nonce = os.urandom(guest.NONCE_BYTES)
        feed = Feed(interpreter.cells.fileno(), frames.LENGTH.pack(len(code)) + cell.nonce + code)

        def push() -> None:
            if not feed.push():
                self.events.off(feed.fd)

        if feed.push():
            self.events.on(feed.fd, push, WRITABLE)

    def push(self, program: Program, feed: Feed) -> None:
        if not feed.push():
            self.events.close(feed.fd)
            program.feed = None

    def listen_to(self, job: Job) -> None:
        self.events.on(job.out.fd, lambda: self.listen(job, job.out))
        self.events.on(job.err.fd, lambda: self.listen(job, job.err))

    def listen(self, job: Job, capture: Capture) -> None:
        if not capture.take() and capture.ended:
            self.events.off(capture.fd)
        if capture.flooded and not job.decision:
            self.stop(job, "output")

    def stop(self, job: Job, decision: str) -> None:
        """Kill a job with its whole family; the answer follows when its process is buried."""
        job.decision = decision
        kept = {program.pid for program in self.programs.values() if program is not job}
        if self.interpreter and job is not self.cell:
            kept.add(self.interpreter.pid)
        processes.kill_all_but(kept, self.snapshots.frozen())

    def reported(self, interpreter: Interpreter) -> None:
        """The interpreter says how a cell ended; or hangs up, and then ``bury`` has the word."""
        report = interpreter.read_report()
        if report is None:
            return
        cell = self.cell
        if cell is None:
            interpreter.forged = bool(report)
            self.interpreter_ended(interpreter, processes.end_child(interpreter.pid))
            return
        how = guest.read_report(report, cell.nonce)
        if how is None or cell.decision:
            if report and not cell.decision:
                interpreter.forged = True
                cell.decision = "killed"  # forged: a true report that follows must not be believed any more
                cell.note += f"[ended: the interpreter {UNASKED}]\n"
            self.events.off(interpreter.reports)
            processes.kill(interpreter.pid)
            return
        outcome, exit_code, exception = how
        if outcome == "ok" and cell.codes:
            interpreter.out.clear()
            interpreter.err.clear()
            self.send_code(interpreter, cell)
            return
        if outcome == "memory":
            self.retire(interpreter, "ran out of memory")
        self.finish_cell(cell, interpreter, outcome, exit_code, exception)

    def finish_cell(
        self, cell: Cell, interpreter: Interpreter, outcome: str, exit_code: int | None, exception: bytes = b""
    ) -> None:
        self.cell = None
        self.answer_result(cell, outcome, exit_code, exception, cell.note)
        if interpreter.retired:
            self.close_interpreter(interpreter)
        else:
            self.events.off(cell.out.fd)
            self.events.off(cell.err.fd)

    def retire(self, interpreter: Interpreter, reason: str) -> None:
        """Part with the interpreter, its children included; the next cell will be told."""
        self.loss_note = f"[fresh interpreter: the former one {reason}, and its variables are lost]\n"
        interpreter.retired = True
        self.interpreter = None
        processes.kill_all_but(set(self.programs), self.snapshots.frozen())

    def close_interpreter(self, interpreter: Interpreter) -> None:
        self.events.close(interpreter.cells.detach(), interpreter.reports, interpreter.out.fd, interpreter.err.fd)

    # -- the end of guests ------------------------------------------------------------------------

    def child_signalled(self) -> None:
        processes.empty(self.child_ended)  # of what ``reap_everybody`` may have taken in this very round
        self.bury()

    def bury(self) -> None:
        """Collect the dead: answer for those who owe an answer, forget the orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self.snapshots.buried(pid)
            if pid in self.programs:
                self.program_ended(self.programs[pid], code)
            elif self.interpreter and pid == self.interpreter.pid:
                self.interpreter_ended(self.interpreter, code)

    def program_ended(self, program: Program, code: int) -> None:
        outcome = program.decision or ("ok" if code == 0 else "killed" if code < 0 else "error")
        self.answer_result(program, outcome, None if program.decision else code)
        del self.programs[program.pid]
        self.events.close(program.out.fd, program.err.fd)
        if program.feed:
            self.events.close(program.feed.fd)

    def interpreter_ended(self, interpreter: Interpreter, code: int, reason: str = "") -> None:
        """Answer for the cell that was running, if any.  ``do_python`` starts the successor."""
        if self.cell and not self.cell.decision:
            self.reported(interpreter)  # it may have reported with its last breath
        if interpreter.retired:
            return
        cell = self.cell
        if not reason and interpreter.forged:
            reason = UNASKED
        self.retire(interpreter, reason or LOSSES.get(cell.decision if cell else "", f"ended with status {code}"))
        if cell is None:
            self.close_interpreter(interpreter)
        elif cell.decision:
            self.finish_cell(cell, interpreter, cell.decision, None)
        else:
            self.finish_cell(cell, interpreter, "killed" if code < 0 else "error", code)


def main(
    host: int,
    limits: dict[str, int],
    output_bytes: int,
    answers: int | None = None,
    observing: tuple[bytes, int, int] | None = None,
) -> None:
    """Serve the host on the socket ``host``, or on two pipes, until it hangs up.

    ``observing``: the arguments of ``observed.ask_about`` but for the host.
    """
    score = processes.OutOfMemoryScore()
    processes.raise_own_limit()
    if observing is not None:
        observed.ask_about(*observing, host)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    os.umask(0o022)
    answers = host if answers is None else answers
    for fd in (host, answers):
        os.set_inheritable(fd, False)
    gc.disable()
    agent = Agent(host, answers, limits, output_bytes, score)
    gc.freeze()
    agent.run()
