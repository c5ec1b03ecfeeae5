"""Calling home: attempts at one destination in regular intervals."""

import statistics
from typing import ClassVar

from sandboxes.egress.detectors.destinations import Windows, where
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import Event, Finding, RuleInfo, finding

BEACON = RuleInfo("beacon", "attempts in regular intervals", "warning", "Controllability", "T1071")

ATTEMPTS = 8
SHORTEST_S = 5.0
"""Faster is a retry loop, and is counted elsewhere."""
LONGEST_S = 3600.0
VARIATION = 0.15
"""Standard deviation of the intervals over their mean.  Timers are below 0.05, people and builds above 0.5."""


class Beacons:
    """Denied attempts only: polling what the policy allows is a way of working.  Jitter beyond the bound is missed."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (BEACON,)

    def __init__(self) -> None:
        self._times: Windows[float] = Windows(LONGEST_S * ATTEMPTS, items=ATTEMPTS)

    def feed(self, event: Event) -> Finding | None:
        if isinstance(event, ExecEvent) or event.phase != "attempt" or event.verdict.allowed or event.count > 1:
            return None
        key = (event.attempt.protocol, where(event.attempt))
        times = self._times.add(key, event.attempt.at, event.attempt.at)
        gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
        if len(times) < ATTEMPTS or not is_regular(gaps):
            return None
        told = f"{len(times)} attempts, {statistics.mean(gaps):.1f} s apart (deviation {statistics.pstdev(gaps):.2f} s)"
        return finding(BEACON, event, where(event.attempt), [event.attempt.target, told])


def is_regular(gaps_s: list[float]) -> bool:
    mean = statistics.mean(gaps_s)
    return SHORTEST_S <= mean <= LONGEST_S and statistics.pstdev(gaps_s) <= VARIATION * mean
