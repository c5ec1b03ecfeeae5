"""How an interpreter copies itself: a *frozen* copy that waits, and the copies that a frozen one makes.

    agent --cells socket: FREEZE, control socket--> interpreter --fork--> frozen copy --control: READY--> agent
    agent --control: nonce, four descriptors------> frozen copy --fork--> interpreter --control: nonce--> agent

Both ends are here.  The frozen copy is the user's own process: the user can end it and bend it, and so
lose the sandbox.  The agent believes of it only its process id, which the kernel states, and that it is
the agent's child; it never waits longer than ANSWER_S.
"""

import _socket
import errno
import os
import struct
import sys
import time

from sandboxes.backends.namespaces.inside import pauses

FREEZE = 2**32 - 1
"""The length of a cell that is none."""
READY, REFUSED = b"+", b"-"
NONCE_BYTES = 16
ANSWER_S = 2.0
FIRST_PAUSE_S = 0.0001
GIVEN = (1, 2, 3, 4)
"""Descriptors that every interpreter has from the agent: stdout, stderr, cells, reports."""
DESCRIPTORS = struct.Struct(f"={len(GIVEN)}i")
ONE_DESCRIPTOR = struct.Struct("=i")
CREDENTIALS = struct.Struct("=iII")
ERRNO = struct.Struct("!i")

# -- the interpreter's end ------------------------------------------------------------------------


def keep_a_copy(control_fd: int) -> None:
    """Leave a frozen copy behind.  Returns at once, and again in every interpreter that it is restored to."""
    control = _socket.socket(fileno=control_fd)
    control.settimeout(None)  # the user may have set a default
    folder = working_folder()
    if not forked(control):
        control.close()
        return
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in GIVEN:
        os.dup2(null, number)
    os.close(null)
    control.send(READY)
    while True:
        nonce, received = wait_for_orders(control)
        if forked(control):
            take_over(received)
            control.send(nonce)
            control.close()
            if folder:
                os.chdir(folder)  # it may have been deleted and made anew since
            return
        for fd in received:
            os.close(fd)


def wait_for_orders(control: _socket.socket) -> tuple[bytes, tuple[int, ...]]:
    """The next restore; without an agent the frozen copy ends."""
    nonce, ancillary, _, _ = control.recvmsg(NONCE_BYTES, _socket.CMSG_LEN(DESCRIPTORS.size))
    if len(nonce) != NONCE_BYTES or len(ancillary) != 1:
        os._exit(0)
    return nonce, DESCRIPTORS.unpack(ancillary[0][2])


def take_over(received: tuple[int, ...]) -> None:
    for number, fd in zip(GIVEN, received):  # noqa: B905 - the same length by DESCRIPTORS
        os.dup2(fd, number)
        os.close(fd)


def working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""  # deleted under our feet


def forked(control: _socket.socket) -> bool:
    """Fork; whether this is the copy.  A failure is told to the agent, and then there is none.

    Through a short-lived process between, the copy is the agent's child like every interpreter.  ``random``
    reseeds itself in a fork, but a restored moment has the future that the first one had.
    """
    module = sys.modules.get("random")
    generator = getattr(module, "_inst", None)
    state = generator.getstate() if generator is not None else None
    try:
        between = os.fork()
        if between == 0:
            fork_and_leave()
            if generator is not None:
                generator.setstate(state)
            os.setsid()  # kill(0) is for the interpreter and its children
            return True
        refusal = ended_with(between)
    except OSError as error:
        refusal = error.errno or errno.EIO
    if refusal:
        control.send(REFUSED + ERRNO.pack(refusal))
    return False


def fork_and_leave() -> None:
    """In the process between: returns in its child, once that is an orphan."""
    between = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        os._exit(error.errno or errno.EIO)
    if child:
        os._exit(0)
    pauses_s = pauses.ever_longer_s(FIRST_PAUSE_S)
    while os.getppid() == between:
        time.sleep(next(pauses_s))


def ended_with(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0  # the user ignores SIGCHLD, or has a handler that reaps


# -- the agent's end ------------------------------------------------------------------------------


def freeze(cells: _socket.socket) -> tuple[int, _socket.socket]:
    """Have the idle interpreter behind ``cells`` copy itself; the copy's pid and control socket.

    Raises ``OSError``: what kept it from forking; ETIMEDOUT; EPROTO for an answer that makes no sense.
    """
    control, its_control = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    control.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
    control.settimeout(ANSWER_S)
    try:
        cells.sendmsg([struct.pack("!I", FREEZE)], [rights(ONE_DESCRIPTOR.pack(its_control.fileno()))])
        its_control.close()
        return received_number(control, READY), control
    except OSError:
        control.close()
        raise
    finally:
        its_control.close()


def thaw(control: _socket.socket, descriptors: list[int]) -> int:
    """Have a frozen copy make an interpreter with these ``GIVEN`` descriptors; its pid.  Raises like ``freeze``."""
    nonce = os.urandom(NONCE_BYTES)  # an answer given before it was asked is none
    control.sendmsg([nonce], [rights(DESCRIPTORS.pack(*descriptors))])
    return received_number(control, nonce)


def received_number(control: _socket.socket, expected: bytes) -> int:
    """The pid of who answers as expected."""
    try:
        # Room for credentials and nothing else: what a guest would pass us is closed by the kernel.
        message, ancillary, _, _ = control.recvmsg(NONCE_BYTES, _socket.CMSG_LEN(CREDENTIALS.size))
    except TimeoutError:
        raise OSError(errno.ETIMEDOUT, "no answer") from None
    if message[:1] == REFUSED and len(message) == 1 + ERRNO.size and expected != message:
        raise OSError(ERRNO.unpack_from(message, 1)[0], "refused")
    if message != expected or not ancillary or ancillary[0][1] != _socket.SCM_CREDENTIALS:
        raise OSError(errno.EPROTO, "not what was asked for")
    pid: int = CREDENTIALS.unpack(ancillary[0][2])[0]
    if not is_living_child(pid):
        raise OSError(errno.EPROTO, "not our child")
    return pid


def is_living_child(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def rights(descriptors: bytes) -> tuple[int, int, bytes]:
    return (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)
