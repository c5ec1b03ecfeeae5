"""One command for the shell of ``shell_server.py``.  Runs inside the sandbox, on the standard library.

    python3 -I -S -c CODE NAME SECONDS KEPT_BYTES           the command on standard input

Prints a line of JSON, and behind it what stood on the terminal.  The exit code says whether the command may run again.
"""

import socket
import struct
import sys

READ_BYTES = 65536
NO_SERVER = 97
"""There is none: the command was not sent."""
HUNG_UP = 98
"""The server had the command, or a part of it, and gave no answer."""
LENGTH = struct.Struct("!I")


def exactly(connection: socket.socket, number: int) -> bytes:
    received = b""
    while len(received) < number:
        chunk = connection.recv(number - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return received


def call(name: str, timeout_s: float, kept_bytes: int) -> int:
    command = sys.stdin.buffer.read()
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect("\0" + name)
    except OSError:
        return NO_SERVER
    try:
        server.sendall(struct.pack("!dI", timeout_s, kept_bytes) + LENGTH.pack(len(command)) + command)
        head = exactly(server, LENGTH.unpack(exactly(server, 4))[0])
    except (OSError, EOFError):
        return HUNG_UP
    out = sys.stdout.buffer
    out.write(head + b"\n")
    while chunk := server.recv(READ_BYTES):
        out.write(chunk)
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(call(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
