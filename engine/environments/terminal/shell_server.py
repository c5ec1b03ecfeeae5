"""A shell on a terminal of its own, inside a sandbox, that goes on between calls.  Runs there, on the standard library.

    python3 -I -S -c CODE NAME [VARIABLE=VALUE ...]         returns when the shell answers

The server keeps a pseudo-terminal whose other side is the controlling terminal of ``bash``, or of ``sh`` where there is
no ``bash``.  A call (``shell_call.py``) connects to its abstract socket; the command is sourced from a file, and what
came out of the terminal until the prompt returned is answered.  A time-out types Ctrl-C, then kills what still runs in
the foreground, then the shell.  Whatever the policy does to this server it does to its own observations only: nothing
that is scored rests on it.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import termios
import time

READ_BYTES = 65536
START_S = 10.0
PROMPT_S = 0.2
"""How long the prompt may take behind the mark that a command is over: whoever changed it shall not wait for long."""
INTERRUPT_S = 1.0
LOOK_S = 0.1
"""How often to look whether the shell is still there."""
MARK = b"\x1e"
LENGTH = struct.Struct("!I")


class Tail:
    """What came out of the terminal: the first and the last bytes, and how many are left out between them."""

    def __init__(self, kept_bytes: int) -> None:
        self.half = kept_bytes // 2
        self.head = b""
        self.rest = b""
        self.seen_bytes = 0

    def add(self, chunk: bytes) -> None:
        self.seen_bytes += len(chunk)
        room = self.half - len(self.head)
        self.head += chunk[:room]
        self.rest = (self.rest + chunk[room:])[-self.half :] if room < len(chunk) else self.rest

    @property
    def left_out_bytes(self) -> int:
        return self.seen_bytes - len(self.head) - len(self.rest)


def place() -> str:
    """Where a command is put, to be sourced: not where a policy that fills its folders leaves no room."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"


