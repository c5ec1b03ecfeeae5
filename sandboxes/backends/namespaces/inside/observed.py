"""The filter by which an observed sandbox is asked about, added by the agent before anybody else exists."""

import os
import struct

from sandboxes.backends.namespaces.inside import libc

SECCOMP_SET_MODE_FILTER, NEW_LISTENER, WAIT_KILLABLE = 1, 8, 32
KEPT_AT = 200
"""Where the listener waits for the host to fetch it, where no socket leads out of the sandbox."""


def ask_about(program: bytes, call_number: int, door: int, host: int) -> None:
    """Have a filter from now on, for the agent and everything that it starts; hand its listener to the host.

    It is sent through the socket ``door``; without one (-1) it lies at ``KEPT_AT`` until a byte comes from ``host``.
    """
    listener = _filtered(program, call_number)
    if door < 0:
        os.dup2(listener, KEPT_AT, False)
        os.close(listener)
        if not os.read(host, 1):
            os._exit(1)
        os.close(KEPT_AT)
        return
    import _socket

    socket = _socket.socket(fileno=door)
    socket.sendmsg([b"!"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("=i", listener))])
    socket.close()
    os.close(listener)


def _filtered(program: bytes, call_number: int) -> int:
    """The listener of a filter that this process has from now on."""
    # Where the bytes of a bytes object are, ``ctypes`` would tell at the price of 6 ms.
    address = id(program) + bytes.__basicsize__ - 1
    filter_program = struct.pack("@HP", len(program) // 8, address)
    # Once a question was read, no signal but a deadly one asks it again (Linux 5.19).
    for flags in (NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER):
        listener = libc.call("syscall", call_number, SECCOMP_SET_MODE_FILTER, flags, filter_program)
        if listener >= 0:
            return int(listener)
    os.write(2, b"netns entry: the kernel takes no filter with a listener (Linux 5.0 or later)\n")
    os._exit(1)
