"""Processes of a sandbox as its process 1 sees them: making guests, and making sure that they are gone."""

import _signal  # type: ignore[import-not-found]
import errno
import os
import resource
import select
import time

from sandboxes.backends.namespaces.inside import libc, pauses

AGENT_PID = 1
SIGKILL = 9
SWEEP_S = 1.0
REAP_S = 5.0
FIRST_PAUSE_S = 0.0002
BASE_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/work",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "USER": "agent",
    "PYTHONHASHSEED": "0",  # the order of a set must not change what a seeded policy reads
    "PYTHONDONTWRITEBYTECODE": "1",
}
DESCRIPTORS = 1024
"""The least number of the agent, at least, where the hard limit has them."""
PR_SET_DUMPABLE = 4
FIRST_TO_GO = b"1000"
"""When memory runs out, of the sandbox or of the machine, the kernel shall end a guest and neither the agent nor
others."""
SCORE = "/proc/self/oom_score_adj"
SCORE_BYTES = 16
SIGNALS_BYTES = 4096


def raise_own_limit() -> None:
    """Have descriptors enough for jobs and their pipes, however low the soft limit is that we were started with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def set_dumpable(allowed: bool) -> None:
    """Set whether processes of the same user may open this one's memory and files through /proc."""
    if libc.call("prctl", PR_SET_DUMPABLE, int(allowed), 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


def become_guest(limits: dict[str, int], descriptors: list[int]) -> None:
    """Turn this fresh fork into a guest: ``descriptors`` become 0, 1, 2 ..., nothing else stays open."""
    os.setsid()
    # Move them out of the way first: one of them may have a number that another is to get.
    moved = [os.dup2(fd, 100 + index) for index, fd in enumerate(descriptors)]
    for index, fd in enumerate(moved):
        os.dup2(fd, index, inheritable=True)
    os.closerange(len(moved), 65536)
    # Handlers survive a fork and ignored signals survive an exec as well, those of whoever started us among them;
    # guests get the defaults.  But too large a file stays an error of the write, as Python has it.
    _signal.set_wakeup_fd(-1)
    for number in range(1, _signal.NSIG):
        ignored = _signal.getsignal(number) == _signal.SIG_IGN and number != _signal.SIGXFSZ
        if ignored or number == _signal.SIGCHLD:
            _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    for name, value in limits.items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    set_dumpable(True)


class OutOfMemoryScore:
    """The agent's own score, which a child is born with.

    A guest that wrote its own would open a file for it, and an observed sandbox's observer would be asked about that
    at the start of every program.
    """

    def __init__(self) -> None:
        """Before anybody else exists: the file is the user's only while this process is dumpable."""
        set_dumpable(True)
        self._file = os.open(SCORE, os.O_RDWR | os.O_CLOEXEC)
        set_dumpable(False)
        self._own = os.pread(self._file, SCORE_BYTES, 0)

    def fork(self) -> int:
        """``os.fork``, of a child that goes first when memory runs out.

        Until the child exists the agent is no better than a guest, and the kernel takes the largest of equals.
        """
        os.pwrite(self._file, FIRST_TO_GO, 0)
        try:
            return os.fork()
        finally:
            os.pwrite(self._file, self._own, 0)  # by both: it is the agent's score in the child, too


def run_program(argv: list[str], environment: dict[str, str]) -> None:
    """Become ``argv``; a program that cannot be started ends with the shell's codes 126 and 127."""
    try:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.execvpe(argv[0], argv, {**BASE_ENVIRONMENT, **environment})
    except (OSError, ValueError) as error:
        os.write(2, f"{argv[0]}: {getattr(error, 'strerror', error)}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def parents() -> dict[int, int]:
    """The parent of every process in the sandbox."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended between the two calls
        # One whose main thread has ended looks like a zombie, and lives on as long as another of its threads does.
        if fields[0] not in b"ZX" or int(fields[17]) > 1:
            found[int(name)] = int(fields[1])
    return found


def last_begun() -> bytes:
    """The number of the process or thread of the sandbox that began last."""
    with open("/proc/loadavg", "rb") as file:
        return file.read().split()[-1]


def strangers(kept: set[int], alone: set[int]) -> list[int]:
    """Processes that neither are in ``kept`` nor descend from one that is, nor are in ``alone`` themselves."""
    parent_of = parents()

    def belongs(pid: int) -> bool:
        if pid in alone:
            return True
        while pid not in kept:
            if pid <= AGENT_PID:
                return False
            pid = parent_of.get(pid, 0)
        return True

    return [pid for pid in parent_of if pid != AGENT_PID and not belongs(pid)]


def kill_all_but(kept: set[int], alone: set[int]) -> None:
    """Kill every process of the sandbox except the agent, the families of ``kept``, and those in ``alone`` but not
    their descendants; return when they are dead.

    Processes may fork while we look, so look again until nobody is left, and nobody has begun since the look did: one
    that forks and ends is seen neither itself nor as its child.  Whoever outruns that takes everybody with it, because
    ``kill(-1)`` cannot be outrun.
    """
    if not kept and not alone and not kill(-1):
        return  # nobody is left to be looked for
    give_up_s, pauses_s = time.monotonic() + SWEEP_S, pauses.ever_longer_s(FIRST_PAUSE_S)
    while True:
        begun = last_begun()
        condemned = strangers(kept, alone)
        if not condemned and last_begun() == begun:
            return
        if time.monotonic() > give_up_s:
            kill(-1)
            return
        for pid in condemned:
            kill(pid)
        time.sleep(next(pauses_s))


def reap_everybody(child_ended: int) -> None:
    """Wait until there is no child, and so nobody: orphans are children of process 1.  Raises ``OSError``.

    ``child_ended`` becomes readable when a child ends.
    """
    give_up_s, is_late = time.monotonic() + REAP_S, False
    ended = select.poll()
    ended.register(child_ended, select.POLLIN)
    while True:
        empty(child_ended)  # before the look, so that who ends after it is noticed
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if is_late:
            raise OSError(errno.EBUSY, "a process does not die")
        # Who stood still until it was too late looks once more: they may have died meanwhile.
        is_late = not ended.poll(max(0, int((give_up_s - time.monotonic()) * 1000)))


def empty(pipe: int) -> None:
    """Forget what a pipe of signals holds."""
    try:
        os.read(pipe, SIGNALS_BYTES)
    except BlockingIOError:
        return


def end_child(pid: int) -> int:
    """Kill a child and return when it is dead, and no longer counted: how it ended."""
    kill(pid)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return -SIGKILL  # it ended before, or was none of ours


def kill(pid: int) -> bool:
    """Return whether there was such a process; for -1, whether there was any but the agent."""
    try:
        os.kill(pid, SIGKILL)
    except ProcessLookupError:
        return False
    return True
