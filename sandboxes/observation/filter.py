"""Which system calls of an observed sandbox the kernel asks the observer about, and who answers what.

There is one filter with a listener in a process tree, so it asks about network sockets as well
(egress.interception.calls).  A refused call is asked about in place of being refused by
backends.namespaces.seccomp: of two filters the kernel would obey that one, and nobody would be told.
Once nobody serves the listener the kernel answers ENOSYS to everything that is asked.
"""

import errno
import functools
import os
import platform
import struct

from sandboxes.backends.namespaces.seccomp import NAMESPACE_FLAGS, OBSERVED_MISSING, OBSERVED_REFUSED
from sandboxes.backends.namespaces.syscalls import AARCH64, X86_64, Architecture, this_machine

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
PROGRAM_CALLS = ("execve", "execveat")
FILE_CALLS = (
    "open", "creat", "openat", "openat2", "truncate", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir",
    "link", "linkat", "symlink", "symlinkat", "chmod", "fchmod", "fchmodat", "fchmodat2",
)  # fmt: skip
_COMMON = {"openat2": 437, "fchmodat2": 452}
_NUMBERS = {
    X86_64.audit: _COMMON | {
        "open": 2, "execve": 59, "truncate": 76, "rename": 82, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87,
        "symlink": 88, "chmod": 90, "fchmod": 91, "openat": 257, "unlinkat": 263, "renameat": 264, "linkat": 265,
        "symlinkat": 266, "fchmodat": 268, "renameat2": 316, "execveat": 322,
    },
    AARCH64.audit: _COMMON | {
        "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38, "truncate": 45, "fchmod": 52, "fchmodat": 53,
        "openat": 56, "execve": 221, "renameat2": 276, "execveat": 281,
    },
}  # fmt: skip
SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}

# Classic BPF, as in backends.namespaces.seccomp.
LOAD, AND, JUMP_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
ALLOW, ASK, ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
AT_NUMBER, AT_ARCHITECTURE, AT_ARGUMENTS = 0, 4, 16
Instruction = tuple[int, int, int, int]

UNIX, INET, INET6, NETLINK, PACKET = 1, 2, 10, 16, 17
STREAM, DATAGRAM, RAW = 1, 2, 3
TCP, UDP, ICMP, ICMPV6, MPTCP = 6, 17, 1, 58, 262
NETLINK_ROUTE = 0
TYPE_MASK = 0xF
"""Above it are SOCK_NONBLOCK and SOCK_CLOEXEC."""


def call_numbers(architecture: Architecture | None = None) -> dict[str, int]:
    """Every call that may be asked about, by name."""
    machine = architecture or this_machine()
    refused = {name: machine.numbers[name] for name in (*refusals(), "socket") if name in machine.numbers}
    return _NUMBERS[machine.audit] | refused


def refusals() -> dict[str, int]:
    """The error that each refused call is answered with."""
    return (
        dict.fromkeys(OBSERVED_REFUSED, errno.EPERM)
        | dict.fromkeys(OBSERVED_MISSING, errno.ENOSYS)
        | {"clone": errno.EPERM}
    )


def seccomp_call() -> int:
    return SECCOMP_CALL[platform.machine()]


@functools.cache
def observing_filter(architecture: Architecture | None = None) -> bytes:
    machine = architecture or this_machine()
    numbers = call_numbers(machine)
    bodies: dict[str, list[Instruction]] = {
        "open": _opening(1),
        "openat": _opening(2),
        "socket": socket_questions(),
        "clone": [(LOAD, 0, 0, AT_ARGUMENTS), (JUMP_ANY_BIT, 0, 1, NAMESPACE_FLAGS), (RETURN, 0, 0, ASK),
                  (RETURN, 0, 0, ALLOW)],
    }  # fmt: skip
    program: list[Instruction] = [
        (LOAD, 0, 0, AT_ARCHITECTURE), (JUMP_EQUAL, 1, 0, machine.audit), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, AT_NUMBER)
    ]  # fmt: skip
    for name, number in numbers.items():
        body = bodies.get(name, [(RETURN, 0, 0, ASK)])
        program += [(JUMP_EQUAL, 0, len(body), number), *body]
    return packed([*program, (RETURN, 0, 0, ALLOW)])


def _opening(flags_at: int) -> list[Instruction]:
    """All that may change a file, and reading without O_CLOEXEC.

    With it the loader reads libraries, and interpreters their modules: nine of ten files that a program opens.
    """
    return [
        (LOAD, 0, 0, AT_ARGUMENTS + 8 * flags_at),
        (JUMP_ANY_BIT, 0, 1, WRITING), (RETURN, 0, 0, ASK),
        (JUMP_ANY_BIT, 0, 1, os.O_CLOEXEC | os.O_DIRECTORY | os.O_PATH), (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, ASK),
    ]  # fmt: skip


def socket_questions() -> list[Instruction]:
    """Decide which calls of ``socket`` are asked about.  Returns in every case."""
    return [
        (LOAD, 0, 0, AT_ARGUMENTS), (JUMP_EQUAL, 0, 1, UNIX), (RETURN, 0, 0, ALLOW),
        # C libraries list their addresses by this one whenever a name is looked up: refused without a word.
        (JUMP_EQUAL, 0, 4, NETLINK),
        (LOAD, 0, 0, AT_ARGUMENTS + 16), (JUMP_EQUAL, 0, 1, NETLINK_ROUTE),
        (RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT), (RETURN, 0, 0, ASK),
        (JUMP_EQUAL, 2, 0, INET), (JUMP_EQUAL, 1, 0, INET6), (RETURN, 0, 0, ASK),
        (LOAD, 0, 0, AT_ARGUMENTS + 8), (AND, 0, 0, TYPE_MASK),
        *_protocols(STREAM, (0, TCP, MPTCP)), *_protocols(DATAGRAM, (0, UDP, ICMP, ICMPV6)),
        (RETURN, 0, 0, ASK),
    ]  # fmt: skip


def socket_error(family: int, kind: int) -> int:
    """Return what a call of ``socket`` that was asked about is answered with."""
    return errno.EPERM if kind == RAW and family in (INET, INET6) else errno.EAFNOSUPPORT


def _protocols(kind: int, allowed: tuple[int, ...]) -> list[Instruction]:
    """If the type is ``kind``: one of these protocols, or the question."""
    checks = [(JUMP_EQUAL, len(allowed) - place, 0, protocol) for place, protocol in enumerate(allowed)]
    body = [(LOAD, 0, 0, AT_ARGUMENTS + 16), *checks, (RETURN, 0, 0, ASK), (RETURN, 0, 0, ALLOW)]
    return [(JUMP_EQUAL, 0, len(body), kind), *body]


def packed(program: list[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
