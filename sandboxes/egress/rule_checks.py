"""What may stand in a rule: hosts, networks and ports, each with its fault and the remedy for it."""

import ipaddress
import re

from sandboxes.egress.address import network

Fault = tuple[str, str]
"""(what is wrong, what to do instead)."""

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_PORTS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?")
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")

ANYBODYS = frozenset({
    "co.uk", "org.uk", "ac.uk", "gov.uk", "com.au", "net.au", "org.au", "co.jp", "ne.jp", "or.jp", "co.nz", "co.za",
    "co.in", "co.kr", "com.br", "com.cn", "net.cn", "org.cn", "com.mx", "com.tr", "com.tw", "com.hk", "com.sg",
    "github.io", "gitlab.io", "pages.dev", "workers.dev", "vercel.app", "netlify.app", "herokuapp.com", "web.app",
    "firebaseapp.com", "azurewebsites.net", "blob.core.windows.net", "cloudapp.azure.com", "amazonaws.com",
    "s3.amazonaws.com", "execute-api.amazonaws.com", "cloudfront.net", "fastly.net", "akamaized.net", "appspot.com",
    "run.app", "r2.dev", "onrender.com", "fly.dev", "deno.dev", "repl.co", "replit.dev", "ngrok.io", "ngrok.app",
    "ngrok-free.app", "trycloudflare.com", "loca.lt", "serveo.net", "duckdns.org", "no-ip.org", "ddns.net", "nip.io",
    "sslip.io", "xip.io", "dyndns.org",
})  # fmt: skip
"""Below these everybody can have a name, as below a top-level domain.  Well-known ones; not the whole world's."""


def is_host_name(name: str) -> bool:
    """Return whether a normalised name is one that could be resolved.  Names that a sandbox sends need not be."""
    return len(name) <= 253 and all(_LABEL.fullmatch(label) for label in name.split("."))


def host_fault(pattern: str) -> Fault | None:
    name = pattern.removeprefix("*.")
    if "*" in name:
        return "a wildcard stands for whole leading labels only", "write *.example.org, or exact names"
    if not name.isascii():
        return "a name with letters beyond ASCII", "write it as it is resolved (xn--...)"
    if _is_address(name):
        return "an address is not a name", "put it into cidrs, e.g. 203.0.113.7/32"
    labels = name.split(".")
    if not is_host_name(name):
        return "not a host name", "give a name such as pypi.org, without scheme, port or path"
    if name == "localhost" or name.endswith(".localhost"):
        return "localhost is the sandbox itself", "leave it out: a sandbox reaches its own loopback anyway"
    if pattern != name and (len(labels) < 2 or name in ANYBODYS):
        return f"everybody can have a name below {name}", "name a domain of one owner, e.g. *.example.org"
    return None


def cidr_fault(cidr: str) -> Fault | None:
    try:
        found = network(cidr)
    except ValueError:
        return _cidr_remedy(cidr)
    if isinstance(found, ipaddress.IPv6Network) and found.subnet_of(ipaddress.IPv6Network("::ffff:0:0/96")):
        inner = f"{found.network_address.ipv4_mapped}/{found.prefixlen - 96}"
        return "an IPv4 network written as IPv6", f"write {inner}"
    if "/" not in cidr:
        return "an address without a prefix length", f"write {found}"
    return None


def _cidr_remedy(cidr: str) -> Fault:
    try:
        meant = ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return "not a network", "write it as address/prefix, e.g. 203.0.113.0/24 or 2001:db8::/32"
    alone = f"{cidr.partition('/')[0]}/{meant.max_prefixlen}"
    return "bits of the host are set", f"write {meant}, or {alone} for one address"


def port_fault(port: object) -> Fault | None:
    # ``True`` would pass for 1, and 80.0 for 80.
    if type(port) is not int and not (isinstance(port, str) and _PORTS.fullmatch(port)):
        return "not a port", "give a number, or a range such as 8000-8100"
    first, last = port_range(port)
    if not 1 <= first <= 65535 or not 1 <= last <= 65535:
        return "a port out of range", "use 1 to 65535"
    return ("a range that ends before it begins", f"write {last}-{first}") if first > last else None


def port_range(port: int | str) -> tuple[int, int]:
    """First and last port of what ``port_fault`` accepts."""
    if isinstance(port, int):
        return port, port
    first, _, last = port.partition("-")
    return int(first), int(last or first)


def method_fault(method: str) -> Fault | None:
    """A deny rule with a method that no request has would deny nothing."""
    if _METHOD.fullmatch(method):
        return None
    return "not an HTTP method", "give names such as GET; for all of them leave methods out"


def host_matches(pattern: str, name: str) -> bool:
    """Both normalised.  ``*.example.org`` matches a.example.org and a.b.example.org, not example.org."""
    return name.endswith(pattern[1:]) and len(name) >= len(pattern) if pattern.startswith("*.") else name == pattern


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        # Resolvers take 127.1, 0x7f000001 and 2130706433 for addresses as well.
        return re.fullmatch(r"(0x[0-9a-f]+|\d+)(\.(0x[0-9a-f]+|\d+))*", name) is not None
    return True
