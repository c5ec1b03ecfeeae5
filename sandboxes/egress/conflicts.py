"""Whether a rule can be understood together with those before it.

Order decides, and that is easy to misread.  So of two rules with different actions that overlap, the
earlier one must be a plain *exception* to the later: a narrower destination, or the same destination
and fewer ports or methods.  Port lists that cross are refused.  So is a rule of which nothing is left
by those before it.  Hosts are compared with hosts and networks with networks: whether a name lies in a
network is not known here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from sandboxes.egress.address import Network
from sandboxes.egress.rule import Rule
from sandboxes.egress.rule_checks import host_matches


@dataclass(frozen=True, slots=True)
class Conflict:
    field: str
    """The field of the later rule."""
    value: object
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Place:
    """One destination of a rule: a host, a network, or a host that must lie in a network."""

    host: str | None
    network: Network | None
    first: int = 0
    """The first address of the network, as numbers: places are compared by the hundred thousand."""
    last: int = 0

    @classmethod
    def of(cls, host: str | None, network: Network | None) -> "_Place":
        if network is None:
            return cls(host, None)
        family = network.version << 128
        return cls(host, network, family + int(network.network_address), family + int(network.broadcast_address))

    @property
    def text(self) -> str:
        return " in ".join(str(part) for part in (self.host, self.network) if part is not None)

    def covers(self, other: "_Place") -> bool:
        if self.host is not None and (other.host is None or not _host_covers(self.host, other.host)):
            return False
        if self.network is None:
            return True
        return other.network is not None and self.first <= other.first and other.last <= self.last

    def meets(self, other: "_Place") -> bool:
        """Whether both are known to have a destination in common."""
        shared = False
        if self.host is not None and other.host is not None:
            shared = _host_covers(self.host, other.host) or _host_covers(other.host, self.host)
            if not shared:
                return False
        if self.network is not None and other.network is not None:
            return self.first <= other.last and other.first <= self.last
        return shared


def conflict_between(earlier: Sequence[Rule], rule: Rule) -> Conflict | None:
    for other in earlier:
        if other.action != rule.action and (found := _contradiction(other, rule)) is not None:
            return found
    return _unreachable(earlier, rule)


def _contradiction(earlier: Rule, rule: Rule) -> Conflict | None:
    if not _ways_meet(earlier, rule):
        return None
    for earlier_place, place in product(_places(earlier), _places(rule)):
        if not earlier_place.meets(place) or (place.covers(earlier_place) and earlier_place != place):
            continue
        if earlier_place == place and _ways_nest(earlier, rule) and not _ways_cover(earlier, rule):
            continue
        return Conflict(
            field="hosts" if place.host is not None else "cidrs",
            value=place.text,
            problem=f"rule '{earlier.name}' says {earlier.action} and this one {rule.action} for {place.text}",
            remedy="take the overlap out of one of them; only a narrower rule before a broader one is an exception",
        )
    return None


def _unreachable(earlier: Sequence[Rule], rule: Rule) -> Conflict | None:
    covering = [other for other in earlier if _ways_cover(other, rule)]
    hiding = {
        next((other.name for other in covering if any(hidden_by.covers(place) for hidden_by in _places(other))), None)
        for place in _places(rule)
    }
    if None in hiding:
        return None
    names = ", ".join(f"'{name}'" for name in sorted(filter(None, hiding)))
    return Conflict("name", rule.name, f"never reached: {names} match all of it before", "remove it or move it up")


def _places(rule: Rule) -> Iterable[_Place]:
    return [_Place.of(host, inside) for host, inside in product(rule.hosts or (None,), rule.networks or (None,))]


def _ways_meet(one: Rule, other: Rule) -> bool:
    """Protocols, ports and methods have something in common."""
    pairs = product(one.port_ranges, other.port_ranges)
    ports = any(low <= last and first <= high for (first, last), (low, high) in pairs)
    methods = not one.methods or not other.methods or bool(set(one.methods) & set(other.methods))
    return ports and methods and bool(set(one.protocols) & set(other.protocols))


def _ways_cover(one: Rule, other: Rule) -> bool:
    """Protocols, ports and methods of ``other`` are all in ``one``."""
    return _ports_cover(one, other) and _methods_cover(one, other) and set(other.protocols) <= set(one.protocols)


def _ways_nest(one: Rule, other: Rule) -> bool:
    """Return whether one has all of the other's ports, and one all of the other's methods, be it the other way
    round."""
    ports = _ports_cover(one, other) or _ports_cover(other, one)
    return ports and (_methods_cover(one, other) or _methods_cover(other, one))


def _ports_cover(one: Rule, other: Rule) -> bool:
    return all(any(first <= low and high <= last for first, last in one.port_ranges) for low, high in other.port_ranges)


def _methods_cover(one: Rule, other: Rule) -> bool:
    return not one.methods or (bool(other.methods) and set(other.methods) <= set(one.methods))


def _host_covers(pattern: str, other: str) -> bool:
    """Every name of ``other`` (a host or a wildcard) is one of ``pattern``'s."""
    return pattern == other or (pattern[0] == "*" and host_matches(pattern, other.removeprefix("*.")))
