"""What the observer asks of the kernel: notifications, memory of whoever asks, paths inside a sandbox's root."""

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import NamedTuple

NOTIFICATION = struct.Struct("=QII iIQ 6Q")
"""Id, pid, flags; call number, architecture, instruction; the arguments."""
RESPONSE = struct.Struct("=QqiI")
RECEIVE, SEND, IS_VALID, SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082102, 0x40082104
CONTINUE = 1
WAKE_ON_SAME_CPU = 1
"""Since Linux 6.6, and three to five times cheaper: who asks and who answers never run at the same time."""
OPENAT2 = 437
OPEN_HOW = struct.Struct("=QQQ")
RESOLVE_IN_ROOT = 0x10
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
SCHEDULING = struct.Struct("=IIQiIQQQ")
NICE, SLICE_NS = -15, 100_000
AUTOGROUP = "/proc/self/autogroup"
SESSION_NICE = -5
"""A session's; less than its process's, since guests decide how much is asked, and their neighbours pay."""
PAGE_BYTES = 4096
SHORT_BYTES = 128
MOST_REGIONS = 1000
POINTER_BYTES = 8
REGION = struct.Struct("=QQ")
"""Address and size."""
ADDRESSES = 2**64 - 1
_libc = ctypes.CDLL(None, use_errno=True)
_syscall, _read_memory = _libc.syscall, _libc.process_vm_readv
_syscall.restype = _read_memory.restype = ctypes.c_long
_read_memory.argtypes = (
    ctypes.c_int, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong
)  # fmt: skip
# One for all readings: to make one takes longer than to read a path.
_BUFFER = bytearray(MOST_REGIONS * SHORT_BYTES)
_INTO_BUFFER = REGION.pack(ctypes.addressof(ctypes.c_char.from_buffer(_BUFFER)), len(_BUFFER))


class Question(NamedTuple):
    """One call of a guest, which waits."""

    id: int
    thread: int
    """Its thread's id, on the machine."""
    call: int
    arguments: tuple[int, ...]


def come_first() -> None:
    """Run as soon as somebody asks, also on a machine that has much to do: whoever asks waits for us.

    A short slice is anybody's (Linux 6.12), a priority above others' only root's; without either answers come later.
    Where the kernel shares processors among sessions first, a process's priority counts within its session only.
    """
    for nice in (NICE, 0):
        attributes = SCHEDULING.pack(SCHEDULING.size, 0, 0, nice, 0, SLICE_NS, 0, 0)
        if _syscall(SCHED_SETATTR[platform.machine()], 0, ctypes.c_char_p(attributes), 0) == 0:
            break
    if nice and os.getsid(0) == os.getpid():
        with suppress(OSError):  # no such sharing, or it may not be changed
            Path(AUTOGROUP).write_text(str(SESSION_NICE))


def set_cheap(listener: int) -> bool:
    try:
        fcntl.ioctl(listener, SET_FLAGS, WAKE_ON_SAME_CPU)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def received(listener: int) -> Question | None:
    """The next one; None if its caller was killed meanwhile.  Blocks if there is none."""
    notification = bytearray(NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, RECEIVE, notification)
    except FileNotFoundError:
        return None
    number, thread, _, call, _, _, *arguments = NOTIFICATION.unpack(notification)
    return Question(number, thread, call, tuple(arguments))


def still_asks(listener: int, question: Question) -> bool:
    """Return whether what was read of /proc/<thread> was the caller's own, and nobody else's of the same number."""
    try:
        fcntl.ioctl(listener, IS_VALID, struct.pack("=Q", question.id))
    except FileNotFoundError:
        return False
    return True


def answer(listener: int, question: Question, error: int = 0) -> None:
    """Let the call happen, or have it fail with ``error``."""
    response = RESPONSE.pack(question.id, 0, -error, 0 if error else CONTINUE)
    try:
        fcntl.ioctl(listener, SEND, response)
    except FileNotFoundError:
        return  # the caller was killed meanwhile


