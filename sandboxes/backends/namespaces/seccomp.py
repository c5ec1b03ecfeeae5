"""System calls that guests go without: a classic BPF program for ``bwrap --seccomp``.

A deny list.  An allow list would be tighter, and would break a program of somebody's with every new
C library; the namespaces, the lack of capabilities and the read-only files are the first line, this
is the second, against what they do not cover: kernel interfaces with a record of escapes, shared
state that survives a reset, and calls by which a guest could bend the agent, whose user id it has.
"""

import errno
import functools
import struct
from collections.abc import Iterable, Mapping

from sandboxes.backends.namespaces.syscalls import Architecture, this_machine

NOT_PERMITTED = (
    # Reading or driving other processes.
    "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise",
    "process_mrelease", "move_pages", "migrate_pages",
    # Kernel keyrings are per user, not per namespace.
    "add_key", "request_key", "keyctl",
    # Large attack surface, no use to code that only computes.
    "bpf", "userfaultfd", "perf_event_open", "fanotify_init", "name_to_handle_at", "open_by_handle_at",
    "lookup_dcookie", "syslog", "modify_ldt", "vhangup", "mbind", "set_mempolicy", "set_mempolicy_home_node",
    "lsm_set_self_attr",
    # Mounts and namespaces: a guest that made a user namespace would hold capabilities in it.
    "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount",
    "fspick", "mount_setattr", "open_tree_attr", "unshare", "setns",
    # The machine.
    "acct", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "swapon", "swapoff", "reboot",
    "sethostname", "setdomainname", "iopl", "ioperm", "init_module", "finit_module", "delete_module",
    "quotactl", "quotactl_fd", "kexec_load", "kexec_file_load",
)  # fmt: skip
NOT_IMPLEMENTED = (
    # Programs know how to do without these.  io_uring bypasses this very filter.
    "io_uring_setup", "io_uring_enter", "io_uring_register",
    # Its flags lie in memory that a filter cannot read; C libraries then use clone.
    "clone3",
    # Could have a stopped process continued, by a timer's SIGCONT (stopping.py).
    "timer_create",
    # Its contexts are counted for the whole machine (fs.aio-max-nr): one sandbox could take them all.
    "io_setup",
    # Memory that no limit of the sandbox counts.
    "memfd_create", "memfd_secret",
    # Objects of the IPC namespace outlive their processes, hence a reset.
    "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd",
    "msgrcv", "msgctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr",
)  # fmt: skip
OBSERVED_REFUSED, OBSERVED_MISSING = NOT_PERMITTED, ("memfd_create",)
"""Calls of an observed sandbox that observation.filter asks about, and that are refused by the answer."""
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
"""These name one process.  The other values name a group or a *user*: the agent is of the same user as its guests."""
ME = 0
SELF_ONLY = {
    "prlimit64": {0: ME},
    "sched_setparam": {0: ME},
    "sched_setscheduler": {0: ME},
    "sched_setaffinity": {0: ME},
    "sched_setattr": {0: ME},
    "setpriority": {0: PRIO_PROCESS, 1: ME},
    "ioprio_set": {0: IOPRIO_WHO_PROCESS, 1: ME},
}
"""Calls allowed on the caller only: the values that their arguments must have, by the arguments' places.

On another process of the same user these need no privilege: a guest could take the agent's files or its
processor time, and leave its successor in the sandbox with limits of its choice.
"""
NAMESPACE_FLAGS = 0x7E020000
"""``CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}``."""
SOCKET_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6.  VSOCK reaches the hypervisor past every network namespace; NETLINK,
PACKET, ALG and the rest are attack surface."""
TERMINAL_INJECTION = (0x5412, 0x541C)
"""TIOCSTI, TIOCLINUX: typing into a terminal that the embedder may have left open."""
SIGNAL_CHOICE = (10,)
"""F_SETSIG: the choice which signal a ready descriptor sends, SIGCONT for example (stopping.py)."""
SOL_SOCKET, SO_SNDBUF, SO_RCVBUF = 1, 7, 8
IPPROTO_IPV6, FLOW_LABELS = 41, 32
"""IPV6_FLOWLABEL_MGR: a label and an address of choice stay for up to 150 s after their socket, over a reset too, and
all labels of the machine have one count."""
PERSONALITIES = (0, 0xFFFFFFFF)
"""The default one, and asking which it is."""

# Classic BPF: opcodes, and offsets into struct seccomp_data (little-endian machines).
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
AT_NUMBER, AT_ARCHITECTURE = 0, 4
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X32_CALLS_FROM = 0x40000000

Instruction = tuple[int, int, int, int]


@functools.cache
def deny_filter(architecture: Architecture | None = None, *, watched: bool = False, observed: bool = False) -> bytes:
    """The program, as ``struct sock_filter[]``.

    ``watched``: ``socket`` is left to the filter of egress.interception.calls, which is there already and
    which refuses more; of two filters that refuse, the kernel would obey this one, and nobody would be told.
    ``observed``: so are the calls whose refusal the observer tells, to the filter that the agent adds (observation).
    """
    machine = architecture or this_machine()
    program: list[Instruction] = [
        (LOAD, 0, 0, AT_ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, machine.audit),
        (RETURN, 0, 0, KILL_PROCESS),  # 32-bit calls have numbers of their own, which the list below would miss
        (LOAD, 0, 0, AT_NUMBER),
        (JUMP_AT_LEAST, 0, 1, X32_CALLS_FROM),
        (RETURN, 0, 0, KILL_PROCESS),
    ]
    asked = {*OBSERVED_REFUSED, *OBSERVED_MISSING} if observed else set()
    program += _refused(machine, (name for name in NOT_PERMITTED if name not in asked), errno.EPERM)
    program += _refused(machine, (name for name in NOT_IMPLEMENTED if name not in asked), errno.ENOSYS)
    for name, arguments in SELF_ONLY.items():
        program += _unless_arguments(machine, name, arguments, errno.EPERM)
    for name in ("socketpair",) if watched else ("socket", "socketpair"):
        program += _unless_argument(machine, name, 0, SOCKET_FAMILIES, errno.EAFNOSUPPORT)
    program += _unless_argument(machine, "personality", 0, PERSONALITIES, errno.EPERM)
    program += _if_argument(machine, "ioctl", 1, TERMINAL_INJECTION, errno.EPERM)
    program += _if_argument(machine, "fcntl", 1, SIGNAL_CHOICE, errno.EPERM)
    program += _socket_options(machine)
    if not observed:
        namespaces = [_load_argument(0), (JUMP_ANY_BIT, 0, 1, NAMESPACE_FLAGS), _error(errno.EPERM)]
        program += _on_call(machine, "clone", [*namespaces, (RETURN, 0, 0, ALLOW)])
    program.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _refused(machine: Architecture, names: Iterable[str], code: int) -> list[Instruction]:
    return [step for name in names for step in _on_call(machine, name, [_error(code)])]


def _on_call(machine: Architecture, name: str, body: list[Instruction]) -> list[Instruction]:
    """``body`` when the call is ``name``; it must return, because it may overwrite the loaded number."""
    number = machine.numbers.get(name)
    return [] if number is None else [(JUMP_EQUAL, 0, len(body), number), *body]


def _unless_argument(
    machine: Architecture, name: str, index: int, allowed: tuple[int, ...], code: int
) -> list[Instruction]:
    checks = [(JUMP_EQUAL, len(allowed) - place, 0, value) for place, value in enumerate(allowed)]
    return _on_call(machine, name, [_load_argument(index), *checks, _error(code), (RETURN, 0, 0, ALLOW)])


def _unless_arguments(machine: Architecture, name: str, wanted: Mapping[int, int], code: int) -> list[Instruction]:
    checks = [
        step
        for index, value in wanted.items()
        for step in (_load_argument(index), (JUMP_EQUAL, 1, 0, value), _error(code))
    ]
    return _on_call(machine, name, [*checks, (RETURN, 0, 0, ALLOW)])


def _if_argument(machine: Architecture, name: str, index: int, denied: tuple[int, ...], code: int) -> list[Instruction]:
    checks = [(JUMP_EQUAL, len(denied) - place, 0, value) for place, value in enumerate(denied)]
    return _on_call(machine, name, [_load_argument(index), *checks, (RETURN, 0, 0, ALLOW), _error(code)])


def _socket_options(machine: Architecture) -> list[Instruction]:
    """A larger buffer is a wish that the kernel may cut down: it is heard, and changes nothing.  No flow labels."""
    checks: list[Instruction] = [
        _load_argument(1), (JUMP_EQUAL, 0, 4, SOL_SOCKET),
        _load_argument(2), (JUMP_EQUAL, 1, 0, SO_SNDBUF), (JUMP_EQUAL, 0, 5, SO_RCVBUF), _error(0),
        (JUMP_EQUAL, 0, 3, IPPROTO_IPV6),
        _load_argument(2), (JUMP_EQUAL, 0, 1, FLOW_LABELS), _error(errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
    return _on_call(machine, "setsockopt", checks)


def _load_argument(index: int) -> Instruction:
    """The lower half: the arguments looked at here are ints, and the kernel ignores the upper half of those."""
    return (LOAD, 0, 0, 16 + 8 * index)


def _error(code: int) -> Instruction:
    return (RETURN, 0, 0, ERRNO | code)