class Terminal:
    """The shell and our side of its terminal."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.secret = os.urandom(8).hex()
        self.folder = f"{place()}/.shell-{self.secret}"
        os.mkdir(self.folder, 0o700)
        self.prompt = MARK + b"ready-" + self.secret.encode() + MARK
        self.master, self.pid = self.started(environment)
        self.held = b""
        self.wait_for_prompt(START_S)

    def started(self, environment: dict[str, str]) -> tuple[int, int]:
        shell = shutil.which("bash")
        argv = [shell, "--norc", "--noprofile", "--noediting", "-i"] if shell else ["/bin/sh", "-i"]
        pid, master = os.forkpty()
        if pid == 0:
            for name in ("SIGINT", "SIGQUIT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGPIPE", "SIGHUP"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            words = {"TERM": "dumb", "PS1": self.prompt.decode(), "PS2": "", "PAGER": "cat", "GIT_PAGER": "cat"}
            os.execve(argv[0], argv, {**os.environ, **environment, **words})
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        return master, pid

    def quiet(self) -> None:
        """No echo, no translated line ends, and Ctrl-C is a signal, whatever a program has left the terminal in."""
        mode = termios.tcgetattr(self.master)
        mode[0] = (mode[0] | termios.ICRNL | termios.BRKINT) & ~termios.IXON
        mode[1] &= ~termios.OPOST
        mode[3] = (mode[3] | termios.ISIG | termios.ICANON) & ~(termios.ECHO | termios.ECHONL)
        termios.tcsetattr(self.master, termios.TCSANOW, mode)

    def read(self, timeout_s: float) -> bytes | None:
        """Return what comes within the time; empty if nothing does, None when the shell has ended."""
        if not select.select([self.master], [], [], max(0.0, timeout_s))[0]:
            return b""
        try:
            return os.read(self.master, READ_BYTES) or None
        except OSError as error:
            if error.errno == errno.EIO:
                return None
            raise

    def wait_for_prompt(self, timeout_s: float) -> bytes:
        """Return what stood before the prompt, which is taken away."""
        until, seen = time.monotonic() + timeout_s, b""
        while self.prompt not in seen and time.monotonic() < until:
            chunk = self.read(until - time.monotonic())
            if chunk is None:
                break
            seen = (seen + chunk)[-READ_BYTES:]
        return seen.replace(self.prompt, b"")

    def is_gone(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG) != (0, 0)
        except ChildProcessError:
            return True


class Call:
    """One command, from being typed to its end."""

    def __init__(self, terminal: Terminal, command: bytes, timeout_s: float, kept_bytes: int) -> None:
        self.terminal, self.command, self.timeout_s = terminal, command, timeout_s
        self.tail = Tail(kept_bytes)
        self.nonce = os.urandom(8).hex().encode()
        self.began = MARK + b"began-" + self.nonce + MARK
        self.begun = False
        self.unread = b""
        self.exit_code: int | None = None
        self.over = self.ended = self.prompted = False

    def run(self) -> dict[str, object]:
        until_s = time.monotonic() + self.timeout_s
        try:
            self.type()
        except OSError as error:
            self.over, self.prompted, self.exit_code = True, True, 1
            self.tail.add(f"the command cannot be run: {error.strerror}\n".encode())
        self.watch(until_s)
        interrupted = not self.over and not self.ended
        if interrupted:
            self.interrupt()
        if self.over and not self.prompted:
            self.tail.add(self.terminal.wait_for_prompt(PROMPT_S))
        self.tail.add(self.unread if self.begun else b"")
        return {
            "exit_code": self.exit_code,
            "timed_out": interrupted,
            "shell_ended": self.ended,
            "left_out_bytes": self.tail.left_out_bytes,
            "head_bytes": len(self.tail.head),
        }

    def type(self) -> None:
        path = f"{self.terminal.folder}/command"
        with open(path, "wb") as file:
            file.write(self.command + b"\n")
        self.terminal.quiet()
        prompt = self.terminal.prompt.decode().replace("\x1e", "\\036")
        marks = f"printf '\\036began-{self.nonce.decode()}\\036'"
        end = f"printf '\\036over-{self.nonce.decode()} %d\\036' $?"
        line = f"PS1=$(printf '{prompt}'); {marks}; . {path}; {end}\n"
        os.write(self.terminal.master, line.encode())

    def watch(self, until_s: float) -> None:
        while not self.over and not self.ended and (left_s := until_s - time.monotonic()) > 0:
            chunk = self.terminal.read(min(left_s, LOOK_S))
            # A job in the background may hold the terminal open when the shell has ended.
            self.take(None if chunk == b"" and self.terminal.is_gone() else chunk)

    def take(self, chunk: bytes | None) -> None:
        if chunk is None:
            self.ended = True
            return
        self.unread += chunk
        if not self.begun:
            before, mark, behind = self.unread.partition(self.began)
            self.begun, self.unread = bool(mark), behind if mark else before[-READ_BYTES:]
        if self.begun:
            self.look_for_end()

    def look_for_end(self) -> None:
        over = MARK + b"over-" + self.nonce + b" "
        before, mark, behind = self.unread.partition(over)
        code, closing, rest = behind.partition(MARK)
        if mark and closing:
            self.over, self.exit_code = True, int(code)
            self.prompted = self.terminal.prompt in rest
            self.unread = before
            return
        before, mark, _ = self.unread.partition(self.terminal.prompt)
        if mark and over not in before:  # a syntax error, or Ctrl-C: the rest of the line was dropped
            self.over = self.prompted = True
            self.unread = before
            return
        # What may be the beginning of a mark stays unread.
        kept = self.unread.rfind(MARK, max(0, len(self.unread) - 128))
        ready = len(self.unread) if kept < 0 else kept
        self.tail.add(self.unread[:ready])
        self.unread = self.unread[ready:]

    def interrupt(self) -> None:
        os.write(self.terminal.master, b"\x03")
        self.watch(time.monotonic() + INTERRUPT_S)
        for _ in range(3):
            if self.over or self.ended:
                return
            foreground = os.tcgetpgrp(self.terminal.master)
            if foreground in (0, self.terminal.pid):
                break
            os.killpg(foreground, signal.SIGKILL)
            self.watch(time.monotonic() + INTERRUPT_S)
        if not self.over and not self.ended:
            os.kill(self.terminal.pid, signal.SIGKILL)
            self.watch(time.monotonic() + INTERRUPT_S)
            self.ended = True


def exactly(connection: socket.socket, number: int) -> bytes:
    received = b""
    while len(received) < number:
        chunk = connection.recv(number - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return received


def serve(name: str, environment: dict[str, str]) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen(4)
    if os.fork():
        return  # whoever started it goes on: it answers
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    terminal = Terminal(environment)
    while True:
        connection, _ = listener.accept()
        with connection:
            ended = answer(connection, terminal)
        if ended:
            return


def answer(connection: socket.socket, terminal: Terminal) -> bool:
    """Return whether the shell has ended with this call."""
    try:
        timeout_s, kept_bytes = struct.unpack("!dI", exactly(connection, 12))
        command = exactly(connection, LENGTH.unpack(exactly(connection, 4))[0])
    except EOFError:
        return False
    call = Call(terminal, command, timeout_s, kept_bytes)
    head = json.dumps(call.run()).encode()
    with contextlib.suppress(OSError):  # whoever asked has gone: the command is over all the same
        connection.sendall(LENGTH.pack(len(head)) + head + call.tail.head + call.tail.rest)
    return call.ended


if __name__ == "__main__":
    serve(sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:]))
