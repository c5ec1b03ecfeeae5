"""One rule of a policy: what it applies to, checked when it is read.  docs/egress.md."""

from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sandboxes.egress.address import Address, Network, covers, network, special_range
from sandboxes.egress.connection_attempt import Frozen, host_name
from sandboxes.egress.refusal import refused
from sandboxes.egress.rule_checks import cidr_fault, host_fault, host_matches, method_fault, port_fault, port_range

Action = Literal["allow", "deny"]
Forwardable = Literal["tcp", "udp"]

FORWARDED: frozenset[str] = frozenset({"tcp"})
"""What the gateway can forward.  Everything else is recorded and denied, whatever a rule says."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}$"


class Rule(Frozen):
    """A rule applies when protocol, port, method and destination all match.

    With ``hosts`` and ``cidrs`` both, both must hold: the name was resolved, *into* one of these ranges.
    """

    name: str = Field(pattern=NAME)
    """Said to the agent and kept in records."""
    action: Action
    hosts: tuple[str, ...] = Field(default=(), max_length=500)
    """Exact names, or ``*.example.org``: every name below example.org, and not itself."""
    cidrs: tuple[str, ...] = Field(default=(), max_length=500)
    """Networks, e.g. ``203.0.113.0/24``.  A special range is opened only by a network that lies within it."""
    ports: tuple[int | str, ...] = Field(default=(), max_length=100)
    """Single ports, or ranges as ``8000-8100``.  An allow rule has to name them; a deny rule without means all."""
    protocols: tuple[Forwardable, ...] = Field(default=("tcp",), min_length=1)
    methods: tuple[str, ...] = Field(default=(), max_length=20)
    """HTTP methods.  They can be read in plain HTTP only: with methods, an allow rule denies everything encrypted, and
    every change of protocol (``Upgrade``), after which no method could be read."""

    @model_validator(mode="before")
    @classmethod
    def _ports_as_they_were_given(cls, given: Any) -> Any:
        """Before ``True`` becomes 1."""
        ports = given.get("ports") if isinstance(given, dict) else None
        for port in ports if isinstance(ports, list | tuple) else ():
            if (fault := port_fault(port)) is not None:
                raise refused("ports", port, *fault)
        return given

    @field_validator("hosts")
    @classmethod
    def _one_spelling(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(host_name(host) for host in given)

    @field_validator("methods")
    @classmethod
    def _upper_case(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(method.upper() for method in given)

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        faults = (
            *(("hosts", host, host_fault(host)) for host in self.hosts),
            *(("cidrs", cidr, cidr_fault(cidr)) for cidr in self.cidrs),
            *(("methods", method, method_fault(method)) for method in self.methods),
        )
        for field, value, fault in faults:
            if fault is not None:
                raise refused(field, value, *fault)
        if not self.hosts and not self.cidrs:
            raise refused("hosts", (), f"rule '{self.name}' names no destination", "give hosts or cidrs")
        if self.action == "allow":
            self._allows_something()
        return self

    def _allows_something(self) -> None:
        if not self.ports:
            raise refused("ports", (), f"rule '{self.name}' allows without naming ports", "name them; all: '1-65535'")
        if beyond := sorted(set(self.protocols) - FORWARDED):
            raise refused("protocols", beyond[0], "the gateway does not forward it", "use tcp; QUIC clients fall back")

    @cached_property
    def networks(self) -> tuple[Network, ...]:
        return tuple(network(cidr) for cidr in self.cidrs)

    @property
    def destinations(self) -> int:
        """Hosts, networks, or each host in each network."""
        return max(1, len(self.hosts)) * max(1, len(self.cidrs))

    @cached_property
    def port_ranges(self) -> tuple[tuple[int, int], ...]:
        """First and last port of each range; all ports where none is given."""
        return tuple(port_range(port) for port in self.ports) or ((0, 65535),)

    def has_port(self, port: int) -> bool:
        return any(first <= port <= last for first, last in self.port_ranges)

    def names_host(self, name: str) -> bool:
        return any(host_matches(pattern, name) for pattern in self.hosts)

    def reaches(self, address: Address) -> bool:
        """Return whether an allow rule's networks admit the address: a special one only if they name its range."""
        special = special_range(address)
        if special is None:
            return not self.cidrs or any(address in inside for inside in self.networks)
        return any(address in inside and covers(special[0], inside) for inside in self.networks)

    def shuts(self, later: "Rule") -> bool:
        """Return whether nothing is left of ``later`` for the names of this deny rule."""
        return (
            not self.cidrs
            and not self.methods
            and set(later.protocols) <= set(self.protocols)
            and all(
                any(first <= low and high <= last for first, last in self.port_ranges)
                for low, high in later.port_ranges
            )
        )
