"""What a guest does to priorities, limits, timers and marks outlives no reset, of the agent or of the next user.

Each attempt is a program that tries all it can; whether a call is refused, or changes the guest alone, does not
matter.  What counts is what can be seen of the agent at once, and of everything after the reset.
"""

import json

import pytest

from tests.sandboxes.asking import cell_output, python

CALLS = """
import ctypes, errno, fcntl, os, platform, resource, signal, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
IOPRIO_SET, IOPRIO_GET, SCHED_SETATTR, SET_MEMPOLICY, PRLIMIT, ADD_KEY = (
    (30, 31, 274, 237, 261, 217) if ARM else (251, 252, 314, 238, 302, 248)
)

def call(number, *arguments):
    return libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))

def tried(attempt, *arguments):
    try:
        attempt(*arguments)
    except (OSError, ValueError):
        pass

def written(path, text):
    with open(path, "w") as file:
        file.write(text)
"""

AGENT = """
def of_agent():
    with open("/proc/1/limits") as limits, open("/proc/1/oom_score_adj") as score, open("/proc/1/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
        return {
            "nice": os.getpriority(os.PRIO_PROCESS, 1), "ioprio": call(IOPRIO_GET, 1, 1),
            "policy": os.sched_getscheduler(1), "processors": sorted(os.sched_getaffinity(1)),
            "limits": limits.read(), "out of memory": score.read(),
            "priority": fields[15:17], "threads": fields[17], "session": fields[2:4],
        }
"""

OWN = """
def flags(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return struct.unpack_from("=i", fcntl.ioctl(fd, 0x80086601, bytes(8)))[0]
    except OSError as error:
        return error.errno
    finally:
        os.close(fd)

def of_me():
    umask = os.umask(0)
    os.umask(umask)
    with open("/proc/self/status") as status:
        signals = [line for line in status if line.startswith(("Sig", "Shd", "Seccomp:", "Cap", "NoNew"))]
    return {
        "nice": os.nice(0), "ioprio": call(IOPRIO_GET, 1, 0), "policy": os.sched_getscheduler(0),
        "processors": sorted(os.sched_getaffinity(0)), "umask": umask, "signals": signals,
        "limits": [resource.getrlimit(number) for number in range(16)],
        "timer": signal.getitimer(signal.ITIMER_REAL), "alarm": signal.alarm(0),
        "slack": open("/proc/self/timerslack_ns").read(), "personality": libc.personality(-1),
        "out of memory": open("/proc/self/oom_score_adj").read(), "dumped": open("/proc/self/coredump_filter").read(),
        "name": open("/proc/self/comm").read(), "subreaper": os.getppid(), "session": os.getsid(0) == os.getpid(),
        "descriptors": {fd: fcntl.fcntl(fd, fcntl.F_GETFL) for fd in range(3)},
        "owners": {fd: fcntl.fcntl(fd, fcntl.F_GETOWN) for fd in range(3)},
        "folders": {path: (oct(os.stat(path).st_mode), os.listxattr(path), os.listdir(path), flags(path),
                           os.stat(path).st_mtime > 1e9, os.stat(path).st_atime > 1e9) for path in ("/work", "/tmp")},
        "environment": dict(os.environ),
        "processes": sorted(int(name) == os.getpid() for name in os.listdir("/proc") if name.isdigit() and name != "1"),
    }
"""

