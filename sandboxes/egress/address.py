"""Addresses in one spelling, and the ranges that no rule opens by accident.

An address that is written two ways is two addresses to whoever compares texts, so everything here
works on ``ip``: a v4-mapped IPv6 address *is* its IPv4 address, and a zone (``%eth0``) is no part of it.
"""

import ipaddress
from collections.abc import Mapping
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(maxsize=4096)
def ip(text: str) -> Address:
    """Raises ``ValueError`` for what is no address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def normalised(text: str) -> str:
    """The one spelling of an address.  Raises ``ValueError`` for what is none."""
    return str(ip(text))


def is_loopback(text: str) -> bool:
    return ip(text).is_loopback


def network(text: str) -> Network:
    """A CIDR in one spelling.  Raises ``ValueError``, e.g. when bits of the host are set."""
    return ipaddress.ip_network(text)


def covers(outer: Network, inner: Network) -> bool:
    if isinstance(outer, ipaddress.IPv4Network):
        return isinstance(inner, ipaddress.IPv4Network) and inner.subnet_of(outer)
    return isinstance(inner, ipaddress.IPv6Network) and inner.subnet_of(outer)


_SPECIAL: Mapping[str, tuple[str, ...]] = {
    "metadata": (
        "169.254.169.254/32", "169.254.169.253/32", "169.254.170.2/32", "169.254.170.23/32", "100.100.100.200/32",
        "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::254/128", "fd00:ec2::253/128", "fd00:ec2::23/128",
        "fd20:ce::254/128",
    ),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "unspecified": ("0.0.0.0/8", "::/128"),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    "private": (
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "192.0.0.0/24",
        "fc00::/7", "fec0::/10",
    ),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "reserved": ("240.0.0.0/4",),
    "translated": ("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"),
}  # fmt: skip
"""Ranges that need a rule which names them (docs/egress.md).

``translated`` carry an IPv4 address inside (NAT64, Teredo, 6to4), so that a private one could hide there.
Documentation ranges are not among them: nobody is there to be protected."""

SPECIAL: tuple[tuple[Network, str], ...] = tuple(
    sorted(
        ((network(cidr), kind) for kind, cidrs in _SPECIAL.items() for cidr in cidrs),
        key=lambda entry: -entry[0].prefixlen,
    )
)
"""Narrowest first, so that the metadata service is not just some link-local address."""


@lru_cache(maxsize=4096)
def special_range(address: Address) -> tuple[Network, str] | None:
    """The narrowest special range that holds the address, and its kind."""
    return next(((inside, kind) for inside, kind in SPECIAL if address in inside), None)
