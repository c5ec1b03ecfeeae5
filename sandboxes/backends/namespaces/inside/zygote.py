"""The zygote: process 1 of what bubblewrap made, which makes the agents of one sandbox after the other.

    host --order, socket--> zygote --fork--> walls.raise_walls --> agent.main, process 1 of one sandbox
    host <------ its pid --- zygote

It is loaded once, and its children share its memory until they write.  So it reads no word of a guest: what it is told
is told by the host before any guest exists, and a child closes what is the zygote's before it does anything else.
Guests are in process-id namespaces below its own, in which it does not exist.  It ends when the host hangs up, and all
with it.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import gc
import os
import struct

from sandboxes.backends.namespaces.inside import agent, guest, libc, processes, walls

NEW_PROCESS_IDS = 0x20000000
CREDENTIALS = struct.Struct("@iII")
ONE_DESCRIPTOR = struct.Struct("@i")


def main(control: int, raised: walls.Walls, limits: dict[str, int], output_bytes: int) -> None:
    """Make an agent for each socket that comes through ``control``; ``limits`` and ``output_bytes`` are theirs."""
    processes.set_dumpable(False)
    processes.raise_own_limit()
    guest.prepare_for_all()
    for name in (*walls.CALLED, "setns"):
        libc.place(name)
    walls.keep_times_of_devices()
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # the kernel buries them
    orders = _socket.socket(fileno=control)
    os.set_inheritable(control, False)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    gc.disable()
    gc.freeze()
    while (sandbox := ordered(orders)) is not None:
        walls.called("unshare", NEW_PROCESS_IDS)
        pid = os.fork()
        if pid == 0:
            begin(sandbox, [orders.detach(), own], raised, limits, output_bytes)
        walls.called("setns", own, NEW_PROCESS_IDS)
        os.close(sandbox)
        credentials = CREDENTIALS.pack(pid, os.getuid(), os.getgid())
        orders.sendmsg([b"!"], [(_socket.SOL_SOCKET, _socket.SCM_CREDENTIALS, credentials)])
    os._exit(0)


def ordered(orders: _socket.socket) -> int | None:
    """The agent's end of the socket of a sandbox that is wanted; nothing at the end."""
    word, ancillary, _, _ = orders.recvmsg(1, _socket.CMSG_LEN(ONE_DESCRIPTOR.size))
    if not word:
        return None
    descriptor: int = ONE_DESCRIPTOR.unpack(ancillary[0][2])[0]
    return descriptor


def begin(sandbox: int, zygotes: list[int], raised: walls.Walls, limits: dict[str, int], output_bytes: int) -> None:
    """In the child.  Never returns."""
    try:
        for fd in zygotes:
            os.close(fd)
        os.setsid()
        walls.raise_walls(raised)
        agent.main(sandbox, limits, output_bytes)
    except BaseException as error:
        os.write(2, f"zygote: {error!r}\n".encode())
    finally:
        os._exit(1)
