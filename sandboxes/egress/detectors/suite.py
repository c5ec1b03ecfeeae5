"""All detectors of one box.  ``feed`` an event, get what is new about it."""

from collections import OrderedDict

from sandboxes.egress.detectors.beaconing import Beacons
from sandboxes.egress.detectors.credentials import Credentials
from sandboxes.egress.detectors.destinations import KEPT
from sandboxes.egress.detectors.exfiltration import Drops, Volume
from sandboxes.egress.detectors.finding import Detector, Event, Finding, RuleInfo
from sandboxes.egress.detectors.installs import Installs
from sandboxes.egress.detectors.mining import Mining
from sandboxes.egress.detectors.names import Names
from sandboxes.egress.detectors.processes import ForkBombs, Privileges
from sandboxes.egress.detectors.scans import Metadata, Scanners, Scans
from sandboxes.egress.detectors.tampering import PROTECTED, Interception, Judgement
from sandboxes.egress.detectors.tunnels import Tunnels
from sandboxes.egress.detectors.unread import Unread
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.verdict import may_resolve

QUIET_S = 300.0
"""A finding of the same rule, subject and severity within this time is the same story."""

_KINDS = (Mining, Tunnels, Scans, Scanners, Metadata, Names, Volume, Drops, Beacons, Credentials, ForkBombs, Privileges,
          Installs, Interception, Judgement)  # fmt: skip

RULES: tuple[RuleInfo, ...] = tuple(rule for kind in _KINDS for rule in kind.rules)


class Suite:
    """One per box; not for several threads at once.

    ``without`` are ids of rules that an environment does not want.  ``uploads`` are names to which much
    may be sent, ``protected`` patterns of paths that judge the agent.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        without: frozenset[str] = frozenset(),
        uploads: tuple[str, ...] = (),
        protected: tuple[str, ...] = PROTECTED,
    ) -> None:
        if unknown := without - {rule.id for rule in RULES}:
            raise ValueError(f"without = {sorted(unknown)}: no such rule; there are: {', '.join(r.id for r in RULES)}")
        self._without = without
        self._said: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._detectors: tuple[Detector, ...] = (
            Mining(), Tunnels(), Scans(), Scanners(), Metadata(), Names(), Volume(uploads), Drops(), Beacons(),
            Credentials(), ForkBombs(), Privileges(), Installs(lambda host: may_resolve(policy, host)), Interception(),
            Judgement(protected), Unread(),
        )  # fmt: skip

    def feed(self, event: Event) -> list[Finding]:
        found = [one for one in (detector.feed(event) for detector in self._detectors) if one is not None]
        return [one for one in found if one.rule not in self._without and self._is_new(one)]

    def _is_new(self, one: Finding) -> bool:
        key = (one.rule, one.subject, one.severity)
        told = self._said.get(key)
        if told is not None and one.at - told < QUIET_S:
            return False
        self._said[key] = one.at
        self._said.move_to_end(key)
        if len(self._said) > KEPT:
            self._said.popitem(last=False)
        return True
