"""What the log of the kernel says about a packet that was refused.  Pure; the packets are hostile."""

import socket
import struct
from dataclasses import dataclass

from sandboxes.egress.connection_attempt import Family, Protocol
from sandboxes.egress.interception import netlink

PACKET_MESSAGE = 4 << 8
PAYLOAD = 9
TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58
PROTOCOLS: dict[int, Protocol] = {TCP: "tcp", UDP: "udp", ICMP: "icmp", ICMPV6: "icmp"}
EXTENSIONS = {0, 43, 60}
"""IPv6 headers that come before the protocol's own: hop-by-hop, routing, destination."""


@dataclass(frozen=True, slots=True)
class Packet:
    protocol: Protocol
    family: Family
    address: str | None
    port: int | None


def logged(datagram: bytes) -> list[Packet]:
    """The packets of one datagram of the log.  Raises ``MalformedMessage``, which a kernel never causes."""
    found = []
    for kind, _, body in netlink.messages(datagram):
        if kind == PACKET_MESSAGE:
            parts = netlink.attributes(body[4:])
            found.append(_packet(parts.get(PAYLOAD, b"")))
    return found


def _packet(head: bytes) -> Packet:
    version = head[0] >> 4 if head else 0
    if version == 4 and len(head) >= 20:
        protocol, at = head[9], 4 * (head[0] & 15)
        return _of(protocol, "ipv4", socket.inet_ntop(socket.AF_INET, head[16:20]), head[at:])
    if version == 6 and len(head) >= 40:
        protocol, at = head[6], 40
        while protocol in EXTENSIONS and len(head) >= at + 8:
            protocol, at = head[at], at + 8 * (head[at + 1] + 1)
        return _of(protocol, "ipv6", socket.inet_ntop(socket.AF_INET6, head[24:40]), head[at:])
    return Packet("other", "other", None, None)


def _of(protocol: int, family: Family, address: str, rest: bytes) -> Packet:
    port = struct.unpack_from("!H", rest, 2)[0] if protocol in (TCP, UDP) and len(rest) >= 4 else None
    return Packet(PROTOCOLS.get(protocol, "other"), family, address, port)
