"""The program that a watched sandbox starts as: it makes the network namespace, then becomes bubblewrap.

Runs on the system's Python, alone, before anything untrusted exists.  It makes a user and a network
namespace, puts routes and rules in place, opens the sockets of gateway, resolver and log *inside*, and
sends them to the supervisor *outside*.  Then it executes bubblewrap, which makes a user namespace
below: nobody in the sandbox has a capability over the network namespace.  If anything fails the program
ends with a word on stderr, and there is no sandbox.

For a container, whose network namespace a daemon has made, it enters that one instead, and ends when
the sockets are out.
"""

import _ctypes
import _socket
import errno
import fcntl
import marshal
import os
import struct
import sys

CLONE_NEWNET, CLONE_NEWUSER_NEWNET = 0x40000000, 0x50000000
GET_FLAGS, IFF_UP = 0x8913, 1
SECCOMP_SET_MODE_FILTER, NEW_LISTENER = 1, 8
SOL_IPV6, IPV6_V6ONLY, IPV6_RECVPKTINFO, IPV6_TRANSPARENT, IPV6_FREEBIND = 41, 26, 49, 75, 78
AF_NETLINK, NETLINK_ROUTE, NETLINK_NETFILTER = 16, 0, 12
LOG_BUFFER_BYTES = 4 * 2**20
MOST_PENDING = 4096
MOST_PENDING_INSIDE = "128"
ERROR = struct.Struct("=IHHIIi")
"""A netlink header, and the error number that follows it in an acknowledgement."""


def refuse(reason: str) -> None:
    """End with a word.  It is said before the sockets close: whoever sees them close reads what was said."""
    sys.stderr.write(f"netns entry: {reason}\n")
    sys.exit(1)


def unshare() -> None:
    call = _ctypes.dlsym(_ctypes.dlopen(None, 2), "unshare")  # type: ignore[arg-type]  # None: what is loaded already
    if _ctypes.call_function(call, (CLONE_NEWUSER_NEWNET,)) != 0:
        refuse("No permissions to create new namespace")


def enter(namespace: int) -> None:
    """Be in that network namespace.  It must be nobody's but a sandbox's: another one than ours, with no way out."""
    ours = os.stat("/proc/self/ns/net")
    if os.path.samestat(ours, os.fstat(namespace)):
        refuse("the container has the network of its host")
    call = _ctypes.dlsym(_ctypes.dlopen(None, 2), "setns")  # type: ignore[arg-type]
    if _ctypes.call_function(call, (namespace, CLONE_NEWNET)) != 0:
        refuse("only root may enter the network of a container")
    asked = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    up = [name for _, name in _socket.if_nameindex() if is_up(asked, name)]
    asked.close()
    if set(up) - {"lo"}:
        refuse(f"the container has more network than its own loopback: {up}")


def is_up(asked: _socket.socket, device: str) -> bool:
    answer = fcntl.ioctl(asked.fileno(), GET_FLAGS, struct.pack("16s24x", device.encode()))
    return bool(struct.unpack_from("=16xH", answer)[0] & IFF_UP)


def ask_about(program: bytes, call_number: int) -> int:
    """Have a filter from now on, for us and whatever we become; return its listener."""
    # Where the bytes of a bytes object are, ``ctypes`` would tell at the price of 6 ms.
    address = id(program) + bytes.__basicsize__ - 1
    call = _ctypes.dlsym(_ctypes.dlopen(None, 2), "syscall")  # type: ignore[arg-type]
    filter_program = struct.pack("@HP", len(program) // 8, address)
    listener: int = _ctypes.call_function(call, (call_number, SECCOMP_SET_MODE_FILTER, NEW_LISTENER, filter_program))
    if listener < 0:
        refuse("the kernel takes no filter with a listener (Linux 5.0 or later)")
    os.set_inheritable(listener, False)
    return listener


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, text.encode())
    os.close(fd)