ATTEMPTS = {
    "priority by user and group": """
        for which, target in ((2, 0), (2, 1000), (2, os.getuid()), (1, 1), (1, 0), (0, 1), (0, 0)):
            tried(os.setpriority, which, target, 15)
        tried(os.nice, 5)
    """,
    "priority of input and output": """
        for which, target in ((3, 0), (3, 1000), (3, os.getuid()), (2, 1), (2, 0), (1, 1), (1, 0)):
            for level in (3 << 13, 2 << 13 | 7):
                call(IOPRIO_SET, which, target, level)
    """,
    "scheduling": """
        for target in (1, 0):
            for policy in (os.SCHED_IDLE, os.SCHED_BATCH, os.SCHED_FIFO):
                tried(os.sched_setscheduler, target, policy, os.sched_param(0))
            tried(os.sched_setaffinity, target, {min(os.sched_getaffinity(0))})
            idle = ctypes.create_string_buffer(struct.pack("=IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0))
            call(SCHED_SETATTR, target, idle, 0)
        call(SET_MEMPOLICY, 2, ctypes.create_string_buffer(b"\\x01" + bytes(7)), 64)
    """,
    "limits": """
        small = ctypes.create_string_buffer(struct.pack("=QQ", 3, 3))
        for number in range(16):
            call(PRLIMIT, 1, number, small, 0)
        for name in ("NOFILE", "NPROC", "CPU", "FSIZE", "SIGPENDING", "STACK"):
            tried(resource.setrlimit, getattr(resource, "RLIMIT_" + name), (200, 200))
    """,
    "files of processes": """
        for path in ("oom_score_adj", "oom_adj", "autogroup", "coredump_filter", "timerslack_ns", "comm", "sched",
                     "loginuid", "clear_refs", "attr/current", "uid_map", "setgroups", "make-it-fail", "task/1/comm"):
            for process in ("1", "self"):
                for text in ("1000", "19", "0", "999999999"):
                    tried(written, f"/proc/{process}/{path}", text)
        tried(written, "/proc/sys/kernel/ns_last_pid", "30000")
        for path in ("cgroup.procs", "memory.max", "cpu.weight", "cgroup.freeze"):
            tried(written, f"/sys/fs/cgroup/{path}", "1")
    """,
    "timers and signals": """
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0.5, 0.001)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        for number in range(1, 65):
            for _ in range(50 if number == signal.SIGCHLD else 1):
                tried(os.kill, 1, number)
        for number in set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
            tried(signal.signal, number, signal.SIG_IGN)
        os.umask(0o777)
    """,
    "files that others have open": """
        for fd in range(3):
            tried(fcntl.fcntl, fd, fcntl.F_SETOWN, 1)
            tried(fcntl.fcntl, fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND | os.O_ASYNC)
            tried(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    """,
    "marks on folders": """
        for path in ("/work", "/tmp"):
            tried(os.setxattr, path, "user.note", b"note")
            os.chmod(path, 0o707)
            fd = os.open(path, os.O_RDONLY)
            for mark in (0x40, 0x80, 0x40 | 0x80, 0x10, 0x20):  # no dump, no access time, immutable, append only
                tried(fcntl.ioctl, fd, 0x40086602, struct.pack("q", mark))
            os.utime(path, (12345, 67890))
    """,
    "what the kernel counts": """
        room = ctypes.c_ulong(0)
        call(0 if ARM else 206, 1000, ctypes.byref(room))  # io_setup
        call(ADD_KEY, b"user", b"note", b"secret", 6, -5)
        libc.prctl(36, 1, 0, 0, 0)  # adopts orphans
        libc.prctl(29, 1, 0, 0, 0)  # timer slack
        libc.personality(0x0040000)  # addresses in order
        kept = [socket.socketpair() for _ in range(50)]
        for ours, theirs in kept:
            tried(fcntl.fcntl, ours, 1031, 2**20)
            socket.send_fds(ours, [b"x"], [theirs.fileno(), ours.fileno()])
        if os.fork() == 0:
            os.setsid()
            os.execv("/bin/sleep", ["sleep", "60"])
    """,
}


async def seen(sandbox, function: str) -> dict[str, object]:
    return json.loads(
        await cell_output(sandbox, f"import json\n{CALLS}\n{AGENT}\n{OWN}\nprint(json.dumps({function}()))")
    )


@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_nothing_that_a_guest_does_to_itself_or_its_agent_outlives_a_reset(sandbox, attempt):
    agent = await seen(sandbox, "of_agent")
    await sandbox.reset()  # a first user's numbers may differ from those of everybody after
    guest = await seen(sandbox, "of_me")
    await sandbox.reset()
    result = await python(sandbox, CALLS + "\n".join(line[8:] for line in ATTEMPTS[attempt].splitlines()))
    assert result.outcome in ("ok", "killed"), result  # what it does to itself may end it
    await sandbox.reset()
    assert (await seen(sandbox, "of_agent"), await seen(sandbox, "of_me")) == (agent, guest)


async def test_the_agents_priority_is_nobodys_but_its_own_while_a_guest_lives(sandbox):
    agent = await seen(sandbox, "of_agent")
    for attempt in ATTEMPTS.values():
        await python(sandbox, CALLS + "\n".join(line[8:] for line in attempt.splitlines()))
    assert await seen(sandbox, "of_agent") == agent
