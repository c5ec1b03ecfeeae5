"""What a child of the zygote puts between itself and everybody else, before it becomes the agent of one sandbox.

It does what bubblewrap does at the end of its own work (arguments.py), with namespaces of its own: file systems,
network, capabilities, calls.  Each step ends the process if it fails, so that no sandbox lacks one.  Why it may be done
here, and what is left to bubblewrap: docs/decisions/0021-a-zygote-makes-the-sandboxes-of-a-pool.md.
"""

import _socket
import errno
import fcntl
import os
import struct
from _collections_abc import Iterable

from sandboxes.backends.namespaces.inside import libc

NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x40000000
"""``CLONE_NEWNS | NEWUTS | NEWIPC | NEWNET``; the process-id namespace was chosen before the fork."""
READ_ONLY, NO_SUID, NO_DEVICES, NO_PROGRAMS = 1, 2, 4, 8
CHANGE_THIS_MOUNT = 32 | 4096
"""``MS_REMOUNT | MS_BIND``."""
SET_FLAGS, UP_AND_RUNNING = 0x8914, 0x41
DROP_FROM_BOUNDING, GET_NO_NEW_PRIVILEGES = 24, 39
CAPABILITY_VERSION = 0x20080522
NO_CAPABILITY = bytes(24)
SET_FILTER = 1
CALLED = ("unshare", "mount", "prctl", "capset", "syscall")
CAPABILITIES = {"CAP_SETPCAP": 8, "CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""What the zygote has in the user namespace that bubblewrap made, to make the rest; its children keep none."""

Walls = tuple[int, dict[str, str], bytes, int]
"""Size of each writable file system in bytes, sysctls of the network, the filter of calls, ``seccomp``'s number."""


def called(name: str, *arguments: object) -> int:
    """The result of a function of the C library; ends this process if it fails."""
    result = libc.call(name, *arguments)
    if result < 0:
        os.write(2, f"zygote: {name}{arguments[:4]!r} was refused\n".encode())
        os._exit(1)
    return result


def raise_walls(walls: Walls) -> None:
    disk_bytes, sysctls, calls, seccomp_call = walls
    called("unshare", NAMESPACES)
    mount_own(disk_bytes)
    start_loopback()
    for name, value in sysctls.items():
        set_sysctl(name, value)
    give_up_capabilities(CAPABILITIES.values())
    refuse_calls(calls, seccomp_call)


def keep_times_of_devices() -> None:
    """Make their mounts read-only, once for all sandboxes: who writes to a device is heard as before, but its times,
    which are the machine's and which the next guest reads, nobody sets.  bubblewrap would forbid the devices as well.
    """
    for name in os.listdir("/dev"):
        path = f"/dev/{name}"
        if not os.path.islink(path):
            kept = os.statvfs(path).f_flag & (NO_SUID | NO_DEVICES | NO_PROGRAMS)
            called("mount", None, path.encode(), None, CHANGE_THIS_MOUNT | READ_ONLY | kept, None)


def mount_own(disk_bytes: int) -> None:
    """A /proc of this process-id namespace only, and the two places that can be written, each with a hard size."""
    called("mount", b"proc", b"/proc", b"proc", NO_SUID | NO_DEVICES | NO_PROGRAMS, None)
    for path, mode in ((b"/work", b"0755"), (b"/tmp", b"1777")):
        options = b"mode=%s,size=%d" % (mode, disk_bytes)
        called("mount", b"tmpfs", path, b"tmpfs", NO_SUID | NO_DEVICES, options)
    os.chdir("/work")


def start_loopback() -> None:
    asked = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(asked.fileno(), SET_FLAGS, struct.pack("16sH14x", b"lo", UP_AND_RUNNING))
    asked.close()


def set_sysctl(name: str, value: str) -> None:
    """Set a value of this network; where the machine does not let us, the host reads so on stderr, and says it."""
    try:
        fd = os.open(f"/proc/sys/net/{name}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, value.encode())
        os.close(fd)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT):
            raise
        os.write(2, f"sysctl {name}: {error.strerror}\n".encode())


def give_up_capabilities(held: Iterable[int]) -> None:
    for capability in held:
        called("prctl", DROP_FROM_BOUNDING, capability, 0, 0, 0)
    called("capset", struct.pack("=Ii", CAPABILITY_VERSION, 0), NO_CAPABILITY)  # takes the ambient ones along


def refuse_calls(program: bytes, seccomp_call: int) -> None:
    if called("prctl", GET_NO_NEW_PRIVILEGES, 0, 0, 0, 0) != 1:
        os.write(2, b"zygote: new privileges are not ruled out\n")
        os._exit(1)
    # Where the bytes of a bytes object are, ``ctypes`` would tell at the price of 6 ms.
    address = id(program) + bytes.__basicsize__ - 1
    called("syscall", seccomp_call, SET_FILTER, 0, struct.pack("@HP", len(program) // 8, address))