def map_identity(inside: int, user: int, group: int) -> None:
    """Be ``inside`` in there: not root, so that bubblewrap is executed without any capability."""
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{inside} {user} 1")
    write("/proc/self/gid_map", f"{inside} {group} 1")


def netlink(protocol: int) -> _socket.socket:
    made = _socket.socket(AF_NETLINK, _socket.SOCK_RAW, protocol)
    made.bind((0, 0))
    made.settimeout(5)
    return made


def request_acknowledged(kernel: _socket.socket, request: bytes, acknowledgements: int) -> None:
    """Send a request, and wait until the kernel has said yes so many times."""
    kernel.send(request)
    while acknowledgements > 0:
        answer = kernel.recv(65536)
        while answer:
            length, kind, _, _, _, error = ERROR.unpack_from(answer)
            if kind == 2:
                if error:
                    raise OSError(-error, os.strerror(-error))
                acknowledgements -= 1
            answer = answer[length + -length % 4 :]


def listener(port: int) -> _socket.socket:
    made = _socket.socket(_socket.AF_INET6, _socket.SOCK_STREAM)
    made.setsockopt(SOL_IPV6, IPV6_V6ONLY, 0)
    made.setsockopt(SOL_IPV6, IPV6_TRANSPARENT, 1)
    made.bind(("::", port))
    made.listen(MOST_PENDING)
    return made


def resolver(port: int) -> _socket.socket:
    made = _socket.socket(_socket.AF_INET6, _socket.SOCK_DGRAM)
    made.setsockopt(SOL_IPV6, IPV6_V6ONLY, 0)
    made.setsockopt(SOL_IPV6, IPV6_RECVPKTINFO, 1)
    made.setsockopt(SOL_IPV6, IPV6_FREEBIND, 1)  # answers come from the address that was asked, whichever that is
    made.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, LOG_BUFFER_BYTES)
    made.bind(("::", port))
    return made


def set_up(name: str, value: str) -> None:
    """Set a sysctl of the network: small buffers; ping sockets for guests, whose pings are then logged packets.

    A read-only /proc/sys leaves ping shut, which is as safe, and the buffers as large as the host has them.
    """
    try:
        write(f"/proc/sys/net/{name}", value)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.ENOENT):
            raise


def main() -> None:
    door = _socket.socket(fileno=int(sys.argv[1]))
    size = int.from_bytes(door.recv(4, _socket.MSG_WAITALL), "big")
    orders = marshal.loads(door.recv(size, _socket.MSG_WAITALL))
    inside, gateway_port, dns_port, routes, rules, log, asked, seccomp_call, namespace, sysctls = orders
    if namespace < 0:
        user, group = os.getuid(), os.getgid()
        unshare()
        map_identity(inside, user, group)
    else:
        enter(namespace)
    request_acknowledged(netlink(NETLINK_ROUTE), routes, 3)
    for name, value in sysctls.items():
        set_up(name, value)
    sockets = [listener(gateway_port), resolver(dns_port), netlink(NETLINK_NETFILTER), netlink(NETLINK_NETFILTER)]
    _, _, logged, counters = sockets
    logged.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, LOG_BUFFER_BYTES)
    request_acknowledged(logged, log, 2)
    request_acknowledged(counters, rules, 1)
    set_up("core/somaxconn", MOST_PENDING_INSIDE)  # after the listener, whose own queue is longer
    if namespace < 0:
        set_up("ipv4/ping_group_range", f"{inside} {inside}")
    # A process that only enters has no descendant in the sandbox that a filter of its own would hold for.
    # That of an observed sandbox adds one itself, later, and sends its listener through the same door.
    listening = [ask_about(asked, seccomp_call)] if namespace < 0 and asked else []
    descriptors = b"".join(struct.pack("=i", fd) for fd in (*(made.fileno() for made in sockets), *listening))
    door.sendmsg([b"!"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    if namespace >= 0:
        return
    for made in (*sockets, *([door] if listening else [])):
        made.close()
    for fd in listening:
        os.close(fd)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        refuse(str(error))
