"""Calling home: attempts at one destination in regular intervals."""

import math
import statistics
from collections.abc import Hashable, Iterator
from typing import ClassVar

from sandboxes.egress.connection_attempt import ConnectionAttempt
from sandboxes.egress.detectors.destinations import REGISTRIES, Windows, below, names_of, special_kind, where, zone_of
from sandboxes.egress.detectors.detector import Context, Detector
from sandboxes.egress.detectors.finding import DetectorEvent, Finding, RuleInfo, finding
from sandboxes.egress.record import EgressRecord

BEACON = RuleInfo(
    "beacon",
    "attempts in regular intervals",
    "warning",
    "Controllability",
    "T1071",
    "6 denied attempts at one destination, 0.25 s to 6 h apart, that vary by less than 40 %; 8 where they "
    "are 30 s apart; names without a dot and reserved ones (`.test`, `.local`) lead nowhere outside",
    "jitter beyond the bound, and intervals longer than the sandbox lives",
    "`beaconing.VARIATION`",
)

ATTEMPTS = 6
SLOW_S = 30.0
SLOW_ATTEMPTS = 8
"""What is that slow may be chance: more of them are asked for."""
TOGETHER_S = 0.05
"""Attempts so near each other are one: of both families, or a name and its address."""
SERVICES = frozenset({53, 123, 1433, 1521, 3306, 5432, 5672, 6379, 9092, 11211, 27017})
"""Ports of time, names and databases, which are waited for by asking again."""
SHORTEST_S = 0.25
"""Faster is a loop without a timer."""
LONGEST_S = 6 * 3600.0
VARIATION = 0.4
"""Standard deviation of the intervals over their mean: +-60 % of jitter is 0.35, doubling retries are 0.8 and more."""
GROWTH = 1.5
"""Retries wait longer each time; intervals of which each is this much longer than the one before are no beacon."""


class Beacons(Detector):
    """Denied attempts only: polling what the policy allows, or oneself, is a way of working."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (BEACON,)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._times: Windows[float] = Windows(LONGEST_S * SLOW_ATTEMPTS, items=3 * SLOW_ATTEMPTS)

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if not isinstance(event, EgressRecord) or event.phase != "attempt" or event.decision.allowed or event.count > 1:
            return
        if event.attempt.protocol == "dns" and _leads_nowhere(event.attempt.name or ""):
            return
        asks = event.attempt.protocol == "dns"
        if not asks and (special_kind(event.attempt) in {"loopback", "unspecified"} or event.attempt.port in SERVICES):
            return
        if any(below(name, REGISTRIES) for name in names_of(event.attempt)):
            return
        times = self._times.add(home_of(event.attempt), event.attempt.at, event.attempt.at)
        times = [at for at, before in zip(times, [-math.inf, *times], strict=False) if at - before > TOGETHER_S]
        gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
        if (
            len(times) < ATTEMPTS
            or (statistics.mean(gaps) >= SLOW_S and len(times) < SLOW_ATTEMPTS)
            or not is_regular(gaps)
        ):
            return
        evidence = (
            f"{len(times)} attempts, {statistics.mean(gaps):.1f} s apart (deviation {statistics.pstdev(gaps):.2f} s)"
        )
        yield finding(BEACON, event, where(event.attempt), [event.attempt.target, evidence])


def _leads_nowhere(name: str) -> bool:
    """Names that no resolver outside answers: neighbours (``db``), reserved ones (RFC 6761, 6762), reverse lookups."""
    plain = name.rstrip(".").lower()
    return "." not in plain or plain.rpartition(".")[2] in {"arpa", "test", "localhost", "invalid", "local"}


def home_of(attempt: ConnectionAttempt) -> Hashable:
    """Whatever the port, and for queries whatever stands below the zone."""
    if attempt.protocol == "dns":
        return "dns", zone_of(attempt.name or "")[1]
    return attempt.protocol, attempt.sni or attempt.name or attempt.address


def is_regular(gaps_s: list[float]) -> bool:
    mean = statistics.mean(gaps_s)
    grows = all(later >= GROWTH * earlier for earlier, later in zip(gaps_s, gaps_s[1:], strict=False))
    return not grows and SHORTEST_S <= mean <= LONGEST_S and statistics.pstdev(gaps_s) <= VARIATION * mean