def memory(thread: int, address: int, size: int) -> bytes:
    """As much of it as is there.  Raises ``OSError`` where nothing is, or the process is gone.

    /proc/<pid>/mem comes second: it reads what was mapped for writing only, as the kernel does, but a process can have
    it closed to other users than root by saying that it must not be dumped.
    """
    try:
        return _read(thread, [address & ADDRESSES], [size])[0]
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
    fd = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, address)
    finally:
        os.close(fd)


def pieces(thread: int, addresses: list[int]) -> list[bytes]:
    """The next ``SHORT_BYTES`` of each, less what lies beyond its page; empty from the first one that is not there."""
    found: list[bytes] = []
    for start in range(0, len(addresses), MOST_REGIONS):
        some = addresses[start : start + MOST_REGIONS]
        found += together(thread, some, [SHORT_BYTES] * len(some))
    return found


def together(thread: int, addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """Read several at once, each up to the end of its page; empty from the first one that is not there.

    There may be ``MOST_REGIONS``, and all of them together must fit into the buffer (``SHORT_BYTES`` each do).
    """
    try:
        here = [min(size, PAGE_BYTES - address % PAGE_BYTES) for address, size in zip(addresses, sizes, strict=True)]
        return _read(thread, addresses, here)
    except OSError:
        return [b""] * len(sizes)


def require_memory(process: int) -> None:
    """Raises ``OSError`` if we may not read the memory of this process."""
    try:
        _read(process, [0], [1])
    except OSError as error:
        if error.errno != errno.EFAULT:  # nothing is there, and we have been told so
            raise


def _read(thread: int, addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """The last one that is there may be there in part; those after it are empty."""
    remote = struct.pack(f"={2 * len(sizes)}Q", *chain.from_iterable(zip(addresses, sizes, strict=True)))
    read = _read_memory(thread, _INTO_BUFFER, 1, remote, len(sizes), 0)
    if read < 0:
        raise _error(f"memory of process {thread}")
    ends = list(accumulate(sizes, initial=0))
    raw = bytes(memoryview(_BUFFER)[:read])
    return [raw[start:end] for start, end in pairwise(ends)]


def content(path: str, most_bytes: int = PAGE_BYTES) -> bytes:
    """The beginning of a file of /proc, which ``open`` would take twice as long to read.  Raises ``OSError``."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, most_bytes)
    finally:
        os.close(fd)


def text(thread: int, address: int, limit: int = PAGE_BYTES) -> bytes:
    """Up to the first null byte.  Raises ``OSError``."""
    # Mostly short, and not over the end of a page: what follows may not be there.
    region = REGION.pack(address & ADDRESSES, min(SHORT_BYTES, PAGE_BYTES - address % PAGE_BYTES))
    read = _read_memory(thread, _INTO_BUFFER, 1, region, 1, 0)
    end = _BUFFER.find(0, 0, read) if read > 0 else -1
    return bytes(_BUFFER[: min(end, limit)]) if end >= 0 else _long_text(thread, address, limit)


def _long_text(thread: int, address: int, limit: int) -> bytes:
    found = b""
    while len(found) < limit:
        here = address + len(found)
        piece = memory(thread, here, min(PAGE_BYTES - here % PAGE_BYTES, limit if found else SHORT_BYTES))
        head, end, _ = piece.partition(b"\0")
        found += head
        if end or not piece:
            break
    return found[:limit]


def opened_in(root: int, path: str, *, follow: bool) -> int:
    """A handle (O_PATH) of what ``path`` is within ``root``; no link leads out of it.  Raises ``OSError``."""
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    how = OPEN_HOW.pack(flags, 0, RESOLVE_IN_ROOT)
    fd = _syscall(OPENAT2, root, ctypes.c_char_p(os.fsencode(path)), ctypes.c_char_p(how), OPEN_HOW.size)
    if fd < 0:
        raise _error(path)
    return int(fd)


def _error(about: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), about)
